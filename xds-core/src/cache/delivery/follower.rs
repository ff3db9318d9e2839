//! Reports the outcome of each stream for some commits, as soon as it is decided. This is for
//! measuring how long clients take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Awaited, ClientName, Ledger, Outcome, Waiter};
use crate::cache::Commit;
use crate::cache::readers::Queue;
use crate::name::{Revision, TypeUrl};

/// The outcome of a commit at one stream, for one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOutcome {
    /// How many of these were dropped before this one because nobody read them.
    pub lost: u64,
    /// The commit.
    pub revision: Revision,
    /// The client.
    pub client: ClientName,
    /// The type.
    pub type_url: TypeUrl,
    /// The first outcome that was decided; never pending or late. A later commit may correct what
    /// is rejected here.
    pub outcome: Outcome,
}

/// Reads the outcome of each stream for the commits that it [follows](Self::follow): ACKed,
/// rejected or disconnected.
///
/// [`Delivery`](super::Delivery) returns the outcomes at all clients now; this reports each outcome
/// at the moment when it is decided.
#[derive(Debug)]
pub struct Follower(Arc<Queue<StreamOutcome>>);

/// A commit that is followed until this is dropped.
pub struct FollowedCommit(Arc<Waiter>);

impl Follower {
    /// Stores `capacity` outcomes (at least one) for a slow reader, then drops the oldest.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Queue::new(capacity))
    }

    /// Reports one outcome for each stream and type that this commit affected. An outcome that is
    /// decided already is reported at once. Costs a short lock for each, and another one when it is
    /// decided.
    pub fn follow(&self, commit: &Commit) -> FollowedCommit {
        let reports = OutcomeReports { revision: commit.revision, queue: Arc::clone(&self.0) };
        let waiter = Arc::new(Waiter::new(0, Some(reports)));
        for ledger in &*commit.affected {
            ledger.add_waiter(Awaited { revision: commit.revision, withheld: true }, &waiter);
        }
        FollowedCommit(waiter)
    }

    /// The next outcome. Needs no runtime; dropping the future loses nothing.
    pub async fn next(&mut self) -> StreamOutcome {
        let (lost, decided) = self.0.next().await.expect("the queue of a follower is never closed");
        StreamOutcome { lost, ..decided }
    }

    /// The next outcome, if there is one already.
    pub fn try_next(&mut self) -> Option<StreamOutcome> {
        let (lost, decided) = self.0.try_next()?;
        Some(StreamOutcome { lost, ..decided })
    }
}

impl FollowedCommit {
    /// How many outcomes are not decided yet, of one for each stream and type that the commit
    /// affected.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.0.undecided.load(Ordering::Acquire)
    }
}

impl fmt::Debug for FollowedCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowedCommit").field("undecided", &self.undecided()).finish()
    }
}

/// Where a waiter reports outcomes.
#[derive(Debug)]
pub(super) struct OutcomeReports {
    revision: Revision,
    queue: Arc<Queue<StreamOutcome>>,
}

impl OutcomeReports {
    pub(super) fn push(&self, ledger: &Ledger, outcome: Outcome) {
        let (client, type_url) = (ledger.stream.client(), ledger.type_url.clone());
        let decided = StreamOutcome { lost: 0, revision: self.revision, client, type_url, outcome };
        self.queue.push(std::iter::once(decided));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::cache::Cache;
    use crate::server::fixture::{Sotw, commit};

    /// All outcomes reported so far, a word each, sorted: `revision:client:type:outcome`.
    fn reported(follower: &mut Follower) -> String {
        let mut words = Vec::new();
        while let Some(decided) = follower.try_next() {
            let StreamOutcome { lost, revision, client, type_url, outcome } = decided;
            let outcome = match outcome {
                Outcome::Nacked { detail, .. } => detail.to_string(),
                outcome => format!("{outcome:?}").to_lowercase(),
            };
            if lost > 0 {
                words.push(format!("lost:{lost}"));
            }
            let name = type_url.message_name().rsplit('.').next().unwrap();
            words.push(format!("{revision}:{}:{name}:{outcome}", client.id));
        }
        let next = pin!(follower.next()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(next, Poll::Pending);
        words.sort();
        words.join(" ")
    }

    fn asking(cache: &Arc<Cache>, id: &str, types: &[&str]) -> Sotw {
        let mut client = Sotw::new(cache);
        client.watch.name_client(ClientName { id: id.into(), cluster: "c".into() });
        for type_name in types {
            client.ask(type_name, if *type_name == "EDS" { "a" } else { "" }, "");
        }
        client.sent();
        client
    }

    #[test]
    fn each_stream_and_type_that_a_commit_concerned_is_told_once() {
        let cache = Cache::new();
        commit(&cache, "EDS a=1; CDS c=1");
        let (mut both, mut one) = (asking(&cache, "both", &["EDS", "CDS"]), asking(&cache, "one", &["EDS"]));
        both.ack("EDS", "1");
        both.ack("CDS", "2");
        one.ack("EDS", "1");
        both.sent();
        one.sent();
        let mut follower = Follower::new(100);
        let second = commit(&cache, "EDS a=2; CDS c=2");
        let followed = follower.follow(&second);
        assert_eq!((followed.undecided(), reported(&mut follower)), (3, String::new()));
        both.sent();
        one.sent();
        one.nack("EDS", "2");
        one.sent();
        assert_eq!(reported(&mut follower), "2:one:ClusterLoadAssignment:bad");
        drop(both);
        assert_eq!(
            reported(&mut follower),
            "2:both:Cluster:disconnected 2:both:ClusterLoadAssignment:disconnected"
        );
        // The correction counts for the commit that contains it.
        commit(&cache, "EDS a=3");
        one.sent();
        one.ack("EDS", "3");
        one.sent();
        assert_eq!((followed.undecided(), reported(&mut follower)), (0, String::new()));
    }

    #[test]
    fn what_is_decided_before_it_is_followed_is_told_too() {
        let cache = Cache::new();
        commit(&cache, "EDS a=1");
        let mut client = asking(&cache, "n", &["EDS"]);
        let second = commit(&cache, "EDS a=2");
        client.ack("EDS", "1");
        client.sent();
        client.ack("EDS", "2");
        client.sent();
        let mut follower = Follower::new(100);
        let followed = follower.follow(&second);
        assert_eq!(followed.undecided(), 0);
        assert_eq!(reported(&mut follower), "2:n:ClusterLoadAssignment:acked");
    }

    #[test]
    fn who_reads_late_loses_the_oldest_and_what_is_dropped_is_followed_no_more() {
        let cache = Cache::new();
        commit(&cache, "EDS a=1");
        let clients = ["a", "b", "c"].map(|id| asking(&cache, id, &["EDS"]));
        let mut follower = Follower::new(2);
        let followed = follower.follow(&commit(&cache, "EDS a=2"));
        drop(follower.follow(&commit(&cache, "EDS a=3")));
        drop(clients);
        assert_eq!(followed.undecided(), 0);
        let reported = reported(&mut follower);
        let both = "2:b:ClusterLoadAssignment:disconnected 2:c:ClusterLoadAssignment:disconnected lost:1";
        assert_eq!(reported, both);
    }
}
