//! Combinations of aliases, globs, spellings, parts and rejections.

use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Delta, Sotw, commit, parameters, payload, type_url};
use super::{DeltaRequest, Next, Service, Serving, SotwRequest, StreamConfig, TypeConfig};
use crate::name::{Nonce, ResourceName};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Resource, Transaction, VariantId};

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// One commit of puts and removals (no content) whose names the notation cannot write.
fn edit(cache: &Cache, edits: &[(&str, &str, Option<&str>)]) {
    let mut transaction = Transaction::new();
    for (type_name, name, content) in edits {
        match content {
            Some(content) => {
                let payload = payload(type_name, name, content);
                transaction.put(Resource::new(type_url(type_name), *name, payload).unwrap());
            }
            None => transaction.remove(VariantId::unconstrained(type_url(type_name), *name)),
        };
    }
    cache.commit(transaction).unwrap();
}

fn names(list: &[&str]) -> Requested {
    list.iter().map(|name| ResourceName::new(*name)).collect::<Vec<_>>().into()
}

fn subscribe(client: &mut Delta, type_name: &str, list: &[&str], without: &[&str]) {
    let type_url = type_url(type_name).as_str().into();
    let (subscribe, unsubscribe) = (names(list), names(without));
    client.send(DeltaRequest { type_url, subscribe, unsubscribe, ..DeltaRequest::default() });
}

fn ask(client: &mut Sotw, type_name: &str, list: &[&str], nonce: &str) {
    client.send(SotwRequest {
        type_url: type_url(type_name).as_str().into(),
        requested: Some(names(list)),
        response_nonce: Nonce::parse(nonce),
        ..SotwRequest::default()
    });
}

fn with_type(short: &str, serving: Serving) -> StreamConfig {
    let config = TypeConfig { serving, ..TypeConfig::of(type_url(short).as_str()) };
    StreamConfig { types: [(type_url(short), config)].into(), ..StreamConfig::default() }
}

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";

fn uncertain_client(cache: &Arc<Cache>) -> Delta {
    let mut client = Delta::new(cache);
    client.ask("X", "a b");
    assert_eq!(client.sent(), "n1 X a=1 b=1");
    client.nack("X", "1");
    assert_eq!(client.sent(), "n2 X a=1");
    client
}

#[test]
fn v25_a_removal_of_what_went_by_an_alias_survives_the_first_locator() {
    let cache = cache("X a{alias=b}=1 z=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "b");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X -a");
    client.ask("X", "z?env=prod");
    let sent = client.sent();
    assert!(sent.contains(" -a"), "{sent}");
}

#[test]
fn x13_v25_a_member_that_is_gone_is_told_also_with_the_first_locator() {
    let cache = Cache::new();
    edit(&cache, &[("X", "xdstp://a/X/foo/1", Some("1")), ("X", "xdstp://a/X/foo/2", Some("1"))]);
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "X", &["xdstp://a/X/foo/*"], &[]);
    client.sent();
    client.ack("X", "1");
    edit(&cache, &[("X", "xdstp://a/X/foo/1", None)]);
    client.ask("X", "z?env=prod");
    let sent = client.sent();
    assert!(sent.contains("-xdstp://a/X/foo/1"), "{sent}");
}

#[test]
fn d21_x13_a_member_that_a_client_brings_and_that_is_gone_is_removed() {
    let cache = Cache::new();
    edit(&cache, &[("X", "xdstp://a/X/foo/2", Some("1"))]);
    let mut client = Delta::new(&cache);
    client.send(DeltaRequest {
        type_url: type_url("X").as_str().into(),
        subscribe: names(&["xdstp://a/X/foo/*"]),
        initial_resource_versions: [("xdstp://a/X/foo/1".into(), "old".to_owned())].into(),
        ..DeltaRequest::default()
    });
    assert_eq!(client.sent(), "n1 X xdstp://a/X/foo/2=1 -xdstp://a/X/foo/1");
}

#[test]
fn s33_x12_sotw_a_cluster_of_a_glob_stays_until_the_routes_that_name_it_are_replaced() {
    let cache = Cache::new();
    let [old, new] = ["old", "new"].map(|id| format!("xdstp://a/{CLUSTER}/x/{id}"));
    let glob = format!("xdstp://a/{CLUSTER}/x/*");
    edit(&cache, &[("CDS", &old, Some("static")), ("RDS", "r", Some(&format!("1>{old}")))]);
    let mut client = Sotw::new(&cache);
    ask(&mut client, "CDS", &[&glob], "");
    client.ask("RDS", "r", "");
    client.sent();
    ask(&mut client, "CDS", &[&glob], "1");
    client.ack("RDS", "2");
    edit(
        &cache,
        &[("CDS", &old, None), ("CDS", &new, Some("static")), ("RDS", "r", Some(&format!("2>{new}")))],
    );
    assert_eq!(
        client.sent(),
        format!("n3 CDS {new}=static {old}=static"),
        "both, as the route still names the old one"
    );
}

#[test]
fn s33_sotw_a_cluster_asked_for_by_an_alias_stays_until_its_routes_are_replaced() {
    let cache = cache("CDS old{alias=o}=static; RDS r=1>old");
    let mut client = Sotw::new(&cache);
    client.ask("CDS", "o new", "");
    client.ask("RDS", "r", "");
    client.sent();
    client.ack("CDS", "1");
    client.ack("RDS", "2");
    commit(&cache, "CDS -old new=static; RDS r=2>new");
    assert_eq!(client.sent(), "n3 CDS new=static old=static");
}

#[test]
fn x5_an_error_names_what_the_client_asked_for() {
    let cache = cache("X a=1");
    let config = StreamConfig { sotw_not_found: true, ..StreamConfig::default() };
    let mut client = Sotw::with(&cache, Service::Aggregated, config);
    let spelled = "xdstp://a/X/f%6Fo";
    ask(&mut client, "X", &[spelled], "");
    assert_eq!(client.sent(), format!("n1 X !{spelled:?}(5)"));
}

#[test]
fn x5_g4_an_unserved_name_is_told_as_the_client_spelled_it() {
    let cache = cache("X a=1");
    let mut client = Delta::with(&cache, with_type("X", Serving::NotServed));
    let spelled = "xdstp://a/X/f%6Fo";
    subscribe(&mut client, "X", &[spelled], &[]);
    assert_eq!(client.sent(), format!("n1 X -{spelled} !{spelled:?}(12)"));
}

#[test]
fn d19_x5_giving_up_what_was_never_asked_for_changes_no_spelling() {
    let cache = Cache::new();
    edit(&cache, &[("X", "xdstp://a/X/foo", Some("1"))]);
    let mut client = Delta::new(&cache);
    client.ask("X", "*");
    assert_eq!(client.sent(), "n1 X xdstp://a/X/foo=1");
    client.ack("X", "1");
    subscribe(&mut client, "X", &[], &["xdstp://a/X/f%6Fo"]);
    assert_eq!(client.sent(), "", "an unknown name is ignored");
    edit(&cache, &[("X", "xdstp://a/X/foo", Some("2"))]);
    assert_eq!(client.sent(), "n2 X xdstp://a/X/foo=2", "as it was sent before");
}

#[test]
fn g4_an_unserved_full_state_is_not_sent_for_a_bad_name_either() {
    let cache = cache("CDS a=1");
    let mut client = Sotw::with(&cache, Service::Aggregated, with_type("CDS", Serving::NotServed));
    client.ask("CDS", "a xdstp://a/Y/foo", "");
    assert_eq!(client.sent(), "", "an empty full state deletes all");
}

#[test]
fn s24_s8b_an_error_of_a_name_that_was_dropped_is_not_told() {
    let cache = cache("EDS a=1");
    let mut client = Sotw::new(&cache);
    client.ask("EDS", "xdstp://a/Y/foo", "");
    client.ask("EDS", "", "");
    assert_eq!(client.sent(), "");
}

#[test]
fn s6c_d19_what_is_given_up_with_the_ack_is_not_sent_again() {
    let cache = cache("X a=1 b=1");
    let mut client = uncertain_client(&cache);
    client.ask_with("X", "-b", "2", &[]);
    assert_eq!(client.sent(), "");
}

#[test]
fn s6c_s24_nothing_of_a_type_without_a_subscription_is_sent_again() {
    let cache = cache("X a=1 b=1");
    let mut client = uncertain_client(&cache);
    client.ask_with("X", "-a -b", "2", &[]);
    assert_eq!(client.sent(), "");
}

#[test]
fn s33_d32_a_cluster_stays_until_all_parts_of_the_routes_went() {
    let cache = Cache::new();
    let large = |number: u32, named: &str| Some(format!("{}{number}{named}", "x".repeat(3 << 20)));
    let commit_routes = |number, cluster: &str, also: &[(&str, &str, Option<&str>)]| {
        let (one, two) = (large(number, ""), large(number, &format!(">{cluster}")));
        let mut edits = vec![("RDS", "r1", one.as_deref()), ("RDS", "r2", two.as_deref())];
        edits.extend(also);
        edit(&cache, &edits);
    };
    commit_routes(1, "old", &[("CDS", "old", Some("static")), ("CDS", "new", Some("static"))]);
    let mut client = Delta::new(&cache);
    client.ask("CDS", "*");
    client.ask("RDS", "r1 r2");
    client.sent();
    for nonce in 1..4 {
        client.ack("CDS", &nonce.to_string());
        client.ack("RDS", &nonce.to_string());
    }
    assert_eq!(client.sent(), "");
    commit_routes(2, "new", &[("CDS", "old", None)]);
    assert!(matches!(client.stream.next(client.now, &cache.snapshot()), Next::Send(_)), "the part with r1");
    client.ack("RDS", "4");
    let short: String = client.sent().replace(&"x".repeat(3 << 20), "");
    assert_eq!(short, "n5 RDS r2=2>new", "the cluster waits for the ACK of r2");
}

#[test]
fn t25_d32_a_part_after_the_first_locator_has_resource_names() {
    let cache = Cache::new();
    let large = "x".repeat(3 << 20);
    edit(&cache, &[("X", "a", Some(&large)), ("X", "b", Some(&large))]);
    let mut client = Delta::new(&cache);
    client.ask("X", "a b");
    assert!(matches!(client.stream.next(client.now, &cache.snapshot()), Next::Send(_)));
    client.ask("X", "c?env=prod");
    let sent = client.sent().replace(&large, "");
    assert!(!sent.contains("b= "), "{sent}");
    assert!(!sent.contains("b=;"), "{sent}");
}

#[test]
fn t39_removed_variants_of_a_name_are_not_parted() {
    let cache = Cache::new();
    let [one, two] = ["a", "b"].map(|letter| letter.repeat(3 << 20));
    let mut transaction = Transaction::new();
    for value in [&one, &two] {
        let resource = Resource::new(type_url("X"), "r", payload("X", "r", "1")).unwrap();
        transaction.put(resource.with_constraints(format!("env={value}").parse().unwrap()));
    }
    cache.commit(transaction).unwrap();
    let mut client = Delta::new(&cache);
    let locators = [&one, &two].map(|value| {
        let parameters = parameters(&format!("env={value}"));
        Locator { name: "r".into(), parameters }
    });
    let type_url = type_url("X");
    let subscribe = Requested::from_iter(locators);
    client.send(DeltaRequest { type_url: type_url.as_str().into(), subscribe, ..DeltaRequest::default() });
    assert_eq!(client.sent().matches(';').count(), 0, "one response at first");
    client.ack("X", "1");
    let mut transaction = Transaction::new();
    for value in [&one, &two] {
        let constraints = format!("env={value}").parse().unwrap();
        transaction.remove(VariantId { type_url: type_url.clone(), name: "r".into(), constraints });
    }
    cache.commit(transaction).unwrap();
    assert_eq!(client.sent().matches(';').count(), 0, "one response");
}

#[test]
fn x13_a_held_member_is_told_though_the_cache_forgot_it() {
    let cache = Cache::new();
    let (member, glob) = (format!("xdstp://a/{CLUSTER}/x/1"), format!("xdstp://a/{CLUSTER}/x/*"));
    let others: Vec<_> = (0..5000).map(|number| format!("o{number}")).collect();
    let mut edits: Vec<_> = others.iter().map(|name| ("CDS", name.as_str(), Some("static"))).collect();
    edits.push(("CDS", &member, Some("static")));
    edit(&cache, &edits);
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "CDS", &[&glob], &[]);
    client.sent();
    client.ack("CDS", "1");
    edit(&cache, &[("CDS", &member, None)]);
    assert_eq!(client.sent(), "", "withheld (S33)");
    let edits: Vec<_> = others.iter().map(|name| ("CDS", name.as_str(), None)).collect();
    edit(&cache, &edits);
    client.sent();
    subscribe(&mut client, "CDS", &["missing"], &[]);
    assert_eq!(client.sent(), "n2 CDS -missing");
    client.pass(Duration::from_secs(10));
    assert_eq!(client.sent(), format!("n3 CDS -{member}"));
}

#[test]
fn d18_a_member_of_a_glob_given_up_under_a_wildcard_with_aliases() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "* b");
    client.sent();
    client.ack("X", "1");
    client.ask("X", "-b");
    assert_eq!(client.sent(), "n2 X a{alias=b}=1");
}

#[test]
fn d11_d24_an_alias_that_a_resource_loses_takes_the_resource_from_who_asked_by_it() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "b");
    assert_eq!(client.sent(), "n1 X a{alias=b}=1");
    client.ack("X", "1");
    commit(&cache, "X a=1");
    assert_eq!(client.sent(), "n2 X -a");
}

#[test]
fn d11_d24_an_alias_that_moves_takes_the_old_resource_away() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "b");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X a=1 c{alias=b}=1");
    assert_eq!(client.sent(), "n2 X c{alias=b}=1 -a");
}

#[test]
fn d24_an_alias_that_becomes_a_name_takes_the_old_resource_away() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "b");
    client.sent();
    client.ack("X", "1");
    commit(&cache, "X a=1 b=1");
    assert_eq!(client.sent(), "n2 X b=1 -a");
}

#[test]
fn s25_d24_a_full_state_loses_what_lost_its_alias() {
    let cache = cache("LDS a{alias=b}=1 x=1");
    let mut client = Sotw::new(&cache);
    client.ask("LDS", "b x", "");
    client.sent();
    client.ack("LDS", "1");
    commit(&cache, "LDS a=1");
    assert_eq!(client.sent(), "n2 LDS x=1");
}

#[test]
fn d24_t4_an_alias_of_a_variant_that_is_gone_is_no_alias() {
    let cache = cache("X r[env=prod]=A r{alias=t}[env=test]=B");
    commit(&cache, "X -r[env=test]");
    let mut client = Delta::new(&cache);
    client.ask("X", "t?env=prod");
    assert_eq!(client.sent(), "n1 X -t");
}

#[test]
fn d24_two_aliases_swapped_in_one_commit() {
    let cache = cache("X a{alias=p}=1 c{alias=q}=1");
    let (mut both, mut one) = (Delta::new(&cache), Delta::new(&cache));
    both.ask("X", "p q");
    one.ask("X", "p");
    both.sent();
    one.sent();
    both.ack("X", "1");
    one.ack("X", "1");
    commit(&cache, "X a{alias=q}=1 c{alias=p}=1");
    assert_eq!(both.sent(), "n2 X a{alias=q}=1 c{alias=p}=1");
    assert_eq!(one.sent(), "n2 X c{alias=p}=1 -a");
}
