//! Locators that the cache cannot answer yet: a cache on demand must first subscribe at its own
//! source.
//!
//! Unknown is not absent. A locator waits until the cache has a variant for it, or until the source
//! [sets the status](crate::Transaction::set_status) of exactly this locator. Until then, clients
//! keep what they have. Absence is reported for each locator separately, because the source may not
//! have answered another stream with the same projected parameters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::encode;
use super::entries::TypeEntry;
use super::order::Gate;
use super::resolution::{Divided, Knowledge};
use super::response::Response;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::code::Code;
use crate::name::{Nonce, Revision, Version};
use crate::subscription::{Locator, Locators};
use crate::wire::Failure;

/// What cannot be answered yet (G13).
#[derive(Debug, Default)]
pub(super) struct Unknown {
    /// Locators that wait for the first commit, or for the source of an on-demand cache. Mostly all of
    /// them began to wait at once, and are the names of the subscription, whose list they share.
    pub(super) waiting: BTreeMap<Waiting, Locators>,
    /// Whether a wildcard waits until the source of an on-demand cache has answered all wildcards.
    pub(super) awaits_wildcards: bool,
    /// S37: why wildcards cannot be answered. Each response has these errors, until the wildcards are
    /// answered: a response without them says that the client has everything.
    pub(super) wildcard_failures: Vec<Failure>,
    /// G4: wildcards were refused since the last answer to all of them, so a client that is a proxy dropped what it
    /// had.
    were_wildcards_refused: bool,
}

/// Since when a locator waits, and whether that was reported to the client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    since: Duration,
    is_reported: bool,
    /// The failure of the source that was reported to the client.
    failure: Option<(Code, Arc<str>)>,
}

/// What a look at the locators that wait needs to know.
#[derive(Debug)]
struct Look<'s> {
    now: Duration,
    /// How long a locator waits before the client gets an error.
    wait: Duration,
    snapshot: &'s Snapshot,
    /// Whether wildcards wait for the source.
    has_to_wait: bool,
}

impl Waiting {
    fn new(now: Duration) -> Self {
        Self { since: now, is_reported: false, failure: None }
    }

    /// G13: when the client gets an error because the locator is not known yet.
    fn report_at(&self, wait: Duration) -> Option<Duration> {
        (!self.is_reported).then(|| self.since + wait)
    }

    /// Whether the client gets this error now. It gets the error once.
    fn report(&mut self, now: Duration, wait: Duration) -> bool {
        let is_late = self.report_at(wait).is_some_and(|at| at <= now);
        self.is_reported |= is_late;
        is_late
    }
}

impl Unknown {
    /// The earliest time at which the client gets an error because a locator still waits.
    fn report_at(&self, wait: Duration) -> Option<Duration> {
        self.waiting.keys().filter_map(|waiting| waiting.report_at(wait)).min()
    }

    /// These locators begin to wait now, but for those that wait already as `is_kept` says.
    fn begin(&mut self, now: Duration, new: Locators, is_kept: impl Fn(&Waiting) -> bool) {
        if new.is_empty() || self.waiting.iter().any(|(waiting, known)| is_kept(waiting) && *known == new) {
            return;
        }
        let mut known = Vec::new();
        self.waiting.retain(|waiting, locators| {
            if is_kept(waiting) {
                known.extend(locators.iter().filter(|locator| new.contains(locator)));
            } else {
                locators.take(|locator| new.contains(locator));
            }
            !locators.is_empty()
        });
        let new = if known.is_empty() { new } else { new.without(&known.into_iter().collect()) };
        self.add(Waiting::new(now), new);
    }

    fn add(&mut self, waiting: Waiting, locators: Locators) {
        if !locators.is_empty() {
            self.waiting.entry(waiting).or_default().extend(locators);
        }
    }

    /// Forgets the locators that do not pass.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&Locator) -> bool) {
        self.waiting.retain(|_, locators| {
            locators.take(|locator| !is_kept(locator));
            !locators.is_empty()
        });
    }
}

impl TypeState {
    /// S37: the errors of names that still wait for their source. Each full state has them: without
    /// its error, a name that is not in the full state does not exist.
    pub(super) fn standing_failures(&self, snapshot: &Snapshot) -> Vec<Failure> {
        let resolved = self.resolve(snapshot);
        let mut failures = Vec::new();
        for (waiting, locators) in &self.unknown.waiting {
            let Some((code, message)) = &waiting.failure else { continue };
            failures.extend(locators.iter().map(|locator| resolved.failure_of(&locator, *code, message)));
        }
        failures
    }
}

impl TypeEntry {
    /// Whether a subscription cannot be answered because there was no commit yet, or because the
    /// source does not know what exists now (G13). What the client has is refreshed meanwhile.
    pub(super) fn is_before_first_commit(&self, snapshot: &Snapshot) -> bool {
        let is_answered = snapshot.has_commit() && self.owed.due().is_none();
        self.state.holding.is_selecting() && !snapshot.is_synced() && !is_answered
    }

    /// Defers locators that cannot be answered yet, and owes answers to deferred ones that can be
    /// answered now. Owes an error for each that has waited for `wait`. Returns a gate if the type as
    /// a whole must wait; `None` if it can be answered.
    pub(super) fn wait_for_knowledge(
        &mut self,
        now: Duration,
        wait: Duration,
        snapshot: &Snapshot,
    ) -> Option<Gate> {
        // G13: before the first commit nothing is known, so only an empty subscription can be
        // answered.
        if self.is_before_first_commit(snapshot) {
            return Some(self.wait_for_first_commit(now, wait));
        }
        if !snapshot.is_on_demand() {
            self.state.unknown.waiting.clear();
        }
        if !snapshot.is_on_demand() || !self.state.holding.is_selecting() {
            return None;
        }
        self.defer_unknown(now, snapshot);
        self.defer_refused(now, snapshot);
        let has_to_wait = self.awaits_wildcards(snapshot);
        self.report_wildcards(now, snapshot);
        if self.state.unknown.waiting.is_empty() {
            return has_to_wait.then_some(Gate::Shut);
        }
        self.look_at_waiting(&Look { now, wait, snapshot, has_to_wait });
        // S25: a resource that a full state does not contain does not exist, unless the client has an error
        // for it (S37). G4: a plain client ignores errors, so one without any resource would delete what a client
        // has from another stream.
        let unknown = &self.state.unknown.waiting;
        let is_empty = || unknown.values().map(Locators::len).sum::<usize>() == self.state.subscription.len();
        let is_unknown = unknown.keys().any(|waiting| waiting.failure.is_none())
            || (self.owed.brought.version.is_some() && is_empty());
        let is_partial = self.state.terms.sends_full_state() && is_unknown;
        (is_partial || has_to_wait).then_some(Gate::Shut)
    }

    /// The owed locators that the source does not know begin to wait.
    fn defer_unknown(&mut self, now: Duration, snapshot: &Snapshot) {
        let Self { state, owed } = self;
        let cannot_be_answered = |locator: &Locator| {
            matches!(state.resolve(snapshot).knows(locator), Knowledge::Unknown | Knowledge::Failed { .. })
        };
        owed.locators = state.subscription.sharing(std::mem::take(&mut owed.locators));
        let is_list = state.subscription.is_list(&owed.locators);
        let divided = is_list.then(|| state.resolve(snapshot).divide(&owed.locators)).flatten();
        let deferred = match divided {
            Some(Divided { unknown, .. }) if unknown.is_empty() => unknown,
            Some(Divided { unknown, mut unsent, mut sent }) => {
                unsent.append(&mut sent);
                owed.keep(unsent);
                unknown
            }
            None => {
                let mut deferred = owed.defer(cannot_be_answered);
                deferred.take(|locator| !state.subscription.lists(locator));
                deferred
            }
        };
        // D9: a new subscription gets a new error.
        state.unknown.begin(now, state.subscription.sharing(deferred), |waiting| waiting.failure.is_none());
    }

    /// S37: locators that were answered begin to wait again when the source cannot say any more what they get,
    /// so that the client has the error beside what it keeps. A full state without the resource would be an
    /// absence for a plain client, so there is none.
    fn defer_refused(&mut self, now: Duration, snapshot: &Snapshot) {
        let state = &mut self.state;
        if state.terms.sends_full_state() || !state.holding.has_removed() {
            return;
        }
        let resolved = state.resolve(snapshot);
        let removals = state.holding.removed().map(|(key, removed)| resolved.removal(key, removed.variant()));
        let failed = removals.flat_map(|removal| removal.failed_locators().collect::<Vec<_>>());
        let failed: Locators = failed.collect::<Vec<_>>().into_iter().collect();
        state.unknown.begin(now, failed, |_| true);
    }

    /// G13: whether wildcards wait for the source. Meanwhile errors wait too: an answer that comes
    /// later would make the error wrong.
    fn awaits_wildcards(&mut self, snapshot: &Snapshot) -> bool {
        let state = &mut self.state;
        let has_to_wait = state.unknown.awaits_wildcards && !state.resolve(snapshot).knows_wildcards();
        state.unknown.awaits_wildcards = has_to_wait;
        has_to_wait
    }

    /// S37: owes a response when wildcards begin to fail for another reason, or are answered after all. A
    /// full state says nothing of that: until they are answered, there is none.
    fn report_wildcards(&mut self, now: Duration, snapshot: &Snapshot) {
        let Self { state, owed } = self;
        if state.terms.sends_full_state() || !state.subscription.is_wildcard() {
            state.unknown.wildcard_failures.clear();
            state.unknown.were_wildcards_refused = false;
            return;
        }
        let failures = state.resolve(snapshot).wildcard_failures();
        let unknown = &mut state.unknown;
        if failures != unknown.wildcard_failures {
            owed.everything |= unknown.were_wildcards_refused;
            unknown.were_wildcards_refused |= failures.iter().any(|of| of.code == Code::UNIMPLEMENTED);
            unknown.were_wildcards_refused &= !failures.is_empty();
            unknown.wildcard_failures = failures;
            owed.nothing = true;
            owed.answer_at(now);
        }
    }

    /// Looks at each locator that waits: what the source knows now ends its wait.
    fn look_at_waiting(&mut self, look: &Look<'_>) {
        let before = std::mem::take(&mut self.state.unknown.waiting);
        let mut answered = Vec::new();
        let mut after = Unknown::default();
        let mut changed = BTreeMap::<_, Vec<_>>::new();
        for (waiting, mut locators) in before {
            if self.look_at_list(&waiting, &locators, look, &mut after) {
                continue;
            }
            let mut unchanged = Vec::new();
            let mut count = 0;
            for locator in locators.iter() {
                let mut now = waiting.clone();
                count += 1;
                if !self.still_waits(&locator, &mut now, look, &mut answered) {
                    continue;
                }
                if now == waiting {
                    unchanged.push(locator);
                } else {
                    changed.entry(now).or_default().push(locator);
                }
            }
            if unchanged.len() < count {
                locators = unchanged.into_iter().collect();
            }
            after.add(waiting, locators);
        }
        for (waiting, locators) in changed {
            after.add(waiting, locators.into_iter().collect());
        }
        self.state.unknown.waiting = after.waiting;
        if !answered.is_empty() {
            self.owed.owe(answered, look.now);
        }
    }

    /// Like [`still_waits`](Self::still_waits) for all locators that began to wait at once, and that need
    /// no answer. Returns whether that is so.
    fn look_at_list(
        &self,
        waiting: &Waiting,
        locators: &Locators,
        look: &Look<'_>,
        after: &mut Unknown,
    ) -> bool {
        let is_state = self.state.terms.sends_full_state();
        let is_early = is_state
            || look.has_to_wait
            || waiting.report_at(look.wait).is_none_or(|report_at| report_at > look.now);
        let Some(Divided { unknown, unsent, sent }) = self.state.resolve(look.snapshot).divide(locators)
        else {
            return false;
        };
        let is_found = !unsent.is_empty() || !sent.is_empty();
        if (!unknown.is_empty() && !is_early) || (is_found && waiting.is_reported) {
            return false;
        }
        after.add(waiting.clone(), unknown);
        if !is_state {
            after.add(Waiting { since: look.now, ..waiting.clone() }, unsent);
        }
        true
    }

    /// Whether a locator waits on. Owes an error that the client has not yet.
    fn still_waits(
        &mut self,
        locator: &Locator,
        waiting: &mut Waiting,
        look: &Look<'_>,
        answered: &mut Vec<Locator>,
    ) -> bool {
        let Self { state, owed } = self;
        debug_assert!(state.subscription.lists(locator), "a change of the subscription forgets the others");
        let is_state = state.terms.sends_full_state();
        let resolved = state.resolve(look.snapshot);
        let known = resolved.knows(locator);
        // S37: the error may still wait for the answers to other names. It must not go with the resource, or with
        // a newer error.
        if !matches!(known, Knowledge::Unknown)
            && let Some((code, message)) = &waiting.failure
            && !matches!(&known, Knowledge::Failed { code: newer, message: text } if (code, message) == (newer, text))
        {
            owed.withdraw_error(&resolved.failure_of(locator, *code, message), &locator.parameters);
        }
        match known {
            // S37: the client has an error, which only the resource clears. D9: content that the
            // client had is no change, but a subscription is answered with it all the same.
            Knowledge::Found { is_again, .. } if waiting.is_reported || is_again => {
                answered.push(locator.clone());
                return false;
            }
            // D10: the resource may go again before other types let it be pushed (S33). Then the
            // locator still waits for its answer.
            Knowledge::Found { is_unsent, .. } => {
                waiting.since = look.now;
                return !is_state && is_unsent;
            }
            Knowledge::Absent => {
                // S37: only a full state without the error says so.
                owed.is_overtaken |= is_state && waiting.failure.is_some();
                answered.push(locator.clone());
                return false;
            }
            // S37: reported once. The source may still answer that there is no variant.
            // C9c: the full state is sent without the resource, and the error says that the
            // resource may exist. G4: so an error must not go with a full state that lacks the
            // resource of the error.
            Knowledge::Failed { code, message } => {
                let failure = Some((code, Arc::clone(&message)));
                if (is_state || !look.has_to_wait) && waiting.failure != failure {
                    owed.owe_error(resolved.failure_of(locator, code, &message), look.now);
                    (waiting.failure, waiting.is_reported) = (failure, true);
                }
                return true;
            }
            Knowledge::Unknown => {}
        }
        if !is_state && !look.has_to_wait && waiting.report(look.now, look.wait) {
            let text = format!("{:?} is not known yet: its source did not answer", locator.name);
            owed.owe_error(resolved.failure_of(locator, Code::UNAVAILABLE, &text), look.now);
        }
        true
    }

    fn wait_for_first_commit(&mut self, now: Duration, wait: Duration) -> Gate {
        let Self { state, owed } = self;
        let mut listed = owed.locators.clone();
        listed.take(|locator| !state.subscription.lists(locator));
        state.unknown.begin(now, state.subscription.sharing(listed), |_| true);
        // A full state without resources would delete what the client has.
        match state.unknown.report_at(wait) {
            Some(time) if !state.terms.sends_full_state() => Gate::at(time, now),
            _ => Gate::Shut,
        }
    }

    /// G13: the errors for locators that wait too long for the first commit. The client keeps what
    /// it has, and the locators are answered after that commit.
    pub(super) fn report_unknown(
        &mut self,
        now: Duration,
        wait: Duration,
        nonce: Nonce,
        snapshot: &Snapshot,
    ) -> Response {
        let Self { state, owed } = self;
        let mut late = Vec::new();
        for (mut waiting, locators) in std::mem::take(&mut state.unknown.waiting) {
            if waiting.report(now, wait) {
                late.extend(locators.iter());
            }
            state.unknown.add(waiting, locators);
        }
        late.sort_unstable();
        late.iter().for_each(|locator| owed.forget_brought(&locator.name));
        let failures = late.iter().map(|locator| {
            let message = format!(
                "{} is not known yet: the server has not loaded its resources; it answers when it has",
                state.terms.type_url.message_name()
            );
            state.resolve(snapshot).failure_of(locator, Code::UNAVAILABLE, &message)
        });
        let failures: Vec<_> = failures.collect();
        let bodies = vec![Arc::new(encode::errors(state.encoding(), failures.iter()))];
        state.responses.sent(now, nonce, ResponseContents::nothing(), Vec::new(), Revision::ZERO);
        state.terms.response(nonce, Version(0), bodies, false)
    }

    /// The earliest time at which the client gets an error because a locator still waits.
    pub(super) fn waits_until(&self, wait: Duration) -> Option<Duration> {
        let state = &self.state;
        // No error goes with a full state that lacks the resource.
        if state.terms.sends_full_state() || state.unknown.awaits_wildcards {
            return None;
        }
        state.unknown.report_at(wait)
    }
}

#[cfg(test)]
mod tests;
