//! References that are older than the policy of their target (SG34).

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::Engine;
use xds_store::region::POLICY_TYPE;
use xds_store::store::{Event, RegionRequest, RegionResponse, Store, Ticket, Unanswered};

use crate::driven::envoy::*;
use crate::driven::*;

fn policy(prefix: &str, owner: &str, regions: &[&str]) -> proto::Change {
    let regions = regions.iter().map(ToString::to_string).collect();
    let policy = proto::RegionPolicy { owner_region: owner.into(), regions, disabled: Vec::new() };
    put_at(key_of(POLICY_TYPE, prefix), policy.encode_to_vec())
}

fn nodes<const N: usize>(of: [(&str, &str, bool); N]) -> [Server; N] {
    of.map(|(region, node, is_replica)| Server::node_in(region, node, is_replica))
}

fn exchange(nodes: &mut [Server]) {
    let count = nodes.len();
    for pair in (0..count * count).chain(0..count * count) {
        let (from, to) = (pair / count, pair % count);
        if from != to {
            let entries = nodes[from].entries_for(&nodes[to], 10_000);
            assert_eq!(nodes[to].merge(entries), BTreeMap::new());
        }
    }
}

/// The calls of a node arrive at these writers of regions, and the answers come back.
fn deliver(nodes: &mut [Server], from: usize, writers: &[(&str, usize)]) -> Vec<(String, usize)> {
    let mut seen = Vec::new();
    // Calls are repeated each 5 s.
    nodes[from].wait(4 * SECOND);
    while let Some((call, region, request)) = nodes[from].region_calls.pop_front() {
        let (kind, references) = match &request {
            RegionRequest::Confirm(confirm) => ("confirm", &confirm.references),
            RegionRequest::Release(release) => ("release", &release.references),
            RegionRequest::Check(check) => ("check", &check.references),
            RegionRequest::Block(block) => ("block", &block.references),
            RegionRequest::List(list) => panic!("no node was promoted: {list:?}"),
        };
        seen.push((format!("{kind} {region}"), references.len()));
        let (_, to) = writers.iter().find(|(name, _)| *name == region).unwrap();
        nodes[*to].step(Event::Region(Ticket(0), request));
        let answer = nodes[*to].region_answers.pop().unwrap().map_err(Unanswered::Refused);
        nodes[from].step(Event::RegionAnswered(call, answer));
    }
    nodes[from].wait(SECOND);
    seen
}

fn deletes(node: &mut Server) -> Result<(), Refused> {
    let commit = node.request(of([delete_at(cluster_key("eu/c"))]))?;
    node.wait(SECOND);
    node.region_calls.clear();
    node.answers.remove(&commit).expect("after 1 s").map(drop)
}

/// `us/r` leads to `eu/c`, and both are global.
fn global(nodes: &mut [Server], of_us: usize) {
    nodes[0].commit(of([cluster("eu/c")])).unwrap();
    exchange(nodes);
    nodes[of_us].commit(of([routes("us/r", &["eu/c"])])).unwrap();
    exchange(nodes);
    assert!(nodes[of_us].region_calls.is_empty());
}

#[test]
fn sg34_a_policy_blocks_the_targets_of_older_references() {
    for is_restarted in [false, true] {
        let mut nodes = nodes([("eu", "e1", false), ("us", "u1", false)]);
        global(&mut nodes, 1);
        nodes[0].commit(of([policy("eu/", "eu", &["us"]), policy("us/", "us", &[])])).unwrap();
        exchange(&mut nodes);
        // Nobody answers for some time.
        nodes[1].wait(20 * SECOND);
        assert!(nodes[1].region_calls.len() > 2);
        nodes[1].region_calls.clear();
        if is_restarted {
            nodes[1].restart();
        }
        assert_eq!(deliver(&mut nodes, 1, &[("eu", 0)]), [("confirm eu".to_owned(), 1)]);
        let blocks = (nodes[0].blocks(), nodes[1].blocks());
        assert_eq!(blocks, (1, 1));
        let refused = deletes(&mut nodes[0]).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Unavailable, "us does not answer: {refused:?}");
        // It is done, also after a restart.
        let revision = nodes[1].engine_revision();
        nodes[1].restart();
        assert_eq!(deliver(&mut nodes, 1, &[]), []);
        assert_eq!(nodes[1].engine_revision(), revision);
        nodes[1].commit(of([routes("us/r", &[])])).unwrap();
        assert_eq!(deliver(&mut nodes, 1, &[("eu", 0)]), [("release eu".to_owned(), 1)]);
        deletes(&mut nodes[0]).unwrap();
    }
}

#[test]
fn sg34_sg28_a_handover_moves_the_blocks_of_other_regions() {
    let mut nodes = nodes([("eu", "e1", false), ("us", "u1", false), ("ap", "a1", false)]);
    global(&mut nodes, 1);
    nodes[0].commit(of([policy("eu/", "eu", &["us", "ap"]), policy("us/", "us", &[])])).unwrap();
    exchange(&mut nodes);
    deliver(&mut nodes, 1, &[("eu", 0)]);
    nodes[0].commit(of([policy("eu/", "ap", &["eu", "us"])])).unwrap();
    exchange(&mut nodes);
    let mut seen = deliver(&mut nodes, 1, &[("eu", 0), ("ap", 2)]);
    seen.sort();
    assert_eq!(seen, [("confirm ap".to_owned(), 1), ("release eu".to_owned(), 1)]);
    assert_eq!((nodes[0].blocks(), nodes[1].blocks(), nodes[2].blocks()), (0, 1, 1));
    assert_eq!(deletes(&mut nodes[2]).unwrap_err().code, RefusalCode::Unavailable);
    // The names of the reference and of its target come to one region: nothing is left to block.
    nodes[2].commit(of([policy("eu/", "us", &["eu", "ap"])])).unwrap();
    exchange(&mut nodes);
    assert_eq!(deliver(&mut nodes, 1, &[("ap", 2)]), [("release ap".to_owned(), 1)]);
    assert_eq!((nodes[1].blocks(), nodes[2].blocks()), (0, 0));
    assert_eq!(deletes(&mut nodes[1]).unwrap_err().code, RefusalCode::FailedPrecondition);
}

#[test]
fn sg34_sg22_a_new_writer_of_a_region_blocks_what_the_records_of_the_region_refer_to() {
    let mut nodes = nodes([("eu", "e1", false), ("us", "u1", false), ("us", "u2", true)]);
    global(&mut nodes, 1);
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), policy("us/", "us", &[])])).unwrap();
    exchange(&mut nodes);
    assert_eq!(deliver(&mut nodes, 2, &[]), [], "a replica does nothing");
    // The former writer never said it.
    nodes[1].region_calls.clear();
    set_replica(&mut nodes[2], false);
    assert_eq!(deliver(&mut nodes, 2, &[("eu", 0)]), [("confirm eu".to_owned(), 1)]);
    assert_eq!(deletes(&mut nodes[0]).unwrap_err().code, RefusalCode::Unavailable);
}

#[test]
fn sg34_older_references_are_blocked_in_steps_that_a_restart_repeats() {
    const REFERENCES: usize = 1_200;
    let mut nodes = nodes([("eu", "e1", false), ("us", "u1", false)]);
    global(&mut nodes, 1);
    let all: Vec<_> = (1..REFERENCES).map(|number| routes(&format!("us/r{number}"), &["eu/c"])).collect();
    nodes[1].commit(of(all)).unwrap();
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), policy("us/", "us", &[])])).unwrap();
    let entries = nodes[0].entries_for(&nodes[1], 1_000);
    assert_eq!(nodes[1].merge(entries), BTreeMap::new());
    nodes[1].wait(SECOND / 5);
    let begun = nodes[1].blocks();
    assert!(0 < begun && begun < REFERENCES, "{begun}");
    nodes[1].region_calls.clear();
    nodes[1].restart();
    // Other commits proceed.
    nodes[1].commit(of([routes("us/r7", &[])])).unwrap();
    deliver(&mut nodes, 1, &[("eu", 0)]);
    assert_eq!((nodes[0].blocks(), nodes[1].blocks()), (REFERENCES - 1, REFERENCES - 1));
}

/// A region asks about its blocks: the answer of a node, and what the region does next.
fn asks(nodes: &mut [Server], from: usize, to: usize) -> Answer {
    let (call, _, request) = nodes[from].region_calls.pop_front().expect("it asks");
    assert!(matches!(request, RegionRequest::Check(_)), "{request:?}");
    nodes[to].step(Event::Region(Ticket(0), request));
    let answer = nodes[to].region_answers.pop().unwrap();
    let Ok(RegionResponse::Check(response)) = &answer else { panic!("{answer:?}") };
    let said = response.references().next().unwrap();
    nodes[from].step(Event::RegionAnswered(call, answer.map_err(Unanswered::Refused)));
    said
}

/// `u1` asks `eu` to block `eu/c`, and its commit comes to nothing. So `eu` asks `us` about the block after 5 minutes.
fn blocked_for_nothing() -> [Server; 3] {
    let mut nodes = nodes([("eu", "e1", false), ("us", "u1", false), ("us", "u2", true)]);
    nodes[0].commit(of([policy("eu/", "eu", &["us"]), policy("us/", "us", &[])])).unwrap();
    nodes[0].commit(of([cluster("eu/c")])).unwrap();
    exchange(&mut nodes);
    let commit = nodes[1].request(of([routes("us/r", &["eu/c"])])).unwrap();
    let (call, _, request) = nodes[1].region_calls.pop_front().unwrap();
    nodes[0].step(Event::Region(Ticket(0), request));
    nodes[0].region_answers.pop().unwrap().unwrap();
    nodes[1].step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
    assert!(nodes[1].answers.remove(&commit).unwrap().is_err());
    nodes[1].region_calls.clear();
    nodes
}

fn set_replica(node: &mut Server, is_replica: bool) {
    let (batch, _) = Store::with_replica(&*node.engine.view().unwrap(), is_replica).unwrap();
    node.engine.commit(&batch).unwrap();
    node.restart();
}

#[test]
fn sg32_a_former_writer_does_not_confirm_a_block_that_is_not_its_own() {
    let mut nodes = blocked_for_nothing();
    set_replica(&mut nodes[1], true);
    set_replica(&mut nodes[2], false);
    nodes[2].request(of([routes("us/r", &["eu/c"])])).unwrap();
    deliver(&mut nodes, 2, &[("eu", 0)]);
    exchange(&mut nodes);
    assert_eq!(nodes[0].blocks(), 2, "that of u1, and that of u2");
    nodes[0].wait(300 * SECOND);
    assert_eq!(nodes[0].called, "u1");
    assert_eq!(asks(&mut nodes, 0, 1), Answer::Unknown);
    // The writer is asked next, at once, and after a restart.
    assert_eq!((nodes[0].region_calls.len(), &*nodes[0].called), (1, ""));
    nodes[0].restart();
    nodes[0].region_calls.clear();
    nodes[0].wait(5 * SECOND);
    assert_eq!(nodes[0].called, "");
    assert_eq!(asks(&mut nodes, 0, 2), Answer::Gone);
    assert_eq!((nodes[0].blocks(), nodes[1].blocks(), nodes[2].blocks()), (1, 0, 1));
    assert_eq!(deletes(&mut nodes[0]).unwrap_err().code, RefusalCode::Unavailable, "of u2");
}

#[test]
fn sg32_sg28_a_region_that_handed_a_name_over_needs_no_block_of_it() {
    let mut nodes = blocked_for_nothing();
    nodes[0].commit(of([policy("eu/", "us", &["eu"])])).unwrap();
    exchange(&mut nodes);
    nodes[1].commit(of([routes("us/r", &["eu/c"])])).unwrap();
    assert!(nodes[1].region_calls.is_empty(), "both are of us");
    nodes[0].wait(300 * SECOND);
    assert_eq!(
        asks(&mut nodes, 0, 1),
        Answer::Pending,
        "it has not looked at all its records for the new policy"
    );
    nodes[1].wait(SECOND);
    nodes[0].wait(5 * SECOND);
    // A node that was not heard may be of each region, and one with other policies may own the target by them.
    let (_, _, request) = nodes[0].region_calls.front().unwrap().clone();
    let RegionRequest::Check(asked) = request else { panic!("{request:?}") };
    let unheard = proto::CheckReferencesRequest { node: "nobody".into(), ..asked.clone() };
    let behind = proto::CheckReferencesRequest { policies: vec![7; 16].into(), ..asked };
    for request in [unheard, behind] {
        nodes[1].step(Event::Region(Ticket(0), RegionRequest::Check(request)));
        let answer = nodes[1].region_answers.pop().unwrap();
        let Ok(RegionResponse::Check(response)) = &answer else { panic!("{answer:?}") };
        assert_eq!(response.references().next(), Some(Answer::Holds));
    }
    assert_eq!(asks(&mut nodes, 0, 1), Answer::Gone);
    assert_eq!((nodes[0].blocks(), nodes[1].blocks()), (0, 0));
    assert_eq!(deletes(&mut nodes[1]).unwrap_err().code, RefusalCode::FailedPrecondition);
}
