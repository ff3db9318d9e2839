//! A backup: the whole store at one revision, as bytes for a file (ST45).
//!
//! A [`Backup`] reads a view and gives the bytes in parts, so it takes no more memory for a large
//! store and delays no commit. A [`BackupReader`] gives the content back, and
//! [`restore`](crate::restore::restore) writes it into an engine.
//!
//! | bytes | content |
//! | --- | --- |
//! | 16 | `xds-store-backup` |
//! | 4 | the version of this form: 1. Numbers are big-endian |
//! | 4 + n | the length of the [`BackupHeader`], and the header |
//! | 4 + 4 + n, repeated | a block: its length, its length before compression (zlib), and the compressed entries |
//! | 8 | two zeros end the blocks |
//! | 32 | the BLAKE3 digest of all bytes before |
//!
//! An entry is a key of the engine and its value with the checksum (ST47), both preceded by their
//! length. Entries are in the order of keys. The head of the store is in the header.

use std::io::Write;
use std::ops::ControlFlow;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use prost::Message;

use crate::checked::{self, Damaged};
use crate::engine::{EngineError, View};
use crate::key::{RecordKey, stored};
use crate::log::Head;

pub use reader::{BackupReader, ReadError};

mod reader;

/// What a backup holds.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BackupHeader {
    /// The head of the store. Without history its floor is its revision.
    #[prost(message, required, tag = "1")]
    pub head: Head,
    /// The number of entries.
    #[prost(uint64, tag = "2")]
    pub entries: u64,
    /// The number of records, deleted ones included that the store still has.
    #[prost(uint64, tag = "3")]
    pub records: u64,
    /// Whether the backup has the log and the former states of records.
    #[prost(bool, tag = "4")]
    pub has_history: bool,
}

/// Whether a backup has the log and the former states of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum History {
    /// Everything that the store has.
    #[default]
    Whole,
    /// Only the present state of each record.
    LeftOut,
}

/// The bytes of a backup, in parts. Each call reads the engine, and blocks.
///
/// After an error there are no more parts, and those before are of no use.
#[derive(Debug)]
pub struct Backup {
    view: Box<dyn View>,
    header: BackupHeader,
    history: History,
    /// Where the next block begins; `None` after the last one.
    from: Option<Bytes>,
    entries_done: u64,
    hasher: blake3::Hasher,
    digest: Option<[u8; 32]>,
    /// Bytes of the file that were not returned yet.
    ready: BytesMut,
}

/// A part of a backup. All parts in order are the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupPart {
    /// At most [`PART_BYTES`].
    pub data: Bytes,
    /// How many of the entries were read so far.
    pub entries_done: u64,
    /// In the last part: the digest at the end of the file.
    pub digest: Option<[u8; 32]>,
}

/// Why there is no backup of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The engine has no store, or one whose restore did not finish.
    #[error("there is no store here")]
    NoStore,
    /// ST47: a backup of it could not be restored.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Backup {
    /// A backup of the store in a view. Reads all of it once, to count the entries.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn new(view: Box<dyn View>, history: History) -> Result<Self, BackupError> {
        let stored = view.get(stored::HEAD)?.ok_or(BackupError::NoStore)?;
        let mut head: Head = checked::decode(stored::HEAD, stored.bytes)?;
        if head.is_incomplete {
            return Err(BackupError::NoStore);
        }
        let (mut entries, mut records) = (0, 0);
        let mut last = None;
        each_entry(&*view, history, stored::ALL.0, &mut |key, _| {
            entries += 1;
            let record = stored::parse_record(key).map(|(record, _)| record);
            records += u64::from(record.is_some() && record != last);
            last = record;
            ControlFlow::Continue(())
        })?;
        let has_history = history == History::Whole;
        if !has_history {
            head.floor = head.revision;
        }
        head.has_staged = false;
        let header = BackupHeader { head, entries, records, has_history };
        let encoded = header.encode_to_vec();
        let mut ready = BytesMut::from(MAGIC);
        ready.put_u32(FORM);
        put_length(&mut ready, encoded.len());
        ready.put_slice(&encoded);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&ready);
        let from = Some(Bytes::from_static(stored::ALL.0));
        Ok(Self { view, header, history, from, entries_done: 0, hasher, digest: None, ready })
    }

    /// What the backup will hold.
    #[must_use]
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// Adds a block, or the end.
    fn add_block(&mut self, from: &Bytes) -> Result<(), BackupError> {
        let mut raw = Vec::new();
        let mut next = None;
        let entries_done = &mut self.entries_done;
        each_entry(&*self.view, self.history, from, &mut |key, value| {
            if raw.len() >= BLOCK_BYTES {
                next = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            for part in [key, &value] {
                prost::encode_length_delimiter(part.len(), &mut raw).expect("the vector grows");
                raw.extend_from_slice(part);
            }
            *entries_done += 1;
            ControlFlow::Continue(())
        })?;
        self.from = next;
        let begin = self.ready.len();
        if !raw.is_empty() {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&raw).expect("a vector takes everything");
            let compressed = encoder.finish().expect("a vector takes everything");
            put_length(&mut self.ready, compressed.len());
            put_length(&mut self.ready, raw.len());
            self.ready.put_slice(&compressed);
        }
        if self.from.is_none() {
            self.ready.put_u64(0);
        }
        self.hasher.update(&self.ready[begin..]);
        if self.from.is_none() {
            let digest = *self.hasher.finalize().as_bytes();
            self.ready.put_slice(&digest);
            self.digest = Some(digest);
        }
        Ok(())
    }
}

impl Iterator for Backup {
    type Item = Result<BackupPart, BackupError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.len() < PART_BYTES
            && let Some(from) = self.from.take()
        {
            if let Err(error) = self.add_block(&from) {
                self.ready.clear();
                return Some(Err(error));
            }
        }
        if !self.ready.has_remaining() {
            return None;
        }
        let data = self.ready.split_to(self.ready.len().min(PART_BYTES)).freeze();
        let digest = self.digest.filter(|_| self.ready.is_empty());
        Some(Ok(BackupPart { data, entries_done: self.entries_done, digest }))
    }
}

/// Calls `each` with the entries of a backup from a key on, in order, until it breaks.
fn each_entry(
    view: &dyn View,
    history: History,
    from: &[u8],
    each: &mut dyn FnMut(&[u8], Bytes) -> ControlFlow<()>,
) -> Result<(), BackupError> {
    let mut damaged = None;
    // Without history: the newest version of a record so far.
    let mut newest: Option<(RecordKey, Bytes, Bytes)> = None;
    view.range_stored(from, stored::ALL.1, &mut |key, value| {
        // A snapshot that is being taken is not of the store yet.
        if key == stored::HEAD || stored::parse_staged(key).is_some() {
            return ControlFlow::Continue(());
        }
        if let Err(error) = checked::verify(key, &value.bytes) {
            damaged = Some(error);
            return ControlFlow::Break(());
        }
        if history == History::Whole {
            return each(key, value.bytes);
        }
        let record = stored::parse_record(key).map(|(record, _)| record);
        if let Some((_, key, value)) = newest.take_if(|(last, ..)| Some(&*last) != record.as_ref())
            && each(&key, value).is_break()
        {
            return ControlFlow::Break(());
        }
        match record {
            Some(record) => newest = Some((record, Bytes::copy_from_slice(key), value.bytes)),
            None if stored::parse_log(key).is_some() => {}
            None => return each(key, value.bytes),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(damaged) = damaged {
        return Err(damaged.into());
    }
    if let Some((_, key, value)) = newest {
        _ = each(&key, value);
    }
    Ok(())
}

fn put_length(to: &mut BytesMut, length: usize) {
    to.put_u32(u32::try_from(length).expect("blocks and headers are far below 4 GiB"));
}

/// How long a part may be.
pub const PART_BYTES: usize = 1 << 20;

const MAGIC: &[u8] = b"xds-store-backup";
const FORM: u32 = 1;

/// A block ends with the entry that makes it this long.
const BLOCK_BYTES: usize = 1 << 20;
