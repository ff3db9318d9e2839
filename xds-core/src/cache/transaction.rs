//! A set of changes that are committed as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::delivery::{ClientName, Ledger};
use super::on_demand::LocatorStatus;
use super::plan::RequestedRollout;
use super::snapshot::{NO_RESOURCES, Snapshot};
use super::{Changed, by_name};
use crate::constraint::Constraints;
use crate::matching::SetError;
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::resource::{Resource, VariantId};
use crate::subscription::Locator;
use crate::variants::{Variant, Variants};

mod split;

/// Changes for one [`commit`](super::Cache::commit). The order in which they are added does not
/// matter.
#[derive(Debug, Default, Clone)]
pub struct Transaction {
    /// In the order in which they were added.
    changes: BTreeMap<TypeUrl, Vec<VariantChange>>,
    /// The types whose other resources are removed. It is not known before the commit which they are.
    replaced: BTreeSet<TypeUrl>,
    pub(super) base: Option<Revision>,
    pub(super) origin: Arc<CommitOrigin>,
    /// In the order in which they were set.
    pub(super) statuses: Vec<(TypeUrl, Locator, Option<LocatorStatus>)>,
}

/// Where a transaction comes from, for people: each part may be empty. A source fills in the parts
/// that it has, and bounds their length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitOrigin {
    /// The kind of source, such as `folder` or `upstream`.
    pub source: Box<str>,
    /// The identity of the author.
    pub author: Box<str>,
    /// The message of the author.
    pub message: Box<str>,
    /// The version of the content at its source, such as a Git revision.
    pub label: Box<str>,
    /// The first files that changed.
    pub files: Vec<Box<str>>,
    /// How many files changed.
    pub file_count: usize,
    /// How the source wants its change to be rolled out.
    pub rollout: Option<RequestedRollout>,
}

/// The change of one variant.
#[derive(Debug, Clone)]
pub(super) struct VariantChange {
    pub(super) name: ResourceName,
    pub(super) constraints: Constraints,
    pub(super) change: Change,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Put(Resource),
    Remove,
    /// The same as [`Remove`](Self::Remove), with the reason for clients that ask.
    RemoveBecause(Arc<str>),
}

impl Transaction {
    /// An empty transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The changes that turn one state into another. Costs O(variants of both).
    #[must_use]
    pub fn between(from: &Snapshot, to: &Snapshot) -> Self {
        let mut transaction = Self::new();
        let types: BTreeSet<_> = from.counts().chain(to.counts()).map(|(type_url, _)| type_url).collect();
        for type_url in types {
            let [before, after] = [from, to].map(|state| state.of_type(type_url).unwrap_or(&NO_RESOURCES));
            let names = before.iter().chain(after.iter().filter(|(name, _)| before.get(name).is_none()));
            let mut changes = Vec::new();
            for (name, _) in names {
                changes.extend(difference(type_url, name, before.get(name), after.get(name)));
            }
            for VariantChange { name, constraints, change } in &mut changes {
                if let Some(reason) = after.reason_of(name, constraints) {
                    *change = Change::RemoveBecause(Arc::clone(reason));
                }
            }
            for ((name, constraints), reason) in after.reasons() {
                let was_there = before.get(name).is_some_and(|variants| variants.get(constraints).is_some());
                if !was_there && before.reason_of(name, constraints) != Some(reason) {
                    let (name, constraints) = (name.clone(), constraints.clone());
                    changes.push(VariantChange {
                        name,
                        constraints,
                        change: Change::RemoveBecause(Arc::clone(reason)),
                    });
                }
            }
            for ((name, constraints), _) in before.reasons() {
                let is_there = after.get(name).is_some_and(|variants| variants.get(constraints).is_some());
                if !is_there && after.reason_of(name, constraints).is_none() {
                    let (name, constraints) = (name.clone(), constraints.clone());
                    changes.push(VariantChange { name, constraints, change: Change::Remove });
                }
            }
            if !changes.is_empty() {
                transaction.changes.insert(type_url.clone(), changes);
            }
        }
        transaction
    }

    /// Leaves out the changes of other variants than these.
    pub(super) fn keep_only(&mut self, changed: &Changed) {
        self.changes.retain(|type_url, changes| {
            let kept = changed.get(type_url).map_or(&[][..], Vec::as_slice);
            changes.retain(|change| is_in(change, kept));
            !changes.is_empty()
        });
    }

    /// The variants that it changes, each with the version that it puts; `None` for a removal. What
    /// [`replace`](Self::replace) removes is not among them.
    pub fn contents(&self) -> impl Iterator<Item = (VariantId, Option<Version>)> {
        self.changes.iter().flat_map(|(type_url, changes)| {
            changes.iter().map(|VariantChange { name, constraints, change }| {
                let (name, constraints) = (name.clone(), constraints.clone());
                let version = match change {
                    Change::Put(resource) => Some(resource.version()),
                    Change::Remove | Change::RemoveBecause(_) => None,
                };
                (VariantId { type_url: type_url.clone(), name, constraints }, version)
            })
        })
    }

    /// Whether it has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.statuses.is_empty() && self.replaced.is_empty()
    }

    /// Adds the resource, or replaces the variant with the same type, name and constraints.
    pub fn put(&mut self, resource: Resource) {
        let VariantId { type_url, name, constraints } = resource.id();
        let (name, constraints) = (name.clone(), constraints.clone());
        let changes = match self.changes.get_mut(type_url) {
            Some(changes) => changes,
            None => self.changes.entry(type_url.clone()).or_default(),
        };
        changes.push(VariantChange { name, constraints, change: Change::Put(resource) });
    }

    /// Puts these resources, and removes all other resources of the type that the cache has at the
    /// time of the commit, whoever put them. Without resources the type becomes empty.
    ///
    /// For a program that brings all resources of the type. If it brings a part, see
    /// [`Cache::source`](super::Cache::source).
    pub fn replace(&mut self, type_url: impl Into<TypeUrl>, resources: impl IntoIterator<Item = Resource>) {
        self.replaced.insert(type_url.into());
        resources.into_iter().for_each(|resource| self.put(resource));
    }

    /// Adds the removals of the types that it replaces, now that the state is known.
    pub(super) fn resolve(&mut self, current: &Snapshot) {
        for type_url in std::mem::take(&mut self.replaced) {
            let Some(present) = current.of_type(&type_url) else { continue };
            let changes = self.changes.remove(&type_url).unwrap_or_default();
            let put: BTreeSet<_> = changes.iter().map(VariantChange::id).collect();
            let others = present.iter().flat_map(|(_, variants)| variants.iter());
            let others = others.filter(|other| !put.contains(&(other.name(), other.constraints())));
            let removals = others.map(|other| VariantChange {
                name: other.name().clone(),
                constraints: other.constraints().clone(),
                change: Change::Remove,
            });
            let removals: Vec<_> = removals.collect();
            drop(put);
            self.changes.insert(type_url, changes.into_iter().chain(removals).collect());
        }
    }

    /// Removes one variant. It is no error if the cache does not have it.
    pub fn remove(&mut self, id: VariantId) {
        let VariantId { type_url, name, constraints } = id;
        let changes = self.changes.entry(type_url).or_default();
        changes.push(VariantChange { name, constraints, change: Change::Remove });
    }

    /// Removes one variant, and says why: clients that subscribe to it from now on get the reason as
    /// a resource error `UNAVAILABLE`, until it is put or removed.
    pub fn remove_because(&mut self, id: VariantId, reason: &str) {
        let VariantId { type_url, name, constraints } = id;
        let changes = self.changes.entry(type_url).or_default();
        changes.push(VariantChange { name, constraints, change: Change::RemoveBecause(reason.into()) });
    }

    /// Sets the status of a locator that streams subscribe to, in a cache
    /// [on demand](super::Cache::on_demand). `None` makes the locator unknown again. In other
    /// caches a status has no use: a resource that they do not have is absent. When a locator is
    /// set more than once, the last status counts.
    pub fn set_status(&mut self, type_url: TypeUrl, locator: Locator, status: Option<LocatorStatus>) {
        self.statuses.push((type_url, locator, status));
    }

    /// Where it comes from, to be filled in. The [events](super::Cache::commits) of the cache repeat
    /// it.
    pub fn origin(&mut self) -> &mut CommitOrigin {
        Arc::make_mut(&mut self.origin)
    }

    /// Makes the commit fail with [`CommitError::Superseded`] unless the cache is at `revision`.
    pub fn require(&mut self, revision: Revision) {
        self.base = Some(revision);
    }

    /// The changes of each type, sorted by name, then by constraints. Sources mostly add them in
    /// this order, so sorting once, here, is cheap.
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

/// The changes that turn the variants of a name into others.
pub(super) fn difference(
    type_url: &TypeUrl,
    name: &ResourceName,
    from: Option<&Variants>,
    to: Option<&Variants>,
) -> Vec<VariantChange> {
    let of = |variants: Option<&Variants>, constraints: &Constraints| {
        variants.and_then(|variants| variants.get(constraints)).map(|variant| variant.version())
    };
    let gone = from.into_iter().flat_map(Variants::iter);
    let gone = gone.filter(|variant| of(to, variant.constraints()).is_none());
    let put = to.into_iter().flat_map(Variants::iter);
    let put = put.filter(|variant| of(from, variant.constraints()) != Some(variant.version()));
    let removals = gone.map(|variant| (variant.constraints(), Change::Remove));
    let puts = put.map(|variant| (variant.constraints(), Change::Put(variant.resource(type_url))));
    let change = |(constraints, change): (&Constraints, Change)| VariantChange {
        name: name.clone(),
        constraints: constraints.clone(),
        change,
    };
    removals.chain(puts).map(change).collect()
}

/// Whether a change is of one of these variants, which are sorted.
pub(super) fn is_in(change: &VariantChange, changed: &[(ResourceName, Constraints)]) -> bool {
    changed.binary_search_by(|(name, constraints)| (name, constraints).cmp(&change.id())).is_ok()
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
    /// One variant is put or removed twice. The order of changes has no meaning, so neither counts.
    #[error("{} {:?} is changed twice in one transaction", id.type_url.message_name(), id.name.as_str())]
    Contradiction {
        /// The variant.
        id: VariantId,
    },
    /// T15: both variants match the witness, so a client could get either.
    #[error(
        "{} {:?}: {} and {} both match {witness}",
        first.type_url.message_name(), first.name.as_str(), shown(first), shown(second)
    )]
    Ambiguous {
        /// One variant; the one that was in the cache before, if one of them was.
        first: VariantId,
        /// The other variant.
        second: VariantId,
        /// Parameters that both match, without keys that neither uses.
        witness: Parameters,
    },
    /// T12: the constraints of the variants of a name must use the same keys.
    #[error(
        "{} {:?}: {} and {} must name the same keys; only the first has {only_first:?}, only the second \
         {only_second:?}",
        first.type_url.message_name(), first.name.as_str(), shown(first), shown(second)
    )]
    KeySets {
        /// One variant.
        first: VariantId,
        /// The other variant.
        second: VariantId,
        /// Keys that only the first uses. To use a key without restricting it, write `(k || !k)`.
        only_first: Box<[Arc<str>]>,
        /// Keys that only the second uses.
        only_second: Box<[Arc<str>]>,
    },
    /// T17: no parameters can match the variant, which is always a mistake.
    #[error("{} {:?}: no parameters can match {}", id.type_url.message_name(), id.name.as_str(), shown(id))]
    Unsatisfiable {
        /// The variant.
        id: VariantId,
    },
    /// The check whether the variant overlaps others needs more work than the limit allows. Simpler
    /// constraints need less.
    #[error(
        "{} {:?}: {} is too complex to check for overlap; simplify the constraints",
        id.type_url.message_name(), id.name.as_str(), shown(id)
    )]
    TooComplex {
        /// The variant.
        id: VariantId,
    },
    /// D24: two resources have the same name, which is an alias of at least one of them.
    #[error("{} {first:?} and {second:?} both have the name {alias:?}", type_url.message_name())]
    AliasTaken {
        /// The type of both.
        type_url: TypeUrl,
        /// The name that both have.
        alias: ResourceName,
        /// One resource.
        first: ResourceName,
        /// The other resource.
        second: ResourceName,
    },
    /// The condition of [`Transaction::require`] does not hold. Read the new state and try again.
    #[error("the transaction requires revision {required}, but the cache is at {actual}")]
    Superseded {
        /// The revision that the transaction requires.
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

/// The constraints of a variant, in the syntax of `when:`.
fn shown(id: &VariantId) -> String {
    if id.constraints.is_unconstrained() {
        "[no constraints]".to_owned()
    } else {
        format!("[{}]", id.constraints)
    }
}

/// The result of a commit. [`applied`](Self::applied) follows the clients that it affected.
#[derive(Clone)]
pub struct Commit {
    /// The revision of the cache after it.
    pub revision: Revision,
    /// How many names had a variant added, replaced or removed. A put of content that the cache has
    /// already does not count.
    pub changed: usize,
    /// The variants that changed; empty in an event.
    pub(super) variants: Arc<Changed>,
    /// The ledgers of the streams and types that the commit affected.
    pub(super) affected: Arc<[Arc<Ledger>]>,
}

impl Commit {
    /// The names that had a variant added, replaced or removed, sorted, with their types.
    ///
    /// Empty for the commit of an [event](super::CommitOutcome::Committed): events may wait for a slow
    /// reader, and must not keep long lists. They have a part of the changes in a field of their own.
    pub fn names(&self) -> impl Iterator<Item = (&TypeUrl, &ResourceName)> {
        self.variants
            .iter()
            .flat_map(|(type_url, variants)| by_name(variants).map(move |(name, _)| (type_url, name)))
    }

    /// How many streams the commit affected, each counted once per affected type. A stream that has
    /// the new content already counts too.
    #[must_use]
    pub fn affected(&self) -> usize {
        self.affected.len()
    }

    /// The clients of the affected streams, with the affected type.
    pub fn streams(&self) -> impl Iterator<Item = (ClientName, &TypeUrl)> {
        self.affected.iter().map(|ledger| (ledger.stream().client(), ledger.type_url()))
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

/// Compares what the commits did, not which streams they affected.
impl PartialEq for Commit {
    fn eq(&self, other: &Self) -> bool {
        (self.revision, self.changed) == (other.revision, other.changed)
    }
}

impl Eq for Commit {}
