use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use xds_core::server::{DeltaRequest, Next, Protocol, Service, Stream, StreamConfig};
use xds_core::{Outcome, Resource, Transaction};

use super::*;

/// Records each call as a line.
struct Recorder(mpsc::UnboundedSender<String>);

impl Tracker for Recorder {
    fn on_commit(&mut self, commit: &Commit, _: &[(TypeUrl, usize)]) -> bool {
        _ = self.0.send(format!("commit {}", commit.revision));
        true
    }

    fn on_answer(&mut self, answer: &StreamOutcome, after: Duration) {
        let StreamOutcome { revision, outcome, .. } = answer;
        let outcome = if *outcome == Outcome::Acked { "acked" } else { "gone" };
        _ = self.0.send(format!("{outcome} {revision} after {} ms", after.as_millis()));
    }

    fn on_end(&mut self, revision: Revision, undecided: usize) {
        _ = self.0.send(format!("end {revision} without {undecided}"));
    }

    fn on_loss(&mut self, lost: Lost) {
        _ = self.0.send(format!("{lost:?}"));
    }
}

/// A client with one stream that subscribes to one name.
struct Client {
    cache: Arc<Cache>,
    stream: Stream,
}

impl Client {
    fn new(cache: &Arc<Cache>) -> Self {
        let mut stream =
            Stream::new(cache.watch(), Service::Aggregated, Protocol::Delta, StreamConfig::default());
        let subscribe = vec!["a".into()].into();
        stream
            .on_request(
                Duration::ZERO,
                DeltaRequest { type_url: TYPE.into(), subscribe, ..DeltaRequest::default() },
            )
            .unwrap();
        let mut client = Self { cache: Arc::clone(cache), stream };
        client.take();
        client
    }

    /// Reads all responses and ACKs them.
    fn take(&mut self) {
        while let Next::Send(response) = self.stream.next(Duration::ZERO, &self.cache.snapshot()) {
            let response_nonce = Some(response.nonce);
            let ack = DeltaRequest { type_url: TYPE.into(), response_nonce, ..DeltaRequest::default() };
            self.stream.on_request(Duration::ZERO, ack).unwrap();
        }
    }
}

fn put(cache: &Cache, content: &str) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(TYPE, "a", content.to_owned()).unwrap());
    cache.commit(transaction).unwrap();
}

/// A followed cache, and the recorded lines.
fn followed() -> (Arc<Cache>, mpsc::UnboundedReceiver<String>) {
    let cache = Cache::new();
    put(&cache, "0");
    let (sender, lines) = mpsc::unbounded_channel();
    tokio::spawn(follow(&cache, Recorder(sender)));
    (cache, lines)
}

#[tokio::test(start_paused = true)]
async fn each_answer_is_told_with_the_time_that_it_took() {
    let (cache, mut lines) = followed();
    let (mut one, other) = (Client::new(&cache), Client::new(&cache));
    put(&cache, "1");
    assert_eq!(lines.recv().await.unwrap(), "commit 2");
    tokio::time::advance(Duration::from_millis(20)).await;
    one.take();
    assert_eq!(lines.recv().await.unwrap(), "acked 2 after 20 ms");
    tokio::time::advance(Duration::from_millis(5)).await;
    drop(other);
    assert_eq!(lines.recv().await.unwrap(), "gone 2 after 25 ms");
    assert_eq!(lines.recv().await.unwrap(), "end 2 without 0");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_is_waited_for_so_long_at_most() {
    let (cache, mut lines) = followed();
    let _mute = Client::new(&cache);
    put(&cache, "1");
    let began = Instant::now();
    assert_eq!(lines.recv().await.unwrap(), "commit 2");
    assert_eq!(lines.recv().await.unwrap(), "end 2 without 1");
    assert_eq!(began.elapsed().as_secs(), FOLLOWED_FOR.as_secs());
}

#[tokio::test(start_paused = true)]
async fn so_many_commits_are_followed_at_most_and_those_that_come_too_fast_are_counted() {
    let (cache, mut lines) = followed();
    let _mute = Client::new(&cache);
    let commits = COMMITS_UNREAD + 10;
    for number in 1..=commits {
        put(&cache, &number.to_string());
    }
    assert_eq!(lines.recv().await.unwrap(), "Commits(10)");
    let mut open = 0;
    for _ in 0..COMMITS_UNREAD {
        let line = lines.recv().await.unwrap();
        assert!(line.starts_with("commit "), "{line}");
        open += 1;
        if open > COMMITS_FOLLOWED {
            let line = lines.recv().await.unwrap();
            assert!(line.starts_with("end ") && line.ends_with("without 1"), "{line}");
            open -= 1;
        }
    }
    assert_eq!(open, COMMITS_FOLLOWED);
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_cache() {
    let (cache, mut lines) = followed();
    put(&cache, "1");
    drop(cache);
    assert_eq!(lines.recv().await.unwrap(), "commit 2");
    assert_eq!(lines.recv().await.unwrap(), "end 2 without 0");
    assert_eq!(lines.recv().await, None);
}

const TYPE: &str = "example.com/acme.Thing";
