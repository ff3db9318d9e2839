//! The outcome of a commit at the clients that it affected: ACKed, rejected, disconnected or
//! pending.
//!
//! Each stream has one [`Ledger`] per type. It records which revisions the stream was sent and
//! which of them the client ACKed or rejected. A commit stores pointers to the ledgers of the
//! streams that it affected, and does nothing else. [`Delivery::results`] reads these ledgers. A
//! task that waits adds a [`Waiter`] to each ledger that is not decided yet.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;

use super::interest::RegisteredStream;
use super::{Commit, lock};
use crate::name::{ResourceName, Revision, TypeUrl};

use follower::OutcomeReports;
pub use follower::{FollowedCommit, Follower, StreamOutcome};

mod follower;

/// The name that a client gives itself. Streams with the same name are one client. A stream without
/// a node id is a client of its own (G6).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientName {
    /// `node.id`.
    pub id: Arc<str>,
    /// `node.cluster`.
    pub cluster: Arc<str>,
}

/// The outcome of one commit at one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The client ACKed everything that the commit changed for it, removals included, or had it
    /// already. A [candidate](super::Candidate::delivery) does not wait for withheld removals.
    Acked,
    /// The client rejected a response that contained changes of the commit, and has not ACKed a
    /// correction since.
    Nacked {
        /// The type of that response.
        type_url: TypeUrl,
        /// The error message of the client; of the first of `names`, if it rejected several.
        detail: Arc<str>,
        /// The resources that it rejected, each in a response of its own, at most [`NAMES_LISTED`]. Empty if
        /// it is not known which ones it rejects.
        names: Arc<[ResourceName]>,
    },
    /// The client rejected a response that contained changes of the commit, and is sent its resources
    /// again in parts, or because there may be room for them now (S6c, S6e). It counts as rejected after
    /// 16 s at the latest.
    Splitting,
    /// The streams whose answers were still missing have ended. A client that reconnects is sent
    /// what it lacks, but counts for later commits only.
    Disconnected,
    /// The client was not sent everything yet, or has not answered.
    Pending,
    /// The client was still pending at the deadline of the caller.
    Late,
}

/// The outcome of a commit at one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOutcome {
    /// The client.
    pub client: ClientName,
    /// The outcome at this client.
    pub outcome: Outcome,
}

/// The clients that a commit affected, or some of them. Made by [`Commit::applied`] and
/// [`Candidate::delivery`](super::Candidate::delivery).
pub struct Delivery {
    clients: Vec<(ClientName, Vec<Affected>)>,
}

/// A stream and type that a commit affected, with what is awaited of it.
pub(super) type Affected = (Awaited, Arc<Ledger>);

/// What a stream should have ACKed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    pub(super) revision: Revision,
    /// Also removals that are withheld because the client may still use what is removed (S33).
    pub(super) withheld: bool,
}

impl Commit {
    /// Follows the clients that this commit affected and that `selects` accepts. A commit affects a
    /// client when it may have changed what the client subscribes to. The clients are fixed at the
    /// commit. Costs nothing before it is called.
    ///
    /// The first commit affects every client that subscribes to the type. So does a commit that
    /// adds a key which no constraints used before. A client that turns out to lack nothing counts
    /// as [`Outcome::Acked`]. A stream without a [name](crate::Watch::name_client) is a client
    /// without a name, for example a REST poll, which ends without an ACK.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use xds_core::server::{DeltaRequest, Next, Protocol, Service, Stream, StreamConfig};
    /// use xds_core::{Cache, ClientName, Outcome, Resource, Transaction};
    ///
    /// let cache = Cache::new();
    /// # let watch = cache.watch();
    /// # watch.name_client(ClientName { id: "envoy-1".into(), cluster: "edge".into() });
    /// # let mut stream = Stream::new(watch, Service::Aggregated, Protocol::Delta, StreamConfig::default());
    /// # let type_url = "example.com/acme.Thing".to_owned();
    /// # let subscribe = vec!["a".into()].into();
    /// # let request = DeltaRequest { type_url, subscribe, ..DeltaRequest::default() };
    /// # stream.on_request(Duration::ZERO, request)?;
    /// let mut transaction = Transaction::new();
    /// transaction.put(Resource::new("example.com/acme.Thing", "a", "payload")?);
    /// let delivery = cache.commit(transaction)?.applied(|client| &*client.cluster == "edge");
    /// // `delivery.decided().await` waits until no client is pending.
    /// assert_eq!(delivery.results()[0].outcome, Outcome::Pending);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn applied(&self, selects: impl Fn(&ClientName) -> bool) -> Delivery {
        let passes = |ledger: &&Arc<Ledger>| selects(&ledger.stream.client());
        let awaited = Awaited { revision: self.revision, withheld: true };
        Delivery::of(self.affected.iter().filter(passes).map(|ledger| (awaited, Arc::clone(ledger))))
    }
}

impl Delivery {
    pub(super) fn of(affected: impl Iterator<Item = Affected>) -> Self {
        let mut clients = BTreeMap::<_, (ClientName, Vec<_>)>::new();
        for (awaited, ledger) in affected {
            let client = ledger.stream.client();
            // G6: each stream without a node id is a client of its own.
            let alone = client.id.is_empty().then_some(ledger.stream.id);
            let (_, of_client) =
                clients.entry((client.clone(), alone)).or_insert_with(|| (client, Vec::new()));
            of_client.push((awaited, ledger));
        }
        Self { clients: clients.into_values().collect() }
    }

    /// Whether it has no clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The outcome at each client now, in the order of the client names. A client that has nothing to
    /// answer, because all that it would be sent are removals that a candidate need not wait for, is
    /// not among them.
    #[must_use]
    pub fn results(&self) -> Vec<ClientOutcome> {
        let answers = |(_, ledgers): &&(ClientName, Vec<Affected>)| {
            !ledgers.iter().all(|(awaited, ledger)| ledger.only_withholds(*awaited))
        };
        let result = |(client, ledgers): &(ClientName, Vec<Affected>)| {
            let outcomes = ledgers.iter().map(|(awaited, ledger)| ledger.outcome(*awaited));
            let outcome = outcomes.max_by_key(Outcome::weight).unwrap_or(Outcome::Acked);
            ClientOutcome { client: client.clone(), outcome }
        };
        self.clients.iter().filter(answers).map(result).collect()
    }

    /// Waits until no client is pending. Needs no runtime; dropping the future loses nothing. Has
    /// no deadline; `xds_server::applied` adds one.
    pub async fn decided(&self) -> Vec<ClientOutcome> {
        loop {
            // The count starts at one, for this loop, so that it is not zero before all ledgers
            // have the waiter.
            let waiter = Arc::new(Waiter::new(1, None));
            for (awaited, ledger) in self.clients.iter().flat_map(|(_, ledgers)| ledgers) {
                ledger.add_waiter(*awaited, &waiter);
            }
            waiter.decided_one();
            poll_fn(|cx| {
                waiter.waker.register(cx.waker());
                if waiter.undecided.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let results = self.results();
            // D8: rejected content may be sent again meanwhile. Then the client is pending again.
            if results.iter().all(|result| !matches!(result.outcome, Outcome::Pending | Outcome::Splitting)) {
                return results;
            }
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("results", &self.results()).finish_non_exhaustive()
    }
}

impl Outcome {
    /// A client has the outcome of its type with the highest weight.
    fn weight(&self) -> u8 {
        match self {
            Self::Acked => 0,
            Self::Disconnected => 1,
            Self::Pending | Self::Late => 2,
            Self::Splitting => 3,
            Self::Nacked { .. } => 4,
        }
    }
}

/// Which revisions one stream was sent, ACKed and rejected of one type, for the sources that
/// committed them.
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
    /// Waiters for a decision.
    waiters: Vec<(Awaited, Weak<Waiter>)>,
}

/// Which revisions a stream was sent, and which of them are pending or rejected. The others are
/// ACKed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct AckState {
    /// Up to this revision every change was sent, withheld, or found not to affect the client.
    pub(crate) sent: Revision,
    /// Revisions up to `sent` with a response that was not answered yet, or with content that has to
    /// be sent again (D8).
    pub(crate) pending: Spans,
    /// Revisions up to `sent` with a removal that is withheld (S33).
    pub(crate) withheld: Spans,
    /// Revisions up to `sent` of rejected content that is sent again, to find out what is bad (S6f).
    pub(crate) splitting: Spans,
    /// Revisions up to `sent` that were rejected.
    pub(crate) rejected: Vec<RejectedRevisions>,
}

/// Revisions that a client rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RejectedRevisions {
    pub(crate) about: Spans,
    /// The error message of the client.
    pub(crate) detail: Arc<str>,
    /// The name that was rejected alone; `None` if nobody knows which one it was.
    pub(crate) name: Option<ResourceName>,
}

impl Ledger {
    pub(super) fn new(stream: Arc<RegisteredStream>, type_url: TypeUrl) -> Self {
        Self { stream, type_url, state: Mutex::default() }
    }

    /// The stream that this ledger belongs to.
    pub(super) fn stream(&self) -> &Arc<RegisteredStream> {
        &self.stream
    }

    pub(super) fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// The state at the last [`update`](Self::update).
    pub(crate) fn ack_state(&self) -> AckState {
        lock(&self.state).ack_state.clone()
    }

    /// Replaces the state of the stream. Costs one short lock and O(waiters of this stream).
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

    /// Whether another stream of the client may take the place of this one: it ended, and did not
    /// reject the revision.
    pub(super) fn is_replaceable(&self, revision: Revision) -> bool {
        let state = lock(&self.state);
        let awaited = Awaited { revision, withheld: true };
        state.is_ended && !matches!(state.decision(awaited), Decision::Rejected(..))
    }

    /// Whether it has ACKed the revision.
    pub(super) fn has_acked(&self, revision: Revision) -> bool {
        let awaited = Awaited { revision, withheld: false };
        matches!(lock(&self.state).decision(awaited), Decision::Acked)
    }

    /// Notes that the stream has ended.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_ended = true;
        let decided = self.take_decided(&mut state);
        drop(state);
        self.wake(decided);
    }

    /// Whether the only thing that the stream was not sent is a removal that nobody waits for.
    fn only_withholds(&self, awaited: Awaited) -> bool {
        let state = lock(&self.state);
        let is_withheld = state.ack_state.withheld.cover(awaited.revision);
        !awaited.withheld && is_withheld && matches!(state.decision(awaited), Decision::Acked)
    }

    fn outcome(&self, awaited: Awaited) -> Outcome {
        self.outcome_of(&lock(&self.state).decision(awaited))
    }

    fn outcome_of(&self, decision: &Decision<'_>) -> Outcome {
        match decision {
            Decision::Acked => Outcome::Acked,
            Decision::Pending => Outcome::Pending,
            Decision::Splitting => Outcome::Splitting,
            Decision::Disconnected => Outcome::Disconnected,
            Decision::Rejected(first, names) => self.nacked(first, names),
        }
    }

    /// Removes the waiters for what is decided now, with the outcome for each.
    fn take_decided(&self, state: &mut LedgerState) -> Vec<(Weak<Waiter>, Outcome)> {
        let mut waiters = std::mem::take(&mut state.waiters);
        let is_decided = |(awaited, _): &mut (Awaited, _)| state.decision(*awaited).is_final();
        let decided = waiters.extract_if(.., is_decided);
        let decided =
            decided.map(|(awaited, waiter)| (waiter, self.outcome_of(&state.decision(awaited)))).collect();
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

    fn nacked(&self, first: &RejectedRevisions, names: &[&ResourceName]) -> Outcome {
        let names = names.iter().take(NAMES_LISTED).map(|name| (*name).clone()).collect();
        Outcome::Nacked { type_url: self.type_url.clone(), detail: Arc::clone(&first.detail), names }
    }

    /// Adds a waiter. When what it waits for is decided already, reports the outcome at once instead.
    fn add_waiter(&self, awaited: Awaited, waiter: &Arc<Waiter>) {
        let mut state = lock(&self.state);
        // Drop the waiters whose task no longer waits.
        state.waiters.retain(|(_, waiter)| waiter.strong_count() > 0);
        if !state.decision(awaited).is_final() {
            waiter.undecided.fetch_add(1, Ordering::AcqRel);
            state.waiters.push((awaited, Arc::downgrade(waiter)));
        } else if let Some(reports) = &waiter.reports {
            reports.push(self, self.outcome_of(&state.decision(awaited)));
        }
    }
}

/// The outcome in a ledger, without the type.
enum Decision<'a> {
    Acked,
    Pending,
    Splitting,
    /// With the names that are known to be rejected, and the rejection of the first one; otherwise with the
    /// newest rejection.
    Rejected(&'a RejectedRevisions, Vec<&'a ResourceName>),
    Disconnected,
}

impl Decision<'_> {
    fn is_final(&self) -> bool {
        !matches!(self, Self::Pending | Self::Splitting)
    }
}

impl LedgerState {
    fn decision(&self, Awaited { revision, withheld: waits }: Awaited) -> Decision<'_> {
        let AckState { sent, pending, withheld, splitting, rejected } = &self.ack_state;
        let rejected: Vec<_> = rejected.iter().filter(|of| of.about.cover(revision)).collect();
        let named = rejected.iter().copied().filter(|of| of.name.is_some());
        // A revision may be rejected more than once: without names the newest error message counts.
        if let Some(first) = named.clone().next().or_else(|| rejected.last().copied()) {
            return Decision::Rejected(first, named.filter_map(|of| of.name.as_ref()).collect());
        }
        match revision > *sent || pending.cover(revision) || (waits && withheld.cover(revision)) {
            true if self.is_ended => Decision::Disconnected,
            true => Decision::Pending,
            false if splitting.cover(revision) && self.is_ended => Decision::Disconnected,
            false if splitting.cover(revision) => Decision::Splitting,
            false => Decision::Acked,
        }
    }
}

/// Waits for the decisions of several ledgers on one revision.
#[derive(Debug)]
struct Waiter {
    /// How many ledgers have not decided yet.
    undecided: AtomicUsize,
    waker: AtomicWaker,
    /// Where to report each outcome; `None` when only the last decision matters.
    reports: Option<OutcomeReports>,
}

impl Waiter {
    fn new(undecided: usize, reports: Option<OutcomeReports>) -> Self {
        Self { undecided: AtomicUsize::new(undecided), waker: AtomicWaker::new(), reports }
    }

    fn decided(&self, ledger: &Ledger, outcome: Outcome) {
        if let Some(reports) = &self.reports {
            reports.push(ledger, outcome);
        }
        self.decided_one();
    }

    fn decided_one(&self) {
        if self.undecided.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake();
        }
    }
}

/// A set of revisions, as a few runs of successive revisions.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

/// The revisions in (after, until].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    after: Revision,
    until: Revision,
}

impl Spans {
    /// Adds the revisions in (after, until].
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

    /// Adds one revision. Revision zero, before the first commit, adds nothing.
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

/// The largest number of runs. Beyond it the two oldest runs become one that includes the revisions
/// between them. At worst a commit then waits for an answer that it no longer needs.
const SPANS_KEPT: usize = 32;

/// S6f: after this time a rejection counts, whatever is still to be sent again. Longer than the 15 s for
/// which Envoy withholds the ACK of a cluster without endpoints.
pub const DECIDE_WITHIN: Duration = Duration::from_secs(16);

/// How many rejected resources an [`Outcome::Nacked`] names.
pub const NAMES_LISTED: usize = 16;

#[cfg(test)]
mod tests;
