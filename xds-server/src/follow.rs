//! Follows each commit until the streams that it affects have answered. It does not run on the
//! tasks of the streams.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xds_core::{
    Cache, Commit, CommitEvent, CommitOutcome, Commits, FollowedCommit, Follower, Revision, StreamOutcome,
    TypeUrl,
};

/// Receives commits and the answers to them.
pub(crate) trait Tracker {
    /// A commit happened. Returns whether to follow its answers.
    fn on_commit(&mut self, commit: &Commit, changed: &[(TypeUrl, usize)]) -> bool;

    /// A stream has answered a followed commit.
    fn on_answer(&mut self, answer: &StreamOutcome, after: Duration);

    /// A commit is no longer followed. `undecided` streams have not answered: they took too long,
    /// or there are too many commits.
    fn on_end(&mut self, revision: Revision, undecided: usize);

    /// Commits or answers were missed because this task read them too late.
    fn on_loss(&mut self, lost: Lost);

    /// All events so far were passed on. `open` has the followed commits, oldest first.
    fn on_caught_up(&mut self, open: &BTreeMap<Revision, TrackedCommit>) {
        _ = open;
    }
}

/// What was missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Commits(u64),
    Answers(u64),
}

/// A followed commit.
#[derive(Debug)]
pub(crate) struct TrackedCommit {
    pub(crate) at: Instant,
    pub(crate) followed: FollowedCommit,
}

/// Follows the commits of a cache until the cache is dropped; it does not keep the cache alive.
pub(crate) fn follow<T: Tracker + Send>(
    cache: &Cache,
    tracker: T,
) -> impl Future<Output = ()> + Send + use<T> {
    let commits = cache.commits(COMMITS_UNREAD);
    let task = Task { follower: Follower::new(ANSWERS_UNREAD), open: BTreeMap::new(), tracker };
    task.run(commits)
}

#[derive(Debug)]
struct Task<T> {
    follower: Follower,
    open: BTreeMap<Revision, TrackedCommit>,
    tracker: T,
}

impl<T: Tracker> Task<T> {
    async fn run(mut self, mut commits: Commits) {
        loop {
            let gives_up_at = self.open.values().next().map(|oldest| oldest.at + FOLLOWED_FOR);
            tokio::select! {
                biased; // a commit before its answers
                event = commits.next() => match event {
                    Some(event) => self.on_event(event),
                    None => return self.give_up(usize::MAX),
                },
                answer = self.follower.next() => self.on_answer(&answer),
                () = async { sleep_until(gives_up_at.unwrap_or_else(Instant::now)).await }, if gives_up_at.is_some() => self.give_up(1),
            }
            self.end_decided();
        }
    }

    fn on_event(&mut self, event: CommitEvent) {
        if event.lost > 0 {
            self.tracker.on_loss(Lost::Commits(event.lost));
        }
        let CommitOutcome::Committed { commit, changed, .. } = event.outcome else { return };
        if !self.tracker.on_commit(&commit, &changed) {
            return;
        }
        let (at, followed) = (Instant::now(), self.follower.follow(&commit));
        self.open.insert(commit.revision, TrackedCommit { at, followed });
        let mut undecided: usize = self.open.values().map(|open| open.followed.undecided()).sum();
        while self.open.len() > COMMITS_FOLLOWED || (undecided > ANSWERS_FOLLOWED && !self.open.is_empty()) {
            undecided -= self.open.values().next().map_or(0, |open| open.followed.undecided()).min(undecided);
            self.give_up(1);
        }
    }

    /// Passes on one answer and those queued behind it, which all have arrived by now.
    fn on_answer(&mut self, first: &StreamOutcome) {
        let now = Instant::now();
        self.pass_on(first, now);
        while let Some(answer) = self.follower.try_next() {
            self.pass_on(&answer, now);
        }
    }

    fn pass_on(&mut self, answer: &StreamOutcome, now: Instant) {
        if answer.lost > 0 {
            self.tracker.on_loss(Lost::Answers(answer.lost));
        }
        // A missing commit was given up meanwhile.
        if let Some(open) = self.open.get(&answer.revision) {
            self.tracker.on_answer(answer, now.saturating_duration_since(open.at));
        }
    }

    /// Stops following the `count` oldest commits.
    fn give_up(&mut self, count: usize) {
        for _ in 0..count {
            let Some((revision, open)) = self.open.pop_first() else { return };
            self.tracker.on_end(revision, open.followed.undecided());
        }
    }

    /// Ends the commits that all streams have answered. It passes on the answers first: a stream
    /// that has decided has already sent its answer.
    fn end_decided(&mut self) {
        let decided = |(_, open): &(&Revision, &TrackedCommit)| open.followed.undecided() == 0;
        let decided: Vec<_> = self.open.iter().filter(decided).map(|(revision, _)| *revision).collect();
        if let Some(answer) = self.follower.try_next() {
            self.on_answer(&answer);
        }
        for revision in decided {
            self.open.remove(&revision);
            self.tracker.on_end(revision, 0);
        }
        self.tracker.on_caught_up(&self.open);
    }
}

/// The most commits in the queue of the task. Each holds a pointer for each stream and type that it
/// affects.
const COMMITS_UNREAD: usize = 256;

/// The most answers in the queue of the task: enough for one answer of 16,000 clients for each of
/// four types.
const ANSWERS_UNREAD: usize = 1 << 16;

/// The most followed commits. A stream that does not answer keeps a note of each.
const COMMITS_FOLLOWED: usize = 64;

/// The most outstanding answers of all followed commits. Each takes a note of 32 bytes at its
/// stream.
const ANSWERS_FOLLOWED: usize = 1 << 20;

/// How long a commit is followed.
const FOLLOWED_FOR: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
