use std::sync::Arc;
use std::time::Duration;

use crate::Cache;
use crate::server::Next;
use crate::server::fixture::{Delta, Sotw, commit, version};

const FIRST: &str = "CDS old=1; EDS old=1; LDS l=1; RDS r=old";
/// Route, cluster and endpoints replaced together.
const SWAP: &str = "CDS -old new=1; EDS -old new=1; RDS r=new";

fn cache() -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, FIRST);
    cache
}

fn sotw(cache: &Arc<Cache>, cluster_list: &str) -> Sotw {
    let mut client = Sotw::new(cache);
    for (type_name, list, nonce) in
        [("CDS", cluster_list, "1"), ("EDS", "old", "2"), ("LDS", "", "3"), ("RDS", "r", "4")]
    {
        client.ask(type_name, list, "");
        client.sent();
        client.ack(type_name, nonce);
    }
    client
}

fn delta(cache: &Arc<Cache>) -> Delta {
    let mut client = Delta::new(cache);
    for (type_name, list, nonce) in
        [("CDS", "", "1"), ("EDS", "old", "2"), ("LDS", "", "3"), ("RDS", "r", "4")]
    {
        client.ask(type_name, list);
        client.sent();
        client.ack(type_name, nonce);
    }
    client
}

#[test]
fn s33_sotw_clusters_come_before_routes_and_go_after_them() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, SWAP);
    // The old cluster stays in the full state, and the route waits until the new one is warm.
    assert_eq!(client.sent(), "n5 CDS new=1 old=1");
    client.ask("EDS", "old new", "2");
    assert_eq!(client.sent(), "n6 EDS new=1");
    client.ack("EDS", "6");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n7 RDS r=new");
    client.ack("RDS", "7");
    assert_eq!(client.sent(), "n8 CDS new=1");
}

#[test]
fn s33_delta_clusters_come_before_routes_and_go_after_them() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, SWAP);
    assert_eq!(client.sent(), "n5 CDS new=1");
    client.ask("EDS", "new");
    assert_eq!(client.sent(), "n6 EDS new=1");
    client.ack("EDS", "6");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n7 RDS r=new");
    client.ack("RDS", "7");
    assert_eq!(client.sent(), "n8 CDS -old");
    // Endpoints are removed after their cluster and, by name, after the grace time: Envoy has
    // unsubscribed from them long before.
    client.ack("CDS", "8");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.ask("EDS", "-old");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s33_a_client_that_names_its_clusters_keeps_the_old_one_until_it_gives_it_up() {
    let cache = cache();
    let mut client = sotw(&cache, "old");
    commit(&cache, SWAP);
    // gRPC does so: it gets the new name from the route.
    assert_eq!(client.sent(), "n5 RDS r=new");
    client.ack("RDS", "5");
    client.ask("CDS", "old new", "1");
    assert_eq!(client.sent(), "n6 CDS new=1 old=1");
    client.ask("CDS", "new", "6");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// A listener that changes to other routes and other clusters.
const OTHER_ROUTES: &str = "CDS -old new=1; EDS -old new=1; LDS l=2; RDS -r r2=new";

#[test]
fn s33_sotw_the_clusters_of_routes_that_are_gone_stay_until_the_client_gives_those_up() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, OTHER_ROUTES);
    assert_eq!(client.sent(), "n5 CDS new=1 old=1");
    client.ask("EDS", "old new", "2");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n6 EDS new=1");
    client.ack("EDS", "6");
    assert_eq!(client.sent(), "n7 LDS l=2");
    client.ack("LDS", "7");
    // The new listener subscribes to its routes while the old one drains with its own.
    client.ask("RDS", "r r2", "4");
    assert_eq!(client.sent(), "n8 RDS r2=new");
    client.ack("RDS", "8");
    client.pass(Duration::from_secs(600));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    client.ask("RDS", "r2", "8");
    assert_eq!(client.sent(), "n9 CDS new=1");
}

#[test]
fn s33_delta_the_clusters_of_routes_that_are_gone_stay_until_the_client_gives_those_up() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, OTHER_ROUTES);
    assert_eq!(client.sent(), "n5 CDS new=1");
    client.ask("EDS", "new");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n6 EDS new=1");
    client.ack("EDS", "6");
    assert_eq!(client.sent(), "n7 LDS l=2");
    client.ack("LDS", "7");
    client.ask("RDS", "r2");
    assert_eq!(client.sent(), "n8 RDS r2=new");
    client.ack("RDS", "8");
    // D29: the removal is sent, and Envoy keeps what it has.
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n9 RDS -r");
    client.ack("RDS", "9");
    client.pass(Duration::from_secs(600));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    client.ask("RDS", "-r");
    assert_eq!(client.sent(), "n10 CDS -old");
}

#[test]
fn s33_a_route_does_not_wait_for_ever_for_a_cluster_that_is_not_acked() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, SWAP);
    assert_eq!(client.sent(), "n5 CDS new=1");
    assert_eq!(client.waits_until(), Some(16_000));
    client.pass(Duration::from_secs(16));
    assert_eq!(client.sent(), "n6 RDS r=new");
}

/// Where a stream has no room for another response, nothing looks at it between two changes.
#[test]
fn s33_a_change_begins_to_wait_when_it_comes_and_not_with_the_change_before() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2");
    assert!(matches!(client.stream.next(client.now, &cache.snapshot()), Next::Send(_)));
    client.ack("RDS", "5");
    commit(&cache, SWAP);
    client.pass(Duration::from_secs(20));
    assert_eq!(client.sent(), "n6 CDS new=1");
    assert_eq!(client.waits_until(), Some(36_000));
}

#[test]
fn s33_a_nack_of_the_clusters_lets_the_routes_go_on() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, SWAP);
    client.sent();
    client.nack("CDS", "5");
    assert_eq!(client.sent(), "n6 RDS r=new");
}

#[test]
fn s33_a_removal_is_held_while_the_route_that_dropped_it_is_nacked() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "CDS -old; RDS r=bad");
    assert_eq!(client.sent(), "n5 RDS r=bad");
    client.nack("RDS", "5");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "RDS r=good");
    assert_eq!(client.sent(), "n6 RDS r=good");
    client.ack("RDS", "6");
    assert_eq!(client.sent(), "n7 CDS -old");
}

#[test]
fn s33_adding_a_held_name_again_cancels_its_removal() {
    let cache = cache();
    for is_delta in [false, true] {
        commit(&cache, FIRST);
        let (mut sotw, mut delta) = (sotw(&cache, ""), delta(&cache));
        commit(&cache, "CDS -old; RDS r=none");
        commit(&cache, "CDS old=2");
        let sent = if is_delta { delta.sent() } else { sotw.sent() };
        assert_eq!(sent, "n5 CDS old=2; n6 EDS old=1");
        commit(&cache, "CDS -old");
    }
}

#[test]
fn s33_without_a_referrer_on_the_stream_a_removal_waits_for_the_grace() {
    let cache = cache();
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -old");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 CDS -old");
}

#[test]
fn s33_what_came_and_went_unsent_is_not_held() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, "CDS brief=1");
    commit(&cache, "CDS -brief other=1");
    assert_eq!(client.sent(), "n5 CDS old=1 other=1");
}

#[test]
fn s33_a_cluster_gone_while_the_client_was_away_waits_for_its_routes() {
    let cache = cache();
    let mut client = Delta::new(&cache);
    let gone = version("CDS", "gone", "1");
    client.ask_with("CDS", "", "", &[("gone", &gone), ("old", &version("CDS", "old", "1"))]);
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 RDS r=old");
    client.ack("RDS", "1");
    // These routes did not change; others may still come on the new stream.
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 CDS -gone");
}

#[test]
fn s34_s36_the_endpoints_of_a_changed_cluster_are_sent_once_more_v13() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, "CDS old=2");
    assert_eq!(client.sent(), "n5 CDS old=2; n6 EDS old=1");
    // Envoy's repeated request crosses the push; it is stale and brings nothing new.
    client.ask("EDS", "old", "2");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s35_endpoints_never_wait_for_the_ack_of_their_cluster() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, "CDS new=1");
    assert_eq!(client.sent(), "n5 CDS new=1 old=1");
    client.ask("EDS", "old new", "2");
    assert_eq!(client.sent(), "");
    commit(&cache, "EDS new=1 old=2");
    assert_eq!(client.sent(), "n6 EDS new=1 old=2");
}

#[test]
fn s33_an_answer_does_not_take_along_what_waits_for_the_clusters() {
    for is_delta in [false, true] {
        let cache = cache();
        commit(&cache, "RDS r2=old");
        let (mut sotw, mut delta) = (sotw(&cache, ""), delta(&cache));
        commit(&cache, "CDS new=1; RDS r=new");
        if is_delta {
            assert_eq!(delta.sent(), "n5 CDS new=1");
            delta.ask("RDS", "r2");
            assert_eq!(delta.sent(), "n6 RDS r2=old");
            delta.ack("RDS", "6");
            delta.ack("CDS", "5");
            assert_eq!(delta.sent(), "n7 RDS r=new");
        } else {
            assert_eq!(sotw.sent(), "n5 CDS new=1 old=1");
            sotw.ask("RDS", "r r2", "4");
            assert_eq!(sotw.sent(), "n6 RDS r2=old");
            let part = sotw.last.version_info.clone();
            sotw.ack("RDS", "6");
            sotw.ack("CDS", "5");
            assert_eq!(sotw.sent(), "n7 RDS r=new");
            assert_ne!(sotw.last.version_info, part);
        }
    }
}

#[test]
fn s33_the_grace_of_a_removal_does_not_start_again_with_the_next() {
    let cache = cache();
    commit(&cache, "CDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS -a");
    assert_eq!(client.sent(), "");
    client.pass(Duration::from_secs(4));
    commit(&cache, "CDS -b");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n2 CDS -a");
    client.ack("CDS", "2");
    assert_eq!(client.waits_until(), Some(9000));
}

#[test]
fn s33_a_client_that_rejects_its_routes_for_ever_collects_a_limited_number_of_clusters() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=bad");
    client.sent();
    client.nack("RDS", "5");
    let names: Vec<_> = (0..1001).map(|number| format!("x{number}")).collect();
    commit(&cache, &format!("CDS {}=1", names.join("=1 ")));
    client.sent();
    client.ack("CDS", "6");
    commit(&cache, &format!("CDS -{}", names.join(" -")));
    assert_eq!(client.sent().split(" -").count(), 1002);
}

#[test]
fn s17_a_removed_name_that_was_never_sent_is_not_held() {
    let cache = cache();
    commit(&cache, "CDS b=1");
    let mut client = sotw(&cache, "old");
    commit(&cache, "CDS old=2 -b");
    client.ask("CDS", "b old", "1");
    assert_eq!(client.sent(), "n5 CDS old=2; n6 EDS old=1");
}

#[test]
fn s33_answers_to_requests_wait_for_nothing() {
    let cache = cache();
    let mut client = sotw(&cache, "");
    commit(&cache, "CDS new=1; RDS r2=new");
    assert_eq!(client.sent(), "n5 CDS new=1 old=1");
    client.ask("RDS", "r r2", "4");
    assert_eq!(client.sent(), "n6 RDS r2=new");
}

#[test]
fn s33_a_removal_goes_when_the_last_thing_it_waits_for_has_nothing_to_say() {
    let cache = Cache::new();
    commit(&cache, "CDS a=static b=static; LDS l=7; RDS r=1>a");
    let mut client = Delta::new(&cache);
    client.stream.on_node(super::super::fixture::parameters("ver=1"));
    for (type_name, list, nonce) in [("CDS", "", "1"), ("LDS", "l", "2"), ("RDS", "r", "3")] {
        client.ask(type_name, list);
        client.sent();
        client.ack(type_name, nonce);
    }
    // For this client the listener does not change (V29).
    commit(&cache, "CDS -b a=2; LDS -l l[env=a]=7 l[!env]=7 l[env=b]=7");
    assert_eq!(client.sent(), "n4 CDS a=2");
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n5 CDS -b");
}

#[test]
fn d12_what_was_answered_while_the_rest_waits_is_not_sent_again() {
    let cache = Cache::new();
    commit(&cache, "CDS c=static; RDS r=1 s=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("RDS", "r");
    client.sent();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS c=2; RDS r=2 s=2");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n3 CDS c=2; n4 RDS r=2");
    client.ack("RDS", "4");
    client.ack("CDS", "3");
    assert_eq!(client.sent(), "");
}

/// Seed 18396.
#[test]
fn d12_an_answer_ahead_of_the_rest_that_changes_and_changes_back_is_not_sent_again() {
    let cache = Cache::new();
    commit(&cache, "CDS c=static; RDS r=1 s=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("RDS", "s");
    client.sent();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS c=2; RDS s=2");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n3 CDS c=2; n4 RDS r=1");
    commit(&cache, "RDS r=2");
    commit(&cache, "RDS r=1");
    client.ack("CDS", "3");
    client.ack("RDS", "4");
    assert_eq!(client.sent(), "n5 RDS s=2");
}

#[test]
fn d12_content_that_changes_back_after_an_answer_ahead_of_the_rest_is_sent() {
    // The cache has again what the client had before the answer, so the changes of the class lack it.
    for is_delta in [false, true] {
        let cache = Cache::new();
        commit(&cache, "CDS c=static; RDS r=1 s=1");
        let (mut sotw, mut delta) = (Sotw::new(&cache), Delta::new(&cache));
        if is_delta {
            delta.ask("CDS", "");
            delta.ask("RDS", "r s");
            delta.sent();
            delta.ack("CDS", "1");
            delta.ack("RDS", "2");
        } else {
            sotw.ask("CDS", "", "");
            sotw.ask("RDS", "r", "");
            sotw.sent();
            sotw.ack("CDS", "1");
            sotw.ack("RDS", "2");
        }
        commit(&cache, "CDS c=2; RDS r=2 s=2");
        if is_delta {
            delta.ask("RDS", "r");
            assert_eq!(delta.sent(), "n3 CDS c=2; n4 RDS r=2");
            commit(&cache, "RDS r=1");
            delta.ack("RDS", "4");
            delta.ack("CDS", "3");
            assert_eq!(delta.sent(), "n5 RDS r=1 s=2");
        } else {
            assert_eq!(sotw.sent(), "n3 CDS c=2");
            sotw.ask("RDS", "", "2");
            sotw.sent();
            sotw.ask("RDS", "r", "2");
            assert_eq!(sotw.sent(), "n4 RDS r=2");
            commit(&cache, "RDS r=1");
            sotw.ack("RDS", "4");
            sotw.ack("CDS", "3");
            assert_eq!(sotw.sent(), "n5 RDS r=1");
        }
    }
}

#[test]
fn s33b_a_client_that_stays_silent_is_waited_for_once_and_counts_again_when_it_answers() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "EDS old=2; RDS r=old2");
    assert_eq!(client.sent(), "n5 EDS old=2");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(16_000)));
    client.pass(Duration::from_secs(16));
    assert_eq!(client.sent(), "n6 RDS r=old2");
    client.ack("RDS", "6");
    // The wait is over: the next update does not wait for the same unanswered response again.
    commit(&cache, "RDS r=old3");
    assert_eq!(client.sent(), "n7 RDS r=old3");
    client.ack("RDS", "7");
    commit(&cache, "EDS old=3; RDS r=old4");
    assert_eq!(client.sent(), "n8 EDS old=3; n9 RDS r=old4");
    client.ack("RDS", "9");
    // D6: one answer shows that the client answers again, although it never answered the response
    // before.
    client.ack("EDS", "8");
    commit(&cache, "EDS old=4; RDS r=old5");
    assert_eq!(client.sent(), "n10 EDS old=4");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(32_000)));
    client.ack("EDS", "10");
    assert_eq!(client.sent(), "n11 RDS r=old5");
}

#[test]
fn s33b_a_client_that_stays_silent_is_sent_a_cluster_before_the_route_to_it() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "CDS x=static");
    assert_eq!(client.sent(), "n5 CDS x=static");
    client.pass(Duration::from_secs(16));
    commit(&cache, "CDS y=static");
    assert_eq!(client.sent(), "n6 CDS y=static");
    // S9b delays the cluster for a second, and with it the route.
    commit(&cache, "CDS new=static; RDS r=new");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(17_000)));
    client.pass(Duration::from_secs(1));
    assert_eq!(client.sent(), "n7 CDS new=static; n8 RDS r=new");
}

#[test]
fn s33b_a_cluster_stays_for_the_grace_where_routes_may_come_over_another_stream() {
    let cache = cache();
    let mut client = Delta::new(&cache);
    for (type_name, nonce) in [("CDS", "1"), ("LDS", "2")] {
        client.ask(type_name, "");
        client.sent();
        client.ack(type_name, nonce);
    }
    commit(&cache, "CDS -old; LDS l=2>r; RDS r=1>tcp");
    assert_eq!(client.sent(), "n3 LDS l=2>r");
    client.ack("LDS", "3");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(5000)));
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n4 CDS -old");
}
