//! Carries what a source commits to the clients step by step.
//!
//! The source commits to a cache of its own. [`Rollouts::run`] compares it with the cache that the
//! clients read, makes a [candidate](xds_core::Candidate) of the difference, and asks
//! [`Rollout`] what to do next. So the source knows nothing about rollouts, and the newest state of
//! the source is what counts. A source may [ask](RequestedRollout) for another plan than that of the
//! server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use xds_core::{
    Audience, Cache, Candidate, ClientOutcome, Outcome, RequestedRollout, Revision, Rollout, RolloutAction,
    RolloutPlan, Snapshot, Transaction, VariantId, Version,
};

/// What happens to a candidate when the source commits something else meanwhile.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum OnChange {
    /// The rollout goes on. The newest state of the source is rolled out after it.
    #[default]
    Wait,
    /// The candidate ends, and a rollout of the newest state begins.
    Replace,
}

/// Rolls out what a source commits. Made by [`Rollouts::new`]; share it to show and to steer it.
pub struct Rollouts {
    /// What the source wants.
    source: Arc<Cache>,
    /// What the clients read.
    served: Arc<Cache>,
    plan: RolloutPlan,
    on_change: OnChange,
    keep: Option<Keep>,
    /// The number of the last request that was stable before the start.
    done: u64,
    state: Mutex<State>,
    ordered: Notify,
}

/// Stores the stable state, so that a restarted server can go on from it.
type Keep = Box<dyn Fn(&Snapshot) -> Result<(), String> + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    refused: Option<RefusedChange>,
    counts: RolloutCounts,
    order: Option<Order>,
    not_stored: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
struct Running {
    steps: Vec<Audience>,
    contents: Vec<(VariantId, Option<Version>)>,
    step: usize,
    audience: Audience,
    ends_at: SystemTime,
    outcomes: Vec<ClientOutcome>,
}

/// A change that clients refused. It is not tried again until one of its resources changes.
#[derive(Debug, Clone)]
struct RefusedChange {
    contents: BTreeSet<(VariantId, Option<Version>)>,
    reason: Arc<str>,
    at: SystemTime,
}

/// What an operator orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Promote,
    Abort,
}

/// How many rollouts ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RolloutCounts {
    /// All clients have the change.
    pub promoted: u64,
    /// Clients rejected it, or too few ACKed it, or an operator aborted it.
    pub refused: u64,
    /// The source committed something else meanwhile, or a commit of another source was in the way.
    pub replaced: u64,
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

/// How one rollout ended.
enum Ended {
    /// The plan has no steps, so it was a commit as any other.
    Committed,
    Promoted,
    Refused(String),
    Replaced,
}

impl Rollouts {
    /// Rolls out what `source` commits to `served`, which must have no other source: resources that
    /// `source` lacks are removed. When `served` has a state already, for example a
    /// stored one, the difference is the first rollout. Otherwise the first state of the source is
    /// committed as it is.
    #[must_use]
    pub fn new(source: Arc<Cache>, served: Arc<Cache>, plan: RolloutPlan, on_change: OnChange) -> Self {
        let (state, ordered) = (Mutex::default(), Notify::new());
        Self { source, served, plan, on_change, keep: None, done: 0, state, ordered }
    }

    /// The number of the last [request](RequestedRollout) that was stable before the start:
    /// [`Snapshot::origin`] of the last stable state. Its plan is not that of what comes now.
    #[must_use]
    pub fn after(self, done: u64) -> Self {
        Self { done, ..self }
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
        let steps =
            state.running.as_ref().map_or_else(|| self.plan.steps(), |running| &running.steps).to_vec();
        let running = state.running.as_ref().map(|running| RunningRollout {
            step: running.step,
            audience: running.audience.clone(),
            ends_at: running.ends_at,
            variants: running.contents.iter().map(|(id, _)| id.clone()).collect(),
            affected: running.outcomes.len(),
            acked: running.outcomes.iter().filter(|of| of.outcome == Outcome::Acked).count(),
        });
        let refused = state.refused.as_ref().map(|refused| (Arc::clone(&refused.reason), refused.at));
        let not_stored = state.not_stored.clone();
        RolloutStatus { steps, running, refused, counts: state.counts, not_stored }
    }

    /// Gives the change that is rolled out, or that was refused, to all clients now. Returns whether
    /// there is one.
    pub fn promote(&self) -> bool {
        self.order(Order::Promote)
    }

    /// Ends the rollout that runs: clients that try the change are sent what they had. It is not
    /// rolled out again until one of its resources changes. Returns whether one runs.
    pub fn abort(&self) -> bool {
        self.order(Order::Abort)
    }

    fn order(&self, order: Order) -> bool {
        let mut state = self.state();
        let is_possible = state.running.is_some() || (order == Order::Promote && state.refused.is_some());
        if is_possible {
            state.order = Some(order);
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
        let wanted = self.source.snapshot();
        if has_commit(&wanted) && !self.served.read(has_commit) {
            self.commit(Transaction::between(&self.served.snapshot(), &wanted));
        }
    }

    /// Rolls out each change of the source, until the future is dropped.
    pub async fn run(&self) {
        let mut commits = self.source.commits(1);
        // The number of the last request whose change is stable.
        let mut done = self.done;
        loop {
            self.begin();
            let wanted = self.source.snapshot();
            let mut transaction = Transaction::between(&self.served.snapshot(), &wanted);
            transaction.origin().clone_from(wanted.origin());
            let requested = wanted.origin().rollout.as_ref();
            let number = requested.map_or(done, |RequestedRollout { number, .. }| *number);
            let plan = requested.filter(|_| number > done).map_or(&self.plan, |requested| &requested.plan);
            let contents: Vec<_> = transaction.contents().collect();
            // A source without a commit is not empty: nobody knows what it has.
            let has_both = has_commit(&wanted) && self.served.read(has_commit);
            let is_new = has_both && !transaction.is_empty();
            if is_new && !self.is_refused(&contents) {
                let ended = self.roll_out(transaction, contents.clone(), &wanted, plan).await;
                if matches!(ended, Ended::Committed | Ended::Promoted) {
                    done = number;
                }
                self.on_end(ended, contents);
                continue;
            }
            if !is_new {
                self.state().refused = None;
            }
            if has_both && !is_new {
                done = number;
            }
            loop {
                self.carry_outdated();
                tokio::select! {
                    _ = commits.next() => break,
                    () = self.ordered.notified() => {
                        let order = self.state().order.take();
                        if order == Some(Order::Promote) && is_new {
                            tracing::info!("the refused change was promoted by an operator");
                            let ended = self.commit(transaction);
                            self.on_end(ended, contents);
                            break;
                        }
                    }
                    // The cache sends no event when its source begins to lack changes.
                    () = sleep(LOOK_EVERY) => {}
                }
            }
        }
    }

    /// G13: while the source lacks changes, and does not know which, clients are not answered that a
    /// resource does not exist.
    fn carry_outdated(&self) {
        let source = self.source.snapshot();
        self.served.set_outdated(has_commit(&source) && !source.is_synced());
    }

    /// Whether it contains all of what was refused. What was refused is forgotten when a part of it
    /// changed.
    fn is_refused(&self, contents: &[(VariantId, Option<Version>)]) -> bool {
        let mut state = self.state();
        let contents: BTreeSet<_> = contents.iter().cloned().collect();
        state.refused.take_if(|refused| !refused.contents.is_subset(&contents));
        state.refused.is_some()
    }

    async fn roll_out(
        &self,
        transaction: Transaction,
        contents: Vec<(VariantId, Option<Version>)>,
        wanted: &Snapshot,
        plan: &RolloutPlan,
    ) -> Ended {
        let start = Instant::now();
        let Some(audience) = plan.steps().first().cloned() else {
            return match self.commit(transaction) {
                Ended::Promoted => Ended::Committed,
                other => other,
            };
        };
        let count = contents.len();
        let mut candidate = match self.served.begin(transaction, &audience) {
            Ok(candidate) => candidate,
            Err(error) => return Ended::Refused(error.to_string()),
        };
        tracing::info!(step = %audience, variants = count, "a rollout began");
        let mut rollout = Rollout::new(plan.clone(), Duration::ZERO);
        let ends_at = SystemTime::now() + rollout.step_ends_at();
        let steps = plan.steps().to_vec();
        self.state().running =
            Some(Running { steps, contents, step: 0, audience, ends_at, outcomes: Vec::new() });
        loop {
            self.carry_outdated();
            if let Some(error) = candidate.refusal() {
                tracing::warn!(%error, "a commit of another source ended the rollout");
                return Ended::Replaced;
            }
            if self.on_change == OnChange::Replace
                && self.source.read(Snapshot::revision) != wanted.revision()
            {
                tracing::info!("the source changed, so the rollout begins again");
                return Ended::Replaced;
            }
            let order = self.state().order.take();
            match order {
                Some(Order::Promote) => return self.promote_candidate(candidate),
                Some(Order::Abort) => return Ended::Refused("an operator aborted it".to_owned()),
                None => {}
            }
            let outcomes = candidate.delivery().results();
            let action = rollout.decide(start.elapsed(), &outcomes);
            self.show(&rollout, start, outcomes);
            match action {
                RolloutAction::Wait(until) => {
                    let next = (start + until).min(Instant::now() + LOOK_EVERY);
                    tokio::select! {
                        () = sleep_until(next) => {}
                        () = self.ordered.notified() => {}
                    }
                }
                RolloutAction::Widen(audience) => {
                    tracing::info!(step = %audience, "the next step of the rollout began");
                    if let Err(error) = candidate.widen(&audience) {
                        tracing::warn!(%error, "a commit of another source ended the rollout");
                        return Ended::Replaced;
                    }
                }
                RolloutAction::Promote => return self.promote_candidate(candidate),
                RolloutAction::End(reason) => return Ended::Refused(reason.to_string()),
            }
        }
    }

    fn promote_candidate(&self, candidate: Candidate) -> Ended {
        match candidate.promote() {
            Ok(_) => {
                self.store_stable();
                Ended::Promoted
            }
            Err(error) => {
                tracing::warn!(%error, "a commit of another source ended the rollout");
                Ended::Replaced
            }
        }
    }

    /// Notes what the page and the metrics show.
    fn show(&self, rollout: &Rollout, start: Instant, outcomes: Vec<ClientOutcome>) {
        let left = rollout.step_ends_at().saturating_sub(start.elapsed());
        if let Some(running) = &mut self.state().running {
            if let Some((step, audience)) = rollout.step().filter(|(step, _)| *step != running.step) {
                let ends_at = SystemTime::now() + left;
                (running.step, running.audience, running.ends_at) = (step, audience.clone(), ends_at);
            }
            running.outcomes = outcomes;
        }
    }

    fn on_end(&self, ended: Ended, contents: Vec<(VariantId, Option<Version>)>) {
        let mut state = self.state();
        // An order that came too late is not one for the next rollout.
        (state.running, state.order) = (None, None);
        match ended {
            Ended::Committed => state.refused = None,
            Ended::Promoted => {
                tracing::info!(variants = contents.len(), "the rollout reached all clients");
                (state.refused, state.counts.promoted) = (None, state.counts.promoted + 1);
            }
            Ended::Refused(reason) => {
                tracing::error!(%reason, "the rollout ended; its clients are sent what they had");
                let (contents, at) = (contents.into_iter().collect(), SystemTime::now());
                state.refused = Some(RefusedChange { contents, reason: reason.into(), at });
                state.counts.refused += 1;
            }
            Ended::Replaced => state.counts.replaced += 1,
        }
    }

    fn commit(&self, transaction: Transaction) -> Ended {
        match self.served.commit(transaction) {
            Ok(_) => {
                self.store_stable();
                Ended::Promoted
            }
            Err(error) => Ended::Refused(error.to_string()),
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

/// Whether a source ever committed to the cache.
fn has_commit(snapshot: &Snapshot) -> bool {
    snapshot.revision() > Revision::ZERO
}

/// How often the answers of clients are looked at while a step lasts.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
