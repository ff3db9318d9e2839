use std::sync::Arc;
use std::time::Duration;

use super::super::fixture::{Sotw, commit, type_url};
use super::*;
use crate::Cache;
use crate::name::Nonce;
use crate::server::{Protocol, Service, StreamConfig};

pub(super) fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A client that has subscribed to `list` and ACKed the response `n1`.
fn settled(cache: &Arc<Cache>, type_name: &str, list: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    client.ask(type_name, list, "");
    client.sent();
    client.ack(type_name, "1");
    client
}

#[test]
fn s1_the_first_request_of_a_type_is_answered() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a b", "");
    assert_eq!(client.sent(), "n1 EDS a=1 b=1");
}

#[test]
fn s2_a_nonce_is_new_also_when_the_content_repeats() {
    let cache = cache("EDS a=1");
    let mut client = settled(&cache, "EDS", "a");
    client.ask("EDS", "", "1");
    client.ask("EDS", "a", "1");
    let first = client.last.version_info.clone();
    assert_eq!(client.sent(), "n2 EDS a=1");
    assert_eq!((client.last.nonce.as_str(), &client.last.version_info), ("2", &first));
}

#[test]
fn s3_an_ack_is_booked_once() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.sent();
    let acked = Verdict::Acked { type_url: type_url("EDS"), nonce: Nonce::nth(1) };
    assert_eq!(client.ack("EDS", "1"), Some(acked));
    assert_eq!(client.ack("EDS", "1"), None);
}

#[test]
fn s4_a_nack_is_booked_with_the_words_of_the_client() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.sent();
    let nacked = Verdict::Nacked {
        type_url: type_url("EDS"),
        nonce: Nonce::nth(1),
        detail: "bad".into(),
        is_repeat: false,
    };
    assert_eq!(client.nack("EDS", "1"), Some(nacked));
}

#[test]
fn s5_a_nack_with_the_new_version_is_still_a_nack() {
    let cache = cache("LDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "a", "");
    client.sent();
    let verdict = client.send(SotwRequest {
        type_url: type_url("LDS").as_str().into(),
        version_info: client.last.version_info.clone(),
        response_nonce: Nonce::parse("1"),
        error_detail: Some("one of two is bad".into()),
        requested: None,
    });
    assert!(matches!(verdict, Some(Verdict::Nacked { .. })), "{verdict:?}");
    assert_eq!(client.sent(), "");
}

#[test]
fn s6_after_a_nack_nothing_is_sent_until_the_content_changes() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    commit(&cache, "EDS a=bad");
    assert_eq!(client.sent(), "n2 EDS a=bad");
    client.nack("EDS", "2");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    // A return to content that was ACKed before is a change.
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n3 EDS a=1");
}

#[test]
fn s6b_a_full_response_sent_for_another_reason_still_holds_what_was_nacked() {
    let cache = cache("CDS a=1");
    let mut client = settled(&cache, "CDS", "");
    commit(&cache, "CDS a=bad");
    client.sent();
    client.nack("CDS", "2");
    commit(&cache, "CDS b=1");
    assert_eq!(client.sent(), "n3 CDS a=bad b=1");
}

#[test]
fn s7_an_ack_is_not_answered() {
    let cache = cache("EDS a=1");
    let mut client = settled(&cache, "EDS", "a");
    client.ask("EDS", "a", "1");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s8_a_stale_request_changes_the_subscription_and_is_answered_with_the_ack_v6() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut client = settled(&cache, "EDS", "a b");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n2 EDS a=2");
    client.ask("EDS", "a b c", "1");
    assert_eq!(client.sent(), "");
    client.ask("EDS", "a b c", "2");
    assert_eq!(client.sent(), "n3 EDS c=1");
}

#[test]
fn s8_names_of_a_stale_request_are_answered_after_two_seconds_without_an_ack_v6() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut client = settled(&cache, "EDS", "a b");
    commit(&cache, "EDS a=2");
    client.sent();
    client.ask("EDS", "a b c", "1");
    assert_eq!(client.waits_until(), Some(2000));
    client.pass(Duration::from_secs(2));
    assert_eq!(client.sent(), "n3 EDS c=1");
}

#[test]
fn s8_names_of_a_stale_request_go_with_the_next_response_for_any_reason() {
    let cache = cache("EDS a=1 c=1");
    let mut client = settled(&cache, "EDS", "a");
    commit(&cache, "EDS a=2");
    client.sent();
    client.ask("EDS", "a c", "1");
    commit(&cache, "EDS a=3");
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n3 EDS a=3 c=1");
}

#[test]
fn s8_a_dropped_name_is_no_longer_owed() {
    let cache = cache("EDS a=1 c=1");
    let mut client = settled(&cache, "EDS", "a");
    commit(&cache, "EDS a=2");
    client.sent();
    client.ask("EDS", "a c", "1");
    client.ask("EDS", "a", "1");
    client.pass(Duration::from_secs(5));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s8b_lists_are_not_coalesced_so_a_name_dropped_and_added_is_owed_again() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    client.ask("EDS", "a", "1");
    client.ask("EDS", "a b", "1");
    assert_eq!(client.sent(), "n2 EDS b=1");
}

#[test]
fn s8c_a_request_with_the_nonce_and_an_old_version_is_an_ack() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.sent();
    assert!(matches!(client.ack("EDS", "1"), Some(Verdict::Acked { .. })));
}

#[test]
fn s9_of_several_requests_only_the_newest_needs_an_answer() {
    let cache = cache("EDS a=1 b=1 c=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.ask("EDS", "b", "");
    client.ask("EDS", "b c", "");
    assert_eq!(client.sent(), "n1 EDS b=1 c=1");
}

#[test]
fn s9b_newer_content_waits_for_the_ack_but_not_longer_than_a_second_v30() {
    let cache = cache("CDS a=1");
    let mut client = settled(&cache, "CDS", "");
    commit(&cache, "CDS b=1");
    assert_eq!(client.sent(), "n2 CDS a=1 b=1");
    commit(&cache, "CDS b=2");
    commit(&cache, "CDS c=1");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(1000)));
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n3 CDS a=1 b=2 c=1");
    // The ACK of the newest response counts for both.
    client.ack("CDS", "3");
    commit(&cache, "CDS c=2");
    assert_eq!(client.sent(), "n4 CDS a=1 b=2 c=2");
}

#[test]
fn s10_a_nonce_from_another_stream_is_not_stale_on_the_first_request() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "17");
    assert_eq!(client.sent(), "n1 EDS a=1");
}

#[test]
fn s12_an_empty_type_means_the_type_of_the_service() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::on(&cache, Service::Single(type_url("EDS")));
    client.send(SotwRequest { requested: Some(vec!["a".into()].into()), ..SotwRequest::default() });
    assert_eq!(client.sent(), "n1 EDS a=1");
}

#[test]
fn g2_g3_a_request_without_a_type_or_with_another_ends_the_stream() {
    let cache = cache("EDS a=1");
    let request = |type_url: &str| SotwRequest { type_url: type_url.into(), ..SotwRequest::default() };
    let mut aggregated = Sotw::new(&cache).stream;
    let mut single = Sotw::on(&cache, Service::Single(type_url("EDS"))).stream;
    assert_eq!(aggregated.on_request(Duration::ZERO, request("")), Err(StreamError::MissingTypeUrl));
    let found = type_url("CDS");
    let error = StreamError::WrongTypeUrl { expected: type_url("EDS"), found: found.clone() };
    assert_eq!(single.on_request(Duration::ZERO, request(found.as_str())), Err(error));
}

#[test]
fn g9_too_many_names_end_the_stream() {
    let cache = cache("EDS a=1");
    let config = StreamConfig { names_limit: 2, ..StreamConfig::default() };
    let ask = |names: &[&str]| {
        let service = Service::Single(type_url("EDS"));
        let mut stream = Stream::new(cache.watch(), service, Protocol::Sotw, config.clone());
        let names: Vec<_> = names.iter().map(|name| ResourceName::new(*name)).collect();
        let requested = Some(names.into());
        let type_url = type_url("EDS").as_str().into();
        stream.on_request(Duration::ZERO, SotwRequest { type_url, requested, ..SotwRequest::default() })
    };
    assert_eq!(ask(&["a", "b"]), Ok(None));
    let error = ask(&["a", "b", "c"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 names of envoy.config.endpoint.v3.ClusterLoadAssignment on one stream exceed the limit of 2"
    );
}

#[test]
fn s13_types_of_one_stream_do_not_affect_each_other_v14() {
    let cache = cache("CDS a=1; EDS a=1; RDS r=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    client.ask("EDS", "a", "");
    client.ask("RDS", "r", "");
    assert_eq!(client.sent(), "n1 CDS a=1; n2 EDS a=1; n3 RDS r=1");
    client.nack("RDS", "3");
    client.ask("EDS", "a", "1");
    client.ack("CDS", "1");
    commit(&cache, "CDS a=static");
    assert_eq!(client.sent(), "n4 CDS a=static");
    client.ack("EDS", "2");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n5 EDS a=2");
}

#[test]
fn s14_the_list_is_the_whole_subscription() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    client.ask("EDS", "b", "1");
    commit(&cache, "EDS a=2 b=2");
    assert_eq!(client.sent(), "n2 EDS b=2");
}

#[test]
fn s15_an_added_name_is_sent_also_where_all_were_sent_v5() {
    let cache = cache("EDS a=1 b=1 c=1; CDS a=1 b=1 c=1");
    let mut client = settled(&cache, "EDS", "a b");
    client.ask("EDS", "a b c", "1");
    assert_eq!(client.sent(), "n2 EDS c=1");
    let mut client = settled(&cache, "CDS", "a b");
    client.ask("CDS", "a b c", "1");
    assert_eq!(client.sent(), "n2 CDS a=1 b=1 c=1");
}

#[test]
fn s16_a_name_dropped_and_later_added_is_sent_again() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "a b");
    client.ask("EDS", "a", "1");
    assert_eq!(client.sent(), "");
    client.ask("EDS", "a b", "1");
    assert_eq!(client.sent(), "n2 EDS b=1");
}

#[test]
fn s17_a_missing_name_is_not_answered_and_sent_when_it_is_created() {
    let cache = cache("EDS other=1; LDS other=1");
    for type_name in ["EDS", "LDS"] {
        let mut client = Sotw::new(&cache);
        client.ask(type_name, "a", "");
        assert_eq!(client.sent(), "");
        commit(&cache, &format!("{type_name} a=1"));
        assert_eq!(client.sent(), format!("n1 {type_name} a=1"));
    }
}

#[test]
fn s18_the_star_asks_for_everything_of_any_type() {
    let cache = cache("EDS a=1 b=1");
    let mut client = settled(&cache, "EDS", "*");
    commit(&cache, "EDS c=1");
    assert_eq!(client.sent(), "n2 EDS c=1");
}

#[test]
fn s19_an_empty_first_list_asks_for_everything_until_a_list_that_is_not_empty() {
    let cache = cache("CDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    assert_eq!(client.sent(), "n1 CDS a=1 b=1");
    client.ask("CDS", "a", "1");
    client.ask("CDS", "", "1");
    commit(&cache, "CDS a=2 b=2");
    assert_eq!(client.sent(), "");
}

#[test]
fn s20_the_wildcard_vector_on_listeners_and_clusters_v9() {
    for type_name in ["CDS", "LDS"] {
        let cache = cache(&format!("{type_name} A=1 B=1"));
        let mut client = settled(&cache, type_name, "");
        client.ask(type_name, "* A", "1");
        // A was sent before it was subscribed to, and is sent again on the subscription (S15).
        assert_eq!(client.sent(), format!("n2 {type_name} A=1 B=1"));
        client.ask(type_name, "A", "2");
        commit(&cache, &format!("{type_name} B=2"));
        assert_eq!(client.sent(), "");
        commit(&cache, &format!("{type_name} A=2"));
        assert_eq!(client.sent(), format!("n3 {type_name} A=2"));
        client.ask(type_name, "", "3");
        commit(&cache, &format!("{type_name} A=3"));
        assert_eq!(client.sent(), "");
    }
}

#[test]
fn s21_an_empty_first_list_means_nothing_where_there_is_no_legacy_wildcard() {
    let cache = cache("EDS a=1; SDS s=1; unheard.of.Type u=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "", "");
    client.ask("SDS", "", "");
    assert_eq!(client.sent(), "");
    client.ask("SDS", "s", "");
    assert_eq!(client.sent(), "n1 SDS s=1");
    client.ask("unheard.of.Type", "", "");
    assert_eq!(client.sent(), "n2 unheard.of.Type u=1");
}

#[test]
fn s24_a_type_without_a_subscription_is_never_sent_though_a_response_was_due() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.ask("EDS", "", "");
    commit(&cache, "EDS a=2; CDS c=1");
    assert_eq!(client.sent(), "");
}

#[test]
fn s25_a_deleted_listener_is_left_out_of_the_next_response_v8() {
    let cache = cache("LDS a=1 b=1");
    let mut client = settled(&cache, "LDS", "");
    commit(&cache, "LDS -b");
    assert_eq!(client.sent(), "n2 LDS a=1");
    client.ack("LDS", "2");
    commit(&cache, "LDS -a");
    assert_eq!(client.sent(), "n3 LDS");
}

#[test]
fn s26_other_types_send_only_what_changed_and_nothing_for_a_deletion_v8() {
    let cache = cache("EDS a=1 b=1; SRDS s=1 t=1");
    let mut client = settled(&cache, "EDS", "a b");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n2 EDS a=2");
    client.ack("EDS", "2");
    commit(&cache, "EDS -b");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    // Envoy compares scopes with those that it has, so all are sent.
    let mut client = settled(&cache, "SRDS", "");
    commit(&cache, "SRDS s=2");
    assert_eq!(client.sent(), "n2 SRDS s=2 t=1");
}

#[test]
fn s27_an_empty_wildcard_is_answered_at_once_and_when_the_star_is_added() {
    let cache = cache("EDS a=1");
    for type_name in ["CDS", "LDS"] {
        let mut client = Sotw::new(&cache);
        client.ask(type_name, "", "");
        assert_eq!(client.sent(), format!("n1 {type_name}"));
        let mut client = Sotw::new(&cache);
        client.ask(type_name, "x", "");
        client.ask(type_name, "*", "");
        assert_eq!(client.sent(), format!("n1 {type_name}"));
    }
}

#[test]
fn g13_nothing_is_answered_before_the_first_commit() {
    let cache = Cache::new();
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "");
    assert_eq!(client.sent(), "n1 CDS");
}

#[test]
fn s29_every_resource_has_the_type_of_the_response() {
    let cache = cache("CDS a=1 b=1; unheard.of.Type u=1");
    for type_name in ["CDS", "unheard.of.Type"] {
        let client = settled(&cache, type_name, "");
        let types: Vec<_> = client.last.resources.iter().map(|any| any.type_url.as_str()).collect();
        assert!(
            !types.is_empty() && types.iter().all(|url| *url == type_url(type_name).as_str()),
            "{types:?}"
        );
    }
}

#[test]
fn s31_the_version_follows_the_selected_content_and_nothing_else() {
    let (one, other) = (cache("EDS a=1 b=1 c=1"), cache("EDS a=0"));
    commit(&other, "EDS b=1 x=1");
    commit(&other, "EDS a=1 -x");
    let version = |cache: &Arc<Cache>, list: &str| {
        let client = settled(cache, "EDS", list);
        client.last.version_info
    };
    assert_eq!(version(&one, "a b"), version(&other, "b a"));
    assert_ne!(version(&one, "a b"), version(&one, "a b c"));
    commit(&other, "EDS a=2");
    assert_ne!(version(&one, "a b"), version(&other, "a b"));
}

#[test]
fn s31_the_version_kept_up_with_changes_is_that_of_a_fresh_stream() {
    let cache = cache("EDS a=1 b=1 c=1; LDS l=1 m=1");
    let mut endpoints = settled(&cache, "EDS", "a b");
    let mut listeners = settled(&cache, "LDS", "l m");
    for step in ["EDS a=2; LDS l=2", "EDS b=3 a=3", "EDS a=4; LDS -m", "EDS -a", "EDS a=5; LDS m=5"] {
        commit(&cache, step);
        for (client, type_name, list) in [(&mut endpoints, "EDS", "a b"), (&mut listeners, "LDS", "l m")] {
            client.pass(Duration::from_secs(1));
            if !client.sent().is_empty() {
                let fresh = settled(&cache, type_name, list);
                assert_eq!(client.last.version_info, fresh.last.version_info, "after {step}");
            }
        }
    }
}

#[test]
fn s32_only_a_wildcard_that_brings_the_current_version_is_not_sent_again() {
    let cache = cache("CDS a=1; EDS a=1");
    let version = |type_name: &str, list: &str| settled(&cache, type_name, list).last.version_info;
    let back = |type_name: &str, list: &str, version_info: String| {
        let mut client = Sotw::new(&cache);
        let names: Vec<_> = list.split_whitespace().map(ResourceName::new).collect();
        let requested = Some(names.into());
        let type_url = type_url(type_name).as_str().into();
        client.send(SotwRequest { type_url, version_info, requested, ..SotwRequest::default() });
        client
    };
    let mut client = back("CDS", "", version("CDS", ""));
    assert_eq!(client.sent(), "");
    assert_eq!(back("EDS", "a", version("EDS", "a")).sent(), "n1 EDS a=1");
    assert_eq!(back("CDS", "", "older".into()).sent(), "n1 CDS a=1");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n1 CDS a=2");
}

#[test]
fn s25_a_client_that_comes_back_hears_that_the_clusters_it_names_are_gone() {
    let cache = cache("CDS other=1");
    let mut client = Sotw::new(&cache);
    let (type_url, version_info) = (type_url("CDS").as_str().into(), "older".into());
    client.send(SotwRequest {
        type_url,
        version_info,
        requested: Some(vec!["gone".into()].into()),
        ..SotwRequest::default()
    });
    assert_eq!(client.sent(), "n1 CDS");
}

#[test]
fn streams_of_one_selection_class_send_the_same_bytes() {
    let cache = cache("EDS a=1 b=1");
    let mut clients: Vec<_> = (0..3).map(|_| settled(&cache, "EDS", "b a")).collect();
    commit(&cache, "EDS other=1");
    clients.push(settled(&cache, "EDS", "a b"));
    commit(&cache, "EDS a=2");
    let bodies: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            assert_eq!(client.sent(), "n2 EDS a=2");
            client.last_bodies.clone()
        })
        .collect();
    assert!(bodies.iter().all(|other| Arc::ptr_eq(&other[0], &bodies[0][0])));
}

#[test]
fn a_large_payload_is_sent_as_the_very_bytes_of_the_cache() {
    let cache = Cache::new();
    let content = "x".repeat(10_000);
    commit(&cache, &format!("EDS small=1 large={content}"));
    let client = settled(&cache, "EDS", "small large");
    let snapshot = cache.snapshot();
    let stored =
        snapshot.get(&type_url("EDS"), &"large".into()).unwrap().iter().next().unwrap().payload().clone();
    let chunks = client.last_bodies[0].chunks();
    assert!(chunks.iter().any(|chunk| chunk.as_ptr() == stored.as_ptr()));
}

#[test]
fn g8_s37_on_the_service_of_one_type_a_bad_name_is_an_error_once_and_an_empty_one_nothing() {
    let cache = cache("EDS a=1; CDS c=1");
    let mut endpoints = Sotw::on(&cache, Service::Single(type_url("EDS")));
    let ask = |client: &mut Sotw, names: &[&str], nonce: &str| {
        let names: Vec<_> = names.iter().map(|name| ResourceName::new(*name)).collect();
        let (requested, response_nonce) = (Some(names.into()), Nonce::parse(nonce));
        client.send(SotwRequest { requested, response_nonce, ..SotwRequest::default() });
        client.sent()
    };
    assert_eq!(ask(&mut endpoints, &["a", "b\u{1}"], ""), r#"n1 EDS a=1 !"b\u{1}"(3)"#);
    assert_eq!(ask(&mut endpoints, &["a", "b\u{1}"], "1"), "");
    // Some clients unsubscribe this way.
    assert_eq!(ask(&mut endpoints, &[""], "1"), "");
    commit(&cache, "EDS a=2");
    assert_eq!(endpoints.sent(), "");
    assert_eq!(ask(&mut endpoints, &["", "a"], "1"), "n2 EDS a=2");
    // An empty name is a name, so this is no wildcard (S19).
    let mut clusters = Sotw::on(&cache, Service::Single(type_url("CDS")));
    assert_eq!(ask(&mut clusters, &[""], ""), "");
    assert_eq!(ask(&mut clusters, &[], ""), "");
}

#[test]
fn g8_s37_on_ads_a_bad_name_is_told_once_and_the_rest_works() {
    let cache = cache("EDS a=1; CDS c=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a b\u{1}", "");
    assert_eq!(client.sent(), r#"n1 EDS a=1 !"b\u{1}"(3)"#);
    client.ask("EDS", "a b\u{1}", "1");
    assert_eq!(client.sent(), "");
    // The request has a name, so it is no wildcard; and a single error is sent alone.
    client.ask("CDS", "b\u{1}?k=v", "");
    assert_eq!(client.sent(), r#"n2 CDS !"b\u{1}"(3)"#);
    client.ask("CDS", "", "2");
    assert_eq!(client.sent(), "");
    client.ask("CDS", "c?k\u{2}=v c", "2");
    assert_eq!(client.sent(), r#"n3 CDS c=1 !"c"(3)"#);
}

#[test]
fn s28_what_changed_and_was_asked_for_stands_once_in_the_response() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    assert_eq!(client.sent(), "n1 EDS a=1");
    client.ask("EDS", "b", "1");
    client.ask("EDS", "a b b", "1");
    commit(&cache, "EDS a=2 b=2");
    assert_eq!(client.sent(), "n2 EDS a=2 b=2");
}

#[test]
fn s6c_a_nack_that_adds_a_name_is_answered_with_that_name_alone_v7() {
    let cache = cache("EDS a=1 b=bad c=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a b", "");
    assert_eq!(client.sent(), "n1 EDS a=1 b=bad");
    let requested = Some(["a", "b", "c"].map(ResourceName::new).to_vec().into());
    let (type_url, error_detail) = (type_url("EDS").as_str().into(), Some("b is bad".into()));
    let response_nonce = Nonce::parse("1");
    client.send(SotwRequest { type_url, response_nonce, error_detail, requested, ..SotwRequest::default() });
    assert_eq!(client.sent(), "n2 EDS a=1; n3 EDS c=1");
    client.ack("EDS", "2");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS b=bad");
    client.nack("EDS", "4");
    commit(&cache, "EDS b=2");
    assert_eq!(client.sent(), "n5 EDS b=2");
}

#[test]
fn g8_a_client_that_sends_nothing_but_bad_names_is_sent_away() {
    let cache = cache("EDS a=1");
    let ask = |count: usize| {
        let mut stream =
            Stream::new(cache.watch(), Service::Aggregated, Protocol::Sotw, StreamConfig::default());
        let names: Vec<_> = (0..count).map(|number| ResourceName::new(format!("{number}\u{1}"))).collect();
        let (type_url, requested) = (type_url("EDS").as_str().into(), Some(names.into()));
        stream.on_request(Duration::ZERO, SotwRequest { type_url, requested, ..SotwRequest::default() })
    };
    assert_eq!(ask(100), Ok(None));
    let error = ask(101).unwrap_err().to_string();
    assert!(error.starts_with("101 names of ") && error.ends_with("exceeds the limit of 100"), "{error}");
}
