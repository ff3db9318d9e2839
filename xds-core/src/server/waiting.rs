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
use super::resolution::Knowledge;
use super::response::Response;
use crate::cache::Snapshot;
use crate::code::Code;
use crate::name::{Nonce, Revision, Version};
use crate::subscription::Locator;

/// What cannot be answered yet (G13).
#[derive(Debug, Default)]
pub(super) struct Unknown {
    /// Locators that wait for the first commit, or for the source of an on-demand cache.
    pub(super) waiting: BTreeMap<Locator, Waiting>,
    /// Whether a wildcard waits until the source of an on-demand cache has answered all wildcards.
    pub(super) awaits_wildcards: bool,
}

/// A locator that waits: since when, and whether that was reported to the client.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    since: Duration,
    is_reported: bool,
    /// The failure of the source that was reported to the client.
    failure: Option<(Code, Arc<str>)>,
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
        self.waiting.values().filter_map(|waiting| waiting.report_at(wait)).min()
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
        // S25: a resource that a full state does not contain does not exist. G4: so an error must
        // not go with a full state that lacks the resource of the error.
        let Self { state, owed } = self;
        let is_state = state.terms.sends_full_state();
        if !snapshot.is_on_demand() {
            state.unknown.waiting.clear();
        }
        if !snapshot.is_on_demand() || !state.holding.is_selecting() {
            return None;
        }
        let cannot_be_answered = |locator: &Locator| {
            matches!(state.resolve(snapshot).knows(locator), Knowledge::Unknown | Knowledge::Failed { .. })
        };
        for locator in owed.defer(cannot_be_answered) {
            let waiting = state.unknown.waiting.entry(locator).or_insert_with(|| Waiting::new(now));
            // D9: a new subscription gets a new error.
            if waiting.failure.is_some() {
                *waiting = Waiting::new(now);
            }
        }
        // While wildcards wait, errors wait too: an answer that comes in the meantime would make
        // the error wrong.
        let has_to_wait = state.unknown.awaits_wildcards && !state.resolve(snapshot).knows_wildcards();
        state.unknown.awaits_wildcards = has_to_wait;
        if state.unknown.waiting.is_empty() {
            return has_to_wait.then_some(Gate::Shut);
        }
        let mut waiting = std::mem::take(&mut state.unknown.waiting);
        let resolved = state.resolve(snapshot);
        waiting.retain(|locator, waiting| {
            if !state.subscription.lists(locator) {
                return false;
            }
            match resolved.knows(locator) {
                // S37: the client has an error, which only the resource clears. D9: content that the
                // client had is no change, but a subscription is answered with it all the same.
                Knowledge::Found if waiting.is_reported || resolved.has_again(locator) => {
                    owed.owe(locator.clone(), now);
                    return false;
                }
                // D10: the resource may go again before other types let it be pushed (S33). Then the
                // locator still waits for its answer.
                Knowledge::Found => {
                    waiting.since = now;
                    let found = resolved.find(locator);
                    return !is_state && found.iter().any(|variant| state.is_unsent(variant));
                }
                Knowledge::Absent => {
                    owed.owe(locator.clone(), now);
                    return false;
                }
                // C9c: the full state is sent without the resource, and the error says that the
                // resource may exist.
                Knowledge::Failed { code, message } if is_state => {
                    owed.owe_error(resolved.failure_of(locator, code, &message), now);
                    return false;
                }
                // S37: reported once. The source may still answer that there is no variant.
                Knowledge::Failed { code, message } => {
                    let failure = Some((code, Arc::clone(&message)));
                    if !has_to_wait && waiting.failure != failure {
                        owed.owe_error(resolved.failure_of(locator, code, &message), now);
                        (waiting.failure, waiting.is_reported) = (failure, true);
                    }
                    return true;
                }
                Knowledge::Unknown => {}
            }
            if !is_state && !has_to_wait && waiting.report(now, wait) {
                let text = format!("{:?} is not known yet: its source did not answer", locator.name);
                owed.owe_error(resolved.failure_of(locator, Code::UNAVAILABLE, &text), now);
            }
            true
        });
        state.unknown.waiting = waiting;
        let is_partial = (is_state && !state.unknown.waiting.is_empty()) || has_to_wait;
        is_partial.then_some(Gate::Shut)
    }

    fn wait_for_first_commit(&mut self, now: Duration, wait: Duration) -> Gate {
        let Self { state, owed } = self;
        state.unknown.waiting.retain(|locator, _| state.subscription.lists(locator));
        for locator in owed.locators.iter().filter(|locator| state.subscription.lists(locator)) {
            state.unknown.waiting.entry(locator).or_insert_with(|| Waiting::new(now));
        }
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
        let late = state
            .unknown
            .waiting
            .iter_mut()
            .filter_map(|(locator, waiting)| waiting.report(now, wait).then_some(locator));
        let late: Vec<_> = late.cloned().collect();
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
