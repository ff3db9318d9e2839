//! Make before break for one client (S33): a resource is sent before the resources that name it,
//! and removed after them.
//!
//! Answers to requests never wait; only pushes wait. Changes of clusters and endpoints are sent at
//! once, listeners and routes when the client has ACKed those, and removals when it has ACKed the
//! listeners and routes that named the removed resources.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) use unrelated::{TargetStatus, is_unrelated};

use xds_proto::type_url::{CLUSTER, ROUTE_CONFIGURATION, VIRTUAL_HOST};

use super::client_group::OrderStatus;
use super::config::StreamConfig;
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

/// When additions and changes of a type may be pushed, given the other types of the stream.
///
/// S35: while a cluster warms, the client withholds the ACK, so endpoints never wait for it. A NACK
/// opens the gate too: after it, the client goes on with the resources that it accepted.
///
/// S33b: when the client does not answer a type for `order_wait`, pushes of other types no longer
/// wait for that type until the client answers again; otherwise each update would wait that long.
/// Pending changes of that type are still sent first: they wait for the client's answer no longer
/// than `ack_wait` (S9b).
pub(super) fn additions(
    state: &TypeState,
    now: Duration,
    config: &StreamConfig,
    before: impl Iterator<Item = OrderStatus>,
) -> Gate {
    let since = state.waiting_since.unwrap_or(now);
    let longest = since + config.order_wait;
    let waits_until = before.filter_map(|other| match (other.unanswered_since, other.is_behind) {
        (None, false) => None,
        (None, true) => Some(longest),
        (Some(unanswered), false) => Some(longest.min(unanswered + config.order_wait)),
        // Twice `ack_wait`, because other streams of the client send at their own times.
        (Some(unanswered), true) => {
            Some(longest.min((unanswered + config.order_wait).max(since + 2 * config.ack_wait)))
        }
    });
    waits_until.max().map_or(Gate::Open, |until| Gate::at(until, now))
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

/// When the withheld removals of a type may be sent, given the types that refer to it and to which
/// the client subscribes.
///
/// A client that did not ACK the newest version of a referrer may use the version before, and the
/// resources which that version names. The same holds for a removed referrer to which the client
/// still subscribes: Envoy keeps a route configuration, and the clusters that it names, for the
/// connections of a draining listener. Removals that no such referrer names do not wait.
pub(super) fn removals(
    state: &TypeState,
    referrers: &[Referrer],
    unreferenced_since: impl FnOnce() -> UnreferencedSince,
    snapshot: &Snapshot,
) -> Release {
    if state.holding.removed().count() > HELD_LIMIT {
        return Release::now();
    }
    if state.known.referrers.is_empty() {
        return Release::now();
    }
    if referrers.is_empty() {
        return Release::AfterGrace(BTreeSet::new(), UnreferencedSince::new());
    }
    match in_use::used(state, referrers, snapshot) {
        None => Release::Later,
        // A client that subscribes by name unsubscribes from names that it no longer needs. A
        // client with a wildcard cannot; but its routes, which name most clusters, may come over
        // another stream (S33b).
        Some(used) if state.selects_all() && !may_have_other_routes(state, referrers, snapshot) => {
            Release::Now(used)
        }
        // The time at which a reference ended does not help when not all referrers are known.
        Some(used) if state.selects_all() => Release::AfterGrace(used, UnreferencedSince::new()),
        Some(used) => Release::AfterGrace(used, unreferenced_since()),
    }
}

/// By name of a withheld removal, when the client was sent the change that ended the last reference
/// to it, where that is known.
pub(super) fn unreferenced_since(
    state: &TypeState,
    referrers: &[&TypeState],
    snapshot: &Snapshot,
) -> UnreferencedSince {
    let Some(target) = Target::of(state.type_url.as_str()) else { return UnreferencedSince::new() };
    let names = state.holding.removed().map(|(key, _)| &key.name);
    let with_time =
        |name: &ResourceName| Some((name.clone(), unreferenced_at(target, name, referrers, snapshot)?));
    names.filter_map(with_time).collect()
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
        let Some(resources) = snapshot.of_type(&referrer.type_url) else { continue };
        if resources.has_referrer(target, name) {
            return None;
        }
        let dropped = resources.last_dropped.of(target, name);
        let since = dropped.unwrap_or_default().max(resources.last_dropped.unknown());
        if since > Revision::ZERO {
            unreferenced_at = unreferenced_at.max(referrer.send_times.at(since)?);
        }
        is_dropped |= dropped.is_some();
    }
    is_dropped.then_some(unreferenced_at)
}

/// Whether routes that are not known here may name clusters of the client: it subscribes to
/// listeners that name routes, but to no routes.
fn may_have_other_routes(state: &TypeState, referrers: &[Referrer], snapshot: &Snapshot) -> bool {
    let has_routes = |of: &Referrer| of.is_of(ROUTE_CONFIGURATION) || of.is_of(VIRTUAL_HOST);
    state.type_url.as_str() == CLUSTER
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
