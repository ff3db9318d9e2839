use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Cache;
use crate::server::fixture::{Delta, Sotw, commit, is_woken};

const FIRST: &str = "CDS old=1; EDS old=1; LDS l=1; RDS r=old";
/// Route, cluster and endpoints replaced together.
const SWAP: &str = "CDS -old new=1; EDS -old new=1; RDS r=new";

/// A delta client with a stream for each type, in the order of S33.
fn deltas(cache: &Arc<Cache>, group: &ClientGroup) -> [Delta; 4] {
    let mut streams = [("CDS", ""), ("EDS", "old"), ("LDS", ""), ("RDS", "r")].map(|(type_name, list)| {
        let mut stream = Delta::new(cache);
        stream.stream.join(group);
        stream.ask(type_name, list);
        stream.sent();
        stream.ack(type_name, "1");
        stream.sent();
        stream
    });
    // Some streams are woken when other streams join.
    streams.iter_mut().for_each(|stream| assert_eq!(stream.sent(), ""));
    streams
}

fn sotws(cache: &Arc<Cache>, group: &ClientGroup) -> [Sotw; 4] {
    let mut streams = [("CDS", ""), ("EDS", "old"), ("LDS", ""), ("RDS", "r")].map(|(type_name, list)| {
        let mut stream = Sotw::new(cache);
        stream.stream.join(group);
        stream.ask(type_name, list, "");
        stream.sent();
        stream.ack(type_name, "1");
        stream.sent();
        stream
    });
    streams.iter_mut().for_each(|stream| assert_eq!(stream.sent(), ""));
    streams
}

#[test]
fn s33_a_swap_over_streams_per_type_keeps_the_order_in_delta() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, mut endpoints, mut listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    commit(&cache, SWAP);
    assert_eq!([listeners.sent(), routes.sent()], ["", ""]);
    assert_eq!(clusters.sent(), "n2 CDS new=1");
    endpoints.ask("EDS", "new");
    assert_eq!(endpoints.sent(), "n2 EDS new=1");
    assert_eq!(routes.sent(), "");
    clusters.ack("CDS", "2");
    assert_eq!([clusters.sent(), routes.sent()], ["", ""]);
    endpoints.ack("EDS", "2");
    assert_eq!(endpoints.sent(), "");
    assert!(is_woken(&routes.watch));
    assert_eq!(routes.sent(), "n2 RDS r=new");
    assert_eq!([clusters.sent(), endpoints.sent()], ["", ""]);
    routes.ack("RDS", "2");
    assert_eq!(routes.sent(), "");
    assert!(is_woken(&clusters.watch));
    assert_eq!(clusters.sent(), "n3 CDS -old");
}

#[test]
fn s33_a_swap_over_streams_per_type_keeps_the_order_in_sotw() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, mut endpoints, _listeners, mut routes] = sotws(&cache, &ClientGroup::new());
    commit(&cache, SWAP);
    assert_eq!(routes.sent(), "");
    assert_eq!(clusters.sent(), "n2 CDS new=1 old=1");
    endpoints.ask("EDS", "old new", "1");
    assert_eq!(endpoints.sent(), "n2 EDS new=1");
    clusters.ack("CDS", "2");
    endpoints.ack("EDS", "2");
    assert_eq!([clusters.sent(), endpoints.sent()], ["", ""]);
    assert!(is_woken(&routes.watch));
    assert_eq!(routes.sent(), "n2 RDS r=new");
    routes.ack("RDS", "2");
    assert_eq!(routes.sent(), "");
    assert_eq!(clusters.sent(), "n3 CDS new=1");
}

#[test]
fn s34_d27_endpoints_follow_their_cluster_on_a_stream_of_their_own() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let group = ClientGroup::new();
    let [mut clusters, mut endpoints, ..] = deltas(&cache, &group);
    commit(&cache, "CDS old=2");
    assert_eq!(endpoints.sent(), "");
    assert_eq!(clusters.sent(), "n2 CDS old=2");
    // S35: without waiting for the ACK of the cluster.
    assert!(is_woken(&endpoints.watch));
    assert_eq!(endpoints.sent(), "n2 EDS old=1");
    drop((clusters, endpoints));
    assert!(group.is_empty());
}

#[test]
fn s34_s36_in_sotw_too() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, mut endpoints, ..] = sotws(&cache, &ClientGroup::new());
    commit(&cache, "CDS old=2");
    assert_eq!(clusters.sent(), "n2 CDS old=2");
    assert_eq!(endpoints.sent(), "n2 EDS old=1");
    // Envoy repeats its request when the cluster changed. The endpoints were sent in the meantime.
    endpoints.ack("EDS", "1");
    endpoints.ack("EDS", "2");
    assert_eq!(endpoints.sent(), "");
}

#[test]
fn s33_two_clients_of_one_name_do_not_wait_for_each_other() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let group = ClientGroup::new();
    let [mut clusters, _e, _l, mut routes] = deltas(&cache, &group);
    let [mut others, ..] = deltas(&cache, &group);
    commit(&cache, SWAP);
    assert_eq!(others.sent(), "n2 CDS new=1");
    assert_eq!(routes.sent(), "n2 RDS r=new");
    assert_eq!(clusters.sent(), "n2 CDS new=1");
    clusters.ack("CDS", "2");
    // It is not known which client still uses it.
    assert_eq!((clusters.sent().as_str(), clusters.waits_until()), ("", Some(5000)));
    clusters.pass(Duration::from_secs(5));
    assert_eq!(clusters.sent(), "n3 CDS -old");
}

#[test]
fn s33_a_stream_that_ends_is_not_waited_for() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [clusters, endpoints, _listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    commit(&cache, SWAP);
    assert_eq!(routes.sent(), "");
    drop((clusters, endpoints));
    assert!(is_woken(&routes.watch));
    assert_eq!(routes.sent(), "n2 RDS r=new");
}

#[test]
fn s33_routes_wait_for_endpoints_that_the_client_has_yet_to_ask_for() {
    // With a stream per type, Envoy ACKs a cluster at once, and subscribes to its endpoints only
    // then.
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, mut endpoints, _listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    commit(&cache, SWAP);
    assert_eq!(clusters.sent(), "n2 CDS new=1");
    clusters.ack("CDS", "2");
    assert_eq!([clusters.sent(), endpoints.sent()], ["", ""]);
    assert_eq!((routes.sent().as_str(), routes.waits_until()), ("", Some(16_000)));
    endpoints.ask("EDS", "new");
    assert_eq!(endpoints.sent(), "n2 EDS new=1");
    assert_eq!(routes.sent(), "");
    endpoints.ack("EDS", "2");
    assert_eq!([endpoints.sent(), routes.sent()], ["", "n2 RDS r=new"]);
}

#[test]
fn s33_routes_wait_a_second_for_a_client_that_may_have_its_endpoints_from_elsewhere() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, endpoints, _listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    drop(endpoints);
    commit(&cache, SWAP);
    assert_eq!(clusters.sent(), "n2 CDS new=1");
    clusters.ack("CDS", "2");
    assert_eq!(clusters.sent(), "");
    assert_eq!((routes.sent().as_str(), routes.waits_until()), ("", Some(1000)));
    routes.pass(Duration::from_secs(1));
    assert_eq!(routes.sent(), "n2 RDS r=new");
}

#[test]
fn a_client_with_a_stream_for_each_cluster_is_served_in_turn() {
    // Envoy opens a stream per cluster for endpoints.
    let many = |word: &str| (0..300).map(|at| word.replace('#', &at.to_string())).collect::<String>();
    let cache = Cache::new();
    commit(&cache, &format!("CDS{}; EDS{}; RDS r=old", many(" c#=1"), many(" c#=1")));
    let group = ClientGroup::new();
    let mut clusters = Delta::new(&cache);
    let mut routes = Delta::new(&cache);
    clusters.stream.join(&group);
    routes.stream.join(&group);
    clusters.ask("CDS", "");
    routes.ask("RDS", "r");
    for (stream, type_name) in [(&mut clusters, "CDS"), (&mut routes, "RDS")] {
        stream.sent();
        stream.ack(type_name, "1");
        stream.sent();
    }
    let mut endpoints: Vec<_> = (0..300)
        .map(|at| {
            let mut stream = Delta::new(&cache);
            stream.stream.join(&group);
            stream.ask("EDS", &format!("c{at}"));
            stream.sent();
            stream.ack("EDS", "1");
            stream.sent();
            stream
        })
        .collect();
    commit(&cache, "CDS c7=2; EDS c7=2 c8=2; RDS r=new");
    assert_eq!(clusters.sent(), "n2 CDS c7=2");
    let woken: Vec<usize> = (0..300).filter(|at| is_woken(&endpoints[*at].watch)).collect();
    assert_eq!(woken, [7, 8]);
    assert_eq!([endpoints[7].sent(), endpoints[8].sent()], ["n2 EDS c7=2", "n2 EDS c8=2"]);
    clusters.ack("CDS", "2");
    clusters.sent();
    endpoints[7].ack("EDS", "2");
    endpoints[7].sent();
    assert_eq!(routes.sent(), "");
    endpoints[8].ack("EDS", "2");
    endpoints[8].sent();
    assert_eq!(routes.sent(), "n2 RDS r=new");
}

#[test]
fn s33_what_streams_were_not_told_while_they_did_not_matter_to_each_other_is_unknown() {
    let cache = Cache::new();
    commit(&cache, "CDS old=static; RDS r=1>old");
    let group = ClientGroup::new();
    let join = |type_name, list| {
        let mut stream = Delta::new(&cache);
        stream.stream.join(&group);
        stream.ask(type_name, list);
        stream.sent();
        stream
    };
    // A stream that is alone does not publish that its response is unanswered.
    let mut clusters = join("CDS", "");
    assert!(!group.is_tied());
    let mut routes = join("RDS", "r");
    assert!(group.is_tied());
    routes.ack("RDS", "1");
    commit(&cache, "RDS r=2>old");
    assert_eq!(routes.sent(), "");
    assert!(is_woken(&clusters.watch));
    assert_eq!(clusters.sent(), "");
    assert_eq!(routes.sent(), "");
    clusters.ack("CDS", "1");
    assert_eq!(clusters.sent(), "");
    assert!(is_woken(&routes.watch));
    assert_eq!(routes.sent(), "n2 RDS r=2>old");
    drop(clusters);
    assert!(!group.is_tied());
}

#[test]
fn streams_that_cannot_matter_to_each_other_are_not_tied() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let group = ClientGroup::new();
    let join = |type_name, list| {
        let mut stream = Delta::new(&cache);
        stream.stream.join(&group);
        stream.ask(type_name, list);
        stream.sent();
        stream
    };
    let _endpoints = [join("EDS", "old"), join("EDS", "new")];
    assert!(!group.is_tied());
    let clusters = join("CDS", "");
    assert!(group.is_tied());
    // Another client with the same name.
    let others = join("CDS", "");
    assert!(!group.is_tied());
    drop(others);
    assert!(group.is_tied());
    drop(clusters);
    assert!(!group.is_tied());
}

#[test]
fn s34_endpoints_follow_though_the_stream_that_sent_their_cluster_ended() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let group = ClientGroup::new();
    let [mut clusters, mut endpoints, listeners, routes] = deltas(&cache, &group);
    drop((listeners, routes));
    commit(&cache, "CDS old=2");
    assert_eq!(clusters.sent(), "n2 CDS old=2");
    drop(clusters);
    assert!(!group.is_tied());
    assert!(is_woken(&endpoints.watch));
    assert_eq!(endpoints.sent(), "n2 EDS old=1");
    endpoints.ack("EDS", "2");
    assert_eq!(endpoints.sent(), "");
}

#[test]
fn s33b_a_stream_that_answers_nothing_stops_counting() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [_clusters, mut endpoints, _listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    commit(&cache, "EDS old=2; RDS r=old2");
    assert_eq!(endpoints.sent(), "n2 EDS old=2");
    assert_eq!((routes.sent().as_str(), routes.waits_until()), ("", Some(16_000)));
    routes.pass(Duration::from_secs(16));
    assert_eq!(routes.sent(), "n2 RDS r=old2");
    routes.ack("RDS", "2");
    commit(&cache, "RDS r=old3");
    assert_eq!(routes.sent(), "n3 RDS r=old3");
    routes.ack("RDS", "3");
    endpoints.pass(Duration::from_secs(16));
    endpoints.ack("EDS", "2");
    commit(&cache, "EDS old=3; RDS r=old4");
    assert_eq!([endpoints.sent(), routes.sent()], ["n3 EDS old=3", ""]);
}

#[test]
fn s33b_a_stream_that_answers_nothing_is_sent_its_cluster_before_the_route_to_it() {
    let cache = Cache::new();
    commit(&cache, FIRST);
    let [mut clusters, _endpoints, _listeners, mut routes] = deltas(&cache, &ClientGroup::new());
    commit(&cache, "CDS x=static");
    assert_eq!(clusters.sent(), "n2 CDS x=static");
    clusters.pass(Duration::from_secs(16));
    routes.pass(Duration::from_secs(16));
    commit(&cache, "CDS new=static; RDS r=new");
    // It does not matter which stream wakes first.
    assert_eq!((routes.sent().as_str(), routes.waits_until()), ("", Some(18_000)));
    assert_eq!(clusters.sent(), "n3 CDS new=static");
    assert!(is_woken(&routes.watch));
    assert_eq!(routes.sent(), "n2 RDS r=new");
}
