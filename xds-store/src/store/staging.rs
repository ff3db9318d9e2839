//! A snapshot that comes in, page by page (SR20). Its records wait in the engine, so that memory does not limit
//! them, and so that the records of the store are whole until all of it is there (SR23).

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::resync::Resynced;
use super::{Action, Store, Ticket, Writing};
use crate::checked;
use crate::clock::Clock;
use crate::commit::{RefusalCode, Refused};
use crate::entry::parse_state;
use crate::key::{RecordKey, stored};
use crate::number;
use crate::phase::Phases;
use crate::stored::Stored;

/// What became of a page.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Staged {
    /// It is durable, and waits for the next ones.
    Kept,
    /// It was the last one: the records are those of this node and of the snapshot.
    Merged(Resynced),
}

/// A snapshot that is being taken.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) kind: Kind,
    /// The id that this node gets if the records are replaced.
    pub(super) new_id: String,
    pub(super) page: Option<(Ticket, proto::SnapshotResponse)>,
    /// The engine has no records of an earlier one.
    is_clean: bool,
    /// How far the pages are that the engine has.
    kept: Kept,
}

/// What a snapshot has brought.
#[derive(Debug, Default, Clone)]
struct Kept {
    bytes: u64,
    /// The key of the last record in the engine.
    last: Bytes,
}

impl Kept {
    /// SR20: with a page more, which goes on where the last one ended. So a snapshot has an end.
    fn with(mut self, page: &proto::SnapshotResponse, limit: u64) -> Result<Self, String> {
        for state in &page.records {
            let key = RecordKey::parse(&state.key.clone().unwrap_or_default());
            let at = stored::staged(&key.map_err(|error| error.to_string())?);
            if at <= self.last {
                return Err("its records are not in the order of their keys".to_owned());
            }
            (self.last, self.bytes) = (at, self.bytes + state.encoded_len() as u64);
        }
        if self.bytes > limit {
            return Err(format!("it has more than {limit} bytes: see --snapshot-bytes-limit"));
        }
        if page.records.is_empty() && !page.is_last {
            return Err("it has a page without records that is not the last one".to_owned());
        }
        Ok(self)
    }

    /// SR20: the records are written twice, as pages and as those of the store. Both have to fit in what is free now.
    fn check_room(&self, page: &proto::SnapshotResponse, free: Option<u64>) -> Result<(), String> {
        let of_page = page.records.iter().map(|state| state.encoded_len() as u64).sum::<u64>();
        match free.filter(|free| *free < self.bytes.saturating_add(of_page)) {
            Some(free) => Err(format!("the disk has {free} bytes free, and the snapshot needs more")),
            None => Ok(()),
        }
    }
}

/// What becomes of the records of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The snapshot is merged into them.
    Merge,
    /// SR21: the snapshot replaces them.
    Replace,
    /// SR31: the snapshot is merged, and what its node lacks is given to others under the new id.
    Reissue,
}

impl Kind {
    pub(super) fn is_merge(self) -> bool {
        self == Self::Merge
    }
}

/// A batch that has nothing else.
#[derive(Debug)]
pub(super) enum Alone {
    /// Records of an earlier snapshot are dropped.
    Clear,
    Page,
    Snapshot(Resynced, Vec<(Box<str>, crate::log::StoredOrigin)>),
    Id,
}

impl Store {
    /// Whether the records are not those that this node shall serve: a snapshot is being taken (SR20).
    #[must_use]
    pub fn is_resyncing(&self) -> bool {
        self.staging.as_ref().is_some_and(|staging| staging.kind != Kind::Reissue)
    }

    /// How many bytes the records of the snapshot have that is being taken.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.staging.as_ref().map_or(0, |staging| staging.kept.bytes)
    }

    /// Whether commits and entries wait for a snapshot.
    pub(super) fn is_closed(&self) -> bool {
        self.head.is_joining || self.is_resyncing()
    }

    /// A snapshot is about to come.
    pub(super) fn begin_resync(&mut self, must_replace: bool, new_id: String, actions: &mut Vec<Action>) {
        self.end_resync(actions);
        let is_empty = self.head.counter == 0 && self.index.counts() == (0, 0);
        let kind = match must_replace {
            true if !is_empty => Kind::Replace,
            _ if self.head.owes_reissue => Kind::Reissue,
            _ => Kind::Merge,
        };
        self.staging = Some(Staging { kind, new_id, page: None, is_clean: false, kept: Kept::default() });
    }

    pub(super) fn stage(&mut self, ticket: Ticket, page: proto::SnapshotResponse, actions: &mut Vec<Action>) {
        match &mut self.staging {
            Some(staging) if staging.page.is_none() => staging.page = Some((ticket, page)),
            _ => actions.push(Action::Staged(ticket, Err(refused("no snapshot is being taken")))),
        }
    }

    /// SR23: the records stay as they are.
    pub(super) fn end_resync(&mut self, actions: &mut Vec<Action>) {
        self.refuse_page(&refused("the snapshot is not taken any more"), actions);
    }

    pub(super) fn refuse_page(&mut self, refused: &Refused, actions: &mut Vec<Action>) {
        let page = self.staging.take().and_then(|staging| staging.page);
        actions.extend(page.map(|(ticket, _)| Action::Staged(ticket, Err(refused.clone()))));
    }

    /// Whether records of a snapshot that came to no end wait to be dropped.
    pub(super) fn has_remains(&self) -> bool {
        self.staging.is_none() && self.head.has_staged
    }

    /// Fills a batch with what goes alone; `false` if there is nothing.
    pub(super) fn add_alone(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        actions: &mut Vec<Action>,
    ) -> Result<bool, Refused> {
        if self.take_id.is_some() {
            self.add_id(writing);
            return Ok(true);
        }
        if self.has_remains() {
            return if self.waiting.is_empty() { add_clearing(writing, stored) } else { Ok(false) };
        }
        if let Some(reason) = self.lacks_plan() {
            return self.refuse_snapshot(&reason, actions);
        }
        let Some(staging) = self.staging.as_mut().filter(|staging| staging.page.is_some()) else {
            return Ok(false);
        };
        if !staging.is_clean && self.head.has_staged {
            return add_clearing(writing, stored);
        }
        staging.is_clean = true;
        let Some((ticket, page)) = &staging.page else { return Ok(false) };
        if let Some(number) = number::out_of_range_in_page(page) {
            let reason = format!("its {number} is out of range (SR62)");
            return self.refuse_snapshot(&reason, actions);
        }
        let kept = staging.kept.clone().with(page, self.config.snapshot_bytes);
        if let Err(reason) = kept.and_then(|kept| kept.check_room(page, stored.free_bytes())) {
            return self.refuse_snapshot(&reason, actions);
        }
        let clock = Clock::from_wire(&page.clock);
        if let Err(reason) = add_page(writing, page) {
            return self.refuse_snapshot(&reason, actions);
        }
        let Some(clock) = clock else { return self.refuse_snapshot("its clock is malformed", actions) };
        // SR22: what is deleted here, and forgotten, is not to be known from what its node created.
        let counters = if page.counters.is_empty() { clock.counters() } else { page.counters.clone() };
        if page.is_last && self.origins.lacks_deletions(&counters) {
            return self.refuse_snapshot("its node lacks deletions that are forgotten here", actions);
        }
        if !page.records.is_empty() {
            writing.head.has_staged = true;
            writing.alone = Some(Alone::Page);
            return Ok(true);
        }
        if !page.is_last {
            actions.push(Action::Staged(*ticket, Ok(Staged::Kept)));
            staging.page = None;
            return Ok(false);
        }
        let (kind, new_id, page) = (staging.kind, staging.new_id.clone(), page.clone());
        self.add_snapshot(writing, stored, now, (kind, &new_id, &clock, &page))?;
        Ok(true)
    }

    /// SV13: the plan of the snapshot without which this server could not read the records.
    fn lacks_plan(&self) -> Option<String> {
        let Staging { kind, page, .. } = self.staging.as_ref()?;
        let (_, page) = page.as_ref().filter(|_| self.takes_phases(*kind))?;
        let phases = Phases::of_peer(&page.phases);
        let (number, name, phase) = phases.lacking(self.config.schemas.plans())?;
        Some(format!(
            "its node has the plan {number} ({name}) in the phase F{phase}, and this server lacks that plan or has \
             another one: give it the same --schemas"
        ))
    }

    fn refuse_snapshot(&mut self, reason: &str, actions: &mut Vec<Action>) -> Result<bool, Refused> {
        self.refuse_page(&refused(&format!("the snapshot cannot be used: {reason}")), actions);
        Ok(false)
    }

    /// A batch that went alone is durable.
    pub(super) fn finish_alone(&mut self, alone: Alone, actions: &mut Vec<Action>) {
        match alone {
            Alone::Clear => {}
            Alone::Id => {
                let took = self.take_id.take();
                actions.extend(took.map(|(ticket, _)| Action::TookId(ticket, Ok(()))));
            }
            Alone::Page => {
                let Some(staging) = &mut self.staging else { return };
                let Some((ticket, page)) = &mut staging.page else { return };
                if let Ok(kept) = staging.kept.clone().with(page, u64::MAX) {
                    staging.kept = kept;
                }
                page.records.clear();
                if !page.is_last {
                    actions.push(Action::Staged(*ticket, Ok(Staged::Kept)));
                    staging.page = None;
                }
            }
            Alone::Snapshot(resynced, origins) => {
                self.origins.follow(origins, resynced.has_replaced);
                let page = self.staging.take().and_then(|staging| staging.page);
                actions.extend(page.map(|(ticket, _)| Action::Staged(ticket, Ok(Staged::Merged(resynced)))));
            }
        }
    }
}

/// Adds the records of a page, or says why they cannot be used.
fn add_page(writing: &mut Writing, page: &proto::SnapshotResponse) -> Result<(), String> {
    for state in &page.records {
        let (key, state) = parse_state(state)?;
        let at = stored::staged(&key);
        let value = checked::encode(&at, &state);
        writing.write(at, value);
    }
    Ok(())
}

/// Adds the removal of records that an earlier snapshot left.
fn add_clearing(writing: &mut Writing, stored: &Stored<'_>) -> Result<bool, Refused> {
    let mut keys = Vec::new();
    let view = stored.view().map_err(|error| Refused::of_engine(&error))?;
    let each = &mut |key: &[u8], _| {
        keys.push(Bytes::copy_from_slice(key));
        if keys.len() < CLEARED_AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    view.range(stored::STAGED.0, stored::STAGED.1, each).map_err(|error| Refused::of_engine(&error))?;
    writing.head.has_staged = keys.len() == CLEARED_AT_ONCE;
    if writing.head.has_staged {
        keys.drain(..CLEARED_LAST);
    }
    keys.into_iter().for_each(|key| writing.delete(key));
    writing.alone = Some(Alone::Clear);
    Ok(true)
}

fn refused(message: &str) -> Refused {
    Refused::whole(RefusalCode::Unavailable, message)
}

/// How many records are dropped at once.
const CLEARED_AT_ONCE: usize = 1_000;
/// How many go last, with the rest. An engine on pages reads the page before each that it empties. Before the first
/// record is the end of the log, whose entry of a snapshot may be large.
const CLEARED_LAST: usize = 100;
