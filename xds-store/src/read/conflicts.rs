//! The journal of what merges lost, newest first (SR44).

use std::fmt;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{ReadError, Reads};
use crate::checked::{self, Damaged};
use crate::key::{RecordKey, stored};
use crate::record::{Local, RecordRevision, RecordState};
use crate::time;

/// What a page of the journal has.
#[derive(Clone, Copy)]
pub struct ConflictsQuery<'q> {
    /// Only conflicts before the one with this number.
    pub before: Option<u64>,
    /// Keys that the caller may read. Conflicts of other keys have no content.
    pub may_read: &'q dyn Fn(&RecordKey) -> bool,
    /// The most conflicts.
    pub limit: usize,
    /// The most bytes. One conflict is in a page whatever its size.
    pub limit_bytes: usize,
}

/// A page of the journal.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ConflictsPage {
    /// Newest first.
    pub conflicts: Vec<proto::Conflict>,
    /// For `before` of the next page; `None`: there are no older conflicts.
    pub next: Option<u64>,
}

impl fmt::Debug for ConflictsQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConflictsQuery").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Reads<'_> {
    /// A page of the journal of conflicts.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn conflicts(&self, query: ConflictsQuery<'_>) -> Result<ConflictsPage, ReadError> {
        let mut page = ConflictsPage::default();
        let (mut before, mut bytes) = (query.before.unwrap_or(u64::MAX), 0);
        loop {
            let (from, to) = (stored::CONFLICTS.0, stored::conflicts_from(before));
            let Some((stored_key, value)) = self.view.last(from, &to)? else { return Ok(page) };
            let damaged = || Damaged { key: stored_key.clone() };
            let (key, number) = stored::parse_conflict(&stored_key).ok_or_else(damaged)?;
            let (loser, local): (RecordState, Local) = checked::decode_both(&stored_key, value.bytes)?;
            let stored_conflict = local.conflict.ok_or_else(damaged)?;
            let is_readable = !loser.is_sealed && (query.may_read)(&key);
            let conflict = proto::Conflict {
                kind: stored_conflict.kind,
                key: Some(key.to_proto()),
                at: Some(time::to_proto(stored_conflict.at)),
                winner_revision: stored_conflict.winner_revision,
                loser_revision: RecordRevision::of(&loser).to_string(),
                winner_origin: stored_conflict.winner_origin,
                loser_origin: loser.origin.clone(),
                loser: loser.content.filter(|_| is_readable),
                detail: stored_conflict.detail,
            };
            bytes += conflict.encoded_len();
            let is_full = page.conflicts.len() >= query.limit || bytes > query.limit_bytes;
            if is_full && !page.conflicts.is_empty() {
                page.next = Some(before);
                return Ok(page);
            }
            page.conflicts.push(conflict);
            before = number;
        }
    }
}
