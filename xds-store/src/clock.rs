//! How far the logs of nodes were followed: positions, chains and clocks (SR8, SR9).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

/// A digest over the entries of an origin up to a counter (SR8, SR53).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Chain([u8; 16]);

/// Everything of an origin up to a counter, with the chain at it. The default is the start of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The number of the last entry; 0 before the first.
    pub counter: u64,
    /// The chain at it.
    pub chain: Chain,
}

/// Of each origin, up to where all of its entries are applied or skipped (SR9). An origin that is
/// missing counts as 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<Box<str>, Position>);

impl Chain {
    /// The chain behind an entry, whose states are given as its origin wrote them (SR53).
    #[must_use]
    pub fn after<'s>(
        self,
        origin: &str,
        counter: u64,
        states: impl IntoIterator<Item = &'s proto::RecordState>,
    ) -> Self {
        let entry = proto::Entry { origin: origin.to_owned(), counter, ..proto::Entry::default() };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(&entry.encode_to_vec());
        // The states are the last field, and an entry may have 64 MiB of them.
        let mut encoded = Vec::new();
        for state in states {
            encoded.clear();
            prost::encoding::message::encode(STATES, state, &mut encoded);
            hasher.update(&encoded);
        }
        Self(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }

    /// The chain of its form on the wire, which has 16 bytes; no bytes are the start of a log.
    #[must_use]
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [] => Some(Self::default()),
            _ => bytes.try_into().ok().map(Self),
        }
    }

    /// Its form on the wire.
    #[must_use]
    pub fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

/// Of each origin, up to where a node has its entries.
pub type Counters = BTreeMap<String, u64>;

impl Clock {
    /// The position of an origin.
    #[must_use]
    pub fn get(&self, origin: &str) -> Position {
        self.0.get(origin).copied().unwrap_or_default()
    }

    /// Moves the position of an origin.
    pub fn set(&mut self, origin: &str, position: Position) {
        match self.0.get_mut(origin) {
            Some(known) => *known = position,
            None => drop(self.0.insert(origin.into(), position)),
        }
    }

    /// The origins with their positions, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Position)> + Clone {
        self.0.iter().map(|(origin, position)| (&**origin, *position))
    }

    /// The counters alone.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.iter().map(|(origin, at)| (origin.to_owned(), at.counter)).collect()
    }

    /// Whether nothing that the other one has is missing here.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.iter().all(|(origin, position)| position.counter <= self.get(origin).counter)
    }

    /// The clock of its form on the wire; `None` if a chain has another length than 16 bytes.
    #[must_use]
    pub fn from_wire(clock: &BTreeMap<String, proto::Position>) -> Option<Self> {
        let position = |position: &proto::Position| {
            Some(Position { counter: position.counter, chain: Chain::from_wire(&position.chain)? })
        };
        clock
            .iter()
            .map(|(origin, at)| Some((origin.as_str().into(), position(at)?)))
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Its form on the wire.
    #[must_use]
    pub fn to_wire(&self) -> BTreeMap<String, proto::Position> {
        let position = |at: Position| proto::Position { counter: at.counter, chain: at.chain.to_wire() };
        self.iter().map(|(origin, at)| (origin.to_owned(), position(at))).collect()
    }
}

/// The number of [`proto::Entry::states`].
const STATES: u32 = 8;

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sr53_a_chain_covers_origin_counter_and_states_and_all_entries_before() {
        let state = |generation| proto::RecordState { generation, ..Default::default() };
        let one = Chain::default().after("a", 1, &[state(1)]);
        let two = one.after("a", 2, &[state(2)]);
        let others = [
            Chain::default().after("b", 1, &[state(1)]),
            Chain::default().after("a", 2, &[state(1)]),
            Chain::default().after("a", 1, &[state(2)]),
            Chain::default().after("a", 1, &[]),
            Chain::default().after("a", 2, &[state(2)]),
        ];
        assert!(others.iter().all(|other| *other != one && *other != two), "{others:?}");
        // Peers of other versions compute the same.
        assert_eq!(format!("{one:?}"), "0ee13fab5ee2b0ae5f79d47741a012e4");
        assert_eq!(Chain::from_wire(&two.to_wire()), Some(two));
        assert_eq!((Chain::from_wire(b""), Chain::from_wire(b"short")), (Some(Chain::default()), None));
    }

    #[test]
    fn sr9_sr11_a_clock_covers_another_one_if_it_lacks_nothing_of_it() {
        let clock = |positions: &[(&str, u64)]| {
            let mut clock = Clock::default();
            for (origin, counter) in positions {
                clock.set(origin, Position { counter: *counter, chain: Chain::default() });
            }
            clock
        };
        let here = clock(&[("a", 3), ("b", 1)]);
        assert!(here.covers(&clock(&[("a", 3)])) && here.covers(&clock(&[("c", 0)])));
        assert!(!here.covers(&clock(&[("a", 4)])) && !here.covers(&clock(&[("c", 1)])));
        assert_eq!(Clock::from_wire(&here.to_wire()), Some(here));
    }
}
