//! Variants of one name that nodes commit apart from each other, and that match the same clients (SR47).

use std::collections::BTreeMap;

use xds_store::backup::{Backup, History};
use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::restore::{NewIds, restore};
use xds_store::store::Event;

use crate::driven::*;

pub(crate) fn nodes() -> [Server; 3] {
    ["a", "b", "c"].map(Server::node)
}

/// Lets all nodes take from all others, in this order, until nobody lacks anything.
pub(crate) fn exchange(nodes: &mut [&mut Server]) {
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for to in 0..nodes.len() {
            for from in (0..nodes.len()).filter(|from| *from != to) {
                let entries = nodes[from].entries_for(&*nodes[to], 1);
                has_changed |= !entries.is_empty();
                assert_eq!(nodes[to].merge(entries), BTreeMap::new());
            }
        }
    }
}

/// Restarts each node. What clients get is equal at all, before and after.
fn assert_served(nodes: &mut [&mut Server], expected: &[&str]) {
    for node in nodes {
        assert_eq!(node.clients(), expected, "{}", node.store.head().node);
        node.restart();
        assert_eq!(node.clients(), expected, "after a restart");
    }
}

/// The withheld variant is not among the records that clients get, and stays in the store.
#[test]
fn sr47_of_variants_that_overlap_the_one_of_the_higher_generation_is_served_at_all_nodes() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put_when("x", "env=prod", "of a")])).unwrap();
    b.commit(of([put_when("x", "env in (prod,test)", "1")])).unwrap();
    b.commit(of([put_when("x", "env in (prod,test)", "of b")])).unwrap();
    // Each node has its own order.
    assert!(c.merge(a.entries_for(&c, 9)).is_empty() && c.clients() == ["x [env=prod] of a"]);
    exchange(&mut [&mut c, &mut b, &mut a]);
    let kept = "x [env in (prod,test)] of b";
    assert_served(&mut [&mut a, &mut b, &mut c], &[kept]);
    for node in [&a, &b, &c] {
        let found = &mut |finding| panic!("{finding:?}");
        assert!(check_store(&*node.engine.view().unwrap(), found).is_ok());
    }
    assert!(a.record("x", "env=prod").is_some() && b.record("x", "env=prod").is_some());
    // SR47: the order follows from the states, so a change may turn it.
    for payload in ["2", "3"] {
        a.commit(of([put_when("x", "env=prod", payload)])).unwrap();
    }
    assert_eq!(a.clients(), ["x [env=prod] 3"]);
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_served(&mut [&mut a, &mut b, &mut c], &["x [env=prod] 3"]);
}

/// The one in the middle is served alone if its digest is the smallest.
#[test]
fn sr47_of_one_generation_the_smaller_digest_counts_and_disjoint_variants_are_all_served() {
    let mut found = [0, 0];
    for number in 0..12 {
        let [mut a, mut b, mut c] = nodes();
        let middle = format!("of b {number}");
        a.commit(of([put_when("x", "env in (1,2)", "of a"), put_when("x", "env=4", "4")])).unwrap();
        b.commit(of([put_when("x", "env in (2,3)", &middle)])).unwrap();
        c.commit(of([put_when("x", "env=3", "of c"), put_when("x", "env=5", "5")])).unwrap();
        exchange(&mut [&mut a, &mut b, &mut c]);
        let digest = |when| a.record("x", when).unwrap().digest;
        let (of_b, others) = (digest("env in (2,3)"), [digest("env in (1,2)"), digest("env=3")]);
        let is_alone = others.iter().all(|other| of_b < *other);
        found[usize::from(is_alone)] += 1;
        let middle = format!("x [env in (2,3)] {middle}");
        let mut expected =
            if is_alone { vec![&*middle] } else { vec!["x [env in (1,2)] of a", "x [env=3] of c"] };
        expected.extend(["x [env=4] 4", "x [env=5] 5"]);
        assert_served(&mut [&mut a, &mut b, &mut c], &expected);
    }
    assert!(found[0] > 0 && found[1] > 0, "the contents of the test have such digests");
}

/// The deletion of the one that is served is a repair at any node.
#[test]
fn sr47_when_the_served_variant_goes_the_withheld_one_is_served() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put("x", "for all")])).unwrap();
    a.commit(of([put("x", "for all 2")])).unwrap();
    b.commit(of([put_when("x", "env=prod", "of b")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_served(&mut [&mut a, &mut b, &mut c], &["x [] for all 2"]);
    c.commit(of([delete("x")])).unwrap();
    assert_eq!(c.clients(), ["x [env=prod] of b"]);
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_served(&mut [&mut a, &mut b, &mut c], &["x [env=prod] of b"]);
    // And nothing is left of the overlap.
    b.commit(of([put_when("x", "env=test", "of b, too")])).unwrap();
    b.commit(of([delete_when("x", "env=prod")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_served(&mut [&mut a, &mut b, &mut c], &["x [env=test] of b, too"]);
}

#[test]
fn sr47_st10_commits_of_a_node_repair_an_overlap_and_add_none() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put_when("x", "env=1", "of a"), put_when("x", "env=2", "2")])).unwrap();
    b.commit(of([put_when("x", "env in (1, 3)", "of b")])).unwrap();
    exchange(&mut [&mut a, &mut b]);
    let served = a.clients();
    // Not beside the one that is served, nor beside the one that is not.
    for when in ["env=1,zone=1", "env in (1, 4)", "env in (3, 4)", "env in (2, 4)"] {
        assert_eq!(a.code(of([put_when("x", when, "1")])), RefusalCode::FailedPrecondition, "{when}");
    }
    assert_eq!(a.clients(), served);
    a.commit(of([put_when("x", "env=4", "4")])).unwrap();
    a.commit(of([put_when("x", "env=2", "new")])).unwrap();
    // A variant that is replaced by a smaller one.
    a.commit(of([delete_when("x", "env in (1, 3)"), put_when("x", "env=3", "3")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    let expected = ["x [env=1] of a", "x [env=2] new", "x [env=3] 3", "x [env=4] 4"];
    assert_served(&mut [&mut a, &mut b, &mut c], &expected);
}

/// T12 is a rule of all variants of a name, so two nodes can break it together, too.
#[test]
fn sr47_variants_that_name_other_keys_are_withheld_like_those_that_overlap() {
    let [mut a, mut b, mut c] = nodes();
    a.commit(of([put_when("x", "env=1", "1")])).unwrap();
    a.commit(of([put_when("x", "env=1", "of a")])).unwrap();
    b.commit(of([put_when("x", "zone=1", "of b")])).unwrap();
    exchange(&mut [&mut a, &mut b, &mut c]);
    assert_served(&mut [&mut a, &mut b, &mut c], &["x [env=1] of a"]);
}

/// ST19: the others compute the same when they catch up.
#[test]
fn sr47_st19_another_server_of_the_store_serves_the_same() {
    let [mut a, mut b, _] = nodes();
    a.commit(of([put_when("x", "env=1", "of a")])).unwrap();
    let mut other = Server::with(a.engine.clone(), a.now, |config| {
        (config.server, config.is_replicated) = (2, true);
    });
    b.commit(of([put("x", "1")])).unwrap();
    b.commit(of([put("x", "of b")])).unwrap();
    a.merge(b.entries_for(&a, 9));
    other.step(Event::Changed);
    other.step(Event::Due);
    assert_served(&mut [&mut a, &mut other], &["x [] of b"]);
    a.commit(of([delete("x")])).unwrap();
    other.step(Event::Changed);
    other.commit(of([put("y", "1")])).unwrap();
    assert_eq!(other.clients(), ["x [env=1] of a", "y [] 1"]);
}

#[test]
fn sr47_a_restored_store_serves_the_same() {
    let [mut a, mut b, _] = nodes();
    a.commit(of([put_when("x", "env=1", "of a")])).unwrap();
    b.commit(of([put("x", "1")])).unwrap();
    b.commit(of([put("x", "of b")])).unwrap();
    a.merge(b.entries_for(&a, 9));
    let backup = Backup::new(a.engine.view().unwrap(), History::LeftOut).unwrap();
    let bytes: Vec<u8> = backup.flat_map(|part| part.unwrap().data).collect();
    let mut engine = MemoryEngine::default();
    let ids = NewIds { node: "new".into(), cluster: None };
    restore(&mut std::io::Cursor::new(bytes), &mut engine, &ids, &mut |_| {}).unwrap();
    let mut restored = Server::on(engine, 1, a.now);
    assert_served(&mut [&mut a, &mut restored], &["x [] of b"]);
}
