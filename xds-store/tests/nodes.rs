//! Random histories of several nodes that exchange entries: equal clocks are equal states (SR35, SR43),
//! whatever was committed where, and in which order entries came.
//!
//! `NODES=100000` sets how many.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use quickcheck::Gen;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine as _;
use xds_store::key::RecordKey;
use xds_store::merge::merge;
use xds_store::record::RecordState;
use xds_store::store::{Config, Store};

use driven::*;

#[expect(dead_code, reason = "other tests use the rest")]
mod driven;

/// One of several nodes, and what it had before.
struct Node {
    server: Server,
    /// The states that it published, as the merge of each with the one before has to be.
    states: BTreeMap<RecordKey, RecordState>,
    seen: usize,
}

impl Node {
    fn new(id: &str) -> Self {
        Self { server: Server::node(id), states: BTreeMap::new(), seen: 0 }
    }

    /// A state that a commit writes comes before the one that it replaces: other nodes merge the two.
    fn check_published(&mut self) {
        for commit in &self.server.published[self.seen..] {
            for ((key, state), change) in commit.changed.iter().zip(&commit.entry.changes) {
                // SR5: an end by date is one of this node alone.
                if change.outcome() == proto::Outcome::Expired && state.lease.is_none() {
                    continue;
                }
                if let Some(before) = self.states.insert(key.clone(), state.clone()) {
                    assert_eq!(merge(&before, state), *state, "of {:?}: {before:#?}", commit.entry);
                }
            }
        }
        self.seen = self.server.published.len();
    }

    fn records(&self) -> BTreeMap<RecordKey, RecordState> {
        let mut records = BTreeMap::new();
        let view = self.server.engine.view().unwrap();
        let config = Config::new(self.server.engine.limits(), 9);
        Store::load(&*view, config, self.server.now, |loaded| {
            records.insert(loaded.key, loaded.state);
        })
        .unwrap();
        records
    }
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

fn commit(g: &mut Gen, node: &mut Node) {
    let mut changes = BTreeMap::new();
    for _ in 0..=below(g, 3) {
        let change = a_change(g);
        changes.insert(change.key.clone().unwrap().name, change);
    }
    let owner = pick(g, &["", "", "team", "shop"]).to_string();
    let take_over = below(g, 3) == 0;
    let request = proto::CommitRequest { owner, take_over, ..of(changes.into_values().collect::<Vec<_>>()) };
    match node.server.commit(request) {
        Ok(_) => {}
        Err(refused) => assert!(
            [RefusalCode::FailedPrecondition, RefusalCode::InvalidArgument].contains(&refused.code),
            "{refused:?}"
        ),
    }
}

/// Lets one node take some of what another one has, perhaps a part of it twice.
fn pull(g: &mut Gen, nodes: &mut [Node], to: usize, from: usize) {
    let limit = 1 + below(g, 4);
    let entries = nodes[from].server.entries_for(&nodes[to].server, limit);
    let repeated = if below(g, 4) == 0 { entries.clone() } else { Vec::new() };
    for entries in [entries, repeated] {
        assert_eq!(nodes[to].server.merge(entries), BTreeMap::new());
    }
}

fn run(g: &mut Gen) {
    let mut nodes = ["a", "b", "c"].map(Node::new);
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
                nodes[at].server.wait(seconds * SECOND);
            }
            _ => {
                let node = &mut nodes[at];
                let published = std::mem::take(&mut node.server.published);
                let (engine, now) = (node.server.engine.clone(), node.server.now);
                node.server = Server::with(engine, now, |config| config.is_replicated = true);
                node.server.published = published;
            }
        }
        nodes[at].check_published();
    }
    // All leases and expiries end: the latter by the clock of each node (SR5). Everybody gets everything.
    for _ in 0..2 * nodes.len() {
        nodes.iter_mut().for_each(|node| node.server.wait(100 * SECOND));
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].server.entries_for(&nodes[to].server, 1000);
                assert_eq!(nodes[to].server.merge(entries), BTreeMap::new());
            }
            nodes[to].check_published();
        }
    }
    let clock = nodes[0].server.store.clock();
    let records = nodes[0].records();
    for node in &nodes[1..] {
        assert_eq!(node.server.store.clock(), clock);
        assert_eq!(node.records(), records);
    }
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
