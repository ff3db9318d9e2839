//! Constant load: 200 requests per second, independent of earlier ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{self, MissedTickBehavior};

use crate::http::{self, Answer, Connection, Failure};

/// A running load.
#[derive(Debug)]
pub(crate) struct Load {
    stop: oneshot::Sender<()>,
    running: JoinHandle<Report>,
}

/// The connections that the requests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connections {
    /// A new connection for each request.
    New,
    /// An idle connection of earlier requests, if there is one.
    Kept,
}

/// The results of the requests.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) took: Duration,
    pub(crate) answers: BTreeMap<String, usize>,
    pub(crate) failures: BTreeMap<Failure, usize>,
}

impl Load {
    /// Starts requests for `path` at `port`.
    pub(crate) fn start(port: u16, path: &'static str, connections: Connections) -> Self {
        Self::start_from(port, http::ANY_HOST, path, connections)
    }

    /// The same with this host name.
    pub(crate) fn start_from(port: u16, host: &str, path: &'static str, connections: Connections) -> Self {
        let (stop, stopped) = oneshot::channel();
        let client =
            Arc::new(Client { port, host: host.to_owned(), path, connections, idle: Mutex::default() });
        Self { stop, running: tokio::spawn(run(client, stopped)) }
    }

    /// Stops, and waits for the outstanding answers.
    pub(crate) async fn finish(self) -> Report {
        self.stop.send(()).expect("the load runs until it is stopped");
        self.running.await.expect("the load does not panic")
    }
}

impl Report {
    /// How many requests were sent.
    pub(crate) fn sent(&self) -> usize {
        self.answers.values().chain(self.failures.values()).sum()
    }

    /// # Panics
    /// If a request failed, or fewer than half of the intended requests were sent.
    pub(crate) fn assert_nothing_lost(&self) {
        assert!(self.failures.is_empty(), "lost requests: {self}");
        let intended = self.took.as_secs_f64() * f64::from(REQUESTS_PER_SECOND);
        assert!(self.sent() as f64 > intended / 2.0, "the load did not keep its rate: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { took, answers, failures } = self;
        write!(f, "{} requests in {took:.1?}, answers {answers:?}, failures {failures:?}", self.sent())
    }
}

#[derive(Debug)]
struct Client {
    port: u16,
    host: String,
    path: &'static str,
    connections: Connections,
    idle: Mutex<Vec<Connection>>,
}

impl Client {
    async fn ask(self: Arc<Self>) -> Result<Answer, Failure> {
        let kept = self.idle.lock().expect("no holder panics").pop();
        if let Some(mut connection) = kept {
            match connection.get(&self.host, self.path).await {
                // Servers may close idle connections at any time, so HTTP clients repeat the
                // request on a new one.
                Err(Failure::Closed) => {}
                outcome => return self.keep(connection, outcome),
            }
        }
        let mut connection = Connection::open(self.port).await?;
        let outcome = connection.get(&self.host, self.path).await;
        self.keep(connection, outcome)
    }

    fn keep(&self, connection: Connection, outcome: Result<Answer, Failure>) -> Result<Answer, Failure> {
        if self.connections == Connections::Kept && outcome.as_ref().is_ok_and(Answer::keeps_connection) {
            self.idle.lock().expect("no holder panics").push(connection);
        }
        outcome
    }
}

async fn run(client: Arc<Client>, mut stopped: oneshot::Receiver<()>) -> Report {
    let start = Instant::now();
    let mut ticks = time::interval(Duration::from_secs(1) / REQUESTS_PER_SECOND);
    // Late ticks are sent later, so that the rate is right on a busy machine.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut open = JoinSet::new();
    let mut report = Report::default();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            _ = ticks.tick() => { open.spawn(Arc::clone(&client).ask()); }
            Some(done) = open.join_next() => report.count(done.expect("a request does not panic")),
        }
    }
    report.took = start.elapsed();
    while let Some(done) = open.join_next().await {
        report.count(done.expect("a request does not panic"));
    }
    report
}

impl Report {
    fn count(&mut self, outcome: Result<Answer, Failure>) {
        match outcome {
            Ok(answer) if answer.status == 200 => *self.answers.entry(answer.body).or_default() += 1,
            Ok(answer) => {
                *self.failures.entry(Failure::Status(answer.status, answer.body)).or_default() += 1;
            }
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }
}

const REQUESTS_PER_SECOND: u32 = 200;
