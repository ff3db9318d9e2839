use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::SystemTime;

use xds_core::{Cache, CommitOutcome};
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Batch, Changes, EngineLimits, EngineRevision, MemoryEngine};
use xds_store::store::{Action, Config, Event, Identity, Store, Ticket};

use super::*;
use crate::statistics::Stage;

/// An engine whose writes wait for an order of the test.
#[derive(Debug)]
struct GatedEngine {
    engine: MemoryEngine,
    orders: mpsc::Receiver<Order>,
    _is_open: Arc<()>,
}

#[derive(Debug)]
enum Order {
    Write,
    Full,
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
            Order::Full => Err(EngineError::Full),
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
    gated_engine(config, Arc::new(()))
}

/// The same; `is_open` is shared with the engine until that is closed.
fn gated_engine(config: StoreConfig, is_open: Arc<()>) -> (StoreHandle, mpsc::Sender<Order>) {
    let (orders, receiver) = mpsc::channel();
    let engine = GatedEngine { engine: memory(), orders: receiver, _is_open: is_open };
    (StoreHandle::start(Box::new(engine), config).unwrap(), orders)
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap()
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
async fn sr20_a_commit_is_refused_at_once_while_a_snapshot_is_merged() {
    let (store, orders) = gated(StoreConfig::default());
    let before = waiting(&store, "before").await;
    store.running.queue.pause(Some("merging"));
    let refused = store.commit(put("meanwhile")).await.unwrap_err();
    assert_eq!((refused.code, &*refused.message), (RefusalCode::Unavailable, "merging"));
    store.running.queue.pause(None);
    let after = waiting(&store, "after").await;
    orders.send(Order::Write).unwrap();
    orders.send(Order::Write).unwrap();
    assert!(before.await.unwrap().is_ok() && after.await.unwrap().is_ok());
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
async fn st72_an_alarm_lasts_until_its_cause_ends() {
    let (store, orders) = gated(StoreConfig::default());
    assert_eq!((store.alarm(), store.refuses_commits()), (None, None));
    orders.send(Order::Full).unwrap();
    assert_eq!(store.commit(put("a")).await.unwrap_err().code, RefusalCode::ResourceExhausted);
    assert_eq!(store.alarm(), Some(Alarm::Full));
    assert!(store.refuses_commits().unwrap().contains("is full"));
    orders.send(Order::Write).unwrap();
    store.commit(put("a")).await.unwrap();
    assert_eq!((store.alarm(), store.refuses_commits()), (None, None));
    orders.send(Order::Break).unwrap();
    store.commit(put("b")).await.unwrap_err();
    let alarm = store.alarm().unwrap();
    assert_eq!((alarm.kind(), store.refuses_commits()), ("store_read_only", Some(alarm.to_string())));
    assert!(alarm.to_string().contains("no more disk"), "{alarm}");
}

/// Waits for what the test says.
#[derive(Debug)]
struct Told(mpsc::Receiver<Result<bool, EngineError>>);

impl Changes for Told {
    fn wait(&mut self, _: Duration) -> Result<bool, EngineError> {
        self.0.recv().unwrap_or_else(|_| Err(EngineError::Unavailable("the test has ended".into())))
    }
}

#[test]
fn st72_an_engine_that_cannot_be_reached_is_an_alarm_until_it_can() {
    let (waits, receiver) = mpsc::sync_channel(0);
    let (queue, _inbox) = Queue::new(Limits { commits: 1, bytes: 1 });
    let statistics = Arc::new(Statistics::default());
    let (weak, of_thread) = (Arc::downgrade(&queue), Arc::clone(&statistics));
    let thread = thread::spawn(move || follow(Box::new(Told(receiver)), &weak, &of_thread));
    let lost = || Err(EngineError::Unavailable("no route".into()));
    // The thread takes the next one when it has done with the last one.
    waits.send(lost()).unwrap();
    waits.send(lost()).unwrap();
    waits.send(lost()).unwrap();
    assert_eq!(statistics.unreachable().unwrap(), "no route");
    waits.send(Ok(false)).unwrap();
    waits.send(lost()).unwrap();
    assert_eq!(statistics.unreachable(), None, "one failure alone is no alarm");
    drop((queue, waits));
    thread.join().unwrap();
}

#[tokio::test]
async fn a_panic_of_the_writer_answers_all_callers_and_leaves_a_read_only_store() {
    let is_open = Arc::new(());
    let (store, orders) = gated_engine(StoreConfig::default(), Arc::clone(&is_open));
    let judged = waiting(&store, "a").await;
    let queued = waiting(&store, "b").await;
    orders.send(Order::Panic).unwrap();
    assert_eq!(judged.await.unwrap().unwrap_err().code, RefusalCode::Unknown);
    assert_eq!(queued.await.unwrap().unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.commit(put("c")).await.unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.standing().borrow().condition, Condition::ReadOnly);
    assert_eq!(store.compact(None).await.unwrap_err().code, RefusalCode::Unavailable);
    assert_eq!(store.alarm().unwrap().kind(), "store_read_only");
    // Readers go on.
    assert_eq!(Arc::strong_count(&is_open), 2);
    store.latest_view().await.unwrap();
    store.stop().await;
    assert_eq!(Arc::strong_count(&is_open), 1);
}

#[tokio::test]
async fn st42_questions_about_references_wait_also_if_their_clients_go_away() {
    let (store, orders) = gated(StoreConfig::default());
    let commit = waiting(&store, "a").await;
    // The writer answers nothing during a write.
    for _ in 0..100 {
        let question = timeout(Duration::from_millis(1), store.deletions(1, 1)).await;
        assert!(question.is_err());
    }
    assert_eq!(store.running.questions.available_permits(), 0, "the writer has as many as it may have");
    orders.send(Order::Write).unwrap();
    commit.await.unwrap().unwrap();
    assert_eq!(store.deletions(1, 1).await, []);
    let all = store.running.questions.acquire_many(u32::try_from(QUESTIONS).unwrap());
    assert!(timeout(Duration::from_secs(10), all).await.is_ok());
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

/// The outcome of its first commit cannot be found out until the test says so.
#[derive(Debug)]
struct LostEngine {
    engine: MemoryEngine,
    is_first: bool,
    is_away: Arc<AtomicBool>,
}

#[derive(Debug)]
struct AwayReader(Arc<dyn Reader>, Arc<AtomicBool>);

impl Engine for LostEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(AwayReader(self.engine.reader(), Arc::clone(&self.is_away)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let written = self.engine.commit(batch)?;
        if !std::mem::take(&mut self.is_first) {
            return Ok(written);
        }
        self.is_away.store(true, Relaxed);
        Err(EngineError::Unknown("no answer".into()))
    }

    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        self.engine.changes(key)
    }
}

impl Reader for AwayReader {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        let Self(reader, is_away) = self;
        if is_away.load(Relaxed) { Err(EngineError::Unavailable("away".into())) } else { reader.view() }
    }
}

#[tokio::test]
async fn st6_st20_a_stop_waits_until_the_outcome_of_a_commit_is_known() {
    let is_away = Arc::new(AtomicBool::new(false));
    let engine = LostEngine { engine: memory(), is_first: true, is_away: Arc::clone(&is_away) };
    let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
    let caller = waiting(&store, "a").await;
    let stopped = tokio::spawn({
        let store = store.clone();
        async move { store.stop().await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    is_away.store(false, Relaxed);
    assert_eq!(caller.await.unwrap().unwrap().revision, 1);
    stopped.await.unwrap();
}

#[tokio::test]
async fn st44_a_running_store_forgets_old_revisions_by_itself() {
    let mut engine = memory();
    let hour = Duration::from_secs(3600);
    // They become too old for the history when the store has run for a moment.
    let young = now() - i64::try_from((hour - Duration::from_millis(300)).as_nanos()).unwrap();
    let (config, reader) = (Config::new(engine.limits(), 1), engine.reader());
    let mut machine = Store::load(&*engine.view().unwrap(), config, young, |_| {}).unwrap();
    for (ticket, name) in [(1, "a"), (2, "b")] {
        let mut actions = machine.step(Event::Commit(Ticket(ticket), put(name)), young, &*reader);
        let Some(Action::Write(batch)) = actions.pop() else { panic!("it changes something") };
        machine.step(Event::Written(engine.commit(&batch)), young, &*reader);
    }
    let compact_every = Duration::from_millis(20);
    let config = StoreConfig { history: hour, compact_every, ..StoreConfig::default() };
    let store = StoreHandle::start(Box::new(engine), config).unwrap();
    let mut standing = store.standing();
    let forgotten = standing.wait_for(|standing| standing.head.floor == 2);
    timeout(Duration::from_secs(10), forgotten).await.unwrap().unwrap();
    // The records are there.
    assert_eq!(store.standing().borrow().records, 2);
}

#[tokio::test]
async fn st6_a_stop_ends_a_compaction_after_the_step_that_is_written() {
    let mut engine = memory();
    let (config, reader) = (Config::new(engine.limits(), 1), engine.reader());
    let mut machine = Store::load(&*engine.view().unwrap(), config, 1, |_| {}).unwrap();
    for number in 1..=3_000 {
        let draft = put(&format!("of 1970: {number}"));
        let mut actions = machine.step(Event::Commit(Ticket(number), draft), 1, &*reader);
        let Some(Action::Write(batch)) = actions.pop() else { panic!("it changes something") };
        machine.step(Event::Written(engine.commit(&batch)), 1, &*reader);
    }
    let (orders, receiver) = mpsc::channel();
    let engine = GatedEngine { engine, orders: receiver, _is_open: Arc::new(()) };
    let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
    let mut stopping = std::pin::pin!(store.stop());
    tokio::select! {
        biased;
        () = &mut stopping => panic!("a step is being written"),
        () = std::future::ready(()) => {}
    }
    orders.send(Order::Write).unwrap();
    timeout(Duration::from_secs(10), stopping).await.expect("after one step");
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
    let other = xds_core::Resource::new("example.com/acme.T", "other", "x").unwrap();
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

/// An engine that does not report what other servers commit.
#[derive(Debug)]
struct QuietEngine(MemoryEngine);

impl Engine for QuietEngine {
    fn reader(&self) -> Arc<dyn Reader> {
        self.0.reader()
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        self.0.commit(batch)
    }

    fn limits(&self) -> EngineLimits {
        self.0.limits()
    }

    fn changes(&self, _: &[u8]) -> Option<Box<dyn Changes>> {
        None
    }
}

#[tokio::test]
async fn st19_a_server_that_fell_behind_the_log_loads_the_store_again() {
    let mut engine = memory();
    let cache = Cache::new();
    let config = StoreConfig { cache: Arc::clone(&cache), ..StoreConfig::default() };
    let store = StoreHandle::start(Box::new(QuietEngine(engine.clone())), config).unwrap();
    store.commit(put("a")).await.unwrap();
    store.commit(put("b")).await.unwrap();
    let served = || {
        let snapshot = cache.snapshot();
        let resources = snapshot.of_type(&TYPE.into()).unwrap();
        let mut names: Vec<_> = resources.iter().map(|(name, _)| name.as_str().to_owned()).collect();
        names.sort();
        names
    };
    // Another server deletes a record, and forgets the deletion.
    let mut other =
        Store::load(&*engine.view().unwrap(), Config::new(engine.limits(), 1), now(), |_| {}).unwrap();
    let delete = proto::Change {
        act: Some(proto::change::Act::Delete(proto::Delete::default())),
        ..request(TYPE, "a").changes.remove(0)
    };
    let delete = proto::CommitRequest { changes: vec![delete], ..Default::default() };
    let delete = Draft::parse(delete, "token:me".into()).unwrap();
    let later = now() + 8 * 24 * 3600 * 1_000_000_000;
    let events = [
        (Event::Commit(Ticket(1), put("c")), now()),
        (Event::Commit(Ticket(2), delete), now()),
        (Event::Compact(Ticket(3), None), later),
    ];
    for (event, at) in events {
        let mut actions = other.step(event, at, &*engine.reader());
        while let Some(action) = actions.pop() {
            if let Action::Write(batch) = action {
                let written = engine.commit(&batch);
                actions.extend(other.step(Event::Written(written), at, &*engine.reader()));
            }
        }
    }
    assert_eq!((other.counts(), served()), ((2, 0), vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(store.commit(put("d")).await.unwrap_err().code, RefusalCode::Unavailable);
    store.commit(put("d")).await.unwrap();
    assert_eq!(served(), ["b", "c", "d"]);
    assert_eq!(store.standing().borrow().condition, Condition::Serving);
}

/// Somebody removes all keys of the store.
fn empty(engine: &MemoryEngine) {
    let mut keys = Vec::new();
    let each = &mut |key: &[u8], _| {
        keys.push((bytes::Bytes::copy_from_slice(key), None));
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"", b"\xff", each).unwrap();
    engine.clone().commit(&Batch { compares: Vec::new(), writes: keys }).unwrap();
}

/// Without a commit, and also if the engine reports nothing.
#[tokio::test]
async fn st21_a_store_whose_keys_were_removed_has_an_alarm_and_clients_keep_what_they_have() {
    let (engine, quiet) = (memory(), memory());
    let engines: [(_, Box<dyn Engine>); 2] =
        [(engine.clone(), Box::new(engine)), (quiet.clone(), Box::new(QuietEngine(quiet)))];
    for (keys, engine) in engines {
        let cache = Cache::new();
        let (says_alive, compact_every) = (true, Duration::from_millis(100));
        let config =
            StoreConfig { cache: Arc::clone(&cache), says_alive, compact_every, ..StoreConfig::default() };
        let store = StoreHandle::start(engine, config).unwrap();
        store.commit(put("a")).await.unwrap();
        assert_eq!(store.alarm(), None);
        empty(&keys);
        let mut standing = store.standing();
        standing.wait_for(|standing| standing.condition == Condition::ReadOnly).await.unwrap();
        let alarm = store.alarm().unwrap();
        assert_eq!(alarm.kind(), "store_read_only");
        assert!(alarm.to_string().contains("restore a backup before the restart"), "{alarm}");
        assert_eq!(store.commit(put("b")).await.unwrap_err().code, RefusalCode::Unavailable);
        assert!(cache.snapshot().get(&TYPE.into(), &"a".into()).is_some());
        assert!(keys.view().unwrap().get(Store::head_key()).unwrap().is_none(), "nothing is written");
    }
}
