//! Resource errors and types that are not served, in both protocols (S37, G4, G5, G13).

use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Delta, Sotw, commit, type_url, version};
use super::{Service, Serving, SotwRequest, StreamConfig, StreamError, TypeConfig};
use crate::{Cache, Constraints, Transaction, VariantId};

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A configuration for one type.
fn with_type(short: &str, change: impl FnOnce(&mut TypeConfig)) -> StreamConfig {
    let mut config = TypeConfig::of(type_url(short).as_str());
    change(&mut config);
    StreamConfig { types: [(type_url(short), config)].into(), ..StreamConfig::default() }
}

fn unserved(short: &str) -> StreamConfig {
    with_type(short, |config| config.serving = Serving::NotServed)
}

fn telling(cache: &Arc<Cache>) -> Sotw {
    let config = StreamConfig { sotw_not_found: true, ..StreamConfig::default() };
    Sotw::with(cache, Service::Aggregated, config)
}

#[test]
fn v8_s37_a_deletion_is_told_once_by_an_error_to_who_may_be_told() {
    let cache = cache("EDS a=1 b=1");
    let (mut told, mut other) = (telling(&cache), Sotw::new(&cache));
    for client in [&mut told, &mut other] {
        client.ask("EDS", "a b", "");
        assert_eq!(client.sent(), "n1 EDS a=1 b=1");
        client.ack("EDS", "1");
    }
    commit(&cache, "EDS -a");
    for client in [&mut told, &mut other] {
        assert_eq!(client.sent(), "", "it waits for the grace time (S33)");
        client.pass(Duration::from_secs(5));
    }
    assert_eq!(told.sent(), "n2 EDS !\"a\"(5)");
    assert_eq!(other.sent(), "");
    told.ack("EDS", "2");
    assert_eq!(told.sent(), "");
    commit(&cache, "EDS a=2");
    assert_eq!(told.sent(), "n3 EDS a=2");
}

/// A client took the error for the end of the resource, although the response had its new variant.
#[test]
fn t31_t36_a_variant_that_is_replaced_is_an_error_for_those_locators_only_that_get_no_other() {
    let cache = cache("X r=A");
    let (mut switched, mut both) = (telling(&cache), telling(&cache));
    switched.ask("X", "r?v=2", "");
    both.ask("X", "r?v=2 r?v=3", "");
    for client in [&mut switched, &mut both] {
        assert_eq!(client.sent(), "n1 X r[]=A");
        client.ack("X", "1");
    }
    commit(&cache, "X -r r[v=2]=B");
    assert_eq!(switched.sent(), "n2 X r[v=2]=B");
    assert_eq!(both.sent(), "n2 X r[v=2]=B !r[v=3](5)");
    for client in [&mut switched, &mut both] {
        client.ack("X", "2");
    }
    commit(&cache, "X -r[v=2]");
    assert_eq!(switched.sent(), "n3 X !r[v=2](5)");
    assert_eq!(both.sent(), "n3 X !r[v=2](5)");
}

#[test]
fn v8_of_clusters_a_deletion_is_told_by_what_is_left() {
    let cache = cache("CDS a=1 b=1");
    let mut client = telling(&cache);
    client.ask("CDS", "", "");
    assert_eq!(client.sent(), "n1 CDS a=1 b=1");
    client.ack("CDS", "1");
    commit(&cache, "CDS -b");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 CDS a=1");
    client.ack("CDS", "2");
    commit(&cache, "CDS -a");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 CDS");
}

#[test]
fn s37_a_missing_name_is_told_when_it_is_asked_for_and_beside_no_resource() {
    let cache = cache("EDS a=1");
    let mut client = telling(&cache);
    client.ask("EDS", "a x", "");
    assert_eq!(client.sent(), "n1 EDS a=1 !\"x\"(5)");
    client.ask("EDS", "a x y", "1");
    assert_eq!(client.sent(), "n2 EDS !\"y\"(5)");
    commit(&cache, "EDS x=1");
    client.ack("EDS", "2");
    assert_eq!(client.sent(), "n3 EDS x=1");
}

#[test]
fn s17_by_default_a_missing_name_is_not_answered_in_sotw() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "x", "");
    assert_eq!(client.sent(), "");
}

#[test]
fn t36_the_error_of_one_of_several_locators_names_its_parameters() {
    let cache = cache("X r[env=prod]=A r[env=test]=B");
    let mut client = telling(&cache);
    client.ask("X", "r?env=prod r?env=qa", "");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A !r[env=qa](5)");
    client.ask("X", "r?env=qa", "1");
    client.ask("X", "r?env=qa *?env=dev", "1");
    assert_eq!(client.sent(), "n2 X", "none for the wildcard");
}

#[test]
fn d28_in_delta_what_is_gone_is_a_removal_also_beside_an_error() {
    let cache = cache("EDS a=1");
    let mut client = Delta::with(&cache, unserved("EDS"));
    client.ask("EDS", "a x");
    assert_eq!(client.sent(), "n1 EDS -a -x !\"a\"(12) !\"x\"(12)");
}

#[test]
fn g4_an_unserved_type_is_told_by_errors_and_the_stream_goes_on() {
    let cache = cache("EDS a=1; CDS c=static");
    let mut client = Sotw::with(&cache, Service::Aggregated, unserved("EDS"));
    client.ask("EDS", "a", "");
    assert_eq!(client.sent(), "n1 EDS !\"a\"(12)");
    client.ack("EDS", "1");
    commit(&cache, "EDS a=2");
    client.ask("CDS", "", "");
    assert_eq!(client.sent(), "n2 CDS c=static", "and nothing of the type is pushed");
    let mut client = Sotw::with(&cache, Service::Aggregated, unserved("EDS"));
    client.ask("EDS", "*", "1");
    assert_eq!(client.sent(), "n1 EDS !\"*\"(12)", "whatever version the client brings");
}

#[test]
fn g4_a_full_state_of_an_unserved_type_is_not_sent_as_it_would_delete() {
    let cache = cache("CDS a=1");
    let mut client = Sotw::with(&cache, Service::Aggregated, unserved("CDS"));
    client.ask("CDS", "a", "");
    assert_eq!(client.sent(), "");
    client.ask("CDS", "*", "");
    assert_eq!(client.sent(), "");
}

#[test]
fn g4_what_a_client_brought_of_an_unserved_type_is_not_removed() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Delta::with(&cache, unserved("EDS"));
    client.ask_with("EDS", "a b", "", &[("a", &version("EDS", "a", "1"))]);
    assert_eq!(client.sent(), "n1 EDS -b !\"a\"(12) !\"b\"(12)");
    let mut client = Delta::with(&cache, unserved("CDS"));
    client.ask("CDS", "");
    assert_eq!(client.sent(), "n1 CDS !\"*\"(12)", "a wildcard is not left waiting, and is not empty");
}

/// The server forgot what the client brought with its first request, and removed what a later one named (seed 317
/// of the simulator).
#[test]
fn g4_what_a_client_brought_of_an_unserved_type_is_not_removed_by_a_later_request_either() {
    let cache = cache("EDS a=1 b=1");
    let brought = [("a", version("EDS", "a", "1")), ("b", version("EDS", "b", "1"))];
    let brought = brought.each_ref().map(|(name, version)| (*name, version.as_str()));
    for (first, more) in [("*", " !\"*\"(12)"), ("a?env=a b?env=a", "")] {
        let mut client = Delta::with(&cache, unserved("EDS"));
        client.ask_with("EDS", first, "", &brought);
        client.sent();
        client.ack("EDS", "1");
        client.ask("EDS", "b c");
        assert_eq!(client.sent(), format!("n2 EDS -c !\"b\"(12) !\"c\"(12){more}"), "{first}");
        client.ack("EDS", "2");
        client.ask("EDS", "-b -b?env=a -*");
        client.ask("EDS", "b");
        assert_eq!(client.sent(), "n3 EDS -b !\"b\"(12)", "{first}: it dropped what it had");
    }
}

#[test]
fn g4_a_refused_type_ends_the_stream() {
    let cache = cache("EDS a=1");
    let config = with_type("EDS", |config| config.serving = Serving::Refused);
    let mut client = Sotw::with(&cache, Service::Aggregated, config);
    let request = SotwRequest { type_url: type_url("EDS").as_str().into(), ..SotwRequest::default() };
    let error = client.stream.on_request(Duration::ZERO, request).unwrap_err();
    assert_eq!(error, StreamError::NotServed { type_url: type_url("EDS") });
    assert_eq!(error.to_string(), "envoy.config.endpoint.v3.ClusterLoadAssignment is not served here");
}

#[test]
fn g5_types_without_a_sotw_method_are_not_served_on_an_aggregated_sotw_stream() {
    let cache = cache("VHDS r/a=1");
    let mut client = Sotw::new(&cache);
    client.ask("VHDS", "r/a", "");
    assert_eq!(client.sent(), "n1 VHDS !\"r/a\"(12)");
}

#[test]
fn g13_before_the_first_commit_names_wait_and_are_told_to_be_unknown_after_the_deadline() {
    for is_delta in [false, true] {
        let cache = Cache::new();
        let (mut sotw, mut delta) = (Sotw::new(&cache), Delta::new(&cache));
        let wait = Duration::from_secs(10);
        let answers = if is_delta {
            delta.ask("EDS", "a");
            let first = (delta.sent(), delta.waits_until());
            delta.pass(wait);
            let second = delta.sent();
            delta.ack("EDS", "1");
            delta.pass(wait);
            let third = delta.sent();
            commit(&cache, "EDS a=1");
            (first, second, third, delta.sent())
        } else {
            sotw.ask("EDS", "a", "");
            let first = (sotw.sent(), sotw.waits_until());
            sotw.pass(wait);
            let second = sotw.sent();
            sotw.ack("EDS", "1");
            sotw.pass(wait);
            let third = sotw.sent();
            commit(&cache, "EDS a=1");
            (first, second, third, sotw.sent())
        };
        let unknown = "n1 EDS !\"a\"(14)".to_owned();
        assert_eq!(answers, ((String::new(), Some(10_000)), unknown, String::new(), "n2 EDS a=1".to_owned()));
    }
}

#[test]
fn g13_no_full_state_is_told_before_the_first_commit() {
    let cache = Cache::new();
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "a", "");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// A name that the store did not know yet was answered as absent, while it took a snapshot.
#[test]
fn g13_while_the_source_lacks_changes_nothing_is_answered_and_nothing_taken_away() {
    let cache = cache("EDS a=1 gone=1; CDS a=1");
    let (mut sotw, mut delta) = (Sotw::new(&cache), Delta::new(&cache));
    let mut idle = Sotw::new(&cache);
    idle.ask("CDS", "", "");
    assert_eq!(idle.sent(), "n1 CDS a=1");
    idle.ack("CDS", "1");
    sotw.ask("EDS", "a", "");
    assert_eq!(sotw.sent(), "n1 EDS a=1");
    sotw.ack("EDS", "1");
    delta.ask("EDS", "a");
    assert_eq!(delta.sent(), "n1 EDS a=1");
    delta.ack("EDS", "1");
    cache.set_outdated(true);
    assert!(!cache.snapshot().is_synced());
    sotw.ask("EDS", "a b c", "1");
    delta.ask("EDS", "b c gone");
    sotw.ask("CDS", "", "");
    for _ in 0..2 {
        assert_eq!((sotw.sent(), delta.sent()), Default::default());
        // The difference, while the source is not done.
        commit(&cache, "EDS b=1 -gone; CDS a=2");
    }
    assert_eq!(idle.sent(), "n2 CDS a=2");
    idle.ack("CDS", "2");
    let wait = Duration::from_secs(10);
    delta.pass(wait);
    assert_eq!(delta.sent(), "n2 EDS !\"b\"(14) !\"c\"(14) !\"gone\"(14)");
    delta.ack("EDS", "2");
    assert_eq!(delta.sent(), "");
    cache.set_outdated(false);
    assert_eq!(sotw.sent(), "n2 CDS a=2; n3 EDS a=1 b=1");
    assert_eq!(delta.sent(), "n3 EDS b=1 -c -gone");
    assert_eq!(idle.sent(), "");
}

#[test]
fn g13_a_cache_without_a_commit_stays_so_whatever_its_source_lacks() {
    let cache = Cache::new();
    for is_outdated in [true, false] {
        cache.set_outdated(is_outdated);
        assert!(!cache.snapshot().is_synced());
    }
    commit(&cache, "");
    assert!(cache.snapshot().is_synced());
}

#[test]
fn s21_the_legacy_wildcard_can_be_switched_for_each_type() {
    let cache = cache("EDS a=1; X x=1");
    let mut client = Delta::with(&cache, with_type("EDS", |config| config.legacy_wildcard = true));
    client.ask("EDS", "");
    assert_eq!(client.sent(), "n1 EDS a=1");
    let mut client = Delta::with(&cache, with_type("X", |config| config.legacy_wildcard = false));
    client.ask("X", "");
    assert_eq!(client.sent(), "n1 X");
}

#[test]
fn s25_a_type_that_the_program_declares_to_be_full_state_is_sent_so() {
    let cache = cache("X a=1 b=1");
    let config = with_type("X", |config| config.full_state = true);
    let mut client = Sotw::with(&cache, Service::Aggregated, config);
    client.ask("X", "", "");
    assert_eq!(client.sent(), "n1 X a=1 b=1");
    client.ack("X", "1");
    commit(&cache, "X a=2");
    assert_eq!(client.sent(), "n2 X a=2 b=1");
}

#[test]
fn s37_a_missing_listener_is_told_beside_the_full_state() {
    let cache = cache("LDS a=1 b=1");
    let mut client = telling(&cache);
    client.ask("LDS", "x", "");
    assert_eq!(client.sent(), "n1 LDS !\"x\"(5)");
    client.ask("LDS", "x", "1");
    assert_eq!(client.sent(), "", "an error is sent once");
    client.ask("LDS", "a x y", "1");
    assert_eq!(client.sent(), "n2 LDS a=1 !\"y\"(5)");
    client.ask("LDS", "a x y", "2");
    // S25: the full state itself removes.
    commit(&cache, "LDS -a");
    assert_eq!(client.sent(), "n3 LDS");
    client.ask("LDS", "a x y", "3");
    commit(&cache, "LDS x=1");
    assert_eq!(client.sent(), "n4 LDS x=1");
    let mut silent = Sotw::new(&cache);
    silent.ask("LDS", "y", "");
    assert_eq!(silent.sent(), "", "S17");
}

#[test]
fn s37_no_error_is_about_a_wildcard() {
    let cache = cache("LDS a=1");
    let mut client = telling(&cache);
    client.ask("LDS", "* x", "");
    assert_eq!(client.sent(), "n1 LDS a=1 !\"x\"(5)");
    commit(&cache, "LDS -a");
    client.ack("LDS", "1");
    assert_eq!(client.sent(), "n2 LDS");
}

/// Removes a variant for a reason.
fn remove_because(cache: &Cache, name: &str, constraints: Constraints) {
    let id = VariantId { type_url: type_url("EDS"), name: name.into(), constraints };
    let mut transaction = Transaction::new();
    transaction.remove_because(id, "too slow");
    cache.commit(transaction).unwrap();
}

#[test]
fn sr45_who_asks_for_what_was_removed_for_a_reason_gets_the_reason_until_it_is_put_or_removed() {
    for end in ["EDS a=2", "EDS -a"] {
        let cache = cache("EDS a=1 b=1");
        remove_because(&cache, "a", Constraints::NONE);
        remove_because(&cache, "a", Constraints::NONE);
        let mut delta = Delta::new(&cache);
        delta.ask("EDS", "a b");
        assert_eq!(delta.sent(), "n1 EDS b=1 -a !\"a\"(14)");
        delta.ack("EDS", "1");
        let mut sotw = telling(&cache);
        sotw.ask("EDS", "a c", "");
        assert_eq!(sotw.sent(), "n1 EDS !\"a\"(14) !\"c\"(5)");
        commit(&cache, end);
        let mut late = Delta::new(&cache);
        late.ask("EDS", "a");
        let answer = if end == "EDS -a" { "n1 EDS -a" } else { "n1 EDS a=2" };
        assert_eq!(late.sent(), answer);
    }
}

#[test]
fn sr45_a_removed_variant_is_the_reason_for_its_parameters_only() {
    let cache = cache("EDS a[env=x]=1 a[env=y]=1");
    remove_because(&cache, "a", "env=x".parse().unwrap());
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a?env=x a?env=y a?env=z");
    assert_eq!(client.sent(), "n1 EDS a[env=y]=1 -a[env=x] -a[env=z] !a[env=x](14)");
    let detail = client.last.resource_errors[0].error_detail.as_ref().unwrap();
    assert_eq!(detail.message, "too slow");
}

/// Regression: a client that brought the resource kept the error when the same content came back.
#[test]
fn sr45_s37_d21_what_was_brought_is_sent_again_after_the_reason_has_ended() {
    let cache = cache("EDS a=1 b=1");
    remove_because(&cache, "a", Constraints::NONE);
    let brought = [("a", version("EDS", "a", "1")), ("b", version("EDS", "b", "1"))];
    let brought: Vec<_> = brought.iter().map(|(name, version)| (*name, version.as_str())).collect();
    let mut client = Delta::new(&cache);
    client.ask_with("EDS", "a b", "", &brought);
    assert_eq!(client.sent(), "n1 EDS !\"a\"(14)");
    client.ack("EDS", "1");
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n2 EDS a=1");
}
