//! The handle of a running store.

use std::fmt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{CommitLimits, Draft, RefusalCode, Refused};
use xds_store::engine::{Changes, Engine, EngineError, Reader, View};
use xds_store::key::RecordKey;
use xds_store::phase::Schemas;
use xds_store::record::RecordState;
use xds_store::rules::FieldSource;
use xds_store::store::{Committed, DeletionInProgress, Forgetting, FoundReferrers, Store};

use crate::alarm::Alarm;
use crate::config::{StartError, StoreConfig};
use crate::peers::{PEEK_TIMEOUT, PeerMessage, PeersStatus};
use crate::queue::{Acked, Acks, Asker, Limits, Message, Queue, Referrers, refused};
use crate::standing::{Condition, Standing};
use crate::statistics::Statistics;
use crate::writer::Writer;

/// A running store. All clones are handles of the same one.
///
/// The store runs until [`stop`](Self::stop), or until the last handle is dropped.
#[derive(Clone)]
pub struct StoreHandle {
    running: Arc<Running>,
}

struct Running {
    queue: Arc<Queue>,
    reader: Arc<dyn Reader>,
    statistics: Arc<Statistics>,
    commit: CommitLimits,
    schemas: Arc<ArcSwap<Schemas>>,
    fields: FieldSource,
    standing: watch::Receiver<Standing>,
    /// Whether other servers may commit to the store.
    is_shared: bool,
    /// Places for questions that take time of the writer. Further ones wait, so they delay commits little.
    questions: Arc<Semaphore>,
    /// What is known of peers; `None`: it replicates with no other nodes.
    peers: Option<Arc<ArcSwap<PeersStatus>>>,
}

impl StoreHandle {
    /// Loads the store of an engine, and starts its writer. Blocks while it reads everything.
    ///
    /// # Errors
    /// See [`StartError`]. The cache is unchanged.
    ///
    /// # Panics
    /// If the system starts no thread.
    pub fn start(engine: Box<dyn Engine>, config: StoreConfig) -> Result<Self, StartError> {
        let limits = Limits { commits: config.queue_commits, bytes: config.queue_bytes };
        let (queue, inbox) = Queue::new(limits);
        let reader = engine.reader();
        let changes = engine.changes(Store::head_key());
        let (writer, standing) = Writer::load(engine, &config, Arc::clone(&queue))?;
        let (statistics, schemas, peers) = (writer.statistics(), writer.schemas(), writer.peers());
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(&inbox))
            .expect("the system starts a thread");
        let is_shared = changes.is_some();
        if let Some(changes) = changes {
            let (queue, statistics) = (Arc::downgrade(&queue), Arc::clone(&statistics));
            thread::Builder::new()
                .name("store-changes".to_owned())
                .spawn(move || follow(changes, &queue, &statistics))
                .expect("the system starts a thread");
        }
        let StoreConfig { commit, fields, .. } = config;
        let running = Running {
            queue,
            reader,
            statistics,
            commit,
            schemas,
            fields,
            standing,
            is_shared,
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            peers,
        };
        Ok(Self { running: Arc::new(running) })
    }

    /// Takes a request of this identity, within the limits of the store.
    ///
    /// # Errors
    /// See [`Draft::parse_within`].
    pub fn draft(&self, request: proto::CommitRequest, identity: String) -> Result<Draft, Refused> {
        Draft::parse_within(request, identity, self.running.commit)
    }

    /// Commits. When this returns `Ok`, the commit is durable, and readers see it (ST16).
    ///
    /// A commit is finished although the caller drops the future.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn commit(&self, draft: Draft) -> Result<Committed, Refused> {
        self.commit_acked(draft, Acks::default()).await.map(|(committed, _)| committed)
    }

    /// Commits, and waits until so many peers have it durably (SR17), or until the time for that is over.
    ///
    /// # Errors
    /// See [`Refused`]. A commit that too few peers have is no error: it is durable here.
    pub async fn commit_acked(&self, draft: Draft, acks: Acks) -> Result<(Committed, Acked), Refused> {
        let queued = self.running.queue.add(draft, acks);
        let queued = queued.inspect_err(|refused| self.running.statistics.on_refused(refused))?;
        let answer = queued.await;
        answer.unwrap_or_else(|_| {
            let message = "the store ended before it reported whether the commit was applied";
            Err(refused(RefusalCode::Unknown, message.to_owned()))
        })
    }

    /// Forgets old revisions: what the settings allow, or up to this one, if no list can read it
    /// (ST26). Returns the last revision that is forgotten, which may be one before `upto`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn compact(&self, upto: Option<u64>) -> Result<u64, Refused> {
        let (sender, receiver) = oneshot::channel();
        self.running.queue.send(Message::Compact(upto, sender));
        receiver
            .await
            .unwrap_or_else(|_| Err(refused(RefusalCode::Unavailable, "the store has ended".to_owned())))
    }

    /// What would be lost if a node were forgotten now (SR33); `None` if the store does not know the node, or
    /// has ended.
    pub(crate) async fn forgetting(&self, node: &str) -> Option<Forgetting> {
        let (sender, receiver) = oneshot::channel();
        self.running.queue.send(Message::Forgetting(node.to_owned(), sender));
        receiver.await.ok().flatten()
    }

    /// What refers to a resource; `None` if the store has ended.
    pub(crate) async fn referrers(&self, query: Referrers) -> Option<FoundReferrers> {
        let (asker, receiver) = self.ask().await?;
        self.running.queue.send(Message::Referrers(query, asker));
        receiver.await.ok()
    }

    /// A place among the questions that take time of the writer, and where the answer comes.
    async fn ask<T>(&self) -> Option<(Asker<T>, oneshot::Receiver<T>)> {
        let place = Arc::clone(&self.running.questions).acquire_owned().await.ok()?;
        let (sender, receiver) = oneshot::channel();
        Some((Asker { sender, place }, receiver))
    }

    /// The deletions in progress, the one that has waited the longest first (SG10): at most `limit`, each
    /// with at most `blockers` of the records that it waits for. Empty if the store has ended.
    pub async fn deletions(&self, limit: usize, blockers: usize) -> Vec<DeletionInProgress> {
        let Some((asker, receiver)) = self.ask().await else { return Vec::new() };
        self.running.queue.send(Message::Deletions((limit, blockers), asker));
        receiver.await.unwrap_or_default()
    }

    /// The schema versions that this server knows and may write: those of the settings, below the ceilings
    /// of the store.
    #[must_use]
    pub fn schemas(&self) -> Arc<Schemas> {
        self.running.schemas.load_full()
    }

    /// What is known of the peers, a tenth of a second ago or later; `None` if the store does not replicate.
    #[must_use]
    pub fn peers(&self) -> Option<Arc<PeersStatus>> {
        self.running.peers.as_ref().map(|peers| peers.load_full())
    }

    /// What peers that answer in time have of a record, with their ids (SR49).
    pub(crate) async fn peek(&self, key: &RecordKey) -> Vec<(String, RecordState)> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut found = Vec::new();
        if self.running.peers.is_none() {
            return found;
        }
        self.send(Message::Peer(PeerMessage::Peek(key.to_proto(), sender)));
        let collect = async {
            while let Some((node, answer)) = answers.recv().await {
                found.extend(answer.records.into_iter().map(|state| (node.clone(), state)));
            }
        };
        // A peer that is silent counts as having nothing.
        _ = timeout(PEEK_TIMEOUT, collect).await;
        found
    }

    pub(crate) fn send(&self, message: Message) {
        self.running.queue.send(message);
    }

    pub(crate) fn fields(&self) -> FieldSource {
        self.running.fields.clone()
    }

    /// The content at present (LOCAL). Blocks.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn view(&self) -> Result<Box<dyn View>, EngineError> {
        self.running.reader.view()
    }

    /// The content with all commits that were answered OK before this call, by any server of the
    /// store. With etcd this is a linearizable read. With a folder this server is the only one.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn latest_view(&self) -> Result<Box<dyn View>, EngineError> {
        let store = self.clone();
        tokio::task::spawn_blocking(move || store.view()).await.expect("a view does not panic")
    }

    /// The condition of the store, which changes with each batch of commits.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.running.standing.clone()
    }

    /// What the store counts since its start.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.running.statistics
    }

    /// Why the store accepts no commits although it runs; `None` while it accepts them (ST72).
    #[must_use]
    pub fn alarm(&self) -> Option<Alarm> {
        let standing = self.running.standing.borrow().clone();
        let statistics = self.statistics();
        match standing.condition {
            Condition::ReadOnly => Some(Alarm::ReadOnly { reason: standing.reason }),
            _ if statistics.is_full() => Some(Alarm::Full),
            _ => statistics.unreachable().map(|reason| Alarm::Unavailable { reason }),
        }
    }

    /// Why commits are refused at present, also while the store starts or stops; `None` while they
    /// are accepted (ST59).
    #[must_use]
    pub fn refuses_commits(&self) -> Option<String> {
        let standing = self.running.standing.borrow().clone();
        match self.alarm() {
            Some(alarm) => Some(alarm.to_string()),
            None => (!standing.accepts_commits()).then_some(standing.reason),
        }
    }

    /// Whether watches must end. A read-only server of a shared store does not see the commits of
    /// other servers, so its watches would miss them (ST21).
    pub(crate) fn ends_watches(&self, condition: Condition) -> bool {
        match condition {
            Condition::Stopping | Condition::Resyncing => true,
            Condition::ReadOnly => self.running.is_shared,
            _ => false,
        }
    }

    /// How many commits wait for an answer, and how many bytes they have.
    #[must_use]
    pub fn waiting_commits(&self) -> (usize, usize) {
        self.running.queue.waiting()
    }

    /// Refuses new commits, and returns when those that wait are answered (ST6). The engine is
    /// closed then.
    pub async fn stop(&self) {
        self.running.queue.stop("the server is stopping");
        let mut standing = self.standing();
        // The writer drops the sender when it ends.
        while standing.changed().await.is_ok() {}
    }
}

/// Reports commits of other servers of the store to the writer, until the store ends (ST19).
fn follow(mut changes: Box<dyn Changes>, queue: &Weak<Queue>, statistics: &Statistics) {
    let mut failures = 0;
    while let Some(queue) = queue.upgrade() {
        match changes.wait(CHANGES_WAIT) {
            Ok(is_new) => {
                failures = 0;
                statistics.on_engine(None);
                if is_new {
                    queue.send(Message::Changed);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the engine cannot report commits of other servers");
                failures += 1;
                // A watch may end although the engine is there: then the next call opens another one.
                if failures > 1 {
                    let cause = std::error::Error::source(&error)
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    statistics.on_engine(Some(cause));
                }
                thread::sleep(CHANGES_WAIT);
            }
        }
    }
}

/// How many questions the writer may have to answer at a time: a commit waits for at most so many.
const QUESTIONS: usize = 2;
/// How long the store may have ended before the thread that waits for changes ends.
const CHANGES_WAIT: Duration = Duration::from_secs(1);

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle")
            .field("standing", &*self.running.standing.borrow())
            .finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.queue.stop("the server is stopping");
    }
}

#[cfg(test)]
mod phase_tests;
#[cfg(test)]
mod tests;
