//! A server of a store on the engine in memory, whose time and whose engine a test controls.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_store::authority::AUTHORITY_TYPE;
use xds_store::commit::{Draft, RefusalCode, Refused, WriteAccess};
use xds_store::engine::{Batch, Engine, EngineError, EngineRevision, MemoryEngine};
use xds_store::entry::Foreign;
use xds_store::forgotten::FORGOTTEN_TYPE;
use xds_store::key::RecordKey;
use xds_store::merge::merge;
use xds_store::read::{Reads, is_configuration};
use xds_store::record::served;
use xds_store::region::POLICY_TYPE;
use xds_store::rules::RULE_TYPE;
use xds_store::store::{
    Action, Committed, Config, Event, Identity, Loaded, Merged, Published, RegionRequest, RegionResponse,
    Staged, Stopped, Store, Ticket,
};

pub(crate) mod envoy;
pub(crate) mod migrating;

/// What the engine does with the next batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Writes it.
    Written,
    /// Writes it, and does not report it.
    WrittenUnknown,
    /// Reports that the outcome is unknown; nothing is written.
    LostUnknown,
    /// The disk is full.
    Full,
    /// Cannot be reached.
    Unavailable,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: MemoryEngine,
    pub(crate) store: Store,
    /// In nanoseconds.
    pub(crate) now: i64,
    pub(crate) fates: VecDeque<Fate>,
    pub(crate) published: Vec<Published>,
    /// The newest states that were published.
    states: BTreeMap<RecordKey, proto::RecordState>,
    /// What clients of xDS have: the contents that were published and loaded.
    clients: BTreeMap<RecordKey, proto::Content>,
    pub(crate) answers: BTreeMap<u64, Result<Committed, Refused>>,
    pub(crate) compacted: Vec<Result<u64, Refused>>,
    pub(crate) merged: Vec<Result<Merged, Refused>>,
    pub(crate) staged: Vec<Result<Staged, Refused>>,
    pub(crate) took_ids: Vec<Result<(), Refused>>,
    /// What other regions are asked, and were answered.
    pub(crate) region_calls: VecDeque<(Ticket, String, RegionRequest)>,
    /// The node that has to answer the last one; empty: the writer of the region.
    pub(crate) called: String,
    pub(crate) region_answers: Vec<Result<RegionResponse, Refused>>,
    last: u64,
}

pub(crate) const SECOND: i64 = 1_000_000_000;

impl Server {
    /// A server of a new store.
    pub(crate) fn new() -> Self {
        let mut engine = MemoryEngine::default();
        let identity = Identity { node: "node".into(), ..Identity::default() };
        engine.commit(&Store::init(&identity)).unwrap();
        Self::on(engine, 1, SECOND)
    }

    /// A node of its own.
    pub(crate) fn node(id: &str) -> Self {
        let mut engine = MemoryEngine::default();
        let identity = Identity { node: id.into(), ..Identity::default() };
        engine.commit(&Store::init(&identity)).unwrap();
        Self::with(engine, SECOND, |config| config.is_replicated = true)
    }

    /// A node of a region.
    pub(crate) fn node_in(region: &str, id: &str, is_replica: bool) -> Self {
        let mut engine = MemoryEngine::default();
        let identity = Identity { node: id.into(), region: region.into(), is_replica, ..Identity::default() };
        engine.commit(&Store::init(&identity)).unwrap();
        Self::with(engine, SECOND, |config| config.is_replicated = true)
    }

    /// The process ends, and starts again with the same settings.
    pub(crate) fn restart(&mut self) {
        let config = self.store.config().clone();
        let before = std::mem::take(&mut self.clients);
        let each = |loaded| note(&mut self.clients, &loaded);
        self.store = Store::load(&*self.engine.view().unwrap(), config, self.now, each).unwrap();
        assert_eq!(self.clients, before, "a restart changes nothing for clients");
    }

    /// The process crashes, and another one starts.
    pub(crate) fn restart_as(&mut self, number: u64) {
        let mut config = self.store.config().clone();
        config.server = number;
        self.clients.clear();
        let each = |loaded| note(&mut self.clients, &loaded);
        self.store = Store::load(&*self.engine.view().unwrap(), config, self.now, each).unwrap();
        self.region_calls.clear();
    }

    /// How many references between regions the engine has.
    pub(crate) fn blocks(&self) -> usize {
        let (view, mut count) = (self.engine.view().unwrap(), 0);
        let each = &mut |_: &[u8], _| {
            count += 1;
            ControlFlow::Continue(())
        };
        view.range(b"b", b"c", each).unwrap();
        count
    }

    /// What clients get of the records of the test's type: names with constraints, and contents.
    pub(crate) fn clients(&self) -> Vec<String> {
        let of_type = self.clients.iter().filter(|(key, _)| key.type_url().as_str() == TYPE);
        let show = |(key, content): (&RecordKey, &proto::Content)| {
            let proto::Key { name, when, .. } = key.to_proto();
            format!("{name} [{when}] {}", String::from_utf8_lossy(&content.payload))
        };
        of_type.map(show).collect()
    }

    /// The contents that clients get of the records of the test's type.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&RecordKey, &proto::Content)> {
        self.clients.iter().filter(|(key, _)| key.type_url().as_str() == TYPE)
    }

    /// Whether clients have a record.
    pub(crate) fn has_client(&self, key: &proto::Key) -> bool {
        self.clients.contains_key(&RecordKey::parse(key).unwrap())
    }

    fn publish(&mut self, commits: Vec<Published>) {
        // SV29: a step shows or hides forms of records that no commit changed.
        if commits.iter().any(|commit| self.store.changes_forms(commit)) {
            self.clients.clear();
            let each = |loaded| note(&mut self.clients, &loaded);
            let config = self.store.config().clone();
            Store::load(&*self.engine.view().unwrap(), config, self.now, each).unwrap();
            return self.published.extend(commits);
        }
        for commit in commits {
            for (key, state) in &*self.store.served(&commit) {
                match served(state) {
                    Some(content) => _ = self.clients.insert(key.clone(), content.clone()),
                    None => _ = self.clients.remove(key),
                }
            }
            self.published.push(commit);
        }
    }

    /// What this node has and another one lacks, at most so many entries of each origin.
    pub(crate) fn entries_for(&self, other: &Self, limit: usize) -> Vec<Foreign> {
        let region = &other.store.head().region;
        let lacking = self.store.lacking_in(region, &other.store.clock(), limit);
        let view = self.engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        lacking.revisions.iter().map(|revision| reads.foreign_in(region, *revision).unwrap()).collect()
    }

    /// Merges entries of other nodes. Why those of some origins were not taken.
    pub(crate) fn merge(&mut self, entries: Vec<Foreign>) -> BTreeMap<String, Stopped> {
        self.step(Event::Merge(Ticket(0), entries, None));
        self.merged.pop().expect("the entries are answered").unwrap().stopped
    }

    /// One more server of a store.
    pub(crate) fn on(engine: MemoryEngine, number: u64, now: i64) -> Self {
        Self::with(engine, now, |config| config.server = number)
    }

    pub(crate) fn with(engine: MemoryEngine, now: i64, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(engine.limits(), 1);
        change(&mut config);
        let mut clients = BTreeMap::new();
        let each = |loaded| note(&mut clients, &loaded);
        let store = Store::load(&*engine.view().unwrap(), config, now, each).unwrap();
        let (fates, published, answers) = (VecDeque::new(), Vec::new(), BTreeMap::new());
        Self {
            engine,
            store,
            now,
            fates,
            published,
            answers,
            compacted: Vec::new(),
            merged: Vec::new(),
            staged: Vec::new(),
            took_ids: Vec::new(),
            region_calls: VecDeque::new(),
            called: String::new(),
            region_answers: Vec::new(),
            states: BTreeMap::new(),
            clients,
            last: 0,
        }
    }

    /// Gives an event to the machine and does all that it says.
    pub(crate) fn step(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let reader = self.engine.reader();
            for action in self.store.step(event, self.now, &*reader) {
                match action {
                    Action::Write(batch) => events.push_back(Event::Written(self.write(&batch))),
                    Action::Publish(commits) => {
                        commits.iter().for_each(|commit| self.check_states(commit));
                        self.publish(commits);
                    }
                    Action::Answer(ticket, answer) => {
                        assert!(self.answers.insert(ticket.0, answer).is_none(), "answered twice");
                    }
                    Action::Merged(_, answer) => self.merged.push(answer),
                    Action::Staged(_, answer) => self.staged.push(answer),
                    Action::TookId(_, answer) => self.took_ids.push(answer),
                    Action::Compacted(_, answer) => self.compacted.push(answer),
                    Action::AnswerRegion(_, answer) => self.region_answers.push(answer),
                    Action::CallRegion { call, region, node, request } => {
                        self.called = node;
                        self.region_calls.push_back((call, region, request));
                    }
                }
            }
        }
    }

    /// A state that a commit writes wins over the one that it replaces: other nodes merge the two, and keep
    /// what the store says (SR35).
    fn check_states(&mut self, commit: &Published) {
        for ((key, state), change) in commit.changed.iter().zip(&commit.entry.changes) {
            if commit.entry.identity == "resync" {
                // SR21: a snapshot may replace it.
                self.states.remove(key);
            }
            // SR5: what is of this node alone, such as an end by date.
            let is_end = change.outcome() == proto::Outcome::Expired && state.lease.is_none();
            let type_url = key.type_url();
            let is_rule = [RULE_TYPE, POLICY_TYPE, AUTHORITY_TYPE].contains(&type_url.as_str());
            let is_own = is_configuration(type_url.as_str()) && !is_rule;
            if commit.entry.counter == 0 || is_end || is_own {
                continue;
            }
            if let Some(before) = self.states.insert(key.clone(), state.clone()) {
                assert_eq!(merge(&before, state), *state, "{:?} replaces {before:#?}", commit.entry);
            }
        }
    }

    fn write(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        let unknown = || Err(EngineError::Unknown("no answer".into()));
        match self.fates.pop_front().unwrap_or(Fate::Written) {
            Fate::Written => self.engine.commit(batch),
            Fate::WrittenUnknown => match self.engine.commit(batch) {
                Ok(_) => unknown(),
                Err(error) => Err(error),
            },
            Fate::LostUnknown => unknown(),
            Fate::Full => Err(EngineError::Full),
            Fate::Unavailable => Err(EngineError::Unavailable("no route".into())),
        }
    }

    pub(crate) fn request(&mut self, request: proto::CommitRequest) -> Result<u64, Refused> {
        Ok(self.draft(Draft::parse(request, "test".into())?))
    }

    pub(crate) fn draft(&mut self, draft: Draft) -> u64 {
        self.last += 1;
        self.step(Event::Commit(Ticket(self.last), draft));
        self.last
    }

    /// Commits a request of a client that may write this only.
    pub(crate) fn commit_with(
        &mut self,
        access: &WriteAccess,
        request: proto::CommitRequest,
    ) -> Result<Committed, Refused> {
        let draft = Draft::parse(request, "test".into())?.limited_to(access.clone())?;
        let ticket = self.draft(draft);
        self.answers.remove(&ticket).expect("the commit is answered")
    }

    /// Commits a request, whose answer comes in this step.
    pub(crate) fn commit(&mut self, request: proto::CommitRequest) -> Result<Committed, Refused> {
        let ticket = self.request(request)?;
        self.answers.remove(&ticket).expect("the commit is answered")
    }

    /// Commits requests of which all but the first one wait for its batch, and are written together.
    pub(crate) fn together(
        &mut self,
        requests: impl IntoIterator<Item = proto::CommitRequest>,
    ) -> Vec<Result<Committed, Refused>> {
        let (reader, mut held) = (self.engine.reader(), None);
        let first = self.last + 1;
        for request in requests {
            self.last += 1;
            let draft = Draft::parse(request, "test".into()).unwrap();
            for action in self.store.step(Event::Commit(Ticket(self.last), draft), self.now, &*reader) {
                match action {
                    Action::Write(batch) => assert!(held.replace(batch).is_none(), "one batch at a time"),
                    Action::Publish(commits) => self.publish(commits),
                    Action::Answer(ticket, answer) => _ = self.answers.insert(ticket.0, answer),
                    Action::Merged(..) | Action::Staged(..) | Action::TookId(..) | Action::Compacted(..) => {}
                    Action::AnswerRegion(..) | Action::CallRegion { .. } => {}
                }
            }
        }
        if let Some(batch) = held {
            let written = self.engine.commit(&batch);
            self.step(Event::Written(written));
        }
        (first..=self.last).map(|ticket| self.answers.remove(&ticket).expect("it is answered")).collect()
    }

    pub(crate) fn code(&mut self, request: proto::CommitRequest) -> RefusalCode {
        self.commit(request).unwrap_err().code
    }

    pub(crate) fn outcome(&mut self, request: proto::CommitRequest) -> proto::Outcome {
        self.commit(request).unwrap().results[0].outcome
    }

    /// Lets time pass; the machine is called when it is due.
    pub(crate) fn wait(&mut self, nanoseconds: i64) {
        let until = self.now + nanoseconds;
        while let Some(due) = self.store.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.step(Event::Due);
        }
        self.now = until;
    }

    pub(crate) fn compact(&mut self, upto: Option<u64>) -> u64 {
        self.step(Event::Compact(Ticket(0), upto));
        self.compacted.pop().expect("the compaction is answered").unwrap()
    }

    pub(crate) fn engine_revision(&self) -> EngineRevision {
        self.engine.view().unwrap().revision()
    }

    /// The last state of a record as the engine has it, also of a deleted one.
    pub(crate) fn state(&self, key: &proto::Key) -> Option<proto::RecordState> {
        let view = self.engine.view().unwrap();
        let key = RecordKey::parse(key).unwrap();
        Reads::new(&*view).unwrap().last(&key).unwrap().map(|version| version.state)
    }

    /// The record in its present state, as the engine has it.
    pub(crate) fn record(&self, name: &str, when: &str) -> Option<proto::RecordState> {
        let view = self.engine.view().unwrap();
        let key = RecordKey::parse(&key(name, when)).unwrap();
        let mut found = None;
        Store::load(&*view, Config::new(self.engine.limits(), 9), self.now, |loaded| {
            if loaded.key == key {
                found = Some(loaded.state);
            }
        })
        .unwrap();
        found.filter(|state| state.lifecycle() != proto::State::Deleted)
    }
}

/// What clients get of a loaded record.
fn note(clients: &mut BTreeMap<RecordKey, proto::Content>, loaded: &Loaded) {
    let content = served(loaded.for_clients()).cloned();
    assert_eq!(content.is_some(), loaded.resource.is_some(), "{loaded:?}");
    clients.extend(content.map(|content| (loaded.key.clone(), content)));
}

pub(crate) fn key(name: &str, when: &str) -> proto::Key {
    proto::Key { type_url: TYPE.into(), name: name.into(), when: when.into() }
}

pub(crate) fn change(name: &str, when: &str, act: proto::change::Act) -> proto::Change {
    proto::Change { key: Some(key(name, when)), act: Some(act), condition: None }
}

pub(crate) fn content(payload: &str) -> proto::Content {
    proto::Content { payload: payload.to_owned().into(), ..Default::default() }
}

pub(crate) fn put(name: &str, payload: &str) -> proto::Change {
    put_when(name, "", payload)
}

pub(crate) fn put_when(name: &str, when: &str, payload: &str) -> proto::Change {
    let put = proto::Put { content: Some(content(payload)), ..Default::default() };
    change(name, when, proto::change::Act::Put(put))
}

/// A put of a record with an alias.
pub(crate) fn aliased(name: &str, alias: &str) -> proto::Change {
    let content = proto::Content { aliases: vec![alias.into()], ..content(name) };
    let put = proto::Put { content: Some(content), ..Default::default() };
    change(name, "", proto::change::Act::Put(put))
}

pub(crate) fn put_lease(name: &str, payload: &str, seconds: i64) -> proto::Change {
    let lease = Some(prost_types::Duration { seconds, nanos: 0 });
    let put = proto::Put { content: Some(content(payload)), lease, ..Default::default() };
    change(name, "", proto::change::Act::Put(put))
}

pub(crate) fn delete(name: &str) -> proto::Change {
    change(name, "", proto::change::Act::Delete(proto::Delete::default()))
}

pub(crate) fn delete_when(name: &str, when: &str) -> proto::Change {
    change(name, when, proto::change::Act::Delete(proto::Delete::default()))
}

pub(crate) fn touch(name: &str) -> proto::Change {
    change(name, "", proto::change::Act::Touch(proto::Touch {}))
}

pub(crate) fn quarantine(name: &str) -> proto::Change {
    let quarantine = proto::Quarantine { reason: "clients crash".into(), serve_nothing: false };
    change(name, "", proto::change::Act::Quarantine(quarantine))
}

/// A change of the record of a node that is forgotten.
pub(crate) fn forgotten_node(node: &str, act: proto::change::Act) -> proto::Change {
    let key = proto::Key { type_url: FORGOTTEN_TYPE.into(), name: node.into(), when: String::new() };
    proto::Change { key: Some(key), act: Some(act), condition: None }
}

pub(crate) fn forget(node: &str) -> proto::Change {
    let payload = proto::ForgottenNode { at: None, counter: 7 }.encode_to_vec().into();
    let content = Some(proto::Content { payload, ..Default::default() });
    forgotten_node(node, proto::change::Act::Put(proto::Put { content, ..Default::default() }))
}

pub(crate) fn only_if(is: proto::condition::Is, change: proto::Change) -> proto::Change {
    proto::Change { condition: Some(proto::Condition { is: Some(is) }), ..change }
}

pub(crate) fn of(changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { changes: changes.into(), ..Default::default() }
}

pub(crate) const TYPE: &str = "example.com/acme.Thing";
