//! Which variants of a response cannot be kept: beside each other (C4b), or beside older ones
//! (T34).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::rejection::Reason;
use crate::cache::{Cache, CommitError, Snapshot, Transaction};
use crate::constraint::Constraints;
use crate::hash::FixedState;
use crate::matching::{KeySetRule, SetError, VariantSet};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::{Resource, VariantId};
use crate::variants::Variants;

/// Variants by name and constraints.
pub(super) type VariantKey = (ResourceName, Constraints);

/// Why a variant that the cache holds goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalReason {
    /// The server said so.
    Explicit,
    /// It is missing in a full state (S25).
    Missing,
    /// Another one takes its place (T34), or one of another server (C15).
    Replaced,
}

/// What a response does to the cache.
#[derive(Debug, Default)]
pub(super) struct CacheChanges {
    pub(super) put: Put,
    pub(super) removed: BTreeMap<VariantKey, RemovalReason>,
}

/// Variants to put, each once, as they came: servers mostly send them in order, and then the cache
/// need not sort them.
#[derive(Debug, Default)]
pub(super) struct Put {
    resources: Vec<(VariantKey, Option<Resource>)>,
    places: HashMap<VariantKey, usize, FixedState>,
}

impl Put {
    /// Adds what is not there yet.
    pub(super) fn insert(&mut self, key: VariantKey, resource: Resource) {
        let before = self.places.insert(key.clone(), self.resources.len());
        debug_assert!(before.is_none(), "of what is there twice the second is rejected");
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

/// What was not put after all.
pub(super) type Refused = Vec<(VariantKey, Reason)>;

impl CacheChanges {
    /// Commits what can be committed.
    ///
    /// A server that keeps to the rules brings nothing to refuse, so all is tried first. Only when
    /// that fails the names that have constraints are looked at one by one.
    pub(super) fn commit(
        &mut self,
        cache: &Cache,
        type_url: &TypeUrl,
        is_repeated: impl Fn(&VariantKey) -> bool,
    ) -> Refused {
        let mut refused = Refused::new();
        for attempt in 0.. {
            let Err(error) = cache.commit(self.transaction(type_url)) else { break };
            let before = (self.put.len(), self.removed.len(), refused.len());
            match attempt {
                0 => self.part_overlapping(&cache.snapshot(), type_url, &is_repeated, &mut refused),
                1..ATTEMPTS_LIMIT => {
                    self.take_out(error, &cache.snapshot(), type_url, &mut refused);
                    // Whatever the cache says, each time less is put or more is taken away.
                    if self.put.len() == before.0 && self.removed.len() == before.1 {
                        self.refuse_all(&mut refused);
                    }
                }
                _ => self.refuse_all(&mut refused),
            }
            self.spare(&refused[before.2..]);
        }
        refused
    }

    fn transaction(&self, type_url: &TypeUrl) -> Transaction {
        let mut transaction = Transaction::new();
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
        transaction
    }

    /// C4b, then T34, for each name that came with constraints or takes the place of something that
    /// has some. What the response held already and is not put again (`is_repeated`) is one of its
    /// variants all the same.
    fn part_overlapping(
        &mut self,
        snapshot: &Snapshot,
        type_url: &TypeUrl,
        is_repeated: impl Fn(&VariantKey) -> bool,
        refused: &mut Refused,
    ) {
        let mut keys: Vec<_> = self.put.keys().cloned().collect();
        keys.sort_unstable();
        for put in keys.chunk_by(|one, other| one.0 == other.0) {
            for key in put {
                let alone = VariantSet::new().edit([], [((&key.1).into(), ())], KeySetRule::Free);
                match alone {
                    Ok(_) | Err(SetError::Overlap { .. } | SetError::KeySets { .. }) => {}
                    // T17: it can never be chosen, so leaving it out changes nothing.
                    Err(SetError::Unsatisfiable { .. }) => _ = self.put.remove(key),
                    Err(SetError::TooComplex { .. }) => self.refuse(key.clone(), Reason::TooComplex, refused),
                }
            }
            let left: Vec<_> = put.iter().filter(|key| self.put.contains_key(key)).cloned().collect();
            for (key, reason) in overlapping(&left) {
                self.refuse(key, reason, refused);
            }
            let Some(stored) = snapshot.get(type_url, &put[0].0) else { continue };
            for key in &left {
                // What cannot be judged is refused when the commit says so.
                let Ok(met) = stored.meeting(&key.1) else { continue };
                for variant in met {
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

    /// Takes out what the cache refused, so that less is left each time.
    fn take_out(
        &mut self,
        error: CommitError,
        snapshot: &Snapshot,
        type_url: &TypeUrl,
        refused: &mut Refused,
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
            // T17: it can never be chosen, so leaving it out changes nothing.
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
                // As with variants (T34), what came earlier gives way.
                let stored = snapshot.get(type_url, &other).into_iter().flat_map(Variants::iter);
                let keys = stored.map(|variant| (other.clone(), variant.constraints().clone()));
                self.removed.extend(keys.map(|key| (key, RemovalReason::Replaced)));
            }
            CommitError::Contradiction { .. }
            | CommitError::KeySets { .. }
            | CommitError::Superseded { .. } => {
                unreachable!("keys are unique and free, and nothing is required")
            }
        }
    }

    fn refuse(&mut self, key: VariantKey, reason: Reason, refused: &mut Refused) {
        if self.put.remove(&key).is_some() {
            refused.push((key, reason));
        }
    }

    fn refuse_all(&mut self, refused: &mut Refused) {
        let put = std::mem::take(&mut self.put);
        refused.extend(put.keys().map(|key| (key.clone(), Reason::TooComplex)));
    }

    /// Watchers keep what they had of what was refused, which a full state without it must not take
    /// away.
    fn spare(&mut self, refused: &[(VariantKey, Reason)]) {
        if refused.is_empty() {
            return;
        }
        let names: BTreeSet<_> = refused.iter().map(|((name, _), _)| name).collect();
        self.removed.retain(|(name, _), why| *why == RemovalReason::Explicit || !names.contains(name));
    }
}

/// C4b: the variants of one name that overlap another one of them.
fn overlapping(variants: &[VariantKey]) -> Refused {
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
    // Of very many not every pair is looked for: one that is wrong speaks for all.
    if variants.len() > PAIRWISE_LIMIT
        && let Some(reason) = refused.values().next().cloned()
    {
        return variants.iter().map(|key| (key.clone(), reason.clone())).collect();
    }
    refused.into_iter().collect()
}

/// So often the cache is asked what is wrong with the rest; each time costs as much as the whole
/// response.
const ATTEMPTS_LIMIT: usize = 64;

/// Up to so many variants of a name all pairs are compared.
const PAIRWISE_LIMIT: usize = 64;
