//! How far clients are with a commit: which of them it concerned, and which of those ACKed it,
//! rejected it or left.
//!
//! Each stream keeps a [`Ledger`] per type, which says what of the revisions it was sent is
//! answered. A commit remembers the ledgers of those it concerned, and nothing else happens for it:
//! who asks reads the ledgers, and who waits leaves a note in those that are not decided yet.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use atomic_waker::AtomicWaker;

use super::interest::RegisteredStream;
use super::{Commit, lock};
use crate::name::{Revision, TypeUrl};

use follower::Telling;
pub use follower::{Decided, Followed, Follower};

mod follower;

/// Who a client says it is. Its streams are those with the same name; one without an id is a client
/// of its own (G6).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientName {
    /// `node.id`.
    pub id: Arc<str>,
    /// `node.cluster`.
    pub cluster: Arc<str>,
}

/// How far one client is with one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ACKed all that the commit changed for it, removals included, or was found to have it
    /// already.
    Acked,
    /// It rejected a response with something of the commit, and nothing that puts it right was
    /// ACKed since.
    Nacked {
        /// The type of that response.
        type_url: TypeUrl,
        /// The client's own words.
        detail: Arc<str>,
    },
    /// The streams that still owed an answer have ended. A client that comes back is sent what it
    /// lacks, but counts for later commits only.
    Gone,
    /// It was not sent everything yet, or did not answer.
    Pending,
    /// It was pending when the time of who waited was over.
    Late,
}

/// What became of a commit at one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The client.
    pub client: ClientName,
    /// How far it is.
    pub outcome: Outcome,
}

/// The clients that a commit concerned, or some of them. Made by [`Commit::applied`].
pub struct Delivery {
    revision: Revision,
    clients: Vec<(ClientName, Vec<Arc<Ledger>>)>,
}

impl Commit {
    /// Follows the clients that this commit concerned and whose name passes: those whose selection
    /// it may have changed, fixed at the commit. Costs nothing before it is called.
    ///
    /// The first commit, and one that brings a key which no constraints named before, concern
    /// everyone who asks for anything of the type; who is then found to lack nothing counts as
    /// [`Outcome::Acked`]. A stream that nobody [named](crate::Watch::name_client) is a client
    /// without a name, such as a poll over REST, which cannot ACK and ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use xds_core::server::{DeltaRequest, DeltaStream, Next, Service, StreamConfig};
    /// use xds_core::{Cache, ClientName, Outcome, Resource, Transaction};
    ///
    /// let cache = Cache::new();
    /// # let watch = cache.watch();
    /// # watch.name_client(ClientName { id: "envoy-1".into(), cluster: "edge".into() });
    /// # let mut stream = DeltaStream::new(watch, Service::Aggregated, StreamConfig::default());
    /// # let type_url = "example.com/acme.Thing".to_owned();
    /// # let subscribe = vec!["a".into()].into();
    /// # stream.on_request(DeltaRequest { type_url, subscribe, ..DeltaRequest::default() })?;
    /// let mut transaction = Transaction::new();
    /// transaction.put(Resource::new("example.com/acme.Thing".into(), "a".into(), "payload".into())?);
    /// let delivery = cache.commit(transaction)?.applied(|client| &*client.cluster == "edge");
    /// // `delivery.settled().await` waits until no client is pending.
    /// assert_eq!(delivery.results()[0].outcome, Outcome::Pending);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn applied(&self, who: impl Fn(&ClientName) -> bool) -> Delivery {
        let passes = |ledger: &&Arc<Ledger>| who(&ledger.stream.client());
        Delivery::of(self.revision, self.concerned.iter().filter(passes).cloned())
    }
}

impl Delivery {
    pub(super) fn of(revision: Revision, ledgers: impl Iterator<Item = Arc<Ledger>>) -> Self {
        let mut clients = BTreeMap::<_, (ClientName, Vec<_>)>::new();
        for ledger in ledgers {
            let client = ledger.stream.client();
            // G6: nameless streams have nothing in common.
            let alone = client.id.is_empty().then_some(ledger.stream.id);
            let (_, of_client) =
                clients.entry((client.clone(), alone)).or_insert_with(|| (client, Vec::new()));
            of_client.push(ledger);
        }
        Self { revision, clients: clients.into_values().collect() }
    }

    /// How far each client is now, in the order of their names.
    #[must_use]
    pub fn results(&self) -> Vec<Delivered> {
        let result = |(client, ledgers): &(ClientName, Vec<Arc<Ledger>>)| {
            let outcomes = ledgers.iter().map(|ledger| ledger.outcome(self.revision));
            let outcome = outcomes.max_by_key(Outcome::weight).unwrap_or(Outcome::Acked);
            Delivered { client: client.clone(), outcome }
        };
        self.clients.iter().map(result).collect()
    }

    /// Waits until every type of every client is ACKed, rejected or gone. Needs no runtime, and
    /// dropping the future loses nothing. A deadline is the caller's: `xds_server::applied` sets
    /// one.
    pub async fn settled(&self) -> Vec<Delivered> {
        loop {
            // One for this loop itself, until all ledgers know of it.
            let waiter = Arc::new(Waiter::new(1, None));
            for ledger in self.clients.iter().flat_map(|(_, ledgers)| ledgers) {
                ledger.note(self.revision, &waiter);
            }
            waiter.decided_one();
            poll_fn(|cx| {
                waiter.waker.register(cx.waker());
                if waiter.undecided.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let results = self.results();
            // D8: what was rejected may be told again meanwhile, and is then pending once more.
            if results.iter().all(|result| result.outcome != Outcome::Pending) {
                return results;
            }
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("revision", &self.revision)
            .field("results", &self.results())
            .finish_non_exhaustive()
    }
}

impl Outcome {
    /// Of the types of a client the heaviest says how far it is.
    fn weight(&self) -> u8 {
        match self {
            Self::Acked => 0,
            Self::Gone => 1,
            Self::Pending | Self::Late => 2,
            Self::Nacked { .. } => 3,
        }
    }
}

/// What one stream has answered of one type, for those who wrote it.
#[derive(Debug)]
pub(crate) struct Ledger {
    stream: Arc<RegisteredStream>,
    type_url: TypeUrl,
    state: Mutex<LedgerState>,
}

#[derive(Debug, Default)]
struct LedgerState {
    ack_state: AckState,
    is_ended: bool,
    /// Who waits until a revision is decided here.
    waiters: Vec<(Revision, Weak<Waiter>)>,
}

/// Which revisions a stream still owes an answer to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct AckState {
    /// Up to here everything was sent, held back, or found needless.
    pub(crate) sent: Revision,
    /// What of it was not answered, or not told.
    pub(crate) pending: Spans,
    /// What of it was rejected, and in which words.
    pub(crate) rejected: Vec<(Spans, Arc<str>)>,
}

impl Ledger {
    pub(super) fn new(stream: Arc<RegisteredStream>, type_url: TypeUrl) -> Self {
        Self { stream, type_url, state: Mutex::default() }
    }

    /// Whose answers these are.
    pub(super) fn stream(&self) -> &Arc<RegisteredStream> {
        &self.stream
    }

    pub(super) fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// How far the stream was when it said so last.
    pub(crate) fn ack_state(&self) -> AckState {
        lock(&self.state).ack_state.clone()
    }

    /// Takes how far the stream is now. Costs one short lock, and O(those who wait for this very
    /// stream).
    pub(crate) fn update(&self, ack_state: AckState) {
        let mut state = lock(&self.state);
        if state.ack_state == ack_state {
            return;
        }
        state.ack_state = ack_state;
        let decided = self.take_decided(&mut state);
        drop(state);
        self.wake(decided);
    }

    /// The stream is no more.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_ended = true;
        let decided = self.take_decided(&mut state);
        drop(state);
        self.wake(decided);
    }

    fn outcome(&self, revision: Revision) -> Outcome {
        self.outcome_of(&lock(&self.state).decision(revision))
    }

    fn outcome_of(&self, decision: &Decision<'_>) -> Outcome {
        match decision {
            Decision::Acked => Outcome::Acked,
            Decision::Pending => Outcome::Pending,
            Decision::Disconnected => Outcome::Gone,
            Decision::Rejected(detail) => self.nacked(detail),
        }
    }

    /// Those who waited for what is decided now.
    fn take_decided(&self, state: &mut LedgerState) -> Vec<(Weak<Waiter>, Outcome)> {
        let mut waiters = std::mem::take(&mut state.waiters);
        let is_decided =
            |(revision, _): &mut (Revision, _)| !matches!(state.decision(*revision), Decision::Pending);
        let decided = waiters.extract_if(.., is_decided);
        let decided =
            decided.map(|(revision, waiter)| (waiter, self.outcome_of(&state.decision(revision)))).collect();
        state.waiters = waiters;
        decided
    }

    fn wake(&self, decided: Vec<(Weak<Waiter>, Outcome)>) {
        for (waiter, outcome) in decided {
            if let Some(waiter) = waiter.upgrade() {
                waiter.decided(self, outcome);
            }
        }
    }

    fn nacked(&self, detail: &Arc<str>) -> Outcome {
        Outcome::Nacked { type_url: self.type_url.clone(), detail: Arc::clone(detail) }
    }

    /// What is decided already is not noted, but told.
    fn note(&self, revision: Revision, waiter: &Arc<Waiter>) {
        let mut state = lock(&self.state);
        // Of those who no longer wait.
        state.waiters.retain(|(_, waiter)| waiter.strong_count() > 0);
        if matches!(state.decision(revision), Decision::Pending) {
            waiter.undecided.fetch_add(1, Ordering::AcqRel);
            state.waiters.push((revision, Arc::downgrade(waiter)));
        } else if let Some(telling) = &waiter.telling {
            telling.tell(self, self.outcome_of(&state.decision(revision)));
        }
    }
}

/// What a ledger says of one revision.
enum Decision<'a> {
    Acked,
    Pending,
    Rejected(&'a Arc<str>),
    Disconnected,
}

impl LedgerState {
    fn decision(&self, revision: Revision) -> Decision<'_> {
        let AckState { sent, pending, rejected } = &self.ack_state;
        let rejected = rejected.iter().rev().find(|(spans, _)| spans.cover(revision));
        if let Some((_, detail)) = rejected {
            return Decision::Rejected(detail);
        }
        match revision > *sent || pending.cover(revision) {
            true if self.is_ended => Decision::Disconnected,
            true => Decision::Pending,
            false => Decision::Acked,
        }
    }
}

/// Who waits until nothing is undecided.
#[derive(Debug)]
struct Waiter {
    undecided: AtomicUsize,
    waker: AtomicWaker,
    /// Whom to tell of each.
    telling: Option<Telling>,
}

impl Waiter {
    fn new(undecided: usize, telling: Option<Telling>) -> Self {
        Self { undecided: AtomicUsize::new(undecided), waker: AtomicWaker::new(), telling }
    }

    fn decided(&self, ledger: &Ledger, outcome: Outcome) {
        if let Some(telling) = &self.telling {
            telling.tell(ledger, outcome);
        }
        self.decided_one();
    }

    fn decided_one(&self) {
        if self.undecided.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake();
        }
    }
}

/// Revisions, as some runs of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

/// The revisions after one, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    after: Revision,
    until: Revision,
}

impl Spans {
    /// Adds the revisions after one, up to another.
    pub(crate) fn add(&mut self, after: Revision, until: Revision) {
        let span = Span { after, until };
        if after >= until || self.0.contains(&span) {
            return;
        }
        self.0.push(span);
        if self.0.len() > SPANS_KEPT {
            let Span { after, until } = self.0.remove(0);
            let oldest = &mut self.0[0];
            *oldest = Span { after: oldest.after.min(after), until: oldest.until.max(until) };
        }
    }

    /// Adds one revision; the one before the first commit is none.
    pub(crate) fn add_one(&mut self, revision: Revision) {
        self.add(Revision(revision.0.saturating_sub(1)), revision);
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|span| self.add(span.after, span.until));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn cover(&self, revision: Revision) -> bool {
        self.0.iter().any(|span| span.after < revision && revision <= span.until)
    }
}

/// Runs that are told apart; past it the oldest two become one with what is between them, so that
/// at worst a commit waits for an answer that it needs no more.
const SPANS_KEPT: usize = 32;

#[cfg(test)]
mod tests;
