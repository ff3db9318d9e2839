//! A set of changes that are committed together or not at all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::name::Revision;
use crate::resource::{Resource, VariantId};

/// Changes for one [`commit`](super::Cache::commit). The order in which they are added does not matter.
#[derive(Debug, Default)]
pub struct Transaction {
    pub(super) changes: BTreeMap<VariantId, Change>,
    pub(super) contradiction: Option<VariantId>,
    pub(super) base: Option<Revision>,
}

#[derive(Debug)]
pub(super) enum Change {
    Put(Resource),
    Remove,
}

impl Transaction {
    /// Changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the resource, or replaces the variant of the same identity.
    pub fn put(&mut self, resource: Resource) {
        self.add(resource.id().clone(), Change::Put(resource));
    }

    /// Removes one variant. Removing what is not there is no error.
    pub fn remove(&mut self, id: VariantId) {
        self.add(id, Change::Remove);
    }

    /// Commits only if nothing else was committed since `revision`.
    pub fn require(&mut self, revision: Revision) {
        self.base = Some(revision);
    }

    fn add(&mut self, id: VariantId, change: Change) {
        match self.changes.entry(id) {
            Entry::Vacant(entry) => _ = entry.insert(change),
            Entry::Occupied(entry) => _ = self.contradiction.get_or_insert_with(|| entry.key().clone()),
        }
    }
}

/// Why a transaction was refused. The cache is unchanged in every case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// One variant is put or removed twice, and order does not decide which one counts.
    #[error("{} {:?} is changed twice in one transaction", id.type_url.message_name(), id.name.as_str())]
    Contradiction {
        /// The variant.
        id: VariantId,
    },
    /// The condition of [`Transaction::require`] does not hold. Read the new state and try again.
    #[error("the cache is at revision {actual}, not at {required}")]
    Superseded {
        /// The revision the writer built on.
        required: Revision,
        /// The revision of the cache.
        actual: Revision,
    },
}

/// What a commit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The revision of the cache after it.
    pub revision: Revision,
    /// How many names had a variant added, replaced or removed; putting what is there already does not count.
    pub changed: usize,
}
