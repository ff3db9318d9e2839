//! Known and harmless: what a client is told once too often. Delete a function with its cause: what then fails to compile is
//! where it was excused.

use crate::invariant::Sent;

/// D11: what was gone when a locator for it came or was given up is told then (D10, D18), and a second time with what waited
/// meanwhile (S33). The client ignores that (D14).
pub(crate) fn is_removed_twice(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    let mut removed = sent.received.removed.iter().chain(variants);
    sent.received.resources.is_empty() && removed.all(|name| sent.before.removed.contains_key(name))
}
