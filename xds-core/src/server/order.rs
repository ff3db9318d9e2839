//! Make before break for one client (S33): what a client is about to use goes first, what it used
//! goes last.
//!
//! Answers to requests never wait; only pushes do. Additions of clusters and endpoints go at once,
//! listeners and routes when the client has ACKed those, removals when it has ACKed the listeners
//! and routes that named what is gone.

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

/// Whether something may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Now.
    Open,
    /// At this time, if nothing happens before.
    Until(Duration),
    /// After something else has happened to this client.
    Shut,
}

impl Gate {
    /// Opens at a time.
    pub(super) fn at(time: Duration, now: Duration) -> Self {
        if time <= now { Self::Open } else { Self::Until(time) }
    }

    /// The earlier of the time at which this gate opens by itself and another.
    pub(super) fn earlier(self, other: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Until(time) => Some(other.map_or(time, |other| other.min(time))),
            Self::Open | Self::Shut => other,
        }
    }
}

/// Whether additions and changes of a type may be pushed, given the other types of the stream.
///
/// S35: a cluster that warms keeps its ACK back, so this never holds endpoints. A NACK opens too:
/// it says that the client will go on with what it took.
///
/// S33b: a type that the client leaves unanswered for `order_wait` no longer counts until the
/// client answers again; else each update would wait that long. What such a type is still to be
/// sent goes first all the same: it waits for the silence no longer than `ack_wait` (S9b).
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
        // Twice, as other streams of the client send at a time of their own.
        (Some(unanswered), true) => {
            Some(longest.min((unanswered + config.order_wait).max(since + 2 * config.ack_wait)))
        }
    });
    waits_until.max().map_or(Gate::Open, |until| Gate::at(until, now))
}

/// When what a type holds may be let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Release {
    /// Not before something else has happened to this client.
    Later,
    /// Each the grace time after the client was sent the last of what named it, where that is
    /// known, or after it went; but not these names.
    AfterGrace(BTreeSet<ResourceName>, Unnamed),
    /// Now, but not these names. What the client brought from another stream still waits for the
    /// grace time: its first ACKs of referrers may be of those that did not change.
    Now(BTreeSet<ResourceName>),
}

/// When the client was sent that nothing names a resource any more.
///
/// A proxy learns of a removal when its upstream has waited for the grace time, and of the end of
/// what named it right away: it does not wait once more. Where the upstream does not wait, both
/// come together, and the whole grace time is still to pass.
pub(super) type Unnamed = BTreeMap<ResourceName, Duration>;

impl Release {
    /// Whatever it is.
    pub(super) fn now() -> Self {
        Self::Now(BTreeSet::new())
    }
}

/// Decides over the removals that a type holds, given the types that refer to it and that the
/// client asks for.
///
/// A client that did not accept the newest version of a referrer may use the one before, and what
/// that names. So may one that still asks for a referrer that is gone: Envoy keeps a route
/// configuration, and the clusters it names, for the connections of a listener that drains. What no
/// such referrer names need not wait for it.
pub(super) fn removals(
    state: &TypeState,
    referrers: &[Referrer],
    unnamed: impl FnOnce() -> Unnamed,
    snapshot: &Snapshot,
) -> Release {
    if state.retained.len() > HELD_LIMIT {
        return Release::now();
    }
    if state.known.referrers.is_empty() {
        return Release::now();
    }
    if referrers.is_empty() {
        return Release::AfterGrace(BTreeSet::new(), Unnamed::new());
    }
    match in_use::used(state, referrers, snapshot) {
        None => Release::Later,
        // A client that asks by name gives a name up when it no longer needs it. One that asks for
        // everything cannot say; but its routes, which name most clusters, may come over a stream
        // of their own (S33b).
        Some(used) if state.selects_all() && !may_have_other_routes(state, referrers, snapshot) => {
            Release::Now(used)
        }
        // When what named it was dropped says nothing where not all that names it is known.
        Some(used) if state.selects_all() => Release::AfterGrace(used, Unnamed::new()),
        Some(used) => Release::AfterGrace(used, unnamed()),
    }
}

/// When the client was sent the end of what named the removals that a type holds, where that is
/// known.
pub(super) fn unnamed(state: &TypeState, referrers: &[&TypeState], snapshot: &Snapshot) -> Unnamed {
    let Some(target) = Target::of(state.type_url.as_str()) else { return Unnamed::new() };
    let names = state.retained.keys().map(|key| &key.name);
    let with_time =
        |name: &ResourceName| Some((name.clone(), unnamed_at(target, name, referrers, snapshot)?));
    names.filter_map(with_time).collect()
}

/// When the client was sent that none of its referrers names a resource, which some did before;
/// `None` where that is not so, or not known.
fn unnamed_at(
    target: Target,
    name: &ResourceName,
    referrers: &[&TypeState],
    snapshot: &Snapshot,
) -> Option<Duration> {
    let (mut is_dropped, mut unnamed_at) = (false, Duration::ZERO);
    for referrer in referrers {
        let Some(resources) = snapshot.of_type(&referrer.type_url) else { continue };
        if resources.names(target, name) {
            return None;
        }
        let dropped = resources.last_dropped.of(target, name);
        let since = dropped.unwrap_or_default().max(resources.last_dropped.unknown());
        if since > Revision::ZERO {
            unnamed_at = unnamed_at.max(referrer.send_times.at(since)?);
        }
        is_dropped |= dropped.is_some();
    }
    is_dropped.then_some(unnamed_at)
}

/// Whether the client may use clusters because of routes that are not known here: it follows
/// listeners that name routes, and no routes.
fn may_have_other_routes(state: &TypeState, referrers: &[Referrer], snapshot: &Snapshot) -> bool {
    let has_routes = |of: &Referrer| of.is_of(ROUTE_CONFIGURATION) || of.is_of(VIRTUAL_HOST);
    state.type_url.as_str() == CLUSTER
        && !referrers.iter().any(has_routes)
        && referrers.iter().any(|of| of.may_name(Target::Routes, snapshot))
}

/// Removals of one type that a stream holds at most; past it they are told, used or not. Whole
/// resources are held, and a client that rejects its routes for ever must not collect them.
const HELD_LIMIT: usize = 1000;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod references_tests;
#[cfg(test)]
mod tests;
