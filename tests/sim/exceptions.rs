//! Defects of the machines that are known and not mended yet, one function each. Delete a function with its defect: what
//! then fails to compile is where it was excused.

use std::collections::BTreeSet;
use std::sync::Arc;

use xds_core::Snapshot;

use crate::client::Client;
use crate::connection::Connection;
use crate::content::{Kind, names, selected};
use crate::invariant::Sent;
use crate::known::{Asked, Known};
use crate::script::Protocol;
use crate::wire::Item;

/// T3: a cluster that is gone and was sent by name is held, with its constraints, also for a client that from now on asks
/// by locators which those constraints do not match. The client ignores it (T41).
pub(crate) fn is_held_for_former_names(sent: &Sent<'_>, item: &Item) -> bool {
    let is_there = |snapshot: &Arc<Snapshot>| {
        let variants = snapshot.get(&sent.kind().url().into(), &item.name.as_str().into());
        variants.is_some_and(|variants| item.told.as_ref().is_some_and(|told| variants.get(told).is_some()))
    };
    let is_gone = sent.history.iter().any(is_there) && !sent.history.last().is_some_and(is_there);
    is_gone && sent.before.has_told_names && sent.after.takes_full_state()
}

/// S7: when what was held so is let go, a full state follows that says nothing to the client, which had ignored it.
pub(crate) fn lets_former_names_go(sent: &Sent<'_>) -> bool {
    sent.before.has_told_names && sent.after.knows_locators && sent.after.takes_full_state()
}

/// D12, S6: what was asked for while additions of the type wait for clusters (S33) is answered ahead of them, and sent a
/// second time when they follow, rejected or not.
pub(crate) fn is_answered_ahead(sent: &Sent<'_>) -> bool {
    let waits = !sent.kind().known().waits_for.is_empty();
    waits && sent.received.resources.iter().all(|item| sent.before.answered.contains(&item.name))
}

/// S33, D11: when the last thing that a removal waits for is that a later type has nothing to say, the machine goes to sleep
/// with the removal due, for ever if nothing else happens. Asked once more, it sends it.
pub(crate) const ASKS_TWICE: bool = true;

/// T31, D18: a locator that is given up under a wildcard is answered at once. While additions of the type wait for clusters
/// (S33), the answer removes the variant that it had also from the wildcard, whose next variant comes later.
pub(crate) fn is_left_while_waiting(sent: &Sent<'_>) -> bool {
    sent.before.has_left && !sent.kind().known().waits_for.is_empty()
}

/// D12, S7: what changed and changed back since it was sent is sent again; a full state also when something came and went.
pub(crate) fn has_blinked(sent: &Sent<'_>) -> bool {
    let was_other = |item: &Item| {
        let key = (item.name.clone(), item.constraints());
        let since = sent.before.ideal.held.get(&key).map_or(0, |held| held.sent_at);
        sent.history[since..].iter().any(|snapshot| is_other(sent, snapshot, &item.name))
    };
    let came =
        |snapshot: &Arc<Snapshot>| names(snapshot, sent.kind()).any(|name| is_other(sent, snapshot, name));
    let has_come = sent.history[sent.before.sent_at..].iter().any(came);
    sent.received.resources.iter().any(was_other) || (sent.after.takes_full_state() && has_come)
}

/// Whether a locator got something else of a name then.
fn is_other(sent: &Sent<'_>, then: &Snapshot, name: &str) -> bool {
    let payload =
        |snapshot, params| selected(snapshot, sent.kind(), name, params).map(|variant| variant.payload());
    sent.after.locators(name).iter().any(|params| payload(then, params) != payload(sent.snapshot, params))
}

/// What a new stream brings is not forgotten when its client, before it is answered, asks for something else. D9: in delta a
/// name that is given up and asked for again is not sent if its version was current, though its client has dropped it. S32:
/// in SotW a wildcard asked for by the second request is not answered if the first one brought its version, though that one
/// asked for less. So clients do this only later.
pub(crate) fn is_too_early(known: &Known, asked: &BTreeSet<Asked>, connection: Option<&Connection>) -> bool {
    let is_early = match known.protocol {
        Protocol::Delta => known.asked.iter().any(|one| !asked.contains(one)),
        Protocol::Sotw => known.kind.is_full_state() && known.has_asked && known.asked != *asked,
    };
    let is_unanswered = connection.is_some_and(|connection| !connection.has_answered_all());
    known.nonce.is_empty() && is_early && is_unanswered
}

/// D11: what was gone when a locator for it was given up under a wildcard is told then (D18), and a second time when the
/// removal that waits for the wildcard is due.
pub(crate) fn is_removed_twice(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    let mut removed = sent.received.removed.iter().chain(variants);
    let is_wildcard = sent.after.asked.iter().any(|(name, _)| name.is_none());
    is_wildcard
        && sent.received.resources.is_empty()
        && removed.all(|name| sent.before.removed.contains_key(name))
}

/// S33, D11: what went by name, and is gone when the client sends its first locator, counts as in use for ever, though nobody
/// asks for it. What it may refer to is then never told to be gone on this stream.
pub(crate) fn keeps_former_names(client: &Client, kind: Kind) -> bool {
    let mut seen = client.connections.values().flat_map(|connection| connection.seen.values());
    let has_switched = seen.any(|seen| seen.has_told_names && seen.ideal.knows_locators);
    has_switched && !kind.known().referrers.is_empty()
}
