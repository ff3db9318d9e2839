//! G10: a resource larger than the default gRPC message passes through all parts, if the operator
//! raises the limit.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress, address};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use prost::Message as _;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::DiscoveryResponse;

use running::{Running, Scratch, http, xds};

#[path = "binary/running.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod running;

/// A cluster's endpoints with this many addresses.
fn endpoints(cluster: &str, count: u32) -> Vec<u8> {
    let endpoint = |number: u32| {
        let address = SocketAddress {
            address: std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string(),
            port_specifier: Some(PortSpecifier::PortValue(8080)),
            ..SocketAddress::default()
        };
        let address = Address { address: Some(address::Address::SocketAddress(address)) };
        let endpoint = Endpoint { address: Some(address), ..Endpoint::default() };
        LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() }
    };
    let lb_endpoints = (0..count).map(endpoint).collect();
    let locality = LocalityLbEndpoints { lb_endpoints, ..LocalityLbEndpoints::default() };
    let cluster_name = cluster.to_owned();
    ClusterLoadAssignment { cluster_name, endpoints: vec![locality], ..ClusterLoadAssignment::default() }
        .encode_to_vec()
}

/// A folder with 250,000 endpoints of one cluster between two small ones, and the size of the large
/// one.
fn folder(test: &str) -> (Scratch, usize) {
    let scratch = Scratch::new(test);
    let large = endpoints("large", 250_000);
    let len = large.len();
    assert!(len > 5_700_000, "{len}");
    let type_url = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    let all = [endpoints("a", 1), large, endpoints("z", 1)];
    let any = |value: Vec<u8>| Any { type_url: type_url.into(), value: value.into() };
    let response = DiscoveryResponse { resources: all.map(any).into(), ..DiscoveryResponse::default() };
    scratch.write("endpoints.pb", response.encode_to_vec());
    (scratch, len)
}

#[test]
fn g10_a_resource_over_4_mib_is_refused_unless_the_limit_is_raised_and_the_error_says_how() {
    let (scratch, len) = folder("large-check");
    let check = |options: &[&str]| xds().arg("check").arg(&scratch.0).args(options).output().unwrap();
    let refused = check(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8(refused.stderr).unwrap();
    let expected = format!(
        "endpoints.pb: envoy.config.endpoint.v3.ClusterLoadAssignment \"large\" has {len} bytes, more than the limit \
         of 4128768 (--resource-limit raises it)"
    );
    assert!(text.contains(&expected), "{text}");
    assert_eq!(check(&["--resource-limit", &len.to_string()]).status.code(), Some(0));
    assert_eq!(check(&["--resource-limit", &(len - 1).to_string()]).status.code(), Some(2));
}

#[test]
fn g10_d32_a_large_resource_reaches_clients_of_a_server_and_of_proxies_in_both_protocols_and_polls() {
    let (scratch, _) = folder("large-chain");
    let server = Running::start(&["serve", scratch.text(), "--resource-limit", "16000000"]);
    let proxy = Running::start(&["proxy", "--upstream", &server.address]);
    let sotw_proxy = Running::start(&["proxy", "--sotw", "--upstream", &server.address]);
    let all = [("server", &server, ""), ("proxy", &proxy, "--sotw"), ("proxy in SotW", &sotw_proxy, "")];
    for (what, served, protocol) in all {
        let options = Some(protocol).filter(|option| !option.is_empty());
        let names = ["EDS", "a", "large", "z", "--format", "json"];
        let (code, text) = served.get(&options.into_iter().chain(names).collect::<Vec<_>>());
        assert_eq!(code, Some(0), "{what}");
        assert_eq!(text.lines().count(), 3, "{what}");
        assert_eq!(text.matches("\"address\":\"10.3.208.143\"").count(), 1, "{what}: the last endpoint");
    }
    let body = r#"{"resource_names":["large"]}"#;
    let request = format!(
        "POST /v3/discovery:endpoints HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        server.address,
        body.len()
    );
    let answer = http(&server.address, &request);
    assert!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..200]);
    assert!(answer.contains("10.3.208.143"));
}
