//! Which variants of a response cannot be kept: beside each other (C4b), or beside older ones (T34).

use std::collections::{BTreeMap, BTreeSet};

use super::rejection::Reason;
use crate::cache::{Cache, CommitError, Snapshot, Transaction};
use crate::constraint::Constraints;
use crate::matching::{KeySetRule, SetError, VariantSet};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::{Resource, VariantId};

/// Variants by name and constraints.
pub(super) type Key = (ResourceName, Constraints);

/// Why a variant that the cache holds goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The server said so.
    Told,
    /// It is missing in a full state (S25).
    Missing,
    /// Another one takes its place (T34), or one of another server (C15).
    Replaced,
}

/// What a response does to the cache.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) put: BTreeMap<Key, Resource>,
    pub(super) removed: BTreeMap<Key, Why>,
}

/// What was not put after all.
pub(super) type Refused = Vec<(Key, Reason)>;

impl Changes {
    /// Commits what can be committed.
    ///
    /// A server that keeps to the rules brings nothing to refuse, so all is tried first. Only when that fails the names that
    /// have constraints are looked at one by one.
    pub(super) fn commit(&mut self, cache: &Cache, type_url: &TypeUrl) -> Refused {
        let mut refused = Refused::new();
        let mut is_first = true;
        loop {
            let Err(error) = cache.commit(self.transaction(type_url)) else { return refused };
            if std::mem::take(&mut is_first) {
                self.part_overlapping(&cache.snapshot(), type_url, &mut refused);
            } else {
                self.take_out(error, &mut refused);
            }
        }
    }

    fn transaction(&self, type_url: &TypeUrl) -> Transaction {
        let mut transaction = Transaction::new();
        for (name, constraints) in self.removed.keys().filter(|key| !self.put.contains_key(*key)) {
            transaction.remove(VariantId {
                type_url: type_url.clone(),
                name: name.clone(),
                constraints: constraints.clone(),
            });
        }
        for resource in self.put.values() {
            transaction.put(resource.clone());
        }
        transaction
    }

    /// C4b, then T34, for each name that came with constraints or takes the place of something that has some.
    fn part_overlapping(&mut self, snapshot: &Snapshot, type_url: &TypeUrl, refused: &mut Refused) {
        let names: BTreeSet<_> = self.put.keys().map(|(name, _)| name.clone()).collect();
        for name in names {
            let of_name = |(other, _): &&Key| *other == name;
            let put: Vec<_> =
                self.put.keys().skip_while(|key| !of_name(key)).take_while(of_name).cloned().collect();
            for (key, reason) in overlapping(&put) {
                self.refuse(key, reason, refused);
            }
            let Some(held) = snapshot.get(type_url, &name) else { continue };
            for key in put.iter().filter(|key| self.put.contains_key(*key)) {
                // What cannot be judged is refused when the commit says so.
                let Ok(met) = held.meeting(&key.1) else { continue };
                for variant in met {
                    let other = (name.clone(), variant.constraints().clone());
                    if !self.put.contains_key(&other) {
                        self.removed.entry(other).or_insert(Why::Replaced);
                    }
                }
            }
        }
    }

    /// Takes out what the cache refused, so that less is left each time.
    fn take_out(&mut self, error: CommitError, refused: &mut Refused) {
        let key = |id: VariantId| (id.name, id.constraints);
        match error {
            CommitError::Ambiguous { first, second, witness } => {
                let (first, second) = (key(first), key(second));
                let reason =
                    |other: &Key| Reason::Overlap { other: other.1.clone(), witness: witness.clone() };
                let (of_first, of_second) = (reason(&second), reason(&first));
                self.refuse(first, of_first, refused);
                self.refuse(second, of_second, refused);
            }
            // T17: it can never be chosen, so leaving it out changes nothing.
            CommitError::Unsatisfiable { id } => _ = self.put.remove(&key(id)),
            CommitError::TooComplex { id } => self.refuse(key(id), Reason::TooComplex, refused),
            CommitError::AliasTaken { alias, first, second, .. } => {
                let is_second_new = self.put.keys().any(|(name, _)| *name == second);
                let (taken, other) = if is_second_new { (second, first) } else { (first, second) };
                let keys: Vec<_> = self.put.keys().filter(|(name, _)| *name == taken).cloned().collect();
                for key in keys {
                    let reason = Reason::AliasTaken { alias: alias.clone(), other: other.clone() };
                    self.refuse(key, reason, refused);
                }
            }
            CommitError::Contradiction { .. }
            | CommitError::KeySets { .. }
            | CommitError::Superseded { .. } => {
                unreachable!("keys are unique and free, and nothing is required")
            }
        }
    }

    /// Watchers keep what they had of it, which a full state without it must not take away.
    fn refuse(&mut self, key: Key, reason: Reason, refused: &mut Refused) {
        self.removed.retain(|(name, _), why| *name != key.0 || *why == Why::Told);
        if self.put.remove(&key).is_some() {
            refused.push((key, reason));
        }
    }
}

/// C4b: the variants of one name that overlap another one of them.
fn overlapping(variants: &[Key]) -> Refused {
    let mut refused = BTreeMap::new();
    for (at, one) in variants.iter().enumerate() {
        for other in &variants[at + 1..] {
            if variants.len() > PAIRS_OF && !refused.is_empty() {
                break;
            }
            let pair = [&one.1, &other.1].map(|constraints| (constraints.into(), ()));
            let pair = VariantSet::new().edit([], pair, KeySetRule::Free);
            let Err(SetError::Overlap { witness, .. }) = pair else { continue };
            let reason = |other: &Key| Reason::Overlap { other: other.1.clone(), witness: witness.clone() };
            refused.entry(one.clone()).or_insert_with(|| reason(other));
            refused.entry(other.clone()).or_insert_with(|| reason(one));
        }
    }
    // Of very many not every pair is looked for: one that is wrong speaks for all.
    if variants.len() > PAIRS_OF
        && let Some(reason) = refused.values().next().cloned()
    {
        return variants.iter().map(|key| (key.clone(), reason.clone())).collect();
    }
    refused.into_iter().collect()
}

/// Up to so many variants of a name all pairs are compared.
const PAIRS_OF: usize = 64;
