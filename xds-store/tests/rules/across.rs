//! References between regions: two stores, whose calls the tests deliver by hand.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::check_references_response::Answer;
use xds_store::check::{Finding, check_store};
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::{Batch, Engine, MemoryEngine};
use xds_store::key::{POLICY_TYPE, RecordKey};
use xds_store::store::{
    Event, Identity, ReferrersQuery, RegionRequest, RegionResponse, Store, Ticket, Unanswered,
};

use crate::driven::envoy::*;
use crate::driven::*;

#[path = "across/late.rs"]
mod late;
#[path = "across/random.rs"]
mod random;

/// `eu` owns the names that begin with `eu/`, and `us` those with `us/`.
struct World {
    eu: Server,
    us: Server,
}

fn region(name: &str) -> Server {
    node_of(name, &format!("of-{name}"))
}

fn node_of(name: &str, node: &str) -> Server {
    start(&Identity { node: node.into(), region: name.into(), ..Identity::default() })
}

fn start(identity: &Identity) -> Server {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(identity)).unwrap();
    let writes = vec![policy("eu/", "eu", "us"), policy("us/", "us", "eu")];
    engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
    Server::with(engine, SECOND, |config| config.is_replicated = true)
}

/// The record of a policy as an engine has it. No commit of this version makes one.
fn policy(prefix: &str, owner: &str, copies: &str) -> (Bytes, Option<Bytes>) {
    let policy = proto::RegionPolicy {
        owner_region: owner.into(),
        regions: vec![copies.into()],
        ..Default::default()
    };
    let content = proto::Content { payload: policy.encode_to_vec().into(), ..Default::default() };
    let state = proto::RecordState {
        key: Some(key_of(POLICY_TYPE, prefix)),
        lifecycle: proto::State::Live.into(),
        content: Some(content),
        ..Default::default()
    };
    let key = [b"v", POLICY_TYPE.as_bytes(), b"\0", prefix.as_bytes(), &[0; 10]].concat();
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&key);
    checksum.update(&state.encode_to_vec());
    let value = [&checksum.finalize().to_be_bytes()[..], &state.encode_to_vec()].concat();
    (key.into(), Some(value.into()))
}

impl World {
    /// With the cluster `eu/c`, which both have.
    fn new() -> Self {
        let mut world = Self { eu: region("eu"), us: region("us") };
        world.eu.commit(of([cluster("eu/c")])).unwrap();
        world.pull();
        world
    }

    /// Both get the commits of the other one.
    fn pull(&mut self) {
        let entries = self.eu.entries_for(&self.us, 1_000);
        assert_eq!(self.us.merge(entries), BTreeMap::new());
        let entries = self.us.entries_for(&self.eu, 1_000);
        assert_eq!(self.eu.merge(entries), BTreeMap::new());
    }

    /// `us` begins to commit this. The commit waits for `eu`.
    fn begins(&mut self, change: proto::Change) -> u64 {
        let commit = self.us.request(of([change])).unwrap();
        assert!(!self.us.answers.contains_key(&commit), "it waits for the other region");
        commit
    }

    /// What `us` says to `eu` next.
    fn said_by_us(&mut self) -> (Ticket, RegionRequest) {
        let (call, region, request) = self.us.region_calls.pop_front().expect("us says something");
        assert_eq!(region, "eu");
        (call, request)
    }

    fn said_by_eu(&mut self) -> (Ticket, RegionRequest) {
        let (call, region, request) = self.eu.region_calls.pop_front().expect("eu says something");
        assert_eq!(region, "us");
        (call, request)
    }

    /// The next call of `us` arrives, and so does the answer.
    fn eu_answers(&mut self) -> Result<RegionResponse, Refused> {
        let (call, request) = self.said_by_us();
        let answer = ask(&mut self.eu, request);
        self.us.step(Event::RegionAnswered(call, answer.clone().map_err(Unanswered::Refused)));
        answer
    }

    fn us_answers(&mut self) -> Vec<Answer> {
        let (call, request) = self.said_by_eu();
        let answer = ask(&mut self.us, request);
        self.eu.step(Event::RegionAnswered(call, answer.clone().map_err(Unanswered::Refused)));
        let Ok(RegionResponse::Check(response)) = answer else { panic!("{answer:?}") };
        response.references().collect()
    }

    /// Routes of `us` lead to the cluster of `eu`, and `eu` knows that.
    fn referring(mut self) -> Self {
        let commit = self.begins(routes("us/r", &["eu/c"]));
        self.eu_answers().unwrap();
        self.us.answers.remove(&commit).unwrap().unwrap();
        self.eu_answers().unwrap();
        assert!(self.us.region_calls.is_empty());
        self
    }

    /// `eu` deletes its cluster while it hears nothing from `us`.
    fn deletes_in_silence(&mut self) -> Result<(), Refused> {
        let commit = self.eu.request(of([delete_at(cluster_key("eu/c"))]))?;
        self.eu.wait(SECOND);
        self.eu.region_calls.clear();
        self.eu.answers.remove(&commit).expect("after 1 s").map(drop)
    }

    fn exists(server: &Server) -> bool {
        server.state(&cluster_key("eu/c")).is_some_and(|state| state.lifecycle() == proto::State::Live)
    }
}

fn ask(server: &mut Server, request: RegionRequest) -> Result<RegionResponse, Refused> {
    server.step(Event::Region(Ticket(0), request));
    server.region_answers.pop().expect("it answers at once")
}

fn referred(refused: &Refused) -> &proto::Referred {
    match &refused.violations[0].why {
        Some(proto::violation::Why::Referred(referred)) => referred,
        why => panic!("{why:?}"),
    }
}

#[test]
fn sg30_a_reference_to_another_region_is_blocked_committed_and_confirmed() {
    let mut world = World::new();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    let revision = world.us.store.revision();
    let Ok(RegionResponse::Block(response)) = world.eu_answers() else { panic!("it is blocked") };
    assert_eq!(response.holds_for.unwrap().seconds, 300);
    assert!(world.us.answers.remove(&commit).unwrap().is_ok());
    assert_eq!(world.us.store.revision(), revision + 1);
    let (call, request) = world.said_by_us();
    let RegionRequest::Confirm(confirm) = &request else { panic!("{request:?}") };
    let [reference] = &confirm.references[..] else { panic!("{confirm:?}") };
    let expected = ("virtual_hosts.routes.route.cluster", "us", Some(routes_key("us/r")));
    assert_eq!((&*reference.field, &*reference.source_region, reference.source.clone()), expected);
    let answer = ask(&mut world.eu, request.clone()).unwrap();
    assert_eq!(answer, RegionResponse::Confirm(proto::ConfirmReferencesResponse::default()));
    world.us.step(Event::RegionAnswered(call, Ok(answer)));
    // Nothing is left to say, and a change that adds nothing asks nobody.
    world.us.wait(3600 * SECOND);
    world.us.commit(of([routes("us/r", &["eu/c", "eu/c"])])).unwrap();
    world.eu.wait(3600 * SECOND);
    assert!(world.us.region_calls.is_empty() && world.eu.region_calls.is_empty());
    // Both keep it over a restart.
    for server in [&mut world.eu, &mut world.us] {
        server.restart();
        server.wait(SECOND);
        assert!(server.region_calls.is_empty());
        let found = &mut |found: Finding| assert!(format!("{found}").contains("RegionPolicy"), "{found}");
        assert!(check_store(&*server.engine.view().unwrap(), found).is_ok());
    }
    assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
}

#[test]
fn sg30_a_refusal_of_the_other_region_refuses_the_commit_and_changes_nothing() {
    for is_drained in [false, true] {
        let mut world = World::new();
        if is_drained {
            world.eu.commit(of([routes("eu/r", &["eu/c"])])).unwrap();
            world.eu.commit(of([drain_at(cluster_key("eu/c"))])).unwrap();
        } else {
            world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap();
        }
        let revisions = (world.us.engine_revision(), world.eu.engine_revision());
        let commit = world.us.request(of([cluster("us/c"), routes("us/r", &["us/c", "eu/c"])])).unwrap();
        world.eu_answers().unwrap_err();
        let refused = world.us.answers.remove(&commit).unwrap().unwrap_err();
        assert_eq!((refused.code, refused.violations[0].change), (RefusalCode::FailedPrecondition, 1));
        let Some(proto::violation::Why::MissingTarget(missing)) = &refused.violations[0].why else {
            panic!("{refused:?}")
        };
        assert_eq!((missing.is_deleting, &missing.target), (is_drained, &Some(cluster_key("eu/c"))));
        assert_eq!((world.us.engine_revision(), world.eu.engine_revision()), revisions);
    }
}

#[test]
fn sg30_sg40_a_silent_region_refuses_the_commit_and_is_named() {
    let mut world = World::new();
    // It hears nothing, or it is heard too late.
    for is_late in [false, true] {
        let commit = world.begins(routes("us/r", &["eu/c"]));
        let (call, request) = world.said_by_us();
        if is_late {
            world.us.wait(10 * SECOND);
        } else {
            world.us.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
        }
        let refused = world.us.answers.remove(&commit).unwrap().unwrap_err();
        assert_eq!(
            (refused.code, &*referred(&refused).silent_regions),
            (RefusalCode::Unavailable, &["eu".into()][..])
        );
        if is_late {
            let answer = ask(&mut world.eu, request).unwrap();
            world.us.step(Event::RegionAnswered(call, Ok(answer)));
            // SG33: what it blocks for nothing is released.
            assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
            world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap();
        }
    }
}

#[test]
fn sg30_st15_a_dry_run_asks_no_other_region() {
    let mut world = World::new().referring();
    let dry_run = |change| proto::CommitRequest { dry_run: true, ..of([change]) };
    assert_eq!(world.us.outcome(dry_run(routes("us/s", &["eu/c"]))), proto::Outcome::Created);
    assert_eq!(world.eu.code(dry_run(delete_at(cluster_key("eu/c")))), RefusalCode::FailedPrecondition);
    assert!(world.us.region_calls.is_empty() && world.eu.region_calls.is_empty());
}

#[test]
fn sg31_a_young_block_refuses_a_delete_and_nobody_is_asked() {
    let mut world = World::new();
    world.begins(routes("us/r", &["eu/c"]));
    let (_, request) = world.said_by_us();
    ask(&mut world.eu, request.clone()).unwrap();
    // Repeating it changes nothing.
    let revision = world.eu.engine_revision();
    ask(&mut world.eu, request).unwrap();
    assert_eq!(world.eu.engine_revision(), revision);
    world.eu.restart();
    world.eu.wait(299 * SECOND);
    let refused = world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap_err();
    let by = &referred(&refused).by[0];
    assert_eq!(
        (refused.code, by.is_tentative, &*by.source_region),
        (RefusalCode::FailedPrecondition, true, "us")
    );
    assert!(
        refused.message.contains("us/r (virtual_hosts.routes.route.cluster) of region us"),
        "{refused:?}"
    );
    assert!(world.eu.region_calls.is_empty());
}

#[test]
fn sg31_other_commits_proceed_and_the_commit_is_judged_again() {
    let mut world = World::new();
    let absent = proto::condition::Is::Absent(true);
    let commit = world.begins(only_if(absent, routes("us/r", &["eu/c"])));
    assert_eq!(world.us.outcome(of([routes("us/r", &[])])), proto::Outcome::Created);
    world.eu_answers().unwrap();
    assert_eq!(world.us.answers.remove(&commit).unwrap().unwrap_err().code, RefusalCode::AlreadyExists);
    // SG33.
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
    world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap();
}

#[test]
fn sg31_sg40_a_commit_comes_within_a_fifth_of_the_block_or_not_at_all() {
    let mut world = World::new();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    let (call, request) = world.said_by_us();
    assert!(ask(&mut world.eu, request).is_ok());
    world.us.now += 6 * SECOND;
    let holds_for = Some(prost_types::Duration { seconds: 25, nanos: 0 });
    let answer = RegionResponse::Block(proto::BlockReferencesResponse { holds_for });
    world.us.step(Event::RegionAnswered(call, Ok(answer)));
    assert_eq!(world.us.answers.remove(&commit).unwrap().unwrap_err().code, RefusalCode::Aborted);
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
}

#[test]
fn sg32_a_block_that_nobody_confirms_is_asked_about() {
    for (is_committed, expected) in [(false, Answer::Gone), (true, Answer::Holds)] {
        let mut world = World::new();
        world.begins(routes("us/r", &["eu/c"]));
        let (call, request) = world.said_by_us();
        let answer = ask(&mut world.eu, request).unwrap();
        if is_committed {
            world.us.step(Event::RegionAnswered(call, Ok(answer)));
            // The confirmation is lost.
            assert!(matches!(world.said_by_us().1, RegionRequest::Confirm(_)));
        } else {
            world.us.restart();
        }
        world.eu.wait(299 * SECOND);
        assert!(world.eu.region_calls.is_empty());
        // No answer keeps it, and the region is asked again.
        for _ in 0..3 {
            world.eu.wait(5 * SECOND);
            let (call, _) = world.said_by_eu();
            world.eu.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
        }
        assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
        world.eu.wait(5 * SECOND);
        assert_eq!(world.us_answers(), [expected]);
        world.eu.wait(600 * SECOND);
        assert!(world.eu.region_calls.is_empty(), "it is decided");
        assert_eq!(world.deletes_in_silence().is_ok(), !is_committed);
    }
}

#[test]
fn sg32_a_commit_that_is_not_decided_keeps_its_block() {
    let mut world = World::new();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    let (call, request) = world.said_by_us();
    let answer = ask(&mut world.eu, request).unwrap();
    world.eu.wait(300 * SECOND);
    assert_eq!(world.us_answers(), [Answer::Pending]);
    world.us.step(Event::RegionAnswered(call, Ok(answer)));
    assert!(world.us.answers.remove(&commit).unwrap().is_ok());
    world.eu.wait(5 * SECOND);
    assert_eq!(world.us_answers(), [Answer::Holds]);
}

#[test]
fn sg30_a_confirmation_is_repeated_until_it_is_answered_also_after_a_restart() {
    let mut world = World::new();
    world.begins(routes("us/r", &["eu/c"]));
    world.eu_answers().unwrap();
    for restarts in [false, true, false] {
        let (call, request) = world.said_by_us();
        assert!(matches!(request, RegionRequest::Confirm(_)));
        world.us.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
        if restarts {
            world.us.restart();
        }
        world.us.wait(5 * SECOND);
    }
    assert!(matches!(world.eu_answers(), Ok(RegionResponse::Confirm(_))));
    world.us.region_calls.clear();
    world.us.wait(600 * SECOND);
    assert!(world.us.region_calls.is_empty());
    world.eu.wait(600 * SECOND);
    assert!(world.eu.region_calls.is_empty());
}

#[test]
fn sg33_st21_a_store_that_becomes_read_only_answers_the_commit_and_releases_its_block() {
    let mut world = World::new();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    let (call, request) = world.said_by_us();
    let answer = ask(&mut world.eu, request).unwrap();
    world.us.step(Event::Halt("a defect".into()));
    assert_eq!(world.us.answers.remove(&commit).unwrap().unwrap_err().code, RefusalCode::Unavailable);
    assert!(world.us.store.is_idle());
    world.us.step(Event::RegionAnswered(call, Ok(answer)));
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
    world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap();
}

#[test]
fn sg33_a_record_that_drops_a_reference_releases_it() {
    for end in [routes("us/r", &[]), delete_at(routes_key("us/r"))] {
        let mut world = World::new().referring();
        world.us.commit(of([end])).unwrap();
        let (call, request) = world.said_by_us();
        world.us.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
        let RegionRequest::Release(release) = request else { panic!("{request:?}") };
        // Without references it would release nothing.
        let of_none = proto::ReleaseReferencesRequest { references: Vec::new(), ..release };
        world.eu.step(Event::Region(Ticket(0), RegionRequest::Release(of_none)));
        let refused = world.eu.region_answers.pop().unwrap().unwrap_err();
        assert_eq!(refused.code, RefusalCode::InvalidArgument, "{refused:?}");
        world.us.restart();
        world.us.wait(SECOND);
        assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
        world.us.wait(600 * SECOND);
        assert!(world.us.region_calls.is_empty());
        world.eu.commit(of([delete_at(cluster_key("eu/c"))])).unwrap();
    }
}

#[test]
fn sg33_a_late_release_of_a_former_reference_does_not_touch_the_present_one() {
    let mut world = World::new().referring();
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    let (_, late) = world.said_by_us();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    world.eu_answers().unwrap();
    assert!(world.us.answers.remove(&commit).unwrap().is_ok());
    world.eu_answers().unwrap();
    assert_eq!(ask(&mut world.eu, late), Ok(RegionResponse::Release));
    assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
}

#[test]
fn sg34_a_delete_asks_the_regions_with_references() {
    let mut world = World::new().referring();
    let delete = || of([delete_at(cluster_key("eu/c"))]);
    // SG40: one that holds.
    let commit = world.eu.request(delete()).unwrap();
    assert_eq!(world.us_answers(), [Answer::Holds]);
    let refused = world.eu.answers.remove(&commit).unwrap().unwrap_err();
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    assert_eq!((referred(&refused).count, &*referred(&refused).by[0].source_region), (1, "us"));
    // A silent region counts as holding, and is named.
    let refused = world.deletes_in_silence().unwrap_err();
    assert_eq!(
        (refused.code, &*referred(&refused).silent_regions),
        (RefusalCode::Unavailable, &["us".into()][..])
    );
    assert!(refused.message.ends_with("(no answer from region us)"), "{refused:?}");
    // A reference that is gone is dropped, although the release is lost.
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    world.us.region_calls.clear();
    let commit = world.eu.request(delete()).unwrap();
    assert_eq!(world.us_answers(), [Answer::Gone]);
    assert!(world.eu.answers.remove(&commit).unwrap().is_ok());
    assert!(!World::exists(&world.eu));
}

#[test]
fn sg34_sg10_a_reference_of_another_region_counts_once_although_its_copy_is_here() {
    let mut world = World::new().referring();
    world.pull();
    let commit = world.eu.request(of([delete_at(cluster_key("eu/c"))])).unwrap();
    assert_eq!(world.us_answers(), [Answer::Holds]);
    let refused = world.eu.answers.remove(&commit).unwrap().unwrap_err();
    assert_eq!((referred(&refused).count, &*referred(&refused).by[0].source_region), (1, "us"));
    // SG40: the copy does not say whether the reference holds.
    assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
    let key = RecordKey::parse(&cluster_key("eu/c")).unwrap();
    let query =
        ReferrersQuery { key: &key, targets: &[], may_read: |_: &RecordKey| true, limit: 9, depth: 9 };
    let found = world.eu.store.referrers(&query);
    let [by] = &found.elsewhere[..] else { panic!("{found:?}") };
    assert_eq!((found.count, &*by.source_region, found.referrers.len()), (1, "us", 0));
    assert_eq!(found.blocked_elsewhere.as_ref(), Some(by));
    world.eu.commit(of([drain_at(cluster_key("eu/c"))])).unwrap();
    let [deletion] = &world.eu.store.deletions(9, 9)[..] else { panic!("one") };
    assert_eq!((deletion.blockers, deletion.blocked_by.len()), (1, 1));
    // A copy of another region blocks, too, if that region has no block: it may be older than the policy.
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
    world.eu.wait(60 * SECOND);
    assert_eq!(world.eu.store.deletions(9, 9)[0].blockers, 1);
    world.pull();
    world.eu.wait(SECOND);
    assert_eq!(world.eu.store.deletions(9, 9), []);
}

#[test]
fn sg34_sg31_a_block_that_comes_while_a_delete_asks_refuses_it() {
    let mut world = World::new().referring();
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    world.us.region_calls.clear();
    let delete = world.eu.request(of([delete_at(cluster_key("eu/c"))])).unwrap();
    let commit = world.begins(routes("us/s", &["eu/c"]));
    world.eu_answers().unwrap();
    assert_eq!(world.us_answers(), [Answer::Gone]);
    assert_eq!(world.eu.answers.remove(&delete).unwrap().unwrap_err().code, RefusalCode::FailedPrecondition);
    assert!(world.us.answers.remove(&commit).unwrap().is_ok() && World::exists(&world.eu));
}

#[test]
fn sg35_a_drain_asks_every_five_seconds_and_ends_when_no_region_holds_it() {
    let mut world = World::new().referring();
    let committed = world.eu.commit(of([drain_at(cluster_key("eu/c"))])).unwrap();
    let result = &committed.results[0];
    assert_eq!((result.outcome, &*result.blocked_by[0].source_region), (proto::Outcome::Deleting, "us"));
    for _ in 0..3 {
        assert_eq!(world.us_answers(), [Answer::Holds]);
        assert!(world.eu.region_calls.is_empty());
        world.eu.wait(5 * SECOND);
    }
    world.eu.region_calls.clear();
    world.pull();
    let state = |server: &Server| server.state(&cluster_key("eu/c")).unwrap().lifecycle();
    assert_eq!(state(&world.us), proto::State::Deleting);
    assert_eq!(world.us.code(of([routes("us/s", &["eu/c"])])), RefusalCode::FailedPrecondition);
    world.eu.restart();
    world.eu.wait(0);
    assert_eq!(world.us_answers(), [Answer::Holds]);
    // The region of the reference does not end what another one owns.
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    world.us.wait(600 * SECOND);
    assert_eq!((state(&world.us), state(&world.eu)), (proto::State::Deleting, proto::State::Deleting));
    world.us.region_calls.clear();
    world.eu.wait(5 * SECOND);
    assert_eq!(world.us_answers(), [Answer::Gone]);
    world.pull();
    world.eu.wait(SECOND);
    assert_eq!(state(&world.eu), proto::State::Deleted);
    world.pull();
    assert_eq!((state(&world.us), world.eu.store.deleting_since().0), (proto::State::Deleted, 0));
}

#[test]
fn sg35_sg8_each_region_cascades_to_what_it_owns_and_the_delete_waits_for_that() {
    let mut world = World::new();
    world.eu.commit(of([Rule::of_routes(proto::OnDelete::Cascade).put("rule")])).unwrap();
    world.pull();
    let mut world = world.referring();
    world.pull();
    assert_eq!(world.eu.outcome(of([delete_at(cluster_key("eu/c"))])), proto::Outcome::Deleting);
    assert!(
        world.eu.state(&routes_key("us/r")).unwrap().lifecycle() == proto::State::Live,
        "it is not of eu"
    );
    world.pull();
    world.us.wait(SECOND);
    assert_eq!(world.us.state(&routes_key("us/r")).unwrap().lifecycle(), proto::State::Deleted);
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
    world.pull();
    world.eu.wait(SECOND);
    assert_eq!(world.eu.state(&cluster_key("eu/c")).unwrap().lifecycle(), proto::State::Deleted);
}

#[test]
fn sg30_sg36_only_names_of_this_region_are_blocked_and_global_ones_never() {
    let mut world = World::new();
    world.us.commit(of([cluster("global"), cluster("us/c"), routes("us/r", &["global", "us/c"])])).unwrap();
    world.us.commit(of([routes("global", &["global"])])).unwrap();
    world.pull();
    assert!(world.us.region_calls.is_empty());
    let block = |target: &str, source_region: &str| {
        let source_region = source_region.to_owned();
        let (source, target) = (Some(routes_key("us/r")), Some(cluster_key(target)));
        let references = vec![proto::Reference { source, target, source_region, ..Default::default() }];
        let id = vec![7; 16].into();
        RegionRequest::Block(proto::BlockReferencesRequest { id, references, node: "of-us".into() })
    };
    let code = |world: &mut World, request| ask(&mut world.eu, request).map_err(|refused| refused.code);
    assert_eq!(code(&mut world, block("global", "us")), Err(RefusalCode::FailedPrecondition));
    assert_eq!(code(&mut world, block("us/c", "us")), Err(RefusalCode::FailedPrecondition));
    assert_eq!(code(&mut world, block("eu/x", "us")), Err(RefusalCode::NotFound));
    assert_eq!(code(&mut world, block("eu/c", "eu")), Err(RefusalCode::InvalidArgument));
    assert_eq!(code(&mut world, block("eu/c", "")), Err(RefusalCode::InvalidArgument));
    assert!(code(&mut world, block("eu/c", "us")).is_ok());
}

#[test]
fn sg32_a_new_writer_of_the_region_of_a_target_learns_of_the_references_that_exist() {
    let mut world = World::new().referring();
    // It has the records of the one before, and none of its blocks.
    let mut eu = node_of("eu", "another");
    let entries = world.eu.entries_for(&eu, 1_000);
    assert_eq!(eu.merge(entries), BTreeMap::new());
    world.eu = eu;
    let writer = || Event::Writer { region: "eu".into(), node: "another".into() };
    world.us.step(writer());
    world.eu_answers().unwrap();
    let refused = world.deletes_in_silence().unwrap_err();
    assert_eq!(refused.code, RefusalCode::Unavailable, "{refused:?}");
    assert!(World::exists(&world.eu));
    // Once is enough.
    world.us.step(writer());
    world.us.wait(60 * SECOND);
    assert!(world.us.region_calls.is_empty());
    world.us.step(Event::Writer { region: "us".into(), node: "of-us".into() });
    assert!(world.us.region_calls.is_empty());
}

#[test]
fn sg22_sg30_a_replica_of_the_region_blocks_nothing() {
    let mut world = World::new();
    world.begins(routes("us/r", &["eu/c"]));
    let (_, request) = world.said_by_us();
    let identity =
        Identity { node: "eu-2".into(), region: "eu".into(), is_replica: true, ..Identity::default() };
    let mut replica = start(&identity);
    assert_eq!(replica.merge(world.eu.entries_for(&replica, 9)).len(), 0);
    let refused = ask(&mut replica, request.clone()).unwrap_err();
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    assert!(matches!(refused.violations[0].why, Some(proto::violation::Why::Region(_))));
    assert!(ask(&mut world.eu, request).is_ok());
}
