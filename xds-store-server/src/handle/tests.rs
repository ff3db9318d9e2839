use std::sync::mpsc;

use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Batch, Changes, EngineLimits, EngineRevision, MemoryEngine};
use xds_store::store::{Identity, Store};

use super::*;
use crate::standing::Condition;

/// An engine whose writes wait for an order of the test.
#[derive(Debug)]
struct GatedEngine {
    engine: MemoryEngine,
    orders: mpsc::Receiver<Order>,
}

#[derive(Debug)]
enum Order {
    Write,
    Break,
    Panic,
}

impl Engine for GatedEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        self.engine.reader()
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        match self.orders.recv().unwrap() {
            Order::Write => self.engine.commit(batch),
            Order::Break => Err(EngineError::Broken("no more disk".into())),
            Order::Panic => panic!("ordered by a test"),
        }
    }

    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        self.engine.changes(key)
    }
}

fn memory() -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    engine
}

fn gated(config: StoreConfig) -> (StoreHandle, mpsc::Sender<Order>) {
    let (orders, receiver) = mpsc::channel();
    let engine = GatedEngine { engine: memory(), orders: receiver };
    (StoreHandle::start(Box::new(engine), config).unwrap(), orders)
}

fn put(name: &str) -> Draft {
    let key = proto::Key { type_url: "example.com/acme.T".into(), name: name.into(), when: String::new() };
    let content = proto::Content { payload: "any message".into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    let change = proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None };
    let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
    Draft::parse(request, "token:me".into()).unwrap()
}

/// A commit whose caller waits on another task; it is in the queue when this returns.
async fn waiting(store: &StoreHandle, name: &str) -> tokio::task::JoinHandle<Result<Committed, Refused>> {
    let before = store.waiting_commits().0;
    let (handle, draft) = (store.clone(), put(name));
    let task = tokio::spawn(async move { handle.commit(draft).await });
    while store.waiting_commits().0 == before {
        tokio::task::yield_now().await;
    }
    task
}

fn engine_revision(store: &StoreHandle) -> u64 {
    store.view().unwrap().revision().0
}

#[tokio::test]
async fn st17_commits_that_arrive_during_a_write_are_written_by_the_next_batch() {
    let (store, orders) = gated(StoreConfig::default());
    let first = waiting(&store, "first").await;
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(waiting(&store, &format!("other {number}")).await);
    }
    orders.send(Order::Write).unwrap();
    assert_eq!(first.await.unwrap().unwrap().revision, 1);
    orders.send(Order::Write).unwrap();
    for (number, other) in others.into_iter().enumerate() {
        assert_eq!(other.await.unwrap().unwrap().revision, 2 + number as u64);
    }
    // The batch of `init` is the first.
    assert_eq!(engine_revision(&store), 3);
}

#[tokio::test]
async fn a_commit_whose_caller_goes_away_is_finished() {
    let (store, orders) = gated(StoreConfig::default());
    let caller = waiting(&store, "a").await;
    caller.abort();
    _ = caller.await;
    orders.send(Order::Write).unwrap();
    store.stop().await;
    assert_eq!(store.standing().borrow().revision, 1);
    assert_eq!(store.waiting_commits(), (0, 0));
}

#[tokio::test]
async fn st42_a_full_queue_refuses_and_names_its_option() {
    let (store, orders) = gated(StoreConfig { queue_commits: 2, ..StoreConfig::default() });
    let callers = [waiting(&store, "a").await, waiting(&store, "b").await];
    let refused = store.commit(put("c")).await.unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceExhausted);
    assert!(refused.message.contains("--commit-queue-limit allows 2 commits"), "{}", refused.message);
    for caller in callers {
        orders.send(Order::Write).unwrap();
        caller.await.unwrap().unwrap();
    }
    orders.send(Order::Write).unwrap();
    store.commit(put("c")).await.unwrap();
}

#[tokio::test]
async fn st42_the_bytes_that_wait_are_limited_but_one_commit_always_passes() {
    let (store, orders) = gated(StoreConfig { queue_bytes: 1, ..StoreConfig::default() });
    let caller = waiting(&store, "a").await;
    assert_eq!(store.commit(put("b")).await.unwrap_err().code, RefusalCode::ResourceExhausted);
    orders.send(Order::Write).unwrap();
    caller.await.unwrap().unwrap();
}

#[tokio::test]
async fn st21_after_a_failed_write_the_store_is_read_only_and_readers_go_on() {
    let (store, orders) = gated(StoreConfig::default());
    orders.send(Order::Break).unwrap();
    assert_eq!(store.commit(put("a")).await.unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.commit(put("b")).await.unwrap_err().code, RefusalCode::Unavailable);
    let standing = store.standing().borrow().clone();
    assert_eq!(standing.condition, Condition::ReadOnly);
    assert!(standing.reason.contains("no more disk"), "{}", standing.reason);
    store.latest_view().await.unwrap();
}

#[tokio::test]
async fn a_panic_of_the_writer_answers_all_callers_and_leaves_a_read_only_store() {
    let (store, orders) = gated(StoreConfig::default());
    let judged = waiting(&store, "a").await;
    let queued = waiting(&store, "b").await;
    orders.send(Order::Panic).unwrap();
    assert_eq!(judged.await.unwrap().unwrap_err().code, RefusalCode::Unknown);
    assert_eq!(queued.await.unwrap().unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.commit(put("c")).await.unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.standing().borrow().condition, Condition::ReadOnly);
    store.latest_view().await.unwrap();
    store.stop().await;
}

#[tokio::test]
async fn st6_a_stop_refuses_new_commits_and_finishes_those_that_wait() {
    let (store, orders) = gated(StoreConfig::default());
    let callers = [waiting(&store, "a").await, waiting(&store, "b").await];
    let mut stopping = std::pin::pin!(store.stop());
    tokio::select! {
        biased;
        () = &mut stopping => panic!("commits wait"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(store.commit(put("late")).await.unwrap_err().code, RefusalCode::Unavailable);
    for caller in callers {
        orders.send(Order::Write).unwrap();
        caller.await.unwrap().unwrap();
    }
    stopping.await;
    assert_eq!(store.standing().borrow().condition, Condition::Stopping);
}

#[tokio::test]
async fn st5_the_first_commit_ends_the_wait() {
    let store = StoreHandle::start(Box::new(memory()), StoreConfig::default()).unwrap();
    assert_eq!(store.standing().borrow().condition, Condition::Waiting);
    let empty = Draft::parse(proto::CommitRequest::default(), "token:me".into()).unwrap();
    store.commit(empty).await.unwrap();
    let standing = store.standing().borrow().clone();
    assert_eq!((standing.condition, standing.revision), (Condition::Serving, 1));
}
