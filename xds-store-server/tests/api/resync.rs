//! Nodes that fell behind, that are new, and whose ids others have.

use std::ops::ControlFlow;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use xds_store::engine::{Batch, Value};
use xds_store_server::Condition;

use super::link::Link;
use super::offline::Offline;
use super::peers::{Node, WAIT, converged, engine, node, node_with};
use super::*;

fn offline(node: &str) -> Offline<MemoryEngine> {
    Offline::load(engine(node, "c"))
}

fn copy(of: &MemoryEngine) -> MemoryEngine {
    let mut copy = Batch::default();
    let each = &mut |key: &[u8], value: Value| {
        copy.writes.push((Bytes::copy_from_slice(key), Some(value.bytes)));
        ControlFlow::Continue(())
    };
    of.view().unwrap().range(b"a", b"{", each).unwrap();
    let mut engine = MemoryEngine::default();
    engine.commit(&copy).unwrap();
    engine
}

fn id(node: &Node) -> String {
    node.served.store.standing().borrow().head.node.clone()
}

/// Why the node forgets no revisions.
async fn compaction(node: &Node) -> Status {
    let mut client = node.served.maintenance_as(Some(LOCAL)).await;
    let answered = timeout(WAIT, client.compact(proto::CompactRequest::default()));
    answered.await.expect("a compaction does not wait for the snapshot").unwrap_err()
}

#[tokio::test]
async fn sr19_sr20_a_node_whose_peers_forgot_what_it_lacks_takes_a_snapshot() {
    let (mut a, mut b) = (offline("a"), offline("b"));
    a.commit(vec![put("x", "1"), put("y", "1")]);
    b.pull(&a);
    b.commit(vec![put("unpulled", "1")]);
    a.commit((0..3_000).map(|number| put(&format!("n{number}"), &"x".repeat(1_000))).collect());
    a.commit(vec![put("x", "2")]);
    a.forget_all();
    let (a, b) = (node(a.engine, CI).await, node(b.engine, CI).await);
    a.dial(&[&b]);
    b.dial(&[&a]);
    converged(&[&a, &b], 3_003).await;
    assert_eq!(id(&b), "b");
    b.commit("later", "1").await;
    a.commit("later-too", "1").await;
    converged(&[&a, &b], 3_005).await;
    assert_eq!(b.served.store.standing().borrow().condition, Condition::Serving);
    assert!(a.peers_seen().alarms.is_empty() && b.peers_seen().alarms.is_empty());
}

#[tokio::test]
async fn sr23_a_node_that_gets_no_snapshot_serves_its_records_read_only_until_it_gets_one() {
    let (mut a, mut b) = (offline("a"), offline("b"));
    a.commit(vec![put("x", "1")]);
    b.pull(&a);
    a.commit((0..1_000).map(|number| put(&format!("n{number}"), &"x".repeat(1_000))).collect());
    a.forget_all();
    let a = node(a.engine, CI).await;
    let b = node_with(b.engine, CI, |config| {
        config.peers.as_mut().unwrap().snapshot_patience = Duration::from_millis(300);
    });
    let (b, link) = (b.await, Link::new().await);
    link.lead_to(a.served.address.port());
    link.stall(Some(200_000));
    b.dial_addresses(vec![format!("http://{}", link.address)]);
    let mut standing = b.served.store.standing();
    let mut until = async |condition| {
        let reached = standing.wait_for(|standing| standing.condition == condition);
        timeout(WAIT, reached).await.expect("it comes").unwrap().reason.clone()
    };
    until(Condition::Resyncing).await;
    let mut client = b.served.store().await;
    let request = proto::ListRequest { without_payload: true, ..Default::default() };
    assert_eq!(client.list(request.clone()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(compaction(&b).await.code(), Code::Unavailable);
    let reason = until(Condition::ReadOnly).await;
    assert_eq!(compaction(&b).await.code(), Code::Unavailable);
    assert!(reason.contains("no peer has given it a snapshot for 300ms"), "{reason}");
    assert_eq!(client.list(request).await.unwrap().into_inner().records.len(), 1);
    let commit = proto::CommitRequest { changes: vec![put("early", "1")], ..Default::default() };
    assert_eq!(client.commit(commit).await.unwrap_err().code(), Code::Unavailable);
    link.stall(None);
    until(Condition::Serving).await;
    converged(&[&a, &b], 1_001).await;
}

#[tokio::test]
async fn sr20_a_snapshot_that_is_too_large_is_not_taken_and_an_alarm_says_why() {
    let (mut a, mut b) = (offline("a"), offline("b"));
    a.commit(vec![put("x", "1")]);
    b.pull(&a);
    a.commit((0..20).map(|number| put(&format!("n{number}"), &"x".repeat(1_000))).collect());
    a.forget_all();
    let a = node(a.engine, CI).await;
    let b = node_with(b.engine, CI, |config| config.snapshot_bytes = 10_000).await;
    b.dial(&[&a]);
    alarmed(&b, "is not taken: the snapshot cannot be used: it has more than 10000 bytes").await;
    assert_eq!(b.served.store.standing().borrow().records, 1);
}

/// Waits until an alarm of a node has this text.
async fn alarmed(node: &Node, text: &str) {
    let alarms = || node.served.store.peers().unwrap().alarms.clone();
    let shown = async {
        while !alarms().iter().any(|alarm| alarm.contains(text)) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, shown).await.unwrap_or_else(|_| panic!("{text:?}: {:?}", alarms()));
}

#[tokio::test]
async fn sr21_a_node_that_lacks_forgotten_deletions_revives_none_and_loses_no_creation() {
    let (mut a, mut b) = (offline("a"), offline("b"));
    a.commit(vec![put("x", "1"), put("gone", "1")]);
    b.pull(&a);
    b.commit(vec![put("unpulled", "1"), put("x", "of b"), put("gone", "of b")]);
    a.commit(vec![delete("gone")]);
    a.forget_all();
    assert_eq!(a.store.counts(), (1, 0));
    let (a, b) = (node(a.engine, CI).await, node(b.engine, CI).await);
    a.dial(&[&b]);
    b.dial(&[&a]);
    let records = converged(&[&a, &b], 2).await;
    assert_eq!(records.keys().collect::<Vec<_>>(), ["unpulled", "x"]);
    assert_ne!(id(&b), "b");
    assert_eq!(b.served.store.standing().borrow().head.former_nodes, ["b"]);
    alarmed(&b, "was b and is").await;
    b.commit("later", "1").await;
    converged(&[&a, &b], 3).await;
}

#[tokio::test]
async fn sr20_two_nodes_that_both_fell_behind_take_snapshots_one_after_the_other() {
    let (mut a, mut b) = (offline("a"), offline("b"));
    a.commit(vec![put("x", "1")]);
    b.pull(&a);
    a.commit(vec![put("of-a", "1")]);
    b.commit(vec![put("of-b", "1")]);
    a.forget_all();
    b.forget_all();
    let (a, b) = (node(a.engine, CI).await, node(b.engine, CI).await);
    a.dial(&[&b]);
    b.dial(&[&a]);
    converged(&[&a, &b], 3).await;
    assert_eq!((&*id(&a), &*id(&b)), ("a", "b"));
}

#[tokio::test]
async fn sr24_sr58_a_new_node_waits_for_its_first_snapshot() {
    let mut a = offline("a");
    a.commit(vec![put("x", "1"), put("gone", "1")]);
    a.commit(vec![delete("gone")]);
    a.forget_all();
    let mut joining = MemoryEngine::default();
    let identity = Identity { node: "b".into(), cluster: "c".into(), ..Identity::default() };
    joining.commit(&Store::init_joining(&identity)).unwrap();
    let (a, b) = (node(a.engine, CI).await, node(joining, CI).await);
    assert_eq!(b.served.store.standing().borrow().condition, Condition::Waiting);
    assert!(b.served.store.refuses_commits().is_some());
    let mut client = b.served.store().await;
    let request = proto::CommitRequest { changes: vec![put("early", "1")], ..Default::default() };
    let refused = client.commit(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(compaction(&b).await.code(), Code::Unavailable);
    b.dial(&[&a]);
    converged(&[&a, &b], 1).await;
    b.commit("later", "1").await;
    a.dial(&[&b]);
    converged(&[&a, &b], 2).await;
    assert_eq!(id(&b), "b");
}

#[tokio::test]
async fn sr28_sr31_sr55_nodes_with_one_id_take_new_ones_and_lose_nothing() {
    let mut a = offline("a");
    a.commit(vec![put("x", "1")]);
    let (a, twin, c) =
        (node(copy(&a.engine), CI).await, node(copy(&a.engine), CI).await, node(engine("c", "c"), CI).await);
    a.commit("of-a", "1").await;
    twin.commit("of-twin", "1").await;
    c.commit("of-c", "1").await;
    // C follows one of them, before they find each other.
    c.dial(&[&a]);
    a.dial(&[&c]);
    converged(&[&a, &c], 3).await;
    a.dial(&[&twin, &c]);
    twin.dial(&[&a, &c]);
    c.dial(&[&a, &twin]);
    converged(&[&a, &twin, &c], 4).await;
    let changed = async {
        while id(&a) == "a" || id(&twin) == "a" {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, changed).await.expect("both take new ids");
    assert_ne!(id(&a), id(&twin));
    alarmed(&a, "was a and is").await;
    alarmed(&twin, "was a and is").await;
    // SR29: both go on.
    a.commit("more-of-a", "1").await;
    twin.commit("more-of-twin", "1").await;
    converged(&[&a, &twin, &c], 6).await;
}
