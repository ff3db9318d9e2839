//! The resources of a rejected response, until a later response corrects one of them (D8, V27).

use std::sync::Arc;
use std::time::Duration;

use super::super::fixture::{Delta, commit, parameters};
use super::tests::{cache, settled};
use crate::Cache;

/// V27: `a` and `b` were ACKed, and a change of both was rejected.
fn rejected(cache: &Arc<Cache>) -> Delta {
    commit(cache, "EDS a=1 b=1 c=1");
    let mut client = settled(cache, "EDS", "a b c");
    commit(cache, "EDS a=2 b=2");
    assert_eq!(client.sent(), "n2 EDS a=2 b=2");
    client.nack("EDS", "2");
    assert_eq!(client.sent(), "");
    client
}

#[test]
fn v27_d8_what_changed_goes_alone_and_the_rest_after_its_ack_once() {
    for content in ["1", "3"] {
        let cache = Cache::new();
        let mut client = rejected(&cache);
        commit(&cache, &format!("EDS a={content}"));
        assert_eq!(client.sent(), format!("n3 EDS a={content}"));
        client.ack("EDS", "3");
        assert_eq!(client.sent(), "n4 EDS b=2");
        client.ack("EDS", "4");
        assert_eq!(client.sent(), "");
    }
}

#[test]
fn v27_d8_a_deletion_is_told_though_it_was_never_acked_and_then_the_rest() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS -b");
    assert_eq!(client.sent(), "", "a removal without known referrers waits for the grace time (S33)");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 EDS -b");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS a=2");
}

/// Regression: what changed in the rest was sent before the client had ACKed the clusters that came with it, and then
/// a second time (seed 37403).
#[test]
fn d8_s33_the_rest_that_changed_waits_for_other_types_and_is_sent_once() {
    let cache = cache("LDS c=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    client.ask("LDS", "c d");
    assert_eq!(client.sent(), "n1 CDS; n2 LDS c=1 -d");
    client.ack("CDS", "1");
    client.nack("LDS", "2");
    commit(&cache, "LDS -c");
    assert_eq!(client.sent(), "n3 LDS -c");
    commit(&cache, "CDS x=1; LDS d=2");
    assert_eq!(client.sent(), "n4 CDS x=1");
    client.ack("LDS", "3");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n5 LDS d=2");
    client.ack("LDS", "5");
    assert_eq!(client.sent(), "");
}

/// What changed in the rest, and changed back before it could be sent, is still uncertain.
#[test]
fn d8_s33_the_rest_that_changed_back_is_sent_once_more() {
    let cache = cache("LDS c=1 d=1");
    let mut client = settled(&cache, "LDS", "c d");
    client.ask("CDS", "*");
    assert_eq!(client.sent(), "n2 CDS");
    client.ack("CDS", "2");
    commit(&cache, "LDS c=2 d=2");
    assert_eq!(client.sent(), "n3 LDS c=2 d=2");
    client.nack("LDS", "3");
    commit(&cache, "LDS c=3");
    assert_eq!(client.sent(), "n4 LDS c=3");
    commit(&cache, "CDS x=1; LDS d=3");
    assert_eq!(client.sent(), "n5 CDS x=1");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS d=2");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n6 LDS d=2");
    client.ack("LDS", "6");
    assert_eq!(client.sent(), "");
}

#[test]
fn d8_an_uncertain_removal_is_sent_though_another_variant_of_the_name_goes_later() {
    let cache = cache("LDS c[env=a]=1 c[env=z]=1 e=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    client.ask("LDS", "c?env=a e?env=a");
    assert_eq!(client.sent(), "n1 CDS; n2 LDS c[env=a]=1 e[]=1");
    client.ack("CDS", "1");
    client.ack("LDS", "2");
    commit(&cache, "LDS -c[env=a] e=2");
    assert_eq!(client.sent(), "n3 LDS e[]=2 -c[env=a]");
    client.nack("LDS", "3");
    commit(&cache, "LDS e=3");
    assert_eq!(client.sent(), "n4 LDS e[]=3");
    commit(&cache, "CDS x=1; LDS e=4 -c[env=z]");
    assert_eq!(client.sent(), "n5 CDS x=1");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "n6 LDS -c[env=a]");
}

/// V29: the client may have the content before the one that comes back.
#[test]
fn d8_v29_an_uncertain_resource_that_comes_back_before_its_removal_is_sent() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS -b");
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS a=3");
    assert_eq!(client.sent(), "n3 EDS a=3");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS b=2");
    assert_eq!(client.sent(), "n4 EDS b=2");
}

/// Regression: a client gave up a name while a response with it was on its way, and subscribed to it with other
/// parameters. While changes waited for clusters, the wildcard lost the variant that it had (seed 50372).
#[test]
fn s8b_t31_a_wildcard_keeps_what_it_has_while_changes_wait() {
    let cache = cache("LDS a=1");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=a"));
    client.ask("CDS", "d");
    client.ask("LDS", "* a b?env=a");
    assert_eq!(client.sent(), "n1 CDS -d; n2 LDS a[]=1 -b");
    client.ack("CDS", "1");
    commit(&cache, "CDS d=1; LDS -a a[env=a]=2");
    assert_eq!(client.sent(), "n3 CDS d=1");
    client.ask("LDS", "a?env=b -a -b?env=a");
    assert_eq!(client.sent(), "n4 LDS -a[env=b]");
    client.ack("CDS", "3");
    client.ack("LDS", "2");
    client.ack("LDS", "4");
    assert_eq!(client.sent(), "n5 LDS a[env=a]=2 -a[]");
}

/// Regression: they were sent once more although a newer response with them was rejected too (seed
/// 16249).
#[test]
fn d8_the_rest_that_a_newer_unanswered_response_has_waits_for_the_answer_to_that() {
    for is_rejected in [false, true] {
        let cache = cache("EDS a=1 b=1");
        let mut client = settled(&cache, "EDS", "a b");
        for (contents, expected) in [("a=2 b=2", "n2"), ("a=3", "n3"), ("a=4 b=4", "n4")] {
            commit(&cache, &format!("EDS {contents}"));
            assert_eq!(client.sent(), format!("{expected} EDS {contents}"));
            client.pass(Duration::from_secs(1));
        }
        client.nack("EDS", "2");
        client.ack("EDS", "3");
        assert_eq!(client.sent(), "");
        if is_rejected {
            client.nack("EDS", "4");
        } else {
            client.ack("EDS", "4");
        }
        assert_eq!(client.sent(), "");
    }
}

#[test]
fn v27_d8_what_was_not_in_the_rejected_response_goes_alone() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n3 EDS c=2");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "");
}

#[test]
fn v27_d8_a_single_rejected_resource_is_not_repeated_until_it_changes() {
    let cache = cache("EDS a=1 c=1");
    let mut client = settled(&cache, "EDS", "a c");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n2 EDS a=2");
    client.nack("EDS", "2");
    commit(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n3 EDS c=2");
    client.ack("EDS", "3");
    client.pass(Duration::from_secs(60));
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n4 EDS a=1");
}

#[test]
fn d8_what_is_rejected_twice_waits_for_the_next_change() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    commit(&cache, "EDS a=1");
    client.sent();
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "n4 EDS b=2");
    client.nack("EDS", "4");
    commit(&cache, "EDS c=2");
    assert_eq!(client.sent(), "n5 EDS c=2");
    client.ack("EDS", "5");
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS b=1");
    assert_eq!(client.sent(), "n6 EDS b=1");
}

#[test]
fn d8_a_resource_asked_for_again_settles_the_rest_too() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    client.ask("EDS", "b");
    assert_eq!(client.sent(), "n3 EDS b=2");
    client.nack("EDS", "3");
    assert_eq!(client.sent(), "");
    client.ask("EDS", "b");
    assert_eq!(client.sent(), "n4 EDS b=2");
    client.ack("EDS", "4");
    assert_eq!(client.sent(), "n5 EDS a=2");
}

#[test]
fn s33_what_is_rejected_after_it_was_given_up_holds_no_removal() {
    let cache = cache("CDS a=static b=static; EDS e=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "a");
    client.ask("EDS", "e");
    client.sent();
    client.ack("EDS", "2");
    client.ask("CDS", "-a b");
    client.sent();
    client.ack("CDS", "3");
    client.nack("CDS", "1");
    commit(&cache, "EDS -e");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n4 EDS -e");
}

#[test]
fn d8_what_is_given_up_is_no_longer_uncertain() {
    let cache = Cache::new();
    let mut client = rejected(&cache);
    client.ask("EDS", "-b");
    commit(&cache, "EDS a=1");
    assert_eq!(client.sent(), "n3 EDS a=1");
    client.ack("EDS", "3");
    assert_eq!(client.sent(), "");
}
