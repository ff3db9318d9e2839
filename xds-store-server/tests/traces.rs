//! Spans of a running store, for any subscriber of the program.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::phase::{Converter, Plan, PlanSpec, Schemas};
use xds_store::store::{Identity, Store};
use xds_store_server::{StoreConfig, StoreHandle};

/// A span: its text, and how many hold it.
#[derive(Debug, Default)]
struct Spans {
    all: Vec<(String, usize)>,
    /// In the order of their ends.
    ended: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Mutex<Spans>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

fn index(span: &Id) -> usize {
    usize::try_from(span.into_u64()).unwrap() - 1
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["store_migration", "pass"].contains(&metadata.name())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let all = &mut self.0.lock().unwrap().all;
        let parent = span.parent().map(|parent| format!("{}/", parent.into_u64()));
        let mut text = parent.unwrap_or_default() + span.metadata().name();
        span.record(&mut Text(&mut text));
        all.push((text, 1));
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Text(&mut self.0.lock().unwrap().all[index(span)].0));
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.0.lock().unwrap().all[index(span)].1 += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut spans = self.0.lock().unwrap();
        let (text, holders) = &mut spans.all[index(&span)];
        *holders -= 1;
        let ended = (*holders == 0).then(|| text.clone());
        let is_end = ended.is_some();
        spans.ended.extend(ended);
        is_end
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn schemas() -> Schemas {
    let plan = PlanSpec {
        number: 1,
        name: "t-v2".into(),
        from_type: "example.com/acme.v1.T".into(),
        from_names: Vec::new(),
        to_type: "example.com/acme.v2.T".into(),
        to_name: "{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
    };
    Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap()
}

/// A put of one record of the old form.
fn put(number: usize) -> proto::Change {
    let key = proto::Key {
        type_url: "example.com/acme.v1.T".into(),
        name: format!("t{number}"),
        when: String::new(),
    };
    let content = proto::Content { payload: "1".into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None }
}

#[tokio::test]
async fn sv32_a_migration_is_a_span_with_one_for_each_pass() {
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(recorder.clone()).unwrap();
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let mut config = StoreConfig::default();
    config.schemas = Arc::new(schemas());
    let store = StoreHandle::start(Box::new(engine), config).unwrap();
    // ST5: without a commit there is nothing to migrate.
    store.run_plans(|_| panic!("no plan runs")).await.unwrap();
    let changes = (0..150).map(put).collect();
    let request = proto::CommitRequest { changes, ..Default::default() };
    store.commit(store.draft(request, "me".into()).unwrap()).await.unwrap();
    let mut phases = Vec::new();
    store.run_plans(|progress| phases.push(progress.phase.number())).await.unwrap();
    phases.dedup();
    assert_eq!(phases, [0, 1, 2, 3, 4, 5]);
    store.stop().await;
    let ended = std::mem::take(&mut recorder.0.lock().unwrap().ended);
    let pass = |phase: u32, records: u32, is_clean: bool| {
        format!("1/pass phase={phase} records={records} failed=0 clean={is_clean}")
    };
    let passes = [pass(3, 300, false), pass(3, 300, true), pass(5, 300, false), pass(5, 300, true)];
    assert_eq!(ended[..4], passes, "{ended:#?}");
    assert_eq!(ended[4..], ["store_migration plan=\"t-v2\" phase=1 phase=2 phase=3 phase=4 phase=5"]);
}
