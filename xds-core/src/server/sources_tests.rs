//! Resources that are sent again because what names them has another source (S34b), in both protocols.

use std::sync::Arc;

use super::ClientGroup;
use super::fixture::{Delta, Sotw, commit, parameters, version};
use crate::Cache;

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// A client with these listeners and with secret `s`.
fn delta(cache: &Arc<Cache>) -> Delta {
    let mut client = Delta::new(cache);
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 LDS l=1>SDS:s@a");
    client.ack("LDS", "1");
    client.ask("SDS", "s");
    assert_eq!(client.sent(), "n2 SDS s=1");
    client.ack("SDS", "2");
    client
}

#[test]
fn s34b_a_secret_follows_a_listener_that_names_it_by_another_source() {
    let cache = cache("LDS l=1>SDS:s@a; SDS s=1");
    let mut client = delta(&cache);
    commit(&cache, "LDS l=2>SDS:s@b");
    assert_eq!(client.sent(), "n3 LDS l=2>SDS:s@b; n4 SDS s=1");
    client.ack("LDS", "3");
    client.ack("SDS", "4");
    commit(&cache, "LDS l=3>SDS:s@b");
    assert_eq!(client.sent(), "n5 LDS l=3>SDS:s@b", "the same source");
    client.ack("LDS", "5");
    commit(&cache, "LDS l=4");
    assert_eq!(client.sent(), "n6 LDS l=4");
    client.ack("LDS", "6");
    commit(&cache, "LDS l=5>SDS:s@b");
    assert_eq!(client.sent(), "n7 LDS l=5>SDS:s@b; n8 SDS s=1", "it did not name the secret meanwhile");
}

#[test]
fn s34b_a_secret_follows_a_new_listener_or_cluster() {
    let cache = cache("LDS l=1>SDS:s@a; SDS s=1");
    let mut client = delta(&cache);
    client.ask("CDS", "*");
    assert_eq!(client.sent(), "n3 CDS");
    commit(&cache, "LDS m=1>SDS:s@b");
    assert_eq!(client.sent(), "n4 LDS m=1>SDS:s@b; n5 SDS s=1");
    for (of_type, nonce) in [("CDS", "3"), ("LDS", "4"), ("SDS", "5")] {
        client.ack(of_type, nonce);
    }
    commit(&cache, "CDS c=1>SDS:s@c");
    assert_eq!(client.sent(), "n6 CDS c=1>SDS:s@c; n7 SDS s=1");
    client.ack("CDS", "6");
    commit(&cache, "LDS n=1>SDS:other@a");
    assert_eq!(client.sent(), "n8 LDS n=1>SDS:other@a", "the client does not subscribe to it");
}

#[test]
fn s34b_a_source_that_changes_back_before_it_is_sent_is_none() {
    let cache = cache("LDS l=1>SDS:s@a; SDS s=1");
    let mut client = delta(&cache);
    commit(&cache, "LDS l=2>SDS:s@b");
    commit(&cache, "LDS l=1>SDS:s@a");
    assert_eq!(client.sent(), "");
}

#[test]
fn s34b_each_variant_has_its_own_sources() {
    let cache = cache("LDS l[env=a]=1>SDS:s@a l[env=b]=1>SDS:s@b; SDS s=1");
    let mut client = Delta::new(&cache);
    client.stream.on_node(parameters("env=a"));
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 LDS l=1>SDS:s@a");
    client.ask("SDS", "s");
    assert_eq!(client.sent(), "n2 SDS s=1");
    client.ack("LDS", "1");
    client.ack("SDS", "2");
    commit(&cache, "LDS -l[env=a] -l[env=b] l[env]=2>SDS:s@b");
    assert_eq!(client.sent(), "n3 LDS l=2>SDS:s@b; n4 SDS s=1");
}

#[test]
fn s34b_a_secret_follows_also_if_the_listener_may_name_anything_else() {
    let cache = cache("LDS l=1>SDS:s@a,any:; SDS s=1");
    let mut client = Delta::new(&cache);
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 LDS l=1>SDS:s@a,any:");
    client.ask("SDS", "s");
    assert_eq!(client.sent(), "n2 SDS s=1");
    client.ack("LDS", "1");
    commit(&cache, "LDS l=2>SDS:s@b,any:");
    assert_eq!(client.sent(), "n3 LDS l=2>SDS:s@b,any:; n4 SDS s=1");
}

#[test]
fn s34b_a_filter_and_scopes_follow_their_listener() {
    let cache = cache("LDS l=1>ECDS:f@a,SRDS:@a; ECDS f=1; SRDS x=1");
    let mut client = Delta::new(&cache);
    client.ask("LDS", "*");
    assert_eq!(client.sent(), "n1 LDS l=1>ECDS:f@a,SRDS:@a");
    client.ask("SRDS", "*");
    client.ask("ECDS", "f");
    assert_eq!(client.sent(), "n2 SRDS x=1; n3 ECDS f=1");
    for (of_type, nonce) in [("LDS", "1"), ("SRDS", "2"), ("ECDS", "3")] {
        client.ack(of_type, nonce);
    }
    commit(&cache, "LDS l=2>ECDS:f@a,SRDS:@b");
    assert_eq!(client.sent(), "n4 LDS l=2>ECDS:f@a,SRDS:@b; n5 SRDS x=1");
    client.ack("LDS", "4");
    client.ack("SRDS", "5");
    commit(&cache, "LDS l=3>ECDS:f@b,SRDS:@b");
    assert_eq!(client.sent(), "n6 LDS l=3>ECDS:f@b,SRDS:@b; n7 ECDS f=1");
}

#[test]
fn s34b_in_sotw_only_the_secret_follows() {
    let cache = cache("LDS k=1 l=1>SDS:s@a; SDS s=1 t=1");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "", "");
    assert_eq!(client.sent(), "n1 LDS k=1 l=1>SDS:s@a");
    client.ask("SDS", "s t", "");
    assert_eq!(client.sent(), "n2 SDS s=1 t=1");
    client.ack("LDS", "1");
    client.ack("SDS", "2");
    commit(&cache, "LDS k=2");
    assert_eq!(client.sent(), "n3 LDS k=2 l=1>SDS:s@a", "l is there again, but did not change");
    client.ack("LDS", "3");
    commit(&cache, "LDS l=2>SDS:s@b");
    assert_eq!(client.sent(), "n4 LDS k=2 l=2>SDS:s@b; n5 SDS s=1");
}

#[test]
fn s34b_a_client_that_reconnects_gets_the_secret_although_it_has_the_version() {
    let cache = cache("LDS l=2>SDS:s@b; SDS s=1");
    let mut client = Delta::new(&cache);
    let (old, secret) = (version("LDS", "l", "1>SDS:s@a"), version("SDS", "s", "1"));
    client.ask_with("LDS", "*", "", &[("l", old.as_str())]);
    assert_eq!(client.sent(), "n1 LDS l=2>SDS:s@b");
    client.ask_with("SDS", "s", "", &[("s", secret.as_str())]);
    assert_eq!(client.sent(), "n2 SDS s=1");
    let mut other = Delta::new(&cache);
    let new = version("LDS", "l", "2>SDS:s@b");
    other.ask_with("LDS", "*", "", &[("l", new.as_str())]);
    other.ask_with("SDS", "s", "", &[("s", secret.as_str())]);
    assert_eq!(other.sent(), "", "it has this listener");
}

#[test]
fn s34b_a_secret_on_another_stream_of_the_client_follows_too() {
    let cache = cache("LDS l=1>SDS:s@a; SDS s=1");
    let group = ClientGroup::new();
    let (mut listeners, mut secrets) = (Delta::new(&cache), Delta::new(&cache));
    listeners.stream.join(&group);
    secrets.stream.join(&group);
    listeners.ask("LDS", "*");
    secrets.ask("SDS", "s");
    assert_eq!((listeners.sent().as_str(), secrets.sent().as_str()), ("n1 LDS l=1>SDS:s@a", "n1 SDS s=1"));
    listeners.ack("LDS", "1");
    secrets.ack("SDS", "1");
    commit(&cache, "LDS l=2>SDS:s@b");
    assert_eq!(listeners.sent(), "n2 LDS l=2>SDS:s@b");
    assert_eq!(secrets.sent(), "n2 SDS s=1");
}
