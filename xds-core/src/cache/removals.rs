//! Variants that commits removed, as long as a stream may not have seen the removal.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::snapshot::NameMap;
use crate::constraint::Constraints;
use crate::hash::empty_map;
use crate::name::{ResourceName, Revision};
use crate::variants::Variant;

/// The removals of one type that are remembered.
#[derive(Debug, Clone)]
pub(crate) struct Removals {
    by_name: NameMap<Vec<Removed>>,
    /// One for each removal, and one for each 4 KiB of payload.
    weight: usize,
    /// Removals at or before this revision are forgotten.
    known_since: Revision,
}

/// A variant that a commit removed.
#[derive(Debug, Clone)]
pub(crate) struct Removed {
    /// The variant with its last content.
    pub(crate) variant: Arc<Variant>,
    /// The revision of the commit that removed it.
    pub(crate) at: Revision,
}

impl Removals {
    /// The variants of a name that were removed after a revision.
    pub(crate) fn after(&self, name: &ResourceName, revision: Revision) -> impl Iterator<Item = &Removed> {
        self.of(name).iter().filter(move |removed| removed.at > revision)
    }

    /// Whether all removals after a revision are remembered.
    pub(super) fn are_known_since(&self, revision: Revision) -> bool {
        revision >= self.known_since
    }

    /// Whether the type never had a removal.
    pub(super) fn are_none(&self) -> bool {
        self.by_name.is_empty() && self.known_since == Revision::ZERO
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// All remembered removals of a name.
    pub(super) fn of(&self, name: &ResourceName) -> &[Removed] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The remembered removal of a variant.
    pub(super) fn find(&self, name: &ResourceName, constraints: &Constraints) -> Option<&Removed> {
        self.of(name).iter().find(|removed| removed.variant.constraints() == constraints)
    }

    /// The names with a remembered removal, in no particular order.
    pub(super) fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.by_name.keys()
    }

    /// Remembers the variants that a commit took away, and forgets the removals of variants that came
    /// back. Returns the variants that are neither present nor remembered any more.
    pub(super) fn note(
        &mut self,
        name: &ResourceName,
        removed: Vec<Arc<Variant>>,
        inserted: &[Arc<Variant>],
        at: Revision,
    ) -> Vec<Arc<Variant>> {
        // Variants that only got new content are not removed.
        let (before, after) = (removed.iter(), inserted.iter());
        let has_same_variants =
            before.map(|variant| variant.constraints()).eq(after.map(|variant| variant.constraints()));
        if has_same_variants && !self.by_name.contains_key(name) {
            return removed;
        }
        let inserted: BTreeSet<_> = inserted.iter().map(|variant| variant.constraints()).collect();
        let is_present = |variant: &Variant| inserted.contains(variant.constraints());
        let known = self.of(name).to_vec();
        self.weight -= weight(&known);
        let (returned, mut known): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|removed| is_present(&removed.variant));
        let (mut forgotten, removed): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|variant| is_present(variant));
        forgotten.extend(returned.into_iter().map(|removed| removed.variant));
        known.extend(removed.into_iter().map(|variant| Removed { variant, at }));
        self.weight += weight(&known);
        match known.is_empty() {
            true => _ = self.by_name.remove_mut(name),
            false => self.by_name.insert_mut(name.clone(), known),
        }
        forgotten
    }

    /// Forgets the removals at or before a revision. Returns their variants.
    pub(super) fn forget(&mut self, until: Revision) -> Vec<Arc<Variant>> {
        let before = std::mem::take(self);
        self.known_since = before.known_since.max(until);
        let mut forgotten = Vec::new();
        for (name, removed) in before.by_name.iter() {
            let (kept, old): (Vec<_>, Vec<_>) =
                removed.iter().cloned().partition(|removed| removed.at > until);
            forgotten.extend(old.into_iter().map(|removed| removed.variant));
            if !kept.is_empty() {
                self.weight += weight(&kept);
                self.by_name.insert_mut(name.clone(), kept);
            }
        }
        forgotten
    }
}

impl Default for Removals {
    fn default() -> Self {
        Self { by_name: empty_map(), weight: 0, known_since: Revision::ZERO }
    }
}

fn weight(removed: &[Removed]) -> usize {
    removed.iter().map(|removed| 1 + removed.variant.payload().len() / 4096).sum()
}
