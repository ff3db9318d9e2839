//! Known: what a client is told once too often, which is harmless, and what our own client does not do yet. Delete a function with its cause: what then fails to compile is
//! where it was excused.

use xds_core::client::View;

use crate::agent::{Agent, Event, Turn, Watcher, is_same};
use crate::invariant::Sent;
use crate::liar::AUTHORITY;

/// D11: what was gone when a locator for it came or was given up is told then (D10, D18), and a second time with what waited
/// meanwhile (S33). The client ignores that (D14).
pub(crate) fn is_removed_twice(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    let mut removed = sent.received.removed.iter().chain(variants);
    sent.received.resources.is_empty() && removed.all(|name| sent.before.removed.contains_key(name))
}

/// P4.5: who begins to watch while nobody can be reached hears nothing of that if it makes the client fall back; that the
/// outage is over he is told all the same. P1.19: a timer that ends on a later stream tells the absence again.
pub(crate) fn is_told_again(turn: &Turn<'_>) -> bool {
    matches!(turn.event, Event::Answered { .. } | Event::Passed) && is_same(&turn.before.own, &turn.after.own)
}

/// D24: a name that once was an alias stays one when its server says that it is gone, and then cannot become a resource.
pub(crate) fn is_alias_for_ever(view: &View, name: &str) -> bool {
    let is_taken = view.error.as_ref().is_some_and(|error| error.message.contains("its alias"));
    is_taken || view.copy.as_ref().is_some_and(|copy| copy.name().as_str() != name)
}

/// C13, C16: a wildcard keeps what is no member of it, as another authority has it.
pub(crate) fn is_kept_by_wildcard(name: &str) -> bool {
    name.contains(AUTHORITY)
}

/// C16: what a server brought for another authority that it stands for, too, is a member of the wildcard, and stays one when
/// another server that is asked for the wildcard does not have it.
pub(crate) fn is_stranger(name: &str, agent: &Agent) -> bool {
    name.contains(AUTHORITY) && !agent.profile.is_served_honestly()
}

/// P4.5: a new watch has the client fall back to a server that cannot be reached either; the others, who now see another
/// outage, are not told.
pub(crate) fn is_other_outage(turn: &Turn<'_>) -> bool {
    let is_outage =
        |view: &View| view.error.as_ref().is_some_and(|error| error.message.contains("cannot be reached"));
    turn.event == Event::Watched && is_outage(&turn.before.own) && is_outage(&turn.after.own)
}

/// C16, S25: a full state of everything takes out of the cache what another authority has, if its server could be asked for
/// everything, too. That it is gone is then not heard.
pub(crate) fn is_lost_to_wildcard(watcher: &Watcher, agent: &Agent) -> bool {
    watcher.is_of_liar && watcher.kind.is_full_state() && !agent.profile.is_served_honestly()
}
