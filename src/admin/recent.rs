//! The latest commits and refused commits, with their times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use xds_core::{
    ChangedVariant, Commit, CommitError, CommitOrigin, CommitOutcome, Commits, Outcome, Revision, TypeUrl,
};

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

/// One commit, or a transaction that was refused, perhaps repeatedly.
#[derive(Debug)]
pub(super) struct CommitRecord {
    /// Counts commits and refusals, from 1.
    pub(super) number: u64,
    pub(super) at: SystemTime,
    /// Of a transaction that was refused again and again: how often, and when last.
    repeats: Mutex<Repeats>,
    pub(super) outcome: RecordedOutcome,
    pub(super) origin: Arc<CommitOrigin>,
    counted: Mutex<Option<(Instant, Counts)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Repeats {
    pub(super) count: u64,
    pub(super) last_at: SystemTime,
}

#[derive(Debug)]
pub(super) enum RecordedOutcome {
    Committed { commit: Commit, changed: Arc<[(TypeUrl, usize)]>, variants: Arc<[ChangedVariant]> },
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
                let (outcome, origin) = match event.outcome {
                    CommitOutcome::Committed { commit, changed, variants, origin } => {
                        (RecordedOutcome::Committed { commit, changed, variants }, origin)
                    }
                    CommitOutcome::Refused { revision, error, origin } => {
                        (RecordedOutcome::Refused { revision, error }, origin)
                    }
                    // Other outcomes, which later versions may add, are not commits.
                    _ => continue,
                };
                lock(&keeper).keep(outcome, origin, event.lost, SystemTime::now());
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
    fn keep(&mut self, outcome: RecordedOutcome, origin: Arc<CommitOrigin>, lost: u64, at: SystemTime) {
        self.count += lost + 1;
        if self.repeat(&outcome, at) {
            return;
        }
        if self.entries.len() == COMMITS_KEPT {
            self.entries.pop_front();
        }
        let (number, counted) = (self.count, Mutex::default());
        let repeats = Mutex::new(Repeats { count: 1, last_at: at });
        self.entries.push_back(Arc::new(CommitRecord { number, at, repeats, outcome, origin, counted }));
    }

    /// Whether the same refusal was the last one a short time ago. A source tries again, so such a
    /// refusal is one entry.
    fn repeat(&self, outcome: &RecordedOutcome, at: SystemTime) -> bool {
        let RecordedOutcome::Refused { error, .. } = outcome else { return false };
        let is_refused =
            |entry: &&Arc<CommitRecord>| matches!(entry.outcome, RecordedOutcome::Refused { .. });
        let Some(last) = self.entries.iter().rev().find(is_refused) else { return false };
        let mut repeats = last.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            matches!(&last.outcome, RecordedOutcome::Refused { error: before, .. } if before == error);
        if !is_same || at.duration_since(repeats.last_at).is_ok_and(|pause| pause > LONGEST_PAUSE) {
            return false;
        }
        *repeats = Repeats { count: repeats.count + 1, last_at: at };
        true
    }
}

impl CommitRecord {
    pub(super) fn repeats(&self) -> Repeats {
        *self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
                Outcome::Pending | Outcome::Splitting | Outcome::Late => &mut counts.pending,
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

/// The longest pause between two refusals of one entry. A folder is compared every 30 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use xds_core::{Constraints, VariantId};

    use super::*;

    #[test]
    fn a_refusal_that_is_repeated_is_one_entry_with_its_count_and_last_time() {
        let mut kept = KeptCommits::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut refuse = |seconds, name: &str| {
            let (type_url, name, constraints) =
                ("example.com/acme.Thing".into(), name.into(), Constraints::NONE);
            let error = CommitError::Unsatisfiable { id: VariantId { type_url, name, constraints } };
            let outcome = RecordedOutcome::Refused { revision: Revision::ZERO, error: Arc::new(error) };
            kept.keep(outcome, Arc::default(), 0, at(seconds));
            let last = kept.entries.back().unwrap();
            (kept.entries.len(), last.at, last.repeats())
        };
        let once = |seconds| Repeats { count: 1, last_at: at(seconds) };
        assert_eq!(refuse(0, "a"), (1, at(0), once(0)));
        assert_eq!(refuse(30, "a"), (1, at(0), Repeats { count: 2, last_at: at(30) }));
        assert_eq!(refuse(60, "b"), (2, at(60), once(60)));
        // It was corrected meanwhile, or it would have been tried again.
        assert_eq!(refuse(600, "b"), (3, at(600), once(600)));
        assert_eq!(kept.count, 4);
    }
}
