//! How entries lie in the file, and how they are found again.
//!
//! ```text
//! file   = magic format length sum entry*   8 bytes, u32, u64, u32
//! entry  = length sum head_sum body         u32 each; length and sum are those of the body
//! ```
//!
//! Numbers are little-endian, sums are CRC-32. The head of an entry has a sum of its own, over
//! length, sum and the place of the entry in the file: a length that can be trusted tells an entry
//! that was cut short from a damaged one, and leads past the latter to the next. Past a damaged
//! head the next entry is searched for; none is taken for one that lies elsewhere.
//!
//! The length in the header is that of the file after the last write that succeeded, or [`BEHIND`].
//! It is the only thing that is ever overwritten, and the only way to tell a file that was cut
//! between two entries. Format 1 has no length, and the sums of its heads do not know their place.

use std::io::{self, Read};

use bytes::Bytes;
use crc32fast::Hasher;

/// Finds the entries of a file.
#[derive(Debug)]
pub(super) struct Reader<R> {
    input: R,
    /// Read already, in search of an entry.
    ahead: Bytes,
    /// Where the next entry begins; zero before the header is read.
    at: u64,
    header: Header,
}

/// What stands at the beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// None that can be read.
    Missing,
    /// That of the format before, which proves no set.
    Old,
    /// The length that the file has to have; `None` when it is damaged, or [`BEHIND`].
    Known { length: Option<u64> },
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
    #[error("its format is {found}, and this program knows those up to {FORMAT}")]
    UnknownFormat {
        /// The format it has.
        found: u32,
    },
    /// The length in the header is not as it was written.
    #[error("its header is damaged")]
    Header,
    /// Its end is missing.
    #[error("it ends at byte {found}, and was {written} bytes long")]
    Short {
        /// Where its last whole entry ends, in bytes from the start.
        found: u64,
        /// How long it was when it was written last.
        written: u64,
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
        Self { input, ahead: Bytes::new(), at: 0, header: Header::Missing }
    }

    /// Where the last whole entry ended.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    pub(super) fn step(&mut self) -> io::Result<Step> {
        if self.at == 0
            && let Some(ending) = self.read_header()?
        {
            return Ok(Step::End(ending));
        }
        let head = self.bytes(HEAD_BYTES)?;
        let Some(&head) = head.first_chunk() else {
            return Ok(Step::End(self.ending_of(&head)));
        };
        let Some((length, sum)) = read_head(head, self.place(self.at)) else {
            return self.search(&head);
        };
        let body = self.bytes(length)?;
        if body.len() < length {
            return Ok(Step::End(self.torn((HEAD_BYTES + body.len()) as u64)));
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
    fn read_header(&mut self) -> io::Result<Option<Ending>> {
        let header = self.bytes(MARK.len())?;
        if header == MARK {
            let length = self.bytes(LENGTH_BYTES)?;
            let Some(length) = length.first_chunk() else {
                return Ok(Some(Ending::Torn { bytes: (MARK.len() + length.len()) as u64 }));
            };
            (self.at, self.header) = (HEADER_BYTES, Header::Known { length: read_length(*length) });
            return Ok(None);
        }
        if header == OLD_MARK {
            (self.at, self.header) = (OLD_MARK.len() as u64, Header::Old);
            return Ok(None);
        }
        if MARK.starts_with(&header) {
            return Ok(Some(self.ending_of(&header)));
        }
        if let Some(zeros) = self.zeros(&header)? {
            return Ok(Some(zeros));
        }
        Ok(Some(Ending::Broken(match header.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk) {
            Some(format) => Broken::UnknownFormat { found: u32::from_le_bytes(*format) },
            None => Broken::Foreign,
        })))
    }

    /// Finds the next entry after one whose head is damaged. Only here is the rest of a file in
    /// memory.
    fn search(&mut self, head: &[u8]) -> io::Result<Step> {
        let at = self.at;
        let mut rest = head.to_vec();
        rest.extend_from_slice(&self.ahead);
        self.input.read_to_end(&mut rest)?;
        self.ahead = Bytes::new();
        if rest.iter().all(|&byte| byte == 0) {
            return Ok(Step::End(self.torn(rest.len() as u64)));
        }
        let is_entry = |&skipped: &usize| {
            let head = rest[skipped..].first_chunk();
            let read = head.and_then(|head| read_head(*head, self.place(at + skipped as u64)));
            read.is_some_and(|(length, sum)| {
                let body = rest[skipped + HEAD_BYTES..].get(..length);
                body.is_some_and(|body| crc32fast::hash(body) == sum)
            })
        };
        let Some(skipped) = (1..rest.len()).find(is_entry) else {
            return Ok(Step::End(Ending::Broken(Broken::Entry { at })));
        };
        self.at += skipped as u64;
        self.ahead = Bytes::from(rest).slice(skipped..);
        Ok(Step::Damaged { at })
    }

    /// What the sum of a head depends on beside the head.
    fn place(&self, at: u64) -> Option<u64> {
        Some(at).filter(|_| self.header != Header::Old)
    }

    /// How a file ends with these bytes, which are too few for what should stand there.
    fn ending_of(&self, rest: &[u8]) -> Ending {
        if rest.is_empty() { self.checked(Ending::Whole) } else { self.torn(rest.len() as u64) }
    }

    fn torn(&self, bytes: u64) -> Ending {
        self.checked(Ending::Torn { bytes })
    }

    /// An ending, unless the file has to be longer.
    fn checked(&self, ending: Ending) -> Ending {
        match self.header {
            Header::Known { length: None } => Ending::Broken(Broken::Header),
            Header::Known { length: Some(written) } if written != BEHIND && written > self.at => {
                Ending::Broken(Broken::Short { found: self.at, written })
            }
            Header::Known { .. } | Header::Old | Header::Missing => ending,
        }
    }

    /// The file as torn if nothing but zeros is left of it, the bytes just read included: some file
    /// systems leave them when a file grew and the machine failed before its content was written.
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
        let mut bytes = self.ahead.split_to(count.min(self.ahead.len())).to_vec();
        self.input.by_ref().take((count - bytes.len()) as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// What stands before a body that begins an entry there.
pub(super) fn head(body: &[u8], at: u64) -> [u8; HEAD_BYTES] {
    let length = u32::try_from(body.len()).expect("a body keeps its limit");
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let sum = sum_of_head(&head, Some(at));
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The body of an entry that is read as a whole from its place, if it is intact.
pub(super) fn body(entry: &[u8], place: Option<u64>) -> Option<&[u8]> {
    let (&head, body) = entry.split_first_chunk()?;
    let (length, sum) = read_head(head, place)?;
    (body.len() == length && crc32fast::hash(body) == sum).then_some(body)
}

/// Length and sum of the body, unless the head is damaged or the length absurd.
fn read_head(head: [u8; HEAD_BYTES], place: Option<u64>) -> Option<(usize, u32)> {
    let [length, sum, head_sum] = [0, 4, 8].map(|at| {
        let number = head[at..].first_chunk().expect("a head has three numbers");
        u32::from_le_bytes(*number)
    });
    let is_it = sum_of_head(&head, place) == head_sum && length as usize <= ENTRY_LIMIT_BYTES;
    is_it.then_some((length as usize, sum))
}

fn sum_of_head(head: &[u8; HEAD_BYTES], place: Option<u64>) -> u32 {
    let mut sum = Hasher::new();
    sum.update(&head[..8]);
    if let Some(at) = place {
        sum.update(&at.to_le_bytes());
    }
    sum.finalize()
}

/// The length of a file, as its header has it.
pub(super) fn length(length: u64) -> [u8; LENGTH_BYTES] {
    let mut bytes = [0; LENGTH_BYTES];
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn read_length(bytes: [u8; LENGTH_BYTES]) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk().expect("it is longer"));
    (length(number) == bytes).then_some(number)
}

/// The largest entry. Ours stay below the receive limits of gRPC, which are a few MiB; anything
/// larger is damage, not to be allocated.
pub const ENTRY_LIMIT_BYTES: usize = 64 << 20;

pub(super) const HEAD_BYTES: usize = 12;

/// What every file begins with. The line break shows when one was treated as text.
const MAGIC: [u8; 8] = *b"xdsgood\n";

/// Goes up when a file cannot be read by the programs before.
const FORMAT: u32 = 2;

/// What a file begins with, before the length.
pub(super) const MARK: [u8; 12] = mark(FORMAT);

const OLD_MARK: [u8; 12] = mark(1);

const fn mark(format: u32) -> [u8; 12] {
    let mut mark = [0; 12];
    mark.first_chunk_mut::<8>().expect("it is longer").copy_from_slice(&MAGIC);
    mark.last_chunk_mut::<4>().expect("it is longer").copy_from_slice(&format.to_le_bytes());
    mark
}

/// A number and its sum.
const LENGTH_BYTES: usize = 12;

/// Where the first entry begins.
pub(super) const HEADER_BYTES: u64 = (MARK.len() + LENGTH_BYTES) as u64;

/// In place of the length: something could not be written since, so that no set is as the file has
/// it.
pub(super) const BEHIND: u64 = u64::MAX;

const CHUNK_BYTES: usize = 8 << 10;
