//! A crash before and after each write to the engine, in random histories. Afterwards every
//! acknowledged commit is there whole, every other one whole or absent, and the history goes on.
//!
//!     CRASHED_HISTORIES=1000 cargo test --release -p xds-store --test model crash

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::{Draft, Refused};
use xds_store::engine::{Batch, Engine, EngineError, EngineRevision, MemoryEngine};
use xds_store::store::{Action, Committed, Config, Event, Identity, Store, Ticket};
use xds_store::watch::Watch;

use crate::driven::SECOND;
use crate::sequential::{Kinds, LEASE_SECONDS, Model, Random, RecordName, Request, answer_of, name_of};

/// The write at which a server ends, and whether the engine did it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Crash {
    write: u64,
    is_written: bool,
}

/// A server ended.
#[derive(Debug)]
struct Crashed;

/// Some servers of one store, and the model.
struct World {
    engine: MemoryEngine,
    servers: Vec<Store>,
    kinds: Kinds,
    model: Model,
    /// The model after each revision.
    past: BTreeMap<u64, Model>,
    now: i64,
    /// How many servers were started.
    starts: u64,
    writes: u64,
    crash: Option<Crash>,
    /// The engine does not report the next write, which it does or not.
    unreported: Option<bool>,
    tickets: u64,
    answers: BTreeMap<u64, Result<Committed, Refused>>,
    acknowledged: u64,
    floor: u64,
}

impl World {
    /// Leases end at one server only, and it alone forgets.
    fn new(servers: usize, crash: Option<Crash>) -> Self {
        let mut engine = MemoryEngine::default();
        let identity = Identity { node: "node".into(), ..Identity::default() };
        engine.commit(&Store::init(&identity)).unwrap();
        let kinds = Kinds { leases: servers == 1, quarantines: true, expiries: true };
        let mut world = Self {
            engine,
            servers: Vec::new(),
            kinds,
            model: Model::default(),
            past: BTreeMap::new(),
            now: SECOND,
            starts: 0,
            writes: 0,
            crash,
            unreported: None,
            tickets: 0,
            answers: BTreeMap::new(),
            acknowledged: 0,
            floor: 0,
        };
        world.servers = (0..servers).map(|_| world.started()).collect();
        world
    }

    fn started(&mut self) -> Store {
        self.starts += 1;
        let config = Config::new(self.engine.limits(), self.starts);
        Store::load(&*self.engine.view().unwrap(), config, self.now, |_| {}).unwrap()
    }

    fn step(&mut self, at: usize, event: Event) -> Vec<Action> {
        self.servers[at].step(event, self.now, &*self.engine.reader())
    }

    /// Does all that a server says, until it ends.
    fn perform(&mut self, at: usize, actions: Vec<Action>) -> Result<(), Crashed> {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Write(batch) => {
                    let written = self.write(&batch)?;
                    actions.extend(self.step(at, Event::Written(written)));
                }
                Action::Answer(ticket, answer) => {
                    assert!(self.answers.insert(ticket.0, answer).is_none(), "answered twice");
                }
                Action::Merged(..) | Action::Staged(..) | Action::TookId(..) => {}
                Action::AnswerRegion(..) | Action::CallRegion { .. } => {}
                Action::Compacted(_, floor) => assert!(floor.unwrap() >= self.floor),
                Action::Publish(_) => {}
            }
        }
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> Result<Result<EngineRevision, EngineError>, Crashed> {
        self.writes += 1;
        if let Some(crash) = self.crash.take_if(|crash| crash.write == self.writes) {
            if crash.is_written {
                // It may be in vain, as another server was faster.
                _ = self.engine.commit(batch);
            }
            return Err(Crashed);
        }
        let unknown = Err(EngineError::Unknown("no answer".into()));
        Ok(match self.unreported.take() {
            None => self.engine.commit(batch),
            Some(false) => unknown,
            Some(true) => self.engine.commit(batch).and(unknown),
        })
    }

    /// Starts a server that ended. The store must have the state of one of these models.
    fn recover(&mut self, at: usize, candidates: &[Model]) {
        self.unreported = None;
        self.now += RESTART;
        self.servers[at] = self.started();
        let differences: Vec<_> = candidates.iter().map(|model| self.difference(model)).collect();
        let found = differences.iter().position(Option::is_none);
        let found = found.unwrap_or_else(|| panic!("the store is none of these: {differences:?}"));
        self.remember(&candidates[..=found]);
        self.read_again();
    }

    /// These models followed one after another.
    fn remember(&mut self, models: &[Model]) {
        for model in models {
            self.past.insert(model.revision, model.clone());
            self.model = model.clone();
        }
    }

    /// What the model does not know after a restart: the revisions of records. Leases start again.
    fn read_again(&mut self) {
        let stored = self.stored();
        for (name, record) in self.model.records.iter_mut().filter(|(_, record)| !record.is_deleted) {
            let state = &stored[name];
            record.revision = xds_store::record::RecordRevision::of(state).to_string();
            if record.lease_ends.is_some() {
                record.lease_ends = Some(self.now + LEASE_SECONDS * SECOND);
            }
        }
    }

    /// Some commits arrive at one server. The first one is written at once; the others wait meanwhile,
    /// and are written together.
    fn commit(&mut self, random: &mut Random) {
        let at = random.below(self.servers.len());
        self.unreported = [None, Some(false), Some(true)][random.below(16).saturating_sub(13)];
        let mut models = vec![self.model.clone()];
        let mut requests: Vec<(Request, _)> = Vec::new();
        for _ in 0..1 + random.below(3) {
            let mut model = models.last().unwrap().clone();
            let request = random.request(&model, self.kinds, self.now);
            let expected = model.commit(&request, self.now);
            model.forget_revisions(models.last().unwrap());
            models.push(model);
            requests.push((request, expected));
        }
        let (mut actions, first) = (Vec::new(), self.tickets + 1);
        for (request, _) in &requests {
            self.tickets += 1;
            let draft = Draft::parse(request.to_proto(), "test".into()).unwrap();
            actions.extend(self.step(at, Event::Commit(Ticket(self.tickets), draft)));
        }
        let done = self.perform(at, actions);
        let answers = mem::take(&mut self.answers);
        assert!(answers.keys().copied().eq((first..).take(answers.len())), "they are answered in order");
        for ((answer, (request, expected)), model) in answers.values().zip(&requests).zip(&models[1..]) {
            let found = match answer {
                Ok(committed) => answer_of(committed),
                Err(refused) => Err(refused.code),
            };
            assert_eq!(&found, expected, "{request:?} on {:?}", models[0]);
            if let Ok(committed) = answer {
                assert_eq!(committed.revision, model.revision, "{request:?} on {:?}", models[0]);
                self.acknowledged += 1;
            }
        }
        match done {
            Err(Crashed) => {
                self.recover(at, &models[answers.len()..]);
                self.wait(0);
            }
            Ok(()) => {
                assert_eq!(answers.len(), requests.len(), "each is answered");
                self.remember(&models);
                for ((request, _), answer) in requests.iter().zip(answers.values()) {
                    answer.iter().for_each(|committed| self.model.learn(request, committed));
                }
            }
        }
        let known = models[..=answers.len()].iter();
        known.for_each(|model| _ = self.past.insert(model.revision, model.clone()));
    }

    fn wait(&mut self, nanoseconds: i64) {
        let mut until = self.now + nanoseconds;
        let due = |server: &Store| server.due();
        while let Some(due) = self.servers.iter().filter_map(due).min().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            let mut candidates = vec![self.model.clone()];
            for by_lease in [false, true] {
                let mut model = candidates.last().unwrap().clone();
                if !model.ended(self.now, by_lease).is_empty() {
                    model.revision += 1;
                    candidates.push(model);
                }
            }
            let mut crashed = false;
            for at in 0..self.servers.len() {
                let actions = self.step(at, Event::Due);
                if self.perform(at, actions).is_err() {
                    self.recover(at, &candidates);
                    until = until.max(self.now);
                    crashed = true;
                    break;
                }
            }
            if !crashed {
                self.remember(&candidates);
            }
        }
        self.now = until;
    }

    /// Forgets old revisions, and deleted records.
    fn compact(&mut self, upto: Option<u64>) {
        let actions = self.step(0, Event::Compact(Ticket(0), upto));
        let done = self.perform(0, actions);
        let head = Store::read_head(&*self.engine.view().unwrap()).unwrap().0;
        assert!(head.floor >= self.floor, "the floor only rises");
        self.floor = head.floor;
        self.model.incarnation_floor = head.incarnation_floor;
        let stored = self.stored();
        self.model.records.retain(|name, record| {
            let is_forgotten = record.is_deleted && !stored.contains_key(name);
            assert!(!is_forgotten || record.incarnation <= head.incarnation_floor, "SR27");
            !is_forgotten
        });
        if done.is_err() {
            let model = self.model.clone();
            self.recover(0, std::slice::from_ref(&model));
            self.wait(0);
        }
    }

    /// The states of all records, as a start reads them.
    fn stored(&self) -> BTreeMap<RecordName, proto::RecordState> {
        let mut stored = BTreeMap::new();
        let config = Config::new(self.engine.limits(), 0);
        let each = |loaded: xds_store::store::Loaded| {
            stored.insert(name_of(&loaded.key.to_proto()), loaded.state);
        };
        Store::load(&*self.engine.view().unwrap(), config, self.now, each).unwrap();
        stored
    }

    /// How the store in the engine differs from a model.
    fn difference(&self, model: &Model) -> Option<String> {
        let view = self.engine.view().unwrap();
        let revision = Store::read_head(&*view).unwrap().0.revision;
        let nanoseconds = |end: &prost_types::Timestamp| end.seconds * SECOND + i64::from(end.nanos);
        let of_state = |(name, state): (RecordName, proto::RecordState)| {
            let is_deleted = state.lifecycle() == proto::State::Deleted;
            let owners = xds_store::record::named_owners(&state).map(str::to_owned).collect::<Vec<_>>();
            let text = String::from_utf8(state.content.unwrap().payload.into()).unwrap();
            let end = state.expires_at.as_ref().map(nanoseconds);
            let alive = (text, owners, end, state.quarantined.is_some(), state.generation);
            (name, (state.incarnation, (!is_deleted).then_some(alive)))
        };
        let stored: BTreeMap<_, _> = self.stored().into_iter().map(of_state).collect();
        let of_model = |(name, record): (&RecordName, &crate::sequential::Record)| {
            let owners = record.owners.iter().map(|owner| (*owner).to_owned()).collect();
            let end = record.stored_end.or(record.expires_at);
            let text = record.payload.to_owned();
            let alive = (text, owners, end, record.is_quarantined, record.generation);
            (*name, (record.incarnation, (!record.is_deleted).then_some(alive)))
        };
        let expected: BTreeMap<_, _> = model.records.iter().map(of_model).collect();
        let differs = (revision, &stored) != (model.revision, &expected);
        differs.then(|| format!("{revision} {stored:?} instead of {} {expected:?}", model.revision))
    }

    /// The store and its log are whole, and agree with the model; so do all servers.
    fn check(&mut self) {
        assert_eq!(self.difference(&self.model), None);
        let view = self.engine.view().unwrap();
        check_store(&*view, &mut |finding| panic!("{finding}")).unwrap();
        let mut watch = Watch::after(self.floor);
        let mut last = self.floor;
        while let [commit] = &watch.next(&*view, 1).unwrap()[..] {
            assert_eq!(commit.revision, last + 1, "in order, each once, none missing");
            last = commit.revision;
            let then = &self.past[&last];
            for (key, state) in &commit.changes {
                let record = &then.records[&name_of(&key.to_proto())];
                assert_eq!(state.lifecycle() == proto::State::Deleted, record.is_deleted);
                assert_eq!(state.content.as_ref().unwrap().payload, record.payload);
            }
        }
        assert_eq!(last, self.model.revision);
        for at in 0..self.servers.len() {
            self.step(at, Event::Changed);
            let live = self.model.records.values().filter(|record| !record.is_deleted).count();
            assert_eq!(self.servers[at].counts().0, live);
            assert_eq!(self.servers[at].revision(), self.model.revision);
        }
    }
}

/// How many writes the history makes, and how many commits it acknowledges.
fn history(seed: u64, crash: Option<Crash>) -> (u64, u64) {
    let mut random = Random(seed);
    let mut world = World::new(if seed.is_multiple_of(2) { 1 } else { 2 }, crash);
    let mut left = STEPS;
    while left > 0 {
        // After the crash it goes on for a while.
        left = if crash.is_some() && world.crash.is_none() { left.min(STEPS_AFTER) - 1 } else { left - 1 };
        match random.below(12) {
            0 | 1 => {
                let seconds = [random.below(20), 400, 9 * 24 * 3600][random.below(12).saturating_sub(9)];
                world.wait(i64::try_from(seconds).unwrap() * SECOND);
            }
            2 if world.servers.len() == 1 => {
                let upto = random.below(usize::try_from(world.model.revision).unwrap() + 1);
                world.compact(random.one_in(2).then_some(upto as u64));
            }
            _ => world.commit(&mut random),
        }
    }
    world.check();
    (world.writes, world.acknowledged)
}

#[test]
fn st7_st16_a_crash_at_each_write_of_random_histories_loses_nothing_acknowledged_and_halves_nothing() {
    let histories = std::env::var("CRASHED_HISTORIES").map_or(5, |text| text.parse().unwrap());
    let (mut writes, mut acknowledged) = (0, 0);
    for seed in 0..histories {
        let run = |crash| {
            let result = std::panic::catch_unwind(|| history(seed, crash));
            result.unwrap_or_else(|_| panic!("history {seed} failed with {crash:?}"))
        };
        let (of_history, _) = run(None);
        writes += of_history;
        for write in 1..=of_history {
            for is_written in [false, true] {
                acknowledged += run(Some(Crash { write, is_written })).1;
            }
        }
    }
    println!("{histories} histories, {} crashes, {acknowledged} acknowledged commits", 2 * writes);
    assert!(writes > 15 * histories, "only {writes} writes");
}

/// About 30 commits that are accepted, and as many that are not.
const STEPS: usize = 45;
const STEPS_AFTER: usize = 10;
/// How long a server takes to start again.
const RESTART: i64 = 20 * SECOND;
