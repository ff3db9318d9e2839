//! The machine of one store: it judges commits, and says what to write and whom to answer.

use std::collections::BTreeMap;
use std::mem;

use bytes::Bytes;

use crate::checked::{self, Damaged};
use crate::commit::{Draft, Judged, Refused};
use crate::engine::{Batch, EngineError, EngineRevision, View};
use crate::key::{RecordKey, stored};
use crate::log::{FORMAT, Head, LogEntry};
use crate::record::{Present, RecordState};

/// One store.
///
/// Events go in, actions come out; the caller performs them in order. The machine has no engine,
/// clock or thread. It waits for one batch at a time: commits that arrive meanwhile are judged when
/// that batch is durable, and are written together (ST17).
#[derive(Debug)]
pub struct Store {
    /// As the engine has it.
    head: Head,
    head_revision: Option<EngineRevision>,
    records: BTreeMap<RecordKey, Present>,
    condition: Condition,
    waiting: Vec<(Ticket, Draft)>,
    /// The batch that is being written.
    writing: Option<Writing>,
}

/// The ids of a new store, which never change.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id of the node, chosen at random.
    pub node: String,
    /// The id of its cluster, chosen at random; nodes of one cluster have the same.
    pub cluster: String,
    /// The region of the node; empty without regions.
    pub region: String,
}

/// Names a commit between its event and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A commit was requested.
    Commit(Ticket, Draft),
    /// The engine answered the last [`Action::Write`].
    Written(Result<EngineRevision, EngineError>),
}

/// What to do.
#[derive(Debug)]
pub enum Action {
    /// Give this batch to the engine.
    Write(Batch),
    /// These commits are durable, in the order of their revisions: show them to readers.
    Publish(Vec<Published>),
    /// Answer a commit.
    Answer(Ticket, Result<Committed, Refused>),
}

/// A durable commit.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its store revision.
    pub revision: u64,
    /// Its entry in the log.
    pub entry: LogEntry,
    /// The states of the records that it changed, in the order of keys.
    pub changed: Vec<(RecordKey, RecordState)>,
}

/// The answer of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The store revision of the commit, or the present one if it changed nothing (ST12).
    pub revision: u64,
    /// One for each change, in the order of the request.
    pub results: Vec<crate::commit::ChangeResult>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Serving,
    /// ST21: until the process restarts.
    ReadOnly,
}

#[derive(Debug)]
struct Writing {
    head: Head,
    records: BTreeMap<RecordKey, Present>,
    published: Vec<Published>,
    answers: Vec<(Ticket, Result<Committed, Refused>)>,
}

/// Why a store cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The engine is empty: `init` was not run (ST2).
    #[error("there is no store here")]
    NoStore,
    /// A newer version wrote it (ST4).
    #[error("the store has format {found}; this version reads formats up to {known}")]
    Newer {
        /// The format of the store.
        found: u32,
        /// The newest format that this version reads.
        known: u32,
    },
    /// A restore into the engine did not finish (ST46).
    #[error("a restore into this store did not finish: remove it, and restore again")]
    Incomplete,
    /// ST47.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Store {
    /// The batch that makes a store in an empty engine (ST1).
    #[must_use]
    pub fn init(identity: &Identity) -> Batch {
        let Identity { node, cluster, region } = identity.clone();
        let head = Head { format: FORMAT, node, cluster, region, ..Head::default() };
        Batch {
            compares: vec![(stored::HEAD.into(), None)],
            writes: vec![(stored::HEAD.into(), Some(checked::encode(stored::HEAD, &head)))],
        }
    }

    /// The store of an engine, and the present states of all records for `each`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(view: &dyn View, mut each: impl FnMut(&RecordKey, RecordState)) -> Result<Self, LoadError> {
        let head = view.get(stored::HEAD)?.ok_or(LoadError::NoStore)?;
        let head_revision = Some(head.revision);
        let head: Head = checked::decode(stored::HEAD, head.bytes)?;
        if head.format > FORMAT {
            return Err(LoadError::Newer { found: head.format, known: FORMAT });
        }
        if head.is_incomplete {
            return Err(LoadError::Incomplete);
        }
        let mut records = BTreeMap::new();
        let mut newest: Option<(RecordKey, u64, RecordState)> = None;
        let mut damaged = None;
        let mut keep = |(key, at, state): (RecordKey, u64, RecordState)| {
            records.insert(key.clone(), Present::of(&key, &state, at));
            each(&key, state);
        };
        view.range(stored::RECORDS.0, stored::RECORDS.1, &mut |stored_key, value| {
            let decoded = checked::decode(stored_key, value.bytes);
            let (Some((key, at)), Ok(state)) = (stored::parse_record(stored_key), decoded) else {
                damaged = Some(Damaged { key: Bytes::copy_from_slice(stored_key) });
                return std::ops::ControlFlow::Break(());
            };
            // The versions of a record come one after another, the newest last.
            match newest.replace((key, at, state)) {
                Some(last) if newest.as_ref().is_some_and(|(key, ..)| *key != last.0) => keep(last),
                _ => {}
            }
            std::ops::ControlFlow::Continue(())
        })?;
        newest.into_iter().for_each(keep);
        match damaged {
            Some(damaged) => Err(damaged.into()),
            None => Ok(Self {
                head,
                head_revision,
                records,
                condition: Condition::Serving,
                waiting: Vec::new(),
                writing: None,
            }),
        }
    }

    /// The revision of the last durable commit.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.head.revision
    }

    /// The head of the last durable commit.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The greatest time that was acted on, in nanoseconds since 1970 (ST41).
    #[must_use]
    pub fn time(&self) -> i64 {
        self.head.time
    }

    /// What to do about an event at this time, in nanoseconds since 1970.
    pub fn step(&mut self, event: Event, now: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Commit(ticket, draft) => self.waiting.push((ticket, draft)),
            Event::Written(result) => self.on_written(result, &mut actions),
        }
        if self.writing.is_none() && !self.waiting.is_empty() {
            self.write_next(now, &mut actions);
        }
        actions
    }

    fn on_written(&mut self, result: Result<EngineRevision, EngineError>, actions: &mut Vec<Action>) {
        let Some(writing) = self.writing.take() else { return };
        match result {
            Ok(revision) => {
                self.head_revision = Some(revision);
                self.head = writing.head;
                self.records.extend(writing.records);
                // ST16: nobody sees a commit before it is durable, and whoever is answered can read it.
                actions.push(Action::Publish(writing.published));
                actions.extend(
                    writing.answers.into_iter().map(|(ticket, answer)| Action::Answer(ticket, answer)),
                );
            }
            Err(error) => {
                if matches!(error, EngineError::Broken(_) | EngineError::Unknown(_)) {
                    self.condition = Condition::ReadOnly;
                }
                let refused = Refused::of_engine(&error);
                let tickets = writing.answers.into_iter().map(|(ticket, _)| ticket);
                actions.extend(tickets.map(|ticket| Action::Answer(ticket, Err(refused.clone()))));
            }
        }
    }

    /// Judges the commits that wait, one after another, each on the state that its predecessors
    /// leave, and writes those that change something in one batch (ST17).
    fn write_next(&mut self, now: i64, actions: &mut Vec<Action>) {
        let waiting = mem::take(&mut self.waiting);
        if self.condition == Condition::ReadOnly {
            let refused =
                waiting.into_iter().map(|(ticket, _)| Action::Answer(ticket, Err(Refused::read_only())));
            actions.extend(refused);
            return;
        }
        let mut batch =
            Batch { compares: vec![(stored::HEAD.into(), self.head_revision)], writes: Vec::new() };
        let (head, records) = (self.head.clone(), BTreeMap::new());
        let mut writing = Writing { head, records, published: Vec::new(), answers: Vec::new() };
        // ST41: time never goes back.
        writing.head.time = writing.head.time.max(now);
        for (ticket, draft) in waiting {
            let present = |key: &RecordKey| writing.records.get(key).or_else(|| self.records.get(key));
            let judged = draft.judge(&writing.head, present);
            let answer = judged.map(|judged| writing.append(&mut batch, &draft, judged));
            writing.answers.push((ticket, answer));
        }
        if batch.writes.is_empty() {
            // Nothing was changed, and nothing that is not durable was seen.
            actions
                .extend(writing.answers.into_iter().map(|(ticket, answer)| Action::Answer(ticket, answer)));
            return;
        }
        batch.writes.push((stored::HEAD.into(), Some(checked::encode(stored::HEAD, &writing.head))));
        self.writing = Some(writing);
        actions.push(Action::Write(batch));
    }
}

impl Writing {
    /// Adds a judged commit to the batch, unless it changes nothing (ST12, ST64).
    fn append(&mut self, batch: &mut Batch, draft: &Draft, judged: Judged) -> Committed {
        let Judged { changed, results } = judged;
        if changed.is_empty() && self.head.revision > 0 {
            return Committed { revision: self.head.revision, results };
        }
        self.head.revision += 1;
        self.head.counter += 1;
        let revision = self.head.revision;
        let mut entry = LogEntry {
            origin: self.head.node.clone(),
            counter: self.head.counter,
            chain: Bytes::new(),
            time: self.head.time,
            identity: draft.identity.clone(),
            owner: draft.owner.clone(),
            message: draft.message.clone(),
            changes: Vec::with_capacity(changed.len()),
        };
        let mut states = Vec::with_capacity(changed.len());
        for (key, change) in changed {
            let version = stored::record(&key, revision);
            batch.writes.push((version.clone(), Some(checked::encode(&version, &change.state))));
            entry.changes.push(change.logged(&key));
            self.records.insert(key.clone(), Present::of(&key, &change.state, revision));
            states.push((key, change.state));
        }
        let at = stored::log(revision);
        batch.writes.push((at.clone(), Some(checked::encode(&at, &entry))));
        self.published.push(Published { revision, entry, changed: states });
        Committed { revision, results }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, MemoryEngine};

    #[test]
    fn st4_a_newer_format_is_refused_with_both_numbers() {
        let mut engine = MemoryEngine::default();
        let head = Head { format: FORMAT + 1, ..Head::default() };
        let written = (stored::HEAD.into(), Some(checked::encode(stored::HEAD, &head)));
        engine.commit(&Batch { compares: Vec::new(), writes: vec![written] }).unwrap();
        let loaded = Store::load(&*engine.view().unwrap(), |_, _| {});
        assert!(matches!(loaded, Err(LoadError::Newer { found: 2, known: 1 })));
    }
}
