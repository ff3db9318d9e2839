//! Known deviations: notifications that a client gets once too often, which is harmless, and
//! behaviour that our own client lacks. When the cause of a deviation is fixed, delete its
//! function: the compiler then shows the checks that excuse it.

use xds_core::client::{Code, ResourceView};

use crate::agent::{Event, Turn, is_same};
use crate::connection::Envelope;
use crate::invariant::Sent;
use crate::known::Known;

/// D11: if a resource was already removed when a client subscribed with a locator or unsubscribed,
/// the server sends the removal at that time (D10, D18), and a second time with the removals that
/// waited meanwhile (S33). The client ignores the second one (D14).
pub(crate) fn is_removed_twice(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    let mut removed = sent.received.removed.iter().chain(variants);
    sent.received.resources.is_empty() && removed.all(|name| sent.before.removed.contains_key(name))
}

/// The same for one name, in a response with other ones.
pub(crate) fn is_removed_again(sent: &Sent<'_>, name: &str) -> bool {
    let is_there = sent.received.resources.iter().any(|item| item.name == name);
    !is_there && sent.before.removed.contains_key(name)
}

/// P4.5: a watcher that starts while no server can be reached gets no error if it makes the client
/// fall back. It is still notified when the outage ends. P1.19: a timer that fires on a later
/// stream reports the absence again.
pub(crate) fn is_notified_again(turn: &Turn<'_>) -> bool {
    matches!(turn.event, Event::Answered { .. } | Event::Passed) && is_same(&turn.before.own, &turn.after.own)
}

/// S6e: a full state is sent once more after a rejection. The client rejects the same member of a wildcard again, and
/// notifies its watchers again of the same error (seed 1454).
pub(crate) fn is_rejected_again(turn: &Turn<'_>, member: &str) -> bool {
    let error = turn.after.members.get(member).and_then(|view| view.error.as_ref());
    let is_rejection = error.is_some_and(|error| error.code == Code::INVALID_ARGUMENT);
    matches!(turn.event, Event::Answered { .. }) && turn.watcher.kind.is_full_state() && is_rejection
}

/// P4.5: a new watch makes the client fall back to a server that cannot be reached either. The
/// other watchers now see another outage error, and are not notified of it.
pub(crate) fn is_other_outage(turn: &Turn<'_>) -> bool {
    turn.event == Event::Watched && are_outages([&turn.before.own, &turn.after.own])
}

/// Whether all views have the error of an outage.
pub(crate) fn are_outages(views: [&ResourceView; 2]) -> bool {
    let is_outage = |view: &ResourceView| {
        view.error.as_ref().is_some_and(|error| error.message.contains("cannot be reached"))
    };
    views.into_iter().all(is_outage)
}

/// T31, T43: several locators of one stream share a variant. One of them gets another variant
/// before the proxy knows the variants of the others. The others lose the shared variant (T34)
/// until the proxy knows (seed 1233).
pub(crate) fn is_split_switch(envelope: &Envelope, known: &Known, name: &str) -> bool {
    let received = &envelope.received;
    let brings = received.resources.iter().any(|item| item.name == name);
    // T35: a locator that is known to be absent is removed by the bare name (seed 2187) or by its
    // parameters (seed 675), in the same response as the error for a locator that is not known yet.
    let variants = received.removed_variants.iter().map(|(gone, _)| gone);
    let removes = received.removed.iter().chain(variants).any(|gone| gone == name);
    let is_unknown = received.errors.iter().any(|error| error.name == name);
    (brings || (removes && is_unknown)) && known.locators(name).len() > 1
}
