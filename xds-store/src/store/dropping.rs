//! The background work of policies: copies that are no longer for the region of this node go here, and nowhere else
//! (SG27), in paced steps.

use std::ops::ControlFlow;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::{Store, Writing};
use crate::commit::{Judged, Refused};
use crate::engine::EngineError;
use crate::index::{Index, Pending};
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry};
use crate::record::RecordState;
use crate::region::Policies;
use crate::stored::Stored;
use crate::time::SECOND;

/// A walk over all records.
#[derive(Debug, Default)]
pub(super) struct Dropping {
    /// Behind which stored key it goes on; `None`: there is nothing to do.
    next: Option<Bytes>,
    /// It begins again when it has ended. A walk that drops something is followed by another one.
    again: bool,
    at: i64,
    /// Copies that the region of their owner does not hold, with their store revisions (SR51).
    removed: Vec<(RecordKey, u64)>,
}

impl Dropping {
    /// Policies were read, or have changed, or a record came that is not for this region.
    pub(super) fn begin(&mut self, policies: &Policies) {
        self.again = self.next.is_some();
        if !self.again && !policies.is_empty() {
            self.next = Some(Bytes::from_static(stored::RECORDS.0));
        }
    }

    fn go_on(&mut self, next: Option<Bytes>) {
        let again = next.is_none() && std::mem::take(&mut self.again);
        self.next = if again { Some(Bytes::from_static(stored::RECORDS.0)) } else { next };
    }

    /// A region does not hold these records.
    pub(super) fn remove(
        &mut self,
        region: &str,
        records: Vec<proto::RecordDigest>,
        index: &Index,
        head: &Head,
    ) {
        let is_copy = |key: &RecordKey| {
            // A region's own records are never changed.
            region != head.region && index.policies().owner_of(key) == Some(region)
        };
        for proto::RecordDigest { key, revision } in records {
            let key = key.and_then(|key| RecordKey::parse(&key).ok()).filter(is_copy);
            let Some((key, record)) = key.and_then(|key| Some((key.clone(), index.get(&key)?))) else {
                continue;
            };
            if record.revision.to_bytes() == revision[..] && !record.is_deleted() {
                self.removed.push((key, record.changed_at));
            }
        }
    }

    pub(super) fn delay(&mut self, until: i64) {
        self.at = self.at.max(until);
    }
}

impl Store {
    /// When the next step is due.
    pub(super) fn drop_due(&self) -> Option<i64> {
        let is_due = self.dropping.next.is_some() || !self.dropping.removed.is_empty();
        is_due.then(|| self.dropping.at.max(self.head.time))
    }

    /// Whether a batch brought records that are not for this region: nodes that know older policies have them still.
    pub(super) fn has_strays(&self, pending: &Pending) -> bool {
        let (policies, region) = (self.index.policies(), &self.head.region);
        let is_live = |state: &RecordState| state.lifecycle() != proto::State::Deleted;
        !policies.is_empty()
            && pending.states.iter().any(|(key, state)| is_live(state) && !policies.keeps(key, region))
    }

    /// Adds the step that is due to an empty batch.
    pub(super) fn add_dropped(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        if self.dropping.at <= now && !self.dropping.removed.is_empty() {
            return self.add_removed(writing, stored, now);
        }
        let Some(from) = self.dropping.next.clone().filter(|_| self.dropping.at <= now) else { return };
        let limit = STEP.min(self.config.engine.operations.saturating_sub(4)).max(1);
        let mut bytes = self.config.engine.bytes / 4;
        self.dropping.at = now.saturating_add(STEP_EVERY);
        loop {
            let Ok((keys, next)) = self.to_drop(stored, &from, (limit, bytes)) else {
                return self.dropping.delay(now.saturating_add(TRIED_AGAIN));
            };
            if keys.is_empty() {
                return self.dropping.go_on(next);
            }
            let judged = self.dropped_copies(writing, stored, &keys, now);
            let is_alone = keys.len() == 1;
            match judged.and_then(|judged| {
                let alone = Writing::new(self.head.clone(), None, 0);
                let (operations, bytes) = alone.size_with(&judged, 0);
                self.check_size(operations, bytes).map(|()| judged)
            }) {
                Ok(judged) => {
                    let entry = LogEntry { identity: "regions".to_owned(), ..LogEntry::default() };
                    writing.add(judged, entry, self.config.server);
                    // The engine may refuse this batch.
                    self.dropping.again = true;
                    return self.dropping.go_on(next);
                }
                Err(_) if !is_alone => bytes = 0,
                Err(_) => return self.dropping.delay(now.saturating_add(TRIED_AGAIN)),
            }
        }
    }

    /// Removes copies that the region of their owner does not hold. What a forgotten node wrote stays: it may be
    /// nowhere else, and no node gives it to the owner (SG26).
    fn add_removed(&mut self, writing: &mut Writing, stored: &Stored<'_>, now: i64) {
        self.dropping.at = now.saturating_add(STEP_EVERY);
        let count = self.dropping.removed.len().min(REMOVED);
        let removed: Vec<_> = self.dropping.removed.drain(..count).collect();
        let is_same = |(key, at): &(RecordKey, u64)| {
            self.index.get(key).is_some_and(|record| record.changed_at == *at && !record.is_deleted())
        };
        let is_known = |(key, at): &(RecordKey, u64)| {
            stored.state(key, *at).is_ok_and(|state| !self.index.forgotten().contains(&state.origin))
        };
        let goes = |removed: &(RecordKey, u64)| is_same(removed) && is_known(removed);
        let keys: Vec<_> = removed.into_iter().filter(goes).map(|(key, _)| key).collect();
        let Ok(judged) = self.dropped_copies(writing, stored, &keys, now) else { return };
        let (operations, bytes) = writing.size_with(&judged, 0);
        // What does not fit is found by the next comparison.
        if !keys.is_empty() && self.check_size(operations, bytes).is_ok() {
            let entry = LogEntry { identity: "comparison".to_owned(), ..LogEntry::default() };
            writing.add(judged, entry, self.config.server);
        }
    }

    /// The next records to drop, of so many bytes at most but at least one, and where the walk goes on.
    fn to_drop(
        &self,
        stored: &Stored<'_>,
        from: &Bytes,
        (limit, bytes): (usize, usize),
    ) -> Result<(Vec<RecordKey>, Option<Bytes>), EngineError> {
        let (mut keys, mut next, mut looked_at, mut found) = (Vec::new(), None, 0, 0);
        let (policies, region) = (self.index.policies(), &self.head.region);
        stored.view()?.range(from, stored::RECORDS.1, &mut |at, value| {
            let Some((key, revision)) = stored::parse_record(at) else { return ControlFlow::Continue(()) };
            let is_newest = self
                .index
                .get(&key)
                .is_some_and(|record| record.changed_at == revision && !record.is_deleted());
            looked_at += 1;
            if is_newest && !policies.keeps(&key, region) {
                found += value.bytes.len();
                keys.push(key);
            }
            let is_full = keys.len() >= limit || (found > bytes && !keys.is_empty());
            if is_full || looked_at >= LOOKED_AT {
                let mut behind = at.to_vec();
                behind.push(0);
                next = Some(behind.into());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok((keys, next))
    }

    /// The records end here. For other nodes they do not exist here, so whatever comes of them later counts.
    fn dropped_copies(
        &self,
        writing: &Writing,
        stored: &Stored<'_>,
        keys: &[RecordKey],
        now: i64,
    ) -> Result<Judged, Refused> {
        let judging = self.judging(writing, stored, now);
        let mut after = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(record) = judging.records.get(key) else { continue };
            let state = stored.state(key, record.changed_at)?;
            after.push((key.clone(), RecordState { lifecycle: proto::State::Deleted.into(), ..state }));
        }
        let mut judged = Judged { is_replicated: false, ..judging.take(&after)? };
        let ended = keys.iter().map(|key| (key.clone(), proto::State::Deleted));
        judged.pending.ended_by_date.extend(ended);
        Ok(judged)
    }
}

/// How many records a step drops, and how often there is a step.
const STEP: usize = 500;
/// How many copies that the owner does not hold a step removes.
const REMOVED: usize = 20;
const STEP_EVERY: i64 = SECOND / 10;
/// How many versions of records a step looks at.
const LOOKED_AT: usize = 10_000;
/// When a step is tried again that failed.
const TRIED_AGAIN: i64 = 60 * SECOND;
