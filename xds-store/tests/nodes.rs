//! Random histories of several nodes that exchange entries: equal clocks are equal states (SR35, SR43),
//! whatever was committed where, and in which order entries came.
//!
//! `NODES=100000` sets how many.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::Gen;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine as _;
use xds_store::key::RecordKey;
use xds_store::record::RecordState;
use xds_store::replica::Counters;
use xds_store::store::{Config, Event, Store};

use driven::*;

#[expect(dead_code, reason = "other tests use the rest")]
mod driven;

fn records(node: &Server) -> BTreeMap<RecordKey, RecordState> {
    let mut records = BTreeMap::new();
    let config = Config::new(node.engine.limits(), 9);
    Store::load(&*node.engine.view().unwrap(), config, node.now, |loaded| {
        records.insert(loaded.key, loaded.state);
    })
    .unwrap();
    records
}

fn pick<'t, T>(g: &mut Gen, of: &'t [T]) -> &'t T {
    g.choose(of).unwrap()
}

fn below(g: &mut Gen, end: usize) -> usize {
    *g.choose(&(0..end).collect::<Vec<_>>()).unwrap()
}

fn a_change(g: &mut Gen) -> proto::Change {
    let name = *pick(g, &["a", "b", "c", "d"]);
    let payload = *pick(g, &["1", "2", "3"]);
    match below(g, 8) {
        0 | 1 => delete(name),
        2 => put_lease(name, payload, 20),
        3 => quarantine(name),
        4 => {
            let mut put = put(name, payload);
            if let Some(proto::change::Act::Put(put)) = &mut put.act {
                put.expires_at = Some(prost_types::Timestamp { seconds: 40 + below(g, 40) as i64, nanos: 0 });
            }
            put
        }
        _ => put(name, payload),
    }
}

fn commit(g: &mut Gen, node: &mut Server) {
    let mut changes = BTreeMap::new();
    for _ in 0..=below(g, 3) {
        let change = a_change(g);
        changes.insert(change.key.clone().unwrap().name, change);
    }
    let owner = pick(g, &["", "", "team", "shop"]).to_string();
    let take_over = below(g, 3) == 0;
    let request = proto::CommitRequest { owner, take_over, ..of(changes.into_values().collect::<Vec<_>>()) };
    match node.commit(request) {
        Ok(_) => {}
        Err(refused) => assert!(
            [RefusalCode::FailedPrecondition, RefusalCode::InvalidArgument].contains(&refused.code),
            "{refused:?}"
        ),
    }
}

/// Lets one node take some of what another one has, perhaps a part of it twice.
fn pull(g: &mut Gen, nodes: &mut [Server], to: usize, from: usize) {
    let limit = 1 + below(g, 4);
    let entries = nodes[from].entries_for(&nodes[to], limit);
    let repeated = if below(g, 4) == 0 { entries.clone() } else { Vec::new() };
    for entries in [entries, repeated] {
        assert_eq!(nodes[to].merge(entries), BTreeMap::new());
    }
}

fn run(g: &mut Gen) {
    let mut nodes = ["a", "b", "c"].map(Server::node);
    for _ in 0..10 + below(g, 30) {
        let at = below(g, nodes.len());
        match below(g, 10) {
            0..=4 => commit(g, &mut nodes[at]),
            5..=7 => {
                let from = (at + 1 + below(g, nodes.len() - 1)) % nodes.len();
                pull(g, &mut nodes, at, from);
            }
            8 => {
                let seconds = 1 + below(g, 15) as i64;
                nodes[at].wait(seconds * SECOND);
            }
            _ => nodes[at].restart(),
        }
    }
    // All leases and expiries end: the latter by the clock of each node (SR5). Everybody gets everything.
    for _ in 0..2 * nodes.len() {
        nodes.iter_mut().for_each(|node| node.wait(100 * SECOND));
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].entries_for(&nodes[to], 1000);
                assert_eq!(nodes[to].merge(entries), BTreeMap::new());
            }
        }
    }
    let clock = nodes[0].store.clock();
    let of_first = records(&nodes[0]);
    for node in &nodes[1..] {
        assert_eq!(node.store.clock(), clock);
        assert_eq!(records(node), of_first);
    }
}

/// A node that forgets early.
fn forgetful(id: &str) -> Server {
    let node = Server::node(id);
    Server::with(node.engine, node.now, |config| {
        config.is_replicated = true;
        config.tombstones = 20 * SECOND;
    })
}

/// A pull, in which the two nodes tell their clocks, and those that they know of others (SR9).
fn pull_and_hear(g: &mut Gen, nodes: &mut [Server], to: usize, from: usize) {
    assert!(nodes[from].store.lacking(&nodes[to].store.clock(), 1).out_of_sync.is_empty(), "SR60");
    if below(g, 3) > 0 {
        pull(g, nodes, to, from);
    }
    hear(nodes, to, from);
    hear(nodes, from, to);
}

fn hear(nodes: &mut [Server], to: usize, from: usize) {
    let clock = nodes[from].store.clock();
    let own = clock.counters();
    let mut heard: Vec<(String, Counters)> = vec![(nodes[from].store.head().node.clone(), own)];
    heard.extend(nodes[from].store.known().map(|(node, counters)| (node.to_owned(), counters.clone())));
    heard.into_iter().for_each(|(node, counters)| nodes[to].step(Event::Remember(node, counters)));
}

/// Deletions, by the keys and incarnations of the records.
type Deletions = BTreeSet<(RecordKey, u64)>;

/// Takes the deletions that a node has seen, and checks that it has seen none of them undone.
fn check_deleted(node: &mut Server, deleted: &mut Deletions) {
    for commit in node.published.drain(..) {
        for ((key, state), change) in commit.changed.iter().zip(&commit.entry.changes) {
            let record = (key.clone(), state.incarnation);
            // SR5: an end by date is one of this node.
            let is_by_date = change.outcome() == proto::Outcome::Expired && state.lease.is_none();
            if state.lifecycle() != proto::State::Deleted {
                assert!(!deleted.contains(&record), "{record:?} came back by {:?}", commit.entry);
            } else if !is_by_date {
                deleted.insert(record);
            }
        }
    }
}

/// How many deleted records were forgotten before the end.
fn run_with_collection(g: &mut Gen) -> usize {
    let mut nodes = ["a", "b", "c"].map(forgetful);
    let mut deleted = [(); 3].map(|()| Deletions::new());
    for (to, from) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        hear(&mut nodes, to, from);
    }
    let mut forgotten = 0;
    for _ in 0..20 + below(g, 40) {
        let at = below(g, nodes.len());
        match below(g, 12) {
            0..=3 => commit(g, &mut nodes[at]),
            4..=7 => {
                let from = (at + 1 + below(g, nodes.len() - 1)) % nodes.len();
                pull_and_hear(g, &mut nodes, at, from);
            }
            8 => nodes[at].restart(),
            _ => {
                // What lists may read is kept for five minutes.
                nodes[at].wait(301 * SECOND);
                let before = nodes[at].store.counts().1;
                let upto = nodes[at].store.revision();
                nodes[at].compact(Some(upto));
                forgotten += before - nodes[at].store.counts().1;
            }
        }
        check_deleted(&mut nodes[at], &mut deleted[at]);
    }
    // SR33: the last node may be lost, with what nobody has of it.
    let is_lost = below(g, 3) == 0;
    if is_lost {
        nodes[0].commit(of([forget("c")])).unwrap();
    }
    let nodes = &mut nodes[..if is_lost { 2 } else { 3 }];
    let deleted = &mut deleted[..nodes.len()];
    for _ in 0..6 {
        nodes.iter_mut().for_each(|node| node.wait(400 * SECOND));
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].entries_for(&nodes[to], 1000);
                assert_eq!(nodes[to].merge(entries), BTreeMap::new());
                hear(nodes, to, from);
            }
        }
        for (node, deleted) in nodes.iter_mut().zip(&mut *deleted) {
            check_deleted(node, deleted);
            let upto = node.store.revision();
            node.compact(Some(upto));
        }
    }
    let all: Deletions = deleted.iter().flatten().cloned().collect();
    let of_first = records(&nodes[0]);
    for node in &*nodes {
        assert_eq!(node.store.counts().1, 0, "all that was deleted is forgotten in the end");
        assert_eq!(records(node), of_first);
        assert_eq!(node.store.clock(), nodes[0].store.clock());
    }
    let came_back =
        |(key, state): &(&RecordKey, &RecordState)| all.contains(&((*key).clone(), state.incarnation));
    assert_eq!(of_first.iter().find(came_back), None);
    forgotten
}

#[test]
fn sr26_nothing_that_was_deleted_comes_back_and_all_of_it_is_forgotten() {
    let runs = std::env::var("NODES").map_or(400, |runs| runs.parse().unwrap());
    let mut forgotten = 0;
    for number in 0..runs {
        let mut g = Gen::from_size_and_seed(10, number);
        let run = std::panic::AssertUnwindSafe(|| run_with_collection(&mut g));
        forgotten += std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("history {number}"));
    }
    assert!(forgotten > 0, "records are forgotten while entries are on their way");
}

#[test]
fn sr35_sr43_nodes_that_applied_the_same_entries_hold_equal_states() {
    let runs = std::env::var("NODES").map_or(1_000, |runs| runs.parse().unwrap());
    for number in 0..runs {
        let mut g = Gen::from_size_and_seed(10, number);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut g)));
        assert!(run.is_ok(), "history {number}");
    }
}
