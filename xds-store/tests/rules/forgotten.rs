//! Nodes that will not come back.

use std::collections::BTreeMap;

use xds_core::Access;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, WriteAccess};

use super::nodes::{HOUR, known, remember};
use crate::driven::*;

fn forgotten(server: &Server) -> Vec<&str> {
    server.store.forgotten().collect()
}

/// Lets a node take what another one has.
fn pull(to: &mut Server, from: &Server) {
    assert_eq!(to.merge(from.entries_for(to, 100)), BTreeMap::new());
}

#[test]
fn sr33_the_record_of_a_forgotten_node_is_for_all_nodes_and_stays() {
    let (mut a, mut b) = (Server::node("a"), Server::node("b"));
    a.commit(of([forget("x"), forget("y")])).unwrap();
    pull(&mut b, &a);
    for server in [&mut a, &mut b] {
        assert_eq!(forgotten(server), ["x", "y"]);
        server.restart();
        assert_eq!(forgotten(server), ["x", "y"]);
    }
    for act in [
        proto::change::Act::Delete(proto::Delete::default()),
        proto::change::Act::Touch(proto::Touch {}),
        proto::change::Act::Quarantine(proto::Quarantine::default()),
    ] {
        assert_eq!(a.code(of([forgotten_node("x", act)])), RefusalCode::InvalidArgument);
    }
    let changed = |change: fn(&mut proto::Put)| {
        let mut forget = forget("z");
        if let Some(proto::change::Act::Put(put)) = &mut forget.act {
            change(put);
        }
        forget
    };
    let changes = [
        changed(|put| put.lease = Some(prost_types::Duration { seconds: 60, nanos: 0 })),
        changed(|put| put.expires_at = Some(prost_types::Timestamp { seconds: 6000, nanos: 0 })),
        changed(|put| put.owners.push(proto::ResourceOwner::default())),
        changed(|put| put.content.as_mut().unwrap().payload = "\u{1}?".into()),
    ];
    for change in changes {
        assert_eq!(a.code(of([change.clone()])), RefusalCode::InvalidArgument, "{change:?}");
    }
    let owned = proto::CommitRequest { owner: "team".into(), ..of([forget("z")]) };
    assert_eq!(a.code(owned), RefusalCode::InvalidArgument);
}

#[test]
fn sr33_st55_to_forget_a_node_needs_the_right_to_operate_and_no_node_forgets_itself() {
    let mut a = Server::node("a");
    let access = |configuration| {
        let (records, read) = (Access::everything(), Access::everything());
        WriteAccess { records, configuration, read }
    };
    let refused = a.commit_with(&access(false), of([forget("x")])).unwrap_err();
    assert_eq!(refused.code, RefusalCode::PermissionDenied);
    assert_eq!(
        a.commit_with(&access(true), of([forget("a")])).unwrap_err().code,
        RefusalCode::FailedPrecondition
    );
    a.commit_with(&access(true), of([forget("x")])).unwrap();
    assert_eq!(forgotten(&a), ["x"]);
}

#[test]
fn sr33_sr60_a_forgotten_node_holds_nothing_back_once_all_others_know_it() {
    let mut a = Server::node("a");
    a.commit(of([put("r", "1")])).unwrap();
    a.commit(of([delete("r")])).unwrap();
    // The entries of the lost node never come.
    remember(&mut a, "x", &[("a", 1), ("x", 5)]);
    remember(&mut a, "b", &[("a", 2)]);
    a.wait(23 * HOUR);
    assert_eq!(a.compact(Some(2)), 1);
    a.commit(of([forget("x")])).unwrap();
    assert_eq!(known(&a).iter().map(|(node, _)| &**node).collect::<Vec<_>>(), ["b"]);
    assert_eq!(a.compact(Some(2)), 2, "the log is kept for nodes that may come back");
    // It may have told its writes to the other node, which does not know yet that it is forgotten.
    a.wait(25 * HOUR);
    a.restart();
    a.compact(None);
    assert_eq!(a.store.counts().1, 1);
    remember(&mut a, "x", &[("a", 1), ("x", 6)]);
    remember(&mut a, "b", &[("a", 3)]);
    a.compact(None);
    assert_eq!(a.store.counts().1, 0);
    // Nothing of it is left, and an old word of it brings nothing back.
    remember(&mut a, "x", &[("a", 1), ("x", 6)]);
    let mut found = 0;
    let count = &mut |_: &[u8], _| {
        found += 1;
        std::ops::ControlFlow::Continue(())
    };
    xds_store::engine::Engine::view(&a.engine).unwrap().range(b"p", b"q", count).unwrap();
    assert_eq!(found, 1);
}

#[test]
fn sr33_two_lost_nodes_do_not_wait_for_each_other() {
    let mut a = Server::node("a");
    a.commit(of([put("r", "1")])).unwrap();
    a.commit(of([delete("r")])).unwrap();
    remember(&mut a, "x", &[("x", 5)]);
    remember(&mut a, "y", &[("y", 5)]);
    a.commit(of([forget("x"), forget("y")])).unwrap();
    a.wait(25 * HOUR);
    a.compact(Some(2));
    assert_eq!((a.store.counts().1, known(&a)), (0, vec![]));
}

/// Three nodes that know each other, and the lease of the last one.
fn with_lease() -> [Server; 3] {
    let mut nodes = ["a", "b", "c"].map(Server::node);
    let [a, b, c] = &mut nodes;
    c.now += HOUR;
    c.commit(of([put_lease("leased", "1", 60)])).unwrap();
    pull(a, c);
    pull(b, c);
    remember(a, "b", &[]);
    remember(b, "a", &[]);
    for server in [a, b] {
        remember(server, "c", &[("c", 1)]);
        server.wait(600 * SECOND);
        assert!(server.record("leased", "").is_some(), "ST39");
    }
    nodes
}

#[test]
fn sr33_st39_the_smallest_node_ends_the_leases_of_a_forgotten_one() {
    let [mut a, mut b, _] = with_lease();
    b.commit(of([forget("c")])).unwrap();
    pull(&mut a, &b);
    for server in [&mut a, &mut b] {
        server.wait(59 * SECOND);
        assert!(server.record("leased", "").is_some(), "it starts again");
    }
    // ST40: with the process, too.
    a.restart();
    a.wait(59 * SECOND);
    assert!(a.record("leased", "").is_some());
    a.wait(2 * SECOND);
    b.wait(3600 * SECOND);
    assert_eq!((a.record("leased", "").is_some(), b.record("leased", "").is_some()), (false, true));
    // Other nodes get this end.
    pull(&mut b, &a);
    assert!(b.record("leased", "").is_none());
}

#[test]
fn sr33_st37_a_lease_that_was_taken_over_is_renewed_at_any_node() {
    for at in 0..2 {
        let [a, mut b, _] = with_lease();
        b.commit(of([forget("c")])).unwrap();
        let mut nodes = [a, b];
        let [a, b] = &mut nodes;
        pull(a, b);
        // By the clock of the lost node, the last renewal is in the future.
        nodes[at].commit(of([touch("leased")])).unwrap();
        let [a, b] = &mut nodes;
        pull(a, b);
        pull(b, a);
        a.wait(40 * SECOND);
        b.wait(40 * SECOND);
        nodes[at].commit(of([touch("leased")])).unwrap();
        let [a, b] = &mut nodes;
        pull(a, b);
        pull(b, a);
        for server in [a, b] {
            server.wait(30 * SECOND);
            assert!(server.record("leased", "").is_some(), "node {at}");
        }
    }
}

#[test]
fn sr33_what_would_be_lost_with_a_node_is_known_before() {
    let (mut a, mut b) = (Server::node("a"), Server::node("b"));
    b.commit(of([put("r", "1")])).unwrap();
    pull(&mut a, &b);
    let of = |server: &Server| {
        let forgetting = server.store.forgetting("b", |_| 0).unwrap();
        (forgetting.counter, forgetting.lacking)
    };
    assert_eq!((a.store.forgetting("z", |_| 0), of(&a)), (None, (1, vec![])));
    remember(&mut a, "b", &[("b", 3)]);
    remember(&mut a, "c", &[("b", 2)]);
    assert_eq!(of(&a), (3, vec!["c".to_owned(), "a".to_owned()]));
    // Regression: for up to a minute a node lacked what it had said that it has.
    let heard = a.store.forgetting("b", |node| if node == "c" { 3 } else { 0 }).unwrap();
    assert_eq!((heard.counter, heard.lacking), (3, vec!["a".to_owned()]));
    remember(&mut a, "c", &[("b", 3)]);
    assert_eq!(of(&a), (3, vec!["a".to_owned()]));
    remember(&mut a, "d", &[]);
    a.commit(of_forget("d")).unwrap();
    assert_eq!(of(&a), (3, vec!["a".to_owned()]));
    assert!(a.store.forgetting("d", |_| 0).is_some());
}

fn of_forget(node: &str) -> proto::CommitRequest {
    of([forget(node)])
}
