//! A gRPC client that calls without a pause.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{self, MissedTickBehavior};

use crate::grpc_peer::{GrpcPeer, Implementation};
use crate::wait::SOON;

/// One call after the other, at most 200 per second.
#[derive(Debug)]
pub(crate) struct Calls {
    implementation: Implementation,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Outcomes>,
    latest: watch::Receiver<Latest>,
}

/// The number of calls, and the result of the last one.
type Latest = (usize, Result<String, String>);

/// The results of the calls.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) answers: BTreeMap<String, usize>,
    pub(crate) failures: BTreeMap<String, usize>,
    /// How often an answer differed from the one before.
    moves: usize,
}

impl Calls {
    pub(crate) fn start(implementation: Implementation, client: GrpcPeer) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (results, latest) = watch::channel((0, Err("no call yet".to_owned())));
        Self { implementation, stop, running: tokio::spawn(run(client, results, stopped)), latest }
    }

    /// Waits until `name` answers a call that ends from now on.
    pub(crate) async fn until_answer(&mut self, name: &str) {
        self.until(&format!("is answered by {name}"), |it| it.as_deref() == Ok(name)).await;
    }

    /// Waits until a call that ends from now on fails.
    pub(crate) async fn until_failure(&mut self) {
        self.until("fails", Result::is_err).await;
    }

    /// Waits until `count` more calls have ended.
    pub(crate) async fn go_on(&mut self, count: usize) {
        for _ in 0..count {
            self.until("ends", |_| true).await;
        }
    }

    async fn until(&mut self, what: &str, wanted: impl Fn(&Result<String, String>) -> bool) {
        let seen = self.latest.borrow_and_update().0;
        let found = self.latest.wait_for(|(number, outcome)| *number > seen && wanted(outcome));
        let found = time::timeout(SOON, found).await.map(|found| drop(found.expect("the calls go on")));
        if found.is_err() {
            let (number, outcome) = &*self.latest.borrow();
            panic!(
                "{}: no call {what} within {SOON:?}, the last, number {number}: {outcome:?}",
                self.implementation
            );
        }
    }

    /// Stops calling.
    pub(crate) async fn finish(self) -> Outcomes {
        self.stop.send(()).expect("the calls go on until they are stopped");
        self.running.await.expect("the client answers every call")
    }

    /// Stops calling; no call may have failed.
    pub(crate) async fn finish_without_loss(self) {
        let implementation = self.implementation;
        let outcomes = self.finish().await;
        eprintln!("{implementation}: {outcomes}");
        // grpc-go itself may lose a call when routes move to another cluster, with any server: it
        // uses the new routes before its balancer knows the cluster.
        let by_itself =
            |reason: &str| implementation == Implementation::Go && reason.contains(LOST_BY_GRPC_GO);
        let (by_itself, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            outcomes.failures.iter().partition(|(reason, _)| by_itself(reason));
        assert!(lost.is_empty(), "{implementation}: lost calls: {outcomes}");
        let by_itself: usize = by_itself.into_values().sum();
        assert!(
            by_itself <= outcomes.moves,
            "{implementation}: lost more than one call for a move: {outcomes}"
        );
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, failures, moves } = self;
        let count: usize = answers.values().chain(failures.values()).sum();
        write!(f, "{count} calls, answers {answers:?}, {moves} moves, failures {failures:?}")
    }
}

async fn run(
    mut client: GrpcPeer,
    results: watch::Sender<Latest>,
    mut stopped: oneshot::Receiver<()>,
) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut before = None;
    let mut ticks = time::interval(BETWEEN_CALLS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1.. {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            _ = ticks.tick() => {}
        }
        let outcome = client.call().await;
        match &outcome {
            Ok(name) => {
                *outcomes.answers.entry(name.clone()).or_default() += 1;
                let before = before.replace(name.clone());
                outcomes.moves += usize::from(before.is_some_and(|before| before != *name));
            }
            Err(reason) => *outcomes.failures.entry(reason.clone()).or_default() += 1,
        }
        drop(results.send_replace((number, outcome)));
    }
    outcomes
}

const BETWEEN_CALLS: Duration = Duration::from_millis(5);

const LOST_BY_GRPC_GO: &str = "unknown cluster selected for RPC";
