//! Variants of a name that overlap after a merge: which of them are served (SR47).
//!
//! Each of two nodes may commit a variant before it hears of the other one. All records are kept. Which of
//! them clients get follows from the records alone, so it is equal at all nodes that have the same records.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use xds_core::matching::SetError;
use xds_core::{Constraints, VariantId};

use super::{Index, Loading, Records, Variants, edited, put_or_drop};
use crate::key::{NameDigest, RecordKey};
use crate::phase::Schemas;
use crate::record::Present;

/// The records of a name that are not served, because others are. Each has one of those that it overlaps
/// with, if that is known.
pub(crate) type Withheld = BTreeMap<RecordKey, Option<RecordKey>>;

/// Which of the variants of a name are served: those of higher incarnations and generations come first, then
/// those of smaller digests, and each one is served that is disjoint from those before it that are.
pub(crate) fn arrange<'a>(
    schemas: &Schemas,
    records: impl IntoIterator<Item = (&'a RecordKey, &'a Present)>,
) -> (Variants, Withheld) {
    let mut records: Vec<_> = records.into_iter().collect();
    records.sort_by_key(|(key, record)| {
        (Reverse((record.incarnation, record.generation)), record.content, *key)
    });
    let ordered: Vec<_> = records.into_iter().map(|(key, _)| (key, schemas.selecting(key))).collect();
    let (mut kept, mut withheld) = (Variants::new(), Withheld::new());
    keep(schemas, &ordered, &mut kept, &mut withheld);
    (kept, withheld)
}

/// Most of them are disjoint, so they are added many at once.
fn keep(
    schemas: &Schemas,
    ordered: &[(&RecordKey, Constraints)],
    kept: &mut Variants,
    withheld: &mut Withheld,
) {
    let inserted: Vec<_> = ordered.iter().map(|(_, constraints)| constraints.clone()).collect();
    match (edited(kept, &[], &inserted), ordered) {
        (Ok(variants), _) => *kept = variants,
        (Err(error), [(key, own)]) => {
            let by = other(error, own).map(|constraints| key_of(schemas, key, constraints));
            withheld.insert((*key).clone(), by);
        }
        (Err(_), _) => {
            let (first, rest) = ordered.split_at(ordered.len() / 2);
            keep(schemas, first, kept, withheld);
            keep(schemas, rest, kept, withheld);
        }
    }
}

fn other(error: SetError<Constraints>, own: &Constraints) -> Option<Constraints> {
    match error {
        SetError::Overlap { first, second, .. } | SetError::KeySets { first, second, .. } => {
            Some(if first == *own { second } else { first })
        }
        _ => None,
    }
}

/// The key of the variant of a name that has these constraints in a set.
pub(crate) fn key_of(schemas: &Schemas, of_name: &RecordKey, constraints: Constraints) -> RecordKey {
    let id = VariantId { type_url: of_name.type_url(), name: of_name.name(), constraints };
    schemas.stored_key(RecordKey::of(&id))
}

impl<'a> Records<'a> {
    /// The variants of a name that are not served; `None`: all are.
    pub(crate) fn withheld(self, name: NameDigest) -> Option<&'a Withheld> {
        let withheld = self.batch.withheld.get(&name).or_else(|| self.index.withheld.get(&name));
        withheld.filter(|withheld| !withheld.is_empty())
    }

    /// The deleted records of a name that are served; `None`: there are none (SR48).
    pub(crate) fn held(self, name: NameDigest) -> Option<&'a BTreeSet<RecordKey>> {
        let held = self.batch.held.get(&name).or_else(|| self.index.held.get(&name));
        held.filter(|held| !held.is_empty())
    }

    /// The deleted records of a name, and maybe others of it.
    pub(crate) fn deleted(self, name: NameDigest) -> impl Iterator<Item = &'a RecordKey> {
        let (durable, of_batch) = (self.index.deleted.get(&name), self.batch.deleted.get(&name));
        durable.into_iter().chain(of_batch).flatten()
    }

    /// The keys of the variants of a name that exist.
    pub(crate) fn keys(self, of_name: &RecordKey) -> Vec<RecordKey> {
        let name = of_name.name_digest();
        let served = self.variants(name);
        let served = served.iter().map(|(_, one)| key_of(self.index.schemas(), of_name, one.clone()));
        let withheld = self.withheld(name).into_iter().flat_map(Withheld::keys).cloned();
        served.chain(withheld).collect()
    }
}

impl Index {
    /// Whether a deleted record is served, because another one refers to it (SR48).
    pub(crate) fn is_held(&self, key: &RecordKey) -> bool {
        !self.held.is_empty() && self.held.get(&key.name_digest()).is_some_and(|held| held.contains(key))
    }

    /// The names that have deleted records, each with these.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = (NameDigest, &BTreeSet<RecordKey>)> {
        self.deleted.iter().map(|(name, keys)| (*name, keys))
    }

    /// Of a load: the deleted records that are served.
    pub(crate) fn set_held(&mut self, held: BTreeMap<NameDigest, BTreeSet<RecordKey>>) {
        self.held = held;
    }

    pub(super) fn note_deleted(&mut self, key: &RecordKey, is_deleted: bool) {
        let name = key.name_digest();
        if is_deleted {
            self.deleted.entry(name).or_default().insert(key.clone());
        } else if let Some(keys) = self.deleted.get_mut(&name) {
            keys.remove(key);
            if keys.is_empty() {
                self.deleted.remove(&name);
            }
        }
    }

    /// Whether a record is not served, because it overlaps with one that is (SR47).
    pub(crate) fn is_withheld(&self, key: &RecordKey) -> bool {
        !self.withheld.is_empty()
            && self.withheld.get(&key.name_digest()).is_some_and(|withheld| withheld.contains_key(key))
    }

    /// All variants of a name were loaded, and some overlap.
    pub(super) fn load_overlap(&mut self, loading: &Loading, of_name: &RecordKey) {
        let name = of_name.name_digest();
        let keys: Vec<_> =
            loading.constraints.iter().map(|one| key_of(&self.schemas, of_name, one.clone())).collect();
        let records = loading.records.iter().rev().take_while(|(digest, _)| digest.name() == name);
        let records: BTreeMap<_, _> = records.map(|(digest, record)| (*digest, record)).collect();
        let records = keys.iter().filter_map(|key| Some((key, *records.get(&key.record_digest())?)));
        let (kept, withheld) = arrange(&self.schemas, records);
        self.variants.insert(name, kept);
        self.withheld.insert(name, withheld);
    }

    /// Takes what a batch made durable.
    pub(super) fn apply_withheld(
        &mut self,
        changed: BTreeMap<NameDigest, Withheld>,
        held: BTreeMap<NameDigest, BTreeSet<RecordKey>>,
    ) {
        for (name, held) in held {
            put_or_drop(&mut self.held, name, held.is_empty(), held);
        }
        for (name, withheld) in changed {
            put_or_drop(&mut self.withheld, name, withheld.is_empty(), withheld);
        }
    }
}
