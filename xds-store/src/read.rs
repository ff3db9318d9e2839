//! Reads of a store as of a store revision: one record, lists in pages, history and events.
//!
//! All functions read one [`View`]. Versions of a record are stored under its key and the store
//! revision that wrote them. So the pages of a list are of one revision although each page has a
//! view of its own (ST26).

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::checked::{self, Damaged};
use crate::engine::{EngineError, Value, View};
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry, RevisionError, StoreRevision};
use crate::phase::{ConvertError, Phase, Schemas};
use crate::record::{Local, RecordState};
use crate::region::{POLICY_TYPE, Policies};
use crate::rules::FieldSource;
use crate::schema::SchemaRefusal;
use crate::seal::UnsealError;
use crate::time;

pub use crate::key::is_configuration;
pub use answer::Payload;
pub use compared::BUCKETS;
pub use conflicts::{ConflictsPage, ConflictsQuery};
pub use events::{EventQuery, Events, Position};
pub use filter::{Filter, FilterError};
pub use history::{HistoryPage, HistoryQuery};
pub use list::{ListPage, ListQuery, NextPage};
pub(crate) use references::reference;
pub use snapshot::SnapshotError;
pub use token::{PageToken, TokenError};
pub use versions::Knows;

mod answer;
mod compared;
mod conflicts;
mod entries;
mod events;
mod filter;
mod forms;
mod history;
mod list;
mod references;
mod snapshot;
#[cfg(test)]
mod tests;
mod token;
mod versions;

/// Reads one view of a store.
#[derive(Debug)]
pub struct Reads<'v> {
    view: &'v dyn View,
    head: Head,
    schemas: &'v Schemas,
    fields: FieldSource,
    /// Of commits: records that one commit wrote are often read together.
    summaries: RefCell<BTreeMap<u64, Option<EntrySummary>>>,
    /// Of plans, by number and store revision.
    phases: RefCell<BTreeMap<(u32, u64), Phase>>,
    policies: OnceCell<Policies>,
}

/// The part of a log entry that is read for single records: its changes may be many.
#[derive(Clone, PartialEq, Eq, Message)]
struct EntrySummary {
    #[prost(int64, tag = "4")]
    time: i64,
    #[prost(string, tag = "6")]
    owner: String,
}

/// A record as of a store revision.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordVersion {
    /// Its key.
    pub key: RecordKey,
    /// The store revision that wrote it.
    pub changed_at: u64,
    /// The time of that commit, in nanoseconds since 1970. `None` if an earlier version wrote the
    /// record; then only the log has the time.
    pub committed_at: Option<i64>,
    /// Its state.
    pub state: RecordState,
    /// The lifecycle that it has for other nodes if its date has ended it here (SR5); otherwise 0.
    pub(crate) lifecycle_of_others: i32,
}

/// Why a store cannot be read at a revision.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// ST30: the revision is forgotten.
    #[error("revisions up to {floor} are forgotten")]
    Compacted {
        /// The newest revision that is forgotten.
        floor: u64,
    },
    /// SV36: a step of a plan shows or hides records that the watch can have. Start again with a list.
    #[error("the step from F{from} to F{to} of the plan {plan} shows or hides records: start again")]
    FormsChanged {
        /// The revision of the step.
        revision: u64,
        /// The name of the plan.
        plan: String,
        /// The phase before.
        from: u32,
        /// The phase after.
        to: u32,
    },
    /// The revision is of another store, or none.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// ST30: the store has no such revision yet.
    #[error("the store has no revision {revision} yet; its last one is {last}")]
    Ahead {
        /// The revision.
        revision: u64,
        /// The last revision of the store.
        last: u64,
    },
    /// ST47.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The record cannot be read in a version that the server and the caller know.
    #[error(transparent)]
    Schema(#[from] SchemaRefusal),
    /// SV11: the record cannot be converted to the form that the caller reads.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<crate::stored::ReadError> for ReadError {
    fn from(error: crate::stored::ReadError) -> Self {
        match error {
            crate::stored::ReadError::Engine(error) => error.into(),
            crate::stored::ReadError::Damaged(damaged) => damaged.into(),
            crate::stored::ReadError::Removed => Damaged { key: stored::HEAD.into() }.into(),
        }
    }
}

impl<'v> Reads<'v> {
    /// Reads this view, as a server that knows the first version of all types.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn new(view: &'v dyn View) -> Result<Self, ReadError> {
        Self::with_schemas(view, Schemas::NONE)
    }

    /// Reads this view, as a server that knows these versions.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn with_schemas(view: &'v dyn View, schemas: &'v Schemas) -> Result<Self, ReadError> {
        let head = view.get(stored::HEAD)?.ok_or_else(|| Damaged { key: stored::HEAD.into() })?;
        let head = checked::decode(stored::HEAD, head.bytes)?;
        let fields = FieldSource::default();
        let (summaries, phases, policies) = Default::default();
        Ok(Self { view, head, schemas, fields, summaries, phases, policies })
    }

    /// The policies of regions at the last revision.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn policies(&self) -> Result<&Policies, ReadError> {
        if let Some(policies) = self.policies.get() {
            return Ok(policies);
        }
        let mut policies = Policies::default();
        if self.head.has_policies {
            let (from, to) = stored::of_type(POLICY_TYPE);
            self.newest_of_each((&from, &to), self.head.revision, &mut |version| {
                policies.note(&version.key, &version.state);
                ControlFlow::Continue(())
            })?;
        }
        Ok(self.policies.get_or_init(|| policies))
    }

    /// The head of the store.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The printed form of a revision of this store.
    #[must_use]
    pub fn printed(&self, revision: u64) -> String {
        StoreRevision::of(&self.head, revision).to_string()
    }

    /// Reads the printed form of a revision, which the store may not have yet.
    ///
    /// # Errors
    /// [`ReadError::Revision`].
    pub fn parse(&self, text: &str) -> Result<u64, ReadError> {
        Ok(StoreRevision::parse(&self.head, text)?.number)
    }

    /// Whether the store can be read at this revision: the floor is the oldest such revision.
    ///
    /// # Errors
    /// [`ReadError::Compacted`], [`ReadError::Ahead`].
    pub fn check(&self, revision: u64) -> Result<(), ReadError> {
        let floor = self.head.floor;
        if revision < floor {
            return Err(ReadError::Compacted { floor });
        }
        self.check_written(revision)
    }

    /// Whether the store has this revision already.
    ///
    /// # Errors
    /// [`ReadError::Ahead`].
    pub fn check_written(&self, revision: u64) -> Result<(), ReadError> {
        let last = self.head.revision;
        if revision > last { Err(ReadError::Ahead { revision, last }) } else { Ok(()) }
    }

    /// The record at the last revision; `None` if it is absent, deleted, or expired at `now` (ST24).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn get(&self, key: &RecordKey, now: i64) -> Result<Option<RecordVersion>, ReadError> {
        let version = self.newest(key, self.head.revision)?;
        Ok(version.filter(|version| version.exists(now)))
    }

    /// The newest version of a record, also if it is deleted or expired; `None` if there never was
    /// one, or if it is forgotten.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn last(&self, key: &RecordKey) -> Result<Option<RecordVersion>, ReadError> {
        self.newest(key, self.head.revision)
    }

    /// Whether the content of a record, with its expiry and lease, is as this owner put it, whoever
    /// acted as this owner. `None` if that is forgotten.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn is_put_by(&self, version: &RecordVersion, owner: &str) -> Result<Option<bool>, ReadError> {
        let mut version = version.clone();
        for _ in 0..STEPS_LIMIT {
            let Some(entry) = self.summary(version.changed_at)? else { return Ok(None) };
            // A put ends a quarantine, so what wrote a quarantined state was no put.
            if entry.owner == owner && version.state.quarantined.is_none() {
                return Ok(Some(true));
            }
            let before = self.newest(&version.key, version.changed_at.saturating_sub(1))?;
            let content = |state: &RecordState| (state.incarnation, state.generation);
            match before.filter(|before| content(&before.state) == content(&version.state)) {
                // It changed the owners, or quarantined the record.
                Some(before) => version = before,
                None => return Ok(Some(false)),
            }
        }
        Ok(Some(false))
    }

    /// What is read of the log entry of a revision; `None` if it is forgotten.
    fn summary(&self, revision: u64) -> Result<Option<EntrySummary>, ReadError> {
        if let Some(summary) = self.summaries.borrow().get(&revision) {
            return Ok(summary.clone());
        }
        let summary: Option<EntrySummary> = self.entry(revision)?;
        self.summaries.borrow_mut().insert(revision, summary.clone());
        Ok(summary)
    }

    /// The newest version up to a revision, deleted or not.
    fn newest(&self, key: &RecordKey, at: u64) -> Result<Option<RecordVersion>, ReadError> {
        let last = self.view.last(&stored::record(key, 0), &stored::record(key, at.saturating_add(1)))?;
        last.map(|(stored_key, value)| version(&stored_key, value)).transpose()
    }

    /// The record as a certain revision wrote it; `None` if that version is forgotten.
    fn version(&self, key: &RecordKey, changed_at: u64) -> Result<Option<RecordVersion>, ReadError> {
        let stored_key = stored::record(key, changed_at);
        let value = self.view.get(&stored_key)?;
        value.map(|value| version(&stored_key, value)).transpose()
    }

    /// The log entry of a revision; `None` if it is forgotten.
    fn entry<E: Message + Default>(&self, revision: u64) -> Result<Option<E>, ReadError> {
        let stored_key = stored::log(revision);
        let entry = self.view.get(&stored_key)?;
        Ok(entry.map(|entry| checked::decode(&stored_key, entry.bytes)).transpose()?)
    }

    /// The log entry of a revision above the floor.
    fn kept_entry(&self, revision: u64) -> Result<LogEntry, ReadError> {
        Ok(self.entry(revision)?.ok_or_else(|| Damaged { key: stored::log(revision) })?)
    }

    /// Calls `each` with the newest version up to a revision of each key in a range of stored keys,
    /// in order, until it breaks.
    fn newest_of_each(
        &self,
        (from, to): (&[u8], &[u8]),
        at: u64,
        each: &mut dyn FnMut(RecordVersion) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut from = Bytes::copy_from_slice(from);
        loop {
            let mut current: Option<Versions> = None;
            let mut result = Ok(ControlFlow::Continue(()));
            let mut is_long = false;
            self.view.range(&from, to, &mut |stored_key, value| {
                let Some((key, revision)) = stored::parse_record(stored_key) else {
                    result = Err(Damaged { key: Bytes::copy_from_slice(stored_key) }.into());
                    return ControlFlow::Break(());
                };
                if current.as_ref().is_none_or(|current| current.key != key) {
                    result = finish(current.take(), each);
                    if !matches!(result, Ok(ControlFlow::Continue(()))) {
                        return ControlFlow::Break(());
                    }
                    current = Some(Versions { key, count: 0, newest: None });
                }
                let current = current.as_mut().expect("it was set");
                current.count += 1;
                if revision <= at {
                    current.newest = Some((Bytes::copy_from_slice(stored_key), value));
                }
                is_long = current.count >= VERSIONS_READ;
                if is_long { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            match (result?, current) {
                (ControlFlow::Continue(()), Some(Versions { key, .. })) if is_long => {
                    // A record with many versions must not cost a read of each.
                    let newest = self.newest(&key, at)?;
                    if newest.is_some_and(|newest| each(newest).is_break()) {
                        return Ok(());
                    }
                    from = stored::after(&key);
                }
                (ControlFlow::Continue(()), current) => return finish(current, each).map(|_| ()),
                (ControlFlow::Break(()), _) => return Ok(()),
            }
        }
    }
}

impl RecordVersion {
    /// Whether it exists at this time: it is not deleted, and its expiry has not passed. A lease
    /// ends by a deletion in the log, and not by the clock.
    #[must_use]
    pub fn exists(&self, now: i64) -> bool {
        let has_ended = self.state.lease.is_none()
            && self.state.expires_at.as_ref().is_some_and(|end| time::from_proto(end) <= now);
        self.state.lifecycle() != proto::State::Deleted && !has_ended
    }
}

/// The versions of one key, while they are read.
struct Versions {
    key: RecordKey,
    count: usize,
    /// As it is stored.
    newest: Option<(Bytes, Value)>,
}

/// Calls `each` with the newest version of a key, if there was one up to the revision.
fn finish(
    current: Option<Versions>,
    each: &mut dyn FnMut(RecordVersion) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, ReadError> {
    match current.and_then(|current| current.newest) {
        Some((stored_key, value)) => Ok(each(version(&stored_key, value)?)),
        None => Ok(ControlFlow::Continue(())),
    }
}

fn version(stored_key: &[u8], value: Value) -> Result<RecordVersion, ReadError> {
    let damaged = || Damaged { key: Bytes::copy_from_slice(stored_key) };
    let (key, changed_at) = stored::parse_record(stored_key).ok_or_else(damaged)?;
    let (state, local): (RecordState, Local) = checked::decode_both(stored_key, value.bytes)?;
    if state.is_sealed {
        return Err(EngineError::from(UnsealError::without_keys(&key, &state)).into());
    }
    let committed_at = Some(local.committed_at).filter(|time| *time != 0);
    let lifecycle_of_others = local.lifecycle_of_others;
    Ok(RecordVersion { key, changed_at, committed_at, state, lifecycle_of_others })
}

/// How many changes of owners alone are looked behind: there are hardly ever more.
const STEPS_LIMIT: usize = 1_000;
/// After this many versions of a record, the newest one is looked up instead.
const VERSIONS_READ: usize = 16;
