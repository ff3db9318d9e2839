//! The cache file of a proxy, written by the library to a disk that may be full or may damage the
//! file.

use std::collections::BTreeMap;

use xds_client::last_good::{LastGood, Record, Restored, Secrets};
use xds_core::VariantId;
use xds_core::client::Effects;
use xds_core::proxy::{SetChange, SetId};

use crate::invariant::Violation;
use crate::random::Random;

/// An open file, and its expected content.
pub(crate) struct Disk {
    file: LastGood,
    /// The version of each variant that exists; `None` if the variant must not be stored.
    exists: BTreeMap<VariantId, Option<String>>,
    /// The same before the file was damaged, until something changes. When damage restores a removed
    /// variant and further damage removes it, a set is whole again (seed 13533).
    existed: BTreeMap<VariantId, Option<String>>,
}

impl Disk {
    pub(crate) fn empty() -> Self {
        let (file, _) = LastGood::in_memory(Vec::new(), Secrets::Kept).unwrap();
        Self { file, exists: BTreeMap::new(), existed: BTreeMap::new() }
    }

    /// The file as the next start of the proxy finds it, after damage made from `damage`. A set is
    /// restored as a whole or not at all, because clients delete resources that a full state lacks
    /// (S25).
    pub(crate) fn reopened(&self, damage: Option<u64>) -> Result<(Self, Restored), Violation> {
        let mut image = self.file.image().unwrap();
        if let Some(salt) = damage {
            harm(&mut image, &mut Random::new(salt));
        }
        let (file, restored) = LastGood::in_memory(image, Secrets::Kept).unwrap();
        let found = restored.records.iter().map(|record| (record.id.clone(), Some(record.version.clone())));
        let found: BTreeMap<_, _> = found.collect();
        let is_whole = |set: &SetId, all| members(&found, set).eq(members(all, set));
        let mut sets = restored.sets.iter();
        let part = sets.find(|set| !is_whole(set, &self.exists) && !is_whole(set, &self.existed));
        if let Some(SetId { name, parameters, .. }) = part {
            let what =
                format!("S25: {name} for {{{parameters}}} is restored from a file that has not all of it");
            return Err(Violation::new("relayed", what));
        }
        Ok((Self { file, exists: found, existed: self.existed.clone() }, restored))
    }

    /// The driver of a proxy does the same; it takes the changes of sets under the lock of their
    /// client.
    pub(crate) fn note(&mut self, effects: &Effects) {
        for id in &effects.removed {
            self.exists.remove(id);
            self.file.remove(id.clone());
        }
        for accepted in &effects.accepted {
            if accepted.variant().do_not_cache() {
                self.exists.insert(accepted.id(), None);
                self.file.leave_out(accepted.id());
            } else {
                self.exists.insert(accepted.id(), Some(accepted.version.as_ref().to_owned()));
                self.file.put(Record::from(&**accepted));
            }
        }
        if !effects.removed.is_empty() || !effects.accepted.is_empty() {
            self.existed.clone_from(&self.exists);
        }
    }

    pub(crate) fn note_sets(&mut self, changes: Vec<SetChange>) {
        changes.into_iter().for_each(|change| self.file.note_set(change));
    }

    /// The same for variants that the file must forget.
    pub(crate) fn note_dropped(&mut self, dropped: Vec<VariantId>) {
        for id in dropped {
            self.exists.remove(&id);
            self.existed.remove(&id);
            self.file.remove(id);
        }
    }

    /// Records that cannot be written are written with the next ones.
    pub(crate) fn flush(&mut self) {
        _ = self.file.flush();
    }

    /// Limits the room of the disk to this number of bytes; `None` removes the limit.
    pub(crate) fn fill(&mut self, room_bytes: Option<u64>) {
        let size_bytes = self.file.image().unwrap().len() as u64;
        self.file.limit(room_bytes.map(|room_bytes| size_bytes + room_bytes));
    }
}

fn members<'e>(
    exists: &'e BTreeMap<VariantId, Option<String>>,
    set: &SetId,
) -> impl Iterator<Item = (&'e VariantId, &'e Option<String>)> {
    exists.iter().filter(|(id, _)| set.covers(id))
}

/// Damages a bit or a block, copies a block over another one, or cuts the end.
fn harm(image: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(2) {
        let size = image.len();
        if size == 0 {
            return;
        }
        let (at, from, count) = (random.below(size), random.below(size), 1 + random.below(200));
        let end = (at + count).min(size);
        match random.below(8) {
            0..4 => image[at] ^= 1 << random.below(8),
            4 => image[at..end].fill(0),
            5 => {
                let from = from.min(size - (end - at));
                image.copy_within(from..from + (end - at), at);
            }
            6 => drop(image.drain(at..end)),
            _ => image.truncate(at.max(1)),
        }
    }
}
