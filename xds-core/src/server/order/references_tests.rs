//! Removals wait for the resources that named the removed one, and for no others.

use std::sync::Arc;
use std::time::Duration;

use crate::Cache;
use crate::server::ClientGroup;
use crate::server::fixture::{Delta, Sotw, commit, is_woken, parameters, transaction};

const FIRST: &str = "CDS a=static b=static c=static; LDS l=1>r m=1>tcp:c; RDS r=1>a,c r2=1>b";

fn cache() -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, FIRST);
    cache
}

/// A client with a wildcard for each type, which ACKed all resources.
fn delta(cache: &Arc<Cache>) -> Delta {
    let mut client = Delta::new(cache);
    for (type_name, list, nonce) in [("CDS", "", "1"), ("LDS", "", "2"), ("RDS", "r r2", "3")] {
        client.ask(type_name, list);
        client.sent();
        client.ack(type_name, nonce);
    }
    client.sent();
    client
}

fn sotw(cache: &Arc<Cache>) -> Sotw {
    let mut client = Sotw::new(cache);
    for (type_name, list, nonce) in [("CDS", "", "1"), ("LDS", "", "2"), ("RDS", "r r2", "3")] {
        client.ask(type_name, list, "");
        client.sent();
        client.ack(type_name, nonce);
    }
    client.sent();
    client
}

#[test]
fn s33_a_rejected_route_holds_only_what_it_named_in_delta() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2>c");
    assert_eq!(client.sent(), "n4 RDS r=2>c");
    client.nack("RDS", "4");
    commit(&cache, "CDS -a -b; RDS r2=2>c");
    assert_eq!(client.sent(), "n5 RDS r2=2>c");
    client.ack("RDS", "5");
    // Nothing uses b. The client routes to a as long as it rejects the other route.
    assert_eq!(client.sent(), "n6 CDS -b");
    client.ack("CDS", "6");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "RDS r=3>c");
    assert_eq!(client.sent(), "n7 RDS r=3>c");
    client.ack("RDS", "7");
    assert_eq!(client.sent(), "n8 CDS -a");
}

#[test]
fn s33_a_rejected_route_holds_only_what_it_named_in_sotw() {
    let cache = cache();
    let mut client = sotw(&cache);
    commit(&cache, "RDS r=2>c");
    assert_eq!(client.sent(), "n4 RDS r=2>c");
    client.nack("RDS", "4");
    commit(&cache, "CDS -a -b; RDS r2=2>c");
    assert_eq!(client.sent(), "n5 RDS r2=2>c");
    client.ack("RDS", "5");
    assert_eq!(client.sent(), "n6 CDS c=static a=static");
    client.ack("CDS", "6");
    commit(&cache, "RDS r=3>c");
    assert_eq!(client.sent(), "n7 RDS r=3>c");
    client.ack("RDS", "7");
    assert_eq!(client.sent(), "n8 CDS c=static");
}

#[test]
fn s33_a_rejected_route_holds_only_what_it_named_over_streams_per_type() {
    let cache = cache();
    let group = ClientGroup::new();
    let [mut clusters, mut listeners, mut routes] =
        [("CDS", ""), ("LDS", ""), ("RDS", "r r2")].map(|(type_name, list)| {
            let mut stream = Delta::new(&cache);
            stream.stream.join(&group);
            stream.ask(type_name, list);
            stream.sent();
            stream.ack(type_name, "1");
            stream.sent();
            stream
        });
    // Woken when the others joined.
    assert_eq!([clusters.sent(), listeners.sent()], ["", ""]);
    commit(&cache, "RDS r=2>c");
    assert_eq!(routes.sent(), "n2 RDS r=2>c");
    routes.nack("RDS", "2");
    assert_eq!([routes.sent(), clusters.sent(), listeners.sent()], ["", "", ""]);
    commit(&cache, "CDS -a -b; RDS r2=2>c");
    assert_eq!([clusters.sent(), routes.sent()], ["", "n3 RDS r2=2>c"]);
    routes.ack("RDS", "3");
    assert_eq!(routes.sent(), "");
    assert!(is_woken(&clusters.watch));
    assert_eq!(clusters.sent(), "n2 CDS -b");
    clusters.ack("CDS", "2");
    assert_eq!(clusters.sent(), "");
    commit(&cache, "RDS r=3>c");
    assert_eq!(routes.sent(), "n4 RDS r=3>c");
    routes.ack("RDS", "4");
    assert_eq!([routes.sent(), clusters.sent()], ["", "n3 CDS -a"]);
}

#[test]
fn s33_a_rejected_route_holds_only_what_it_named_over_streams_per_type_in_sotw() {
    let cache = cache();
    let group = ClientGroup::new();
    let [mut clusters, mut routes] = [("CDS", ""), ("RDS", "r r2")].map(|(type_name, list)| {
        let mut stream = Sotw::new(&cache);
        stream.stream.join(&group);
        stream.ask(type_name, list, "");
        stream.sent();
        stream.ack(type_name, "1");
        stream.sent();
        stream
    });
    // Woken when the other stream joined.
    assert!(is_woken(&clusters.watch));
    assert_eq!(clusters.sent(), "");
    commit(&cache, "RDS r=2>c");
    assert_eq!(routes.sent(), "n2 RDS r=2>c");
    routes.nack("RDS", "2");
    assert_eq!([routes.sent(), clusters.sent()], ["", ""]);
    commit(&cache, "CDS -a -b; RDS r2=2>c");
    assert_eq!([clusters.sent(), routes.sent()], ["", "n3 RDS r2=2>c"]);
    routes.ack("RDS", "3");
    assert_eq!([routes.sent(), clusters.sent()], ["", "n2 CDS c=static a=static"]);
    // A stream that ended withholds nothing.
    drop(routes);
    clusters.pass(Duration::from_secs(5));
    assert_eq!(clusters.sent(), "n3 CDS c=static");
}

#[test]
fn s33_a_route_that_is_not_acked_yet_holds_only_what_it_named() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r2=2>c");
    assert_eq!(client.sent(), "n4 RDS r2=2>c");
    client.ack("RDS", "4");
    commit(&cache, "RDS r=2>c");
    assert_eq!(client.sent(), "n5 RDS r=2>c");
    commit(&cache, "CDS -a -b");
    // The client ACKed long ago that r2 no longer names b.
    assert_eq!(client.sent(), "n6 CDS -b");
    client.ack("RDS", "5");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "6");
    assert_eq!(client.sent(), "n7 CDS -a");
}

#[test]
fn s33_all_versions_since_the_last_accepted_one_hold_what_they_named() {
    let cache = cache();
    commit(&cache, "CDS d=static");
    for is_delta in [false, true] {
        commit(&cache, "CDS a=static b=static d=static; RDS r=1>a,c r2=1>b");
        let (mut sotw, mut delta) = (sotw(&cache), delta(&cache));
        for text in ["RDS r=2>b,c", "RDS r=3>d,c", "RDS r=4>c"] {
            commit(&cache, text);
            let nonce = if is_delta { delta.sent() } else { sotw.sent() };
            let nonce = nonce.split(' ').next().unwrap()[1..].to_owned();
            if is_delta {
                delta.nack("RDS", &nonce)
            } else {
                sotw.nack("RDS", &nonce)
            };
        }
        commit(&cache, "CDS -a -b -d");
        let sent = if is_delta { delta.sent() } else { sotw.sent() };
        assert_eq!(sent, "");
        let until = if is_delta { delta.waits_until() } else { sotw.waits_until() };
        assert_eq!(until, None);
    }
}

#[test]
fn s33_what_an_accepted_version_dropped_is_not_held_by_a_later_rejection() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2>c");
    client.sent();
    client.ack("RDS", "4");
    assert_eq!(client.sent(), "");
    commit(&cache, "RDS r=3>b,c");
    client.sent();
    client.nack("RDS", "5");
    commit(&cache, "CDS -a");
    assert_eq!(client.sent(), "n6 CDS -a");
}

#[test]
fn s33_routes_that_are_gone_hold_only_the_clusters_they_named() {
    let cache = cache();
    for is_delta in [false, true] {
        commit(&cache, FIRST);
        let (mut sotw, mut delta) = (sotw(&cache), delta(&cache));
        commit(&cache, "CDS -a -b; LDS l=2>r2; RDS -r r2=2>c");
        if is_delta {
            assert_eq!(delta.sent(), "n4 LDS l=2>r2; n5 RDS r2=2>c");
            delta.ack("LDS", "4");
            delta.ack("RDS", "5");
            assert_eq!(delta.sent(), "n6 CDS -b");
            delta.ack("CDS", "6");
            // D29: the removal was sent, and the route is still in use.
            delta.pass(Duration::from_secs(5));
            assert_eq!(delta.sent(), "n7 RDS -r");
            delta.ack("RDS", "7");
            delta.pass(Duration::from_secs(600));
            assert_eq!((delta.sent().as_str(), delta.waits_until()), ("", None));
            delta.ask("RDS", "-r");
            assert_eq!(delta.sent(), "n8 CDS -a");
        } else {
            assert_eq!(sotw.sent(), "n4 LDS l=2>r2 m=1>tcp:c; n5 RDS r2=2>c");
            sotw.ack("LDS", "4");
            sotw.ack("RDS", "5");
            assert_eq!(sotw.sent(), "n6 CDS c=static a=static");
            sotw.ack("CDS", "6");
            sotw.pass(Duration::from_secs(600));
            assert_eq!((sotw.sent().as_str(), sotw.waits_until()), ("", None));
            sotw.ask("RDS", "r2", "5");
            assert_eq!(sotw.sent(), "n7 CDS c=static");
        }
    }
}

#[test]
fn s33_a_rejected_listener_holds_its_routes_and_these_their_clusters() {
    for is_delta in [false, true] {
        let cache = cache();
        let (mut sotw, mut delta) = (sotw(&cache), delta(&cache));
        commit(&cache, "CDS -a -b; LDS l=2>r3; RDS -r r2=2>c r3=1>c");
        if is_delta {
            assert_eq!(delta.sent(), "n4 LDS l=2>r3; n5 RDS r2=2>c");
            delta.nack("LDS", "4");
            delta.ack("RDS", "5");
            // The listener in use names r, and r names a.
            assert_eq!(delta.sent(), "n6 CDS -b");
            delta.ack("CDS", "6");
            delta.pass(Duration::from_secs(600));
            assert_eq!((delta.sent().as_str(), delta.waits_until()), ("", None));
            commit(&cache, "LDS l=3>r2");
            assert_eq!(delta.sent(), "n7 LDS l=3>r2");
            delta.ack("LDS", "7");
            assert_eq!(delta.sent(), "n8 RDS -r");
            delta.ask_with("RDS", "-r", "8", &[]);
            assert_eq!(delta.sent(), "n9 CDS -a");
        } else {
            assert_eq!(sotw.sent(), "n4 LDS l=2>r3 m=1>tcp:c; n5 RDS r2=2>c");
            sotw.nack("LDS", "4");
            sotw.ack("RDS", "5");
            // S6e: the change of l may have made room.
            assert_eq!(sotw.sent(), "n6 CDS c=static a=static; n7 LDS l=2>r3 m=1>tcp:c");
            sotw.ack("CDS", "6");
            sotw.nack("LDS", "7");
            sotw.pass(Duration::from_secs(600));
            assert_eq!((sotw.sent().as_str(), sotw.waits_until()), ("", None));
        }
    }
}

#[test]
fn s33_a_rejected_full_state_holds_what_any_of_it_dropped() {
    let cache = cache();
    commit(&cache, "CDS d=static");
    let mut client = sotw(&cache);
    commit(&cache, "LDS l=2>r m=2>tcp:b");
    assert_eq!(client.sent(), "n4 LDS l=2>r m=2>tcp:b");
    client.nack("LDS", "4");
    assert_eq!(client.sent(), "n5 LDS l=2>r m=2>tcp:b", "S6e");
    client.nack("LDS", "5");
    commit(&cache, "CDS -b -c; RDS r=2>a r2=2>a");
    client.sent();
    client.ack("RDS", "6");
    // Not c, which the current listener names, nor b, which the other listener names.
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "CDS -d");
    assert_eq!(client.sent(), "n7 CDS a=static b=static c=static");
}

#[test]
fn s33_routes_in_which_nothing_was_found_hold_everything() {
    let cache = cache();
    for text in ["RDS r=opaque2", "RDS r=2>c"] {
        commit(&cache, FIRST);
        commit(&cache, "RDS r=opaque");
        let mut client = delta(&cache);
        commit(&cache, "RDS r=3>c");
        commit(&cache, text);
        client.sent();
        client.nack("RDS", "4");
        commit(&cache, "CDS -b");
        assert_eq!((client.sent().as_str(), client.waits_until()), ("", None), "{text}");
    }
}

#[test]
fn s33_more_than_is_remembered_of_a_route_holds_everything() {
    let cache = cache();
    let many: Vec<_> = (0..70).map(|at| format!("x{at}")).collect();
    commit(&cache, &format!("RDS r=1>{}", many.join(",")));
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2>c");
    client.sent();
    client.nack("RDS", "4");
    commit(&cache, "CDS -b; RDS r2=2>c");
    client.sent();
    client.ack("RDS", "5");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s33_a_client_that_accepted_nothing_yet_may_use_anything() {
    let cache = cache();
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 CDS a=static b=static c=static; n2 RDS r=1>a,c");
    client.ack("CDS", "1");
    client.nack("RDS", "2");
    commit(&cache, "CDS -b");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

/// Regression: the cluster was removed when the candidate ended, although the client rejects the route that takes the
/// place of the one that names the cluster (seed 10918).
#[test]
fn s33_a_cluster_of_a_candidate_stays_until_the_client_accepts_the_stable_route() {
    let cache = cache();
    let mut client = delta(&cache);
    client.watch.describe_client(parameters("id=b"));
    let candidate = cache.begin(transaction("CDS d=static; RDS r=2>d"), &"id=b".parse().unwrap()).unwrap();
    assert_eq!(client.sent(), "n4 CDS d=static");
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n5 RDS r=2>d");
    client.ack("RDS", "5");
    assert_eq!(client.sent(), "");
    candidate.end();
    assert_eq!(client.sent(), "n6 RDS r=1>a,c");
    client.nack("RDS", "6");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "RDS r=3>a");
    assert_eq!(client.sent(), "n7 RDS r=3>a");
    client.ack("RDS", "7");
    assert_eq!(client.sent(), "n8 CDS -d");
}

#[test]
fn s33_s6c_what_is_to_be_sent_again_withholds_removals_meanwhile() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2>c r2=2>c");
    assert_eq!(client.sent(), "n4 RDS r=2>c r2=2>c");
    client.nack("RDS", "4");
    commit(&cache, "CDS -b; RDS r=3>c");
    // It is not known whether the client applied r2, which named b, so b waits until it is known.
    assert_eq!(client.sent(), "n5 RDS r2=2>c");
    client.ack("RDS", "5");
    assert_eq!(client.sent(), "n6 RDS r=3>c; n7 CDS -b");
}

#[test]
fn s33_a_route_to_other_clusters_does_not_wait_for_one_that_warms() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1>r; RDS r=1>a r2=1>b");
    let mut client = Delta::new(&cache);
    for (type_name, list, nonce) in
        [("CDS", "", "1"), ("EDS", "a b", "2"), ("LDS", "", "3"), ("RDS", "r r2", "4")]
    {
        client.ask(type_name, list);
        client.sent();
        client.ack(type_name, nonce);
    }
    commit(&cache, "CDS new=1; EDS new=1");
    assert_eq!(client.sent(), "n5 CDS new=1");
    client.ask("EDS", "new");
    assert_eq!(client.sent(), "n6 EDS new=1");
    // The new cluster warms, and the client does not ACK it.
    commit(&cache, "RDS r=2>b");
    assert_eq!(client.sent(), "n7 RDS r=2>b");
    client.ack("RDS", "7");
    commit(&cache, "RDS r=3>b,new");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(16_000)));
    // A listener names clusters itself, or through its routes.
    commit(&cache, "LDS l=2>r2");
    assert_eq!(client.sent(), "n8 LDS l=2>r2");
    client.ack("LDS", "8");
    commit(&cache, "LDS l=3>r m=1>tcp:a");
    assert_eq!(client.sent(), "");
    // The client subscribes to routes later, and the answer may name any clusters.
    commit(&cache, "RDS r3=1>a; LDS l=3>r3");
    assert_eq!(client.sent(), "");
    commit(&cache, "LDS l=3>r");
    client.ack("EDS", "6");
    client.ack("CDS", "5");
    assert_eq!(client.sent(), "n9 LDS l=3>r m=1>tcp:a; n10 RDS r=3>b,new");
    client.ack("LDS", "9");
    client.ack("RDS", "10");
    // Changes of a cluster, of its endpoints, and of unsent resources count equally.
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n11 CDS a=2; n12 EDS a=1");
    commit(&cache, "LDS m=2>tcp:b");
    assert_eq!(client.sent(), "n13 LDS m=2>tcp:b");
    commit(&cache, "LDS m=3>tcp:a");
    assert_eq!(client.sent(), "");
    client.ack("CDS", "11");
    assert_eq!(client.sent(), "");
    client.ack("EDS", "12");
    client.ack("LDS", "13");
    assert_eq!(client.sent(), "n14 LDS m=3>tcp:a");
}

#[test]
fn s33_endpoints_without_an_answer_hold_only_what_names_their_cluster() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; EDS a=1 b=1; LDS l=1>r; RDS r=1>a r2=1>b");
    let mut client = Sotw::new(&cache);
    let types = [("CDS", "", "1"), ("EDS", "a b", "2"), ("LDS", "", "3"), ("RDS", "r r2", "4")];
    for (type_name, list, nonce) in types {
        client.ask(type_name, list, "");
        client.sent();
        client.ack(type_name, nonce);
    }
    commit(&cache, "EDS b=2");
    assert_eq!(client.sent(), "n5 EDS b=2");
    commit(&cache, "LDS l=2>r");
    assert_eq!(client.sent(), "n6 LDS l=2>r");
    client.ack("LDS", "6");
    commit(&cache, "RDS r=2>a");
    assert_eq!(client.sent(), "n7 RDS r=2>a");
    client.ack("RDS", "7");
    commit(&cache, "LDS l=3>r2");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", Some(16_000)));
    client.ack("EDS", "5");
    assert_eq!(client.sent(), "n8 LDS l=3>r2");
}

#[test]
fn s33_over_streams_per_type_endpoints_without_an_answer_hold_only_what_names_their_cluster() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; EDS a=1 b=1; RDS r=1>a r2=1>b");
    let group = ClientGroup::new();
    let types = [("CDS", ""), ("EDS", "a b"), ("RDS", "r r2")];
    let [mut clusters, mut endpoints, mut routes] = types.map(|(type_name, list)| {
        let mut stream = Delta::new(&cache);
        stream.stream.join(&group);
        stream.ask(type_name, list);
        stream.sent();
        stream.ack(type_name, "1");
        stream.sent();
        stream
    });
    // Woken when the others joined.
    assert_eq!([clusters.sent(), endpoints.sent(), routes.sent()], ["", "", ""]);
    commit(&cache, "EDS b=2");
    assert_eq!(endpoints.sent(), "n2 EDS b=2");
    commit(&cache, "RDS r=2>a");
    assert_eq!(routes.sent(), "n2 RDS r=2>a");
    routes.ack("RDS", "2");
    commit(&cache, "RDS r=3>b");
    assert_eq!(routes.sent(), "");
    endpoints.ack("EDS", "2");
    assert_eq!([endpoints.sent(), routes.sent()], ["", "n3 RDS r=3>b"]);
}

#[test]
fn s33_a_route_to_a_cluster_that_is_not_there_waits_for_those_that_are() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "CDS d=static; RDS r=2>none");
    assert_eq!(client.sent(), "n4 CDS d=static");
    assert_eq!(client.waits_until(), Some(16_000));
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n5 RDS r=2>none");
}

#[test]
fn s33_a_route_waits_for_the_clusters_and_the_endpoints_that_it_names() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; EDS a=1 b=1; RDS r=1>a r2=1>b");
    let mut client = Delta::new(&cache);
    for (type_name, list, nonce) in [("CDS", "", "1"), ("EDS", "a b", "2"), ("RDS", "r r2", "3")] {
        client.ask(type_name, list);
        client.sent();
        client.ack(type_name, nonce);
    }
    commit(&cache, "CDS s=static; EDS a=2");
    assert_eq!(client.sent(), "n4 CDS s=static; n5 EDS a=2");
    for (content, is_sent) in [("2>s", false), ("3>a", false), ("4>b", true)] {
        commit(&cache, &format!("RDS r2={content}"));
        assert_eq!(!client.sent().is_empty(), is_sent, "{content}");
    }
    // Nor has the client taken a cluster if it has not subscribed to its endpoints yet.
    client.ack("RDS", "6");
    client.ack("EDS", "5");
    commit(&cache, "CDS d=1");
    client.ack("CDS", "4");
    assert_eq!(client.sent(), "n7 CDS d=1");
    client.ack("CDS", "7");
    assert_eq!(client.sent(), "");
    commit(&cache, "CDS s=1; RDS r2=5>d");
    assert_eq!(client.sent(), "n8 CDS s=1");
}

#[test]
fn s33_who_joins_later_knows_what_was_rejected_before() {
    let cache = cache();
    let group = ClientGroup::new();
    let [mut routes, mut clusters] = [(); 2].map(|()| Delta::new(&cache));
    routes.stream.join(&group);
    routes.ask("RDS", "r r2");
    routes.sent();
    routes.ack("RDS", "1");
    routes.sent();
    commit(&cache, "RDS r=2>c r2=2>c");
    routes.sent();
    routes.nack("RDS", "2");
    commit(&cache, "RDS r2=3>c");
    routes.sent();
    routes.nack("RDS", "3");
    routes.sent();
    clusters.stream.join(&group);
    clusters.ask("CDS", "");
    assert_eq!(clusters.sent(), "n1 CDS a=static b=static c=static");
    clusters.ack("CDS", "1");
    commit(&cache, "CDS d=static");
    assert_eq!(clusters.sent(), "n2 CDS d=static");
    clusters.ack("CDS", "2");
    commit(&cache, "CDS -a -d");
    assert_eq!((clusters.sent().as_str(), clusters.waits_until()), ("", None));
    // The other stream publishes this when it decides what to send next.
    assert_eq!([routes.sent(), clusters.sent()], ["", "n3 CDS -d"]);
}

#[test]
fn s33_more_responses_in_flight_than_are_remembered_hold_everything() {
    let cache = cache();
    let mut client = delta(&cache);
    commit(&cache, "RDS r=2>c");
    assert_eq!(client.sent(), "n4 RDS r=2>c");
    for at in 0..65 {
        commit(&cache, &format!("RDS r2=x{at}>b"));
        client.pass(Duration::from_secs(1));
        assert_eq!(client.sent(), format!("n{} RDS r2=x{at}>b", at + 5));
    }
    commit(&cache, "CDS -a");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
}

#[test]
fn s33_a_cluster_that_a_live_route_names_stays_until_the_route_follows() {
    let cache = cache();
    commit(&cache, "LDS m=1>tcp:a");
    let mut client = delta(&cache);
    commit(&cache, "CDS -c");
    client.pass(Duration::from_secs(60));
    assert_eq!((client.sent().as_str(), client.waits_until()), ("", None));
    commit(&cache, "RDS r=2>a");
    assert_eq!(client.sent(), "n4 RDS r=2>a");
    client.ack("RDS", "4");
    assert_eq!(client.sent(), "n5 CDS -c");
}

#[test]
fn s33_who_asks_for_a_cluster_by_name_is_told_after_the_grace_time_that_it_is_gone() {
    let cache = cache();
    let mut client = Delta::new(&cache);
    client.ask("CDS", "a c");
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 CDS a=static c=static; n2 RDS r=1>a,c");
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS -c");
    assert_eq!(client.sent(), "");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 CDS -c");
}
