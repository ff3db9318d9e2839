use std::time::Duration;

use super::*;
use crate::Cache;
use crate::server::fixture::{Delta, Sotw, commit};
use crate::server::{Serving, StreamConfig, TypeConfig};

/// A word per resource: `name[when]=status`.
fn shown(report: Vec<TypeReport>) -> String {
    let word = |resource: &ResourceReport| {
        let ResourceReport { name, constraints, content, status, .. } = resource;
        let status = match status {
            ReportStatus::NotSent if content.is_none() => "missing".to_owned(),
            ReportStatus::NotSent => "new".to_owned(),
            ReportStatus::Stale => "stale".to_owned(),
            ReportStatus::Synced => "synced".to_owned(),
            ReportStatus::Rejected { detail, among: 1 } => detail.to_string(),
            ReportStatus::Rejected { detail, among } => format!("{detail} (one of {among})"),
        };
        let when = if constraints.is_unconstrained() { String::new() } else { format!("[{constraints}]") };
        format!("{}{when}={status}", name.as_str())
    };
    report.iter().flat_map(|of| of.resources.iter().map(word)).collect::<Vec<_>>().join(" ")
}

fn sotw(client: &mut Sotw) -> String {
    let snapshot = client.cache.snapshot();
    shown(client.stream.report(&snapshot))
}

fn delta(client: &mut Delta) -> String {
    let snapshot = client.cache.snapshot();
    shown(client.stream.report(&snapshot))
}

#[test]
fn c20_sotw_a_resource_is_new_stale_synced_or_rejected() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    assert_eq!(sotw(&mut client), "");
    client.ask("EDS", "a b c", "");
    assert_eq!(sotw(&mut client), "a=new b=new c=missing");
    client.sent();
    assert_eq!(sotw(&mut client), "a=stale b=stale c=missing");
    client.ack("EDS", "1");
    assert_eq!(sotw(&mut client), "a=synced b=synced c=missing");
    commit(&cache, "EDS a=2");
    assert_eq!(sotw(&mut client), "a=new b=synced c=missing");
    client.sent();
    assert_eq!(sotw(&mut client), "a=stale b=synced c=missing");
    client.nack("EDS", "2");
    assert_eq!(sotw(&mut client), "a=bad b=synced c=missing");
    commit(&cache, "EDS a=3");
    client.sent();
    assert_eq!(sotw(&mut client), "a=stale b=synced c=missing");
    client.ack("EDS", "3");
    assert_eq!(sotw(&mut client), "a=synced b=synced c=missing");
}

#[test]
fn c20_delta_a_resource_is_new_stale_synced_or_rejected() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a c");
    assert_eq!(delta(&mut client), "a=new c=missing");
    client.sent();
    client.ack("EDS", "1");
    client.ask("EDS", "b");
    // A resource that is subscribed to later is not sent yet, although the cursor is past it.
    assert_eq!(delta(&mut client), "a=synced b=new c=missing");
    client.sent();
    client.nack("EDS", "2");
    assert_eq!(delta(&mut client), "a=synced b=bad c=missing");
}

#[test]
fn c20_a_rejected_full_state_is_rejected_as_a_whole() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "", "");
    client.sent();
    client.nack("CDS", "1");
    assert_eq!(sotw(&mut client), "a=bad (one of 2) b=bad (one of 2)");
}

/// Envoy ACKs a secret that it rejected before without looking at it.
#[test]
fn s6f_secrets_of_which_one_was_rejected_are_suspect_also_if_each_is_acked_when_it_is_sent_again() {
    let cache = Cache::new();
    commit(&cache, "SDS a=1 b=1; EDS a=1 b=1");
    for (type_name, suspects) in [("SDS", "a=bad (one of 2) b=bad (one of 2)"), ("EDS", "a=synced b=synced")]
    {
        let mut client = Sotw::new(&cache);
        client.ask(type_name, "a b", "");
        client.sent();
        client.nack(type_name, "1");
        for nonce in ["2", "3"] {
            assert!(sotw(&mut client).ends_with("b=stale"), "b comes last");
            client.sent();
            client.ack(type_name, nonce);
        }
        client.sent();
        assert_eq!(sotw(&mut client), suspects);
        assert_eq!(client.stream.take_rejections(&cache.snapshot()).len(), usize::from(type_name == "SDS"));
        assert_eq!(client.waits_until(), None);
        // What changes is suspect no longer, and nor is what is given up.
        commit(&cache, &format!("{type_name} a=2"));
        client.sent();
        client.ack(type_name, "4");
        let other = if type_name == "SDS" { "bad" } else { "synced" };
        assert_eq!(sotw(&mut client), format!("a=synced b={other}"));
        client.ask(type_name, "a", "4");
        client.sent();
        client.ask(type_name, "a b", "4");
        client.sent();
        client.ack(type_name, "5");
        assert_eq!(sotw(&mut client), "a=synced b=synced");
        commit(&cache, &format!("{type_name} a=1"));
    }
}

#[test]
fn c20_each_variant_is_shown_with_its_constraints() {
    let cache = Cache::new();
    commit(&cache, "EDS a[env=prod]=1 a[env=test]=2");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "a?env=prod a?env=test a?env=other");
    client.sent();
    assert_eq!(delta(&mut client), "a[env=prod]=stale a[env=test]=stale a[env=other]=missing");
}

#[test]
fn c20_what_an_alias_stands_for_is_not_sent_before_it_is_answered() {
    let cache = Cache::new();
    commit(&cache, "EDS a{alias=x}=1 b=1");
    let mut client = Delta::new(&cache);
    client.ask("EDS", "b");
    client.sent();
    client.ack("EDS", "1");
    client.ask("EDS", "x");
    assert_eq!(delta(&mut client), "a=new b=synced");
    client.sent();
    assert_eq!(delta(&mut client), "a=stale b=synced");
}

#[test]
fn c20_what_is_held_is_still_what_the_client_has() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1; LDS l=1");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "a b");
    client.ask("LDS", "*");
    client.sent();
    client.ack("CDS", "1");
    client.ack("LDS", "2");
    commit(&cache, "CDS -b; LDS l=2");
    client.sent();
    assert_eq!(delta(&mut client), "a=synced b=synced l=stale");
}

#[test]
fn c20_a_type_that_is_not_served_is_not_sent() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1");
    let mut config = StreamConfig::default();
    let url = crate::server::fixture::type_url("CDS");
    let not_served = TypeConfig { serving: Serving::NotServed, ..TypeConfig::of(url.as_str()) };
    config.types.insert(url, not_served);
    let mut client = Delta::with(&cache, config);
    client.ask("CDS", "a");
    client.sent();
    assert_eq!(delta(&mut client), "a=missing");
}

#[test]
fn g11_who_never_answers_stays_stale_and_is_sent_the_newest() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "a", "");
    client.sent();
    for content in ["2", "3", "4"] {
        commit(&cache, &format!("EDS a={content}"));
    }
    client.pass(Duration::from_secs(3600));
    assert_eq!(client.sent(), "n2 EDS a=4");
    client.pass(Duration::from_secs(3600));
    assert_eq!((client.sent().as_str(), sotw(&mut client).as_str()), ("", "a=stale"));
}

#[test]
fn c20_in_sotw_the_version_is_that_of_the_last_response_and_in_delta_that_of_the_resource() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let versions = |report: Vec<TypeReport>| -> Vec<(Version, Version)> {
        let contents = report[0].resources.iter().filter_map(|resource| resource.content.as_ref());
        contents.map(|(variant, version)| (*version, variant.version())).collect()
    };
    let (mut sotw, mut delta) = (Sotw::new(&cache), Delta::new(&cache));
    sotw.ask("EDS", "a b", "");
    delta.ask("EDS", "a b");
    let snapshot = cache.snapshot();
    // Nothing was sent yet.
    assert!(versions(sotw.stream.report(&snapshot)).iter().all(|(version, digest)| version == digest));
    sotw.sent();
    delta.sent();
    let of_type = sotw.stream.version(&crate::server::fixture::type_url("EDS"), &snapshot);
    let found = versions(sotw.stream.report(&snapshot));
    assert!(found.iter().all(|(version, digest)| *version == of_type && version != digest), "{found:?}");
    assert!(versions(delta.stream.report(&snapshot)).iter().all(|(version, digest)| version == digest));
}

#[test]
fn a_resource_is_named_if_the_client_subscribes_to_its_name_and_not_to_a_wildcard_alone() {
    let cache = Cache::new();
    commit(&cache, "CDS a=1 b=1");
    let named = |client: &mut Delta| {
        let snapshot = client.cache.snapshot();
        let report = client.stream.report(&snapshot);
        let named = |resource: &ResourceReport| resource.is_named.then(|| resource.name.to_string());
        report.iter().flat_map(|of| of.resources.iter().filter_map(named)).collect::<Vec<_>>()
    };
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    assert_eq!(named(&mut client), [""; 0]);
    client.ask("CDS", "b");
    assert_eq!(named(&mut client), ["b"]);
    client.ask("CDS", "-b");
    assert_eq!(named(&mut client), [""; 0]);
}
