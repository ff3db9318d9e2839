//! Which wildcards and globs are whole, and how the file proves it.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::proxy::SetId;
use xds_core::{ResourceName, TypeUrl, VariantId};

use super::log::Log;
use super::record::{Change, Key};
use super::replay::EntryLocation;

/// All members of a set that a file had at one moment: how many, and a digest of their entries.
///
/// The digest is a sum, so that it follows one change at the cost of that change. It has to stand
/// against damage, not against an attacker: whoever can write the file can write any proof.
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

/// The sets that are whole while the file is open.
///
/// What the file says of others stays as it is: their proofs hold until one of their members
/// changes.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// With what the file proves, or `None` when that has to be looked up.
    held: BTreeMap<SetId, Option<Proof>>,
    /// Variants that exist, and that the file lacks. No set with such a member is whole in the
    /// file.
    holes: BTreeSet<VariantId>,
    /// Sets or holes came or went.
    is_changed: bool,
}

impl Sets {
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub(super) fn hold(&mut self, id: SetId) {
        self.held.entry(id).or_insert_with(|| {
            self.is_changed = true;
            None
        });
    }

    pub(super) fn holds(&self, id: &SetId) -> bool {
        self.held.contains_key(id)
    }

    pub(super) fn release(&mut self, id: &SetId) {
        self.held.remove(id);
    }

    pub(super) fn release_all(&mut self, type_url: &TypeUrl, name: &ResourceName) {
        self.held.retain(|id, _| (&id.type_url, &id.name) != (type_url, name));
    }

    /// The file lacks these from now on.
    pub(super) fn lack(&mut self, ids: impl IntoIterator<Item = VariantId>) {
        let before = self.holes.len();
        self.holes.extend(ids);
        self.is_changed |= self.holes.len() > before;
    }

    pub(super) fn no_longer_lack(&mut self, id: &VariantId) {
        self.is_changed |= self.holes.remove(id);
    }

    /// What the file proved may be otherwise.
    pub(super) fn look_up_all(&mut self) {
        self.held.values_mut().for_each(|proof| *proof = None);
        self.is_changed = true;
    }

    /// What to write of sets after these changes of a file.
    pub(super) fn changes(&self, log: &Log, changed: &[(Key, Option<EntryLocation>)]) -> Vec<Change> {
        let variants = changed.iter().filter_map(|(key, location)| match key {
            Key::Variant(id) => Some((id, log.location(key), location)),
            Key::Set(_) => None,
        });
        let changed: Vec<_> = variants.collect();
        let mut changes = Vec::new();
        for (id, known) in &self.held {
            let mut proof = known.unwrap_or_else(|| Proof::of(log.members(id)));
            for (_, before, after) in changed.iter().filter(|(member, ..)| id.covers(member)) {
                before.iter().for_each(|location| proof.remove(location));
                after.iter().for_each(|location| proof.add(location));
            }
            if *known != Some(proof) || self.is_changed {
                changes.push(match self.holes.iter().any(|hole| id.covers(hole)) {
                    true => Change::Void(id.clone()),
                    false => Change::Prove(id.clone(), proof),
                });
            }
        }
        changes
    }

    /// They were written.
    pub(super) fn take(&mut self, changes: Vec<Change>) {
        self.is_changed = false;
        for change in changes {
            let (id, proof) = match change {
                Change::Prove(id, proof) => (id, Some(proof)),
                Change::Void(id) => (id, None),
                Change::Put(_) | Change::Remove(_) => continue,
            };
            if let Some(known) = self.held.get_mut(&id) {
                *known = proof;
            }
        }
    }
}
