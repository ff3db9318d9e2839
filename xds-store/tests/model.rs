//! Random histories of two servers on one store, compared with a sequential model: a map of records
//! and a list of revisions.
//!
//! Each answer must be the one of the model, in the order in which the commits were written; a commit
//! whose answer was lost must be there whole or not at all. At the end the log, a fresh start and
//! both servers must agree with the model.
//!
//!     HISTORIES=20000 cargo test -p xds-store --test model
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use driven::*;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::Engine;
use xds_store::store::{Action, Event, Ticket};
use xds_store::watch::Watch;

#[allow(dead_code, reason = "shared with the tests of rules")]
mod driven;

type RecordName = (&'static str, &'static str);

/// A record of the model.
#[derive(Debug, Clone, Default, PartialEq)]
struct Record {
    payload: &'static str,
    incarnation: u64,
    generation: u64,
    /// As the store printed it.
    revision: String,
    is_deleted: bool,
    is_quarantined: bool,
    owners: BTreeSet<&'static str>,
    lease_ends: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    records: BTreeMap<RecordName, Record>,
    revision: u64,
}

#[derive(Debug, Clone)]
struct Request {
    changes: Vec<(RecordName, Condition, Act)>,
    owner: &'static str,
    prune: bool,
}

#[derive(Debug, Clone)]
enum Condition {
    None,
    Absent,
    Exists,
    Revision(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Put(&'static str),
    PutLease(&'static str),
    Delete,
    Touch,
    Quarantine,
    Check,
}

/// The outcome of each change, then those of pruned records.
type Answer = Result<(Vec<proto::Outcome>, BTreeMap<RecordName, proto::Outcome>), RefusalCode>;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The last two match different clients; the first one overlaps with both.
const WHENS: [&str; 3] = ["", "env=prod", "env!=prod"];
const PAYLOADS: [&str; 3] = ["1", "2", "3"];
const OWNERS: [&str; 3] = ["", "x", "y"];
const LEASE_SECONDS: i64 = 30;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn request(&mut self, model: &Model, has_leases: bool) -> Request {
        let mut changes: BTreeMap<RecordName, (Condition, Act)> = BTreeMap::new();
        for _ in 0..1 + self.below(3) {
            let name = (self.of(&NAMES), self.of(&WHENS));
            let record = model.records.get(&name);
            let condition = match self.below(8) {
                0 => Condition::Absent,
                1 => Condition::Exists,
                2 | 3 => Condition::Revision(
                    record.map_or_else(|| "0".repeat(32), |record| record.revision.clone()),
                ),
                _ => Condition::None,
            };
            let act = match self.below(12) {
                0..=4 => Act::Put(self.of(&PAYLOADS)),
                5 | 6 if has_leases => Act::PutLease(self.of(&PAYLOADS)),
                5..=7 => Act::Delete,
                8 | 9 if has_leases => Act::Touch,
                8 | 9 => Act::Quarantine,
                10 => Act::Check,
                _ => Act::Put(PAYLOADS[0]),
            };
            changes.insert(name, (condition, act));
        }
        let owner = self.of(&OWNERS);
        let prune = !owner.is_empty() && self.one_in(4);
        let changes = changes.into_iter().map(|(name, (condition, act))| (name, condition, act)).collect();
        Request { changes, owner, prune }
    }
}

impl Request {
    fn to_proto(&self) -> proto::CommitRequest {
        let changes = self.changes.iter().map(|((name, when), condition, act)| {
            let content = |payload: &str| Some(content(payload));
            let lease = Some(prost_types::Duration { seconds: LEASE_SECONDS, nanos: 0 });
            let put = |payload: &str| proto::Put { content: content(payload), ..Default::default() };
            let act = match act {
                Act::Put(payload) => proto::change::Act::Put(put(payload)),
                Act::PutLease(payload) => proto::change::Act::Put(proto::Put { lease, ..put(payload) }),
                Act::Delete => proto::change::Act::Delete(proto::Delete::default()),
                Act::Touch => proto::change::Act::Touch(proto::Touch {}),
                Act::Quarantine => proto::change::Act::Quarantine(proto::Quarantine::default()),
                Act::Check => proto::change::Act::Check(proto::Check {}),
            };
            let change = change(name, when, act);
            match condition {
                Condition::None => change,
                Condition::Absent => only_if(proto::condition::Is::Absent(true), change),
                Condition::Exists => only_if(proto::condition::Is::Exists(true), change),
                Condition::Revision(text) => only_if(proto::condition::Is::Revision(text.clone()), change),
            }
        });
        let (owner, prune) = (self.owner.to_owned(), self.prune);
        proto::CommitRequest { changes: changes.collect(), owner, prune, ..Default::default() }
    }
}

impl Model {
    fn live(&self, name: RecordName) -> Option<&Record> {
        self.records.get(&name).filter(|record| !record.is_deleted)
    }

    /// What the store has to answer; the model is changed if it accepts the commit.
    fn commit(&mut self, request: &Request, now: i64) -> Answer {
        for (name, condition, act) in &request.changes {
            let live = self.live(*name);
            let is_touch = *act == Act::Touch;
            let refusal = match (condition, live) {
                (_, None) if is_touch => Some(RefusalCode::NotFound),
                (_, Some(record)) if is_touch && record.lease_ends.is_none() => {
                    Some(RefusalCode::FailedPrecondition)
                }
                (Condition::Absent, Some(_)) => Some(RefusalCode::AlreadyExists),
                (Condition::Exists | Condition::Revision(_), None) => Some(RefusalCode::NotFound),
                (Condition::Revision(text), Some(record)) if record.revision != *text => {
                    Some(RefusalCode::Aborted)
                }
                _ => None,
            };
            if let Some(code) = refusal {
                return Err(code);
            }
        }
        let mut after = self.clone();
        let mut changed = false;
        let outcomes = request.changes.iter().map(|(name, _, act)| {
            let (outcome, has_changed) = after.apply(*name, *act, request.owner, now);
            changed |= has_changed;
            outcome
        });
        let outcomes = outcomes.collect();
        let mut effects = BTreeMap::new();
        if request.prune {
            let named =
                |name| request.changes.iter().any(|(other, _, act)| *other == name && *act != Act::Check);
            let owned = self.records.iter().filter(|(name, record)| {
                !record.is_deleted && record.owners.contains(request.owner) && !named(**name)
            });
            for name in owned.map(|(name, _)| *name).collect::<Vec<_>>() {
                let (outcome, _) = after.apply(name, Act::Delete, request.owner, now);
                effects.insert(name, outcome);
                changed = true;
            }
        }
        let is_ambiguous = NAMES.iter().any(|name| {
            let live = |when| after.live((name, when)).is_some();
            live(WHENS[0]) && (live(WHENS[1]) || live(WHENS[2]))
        });
        if is_ambiguous {
            return Err(RefusalCode::FailedPrecondition);
        }
        after.revision += u64::from(changed || self.revision == 0);
        *self = after;
        Ok((outcomes, effects))
    }

    fn apply(&mut self, name: RecordName, act: Act, owner: &'static str, now: i64) -> (proto::Outcome, bool) {
        if act == Act::Check {
            return (proto::Outcome::Checked, false);
        }
        let known = self.records.contains_key(&name);
        let record = self.records.entry(name).or_default();
        let is_live = known && !record.is_deleted;
        let outcome = match act {
            Act::Put(payload) | Act::PutLease(payload) => {
                let has_lease = matches!(act, Act::PutLease(_));
                let is_same = record.payload == payload && record.lease_ends.is_some() == has_lease;
                let joins = !owner.is_empty() && !record.owners.contains(owner);
                if is_live && is_same && !record.is_quarantined {
                    if !joins {
                        if has_lease {
                            record.renew(now);
                        }
                        return (proto::Outcome::Unchanged, false);
                    }
                    record.owners.insert(owner);
                    return (proto::Outcome::Updated, true);
                }
                if !is_live {
                    *record = Record { incarnation: record.incarnation + 1, ..Record::default() };
                }
                record.payload = payload;
                record.generation += 1;
                record.is_quarantined = false;
                record.lease_ends = has_lease.then_some(now + LEASE_SECONDS * SECOND);
                record.owners.extend((!owner.is_empty()).then_some(owner));
                if is_live { proto::Outcome::Updated } else { proto::Outcome::Created }
            }
            Act::Delete | Act::Quarantine | Act::Touch if !is_live => {
                if !known {
                    self.records.remove(&name);
                }
                return (proto::Outcome::Absent, false);
            }
            Act::Delete => {
                let was_owner = record.owners.remove(owner);
                if owner.is_empty() || record.owners.is_empty() {
                    record.is_deleted = true;
                    return (proto::Outcome::Deleted, true);
                }
                return (proto::Outcome::Released, was_owner);
            }
            Act::Quarantine => {
                if record.is_quarantined {
                    return (proto::Outcome::Unchanged, false);
                }
                record.is_quarantined = true;
                proto::Outcome::Quarantined
            }
            Act::Touch | Act::Check => {
                record.renew(now);
                return (proto::Outcome::Touched, false);
            }
        };
        (outcome, true)
    }

    /// The leases that end until then.
    fn ended(&mut self, now: i64) -> BTreeSet<RecordName> {
        let mut ended = BTreeSet::new();
        for (name, record) in &mut self.records {
            if !record.is_deleted && record.lease_ends.is_some_and(|end| end <= now) {
                record.is_deleted = true;
                ended.insert(*name);
            }
        }
        ended
    }
}

impl Record {
    /// ST37.
    fn renew(&mut self, now: i64) {
        let Some(end) = self.lease_ends else { return };
        if now - (end - LEASE_SECONDS * SECOND) >= LEASE_SECONDS * SECOND / 3 {
            self.lease_ends = Some(now + LEASE_SECONDS * SECOND);
        }
    }
}

/// Two servers, and the model.
struct World {
    servers: Vec<Server>,
    model: Model,
    /// The model after each revision.
    past: BTreeMap<u64, Model>,
    now: i64,
    number: u64,
}

impl World {
    fn new() -> Self {
        let one = Server::new();
        let (engine, now) = (one.engine.clone(), one.now);
        let servers = vec![one, Server::on(engine, 2, now)];
        Self { servers, model: Model::default(), past: BTreeMap::new(), now, number: 2 }
    }

    /// Some commits that wait at one server while another batch is written.
    fn commit(&mut self, random: &mut Random, has_leases: bool) {
        let at = random.below(self.servers.len());
        let fate = match random.below(8) {
            0 => Some(Fate::WrittenUnknown),
            1 => Some(Fate::LostUnknown),
            2 => Some(Fate::Full),
            _ => None,
        };
        self.servers[at].now = self.now;
        // The model has the revisions of records as of the last answer, so only the first commit of
        // a group can have a condition on one that is up to date.
        for number in 0..1 + random.below(3) {
            let request = random.request(&self.model, has_leases);
            let before = self.model.clone();
            if number == 0 {
                self.servers[at].fates.extend(fate);
            }
            let expected = self.model.commit(&request, self.now);
            let answer = self.servers[at].commit(request.to_proto());
            self.servers[at].fates.clear();
            match answer {
                Ok(committed) => {
                    let outcomes: Vec<_> = committed.results.iter().map(|result| result.outcome).collect();
                    let effects: BTreeMap<_, _> = committed
                        .effects
                        .iter()
                        .map(|effect| (name_of(&effect.key.to_proto()), effect.result.outcome))
                        .collect();
                    assert_eq!(Ok((outcomes, effects)), expected, "{request:?} on {before:?}");
                    assert_eq!(committed.revision, self.model.revision, "{request:?} on {before:?}");
                    let changed = request.changes.iter().map(|(name, ..)| *name);
                    let results = committed.results.iter().map(|result| &result.record);
                    let pruned = committed.effects.iter();
                    let pruned =
                        pruned.map(|effect| (name_of(&effect.key.to_proto()), &effect.result.record));
                    for (name, record) in changed.zip(results).chain(pruned) {
                        let known = self.model.records.get_mut(&name);
                        if let (Some((revision, _)), Some(known)) = (record, known) {
                            known.revision = revision.to_string();
                        }
                    }
                }
                Err(refused)
                    if fate == Some(Fate::Full) && refused.code == RefusalCode::ResourceExhausted =>
                {
                    self.model = before;
                }
                Err(refused) => assert_eq!(Err(refused.code), expected, "{request:?} on {before:?}"),
            }
            self.past.insert(self.model.revision, self.model.clone());
        }
    }

    /// A server ends between a write and its answer, or before the write, and starts again.
    fn crash(&mut self, random: &mut Random) {
        let at = random.below(self.servers.len());
        let request = random.request(&self.model, false);
        let server = &mut self.servers[at];
        server.step(Event::Changed);
        let draft = Draft::parse(request.to_proto(), "test".into()).unwrap();
        let reader = server.engine.reader();
        let actions = server.store.step(Event::Commit(Ticket(0), draft), self.now, &*reader);
        let is_written = random.one_in(2);
        for action in actions {
            if let (Action::Write(batch), true) = (action, is_written) {
                server.engine.commit(&batch).unwrap();
            }
        }
        if is_written {
            // Whether the commit was accepted is the same question as ever.
            _ = self.model.commit(&request, self.now);
        }
        self.number += 1;
        self.servers[at] = Server::on(self.servers[at].engine.clone(), self.number, self.now);
        assert_eq!(self.servers[at].store.revision(), self.model.revision, "{request:?}");
        self.reread_revisions();
        self.past.insert(self.model.revision, self.model.clone());
    }

    /// The revisions of records, which a lost answer did not tell the model.
    fn reread_revisions(&mut self) {
        for ((name, when), record) in &mut self.model.records {
            if let Some(state) = self.servers[0].record(name, when) {
                record.revision = xds_store::record::RecordRevision::of(&state).to_string();
            }
        }
    }

    fn wait(&mut self, nanoseconds: i64) {
        self.now += nanoseconds;
        let ended = self.model.ended(self.now);
        let mut found = BTreeSet::new();
        for server in &mut self.servers {
            server.published.clear();
            server.wait(self.now - server.now);
            server.step(Event::Changed);
        }
        let published = &self.servers[0].published;
        for commit in published.iter().filter(|commit| commit.revision > self.model.revision) {
            assert_eq!(commit.entry.identity, "expiry");
            let names = commit.entry.changes.iter().map(|change| name_of(&change.key));
            names.for_each(|name| assert!(found.insert(name), "it ends once"));
        }
        assert_eq!(found, ended, "at {}", self.now);
        self.model.revision = self.servers[0].store.revision();
        self.past.insert(self.model.revision, self.model.clone());
    }

    /// The store as the engine has it, both servers, and the log agree with the model.
    fn check(&mut self) {
        for server in &mut self.servers {
            server.step(Event::Changed);
            assert_eq!(server.store.revision(), self.model.revision);
            let live = self.model.records.values().filter(|record| !record.is_deleted).count();
            assert_eq!(server.store.counts().0, live);
        }
        for ((name, when), record) in &self.model.records {
            let found = self.servers[0].record(name, when);
            assert_eq!(found.is_none(), record.is_deleted, "{name} {when}");
            let Some(state) = found else { continue };
            let owners: BTreeSet<_> = xds_store::record::named_owners(&state).collect();
            assert_eq!(owners, record.owners);
            assert_eq!((state.generation, state.incarnation), (record.generation, record.incarnation));
            assert_eq!(state.content.unwrap().payload, record.payload.as_bytes());
            assert_eq!(state.quarantined.is_some(), record.is_quarantined);
        }
        let mut watch = Watch::after(0);
        let mut seen: BTreeMap<RecordName, Option<String>> = BTreeMap::new();
        let view = self.servers[0].engine.view().unwrap();
        let mut last = 0;
        loop {
            let commits = watch.next(&*view, 7).unwrap();
            if commits.is_empty() {
                break;
            }
            for commit in commits {
                assert_eq!(commit.revision, last + 1, "in order, each once, none missing");
                last = commit.revision;
                for (key, state) in &commit.changes {
                    let is_live = state.lifecycle() != proto::State::Deleted;
                    let payload =
                        || String::from_utf8(state.content.clone().unwrap().payload.into()).unwrap();
                    seen.insert(name_of(&key.to_proto()), is_live.then(payload));
                }
                let Some(then) = self.past.get(&commit.revision) else { continue };
                let expected = then.records.iter();
                let expected = expected
                    .map(|(name, record)| (*name, (!record.is_deleted).then(|| record.payload.to_owned())));
                assert_eq!(seen, expected.collect(), "after revision {}", commit.revision);
            }
        }
        assert_eq!(last, self.model.revision);
    }
}

fn name_of(key: &proto::Key) -> RecordName {
    let of = |all: &[&'static str], text: &str| *all.iter().find(|one| **one == text).unwrap();
    (of(&NAMES, &key.name), of(&WHENS, &key.when))
}

#[test]
fn st7_st11_st16_st19_st27_random_histories_are_those_of_a_sequential_store() {
    let histories = std::env::var("HISTORIES").map_or(1_000, |text| text.parse().unwrap());
    for seed in 0..histories {
        let result = std::panic::catch_unwind(|| history(seed));
        assert!(result.is_ok(), "history {seed} failed");
    }
}

fn history(seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new();
    // A restart lets all leases start again, at one server and not at the other.
    let has_leases = seed.is_multiple_of(2);
    for _ in 0..20 {
        match random.below(10) {
            0 | 1 if has_leases => world.wait(i64::try_from(random.below(20)).unwrap() * SECOND),
            0 | 1 => world.crash(&mut random),
            _ => world.commit(&mut random, has_leases),
        }
    }
    world.check();
}
