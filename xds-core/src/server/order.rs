//! Make before break for one client (S33): a resource is sent before the resources that name it,
//! and removed after them.
//!
//! Answers to requests never wait; only pushes wait. Changes of clusters and endpoints are sent at
//! once, listeners and routes when the client has ACKed those, and removals when it has ACKed the
//! listeners and routes that named the removed resources. Nothing names listeners, scopes and virtual
//! hosts, so their removals go with the additions of their type.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) use unrelated::TargetStatus;

use unrelated::is_unrelated;
use xds_proto::type_url::{CLUSTER, ROUTE_CONFIGURATION, VIRTUAL_HOST};

use super::client_group::{Awaited, OrderStatus, Seat};
use super::config::StreamConfig;
use super::entries::{TypeEntries, TypeEntry};
use super::in_use::{self, Referrer};
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::name::{ResourceName, Revision};
use crate::references::Target;

mod unrelated;

/// When a response may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Now.
    Open,
    /// At this time, unless something happens earlier.
    Until(Duration),
    /// Only after another event of this client.
    Shut,
}

impl Gate {
    /// A gate that opens at a time.
    pub(super) fn at(time: Duration, now: Duration) -> Self {
        if time <= now { Self::Open } else { Self::Until(time) }
    }

    /// The earlier of two times: when this gate opens by itself, and the other.
    pub(super) fn earlier(self, other: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Until(time) => Some(other.map_or(time, |other| other.min(time))),
            Self::Open | Self::Shut => other,
        }
    }
}

/// When the withheld removals of a type may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Release {
    /// Not before another event of this client.
    Later,
    /// Each removal waits for the grace time. The time counts from the change after which nothing
    /// names the resource, if that is known, else from the removal. These names are still in use,
    /// and wait.
    AfterGrace(BTreeSet<ResourceName>, UnreferencedSince),
    /// Now, except for these names, which are still in use. A resource that the client brought from
    /// another stream still waits for the grace time: the client's first ACKs of referrers may be
    /// about referrers that did not change.
    Now(BTreeSet<ResourceName>),
}

/// When the client was sent the change after which nothing names a resource.
///
/// A proxy gets a removal after its upstream waited for the grace time, but it gets the change that
/// ended the reference at once. So it does not wait a second time. If the upstream does not wait,
/// both come together, and the whole grace time is still to pass.
pub(super) type UnreferencedSince = BTreeMap<ResourceName, Duration>;

impl Release {
    /// All removals may be sent now.
    pub(super) fn now() -> Self {
        Self::Now(BTreeSet::new())
    }
}

/// The order of the types of a stream, and of the other streams of its client.
#[derive(Debug)]
pub(super) struct Order<'s> {
    entries: &'s TypeEntries,
    /// The place among the streams of the client, if anything depends on the others.
    seat: Option<&'s Seat>,
    config: &'s StreamConfig,
    now: Duration,
    snapshot: &'s Snapshot,
}

impl<'s> Order<'s> {
    pub(super) fn new(
        entries: &'s TypeEntries,
        seat: Option<&'s Seat>,
        config: &'s StreamConfig,
        now: Duration,
        snapshot: &'s Snapshot,
    ) -> Self {
        Self { entries, seat, config, now, snapshot }
    }

    /// When a response of a type is due. Answers to requests come first; pushes keep the order of
    /// S33.
    pub(super) fn due(&self, at: usize) -> Gate {
        let entry = &self.entries[at];
        let TypeEntry { state, owed } = entry;
        let answer = owed.due().map_or(Gate::Shut, |due| Gate::at(due, self.now));
        if answer == Gate::Open || !state.holding.is_selecting() {
            return answer;
        }
        let push = if state.holding.is_behind(self.snapshot) {
            self.additions(at)
        } else if state.holding.has_removed() {
            let release_at =
                state.resolve(self.snapshot).release_at(&self.removals(at), self.config.removal_grace);
            release_at.map_or(Gate::Shut, |time| Gate::at(time, self.now))
        } else {
            Gate::Shut
        };
        let push = match state.responses.in_flight().wait_until(self.now, self.config.ack_wait) {
            Some(until) if push == Gate::Open => Gate::Until(until),
            _ => push,
        };
        let refresh = state.ttl_refresh.at().map_or(Gate::Shut, |at| Gate::at(at, self.now));
        // S33: if there are changes, too, they say when.
        let is_behind = state.holding.is_behind(self.snapshot);
        let repeat_at = state.responses.rejections().repeat_at().filter(|_| !is_behind);
        let repeat = repeat_at.map_or(Gate::Shut, |at| Gate::at(at, self.now));
        let part = match state.responses.rejections().is_empty() {
            true => Gate::Shut,
            false => entry.part_gate(self.now, self.config.ack_wait, self.additions_left(at), self.snapshot),
        };
        let gates = [push, refresh, repeat, part];
        match gates.into_iter().fold(answer.earlier(None), |until, gate| gate.earlier(until)) {
            _ if gates.contains(&Gate::Open) => Gate::Open,
            Some(until) => Gate::Until(until),
            None => Gate::Shut,
        }
    }

    /// Whether an answer must omit other changes, because these wait for other types (S33).
    pub(super) fn must_wait(&self, at: usize) -> bool {
        let state = &self.entries[at].state;
        state.is_answered() && state.holding.is_behind(self.snapshot) && self.additions(at) != Gate::Open
    }

    /// The same, for contents that were left out of a response (S6d); open if there are none.
    pub(super) fn additions_left(&self, at: usize) -> Gate {
        match self.entries[at].state.responses.rejections().have_known_left() {
            // They may name resources that come later, so they are related to each change that waits.
            true => {
                let state = &self.entries[at].state;
                self.acks_of(state.terms.known.waits_for, state.times.waiting_since.unwrap_or(self.now))
            }
            false => Gate::Open,
        }
    }

    /// When additions and changes of a type may be pushed.
    fn additions(&self, at: usize) -> Gate {
        let state = &self.entries[at].state;
        let types = state.terms.known.waits_for;
        let gate = match self.acks_of(types, state.times.waiting_since.unwrap_or(self.now)) {
            Gate::Until(_) if self.is_unrelated(state, types) => Gate::Open,
            gate => gate,
        };
        let Some(seat) = self.seat.filter(|_| gate == Gate::Open && !types.is_empty()) else {
            return gate;
        };
        let patience = match seat.awaits_endpoints() {
            None => return gate,
            Some(Awaited::Expected) if self.is_unrelated(state, types) => return gate,
            Some(Awaited::Expected) => self.config.order_wait,
            Some(Awaited::Possible) => self.config.ack_wait,
        };
        let gate = Gate::at(state.times.waiting_since.unwrap_or(self.now) + patience, self.now);
        if gate == Gate::Open {
            seat.forget_awaited();
        }
        gate
    }

    /// When the client has ACKed these types, or need not ACK them, for changes that wait since a
    /// time.
    ///
    /// S35: while a cluster warms, the client withholds the ACK, so endpoints never wait for it. A
    /// NACK opens the gate too: after it, the client goes on with the resources that it accepted.
    ///
    /// S33b: when the client does not answer a type for `order_wait`, pushes of other types no
    /// longer wait for that type until the client answers again; otherwise each update would wait
    /// that long. Pending changes of that type are still sent first: they wait for the client's
    /// answer no longer than `ack_wait` (S9b).
    fn acks_of(&self, types: &'static [&'static str], since: Duration) -> Gate {
        let StreamConfig { order_wait, ack_wait, .. } = *self.config;
        let longest = since + order_wait;
        let waits_until =
            self.others(types).filter_map(|other| match (other.unanswered_since, other.is_behind) {
                (None, false) => None,
                (None, true) => Some(longest),
                (Some(unanswered), false) => Some(longest.min(unanswered + order_wait)),
                // Twice `ack_wait`, because other streams of the client send at their own times.
                (Some(unanswered), true) => {
                    Some(longest.min((unanswered + order_wait).max(since + 2 * ack_wait)))
                }
            });
        waits_until.max().map_or(Gate::Open, |until| Gate::at(until, self.now))
    }

    /// When the withheld removals of a type may be sent.
    ///
    /// A client that did not ACK the newest version of a referrer may use the version before, and
    /// the resources which that version names. The same holds for a removed referrer to which the
    /// client still subscribes: Envoy keeps a route configuration, and the clusters that it names,
    /// for the connections of a draining listener. Removals that no such referrer names do not
    /// wait.
    pub(super) fn removals(&self, at: usize) -> Release {
        let state = &self.entries[at].state;
        let types = state.terms.known.referrers;
        if types.is_empty() || state.holding.removed().count() > HELD_LIMIT {
            return Release::now();
        }
        let mut referrers: Vec<_> = self.of_types(types).filter_map(Referrer::of).collect();
        if let Some(seat) = self.seat {
            referrers.extend(seat.referrers(types));
        }
        if referrers.is_empty() {
            return Release::AfterGrace(BTreeSet::new(), UnreferencedSince::new());
        }
        match in_use::used(state, &referrers, self.snapshot) {
            None => Release::Later,
            // A client that subscribes by name unsubscribes from names that it no longer needs. A
            // client with a wildcard cannot; but its routes, which name most clusters, may come
            // over another stream (S33b).
            Some(used)
                if state.subscription.is_wildcard()
                    && !may_have_other_routes(state, &referrers, self.snapshot) =>
            {
                Release::Now(used)
            }
            // The time at which a reference ended does not help when not all referrers are known.
            Some(used) if state.subscription.is_wildcard() => {
                Release::AfterGrace(used, UnreferencedSince::new())
            }
            Some(used) => Release::AfterGrace(used, self.unreferenced_since(state)),
        }
    }

    /// When the client was sent the change that ended the last reference to each withheld removal.
    /// Known only when no other stream of the client has a referrer.
    fn unreferenced_since(&self, state: &TypeState) -> UnreferencedSince {
        let types = state.terms.known.referrers;
        if self.seat.is_some_and(|seat| !seat.referrers(types).is_empty()) {
            return UnreferencedSince::new();
        }
        let Some(target) = Target::of(state.terms.type_url.as_str()) else { return UnreferencedSince::new() };
        let referrers: Vec<_> = self.of_types(types).collect();
        let with_time = |name: &ResourceName| {
            Some((name.clone(), unreferenced_at(target, name, &referrers, self.snapshot)?))
        };
        state.holding.removed().filter_map(|(key, _)| with_time(&key.name)).collect()
    }

    /// Whether the changes of a type name nothing of these types that the client has not ACKed. A
    /// listener names some of them through routes.
    fn is_unrelated(&self, state: &TypeState, types: &[&str]) -> bool {
        let is_relevant = |type_url: &str| types.contains(&type_url) || type_url == ROUTE_CONFIGURATION;
        let own = self.entries.states().filter(|other| is_relevant(other.terms.type_url.as_str()));
        let mut targets: Vec<_> = own.filter_map(|other| TargetStatus::of(other, self.snapshot)).collect();
        if let Some(seat) = self.seat {
            targets.extend(seat.target_statuses(is_relevant, self.snapshot));
        }
        is_unrelated(state, &targets, self.snapshot)
    }

    /// What the client has ACKed of these types, on this stream and its other streams.
    fn others(&self, types: &'static [&'static str]) -> impl Iterator<Item = OrderStatus> {
        let own = self.of_types(types).map(|state| OrderStatus::of(state, self.snapshot));
        let seat = self.seat.filter(|_| !types.is_empty());
        own.chain(seat.map(|seat| seat.others(types, self.snapshot)).unwrap_or_default())
    }

    /// These types on this stream.
    fn of_types(&self, types: &'s [&'s str]) -> impl Iterator<Item = &'s TypeState> {
        self.entries.states().filter(|other| types.contains(&other.terms.type_url.as_str()))
    }
}

/// When the client was sent the change after which no referrer names a resource that one named
/// before; `None` if there was no such change, or it is not known.
fn unreferenced_at(
    target: Target,
    name: &ResourceName,
    referrers: &[&TypeState],
    snapshot: &Snapshot,
) -> Option<Duration> {
    let (mut is_dropped, mut unreferenced_at) = (false, Duration::ZERO);
    for referrer in referrers {
        let Some(resources) = snapshot.of_type(&referrer.terms.type_url) else { continue };
        if resources.has_referrer(target, name) {
            return None;
        }
        let dropped = resources.dropped().last().of(target, name);
        let since = dropped.unwrap_or_default().max(resources.dropped().last().unknown());
        if since > Revision::ZERO {
            unreferenced_at = unreferenced_at.max(referrer.times.send_times.at(since)?);
        }
        is_dropped |= dropped.is_some();
    }
    is_dropped.then_some(unreferenced_at)
}

/// Whether routes that are not known here may name clusters of the client: it subscribes to
/// listeners that name routes, but to no routes.
fn may_have_other_routes(state: &TypeState, referrers: &[Referrer], snapshot: &Snapshot) -> bool {
    let has_routes = |of: &Referrer| of.is_of(ROUTE_CONFIGURATION) || of.is_of(VIRTUAL_HOST);
    state.terms.type_url.as_str() == CLUSTER
        && !referrers.iter().any(has_routes)
        && referrers.iter().any(|of| of.may_name(Target::Routes, snapshot))
}

/// The largest number of removals of one type that a stream withholds; past it all are sent, even
/// of resources in use. A withheld removal keeps the whole resource in memory, so a client that
/// rejects its routes for ever must not collect them.
const HELD_LIMIT: usize = 1000;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod references_tests;
#[cfg(test)]
mod tests;
