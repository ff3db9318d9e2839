//! Follows commits to the answers of those whom they concern, off the path of the streams.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xds_core::{
    Cache, Commit, CommitEvent, CommitOutcome, Commits, Decided, Followed, Follower, Revision, TypeUrl,
};

/// What is made of it.
pub(crate) trait Tracker {
    /// Something was committed; whether its answers are wanted.
    fn on_commit(&mut self, commit: &Commit, changed: &[(TypeUrl, usize)]) -> bool;

    /// A stream answered a commit that is followed.
    fn on_answer(&mut self, answer: &Decided, after: Duration);

    /// A commit is followed no more: all have answered but so many, which took longer or are more
    /// than is kept.
    fn on_end(&mut self, revision: Revision, undecided: usize);

    /// So many commits or answers were not seen, as this task came too late to read them.
    fn on_loss(&mut self, lost: Lost);

    /// All that there was to tell for now is told; what is followed is this, oldest first.
    fn on_caught_up(&mut self, open: &BTreeMap<Revision, TrackedCommit>) {
        _ = open;
    }
}

/// What was not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Commits(u64),
    Answers(u64),
}

/// A commit that is followed.
#[derive(Debug)]
pub(crate) struct TrackedCommit {
    pub(crate) at: Instant,
    pub(crate) followed: Followed,
}

/// Follows the commits of a cache until it is gone; it does not keep the cache.
pub(crate) fn follow<T: Tracker + Send>(cache: &Cache, tracker: T) -> impl Future<Output = ()> + Send + use<T> {
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
                biased; // the commit is there before its answers
                event = commits.next() => match event {
                    Some(event) => self.on_event(event),
                    None => return self.give_up(usize::MAX),
                },
                answer = self.follower.next() => self.on_answer(&answer),
                () = async { sleep_until(gives_up_at.unwrap_or_else(Instant::now)).await }, if gives_up_at.is_some() => self.give_up(1),
            }
            self.rest();
        }
    }

    fn on_event(&mut self, event: CommitEvent) {
        if event.lost > 0 {
            self.tracker.on_loss(Lost::Commits(event.lost));
        }
        let CommitOutcome::Committed { commit, changed } = event.outcome else { return };
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

    /// Tells of one answer, and of those that wait behind it: all have come by now.
    fn on_answer(&mut self, first: &Decided) {
        let now = Instant::now();
        self.tell(first, now);
        while let Some(answer) = self.follower.try_next() {
            self.tell(&answer, now);
        }
    }

    fn tell(&mut self, answer: &Decided, now: Instant) {
        if answer.lost > 0 {
            self.tracker.on_loss(Lost::Answers(answer.lost));
        }
        // Given up meanwhile, if it is not there.
        if let Some(open) = self.open.get(&answer.revision) {
            self.tracker.on_answer(answer, now.saturating_duration_since(open.at));
        }
    }

    /// The oldest ones are followed no more.
    fn give_up(&mut self, count: usize) {
        for _ in 0..count {
            let Some((revision, open)) = self.open.pop_first() else { return };
            self.tracker.on_end(revision, open.followed.undecided());
        }
    }

    /// What all have answered is done. Their answers are told before: who has decided has said so.
    fn rest(&mut self) {
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

/// Commits that wait to be seen by the task. Each holds a pointer for each stream and type that it
/// concerned.
const COMMITS_UNREAD: usize = 256;

/// Answers that wait to be seen by the task: one of each of four types of 16,000 clients.
const ANSWERS_UNREAD: usize = 1 << 16;

/// Commits that are followed at the same time. A stream that does not answer notes each.
const COMMITS_FOLLOWED: usize = 64;

/// Answers that are waited for at the same time, of all commits; each takes a note of 32 bytes at
/// its stream.
const ANSWERS_FOLLOWED: usize = 1 << 20;

/// How long the answers to one commit are waited for.
const FOLLOWED_FOR: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
