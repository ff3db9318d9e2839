//! New-style names (X) in the client.

use std::collections::BTreeSet;

use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, Resource};

use super::fixture::{Fixture, url};
use super::*;

const EDS: &str = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// A client with servers for the authority `a`.
fn client(protocol: Protocol) -> Fixture {
    let server = ServerConfig { name: "s0".into(), protocol, errors: ErrorPolicy::default() };
    let mut config = ClientConfig::new(Bytes::new(), server);
    let authority = AuthorityConfig { servers: vec![0], speaks_locators: true, ..Default::default() };
    config.authorities = [("a".to_owned(), authority)].into();
    let mut f = Fixture::of_config(config);
    f.open(0);
    f
}

#[test]
fn x1_old_style_names_are_compared_byte_by_byte() {
    let mut f = client(Protocol::Delta);
    let names = ["a?b=1&c=2", "a?c=2&b=1", "%61", "xds:a"];
    let watches: BTreeSet<_> = names.iter().map(|name| f.watch("EDS", name)).collect();
    assert_eq!(watches.len(), 4);
    assert_eq!(f.sent(0), "node EDS +%61 +a?b=1&c=2 +a?c=2&b=1 +xds:a");
}

#[test]
fn x2_x6_names_of_another_type_or_none_cannot_be_watched() {
    let mut f = client(Protocol::Delta);
    let another = "xdstp://a/envoy.config.cluster.v3.Cluster/c";
    for name in [another, "xdstp://a", "xdstp:a", &format!("{EDS}/%zz"), "", "a\u{1}"] {
        let error = f.client.on_watch(&url("EDS"), name, None).expect_err("it cannot be");
        assert!(matches!(error, WatchError::Name { .. }), "{error}");
    }
}

#[test]
fn x3_directives_never_go_out() {
    let mut f = client(Protocol::Delta);
    assert!(f.client.on_watch(&url("EDS"), &format!("{EDS}/e#entry=x"), None).is_err());
    assert_eq!(f.sent(0), "");
}

#[test]
fn x4_names_are_equal_by_their_parts() {
    let mut f = client(Protocol::Delta);
    let one = f.watch("EDS", &format!("{EDS}/e?y=2&x=1"));
    assert_eq!(f.watch("EDS", &format!("{EDS}/%65?x=1&y=2")), one);
    assert_eq!(f.sent(0), format!("node EDS +{EDS}/e?x=1&y=2"));
    f.get(&format!("EDS v1 n1: {EDS}/e?y=2&x=1=A"));
    assert_eq!(f.view(one), "A");
}

#[test]
fn x6_a_response_with_a_malformed_name_is_rejected_in_part() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = client(protocol);
        f.watch("EDS", "a");
        f.sent(0);
        assert_eq!(f.get("EDS v1 n1: xdstp://a=1 a=1"), "a: 1");
        assert!(f.sent(0).contains("n1 !"));
    }
}

#[test]
fn x8_context_parameters_match_exactly() {
    let mut f = client(Protocol::Delta);
    let asked = f.watch("EDS", &format!("{EDS}/e?a=1"));
    f.sent(0);
    assert_eq!(f.get(&format!("EDS v1 n1: {EDS}/e=A {EDS}/e?a=1&b=2=B")), "");
    f.get(&format!("EDS v2 n2: {EDS}/e?a=1=C"));
    assert_eq!(f.view(asked), "C");
}

#[test]
fn x12_the_members_of_a_glob_are_watched() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = client(protocol);
        let glob = f.watch("EDS", &format!("{EDS}/foo/*?p=1"));
        f.sent(0);
        let other = format!("{EDS}/foo/b/c?p=1=2 {EDS}/foo/a=3");
        f.get(&format!("EDS v1 n1: {EDS}/foo/a?p=1=1 {other}"));
        let members: Vec<_> = f.client.members(glob).expect("it is a set").map(ToString::to_string).collect();
        assert_eq!(members, [format!("{EDS}/foo/a?p=1")], "one more segment, equal parameters");
        // A watch of the name finds it in the cache.
        let by_name = f.watch("EDS", &format!("{EDS}/foo/a?p=1"));
        assert_eq!(f.view(by_name), "1");
    }
}

#[test]
fn x13_an_empty_glob_and_a_lost_member_are_told_apart() {
    let mut f = client(Protocol::Delta);
    let name = format!("{EDS}/foo/*");
    let glob = f.watch("EDS", &name);
    f.sent(0);
    assert_eq!(f.get(&format!("EDS v1 n1: -{name}")), format!("{name}: -"));
    assert_eq!(f.pass(60), "", "it is known to be empty");
    f.get(&format!("EDS v2 n2: {EDS}/foo/a=1 {EDS}/foo/b=1"));
    assert_eq!(f.get(&format!("EDS v3 n3: -{EDS}/foo/a")), format!("{name}/{EDS}/foo/a: -"));
    // Regression: members that the server does not know stayed when it removed the glob.
    assert_eq!(f.get(&format!("EDS v4 n4: -{name}")), format!("{name}/{EDS}/foo/b: -"));
    assert_eq!(f.client.members(glob).expect("it is a set").count(), 0);
}

/// Regression: an error of a glob with members was cleared at once.
#[test]
fn x12_s37_an_error_of_a_glob_stands_until_something_of_it_comes() {
    let mut f = client(Protocol::Delta);
    let name = format!("{EDS}/foo/*");
    let glob = f.watch("EDS", &name);
    f.sent(0);
    f.get(&format!("EDS v1 n1: {EDS}/foo/a=1"));
    f.get(&format!("EDS v2 n2: {name}!14"));
    assert_eq!(f.view(glob), "UNAVAILABLE");
    f.get("EDS v3 n3: unasked=1");
    assert_eq!(f.view(glob), "UNAVAILABLE");
    f.get(&format!("EDS v4 n4: {EDS}/foo/a=2"));
    assert_eq!(f.view(glob), "-");
}

#[test]
fn x14_a_redirect_is_rejected_as_not_followed() {
    let mut f = client(Protocol::Delta);
    let name = format!("{EDS}/e");
    let watch = f.watch("EDS", &name);
    f.sent(0);
    let locator = Any {
        type_url: "type.googleapis.com/xds.core.v3.ResourceLocator".to_owned(),
        value: Bytes::from_static(b"\x12\x01x"),
    };
    let resource = Resource { name, resource: Some(locator), ..Default::default() };
    let type_url = url("EDS").as_str().to_owned();
    let (resources, nonce) = (vec![resource], "n1".to_owned());
    let response = DeltaDiscoveryResponse { resources, type_url, nonce, ..Default::default() };
    let frame = prost::Message::encode_to_vec(&response).into();
    let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
    assert_eq!(effects.response.expect("it is answered").rejections[0].reason, Reason::Redirect);
    assert_eq!(f.view(watch), "INVALID_ARGUMENT");
}
