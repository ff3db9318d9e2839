//! Random commits over a few records that name each other by fields of all kinds, compared with a model
//! that has no indexes: it looks at all records for each question.
//!
//!     HISTORIES=20000 cargo test -p xds-store --test graphs
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use driven::envoy::*;
use driven::*;
use xds_core::FieldPath;
use xds_proto::xds::store::v1 as proto;
use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine;
use xds_store::rules::FieldSource;
use xds_store::store::{Config, Event, Loaded, Store};

#[allow(dead_code, reason = "shared with the tests of rules")]
mod driven;

type Name = &'static str;

const NAMES: [Name; 5] = ["a", "b", "c", "d", "e"];
const FIELDS: [&str; 3] = ["block", "cascade", "unset"];
const ON_DELETE: [proto::OnDelete; 3] =
    [proto::OnDelete::Block, proto::OnDelete::Cascade, proto::OnDelete::Unset];
const CASCADE: usize = 1;
const UNSET: usize = 2;

/// What a record names in each field.
type Fields = [BTreeSet<Name>; 3];

#[derive(Debug, Clone, PartialEq)]
struct Record {
    fields: Fields,
    is_deleting: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Act {
    Put(Fields),
    Delete,
    Drain,
}

#[derive(Debug)]
struct Request {
    changes: BTreeMap<Name, Act>,
    allow_missing: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Model(BTreeMap<Name, Record>);

impl Record {
    fn names(&self, target: Name) -> bool {
        self.fields.iter().any(|field| field.contains(target))
    }
}

impl Model {
    /// Whether the store accepts the commit.
    fn commit(&mut self, request: &Request) -> bool {
        let before = self.clone();
        let is_accepted = self.try_commit(&before, request);
        if !is_accepted {
            *self = before;
        }
        is_accepted
    }

    fn try_commit(&mut self, before: &Self, request: &Request) -> bool {
        let is_deleting = |name: &Name| before.0.get(name).is_some_and(|record| record.is_deleting);
        let mut waiting = BTreeMap::new();
        for (name, act) in &request.changes {
            match act {
                Act::Put(_) if is_deleting(name) => return false,
                Act::Put(fields) => {
                    _ = self.0.insert(name, Record { fields: fields.clone(), is_deleting: false });
                }
                Act::Drain if is_deleting(name) => {}
                Act::Delete | Act::Drain => {
                    if let Some(record) = self.0.remove(name).filter(|_| *act == Act::Drain) {
                        waiting.insert(*name, record);
                    }
                }
            }
        }
        let puts = request.changes.iter().filter(|(_, act)| matches!(act, Act::Put(_)));
        let puts: BTreeSet<Name> = puts.map(|(name, _)| *name).collect();
        let gone = before.0.keys().copied().filter(|name| !self.0.contains_key(name)).collect();
        self.cascade(gone, &puts, &mut waiting);
        self.end(waiting);
        let gone: Vec<_> = before.0.keys().filter(|name| !self.0.contains_key(*name)).collect();
        let is_free = gone.iter().all(|name| !self.0.values().any(|record| record.names(name)));
        is_free && puts.iter().all(|name| self.leads_somewhere(before, name, request.allow_missing))
    }

    /// Ends what goes with the names, and clears fields.
    fn cascade(&mut self, mut gone: Vec<Name>, puts: &BTreeSet<Name>, waiting: &mut BTreeMap<Name, Record>) {
        while let Some(target) = gone.pop() {
            for name in NAMES.into_iter().filter(|name| !puts.contains(name)) {
                let Some(record) = self.0.get_mut(name).filter(|record| !record.is_deleting) else {
                    continue;
                };
                if record.fields[CASCADE].contains(target) {
                    let record = record.clone();
                    self.0.remove(name);
                    if waiting.contains_key(target) || self.0.contains_key(target) {
                        waiting.insert(name, record);
                    }
                    gone.push(name);
                } else {
                    record.fields[UNSET].remove(target);
                }
            }
        }
    }

    /// What can wait does so if something that stays names it. What was waiting ends if nothing does.
    fn end(&mut self, mut waiting: BTreeMap<Name, Record>) {
        let deleting = self.0.iter().filter(|(_, record)| record.is_deleting);
        waiting.extend(deleting.map(|(name, record)| (*name, record.clone())).collect::<Vec<_>>());
        self.0.retain(|_, record| !record.is_deleting);
        while let Some(name) =
            waiting.keys().copied().find(|name| self.0.values().any(|record| record.names(name)))
        {
            let record = waiting.remove(name).unwrap();
            self.0.insert(name, Record { is_deleting: true, ..record });
        }
    }

    /// SG3.
    fn leads_somewhere(&self, before: &Self, name: Name, allow_missing: bool) -> bool {
        let had = |target| before.0.get(name).is_some_and(|record| record.names(target));
        let targets = self.0[name].fields.iter().flatten();
        let mut added = targets.filter(|target| !had(target));
        added.all(|target| match self.0.get(target) {
            Some(record) => !record.is_deleting,
            None => allow_missing,
        })
    }

    /// What the store does in the background.
    fn settle(&mut self) {
        loop {
            let before = self.clone();
            for target in NAMES {
                if self.0.get(target).is_some_and(|record| record.is_deleting) {
                    let mut waiting = BTreeMap::new();
                    let dependents = self
                        .0
                        .iter()
                        .filter(|(_, record)| !record.is_deleting && record.fields[CASCADE].contains(target));
                    let dependents: Vec<_> =
                        dependents.map(|(name, record)| (*name, record.clone())).collect();
                    dependents.iter().for_each(|(name, _)| _ = self.0.remove(name));
                    waiting.extend(dependents);
                    for record in self.0.values_mut().filter(|record| !record.is_deleting) {
                        record.fields[UNSET].remove(target);
                    }
                    // What ends here may have dependents of its own: they wait for their turn.
                    let dependents = waiting.clone();
                    for (name, record) in waiting {
                        self.0.insert(name, Record { is_deleting: true, ..record });
                    }
                    if dependents.is_empty() {
                        self.end(BTreeMap::new());
                    }
                }
            }
            if *self == before {
                return;
            }
        }
    }
}

fn payload(fields: &Fields) -> Vec<u8> {
    let numbered = fields.iter().zip(1..);
    let names = numbered.flat_map(|(names, number)| names.iter().map(move |name| path(&[number], name)));
    names.collect::<Vec<_>>().concat()
}

fn configure(config: &mut Config) {
    config.fields = FieldSource::new(|type_url, field| {
        let number = FIELDS.iter().position(|known| *known == field).filter(|_| type_url == TYPE)?;
        Some(FieldPath::new([number as u32 + 1]))
    });
}

fn server(from: &Server, number: u64) -> Server {
    Server::with(from.engine.clone(), from.now, |config| {
        config.server = number;
        configure(config);
    })
}

#[test]
fn sg3_sg5_sg6_sg7_sg8_random_graphs_are_those_of_a_model_without_indexes() {
    let histories = std::env::var("HISTORIES").map_or(300, |text| text.parse().unwrap());
    for seed in 0..histories {
        let result = std::panic::catch_unwind(|| history(seed));
        assert!(result.is_ok(), "history {seed} failed");
    }
}

fn history(seed: u64) {
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut one = server(&Server::new(), 1);
    let rules = FIELDS.iter().zip(ON_DELETE).map(|(field, on_delete)| {
        Rule { type_url: TYPE, field, target: TYPE, on_delete, external: &[], collect: false }.put(field)
    });
    one.commit(of(rules.collect::<Vec<_>>())).unwrap();
    let mut servers = [server(&one, 2), one];
    for step in 0..30 {
        let at = random.below(servers.len());
        if random.below(8) == 0 {
            servers[at] = server(&servers[at], 3 + step);
        }
        servers[at].step(Event::Changed);
        let request = Request::random(&mut random);
        let before = model.clone();
        let expected = model.commit(&request);
        let answer = servers[at].commit(request.to_proto());
        let found = answer.as_ref().map(|_| ()).map_err(|refused| refused.code);
        let expected = if expected { Ok(()) } else { Err(RefusalCode::FailedPrecondition) };
        assert_eq!(found, expected, "{request:?} on {before:?}: {answer:?}");
        model.settle();
        servers[at].wait(10 * SECOND);
        let now = servers[at].now;
        servers.iter_mut().for_each(|server| server.now = now);
        let found = records(&servers[at]);
        let expected = model
            .0
            .iter()
            .map(|(name, record)| ((*name).to_owned(), (payload(&record.fields), record.is_deleting)));
        assert_eq!(found, expected.collect(), "{request:?} on {before:?}");
    }
    let view = servers[0].engine.view().unwrap();
    check_store(&*view, &mut |finding| panic!("{finding}")).unwrap();
}

/// The payloads of the records that the engine has, and whether they are being deleted.
fn records(server: &Server) -> BTreeMap<String, (Vec<u8>, bool)> {
    let mut config = Config::new(server.engine.limits(), 9);
    configure(&mut config);
    let mut found = BTreeMap::new();
    Store::load(&*server.engine.view().unwrap(), config, server.now, |Loaded { key, state, .. }| {
        if key.type_url().as_str() == TYPE && state.lifecycle() != proto::State::Deleted {
            let is_deleting = state.lifecycle() == proto::State::Deleting;
            let payload = state.content.unwrap().payload.to_vec();
            found.insert(key.name().to_string(), (payload, is_deleting));
        }
    })
    .unwrap();
    found
}

impl Request {
    fn random(random: &mut Random) -> Self {
        let mut changes = BTreeMap::new();
        for _ in 0..1 + random.below(4) {
            let act = match random.below(6) {
                0 => Act::Delete,
                1 => Act::Drain,
                _ => Act::Put([(); 3].map(|()| {
                    let count = random.below(5).saturating_sub(3);
                    (0..count).map(|_| NAMES[random.below(NAMES.len())]).collect()
                })),
            };
            changes.insert(NAMES[random.below(NAMES.len())], act);
        }
        Self { changes, allow_missing: random.below(3) == 0 }
    }

    fn to_proto(&self) -> proto::CommitRequest {
        let changes = self.changes.iter().map(|(name, act)| match act {
            Act::Put(fields) => put_at(key(name, ""), payload(fields)),
            Act::Delete => delete(name),
            Act::Drain => drain_at(key(name, "")),
        });
        proto::CommitRequest { allow_missing: self.allow_missing, ..of(changes.collect::<Vec<_>>()) }
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
}
