//! What the store keeps in memory of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xds_core::matching::KeySetRule;
use xds_core::matching::SetError;
use xds_core::{Constraints, Formula, VariantId, VariantSet};

use crate::key::{NameDigest, RecordKey};
use crate::record::{Present, RecordState};
use crate::time;

/// All records, found by digests of their names: a comparison of two digests costs the same however
/// long the names are.
#[derive(Debug, Default)]
pub(crate) struct Index {
    names: BTreeMap<NameDigest, NameRecords>,
    /// Of each alias: the name that has it (D24).
    aliases: BTreeMap<NameDigest, NameDigest>,
    owned: BTreeMap<Box<str>, BTreeSet<RecordKey>>,
    /// When records end, by expiry or with their lease.
    ends: BTreeSet<(i64, RecordKey)>,
    /// Since when records are deleted.
    tombstones: BTreeSet<(i64, RecordKey)>,
    live: usize,
}

/// The names of an index that is being loaded.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    names: Vec<(NameDigest, NameRecords)>,
}

/// The records of one name.
#[derive(Debug, Default, Clone)]
pub(crate) struct NameRecords {
    /// The constraints of those that are not deleted. No two match the same parameters.
    variants: VariantSet<Constraints>,
    /// Few, so a search in order is fast.
    records: Vec<Present>,
}

/// Changes that a batch makes, and that are not durable yet. Each change replaces what the
/// [`Index`] has of its name.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    names: BTreeMap<NameDigest, NameRecords>,
    aliases: BTreeMap<NameDigest, Option<NameDigest>>,
    /// The records that changed, with their states.
    pub(crate) states: BTreeMap<RecordKey, RecordState>,
    /// Records with a renewed lease, as of the store revision that changed them.
    pub(crate) renewed: BTreeMap<RecordKey, (u64, RecordState)>,
}

/// The records as some changes leave them: the index below what is pending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records<'a> {
    pub(crate) index: &'a Index,
    pub(crate) batch: &'a Pending,
}

impl NameRecords {
    pub(crate) fn get(&self, when: &str) -> Option<&Present> {
        self.records.iter().find(|record| &*record.when == when)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Present> {
        self.records.iter()
    }

    pub(crate) fn exists(&self) -> bool {
        self.records.iter().any(|record| !record.is_deleted())
    }

    pub(crate) fn set(&mut self, record: Present) {
        match self.records.iter_mut().find(|present| present.when == record.when) {
            Some(present) => *present = record,
            None => self.push(record),
        }
    }

    fn push(&mut self, record: Present) {
        // Nearly every name has one record, and a vector would begin with room for four.
        self.records.reserve_exact(1);
        self.records.push(record);
    }

    /// Checks the variants after an edit (ST10).
    pub(crate) fn edit(
        &mut self,
        removed: &[Constraints],
        inserted: &[Constraints],
    ) -> Result<(), SetError<Constraints>> {
        // Nearly every name has one variant without constraints, and a start has a million of them.
        if let (true, [only]) = (self.variants.is_empty(), inserted)
            && only.is_unconstrained()
        {
            self.variants = VariantSet::everyone(only.clone());
            return Ok(());
        }
        let removed: Vec<Arc<Formula>> = removed.iter().map(Into::into).collect();
        let inserted = inserted.iter().map(|constraints| (constraints.into(), constraints.clone()));
        let removed = removed.iter().map(|formula| &**formula);
        self.variants = self.variants.edit(removed, inserted, KeySetRule::Equal)?;
        Ok(())
    }
}

impl Pending {
    /// Adds the changes of one more commit.
    pub(crate) fn extend(&mut self, commit: Self) {
        self.names.extend(commit.names);
        self.aliases.extend(commit.aliases);
        self.states.extend(commit.states);
        self.renewed.extend(commit.renewed);
    }

    pub(crate) fn set_name(&mut self, name: NameDigest, records: NameRecords) {
        self.names.insert(name, records);
    }

    pub(crate) fn set_alias(&mut self, alias: NameDigest, name: Option<NameDigest>) {
        self.aliases.insert(alias, name);
    }
}

impl<'a> Records<'a> {
    pub(crate) fn name(self, name: NameDigest) -> Option<&'a NameRecords> {
        self.batch.names.get(&name).or_else(|| self.index.names.get(&name))
    }

    pub(crate) fn get(self, key: &RecordKey) -> Option<&'a Present> {
        self.name(key.name_digest())?.get(key.when())
    }

    /// The name that has an alias.
    pub(crate) fn alias(self, alias: NameDigest) -> Option<NameDigest> {
        match self.batch.aliases.get(&alias) {
            Some(name) => *name,
            None => self.index.aliases.get(&alias).copied(),
        }
    }

    /// The records of a named owner.
    pub(crate) fn owned(self, owner: &str) -> BTreeSet<RecordKey> {
        let durable = self.index.owned.get(owner).into_iter().flatten();
        let keys = durable.chain(self.batch.states.keys());
        let is_owned = |key: &&RecordKey| {
            self.get(key).is_some_and(|record| record.owners.iter().any(|name| &**name == owner))
        };
        keys.filter(is_owned).cloned().collect()
    }
}

impl Index {
    /// The records, with nothing pending.
    pub(crate) fn get(&self, key: &RecordKey) -> Option<&Present> {
        self.names.get(&key.name_digest())?.get(key.when())
    }

    /// How many records exist, and how many are deleted and not collected yet.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.live, self.tombstones.len())
    }

    /// The index of all records of an engine, in the order of keys.
    ///
    /// # Errors
    /// Two variants of this record's name match the same parameters, which a store never commits.
    pub(crate) fn add(
        &mut self,
        loading: &mut Loading,
        id: &VariantId,
        key: &RecordKey,
        record: Present,
    ) -> Result<(), SetError<Constraints>> {
        let name = key.name_digest();
        if loading.names.last().is_none_or(|(last, _)| *last != name) {
            loading.names.push((name, NameRecords::default()));
        }
        self.note(key, None, Some(&record));
        let records = &mut loading.names.last_mut().expect("the name was added").1;
        if !record.is_deleted() {
            self.aliases.extend(record.aliases.iter().map(|alias| (*alias, name)));
            records.edit(&[], std::slice::from_ref(&id.constraints))?;
        }
        records.push(record);
        Ok(())
    }

    /// Builds the tree from sorted names at once, which is faster than to insert each, and smaller.
    pub(crate) fn finish(&mut self, loading: Loading) {
        self.names = loading.names.into_iter().collect();
    }

    /// Takes what a batch made durable.
    pub(crate) fn apply(&mut self, pending: Pending) {
        let Pending { names, aliases, states, renewed } = pending;
        for key in states.keys() {
            let before = self.get(key).cloned();
            let after = names.get(&key.name_digest()).and_then(|records| records.get(key.when())).cloned();
            self.note(key, before.as_ref(), after.as_ref());
        }
        self.names.extend(names);
        // After the names, which were copied before the renewal; a record that the batch changed
        // later has its own end.
        for (key, (at, state)) in &renewed {
            if self.get(key).is_some_and(|record| record.changed_at == *at) {
                self.renew(key, state);
            }
        }
        for (alias, name) in aliases {
            match name {
                Some(name) => _ = self.aliases.insert(alias, name),
                None => _ = self.aliases.remove(&alias),
            }
        }
    }

    /// Notes a renewed lease (ST37).
    pub(crate) fn renew(&mut self, key: &RecordKey, state: &RecordState) {
        let Some(expires_at) = state.expires_at.as_ref().map(time::from_proto) else { return };
        let records = self.names.get_mut(&key.name_digest());
        let record =
            records.and_then(|records| records.records.iter_mut().find(|record| &*record.when == key.when()));
        if let Some(record) = record
            && let Some(lease) = &mut record.lease
        {
            lease.renewal = state.renewal;
            lease.stored_end = expires_at;
            if let Some(end) = record.expires_at.replace(expires_at) {
                self.ends.remove(&(end, key.clone()));
            }
            self.ends.insert((expires_at, key.clone()));
        }
    }

    /// Forgets a deleted record.
    pub(crate) fn collect(&mut self, key: &RecordKey) {
        let name = key.name_digest();
        let Some(records) = self.names.get_mut(&name) else { return };
        let deleted_at = records.get(key.when()).and_then(|record| record.deleted_at);
        let Some(deleted_at) = deleted_at else { return };
        self.tombstones.remove(&(deleted_at, key.clone()));
        records.records.retain(|record| &*record.when != key.when());
        if records.records.is_empty() {
            self.names.remove(&name);
        }
    }

    /// When the next record ends.
    pub(crate) fn next_end(&self) -> Option<i64> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Records that have ended, at most `limit`, the first one first.
    pub(crate) fn ended(&self, now: i64, limit: usize) -> Vec<RecordKey> {
        let ended = self.ends.iter().take_while(|(end, _)| *end <= now);
        ended.take(limit).map(|(_, key)| key.clone()).collect()
    }

    /// Deleted records, the one that was deleted first, first.
    pub(crate) fn tombstones(&self) -> impl Iterator<Item = (i64, &RecordKey)> {
        self.tombstones.iter().map(|(since, key)| (*since, key))
    }

    fn note(&mut self, key: &RecordKey, before: Option<&Present>, after: Option<&Present>) {
        let live = |record: Option<&Present>| usize::from(record.is_some_and(|record| !record.is_deleted()));
        self.live = self.live + live(after) - live(before);
        if let Some(before) = before {
            before.expires_at.into_iter().for_each(|end| _ = self.ends.remove(&(end, key.clone())));
            for owner in &before.owners {
                if let Some(owned) = self.owned.get_mut(owner) {
                    owned.remove(key);
                    if owned.is_empty() {
                        self.owned.remove(owner);
                    }
                }
            }
            before.deleted_at.into_iter().for_each(|at| _ = self.tombstones.remove(&(at, key.clone())));
        }
        let Some(after) = after else { return };
        if let Some(deleted_at) = after.deleted_at {
            self.tombstones.insert((deleted_at, key.clone()));
            return;
        }
        after.expires_at.into_iter().for_each(|end| _ = self.ends.insert((end, key.clone())));
        for owner in &after.owners {
            self.owned.entry(owner.clone()).or_default().insert(key.clone());
        }
    }
}
