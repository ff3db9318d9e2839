//! Entries of other nodes, merged into the store (SR9, SR13 to SR15).

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};

use xds_proto::xds::store::v1 as proto;

use super::mending::Mended;
use super::{Action, Store, Ticket, Writing};
use crate::checked;
use crate::clock::{Counters, Position};
use crate::commit::{Judged, MergedEntry, Refused};
use crate::conflict::Conflict;
use crate::entry::{Foreign, Incoming};
use crate::key::{RecordKey, stored};
use crate::log::LogEntry;
use crate::record::RecordState;
use crate::region::Policies;
use crate::stored::Stored;

/// What became of entries that were given to the store.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merged {
    /// Origins of which an entry, and all behind it, were not taken.
    pub stopped: BTreeMap<String, Stopped>,
    /// Of states of a peer: how many records were other ones here, and were mended (SR51).
    pub mended: u64,
    /// How many of these were lost here: no policy explains that they were missing (SG25).
    pub lost: u64,
}

/// Why the entries of an origin were not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// SR14: entries before it are missing.
    Gap {
        /// The number that has to come next.
        next: u64,
        /// The number that came.
        found: u64,
    },
    /// SR54: its chain does not follow from the entry before: two nodes had one id.
    Forked {
        /// Its number.
        counter: u64,
    },
    /// SR28: it is one of this node, which has no such entry.
    Own {
        /// Its number.
        counter: u64,
    },
    /// SG25: a part of it is left out by policies that are not those of this node any more.
    Policies,
    /// SR15: it can never be right, or it and the state here have no merge.
    Invalid {
        /// Its number.
        counter: u64,
        /// What is wrong, for people.
        reason: String,
    },
}

/// Entries that wait.
#[derive(Debug)]
pub(super) struct Merging {
    pub(super) ticket: Ticket,
    pub(super) entries: VecDeque<Foreign>,
    /// The policies by which parts of them are left out; `None`: any.
    pub(super) policies: Option<Counters>,
    /// States of a peer that was compared (SR51).
    pub(super) states: VecDeque<RecordState>,
    /// What that peer had of each origin; `None`: all that matters.
    pub(super) of_peer: Option<Counters>,
    pub(super) merged: Merged,
}

impl Merging {
    pub(super) fn new(ticket: Ticket) -> Self {
        Self {
            ticket,
            entries: VecDeque::new(),
            policies: None,
            states: VecDeque::new(),
            of_peer: None,
            merged: Merged::default(),
        }
    }
}

impl Store {
    /// Adds entries that wait to the batch, as far as it has room. Of each request, the answer follows
    /// once all of it is durable.
    pub(super) fn add_entries(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
    ) -> Result<(), Refused> {
        while let Some(mut merging) = self.merging.pop_front() {
            let takes_parts = OnceCell::new();
            let takes_parts = |of: &Option<Counters>| {
                let is_same = |of: &Counters| *of == self.index.policies().commits_for(&self.head.region);
                *takes_parts.get_or_init(|| of.as_ref().is_none_or(is_same))
            };
            while let Some(entry) = merging.entries.pop_front() {
                let origin = entry.origin();
                if merging.merged.stopped.contains_key(origin) {
                    continue;
                }
                if entry.has_part() && !takes_parts(&merging.policies) {
                    merging.merged.stopped.insert(origin.to_owned(), Stopped::Policies);
                    continue;
                }
                let added = self.add_entry(writing, stored, (&entry, &merging.entries), now);
                match added {
                    Ok(Added::Yes) => {}
                    Ok(Added::Not(stopped)) => _ = merging.merged.stopped.insert(origin.to_owned(), stopped),
                    Ok(Added::Later) | Err(_) => {
                        merging.entries.push_front(entry);
                        self.merging.push_front(merging);
                        return added.map(|_| ());
                    }
                }
            }
            while let Some(state) = merging.states.pop_front() {
                let added = self.add_mended(writing, stored, (&state, merging.of_peer.as_ref()), now);
                match added {
                    Ok(Mended::Yes { was_lost }) => {
                        merging.merged.mended += 1;
                        merging.merged.lost += u64::from(was_lost);
                    }
                    Ok(Mended::No) => {}
                    Ok(Mended::Later) | Err(_) => {
                        merging.states.push_front(state);
                        self.merging.push_front(merging);
                        return added.map(|_| ());
                    }
                }
            }
            writing.merged.push((merging.ticket, merging.merged));
        }
        Ok(())
    }

    fn add_entry(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        (entry, later): (&Foreign, &VecDeque<Foreign>),
        now: i64,
    ) -> Result<Added, Refused> {
        let origin = entry.origin();
        let before = writing.positions.get(origin).copied().unwrap_or_else(|| self.origins.position(origin));
        if origin == self.head.node && entry.last() > writing.head.counter {
            return Ok(Added::Not(Stopped::Own { counter: entry.last() }));
        }
        // It came by another way.
        if origin == self.head.node || entry.last() <= before.counter {
            return Ok(Added::Yes);
        }
        let invalid = |reason| Added::Not(Stopped::Invalid { counter: entry.last(), reason });
        let incoming = match entry.parse() {
            Ok(incoming) => incoming,
            Err(reason) => return Ok(invalid(reason)),
        };
        if let Some(stopped) = misplaced(&incoming, before) {
            return Ok(Added::Not(stopped));
        }
        let is_full = writing.published.len() >= AT_ONCE || writing.bytes > AT_ONCE_BYTES;
        let judging = self.judging(writing, stored, now);
        if is_full || judging.has_to_wait_for_rules(&incoming.states) {
            return Ok(Added::Later);
        }
        let MergedEntry { mut judged, originals } = judging.merge(&incoming.states)?;
        let outside = outside(&incoming, &judged, self.index.policies());
        judged.pending.lost.extend(outside);
        judged.pending.lost.retain(|lost| !later.iter().any(|later| deletes(later, &lost.loser)));
        let beside: usize = originals.iter().map(|(_, state)| prost::Message::encoded_len(state)).sum();
        let fits = |writing: &Writing, judged: &Judged| {
            let (operations, bytes) = writing.size_with(judged, incoming.log.message.len());
            self.check_size(operations + originals.len() + 1, bytes + beside)
        };
        let is_alone = writing.batch.writes.is_empty();
        if is_alone && fits(writing, &judged).is_err() {
            // The entry counts more than the journal.
            judged.pending.lost.clear();
        }
        if let Err(refused) = fits(writing, &judged) {
            return Ok(if is_alone { invalid(refused.message) } else { Added::Later });
        }
        writing.positions.insert(origin.into(), incoming.position);
        writing.regions.insert(origin.into(), incoming.log.region.clone());
        writing.add_merged(judged, incoming.log, &originals, self.config.server);
        Ok(Added::Yes)
    }

    /// Adds the positions of the origins whose entries the batch has, which are durable with them (SR9).
    pub(super) fn add_positions(&self, writing: &mut Writing) {
        for (origin, position) in std::mem::take(&mut writing.positions) {
            let at = stored::origin(&origin);
            let region = writing.regions.get(&origin).map_or("", String::as_str);
            let value = checked::encode(&at, &self.origins.stored(&origin, position, region));
            writing.write(at, value);
        }
    }

    /// The store takes no entries now.
    pub(super) fn refuse_entries(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        let waiting = std::mem::take(&mut self.merging).into_iter();
        actions.extend(waiting.map(|merging| Action::Merged(merging.ticket, Err(refused.clone()))));
    }
}

/// How many entries, and bytes, of other nodes a batch has, so that commits do not wait for long.
pub(super) const AT_ONCE: usize = 1_000;
pub(super) const AT_ONCE_BYTES: usize = 4 << 20;

enum Added {
    Yes,
    /// The batch has no room for it.
    Later,
    Not(Stopped),
}

/// Whether an entry ends the incarnation of a state. Then a creation of its key that came before was one that
/// followed this deletion, and nothing is lost.
fn deletes(entry: &Foreign, state: &RecordState) -> bool {
    let Foreign::Entry(entry) = entry else { return false };
    let is_end = |other: &RecordState| {
        (&other.key, other.incarnation) == (&state.key, state.incarnation)
            && other.lifecycle() == proto::State::Deleted
    };
    entry.states.iter().any(is_end)
}

/// SG28: what an entry changed that another region than that of its origin owns.
fn outside(incoming: &Incoming, judged: &Judged, policies: &Policies) -> Vec<Conflict> {
    if policies.is_empty() {
        return Vec::new();
    }
    let LogEntry { origin, region, .. } = &incoming.log;
    let changed = incoming.states.iter().filter(|(key, _)| judged.pending.states.contains_key(key));
    let of = |(key, state): &(RecordKey, RecordState)| {
        let owner = policies.owner_of(key).filter(|owner| owner != region)?;
        Some(Conflict::of_region(state, origin, region, owner))
    };
    changed.filter_map(of).collect()
}

/// SR14, SR54.
fn misplaced(incoming: &Incoming, before: Position) -> Option<Stopped> {
    let (next, counter) = (before.counter + 1, incoming.position.counter);
    // A skip may begin with numbers that another one has skipped.
    if incoming.first > next {
        return Some(Stopped::Gap { next, found: incoming.first });
    }
    let states = || incoming.states.iter().map(|(_, state)| state);
    let follows = !incoming.is_verifiable
        || before.chain.after(&incoming.log.origin, counter, states()) == incoming.position.chain;
    (!follows).then_some(Stopped::Forked { counter })
}
