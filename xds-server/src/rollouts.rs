//! Carries what a source commits to the clients step by step: drives a [`RolloutMachine`] with the
//! commits of the source, the time and the orders of operators, and shows what goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use xds_core::{
    Audience, Cache, OnChange, Outcome, RefusedChange, RolloutCounts, RolloutEvent, RolloutMachine,
    RolloutOrder, RolloutPlan, Snapshot, VariantId,
};

/// Rolls out what a source commits. Made by [`Rollouts::new`]; share it to show and to steer it.
pub struct Rollouts {
    /// What the source wants.
    source: Arc<Cache>,
    /// What the clients read.
    served: Arc<Cache>,
    on_change: OnChange,
    machine: Mutex<RolloutMachine>,
    /// What others see of the machine, and tell it, so that they never wait for its work.
    shown: Mutex<Shown>,
    ordered: Notify,
    keep: Option<Keep>,
    keep_refused: Option<KeepRefused>,
    /// When it was made: the instant, and the time since 1970, which is the machine's time.
    start: (Instant, Duration),
}

/// Stores the stable state, so that a restarted server can go on from it.
type Keep = Box<dyn Fn(&Snapshot) -> Result<(), String> + Send + Sync>;
/// Stores what is refused, so that a restarted server does not try it again.
type KeepRefused = Box<dyn Fn(&[RefusedChange]) -> Result<(), String> + Send + Sync>;

#[derive(Debug, Default)]
struct Shown {
    status: RolloutStatus,
    order: Option<RolloutOrder>,
}

/// A rollout for people and metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutStatus {
    /// The steps of the rollout that runs; without one, of the plan for all changes.
    pub steps: Vec<Audience>,
    /// The rollout that runs.
    pub running: Option<RunningRollout>,
    /// What is not rolled out, the newest last.
    pub refused: Vec<RefusedRollout>,
    /// How many changed variants wait because they need what is refused: they may name what it adds, or
    /// remove what only the stable version of it names.
    pub waiting: usize,
    /// How the rollouts before ended.
    pub counts: RolloutCounts,
    /// Why the stable state, or what is refused, could not be stored. A restarted server would give
    /// clients an older state, or try a refused change again.
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

/// A change that clients refused, or an operator aborted. It is not tried again until one of its
/// resources changes.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedRollout {
    /// Why.
    pub reason: Arc<str>,
    /// Since when.
    pub at: SystemTime,
    /// What was to change.
    pub variants: Vec<VariantId>,
}

impl Rollouts {
    /// Rolls out what `source` commits to `served`, which must have no other source: resources that
    /// `source` lacks are removed. When `served` has a state already, for example a stored one, the
    /// difference is the first rollout. Otherwise the first state of the source is committed as it
    /// is.
    #[must_use]
    pub fn new(source: Arc<Cache>, served: Arc<Cache>, plan: RolloutPlan, on_change: OnChange) -> Self {
        let machine = RolloutMachine::new(Arc::clone(&source), Arc::clone(&served), plan, on_change);
        let status = RolloutStatus { steps: machine.steps().to_vec(), ..RolloutStatus::default() };
        let (shown, machine) = (Mutex::new(Shown { status, order: None }), Mutex::new(machine));
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start = (Instant::now(), since_1970);
        let (ordered, keep, keep_refused) = (Notify::new(), None, None);
        Self { source, served, on_change, machine, shown, ordered, keep, keep_refused, start }
    }

    /// The number of the last [request](xds_core::RequestedRollout) that was stable before the start:
    /// [`Snapshot::origin`] of the last stable state. Its plan is not that of what comes now.
    #[must_use]
    pub fn after(self, done: u64) -> Self {
        lock(&self.machine).after(done);
        self
    }

    /// Calls this with each new stable state. An error is logged, and the call repeated each 5 s.
    #[must_use]
    pub fn keeping(mut self, keep: impl Fn(&Snapshot) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.keep = Some(Box::new(keep));
        self
    }

    /// Calls this with all changes that are refused, when one comes or goes. An error is logged, and the call
    /// repeated each 5 s. The times are since 1970.
    #[must_use]
    pub fn keeping_refused(
        mut self,
        keep: impl Fn(&[RefusedChange]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.keep_refused = Some(Box::new(keep));
        self
    }

    /// What was refused before the start: each stays refused until one of its resources changes.
    #[must_use]
    pub fn refused_before(self, refused: impl IntoIterator<Item = RefusedChange>) -> Self {
        let mut machine = lock(&self.machine);
        machine.refused_before(refused);
        lock(&self.shown).status.refused = shown_refused(&machine);
        drop(machine);
        self
    }

    /// What goes on.
    #[must_use]
    pub fn status(&self) -> RolloutStatus {
        lock(&self.shown).status.clone()
    }

    /// Gives the change that is rolled out to all clients now. If none is, the same as
    /// [`promote_refused`](Self::promote_refused). Returns whether there is one.
    pub fn promote(&self) -> bool {
        self.order(RolloutOrder::Promote)
    }

    /// Gives all that was refused to all clients now. Changes since then go along only if it needs them; a rollout
    /// that runs begins again. Returns whether something is refused.
    pub fn promote_refused(&self) -> bool {
        self.order(RolloutOrder::PromoteRefused)
    }

    /// Ends the rollout that runs: clients that try the change are sent what they had. It is not
    /// rolled out again until one of its resources changes. Returns whether one runs.
    pub fn abort(&self) -> bool {
        self.order(RolloutOrder::Abort)
    }

    fn order(&self, order: RolloutOrder) -> bool {
        let mut shown = lock(&self.shown);
        let Shown { status, order: next } = &mut *shown;
        let (is_running, is_refused) = (status.running.is_some(), !status.refused.is_empty());
        let is_possible = match order {
            RolloutOrder::Promote => is_running || is_refused,
            RolloutOrder::PromoteRefused => is_refused,
            RolloutOrder::Abort => is_running,
        };
        if is_possible {
            *next = Some(order);
            self.ordered.notify_one();
        }
        is_possible
    }

    /// Commits the first state of the source as it is, if the clients have none yet and the source
    /// has one. Call it before clients can connect, so that none of them waits.
    pub fn begin(&self) {
        let mut machine = lock(&self.machine);
        let refused_before = machine.refused().len();
        if let Some(event) = machine.begin(self.now()) {
            self.on_event(&machine, &event);
            self.forget_refused(&machine, refused_before);
            self.show(&machine);
        }
    }

    /// Rolls out each change of the source, until the future is dropped. Then the rollout that runs
    /// ends, and clients that try the change are sent what they had.
    pub async fn run(&self) {
        let mut commits = self.source.commits(1);
        let _end = EndOnDrop(self);
        let mut stored_at = Instant::now();
        loop {
            while self.advance() {}
            if stored_at.elapsed() >= STORE_AGAIN {
                self.store_again();
                stored_at = Instant::now();
            }
            let step_ends_at = lock(&self.machine)
                .running()
                .map(|running| self.start.0 + running.step_ends_at().saturating_sub(self.start.1));
            let looks_at_source = step_ends_at.is_none() || self.on_change == OnChange::Replace;
            // The cache sends no event when its source begins to lack changes.
            let next = Instant::now() + LOOK_EVERY;
            tokio::select! {
                _ = commits.next(), if looks_at_source => {}
                () = self.ordered.notified() => {}
                () = sleep_until(step_ends_at.map_or(next, |at| at.min(next))) => {}
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.1 + self.start.0.elapsed()
    }

    /// Does the next thing that is to be done. Returns whether there was one.
    fn advance(&self) -> bool {
        let mut machine = lock(&self.machine);
        if let Some(order) = lock(&self.shown).order.take() {
            // An order that comes too late is not one for the next rollout.
            machine.order(order);
        }
        let refused_before = machine.refused().len();
        let event = machine.advance(self.now());
        event.iter().for_each(|event| self.on_event(&machine, event));
        self.forget_refused(&machine, refused_before);
        if event.is_some() {
            self.show(&machine);
        } else {
            self.show_outcomes(&machine);
        }
        event.is_some()
    }

    /// Shows how far the machine is.
    fn show(&self, machine: &RolloutMachine) {
        let running = machine.running().map(|running| {
            let (step, audience) = running.step();
            RunningRollout {
                step,
                audience: audience.clone(),
                ends_at: SystemTime::UNIX_EPOCH + running.step_ends_at(),
                variants: running.variants().cloned().collect(),
                affected: 0,
                acked: 0,
            }
        });
        let mut shown = lock(&self.shown);
        let status = &mut shown.status;
        status.steps = machine.steps().to_vec();
        (status.running, status.refused, status.counts) = (running, shown_refused(machine), machine.counts());
        drop(shown);
        self.show_outcomes(machine);
    }

    /// Shows the answers of the clients, what is no longer refused, and what waits.
    fn show_outcomes(&self, machine: &RolloutMachine) {
        let status = &mut lock(&self.shown).status;
        if machine.refused().len() < status.refused.len() {
            status.refused = shown_refused(machine);
        }
        status.waiting = machine.waiting();
        if let Some((shown, running)) = status.running.as_mut().zip(machine.running()) {
            let outcomes = running.outcomes();
            shown.affected = outcomes.len();
            shown.acked = outcomes.iter().filter(|of| of.outcome == Outcome::Acked).count();
        }
    }

    fn on_event(&self, machine: &RolloutMachine, event: &RolloutEvent) {
        match event {
            RolloutEvent::Began { audience, variants } => {
                tracing::info!(step = %audience, variants, "a rollout began");
            }
            RolloutEvent::Widened(audience) => {
                tracing::info!(step = %audience, "the next step of the rollout began");
            }
            RolloutEvent::Promoted => {
                self.store_stable();
                tracing::info!("the rollout reached all clients");
            }
            RolloutEvent::Committed => self.store_stable(),
            RolloutEvent::Refused(reason) => {
                self.store_refused(machine);
                tracing::error!(
                    reason = &**reason,
                    "the change is refused; clients that tried it are sent what they had"
                );
            }
            RolloutEvent::Overtaken => {
                tracing::info!("the rollout ended; one of the newest state begins");
            }
            RolloutEvent::Replaced(error) => {
                tracing::warn!(error = error.to_string(), "a commit of another source ended the rollout");
            }
        }
    }

    fn store_stable(&self) {
        let Some(keep) = &self.keep else { return };
        let failure: Option<Arc<str>> = keep(&self.served.snapshot()).err().map(Into::into);
        let before = std::mem::replace(&mut lock(&self.shown).status.not_stored, failure.clone());
        match failure {
            Some(error) if before.as_ref() != Some(&error) => tracing::error!(
                %error,
                "the stable state is not stored; after a restart, clients would get an older one"
            ),
            None if before.is_some() => tracing::info!("the state of rollouts is stored now"),
            _ => {}
        }
    }

    /// Whether what is refused is stored now.
    fn store_refused(&self, machine: &RolloutMachine) -> bool {
        let stored = self.keep_refused.as_ref().map_or(Ok(()), |keep| keep(machine.refused()));
        let Err(error) = stored else { return true };
        let error: Arc<str> = error.into();
        let before = lock(&self.shown).status.not_stored.replace(Arc::clone(&error));
        if before.as_ref() != Some(&error) {
            tracing::error!(%error, "what is refused is not stored; after a restart, it would be tried again");
        }
        false
    }

    fn forget_refused(&self, machine: &RolloutMachine, refused_before: usize) {
        if machine.refused().len() < refused_before {
            self.store_refused(machine);
        }
    }

    /// Something could not be stored: there may be room now.
    fn store_again(&self) {
        // Neither the stable state changes meanwhile, nor what is refused.
        let machine = lock(&self.machine);
        let is_failing = lock(&self.shown).status.not_stored.is_some();
        if is_failing && self.store_refused(&machine) {
            self.store_stable();
        }
    }
}

/// Ends the rollout that runs when nobody drives it any more.
struct EndOnDrop<'a>(&'a Rollouts);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let mut machine = lock(&self.0.machine);
        machine.stop();
        self.0.show(&machine);
    }
}

fn shown_refused(machine: &RolloutMachine) -> Vec<RefusedRollout> {
    let shown = |refused: &RefusedChange| RefusedRollout {
        reason: Arc::clone(&refused.reason),
        at: SystemTime::UNIX_EPOCH + refused.at,
        variants: refused.contents().map(|(id, _)| id.clone()).collect(),
    };
    machine.refused().iter().map(shown).collect()
}

/// Locks also a poisoned mutex: no code panics while it holds one of these, so the data is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Rollouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rollouts").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// How long after a failure the stable state is stored again.
const STORE_AGAIN: Duration = Duration::from_secs(5);
/// How often the answers of clients are looked at while a step lasts.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
