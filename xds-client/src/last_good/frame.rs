//! The file format: finds the entries of a file, also after damage.
//!
//! ```text
//! file   = magic format length sum entry*   8 bytes, u32, u64, u32
//! entry  = length sum head_sum body         u32 each; length and sum are those of the body
//! ```
//!
//! Numbers are little-endian, sums are CRC-32. The head of an entry has its own sum, over the
//! length, the sum and the position of the entry in the file. So the length is reliable. It
//! distinguishes an incomplete entry at the end from a damaged one, and leads to the entry after a
//! damaged body. After a damaged head, the reader searches for the next entry; the position in the
//! sum prevents a copy of an entry from elsewhere being accepted.
//!
//! The length in the header is that of the file after the last successful write, or [`BEHIND`]. It
//! is the only part that is ever overwritten. Only this length reveals that a file was cut between
//! two entries. Format 1 has no length, and the sums of its heads do not include the position.

use std::io::{self, Read};

use bytes::Bytes;
use crc32fast::Hasher;

/// Finds the entries of a file.
#[derive(Debug)]
pub(super) struct Reader<R> {
    input: R,
    /// Bytes that the search for an entry has already read.
    ahead: Bytes,
    /// The position of the next entry; zero before the header is read.
    at: u64,
    header: Header,
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// There is no readable header.
    Missing,
    /// The header of the former format, which proves no set.
    Old,
    /// The length of the file; `None` if it is damaged. It may be [`BEHIND`].
    Known { length: Option<u64> },
}

/// The next part of a file.
#[derive(Debug)]
pub(super) enum Step {
    Entry { at: u64, body: Bytes },
    Damaged { at: u64 },
    End(Ending),
}

/// The end of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The file ends after an entry or the header, or is empty.
    Whole,
    /// The last write is incomplete, as after a crash.
    Torn {
        /// The number of bytes of the incomplete write.
        bytes: u64,
    },
    /// The file is damaged, or is not such a file.
    Broken(Broken),
}

/// The damage of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// It does not begin like a last-known-good file.
    #[error("it is not a last-known-good file")]
    Foreign,
    /// A later version of this program wrote it.
    #[error("its format is {found}, and this program knows those up to {FORMAT}")]
    UnknownFormat {
        /// Its format.
        found: u32,
    },
    /// The length in the header is damaged.
    #[error("its header is damaged")]
    Header,
    /// The end of the file is missing.
    #[error("it ends at byte {found}, and was {written} bytes long")]
    Short {
        /// The end of its last intact entry, in bytes from the start.
        found: u64,
        /// Its length after the last write.
        written: u64,
    },
    /// An entry is damaged. More of them may follow.
    #[error("the entry at byte {at} is damaged")]
    Entry {
        /// The position of the entry, in bytes from the start.
        at: u64,
    },
}

impl<R: Read> Reader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, ahead: Bytes::new(), at: 0, header: Header::Missing }
    }

    /// The end of the last intact entry.
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

    /// Reads the header. Without a header, returns the end of the file.
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

    /// Finds the next entry after a damaged head. Only this search reads the rest of the file into
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

    /// The position that the sum of a head includes; `None` in the former format.
    fn place(&self, at: u64) -> Option<u64> {
        Some(at).filter(|_| self.header != Header::Old)
    }

    /// The end of a file with these bytes, which are too few for the next part.
    fn ending_of(&self, rest: &[u8]) -> Ending {
        if rest.is_empty() { self.checked(Ending::Whole) } else { self.torn(rest.len() as u64) }
    }

    fn torn(&self, bytes: u64) -> Ending {
        self.checked(Ending::Torn { bytes })
    }

    /// The ending, unless the header says that the file was longer.
    fn checked(&self, ending: Ending) -> Ending {
        match self.header {
            Header::Known { length: None } => Ending::Broken(Broken::Header),
            Header::Known { length: Some(written) } if written != BEHIND && written > self.at => {
                Ending::Broken(Broken::Short { found: self.at, written })
            }
            Header::Known { .. } | Header::Old | Header::Missing => ending,
        }
    }

    /// `Torn` if the rest of the file is only zeros, including the bytes just read. Some file
    /// systems leave zeros when a file grew and the machine failed before the content was written.
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

    /// Reads `count` bytes; fewer only at the end of the input.
    fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.ahead.split_to(count.min(self.ahead.len())).to_vec();
        self.input.by_ref().take((count - bytes.len()) as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The head of an entry at this position.
pub(super) fn head(body: &[u8], at: u64) -> [u8; HEAD_BYTES] {
    let length = u32::try_from(body.len()).expect("a body keeps its limit");
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let sum = sum_of_head(&head, Some(at));
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The body of a whole entry, if it is intact.
pub(super) fn body(entry: &[u8], place: Option<u64>) -> Option<&[u8]> {
    let (&head, body) = entry.split_first_chunk()?;
    let (length, sum) = read_head(head, place)?;
    (body.len() == length && crc32fast::hash(body) == sum).then_some(body)
}

/// The length and the sum of the body, unless the head is damaged or the length exceeds the limit.
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

/// The encoded length of a file for its header.
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

/// The largest entry. Resources are below the receive limits of gRPC, which are a few MiB, so a
/// larger length is damage and must not be allocated.
pub const ENTRY_LIMIT_BYTES: usize = 64 << 20;

pub(super) const HEAD_BYTES: usize = 12;

/// The start of every file. The line break reveals whether the file was treated as text.
const MAGIC: [u8; 8] = *b"xdsgood\n";

/// The version of the format. It increases when older programs cannot read a file.
const FORMAT: u32 = 2;

/// The start of a file, before the length.
pub(super) const MARK: [u8; 12] = mark(FORMAT);

const OLD_MARK: [u8; 12] = mark(1);

const fn mark(format: u32) -> [u8; 12] {
    let mut mark = [0; 12];
    mark.first_chunk_mut::<8>().expect("it is longer").copy_from_slice(&MAGIC);
    mark.last_chunk_mut::<4>().expect("it is longer").copy_from_slice(&format.to_le_bytes());
    mark
}

/// The size of the length and its sum.
const LENGTH_BYTES: usize = 12;

/// The position of the first entry.
pub(super) const HEADER_BYTES: u64 = (MARK.len() + LENGTH_BYTES) as u64;

/// Instead of the length: a later change could not be written, so no set in the file is proved.
pub(super) const BEHIND: u64 = u64::MAX;

const CHUNK_BYTES: usize = 8 << 10;
