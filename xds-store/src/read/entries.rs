//! Entries for other nodes: of each one what its origin wrote (SR6, SR7).

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::{ReadError, Reads};
use crate::checked::{self, Damaged};
use crate::entry::Foreign;
use crate::key::{RecordKey, stored};
use crate::log::LogEntry;
use crate::phase;
use crate::record::{Local, RecordState};
use crate::time;

impl Reads<'_> {
    /// The entry of a store revision for a node of a region: of an entry of a node of this region, a node of another
    /// one gets the states that are for it (SG25). If there are none, their numbers are skipped (SR14).
    ///
    /// # Errors
    /// See [`foreign`](Self::foreign).
    pub fn foreign_in(&self, region: &str, revision: u64) -> Result<Foreign, ReadError> {
        let own = self.head.region.as_str();
        let mut entry = match self.foreign(revision)? {
            Foreign::Entry(entry) => entry,
            skip @ Foreign::Skip(_) => return Ok(skip),
        };
        if region == own {
            return Ok(Foreign::Entry(entry));
        }
        let policies = self.policies()?;
        let all = entry.states.len();
        entry.states.retain(|state| {
            let key = state.key.as_ref().and_then(|key| RecordKey::parse(key).ok());
            key.is_some_and(|key| policies.is_for(&key, own, region))
        });
        if entry.states.is_empty() && all > 0 {
            let proto::Entry { origin, counter, chain, region, .. } = entry;
            return Ok(Foreign::Skip(proto::Skip { origin, first: counter, last: counter, chain, region }));
        }
        entry.is_partial |= entry.states.len() < all;
        Ok(Foreign::Entry(entry))
    }

    /// The entry of a store revision, as its origin wrote it: its states are neither numbered nor merged
    /// again (SR7).
    ///
    /// # Errors
    /// See [`ReadError`]. A revision that is forgotten is [`ReadError::Compacted`].
    pub fn foreign(&self, revision: u64) -> Result<Foreign, ReadError> {
        let floor = self.head.floor;
        if revision <= floor {
            return Err(ReadError::Compacted { floor });
        }
        let entry: LogEntry = self.kept_entry(revision)?;
        if entry.skipped > 0 {
            let LogEntry { origin, counter, chain, skipped, region, .. } = entry;
            let first = counter.saturating_sub(skipped - 1);
            return Ok(Foreign::Skip(proto::Skip { origin, first, last: counter, chain, region }));
        }
        let damaged = |_| Damaged { key: stored::log(revision) };
        let mut states: Vec<(RecordKey, Bytes)> = Vec::with_capacity(entry.changes.len());
        for key in &entry.originals {
            let key = RecordKey::parse(key).map_err(damaged)?;
            let at = stored::original(revision, &key);
            states.push((key, at));
        }
        let originals = states.len();
        for change in &entry.changes {
            let key = RecordKey::parse(&change.key).map_err(damaged)?;
            let is_original = states[..originals].binary_search_by(|(one, _)| one.cmp(&key)).is_ok();
            if !is_original && !phase::is_local(&key) {
                let at = stored::record(&key, revision);
                states.push((key, at));
            }
        }
        states.sort_unstable();
        let state = |(_, at): (RecordKey, Bytes)| {
            let value = self.view.get(&at)?.ok_or_else(|| Damaged { key: at.clone() })?;
            let (state, local): (RecordState, Local) = checked::decode_both(&at, value.bytes)?;
            // SR5: what its date has ended here.
            let is_of_others = local.lifecycle_of_others() == proto::State::Unspecified;
            Ok::<_, ReadError>(is_of_others.then_some(state))
        };
        Ok(Foreign::Entry(proto::Entry {
            origin: entry.origin,
            counter: entry.counter,
            chain: entry.chain,
            at: Some(time::to_proto(entry.time)),
            identity: entry.identity,
            owner: entry.owner,
            message: entry.message,
            states: states.into_iter().filter_map(|at| state(at).transpose()).collect::<Result<_, _>>()?,
            more: false,
            is_partial: entry.is_partial,
            region: entry.region,
            rollout: entry.rollout,
        }))
    }
}
