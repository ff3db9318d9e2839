//! State of the world (S, C1-C4, C13).

use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::DiscoveryResponse;

use super::fixture::{Fixture, payload, refuse_bad, url};
use super::*;

fn sotw() -> Fixture {
    Fixture::new(Protocol::Sotw)
}

/// A response with these resources as they are.
fn raw(f: &mut Fixture, type_name: &str, nonce: &str, resources: Vec<Any>) -> Effects {
    let type_url = url(type_name).as_str().to_owned();
    let (version_info, nonce) = ("v".to_owned(), nonce.to_owned());
    let response = DiscoveryResponse { version_info, resources, type_url, nonce, ..Default::default() };
    let frame = prost::Message::encode_to_vec(&response).into();
    f.client.on_response(f.now, 0, &frame).expect("a response")
}

#[test]
fn s13_c1_types_are_apart_and_each_response_is_answered_in_order() {
    let mut f = sotw();
    refuse_bad(&mut f.client, "CDS");
    f.watch("CDS", "a");
    f.watch("EDS", "b");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.get("EDS x1 n2: b=1");
    f.get("CDS v2 n3: a=bad");
    assert_eq!(f.sent(0), "CDS [a] v1 n1\nCDS [a] v1 n3 !\"a\": it is bad\nEDS [b] x1 n2");
}

/// Regression: of two ACKs that waited, the first had the version of the second.
#[test]
fn s3_s4_c1_each_answer_has_the_version_of_its_response() {
    let mut f = sotw();
    f.watch("CDS", "a");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.get("CDS v2 n2: a=2");
    assert_eq!(f.sent(0), "CDS [a] v1 n1\nCDS [a] v2 n2");
}

#[test]
fn s14_c13_the_last_name_that_goes_leaves_an_empty_list_and_the_nonce() {
    let mut f = sotw();
    let a = f.watch("CDS", "a");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.sent(0);
    f.client.on_unwatch(a);
    f.watch("EDS", "b");
    assert_eq!(f.sent(0), "CDS [] v1 n1\nEDS [b]");
    assert!(f.client.cache().snapshot().get(&url("CDS"), &"a".into()).is_none());
    f.watch("CDS", "c");
    assert_eq!(f.sent(0), "CDS [c] v1 n1");
}

#[test]
fn c13b_a_name_dropped_and_wanted_again_keeps_its_copy_and_says_nothing() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        let a = f.watch("CDS", "a");
        f.sent(0);
        f.get("CDS v1 n1: a=1");
        f.sent(0);
        f.client.on_unwatch(a);
        let again = f.watch("CDS", "a");
        assert_eq!((f.sent(0).as_str(), f.view(again).as_str()), ("", "1"));
        // After the unsubscription was sent, the client subscribes again.
        f.client.on_unwatch(again);
        assert!(!f.sent(0).is_empty());
        let anew = f.watch("CDS", "a");
        assert_eq!(f.view(anew), "-");
        assert!(f.sent(0).contains('a'));
    }
}

#[test]
fn s18_d16_d20_everything_is_asked_for_and_given_up() {
    for (protocol, asks, drops) in
        [(Protocol::Sotw, "node CDS []", "CDS [a] v1 n1"), (Protocol::Delta, "node CDS +*", "CDS +a -* n1")]
    {
        let mut f = Fixture::new(protocol);
        let all = f.watch("CDS", "*");
        assert_eq!(f.sent(0), asks);
        assert_eq!(f.get("CDS v1 n1: a=1 b=1"), "*/a: 1\n*/b: 1\n*: -");
        let a = f.watch("CDS", "a");
        f.client.on_unwatch(all);
        assert_eq!(f.sent(0), drops);
        assert_eq!(f.view(a), "1");
        let snapshot = f.client.cache().snapshot();
        assert!(snapshot.get(&url("CDS"), &"b".into()).is_none(), "it came from the star alone");
    }
}

/// go-control-plane's snapshots treat a `*` in SotW as a name that no resource has.
#[test]
fn s19_s20_everything_alone_is_asked_for_without_a_name_and_given_up_by_the_star() {
    let mut f = sotw();
    let all = f.watch("CDS", "*");
    assert_eq!(f.sent(0), "node CDS []");
    f.get("CDS v1 n1: a=1");
    assert_eq!(f.sent(0), "CDS [] v1 n1");
    f.client.on_unwatch(all);
    // A request without names would still mean the wildcard.
    assert_eq!(f.sent(0), "CDS [*] v1 n1\nCDS [] v1 n1");
    assert_eq!(f.get("CDS v2 n2: a=2"), "");
    assert_eq!(f.sent(0), "CDS [] v2 n2");
    // After a request with names, the wildcard is requested by its name.
    f.watch("CDS", "*");
    assert_eq!(f.sent(0), "CDS [*] v2 n2");
    f.watch("CDS", "a");
    assert_eq!(f.sent(0), "CDS [* a] v2 n2");
}

#[test]
fn s21_of_types_without_that_form_everything_is_asked_for_by_the_star() {
    let mut f = sotw();
    f.watch("RDS", "*");
    assert_eq!(f.sent(0), "node RDS [*]");
    f.watch("CDS", "*{env=prod}");
    assert_eq!(f.sent(0), "CDS [*{env=prod}]");
}

#[test]
fn s24_t41_what_nobody_asked_for_is_ignored_and_counted() {
    let mut f = sotw();
    f.watch("EDS", "a{env=prod}");
    f.sent(0);
    let frame = fixture::response("EDS v1 n1: b=1 a[env=test]=2 a[env=prod]=1", Protocol::Sotw);
    let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
    let applied = effects.response.expect("it is answered");
    assert_eq!((applied.valid, applied.unwatched, applied.rejections.len()), (1, 2, 0));
    assert_eq!(f.sent(0), "EDS [a{env=prod}] v1 n1");
}

#[test]
fn c3_s24_a_type_that_was_never_asked_for_is_not_answered() {
    let mut f = sotw();
    f.watch("CDS", "a");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: b=1"), "");
    assert_eq!(f.sent(0), "");
    let broken = Bytes::from_static(b"\x0a\xff");
    assert_eq!(f.client.on_response(f.now, 0, &broken).expect_err("it is none"), Unreadable);
    assert_eq!(f.get("CDS v1 n1: a=1"), "a: 1");
}

#[test]
fn s25_a_full_state_deletes_what_it_lacks() {
    let mut f = sotw();
    f.watch("LDS", "a");
    f.watch("LDS", "*");
    f.sent(0);
    f.get("LDS v1 n1: a=1 b=1");
    assert_eq!(f.get("LDS v2 n2: b=1"), "*/a: -\na: 1 beside NOT_FOUND");
    assert_eq!(f.get("LDS v3 n3:"), "*/b: -");
}

#[test]
fn s25_s37_what_a_full_state_lacks_without_an_error_does_not_exist_any_more() {
    let mut f = sotw();
    f.watch("CDS", "a");
    f.watch("CDS", "b");
    f.sent(0);
    assert_eq!(f.get("CDS v1 n1: a=1 b!14"), "a: 1\nb: UNAVAILABLE");
    assert_eq!(f.get("CDS v2 n2: a=1"), "b: NOT_FOUND");
    assert_eq!(f.get("CDS v3 n3: a=1 b=1"), "b: 1");
    assert_eq!(f.get("CDS v4 n4: a=1 b!14"), "b: 1 beside UNAVAILABLE");
    assert_eq!(f.get("CDS v5 n5: a=1 b=1"), "b: 1", "it is there again, as it was");
}

#[test]
fn s25_s37_a_locator_without_a_variant_in_a_full_state_has_none_whatever_others_have() {
    let mut f = sotw();
    f.watch("CDS", "a{env=prod}");
    let test = f.watch("CDS", "a{env=test}");
    f.sent(0);
    f.get("CDS v1 n1: a[env=prod]=1 a[env=test]!14");
    assert_eq!(f.view(test), "UNAVAILABLE");
    assert_eq!(f.get("CDS v2 n2: a[env=prod]=1"), "a{env=test}: NOT_FOUND");
}

#[test]
fn s25_c2_what_is_there_and_not_valid_is_not_missing() {
    let mut f = sotw();
    refuse_bad(&mut f.client, "CDS");
    let errors = ErrorPolicy::default();
    assert!(!errors.fail_on_data_errors);
    f.watch("CDS", "a");
    f.watch("CDS", "b");
    f.sent(0);
    f.get("CDS v1 n1: a=1 b=1");
    assert_eq!(f.get("CDS v2 n2: a=bad"), "a: 1 beside INVALID_ARGUMENT\nb: 1 beside NOT_FOUND");
}

#[test]
fn s26_d12_absence_says_nothing_of_other_types() {
    for (protocol, type_name) in [(Protocol::Sotw, "EDS"), (Protocol::Delta, "CDS")] {
        let mut f = Fixture::new(protocol);
        f.watch(type_name, "a");
        f.watch(type_name, "b");
        f.sent(0);
        f.get(&format!("{type_name} v1 n1: a=1 b=1"));
        assert_eq!(f.get(&format!("{type_name} v2 n2: b=2")), "b: 2");
        assert_eq!(f.get(&format!("{type_name} v3 n3:")), "");
    }
}

#[test]
fn s28_c4_the_same_variant_twice_is_rejected_and_the_first_is_used() {
    let mut f = sotw();
    let a = f.watch("CDS", "a");
    f.sent(0);
    assert_eq!(f.get("CDS v1 n1: a=1 a=2"), "a: 1 beside INVALID_ARGUMENT");
    assert_eq!(f.sent(0), "CDS [a] n1 !\"a\": the response contains it twice");
    f.get("CDS v2 n2: a=1");
    assert_eq!(f.view(a), "1");
    assert_eq!(f.get("CDS v3 n3: a=1 a=1"), "a: 1 beside INVALID_ARGUMENT", "also an unchanged one");
}

#[test]
fn s29_s30_c4_a_resource_is_of_the_type_or_wrapped() {
    let mut f = sotw();
    f.watch("EDS", "a");
    f.watch("EDS", "b");
    f.sent(0);
    let other = Any { type_url: url("CDS").as_str().to_owned(), value: payload("a", "1") };
    let effects = raw(&mut f, "EDS", "n1", vec![other]);
    let rejections = effects.response.expect("it is answered").rejections;
    assert!(matches!(rejections[0].reason, Reason::WrongType { .. }));
    assert_eq!(f.get("EDS v2 n2: a=1 b=1@60"), "a: 1\nb: 1", "bare and wrapped");
}

/// Regression: because of one unreadable wrapper the whole response was not answered.
#[test]
fn c4_a_wrapper_that_is_not_protobuf_is_rejected_alone() {
    let mut f = sotw();
    let a = f.watch("EDS", "a");
    f.sent(0);
    let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource".to_owned();
    let good = Any { type_url: url("EDS").as_str().to_owned(), value: payload("a", "1") };
    // Field 8 is a message that ends too early.
    for broken in [&b"\x42\x02\x0a\x05"[..], b"\x0a\xff", b"\x1a\x01\xff"] {
        let bad = Any { type_url: wrapper.clone(), value: Bytes::copy_from_slice(broken) };
        let effects = raw(&mut f, "EDS", "n1", vec![bad, good.clone()]);
        let rejections = effects.response.expect("it is answered").rejections;
        assert_eq!(rejections.iter().map(|one| &one.reason).collect::<Vec<_>>(), [&Reason::Malformed]);
        assert_eq!(f.view(a), "1");
    }
}

#[test]
fn s31_d22_an_equal_content_under_another_version_is_no_news() {
    let mut f = sotw();
    f.watch("CDS", "a");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    assert_eq!(f.get("CDS v2 n2: a=1"), "");
    assert_eq!(f.sent(0), "CDS [a] v1 n1\nCDS [a] v2 n2");
    assert_eq!(f.client.report()[0].version.as_deref(), Some("v2"));
}

#[test]
fn s32_c14_the_version_survives_the_stream_and_the_nonce_does_not() {
    let mut f = sotw();
    f.watch("CDS", "*");
    f.sent(0);
    f.get("CDS v1 n1: a=1");
    f.sent(0);
    f.end(0);
    f.open(0);
    assert_eq!(f.sent(0), "node CDS [] v1");
}

/// Regression: the client sent a version of which it used only a part, so the server did not send
/// the rest.
#[test]
fn s32_c2_a_wildcard_that_used_a_part_of_a_rejected_response_brings_no_version() {
    let mut f = sotw();
    refuse_bad(&mut f.client, "CDS");
    f.watch("CDS", "*");
    f.sent(0);
    f.get("CDS v1 n1: a=1 b=1");
    f.get("CDS v2 n2: a=2 b=bad");
    f.end(0);
    f.open(0);
    assert_eq!(f.sent(0), "node CDS []");
}

#[test]
fn s38_a_ttl_that_ends_removes_the_resource() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        f.watch("EDS", "a");
        let all = f.watch("EDS", "*");
        f.sent(0);
        f.get("EDS v1 n1: a=1@10");
        assert_eq!(f.pass(9), "");
        assert_eq!(f.pass(1), "*/a: -\na: NOT_FOUND");
        assert_eq!(f.client.members(all).expect("it is a set").count(), 0);
        // A resource without a TTL does not end.
        f.get("EDS v2 n2: a=1@10");
        f.get("EDS v3 n3: a=1");
        assert_eq!(f.pass(60), "");
    }
}

#[test]
fn s39_d26_a_heartbeat_extends_the_ttl_and_reaches_nobody() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        let a = f.watch("EDS", "a");
        f.sent(0);
        f.get("EDS v1 n1: a=1@10");
        for _ in 0..5 {
            f.pass(9);
            assert_eq!(f.get("EDS v1 n2: a@10"), "");
        }
        assert_eq!(f.view(a), "1");
        assert_eq!(f.client.store.expiries.len(), 1, "earlier ends are forgotten");
        // With another version it is no heartbeat.
        assert_eq!(f.get("EDS v2 n3: a@10"), "a: 1 beside INVALID_ARGUMENT");
    }
}

#[test]
fn s38_a_ttl_without_end_is_none() {
    let mut f = Fixture::new(Protocol::Delta);
    f.watch("EDS", "a");
    f.sent(0);
    f.get(&format!("EDS v1 n1: a=1@{}", i64::MAX));
    assert_eq!(f.client.next_deadline().filter(|at| *at > Duration::from_secs(15)), None);
}
