//! How long clients take to ACK a commit, and which answers are missing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use xds_core::{Commit, Outcome, Revision, StreamOutcome, TypeUrl};

use super::types::{TypeLabel, Types};
use crate::follow::{Lost, TrackedCommit, Tracker};

/// The metrics that the task which follows commits updates.
#[derive(Debug, Clone)]
pub(super) struct Propagation {
    seconds: Family<TypeLabel, Histogram, Buckets>,
    lost: Family<LossLabel, Counter>,
    types: Arc<Types>,
    awaited: Arc<Awaited>,
}

/// The missing answers, read with each scrape.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<AwaitedState>);

#[derive(Debug, Default)]
struct AwaitedState {
    /// The newest commit that affected a stream, and when the task saw it.
    newest: Option<(Commit, Instant)>,
    /// For each followed commit: when the task saw it, and how many answers are missing.
    open: Vec<(Instant, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS_SECONDS)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LossLabel {
    what: &'static str,
}

impl Propagation {
    pub(super) fn register(registry: &mut Registry, types: Arc<Types>) -> Self {
        let seconds = Family::new_with_constructor(Buckets);
        let lost = Family::default();
        registry.register(
            "xds_propagation_seconds",
            "Time from a commit to the ACK of each stream and type that it affects",
            seconds.clone(),
        );
        registry.register(
            "xds_propagation_lost",
            "Commits and answers that were not measured: they came too fast or took too long",
            lost.clone(),
        );
        let propagation = Self { seconds, lost, types, awaited: Arc::default() };
        for what in [LOST_COMMITS, LOST_ANSWERS, GIVEN_UP] {
            propagation.count_lost(what, 0);
        }
        propagation
    }

    pub(super) fn awaited(&self) -> &Arc<Awaited> {
        &self.awaited
    }

    fn count_lost(&self, what: &'static str, count: u64) {
        self.lost.get_or_create_owned(&LossLabel { what }).inc_by(count);
    }
}

impl Tracker for Propagation {
    fn on_commit(&mut self, commit: &Commit, changed: &[(TypeUrl, usize)]) -> bool {
        self.types.learn(changed.iter().map(|(type_url, _)| type_url.clone()));
        // Ignore a commit that affects no stream; the one before is of more use.
        if commit.affected() > 0 {
            self.awaited.lock().newest = Some((commit.clone(), Instant::now()));
        }
        commit.affected() > 0
    }

    fn on_answer(&mut self, answer: &StreamOutcome, after: Duration) {
        if answer.outcome == Outcome::Acked {
            let label = self.types.label(&answer.type_url);
            self.seconds.get_or_create_owned(&label).observe(after.as_secs_f64());
        }
    }

    fn on_end(&mut self, _: Revision, undecided: usize) {
        if undecided > 0 {
            self.count_lost(GIVEN_UP, undecided as u64);
        }
    }

    fn on_loss(&mut self, lost: Lost) {
        match lost {
            Lost::Commits(count) => self.count_lost(LOST_COMMITS, count),
            Lost::Answers(count) => self.count_lost(LOST_ANSWERS, count),
        }
    }

    fn on_caught_up(&mut self, open: &BTreeMap<Revision, TrackedCommit>) {
        let open = open.values().map(|open| (open.at, open.followed.undecided()));
        let mut state = self.awaited.lock();
        state.open.clear();
        state.open.extend(open);
    }
}

impl Awaited {
    /// The clients that the newest commit affects, by their outcome.
    pub(super) fn clients(&self) -> [(&'static str, usize); 5] {
        let newest = self.lock().newest.clone();
        let mut counts = [("acked", 0), ("nacked", 0), ("pending", 0), ("late", 0), ("gone", 0)];
        let Some((commit, at)) = newest else { return counts };
        let is_late = at.elapsed() >= LATE_AFTER;
        for delivered in commit.applied(|_| true).results() {
            let index = match delivered.outcome {
                Outcome::Acked => 0,
                Outcome::Nacked { .. } => 1,
                Outcome::Pending | Outcome::Splitting if !is_late => 2,
                Outcome::Pending | Outcome::Splitting | Outcome::Late => 3,
                Outcome::Disconnected => 4,
            };
            counts[index].1 += 1;
        }
        counts
    }

    /// The missing answers of all followed commits.
    pub(super) fn answers(&self) -> [(&'static str, usize); 2] {
        let (mut pending, mut late) = (0, 0);
        for (at, undecided) in &self.lock().open {
            *if at.elapsed() >= LATE_AFTER { &mut late } else { &mut pending } += undecided;
        }
        [("pending", pending), ("late", late)]
    }

    fn lock(&self) -> MutexGuard<'_, AwaitedState> {
        // The data is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LOST_COMMITS: &str = "commits";
const LOST_ANSWERS: &str = "answers";
const GIVEN_UP: &str = "given_up";

/// After this time, a client that has not answered counts as late.
pub const LATE_AFTER: Duration = Duration::from_secs(30);

/// A healthy client in the same data centre ACKs within milliseconds. Above the last bound, the
/// exact time does not matter.
const BUCKETS_SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
