//! Reads a backup and verifies it.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use flate2::read::ZlibDecoder;
use prost::Message;

use super::{BLOCK_BYTES, BackupHeader, FORM, MAGIC};
use crate::checked::{self, Damaged};
use crate::key::{RecordKey, stored};
use crate::log::FORMAT;

/// The entries of a backup, in the order of keys.
///
/// The backup is whole only when the entries have ended without an error: the digest is at the end.
/// Until then, use nothing of it.
#[derive(Debug)]
pub struct BackupReader<R> {
    source: R,
    hasher: blake3::Hasher,
    header: BackupHeader,
    /// The rest of the present block.
    block: Bytes,
    last_key: Bytes,
    last_record: Option<RecordKey>,
    entries: u64,
    records: u64,
    is_finished: bool,
}

/// Why a backup cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be read.
    #[error("the backup cannot be read")]
    Io(#[source] io::Error),
    /// It does not begin like a backup.
    #[error("this is no backup of a store")]
    NoBackup,
    /// A newer version wrote it (ST4).
    #[error("the backup has {part} {found}; this version reads up to {known}")]
    Newer {
        /// `form` for the file, `format` for what the store in it has.
        part: &'static str,
        /// That of the backup.
        found: u32,
        /// The newest one that this version reads.
        known: u32,
    },
    /// It ends too early.
    #[error("the backup is incomplete: its end is missing")]
    Cut,
    /// It was changed after it was written.
    #[error("the backup is damaged: {0}")]
    Damaged(&'static str),
    /// A value in it is damaged (ST47).
    #[error(transparent)]
    Value(#[from] Damaged),
}

impl<R: Read> BackupReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn new(source: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            source,
            hasher: blake3::Hasher::new(),
            header: BackupHeader::default(),
            block: Bytes::new(),
            last_key: Bytes::new(),
            last_record: None,
            entries: 0,
            records: 0,
            is_finished: false,
        };
        let magic = reader.read_exactly(MAGIC.len()).map_err(|error| match error {
            ReadError::Cut => ReadError::NoBackup,
            other => other,
        })?;
        if magic != MAGIC {
            return Err(ReadError::NoBackup);
        }
        let form = reader.take_number()?;
        if form > FORM {
            return Err(ReadError::Newer { part: "form", found: form, known: FORM });
        }
        let length = reader.take_number()?;
        let encoded = reader.read_exactly(checked_length(length, HEADER_LIMIT_BYTES)?)?;
        reader.header =
            BackupHeader::decode(&*encoded).map_err(|_| ReadError::Damaged("its header cannot be read"))?;
        let found = reader.header.head.format;
        if found > FORMAT {
            return Err(ReadError::Newer { part: "format", found, known: FORMAT });
        }
        Ok(reader)
    }

    /// What the backup holds.
    #[must_use]
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    fn next_entry(&mut self) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        if self.block.is_empty() && !self.take_block()? {
            return self.finish().map(|()| None);
        }
        let [key, value] = [self.take_part()?, self.take_part()?];
        if key <= self.last_key || key == stored::HEAD || *key < *stored::ALL.0 || *key >= *stored::ALL.1 {
            return Err(ReadError::Damaged("its entries are out of order"));
        }
        checked::verify(&key, &value)?;
        let record = stored::parse_record(&key).map(|(record, _)| record);
        self.records += u64::from(record.is_some() && record != self.last_record);
        self.entries += 1;
        (self.last_key, self.last_record) = (key.clone(), record);
        Ok(Some((key, value)))
    }

    /// A key or a value of the block.
    fn take_part(&mut self) -> Result<Bytes, ReadError> {
        let length = prost::decode_length_delimiter(&mut self.block).ok();
        let length = length.filter(|length| *length <= self.block.remaining());
        Ok(self.block.split_to(length.ok_or(ReadError::Damaged("a block ends within an entry"))?))
    }

    /// Reads the next block. Returns whether there is one.
    fn take_block(&mut self) -> Result<bool, ReadError> {
        let (compressed, raw) = (self.take_number()?, self.take_number()?);
        if (compressed, raw) == (0, 0) {
            return Ok(false);
        }
        let raw = checked_length(raw, BLOCK_LIMIT_BYTES)?;
        let compressed = self.read_exactly(checked_length(compressed, BLOCK_LIMIT_BYTES)?)?;
        let mut block = Vec::new();
        let unreadable = |_| ReadError::Damaged("a block cannot be decompressed");
        let mut decoder = ZlibDecoder::new(&*compressed).take(raw as u64 + 1);
        decoder.read_to_end(&mut block).map_err(unreadable)?;
        if block.len() != raw || block.is_empty() {
            return Err(ReadError::Damaged("a block has another length than it says"));
        }
        self.block = block.into();
        Ok(true)
    }

    fn finish(&mut self) -> Result<(), ReadError> {
        let digest = *self.hasher.finalize().as_bytes();
        if self.read_exactly(digest.len())? != digest {
            return Err(ReadError::Damaged("its digest differs"));
        }
        if (self.entries, self.records) != (self.header.entries, self.header.records) {
            return Err(ReadError::Damaged("it has another number of entries than it says"));
        }
        match self.source.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ReadError::Damaged("something follows its end")),
            Err(error) => Err(ReadError::Io(error)),
        }
    }

    fn take_number(&mut self) -> Result<u32, ReadError> {
        Ok((&*self.read_exactly(size_of::<u32>())?).get_u32())
    }

    /// Reads bytes. Memory grows with what the source has, not with what it says.
    fn read_exactly(&mut self, length: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        let mut limited = self.source.by_ref().take(length as u64);
        limited.read_to_end(&mut bytes).map_err(ReadError::Io)?;
        if bytes.len() < length {
            return Err(ReadError::Cut);
        }
        self.hasher.update(&bytes);
        Ok(bytes)
    }
}

impl<R: Read> Iterator for BackupReader<R> {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        let next = self.next_entry().transpose();
        self.is_finished = !matches!(next, Some(Ok(_)));
        next
    }
}

fn checked_length(length: u32, limit: usize) -> Result<usize, ReadError> {
    let length = usize::try_from(length).ok().filter(|length| *length <= limit);
    length.ok_or(ReadError::Damaged("a length in it is impossible"))
}

/// Ids and numbers.
const HEADER_LIMIT_BYTES: usize = 1 << 20;

/// A block has at most one entry beyond its length. No value is longer than a commit may be.
const BLOCK_LIMIT_BYTES: usize = BLOCK_BYTES + (128 << 20);
