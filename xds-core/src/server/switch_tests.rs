//! Names first and locators later (V25): resources that were sent by name are sent again with
//! constraints, or removed.
//!
//! `X` is a type that nothing refers to, so its removals do not wait (S33).

use std::time::Duration;

use super::fixture::{Delta, Sotw, commit, parameters};
use super::locators_tests::{cache, delta, sotw};

#[test]
fn v25_t25b_names_first_and_locators_later_switch_without_removals() {
    let cache = cache("X a[env=prod]=A a[env=test]=B b=C gone=D");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("X", "a b gone");
    assert_eq!(client.sent(), "n1 X a=A b=C gone=D");
    client.ack("X", "1");
    commit(&cache, "X -gone");
    client.ask("X", "a?env=test");
    assert_eq!(client.sent(), "n2 X a[env=prod]=A a[env=test]=B b[]=C -gone");
    client.ack("X", "2");
    // T46: the plain name keeps its derived parameters.
    commit(&cache, "X a[env=prod]=A2");
    assert_eq!(client.sent(), "n3 X a[env=prod]=A2");
}

#[test]
fn v25_what_went_under_the_plain_wildcard_before_the_switch_is_told() {
    for type_name in ["X", "CDS"] {
        let cache = cache(&format!("{type_name} a[env=prod]=A b=static c=static"));
        let mut client = Delta::new(&cache);
        client.stream.on_node(parameters("env=prod"));
        client.ask(type_name, "*");
        assert_eq!(client.sent(), format!("n1 {type_name} a=A b=static c=static"));
        client.ack(type_name, "1");
        commit(&cache, &format!("{type_name} -b"));
        client.ask(type_name, "a?env=prod");
        let first = client.sent();
        client.ack(type_name, "2");
        client.pass(Duration::from_secs(5));
        let then = client.sent();
        let located = "a[env=prod]=A c[]=static";
        let (expected, later) = match type_name {
            // S33: the removal of a cluster waits.
            "CDS" => (format!("n2 CDS {located}"), "n3 CDS -b"),
            _ => (format!("n2 X {located} -b"), ""),
        };
        assert_eq!((first, then.as_str()), (expected, later));
    }
}

#[test]
fn v25_in_sotw_the_next_response_wraps_everything() {
    let cache = cache("CDS a[env=prod]=A b=C");
    let mut client = Sotw::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("CDS", "a b", "");
    assert_eq!(client.sent(), "n1 CDS a=A b=C");
    client.ask("CDS", "a b a?env=prod", "1");
    assert_eq!(client.sent(), "n2 CDS a[env=prod]=A b[]=C");
}

#[test]
fn v25_what_the_plain_wildcard_lost_with_a_change_of_keys_is_told() {
    let cache = cache("X a[env=prod]=A r[env=prod]=R");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=prod zone=a"));
    client.ask("X", "*");
    assert_eq!(client.sent(), "n1 X a=A r=R");
    client.ack("X", "1");
    client.ask("X", "a?env=prod");
    commit(&cache, "X -r[env=prod] r[env=prod,!zone]=R2");
    assert_eq!(client.sent(), "n2 X a[env=prod]=A -r");
}

#[test]
fn v25_s33_a_named_removal_that_waits_is_not_told_by_the_switch() {
    let cache = cache("CDS a=static b=static");
    let mut client = delta(&cache, "CDS", "a b");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -b");
    client.ask("CDS", "a?env=prod");
    assert_eq!(client.sent(), "n2 CDS a[]=static");
    client.ack("CDS", "2");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 CDS -b");
}

#[test]
fn v25_in_sotw_two_requests_before_the_answer_lose_no_removal() {
    let cache = cache("LDS a=A");
    let mut client = sotw(&cache, "LDS", "a");
    client.sent();
    commit(&cache, "LDS -a");
    client.ask("LDS", "a a?env=prod", "1");
    client.ask("LDS", "a a?env=test", "1");
    assert_eq!(client.sent(), "n2 LDS");
}

#[test]
fn d10_v25_asked_anew_in_the_switch_it_is_told_at_once_and_once() {
    let cache = cache("CDS a=static b=static");
    let mut client = delta(&cache, "CDS", "a b");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -b");
    client.ask("CDS", "b?env=prod");
    let first = client.sent();
    client.ack("CDS", "2");
    client.pass(Duration::from_secs(5));
    assert_eq!((first.as_str(), client.sent().as_str()), ("n2 CDS a[]=static -b", ""));
}

#[test]
fn v25_shared_variant_still_had_by_another_is_fine() {
    let cache = cache("X a[env=prod]=A a[env=test]=B");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=prod"));
    client.ask("X", "a");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X -a[env=prod]");
    client.ask("X", "a?env=test");
    assert_eq!(client.sent(), "n2 X a[env=test]=B -a[] -a[env=prod]");
}

/// Regression: the full state had a removed resource, for a locator that never had it (seed 2548).
#[test]
fn t33_v25_what_is_gone_is_not_listed_for_a_locator_that_is_new_with_the_switch() {
    let cases = [("b", "*?env=test"), ("*", "*?env=test"), ("*", "b?env=test")];
    for ((before, after), is_withheld) in cases.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let cache = cache("CDS a=static b=static");
        let mut client = Sotw::new(&cache);
        client.ask("CDS", before, "");
        client.sent();
        client.ack("CDS", "1");
        commit(&cache, "CDS -b");
        if is_withheld {
            assert_eq!(client.sent(), "");
        }
        client.ask("CDS", after, "1");
        let expected = if after.starts_with('*') { "n2 CDS a[]=static" } else { "n2 CDS" };
        assert_eq!(client.sent(), expected, "{before}, then {after}");
    }
    // The plain wildcard still covers it, so its removal waits (S33).
    let cache = cache("CDS a=static b=static");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "*", "");
    client.sent();
    commit(&cache, "CDS -b");
    client.ask("CDS", "* b?env=test", "1");
    assert_eq!(client.sent(), "n2 CDS a[]=static b[]=static");
}

#[test]
fn s24_v25_what_is_gone_and_no_longer_asked_for_is_not_listed_after_the_switch() {
    let cache = cache("CDS a=static b=static");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "*", "");
    assert_eq!(client.sent(), "n1 CDS a=static b=static");
    commit(&cache, "CDS -b");
    client.ask("CDS", "a?env=b", "1");
    assert_eq!(client.sent(), "n2 CDS a[]=static");
}

#[test]
fn t31_a_variant_is_not_taken_away_from_a_wildcard_whose_next_one_waits() {
    let cache = cache("RDS c=1; CDS x=static; EDS e=1");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=a"));
    client.ask("EDS", "e");
    client.ask("RDS", "* c?");
    assert_eq!(client.sent(), "n1 EDS e=1; n2 RDS c[]=1");
    client.ack("EDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "RDS -c c[env=a]=2; EDS e=2");
    assert_eq!(client.sent(), "n3 EDS e=2");
    client.ask("RDS", "-c?");
    assert_eq!(client.sent(), "");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 RDS c[env=a]=2 -c[]");
}
