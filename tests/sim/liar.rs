//! Responses of a server that follows no rule.

use bytes::Bytes;
use prost::Message;
use xds_core::client::Protocol;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::resource::CacheControl;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, DynamicParameterConstraints, Resource, ResourceError,
    ResourceName,
};
use xds_proto::google::rpc::Status;
use xds_proto::type_url::RESOURCE;

use crate::content::{Content, Kind, NAMES, SCHEMES, constraints_of_scheme, name_of};
use crate::random::Random;

/// The authority whose names clients request from a liar.
pub(crate) const AUTHORITY: &str = "liar";

/// The name with that authority.
pub(crate) fn name_at_liar(kind: Kind, name: &str) -> String {
    let message_name = kind.url().rsplit('/').next().unwrap_or_default();
    format!("xdstp://{AUTHORITY}/{message_name}/{name}")
}

/// One frame: mostly a response with an error in it, sometimes bytes that cannot be decoded.
pub(crate) fn lie(random: &mut Random, protocol: Protocol) -> Bytes {
    let frame = response(random, protocol, Audience::Client);
    damaged(random, frame)
}

fn damaged(random: &mut Random, mut frame: Vec<u8>) -> Bytes {
    match random.below(12) {
        0 => return (0..random.below(40)).map(|_| random.next() as u8).collect(),
        1 => frame.truncate(random.below(frame.len() + 1)),
        2 if !frame.is_empty() => {
            let at = random.below(frame.len());
            frame[at] = random.next() as u8;
        }
        _ => {}
    }
    frame.into()
}

/// A lie to a proxy. It may also say that the type is not served.
pub(crate) fn lie_to_proxy(random: &mut Random, protocol: Protocol) -> Bytes {
    let frame = response(random, protocol, Audience::Proxy);
    damaged(random, frame)
}

/// A lie to a proxy whose clients decode the responses. Each resource has constraints, so that it
/// is shared (T43c), has no other name, and has a payload that can be decoded.
pub(crate) fn shared_lie(random: &mut Random, protocol: Protocol) -> Bytes {
    let mut frame = response(random, protocol, Audience::Leaves);
    match random.below(12) {
        0 => return (0..random.below(40)).map(|_| random.next() as u8).collect(),
        1 => frame.truncate(random.below(frame.len() + 1)),
        _ => {}
    }
    frame.into()
}

/// The receiver of a lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    Client,
    Proxy,
    Leaves,
}

fn share(mut resource: Resource) -> Resource {
    let name = std::mem::take(&mut resource.name);
    let named =
        resource.resource_name.get_or_insert(ResourceName { name, dynamic_parameter_constraints: None });
    resource.cache_control = None;
    resource.aliases.clear();
    let Some(payload) = &mut resource.resource else { return resource };
    let Some(kind) = Kind::of_url(&payload.type_url) else { return resource };
    let Ok(mut content) = Content::of(kind, &payload.value) else { return resource };
    // As in all worlds with proxies, routes name no clusters: a client that may use such clusters
    // would keep them (S33).
    content.clusters.clear();
    // D23: of an unknown type a proxy cannot see that the payload has another name.
    if kind == Kind::Thing {
        content.name.clone_from(&named.name);
    }
    payload.value = content.encode(kind);
    resource
}

fn response(random: &mut Random, protocol: Protocol, audience: Audience) -> Vec<u8> {
    let kind = random.pick(&Kind::ALL);
    let type_url = if random.chance(8) { "example.com/acme.Unknown" } else { kind.url() }.to_owned();
    let resources = (0..random.below(5)).map(|_| resource(random, kind));
    let resources: Vec<_> = match audience {
        Audience::Client | Audience::Proxy => resources.collect(),
        Audience::Leaves => resources.map(share).collect(),
    };
    // The version stays the same or changes, independent of the content.
    let version = random.pick(&["1", "1", "2", ""]).to_owned();
    let nonce = random.pick(&["1", "2", "3", ""]).to_owned();
    let resource_errors: Vec<_> =
        (0..random.below(8).saturating_sub(6)).map(|_| error(random, kind, audience)).collect();
    match protocol {
        Protocol::Sotw => {
            let resources = resources.into_iter().map(|resource| any(random, resource)).collect();
            let response = DiscoveryResponse {
                version_info: version,
                resources,
                type_url,
                nonce,
                resource_errors,
                ..Default::default()
            };
            response.encode_to_vec()
        }
        Protocol::Delta => DeltaDiscoveryResponse {
            system_version_info: version,
            resources,
            type_url,
            nonce,
            resource_errors,
            removed_resources: (0..random.below(6).saturating_sub(3)).map(|_| name(random, kind)).collect(),
            removed_resource_names: (0..random.below(6).saturating_sub(3))
                .map(|_| resource_name(random, kind))
                .collect(),
            ..Default::default()
        }
        .encode_to_vec(),
    }
}

/// A name that clients request from the liar, one that they request from other servers, or one that
/// nobody can request.
fn name(random: &mut Random, kind: Kind) -> String {
    let name = name_of(random.below(NAMES));
    match random.below(12) {
        0..6 => name_at_liar(kind, &name),
        6..9 => name,
        9 => "nobody asks for this".to_owned(),
        _ => {
            random.pick(&["*", "", "\n", "xdstp://liar", "xdstp://liar/acme.Other/a", "xdstp://"]).to_owned()
        }
    }
}

fn resource(random: &mut Random, kind: Kind) -> Resource {
    let called = name(random, kind);
    let is_located = random.chance(50);
    let inside = if random.chance(85) { called.clone() } else { name(random, kind) };
    let content = Content {
        name: inside,
        number: random.below(4) as i32,
        is_bad: random.chance(10),
        address: 0,
        clusters: vec![name_of(random.below(NAMES))],
    };
    let type_url = if random.chance(92) { kind.url() } else { Kind::Thing.url() }.to_owned();
    let payload = Any { type_url, value: content.encode(kind) };
    Resource {
        name: if is_located && random.chance(90) { String::new() } else { called.clone() },
        resource_name: is_located
            .then(|| ResourceName { name: called, dynamic_parameter_constraints: constraints(random) }),
        version: random.pick(&["1", "1", "2", ""]).to_owned(),
        resource: random.chance(90).then_some(payload),
        aliases: (0..random.below(10).saturating_sub(8)).map(|_| name(random, kind)).collect(),
        cache_control: random.chance(5).then_some(CacheControl { do_not_cache: true }),
        ..Default::default()
    }
}

fn resource_name(random: &mut Random, kind: Kind) -> ResourceName {
    ResourceName { name: name(random, kind), dynamic_parameter_constraints: constraints(random) }
}

/// Constraints of all schemes, which often overlap; some are invalid.
fn constraints(random: &mut Random) -> Option<DynamicParameterConstraints> {
    let scheme = constraints_of_scheme(random.below(SCHEMES.len()));
    match scheme.get(random.below(4)) {
        Some(constraints) => DynamicParameterConstraints::decode(constraints.wire().clone()).ok(),
        None if random.chance(20) => {
            // A list with an element without a type (T8).
            DynamicParameterConstraints::decode(&b"\x12\x02\x0a\x00"[..]).ok()
        }
        None => None,
    }
}

fn error(random: &mut Random, kind: Kind, audience: Audience) -> ResourceError {
    let code = match random.pick(&[0, 5, 7, 14, 99, -1]) {
        99 if audience != Audience::Client => UNIMPLEMENTED,
        code => code,
    };
    let status = Status { code, message: "a lie".to_owned(), ..Status::default() };
    ResourceError {
        resource_name: random.chance(90).then(|| resource_name(random, kind)),
        error_detail: random.chance(90).then_some(status),
    }
}

fn any(random: &mut Random, resource: Resource) -> Any {
    match resource.resource {
        Some(payload) if resource.resource_name.is_none() && random.chance(70) => payload,
        _ => Any { type_url: RESOURCE.to_owned(), value: resource.encode_to_vec().into() },
    }
}

/// The code of an error for a type that is not served.
const UNIMPLEMENTED: i32 = 12;
