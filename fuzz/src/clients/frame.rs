//! Responses of servers, made from bytes: every valid response, and many invalid ones.

use prost::Message;
use xds_core::client::Protocol;
use xds_core::{Constraints, Parameters};
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, DynamicParameterConstraints, Resource, ResourceError,
    ResourceName,
};
use xds_proto::google::rpc::Status;
use xds_proto::type_url as url;

use crate::streams::script::Script;

/// Features of the resources in responses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras {
    /// S38
    pub(super) has_ttl: bool,
    /// D24
    pub(super) has_alias: bool,
}

/// One response, and the features of its resources.
pub(super) fn response(protocol: Protocol, nonce: usize, script: &mut Script<'_>) -> (Vec<u8>, Extras) {
    let type_url = TYPES[script.choice(TYPES.len())];
    let type_url = if script.choice(16) == 15 { "example.com/acme.Other" } else { type_url };
    let counts = script.choice(256);
    let (count, removals, errors) = (counts % 4, counts / 4 % 3, counts / 12 % 3);
    let mut resources = Vec::new();
    for _ in 0..count {
        resources.push(resource(type_url, script));
    }
    let extras = Extras {
        has_ttl: resources.iter().any(|resource| resource.ttl.is_some()),
        has_alias: resources.iter().any(|resource| !resource.aliases.is_empty()),
    };
    let (mut removed_resources, mut removed_resource_names) = (Vec::new(), Vec::new());
    for _ in 0..removals {
        let (name, constraints) = named(type_url, script);
        match constraints {
            None => removed_resources.push(name),
            Some(_) => removed_resource_names.push(located(name, constraints)),
        }
    }
    let mut resource_errors = Vec::new();
    for _ in 0..errors {
        let (name, constraints) = named(type_url, script);
        let status =
            Status { code: CODES[script.choice(CODES.len())], message: "no".into(), ..Status::default() };
        resource_errors.push(ResourceError {
            resource_name: Some(located(name, constraints)),
            error_detail: Some(status),
        });
    }
    let version = VERSIONS[(counts / 36) % VERSIONS.len()].to_owned();
    let (type_url, nonce) = (type_url.to_owned(), format!("n{nonce}"));
    let frame = match protocol {
        Protocol::Sotw => DiscoveryResponse {
            version_info: version,
            resources: resources.into_iter().map(any).collect(),
            type_url,
            nonce,
            resource_errors,
            ..DiscoveryResponse::default()
        }
        .encode_to_vec(),
        Protocol::Delta => DeltaDiscoveryResponse {
            system_version_info: version,
            resources,
            type_url,
            nonce,
            removed_resources,
            removed_resource_names,
            resource_errors,
            ..DeltaDiscoveryResponse::default()
        }
        .encode_to_vec(),
    };
    (frame, extras)
}

/// A name, and its constraints if it is sent with them.
fn named(type_url: &str, script: &mut Script<'_>) -> (String, Option<Constraints>) {
    let name = name(type_url, script.choice(256));
    let condition = CONDITIONS[script.choice(CONDITIONS.len())];
    (name, condition.map(|condition| condition.parse().expect("it is one")))
}

fn resource(type_url: &str, script: &mut Script<'_>) -> Resource {
    let (name, constraints) = named(type_url, script);
    let how = script.choice(256);
    let content = CONTENTS[how % CONTENTS.len()];
    let field = |number: u8, text: &[u8]| {
        let len = u8::try_from(text.len()).expect("it is short");
        [&[number << 3 | 2, len], text].concat()
    };
    let value = [field(1, name.as_bytes()), field(2, content)].concat();
    let payload_type = if how / 8 % 8 == 7 { "example.com/acme.Other" } else { type_url };
    let payload = Any { type_url: payload_type.to_owned(), value: value.into() };
    let alias = script.choice(64);
    Resource {
        name: if constraints.is_none() { name.clone() } else { String::new() },
        resource_name: constraints.is_some().then(|| located(name, constraints)),
        version: VERSIONS[how / 64].to_owned(),
        resource: (alias % 8 != 7).then_some(payload),
        ttl: (alias % 8 == 6).then_some(prost_types::Duration { seconds: 10, nanos: 0 }),
        aliases: if alias >= 48 { vec![self::name(type_url, alias)] } else { Vec::new() },
        ..Resource::default()
    }
}

/// In SotW only resources that need a wrapper have one (S30).
fn any(resource: Resource) -> Any {
    match &resource.resource {
        Some(payload)
            if resource.resource_name.is_none() && resource.aliases.is_empty() && resource.ttl.is_none() =>
        {
            payload.clone()
        }
        Some(_) | None => Any { type_url: url::RESOURCE.to_owned(), value: resource.encode_to_vec().into() },
    }
}

fn located(name: String, constraints: Option<Constraints>) -> ResourceName {
    let decode = |constraints: Constraints| {
        DynamicParameterConstraints::decode(constraints.wire().clone()).expect("they are")
    };
    ResourceName { name, dynamic_parameter_constraints: constraints.map(decode) }
}

/// A name of the type: old-style, the wildcard, a name or a glob of another authority, or the empty
/// name.
pub(super) fn name(type_url: &str, pick: usize) -> String {
    let message_name = type_url.rsplit('/').next().unwrap_or_default();
    match pick % 12 {
        0 | 8 => "a".to_owned(),
        1 | 9 => "b".to_owned(),
        2 => "c".to_owned(),
        3 | 10 => "*".to_owned(),
        4 | 11 => format!("xdstp://x/{message_name}/d/e"),
        5 => format!("xdstp://x/{message_name}/d/*"),
        6 => String::new(),
        _ => "\n".to_owned(),
    }
}

pub(super) fn parameters(pick: usize) -> Parameters {
    let sets: [&[(&str, &str)]; 5] = [
        &[],
        &[("env", "prod")],
        &[("env", "test")],
        &[("env", "prod"), ("version", "v1")],
        &[("version", "v1")],
    ];
    sets[pick % sets.len()].iter().copied().collect()
}

/// A full-state type, another one, and an unknown one.
pub(super) const TYPES: [&str; 3] = [url::LISTENER, url::CLUSTER_LOAD_ASSIGNMENT, "example.com/acme.Thing"];

/// The end of payloads that the program rejects.
pub(super) const BAD: &[u8] = b"bad";

const CONTENTS: [&[u8]; 4] = [b"1", b"2", b"", BAD];

const VERSIONS: [&str; 4] = ["v1", "v1", "v2", ""];

const CODES: [i32; 6] = [5, 7, 14, 0, 3, -1];

const CONDITIONS: [Option<&str>; 10] = [
    None,
    Some("true"),
    Some("env=prod"),
    Some("env=test"),
    Some("env!=prod"),
    Some("env=prod,version=v1"),
    Some("env=prod,!version"),
    Some("version=v1"),
    Some("false"),
    Some("env=prod || version=v1"),
];
