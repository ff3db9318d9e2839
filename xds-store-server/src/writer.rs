//! The thread that owns the machine and writes to the engine.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::{oneshot, watch};
use tracing::field::Empty;
use tracing::{Span, debug_span};
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::{Batch, Engine, EngineError, EngineRevision, Reader};
use xds_store::phase::Schemas;
use xds_store::store::{Action, Config, Event, LoadError, Published, ReferrersQuery, Store, Ticket};

use crate::config::{StartError, StoreConfig};
use crate::peers::PeersStatus;
use crate::queue::{Caller, Message, Queue, Referrers, Waiting, refused};
use crate::replication::{Calls, Replication};
use crate::source::{Refusal, Source};
use crate::spans::{MigrationSpans, TRACE_TARGET};
use crate::standing::{Condition, Standing};
use crate::statistics::{Stage, Statistics};

mod replicating;
mod resyncing;

/// The machine with its engine, and the callers that wait.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    engine: Box<dyn Engine>,
    reader: Arc<dyn Reader>,
    source: Source,
    queue: Arc<Queue>,
    callers: BTreeMap<Ticket, Caller>,
    compactions: BTreeMap<Ticket, oneshot::Sender<Result<u64, Refused>>>,
    last_ticket: Ticket,
    /// When the next scheduled compaction starts, and the interval.
    compact_at: i64,
    compact_every: i64,
    /// SV15: when this server says again that it is alive. `None`: it does not say that.
    live_at: Option<i64>,
    statistics: Arc<Statistics>,
    /// Those of the machine, for readers.
    schemas: Arc<ArcSwap<Schemas>>,
    /// The span of the batch that is written.
    batch: Span,
    migrations: MigrationSpans,
    /// `None`: the store has no peers.
    replication: Option<Replication>,
    /// Dropped after the engine, so that its end shows that the engine is closed.
    standing: watch::Sender<Standing>,
}

impl Writer {
    /// Reads the whole store.
    pub(crate) fn load(
        engine: Box<dyn Engine>,
        settings: &StoreConfig,
        queue: Arc<Queue>,
    ) -> Result<(Self, watch::Receiver<Standing>), StartError> {
        let mut start = Source::start(now());
        let view = engine.view().map_err(LoadError::from)?;
        let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let mut config = Config::new(engine.limits(), run_number());
        config.commit = settings.commit;
        config.history = nanoseconds(settings.history);
        config.history_revisions = settings.history_revisions;
        config.tombstones = nanoseconds(settings.tombstones);
        config.tombstone_limit = settings.tombstone_limit;
        config.owner_grace = nanoseconds(settings.owner_grace);
        config.reference_block = nanoseconds(settings.reference_block);
        config.snapshot_bytes = settings.snapshot_bytes;
        config.is_replicated = settings.peers.is_some();
        config.schemas = Arc::clone(&settings.schemas);
        config.fields = settings.fields.clone();
        let store = Store::load(&*view, config, now(), |loaded| start.add(loaded))?;
        drop(view);
        let source = Source::new(Arc::clone(&settings.cache));
        source.load(store.head(), start)?;
        let (condition, reason) = match store.head().is_joining {
            true => (Condition::Waiting, resyncing::JOINING),
            false => (Condition::Serving, ""),
        };
        let (standing, receiver) = watch::channel(standing_of(&store, condition, reason));
        let (callers, last_ticket) = (BTreeMap::new(), Ticket(0));
        let reader = engine.reader();
        let (compactions, statistics) = (BTreeMap::new(), Arc::default());
        let schemas = Arc::new(ArcSwap::new(Arc::clone(store.schemas())));
        let replication = settings.peers.as_ref().map(|peers| {
            let calls = Calls::new(peers.clone(), Arc::clone(&queue), Arc::clone(&reader));
            Replication::new(peers, &store, calls, run_number(), now())
        });
        let writer = Self {
            store,
            engine,
            reader,
            source,
            queue,
            callers,
            compactions,
            last_ticket,
            compact_at: now(),
            compact_every: nanoseconds(settings.compact_every),
            live_at: settings.says_alive.then(now),
            statistics,
            schemas,
            batch: Span::none(),
            migrations: MigrationSpans::default(),
            replication,
            standing,
        };
        Ok((writer, receiver))
    }

    pub(crate) fn schemas(&self) -> Arc<ArcSwap<Schemas>> {
        Arc::clone(&self.schemas)
    }

    /// What readers see of the peers; `None` without peers.
    pub(crate) fn peers(&self) -> Option<Arc<ArcSwap<PeersStatus>>> {
        self.replication.as_ref().map(Replication::shown)
    }

    pub(crate) fn statistics(&self) -> Arc<Statistics> {
        Arc::clone(&self.statistics)
    }

    /// Writes commits until the queue ends. A panic makes the store read-only: callers get an answer,
    /// and the engine stays open for readers until the store is stopped.
    pub(crate) fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        let ended = panic::catch_unwind(AssertUnwindSafe(|| self.write_until_stopped(inbox)));
        let condition = match ended {
            Ok(()) => Condition::Stopping,
            Err(_) => {
                tracing::error!(
                    "the store's writer ended by a defect: the store is read-only until a restart"
                );
                Condition::ReadOnly
            }
        };
        let reason = match condition {
            Condition::Stopping => "the server is stopping",
            _ => "a defect ended the store's writer: restart the server",
        };
        self.queue.close(reason);
        self.standing.send_modify(|standing| {
            standing.condition = condition;
            standing.reason = reason.to_owned();
        });
        if let Some(replication) = self.replication.take() {
            replication.stop();
        }
        // They get no answer: their commits may be applied.
        self.callers.clear();
        self.compactions.clear();
        let next = || match condition {
            Condition::Stopping => inbox.try_recv().ok(),
            _ => inbox.recv().ok(),
        };
        while let Some(message) = next() {
            match message {
                // It was not judged.
                Message::Commit(Waiting { caller, .. }) => {
                    caller.answer(Err(refused(RefusalCode::Unavailable, reason.to_owned())));
                }
                Message::Compact(..)
                | Message::Referrers(..)
                | Message::Deletions(..)
                | Message::PassPause(..)
                | Message::Forgetting(..)
                | Message::Peer(..)
                | Message::Changed => {}
                Message::Stop => return,
            }
        }
    }

    fn write_until_stopped(&mut self, inbox: &mpsc::Receiver<Message>) {
        let mut is_stopping = false;
        // ST6: a commit whose outcome is not known yet is waited for (ST20).
        while !is_stopping || !self.store.is_idle() {
            let mut actions = VecDeque::new();
            match self.receive(inbox) {
                Ok(message) => is_stopping |= self.on_message(message, &mut actions),
                Err(RecvTimeoutError::Timeout) => actions.extend(self.step(Event::Due)),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Each event may be one in which a pass looks at records, or ends, and writes nothing.
            if !self.store.schemas().plans().is_empty() {
                self.send_standing();
            }
            actions.extend(self.say_alive(is_stopping));
            self.replicate_if_due(&mut actions);
            if now() >= self.compact_at && !is_stopping {
                self.compact_at = now().saturating_add(self.compact_every);
                if self.live_at.is_some() {
                    // ST21: also without commits, and without a report of the engine.
                    actions.extend(self.step(Event::Changed));
                }
                // ST44. Nobody waits for the answer.
                let ticket = self.next_ticket();
                actions.extend(self.step(Event::Compact(ticket, None)));
            }
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Write(batch) => {
                        // The batch may end a pass, and the next one begins before the standing is sent.
                        self.migrations.look(&self.store.plans(), self.store.schemas());
                        let written = self.write(&batch);
                        // ST17: what arrived during the write is in the machine before it makes
                        // the next batch.
                        for message in inbox.try_iter() {
                            is_stopping |= self.on_message(message, &mut actions);
                        }
                        if is_stopping {
                            actions.extend(self.step(Event::EndCompaction));
                        }
                        actions.extend(self.step(Event::Written(written)));
                        self.report_committed(&mut actions);
                        self.send_standing();
                    }
                    Action::Publish(published) => self.publish(&published, &mut actions),
                    Action::Answer(ticket, answer) => self.answer(ticket, answer, &mut actions),
                    Action::Merged(ticket, merged) => self.on_merged(ticket, merged, &mut actions),
                    Action::Staged(ticket, staged) => self.on_staged(ticket, staged, &mut actions),
                    Action::TookId(_, took) => self.on_took_id(took, &mut actions),
                    Action::AnswerRegion(ticket, answer) => self.answer_region(ticket, answer),
                    Action::CallRegion { call, region, node, request } => {
                        self.call_region(call, (&region, &node), request, &mut actions);
                    }
                    Action::Compacted(ticket, answer) => {
                        if let Some(caller) = self.compactions.remove(&ticket) {
                            // The caller may have gone away.
                            _ = caller.send(answer);
                        }
                    }
                }
            }
            self.show_read_only();
            if self.store.has_lost_log() {
                match self.load_again() {
                    Ok(()) => {
                        tracing::warn!("the store was loaded again: this server fell behind its log");
                    }
                    Err(error) => {
                        tracing::error!("cannot load the store again: {}", with_sources(&error));
                    }
                }
                self.send_standing();
            }
        }
    }

    /// Shows that the store is read-only, if what it read of its engine made it so. After a write that failed,
    /// readers know that already.
    fn show_read_only(&mut self) {
        let is_shown = self.standing.borrow().condition == Condition::ReadOnly;
        if let Some(reason) = self.store.read_only().filter(|_| !is_shown) {
            tracing::error!("the store is read-only: {reason}");
            self.send_standing();
        }
    }

    /// Loads the store again after other servers forgot revisions that this one has not read (ST19). If
    /// that fails, it is tried again with the next message or compaction.
    fn load_again(&mut self) -> Result<(), StartError> {
        let view = self.reader.view().map_err(LoadError::from)?;
        let mut start = Source::start(now());
        // ST20: the numbers of batches begin again, so this is another run.
        let mut config = self.store.config().clone();
        config.server = run_number();
        let store = Store::load(&*view, config, now(), |loaded| start.add(loaded))?;
        self.source.load_again(start, &self.store, &store)?;
        self.store = store;
        Ok(())
    }

    /// Says that this server is alive, if that is due, or once that it is not any more (SV15).
    fn say_alive(&mut self, is_stopping: bool) -> Vec<Action> {
        if self.live_at.is_none_or(|at| now() < at && !is_stopping) {
            return Vec::new();
        }
        // Also if it says nothing now: the loop waits until this time.
        self.live_at = (!is_stopping).then(|| now().saturating_add(LIVE_EVERY));
        let draft = self.store.liveness(!is_stopping).filter(|_| self.store.read_only().is_none());
        let Some(draft) = draft else { return Vec::new() };
        // Nobody waits for the answer.
        let ticket = self.next_ticket();
        self.step(Event::Commit(ticket, draft))
    }

    /// The next message, or a timeout when the machine or a compaction is due.
    fn receive(&mut self, inbox: &mpsc::Receiver<Message>) -> Result<Message, RecvTimeoutError> {
        // ST41: a clock that was set back does not put this off.
        self.compact_at = self.compact_at.min(now().saturating_add(self.compact_every));
        self.live_at = self.live_at.map(|at| at.min(now().saturating_add(LIVE_EVERY)));
        // SV32: of two servers that start and make steps, at least one finds the other one alive.
        if self.live_at.is_some_and(|at| at <= now()) {
            return Err(RecvTimeoutError::Timeout);
        }
        let due = [self.store.due(), self.live_at].into_iter().flatten().fold(self.compact_at, i64::min);
        let of_peers = self.replication.as_ref().and_then(Replication::due_in).unwrap_or(i64::MAX);
        let wait = u64::try_from(due.saturating_sub(now()).min(of_peers)).unwrap_or_default();
        inbox.recv_timeout(Duration::from_nanos(wait))
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket.0 += 1;
        self.last_ticket
    }

    /// Gives a message to the machine. Returns whether it is the last one.
    fn on_message(&mut self, message: Message, actions: &mut VecDeque<Action>) -> bool {
        let ticket = self.next_ticket();
        let event = match message {
            Message::Referrers(Referrers { key, targets, may_read, limit, depth }, asker) => {
                let query = ReferrersQuery { key: &key, targets: &targets, may_read, limit, depth };
                asker.answer(|| self.store.referrers(&query));
                return false;
            }
            Message::Deletions((limit, blockers), asker) => {
                asker.answer(|| self.store.deletions(limit, blockers));
                return false;
            }
            Message::Forgetting(node, caller) => {
                let replica = self.replication.as_ref().map(|replication| &replication.machine);
                let heard = |id: &str| replica.map_or(0, |replica| replica.heard(id, &node));
                // The caller may have gone away.
                _ = caller.send(self.store.forgetting(&node, heard));
                return false;
            }
            Message::Commit(Waiting { draft, caller }) => {
                self.callers.insert(ticket, caller);
                Event::Commit(ticket, draft)
            }
            Message::Compact(upto, caller) => {
                self.compactions.insert(ticket, caller);
                Event::Compact(ticket, upto)
            }
            Message::PassPause(pause, caller) => {
                self.store.set_pass_pause(pause);
                // The caller may have gone away.
                _ = caller.send(self.store.plans());
                return false;
            }
            Message::Peer(message) => {
                self.on_peer(message, actions);
                return false;
            }
            Message::Changed => Event::Changed,
            Message::Stop => return true,
        };
        actions.extend(self.step(event));
        false
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.store.step(event, now(), &*self.reader)
    }

    fn write(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let began = Instant::now();
        self.batch = debug_span!(target: TRACE_TARGET, parent: None, "store_commit", revision = Empty, commits = Empty);
        let bytes = batch.bytes();
        let span =
            debug_span!(target: TRACE_TARGET, parent: &self.batch, "write", bytes, otel.status_code = Empty);
        let written = span.in_scope(|| self.engine.commit(batch));
        if written.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        drop(span);
        self.statistics.on_stage(Stage::Write, began.elapsed());
        self.statistics.on_write(&written);
        // ST21.
        if let Err(error @ EngineError::Broken(_)) = &written {
            let causes = with_sources(error);
            tracing::error!("the store is read-only: a write failed: {causes}: restart the server");
        }
        written
    }

    /// Shows durable commits to clients and readers (ST16).
    fn publish(&mut self, published: &[Published], actions: &mut VecDeque<Action>) {
        // SV15: before the first commit the server could not say that it is alive.
        if published.first().is_some_and(|first| first.revision == 1) {
            self.live_at = self.live_at.map(|_| now());
        }
        // ST18: after a defect the cache keeps the last good state.
        if self.store.read_only().is_none()
            && let Err(reason) = self.show(published)
        {
            tracing::error!("the store is read-only: {reason}");
            actions.extend(self.step(Event::Halt(reason)));
        }
        self.send_standing();
    }

    fn show(&mut self, published: &[Published]) -> Result<(), String> {
        // SV29: a step shows or hides forms of records that no commit changed. Commits after it may not go
        // together with what the cache has.
        if published.iter().any(|commit| self.store.changes_forms(commit)) {
            self.batch = Span::none();
            let shown = self.show_again();
            return shown
                .map_err(|error| format!("the forms of a plan cannot be shown: {}", with_sources(&error)));
        }
        let refused = |refusal| format!("a defect: the cache refuses what the store accepted: {refusal}");
        self.publish_to_cache(published).map_err(refused)
    }

    /// Commits all records to the cache, in the forms that the phases serve.
    fn show_again(&self) -> Result<(), StartError> {
        let view = self.reader.view().map_err(LoadError::from)?;
        let mut start = Source::start(now());
        let store = Store::load(&*view, self.store.config().clone(), now(), |loaded| start.add(loaded))?;
        Ok(self.source.load_again(start, &self.store, &store)?)
    }

    fn publish_to_cache(&mut self, published: &[Published]) -> Result<(), Refusal> {
        let began = Instant::now();
        self.batch.record("commits", published.len()).record("revision", self.store.head().revision);
        let span = debug_span!(target: TRACE_TARGET, parent: &self.batch, "publish");
        let done = span.in_scope(|| self.source.publish(&self.store, published, now()));
        drop(span);
        self.batch = Span::none();
        self.statistics.on_stage(Stage::Publish, began.elapsed());
        done
    }

    /// Shows the state of the machine to readers and to traces.
    fn send_standing(&mut self) {
        // SV33: a commit may have set a ceiling.
        if !Arc::ptr_eq(&self.schemas.load(), self.store.schemas()) {
            self.schemas.store(Arc::clone(self.store.schemas()));
        }
        let (condition, reason) = self.condition();
        let standing = standing_of(&self.store, condition, &reason);
        self.source.set_resyncing(standing.condition == Condition::Resyncing);
        self.migrations.look(&standing.plans, self.store.schemas());
        self.standing.send_if_modified(|sent| {
            let is_new = *sent != standing;
            *sent = standing;
            is_new
        });
    }
}

fn standing_of(store: &Store, condition: Condition, reason: &str) -> Standing {
    let head = store.head();
    // ST5: a store without any commit waits for the first.
    let condition = match condition {
        Condition::Serving if head.revision == 0 => Condition::Waiting,
        other => other,
    };
    let (records, tombstones) = store.counts();
    let (deleting, since) = store.deleting_since();
    let since = since.and_then(|since| u64::try_from(since).ok()).map(Duration::from_nanos);
    let deleting_since = since.map(|since| SystemTime::UNIX_EPOCH + since);
    Standing {
        condition,
        reason: reason.to_owned(),
        head: head.clone(),
        records,
        tombstones,
        plans: store.plans(),
        deleting,
        deleting_since,
        import_circles: store.import_circles().to_vec(),
        phase_gaps: store.phase_gaps(),
    }
}

/// An error with its causes.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Differs between all runs of servers. The keys of a hash map are made from the entropy of the
/// system, so no library is needed for this one number.
fn run_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// How often a server says that it is alive: three times within its lease.
const LIVE_EVERY: i64 = 10_000_000_000;

/// In nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
