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
use sequential::{Kinds, Model, Random, RecordName, answer_of, name_of};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::Engine;
use xds_store::store::{Action, Event, Ticket};
use xds_store::watch::Watch;

mod crashes;
#[allow(dead_code, reason = "shared with the tests of rules")]
#[path = "../driven/mod.rs"]
mod driven;
mod sequential;

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
    fn commit(&mut self, random: &mut Random, kinds: Kinds) {
        let at = random.below(self.servers.len());
        let fate = match random.below(8) {
            // ST40: then leases start again, at one server and not at the other.
            _ if kinds.leases => None,
            0 => Some(Fate::WrittenUnknown),
            1 => Some(Fate::LostUnknown),
            2 => Some(Fate::Full),
            _ => None,
        };
        self.servers[at].now = self.now;
        // The model has the revisions of records as of the last answer, so only the first commit of
        // a group can have a condition on one that is up to date.
        for number in 0..1 + random.below(3) {
            let request = random.request(&self.model, kinds, self.now);
            let before = self.model.clone();
            if number == 0 {
                self.servers[at].fates.extend(fate);
            }
            let expected = self.model.commit(&request, self.now);
            let answer = self.servers[at].commit(request.to_proto());
            self.servers[at].fates.clear();
            match answer {
                Ok(committed) => {
                    assert_eq!(answer_of(&committed), expected, "{request:?} on {before:?}");
                    assert_eq!(committed.revision, self.model.revision, "{request:?} on {before:?}");
                    self.model.learn(&request, &committed);
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
        let request = random.request(&self.model, Kinds::default(), self.now);
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
        let ended = self.model.ended(self.now, true);
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
            _ => world.commit(&mut random, Kinds { leases: has_leases, ..Kinds::default() }),
        }
    }
    world.check();
}
