//! One answer to a pull, whose parts become whole entries in the order of their counters.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::clock::{Chain, Clock};
use crate::entry::Foreign;
use crate::number;

/// A hole in the entries of an origin: what follows it in this round is dropped (SR14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Whose entries they are.
    pub origin: String,
    /// The counter that should have come.
    pub expected: u64,
    /// The counter that came.
    pub found: u64,
}

/// An answer that no node of this version gives; the call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// An id is empty or too long.
    #[error("an id has no bytes, or more than 64")]
    Id,
    /// A chain has a wrong length.
    #[error("a chain has a length other than 16 bytes")]
    Chain,
    /// A number is 0 or above all that a node can reach, or a range ends before it begins.
    #[error("a counter is out of range")]
    Counter,
    /// The rest of an entry does not follow its beginning, or its beginning is missing.
    #[error("the parts of an entry do not follow each other")]
    Parts,
    /// More than was requested.
    #[error("the answer is larger than requested")]
    TooLarge,
    /// A message lacks a field.
    #[error("a field is missing")]
    Missing,
}

/// The state of one answer.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Up to where the entries of an origin came in this round.
    reached: BTreeMap<String, u64>,
    /// SR54: origins whose further entries are dropped.
    dropped: BTreeSet<String>,
    /// Some of them because the peer left out a part.
    has_left: bool,
    /// An entry that the next message continues.
    open: Option<proto::Entry>,
    bytes: usize,
}

impl Round {
    /// What the next message brings, for a node with this clock. What the peer left out counts as missing unless this
    /// node takes parts (SG25): it comes with a later round, or is left out then.
    pub(super) fn part(
        &mut self,
        (clock, takes_parts): (&Clock, bool),
        entries: Vec<proto::Entry>,
        skips: Vec<proto::Skip>,
        limit: usize,
    ) -> Result<(Vec<Foreign>, Vec<Gap>), Malformed> {
        if self.is_beyond(clock, &entries, &skips) {
            return Err(Malformed::TooLarge);
        }
        let mut of_origins: BTreeMap<String, Vec<proto::Skip>> = BTreeMap::new();
        for skip in skips {
            check(&skip.origin, skip.last, &skip.chain)?;
            if skip.first == 0 || skip.first > skip.last {
                return Err(Malformed::Counter);
            }
            of_origins.entry(skip.origin.clone()).or_default().push(skip);
        }
        let (mut pieces, mut gaps) = (Vec::new(), Vec::new());
        let last = entries.len().checked_sub(1);
        for (at, part) in entries.into_iter().enumerate() {
            self.bytes = self.bytes.saturating_add(part.encoded_len());
            if self.bytes > limit {
                return Err(Malformed::TooLarge);
            }
            let Some(entry) = self.join(part, Some(at) == last)? else { continue };
            if let Some(skips) = of_origins.get_mut(&entry.origin) {
                let before = skips.iter().take_while(|skip| skip.first <= entry.counter).count();
                for skip in skips.drain(..before) {
                    self.skip((clock, takes_parts), skip, &mut pieces, &mut gaps);
                }
            }
            if entry.is_partial && !takes_parts {
                self.leave(&entry.origin);
            }
            if self.follows(clock, &entry.origin, entry.counter, entry.counter, &mut gaps) {
                pieces.push(Foreign::Entry(entry));
            }
        }
        for skip in of_origins.into_values().flatten() {
            self.skip((clock, takes_parts), skip, &mut pieces, &mut gaps);
        }
        Ok((pieces, gaps))
    }

    /// Whether these would make the clock of this node too large.
    fn is_beyond(&self, clock: &Clock, entries: &[proto::Entry], skips: &[proto::Skip]) -> bool {
        let named = entries.iter().map(|entry| &entry.origin).chain(skips.iter().map(|skip| &skip.origin));
        let origins: BTreeSet<_> = named.chain(self.reached.keys()).collect();
        let new = origins.iter().filter(|origin| clock.get(origin).counter == 0).count();
        new > 0 && new + clock.iter().count() > super::known::ORIGINS
    }

    /// SR13: an entry in several messages is whole with the last one.
    fn join(&mut self, part: proto::Entry, is_last: bool) -> Result<Option<proto::Entry>, Malformed> {
        check(&part.origin, part.counter, &part.chain)?;
        let more = part.more;
        let mut entry = match self.open.take() {
            None => part,
            Some(open) if (&open.origin, open.counter) != (&part.origin, part.counter) => {
                return Err(Malformed::Parts);
            }
            Some(mut open) => {
                open.states.extend(part.states);
                open.is_partial |= part.is_partial;
                open
            }
        };
        if more && !is_last {
            return Err(Malformed::Parts);
        }
        if more {
            self.open = Some(entry);
            return Ok(None);
        }
        entry.more = false;
        Ok(Some(entry))
    }

    fn skip(
        &mut self,
        (clock, takes_parts): (&Clock, bool),
        skip: proto::Skip,
        pieces: &mut Vec<Foreign>,
        gaps: &mut Vec<Gap>,
    ) {
        if !takes_parts {
            self.leave(&skip.origin);
        }
        if self.follows(clock, &skip.origin, skip.first, skip.last, gaps) {
            pieces.push(Foreign::Skip(skip));
        }
    }

    /// Whether counters continue those of their origin and bring something new. SR14, SR54: on a gap the
    /// rest of this origin is dropped, and no other origin.
    fn follows(&mut self, clock: &Clock, origin: &str, first: u64, last: u64, gaps: &mut Vec<Gap>) -> bool {
        let reached = self.reached.get(origin).copied().unwrap_or_default().max(clock.get(origin).counter);
        if self.dropped.contains(origin) || last <= reached {
            return false;
        }
        if first > reached + 1 {
            gaps.push(Gap { origin: origin.to_owned(), expected: reached + 1, found: first });
            self.drop_rest(origin);
            return false;
        }
        self.reached.insert(origin.to_owned(), last);
        true
    }

    /// SR15, SR54: the store stopped at an entry of this origin.
    pub(super) fn drop_rest(&mut self, origin: &str) {
        self.dropped.insert(origin.to_owned());
    }

    pub(super) fn leave(&mut self, origin: &str) {
        self.drop_rest(origin);
        self.has_left = true;
    }

    /// Whether the peer left out something that counts as missing.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether an entry was begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

fn check(origin: &str, counter: u64, chain: &[u8]) -> Result<(), Malformed> {
    check_id(origin)?;
    if counter == 0 || counter > number::LAST {
        return Err(Malformed::Counter);
    }
    let is_whole = !chain.is_empty() && Chain::from_wire(chain).is_some();
    if is_whole { Ok(()) } else { Err(Malformed::Chain) }
}

/// Checks the id of a node.
pub(super) fn check_id(id: &str) -> Result<(), Malformed> {
    if (1..=ID_BYTES).contains(&id.len()) { Ok(()) } else { Err(Malformed::Id) }
}

/// Reads a clock of another node.
pub(super) fn read_clock(clock: &BTreeMap<String, proto::Position>) -> Result<Clock, Malformed> {
    if clock.len() > super::known::ORIGINS {
        return Err(Malformed::TooLarge);
    }
    clock.keys().try_for_each(|origin| check_id(origin))?;
    if clock.values().any(|position| position.counter > number::LAST) {
        return Err(Malformed::Counter);
    }
    Clock::from_wire(clock).ok_or(Malformed::Chain)
}

const ID_BYTES: usize = 64;
