//! Aliases (D24, D25), new-style names (X1-X8) and globs (X12, X13), in both protocols.

use std::sync::Arc;

use prost::Message;

use super::fixture::{Delta, Sotw, commit, payload, try_commit, type_url, version};
use super::{DeltaRequest, SotwRequest};
use crate::name::{Nonce, ResourceName};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Resource, Transaction, VariantId};

fn cache(text: &str) -> Arc<Cache> {
    let cache = Cache::new();
    commit(&cache, text);
    cache
}

/// Puts resources of one type whose names the notation cannot write.
fn put(cache: &Cache, type_name: &str, resources: &[(&str, &str)]) {
    let mut transaction = Transaction::new();
    for (name, content) in resources {
        let payload = payload(type_name, name, content);
        transaction.put(Resource::new(type_url(type_name), *name, payload).unwrap());
    }
    cache.commit(transaction).unwrap();
}

fn remove(cache: &Cache, type_name: &str, name: &str) {
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(type_url(type_name), name));
    cache.commit(transaction).unwrap();
}

fn names(list: &[&str]) -> Requested {
    list.iter().map(|name| ResourceName::new(*name)).collect::<Vec<_>>().into()
}

fn subscribe(client: &mut Delta, type_name: &str, list: &[&str]) {
    let type_url = type_url(type_name).as_str().into();
    client.send(DeltaRequest { type_url, subscribe: names(list), ..DeltaRequest::default() });
}

fn ask(client: &mut Sotw, type_name: &str, list: &[&str], nonce: &str) {
    client.send(SotwRequest {
        type_url: type_url(type_name).as_str().into(),
        requested: Some(names(list)),
        response_nonce: Nonce::parse(nonce),
        ..SotwRequest::default()
    });
}

#[test]
fn d24_who_asks_by_an_alias_is_told_the_name_and_the_aliases() {
    let cache = cache("VHDS r/v{alias=r/a.example|alias=r/b.example}=1");
    let mut client = Delta::new(&cache);
    client.ask("VHDS", "r/a.example");
    assert_eq!(client.sent(), "n1 VHDS r/v{alias=r/a.example|alias=r/b.example}=1");
    client.ack("VHDS", "1");
    commit(&cache, "VHDS r/v{alias=r/a.example}=2");
    assert_eq!(client.sent(), "n2 VHDS r/v{alias=r/a.example}=2", "a change is pushed");
    client.ack("VHDS", "2");
    commit(&cache, "VHDS r/w=1");
    assert_eq!(client.sent(), "");
    commit(&cache, "VHDS -r/v");
    assert_eq!(client.sent(), "n3 VHDS -r/v", "a removal has the name");
    client.ack("VHDS", "3");
    client.ask("VHDS", "-r/a.example");
    commit(&cache, "VHDS r/v{alias=r/a.example}=3");
    assert_eq!(client.sent(), "");
}

#[test]
fn d24_d25_a_host_that_resolves_to_nothing_is_an_alias_without_a_resource_and_may_come_later() {
    let cache = cache("VHDS r/v{alias=r/a.example}=1");
    let mut client = Delta::new(&cache);
    client.ask("RDS", "r");
    assert_eq!(client.sent(), "n1 RDS -r");
    client.ask("VHDS", "");
    assert_eq!(client.sent(), "n2 VHDS", "the empty first request is answered at once (S21)");
    client.ack("VHDS", "2");
    client.ask("VHDS", "r/x.example");
    assert_eq!(client.sent(), "n3 VHDS r/x.example{alias=r/x.example}");
    client.ack("VHDS", "3");
    // Each time a request needs it.
    client.ask("VHDS", "r/a.example r/x.example");
    assert_eq!(client.sent(), "n4 VHDS r/v{alias=r/a.example}=1 r/x.example{alias=r/x.example}");
    client.ack("VHDS", "4");
    commit(&cache, "VHDS r/w{alias=r/x.example}=1");
    assert_eq!(client.sent(), "n5 VHDS r/w{alias=r/x.example}=1");
}

/// Envoy keeps a virtual host until it gets the removal, also if its name resolves to nothing.
#[test]
fn d21_d24_a_virtual_host_that_went_while_the_client_was_away_is_removed() {
    let cache = cache("VHDS r/w=1");
    for asked in ["r/v", "* r/v", "r/v r/w"] {
        let mut client = Delta::new(&cache);
        client.ask_with("VHDS", asked, "", &[("r/v", "1"), ("r/w", &version("VHDS", "r/w", "1"))]);
        assert_eq!(client.sent(), "n1 VHDS -r/v", "{asked}");
        client.ask("VHDS", "r/v");
        assert_eq!(client.sent(), "n2 VHDS r/v{alias=r/v}", "{asked}");
    }
}

#[test]
fn s33_a_virtual_host_that_was_told_to_be_gone_holds_no_cluster() {
    let cache = cache("VHDS r/v{alias=r/a.example}=1; CDS c=static");
    let mut client = Delta::new(&cache);
    client.ask("CDS", "");
    client.ask("VHDS", "r/a.example");
    client.sent();
    client.ack("CDS", "1");
    client.ack("VHDS", "2");
    commit(&cache, "VHDS -r/v");
    assert_eq!(client.sent(), "n3 VHDS -r/v");
    client.ack("VHDS", "3");
    commit(&cache, "CDS -c");
    assert_eq!(client.sent(), "n4 CDS -c");
}

#[test]
fn d25_a_virtual_host_is_asked_for_by_its_domains() {
    #[derive(Clone, PartialEq, Message)]
    struct VirtualHost {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, repeated, tag = "2")]
        domains: Vec<String>,
    }
    let domains = vec!["a.example".to_owned(), "*.b.example".to_owned(), "v".to_owned()];
    let payload = VirtualHost { name: "v".to_owned(), domains }.encode_to_vec();
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(type_url("VHDS"), "r/x/v", payload).unwrap());
    cache.commit(transaction).unwrap();
    let snapshot = cache.snapshot();
    let variants = snapshot.get(&type_url("VHDS"), &"r/x/v".into()).unwrap();
    assert_eq!(variants.iter().next().unwrap().aliases(), [ResourceName::new("r/x/a.example")]);
}

#[test]
fn d24_of_other_types_an_unknown_alias_is_a_name_that_does_not_exist() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "b c");
    assert_eq!(client.sent(), "n1 X a{alias=b}=1 -c");
    client.ack("X", "1");
    client.ask("X", "a");
    assert_eq!(client.sent(), "n2 X a{alias=b}=1", "a subscription to its name is a new one (D9)");
}

#[test]
fn d13_a_resource_asked_for_by_name_and_by_alias_stands_once() {
    let cache = cache("X a{alias=b}=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "a b");
    assert_eq!(client.sent(), "n1 X a{alias=b}=1");
    client.ack("X", "1");
    commit(&cache, "X a{alias=b}=2");
    assert_eq!(client.sent(), "n2 X a{alias=b}=2");
}

#[test]
fn d24_a_name_that_two_resources_go_by_is_refused() {
    let cache = cache("X a{alias=b}=1");
    for second in ["X c{alias=b}=1", "X b=1", "X c{alias=a}=1"] {
        let error = try_commit(&cache, second).unwrap_err();
        assert!(error.to_string().contains("both have the name"), "{error}");
    }
    let error = try_commit(&cache, "X c{alias=b}=1").unwrap_err();
    assert_eq!(error.to_string(), r#"X "a" and "c" both have the name "b""#);
    commit(&cache, "X a=1 c{alias=b}=1");
}

#[test]
fn d24_an_alias_with_locators_gets_the_variant_of_its_parameters() {
    let cache = cache("X r{alias=s}[env=prod]=A r{alias=s}[env=test]=B");
    let mut client = Delta::new(&cache);
    client.ask("X", "s?env=test");
    assert_eq!(client.sent(), "n1 X r[env=test]{alias=s}=B");
    client.ack("X", "1");
    commit(&cache, "X r{alias=s}[env=test]=C");
    assert_eq!(client.sent(), "n2 X r[env=test]{alias=s}=C");
}

const FOO: &str = "xdstp://a/X/foo";

#[test]
fn x1_an_old_style_name_is_opaque() {
    let cache = cache("X foo/a=1");
    let mut client = Delta::new(&cache);
    client.ask("X", "foo/%61 foo/*");
    assert_eq!(client.sent(), "n1 X -foo/%61 -foo/*");
}

#[test]
fn x4_x5_a_name_is_found_in_any_spelling_and_answered_in_that_of_the_client() {
    let cache = Cache::new();
    put(&cache, "X", &[("xdstp://a/X/foo?k=1&z=2", "1")]);
    let spelled = "xdstp://a/X/f%6Fo?z=2&k=1";
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "X", &[spelled]);
    assert_eq!(client.sent(), format!("n1 X {spelled}=1"));
    client.ack("X", "1");
    put(&cache, "X", &[("xdstp://a/X/foo?k=1&z=2", "2")]);
    assert_eq!(client.sent(), format!("n2 X {spelled}=2"));
    client.ack("X", "2");
    remove(&cache, "X", "xdstp://a/X/foo?k=1&z=2");
    assert_eq!(client.sent(), format!("n3 X -{spelled}"));
    let mut other = Delta::new(&cache);
    put(&cache, "X", &[("xdstp://a/X/foo?k=1&z=2", "3")]);
    subscribe(&mut other, "X", &["xdstp://a/X/foo?k=1&z=2"]);
    assert_eq!(other.sent(), "n1 X xdstp://a/X/foo?k=1&z=2=3");
}

#[test]
fn x8_context_parameters_match_exactly() {
    let cache = Cache::new();
    put(&cache, "X", &[("xdstp://a/X/foo?a=1", "1")]);
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "X", &[FOO, "xdstp://a/X/foo?a=1&b=2", "xdstp://a/X/foo?a=1"]);
    assert_eq!(client.sent(), format!("n1 X xdstp://a/X/foo?a=1=1 -{FOO} -xdstp://a/X/foo?a=1&b=2"));
}

#[test]
fn x6_x2_x3_a_name_that_cannot_exist_is_told_as_an_error_and_the_rest_works() {
    let cache = Cache::new();
    put(&cache, "X", &[(FOO, "1")]);
    for bad in ["xdstp://a/X/%zz", "xdstp:foo", "xdstp://a/Y/foo", "xdstp://a/X/foo#entry=b"] {
        let mut client = Delta::new(&cache);
        subscribe(&mut client, "X", &[FOO, bad]);
        assert_eq!(client.sent(), format!("n1 X {FOO}=1 -{bad} !{bad:?}(3)"));
        let mut client = Sotw::new(&cache);
        ask(&mut client, "X", &[FOO, bad], "");
        assert_eq!(client.sent(), format!("n1 X {FOO}=1 !{bad:?}(3)"));
    }
}

#[test]
fn x12_a_glob_selects_the_names_one_segment_below_with_equal_parameters() {
    let cache = Cache::new();
    let members = [
        ("xdstp://a/X/foo/1", "1"),
        ("xdstp://a/X/foo/2", "1"),
        ("xdstp://a/X/foo/2/3", "1"),
        ("xdstp://a/X/foo/4?k=1", "1"),
        ("xdstp://b/X/foo/5", "1"),
    ];
    put(&cache, "X", &members);
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "X", &["xdstp://a/X/foo/*", "xdstp://b/X/foo/5"]);
    assert_eq!(client.sent(), "n1 X xdstp://a/X/foo/1=1 xdstp://a/X/foo/2=1 xdstp://b/X/foo/5=1");
    client.ack("X", "1");
    put(&cache, "X", &[("xdstp://a/X/foo/6", "1"), ("xdstp://a/X/foo/7?k=1", "1")]);
    assert_eq!(client.sent(), "n2 X xdstp://a/X/foo/6=1", "a new member is pushed (X13)");
}

#[test]
fn x13_an_empty_glob_is_told_by_its_name_and_a_lost_member_by_its_own() {
    let cache = Cache::new();
    put(&cache, "X", &[("xdstp://a/X/foo/1", "1"), ("xdstp://a/X/foo/2", "1")]);
    let mut client = Delta::new(&cache);
    subscribe(&mut client, "X", &["xdstp://a/X/foo/*", "xdstp://a/X/bar/*"]);
    assert_eq!(client.sent(), "n1 X xdstp://a/X/foo/1=1 xdstp://a/X/foo/2=1 -xdstp://a/X/bar/*");
    client.ack("X", "1");
    remove(&cache, "X", "xdstp://a/X/foo/1");
    assert_eq!(client.sent(), "n2 X -xdstp://a/X/foo/1");
    client.ack("X", "2");
    put(&cache, "X", &[("xdstp://a/X/bar/1", "1")]);
    assert_eq!(client.sent(), "n3 X xdstp://a/X/bar/1=1");
}

#[test]
fn x12_globs_of_clusters_in_sotw_are_one_full_state_with_the_named_ones() {
    let cache = Cache::new();
    let url = "envoy.config.cluster.v3.Cluster";
    let [one, two, other] = ["x/1", "x/2", "y/1"].map(|id| format!("xdstp://a/{url}/{id}"));
    let (glob, empty) = (format!("xdstp://a/{url}/x/*"), format!("xdstp://a/{url}/z/*"));
    put(&cache, "CDS", &[(&one, "static"), (&other, "static"), ("plain", "static")]);
    let mut client = Sotw::new(&cache);
    ask(&mut client, "CDS", &[&glob, "plain"], "");
    assert_eq!(client.sent(), format!("n1 CDS plain=static {one}=static"));
    client.ack("CDS", "1");
    put(&cache, "CDS", &[(&two, "static")]);
    assert_eq!(client.sent(), format!("n2 CDS plain=static {one}=static {two}=static"));
    let mut client = Sotw::new(&cache);
    ask(&mut client, "CDS", &[&empty], "");
    assert_eq!(client.sent(), "n1 CDS", "without members the state is empty");
}

#[test]
fn x12_t28_a_glob_with_parameters_resolves_each_member() {
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    for (when, content) in [("env=prod", "A"), ("env!=prod", "B")] {
        let name = "xdstp://a/X/foo/1";
        let resource = Resource::new(type_url("X"), name, payload("X", name, content)).unwrap();
        transaction.put(resource.with_constraints(when.parse().unwrap()));
    }
    cache.commit(transaction).unwrap();
    let mut client = Delta::new(&cache);
    let parameters = [("env", "prod")].into_iter().collect();
    let subscribe = Requested::from_iter([Locator { name: "xdstp://a/X/foo/*".into(), parameters }]);
    let type_url = type_url("X").as_str().into();
    client.send(DeltaRequest { type_url, subscribe, ..DeltaRequest::default() });
    assert_eq!(client.sent(), "n1 X xdstp://a/X/foo/1[env=prod]=A");
}

#[test]
fn d21_x4_what_a_client_brings_goes_by_its_canonical_name() {
    let cache = Cache::new();
    put(&cache, "X", &[(FOO, "1")]);
    let mut client = Delta::new(&cache);
    let spelled = ResourceName::new("xdstp://a/X/f%6fo");
    let version = Resource::new(type_url("X"), FOO, payload("X", FOO, "1")).unwrap().version();
    client.send(DeltaRequest {
        type_url: type_url("X").as_str().into(),
        subscribe: vec![spelled.clone()].into(),
        initial_resource_versions: [(spelled, version.to_string())].into(),
        ..DeltaRequest::default()
    });
    assert_eq!(client.sent(), "");
}
