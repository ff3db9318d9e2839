//! Resources with a time to live, in both protocols (S30, S38-S40b, D26).

use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Delta, Sotw, commit, type_url};
use super::{Service, StreamConfig, TypeConfig};
use crate::Cache;

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A client that honours TTLs.
fn sotw(cache: &Arc<Cache>) -> Sotw {
    let mut client = Sotw::new(cache);
    client.stream.on_ttl_support();
    client
}

fn delta(cache: &Arc<Cache>) -> Delta {
    let mut client = Delta::new(cache);
    client.stream.on_ttl_support();
    client
}

#[test]
fn s38_s30_a_ttl_is_told_in_a_wrapper_to_who_honours_it_and_to_nobody_else() {
    let cache = cache("CDS a{ttl=10}=1 b=1");
    let (mut one, mut other) = (sotw(&cache), Sotw::new(&cache));
    one.ask("CDS", "", "");
    other.ask("CDS", "", "");
    assert_eq!(one.sent(), "n1 CDS a{ttl=10}=1 b=1");
    assert_eq!(one.last.resources.iter().filter(|any| any.type_url.ends_with("Resource")).count(), 1);
    assert_eq!(other.sent(), "n1 CDS a=1 b=1");
    assert!(other.last.resources.iter().all(|any| any.type_url.ends_with("Cluster")));
    let (mut one, mut other) = (delta(&cache), Delta::new(&cache));
    one.ask("CDS", "");
    other.ask("CDS", "");
    assert_eq!(one.sent(), "n1 CDS a{ttl=10}=1 b=1");
    assert_eq!(other.sent(), "n1 CDS a=1 b=1");
}

#[test]
fn s38_a_ttl_that_comes_or_goes_is_a_change() {
    let cache = cache("X a=1");
    let mut client = delta(&cache);
    client.ask("X", "a");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X a{ttl=10}=1");
    assert_eq!(client.sent(), "n2 X a{ttl=10}=1");
    client.ack("X", "2");
    commit(&cache, "X a=1");
    assert_eq!(client.sent(), "n3 X a=1");
    client.ack("X", "3");
    assert_eq!(client.waits_until(), None);
}

#[test]
fn d26_s39_in_delta_a_heartbeat_without_content_comes_at_half_of_the_ttl() {
    let cache = cache("X a{ttl=10}=1 b{ttl=60}=1 c=1");
    let mut client = delta(&cache);
    client.ask("X", "a b c");
    assert_eq!(client.sent(), "n1 X a{ttl=10}=1 b{ttl=60}=1 c=1");
    let version = client.last.resources[0].version.clone();
    client.ack("X", "1");
    for nonce in 2..5 {
        assert_eq!(client.waits_until(), Some(5000 * (nonce - 1)));
        client.pass(Duration::from_secs(5));
        assert_eq!(client.sent(), format!("n{nonce} X a{{ttl=10}} b{{ttl=60}}"));
        assert_eq!(client.last.resources[0].version, version, "that of what was sent last");
        client.ack("X", &nonce.to_string());
    }
    client.ask("X", "-a -b");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "", "nothing that it asks for has one");
}

#[test]
fn d26_with_locators_a_heartbeat_has_the_resource_name() {
    let cache = cache("X r{ttl=10}[env=prod]=A r[env=test]=B");
    let mut client = delta(&cache);
    client.ask("X", "r?env=prod r?env=test");
    assert_eq!(client.sent(), "n1 X r[env=prod]{ttl=10}=A r[env=test]=B");
    client.ack("X", "1");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 X r[env=prod]{ttl=10}");
}

#[test]
fn s39_what_was_rejected_has_no_heartbeat() {
    let cache = cache("X a{ttl=10}=1 b{ttl=10}=1");
    let mut client = delta(&cache);
    client.ask("X", "a b");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X a{ttl=10}=2");
    client.sent();
    client.nack("X", "2");
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 X b{ttl=10}");
}

#[test]
fn d26_virtual_hosts_are_sent_again_as_an_empty_one_means_something_else() {
    let cache = cache("VHDS r/a{ttl=10}=1");
    let mut client = delta(&cache);
    client.ask("VHDS", "r/a");
    assert_eq!(client.sent(), "n1 VHDS r/a{ttl=10}=1");
    client.ack("VHDS", "1");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n2 VHDS r/a{ttl=10}=1");
}

#[test]
fn s40_in_sotw_a_ttl_is_extended_by_the_content_and_of_clusters_by_all() {
    let cache = cache("CDS a{ttl=10}=1 b=1; RDS r{ttl=10}=1 s=1");
    let mut client = sotw(&cache);
    client.ask("CDS", "", "");
    client.ask("RDS", "r s", "");
    assert_eq!(client.sent(), "n1 CDS a{ttl=10}=1 b=1; n2 RDS r{ttl=10}=1 s=1");
    let version = client.last.version_info.clone();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    client.sent();
    client.pass(Duration::from_secs(5));
    assert_eq!(client.sent(), "n3 CDS a{ttl=10}=1 b=1; n4 RDS r{ttl=10}=1");
    assert_eq!(client.last.version_info, version);
}

#[test]
fn s40b_endpoints_of_a_sotw_stream_have_no_ttl_unless_switched_on() {
    let cache = cache("EDS a{ttl=10}=1");
    let mut client = sotw(&cache);
    client.ask("EDS", "a", "");
    assert_eq!((client.sent().as_str(), client.waits_until()), ("n1 EDS a=1", None));
    let mut client = delta(&cache);
    client.ask("EDS", "a");
    assert_eq!(client.sent(), "n1 EDS a{ttl=10}=1");
    let on = TypeConfig { ttl_in_sotw: true, ..TypeConfig::of(type_url("EDS").as_str()) };
    let config = StreamConfig { types: [(type_url("EDS"), on)].into(), ..StreamConfig::default() };
    let mut client = Sotw::with(&cache, Service::Aggregated, config);
    client.stream.on_ttl_support();
    client.ask("EDS", "a", "");
    assert_eq!(client.sent(), "n1 EDS a{ttl=10}=1");
}

#[test]
fn d22_what_goes_with_a_payload_is_part_of_the_version() {
    let resource = || {
        let payload = super::fixture::payload("X", "a", "1");
        crate::Resource::new(type_url("X"), "a", payload).unwrap()
    };
    let versions = [
        resource().version(),
        resource().with_ttl(Duration::from_secs(1)).version(),
        resource().with_ttl(Duration::from_secs(2)).version(),
        resource().with_aliases(["b".into()]).version(),
        resource().with_do_not_cache().version(),
        resource().with_metadata(bytes::Bytes::from_static(b"\x0a\x00")).version(),
    ];
    let distinct: std::collections::BTreeSet<_> = versions.iter().collect();
    assert_eq!(distinct.len(), versions.len());
}
