//! A set of changes that are committed together or not at all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::delivery::{ClientName, Ledger};
use super::on_demand::LocatorStatus;
use crate::constraint::Constraints;
use crate::matching::SetError;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::resource::{Resource, VariantId};
use crate::subscription::Locator;
use crate::variants::Variant;

/// Changes for one [`commit`](super::Cache::commit). The order in which they are added does not
/// matter.
#[derive(Debug, Default)]
pub struct Transaction {
    /// As they came.
    changes: BTreeMap<TypeUrl, Vec<VariantChange>>,
    pub(super) base: Option<Revision>,
    /// In the order in which they were given.
    pub(super) statuses: Vec<(TypeUrl, Locator, Option<LocatorStatus>)>,
}

/// What happens to one variant.
#[derive(Debug)]
pub(super) struct VariantChange {
    pub(super) name: ResourceName,
    pub(super) constraints: Constraints,
    pub(super) change: Change,
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

    /// Whether it changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.statuses.is_empty()
    }

    /// Adds the resource, or replaces the variant of the same identity.
    pub fn put(&mut self, resource: Resource) {
        let VariantId { type_url, name, constraints } = resource.id();
        let (name, constraints) = (name.clone(), constraints.clone());
        let changes = match self.changes.get_mut(type_url) {
            Some(changes) => changes,
            None => self.changes.entry(type_url.clone()).or_default(),
        };
        changes.push(VariantChange { name, constraints, change: Change::Put(resource) });
    }

    /// Removes one variant. Removing what is not there is no error.
    pub fn remove(&mut self, id: VariantId) {
        let VariantId { type_url, name, constraints } = id;
        let changes = self.changes.entry(type_url).or_default();
        changes.push(VariantChange { name, constraints, change: Change::Remove });
    }

    /// Says what becomes of a locator that is asked for, in a cache [on
    /// demand](super::Cache::on_demand); `None`: nobody knows any more. Other caches need none, as
    /// what they do not hold does not exist. Of several statuses the last counts.
    pub fn set_status(&mut self, type_url: TypeUrl, locator: Locator, status: Option<LocatorStatus>) {
        self.statuses.push((type_url, locator, status));
    }

    /// Commits only if nothing else was committed since `revision`.
    pub fn require(&mut self, revision: Revision) {
        self.base = Some(revision);
    }

    /// The changes of each type in the order of names, then constraints. They are sorted here, all
    /// at once: sources mostly bring them in order.
    pub(super) fn into_sorted(mut self) -> Result<BTreeMap<TypeUrl, Vec<VariantChange>>, CommitError> {
        for (type_url, changes) in &mut self.changes {
            changes.sort_by(|one, other| one.id().cmp(&other.id()));
            if let Some(twice) = changes.windows(2).find(|pair| pair[0].id() == pair[1].id()) {
                let VariantChange { name, constraints, .. } = &twice[0];
                let (type_url, name, constraints) = (type_url.clone(), name.clone(), constraints.clone());
                return Err(CommitError::Contradiction { id: VariantId { type_url, name, constraints } });
            }
        }
        Ok(self.changes)
    }
}

impl VariantChange {
    fn id(&self) -> (&ResourceName, &Constraints) {
        (&self.name, &self.constraints)
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
    /// T15: both variants match the witness, so a client could get either.
    #[error("{} {:?}: {} and {} both match {witness}", first.type_url.message_name(), first.name.as_str(), shown(first), shown(second))]
    Ambiguous {
        /// One variant; one that was there before, if it is one.
        first: VariantId,
        /// Another one.
        second: VariantId,
        /// Parameters that both match; keys that neither names are left out.
        witness: Parameters,
    },
    /// T12: the variants of a name must name the same keys.
    #[error("{} {:?}: {} and {} must name the same keys; only the first has {only_first:?}, only the second {only_second:?}", first.type_url.message_name(), first.name.as_str(), shown(first), shown(second))]
    KeySets {
        /// One variant.
        first: VariantId,
        /// Another one.
        second: VariantId,
        /// Keys that only the first names. To name a key without restricting it, write `(k || !k)`.
        only_first: Box<[Arc<str>]>,
        /// Keys that only the second names.
        only_second: Box<[Arc<str>]>,
    },
    /// T17: no parameters can match the variant, which is always a mistake.
    #[error("{} {:?}: no parameters can match {}", id.type_url.message_name(), id.name.as_str(), shown(id))]
    Unsatisfiable {
        /// The variant.
        id: VariantId,
    },
    /// Whether the variant overlaps others takes more work than allowed to find out. Simpler
    /// constraints help.
    #[error("{} {:?}: {} is too complex to be judged", id.type_url.message_name(), id.name.as_str(), shown(id))]
    TooComplex {
        /// The variant.
        id: VariantId,
    },
    /// D24: two resources go by one name, which is an alias of at least one of them.
    #[error("{} {first:?} and {second:?} both go by the name {alias:?}", type_url.message_name())]
    AliasTaken {
        /// The type of both.
        type_url: TypeUrl,
        /// The name that both have.
        alias: ResourceName,
        /// One resource.
        first: ResourceName,
        /// Another one.
        second: ResourceName,
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

impl CommitError {
    /// The error of the variants of one name.
    pub(super) fn of_set(type_url: &TypeUrl, error: SetError<Arc<Variant>>) -> Self {
        let id = |variant: Arc<Variant>| VariantId {
            type_url: type_url.clone(),
            name: variant.name().clone(),
            constraints: variant.constraints().clone(),
        };
        match error {
            SetError::Overlap { first, second, witness } => {
                Self::Ambiguous { first: id(first), second: id(second), witness }
            }
            SetError::KeySets { first, second, only_first, only_second } => {
                let (only_first, only_second) = (only_first.into(), only_second.into());
                Self::KeySets { first: id(first), second: id(second), only_first, only_second }
            }
            SetError::Unsatisfiable { variant } => Self::Unsatisfiable { id: id(variant) },
            SetError::TooComplex { variant, .. } => Self::TooComplex { id: id(variant) },
        }
    }
}

/// Which variant of its name it is, in the syntax of `when:`.
fn shown(id: &VariantId) -> String {
    if id.constraints.is_unconstrained() {
        "[no constraints]".to_owned()
    } else {
        format!("[{}]", id.constraints)
    }
}

/// What a commit did. [`applied`](Self::applied) tells who uses it.
#[derive(Clone)]
pub struct Commit {
    /// The revision of the cache after it.
    pub revision: Revision,
    /// How many names had a variant added, replaced or removed; putting what is there already does
    /// not count.
    pub changed: usize,
    /// What those whom it concerned answer of the types concerned.
    pub(super) concerned: Arc<[Arc<Ledger>]>,
}

impl Commit {
    /// How many streams it concerned, each as often as types of it. Who already has what it brings
    /// counts too.
    #[must_use]
    pub fn concerned(&self) -> usize {
        self.concerned.len()
    }

    /// Their clients, with the type.
    pub fn streams(&self) -> impl Iterator<Item = (ClientName, &TypeUrl)> {
        self.concerned.iter().map(|ledger| (ledger.stream().client(), ledger.type_url()))
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit")
            .field("revision", &self.revision)
            .field("changed", &self.changed)
            .finish_non_exhaustive()
    }
}

/// Whom they concerned says nothing about what they did.
impl PartialEq for Commit {
    fn eq(&self, other: &Self) -> bool {
        (self.revision, self.changed) == (other.revision, other.changed)
    }
}

impl Eq for Commit {}
