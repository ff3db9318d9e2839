//! Rolls out what a source commits, one change after another.
//!
//! The source commits to a cache of its own. The machine compares it with the cache that the clients
//! read, and makes a [candidate](Candidate) of the difference. So the source knows nothing about
//! rollouts, and the newest state of the source is what counts. A source may
//! [ask](RequestedRollout) for another plan than that of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Rollout, RolloutAction};
use crate::cache::{
    Audience, Cache, Candidate, ClientOutcome, RequestedRollout, RolloutPlan, Snapshot, Transaction,
};
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::resource::VariantId;

/// What happens to a candidate when the source commits something else meanwhile.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum OnChange {
    /// The rollout goes on, unless the source takes back what is rolled out. The newest state of the source is
    /// rolled out after it.
    #[default]
    Wait,
    /// The candidate ends, and a rollout of the newest state begins.
    Replace,
}

/// How many rollouts ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RolloutCounts {
    /// All clients have the change.
    pub promoted: u64,
    /// Clients rejected it, or too few ACKed it, or an operator aborted it.
    pub refused: u64,
    /// One of the newest state began instead, or a commit of another source was in the way.
    pub replaced: u64,
}

/// Carries what a source commits to the clients step by step. It is pure: call
/// [`advance`](Self::advance) until it returns nothing, and again when the source commits, an
/// operator orders something, clients answer, or at [`step_ends_at`](RunningCandidate::step_ends_at).
pub struct RolloutMachine {
    /// What the source wants.
    source: Arc<Cache>,
    /// What the clients read.
    served: Arc<Cache>,
    plan: RolloutPlan,
    on_change: OnChange,
    /// The number of the last request whose change is stable: its plan is not that of what comes now.
    done: u64,
    /// The states of both caches between which nothing is to be rolled out.
    compared: Option<(Revision, Revision)>,
    running: Option<RunningCandidate>,
    /// What clients refused, and the source still wants. No resource is in two of them.
    refused: Vec<RefusedChange>,
    /// How many variants wait because they need what is refused.
    waiting: usize,
    /// How many rollouts in a row ended because the source took a part back.
    taken_back: u8,
    counts: RolloutCounts,
    order: Option<RolloutOrder>,
}

/// A candidate that some clients try now.
#[derive(Debug)]
pub struct RunningCandidate {
    candidate: Candidate,
    rollout: Rollout,
    /// What changes; no version for what is removed.
    contents: Contents,
    /// The number of the request for this rollout.
    number: u64,
    /// The state of the source that was looked at last; first the one that is rolled out.
    looked_at: Revision,
    outcomes: Vec<ClientOutcome>,
}

/// A change that clients refused. It is not tried again until one of its resources changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedChange {
    contents: BTreeSet<(VariantId, Option<Version>)>,
    /// Why.
    pub reason: Arc<str>,
    /// Since when.
    pub at: Duration,
}

type Contents = Vec<(VariantId, Option<Version>)>;

/// What an operator orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutOrder {
    /// All clients get the change that is rolled out. If none is, they get what was refused.
    Promote,
    /// All clients get what was refused. A rollout that runs begins again.
    PromoteRefused,
    /// The rollout ends, and clients that try the change are sent what they had.
    Abort,
}

/// What the machine just did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutEvent {
    /// Clients try a change.
    Began {
        /// Who tries it.
        audience: Audience,
        /// How many variants change.
        variants: usize,
    },
    /// More clients try it.
    Widened(Audience),
    /// All clients have it: the stable state is another one.
    Promoted,
    /// A change without steps reached all clients: the stable state is another one.
    Committed,
    /// The rollout ended, for this reason.
    Refused(Arc<str>),
    /// The rollout ended, because the source committed something else meanwhile, or took the change back, or an
    /// operator promoted what was refused.
    Overtaken,
    /// The rollout ended, because a commit of another source was in the way.
    Replaced(Arc<str>),
}

impl RefusedChange {
    /// A change of these variants, with the version that each was to have; none, if it was to be removed.
    pub fn new(
        contents: impl IntoIterator<Item = (VariantId, Option<Version>)>,
        reason: Arc<str>,
        at: Duration,
    ) -> Self {
        Self { contents: contents.into_iter().collect(), reason, at }
    }

    /// What was to change, as in [`new`](Self::new).
    pub fn contents(&self) -> impl ExactSizeIterator<Item = &(VariantId, Option<Version>)> {
        self.contents.iter()
    }

    fn resources(&self) -> BTreeSet<(TypeUrl, ResourceName)> {
        self.contents.iter().map(|(id, _)| resource(id)).collect()
    }
}

impl RolloutMachine {
    /// Rolls out what `source` commits to `served`, which must have no other source: resources that
    /// `source` lacks are removed. When `served` has a state already, for example a stored one, the
    /// difference is the first rollout. Otherwise the first state of the source is committed as it
    /// is.
    #[must_use]
    pub fn new(source: Arc<Cache>, served: Arc<Cache>, plan: RolloutPlan, on_change: OnChange) -> Self {
        Self {
            source,
            served,
            plan,
            on_change,
            done: 0,
            compared: None,
            running: None,
            refused: Vec::new(),
            waiting: 0,
            taken_back: 0,
            counts: RolloutCounts::default(),
            order: None,
        }
    }

    /// Sets the number of the last [request](RequestedRollout) that was stable before the start: its
    /// plan is not that of what comes now.
    pub fn after(&mut self, done: u64) {
        self.done = done;
    }

    /// Sets what was refused before the start: it stays refused until one of its resources changes.
    pub fn refused_before(&mut self, refused: impl IntoIterator<Item = RefusedChange>) {
        self.refused.extend(refused);
    }

    /// The steps of the rollout that runs; without one, of the plan for all changes.
    #[must_use]
    pub fn steps(&self) -> &[Audience] {
        self.running.as_ref().map_or(&self.plan, |running| &running.rollout.plan).steps()
    }

    /// The rollout that runs.
    #[must_use]
    pub fn running(&self) -> Option<&RunningCandidate> {
        self.running.as_ref()
    }

    /// What is not rolled out, the newest last. Each holds until one of its resources changes.
    #[must_use]
    pub fn refused(&self) -> &[RefusedChange] {
        &self.refused
    }

    /// How many changed variants wait because they need what is refused: they may name what it adds, or
    /// remove what only the stable version of it names.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How the rollouts before ended.
    #[must_use]
    pub fn counts(&self) -> RolloutCounts {
        self.counts
    }

    /// Takes an order of an operator, which the next [`advance`](Self::advance) carries out. Returns
    /// whether there is something to promote or to abort.
    pub fn order(&mut self, order: RolloutOrder) -> bool {
        let is_possible = match order {
            RolloutOrder::Promote => self.running.is_some() || !self.refused.is_empty(),
            RolloutOrder::PromoteRefused => !self.refused.is_empty(),
            RolloutOrder::Abort => self.running.is_some(),
        };
        if is_possible {
            self.order = Some(order);
        }
        is_possible
    }

    /// Ends the rollout that runs: clients that try the change are sent what they had. The next
    /// [`advance`](Self::advance) begins one again.
    pub fn stop(&mut self) {
        (self.running, self.compared, self.order) = (None, None, None);
    }

    /// Commits the first state of the source as it is, if the clients have none yet and the source
    /// has one. Call it before clients can connect, so that none of them waits.
    pub fn begin(&mut self, now: Duration) -> Option<RolloutEvent> {
        let wanted = self.source.snapshot();
        let stable = self.served.snapshot();
        let states = (wanted.revision(), stable.revision());
        if !wanted.has_commit() || stable.has_commit() || self.compared == Some(states) {
            return None;
        }
        self.compared = Some(states);
        let mut transaction = Transaction::between(&stable, &wanted);
        transaction.origin().clone_from(wanted.origin());
        let contents = tried(&transaction, &stable);
        self.refused.clear();
        self.done = wanted.origin().rollout.as_ref().map_or(self.done, |requested| requested.number);
        Some(self.commit(now, transaction, contents))
    }

    /// Does the next thing that is to be done, if there is one.
    pub fn advance(&mut self, now: Duration) -> Option<RolloutEvent> {
        self.carry_outdated();
        match self.running.take() {
            None => self.begin(now).or_else(|| self.look_at_source(now)),
            Some(running) => self.go_on(now, running),
        }
    }

    /// G13: while the source lacks changes, and does not know which, clients are not answered that a
    /// resource does not exist.
    fn carry_outdated(&self) {
        let is_outdated = self.source.read(|source| source.has_commit() && !source.is_synced());
        self.served.set_outdated(is_outdated);
    }

    /// Begins a rollout if the source has something new.
    fn look_at_source(&mut self, now: Duration) -> Option<RolloutEvent> {
        let (wanted, stable) = (self.source.snapshot(), self.served.snapshot());
        // A source without a commit is not empty: nobody knows what it has.
        let has_both = wanted.has_commit() && stable.has_commit();
        let states = (wanted.revision(), stable.revision());
        if !has_both {
            return None;
        }
        let order = self.order.take();
        // What changes nothing, and what was refused, is not tried again and again.
        if self.compared.replace(states) == Some(states) && order.is_none() {
            return None;
        }
        let mut transaction = Transaction::between(&stable, &wanted);
        transaction.origin().clone_from(wanted.origin());
        let requested = wanted.origin().rollout.as_ref();
        let number = requested.map_or(self.done, |RequestedRollout { number, .. }| *number);
        self.forget_changed(&tried(&transaction, &stable));
        if transaction.is_empty() {
            (self.done, self.taken_back, self.waiting) = (number, 0, 0);
            return None;
        }
        if order.is_some_and(|order| order != RolloutOrder::Abort) && !self.refused.is_empty() {
            return Some(self.promote_refused(now, transaction, &stable));
        }
        let transaction = self.without_refused(transaction, &stable);
        if transaction.is_empty() {
            return None;
        }
        let contents = tried(&transaction, &stable);
        // Another number, also a lower one: the source may be another one, or go on from a backup.
        let plan = requested.filter(|_| number != self.done).map_or(&self.plan, |requested| &requested.plan);
        let Some(rollout) = Rollout::begin(plan, now).filter(|_| !contents.is_empty()) else {
            let event = self.commit(now, transaction, contents);
            if event == RolloutEvent::Committed {
                self.on_stable(number);
            }
            return Some(event);
        };
        match self.served.begin(transaction, &rollout.audience) {
            Err(error) => Some(self.refuse(now, contents, error.to_string())),
            Ok(candidate) => {
                let (looked_at, outcomes, audience) =
                    (wanted.revision(), Vec::new(), rollout.audience.clone());
                let running = RunningCandidate { candidate, rollout, contents, number, looked_at, outcomes };
                let variants = running.contents.len();
                self.running = Some(running);
                Some(RolloutEvent::Began { audience, variants })
            }
        }
    }

    /// Forgets what was refused of which a resource changed.
    fn forget_changed(&mut self, contents: &[(VariantId, Option<Version>)]) {
        let mut of_resource = BTreeMap::<_, Vec<_>>::new();
        for changed in contents {
            of_resource.entry(resource(&changed.0)).or_default().push(changed);
        }
        self.refused.retain(|refused| {
            let resources = refused.resources();
            let of_these = resources.iter().filter_map(|resource| of_resource.get(resource)).flatten();
            of_these.copied().collect::<BTreeSet<_>>().into_iter().eq(&refused.contents)
        });
    }

    /// What can be rolled out while clients have nothing of what was refused.
    fn without_refused(&mut self, transaction: Transaction, stable: &Snapshot) -> Transaction {
        if self.refused.is_empty() {
            self.waiting = 0;
            return transaction;
        }
        let (held, rest) = transaction.split_with_needing(&self.refused_resources(), stable);
        let refused: usize = self.refused.iter().map(|refused| refused.contents.len()).sum();
        self.waiting = tried(&held, stable).len().saturating_sub(refused);
        rest
    }

    /// Gives what was refused to all clients without the changes since then, which nobody tried. These go along only
    /// if what was refused needs them.
    fn promote_refused(
        &mut self,
        now: Duration,
        transaction: Transaction,
        stable: &Snapshot,
    ) -> RolloutEvent {
        self.compared = None;
        let contents = tried(&transaction, stable);
        let (first, rest) = transaction.clone().split(&self.refused_resources());
        let is_without_rest = !first.needs(&rest, stable) && self.served.commit(first).is_ok();
        if !is_without_rest {
            let event = self.commit(now, transaction, contents);
            if event != RolloutEvent::Committed {
                return event;
            }
        }
        self.refused.clear();
        self.counts.promoted += 1;
        RolloutEvent::Promoted
    }

    fn refused_resources(&self) -> BTreeSet<(TypeUrl, ResourceName)> {
        self.refused.iter().flat_map(RefusedChange::resources).collect()
    }

    /// Goes on with the rollout that runs.
    fn go_on(&mut self, now: Duration, mut running: RunningCandidate) -> Option<RolloutEvent> {
        if let Some(error) = running.candidate.refusal() {
            let error = error.to_string();
            return Some(self.replace(&error));
        }
        running.outcomes = running.candidate.delivery().results();
        let action = running.rollout.decide(now, &running.outcomes);
        // A rejection counts, whatever the source did meanwhile.
        if let RolloutAction::End(reason) = action {
            return Some(self.refuse(now, running.contents, reason));
        }
        if self.is_overtaken(&mut running) {
            self.counts.replaced += 1;
            self.order = None;
            return Some(RolloutEvent::Overtaken);
        }
        match self.order.take() {
            Some(RolloutOrder::Promote) => return Some(self.promote(running)),
            Some(order @ RolloutOrder::PromoteRefused) => {
                self.counts.replaced += 1;
                self.order = Some(order);
                return Some(RolloutEvent::Overtaken);
            }
            Some(RolloutOrder::Abort) => {
                return Some(self.refuse(now, running.contents, "an operator aborted it".to_owned()));
            }
            None => {}
        }
        let event = match action {
            RolloutAction::Wait | RolloutAction::End(_) => None,
            RolloutAction::Widen(audience) => match running.candidate.widen(&audience) {
                Ok(()) => Some(RolloutEvent::Widened(audience)),
                Err(error) => return Some(self.replace(&error.to_string())),
            },
            RolloutAction::Promote => return Some(self.promote(running)),
        };
        self.running = Some(running);
        event
    }

    /// Whether the source wants something else than what is rolled out, for which the rollout is to end.
    fn is_overtaken(&mut self, running: &mut RunningCandidate) -> bool {
        if self.on_change == OnChange::Replace {
            return self.source.read(Snapshot::revision) != running.looked_at;
        }
        // Nobody is to try what the source took back. Endpoints that come and go do not keep a rollout from its end.
        let source = self.source.snapshot();
        let looked_at = std::mem::replace(&mut running.looked_at, source.revision());
        if self.taken_back >= TAKEN_BACK_LIMIT || looked_at == source.revision() {
            return false;
        }
        let stable = self.served.snapshot();
        let is_stable = |(id, _): &(VariantId, Option<Version>)| version(&source, id) == version(&stable, id);
        let is_taken_back = running.contents.iter().any(is_stable);
        self.taken_back += u8::from(is_taken_back);
        is_taken_back
    }

    fn promote(&mut self, running: RunningCandidate) -> RolloutEvent {
        match running.candidate.promote() {
            Ok(_) => {
                self.on_stable(running.number);
                self.taken_back = 0;
                self.counts.promoted += 1;
                RolloutEvent::Promoted
            }
            Err(error) => self.replace(&error.to_string()),
        }
    }

    /// A change with this number of its request is stable. If a part of the request may be refused, its plan holds.
    fn on_stable(&mut self, number: u64) {
        if self.refused.is_empty() {
            self.done = number;
        }
    }

    /// Gives it to all clients.
    fn commit(&mut self, now: Duration, transaction: Transaction, contents: Contents) -> RolloutEvent {
        match self.served.commit(transaction) {
            Ok(_) => RolloutEvent::Committed,
            Err(error) => self.refuse(now, contents, error.to_string()),
        }
    }

    /// Clients that try the candidate are sent what they had, since it is dropped.
    fn refuse(&mut self, at: Duration, contents: Contents, reason: String) -> RolloutEvent {
        let reason: Arc<str> = reason.into();
        let refused = RefusedChange::new(contents, Arc::clone(&reason), at);
        let resources = refused.resources();
        self.refused.retain(|before| before.resources().is_disjoint(&resources));
        self.refused.push(refused);
        self.taken_back = 0;
        self.counts.refused += 1;
        // An order that came too late is not one for the next rollout.
        self.order = None;
        RolloutEvent::Refused(reason)
    }

    fn replace(&mut self, reason: &str) -> RolloutEvent {
        self.counts.replaced += 1;
        (self.order, self.compared) = (None, None);
        RolloutEvent::Replaced(reason.into())
    }
}

/// How many rollouts in a row end because the source takes a part back.
const TAKEN_BACK_LIMIT: u8 = 2;

/// What clients can reject of a change. Not the reasons why resources are not there (SR45), which come again after a
/// restart.
fn tried(transaction: &Transaction, stable: &Snapshot) -> Contents {
    transaction.contents().filter(|(id, put)| put.is_some() || version(stable, id).is_some()).collect()
}

fn resource(id: &VariantId) -> (TypeUrl, ResourceName) {
    (id.type_url.clone(), id.name.clone())
}

fn version(state: &Snapshot, id: &VariantId) -> Option<Version> {
    let variant = state.get(&id.type_url, &id.name)?.get(&id.constraints)?;
    Some(variant.version())
}

impl RunningCandidate {
    /// The number of the step, from zero, and its audience: who tries the change since this step,
    /// beside those of the steps before.
    #[must_use]
    pub fn step(&self) -> (usize, &Audience) {
        (self.rollout.step, &self.rollout.audience)
    }

    /// When the step ends.
    #[must_use]
    pub fn step_ends_at(&self) -> Duration {
        self.rollout.step_ends_at()
    }

    /// What changes.
    pub fn variants(&self) -> impl ExactSizeIterator<Item = &VariantId> {
        self.contents.iter().map(|(id, _)| id)
    }

    /// What became of it at the clients that it affects, of those that try it, when the machine last
    /// looked.
    #[must_use]
    pub fn outcomes(&self) -> &[ClientOutcome] {
        &self.outcomes
    }

    /// The candidate itself.
    #[must_use]
    pub fn candidate(&self) -> &Candidate {
        &self.candidate
    }
}

impl fmt::Debug for RolloutMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, refused, counts, .. } = self;
        f.debug_struct("RolloutMachine")
            .field("running", running)
            .field("refused", refused)
            .field("counts", counts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
