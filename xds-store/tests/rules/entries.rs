//! The entries that other nodes get of a store.

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::{Chain, Clock, Position};
use xds_store::engine::Engine as _;
use xds_store::entry::Foreign;
use xds_store::read::{ReadError, Reads};
use xds_store::record::PROBE_TYPE;

use crate::driven::migrating::{in_phase, put_new};
use crate::driven::*;
use xds_store::phase::Phase;

fn probe(payload: &str) -> proto::Change {
    let mut probe = put("probe", payload);
    probe.key.as_mut().unwrap().type_url = PROBE_TYPE.into();
    probe
}

#[test]
fn sr4_sr5_sr8_commits_that_others_get_are_numbered_and_chained_and_no_others_are() {
    let mut server = in_phase(Phase::F2);
    let first = server.published.len();
    server.commit(of([put("a", "1"), put_when("b", "env=prod", "1")])).unwrap();
    server.commit(of([probe("1")])).unwrap();
    server.commit(of([put("a", "1")])).unwrap();
    server.code(of([put_new("a", "not convertible")]));
    server.commit(of([put("a", "2"), probe("2")])).unwrap();
    server.commit(of([delete("b")])).unwrap();
    server.commit(of([delete("a")])).unwrap();
    let (mut chain, mut counter) = (Chain::default(), 0);
    for commit in &server.published[first..] {
        let is_probe = |(key, _): &(xds_store::key::RecordKey, _)| key.type_url().as_str() == PROBE_TYPE;
        let states: Vec<_> = commit
            .changed
            .iter()
            .filter(|record| !is_probe(record))
            .map(|(_, state)| state.clone())
            .collect();
        if states.is_empty() {
            assert_eq!((commit.entry.counter, commit.entry.chain.len()), (0, 0));
            continue;
        }
        counter += 1;
        chain = chain.after("node", counter, &states);
        assert_eq!((commit.entry.counter, &commit.entry.chain), (counter, &chain.to_wire()));
    }
    let head = server.store.head();
    assert_eq!((counter, head.counter, &head.chain), (3, 3, &chain.to_wire()));
}

fn clock_at(positions: &[(&str, u64, Chain)]) -> Clock {
    let mut clock = Clock::default();
    positions
        .iter()
        .for_each(|(id, counter, chain)| clock.set(id, Position { counter: *counter, chain: *chain }));
    clock
}

fn chain(server: &Server, revision: u64) -> Chain {
    let commit = server.published.iter().find(|commit| commit.revision == revision).unwrap();
    Chain::from_wire(&commit.entry.chain).unwrap()
}

/// The store as a process that starts has it.
fn restarted(server: &Server) -> Server {
    let mut restarted = Server::on(server.engine.clone(), 1, server.now);
    restarted.published.clone_from(&server.published);
    restarted
}

#[test]
fn sr11_sr12_a_node_lacks_the_entries_above_its_clock_the_first_ones_first() {
    let mut server = Server::new();
    for payload in ["1", "2", "3"] {
        server.commit(of([put("a", payload)])).unwrap();
        server.commit(of([probe(payload)])).unwrap();
    }
    for server in [&restarted(&server), &server] {
        let at = |counter, revision| {
            clock_at(&[("node", counter, chain(server, revision)), ("other", 9, Chain::default())])
        };
        let lacks = |clock: &Clock, limit| {
            let lacking = server.store.lacking(clock, limit);
            assert!(lacking.out_of_sync.is_empty() && lacking.forked.is_empty(), "{lacking:?}");
            (lacking.revisions, lacking.is_behind)
        };
        assert_eq!(lacks(&Clock::default(), 9), (vec![1, 3, 5], false));
        assert_eq!(lacks(&Clock::default(), 2), (vec![1, 3], true));
        assert_eq!(lacks(&at(1, 1), 9), (vec![3, 5], false));
        assert_eq!(lacks(&at(3, 5), 9), (vec![], false));
        // One that knows more lacks nothing of it.
        assert_eq!(lacks(&clock_at(&[("node", 4, Chain::default())]), 9), (vec![], false));
        assert_eq!(server.store.clock(), clock_at(&[("node", 3, chain(server, 5))]));
    }
}

#[test]
fn sr5_sr6_sr7_an_entry_is_read_as_its_origin_wrote_it() {
    let mut server = Server::new();
    server.commit(of([put("a", "1"), probe("1"), put("b", "1")])).unwrap();
    server.commit(of([delete("b")])).unwrap();
    let restarted = restarted(&server);
    let view = restarted.engine.view().unwrap();
    let reads = Reads::new(&*view).unwrap();
    let mut chain = Chain::default();
    for (revision, names) in [(1, vec!["a", "b"]), (2, vec!["b"])] {
        let Foreign::Entry(entry) = reads.foreign(revision).unwrap() else { panic!("it is no skip") };
        let name = |state: &proto::RecordState| state.key.clone().unwrap().name;
        assert_eq!(entry.states.iter().map(name).collect::<Vec<_>>(), names);
        chain = chain.after("node", revision, &entry.states);
        assert_eq!((entry.counter, &*entry.identity, entry.chain), (revision, "test", chain.to_wire()));
    }
}

#[test]
fn sr8_other_chains_at_a_counter_are_two_nodes_with_one_id() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    server.commit(of([put("a", "2")])).unwrap();
    for (counter, other) in [(1, 2), (2, 1)] {
        let lacking = server.store.lacking(&clock_at(&[("node", counter, chain(&server, other))]), 9);
        assert_eq!((lacking.forked, lacking.revisions), (vec!["node".to_owned()], vec![]));
    }
}

#[test]
fn sr18_a_clock_below_the_floor_of_an_origin_is_out_of_sync_and_one_at_it_is_served() {
    let mut server = Server::new();
    for payload in ["1", "2", "3"] {
        server.commit(of([put("a", payload)])).unwrap();
    }
    server.wait(10 * 60 * SECOND);
    assert_eq!(server.compact(Some(2)), 2);
    for server in [&restarted(&server), &server] {
        let lacking = |counter, revision| {
            server.store.lacking(&clock_at(&[("node", counter, chain(server, revision))]), 9)
        };
        for lacking in [lacking(1, 1), server.store.lacking(&Clock::default(), 9)] {
            let [of] = &lacking.out_of_sync[..] else { panic!("{lacking:?}") };
            assert_eq!((&*of.origin, of.floor, of.must_replace), ("node", 2, false));
        }
        assert_eq!((lacking(2, 2).revisions, lacking(2, 2).out_of_sync), (vec![3], vec![]));
        assert_eq!(lacking(2, 1).forked, ["node"]);
    }
}

/// A peer may pull while a compaction is durable that the machine has not heard of.
#[test]
fn sr18_entries_that_are_forgotten_are_no_damage() {
    let mut server = Server::new();
    for payload in ["1", "2", "3"] {
        server.commit(of([put("a", payload)])).unwrap();
    }
    server.wait(10 * 60 * SECOND);
    assert_eq!(server.compact(Some(2)), 2);
    let view = server.engine.view().unwrap();
    let reads = Reads::new(&*view).unwrap();
    assert!(matches!(reads.foreign(2), Err(ReadError::Compacted { floor: 2 })));
    assert!(reads.foreign(3).is_ok());
}
