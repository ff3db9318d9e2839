//! States of a peer, merged where this store lost or damaged its own (SR51).

use xds_proto::xds::store::v1 as proto;

use super::merging::{AT_ONCE, AT_ONCE_BYTES};
use super::{Store, Writing};
use crate::clock::Counters;
use crate::commit::{MergedEntry, RefusalCode, Refused};
use crate::entry::parse_state;
use crate::key::RecordKey;
use crate::log::LogEntry;
use crate::record::RecordState;
use crate::stored::Stored;
use crate::time;

/// What became of a state.
pub(super) enum Mended {
    /// The record was another one; whether it was lost here.
    Yes { was_lost: bool },
    /// The record is the same, or the state cannot be taken.
    No,
    /// The batch has no room for it.
    Later,
}

impl Store {
    /// Merges a state into the record here, as an entry of another node is merged, but with a commit that takes no
    /// counter (SR5): the peer, and all that have its entries, have it already.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(super) fn add_mended(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        (state, of_peer): (&RecordState, Option<&Counters>),
        now: i64,
    ) -> Result<Mended, Refused> {
        let Ok(parsed) = parse_state(state) else { return Ok(Mended::No) };
        let judging = self.judging(writing, stored, now);
        // SG27: the peer has not heard yet that a policy leaves this region out.
        if !self.index.policies().keeps(&parsed.0, &self.head.region) {
            return Ok(Mended::No);
        }
        // SR26: nodes forget what is over at different times, and this one needs it no more, unless it fetches the
        // names (SG27).
        let is_absent = judging.records.get(&parsed.0).is_none();
        if is_absent && of_peer.is_some() && is_over(state, now) {
            return Ok(Mended::No);
        }
        if is_absent && of_peer.is_some_and(|of_peer| self.may_be_deleted(&parsed.0, state, of_peer)) {
            return Ok(Mended::No);
        }
        let parsed = [parsed];
        let is_full = writing.published.len() >= AT_ONCE || writing.bytes > AT_ONCE_BYTES;
        if is_full || judging.has_to_wait_for_rules(&parsed) {
            return Ok(Mended::Later);
        }
        let MergedEntry { judged, .. } = match judging.merge(&parsed) {
            Ok(merged) => merged,
            // Its variant would be ambiguous here, as it was when its entry came.
            Err(refused) if refused.code == RefusalCode::FailedPrecondition => return Ok(Mended::No),
            Err(refused) => return Err(refused),
        };
        if judged.changes.is_empty() {
            return Ok(Mended::No);
        }
        let (operations, bytes) = writing.size_with(&judged, 0);
        if self.check_size(operations, bytes).is_err() {
            return Ok(if writing.batch.writes.is_empty() { Mended::No } else { Mended::Later });
        }
        let was_lost = !self.may_lack(state);
        let entry = LogEntry {
            origin: self.head.node.clone(),
            time: now,
            identity: "comparison".to_owned(),
            ..LogEntry::default()
        };
        writing.add_merged(judged, entry, &[], self.config.server);
        Ok(Mended::Yes { was_lost })
    }

    /// SG25: whether nodes may have left out the entry that made this state. They leave out what is not for this
    /// region by the policies that they know, which may be newer ones than those here, or those before them.
    fn may_lack(&self, state: &RecordState) -> bool {
        let is_own = self.head.is_node(&state.origin);
        self.head.has_policies && !is_own && *self.origins.region(&state.origin) != *self.head.region
    }

    /// SG25: whether the region of a record that is absent here may have deleted it, in an entry that was left out here
    /// and that the peer lacks. What only forgotten nodes had is lost.
    fn may_be_deleted(&self, key: &RecordKey, state: &RecordState, of_peer: &Counters) -> bool {
        let owner = self.index.policies().owner_of(key);
        let region = owner.unwrap_or_else(|| self.origins.region(&state.origin));
        if !self.head.has_policies || *region == *self.head.region {
            return false;
        }
        let lacks = |origin: &String| {
            let has = of_peer.get(origin).copied().unwrap_or_default();
            self.origins.position(origin).counter > has && !self.index.forgotten().contains(origin)
        };
        self.origins.of_region(region).iter().any(lacks)
    }
}

/// Whether a record in this state is deleted, or will be at once.
fn is_over(state: &RecordState, now: i64) -> bool {
    let has_ended = |end: &prost_types::Timestamp| state.lease.is_none() && time::from_proto(end) <= now;
    state.lifecycle() == proto::State::Deleted || state.expires_at.as_ref().is_some_and(has_ended)
}
