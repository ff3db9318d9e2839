//! Snapshots for other nodes: all records at one revision, in pages (SR19).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::token::{from_hex, to_hex};
use super::{ReadError, Reads};
use crate::checked::{self, Damaged};
use crate::clock::Counters;
use crate::key::{RecordKey, stored};
use crate::log::{StoredOrigin, StoredRollout};
use crate::phase::{self, PhaseRecord};
use crate::region::read_fetching;

/// Where a snapshot goes on.
#[derive(Clone, PartialEq, Eq, Message)]
struct Resume {
    /// The batch that the engine wrote last. Each batch may forget deleted records, so pages of one snapshot are
    /// of one batch.
    #[prost(uint64, tag = "1")]
    batch: u64,
    #[prost(string, tag = "2")]
    node: String,
    #[prost(message, optional, tag = "3")]
    after: Option<proto::Key>,
}

/// Why a snapshot cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The token is none of this store, or the store has changed since.
    #[error("the snapshot is gone: begin again")]
    Gone,
    /// See [`ReadError`].
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Reads<'_> {
    /// A page of the snapshot of this view, of at most so many bytes, but with at least one record. The page
    /// behind it follows from its `resume`, also in another view if the engine wrote nothing between them. It has
    /// what other nodes get: deleted records, forgotten nodes and reference rules too, and of a record that its
    /// date has ended here the state before (SR5).
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn snapshot(&self, resume: &str, max_bytes: usize) -> Result<proto::SnapshotResponse, SnapshotError> {
        self.snapshot_in(&self.head.region, resume, max_bytes)
    }

    /// The same for a node of a region. One of another region gets what is for it of the names that this region has,
    /// with the clock of the origins of this region: the others tell the rest (SG26).
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn snapshot_in(
        &self,
        region: &str,
        resume: &str,
        max_bytes: usize,
    ) -> Result<proto::SnapshotResponse, SnapshotError> {
        let head = self.view.get(stored::HEAD).map_err(ReadError::from)?;
        let batch = head.map_or(0, |head| head.revision.0);
        let from = match resume {
            "" => stored::RECORDS.0.into(),
            text => stored::after(&self.resumed(text, batch).ok_or(SnapshotError::Gone)?),
        };
        let mut page = proto::SnapshotResponse::default();
        let (mut bytes, mut last, mut is_full) = (0, None, false);
        let policies = self.policies()?;
        self.newest_of_each((&from, stored::RECORDS.1), self.head.revision, &mut |version| {
            let is_gone = version.lifecycle_of_others == i32::from(proto::State::Deleted);
            let is_told = policies.is_shared(&version.key, &self.head.region, region);
            if is_gone || phase::is_local(&version.key) || !is_told {
                return ControlFlow::Continue(());
            }
            let mut state = version.state;
            if let lifecycle @ 1.. = version.lifecycle_of_others {
                state.lifecycle = lifecycle;
            }
            bytes += state.encoded_len();
            is_full = bytes > max_bytes && last.is_some();
            if is_full {
                return ControlFlow::Break(());
            }
            page.records.push(state);
            last = Some(version.key);
            ControlFlow::Continue(())
        })?;
        if is_full {
            let after = last.map(|key| key.to_proto());
            let resume = Resume { batch, node: self.head.node.clone(), after };
            page.resume = to_hex(&checked::encode(PURPOSE, &resume));
            return Ok(page);
        }
        page.is_last = true;
        let deletion_floors;
        (page.clock, page.regions, deletion_floors) = self.positions(region)?;
        page.deletion_floors = Some(proto::Clock { counters: deletion_floors });
        if region != self.head.region {
            page.counters = self.clock()?.counters();
        }
        page.incarnation_floor = self.head.incarnation_floor;
        let of_entry = |StoredRollout { rollout, origin, counter, .. }| proto::RolloutOfEntry {
            rollout,
            origin,
            counter,
        };
        page.rollout = self.head.rollout.clone().map(of_entry);
        page.phases = self.phases_begun()?;
        page.region.clone_from(&self.head.region);
        for (prefix, fetched) in read_fetching(self.view).map_err(ReadError::from)? {
            page.fetching.insert(prefix, fetched.region);
        }
        Ok(page)
    }

    /// SV41: the phases of the plans that a server of this view has to know.
    fn phases_begun(&self) -> Result<Vec<proto::PlanPhase>, ReadError> {
        let (mut phases, (from, to)) = (Vec::new(), PhaseRecord::range());
        self.newest_of_each((&from, &to), self.head.revision, &mut |version| {
            let record = PhaseRecord::of_state(&version.state).filter(PhaseRecord::has_begun);
            phases.extend(
                PhaseRecord::plan(&version.key).zip(record).map(|(plan, record)| record.to_proto(plan)),
            );
            ControlFlow::Continue(())
        })?;
        Ok(phases)
    }

    fn resumed(&self, text: &str, batch: u64) -> Option<RecordKey> {
        let resume: Resume = checked::decode(PURPOSE, from_hex(text)?.into()).ok()?;
        let is_same = resume.batch == batch && resume.node == self.head.node;
        RecordKey::parse(&resume.after?).ok().filter(|_| is_same)
    }

    /// Up to where the store has the entries of each origin (SR9) whose entries a node of this region gets here,
    /// the regions of the origins, and up to where deletions of each are forgotten (SR18).
    fn positions(&self, region: &str) -> Result<Positions, ReadError> {
        let (mut clock, mut regions, mut floors) = Positions::default();
        let is_own = region == self.head.region;
        let mut failed = None;
        let mut note = |key: &[u8], value: Bytes| {
            let damaged = || Damaged { key: Bytes::copy_from_slice(key) };
            let origin = stored::parse_origin(key).ok_or_else(damaged)?;
            let StoredOrigin { counter, chain, region, deletion_floor, .. } = checked::decode(key, value)?;
            if is_own || region == self.head.region {
                clock.insert(origin.to_owned(), proto::Position { counter, chain });
                regions.insert(origin.to_owned(), region);
                floors.insert(origin.to_owned(), deletion_floor);
            }
            Ok(())
        };
        self.view.range(
            stored::ORIGINS.0,
            stored::ORIGINS.1,
            &mut |key, value| match note(key, value.bytes) {
                Ok(()) => ControlFlow::Continue(()),
                Err(damaged) => {
                    failed = Some(damaged);
                    ControlFlow::Break(())
                }
            },
        )?;
        failed.map_or(Ok(()), |damaged: Damaged| Err(damaged))?;
        let own = proto::Position { counter: self.head.counter, chain: self.head.chain.clone() };
        clock.insert(self.head.node.clone(), own);
        regions.insert(self.head.node.clone(), self.head.region.clone());
        clock.retain(|_, position| position.counter > 0);
        regions.retain(|origin, region| !region.is_empty() && clock.contains_key(origin));
        floors.retain(|_, floor| *floor > 0);
        Ok((clock, regions, floors))
    }
}

/// A clock, with the regions and the deletion floors of its origins.
type Positions = (BTreeMap<String, proto::Position>, BTreeMap<String, String>, Counters);

/// Part of the checksum, so that no other text is taken for a token.
const PURPOSE: &[u8] = b"snapshot";
