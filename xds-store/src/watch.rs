//! Watches: a position in the log (ST27).

use std::ops::ControlFlow;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use crate::checked::{self, Damaged};
use crate::engine::{EngineError, View};
use crate::key::{RecordKey, stored};
use crate::log::{Head, LogEntry};
use crate::record::RecordState;

/// A position in the log of a store. It is no queue: a slow watcher costs nothing but this number.
#[derive(Debug, Clone)]
pub struct Watch {
    after: u64,
}

/// All changes of one store revision.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedCommit {
    /// The revision. A watch after it misses and repeats nothing.
    pub revision: u64,
    /// The states after the commit, in the order of keys.
    pub changes: Vec<(RecordKey, RecordState)>,
}

/// Why a watch cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// ST30: what follows the position is forgotten.
    #[error("revisions up to {floor} are forgotten; start again with a snapshot")]
    Compacted {
        /// The newest revision that is forgotten.
        floor: u64,
    },
    /// ST30: the position is not of this store.
    #[error("the store has no revision {after}; its last one is {last}")]
    Ahead {
        /// The position.
        after: u64,
        /// The last revision of the store.
        last: u64,
    },
    /// ST47.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Watch {
    /// Everything that was committed after this revision.
    #[must_use]
    pub fn after(revision: u64) -> Self {
        Self { after: revision }
    }

    /// The next revisions in order, up to `limit` of them, each whole (ST27). The position moves
    /// behind them.
    ///
    /// # Errors
    /// See [`WatchError`]. The position stays.
    pub fn next(&mut self, view: &dyn View, limit: usize) -> Result<Vec<WatchedCommit>, WatchError> {
        let head = view
            .get(stored::HEAD)?
            .map_or(Ok(Head::default()), |head| checked::decode(stored::HEAD, head.bytes))?;
        if self.after < head.floor {
            return Err(WatchError::Compacted { floor: head.floor });
        }
        if self.after > head.revision {
            return Err(WatchError::Ahead { after: self.after, last: head.revision });
        }
        let mut entries: Vec<(u64, LogEntry)> = Vec::new();
        let mut damaged = None;
        view.range(&stored::log(self.after + 1), stored::LOG.1, &mut |key, value| {
            match (stored::parse_log(key), checked::decode(key, value.bytes)) {
                (Some(revision), Ok(entry)) => entries.push((revision, entry)),
                _ => damaged = Some(Damaged { key: Bytes::copy_from_slice(key) }),
            }
            if entries.len() == limit || damaged.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if let Some(damaged) = damaged {
            return Err(damaged.into());
        }
        let mut commits = Vec::with_capacity(entries.len());
        for (revision, entry) in entries {
            let mut changes = Vec::with_capacity(entry.changes.len());
            for change in entry.changes {
                changes.push(state_of(view, &change.key, revision)?);
            }
            commits.push(WatchedCommit { revision, changes });
        }
        self.after = commits.last().map_or(self.after, |commit| commit.revision);
        Ok(commits)
    }
}

fn state_of(
    view: &dyn View,
    key: &proto::Key,
    revision: u64,
) -> Result<(RecordKey, RecordState), WatchError> {
    let damaged = || Damaged { key: stored::log(revision) };
    let key = RecordKey::parse(key).map_err(|_| damaged())?;
    let version = stored::record(&key, revision);
    let value = view.get(&version)?.ok_or_else(damaged)?;
    Ok((key, checked::decode(&version, value.bytes)?))
}
