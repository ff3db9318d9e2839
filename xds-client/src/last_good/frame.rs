//! How entries lie in the file, and how they are found again.
//!
//! ```text
//! file  = magic format entry*           8 bytes, u32
//! entry = length sum head_sum body      u32 each; length and sum are those of the body
//! ```
//!
//! Numbers are little-endian, sums are CRC-32. The head has a sum of its own, over length and sum: a length that can be
//! trusted tells an entry that was cut short from a damaged one, and leads past the latter to the next.

use std::io::{self, Read};

use bytes::Bytes;

/// Finds the entries of a file.
#[derive(Debug)]
pub(super) struct Reader<R> {
    input: R,
    /// Where the next entry begins; zero before the header is read.
    at: u64,
}

/// What comes next in a file.
#[derive(Debug)]
pub(super) enum Step {
    Entry { at: u64, body: Bytes },
    Damaged { at: u64 },
    End(Ending),
}

/// How a file ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With a whole entry, with its header, or it is empty.
    Whole,
    /// As if a crash had cut short what was being written.
    Torn {
        /// How much of it is there.
        bytes: u64,
    },
    /// It is damaged there or before, or no such file at all.
    Broken(Broken),
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// It does not begin like one.
    #[error("it is not a last-known-good file")]
    Foreign,
    /// A later version of this program wrote it.
    #[error("its format is {found}, and this program knows only {FORMAT}")]
    UnknownFormat {
        /// The format it has.
        found: u32,
    },
    /// An entry is not as it was written. There may be more of them after this one.
    #[error("the entry at byte {at} is damaged")]
    Entry {
        /// Where the entry begins, in bytes from the start.
        at: u64,
    },
}

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, at: 0 }
    }

    /// Where the last whole entry ended.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn step(&mut self) -> io::Result<Step> {
        if self.at == 0
            && let Some(ending) = self.header()?
        {
            return Ok(Step::End(ending));
        }
        let head = self.bytes(HEAD_BYTES)?;
        let Some(&head) = head.first_chunk() else {
            return Ok(Step::End(ending_of(&head)));
        };
        let Some((length, sum)) = read_head(head) else {
            let broken = Ending::Broken(Broken::Entry { at: self.at });
            return Ok(Step::End(self.zeros(&head)?.unwrap_or(broken)));
        };
        if length > ENTRY_LIMIT_BYTES {
            return Ok(Step::End(Ending::Broken(Broken::Entry { at: self.at })));
        }
        let body = self.bytes(length)?;
        if body.len() < length {
            return Ok(Step::End(Ending::Torn { bytes: (HEAD_BYTES + body.len()) as u64 }));
        }
        let at = self.at;
        self.at += (HEAD_BYTES + length) as u64;
        Ok(if crc32fast::hash(&body) == sum {
            Step::Entry { at, body: body.into() }
        } else {
            Step::Damaged { at }
        })
    }

    /// Reads the header. If there is none, that is how the file ends.
    fn header(&mut self) -> io::Result<Option<Ending>> {
        let header = self.bytes(HEADER.len())?;
        if header == HEADER {
            self.at = HEADER.len() as u64;
            return Ok(None);
        }
        if HEADER.starts_with(&header) {
            return Ok(Some(ending_of(&header)));
        }
        if let Some(zeros) = self.zeros(&header)? {
            return Ok(Some(zeros));
        }
        Ok(Some(Ending::Broken(match header.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk) {
            Some(format) => Broken::UnknownFormat { found: u32::from_le_bytes(*format) },
            None => Broken::Foreign,
        })))
    }

    /// The file as torn if nothing but zeros is left of it, the bytes just read included: some file systems leave them
    /// when a file grew and the machine failed before its content was written.
    fn zeros(&mut self, read: &[u8]) -> io::Result<Option<Ending>> {
        let mut bytes = read.len() as u64;
        let mut chunk = read.to_vec();
        while chunk.iter().all(|&byte| byte == 0) {
            chunk = self.bytes(CHUNK_BYTES)?;
            if chunk.is_empty() {
                return Ok(Some(Ending::Torn { bytes }));
            }
            bytes += chunk.len() as u64;
        }
        Ok(None)
    }

    /// As many bytes, fewer only at the end of the input.
    fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(count);
        self.input.by_ref().take(count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// How a file ends with these bytes, which are too few for what should stand there.
fn ending_of(rest: &[u8]) -> Ending {
    if rest.is_empty() { Ending::Whole } else { Ending::Torn { bytes: rest.len() as u64 } }
}

/// What stands before a body.
pub(super) fn head(body: &[u8]) -> [u8; HEAD_BYTES] {
    let length = u32::try_from(body.len()).expect("a body keeps its limit");
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let sum = crc32fast::hash(&head[..8]);
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The body of an entry that is read as a whole, if it is intact.
pub(super) fn body(entry: &[u8]) -> Option<&[u8]> {
    let (&found, body) = entry.split_first_chunk()?;
    (body.len() <= ENTRY_LIMIT_BYTES && head(body) == found).then_some(body)
}

/// Length and sum of the body, unless the head is damaged.
fn read_head(head: [u8; HEAD_BYTES]) -> Option<(usize, u32)> {
    let [length, sum, head_sum] = [0, 4, 8].map(|at| {
        let number = head[at..].first_chunk().expect("a head has three numbers");
        u32::from_le_bytes(*number)
    });
    (crc32fast::hash(&head[..8]) == head_sum).then_some((length as usize, sum))
}

/// The largest entry. Ours stay below the receive limits of gRPC, which are a few MiB; anything larger is damage, not to
/// be allocated.
pub const ENTRY_LIMIT_BYTES: usize = 64 << 20;

pub(super) const HEAD_BYTES: usize = 12;

/// What every file begins with. The line break shows when one was treated as text.
const MAGIC: [u8; 8] = *b"xdsgood\n";

/// Goes up when a file cannot be read by the programs before.
const FORMAT: u32 = 1;

pub(super) const HEADER: [u8; 12] = {
    let mut header = [0; 12];
    header.first_chunk_mut::<8>().expect("it is longer").copy_from_slice(&MAGIC);
    header.last_chunk_mut::<4>().expect("it is longer").copy_from_slice(&FORMAT.to_le_bytes());
    header
};

const CHUNK_BYTES: usize = 8 << 10;
