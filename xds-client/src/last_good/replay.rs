//! What the entries of a file amount to.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use prost::Message;
use xds_core::{VariantId, Version};

use super::Secrets;
use super::frame::{Broken, Ending, HEAD_BYTES, Reader, Step};
use super::record::{Change, Entry, Record};

/// A file that was read to its end.
#[derive(Debug)]
pub(super) struct Replay {
    /// The newest put of each id that was not removed since.
    pub(super) live: BTreeMap<VariantId, (Place, Record)>,
    /// Entries whose id or kind cannot be read.
    pub(super) skipped: usize,
    /// Whether there is an entry that should not be there, be it an old one.
    pub(super) found_secrets: bool,
    pub(super) ending: Ending,
    /// Where the last whole entry ends.
    pub(super) end: u64,
}

/// Where an entry lies, and what its body is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: u64,
    /// Of the whole entry.
    pub(super) size_bytes: u64,
    pub(super) digest: Version,
}

impl Place {
    pub(super) fn new(at: u64, body: &[u8]) -> Self {
        let size_bytes = (HEAD_BYTES + body.len()) as u64;
        Self { at, size_bytes, digest: Version::of_payload(body) }
    }
}

impl Replay {
    pub(super) fn of(input: impl Read, secrets: Secrets) -> io::Result<Self> {
        let mut reader = Reader::new(input);
        let (mut live, mut skipped, mut found_secrets) = (BTreeMap::new(), 0, false);
        let mut damage = None;
        let ending = loop {
            match reader.step()? {
                Step::End(ending) => break ending,
                Step::Damaged { at } => {
                    damage.get_or_insert(Ending::Broken(Broken::Entry { at }));
                }
                Step::Entry { at, body } => match change(body.clone()) {
                    None => skipped += 1,
                    Some(Change::Remove(id)) => drop(live.remove(&id)),
                    Some(Change::Put(record)) if secrets.leave_out(&record.id.type_url) => {
                        found_secrets = true;
                    }
                    Some(Change::Put(record)) => {
                        live.insert(record.id.clone(), (Place::new(at, &body), record));
                    }
                },
            }
        };
        Ok(Self { live, skipped, found_secrets, ending: damage.unwrap_or(ending), end: reader.at() })
    }
}

/// What an entry says. Its payload is a slice of the body.
fn change(body: Bytes) -> Option<Change> {
    Entry::decode(body).ok()?.into_change()
}
