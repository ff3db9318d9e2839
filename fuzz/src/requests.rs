//! Requests of discovery streams.

use std::collections::BTreeMap;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use xds_core::subscription::Requested;
use xds_core::{Nonce, Parameters, ResourceName, shortened};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use xds_proto::google::rpc::Status;
use xds_server::skim::{
    CLIENT_TEXT_LIMIT_BYTES, DETAIL_LIMIT_BYTES, SkimError, Skimmer, TYPE_URL_LIMIT_BYTES,
};

/// Reads a `DiscoveryRequest`, and reads it again after other requests.
///
/// # Panics
/// When a property does not hold.
pub fn requests_sotw(raw: &[u8]) -> bool {
    let mut skimmer = skimmer();
    let read = skimmer.sotw(raw);
    let Ok(message) = DiscoveryRequest::decode(raw) else {
        // Fields that are not used are not checked, so the skimmer may accept this request.
        return false;
    };
    if !has_plain_maps(raw, &[], &[(2, NODE_MAP), (7, LOCATOR_MAP)]) {
        return false;
    }
    if message.type_url.len() > TYPE_URL_LIMIT_BYTES {
        assert!(matches!(read, Err(SkimError::TypeUrlTooLong { .. })));
        return false;
    }
    let read = read.expect("what decodes is read");
    let type_url = if message.type_url.is_empty() { DEFAULT_TYPE } else { &message.type_url };
    assert_eq!(read.type_url, type_url);
    assert_eq!(read.version_info, message.version_info);
    assert_eq!(read.response_nonce, Nonce::parse(&message.response_nonce));
    status(read.error_detail.as_deref(), message.error_detail.as_ref(), raw, 6);
    let asked = asked(&message.resource_names, &message.resource_locators);
    assert_eq!(read.requested.as_ref(), Some(&asked), "the first request of a type has the whole list");
    client(&skimmer, message.node.as_ref(), raw, 2);

    let again = skimmer.sotw(raw).expect("it was read before");
    assert_eq!(again.requested, None, "its names are known");
    assert_eq!((again.type_url, again.response_nonce), (read.type_url, read.response_nonce));
    let longer = [raw, b"\x1a\x04more"].concat();
    let mut expected = asked.clone();
    expected.names = expected.names.iter().cloned().chain(["more".into()]).collect();
    let longer = skimmer.sotw(&longer).expect("it is a request with one more name");
    assert_eq!(longer.requested.as_ref(), Some(&expected), "a name came");
    let back = skimmer.sotw(raw).expect("it was read before");
    assert_eq!(back.requested.as_ref(), Some(&asked), "a name went");
    let other = skimmer.sotw(&[raw, b"\x22\x05other"].concat()).expect("it is a request of another type");
    assert_eq!(other.type_url, "other");
    assert!(other.requested == Some(asked) || message.type_url == "other", "types do not know of each other");
    true
}

/// Reads a `DeltaDiscoveryRequest`.
///
/// # Panics
/// When a property does not hold.
pub fn requests_delta(raw: &[u8]) -> bool {
    let mut skimmer = skimmer();
    let read = skimmer.delta(raw);
    let Ok(message) = DeltaDiscoveryRequest::decode(raw) else { return false };
    if !has_plain_maps(raw, &[5], &[(1, NODE_MAP), (8, LOCATOR_MAP), (9, LOCATOR_MAP)]) {
        return false;
    }
    if message.type_url.len() > TYPE_URL_LIMIT_BYTES {
        assert!(matches!(read, Err(SkimError::TypeUrlTooLong { .. })));
        return false;
    }
    let read = read.expect("what decodes is read");
    assert_eq!(read.type_url, message.type_url);
    assert_eq!(read.response_nonce, Nonce::parse(&message.response_nonce));
    status(read.error_detail.as_deref(), message.error_detail.as_ref(), raw, 7);
    let subscribe = asked(&message.resource_names_subscribe, &message.resource_locators_subscribe);
    assert_eq!(read.subscribe, subscribe);
    let unsubscribe = asked(&message.resource_names_unsubscribe, &message.resource_locators_unsubscribe);
    assert_eq!(read.unsubscribe, unsubscribe);
    let versions = message.initial_resource_versions.into_iter();
    let versions: BTreeMap<_, _> =
        versions.map(|(name, version)| (ResourceName::new(name), version)).collect();
    assert_eq!(read.initial_resource_versions, versions);
    client(&skimmer, message.node.as_ref(), raw, 1);
    assert_eq!(skimmer.delta(raw).as_ref(), Ok(&read), "a delta request stands alone");
    true
}

fn skimmer() -> Skimmer {
    Skimmer::new(DEFAULT_TYPE.into())
}

fn asked(names: &[String], locators: &[ResourceLocator]) -> Requested {
    let locator = |locator: &ResourceLocator| xds_core::subscription::Locator {
        name: locator.name.as_str().into(),
        parameters: locator.dynamic_parameters.clone().into_iter().collect(),
    };
    Requested {
        names: names.iter().map(|name| name.as_str().into()).collect(),
        locators: locators.iter().map(locator).collect(),
    }
}

fn status(read: Option<&str>, status: Option<&Status>, raw: &[u8], field: u32) {
    assert_eq!(read.is_some(), status.is_some());
    // A parser merges a message that occurs in several pieces, which no client sends. The skimmer
    // reads the last piece.
    if count(raw, field) == 1 {
        let kept = status.map(|status| shortened(&status.message, DETAIL_LIMIT_BYTES));
        assert_eq!(read, kept.as_deref());
    }
}

/// T46, computed a second time from the decoded node. Of a node in several pieces, the skimmer
/// reads the first.
fn client(skimmer: &Skimmer, node: Option<&Node>, raw: &[u8], field: u32) {
    assert_eq!(skimmer.client().is_some(), node.is_some());
    if let (Some(client), Some(node), 1) = (skimmer.client(), node, count(raw, field)) {
        let kept = |text| shortened(text, CLIENT_TEXT_LIMIT_BYTES).into_owned();
        assert_eq!((&client.id, &client.cluster), (&kept(&node.id), &kept(&node.cluster)));
        let metadata = node.metadata.iter().flat_map(|metadata| &metadata.fields);
        let text = |kind: &prost_types::value::Kind| match kind {
            prost_types::value::Kind::StringValue(text) => Some(text.clone()),
            prost_types::value::Kind::BoolValue(flag) => Some(flag.to_string()),
            _ => None,
        };
        let parameters = metadata.filter_map(|(key, value)| Some((key.clone(), text(value.kind.as_ref()?)?)));
        assert_eq!(client.parameters, parameters.collect::<Parameters>());
    }
}

/// The number of times that a field occurs.
fn count(raw: &[u8], field: u32) -> usize {
    fields(raw).unwrap_or_default().iter().filter(|(number, ..)| *number == field).count()
}

/// Whether all entries of maps have the wire type of messages: entries of these maps, and of maps
/// in the messages of other fields.
///
/// Prost accepts entries of any wire type, and reads their bytes by that type. Other parsers, and
/// our reader of requests, treat such a field as unknown.
fn has_plain_maps(raw: &[u8], maps: &[u32], maps_below: &[(u32, u32)]) -> bool {
    let Some(fields) = fields(raw) else { return false };
    fields.iter().all(|(number, wire_type, content)| {
        let below = maps_below.iter().find(|(field, _)| field == number);
        (*wire_type == WireType::LengthDelimited || !maps.contains(number))
            && below.is_none_or(|(_, map)| has_plain_maps(content, &[*map], &[]))
    })
}

/// Number, wire type and content of each field; `None` if the bytes are no message.
fn fields(mut raw: &[u8]) -> Option<Vec<(u32, WireType, &[u8])>> {
    let mut fields = Vec::new();
    while !raw.is_empty() {
        let (number, wire_type) = decode_key(&mut raw).ok()?;
        let mut content = raw;
        skip_field(wire_type, number, &mut raw, DecodeContext::default()).ok()?;
        content = &content[..content.len() - raw.len()];
        if wire_type == WireType::LengthDelimited {
            decode_varint(&mut content).ok()?;
        }
        fields.push((number, wire_type, content));
    }
    Some(fields)
}

const DEFAULT_TYPE: &str = "default";

/// `Node.dynamic_parameters`
const NODE_MAP: u32 = 12;

/// `ResourceLocator.dynamic_parameters`
const LOCATOR_MAP: u32 = 2;

/// Fields of requests, and their contents.
pub(crate) const WORDS: &[&[u8]] = &[
    b"\x0a\x01v",
    b"\x12\x03\x0a\x01n",
    b"\x1a\x01a",
    b"\x1a\x01*",
    b"\x22\x01t",
    b"\x2a\x017",
    b"\x32\x03\x12\x01e",
    b"\x3a\x03\x0a\x01l",
    b"\x3a\x0b\x0a\x01l\x12\x06\x0a\x01k\x12\x01v",
    b"\x42\x03\x0a\x01l",
    b"\x4a\x03\x0a\x01l",
    b"\x12\x06\x0a\x01k\x12\x01v",
    b"\x2a\x06\x0a\x01a\x12\x011",
    b"\x08\x01",
    b"\x53\x54",
    b"\xff",
    b"\x1a\x0a\x0a\x08\x0a\x01e\x12\x03\x1a\x01p",
    b"\x1a\x09\x0a\x07\x0a\x01b\x12\x02\x20\x01",
];
