//! Everything the cache holds, at one revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::RandomState;
use rpds::HashTrieMapSync;

use crate::name::{ResourceName, Revision, TypeUrl};
use crate::resource::Resource;
use crate::variants::{Variant, VariantSet};

/// All types at one revision. Immutable, and it shares all that did not change with the snapshot before it.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    revision: Revision,
    types: BTreeMap<TypeUrl, TypeSnapshot>,
}

impl Snapshot {
    /// The commit that made it.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether a source has said what exists. Until then nothing counts as absent (G13).
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.revision > Revision::ZERO
    }

    /// The resources of one type; `None` when none was ever committed.
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> Option<&TypeSnapshot> {
        self.types.get(type_url)
    }

    /// The variants of one resource.
    #[must_use]
    pub fn get(&self, type_url: &TypeUrl, name: &ResourceName) -> Option<&VariantSet> {
        self.of_type(type_url)?.get(name)
    }

    /// The types ever committed, in order, with their number of resources.
    pub fn counts(&self) -> impl Iterator<Item = (&TypeUrl, usize)> {
        self.types.iter().map(|(type_url, resources)| (type_url, resources.len()))
    }

    pub(super) fn edit(&mut self, revision: Revision) -> &mut BTreeMap<TypeUrl, TypeSnapshot> {
        self.revision = revision;
        &mut self.types
    }
}

/// The resources of one type at one revision.
#[derive(Debug, Clone)]
pub struct TypeSnapshot {
    present: NameMap<VariantSet>,
    removed: NameMap<Removed>,
    /// Removals at or before this revision are forgotten.
    remembers_since: Revision,
    /// Sum of the identities of all variants (T38).
    sum: u128,
}

/// What was there until a commit removed it; kept until every stream has heard of it.
#[derive(Debug, Clone)]
pub(crate) struct Removed {
    /// The content it had last.
    pub(crate) variant: Arc<Variant>,
    /// The commit that removed it.
    pub(crate) at: Revision,
}

impl TypeSnapshot {
    /// The variants of one name.
    #[must_use]
    pub fn get(&self, name: &ResourceName) -> Option<&VariantSet> {
        self.present.get(name)
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present.size()
    }

    /// Whether there is no resource of the type.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// All names with their variants, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, &VariantSet)> {
        self.present.iter()
    }

    pub(crate) fn removed(&self, name: &ResourceName) -> Option<&Removed> {
        self.removed.get(name)
    }

    /// Whether everything that was removed after a revision is still known.
    pub(crate) fn remembers(&self, revision: Revision) -> bool {
        revision >= self.remembers_since
    }

    /// What was removed after a revision, in no particular order.
    pub(crate) fn removed_after(&self, revision: Revision) -> impl Iterator<Item = &Removed> {
        self.removed.values().filter(move |removed| removed.at > revision)
    }

    pub(crate) fn sum(&self) -> u128 {
        self.sum
    }

    /// Stores a resource; the change of [`sum`](Self::sum), or `None` when it was there already.
    pub(super) fn put(&mut self, resource: Resource, revision: Revision) -> Option<u128> {
        let old = self.present.get(resource.name()).map(VariantSet::resolve);
        if old.is_some_and(|old| old.version() == resource.version()) {
            return None;
        }
        let old_identity = old.map_or(0, |old| old.identity());
        let born_at = match old {
            Some(old) => old.born_at,
            None => self.removed.get(resource.name()).map_or(revision, |removed| removed.variant.born_at),
        };
        self.removed.remove_mut(resource.name());
        let variant = Arc::new(Variant::new(resource, revision, born_at));
        let shift = variant.identity().wrapping_sub(old_identity);
        self.sum = self.sum.wrapping_add(shift);
        self.present.insert_mut(variant.name().clone(), VariantSet::of(variant));
        Some(shift)
    }

    /// Removes a name; the change of [`sum`](Self::sum), or `None` when it was not there.
    pub(super) fn remove(&mut self, name: &ResourceName, revision: Revision) -> Option<u128> {
        let variant = Arc::clone(self.present.get(name)?.resolve());
        let shift = 0_u128.wrapping_sub(variant.identity());
        self.sum = self.sum.wrapping_add(shift);
        self.present.remove_mut(name);
        self.removed.insert_mut(name.clone(), Removed { variant, at: revision });
        Some(shift)
    }

    pub(super) fn remembered_removals(&self) -> usize {
        self.removed.size()
    }

    /// Forgets the removals up to a revision.
    pub(super) fn forget_removals(&mut self, until: Revision) {
        let kept: Vec<_> = self.removed.iter().filter(|(_, removed)| removed.at > until).collect();
        let mut removed = empty_map();
        for (name, entry) in kept {
            removed.insert_mut(name.clone(), entry.clone());
        }
        self.removed = removed;
        self.remembers_since = self.remembers_since.max(until);
    }
}

impl Default for TypeSnapshot {
    fn default() -> Self {
        Self { present: empty_map(), removed: empty_map(), remembers_since: Revision::ZERO, sum: 0 }
    }
}

type NameMap<V> = HashTrieMapSync<ResourceName, V, RandomState>;

/// The keys of these maps come from the operator, not from peers, so a fixed seed does no harm and needs no entropy.
fn empty_map<V>() -> NameMap<V> {
    HashTrieMapSync::new_with_hasher_and_ptr_kind(RandomState::with_seeds(1, 2, 3, 4))
}
