//! Variants of a name (T) in the client.

use prost::Message;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, Resource};

use super::fixture::{Fixture, payload, url};
use super::*;

fn delta() -> Fixture {
    Fixture::new(Protocol::Delta)
}

/// Receives a variant of the route configuration `r` with constraints in raw bytes.
fn raw(f: &mut Fixture, name: &str, constraints: &[u8]) -> Vec<Rejection> {
    let field = |key: u8, content: &[u8]| {
        [&[key, u8::try_from(content.len()).expect("it is short")], content].concat()
    };
    let type_url = url("RDS").as_str().to_owned();
    let any = Any { type_url: type_url.clone(), value: payload("r", "1") };
    let mut resource =
        Resource { name: name.to_owned(), resource: Some(any), ..Resource::default() }.encode_to_vec();
    let located = [field(0x0a, b"r"), field(0x12, constraints)].concat();
    resource.extend(field(0x42, &located));
    let mut response =
        DeltaDiscoveryResponse { type_url, nonce: "n".to_owned(), ..Default::default() }.encode_to_vec();
    response.extend([0x12, u8::try_from(resource.len() & 0x7f).expect("seven bits") | 0x80]);
    response.push(u8::try_from(resource.len() >> 7).expect("it is short"));
    response.extend(resource);
    let effects = f.client.on_response(f.now, 0, &response.into()).expect("a response");
    effects.response.expect("it is answered").rejections
}

#[test]
fn t1_t29_variants_are_kept_by_name_and_constraints() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        f.watch("CDS", "r{env=prod}");
        f.watch("CDS", "r{env=test}");
        f.sent(0);
        assert_eq!(
            f.get("CDS v1 n1: r[env=prod]=A r[env=test]=B"),
            "r{env=prod}: A\nr{env=test}: B",
            "the same name twice is no duplicate"
        );
        assert_eq!(f.client.cache().snapshot().get(&url("CDS"), &"r".into()).map(|all| all.len()), Some(2));
        // Constraints with the same meaning are the same variant.
        assert_eq!(f.get("CDS v2 n2: r[(env=prod,env=prod)]=A2 r[env=test]=B"), "r{env=prod}: A2");
    }
}

#[test]
fn t2_a_watch_is_a_name_with_exact_parameters() {
    let mut f = delta();
    let plain = f.watch("RDS", "r");
    assert_eq!(f.watch("RDS", "r{}"), plain);
    let prod = f.watch("RDS", "r{env=prod}");
    assert_ne!(prod, plain);
    assert_eq!(f.watch("RDS", "r{env=prod}"), prod);
    assert_eq!(f.sent(0), "node RDS +r +r{env=prod}");
    f.client.on_unwatch(plain);
    f.client.on_unwatch(plain);
    assert_eq!(f.sent(0), "RDS -r", "it does not cancel the other");
}

#[test]
fn t4_t30b_without_a_match_nothing_exists_for_a_locator() {
    let mut f = delta();
    f.watch("RDS", "r{env=prod}");
    f.watch("RDS", "r{env=qa}");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[env=prod]=A -r[env=qa]"), "r{env=prod}: A\nr{env=qa}: NOT_FOUND");
    assert_eq!(f.pass(60), "", "its timer has ended");
    assert_eq!(f.get("RDS v2 n2: r[env=qa]=B"), "r{env=qa}: B");
    // A removal by the name alone removes all variants.
    assert_eq!(f.get("RDS v3 n3: -r"), "r{env=prod}: A beside NOT_FOUND\nr{env=qa}: B beside NOT_FOUND");
}

#[test]
fn t30b_a_removal_drops_that_variant_and_no_other() {
    let mut f = delta();
    f.watch("RDS", "r{env=prod}");
    let test = f.watch("RDS", "r{env=test}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A r[env=test]=B");
    assert_eq!(f.get("RDS v2 n2: -r[env=prod]"), "r{env=prod}: A beside NOT_FOUND");
    assert_eq!(f.view(test), "B");
    assert_eq!(f.client.cache().snapshot().get(&url("RDS"), &"r".into()).map(|all| all.len()), Some(1));
}

/// Regression: a variant from an earlier stream stayed, because the server removes only the
/// parameters for which it has no resource.
#[test]
fn t30b_what_an_earlier_stream_brought_goes_by_the_parameters() {
    let mut f = delta();
    f.watch("RDS", "r{env=prod,version=v1}");
    f.watch("RDS", "r{env=test,version=v1}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A r[env=test]=B");
    f.end(0);
    f.open(0);
    f.sent(0);
    assert_eq!(
        f.get("RDS v2 n1: r[env=test]=B -r[env=prod,version=v1]"),
        "r{env=prod,version=v1}: A beside NOT_FOUND"
    );
    assert_eq!(f.client.cache().snapshot().get(&url("RDS"), &"r".into()).map(|all| all.len()), Some(1));
}

#[test]
fn t8_t9_t11_constraints_that_cannot_be_judged_reject_the_resource() {
    let nested = |depth: usize| {
        // NOT of NOT of .. of `k` exists.
        (0..depth).fold(b"\x0a\x05\x0a\x01k\x1a\x00".to_vec(), |inner, _| {
            [&[0x22, u8::try_from(inner.len()).expect("it is short")], &inner[..]].concat()
        })
    };
    let unset: (&str, Vec<u8>) = ("T8: nested, without a type", vec![0x22, 0x00]);
    let key_only = ("T8: a key without a condition", b"\x0a\x03\x0a\x01k".to_vec());
    let future = ("T9: a type that is not known", vec![0x7a, 0x01, 0x00]);
    for (what, constraints) in [unset, key_only, future, ("T11: too deep", nested(40))] {
        let mut f = delta();
        f.watch("RDS", "r{k=1}");
        f.sent(0);
        let rejections = raw(&mut f, "", &constraints);
        assert!(matches!(&rejections[..], [one] if matches!(one.reason, Reason::Constraints(_))), "{what}");
        assert!(f.sent(0).starts_with("RDS n !\"r\": "), "{what}");
    }
    let mut f = delta();
    f.watch("RDS", "r{k=1}");
    f.sent(0);
    assert_eq!(raw(&mut f, "", &nested(20)), []);
}

#[test]
fn t25_two_names_that_differ_reject_the_resource() {
    let mut f = delta();
    let r = f.watch("RDS", "r");
    f.sent(0);
    let rejections = raw(&mut f, "other", b"");
    assert!(matches!(&rejections[0].reason, Reason::TwoNames { other } if other == "other"));
    assert_eq!(f.view(r), "INVALID_ARGUMENT");
    assert_eq!(raw(&mut f, "r", b""), [], "equal ones are one");
    assert_eq!(f.view(r), "1");
}

#[test]
fn t27_in_sotw_what_answers_a_locator_is_read_from_its_wrapper() {
    let mut f = Fixture::new(Protocol::Sotw);
    f.watch("EDS", "r{env=prod}");
    f.watch("EDS", "r{env=test}");
    f.sent(0);
    assert_eq!(f.get("EDS v1 n1: r[env=prod]=A"), "r{env=prod}: A");
    assert_eq!(f.get("EDS v2 n2: r[]=B"), "r{env=prod}: B\nr{env=test}: B");
}

#[test]
fn t28_a_wildcard_has_parameters() {
    let mut f = delta();
    let all = f.watch("RDS", "*{env=prod}");
    assert_eq!(f.sent(0), "node RDS +*{env=prod}");
    f.get("RDS v1 n1: a[env=prod]=1 b[env=test]=2 c[]=3");
    let mut members: Vec<_> = f.client.members(all).expect("it is a set").map(ToString::to_string).collect();
    members.sort();
    assert_eq!(members, ["a", "c"]);
    assert_eq!(f.get("RDS v2 n2: -a[env=prod]"), "*{env=prod}/a: -");
}

#[test]
fn t31_v28_an_unconstrained_variant_gives_its_place_to_two() {
    let mut f = delta();
    let prod = f.watch("RDS", "r{env=prod}");
    f.sent(0);
    f.get("RDS v1 n1: r[]=A");
    assert_eq!(f.get("RDS v2 n2: r[env=prod]=B -r[]"), "r{env=prod}: B", "one update, no gap");
    assert_eq!((f.view(prod).as_str(), f.sent(0).as_str()), ("B", "RDS n1\nRDS n2"));
}

/// Regression: a watch that was not sent yet got the absence of another one.
#[test]
fn t35_an_absence_is_for_the_subscriptions_that_the_server_knew() {
    let mut f = delta();
    f.watch("EDS", "r{env=test,version=v2}");
    f.sent(0);
    let late = f.watch("EDS", "r{env=test}");
    assert_eq!(f.get("EDS v1 n1: -r[env=test]"), "r{env=test,version=v2}: NOT_FOUND");
    assert_eq!(f.view(late), "-");
    f.sent(0);
    assert_eq!(f.get("EDS v2 n2: -r[env=test]"), "r{env=test}: NOT_FOUND");
}

/// Regression: a response that clients of a proxy had tried completed a wildcard that was subscribed to
/// meanwhile. SotW clients of the wildcard lost their resources for a moment.
#[test]
fn c12_t35_a_response_from_before_a_wildcard_does_not_complete_it() {
    let mut f = delta();
    f.watch("EDS", "b");
    f.sent(0);
    f.get("EDS v1 n1: b=1");
    f.client.begin_wait(0);
    let all = f.watch("EDS", "*");
    assert_eq!(f.sent(0), "EDS +* n1");
    f.get("EDS v2 n2: b=2");
    assert!(!f.client.view(all).is_complete);
    f.get("EDS v3 n3: b=2 c=1");
    assert!(f.client.view(all).is_complete);
}

#[test]
fn t31_p1_6_a_variant_stays_until_the_one_that_replaces_it_is_valid() {
    let mut f = delta();
    fixture::refuse_bad(&mut f.client, "CDS");
    let prod = f.watch("CDS", "r{env=prod}");
    f.sent(0);
    f.get("CDS v1 n1: r[]=A");
    let told = f.get("CDS v2 n2: r[env=prod]=bad -r[]");
    assert_eq!(told, "r{env=prod}: A beside INVALID_ARGUMENT");
    assert_eq!(f.get("CDS v3 n3: r[env=prod]=C"), "r{env=prod}: C");
    assert_eq!(f.client.cache().snapshot().get(&url("CDS"), &"r".into()).map(|all| all.len()), Some(1));
    f.get("CDS v4 n4: r[]=bad -r[env=prod]");
    assert_eq!(f.view(prod), "C beside INVALID_ARGUMENT");
    assert_eq!(f.get("CDS v5 n5: -r[]"), "r{env=prod}: C beside NOT_FOUND");
}

#[test]
fn t34_a_variant_takes_the_place_of_what_its_locators_had() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        f.watch("EDS", "r{env=prod,version=v1}");
        let other = f.watch("EDS", "r{env=prod}");
        f.sent(0);
        f.get("EDS v1 n1: r[env=prod]=A");
        let frame = fixture::response("EDS v2 n2: r[env=prod,version=v1]=B", protocol);
        let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
        assert_eq!(effects.response.map(|applied| applied.replaced), Some(1));
        assert_eq!(f.view(other), "A", "of this nothing was said");
        assert_eq!(f.client.cache().snapshot().get(&url("EDS"), &"r".into()).map(|all| all.len()), Some(1));
    }
}

#[test]
fn c4b_variants_of_one_response_that_overlap_are_all_rejected() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        let r = f.watch("CDS", "r{env=prod,version=v1}");
        f.watch("CDS", "a");
        f.sent(0);
        f.get("CDS v1 n1: r[env=prod]=A a=1");
        f.sent(0);
        let told = f.get("CDS v2 n2: r[env=prod]=A2 r[version=v1]=B a=2");
        assert_eq!(told, "a: 2\nr{env=prod,version=v1}: A beside INVALID_ARGUMENT");
        let sent = f.sent(0);
        assert!(sent.contains("[env=prod]") && sent.contains("[version=v1]"), "{sent}");
        assert_eq!(f.client.cache().snapshot().get(&url("CDS"), &"r".into()).map(|all| all.len()), Some(1));
        assert_eq!(f.view(r), "A beside INVALID_ARGUMENT");
    }
}

/// Regression: an unchanged variant was replaced by an overlapping one of the same response.
#[test]
fn c4b_a_repeated_variant_is_one_of_its_response() {
    let mut f = delta();
    let r = f.watch("RDS", "r{env=prod,version=v1}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A");
    f.sent(0);
    f.get("RDS v2 n2: r[env=prod]=A r[version=v1]=B");
    assert_eq!(f.view(r), "A beside INVALID_ARGUMENT");
    assert!(f.sent(0).contains("overlaps"));
}

#[test]
fn t17_a_variant_that_nothing_can_match_changes_nothing() {
    let mut f = delta();
    f.watch("RDS", "*{env=prod}");
    f.watch("RDS", "r");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[env=prod,!env]=A b[]=1"), "*{env=prod}/b: 1\n*{env=prod}: -");
    assert_eq!(f.sent(0), "RDS n1");
}

#[test]
fn t20_of_variants_of_two_servers_only_those_of_one_are_there() {
    let server = (Protocol::Delta, ErrorPolicy::default());
    let mut f = Fixture::of(&[server, server]);
    let r = f.watch("RDS", "r{env=prod,version=v1}");
    f.fail(0);
    f.open(1);
    f.sent(1);
    f.get_from(1, "RDS x n1: r[env=prod]=A");
    f.open(0);
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[version=v1]=B"), "r{env=prod,version=v1}: B");
    assert_eq!(f.view(r), "B");
    assert_eq!(f.client.cache().snapshot().get(&url("RDS"), &"r".into()).map(|all| all.len()), Some(1));
}

#[test]
fn t40_what_has_no_parameters_goes_by_name() {
    let mut config = ClientConfig::new(
        Bytes::new(),
        ServerConfig { name: "s0".into(), protocol: Protocol::Sotw, errors: ErrorPolicy::default() },
    );
    let mut f = Fixture::of_config(config.clone());
    f.watch("CDS", "a");
    let parameters = [("env", "prod")].into_iter().collect();
    let error = f.client.on_watch(&url("CDS"), "a", Some(parameters)).expect_err("it would be a wildcard");
    assert!(matches!(error, WatchError::NoLocators { .. }));
    f.open(0);
    assert_eq!(f.sent(0), "node CDS [a]");
    config.default_authority.parameters = [("env", "prod")].into_iter().collect();
    config.default_authority.speaks_locators = true;
    let mut f = Fixture::of_config(config);
    f.watch("CDS", "a");
    f.open(0);
    assert_eq!(f.sent(0), "node CDS [a{env=prod}]");
}

#[test]
fn t41_constraints_that_match_nobody_are_ignored() {
    let mut f = delta();
    let r = f.watch("RDS", "r{env=prod}");
    f.sent(0);
    assert_eq!(f.get("RDS v1 n1: r[env=test]=B"), "");
    assert_eq!((f.view(r).as_str(), f.sent(0).as_str()), ("-", "RDS n1"));
    assert_eq!(f.get("RDS v2 n2: r=A"), "r{env=prod}: A", "without constraints it is for everyone");
}

#[test]
fn t48_a_new_key_comes_to_the_clients_or_to_the_server_first() {
    // Clients first: then the server changes all variants in one response.
    let mut f = delta();
    let old = f.watch("RDS", "r{env=prod}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A");
    let new = f.watch("RDS", "r{env=prod,version=v1}");
    f.client.on_unwatch(old);
    f.sent(0);
    assert_eq!(f.view(new), "A");
    f.get("RDS v1 n2: r[env=prod]=A");
    let batch = "RDS v2 n3: r[env=prod,version=v1]=B -r[env=prod]";
    assert_eq!(f.get(batch), "r{env=prod,version=v1}: B");
    // The server first: clients without the key get the default.
    let mut f = delta();
    let old = f.watch("RDS", "r{env=prod}");
    f.sent(0);
    f.get("RDS v1 n1: r[env=prod]=A");
    assert_eq!(f.get("RDS v2 n2: r[env=prod,!version]=A2 -r[env=prod]"), "r{env=prod}: A2");
    let new = f.watch("RDS", "r{env=prod,version=v1}");
    f.client.on_unwatch(old);
    f.sent(0);
    assert_eq!(f.get("RDS v2 n3: r[env=prod,version=v1]=B"), "r{env=prod,version=v1}: B");
    assert_eq!(f.view(new), "B");
}
