use prost_types::Duration;
use xds_core::PAYLOAD_LIMIT_BYTES;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{CommitLimits, Draft, RefusalCode};

use crate::driven::*;

fn with(edit: impl FnOnce(&mut proto::Put)) -> proto::CommitRequest {
    let mut put = proto::Put { content: Some(content("1")), ..Default::default() };
    edit(&mut put);
    of([change("a", "", proto::change::Act::Put(put))])
}

#[test]
fn st8_what_can_never_be_right_is_refused_with_its_field() {
    let mut server = Server::new();
    let mut check = |request: proto::CommitRequest, field: &str| {
        let refused = server.commit(request).unwrap_err();
        assert_eq!(refused.code, RefusalCode::InvalidArgument, "{refused:?}");
        let Some(proto::violation::Why::Invalid(why)) = &refused.violations[0].why else {
            panic!("{refused:?}")
        };
        assert_eq!(why.field, field, "{refused:?}");
    };
    let seconds = |seconds| Some(Duration { seconds, nanos: 0 });
    check(with(|put| put.content = None), "put.content");
    check(with(|put| put.lease = seconds(4)), "put.lease");
    check(
        with(|put| put.expires_at = Some(prost_types::Timestamp { seconds: 0, nanos: 1 })),
        "put.expires_at",
    );
    check(with(|put| put.owners.push(proto::ResourceOwner::default())), "put.owners.key");
    check(with(|put| put.content.as_mut().unwrap().schema = "2.x".into()), "put.content.schema");
    check(of([put("", "1")]), "key");
    check(of([proto::Change { act: None, ..put("a", "1") }]), "act");
    check(of([proto::Change { condition: Some(proto::Condition::default()), ..put("a", "1") }]), "condition");
    check(of([only_if(proto::condition::Is::Absent(false), put("a", "1"))]), "condition");
    check(proto::CommitRequest { owner: "a b".into(), ..of([put("a", "1")]) }, "owner");
    check(proto::CommitRequest { prune: true, ..of([put("a", "1")]) }, "prune");
    check(proto::CommitRequest { ack_peers: 1, ..of([put("a", "1")]) }, "ack_peers");
    let mut policy = put("shop/", "1");
    policy.key.as_mut().unwrap().type_url = "type.googleapis.com/xds.store.v1.Unknown".into();
    check(of([policy]), "key.type_url");
    for type_url in ["Cluster", "example.com/"] {
        let of_type = |mut change: proto::Change| {
            change.key.as_mut().unwrap().type_url = type_url.into();
            of([change])
        };
        check(of_type(put("a", "1")), "key.type_url");
        // What an earlier version accepted can be deleted.
        assert!(Server::new().commit(of_type(delete("a"))).is_ok());
    }
    with(|put| put.content.as_mut().unwrap().schema = "1.0".into());
}

#[test]
fn st66_a_constraint_that_can_never_match_is_refused_by_itself() {
    let mut server = Server::new();
    assert_eq!(server.code(of([put_when("a", "env=prod, env=staging", "1")])), RefusalCode::InvalidArgument);
}

#[test]
fn st42_st66_what_exceeds_a_limit_is_refused_with_both_numbers_and_the_option() {
    let limits = CommitLimits { changes: 2, bytes: 1 << 20 };
    let parse = |request| Draft::parse_within(request, "me".into(), limits).unwrap_err();
    let limit = |refused: &xds_store::commit::Refused| match &refused.violations[0].why {
        Some(proto::violation::Why::Limit(limit)) => limit.clone(),
        other => panic!("{other:?}"),
    };
    // The limit of the whole comes first, and belongs to no change.
    let refused = parse(of([put("a", "1"), put("a", "1"), put("", "1")]));
    let found = limit(&refused);
    assert_eq!((&*found.option, found.value, found.found), ("--commit-changes-limit", 2, 3));
    assert_eq!((refused.code, &refused.violations[0].key), (RefusalCode::ResourceExhausted, &None));
    let refused = parse(of([put("a", &"x".repeat(1 << 20))]));
    assert_eq!(limit(&refused).option, "--commit-bytes-limit");
    for (request, value) in [
        (of([put(&"n".repeat(5000), "1")]), 4096),
        (proto::CommitRequest { message: "m".repeat(1025), ..of([put("a", "1")]) }, 1024),
        (
            with(|put| {
                let labels = (0..65).map(|number| (number.to_string(), String::new()));
                put.content.as_mut().unwrap().labels = labels.collect();
            }),
            64,
        ),
    ] {
        assert_eq!(limit(&parse(request)).value, value);
    }
}

#[test]
fn st42_a_payload_above_the_limit_is_refused_with_the_limit_and_its_size() {
    let found = PAYLOAD_LIMIT_BYTES + 1;
    let refused = Draft::parse(of([put("a", "1"), put("b", &"x".repeat(found))]), "me".into()).unwrap_err();
    let expected = proto::LimitExceeded {
        limit: "bytes of a payload".into(),
        value: PAYLOAD_LIMIT_BYTES as u64,
        found: found as u64,
        ..Default::default()
    };
    let [violation] = &refused.violations[..] else { panic!("{refused:?}") };
    assert_eq!((refused.code, violation.change), (RefusalCode::ResourceExhausted, 1));
    assert_eq!(violation.why, Some(proto::violation::Why::Limit(expected)));
    Draft::parse(of([put("b", &"x".repeat(PAYLOAD_LIMIT_BYTES))]), "me".into()).unwrap();
}

#[test]
fn st15_a_dry_run_answers_what_the_commit_would_answer_and_leaves_no_trace() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    let try_it = |changes: Vec<_>| proto::CommitRequest { dry_run: true, ..of(changes) };
    let dry = server.commit(try_it(vec![put("a", "2"), put("b", "1"), delete("c")])).unwrap();
    assert_eq!((dry.revision, server.store.revision()), (1, 1));
    let real = server.commit(of([put("a", "2"), put("b", "1"), delete("c")])).unwrap();
    assert_eq!(dry.results, real.results);
    let refused = server.commit(try_it(vec![only_if(proto::condition::Is::Absent(true), put("a", "3"))]));
    assert_eq!(refused.unwrap_err().code, RefusalCode::AlreadyExists);
}

#[test]
fn st9_a_condition_on_what_is_gone_is_aborted_so_the_caller_reads_again() {
    let mut server = Server::new();
    let code = |server: &mut Server, is| server.code(of([only_if(is, put("a", "1"))]));
    for is in [proto::condition::Is::Revision("0".repeat(32)), proto::condition::Is::Uid("0".repeat(32))] {
        assert_eq!(code(&mut server, is), RefusalCode::Aborted);
    }
    assert_eq!(code(&mut server, proto::condition::Is::Exists(true)), RefusalCode::NotFound);
}

#[test]
fn st9_a_put_with_another_expiry_is_a_change_and_the_same_one_is_not() {
    let mut server = Server::new();
    let expires = |seconds| with(|put| put.expires_at = Some(prost_types::Timestamp { seconds, nanos: 0 }));
    assert_eq!(server.outcome(expires(60)), proto::Outcome::Created);
    assert_eq!(server.outcome(expires(60)), proto::Outcome::Unchanged);
    assert_eq!(server.outcome(expires(90)), proto::Outcome::Updated);
}
