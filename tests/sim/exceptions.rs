//! Defects of the machines that are known and not mended yet, one function each. Delete a function with its defect: what
//! then fails to compile is where it was excused.

use crate::invariant::Sent;
use crate::wire::Item;

/// T3: a cluster that is gone and was sent by name is held, with its constraints, also for a client that from now on asks
/// by locators which those constraints do not match. The client ignores it (T41).
pub(crate) fn is_held_for_former_names(sent: &Sent<'_>, item: &Item) -> bool {
    let mut held = sent.before.ideal.held.iter();
    let by_name = held.any(|((name, constraints), held)| {
        *name == item.name && constraints.is_unconstrained() && held.content == item.content
    });
    by_name && sent.after.takes_full_state() && item.told.is_some()
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
