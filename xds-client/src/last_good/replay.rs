//! Reads all entries of a file: its records, sets and damage.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use prost::Message;
use xds_core::proxy::SetId;
use xds_core::{Constraints, VariantId, Version};

use super::Secrets;
use super::frame::{BEHIND, Broken, Ending, HEAD_BYTES, Header, Reader, Step};
use super::record::{Change, Entry, Record};
use super::sets::Proof;

/// The result of reading a file.
#[derive(Debug)]
pub(super) struct Replay {
    /// The newest record of each id without a later removal.
    pub(super) live: BTreeMap<VariantId, (EntryLocation, Record)>,
    /// The newest proof of each set without a later `Void`, and whether the proof holds.
    pub(super) sets: BTreeMap<SetId, (EntryLocation, bool)>,
    /// The number of sets that were complete once and are not proved to be.
    pub(super) unproved: usize,
    /// The number of entries with an unreadable id or kind.
    pub(super) skipped: usize,
    /// Whether any entry, also an old one, has a secret that should not be stored.
    pub(super) found_secrets: bool,
    pub(super) header: Header,
    pub(super) ending: Ending,
    /// The end of the last intact entry.
    pub(super) end: u64,
}

/// The location of an entry and the digest of its body.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryLocation {
    pub(super) at: u64,
    /// The size of the whole entry.
    pub(super) size_bytes: u64,
    pub(super) digest: Version,
}

impl EntryLocation {
    pub(super) fn new(at: u64, body: &[u8]) -> Self {
        let size_bytes = (HEAD_BYTES + body.len()) as u64;
        Self { at, size_bytes, digest: Version::of_payload(body) }
    }
}

impl Replay {
    pub(super) fn of(input: impl Read, secrets: Secrets) -> io::Result<Self> {
        let mut reader = Reader::new(input);
        let mut replay = Self {
            live: BTreeMap::new(),
            sets: BTreeMap::new(),
            unproved: 0,
            skipped: 0,
            found_secrets: false,
            header: Header::Missing,
            ending: Ending::Whole,
            end: 0,
        };
        let mut proofs = BTreeMap::new();
        // The last damage: later entries may have been lost there.
        let mut damaged_at = None;
        let mut damage = None;
        let ending = loop {
            match reader.step()? {
                Step::End(ending) => break ending,
                Step::Damaged { at } => {
                    damage.get_or_insert(Ending::Broken(Broken::Entry { at }));
                    damaged_at = Some(at);
                }
                Step::Entry { at, body } => {
                    replay.take(EntryLocation::new(at, &body), body, secrets, &mut proofs);
                }
            }
        };
        (replay.header, replay.end) = (reader.header(), reader.at());
        let is_up_to_date = match (&ending, replay.header) {
            (Ending::Broken(_), _) => false,
            (_, Header::Known { length }) => length.is_some_and(|length| length != BEHIND),
            (_, Header::Old | Header::Missing) => false,
        };
        for (id, (location, proof)) in proofs {
            let is_valid = is_up_to_date
                && damaged_at.is_none_or(|at| at < location.at)
                && proof == Proof::of(replay.members(&id));
            replay.unproved += usize::from(!is_valid);
            replay.sets.insert(id, (location, is_valid));
        }
        replay.ending = damage.unwrap_or(ending);
        Ok(replay)
    }

    /// The sets that are proved to be complete.
    pub(super) fn whole_sets(&self) -> Vec<SetId> {
        let whole = self.sets.iter().filter(|(_, (_, is_valid))| *is_valid);
        whole.map(|(id, _)| id.clone()).collect()
    }

    fn take(
        &mut self,
        location: EntryLocation,
        body: Bytes,
        secrets: Secrets,
        proofs: &mut BTreeMap<SetId, (EntryLocation, Proof)>,
    ) {
        // The payload is a slice of the body.
        let Ok(entry) = Entry::decode(body) else {
            self.skipped += 1;
            return;
        };
        if entry.is_unproved_set() {
            self.unproved += 1;
            return;
        }
        match entry.into_change() {
            None => self.skipped += 1,
            Some(Change::Remove(id)) => drop(self.live.remove(&id)),
            Some(Change::Void(id)) => drop(proofs.remove(&id)),
            Some(Change::Put(Record { id: VariantId { type_url, .. }, .. }))
            | Some(Change::Prove(SetId { type_url, .. }, _))
                if secrets.leave_out(&type_url) =>
            {
                self.found_secrets = true;
            }
            Some(Change::Put(record)) => drop(self.live.insert(record.id.clone(), (location, record))),
            Some(Change::Prove(id, proof)) => drop(proofs.insert(id, (location, proof))),
        }
    }

    fn members<'r>(&'r self, id: &'r SetId) -> impl Iterator<Item = &'r EntryLocation> {
        let first =
            VariantId { type_url: id.type_url.clone(), name: "".into(), constraints: Constraints::NONE };
        let of_type = self.live.range(first..).take_while(|(member, _)| member.type_url == id.type_url);
        of_type.filter(|(member, _)| id.covers(member)).map(|(_, (location, _))| location)
    }
}
