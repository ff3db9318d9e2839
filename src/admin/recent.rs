//! The latest commits and refused commits, with their times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use xds_core::{Commit, CommitError, CommitOutcome, Commits, Outcome, Revision, TypeUrl};

/// Follows the commits of a cache until it is dropped.
#[derive(Debug)]
pub(super) struct RecentCommits {
    kept: Arc<Mutex<KeptCommits>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct KeptCommits {
    /// The newest entry last.
    entries: VecDeque<Arc<CommitRecord>>,
    /// How many commits and refusals there were since the start.
    count: u64,
}

/// One commit or refused commit.
#[derive(Debug)]
pub(super) struct CommitRecord {
    /// Counts commits and refusals, from 1.
    pub(super) number: u64,
    pub(super) at: SystemTime,
    pub(super) outcome: RecordedOutcome,
    counted: Mutex<Option<(Instant, Counts)>>,
}

#[derive(Debug)]
pub(super) enum RecordedOutcome {
    Committed { commit: Commit, changed: Arc<[(TypeUrl, usize)]> },
    Refused { revision: Revision, error: Arc<CommitError> },
}

/// How many of the affected clients have answered a commit, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) acked: usize,
    pub(super) nacked: usize,
    pub(super) pending: usize,
    pub(super) gone: usize,
}

impl RecentCommits {
    pub(super) fn follow(mut commits: Commits) -> Self {
        let kept = Arc::<Mutex<KeptCommits>>::default();
        let keeper = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            while let Some(event) = commits.next().await {
                let outcome = match event.outcome {
                    CommitOutcome::Committed { commit, changed } => {
                        RecordedOutcome::Committed { commit, changed }
                    }
                    CommitOutcome::Refused { revision, error } => {
                        RecordedOutcome::Refused { revision, error }
                    }
                    // Other outcomes, which later versions may add, are not commits.
                    _ => continue,
                };
                lock(&keeper).keep(outcome, event.lost);
            }
        });
        Self { kept, task }
    }

    /// All entries, the newest first.
    pub(super) fn list(&self) -> Vec<Arc<CommitRecord>> {
        lock(&self.kept).entries.iter().rev().cloned().collect()
    }

    /// How many commits and refusals there were since the start.
    pub(super) fn count(&self) -> u64 {
        lock(&self.kept).count
    }
}

impl Drop for RecentCommits {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl KeptCommits {
    fn keep(&mut self, outcome: RecordedOutcome, lost: u64) {
        self.count += lost + 1;
        if self.entries.len() == COMMITS_KEPT {
            self.entries.pop_front();
        }
        let (number, at, counted) = (self.count, SystemTime::now(), Mutex::default());
        self.entries.push_back(Arc::new(CommitRecord { number, at, outcome, counted }));
    }
}

impl CommitRecord {
    /// How many clients have answered, at most a second ago. All pages share one pass over the
    /// clients, of which there may be 10,000. The outcome of a client that ACKed or disconnected
    /// does not change, so a commit that all clients have ACKed is counted once.
    pub(super) fn counts(&self) -> Counts {
        let RecordedOutcome::Committed { commit, .. } = &self.outcome else { return Counts::default() };
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, counts)) = *counted
            && (counts.pending + counts.nacked == 0 || at.elapsed() < COUNTS_LAST)
        {
            return counts;
        }
        let mut counts = Counts::default();
        for delivered in commit.applied(|_| true).results() {
            *match delivered.outcome {
                Outcome::Acked => &mut counts.acked,
                Outcome::Nacked { .. } => &mut counts.nacked,
                Outcome::Disconnected => &mut counts.gone,
                Outcome::Pending | Outcome::Late => &mut counts.pending,
            } += 1;
        }
        *counted = Some((Instant::now(), counts));
        counts
    }
}

/// No code panics while it holds the lock, so the data is consistent even if the lock is poisoned.
fn lock(kept: &Mutex<KeptCommits>) -> MutexGuard<'_, KeptCommits> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many commits and refusals are kept. Each commit has a pointer for each stream and type that
/// it affected.
pub(super) const COMMITS_KEPT: usize = 50;

/// The largest age of a count.
const COUNTS_LAST: Duration = Duration::from_secs(1);
