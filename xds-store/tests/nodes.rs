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
use xds_store::record::RecordState;
use xds_store::store::{Config, Store};

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

#[test]
fn sr35_sr43_nodes_that_applied_the_same_entries_hold_equal_states() {
    let runs = std::env::var("NODES").map_or(1_000, |runs| runs.parse().unwrap());
    for number in 0..runs {
        let mut g = Gen::from_size_and_seed(10, number);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut g)));
        assert!(run.is_ok(), "history {number}");
    }
}
