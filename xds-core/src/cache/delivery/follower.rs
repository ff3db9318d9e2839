//! Every answer to some commits, as it is given: for those who measure how long it takes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ClientName, Ledger, Outcome, Waiter};
use crate::cache::Commit;
use crate::cache::readers::Queue;
use crate::name::{Revision, TypeUrl};

/// What one stream said of a commit, for one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// How many of these were dropped before this one because nobody read them.
    pub lost: u64,
    /// The commit.
    pub revision: Revision,
    /// The client.
    pub client: ClientName,
    /// The type.
    pub type_url: TypeUrl,
    /// Never pending or late. The first one that there was: what is rejected may be mended by a
    /// later commit.
    pub outcome: Outcome,
}

/// Is told of each stream that ACKs, rejects or leaves one of the commits that are
/// [followed](Self::follow).
///
/// [`Delivery`](super::Delivery) tells how far everybody is; this tells when somebody got there.
#[derive(Debug)]
pub struct Follower(Arc<Queue<Decided>>);

/// A commit that is followed, until this is dropped.
pub struct Followed(Arc<Waiter>);

impl Follower {
    /// Holds so many answers (at least one) for who is slow to read them, then drops the oldest.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Queue::new(capacity))
    }

    /// Wants to be told of this commit: of each stream and type that it concerned once, at once
    /// where it is decided already. Costs a short lock for each, and when it is decided another.
    pub fn follow(&self, commit: &Commit) -> Followed {
        let telling = Telling { revision: commit.revision, queue: Arc::clone(&self.0) };
        let waiter = Arc::new(Waiter::new(0, Some(telling)));
        for ledger in &*commit.concerned {
            ledger.note(commit.revision, &waiter);
        }
        Followed(waiter)
    }

    /// The next answer. Needs no runtime, and dropping the future loses nothing.
    pub async fn next(&mut self) -> Decided {
        let (lost, decided) = self.0.next().await.expect("nobody closes this queue");
        Decided { lost, ..decided }
    }

    /// The next answer, if it was given already.
    pub fn try_next(&mut self) -> Option<Decided> {
        let (lost, decided) = self.0.try_next()?;
        Some(Decided { lost, ..decided })
    }
}

impl Followed {
    /// How many streams, each as often as types of it were concerned, did not answer yet.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.0.undecided.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed").field("undecided", &self.undecided()).finish()
    }
}

/// Whom a waiter tells.
#[derive(Debug)]
pub(super) struct Telling {
    revision: Revision,
    queue: Arc<Queue<Decided>>,
}

impl Telling {
    pub(super) fn tell(&self, ledger: &Ledger, outcome: Outcome) {
        let (client, type_url) = (ledger.stream.client(), ledger.type_url.clone());
        let decided = Decided { lost: 0, revision: self.revision, client, type_url, outcome };
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

    /// All that is told now, a word each, sorted: `revision:client:type:outcome`.
    fn told(follower: &mut Follower) -> String {
        let mut words = Vec::new();
        while let Some(decided) = follower.try_next() {
            let Decided { lost, revision, client, type_url, outcome } = decided;
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
        assert_eq!((followed.undecided(), told(&mut follower)), (3, String::new()));
        both.sent();
        one.sent();
        one.nack("EDS", "2");
        one.sent();
        assert_eq!(told(&mut follower), "2:one:ClusterLoadAssignment:bad");
        drop(both);
        assert_eq!(told(&mut follower), "2:both:Cluster:gone 2:both:ClusterLoadAssignment:gone");
        // The correction counts for the commit that brings it.
        commit(&cache, "EDS a=3");
        one.sent();
        one.ack("EDS", "3");
        one.sent();
        assert_eq!((followed.undecided(), told(&mut follower)), (0, String::new()));
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
        assert_eq!(told(&mut follower), "2:n:ClusterLoadAssignment:acked");
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
        let told = told(&mut follower);
        let both = "2:b:ClusterLoadAssignment:gone 2:c:ClusterLoadAssignment:gone lost:1";
        assert_eq!(told, both);
    }
}
