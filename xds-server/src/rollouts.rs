//! Carries what a source commits to the clients step by step: drives a [`RolloutMachine`] with the
//! commits of the source, the time and the orders of operators, and shows what goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use xds_core::{
    Audience, Cache, OnChange, Outcome, RolloutCounts, RolloutEvent, RolloutMachine, RolloutOrder,
    RolloutPlan, Snapshot, VariantId,
};

/// Rolls out what a source commits. Made by [`Rollouts::new`]; share it to show and to steer it.
pub struct Rollouts {
    /// What the source wants.
    source: Arc<Cache>,
    /// What the clients read.
    served: Arc<Cache>,
    state: Mutex<State>,
    ordered: Notify,
    keep: Option<Keep>,
    /// The time zero of the machine.
    start: (Instant, SystemTime),
}

/// Stores the stable state, so that a restarted server can go on from it.
type Keep = Box<dyn Fn(&Snapshot) -> Result<(), String> + Send + Sync>;

#[derive(Debug)]
struct State {
    machine: RolloutMachine,
    not_stored: Option<Arc<str>>,
}

/// A rollout for people and metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutStatus {
    /// The steps of the rollout that runs; without one, of the plan for all changes.
    pub steps: Vec<Audience>,
    /// The rollout that runs.
    pub running: Option<RunningRollout>,
    /// Why the newest state of the source is not rolled out, and since when: clients refused it, or
    /// an operator aborted it. Holds until one of the refused resources changes.
    pub refused: Option<(Arc<str>, SystemTime)>,
    /// How the rollouts before ended.
    pub counts: RolloutCounts,
    /// Why the stable state could not be stored. A restarted server would give clients an older one.
    pub not_stored: Option<Arc<str>>,
}

/// A rollout that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningRollout {
    /// The number of the step, from zero.
    pub step: usize,
    /// Who tries the change since this step, beside those of the steps before.
    pub audience: Audience,
    /// When the step ends.
    pub ends_at: SystemTime,
    /// What changes.
    pub variants: Vec<VariantId>,
    /// How many clients it affects of those that try it.
    pub affected: usize,
    /// How many of them ACKed it.
    pub acked: usize,
}

impl Rollouts {
    /// Rolls out what `source` commits to `served`, which must have no other source: resources that
    /// `source` lacks are removed. When `served` has a state already, for example a stored one, the
    /// difference is the first rollout. Otherwise the first state of the source is committed as it
    /// is.
    #[must_use]
    pub fn new(source: Arc<Cache>, served: Arc<Cache>, plan: RolloutPlan, on_change: OnChange) -> Self {
        let machine = RolloutMachine::new(Arc::clone(&source), Arc::clone(&served), plan, on_change);
        let state = Mutex::new(State { machine, not_stored: None });
        let start = (Instant::now(), SystemTime::now());
        Self { source, served, state, ordered: Notify::new(), keep: None, start }
    }

    /// The number of the last [request](xds_core::RequestedRollout) that was stable before the start:
    /// [`Snapshot::origin`] of the last stable state. Its plan is not that of what comes now.
    #[must_use]
    pub fn after(self, done: u64) -> Self {
        self.state().machine.after(done);
        self
    }

    /// Calls this with each new stable state. An error is logged.
    #[must_use]
    pub fn keeping(mut self, keep: impl Fn(&Snapshot) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.keep = Some(Box::new(keep));
        self
    }

    /// What goes on.
    #[must_use]
    pub fn status(&self) -> RolloutStatus {
        let state = self.state();
        let machine = &state.machine;
        let running = machine.running().map(|running| {
            let (step, audience) = running.step();
            RunningRollout {
                step,
                audience: audience.clone(),
                ends_at: self.start.1 + running.step_ends_at(),
                variants: running.variants().cloned().collect(),
                affected: running.outcomes().len(),
                acked: running.outcomes().iter().filter(|of| of.outcome == Outcome::Acked).count(),
            }
        });
        RolloutStatus {
            steps: machine.steps().to_vec(),
            running,
            refused: machine
                .refused()
                .map(|refused| (Arc::clone(&refused.reason), self.start.1 + refused.at)),
            counts: machine.counts(),
            not_stored: state.not_stored.clone(),
        }
    }

    /// Gives the change that is rolled out, or that was refused, to all clients now. Returns whether
    /// there is one.
    pub fn promote(&self) -> bool {
        self.order(RolloutOrder::Promote)
    }

    /// Ends the rollout that runs: clients that try the change are sent what they had. It is not
    /// rolled out again until one of its resources changes. Returns whether one runs.
    pub fn abort(&self) -> bool {
        self.order(RolloutOrder::Abort)
    }

    fn order(&self, order: RolloutOrder) -> bool {
        let is_possible = self.state().machine.order(order);
        if is_possible {
            self.ordered.notify_one();
        }
        is_possible
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits the first state of the source as it is, if the clients have none yet and the source
    /// has one. Call it before clients can connect, so that none of them waits.
    pub fn begin(&self) {
        let event = self.state().machine.begin(self.start.0.elapsed());
        event.into_iter().for_each(|event| self.on_event(&event));
    }

    /// Rolls out each change of the source, until the future is dropped.
    pub async fn run(&self) {
        let mut commits = self.source.commits(1);
        loop {
            while let Some(event) = self.advance() {
                self.on_event(&event);
            }
            // The cache sends no event when its source begins to lack changes.
            let next = Instant::now() + LOOK_EVERY;
            let step_ends_at =
                self.state().machine.running().map(|running| self.start.0 + running.step_ends_at());
            tokio::select! {
                _ = commits.next() => {}
                () = self.ordered.notified() => {}
                () = sleep_until(step_ends_at.map_or(next, |at| at.min(next))) => {}
            }
        }
    }

    fn advance(&self) -> Option<RolloutEvent> {
        self.state().machine.advance(self.start.0.elapsed())
    }

    fn on_event(&self, event: &RolloutEvent) {
        match event {
            RolloutEvent::Began { audience, variants } => {
                tracing::info!(step = %audience, variants, "a rollout began");
            }
            RolloutEvent::Widened(audience) => {
                tracing::info!(step = %audience, "the next step of the rollout began");
            }
            RolloutEvent::Promoted => {
                tracing::info!("the rollout reached all clients");
                self.store_stable();
            }
            RolloutEvent::Committed => self.store_stable(),
            RolloutEvent::Refused(reason) => {
                tracing::error!(%reason, "the rollout ended; its clients are sent what they had");
            }
            RolloutEvent::Replaced(reason) => {
                tracing::warn!(%reason, "the rollout ended; one of the newest state follows");
            }
        }
    }

    fn store_stable(&self) {
        let Some(keep) = &self.keep else { return };
        let failure = keep(&self.served.snapshot()).err();
        if let Some(error) = &failure {
            tracing::error!(%error, "the stable state is not stored; after a restart, clients would get an older one");
        }
        self.state().not_stored = failure.map(Into::into);
    }
}

impl std::fmt::Debug for Rollouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rollouts").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// How often the answers of clients are looked at while a step lasts.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
