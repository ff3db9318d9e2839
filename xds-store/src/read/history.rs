//! History: the commits of a key or of the store, newest first (ST34).

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::answer::shown_state;
use super::{Knows, Payload, ReadError, Reads, RecordVersion};
use crate::checked::Damaged;
use crate::key::{RecordKey, stored};
use crate::log::{LogChange, LogEntry};
use crate::record::RecordRevision;
use crate::time;

/// What a page of history has.
#[derive(Clone, Copy)]
pub struct HistoryQuery<'q> {
    /// The commits that changed this key, with that change alone; `None`: all commits.
    pub key: Option<&'q RecordKey>,
    /// Only commits before this store revision.
    pub before: Option<u64>,
    /// Keys that the caller may read. Changes of other keys are left out, and commits of which no
    /// change is left (ST53).
    pub may_read: &'q dyn Fn(&RecordKey) -> bool,
    /// Whether contents have payloads.
    pub payload: Payload,
    /// The most commits.
    pub limit: usize,
    /// The most bytes. One commit is in a page whatever its size.
    pub limit_bytes: usize,
    /// The most commits to read.
    pub scan_limit: usize,
}

/// A page of history.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct HistoryPage {
    /// Newest first.
    pub commits: Vec<proto::CommitEntry>,
    /// For `before` of the next page; `None`: there are no older commits.
    pub next: Option<u64>,
}

impl Reads<'_> {
    /// A page of history.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn history(&self, query: HistoryQuery<'_>) -> Result<HistoryPage, ReadError> {
        let newest = match query.before {
            Some(before) => before.saturating_sub(1).min(self.head().revision),
            None => self.head().revision,
        };
        let mut page = HistoryPage::default();
        let mut at = match query.key {
            Some(key) => self.newest(key, newest)?.map_or(0, |version| version.changed_at),
            None => newest,
        };
        let (mut bytes, mut scanned) = (0, 0);
        // Revisions up to the floor are forgotten.
        while at > self.head().floor {
            if page.commits.len() >= query.limit || scanned >= query.scan_limit {
                page.next = Some(at + 1);
                return Ok(page);
            }
            scanned += 1;
            let entry = self.kept_entry(at)?;
            let (commit, previous) = self.commit(at, entry, query)?;
            if let Some(commit) = commit {
                bytes += commit.encoded_len();
                if bytes > query.limit_bytes && !page.commits.is_empty() {
                    page.next = Some(at + 1);
                    return Ok(page);
                }
                page.commits.push(commit);
            }
            at = previous;
        }
        Ok(page)
    }

    /// A commit as users get it, if they may read anything of it, and the revision to read next.
    fn commit(
        &self,
        at: u64,
        entry: LogEntry,
        query: HistoryQuery<'_>,
    ) -> Result<(Option<proto::CommitEntry>, u64), ReadError> {
        let mut previous = at - 1;
        let mut changes = Vec::new();
        let is_empty = entry.changes.is_empty();
        for change in entry.changes {
            let key = RecordKey::parse(&change.key).map_err(|_| Damaged { key: stored::log(at) })?;
            match query.key {
                Some(of) if *of != key => continue,
                Some(_) => previous = change.previous,
                None => {}
            }
            if (query.may_read)(&key) {
                changes.push(self.change(at, key, &change, query.payload)?);
            }
        }
        let commit = (is_empty || !changes.is_empty()).then(|| proto::CommitEntry {
            revision: self.printed(at),
            at: Some(time::to_proto(entry.time)),
            identity: entry.identity,
            owner: entry.owner,
            message: entry.message,
            origin: entry.origin,
            counter: entry.counter,
            changes,
        });
        Ok((commit, previous))
    }

    fn change(
        &self,
        at: u64,
        key: RecordKey,
        change: &LogChange,
        payload: Payload,
    ) -> Result<proto::CommitChange, ReadError> {
        let damaged = || Damaged { key: stored::record(&key, at) };
        let after = self.version(&key, at)?.ok_or_else(damaged)?;
        // It may be forgotten.
        let before = match change.previous {
            0 => None,
            previous => self.version(&key, previous)?,
        };
        let is_present = |version: &RecordVersion| shown_state(&version.state) != proto::State::Deleted;
        let revision = |version: Option<&RecordVersion>| {
            let present = version.filter(|version| is_present(version));
            present.map_or_else(String::new, |version| RecordRevision::of(&version.state).to_string())
        };
        // The content of a version that the server does not know is not part of the answer.
        let schema = self.shown_version(&key, &after.state, Knows::ALL).ok();
        let content = after.state.content.as_ref().filter(|_| is_present(&after)).zip(schema);
        Ok(proto::CommitChange {
            key: Some(key.to_proto()),
            outcome: change.outcome,
            revision_before: revision(before.as_ref()),
            revision_after: revision(Some(&after)),
            content: content.map(|(content, schema)| payload.of(content, schema)),
        })
    }
}

impl std::fmt::Debug for HistoryQuery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HistoryQuery")
            .field("key", &self.key)
            .field("before", &self.before)
            .finish_non_exhaustive()
    }
}
