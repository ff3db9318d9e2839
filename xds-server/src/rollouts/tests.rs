use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::sleep;
use xds_core::server::{DeltaRequest, Next, Protocol, Service, Stream, StreamConfig};
use xds_core::{ClientName, RequestedRollout, Resource, RolloutSteps, Transaction, Watch};

use super::*;

const TYPE: &str = "example.com/acme.Thing";

/// A client on a delta stream that subscribes to everything.
struct Client {
    watch: Arc<Watch>,
    stream: Stream,
    /// The payload of the resource, after each response.
    had: Vec<String>,
}

impl Client {
    fn new(cache: &Arc<Cache>, id: &str) -> Self {
        let watch = cache.watch();
        watch.name_client(ClientName { id: id.into(), cluster: "".into() });
        let mut stream =
            Stream::new(Arc::clone(&watch), Service::Aggregated, Protocol::Delta, StreamConfig::default());
        let subscribe = vec!["*".into()].into();
        let request = DeltaRequest { type_url: TYPE.into(), subscribe, ..DeltaRequest::default() };
        stream.on_request(Duration::ZERO, request).unwrap();
        Self { watch, stream, had: Vec::new() }
    }

    /// Reads what is sent, and rejects a payload with "bad" in it.
    fn answer(&mut self) {
        let Self { watch, stream, had } = self;
        while let Next::Send(response) = watch.read(|snapshot| stream.next(Duration::ZERO, snapshot)) {
            let payload = payload(&watch.snapshot());
            let error_detail = payload.contains("bad").then(|| "too bad".into());
            had.push(payload);
            let (type_url, response_nonce) = (TYPE.into(), Some(response.nonce));
            let answer = DeltaRequest { type_url, response_nonce, error_detail, ..DeltaRequest::default() };
            stream.on_request(Duration::ZERO, answer).unwrap();
        }
    }
}

fn payload(snapshot: &Snapshot) -> String {
    let variants = snapshot.get(&TYPE.into(), &"a".into());
    let variant = variants.and_then(|variants| variants.iter().next());
    variant.map(|variant| String::from_utf8_lossy(variant.payload()).into_owned()).unwrap_or_default()
}

fn put(cache: &Cache, name: &str, payload: &str) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(TYPE, name, payload.to_owned()).unwrap());
    cache.commit(transaction).unwrap();
}

/// The source asks for a plan.
fn put_as(cache: &Cache, payload: &str, rollout: Option<RequestedRollout>) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(TYPE, "a", payload.to_owned()).unwrap());
    transaction.origin().rollout = rollout;
    cache.commit(transaction).unwrap();
}

struct World {
    source: Arc<Cache>,
    rollouts: Arc<Rollouts>,
    clients: Vec<Client>,
    stored: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl World {
    /// Three clients that have the payload `one`.
    async fn new(steps: &str, on_change: OnChange) -> Self {
        let (source, served) = (Cache::new(), Cache::new());
        put(&source, "a", "one");
        let RolloutSteps(steps) = match steps {
            "" => RolloutSteps(Vec::new()),
            steps => steps.parse().unwrap(),
        };
        let plan = RolloutPlan::new(steps, Duration::from_secs(10));
        let stored = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&stored);
        let rollouts = Rollouts::new(Arc::clone(&source), Arc::clone(&served), plan, on_change);
        let rollouts = Arc::new(rollouts.keeping(move |snapshot| {
            keep.lock().unwrap().push(payload(snapshot));
            Ok(())
        }));
        rollouts.begin();
        let clients = ["x", "y", "z"].map(|id| Client::new(&served, id)).into();
        let running = Arc::clone(&rollouts);
        let task = tokio::spawn(async move { running.run().await });
        let mut world = Self { source, rollouts, clients, stored, task };
        world.pass(1).await;
        assert_eq!(world.had(), ["one"; 3]);
        world
    }

    /// Seconds pass; clients answer at once.
    async fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            sleep(Duration::from_millis(100)).await;
            self.clients.iter_mut().for_each(Client::answer);
        }
    }

    /// The payloads that each client had since the last call.
    fn had(&mut self) -> Vec<String> {
        self.clients.iter_mut().map(|client| std::mem::take(&mut client.had).join(" ")).collect()
    }

    fn reason(&self) -> Option<String> {
        self.rollouts.status().refused.last().map(|refused| refused.reason.to_string())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_change_passes_all_steps_and_is_stored_when_all_have_it() {
    let mut world = World::new("1 client, 100%", OnChange::Wait).await;
    put(&world.source, "a", "two");
    world.pass(5).await;
    let mut had = world.had();
    had.sort();
    assert_eq!(had, ["", "", "two"]);
    let running = world.rollouts.status().running.unwrap();
    assert_eq!((running.step, running.affected, running.acked), (0, 1, 1));
    world.pass(10).await;
    let mut had = world.had();
    had.sort();
    assert_eq!(had, ["", "two", "two"]);
    assert_eq!(world.rollouts.status().running.unwrap().step, 1);
    world.pass(10).await;
    assert_eq!(world.had(), [""; 3]);
    let status = world.rollouts.status();
    assert_eq!((status.running, status.counts.promoted), (None, 1));
    assert_eq!(*world.stored.lock().unwrap(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_rejects_reaches_no_other_and_is_not_tried_again_before_it_changes() {
    let mut world = World::new("1 client, 100%", OnChange::Wait).await;
    put(&world.source, "a", "bad");
    world.pass(2).await;
    let mut had = world.had();
    had.sort();
    assert_eq!(had, ["", "", "bad one"], "it goes back");
    assert!(world.reason().unwrap().ends_with("rejected acme.Thing \"a\": too bad"), "{:?}", world.reason());
    // Another change beside it does not make it better, and need not wait for it.
    put(&world.source, "b", "beside");
    world.pass(30).await;
    assert_eq!(world.had(), ["one"; 3], "a full state with what is stable");
    assert_eq!(world.rollouts.status().counts, RolloutCounts { promoted: 1, refused: 1, replaced: 0 });
    assert_eq!((world.rollouts.status().refused.len(), world.rollouts.status().waiting), (1, 0));
    put(&world.source, "a", "good");
    world.pass(30).await;
    assert_eq!(world.reason(), None);
    assert!(world.had().iter().all(|had| had.ends_with("good")));
    let counts = world.rollouts.status().counts;
    assert_eq!(counts, RolloutCounts { promoted: 2, refused: 1, replaced: 0 });
    assert_eq!(*world.stored.lock().unwrap(), ["one", "one", "good"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_is_not_driven_any_more_ends() {
    let mut world = World::new("1 client, 100%", OnChange::Wait).await;
    put(&world.source, "a", "two");
    world.pass(1).await;
    let tried = world.had();
    assert_eq!(tried.iter().filter(|had| *had == "two").count(), 1, "{tried:?}");
    world.task.abort();
    world.pass(1).await;
    let back = world.had();
    assert_eq!(back.iter().filter(|had| *had == "one").count(), 1, "{back:?}");
    assert_eq!(world.rollouts.status().running, None);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_goes_back_has_nothing_refused() {
    let mut world = World::new("1 client", OnChange::Wait).await;
    put(&world.source, "a", "bad");
    world.pass(2).await;
    assert!(world.reason().is_some());
    put(&world.source, "a", "one");
    world.pass(2).await;
    assert_eq!(world.reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_change_meanwhile_waits_or_replaces_the_candidate() {
    for (on_change, expected) in [(OnChange::Wait, ["two", "three"]), (OnChange::Replace, ["three", ""])] {
        let mut world = World::new("100%", on_change).await;
        put(&world.source, "a", "two");
        world.pass(5).await;
        world.had();
        put(&world.source, "a", "three");
        world.pass(3).await;
        let had = world.had();
        assert!(had.iter().all(|had| had.ends_with("three") == (expected[0] == "three")), "{had:?}");
        world.pass(30).await;
        assert_eq!(world.rollouts.status().running, None);
        let stored = world.stored.lock().unwrap().clone();
        assert_eq!(stored[1..], expected.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>());
    }
}

/// A source asks for a plan. It holds until what came with it is stable, also for what comes meanwhile.
#[tokio::test(start_paused = true)]
async fn a_requested_plan_holds_until_its_change_is_stable() {
    let mut world = World::new("", OnChange::Replace).await;
    let requested = |number| {
        let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(10));
        Some(RequestedRollout { number, plan })
    };
    put_as(&world.source, "two", requested(1));
    world.pass(2).await;
    assert_eq!(world.had().concat(), "two", "one client tries it");
    assert_eq!(world.rollouts.status().steps, [Audience::Clients(1)]);
    // A commit that asks for none repeats the last request, and is tried with what came before it.
    put_as(&world.source, "three", requested(1));
    world.pass(2).await;
    assert!(world.had().iter().filter(|had| had.ends_with("three")).count() == 1);
    world.pass(20).await;
    assert_eq!(world.rollouts.status().counts, RolloutCounts { promoted: 1, refused: 0, replaced: 1 });
    world.had();
    put_as(&world.source, "four", requested(1));
    world.pass(1).await;
    assert_eq!(world.had(), ["four"; 3], "the plan of the server, which has no steps");
    put_as(&world.source, "five", requested(2));
    world.pass(1).await;
    assert_eq!(world.had().concat(), "five");
}

#[tokio::test(start_paused = true)]
async fn operators_promote_and_abort() {
    let mut world = World::new("1 client, 100%", OnChange::Wait).await;
    assert!(!world.rollouts.promote() && !world.rollouts.abort());
    put(&world.source, "a", "two");
    world.pass(1).await;
    world.had();
    assert!(world.rollouts.abort());
    world.pass(1).await;
    assert_eq!(world.had().concat(), "one", "one client goes back");
    assert_eq!(world.reason().unwrap(), "an operator aborted it");
    // What was refused can be promoted all the same.
    assert!(world.rollouts.promote());
    world.pass(1).await;
    assert_eq!(world.had(), ["two"; 3]);
    put(&world.source, "a", "three");
    world.pass(1).await;
    assert!(world.rollouts.promote());
    world.pass(1).await;
    assert!(world.had().iter().all(|had| had == "three"));
}

/// A server that was restarted has the stored state, so the rollout begins again with its first step.
#[tokio::test(start_paused = true)]
async fn after_a_restart_the_stored_state_is_stable() {
    let (source, served) = (Cache::new(), Cache::new());
    put(&served, "a", "one");
    put(&source, "a", "two");
    let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(10));
    let rollouts = Rollouts::new(Arc::clone(&source), Arc::clone(&served), plan, OnChange::Wait);
    rollouts.begin();
    assert_eq!(payload(&served.snapshot()), "one");
    let run = async {
        sleep(Duration::from_secs(5)).await;
        assert_eq!(rollouts.status().running.as_ref().map(|running| running.step), Some(0));
        // The first step begins once more, as no client was there.
        sleep(Duration::from_secs(10)).await;
        assert_eq!(rollouts.status().running.as_ref().map(|running| running.step), Some(0));
        sleep(Duration::from_secs(6)).await;
    };
    tokio::select! {
        () = rollouts.run() => {}
        () = run => {}
    }
    assert_eq!(payload(&served.snapshot()), "two");
}

/// Clients come back after the step began: the first of them tries the change, and nobody else is sent it.
#[tokio::test(start_paused = true)]
async fn after_a_restart_the_first_clients_that_are_back_try_the_change() {
    let mut world = World::new("1 client", OnChange::Wait).await;
    world.clients.clear();
    put(&world.source, "a", "two");
    world.pass(5).await;
    let served = world.rollouts.served.clone();
    world.clients = ["x", "y", "z"].map(|id| Client::new(&served, id)).into();
    world.pass(4).await;
    assert_eq!(world.had(), ["one"; 3]);
    world.pass(4).await;
    let mut had = world.had();
    had.sort();
    assert_eq!(had, ["", "", "two"]);
}

/// What a server kept is what the next one starts with.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_kept_until_it_is_no_longer_so() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let start = |refused: Vec<RefusedChange>| {
        let (source, served) = (Cache::new(), Cache::new());
        put(&served, "a", "one");
        let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(10));
        let rollouts = Rollouts::new(Arc::clone(&source), served, plan, OnChange::Wait);
        let keep = Arc::clone(&kept);
        let rollouts = rollouts.keeping_refused(move |refused| {
            keep.lock().unwrap().push(refused.to_vec());
            Ok(())
        });
        let rollouts = rollouts.refused_before(refused);
        let (rollouts, runs) = (Arc::new(rollouts), tokio::runtime::Handle::current());
        let run = Arc::clone(&rollouts);
        (source, rollouts, runs.spawn(async move { run.run().await }))
    };
    let (source, rollouts, task) = start(Vec::new());
    put(&source, "a", "two");
    sleep(Duration::from_secs(1)).await;
    assert!(rollouts.abort());
    sleep(Duration::from_secs(1)).await;
    task.abort();
    let refused = kept.lock().unwrap().pop().expect("it is refused");
    assert_eq!(refused.len(), 1);
    let (source, rollouts, task) = start(refused);
    put(&source, "a", "two");
    sleep(Duration::from_secs(60)).await;
    let status = rollouts.status();
    assert_eq!(status.refused.len(), 1);
    assert_eq!(*status.refused[0].reason, *"an operator aborted it");
    assert_eq!((status.running, kept.lock().unwrap().len()), (None, 0));
    put(&source, "a", "three");
    sleep(Duration::from_secs(1)).await;
    assert!(rollouts.status().running.is_some());
    assert_eq!(*kept.lock().unwrap(), [[]]);
    task.abort();
}

/// The way back needs no steps: a plan without any reaches all clients at once.
#[tokio::test(start_paused = true)]
async fn a_plan_without_steps_takes_a_stable_change_back_at_once() {
    let mut world = World::new("100%", OnChange::Wait).await;
    let good = world.source.snapshot();
    put(&world.source, "a", "two");
    world.pass(20).await;
    assert_eq!((world.had(), world.rollouts.status().running), (vec!["two".to_owned(); 3], None));
    let mut back = Transaction::between(&world.source.snapshot(), &good);
    let plan = RolloutPlan::new(Vec::new(), Duration::ZERO);
    back.origin().rollout = Some(RequestedRollout { number: 1, plan });
    world.source.commit(back).unwrap();
    world.pass(1).await;
    assert_eq!(world.had(), ["one"; 3]);
}

/// The change of the request is stable since before the restart, so the plan of the server counts.
#[tokio::test(start_paused = true)]
async fn after_a_restart_a_plan_that_is_done_is_not_that_of_the_next_change() {
    for (done, is_at_once) in [(0, true), (1, false)] {
        let (source, served) = (Cache::new(), Cache::new());
        put(&served, "a", "one");
        let plan = RolloutPlan::new(Vec::new(), Duration::ZERO);
        put_as(&source, "two", Some(RequestedRollout { number: 1, plan }));
        let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(10));
        let rollouts = Rollouts::new(Arc::clone(&source), Arc::clone(&served), plan, OnChange::Wait);
        let rollouts = rollouts.after(done);
        tokio::select! {
            () = rollouts.run() => {}
            () = sleep(Duration::from_secs(5)) => {}
        }
        assert_eq!(payload(&served.snapshot()) == "two", is_at_once);
    }
}

/// A store that is empty or takes a snapshot has not committed yet: it does not want to remove all.
#[tokio::test(start_paused = true)]
async fn a_source_without_a_commit_removes_nothing() {
    let (source, served) = (Cache::new(), Cache::new());
    put(&served, "a", "one");
    let plan = RolloutPlan::new(vec!["1 client".parse().unwrap()], Duration::from_secs(1));
    let rollouts = Rollouts::new(Arc::clone(&source), Arc::clone(&served), plan, OnChange::Wait);
    rollouts.begin();
    tokio::select! {
        () = rollouts.run() => {}
        () = sleep(Duration::from_secs(30)) => {}
    }
    assert_eq!((payload(&served.snapshot()), rollouts.status().running), ("one".to_owned(), None));
}

/// G13: what a client subscribes to is unknown while the store behind the source takes a snapshot.
#[tokio::test(start_paused = true)]
async fn g13_a_source_that_lacks_changes_makes_what_is_served_unknown() {
    let mut world = World::new("1 client", OnChange::Wait).await;
    for is_outdated in [true, false] {
        world.source.set_outdated(is_outdated);
        world.pass(1).await;
        assert_eq!(world.clients[0].watch.snapshot().is_synced(), !is_outdated);
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_stored_is_shown_and_stored_once_there_is_room() {
    let (source, served) = (Cache::new(), Cache::new());
    put(&source, "a", "one");
    let plan = RolloutPlan::new(Vec::new(), Duration::from_secs(1));
    let rollouts = Rollouts::new(source, served, plan, OnChange::Wait);
    let has_room = Arc::new(AtomicBool::new(false));
    let room = Arc::clone(&has_room);
    let rollouts = rollouts.keeping(move |_| match room.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err("no space left".to_owned()),
    });
    let rollouts = Arc::new(rollouts);
    rollouts.begin();
    let runs = Arc::clone(&rollouts);
    let task = tokio::spawn(async move { runs.run().await });
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rollouts.status().not_stored.as_deref(), Some("no space left"));
    has_room.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(rollouts.status().not_stored, None);
    task.abort();
}
