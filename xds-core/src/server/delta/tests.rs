use std::sync::Arc;
use std::time::Duration;

use super::super::fixture::{Delta, commit, type_url, version};
use super::*;
use crate::Cache;
use crate::name::Nonce;
use crate::server::{Next, Protocol, Service, StreamConfig};

pub(super) fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A client that has subscribed to `list` and ACKed the response `n1`.
pub(super) fn settled(cache: &Arc<Cache>, type_name: &str, list: &str) -> Delta {
    let mut client = Delta::new(cache);
    client.ask(type_name, list);
    client.sent();
    client.ack(type_name, "1");
    client
}

/// A client that reconnects with the resources that it has, as (name, content).
fn back(cache: &Arc<Cache>, type_name: &str, list: &str, brought: &[(&str, &str)]) -> Delta {
    let versions: Vec<_> =
        brought.iter().map(|(name, content)| (*name, version(type_name, name, content))).collect();
    let brought: Vec<_> = versions.iter().map(|(name, version)| (*name, version.as_str())).collect();
    let mut client = Delta::new(cache);
    client.ask_with(type_name, list, "", &brought);
    client
}

#[test]
fn d1_initial_versions_count_in_the_first_request_of_a_type_only() {
    let cache = cache("EDS a=1 b=1");
    let mut client = back(&cache, "EDS", "a", &[("a", "1")]);
    assert_eq!(client.sent(), "");
    client.ask_with("EDS", "b", "", &[("b", &version("EDS", "b", "1"))]);
    assert_eq!(client.sent(), "n1 EDS b=1");
}

#[test]
fn d2_any_message_adds_and_removes_names_also_an_ack() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n1 EDS a=1");
    client.ask_with("EDS", "b -a", "1", &[]);
    assert_eq!(client.sent(), "n2 EDS b=1");
    commit(&cache, "EDS a=2 b=2");
    client.ack("EDS", "2");
    assert_eq!(client.sent(), "n3 EDS b=2");
}

#[test]
fn d4_acks_and_nacks_are_told_apart_by_the_error_detail() {
    let cache = cache("EDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a");
    client.sent();
    let nonce = Nonce::nth(1);
    let type_url = type_url("EDS");
    assert_eq!(
        client.nack("EDS", "1"),
        Some(Verdict::Nacked { type_url: type_url.clone(), nonce, detail: "bad".into(), is_repeat: false })
    );
    client.ask("EDS", "a");
    client.sent();
    assert_eq!(client.ack("EDS", "2"), Some(Verdict::Acked { type_url, nonce: Nonce::nth(2) }));
}

#[test]
fn d5_a_stale_or_unknown_nonce_blocks_no_subscription() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut client = settled(&cache, "EDS", "a");
    assert_eq!(client.ask_with("EDS", "b", "1", &[]), None);
    assert_eq!(client.ask_with("EDS", "c", "999", &[]), None);
    assert_eq!(client.sent(), "n2 EDS b=1 c=1");
}

#[test]
fn d6_responses_in_flight_are_acked_in_any_order() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a");
    client.sent();
    client.ask("EDS", "b");
    assert_eq!(client.sent(), "n2 EDS b=1");
    assert!(matches!(client.ack("EDS", "2"), Some(Verdict::Acked { .. })));
    assert!(matches!(client.nack("EDS", "1"), Some(Verdict::Nacked { .. })));
}

#[test]
fn d7_every_response_has_a_nonce_of_its_own() {
    let cache = cache("EDS a=1");
    let mut client = settled(&cache, "EDS", "a");
    client.ask("EDS", "a");
    client.ask("CDS", "");
    assert_eq!(client.sent(), "n2 CDS; n3 EDS a=1");
}

#[test]
fn d8_after_a_nack_its_content_goes_alone_and_so_does_a_change_outside() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut client = settled(&cache, "EDS", "a b c");
    commit(&cache, "EDS a=2 b=2");
    assert_eq!(client.sent(), "n2 EDS a=2 b=2");
    client.nack("EDS", "2");
    client.pass(Duration::from_secs(60));
    assert_eq!(client.sent(), "n3 EDS a=2");
    commit(&cache, "EDS c=2");
    client.nack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS c=2");
    client.ack("EDS", "4");
    // A return to content that was ACKed before is a change.
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n5 EDS b=2");
    client.ack("EDS", "5");
    assert_eq!(client.sent(), "n6 EDS a=1");
}

#[test]
fn s9b_newer_content_waits_for_the_ack_but_not_longer_than_a_second() {
    let cache = cache("EDS a=1");
    let mut client = settled(&cache, "EDS", "a");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n2 EDS a=2");
    commit(&cache, "EDS a=3");
    commit(&cache, "EDS a=4");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(1000)));
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n3 EDS a=4");
}

#[test]
fn d9_a_name_subscribed_again_is_sent_again_v11() {
    let cache = cache("EDS a=1");
    let mut client = settled(&cache, "EDS", "a");
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n2 EDS a=1");
}

#[test]
fn d10_a_missing_name_is_told_at_once_and_sent_when_it_is_created_v10() {
    let cache = cache("EDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a x");
    assert_eq!(client.sent(), "n1 EDS a=1 -x");
    client.ack("EDS", "1");
    commit(&cache, "EDS x=1");
    assert_eq!(client.sent(), "n2 EDS x=1");
    client.ask_with("EDS", "-x y", "2", &[]);
    assert_eq!(client.sent(), "n3 EDS -y");
    client.ack("EDS", "3");
    commit(&cache, "EDS x=2");
    assert_eq!(client.sent(), "");
}

#[test]
fn d11_a_deleted_resource_is_removed_once_and_stays_subscribed() {
    let cache = cache("LDS a=1 b=1");
    let mut client = settled(&cache, "LDS", "a b");
    commit(&cache, "LDS -a");
    assert_eq!(client.sent(), "n2 LDS -a");
    client.ack("LDS", "2");
    commit(&cache, "LDS b=2");
    assert_eq!(client.sent(), "n3 LDS b=2");
    client.ack("LDS", "3");
    commit(&cache, "LDS a=1");
    assert_eq!(client.sent(), "n4 LDS a=1");
}

#[test]
fn d12_only_what_changed_is_sent() {
    let cache = cache("CDS a=1 b=1 c=1");
    let mut client = settled(&cache, "CDS", "");
    commit(&cache, "CDS a=1 b=2");
    assert_eq!(client.sent(), "n2 CDS b=2");
}

#[test]
fn d13_a_name_removed_and_back_before_it_was_told_stands_once() {
    let cache = cache("LDS a=1 b=1");
    let mut client = settled(&cache, "LDS", "");
    commit(&cache, "LDS -a");
    commit(&cache, "LDS a=2 -b");
    assert_eq!(client.sent(), "n2 LDS a=2 -b");
}

#[test]
fn d15_an_empty_wildcard_is_answered_at_once() {
    let cache = cache("EDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 CDS; n2 LDS");
}

#[test]
fn d16_a_first_request_that_asks_for_nothing_means_everything_where_the_type_allows() {
    let cache = cache("CDS a=1; EDS a=1; SDS r/h=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    // S21: for other types it means nothing, and the client gets an empty response.
    client.ask("EDS", "");
    client.ask("SDS", "");
    assert_eq!(client.sent(), "n1 CDS a=1; n2 EDS; n3 SDS");
    client.ask("SDS", "r/h");
    assert_eq!(client.sent(), "n4 SDS r/h=1");
}

#[test]
fn d17_the_wildcard_vector() {
    let cache = cache("LDS A=1 B=1");
    let mut client = Delta::new(&cache);
    client.ask("LDS", "");
    assert_eq!(client.sent(), "n1 LDS A=1 B=1");
    client.ask_with("LDS", "A", "1", &[]);
    assert_eq!(client.sent(), "n2 LDS A=1");
    client.ask_with("LDS", "-*", "2", &[]);
    commit(&cache, "LDS A=2 B=2");
    assert_eq!(client.sent(), "n3 LDS A=2");
    client.ask_with("LDS", "-A", "3", &[]);
    commit(&cache, "LDS A=3 B=3");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn d18_a_name_unsubscribed_under_the_wildcard_is_sent_or_removed_v12() {
    let cache = cache("LDS a=1");
    let mut client = settled(&cache, "LDS", "* a x");
    client.ask("LDS", "-a -x");
    assert_eq!(client.sent(), "n2 LDS a=1 -x");
    client.ask_with("LDS", "-*", "2", &[]);
    assert_eq!(client.sent(), "");
}

#[test]
fn d19_unsubscribing_a_name_without_the_wildcard_is_not_answered() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    client.ask("EDS", "-a -unknown");
    assert_eq!(client.sent(), "");
}

#[test]
fn s8b_what_was_on_its_way_when_the_star_was_given_up_and_wanted_again_is_told_to_be_gone() {
    let cache = cache("LDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 LDS a=1 b=1");
    // The client sent the first request before it got the response, and perhaps the second one
    // after.
    client.ask("LDS", "-*");
    commit(&cache, "LDS -b");
    client.ack("LDS", "1");
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n2 LDS a=1 -b");
    // D20: when it unsubscribes from `*`, the client drops the resources that it has got.
    client.ack("LDS", "2");
    client.ask("LDS", "-*");
    commit(&cache, "LDS -a");
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n3 LDS");
}

#[test]
fn d20_without_the_star_the_names_of_their_own_stay() {
    let cache = cache("LDS a=1 b=1");
    let mut client = settled(&cache, "LDS", "* a");
    client.ask("LDS", "-*");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS a=2 b=2");
    assert_eq!(client.sent(), "n2 LDS a=2");
}

#[test]
fn d21_a_client_that_comes_back_is_sent_what_differs_and_nothing_else_v11() {
    let cache = cache("LDS same=1 differs=2 new=1");
    let brought = [("same", "1"), ("differs", "1"), ("gone", "1")];
    assert_eq!(back(&cache, "LDS", "", &brought).sent(), "n1 LDS differs=2 new=1 -gone");
    // By name. A resource that it brings and does not subscribe to is ignored.
    assert_eq!(back(&cache, "LDS", "same gone", &brought).sent(), "n1 LDS -gone");
    let mut client = back(&cache, "LDS", "", &[("same", "1"), ("differs", "2"), ("new", "1")]);
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS same=2");
    assert_eq!(client.sent(), "n1 LDS same=2");
}

#[test]
fn d22_the_version_belongs_to_the_resource_and_to_its_content() {
    let cache = cache("EDS a=1 b=1");
    let client = settled(&cache, "EDS", "a b");
    let versions: Vec<_> =
        client.last.resources.iter().map(|r| (r.name.as_str(), r.version.as_str())).collect();
    let (a, b) = (version("EDS", "a", "1"), version("EDS", "b", "1"));
    assert_eq!(versions, [("a", a.as_str()), ("b", b.as_str())]);
}

#[test]
fn d27_the_endpoints_of_a_changed_cluster_follow_unasked_and_before_its_ack_v13() {
    let cache = cache("CDS a=1 b=1 s=static; EDS a=1 b=1 s=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("EDS", "a b s");
    client.sent();
    client.ack("CDS", "1");
    client.ack("EDS", "2");
    commit(&cache, "CDS a=2 s=static");
    assert_eq!(client.sent(), "n3 CDS a=2; n4 EDS a=1");
}

#[test]
fn d9_endpoints_are_sent_though_equal_when_their_cluster_was_v29() {
    let cache = cache("CDS a=2 b=1; EDS a=1 b=1");
    let mut client = back(&cache, "CDS", "", &[("a", "1"), ("b", "1")]);
    assert_eq!(client.sent(), "n1 CDS a=2");
    let (a, b) = (version("EDS", "a", "1"), version("EDS", "b", "1"));
    client.ask_with("EDS", "a b", "", &[("a", &a), ("b", &b)]);
    assert_eq!(client.sent(), "n2 EDS a=1");
    // The same if both requests come before the first answer.
    let mut client = back(&cache, "CDS", "", &[("a", "1"), ("b", "1")]);
    client.ask_with("EDS", "a b", "", &[("a", &a), ("b", &b)]);
    assert_eq!(client.sent(), "n1 CDS a=2; n2 EDS a=1");
}

#[test]
fn s34_endpoints_that_do_not_exist_are_not_told_again_with_their_cluster() {
    let cache = cache("CDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n1 CDS a=1; n2 EDS -a");
    client.ack("CDS", "1");
    client.ack("EDS", "2");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n3 CDS a=2");
}

#[test]
fn d3_a_wildcard_in_both_lists_ends_subscribed_and_is_answered() {
    let cache = cache("LDS a=1");
    let mut client = settled(&cache, "LDS", "");
    client.ask("LDS", "* -*");
    assert_eq!(client.sent(), "n2 LDS a=1");
}

#[test]
fn s21_a_request_for_nothing_is_answered_even_before_the_first_commit() {
    let cache = Cache::new();
    let mut client = Delta::new(&cache);
    client.ask("VHDS", "");
    assert_eq!(client.sent(), "n1 VHDS");
}

#[test]
fn a_stream_that_missed_nothing_is_not_ended_by_removals_of_others() {
    let cache = cache("EDS a=1; CDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("EDS", "a");
    client.sent();
    client.ack("CDS", "1");
    client.ack("EDS", "2");
    for number in 0..10_000 {
        commit(&cache, &format!("EDS x{number}=1"));
        commit(&cache, &format!("EDS -x{number}"));
    }
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n3 CDS a=2; n4 EDS a=1");
}

#[test]
fn g13_nothing_is_removed_before_the_first_commit() {
    let cache = Cache::new();
    let mut client = back(&cache, "LDS", "", &[("a", "1")]);
    client.ask("EDS", "x");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS b=1");
    assert_eq!(client.sent(), "n1 EDS -x; n2 LDS b=1 -a");
}

#[test]
fn a_client_that_was_away_for_many_changes_is_told_the_difference() {
    let cache = cache("LDS a=1 b=1 c=1");
    let mut client = settled(&cache, "LDS", "");
    for step in 0..5000 {
        commit(&cache, &format!("LDS a={step} x{step}=1"));
        commit(&cache, &format!("LDS -x{step}"));
    }
    commit(&cache, "LDS -b d=1");
    let sent = client.sent();
    assert!(sent.starts_with("n2 LDS a=4999 d=1 -b"), "{sent}");
}

#[test]
fn streams_of_one_selection_class_send_the_same_bytes() {
    let cache = cache("EDS a=1 b=1");
    let mut clients: Vec<_> = (0..3).map(|_| settled(&cache, "EDS", "b a")).collect();
    commit(&cache, "EDS other=1");
    // This stream joins later and in another way, and is in the same class now.
    let mut late = settled(&cache, "EDS", "a");
    late.ask("EDS", "b");
    late.sent();
    late.ack("EDS", "2");
    clients.push(late);
    commit(&cache, "EDS a=2");
    let bodies: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            client.sent();
            client.last_bodies.clone()
        })
        .collect();
    assert!(bodies.iter().all(|other| Arc::ptr_eq(&other[0], &bodies[0][0])));
}

#[test]
fn g8_s37_on_ads_a_bad_name_is_told_and_the_rest_works() {
    let cache = cache("EDS a=1; CDS c=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a b\u{1}");
    assert_eq!(client.sent(), "n1 EDS a=1 -b\u{1} !\"b\\u{1}\"(3)");
    // The request has a name, so it is no wildcard (D16).
    client.ask("CDS", "b\u{1}");
    assert_eq!(client.sent(), "n2 CDS -b\u{1} !\"b\\u{1}\"(3)");
    client.ask("CDS", "-b\u{1}");
    assert_eq!(client.sent(), "");
    // An invalid key says nothing about the name with other parameters.
    client.ask("CDS", "c?k\u{1}=v");
    assert_eq!(client.sent(), r#"n3 CDS !"c"(3)"#);
}

#[test]
fn g8_d10_on_the_service_of_one_type_a_bad_name_does_not_exist() {
    let cache = cache("EDS a=1");
    let mut client = Delta::new(&cache);
    let service = Service::Single(type_url("EDS"));
    client.stream = Stream::new(Arc::clone(&client.watch), service, Protocol::Delta, StreamConfig::default());
    let names = ["a", "", "b\u{1}"].map(ResourceName::new).to_vec();
    client.send(DeltaRequest { subscribe: names.into(), ..DeltaRequest::default() });
    // C4: an error must have a name.
    assert_eq!(client.sent(), "n1 EDS a=1 - -b\u{1} !\"b\\u{1}\"(3)");
    let unsubscribe = vec![ResourceName::new("")].into();
    client.send(DeltaRequest { unsubscribe, ..DeltaRequest::default() });
    assert_eq!(client.sent(), "");
}

#[test]
fn d31_s12_the_service_of_one_type_needs_no_type_url() {
    let cache = cache("EDS a=1");
    let ask = |type_url: &str| {
        let service = Service::Single(super::super::fixture::type_url("EDS"));
        let mut stream = Stream::new(cache.watch(), service, Protocol::Delta, StreamConfig::default());
        let subscribe = vec!["a".into()].into();
        stream.on_request(
            Duration::ZERO,
            DeltaRequest { type_url: type_url.into(), subscribe, ..DeltaRequest::default() },
        )?;
        Ok::<_, StreamError>(matches!(stream.next(Duration::ZERO, &cache.snapshot()), Next::Send(_)))
    };
    assert_eq!(ask(""), Ok(true));
    assert!(matches!(ask("another"), Err(StreamError::WrongTypeUrl { .. })));
}

#[test]
fn d29_removals_of_endpoints_and_secrets_are_told_though_envoy_ignores_them() {
    for type_name in ["EDS", "SDS"] {
        let cache = cache(&format!("{type_name} a=1"));
        let mut client = Delta::new(&cache);
        client.ask(type_name, "a");
        client.sent();
        client.ack(type_name, "1");
        commit(&cache, &format!("{type_name} -a"));
        assert_eq!(client.sent(), "");
        client.pass(Duration::from_secs(5));
        assert_eq!(client.sent(), format!("n2 {type_name} -a"));
    }
}

#[test]
fn d12_s6_what_changed_and_changed_back_is_not_sent() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    commit(&cache, "EDS b=2");
    assert_eq!(client.sent(), "n2 EDS b=2");
    // While that response waits for its answer.
    commit(&cache, "EDS a=2");
    commit(&cache, "EDS a=1");
    client.ack("EDS", "2");
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n3 EDS a=2");
}

#[test]
fn d9_d21_what_was_brought_and_given_up_is_sent_when_it_is_asked_for_again() {
    let cache = cache("EDS a=1");
    let mut client = back(&cache, "EDS", "a", &[("a", "1")]);
    client.ask("EDS", "-a");
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n1 EDS a=1");
}

/// Regression: the removal was withheld as if the client still had the cluster (seed 12491).
#[test]
fn d10_d21_what_was_brought_and_given_up_is_answered_at_once_if_it_does_not_exist() {
    let cache = cache("CDS a=1; LDS l=1");
    commit(&cache, "CDS -a");
    let mut client = back(&cache, "CDS", "a?env=b", &[("a", "1")]);
    client.ask("CDS", "a -a?env=b");
    assert_eq!(client.sent(), "n1 CDS -a");
    // A wildcard is no answer for the name, so the removal goes as for what the client has (seed 14378).
    let mut client = back(&cache, "X", "*?env=b", &[("a", "1")]);
    client.ask("X", "* -*?env=b");
    assert_eq!(client.sent(), "n1 X -a");
}

/// Regression: the client gives up the wildcard, and with it the resource that it brought (D20). A
/// name or wildcard that it then subscribes to was not answered (seeds 6131 and 16430).
#[test]
fn d9_d20_what_was_brought_under_a_wildcard_is_sent_to_a_later_subscription() {
    let cache = cache("EDS a=1");
    for (later, expected) in [("a", "a=1"), ("*", "a=1"), ("a?env=prod", "a[]=1"), ("*?env=prod", "a[]=1")] {
        let mut client = back(&cache, "EDS", "*", &[("a", "1")]);
        client.ask("EDS", &format!("-* {later}"));
        assert_eq!(client.sent(), format!("n1 EDS {expected}"), "{later}");
    }
    let mut client = back(&cache, "EDS", "* a", &[("a", "1")]);
    client.ask("EDS", "-*");
    assert_eq!(client.sent(), "", "it still subscribes to the name");
}

/// Regression: a resource that the client brought did not exist for a while, and was sent again when
/// it came back, although its removal was still withheld (seeds 8648 and 11278).
#[test]
fn v29_d21_what_was_brought_and_comes_back_before_its_removal_is_no_change() {
    for (list, content) in [("a b", "1"), ("a b?env=prod", "1"), ("a b", "2")] {
        let cache = cache("EDS b=1");
        let mut client = back(&cache, "EDS", list, &[("a", "1"), ("b", "1")]);
        client.sent();
        commit(&cache, &format!("EDS a={content}"));
        let expected = if content == "1" { "" } else { "n1 EDS a=2" };
        assert_eq!(client.sent(), expected, "{list}, {content}");
        client.pass(Duration::from_secs(5));
        assert_eq!(client.sent(), "", "nothing is removed");
    }
}

#[test]
fn d1_d9_what_was_brought_and_not_asked_for_is_sent_when_it_is_asked_for_later() {
    let cache = cache("EDS a=1 b=1");
    let mut client = back(&cache, "EDS", "b", &[("a", "1"), ("b", "1")]);
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n1 EDS a=1");
}

#[test]
fn d17_a_name_that_cannot_be_does_not_end_the_legacy_wildcard_later() {
    let cache = cache("CDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    assert_eq!(client.sent(), "n1 CDS a=1");
    client.ack("CDS", "1");
    client.send(DeltaRequest {
        type_url: type_url("CDS").as_str().into(),
        subscribe: vec![ResourceName::new("")].into(),
        ..DeltaRequest::default()
    });
    assert_eq!(client.sent(), "n2 CDS -");
    client.ack("CDS", "2");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n3 CDS a=2");
}

#[test]
fn s21_who_asked_for_nothing_and_gives_something_up_is_still_told_so() {
    let cache = cache("EDS a=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "");
    client.ask("EDS", "-a");
    assert_eq!(client.sent(), "n1 EDS");
}

/// Regression: the endpoints came back with the content that the client had, and were not sent
/// although their cluster was sent meanwhile, so the cluster stayed warming.
#[test]
fn s34_d9_endpoints_that_come_back_are_sent_if_their_cluster_was_sent() {
    // The client brought them.
    let cache = cache("CDS e=2");
    let mut client = back(&cache, "CDS", "*", &[("e", "1")]);
    assert_eq!(client.sent(), "n1 CDS e=2");
    client.ask_with("EDS", "e", "", &[("e", &version("EDS", "e", "1"))]);
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS e=1");
    assert_eq!(client.sent(), "n2 EDS e=1");
    // They were sent on this stream.
    let cache = tests::cache("CDS e=1; EDS e=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    client.ask("EDS", "e");
    assert_eq!(client.sent(), "n1 CDS e=1; n2 EDS e=1");
    client.ack("CDS", "1");
    client.ack("EDS", "2");
    commit(&cache, "EDS -e");
    commit(&cache, "CDS e=2");
    assert_eq!(client.sent(), "n3 CDS e=2");
    client.ack("CDS", "3");
    commit(&cache, "EDS e=1");
    assert_eq!(client.sent(), "n4 EDS e=1");
}
