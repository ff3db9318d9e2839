//! Which resource a NACK is about (ST63).

use std::sync::Arc;

use super::fixture::{Delta, Sotw, commit, type_url};
use super::{Service, StreamConfig};
use crate::{Cache, Variant};

fn config() -> StreamConfig {
    StreamConfig { attributes_nacks: true, ..StreamConfig::default() }
}

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

fn name(variant: Option<Arc<Variant>>) -> String {
    variant.map(|variant| variant.name().as_str().to_owned()).unwrap_or_default()
}

/// Rejects a response; the resource that it had alone.
fn rejected(client: &mut Sotw, of: &str, nonce: &str) -> String {
    client.nack(of, nonce);
    name(client.stream.take_rejected_alone(&type_url(of)))
}

fn rejected_delta(client: &mut Delta, nonce: &str) -> String {
    client.nack("EDS", nonce);
    name(client.stream.take_rejected_alone(&type_url("EDS")))
}

#[test]
fn st63_delta_a_nack_is_about_the_only_resource_of_its_response() {
    let cache = cache("EDS a=1 b=1");
    let mut client = Delta::with(&cache, config());
    client.ask("EDS", "a b");
    client.sent();
    assert_eq!(rejected_delta(&mut client, "1"), "", "it had two");
    for (content, alone) in [("a=2", "a"), ("a=3 b=3", ""), ("b=4", "b")] {
        commit(&cache, &format!("EDS {content}"));
        client.sent();
        let nonce = client.last.nonce.clone();
        assert_eq!(rejected_delta(&mut client, &nonce), alone, "{content}");
        assert_eq!(rejected_delta(&mut client, &nonce), "", "it was answered before");
    }
}

#[test]
fn st63_sotw_a_nack_of_a_full_state_is_about_the_only_change_since_an_accepted_one() {
    let cache = cache("CDS a=1 b=1");
    let mut client = Sotw::with(&cache, Service::Aggregated, config());
    client.ask("CDS", "", "");
    client.sent();
    assert_eq!(rejected(&mut client, "CDS", "1"), "", "it had two");
    commit(&cache, "CDS a=2");
    assert_eq!(client.sent(), "n2 CDS a=2 b=1");
    assert_eq!(rejected(&mut client, "CDS", "2"), "", "it may be about b");
    commit(&cache, "CDS a=3");
    client.sent();
    client.ack("CDS", "3");
    commit(&cache, "CDS a=4");
    client.sent();
    assert_eq!(rejected(&mut client, "CDS", "4"), "a");
    // Nobody knows what the client thinks of a now.
    commit(&cache, "CDS b=5");
    client.sent();
    assert_eq!(rejected(&mut client, "CDS", "5"), "");
}

#[test]
fn st63_sotw_a_response_with_one_resource_is_about_it_and_new_names_are_changes() {
    let cache = cache("CDS a=1 b=1; EDS a=1 b=1");
    let mut client = Sotw::with(&cache, Service::Aggregated, config());
    client.ask("CDS", "a", "");
    client.sent();
    assert_eq!(rejected(&mut client, "CDS", "1"), "a");
    commit(&cache, "CDS a=2");
    client.sent();
    client.ack("CDS", "2");
    commit(&cache, "CDS a=3");
    client.ask("CDS", "a b", "2");
    client.sent();
    assert_eq!(rejected(&mut client, "CDS", "3"), "", "b is new to the client");
    client.ask("EDS", "a", "");
    client.sent();
    assert_eq!(rejected(&mut client, "EDS", "4"), "a");
}

#[test]
fn st63_without_the_setting_no_resource_is_remembered() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.sent();
    assert_eq!(rejected(&mut client, "EDS", "1"), "");
}
