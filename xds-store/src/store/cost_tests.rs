//! A commit costs what it changes, and what that touches, however many records there are.

use prost::encoding::{WireType, encode_key, encode_varint};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

use super::*;
use crate::engine::{Engine, MemoryEngine};
use crate::looks;

struct Driven {
    engine: MemoryEngine,
    store: Store,
    last: u64,
}

impl Driven {
    fn new() -> Self {
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init(&Identity::default())).unwrap();
        let config = Config::new(engine.limits(), 1);
        let store = Store::load(&*engine.view().unwrap(), config, 1, |_| {}).unwrap();
        Self { engine, store, last: 0 }
    }

    /// The looks of one commit, and what becomes of it.
    fn commit(&mut self, changes: Vec<proto::Change>) -> (u64, Result<(), RefusalCode>) {
        let request = proto::CommitRequest { changes, owner: "o".into(), ..Default::default() };
        let draft = Draft::parse(request, "test".into()).unwrap();
        let reader = self.engine.reader();
        self.last += 1;
        looks::take();
        let mut actions = self.store.step(Event::Commit(Ticket(self.last), draft), 1, &*reader);
        let looks = looks::take();
        if let Some(Action::Write(batch)) = actions.last() {
            let written = self.engine.commit(batch);
            actions = self.store.step(Event::Written(written), 1, &*reader);
        }
        match actions.pop() {
            Some(Action::Answer(_, answer)) => (looks, answer.map(|_| ()).map_err(|refused| refused.code)),
            other => panic!("{other:?}"),
        }
    }
}

fn field(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.as_ref().len() as u64, &mut bytes);
    bytes.extend_from_slice(value.as_ref());
    bytes
}

fn path(numbers: &[u32], value: impl AsRef<[u8]>) -> Vec<u8> {
    numbers.iter().rev().fold(value.as_ref().to_vec(), |value, number| field(*number, value))
}

fn change(type_url: &str, name: &str, act: proto::change::Act) -> proto::Change {
    let key = proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() };
    proto::Change { key: Some(key), condition: None, act: Some(act) }
}

fn put(type_url: &str, name: &str, payload: Vec<u8>) -> proto::Change {
    let content = proto::Content { payload: [field(1, name), payload].concat().into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    change(type_url, name, proto::change::Act::Put(put))
}

fn delete(type_url: &str, name: &str) -> proto::Change {
    change(type_url, name, proto::change::Act::Delete(proto::Delete::default()))
}

/// A cluster with its endpoints, and routes to it.
fn service(name: &str) -> [proto::Change; 3] {
    [
        put(type_url::CLUSTER, name, [vec![2 << 3, 3], path(&[3, 2], name)].concat()),
        put(type_url::CLUSTER_LOAD_ASSIGNMENT, name, Vec::new()),
        put(type_url::ROUTE_CONFIGURATION, name, path(&[2, 3, 2, 1], name)),
    ]
}

/// The looks of some commits in a store that has so many other services.
fn looks_of_commits(others: usize) -> Vec<(u64, Result<(), RefusalCode>)> {
    let mut driven = Driven::new();
    for number in 0..others {
        driven.commit(service(&format!("other-{number}")).into()).1.unwrap();
    }
    let cluster = || delete(type_url::CLUSTER, "a");
    let routes = || delete(type_url::ROUTE_CONFIGURATION, "a");
    let elsewhere = put(type_url::ROUTE_CONFIGURATION, "a", path(&[2, 3, 2, 1], "missing"));
    let commits = [
        service("a").into(),
        vec![cluster()],
        vec![elsewhere],
        vec![cluster(), routes()],
        service("a").into(),
        vec![routes()],
    ];
    commits.map(|changes| driven.commit(changes)).into()
}

#[test]
fn sg3_sg4_sg5_the_cost_of_a_commit_does_not_grow_with_the_store() {
    let (few, many) = (looks_of_commits(2), looks_of_commits(2_000));
    assert_eq!(few, many);
    let refused = |(_, answer): &(u64, Result<(), RefusalCode>)| answer.is_err();
    assert_eq!(few.iter().map(refused).collect::<Vec<_>>(), [false, true, true, false, false, false]);
    assert!(few.iter().all(|(looks, _)| *looks > 0 && *looks < 60), "{few:?}");
}

#[test]
fn sg5_the_deletion_of_one_of_many_referrers_does_not_look_at_the_others() {
    let looks = |clusters: usize| {
        let mut driven = Driven::new();
        let cluster = |number: usize| {
            let name = format!("{number}");
            put(type_url::CLUSTER, &name, [vec![2 << 3, 3], path(&[3, 2], "shared")].concat())
        };
        driven.commit((0..clusters).map(cluster).collect()).1.unwrap();
        driven.commit(vec![put(type_url::CLUSTER_LOAD_ASSIGNMENT, "shared", Vec::new())]).1.unwrap();
        driven.commit(vec![delete(type_url::CLUSTER, "1")]).0
    };
    assert_eq!(looks(3), looks(3_000));
}
