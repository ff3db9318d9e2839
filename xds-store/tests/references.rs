//! Random commits over a few names, compared with a second model of references and owners that has no
//! indexes: it looks at all records for each question.
//!
//!     HISTORIES=20000 cargo test -p xds-store --test references
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use driven::envoy::*;
use driven::*;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::key::RecordKey;
use xds_store::store::Event;

#[allow(dead_code, reason = "shared with the tests of rules")]
mod driven;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Routes,
    Cluster,
    Endpoints,
}

type Name = (Kind, &'static str);

#[derive(Debug, Clone, PartialEq)]
struct Record {
    /// Clusters of routes, endpoints of clusters.
    targets: BTreeSet<&'static str>,
    owners: BTreeSet<&'static str>,
    /// It is deleted once no routes name it.
    is_deleting: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Act {
    /// With these targets.
    Put(BTreeSet<&'static str>),
    Delete,
    Drain,
}

#[derive(Debug, Clone)]
struct Request {
    changes: BTreeMap<Name, Act>,
    owner: &'static str,
    take_over: bool,
    allow_missing: bool,
}

#[derive(Debug, Clone, Default)]
struct Model {
    records: BTreeMap<Name, Record>,
    /// References to clusters that were missing when they were written.
    allowed: BTreeSet<(&'static str, &'static str)>,
}

impl Model {
    /// Whether the store accepts the commit.
    fn commit(&mut self, request: &Request) -> bool {
        let before = self.clone();
        let is_refused = |(name, act): (&Name, &Act)| {
            let is_deleting = self.records.get(name).is_some_and(|record| record.is_deleting);
            is_deleting && matches!(act, Act::Put(_)) || self.is_foreign(*name, act, request)
        };
        if request.changes.iter().any(is_refused) {
            return false;
        }
        for (name, act) in &request.changes {
            self.apply(*name, act, request);
        }
        self.drain(&before, request);
        self.collect(&before, request);
        if self.finish() {
            self.collect(&before, request);
        }
        let is_there = self.check_added(&before, request);
        let is_kept = before.records.keys().filter(|name| !self.records.contains_key(name)).all(|gone| {
            !self.records.iter().any(|((kind, _), record)| {
                *kind == Kind::Routes && gone.0 == Kind::Cluster && record.targets.contains(gone.1)
            })
        });
        if !is_there || !is_kept {
            *self = before;
        }
        is_there && is_kept
    }

    fn is_foreign(&self, name: Name, act: &Act, request: &Request) -> bool {
        let Some(Record { targets, owners, .. }) = self.records.get(&name) else { return false };
        let is_foreign = match act {
            Act::Put(put) => targets != put && owners.iter().any(|owner| *owner != request.owner),
            Act::Delete | Act::Drain => !owners.is_empty() && !owners.contains(request.owner),
        };
        is_foreign && !request.take_over
    }

    fn apply(&mut self, name: Name, act: &Act, request: &Request) {
        let owner = Some(request.owner).filter(|owner| !owner.is_empty());
        match (act, self.records.get_mut(&name)) {
            (Act::Put(targets), None) => {
                let (targets, owners) = (targets.clone(), owner.into_iter().collect());
                self.records.insert(name, Record { targets, owners, is_deleting: false });
            }
            (Act::Put(targets), Some(record)) => {
                record.targets.clone_from(targets);
                if owner.is_some() && request.take_over {
                    record.owners.clear();
                }
                record.owners.extend(owner);
            }
            (Act::Drain, Some(record)) if record.is_deleting => {}
            (Act::Delete | Act::Drain, Some(record)) => {
                record.owners.remove(request.owner);
                if record.owners.is_empty() || owner.is_none() || request.take_over {
                    self.records.remove(&name);
                }
            }
            (Act::Delete | Act::Drain, None) => {}
        }
    }

    fn is_blocked(&self, name: Name) -> bool {
        name.0 == Kind::Cluster
            && self
                .records
                .iter()
                .any(|((kind, _), record)| *kind == Kind::Routes && record.targets.contains(name.1))
    }

    /// What is drained and still named is being deleted.
    fn drain(&mut self, before: &Self, request: &Request) {
        for name in request.changes.iter().filter(|(_, act)| **act == Act::Drain).map(|(name, _)| name) {
            let gone = before.records.get(name).filter(|_| !self.records.contains_key(name));
            if let Some(record) = gone.filter(|_| self.is_blocked(*name)) {
                let waiting = Record { owners: BTreeSet::new(), is_deleting: true, ..record.clone() };
                self.records.insert(*name, waiting);
            }
        }
    }

    /// What was being deleted goes when nothing names it.
    fn finish(&mut self) -> bool {
        let deleting = self.records.iter().filter(|(_, record)| record.is_deleting);
        let ended: Vec<_> = deleting.map(|(name, _)| *name).filter(|name| !self.is_blocked(*name)).collect();
        ended.iter().for_each(|name| _ = self.records.remove(name));
        !ended.is_empty()
    }

    fn collect(&mut self, before: &Self, request: &Request) {
        let gone = before.records.iter().filter(|(name, _)| name.0 == Kind::Cluster);
        let gone: Vec<_> = gone.filter(|(name, _)| !self.records.contains_key(name)).collect();
        for target in gone.into_iter().flat_map(|(_, record)| &record.targets) {
            let name = (Kind::Endpoints, *target);
            let is_named = |(other, record): (&Name, &Record)| {
                other.0 == Kind::Cluster && record.targets.contains(target)
            };
            let is_put = matches!(request.changes.get(&name), Some(Act::Put(_)));
            let is_owned = self.records.get(&name).is_some_and(|record| !record.owners.is_empty());
            if !is_put && !is_owned && !self.records.iter().any(is_named) {
                self.records.remove(&name);
            }
        }
    }

    fn check_added(&mut self, before: &Self, request: &Request) -> bool {
        let mut is_there = true;
        for (name, act) in request.changes.iter().filter(|(name, _)| name.0 == Kind::Routes) {
            let Act::Put(targets) = act else { continue };
            for target in targets {
                let had = before.records.get(name).is_some_and(|record| record.targets.contains(target));
                let found = self.records.get(&(Kind::Cluster, target));
                match found {
                    _ if had => {}
                    Some(found) => is_there &= !found.is_deleting,
                    None => {
                        is_there &= request.allow_missing;
                        self.allowed.insert((name.1, target));
                    }
                }
            }
        }
        is_there
    }

    /// No route is left without its cluster, unless that was missing when the route was written.
    fn check(&self) {
        for ((_, name), record) in self.records.iter().filter(|(name, _)| name.0 == Kind::Routes) {
            for target in &record.targets {
                let exists = self.records.contains_key(&(Kind::Cluster, target));
                assert!(exists || self.allowed.contains(&(*name, *target)), "{name} names {target}");
            }
        }
    }
}

impl Request {
    fn random(random: &mut Random) -> Self {
        let mut changes = BTreeMap::new();
        for _ in 0..1 + random.below(4) {
            let kind = random.of(&[Kind::Routes, Kind::Cluster, Kind::Cluster, Kind::Endpoints]);
            let targets = (0..random.below(3)).map(|_| random.of(&NAMES));
            let targets: BTreeSet<_> = match kind {
                Kind::Routes => targets.collect(),
                Kind::Cluster => targets.take(1).collect(),
                Kind::Endpoints => BTreeSet::new(),
            };
            let act = match random.below(6) {
                0 => Act::Delete,
                1 => Act::Drain,
                _ => Act::Put(targets),
            };
            changes.insert((kind, random.of(&NAMES)), act);
        }
        let owner = random.of(&["", "", "x", "y"]);
        let (take_over, allow_missing) = (random.below(6) == 0, random.below(4) == 0);
        Self { changes, owner, take_over, allow_missing }
    }

    fn to_proto(&self) -> proto::CommitRequest {
        let changes = self.changes.iter().map(|(name, act)| match (name, act) {
            (_, Act::Delete) => delete_at(key_at(*name)),
            (_, Act::Drain) => drain_at(key_at(*name)),
            ((Kind::Routes, name), Act::Put(targets)) => {
                routes(name, &targets.iter().copied().collect::<Vec<_>>())
            }
            ((Kind::Cluster, name), Act::Put(targets)) => match targets.first() {
                Some(endpoints) => eds_cluster(name, endpoints),
                None => cluster(name),
            },
            ((Kind::Endpoints, name), Act::Put(_)) => endpoints(name),
        });
        proto::CommitRequest {
            take_over: self.take_over,
            allow_missing: self.allow_missing,
            owner: self.owner.into(),
            ..of(changes.collect::<Vec<_>>())
        }
    }
}

fn key_at((kind, name): Name) -> proto::Key {
    match kind {
        Kind::Routes => routes_key(name),
        Kind::Cluster => cluster_key(name),
        Kind::Endpoints => endpoints_key(name),
    }
}

#[test]
fn sg3_sg4_sg5_sg7_sg15_random_commits_are_those_of_a_model_without_indexes() {
    let histories = std::env::var("HISTORIES").map_or(300, |text| text.parse().unwrap());
    for seed in 0..histories {
        let result = std::panic::catch_unwind(|| history(seed));
        assert!(result.is_ok(), "history {seed} failed");
    }
}

fn history(seed: u64) {
    let mut random = Random(seed);
    let mut model = Model::default();
    let one = Server::new();
    let (engine, now) = (one.engine.clone(), one.now);
    let mut servers = [one, Server::on(engine, 2, now)];
    for step in 0..30 {
        let at = random.below(servers.len());
        if random.below(8) == 0 {
            servers[at] = Server::on(servers[at].engine.clone(), 3 + step, now);
        }
        servers[at].step(Event::Changed);
        let requests: Vec<_> = (0..1 + random.below(3)).map(|_| Request::random(&mut random)).collect();
        let answers = servers[at].together(requests.iter().map(Request::to_proto));
        for (request, answer) in requests.iter().zip(answers) {
            let before = model.clone();
            let expected = model.commit(request);
            let found = answer.as_ref().map(|_| ()).map_err(|refused| refused.code);
            let expected = if expected { Ok(()) } else { Err(RefusalCode::FailedPrecondition) };
            assert_eq!(found, expected, "{request:?} on {before:?}: {answer:?}");
        }
        model.check();
        for kind in [Kind::Routes, Kind::Cluster, Kind::Endpoints] {
            for name in NAMES.map(|name| (kind, name)) {
                let key = RecordKey::parse(&key_at(name)).unwrap();
                assert_eq!(servers[at].store.exists(&key), model.records.contains_key(&name), "{name:?}");
            }
        }
    }
}

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
}

const NAMES: [&str; 3] = ["a", "b", "c"];
