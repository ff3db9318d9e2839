//! The thread that owns the machine and writes to the engine.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::time::SystemTime;

use tokio::sync::watch;
use xds_core::Cache;
use xds_store::commit::RefusalCode;
use xds_store::engine::{Batch, Engine, EngineError, EngineRevision};
use xds_store::store::{Action, Event, LoadError, Published, Store, Ticket};

use crate::handle::StartError;
use crate::queue::{Caller, Message, Queue, Waiting, refused};
use crate::source::Source;
use crate::standing::{Condition, Standing};

/// The machine with its engine, and the callers that wait.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    engine: Box<dyn Engine>,
    source: Source,
    queue: Arc<Queue>,
    callers: BTreeMap<Ticket, Caller>,
    last_ticket: Ticket,
    /// Why the store accepts no commits until the process restarts.
    refusing: Option<String>,
    /// Dropped after the engine, so that its end shows that the engine is closed.
    standing: watch::Sender<Standing>,
}

impl Writer {
    /// Reads the whole store.
    pub(crate) fn load(
        engine: Box<dyn Engine>,
        cache: Arc<Cache>,
        queue: Arc<Queue>,
    ) -> Result<(Self, watch::Receiver<Standing>), StartError> {
        let mut start = Source::start(now());
        let view = engine.view().map_err(LoadError::from)?;
        let store = Store::load(&*view, |key, state| start.add(key, &state))?;
        drop(view);
        let source = Source::new(cache);
        source.load(store.head(), start)?;
        let (standing, receiver) = watch::channel(standing_of(&store, Condition::Serving, ""));
        let (callers, last_ticket) = (BTreeMap::new(), Ticket(0));
        let refusing = None;
        Ok((Self { store, engine, source, queue, callers, last_ticket, refusing, standing }, receiver))
    }

    /// Writes commits until the queue ends. A panic makes the store read-only, so that callers get
    /// an answer.
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
        // These were not judged. The callers in `self` get no answer: theirs may be applied.
        for message in inbox.try_iter() {
            if let Message::Commit(Waiting { caller, .. }) = message {
                caller.answer(Err(refused(RefusalCode::Unavailable, reason.to_owned())));
            }
        }
    }

    fn write_until_stopped(&mut self, inbox: &mpsc::Receiver<Message>) {
        while let Ok(Message::Commit(waiting)) = inbox.recv() {
            let mut actions = VecDeque::from(self.judge(waiting));
            let mut is_stopping = false;
            while let Some(action) = actions.pop_front() {
                match action {
                    Action::Write(batch) => {
                        let written = self.write(&batch);
                        // ST17: what arrived during the write is in the machine before it makes
                        // the next batch.
                        for message in inbox.try_iter() {
                            match message {
                                Message::Commit(waiting) => actions.extend(self.judge(waiting)),
                                Message::Stop => is_stopping = true,
                            }
                        }
                        actions.extend(self.store.step(Event::Written(written), now()));
                    }
                    Action::Publish(published) => self.publish(&published),
                    Action::Answer(ticket, answer) => {
                        if let Some(caller) = self.callers.remove(&ticket) {
                            caller.answer(answer);
                        }
                    }
                }
            }
            if is_stopping {
                return;
            }
        }
    }

    fn judge(&mut self, waiting: Waiting) -> Vec<Action> {
        let Waiting { draft, caller } = waiting;
        if let Some(reason) = &self.refusing {
            caller.answer(Err(refused(RefusalCode::Unavailable, reason.clone())));
            return Vec::new();
        }
        self.last_ticket.0 += 1;
        self.callers.insert(self.last_ticket, caller);
        self.store.step(Event::Commit(self.last_ticket, draft), now())
    }

    fn write(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let written = self.engine.commit(batch);
        // ST21.
        if let Err(error @ (EngineError::Broken(_) | EngineError::Unknown(_))) = &written {
            self.refuse(format!("a write failed: {}: restart the server", with_sources(error)));
        }
        written
    }

    /// Shows durable commits to clients and readers (ST16).
    fn publish(&mut self, published: &[Published]) {
        // ST18: after a defect the cache keeps the last good state.
        if self.refusing.is_none()
            && let Err(refusal) = self.source.publish(self.store.head(), published, now())
        {
            self.refuse(format!("a defect: the cache refuses what the store accepted: {refusal}"));
        }
        self.send_standing();
    }

    /// Accepts no commits until the process restarts.
    fn refuse(&mut self, reason: String) {
        tracing::error!("the store is read-only: {reason}");
        self.refusing.get_or_insert(reason);
        self.send_standing();
    }

    fn send_standing(&self) {
        let standing = match &self.refusing {
            Some(reason) => standing_of(&self.store, Condition::ReadOnly, reason),
            None => standing_of(&self.store, Condition::Serving, ""),
        };
        self.standing.send_replace(standing);
    }
}

fn standing_of(store: &Store, condition: Condition, reason: &str) -> Standing {
    let head = store.head();
    // ST5: a store without any commit waits for the first.
    let condition = match condition {
        Condition::Serving if head.revision == 0 => Condition::Waiting,
        other => other,
    };
    Standing { condition, reason: reason.to_owned(), head: head.clone() }
}

/// An error with its causes.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
