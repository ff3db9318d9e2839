//! A replica becomes the writer of its region, and lacks the blocks of the one before (SG32).

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;
use xds_store::clock::Counters;
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

fn pull(from: &Server, to: &mut Server) {
    let entries = from.entries_for(to, 10_000);
    assert_eq!(to.merge(entries), BTreeMap::new());
}

/// The next call arrives, and so does the answer.
fn deliver(from: &mut Server, to: &mut Server) -> RegionResponse {
    let (call, _, request) = from.region_calls.pop_front().expect("it says something");
    to.step(Event::Region(Ticket(0), request));
    let answer = to.region_answers.pop().unwrap();
    from.step(Event::RegionAnswered(call, answer.clone().map_err(Unanswered::Refused)));
    answer.unwrap()
}

fn fail(from: &mut Server) {
    let (call, ..) = from.region_calls.pop_front().expect("it says something");
    from.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
}

/// Becomes the writer, or a replica.
fn set_replica(node: &mut Server, is_replica: bool) {
    let (batch, _) = Store::with_replica(&*node.engine.view().unwrap(), is_replica).unwrap();
    node.engine.commit(&batch).unwrap();
    node.region_calls.clear();
    node.restart();
}

/// `e1` is the writer of `eu` and `e2` its replica. `u1` is that of `us`, whose names `eu` does not have.
struct World {
    e1: Server,
    e2: Server,
    u1: Server,
}

impl World {
    /// With the clusters `eu/c` and `eu/d`.
    fn new() -> Self {
        let node = Server::node_in;
        let mut world =
            Self { e1: node("eu", "e1", false), e2: node("eu", "e2", true), u1: node("us", "u1", false) };
        let policies = [policy("eu/", "eu", &["us"]), policy("us/", "us", &[])];
        world.e1.commit(of(policies)).unwrap();
        world.e1.commit(of([cluster("eu/c"), cluster("eu/d")])).unwrap();
        pull(&world.e1, &mut world.u1);
        world.u1.commit(of([routes("us/none", &[])])).unwrap();
        pull(&world.u1, &mut world.e1);
        pull(&world.e1, &mut world.e2);
        world.e2.step(Event::Remember("e1".into(), Counters::new()));
        world.e2.step(Event::Remember("u1".into(), Counters::new()));
        // A replica that never committed has no region but that which it says. It refers to no name of its own region.
        world.e2.step(Event::Remember("e3".into(), Counters::new()));
        world.e2.step(Event::OfRegion("e3".into(), "eu".into()));
        world.u1.wait(SECOND);
        world
    }

    /// `u1` commits this, and `e1` knows that.
    fn refers(&mut self, change: proto::Change) {
        self.u1.request(of([change])).unwrap();
        while !self.u1.region_calls.is_empty() {
            deliver(&mut self.u1, &mut self.e1);
        }
    }

    /// `e2` takes the place of `e1`, and asks `u1`.
    fn promoted(mut self) -> Self {
        set_replica(&mut self.e2, false);
        self.e2.wait(1);
        self
    }
}

fn deletes(node: &mut Server, name: &str) -> Result<(), Refused> {
    let commit = node.request(of([delete_at(cluster_key(name))]))?;
    match node.answers.remove(&commit) {
        Some(answer) => answer.map(drop),
        None => {
            // It asks whether the reference holds.
            node.region_calls.clear();
            node.wait(SECOND);
            node.answers.remove(&commit).expect("after 1 s").map(drop)
        }
    }
}

fn waits(refused: Result<(), Refused>) {
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, RefusalCode::Unavailable, "{refused:?}");
    for part in ["may be used by other regions", "node u1 of region us:", "the writer of region eu"] {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    let Some(proto::violation::Why::Referred(referred)) = &refused.violations[0].why else {
        panic!("{refused:?}");
    };
    assert_eq!((&referred.silent_regions, referred.count), (&vec!["us".to_owned()], 0));
}

#[test]
fn sg32_a_new_writer_deletes_no_name_of_its_region_until_each_other_node_said_what_it_refers_to() {
    let mut world = World::new();
    world.refers(routes("us/r", &["eu/c"]));
    let mut world = world.promoted();
    assert_eq!((world.e1.blocks(), world.e2.blocks()), (1, 0));
    for name in ["eu/c", "eu/d"] {
        waits(deletes(&mut world.e2, name));
    }
    let dry = proto::CommitRequest { dry_run: true, ..of([delete_at(cluster_key("eu/d"))]) };
    assert_eq!(world.e2.commit(dry).unwrap_err().code, RefusalCode::Unavailable);
    // Other commits go on, and so do deletes of what nobody else owns.
    world.e2.commit(of([cluster("eu/e"), cluster("global")])).unwrap();
    deletes(&mut world.e2, "global").unwrap();
    // It asks again, also after a restart.
    fail(&mut world.e2);
    world.e2.restart();
    world.e2.region_calls.clear();
    world.e2.wait(SECOND);
    let RegionResponse::List(list) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert_eq!((list.references.len(), list.more), (1, false));
    assert_eq!(world.e2.blocks(), 1);
    // It may be gone since then.
    let RegionResponse::Check(check) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert_eq!(check.references().collect::<Vec<_>>(), [Answer::Holds]);
    let refused = deletes(&mut world.e2, "eu/c").unwrap_err();
    assert!(refused.message.contains("us/r"), "{}", refused.message);
    deletes(&mut world.e2, "eu/d").unwrap();
    // Once is enough.
    world.e2.restart();
    world.e2.region_calls.clear();
    world.e2.wait(60 * SECOND);
    assert!(world.e2.region_calls.is_empty());
    world.e1.commit(of([cluster("eu/f")])).unwrap();
}

#[test]
fn sg32_sg35_a_drain_at_a_new_writer_ends_once_it_has_heard_of_all_references() {
    // ST20: also if it has to look whether the batch that says so was written.
    for fate in [None, Some(Fate::WrittenUnknown)] {
        let mut world = World::new().promoted();
        world.e2.commit(of([drain_at(cluster_key("eu/c"))])).unwrap();
        let is_there = |world: &World| {
            world.e2.state(&cluster_key("eu/c")).unwrap().lifecycle() == proto::State::Deleting
        };
        world.e2.wait(SECOND / 2);
        assert!(is_there(&world));
        world.e2.fates.extend(fate);
        deliver(&mut world.e2, &mut world.u1);
        world.e2.wait(SECOND);
        world.e2.wait(SECOND);
        assert!(world.e2.fates.is_empty() && !is_there(&world), "{fate:?}");
    }
}

#[test]
fn sg32_sg31_a_new_writer_hears_of_commits_that_are_not_decided_yet() {
    let mut world = World::new();
    // The former writer has blocked it, and its answer is on the way.
    let commit = world.u1.request(of([routes("us/r", &["eu/c"])])).unwrap();
    let (call, _, request) = world.u1.region_calls.pop_front().unwrap();
    world.e1.step(Event::Region(Ticket(0), request));
    let granted = world.e1.region_answers.pop().unwrap();
    let mut world = world.promoted();
    let RegionResponse::List(list) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert!(list.references[0].reference.as_ref().unwrap().is_tentative);
    world.u1.step(Event::RegionAnswered(call, granted.map_err(Unanswered::Refused)));
    world.u1.answers.remove(&commit).unwrap().unwrap();
    assert_eq!(deletes(&mut world.e2, "eu/c").unwrap_err().code, RefusalCode::FailedPrecondition);
    deletes(&mut world.e2, "eu/d").unwrap();
    deliver(&mut world.u1, &mut world.e2);
    assert_eq!(deletes(&mut world.e2, "eu/c").unwrap_err().code, RefusalCode::Unavailable, "nobody answers");
}

#[test]
fn sg32_sg33_an_answer_that_comes_after_the_release_leaves_no_block() {
    let mut world = World::new();
    world.refers(routes("us/r", &["eu/c"]));
    let mut world = world.promoted();
    let (call, _, request) = world.e2.region_calls.pop_front().unwrap();
    world.u1.step(Event::Region(Ticket(0), request));
    let answer = world.u1.region_answers.pop().unwrap();
    world.u1.commit(of([routes("us/r", &[])])).unwrap();
    assert_eq!(deliver(&mut world.u1, &mut world.e2), RegionResponse::Release);
    world.e2.step(Event::RegionAnswered(call, answer.map_err(Unanswered::Refused)));
    assert_eq!(world.e2.blocks(), 1);
    deliver(&mut world.e2, &mut world.u1);
    assert_eq!((world.e2.blocks(), world.u1.blocks()), (0, 0));
    deletes(&mut world.e2, "eu/c").unwrap();
}

#[test]
fn sg32_what_a_node_refers_to_comes_in_parts() {
    const REFERENCES: usize = 1_200;
    let mut world = World::new();
    let name = |number: usize| format!("us/r{number}");
    let all: Vec<_> = (0..REFERENCES).map(|number| routes(&name(number), &["eu/c"])).collect();
    world.u1.request(of(all)).unwrap();
    while !world.u1.region_calls.is_empty() {
        deliver(&mut world.u1, &mut world.e1);
    }
    let mut world = world.promoted();
    deliver(&mut world.e2, &mut world.u1);
    assert_eq!(world.e2.blocks(), 1_000);
    waits(deletes(&mut world.e2, "eu/d"));
    // The rest does not come, so it begins again.
    world.e2.region_calls.truncate(1);
    fail(&mut world.e2);
    world.e2.wait(SECOND);
    for _ in 0..2 {
        waits(deletes(&mut world.e2, "eu/d"));
        deliver(&mut world.e2, &mut world.u1);
    }
    assert_eq!(world.e2.blocks(), REFERENCES);
    deletes(&mut world.e2, "eu/d").unwrap();
}

#[test]
fn sg32_sg34_a_node_with_other_policies_has_not_said_all() {
    let mut world = World::new();
    world.e1.commit(of([policy("other/", "eu", &["us"])])).unwrap();
    pull(&world.e1, &mut world.e2);
    let mut world = world.promoted();
    deliver(&mut world.e2, &mut world.u1);
    waits(deletes(&mut world.e2, "eu/c"));
    // It has them, and looks for references.
    pull(&world.e2, &mut world.u1);
    world.e2.wait(SECOND);
    let RegionResponse::List(list) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert_eq!(list.policies, "");
    waits(deletes(&mut world.e2, "eu/c"));
    world.u1.wait(SECOND);
    world.e2.wait(SECOND);
    deliver(&mut world.e2, &mut world.u1);
    deletes(&mut world.e2, "eu/c").unwrap();
}

#[test]
fn sg32_sg34_a_node_whose_disk_was_full_at_the_end_of_its_walk_says_all_later() {
    let mut world = World::new();
    world.e1.commit(of([policy("other/", "eu", &["us"])])).unwrap();
    pull(&world.e1, &mut world.e2);
    pull(&world.e1, &mut world.u1);
    let mut world = world.promoted();
    world.u1.fates.push_back(Fate::Full);
    world.u1.wait(SECOND);
    assert!(world.u1.fates.is_empty());
    let RegionResponse::List(list) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert_eq!(list.policies, "");
    world.u1.wait(30 * SECOND);
    world.e2.wait(SECOND);
    let RegionResponse::List(list) = deliver(&mut world.e2, &mut world.u1) else { panic!() };
    assert_ne!(list.policies, "");
    deletes(&mut world.e2, "eu/c").unwrap();
}

#[test]
fn sg32_a_new_writer_waits_5_minutes_of_running_time_or_until_the_node_is_forgotten() {
    let mut world = World::new().promoted();
    world.e2.wait(200 * SECOND);
    waits(deletes(&mut world.e2, "eu/c"));
    // The time of a stop does not count.
    world.e2.commit(of([put("x", "1")])).unwrap();
    world.e2.now += 1_000 * SECOND;
    world.e2.restart();
    world.e2.wait(98 * SECOND);
    waits(deletes(&mut world.e2, "eu/c"));
    let mut forgetting = World::new().promoted();
    forgetting.e2.commit(of([forget("u1")])).unwrap();
    deletes(&mut forgetting.e2, "eu/c").unwrap();
    world.e2.wait(3 * SECOND);
    deletes(&mut world.e2, "eu/c").unwrap();
}

#[test]
fn sg32_only_a_replica_that_becomes_the_writer_has_to_ask() {
    let mut world = World::new().promoted();
    set_replica(&mut world.e2, true);
    world.e2.wait(10 * SECOND);
    assert!(world.e2.region_calls.is_empty());
    world.e1.step(Event::Remember("u1".into(), Counters::new()));
    set_replica(&mut world.e1, false);
    world.e1.wait(SECOND);
    assert!(!world.e1.region_calls.iter().any(|(_, _, request)| matches!(request, RegionRequest::List(_))));
    deletes(&mut world.e1, "eu/c").unwrap();
}
