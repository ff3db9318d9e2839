use prost_reflect::prost::Message;
use serde_json::{Value, json};
use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;

use super::*;

fn request(json: &str) -> DiscoveryRequest {
    DiscoveryRequest::decode(request_frame(json.as_bytes()).unwrap().as_slice()).unwrap()
}

fn written(type_url: &str, value: &[u8]) -> Result<Value, JsonError> {
    let mut text = Vec::new();
    let any = Any { type_url: type_url.into(), value: value.to_vec().into() };
    write_any(&any, &Descriptors::envoy(), &mut text)?;
    Ok(serde_json::from_slice(&text).unwrap())
}

fn refused(type_url: &str, value: &[u8]) -> String {
    written(type_url, value).unwrap_err().to_string()
}

/// A field of at most 127 bytes.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

#[test]
fn s41_field_names_are_taken_in_both_forms_and_unknown_fields_are_passed_over() {
    let snake = r#"{"version_info": "7", "resource_names": ["a"], "type_url": "t", "node": {"id": "n"},
        "resource_locators": [{"name": "b", "dynamic_parameters": {"env": "prod"}}]}"#;
    let camel = r#"{"versionInfo": "7", "resourceNames": ["a"], "typeUrl": "t", "soon": {"what": [1]},
        "node": {"id": "n", "soon": 1, "userAgentName": "envoy"}, "responseNonce": null,
        "resourceLocators": [{"name": "b", "dynamicParameters": {"env": "prod"}}]}"#;
    let mut camel = request(camel);
    assert_eq!(std::mem::take(&mut camel.node.as_mut().unwrap().user_agent_name), "envoy");
    assert_eq!(request(snake), camel);
    assert_eq!(camel.resource_locators[0].dynamic_parameters["env"], "prod");
}

#[test]
fn s41_what_nobody_reads_is_not_looked_at() {
    let json = r#"{"error_detail": {"code": 3, "details": [{"@type": "x/unheard.Of"}]},
        "node": {"extensions": [{"name": "a", "category": "b"}], "metadata": {"env": "prod"}}}"#;
    let node = request(json).node.unwrap();
    assert!(node.metadata.unwrap().fields.contains_key("env"));
}

#[test]
fn s41_what_is_wrong_with_json_is_said_with_its_place() {
    for (json, expected) in [
        ("", "EOF while parsing"),
        ("[]", "invalid type"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{\n\"resource_names\": [1]}", "line 2 column"),
    ] {
        let error = request_frame(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let deep = format!("{}{}", r#"{"node":{"metadata":{"a":"#, "[".repeat(100_000));
    assert!(request_frame(deep.as_bytes()).is_err());
}

#[test]
fn s41_a_resource_is_written_with_what_is_packed_in_it() {
    // connect_timeout 1 s, and typed_extension_protocol_options {"b": Struct, "a": an empty
    // Cluster}.
    let any = |type_url: &str| [field(1, type_url.as_bytes()), field(2, &[])].concat();
    let entry = |key: &[u8], value: &[u8]| {
        let entry = [field(1, key), field(2, value)].concat();
        [&[0xa2, 0x02, u8::try_from(entry.len()).unwrap()], entry.as_slice()].concat()
    };
    let (b, a) = (entry(b"b", &any("x/google.protobuf.Struct")), entry(b"a", &any(CLUSTER)));
    let bytes = [field(1, b"c"), field(4, &[0x08, 1]), b, a].concat();
    let expected = json!({
        "@type": CLUSTER,
        "name": "c",
        "connectTimeout": "1s",
        "typedExtensionProtocolOptions": {
            "a": { "@type": CLUSTER },
            "b": { "@type": "x/google.protobuf.Struct", "value": {} },
        },
    });
    assert_eq!(written(CLUSTER, &bytes).unwrap(), expected);
}

#[test]
fn s41_what_json_would_lose_is_an_error() {
    assert!(refused("x/acme.Thing", b"").contains("\"x/acme.Thing\""));
    assert!(refused(CLUSTER, &[0x0a, 9, b'c']).contains("envoy.config.cluster.v3.Cluster cannot be decoded"));
    // Field 1000 of the cluster, then of its load_assignment.
    let newer = [0xc2, 0x3e, 1, b'x'];
    let error = refused(CLUSTER, &newer);
    assert!(error.contains("Cluster has the field 1000"), "{error}");
    let within = [&[0x8a, 0x02, 4], newer.as_slice()].concat();
    let error = refused(CLUSTER, &within);
    assert!(error.contains("ClusterLoadAssignment has the field 1000"), "{error}");
    // A duration longer than 10,000 years.
    let duration = [0x22, 11, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x10];
    assert!(written(CLUSTER, &[&duration[..], &[0]].concat()).is_err());
}

#[test]
fn s41_messages_packed_in_each_other_without_end_are_refused() {
    const ANY_URL: &str = "type.googleapis.com/google.protobuf.Any";
    let pack = |value: Vec<u8>| Any { type_url: ANY_URL.into(), value: value.into() }.encode_to_vec();
    let deep = (0..10_000).fold(Vec::new(), |inner, _| pack(inner));
    assert!(refused(ANY_URL, &deep).contains("more than 32 messages"));
}
