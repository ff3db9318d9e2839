//! Snapshots for other nodes: all records at one revision, in pages (SR19).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::token::{from_hex, to_hex};
use super::{ReadError, Reads};
use crate::checked::{self, Damaged};
use crate::key::{RecordKey, stored};
use crate::log::StoredOrigin;
use crate::phase;

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
        let head = self.view.get(stored::HEAD).map_err(ReadError::from)?;
        let batch = head.map_or(0, |head| head.revision.0);
        let from = match resume {
            "" => stored::RECORDS.0.into(),
            text => stored::after(&self.resumed(text, batch).ok_or(SnapshotError::Gone)?),
        };
        let mut page = proto::SnapshotResponse::default();
        let (mut bytes, mut last, mut is_full) = (0, None, false);
        self.newest_of_each((&from, stored::RECORDS.1), self.head.revision, &mut |version| {
            let is_gone = version.lifecycle_of_others == i32::from(proto::State::Deleted);
            if is_gone || phase::is_local(&version.key) {
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
        page.clock = self.positions()?;
        page.incarnation_floor = self.head.incarnation_floor;
        Ok(page)
    }

    fn resumed(&self, text: &str, batch: u64) -> Option<RecordKey> {
        let resume: Resume = checked::decode(PURPOSE, from_hex(text)?.into()).ok()?;
        let is_same = resume.batch == batch && resume.node == self.head.node;
        RecordKey::parse(&resume.after?).ok().filter(|_| is_same)
    }

    /// Up to where the store has the entries of each origin (SR9).
    fn positions(&self) -> Result<BTreeMap<String, proto::Position>, ReadError> {
        let mut clock = BTreeMap::new();
        let mut failed = None;
        let mut note = |key: &[u8], value: Bytes| {
            let damaged = || Damaged { key: Bytes::copy_from_slice(key) };
            let origin = stored::parse_origin(key).ok_or_else(damaged)?;
            let StoredOrigin { counter, chain, .. } = checked::decode(key, value)?;
            clock.insert(origin.to_owned(), proto::Position { counter, chain });
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
        clock.retain(|_, position| position.counter > 0);
        Ok(clock)
    }
}

/// Part of the checksum, so that no other text is taken for a token.
const PURPOSE: &[u8] = b"snapshot";
