//! What the cache has while records are migrated.

use std::time::Duration;

use xds_core::Cache;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::MemoryEngine;
use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store::store::Identity;

use super::*;

const OLD: &str = "example.com/acme.v1.T";
const NEW: &str = "example.com/acme.v2.T";

fn schemas() -> Schemas {
    let plan = PlanSpec {
        number: 1,
        name: "t-v2".into(),
        from_type: OLD.into(),
        from_names: Vec::new(),
        to_type: NEW.into(),
        to_name: "{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
    };
    Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap()
}

fn start(engine: &MemoryEngine, schemas: Schemas) -> (StoreHandle, Arc<Cache>) {
    let cache = Cache::new();
    let (cached, schemas) = (Arc::clone(&cache), Arc::new(schemas));
    let config = StoreConfig { cache: cached, schemas, ..StoreConfig::default() };
    (StoreHandle::start(Box::new(engine.clone()), config).unwrap(), cache)
}

/// A change of the record `name` of the old form: a put of this payload, or its deletion.
async fn change(store: &StoreHandle, name: &str, payload: Option<&str>) {
    let act = match payload {
        Some(payload) => {
            let content = proto::Content { payload: payload.to_owned().into(), ..Default::default() };
            proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() })
        }
        None => proto::change::Act::Delete(proto::Delete::default()),
    };
    let key = proto::Key { type_url: OLD.into(), name: name.into(), when: String::new() };
    let change = proto::Change { key: Some(key), act: Some(act), condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
    store.commit(store.draft(request, "me".into()).unwrap()).await.unwrap();
}

async fn step(store: &StoreHandle, from: Phase, to: Phase) {
    let draft = Draft::set_phase(PhaseStep { plan: 1, from, to }, "op".into(), false);
    store.commit(draft).await.unwrap();
}

/// The names and payloads of both types.
fn served(cache: &Cache) -> [Vec<String>; 2] {
    let snapshot = cache.snapshot();
    [OLD, NEW].map(|type_url| {
        let resources = snapshot.of_type(&type_url.into());
        let variants = resources.into_iter().flat_map(|resources| resources.iter());
        let variants = variants.flat_map(|(_, variants)| variants.iter());
        let mut texts: Vec<_> = variants
            .map(|variant| {
                let payload = String::from_utf8_lossy(variant.payload()).into_owned();
                format!("{}={payload}", variant.name().as_str())
            })
            .collect();
        texts.sort();
        texts
    })
}

#[tokio::test]
async fn sv29_clients_get_the_forms_that_the_phase_serves() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let (store, cache) = start(&engine, schemas());
    change(&store, "a", Some("1")).await;
    step(&store, Phase::F0, Phase::F1).await;
    change(&store, "b", Some("1")).await;
    let nothing = Vec::<String>::new;
    assert_eq!(served(&cache), [vec!["a=1".to_owned(), "b=1".to_owned()], nothing()]);

    // The record `a` has no new form yet.
    step(&store, Phase::F1, Phase::F2).await;
    let both =
        |texts: &[&str]| [(); 2].map(|()| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(served(&cache), both(&["a=1", "b=1"]));
    change(&store, "a", Some("2")).await;
    change(&store, "b", None).await;
    assert_eq!(served(&cache), both(&["a=2"]));
    // A server that starts serves the same; one below the new major version serves the old form.
    assert_eq!(served(&start(&engine, schemas()).1), both(&["a=2"]));
    let below = schemas().with_ceiling(NEW, "1.0".parse().unwrap()).unwrap();
    let (_below, of_below) = start(&engine, below);
    assert_eq!(served(&of_below), [vec!["a=2".to_owned()], nothing()]);

    step(&store, Phase::F2, Phase::F1).await;
    assert_eq!(served(&cache), [vec!["a=2".to_owned()], nothing()]);
}

#[tokio::test]
async fn sv25_sv29_in_f4_clients_get_the_old_form_from_the_new_one_and_in_f5_no_more() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let (store, cache) = start(&engine, schemas());
    change(&store, "a", Some("1")).await;
    for (from, to) in [(Phase::F0, Phase::F1), (Phase::F1, Phase::F2), (Phase::F2, Phase::F3)] {
        step(&store, from, to).await;
    }
    // The step waits for a clean pass.
    let f4 = || Draft::set_phase(PhaseStep { plan: 1, from: Phase::F3, to: Phase::F4 }, "op".into(), false);
    while let Err(refused) = store.commit(f4()).await {
        assert_eq!(refused.code, RefusalCode::FailedPrecondition);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let both =
        |texts: &[&str]| [(); 2].map(|()| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(served(&cache), both(&["a=1"]));
    change(&store, "a", Some("2")).await;
    change(&store, "b", Some("1")).await;
    assert_eq!(served(&cache), both(&["a=2", "b=1"]));
    assert_eq!(served(&start(&engine, schemas()).1), both(&["a=2", "b=1"]));
    change(&store, "b", None).await;
    assert_eq!(served(&cache), both(&["a=2"]));
    step(&store, Phase::F4, Phase::F5).await;
    assert_eq!(served(&cache), [Vec::new(), vec!["a=2".to_owned()]]);
    assert_eq!(served(&start(&engine, schemas()).1), [Vec::new(), vec!["a=2".to_owned()]]);
    step(&store, Phase::F5, Phase::F4).await;
    step(&store, Phase::F4, Phase::F3).await;
    assert_eq!(served(&cache), both(&["a=2"]));
}

/// A plan of `OLD` that changes neither type nor name, and the constraints and payloads of its type.
fn of_variants() -> Schemas {
    let plan = PlanSpec {
        number: 1,
        name: "t-v2".into(),
        from_type: OLD.into(),
        from_names: Vec::new(),
        to_type: OLD.into(),
        to_name: "{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
    };
    Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap()
}

fn variants(cache: &Cache) -> Vec<String> {
    let snapshot = cache.snapshot();
    let resources = snapshot.of_type(&OLD.into()).into_iter().flat_map(|resources| resources.iter());
    let variants = resources.flat_map(|(_, variants)| variants.iter());
    let mut texts: Vec<_> = variants
        .map(|variant| {
            let payload = String::from_utf8_lossy(variant.payload()).into_owned();
            format!("{} [{}] {payload}", variant.name().as_str(), variant.constraints())
        })
        .collect();
    texts.sort();
    texts
}

#[tokio::test]
async fn sv31_a_plan_that_keeps_type_and_name_is_served_as_two_variants() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let (store, cache) = start(&engine, of_variants());
    change(&store, "a", Some("1")).await;
    step(&store, Phase::F0, Phase::F1).await;
    change(&store, "b", Some("1")).await;
    let alone = ["a [true] 1", "b [true] 1"];
    assert_eq!(variants(&cache), alone);
    let both = ["a [xds.schema!=2] 1", "a [xds.schema=2] 1", "b [xds.schema!=2] 1", "b [xds.schema=2] 1"];
    step(&store, Phase::F1, Phase::F2).await;
    assert_eq!(variants(&cache), both);
    assert_eq!(variants(&start(&engine, of_variants()).1), both);
    // A server below the new major version serves the old form alone.
    let below = of_variants().with_ceiling(OLD, "1.0".parse().unwrap()).unwrap();
    assert_eq!(variants(&start(&engine, below).1), alone);
    step(&store, Phase::F2, Phase::F1).await;
    assert_eq!(variants(&cache), alone);
    step(&store, Phase::F1, Phase::F2).await;
    step(&store, Phase::F2, Phase::F3).await;
    let f4 = || Draft::set_phase(PhaseStep { plan: 1, from: Phase::F3, to: Phase::F4 }, "op".into(), false);
    while store.commit(f4()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    change(&store, "b", None).await;
    change(&store, "a", Some("2")).await;
    let both = ["a [xds.schema!=2] 2", "a [xds.schema=2] 2"];
    assert_eq!(variants(&cache), both);
    assert_eq!(variants(&start(&engine, of_variants()).1), both);
    step(&store, Phase::F4, Phase::F5).await;
    assert_eq!(variants(&cache), ["a [xds.schema=2] 2"]);
    step(&store, Phase::F5, Phase::F4).await;
    assert_eq!(variants(&cache), both);
}
