//! Events of a watch: the changes behind a position in the log, as a filter sees them.

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Filter, Knows, Payload, ReadError, Reads};
use crate::checked::Damaged;
use crate::key::{RecordKey, stored};
use crate::log::LogChange;
use crate::record::RecordState;

/// A position in the log (ST32). It is no queue: a slow watcher costs no more than this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    after: u64,
    /// Changes of the next revision that were read already.
    done: usize,
}

/// Which events a watch gets.
#[derive(Clone, Copy)]
pub struct EventQuery<'q> {
    /// The records to watch.
    pub filter: &'q Filter,
    /// Keys that the caller may read; others have no events (ST53).
    pub may_read: &'q dyn Fn(&RecordKey) -> bool,
    /// Whether contents have payloads.
    pub payload: Payload,
    /// The versions that the caller understands.
    pub knows: &'q Knows,
    /// The most events.
    pub limit: usize,
    /// The most bytes. One event is read whatever its size.
    pub limit_bytes: usize,
    /// The most changes to read. So a call ends soon also when few records match.
    pub scan_limit: usize,
}

/// The next events of a watch.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Events {
    /// In the order of the log.
    pub events: Vec<proto::Event>,
    /// The last revision has more events.
    pub is_partial: bool,
}

impl Position {
    /// Behind this revision.
    #[must_use]
    pub fn after(revision: u64) -> Self {
        Self { after: revision, done: 0 }
    }

    /// The last revision of which everything was read. A watch may be resumed behind it (ST27).
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.after
    }
}

impl Reads<'_> {
    /// The next events. The position moves behind them, at most to the last revision of the store.
    ///
    /// # Errors
    /// See [`ReadError`]. The position stays.
    pub fn events(&self, position: &mut Position, query: EventQuery<'_>) -> Result<Events, ReadError> {
        self.check(position.after)?;
        let mut at = position.clone();
        let mut read = Events::default();
        let (mut bytes, mut scanned) = (0, 0);
        while at.after < self.head().revision {
            let revision = at.after + 1;
            let entry = self.kept_entry(revision)?;
            let before = read.events.len();
            let had_some = at.done > 0;
            for (number, change) in entry.changes.iter().enumerate().skip(at.done) {
                let is_full = read.events.len() >= query.limit || bytes > query.limit_bytes;
                if is_full || scanned >= query.scan_limit {
                    read.is_partial = had_some || read.events.len() > before;
                    // What was read and has no event of this watch needs no second look either.
                    at.done = number;
                    *position = at;
                    return Ok(read);
                }
                scanned += 1;
                if let Some(event) = self.event(revision, change, query)? {
                    bytes += event.encoded_len();
                    read.events.push(event);
                }
            }
            at = Position::after(revision);
            // A commit without changes costs a read, too.
            scanned += 1;
        }
        *position = at;
        Ok(read)
    }

    /// The event of a change, if it has one for this watch (ST33).
    fn event(
        &self,
        revision: u64,
        change: &LogChange,
        query: EventQuery<'_>,
    ) -> Result<Option<proto::Event>, ReadError> {
        let damaged = || Damaged { key: stored::log(revision) };
        let key = RecordKey::parse(&change.key).map_err(|_| damaged())?;
        // SV36: records appear or disappear that the revision did not change, so the watch starts again.
        self.check_forms(&key, revision, query.filter)?;
        // A touch makes no event.
        if change.outcome() == proto::Outcome::Touched
            || !query.filter.matches_key(&key, self.policies()?)
            || !(query.may_read)(&key)
            || self.is_hidden(&key, revision)?
        {
            return Ok(None);
        }
        let after = self.version(&key, revision)?.ok_or_else(damaged)?;
        // SV36: a record that gets a version which the server does not know leaves the watch.
        let matches =
            |state: &RecordState| self.is_readable(&key, state, query.knows) && query.filter.matches(state);
        if matches(&after.state) && self.is_shown(&key, &after.state, revision)? {
            let record = self.answer_to(&after, query.payload, query.knows)?;
            return Ok(Some(event(proto::event::Kind::Put, record)));
        }
        let before = match change.previous {
            0 => return Ok(None),
            previous => self.version(&key, previous)?,
        };
        // If the state before is forgotten, the watcher may have the record.
        if before.is_some_and(|before| !matches(&before.state)) {
            return Ok(None);
        }
        Ok(Some(if after.state.lifecycle() == proto::State::Deleted {
            event(proto::event::Kind::Deleted, self.answer(&after, query.payload)?)
        } else {
            let record = proto::Record { key: Some(key.to_proto()), ..Default::default() };
            event(proto::event::Kind::Left, record)
        }))
    }
}

fn event(kind: proto::event::Kind, record: proto::Record) -> proto::Event {
    proto::Event { kind: kind.into(), record: Some(record) }
}

impl std::fmt::Debug for EventQuery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQuery").field("filter", &self.filter).finish_non_exhaustive()
    }
}
