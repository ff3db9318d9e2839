//! The logs of all origins, as far as the log of this store has their entries (SR9, SR11, SR18).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::checked::{self, Damaged};
use crate::clock::{Chain, Clock, Counters, Position};
use crate::engine::View;
use crate::key::stored;
use crate::log::{Head, LogEntry, StoredOrigin};
use crate::stored::ReadError;

/// Where the entries of each origin are in the log of this store.
#[derive(Debug, Default)]
pub(crate) struct Origins(BTreeMap<Box<str>, Origin>);

/// The log of one origin.
#[derive(Debug, Default)]
struct Origin {
    /// Up to where all entries are applied or skipped here.
    position: Position,
    /// Up to where compaction has forgotten them.
    floor: Position,
    /// Up to where deletions are forgotten with their records.
    deletion_floor: u64,
    region: Box<str>,
    /// Those that are kept, in the order of counters, which is that of store revisions.
    kept: VecDeque<Kept>,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    /// The first number that it is about: a skip is about several.
    first: u64,
    position: Position,
    revision: u64,
}

/// What a node with some clock lacks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lacking {
    /// The store revisions of the entries that it lacks: of each origin the first ones, in the order of
    /// counters.
    pub revisions: Vec<u64>,
    /// Origins of which it lacks more.
    pub is_behind: bool,
    /// Origins whose first entries that it lacks are forgotten here.
    pub out_of_sync: Vec<OutOfSync>,
    /// Origins whose entries differ at its position: two nodes had one id (SR8).
    pub forked: Vec<String>,
}

/// An origin of which a node lacks entries that are forgotten here (SR18).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfSync {
    /// The id of the origin.
    pub origin: String,
    /// A node that has this many entries is served.
    pub floor: u64,
    /// Whether the node lacks a deletion whose record is forgotten here, too. A merge could revive the record,
    /// so a snapshot has to replace what the node has.
    pub must_replace: bool,
}

impl Origins {
    /// What the store has to keep of the origins once it has a snapshot with this clock, which has replaced the
    /// records or was merged into them. `floors`: up to where its node may have forgotten deletions.
    pub(super) fn with_snapshot(
        &self,
        (clock, regions, floors): (&Clock, &BTreeMap<String, String>, Option<&Counters>),
        (own, has_replaced): (&str, bool),
    ) -> Vec<(Box<str>, StoredOrigin)> {
        let mut after = Vec::new();
        for (id, at) in clock.iter().filter(|(id, _)| *id != own || has_replaced) {
            let here = self.position(id);
            if at.counter > here.counter || has_replaced {
                // SR18: what is forgotten there is not known here, either.
                let forgotten =
                    floors.map_or(at.counter, |floors| floors.get(id).copied().unwrap_or_default());
                let known = self.0.get(id).map_or(0, |origin| origin.deletion_floor);
                let region = regions.get(id).map_or("", String::as_str);
                let floor = forgotten.max(known).min(at.counter);
                after.push((id.into(), StoredOrigin::new(at, at, floor, region)));
            }
        }
        let dropped = self.0.keys().filter(|id| has_replaced && clock.get(id).counter == 0);
        after.extend(dropped.map(|id| (id.clone(), StoredOrigin::default())));
        after
    }

    /// A snapshot has come: the same, once it is durable. After one that replaced the records, no entry of
    /// before is given to others.
    pub(super) fn follow(&mut self, after: Vec<(Box<str>, StoredOrigin)>, has_replaced: bool) {
        if has_replaced {
            self.0.clear();
        }
        for (id, StoredOrigin { counter, chain, deletion_floor, region, .. }) in after {
            let position = Position { counter, chain: Chain::from_wire(&chain).unwrap_or_default() };
            let (region, kept) = (region.into(), VecDeque::new());
            self.0.insert(id, Origin { position, floor: position, deletion_floor, region, kept });
        }
    }

    /// The revisions of entries that a snapshot with this clock does not cover (SR21).
    pub(super) fn uncovered(&self, clock: &Clock) -> Vec<u64> {
        let mut uncovered = Vec::new();
        for (id, origin) in &self.0 {
            let at = clock.get(id);
            let covered = origin.kept.partition_point(|kept| kept.position.counter <= at.counter);
            let last = covered.checked_sub(1).map(|last| origin.kept[last].position);
            let is_forked = last.is_some_and(|last| last.counter == at.counter && last.chain != at.chain);
            let first = if is_forked { 0 } else { covered };
            uncovered.extend(origin.kept.range(first..).map(|kept| kept.revision));
        }
        uncovered
    }

    /// Whether a node with these entries lacks a deletion whose record is forgotten here.
    pub(super) fn lacks_deletions(&self, counters: &Counters) -> bool {
        let at = |id: &str| counters.get(id).copied().unwrap_or_default();
        self.0.iter().any(|(id, origin)| at(id) < origin.deletion_floor)
    }

    /// Whether entries are forgotten here that a snapshot with this clock does not cover.
    pub(super) fn has_forgotten(&self, clock: &Clock) -> bool {
        self.0.iter().any(|(id, origin)| origin.floor.counter > clock.get(id).counter)
    }

    /// The revisions of the entries of an origin that are kept.
    pub(super) fn kept(&self, origin: &str) -> impl Iterator<Item = u64> {
        self.0.get(origin).into_iter().flat_map(|origin| origin.kept.iter().map(|kept| kept.revision))
    }

    /// The origins of a store.
    pub(super) fn load(view: &dyn View, head: &Head) -> Result<Self, ReadError> {
        let mut origins = Self::default();
        let mut failed: Option<Damaged> = None;
        let mut each = |stored_key: &[u8], value: Bytes| match origins.load_one(stored_key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(damaged) => {
                failed = Some(damaged);
                ControlFlow::Break(())
            }
        };
        // SR21: older entries are not those of a log that others can follow from here.
        let first = stored::log(head.replaced_at + 1);
        for (from, to) in [stored::ORIGINS, (&*first, stored::LOG.1)] {
            view.range(from, to, &mut |stored_key, value| each(stored_key, value.bytes))?;
        }
        failed.map_or(Ok(()), Err)?;
        origins.0.values_mut().for_each(Origin::raise_floor);
        origins.0.entry(head.node.as_str().into()).or_default().position = own(head);
        Ok(origins)
    }

    fn load_one(&mut self, stored_key: &[u8], value: Bytes) -> Result<(), Damaged> {
        let damaged = || Damaged { key: Bytes::copy_from_slice(stored_key) };
        match stored::parse_origin(stored_key) {
            Some(origin) => {
                let StoredOrigin { counter, chain, floor, floor_chain, deletion_floor, region } =
                    checked::decode(stored_key, value)?;
                let position = |counter, chain: &[u8]| {
                    let chain = Chain::from_wire(chain).ok_or_else(damaged)?;
                    Ok(Position { counter, chain })
                };
                let (position, floor) = (position(counter, &chain)?, position(floor, &floor_chain)?);
                let (region, kept) = (region.into(), VecDeque::new());
                self.0.insert(origin.into(), Origin { position, floor, deletion_floor, region, kept });
            }
            None => {
                let revision = stored::parse_log(stored_key).ok_or_else(damaged)?;
                self.note(revision, &checked::decode(stored_key, value)?);
            }
        }
        Ok(())
    }

    /// Notes an entry of the log of this store.
    pub(super) fn note(&mut self, revision: u64, entry: &LogEntry) {
        // A snapshot may have brought more than the log has.
        let is_forgotten = |origin: &Origin| entry.counter <= origin.floor.counter;
        if entry.counter == 0 || self.0.get(&*entry.origin).is_some_and(is_forgotten) {
            return;
        }
        let chain = Chain::from_wire(&entry.chain).unwrap_or_default();
        let position = Position { counter: entry.counter, chain };
        let origin = match self.0.get_mut(&*entry.origin) {
            Some(origin) => origin,
            None => self.0.entry(entry.origin.as_str().into()).or_default(),
        };
        if *origin.region != *entry.region {
            origin.region = entry.region.as_str().into();
        }
        let first = entry.counter.saturating_sub(entry.skipped.max(1)) + 1;
        origin.kept.push_back(Kept { first, position, revision });
        if origin.position.counter < position.counter {
            origin.position = position;
        }
    }

    /// Revisions up to this one are forgotten.
    pub(super) fn forget(&mut self, revision: u64) {
        for origin in self.0.values_mut() {
            while let Some(kept) = origin.kept.front().filter(|kept| kept.revision <= revision) {
                origin.floor = kept.position;
                origin.kept.pop_front();
            }
        }
    }

    /// Deletions up to these numbers are forgotten with their records.
    pub(super) fn forget_deletions(&mut self, floors: &BTreeMap<Box<str>, u64>) {
        for (origin, floor) in floors {
            if let Some(of) = self.0.get_mut(origin) {
                of.deletion_floor = of.deletion_floor.max(*floor);
            }
        }
    }

    /// What the store has to keep of the origins whose floors rise if revisions up to this one, and deletions
    /// up to these numbers, are forgotten.
    pub(super) fn without<'o>(
        &'o self,
        revision: u64,
        deletions: &'o BTreeMap<Box<str>, u64>,
    ) -> impl Iterator<Item = (&'o str, StoredOrigin)> {
        self.0.iter().filter_map(move |(origin, of)| {
            let floor = of.floor_without(revision);
            let deletion_floor = deletions.get(origin).copied().unwrap_or_default().max(of.deletion_floor);
            let rises = (floor, deletion_floor) != (of.floor, of.deletion_floor);
            rises.then(|| (&**origin, StoredOrigin::new(of.position, floor, deletion_floor, &of.region)))
        })
    }

    /// The floors of all origins if revisions up to this one are forgotten.
    pub(super) fn floors_without(&self, revision: u64) -> BTreeMap<Box<str>, u64> {
        self.0.iter().map(|(origin, of)| (origin.clone(), of.floor_without(revision).counter)).collect()
    }

    /// Up to where this node has the entries of an origin.
    pub(super) fn position(&self, origin: &str) -> Position {
        self.0.get(origin).map(|origin| origin.position).unwrap_or_default()
    }

    /// All of them.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|id| &**id)
    }

    /// The nodes of a region.
    pub(super) fn of_region(&self, region: &str) -> BTreeSet<String> {
        self.0.iter().filter(|(_, origin)| *origin.region == *region).map(|(id, _)| id.to_string()).collect()
    }

    /// The region of an origin; empty if it has none, or is not known.
    pub(super) fn region(&self, origin: &str) -> &str {
        self.0.get(origin).map_or("", |origin| &origin.region)
    }

    /// What the store has to keep of an origin whose entries it has up to here.
    pub(super) fn stored(&self, origin: &str, position: Position, region: &str) -> StoredOrigin {
        let of = |origin: &Origin| (origin.floor, origin.deletion_floor);
        let (floor, deletion_floor) = self.0.get(origin).map(of).unwrap_or_default();
        StoredOrigin::new(position, floor, deletion_floor, region)
    }

    /// The last revision up to which a node with this clock lacks nothing of the log. A node that lacks what is
    /// forgotten has none.
    pub(super) fn covered(&self, counters: &Counters) -> u64 {
        let covered = self.0.iter().map(|(id, origin)| {
            let counter = counters.get(&**id).copied().unwrap_or_default();
            if counter < origin.floor.counter {
                return 0;
            }
            let lacked = origin.kept.partition_point(|kept| kept.position.counter <= counter);
            origin.kept.get(lacked).map_or(u64::MAX, |kept| kept.revision - 1)
        });
        covered.min().unwrap_or(u64::MAX)
    }

    /// Whether this node lacks nothing that a node with this clock has.
    pub(super) fn has(&self, counters: &Counters) -> bool {
        counters.iter().all(|(origin, counter)| *counter <= self.position(origin).counter)
    }

    /// Up to where this node has the entries of each origin.
    pub(super) fn clock(&self) -> Clock {
        let mut clock = Clock::default();
        let known = self.0.iter().filter(|(_, origin)| origin.position.counter > 0);
        known.for_each(|(id, origin)| clock.set(id, origin.position));
        clock
    }

    /// What a node with this clock lacks, at most so many entries of each origin (SR11, SR12), of all origins or
    /// of those of a region.
    pub(super) fn lacking(&self, clock: &Clock, limit: usize, of_region: Option<&str>) -> Lacking {
        let mut lacking = Lacking::default();
        let is_served = |origin: &Origin| of_region.is_none_or(|region| *origin.region == *region);
        for (id, origin) in self.0.iter().filter(|(_, origin)| is_served(origin)) {
            let at = clock.get(id);
            // The other one knows more, or the same.
            if at.counter > origin.position.counter {
                continue;
            }
            if at.counter < origin.floor.counter {
                lacking.out_of_sync.push(OutOfSync {
                    origin: id.to_string(),
                    floor: origin.floor.counter,
                    // A node of another region that has nothing of this one has no deleted record of it either.
                    must_replace: at.counter < origin.deletion_floor
                        && (of_region.is_none() || at.counter > 0),
                });
                continue;
            }
            let first = origin.kept.partition_point(|kept| kept.position.counter <= at.counter);
            let before = first.checked_sub(1).map_or(origin.floor, |before| origin.kept[before].position);
            if before.counter == at.counter && before.chain != at.chain {
                lacking.forked.push(id.to_string());
                continue;
            }
            let lacked = origin.kept.range(first..);
            lacking.is_behind |= lacked.len() > limit;
            lacking.revisions.extend(lacked.take(limit).map(|kept| kept.revision));
        }
        lacking
    }
}

impl Origin {
    /// The floor if revisions up to this one are forgotten.
    fn floor_without(&self, revision: u64) -> Position {
        let forgotten = self.kept.partition_point(|kept| kept.revision <= revision);
        forgotten.checked_sub(1).map_or(self.floor, |last| self.kept[last].position)
    }

    /// A backup without history says less than is forgotten.
    fn raise_floor(&mut self) {
        match self.kept.front() {
            None => self.floor = self.position,
            // The chain before the first entry is not known, so this one counts as forgotten, too.
            Some(first) if first.first > self.floor.counter + 1 => {
                self.floor = first.position;
                self.kept.pop_front();
            }
            Some(_) => {}
        }
    }
}

/// The position of this node.
fn own(head: &Head) -> Position {
    Position { counter: head.counter, chain: Chain::from_wire(&head.chain).unwrap_or_default() }
}
