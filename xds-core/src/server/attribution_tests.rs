//! Which resource a NACK is about (S6c, S6f, ST63).

use std::sync::Arc;

use super::Stream;
use super::fixture::{Delta, Sotw, commit};
use crate::Cache;

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// The names that count as rejected alone since the last call.
fn alone(stream: &mut Stream, cache: &Cache) -> String {
    let taken = cache.read(|snapshot| stream.take_rejections(snapshot));
    let names = taken.iter().filter(|taken| taken.is_alone).map(|taken| taken.variants[0].name().as_str());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn st63_delta_a_nack_is_about_the_only_resource_of_its_response() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a b");
    assert_eq!(client.sent(), "n1 EDS a=1 b=1");
    client.nack("EDS", "1");
    assert_eq!(alone(&mut client.stream, &cache), "", "it had two");
    assert_eq!(client.sent(), "n2 EDS a=1");
    client.ack("EDS", "2");
    assert_eq!(client.sent(), "n3 EDS b=1");
    client.nack("EDS", "3");
    assert_eq!(alone(&mut client.stream, &cache), "", "the stream has not looked at the answer");
    assert_eq!(client.sent(), "");
    assert_eq!(alone(&mut client.stream, &cache), "b");
    assert_eq!(alone(&mut client.stream, &cache), "", "it was taken before");
    commit(&cache, "EDS a=2");
    assert_eq!(client.sent(), "n4 EDS a=2");
    client.nack("EDS", "4");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), "a".into()));
}

#[test]
fn st63_s6e_sotw_a_nack_of_a_full_state_is_about_the_only_change_since_an_accepted_one() {
    let cache = cache("CDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    client.sent();
    client.nack("CDS", "1");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), String::new()));
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n2 CDS a=2 b=1");
    client.ack("CDS", "2");
    commit(&cache, "CDS a=3");
    assert_eq!(client.sent(), "n3 CDS a=3 b=1");
    client.nack("CDS", "3");
    assert_eq!(client.sent(), "n4 CDS a=3 b=1", "S6e: the change may have made room");
    assert_eq!(alone(&mut client.stream, &cache), "");
    client.nack("CDS", "4");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), "a".into()));
    // Nobody knows what the client thinks of a now.
    commit(&cache, "CDS b=5");
    client.sent();
    client.nack("CDS", "5");
    client.pass(std::time::Duration::from_secs(20));
    client.sent();
    assert_eq!(alone(&mut client.stream, &cache), "");
}

#[test]
fn s6e_sotw_what_the_client_was_not_sent_before_makes_no_room() {
    let cache = cache("CDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    client.sent();
    client.ack("CDS", "1");
    // It came and went before the client was sent anything.
    commit(&cache, "CDS c=1");
    commit(&cache, "CDS -c b=1");
    assert_eq!(client.sent(), "n2 CDS a=1 b=1");
    client.nack("CDS", "2");
    assert_eq!(client.sent(), "");
    // Changed, and the client subscribes to it only now.
    commit(&cache, "CDS b=2 d=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "b", "");
    client.sent();
    client.ack("CDS", "1");
    commit(&cache, "CDS d=2");
    client.ask("CDS", "b d", "1");
    assert_eq!(client.sent(), "n2 CDS b=2 d=2");
    client.nack("CDS", "2");
    assert_eq!(client.sent(), "");
    // Removed for the parameters that the client subscribes to only now (seed 11933).
    commit(&cache, "LDS c=1 d[env]=1 d[!env]=1");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "*?env=a", "");
    client.sent();
    client.nack("LDS", "1");
    commit(&cache, "LDS -d[!env]");
    client.ask("LDS", "*?pod=x", "1");
    assert_eq!(client.sent(), "n2 LDS c[]=1");
    client.nack("LDS", "2");
    assert_eq!(client.sent(), "");
}

#[test]
fn st63_sotw_a_response_with_one_resource_is_about_it_and_new_names_are_changes() {
    let cache = cache("CDS a=1 b=1; EDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "a", "");
    client.sent();
    client.nack("CDS", "1");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), "a".into()));
    client.ask("CDS", "a b", "1");
    assert_eq!(client.sent(), "n2 CDS a=1 b=1");
    client.nack("CDS", "2");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), String::new()));
    client.ask("EDS", "a", "");
    client.sent();
    client.nack("EDS", "3");
    assert_eq!((client.sent(), alone(&mut client.stream, &cache)), (String::new(), "a".into()));
}
