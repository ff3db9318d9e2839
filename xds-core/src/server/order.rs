//! Make before break for one client (S33): what a client is about to use goes first, what it used goes last.
//!
//! Answers to requests never wait; only pushes do. Additions of clusters and endpoints go at once, listeners and
//! routes when the client has ACKed those, removals when it has ACKed the listeners and routes.

use std::time::Duration;

use super::client_group::Status;
use super::config::StreamConfig;
use super::progress::Progress;

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
/// S35: a cluster that warms keeps its ACK back, so this never holds endpoints. A NACK opens too: it says that the
/// client will go on with what it took.
pub(super) fn additions(
    progress: &Progress,
    now: Duration,
    config: &StreamConfig,
    mut before: impl Iterator<Item = Status>,
) -> Gate {
    if before.all(|other| other.is_answered) {
        return Gate::Open;
    }
    Gate::at(progress.waiting_since.unwrap_or(now) + config.order_wait, now)
}

/// When what a type holds may be let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Not before something else has happened to this client.
    Later,
    /// Each when it was held for the grace time.
    AfterGrace,
    /// Now. What the client brought from another stream still waits for the grace time: its first ACKs of referrers may
    /// be of those that did not change.
    Now,
}

/// Decides over the removals that a type holds, given the types that refer to it.
pub(super) fn removals(progress: &Progress, referrers: impl Iterator<Item = Status>) -> Release {
    if progress.gone.len() > HELD_LIMIT {
        return Release::Now;
    }
    let mut referrers = referrers.filter(|other| other.is_subscribed).peekable();
    if referrers.peek().is_none() {
        return Release::AfterGrace;
    }
    // A referrer that is gone and still asked for is still used: Envoy keeps a route configuration, and the clusters it
    // names, for the connections of a listener that drains.
    if !referrers.all(|other| other.is_settled) {
        return Release::Later;
    }
    // A client that asks by name gives a name up when it no longer needs it. One that asks for everything cannot say.
    if progress.selects_all() { Release::Now } else { Release::AfterGrace }
}

/// Removals of one type that a stream holds at most; past it they are told, used or not. Whole resources are held, and
/// a client that rejects its routes for ever must not collect them.
const HELD_LIMIT: usize = 1000;

#[cfg(test)]
mod tests;
