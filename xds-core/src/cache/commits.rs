//! What was committed and what was refused, as a bounded stream of events and as counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::readers::{Queue, Readers};
use super::{Cache, Changed, Commit, CommitError, by_name, lock};
use crate::name::{Revision, TypeUrl};

/// A transaction that was committed or refused.
///
/// What changed nothing is neither, and not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitEvent {
    /// How many events were dropped before this one because nobody read them.
    pub lost: u64,
    /// What became of it.
    pub outcome: CommitOutcome,
}

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitOutcome {
    /// Its changes are visible.
    Committed {
        /// Its revision, and by [`Commit::applied`] who uses it.
        commit: Commit,
        /// How many names of each type had a variant added, replaced or removed. None where a cache
        /// [on demand](Cache::on_demand) was only told what does not exist.
        changed: Arc<[(TypeUrl, usize)]>,
    },
    /// The cache is as it was.
    Refused {
        /// The revision of the cache, which stays.
        revision: Revision,
        /// Why.
        error: Arc<CommitError>,
    },
}

/// A reader of [`CommitEvent`]s; dropping it ends them. Made by [`Cache::commits`].
#[derive(Debug)]
pub struct Commits(Arc<Queue<CommitEvent>>);

/// How many transactions of each kind there were since the cache was made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CommitCounts {
    /// Transactions that made a revision.
    pub committed: u64,
    /// Transactions whose changes were in the cache already.
    pub unchanged: u64,
    /// Transactions that were refused, by [`CommitError::reason`]. Has each reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Cache {
    /// Tells of every commit and of every transaction that is refused, from now on. Holds
    /// `capacity` events (at least one) for who is slow to read them, then drops the oldest. Each
    /// holds a pointer for each stream and type that its commit concerned, so thousands of them are
    /// for caches with few clients. Costs nothing when nobody reads.
    ///
    /// ```
    /// # use xds_core::{CommitOutcome, Resource};
    /// use xds_core::{Cache, Transaction};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let cache = Cache::new();
    /// let mut commits = cache.commits(64);
    /// let mut transaction = Transaction::new();
    /// transaction.put(Resource::new("example.com/acme.Thing".into(), "a".into(), "payload".into())?);
    /// cache.commit(transaction)?;
    /// let event = commits.next().await.expect("the cache is there");
    /// let CommitOutcome::Committed { changed, .. } = event.outcome else { panic!("it is no mistake") };
    /// assert_eq!(changed[0].1, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn commits(&self, capacity: usize) -> Commits {
        Commits(self.commit_log.readers.add(capacity))
    }

    /// How many commits there were, and how many were refused. Costs a few loads.
    #[must_use]
    pub fn commit_counts(&self) -> CommitCounts {
        let CommitLog { committed, unchanged, refused, .. } = &self.commit_log;
        CommitCounts {
            committed: committed.load(Ordering::Relaxed),
            unchanged: unchanged.load(Ordering::Relaxed),
            refused: lock(refused).clone(),
        }
    }
}

impl Commits {
    /// The next event; `None` when there will be none, because the cache is gone. Those of commits
    /// come in the order of their revisions. Needs no runtime, and dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<CommitEvent> {
        let (lost, event) = self.0.next().await?;
        Some(CommitEvent { lost, ..event })
    }
}

impl CommitError {
    /// Each [`reason`](Self::reason) that there is.
    pub const REASONS: [&'static str; 7] = [
        "contradiction",
        "ambiguous",
        "key_sets",
        "unsatisfiable",
        "too_complex",
        "alias_taken",
        "superseded",
    ];

    /// The kind of mistake as one word in lower case, for counts.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Contradiction { .. } => "contradiction",
            Self::Ambiguous { .. } => "ambiguous",
            Self::KeySets { .. } => "key_sets",
            Self::Unsatisfiable { .. } => "unsatisfiable",
            Self::TooComplex { .. } => "too_complex",
            Self::AliasTaken { .. } => "alias_taken",
            Self::Superseded { .. } => "superseded",
        }
    }
}

/// The counts of transactions, and the readers of their events.
#[derive(Debug)]
pub(super) struct CommitLog {
    committed: AtomicU64,
    unchanged: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    readers: Readers<CommitEvent>,
}

impl Default for CommitLog {
    fn default() -> Self {
        let refused = CommitError::REASONS.map(|reason| (reason, 0));
        Self {
            committed: AtomicU64::default(),
            unchanged: AtomicU64::default(),
            refused: Mutex::new(refused.into()),
            readers: Readers::default(),
        }
    }
}

impl CommitLog {
    pub(super) fn unchanged(&self) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
    }

    /// Under the lock of the writer, so that events come in the order of revisions.
    pub(super) fn committed(&self, commit: &Commit, changed: &Changed) {
        self.committed.fetch_add(1, Ordering::Relaxed);
        if !self.readers.are_there() {
            return;
        }
        let of_type =
            |(type_url, variants): (&TypeUrl, &Vec<_>)| (type_url.clone(), by_name(variants).count());
        let changed = changed.iter().map(of_type).collect();
        self.send(CommitOutcome::Committed { commit: commit.clone(), changed });
    }

    pub(super) fn refused(&self, revision: Revision, error: &CommitError) {
        *lock(&self.refused).entry(error.reason()).or_default() += 1;
        if self.readers.are_there() {
            self.send(CommitOutcome::Refused { revision, error: Arc::new(error.clone()) });
        }
    }

    fn send(&self, outcome: CommitOutcome) {
        self.readers.send(vec![CommitEvent { lost: 0, outcome }]);
    }
}

#[cfg(test)]
mod tests;
