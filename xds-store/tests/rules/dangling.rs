//! A deletion and a new reference to the deleted record, made at two nodes at once (SR48, SG36).

use std::collections::BTreeMap;

use xds_proto::xds::store::v1::conflict::Kind;
use xds_store::engine::Engine;
use xds_store::read::{ConflictsQuery, Reads};

use crate::driven::envoy::*;
use crate::driven::*;

fn pull(to: &mut Server, from: &Server) {
    assert_eq!(to.merge(from.entries_for(to, 100)), BTreeMap::new());
}

fn dangling(node: &Server) -> usize {
    let view = node.engine.view().unwrap();
    let query = ConflictsQuery { before: None, may_read: &|_| true, limit: 99, limit_bytes: 1 << 20 };
    let page = Reads::new(&*view).unwrap().conflicts(query).unwrap();
    page.conflicts.iter().filter(|conflict| conflict.kind() == Kind::Dangling).count()
}

/// Two nodes with a cluster that the one deletes, while the other one makes routes to it.
fn crossed() -> [Server; 2] {
    let [mut a, mut b] = ["a", "b"].map(Server::node);
    a.commit(of([cluster("x")])).unwrap();
    pull(&mut b, &a);
    a.commit(of([delete_at(cluster_key("x"))])).unwrap();
    b.commit(of([routes("r", &["x"])])).unwrap();
    pull(&mut a, &b);
    pull(&mut b, &a);
    [a, b]
}

fn has(node: &mut Server) -> bool {
    let has = node.has_client(&cluster_key("x"));
    node.restart();
    assert_eq!(node.has_client(&cluster_key("x")), has, "after a restart");
    has
}

#[test]
fn sr48_sg36_a_deleted_record_that_another_one_refers_to_is_served_until_that_ends() {
    let [mut a, mut b] = crossed();
    for node in [&mut a, &mut b] {
        assert!(has(node));
        assert_eq!(dangling(node), 1);
        assert_eq!(node.store.counts().1, 1, "it stays deleted");
    }
    // Nothing but its end, or another record of the name.
    b.commit(of([delete_at(routes_key("r"))])).unwrap();
    pull(&mut a, &b);
    assert!(!has(&mut a) && !has(&mut b));
    let [mut a, mut b] = crossed();
    a.commit(of([cluster("x")])).unwrap();
    pull(&mut b, &a);
    assert!(has(&mut a) && has(&mut b));
    a.commit(of([routes("r", &[])])).unwrap();
    a.commit(of([delete_at(cluster_key("x"))])).unwrap();
    assert!(!has(&mut a));
}

#[test]
fn sr48_a_deleted_record_that_is_served_is_not_forgotten() {
    let [mut a, mut b] = crossed();
    let two_days = 48 * 3600 * SECOND;
    for node in [&mut a, &mut b] {
        let clock = node.store.clock();
        let counters = clock.counters();
        let other = if node.store.head().node == "a" { "b" } else { "a" };
        node.step(xds_store::store::Event::Remember(other.into(), counters));
        for _ in 0..48 {
            node.wait(two_days / 48);
        }
        node.compact(Some(node.store.revision()));
        assert!(has(node) && node.store.counts().1 == 1, "{:?}", node.store.counts());
    }
    b.commit(of([delete_at(routes_key("r"))])).unwrap();
    b.wait(600 * SECOND);
    b.compact(Some(2));
    assert!(!has(&mut b));
}
