//! Deletions in progress that another node began, or whose last blocker another node removed (SG41).

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::store::{Event, Ticket};

use super::nodes::remember;
use crate::driven::envoy::*;
use crate::driven::*;

fn pull(to: &mut Server, from: &Server) {
    assert_eq!(to.merge(from.entries_for(to, 100)), BTreeMap::new());
}

fn lifecycle(node: &Server) -> proto::State {
    node.state(&cluster_key("x")).unwrap().lifecycle()
}

/// A node that begins to delete a cluster, and another one that removes the routes to it before it knows that, and
/// then takes what the first one did.
fn crossed(maker: &str, other: &str) -> [Server; 2] {
    let [mut maker, mut other] = [maker, other].map(Server::node);
    maker.commit(of([cluster("x"), routes("r", &["x"])])).unwrap();
    pull(&mut other, &maker);
    assert_eq!(maker.outcome(of([drain_at(cluster_key("x"))])), proto::Outcome::Deleting);
    other.commit(of([delete_at(routes_key("r"))])).unwrap();
    pull(&mut other, &maker);
    other.wait(600 * SECOND);
    assert_eq!(lifecycle(&other), proto::State::Deleting, "it is for the first one");
    [maker, other]
}

#[test]
fn sg41_the_node_that_began_a_deletion_finishes_it_when_another_one_removed_the_last_reference() {
    for restarts in [false, true] {
        let [mut a, mut b] = crossed("a", "b");
        if restarts {
            // It has the entry, and comes no further.
            a.fates = [Fate::Written, Fate::Unavailable].into();
        }
        pull(&mut a, &b);
        if restarts {
            assert_eq!(lifecycle(&a), proto::State::Deleting);
            a.restart();
            a.wait(0);
        }
        assert_eq!((lifecycle(&a), a.has_client(&cluster_key("x"))), (proto::State::Deleted, false));
        pull(&mut b, &a);
        assert_eq!(a.state(&cluster_key("x")), b.state(&cluster_key("x")));
        // Nothing is left to do.
        let revisions = [a.store.revision(), b.store.revision()];
        a.wait(600 * SECOND);
        b.wait(600 * SECOND);
        assert_eq!([a.store.revision(), b.store.revision()], revisions);
        assert_eq!(b.outcome(of([cluster("x")])), proto::Outcome::Created);
    }
}

#[test]
fn sg41_two_nodes_that_began_one_deletion_both_finish_it_and_have_one_state() {
    let [mut a, mut b] = ["a", "b"].map(Server::node);
    a.commit(of([cluster("x"), routes("r", &["x"]), routes("s", &["x"])])).unwrap();
    pull(&mut b, &a);
    a.commit(of([drain_at(cluster_key("x")), delete_at(routes_key("r"))])).unwrap();
    b.commit(of([drain_at(cluster_key("x")), delete_at(routes_key("s"))])).unwrap();
    let before = a.entries_for(&b, 9);
    pull(&mut a, &b);
    assert_eq!(b.merge(before), BTreeMap::new());
    assert_eq!([lifecycle(&a), lifecycle(&b)], [proto::State::Deleted; 2]);
    pull(&mut a, &b);
    pull(&mut b, &a);
    assert_eq!(a.state(&cluster_key("x")), b.state(&cluster_key("x")));
    assert_eq!(a.store.clock(), b.store.clock());
}

#[test]
fn sg41_where_the_entry_that_began_a_deletion_is_not_known_any_node_finishes_it() {
    let mut a = Server::node("a");
    a.commit(of([cluster("x"), routes("r", &["x"])])).unwrap();
    a.commit(of([drain_at(cluster_key("x"))])).unwrap();
    // A state of a comparison, as one of a snapshot, comes without its entry.
    let mut b = Server::node("b");
    b.step(Event::Mend(Ticket(0), vec![a.state(&cluster_key("x")).unwrap()], None));
    assert_eq!(b.merged.pop().unwrap().unwrap().mended, 1);
    assert_eq!(lifecycle(&b), proto::State::Deleted);
}

#[test]
fn sg41_what_is_still_referred_to_is_not_finished() {
    let [mut a, mut b] = ["a", "b"].map(Server::node);
    a.commit(of([cluster("x"), routes("r", &["x"]), routes("s", &["x"])])).unwrap();
    pull(&mut b, &a);
    a.commit(of([drain_at(cluster_key("x"))])).unwrap();
    b.commit(of([delete_at(routes_key("r"))])).unwrap();
    pull(&mut a, &b);
    a.wait(600 * SECOND);
    assert_eq!(lifecycle(&a), proto::State::Deleting);
    b.commit(of([routes("s", &[])])).unwrap();
    pull(&mut a, &b);
    a.wait(SECOND);
    assert_eq!(lifecycle(&a), proto::State::Deleted);
}

#[test]
fn sg41_the_smallest_node_finishes_the_deletions_of_a_forgotten_one() {
    // It knows of the deletion before, or gets all at once.
    for knows in [true, false] {
        let [c, mut b] = crossed("c", "b");
        let mut a = Server::node("a");
        if knows {
            pull(&mut a, &b);
        }
        for (node, others) in [(&mut a, ["b", "c"]), (&mut b, ["a", "c"])] {
            others.iter().for_each(|other| remember(node, other, &[]));
            node.wait(600 * SECOND);
        }
        assert_eq!(knows.then(|| lifecycle(&a)), knows.then_some(proto::State::Deleting), "it may come back");
        b.commit(of([forget(&c.store.head().node)])).unwrap();
        b.wait(600 * SECOND);
        assert_eq!(lifecycle(&b), proto::State::Deleting, "it is for the smallest one");
        pull(&mut a, &b);
        a.wait(SECOND);
        assert_eq!(lifecycle(&a), proto::State::Deleted);
        pull(&mut b, &a);
        assert_eq!(a.state(&cluster_key("x")), b.state(&cluster_key("x")));
    }
}
