use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::phase::{Convert, Converter, PlanSpec, Schemas};
use xds_store::store::{Identity, Store};

use super::*;
use crate::config::StoreConfig;

const OLD: &str = "example.com/acme.v1.T";
const NEW: &str = "example.com/acme.v2.T";

/// Refuses the payload `odd`.
#[derive(Debug)]
struct NoOdd;

impl Convert for NoOdd {
    fn convert(&self, payload: &Bytes, _: &str) -> Result<Bytes, String> {
        if &payload[..] == b"odd" { Err("an odd payload".to_owned()) } else { Ok(payload.clone()) }
    }
}

fn schemas(is_heartbeat: bool) -> Schemas {
    let plan = PlanSpec {
        number: 1,
        name: "t-v2".into(),
        from_type: OLD.into(),
        from_names: Vec::new(),
        to_type: NEW.into(),
        to_name: "{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Code(Arc::new(NoOdd)),
        down: Converter::Missing,
        heartbeat: is_heartbeat,
        rewrite_references: false,
    };
    Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap()
}

fn new_engine() -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    engine
}

fn start(engine: &MemoryEngine, schemas: Schemas, says_alive: bool) -> StoreHandle {
    let config = StoreConfig { schemas: Arc::new(schemas), says_alive, ..StoreConfig::default() };
    StoreHandle::start(Box::new(engine.clone()), config).unwrap()
}

async fn put(store: &StoreHandle, name: &str, payload: &str) {
    let key = proto::Key { type_url: OLD.into(), name: name.into(), when: String::new() };
    let content = proto::Content { payload: payload.to_owned().into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    let change = proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
    store.commit(store.draft(request, "me".into()).unwrap()).await.unwrap();
}

fn phase(store: &StoreHandle) -> u32 {
    store.standing().borrow().plans[0].phase.number()
}

#[tokio::test]
async fn sv32_a_record_that_cannot_be_converted_ends_the_run_and_the_next_one_goes_on() {
    let store = start(&new_engine(), schemas(false), false);
    put(&store, "a", "1").await;
    put(&store, "b", "odd").await;
    let Err(RunError::Failed { plan, phase: Phase::F3, failed: 1, failures }) = store.run_plans(|_| {}).await
    else {
        panic!("it does not fail in F3");
    };
    assert_eq!((&*plan, failures[0].0.name().as_str()), ("t-v2", "b"));
    assert!(failures[0].1.contains("an odd payload"), "{failures:?}");
    put(&store, "b", "2").await;
    store.run_plans(|_| {}).await.unwrap();
    let standing = store.standing();
    let counts = standing.borrow().plans[0].counts;
    assert_eq!((phase(&store), counts.old, counts.new), (5, 0, 2));
    // What is done stays done.
    let revision = standing.borrow().revision();
    store.run_plans(|_| {}).await.unwrap();
    assert_eq!(standing.borrow().revision(), revision);
}

#[tokio::test]
async fn sv32_sv24_a_heartbeat_plan_runs_only_if_writers_have_converted_all_records() {
    let store = start(&new_engine(), schemas(true), false);
    put(&store, "a", "1").await;
    let error = store.run_plans(|_| {}).await.unwrap_err();
    assert!(matches!(error, RunError::Heartbeat { behind: 1, .. }), "{error}");
    assert_eq!(phase(&store), 0);
    let key = proto::Key { type_url: OLD.into(), name: "a".into(), when: String::new() };
    let act = Some(proto::change::Act::Delete(proto::Delete::default()));
    let change = proto::Change { key: Some(key), act, condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
    store.commit(store.draft(request, "me".into()).unwrap()).await.unwrap();
    store.run_plans(|_| {}).await.unwrap();
    assert_eq!(phase(&store), 5);
}

#[tokio::test]
async fn sv32_sv2_a_ceiling_ends_the_run_in_each_phase() {
    let engine = new_engine();
    let below = || schemas(false).with_ceiling(NEW, "1.0".parse().unwrap()).unwrap();
    let store = start(&engine, below(), false);
    put(&store, "b", "odd").await;
    assert!(matches!(store.run_plans(|_| {}).await, Err(RunError::Hidden { .. })));
    store.stop().await;
    let store = start(&engine, schemas(false), false);
    store.run_plans(|_| {}).await.unwrap_err();
    assert_eq!(phase(&store), 3);
    store.stop().await;
    // Without the check it would wait for a pass for ever.
    let store = start(&engine, below(), false);
    assert!(matches!(store.run_plans(|_| {}).await, Err(RunError::Hidden { .. })));
}

#[tokio::test]
async fn sv32_plans_do_not_run_while_another_server_is_alive() {
    let engine = new_engine();
    let first = start(&engine, schemas(false), true);
    put(&first, "a", "1").await;
    let both = [first, start(&engine, schemas(false), true)];
    // The put, and that each of them is alive.
    both[1].standing().wait_for(|standing| standing.revision() == 3).await.unwrap();
    for store in &both {
        let error = store.run_plans(|_| {}).await.unwrap_err();
        assert!(error.to_string().contains("of this store is alive"), "{error}");
    }
    let [first, second] = both;
    // It says that it has ended.
    first.stop().await;
    second.run_plans(|_| {}).await.unwrap();
    assert_eq!(phase(&second), 5);
}
