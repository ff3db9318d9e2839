//! Committing a response to the cache. Variants of the response that overlap each other are
//! rejected (C4b). Older variants that overlap the new ones are replaced (T34).

use std::collections::{BTreeMap, BTreeSet};

use super::rejection::Reason;
use crate::cache::{Cache, CommitError, LocatorStatus, Snapshot, Transaction};
use crate::constraint::Constraints;
use crate::hash::HashMap;
use crate::matching::{KeySetRule, SetError, VariantSet};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::{Resource, VariantId};
use crate::subscription::Locator;
use crate::variants::Variants;

/// The key of a variant among those of its type: its name and constraints.
pub(super) type VariantKey = (ResourceName, Constraints);

/// Why a variant is removed from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalReason {
    /// The response removes it, or reports an error for it.
    Explicit,
    /// It is missing in a full state (S25).
    Missing,
    /// A new variant overlaps it (T34) or comes from another server (C15).
    Replaced,
}

/// The variants that a response puts into the cache and removes from it.
#[derive(Debug, Default)]
pub(super) struct CacheChanges {
    pub(super) put: Put,
    pub(super) removed: BTreeMap<VariantKey, RemovalReason>,
    /// What is known now of locators that have no variant.
    pub(super) statuses: Vec<(Locator, Option<LocatorStatus>)>,
}

/// Variants to put, each once, in the order of the response. Servers mostly send them sorted, and
/// then the cache need not sort them.
#[derive(Debug, Default)]
pub(super) struct Put {
    resources: Vec<(VariantKey, Option<Resource>)>,
    places: HashMap<VariantKey, usize>,
}

impl Put {
    /// Adds a variant that is not in it yet.
    pub(super) fn insert(&mut self, key: VariantKey, resource: Resource) {
        let before = self.places.insert(key.clone(), self.resources.len());
        debug_assert!(before.is_none(), "a duplicate variant is rejected before this");
        self.resources.push((key, Some(resource)));
    }

    pub(super) fn contains_key(&self, key: &VariantKey) -> bool {
        self.places.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn remove(&mut self, key: &VariantKey) -> Option<Resource> {
        let place = self.places.remove(key)?;
        self.resources[place].1.take()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &VariantKey> {
        self.iter().map(|(key, _)| key)
    }

    fn iter(&self) -> impl Iterator<Item = (&VariantKey, &Resource)> {
        self.resources.iter().filter_map(|(key, resource)| Some((key, resource.as_ref()?)))
    }
}

/// Variants that were not put, with the reason.
pub(super) type RefusedVariants = Vec<(VariantKey, Reason)>;

impl CacheChanges {
    /// Commits the changes, without the variants that the cache refuses. Returns the refused ones.
    pub(super) fn commit(
        &mut self,
        cache: &Cache,
        type_url: &TypeUrl,
        is_repeated: impl Fn(&VariantKey) -> bool,
    ) -> RefusedVariants {
        let commit = |transaction| cache.commit(transaction).map(|_| ());
        self.commit_with(commit, cache, type_url, is_repeated)
    }

    /// As [`commit`](Self::commit), with another function that commits to the cache.
    ///
    /// A correct server sends nothing that the cache refuses, so the first attempt commits
    /// everything. If the cache refuses it, each name is checked for overlaps before the second
    /// attempt. Each further attempt leaves out the cause of the last refusal.
    pub(super) fn commit_with(
        &mut self,
        mut commit: impl FnMut(Transaction) -> Result<(), CommitError>,
        cache: &Cache,
        type_url: &TypeUrl,
        is_repeated: impl Fn(&VariantKey) -> bool,
    ) -> RefusedVariants {
        let mut refused = RefusedVariants::new();
        for attempt in 0.. {
            let Err(error) = commit(self.transaction(type_url)) else { break };
            let before = (self.put.len(), self.removed.len(), refused.len());
            match attempt {
                0 => self.refuse_overlapping(&cache.snapshot(), type_url, &is_repeated, &mut refused),
                1..ATTEMPTS_LIMIT => {
                    self.leave_out(error, &cache.snapshot(), type_url, &mut refused);
                    // Each attempt must put less or remove more than the one before, whatever the
                    // error is. Otherwise this loop might not end.
                    if self.put.len() == before.0 && self.removed.len() == before.1 {
                        self.refuse_all(&mut refused);
                    }
                }
                _ => self.refuse_all(&mut refused),
            }
            self.keep_older(&refused[before.2..]);
        }
        refused
    }

    fn transaction(&self, type_url: &TypeUrl) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.origin().source = "upstream".into();
        for (name, constraints) in self.removed.keys().filter(|key| !self.put.contains_key(key)) {
            transaction.remove(VariantId {
                type_url: type_url.clone(),
                name: name.clone(),
                constraints: constraints.clone(),
            });
        }
        for (_, resource) in self.put.iter() {
            transaction.put(resource.clone());
        }
        for (locator, status) in &self.statuses {
            transaction.set_status(type_url.clone(), locator.clone(), status.clone());
        }
        transaction
    }

    /// Checks each name: first its new variants against each other (C4b), then against the older
    /// ones (T34). `is_repeated` names variants that the response contains unchanged: these are not
    /// put, but count as variants of the response.
    fn refuse_overlapping(
        &mut self,
        snapshot: &Snapshot,
        type_url: &TypeUrl,
        is_repeated: impl Fn(&VariantKey) -> bool,
        refused: &mut RefusedVariants,
    ) {
        let mut keys: Vec<_> = self.put.keys().cloned().collect();
        keys.sort_unstable();
        for put in keys.chunk_by(|one, other| one.0 == other.0) {
            for key in put {
                let alone = VariantSet::new().edit([], [((&key.1).into(), ())], KeySetRule::Free);
                match alone {
                    Ok(_) | Err(SetError::Overlap { .. } | SetError::KeySets { .. }) => {}
                    // T17: it matches no parameters, so it is not needed.
                    Err(SetError::Unsatisfiable { .. }) => _ = self.put.remove(key),
                    Err(SetError::TooComplex { .. }) => self.refuse(key.clone(), Reason::TooComplex, refused),
                }
            }
            let remaining: Vec<_> = put.iter().filter(|key| self.put.contains_key(key)).cloned().collect();
            for (key, reason) in overlapping(&remaining) {
                self.refuse(key, reason, refused);
            }
            let Some(older) = snapshot.get(type_url, &put[0].0) else { continue };
            for key in &remaining {
                // A variant that is too complex to check is refused when the commit fails for it.
                let Ok(overlapped) = older.meeting(&key.1) else { continue };
                for variant in overlapped {
                    let other = (key.0.clone(), variant.constraints().clone());
                    if other == *key || !self.put.contains_key(key) || self.put.contains_key(&other) {
                        continue;
                    }
                    if is_repeated(&other) {
                        for (key, reason) in overlapping(&[key.clone(), other]) {
                            self.put.remove(&key);
                            refused.push((key, reason));
                        }
                    } else {
                        self.removed.entry(other).or_insert(RemovalReason::Replaced);
                    }
                }
            }
        }
    }

    /// Leaves out the cause of a refusal, so that the next attempt is smaller.
    fn leave_out(
        &mut self,
        error: CommitError,
        snapshot: &Snapshot,
        type_url: &TypeUrl,
        refused: &mut RefusedVariants,
    ) {
        let key = |id: VariantId| (id.name, id.constraints);
        match error {
            CommitError::Ambiguous { first, second, witness } => {
                let (first, second) = (key(first), key(second));
                let reason =
                    |other: &VariantKey| Reason::Overlap { other: other.1.clone(), witness: witness.clone() };
                let (of_first, of_second) = (reason(&second), reason(&first));
                self.refuse(first, of_first, refused);
                self.refuse(second, of_second, refused);
            }
            // T17: it matches no parameters, so it is not needed.
            CommitError::Unsatisfiable { id } => _ = self.put.remove(&key(id)),
            CommitError::TooComplex { id } => self.refuse(key(id), Reason::TooComplex, refused),
            CommitError::AliasTaken { alias, first, second, .. } => {
                let is_new = |name: &ResourceName| self.put.keys().any(|(new, _)| new == name);
                let (taken, other) = if is_new(&second) { (second, first) } else { (first, second) };
                if is_new(&other) {
                    let keys: Vec<_> = self.put.keys().filter(|(name, _)| *name == taken).cloned().collect();
                    for key in keys {
                        let reason = Reason::AliasTaken { alias: alias.clone(), other: other.clone() };
                        self.refuse(key, reason, refused);
                    }
                    return;
                }
                // As with variants (T34), the new resource replaces the older one.
                let older = snapshot.get(type_url, &other).into_iter().flat_map(Variants::iter);
                let keys = older.map(|variant| (other.clone(), variant.constraints().clone()));
                self.removed.extend(keys.map(|key| (key, RemovalReason::Replaced)));
            }
            CommitError::Contradiction { .. }
            | CommitError::KeySets { .. }
            | CommitError::Superseded { .. } => {
                unreachable!("keys are unique, key sets are free, and no revision is required")
            }
        }
    }

    fn refuse(&mut self, key: VariantKey, reason: Reason, refused: &mut RefusedVariants) {
        if self.put.remove(&key).is_some() {
            refused.push((key, reason));
        }
    }

    fn refuse_all(&mut self, refused: &mut RefusedVariants) {
        let put = std::mem::take(&mut self.put);
        refused.extend(put.keys().map(|key| (key.clone(), Reason::TooComplex)));
    }

    /// Keeps the older variants of names with refused variants: watchers go on to use them. Only an
    /// explicit removal still removes them.
    fn keep_older(&mut self, refused: &[(VariantKey, Reason)]) {
        if refused.is_empty() {
            return;
        }
        let names: BTreeSet<_> = refused.iter().map(|((name, _), _)| name).collect();
        self.removed.retain(|(name, _), why| *why == RemovalReason::Explicit || !names.contains(name));
    }
}

/// C4b: finds the variants of one name that overlap another one of them.
fn overlapping(variants: &[VariantKey]) -> RefusedVariants {
    let mut refused = BTreeMap::new();
    for (at, one) in variants.iter().enumerate() {
        for other in &variants[at + 1..] {
            if variants.len() > PAIRWISE_LIMIT && !refused.is_empty() {
                break;
            }
            let pair = [&one.1, &other.1].map(|constraints| (constraints.into(), ()));
            let pair = VariantSet::new().edit([], pair, KeySetRule::Free);
            let Err(SetError::Overlap { witness, .. }) = pair else { continue };
            let reason =
                |other: &VariantKey| Reason::Overlap { other: other.1.clone(), witness: witness.clone() };
            refused.entry(one.clone()).or_insert_with(|| reason(other));
            refused.entry(other.clone()).or_insert_with(|| reason(one));
        }
    }
    // Among very many variants one overlap is enough to refuse them all.
    if variants.len() > PAIRWISE_LIMIT
        && let Some(reason) = refused.values().next().cloned()
    {
        return variants.iter().map(|key| (key.clone(), reason.clone())).collect();
    }
    refused.into_iter().collect()
}

/// How many commits are attempted before all that is left is refused. Each attempt costs as much
/// as the whole response.
const ATTEMPTS_LIMIT: usize = 64;

/// Up to this many variants of a name, all pairs are compared.
const PAIRWISE_LIMIT: usize = 64;
