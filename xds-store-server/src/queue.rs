//! The commits that wait for the writer, and their limits.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::key::RecordKey;
use xds_store::store::{Committed, DeletionInProgress, Forgetting, FoundReferrers, PlanProgress};

use crate::peers::PeerMessage;

/// A queue of commits with limits. A commit has its place from the request to the answer.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    limits: Limits,
}

/// How many commits may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) commits: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct State {
    /// Why the queue takes no more commits.
    closed: Option<String>,
    /// Why it takes none for a moment.
    paused: Option<&'static str>,
    commits: usize,
    bytes: usize,
    sender: mpsc::Sender<Message>,
}

/// What the writer receives.
#[derive(Debug)]
pub(crate) enum Message {
    Commit(Waiting),
    /// Old revisions shall be forgotten: up to this one, or what the settings allow.
    Compact(Option<u64>, oneshot::Sender<Result<u64, Refused>>),
    /// What refers to a resource.
    Referrers(Referrers, Asker<FoundReferrers>),
    /// The deletions in progress that have waited the longest (SG10): how many, with how many blockers.
    Deletions((usize, usize), Asker<Vec<DeletionInProgress>>),
    /// SV32: the time between two steps of a pass, in nanoseconds; `None`: the default. The answer is how far
    /// the plans are then.
    PassPause(Option<i64>, oneshot::Sender<Vec<PlanProgress>>),
    /// What would be lost if a node were forgotten (SR33).
    Forgetting(String, oneshot::Sender<Option<Forgetting>>),
    /// What concerns peers.
    Peer(PeerMessage),
    /// Another server of the store may have committed.
    Changed,
    /// The last message.
    Stop,
}

/// Gets the answer of a question that takes time of the writer. Until then it has a place among such questions, also if
/// its client has gone away.
#[derive(Debug)]
pub(crate) struct Asker<T> {
    pub(crate) sender: oneshot::Sender<T>,
    pub(crate) place: OwnedSemaphorePermit,
}

impl<T> Asker<T> {
    /// Answers, if the client still waits.
    pub(crate) fn answer(self, with: impl FnOnce() -> T) {
        if !self.sender.is_closed() {
            // The client may have gone away.
            _ = self.sender.send(with());
        }
        drop(self.place);
    }
}

/// Which referrers a client requests.
pub(crate) struct Referrers {
    pub(crate) key: RecordKey,
    pub(crate) targets: Vec<RecordKey>,
    pub(crate) may_read: Box<dyn Fn(&RecordKey) -> bool + Send>,
    pub(crate) limit: usize,
    pub(crate) depth: usize,
}

impl Debug for Referrers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Referrers").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What a caller gets: the commit, and which peers have it.
pub(crate) type Answered = Result<(Committed, Acked), Refused>;

/// How many peers shall have a commit durably before it is answered, and how long to wait for them (SR17).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers make it")]
pub struct Acks {
    /// How many peers. Default: none.
    pub peers: usize,
    /// How long. Then the commit is answered with [`Acked::is_enough`] unset.
    pub timeout: Duration,
}

/// Which peers have a commit durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acked {
    /// How many of them are known to have it.
    pub peers: usize,
    /// Whether these are as many as requested.
    pub is_enough: bool,
}

/// A commit whose caller waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) draft: Draft,
    pub(crate) caller: Caller,
}

/// Gets the answer of a commit. While it waits, the commit has its place in the queue.
#[derive(Debug)]
pub(crate) struct Caller {
    sender: oneshot::Sender<Answered>,
    /// What the answer waits for.
    pub(crate) acks: Acks,
    /// When the commit was requested.
    pub(crate) since: Instant,
    _place: Place,
}

#[derive(Debug)]
struct Place {
    queue: Arc<Queue>,
    bytes: usize,
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> (Arc<Self>, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel();
        let state = Mutex::new(State { closed: None, paused: None, commits: 0, bytes: 0, sender });
        (Arc::new(Self { state, limits }), receiver)
    }

    /// Adds a commit.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the queue is full, `UNAVAILABLE` if it is closed.
    pub(crate) fn add(
        self: &Arc<Self>,
        draft: Draft,
        acks: Acks,
    ) -> Result<oneshot::Receiver<Answered>, Refused> {
        let mut state = self.lock();
        if let Some(reason) = state.closed.as_deref().or(state.paused) {
            return Err(refused(RefusalCode::Unavailable, reason.to_owned()));
        }
        let bytes = draft.size_bytes();
        let Limits { commits: commit_limit, bytes: byte_limit } = self.limits;
        // A commit that is larger than the limit can pass alone: its size has a limit of its own.
        let is_full = state.commits >= commit_limit || state.commits > 0 && state.bytes + bytes > byte_limit;
        if is_full {
            let (commits, waiting) = (state.commits, state.bytes);
            let message = format!(
                "{commits} commits of {waiting} bytes wait already, and this one has {bytes} bytes; \
                 --commit-queue-limit allows {commit_limit} commits and {byte_limit} bytes: retry later",
            );
            return Err(refused(RefusalCode::ResourceExhausted, message));
        }
        state.commits += 1;
        state.bytes += bytes;
        let (sender, receiver) = oneshot::channel();
        let place = Place { queue: Arc::clone(self), bytes };
        let caller = Caller { sender, acks, since: Instant::now(), _place: place };
        let waiting = Message::Commit(Waiting { draft, caller });
        let sent = state.sender.send(waiting);
        drop(state);
        // The writer closes the queue before it goes. The message is dropped without the lock,
        // which its place takes.
        drop(sent);
        Ok(receiver)
    }

    /// Sends what is no commit.
    pub(crate) fn send(&self, message: Message) {
        // Without a writer there is nothing to do.
        _ = self.lock().sender.send(message);
    }

    /// Takes no more commits. The first reason stays. Returns whether the queue was open.
    pub(crate) fn close(&self, reason: &str) -> bool {
        let mut state = self.lock();
        let was_open = state.closed.is_none();
        state.closed.get_or_insert_with(|| reason.to_owned());
        was_open
    }

    /// Takes no commits while the writer does something that takes long; `None`: takes them again.
    pub(crate) fn pause(&self, reason: Option<&'static str>) {
        self.lock().paused = reason;
    }

    /// Takes no more commits, and ends the writer after those that wait.
    pub(crate) fn stop(&self, reason: &str) {
        self.close(reason);
        self.send(Message::Stop);
    }

    /// How many commits wait, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        (state.commits, state.bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caller {
    /// Answers the commit. A caller that went away misses the answer only.
    pub(crate) fn answer(self, answer: Answered) {
        let Self { sender, _place, .. } = self;
        // The place is free before the caller can send its next commit.
        drop(_place);
        _ = sender.send(answer);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.commits -= 1;
        state.bytes -= self.bytes;
    }
}

/// A refusal of the store as a whole.
pub(crate) fn refused(code: RefusalCode, message: String) -> Refused {
    Refused { code, violations: Vec::new(), message }
}
