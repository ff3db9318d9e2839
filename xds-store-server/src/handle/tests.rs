use std::sync::mpsc;

use xds_core::{Cache, CommitOutcome};
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Batch, Changes, EngineLimits, EngineRevision, MemoryEngine};
use xds_store::store::{Action, Config, Event, Identity, Store, Ticket};

use super::*;
use crate::standing::Condition;
use crate::statistics::Stage;

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

const TYPE: &str = "example.com/acme.T";

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
    put_of(TYPE, name)
}

fn put_of(type_url: &str, name: &str) -> Draft {
    Draft::parse(request(type_url, name), "token:me".into()).unwrap()
}

fn request(type_url: &str, name: &str) -> proto::CommitRequest {
    let key = proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() };
    let content = proto::Content { payload: "any message".into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    let change = proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None };
    proto::CommitRequest { changes: vec![change], ..Default::default() }
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
    assert_eq!(store.standing().borrow().revision(), 1);
    assert_eq!(store.waiting_commits(), (0, 0));
}

#[tokio::test]
async fn a_full_queue_refuses_and_names_its_option() {
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
async fn the_bytes_that_wait_are_limited_but_one_commit_always_passes() {
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
    // It may have been applied.
    assert_eq!(store.commit(put("a")).await.unwrap_err().code, RefusalCode::Unknown);
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
    assert_eq!((standing.condition, standing.revision()), (Condition::Serving, 1));
}

fn start(engine: MemoryEngine, cache: &Arc<Cache>) -> Result<StoreHandle, StartError> {
    StoreHandle::start(Box::new(engine), StoreConfig { cache: Arc::clone(cache), ..StoreConfig::default() })
}

fn shown(cache: &Cache) -> Vec<String> {
    let snapshot = cache.snapshot();
    let types = snapshot.counts().filter_map(|(type_url, _)| snapshot.of_type(type_url));
    types.flat_map(|of_type| of_type.iter().map(|(name, _)| name.as_str().to_owned())).collect()
}

#[tokio::test]
async fn st5_st57_a_store_says_nothing_before_its_first_commit_and_everything_at_a_start() {
    let mut engine = memory();
    let cache = Cache::new();
    let mut copy = MemoryEngine::default();
    copy.commit(&Store::init(&Identity::default())).unwrap();
    let store = start(copy, &cache).unwrap();
    assert!(!cache.snapshot().is_synced());
    store.commit(put("a")).await.unwrap();
    assert_eq!(shown(&cache), ["a"]);

    let (config, reader) = (Config::new(engine.limits(), 1), engine.reader());
    let mut machine = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
    for (ticket, name) in [(1, "a"), (2, "b")] {
        let mut actions = machine.step(Event::Commit(Ticket(ticket), put(name)), 0, &*reader);
        let Some(Action::Write(batch)) = actions.pop() else { panic!("it changes something") };
        machine.step(Event::Written(engine.commit(&batch)), 0, &*reader);
    }
    let restarted = Cache::new();
    start(engine, &restarted).unwrap();
    assert_eq!(shown(&restarted), ["a", "b"]);
    assert_eq!(restarted.commit_counts().committed, 1);
}

#[tokio::test]
async fn a_transaction_has_the_revision_the_author_and_the_message_of_its_commit() {
    let cache = Cache::new();
    let store = start(memory(), &cache).unwrap();
    let mut commits = cache.commits(8);
    let request = proto::CommitRequest { message: "why".into(), ..Default::default() };
    store.commit(Draft::parse(request, "token:me".into()).unwrap()).await.unwrap();
    let CommitOutcome::Committed { origin, .. } = commits.next().await.unwrap().outcome else {
        panic!("it is valid")
    };
    assert_eq!((&*origin.source, &*origin.author, &*origin.message), ("store", "token:me", "why"));
    assert!(origin.label.ends_with("-1"), "{}", origin.label);
}

#[tokio::test]
async fn st18_what_the_cache_refuses_leaves_the_last_good_state_and_a_read_only_store() {
    let cache = Cache::new();
    let store = start(memory(), &cache).unwrap();
    // Another source took an alias of this name, so the cache refuses it.
    let mut transaction = xds_core::Transaction::new();
    let other = xds_core::Resource::new("example.com/acme.T".into(), "other".into(), "x".into()).unwrap();
    transaction.put(other.with_aliases(["a".into()]));
    cache.commit(transaction).unwrap();
    store.commit(put("a")).await.unwrap();
    assert_eq!(shown(&cache), ["other"]);
    let standing = store.standing().borrow().clone();
    assert_eq!((standing.condition, standing.revision()), (Condition::ReadOnly, 1));
    assert_eq!(store.commit(put("b")).await.unwrap_err().code, RefusalCode::Unavailable);
}

#[tokio::test]
async fn st58_a_change_of_owners_alone_leaves_the_cache() {
    let cache = Cache::new();
    let store = start(memory(), &cache).unwrap();
    store.commit(put("a")).await.unwrap();
    let before = cache.commit_counts().committed;
    let draft = Draft::parse(proto::CommitRequest { owner: "o".into(), ..request(TYPE, "a") }, "me".into());
    store.commit(draft.unwrap()).await.unwrap();
    assert_eq!(cache.commit_counts().committed, before);
    assert_eq!(store.standing().borrow().revision(), 2);
}

#[tokio::test]
async fn commits_are_counted_by_their_outcome_and_timed_by_their_stage() {
    let store = start(memory(), &Cache::new()).unwrap();
    store.commit(put("a")).await.unwrap();
    store.commit(put("a")).await.unwrap();
    let absent = proto::Condition { is: Some(proto::condition::Is::Absent(true)) };
    let mut refused = request(TYPE, "a");
    refused.changes[0].condition = Some(absent);
    store.commit(Draft::parse(refused, "token:me".into()).unwrap()).await.unwrap_err();
    let counts = store.statistics().commits().into_iter().collect::<Vec<_>>();
    let expected = [(("committed", ""), 1), (("refused", "already_exists"), 1), (("unchanged", ""), 1)];
    assert_eq!(counts, expected);
    let times = |stage| store.statistics().times(stage).buckets().iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!([times(Stage::Total), times(Stage::Write), times(Stage::Publish)], [3, 1, 1]);
}
