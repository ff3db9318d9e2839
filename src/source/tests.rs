use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use tokio::task::JoinHandle;
use tokio::time::Instant;
use xds_core::{Snapshot, TypeUrl};

use super::*;

const THING: &str = "example.com/acme.Thing";

/// What a source answers, load after load; the last answer repeats.
#[derive(Clone)]
struct Script(Arc<Mutex<Played>>);

struct Played {
    answers: VecDeque<Result<Vec<Resource>, &'static str>>,
    /// When each load began.
    loads: Vec<Instant>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Result<Vec<Resource>, &'static str>>) -> Self {
        let answers = answers.into_iter().collect();
        Self(Arc::new(Mutex::new(Played { answers, loads: Vec::new() })))
    }

    fn played(&self) -> MutexGuard<'_, Played> {
        self.0.lock().unwrap()
    }

    fn loads(&self) -> usize {
        self.played().loads.len()
    }
}

impl Load for Script {
    async fn load(&mut self) -> Result<Vec<Resource>, LoadError> {
        let mut played = self.played();
        played.loads.push(Instant::now());
        let answer = match played.answers.len() {
            1 => played.answers[0].clone(),
            _ => played.answers.pop_front().expect("there is an answer"),
        };
        Ok(answer?)
    }
}

fn thing(name: &str, when: &str) -> Resource {
    let thing = Resource::new(THING, name, when.to_owned()).unwrap();
    if when.is_empty() { thing } else { thing.with_constraints(when.parse().unwrap()) }
}

fn things(names: &[&str]) -> Result<Vec<Resource>, &'static str> {
    Ok(names.iter().map(|name| thing(name, "")).collect())
}

fn present(cache: &Cache) -> Vec<String> {
    let snapshot = cache.snapshot();
    let of_type = snapshot.of_type(&TypeUrl::from(THING)).into_iter().flat_map(|of_type| of_type.iter());
    let mut names: Vec<_> = of_type.map(|(name, _)| name.as_str().to_owned()).collect();
    names.sort();
    names
}

fn run(cache: &Arc<Cache>, source: &Script) -> (Arc<Reloads>, JoinHandle<Infallible>) {
    let mut supervisor = Supervisor::new(cache);
    let reloads = supervisor.add("script", EVERY, source.clone());
    (reloads, tokio::spawn(supervisor.run()))
}

const EVERY: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn g13_nothing_is_absent_before_every_source_was_loaded() {
    let cache = Cache::new();
    let (quick, slow) =
        (Script::new([things(&["a"])]), Script::new([Err("away"), Err("away"), things(&["b"])]));
    let mut supervisor = Supervisor::new(&cache);
    supervisor.add("quick", EVERY, quick);
    supervisor.add("slow", EVERY, slow.clone());
    tokio::spawn(supervisor.run());
    while slow.loads() < 2 {
        sleep(TOGETHER).await;
    }
    assert_eq!(present(&cache), ["a"]);
    assert!(!cache.read(Snapshot::is_synced), "what the slow source has is unknown");
    sleep(LONGEST_WAIT).await;
    assert_eq!(present(&cache), ["a", "b"]);
    assert!(cache.read(Snapshot::is_synced));
}

#[tokio::test(start_paused = true)]
async fn a_failure_removes_nothing_and_is_tried_again_later_and_later() {
    let cache = Cache::new();
    let source = Script::new([things(&["a"]), Err("away")]);
    let (reloads, _running) = run(&cache, &source);
    sleep(EVERY * 3).await;
    assert_eq!(present(&cache), ["a"]);
    assert!(cache.read(Snapshot::is_synced));
    assert_eq!(reloads.refusal().unwrap().mistake, "away");
    assert_eq!((reloads.changes(), reloads.refusals()), (1, 1), "it is one error, which repeats");
    let loads = source.played().loads.clone();
    let waits: Vec<_> = loads.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(waits[0] >= EVERY && waits[0] <= EVERY + TOGETHER * 2, "{waits:?}");
    for (wait, longest) in waits[1..].iter().zip([500, 1000, 2000, 4000, 8000, 8000]) {
        let longest = Duration::from_millis(longest);
        assert!(*wait >= longest / 2 && *wait <= longest + TOGETHER * 2, "{waits:?}");
    }

    source.played().answers = [things(&["b"])].into();
    sleep(LONGEST_WAIT + TOGETHER * 2).await;
    assert_eq!(present(&cache), ["b"]);
    assert!(reloads.is_current());
}

#[tokio::test(start_paused = true)]
async fn requests_within_a_moment_are_one_load_and_end_any_wait() {
    let cache = Cache::new();
    let source = Script::new([things(&["a"])]);
    let (reloads, _running) = run(&cache, &source);
    sleep(TOGETHER).await;
    assert_eq!(source.loads(), 1);
    for _ in 0..5 {
        reloads.request();
        sleep(TOGETHER / 10).await;
    }
    sleep(TOGETHER * 3).await;
    assert_eq!(source.loads(), 2);
    assert_eq!(reloads.changes(), 1, "the content is the same");
}

#[tokio::test(start_paused = true)]
async fn resources_that_the_cache_refuses_are_an_error_of_the_source() {
    let cache = Cache::new();
    let overlap = vec![thing("b", "env=prod"), thing("b", "env in (prod,test)")];
    let source = Script::new([things(&["a"]), Ok(overlap), things(&["c"])]);
    let (reloads, _running) = run(&cache, &source);
    sleep(TOGETHER).await;
    reloads.request();
    sleep(TOGETHER * 2).await;
    assert_eq!(present(&cache), ["a"]);
    assert!(reloads.refusal().unwrap().mistake.contains("env=\"prod\""), "{reloads:?}");
    sleep(FIRST_WAIT + TOGETHER * 2).await;
    assert_eq!(present(&cache), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_source_is_passed_on() {
    struct Broken;
    impl Load for Broken {
        async fn load(&mut self) -> Result<Vec<Resource>, LoadError> {
            panic!("index 7 of 3")
        }
    }
    let mut supervisor = Supervisor::new(&Cache::new());
    supervisor.add("broken", EVERY, Broken);
    assert!(tokio::spawn(supervisor.run()).await.unwrap_err().is_panic());
}

#[test]
fn an_error_is_shown_with_its_causes_each_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failed {
        text: &'static str,
        source: Option<Box<Self>>,
    }
    let of = |text, source: Option<Failed>| Failed { text, source: source.map(Box::new) };
    let error = of("cannot query", Some(of("no answer: refused", Some(of("refused", None)))));
    assert_eq!(chain(&error), "cannot query: no answer: refused");
}
