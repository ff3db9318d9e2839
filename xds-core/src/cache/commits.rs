//! Commits and refused transactions, as bounded queues of events and as counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::readers::{Queue, Readers};
use super::{Cache, Changed, Commit, CommitError, CommitOrigin, Snapshot, by_name, lock};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::resource::VariantId;

/// A transaction that was committed or refused.
///
/// A transaction that changes nothing causes no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitEvent {
    /// How many events were dropped before this one because nobody read them.
    pub lost: u64,
    /// The result of the transaction.
    pub outcome: CommitOutcome,
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitOutcome {
    /// Its changes are visible.
    Committed {
        /// The commit, with its revision. [`Commit::applied`] follows the clients that it affected.
        commit: Commit,
        /// How many names of each type had a variant added, replaced or removed. Empty when the
        /// source of a cache [on demand](Cache::on_demand) only set statuses.
        changed: Arc<[(TypeUrl, usize)]>,
        /// The first [`VARIANTS_LISTED`] variants of each type that changed, sorted.
        variants: Arc<[ChangedVariant]>,
        /// Where the transaction comes from.
        origin: Arc<CommitOrigin>,
    },
    /// The cache is unchanged.
    Refused {
        /// Where the transaction comes from.
        origin: Arc<CommitOrigin>,
        /// The revision of the unchanged cache.
        revision: Revision,
        /// Why the transaction was refused.
        error: Arc<CommitError>,
    },
}

/// A variant that a commit added, replaced or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedVariant {
    /// The variant.
    pub id: VariantId,
    /// Its version before the commit; `None` if it did not exist.
    pub before: Option<Version>,
    /// Its version since the commit; `None` if it was removed.
    pub after: Option<Version>,
}

/// How many changed variants of each type an event lists.
pub const VARIANTS_LISTED: usize = 100;

/// A reader of [`CommitEvent`]s; dropping it ends them. Made by [`Cache::commits`].
#[derive(Debug)]
pub struct Commits(Arc<Queue<CommitEvent>>);

/// How many transactions with each result there were since the cache was made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CommitCounts {
    /// Transactions that made a revision.
    pub committed: u64,
    /// Transactions that changed nothing, because the cache had this content already.
    pub unchanged: u64,
    /// Transactions that were refused, by [`CommitError::reason`]. Has each reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Cache {
    /// A reader of every commit and every refused transaction from now on. Stores `capacity` events
    /// (at least one) for a slow reader, then drops the oldest. An event has a pointer for each
    /// stream and type that its commit affected, so use a capacity of thousands only with few
    /// clients. Costs nothing without readers.
    ///
    /// ```
    /// # use xds_core::{CommitOutcome, Resource};
    /// use xds_core::{Cache, Transaction};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let cache = Cache::new();
    /// let mut commits = cache.commits(64);
    /// let mut transaction = Transaction::new();
    /// transaction.put(Resource::new("example.com/acme.Thing", "a", "payload")?);
    /// cache.commit(transaction)?;
    /// let event = commits.next().await.expect("the cache is alive");
    /// let CommitOutcome::Committed { changed, .. } = event.outcome else { panic!("it is valid") };
    /// assert_eq!(changed[0].1, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn commits(&self, capacity: usize) -> Commits {
        Commits(self.commit_log.readers.add(capacity))
    }

    /// How many transactions were committed and how many were refused. Cheap.
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
    /// The next event; `None` after the last one, when the cache was dropped. Commits come in the
    /// order of their revisions. Needs no runtime; dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<CommitEvent> {
        let (lost, event) = self.0.next().await?;
        Some(CommitEvent { lost, ..event })
    }
}

impl CommitError {
    /// All values of [`reason`](Self::reason).
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

    /// Called with the writer locked, so that events come in the order of revisions.
    pub(super) fn committed(
        &self,
        commit: &Commit,
        changed: &Changed,
        (before, after): (&Snapshot, &Snapshot),
        origin: Arc<CommitOrigin>,
    ) {
        self.committed.fetch_add(1, Ordering::Relaxed);
        if !self.readers.are_there() {
            return;
        }
        let variant = |type_url: &TypeUrl, (name, constraints): &(ResourceName, Constraints)| {
            let version = |snapshot: &Snapshot| {
                snapshot.get(type_url, name)?.get(constraints).map(|variant| variant.version())
            };
            let (before, after) = (version(before), version(after));
            let (type_url, name, constraints) = (type_url.clone(), name.clone(), constraints.clone());
            ChangedVariant { id: VariantId { type_url, name, constraints }, before, after }
        };
        let listed = changed.iter().flat_map(|(type_url, variants)| {
            variants.iter().take(VARIANTS_LISTED).map(move |changed| variant(type_url, changed))
        });
        let variants = listed.collect();
        let of_type =
            |(type_url, variants): (&TypeUrl, &Vec<_>)| (type_url.clone(), by_name(variants).count());
        let changed = changed.iter().map(of_type).collect();
        self.send(CommitOutcome::Committed { commit: commit.clone(), changed, variants, origin });
    }

    pub(super) fn refused(&self, revision: Revision, error: &CommitError, origin: Arc<CommitOrigin>) {
        *lock(&self.refused).entry(error.reason()).or_default() += 1;
        if self.readers.are_there() {
            self.send(CommitOutcome::Refused { origin, revision, error: Arc::new(error.clone()) });
        }
    }

    fn send(&self, outcome: CommitOutcome) {
        self.readers.send(vec![CommitEvent { lost: 0, outcome }]);
    }
}

#[cfg(test)]
mod tests;
