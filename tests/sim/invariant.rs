//! The invariants, one file each.

pub(crate) mod absence;
pub(crate) mod agree;
pub(crate) mod backoff;
pub(crate) mod bounds;
pub(crate) mod converge;
pub(crate) mod fits;
pub(crate) mod goes_on;
pub(crate) mod healed;
pub(crate) mod honest;
pub(crate) mod identity;
pub(crate) mod kept;
pub(crate) mod known_bad;
pub(crate) mod left;
pub(crate) mod memory;
pub(crate) mod news;
pub(crate) mod notified;
pub(crate) mod order;
pub(crate) mod parts;
pub(crate) mod prompt;
pub(crate) mod refusal;
pub(crate) mod relayed;
pub(crate) mod removal;
pub(crate) mod replicas;
pub(crate) mod served;
pub(crate) mod settled;
pub(crate) mod switch;
pub(crate) mod timers;
pub(crate) mod trials;
pub(crate) mod upstream;

use std::sync::Arc;
use std::time::Duration;

use xds_core::Snapshot;

use crate::agent::Turn;
use crate::connection::Seen;
use crate::content::Kind;
use crate::known::Known;
use crate::wire::Received;

/// An invariant that does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(invariant: &'static str, what: impl Into<String>) -> Self {
        Self { invariant, what: what.into() }
    }
}

/// A response at the moment it is sent.
pub(crate) struct Sent<'a> {
    pub(crate) received: &'a Received,
    /// The state of the type before the response.
    pub(crate) before: &'a Seen,
    /// The state of a client that applied all responses.
    pub(crate) after: &'a Known,
    pub(crate) snapshot: &'a Snapshot,
    /// The replica is a proxy: a resource that is not in its cache is unknown, not absent.
    pub(crate) is_relayed: bool,
    /// All states of the replica, up to `snapshot`.
    pub(crate) history: &'a [Arc<Snapshot>],
}

impl Sent<'_> {
    pub(crate) fn kind(&self) -> Kind {
        self.received.kind
    }
}

/// Checks a response when it is sent.
pub(crate) fn check_sent(sent: &Sent<'_>, now: Duration) -> Result<(), Violation> {
    served::check(sent)?;
    switch::check(sent)?;
    removal::check(sent)?;
    news::check(sent)?;
    parts::check(sent, now)?;
    bounds::check(sent, now)?;
    backoff::check(sent, now)
}

/// Checks the effect of an event on a watcher of our client.
pub(crate) fn check_turn(turn: &Turn<'_>) -> Result<(), Violation> {
    kept::check(turn)?;
    absence::check(turn)?;
    notified::check(turn)?;
    fits::check(turn)
}
