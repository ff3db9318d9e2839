//! A batch that is put together.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Committed, Published, Writing};
use crate::checked;
use crate::clock::Chain;
use crate::commit::Judged;
use crate::engine::{Batch, EngineRevision, OPERATION_BYTES};
use crate::index::{Pending, Renewed};
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry, StoredRollout};
use crate::phase;
use crate::record::{EntryId, RecordState};
use crate::region::Policies;

impl Writing {
    /// An empty batch on this head.
    pub(super) fn new(head: Head, head_revision: Option<EngineRevision>, number: u64) -> Self {
        let compares = vec![(stored::HEAD.into(), head_revision)];
        Self {
            batch: Batch { compares, writes: Vec::new() },
            bytes: 0,
            number,
            head,
            pending: Pending::default(),
            collected: Vec::new(),
            published: Vec::new(),
            positions: BTreeMap::new(),
            regions: BTreeMap::new(),
            deletion_floors: BTreeMap::new(),
            dropped_nodes: BTreeSet::new(),
            lost: Vec::new(),
            journaled: Vec::new(),
            merged: Vec::new(),
            commits: Vec::new(),
            requests: Vec::new(),
            fetching: <_>::default(),
            parked: Vec::new(),
            compacted: false,
            rollout_of_snapshot: None,
            alone: None,
        }
    }

    /// The operations and bytes of the batch with one more commit and the head.
    pub(super) fn size_with(&self, judged: &Judged, message_bytes: usize) -> (usize, usize) {
        let records = judged.pending.states.len() + judged.pending.renewed.len();
        // A conflict may forget another one.
        let lost = self.lost.iter().chain(&judged.pending.lost);
        let operations = self.batch.writes.len() + records + 2 + 2 * lost.clone().count();
        let lost = lost.map(|lost| lost.loser.encoded_len() + CONFLICT_BYTES).sum::<usize>();
        let states = judged.pending.states.values().map(Message::encoded_len).sum::<usize>();
        let renewed =
            judged.pending.renewed.values().map(|renewed| renewed.state.encoded_len()).sum::<usize>();
        let changes = judged.changes.iter().map(|change| 2 * change.encoded_len()).sum::<usize>();
        let ending = judged.pending.states.values().filter(|state| is_ending(state));
        let deleted = ending.count() * DELETION_BYTES;
        let counted = (self.batch.compares.len() + operations) * OPERATION_BYTES;
        let bytes = states + renewed + deleted + changes + lost + message_bytes;
        (operations, self.bytes + bytes + counted + HEAD_BYTES)
    }

    /// Adds a judged commit, unless it changes nothing (ST12, ST64).
    pub(super) fn add(&mut self, judged: Judged, entry: LogEntry, server: u64) -> Committed {
        let Judged { pending, changes, results, effects, warnings, is_replicated } = judged;
        for (key, Renewed { at, state, local }) in &pending.renewed {
            let version = stored::record(key, *at);
            let value = checked::encode_both(&version, state, local);
            self.write(version, value);
        }
        if changes.is_empty() && self.head.revision > 0 {
            self.pending.extend(pending);
            return Committed { revision: self.head.revision, results, effects, warnings };
        }
        if is_replicated {
            self.count(&pending);
        }
        let entry = LogEntry {
            origin: self.head.node.clone(),
            counter: if is_replicated { self.head.counter } else { 0 },
            chain: if is_replicated { self.head.chain.clone() } else { bytes::Bytes::new() },
            time: self.head.time,
            region: self.head.region.clone(),
            changes,
            server,
            ..entry
        };
        let revision = self.log(pending, entry);
        Committed { revision, results, effects, warnings }
    }

    /// Adds an entry of another node, with what it makes of the records here (SR13). It has a revision also
    /// if it changes nothing: this node gives it to others (SR7).
    pub(super) fn add_merged(
        &mut self,
        judged: Judged,
        entry: LogEntry,
        originals: &[(RecordKey, RecordState)],
        server: u64,
    ) {
        for (key, state) in originals {
            let at = stored::original(self.head.revision + 1, key);
            let value = checked::encode(&at, state);
            self.write(at, value);
        }
        let originals = originals.iter().map(|(key, _)| key.to_proto()).collect();
        let merged_at = self.head.time;
        self.log(judged.pending, LogEntry { changes: judged.changes, originals, server, merged_at, ..entry });
    }

    /// Adds the states of records and the entry of the log that changed them. Their revision.
    fn log(&mut self, mut pending: Pending, entry: LogEntry) -> u64 {
        self.head.revision += 1;
        let revision = self.head.revision;
        let entry = LogEntry { batch: self.number, ..entry };
        if entry.rollout.is_some() {
            let of_snapshot = self.rollout_of_snapshot.take();
            let (origin, counter) = of_snapshot.unwrap_or_else(|| (entry.origin.clone(), entry.counter));
            let rollout = entry.rollout.clone();
            self.head.rollout = Some(StoredRollout { revision, rollout, origin, counter });
        }
        let Pending { states, ended_by_date, deleted_by, .. } = &mut pending;
        for (key, state) in states.iter().filter(|(key, _)| is_of_others(key, ended_by_date)) {
            // A snapshot does not say which entries made its deletions.
            if is_ending(state) && entry.counter > 0 {
                let by = || EntryId { origin: entry.origin.clone(), counter: entry.counter };
                deleted_by.entry(key.clone()).or_insert_with(by);
            }
        }
        let mut changed = Vec::with_capacity(entry.changes.len());
        self.head.has_policies |= pending.states.keys().any(Policies::is_policy);
        for (key, state) in &pending.states {
            let version = stored::record(key, revision);
            let value = checked::encode_both(&version, state, &pending.local(key, &self.head));
            self.write(version, value);
            changed.push((key.clone(), state.clone()));
        }
        let shown = std::mem::take(&mut pending.shown);
        self.lost.append(&mut pending.lost);
        self.pending.extend(pending);
        let at = stored::log(revision);
        let value = checked::encode(&at, &entry);
        self.write(at, value);
        self.published.push(Published { revision, entry, changed, shown });
        revision
    }

    /// The next entry of this node (SR4), with what other nodes get of the commit.
    fn count(&mut self, pending: &Pending) {
        let states = pending.states.iter().filter(|(key, _)| is_of_others(key, &pending.ended_by_date));
        let states = states.map(|(_, state)| state);
        let chain = Chain::from_wire(&self.head.chain).unwrap_or_default();
        self.head.counter += 1;
        self.head.chain = chain.after(&self.head.node, self.head.counter, states).to_wire();
    }

    pub(super) fn write(&mut self, key: bytes::Bytes, value: bytes::Bytes) {
        self.bytes += key.len() + value.len();
        self.batch.writes.push((key, Some(value)));
    }

    pub(super) fn delete(&mut self, key: bytes::Bytes) {
        self.bytes += key.len();
        self.batch.writes.push((key, None));
    }

    /// Adds the head, which each batch writes.
    pub(super) fn seal(&mut self) {
        let head = checked::encode(stored::HEAD, &self.head);
        self.write(stored::HEAD.into(), head);
        debug_assert!(self.has_each_key_once(), "an engine may refuse the batch");
    }

    fn has_each_key_once(&self) -> bool {
        let keys: BTreeSet<_> = self.batch.writes.iter().map(|(key, _)| key).collect();
        keys.len() == self.batch.writes.len()
    }
}

/// Whether other nodes get what a commit makes of a record (SR5).
fn is_of_others(key: &RecordKey, ended_by_date: &BTreeMap<RecordKey, proto::State>) -> bool {
    !phase::is_local(key) && !ended_by_date.contains_key(key)
}

/// Whether a record is deleted, or will be once nothing blocks it.
fn is_ending(state: &RecordState) -> bool {
    matches!(state.lifecycle(), proto::State::Deleted | proto::State::Deleting)
}

/// More than the head and the keys of one log entry take.
const HEAD_BYTES: usize = 1 << 10;
/// More than what the journal keeps with a state, but for the key and what it quotes of another one.
const CONFLICT_BYTES: usize = 40 << 10;
/// More than what a store keeps with a deleted record, or one that is being deleted.
const DELETION_BYTES: usize = 256;
