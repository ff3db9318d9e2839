//! Owners that another region owns (SG20).

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::record::Uid;
use xds_store::region::POLICY_TYPE;
use xds_store::store::{Event, RegionRequest, Ticket, Unanswered};

use crate::driven::envoy::*;
use crate::driven::*;

const MINUTE: i64 = 60 * SECOND;

/// `eu` owns the names that begin with `eu/`, and `us` those with `us/`, of which `eu` has no copies.
struct World {
    eu: Server,
    us: Server,
}

fn policy(prefix: &str, owner: &str, regions: &[&str]) -> proto::Change {
    let regions = regions.iter().map(ToString::to_string).collect();
    let policy = proto::RegionPolicy { owner_region: owner.into(), regions, disabled: Vec::new() };
    put_at(key_of(POLICY_TYPE, prefix), policy.encode_to_vec())
}

fn owner(name: &str, incarnation: u64) -> proto::ResourceOwner {
    let key = key(name, "");
    let uid = Uid::of(&RecordKey::parse(&key).unwrap(), incarnation).to_string();
    proto::ResourceOwner { key: Some(key), uid, ..Default::default() }
}

fn owned(name: &str, owners: &[proto::ResourceOwner]) -> proto::Change {
    let mut change = put(name, "1");
    if let Some(proto::change::Act::Put(put)) = &mut change.act {
        put.owners = owners.to_vec();
    }
    change
}

impl World {
    /// With the thing `eu/o`, of which `us` has a copy or not.
    fn new(has_copies: bool) -> Self {
        let mut world =
            Self { eu: Server::node_in("eu", "e1", false), us: Server::node_in("us", "u1", false) };
        let copies = if has_copies { &["us"][..] } else { &[] };
        world.eu.commit(of([policy("eu/", "eu", copies), policy("us/", "us", &[])])).unwrap();
        world.eu.commit(of([put("eu/o", "1")])).unwrap();
        world.pull();
        world
    }

    fn pull(&mut self) {
        let entries = self.eu.entries_for(&self.us, 1_000);
        assert_eq!(self.us.merge(entries), BTreeMap::new());
    }

    /// `us` waits. The region answers what it is asked, or is silent.
    fn wait(&mut self, nanoseconds: i64, is_silent: bool) -> usize {
        let (until, mut asked) = (self.us.now + nanoseconds, 0);
        while self.us.now < until {
            self.us.wait(SECOND);
            while let Some((call, region, request)) = self.us.region_calls.pop_front() {
                assert_eq!(region, "eu");
                let RegionRequest::Check(check) = &request else { panic!("{request:?}") };
                asked += check.owners.len();
                self.eu.step(Event::Region(Ticket(0), request));
                let answer = self.eu.region_answers.pop().unwrap().map_err(Unanswered::Refused);
                let answer = if is_silent { Err(Unanswered::Silent) } else { answer };
                self.us.step(Event::RegionAnswered(call, answer));
            }
        }
        asked
    }

    fn has(&self, name: &str) -> bool {
        self.us.store.exists(&RecordKey::parse(&key(name, "")).unwrap())
    }
}

#[test]
fn sg20_an_owner_of_another_region_is_kept_as_long_as_that_has_it() {
    for has_copies in [false, true] {
        let mut world = World::new(has_copies);
        world.us.commit(of([owned("us/a", &[owner("eu/o", 1)])])).unwrap();
        world
            .us
            .commit(of([owned("us/a", &[owner("eu/o", 1)]), owned("us/b", &[owner("eu/x", 1)])]))
            .unwrap();
        assert_eq!(world.wait(4 * MINUTE, false), 0, "SG17: it has time to come");
        world.wait(2 * MINUTE, false);
        assert!(world.has("us/a") && !world.has("us/b"));
        // It is asked about again, once each 5 minutes, also after a restart.
        let asked = world.wait(10 * MINUTE, false);
        world.us.restart();
        assert_eq!((asked, world.wait(11 * MINUTE, false)), (2, 2));
        world.eu.commit(of([delete("eu/o")])).unwrap();
        world.eu.commit(of([put("eu/o", "2")])).unwrap();
        world.pull();
        assert!(world.has("us/a"));
        // SG18, SG19: what took its place is another owner. With a copy of it, it is asked about at once.
        world.wait(if has_copies { SECOND } else { 5 * MINUTE }, false);
        assert!(!world.has("us/a"));
    }
}

#[test]
fn sg20_an_owner_in_an_unreachable_region_is_kept() {
    let mut world = World::new(true);
    let mut unset = owner("eu/o", 1);
    unset.unset_on_delete = true;
    world.us.commit(of([owned("us/a", &[owner("eu/o", 1)]), owned("us/b", &[unset])])).unwrap();
    world.eu.commit(of([delete("eu/o")])).unwrap();
    world.pull();
    world.wait(20 * MINUTE, true);
    assert!(world.has("us/a"));
    // Its answer ends that.
    world.wait(6 * SECOND, false);
    assert!(!world.has("us/a") && world.has("us/b"));
    assert_eq!(world.wait(20 * MINUTE, false), 0);
}

#[test]
fn sg20_only_the_writer_of_the_region_says_that_an_owner_is_gone() {
    let mut world = World::new(false);
    // A replica that lacks the owner.
    world.eu = Server::node_in("eu", "e2", true);
    world.us.commit(of([owned("us/a", &[owner("eu/o", 1)])])).unwrap();
    assert!(world.wait(6 * MINUTE, false) > 10);
    // A writer that has not heard of the policy, and one that has not heard of the owner while there is a copy.
    world.eu = Server::node_in("eu", "e2", false);
    world.wait(MINUTE, false);
    assert!(world.has("us/a"));
    let mut world = World::new(true);
    world.us.commit(of([owned("us/a", &[owner("eu/o", 1)])])).unwrap();
    world.eu = Server::node_in("eu", "e2", false);
    world.eu.commit(of([policy("eu/", "eu", &["us"])])).unwrap();
    world.wait(6 * MINUTE, false);
    assert!(world.has("us/a"));
}

#[test]
fn sg20_an_owner_of_another_region_that_must_refer_to_the_record_is_dropped_when_it_does_not() {
    let mut world = World::new(false);
    world.eu.commit(of([cluster("us/c"), routes("eu/r", &["us/c"])])).unwrap_err();
    let rule = Rule::of_routes(proto::OnDelete::Allow).put("allow");
    world.eu.commit(of([rule])).unwrap();
    world.eu.commit(of([routes("eu/r", &["us/c"])])).unwrap();
    world.pull();
    let mut change = cluster("us/c");
    if let Some(proto::change::Act::Put(put)) = &mut change.act {
        let key = routes_key("eu/r");
        let uid = Uid::of(&RecordKey::parse(&key).unwrap(), 1).to_string();
        let requires_reference = true;
        put.owners =
            vec![proto::ResourceOwner { key: Some(key), uid, requires_reference, unset_on_delete: false }];
    }
    world.us.commit(of([change])).unwrap();
    let exists = |world: &World| world.us.store.exists(&RecordKey::parse(&cluster_key("us/c")).unwrap());
    world.wait(6 * MINUTE, false);
    assert!(exists(&world));
    world.eu.commit(of([routes("eu/r", &[])])).unwrap();
    world.wait(6 * MINUTE, false);
    assert!(!exists(&world));
}

#[test]
fn sg20_sg28_after_a_handover_the_new_region_checks_owners() {
    let mut world = World::new(true);
    world.eu.commit(of([put("eu/p", "1"), owned("eu/a", &[owner("eu/p", 1), owner("eu/o", 1)])])).unwrap();
    world.eu.commit(of([policy("eu/a", "eu", &["us"])])).unwrap();
    world.eu.commit(of([policy("eu/a", "us", &["eu"])])).unwrap();
    world.eu.commit(of([delete("eu/o")])).unwrap();
    world.pull();
    world.wait(6 * MINUTE, false);
    assert!(world.has("eu/a"));
    world.eu.commit(of([delete("eu/p")])).unwrap();
    world.wait(5 * MINUTE, true);
    world.wait(MINUTE, false);
    assert!(world.has("eu/a"), "the copy of its owner does not say so");
    world.pull();
    world.wait(MINUTE, false);
    assert!(!world.has("eu/a"));
}
