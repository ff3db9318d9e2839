//! Which wildcards and globs are complete, and how the file proves it.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::proxy::SetId;
use xds_core::{ResourceName, TypeUrl, VariantId};

use super::log::Log;
use super::record::{Change, Key};
use super::replay::EntryLocation;

/// The members of a set in a file at one moment: their number, and a digest of their entries.
///
/// The digest is a sum, so that an update costs no more than the change. It protects against
/// damage, not against attackers: anyone with write access to the file can write any proof.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) count: u64,
    pub(super) sum: u128,
}

impl Proof {
    pub(super) fn of<'p>(members: impl Iterator<Item = &'p EntryLocation>) -> Self {
        let mut proof = Self::default();
        members.for_each(|member| proof.add(member));
        proof
    }

    fn add(&mut self, member: &EntryLocation) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(member.digest.as_u128());
    }

    fn remove(&mut self, member: &EntryLocation) {
        self.count -= 1;
        self.sum = self.sum.wrapping_sub(member.digest.as_u128());
    }
}

/// The sets that are complete while the file is open.
///
/// Entries of other sets stay unchanged: their proofs hold until one of their members changes.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The complete sets, with the proof in the file; `None` if it has to be computed.
    complete: BTreeMap<SetId, Option<Proof>>,
    /// Variants that exist and are missing in the file. No set with such a member is complete in
    /// the file.
    missing: BTreeSet<VariantId>,
    /// Complete sets or missing variants were added or removed.
    is_changed: bool,
}

impl Sets {
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub(super) fn add_complete(&mut self, id: SetId) {
        self.complete.entry(id).or_insert_with(|| {
            self.is_changed = true;
            None
        });
    }

    pub(super) fn is_complete(&self, id: &SetId) -> bool {
        self.complete.contains_key(id)
    }

    pub(super) fn remove_complete(&mut self, id: &SetId) {
        self.complete.remove(id);
    }

    pub(super) fn remove_all_named(&mut self, type_url: &TypeUrl, name: &ResourceName) {
        self.complete.retain(|id, _| (&id.type_url, &id.name) != (type_url, name));
    }

    /// Notes variants that are missing in the file.
    pub(super) fn add_missing(&mut self, ids: impl IntoIterator<Item = VariantId>) {
        let before = self.missing.len();
        self.missing.extend(ids);
        self.is_changed |= self.missing.len() > before;
    }

    pub(super) fn remove_missing(&mut self, id: &VariantId) {
        self.is_changed |= self.missing.remove(id);
    }

    /// Computes all proofs again with the next change.
    pub(super) fn recompute_all(&mut self) {
        self.complete.values_mut().for_each(|proof| *proof = None);
        self.is_changed = true;
    }

    /// The entries of sets to write after these changes of variants.
    pub(super) fn changes(&self, log: &Log, changed: &[(Key, Option<EntryLocation>)]) -> Vec<Change> {
        let variants = changed.iter().filter_map(|(key, location)| match key {
            Key::Variant(id) => Some((id, log.location(key), location)),
            Key::Set(_) => None,
        });
        let changed: Vec<_> = variants.collect();
        let mut changes = Vec::new();
        for (id, known) in &self.complete {
            let mut proof = known.unwrap_or_else(|| Proof::of(log.members(id)));
            for (_, before, after) in changed.iter().filter(|(member, ..)| id.covers(member)) {
                before.iter().for_each(|location| proof.remove(location));
                after.iter().for_each(|location| proof.add(location));
            }
            if *known != Some(proof) || self.is_changed {
                changes.push(match self.missing.iter().any(|missing| id.covers(missing)) {
                    true => Change::Void(id.clone()),
                    false => Change::Prove(id.clone(), proof),
                });
            }
        }
        changes
    }

    /// Notes that these entries were written.
    pub(super) fn take(&mut self, changes: Vec<Change>) {
        self.is_changed = false;
        for change in changes {
            let (id, proof) = match change {
                Change::Prove(id, proof) => (id, Some(proof)),
                Change::Void(id) => (id, None),
                Change::Put(_) | Change::Remove(_) => continue,
            };
            if let Some(known) = self.complete.get_mut(&id) {
                *known = proof;
            }
        }
    }
}
