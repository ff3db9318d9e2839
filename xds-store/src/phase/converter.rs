//! Converters: the content of one form from that of the other.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{self, DecodeContext};
use prost::{DecodeError, Message};
use xds_core::ResourceError;
use xds_proto::xds::store::v1 as proto;

use super::names::NameTemplate;
use crate::content::{self, ContentError};
use crate::key::RecordKey;
use crate::schema::SchemaVersion;

/// Converts payloads in one direction (SV10): a function of its arguments, with the same result on all
/// machines. Up and down again gives the same payload.
pub trait Convert: fmt::Debug + Send + Sync {
    /// The payload for a resource of this name.
    ///
    /// # Errors
    /// SV11: a text for people, if the payload has something that the converter does not know. It never
    /// guesses.
    fn convert(&self, payload: &Bytes, name: &str) -> Result<Bytes, String>;
}

/// How payloads are converted.
#[derive(Debug, Clone, Default)]
pub enum Converter {
    /// They stay as they are, but for the name of the resource in them (D23).
    #[default]
    Identity,
    /// By code.
    Code(Arc<dyn Convert>),
    /// Not at all: the plan has no way down (SV32).
    Missing,
}

/// Why a content has no other form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The converter refuses the payload (SV11).
    #[error("it cannot be converted to {key:?}: {reason}")]
    Payload {
        /// The key of the other form.
        key: RecordKey,
        /// The text of the converter, or of the check of the converted content.
        reason: String,
    },
    /// SV31: the constraints name the parameter `xds.schema` already, or become too large with it.
    #[error("the constraints of {key:?} cannot have a condition on xds.schema besides")]
    Constraints {
        /// The key.
        key: RecordKey,
    },
    /// The name of the other form is too long, or is no canonical name.
    #[error("{name} is no name of a resource, or is not spelled canonically")]
    Name {
        /// The name.
        name: String,
    },
}

impl Converter {
    /// The content of a record of this key. Everything but the payload stays.
    pub(super) fn content(
        &self,
        content: &proto::Content,
        key: &RecordKey,
        version: SchemaVersion,
    ) -> Result<proto::Content, ConvertError> {
        let failed = |reason| ConvertError::Payload { key: key.clone(), reason };
        let payload = match self {
            Self::Missing => return Err(failed("the plan has no way down".to_owned())),
            // A locator of another resource is no message of the type.
            Self::Identity | Self::Code(_) if content.redirect => content.payload.clone(),
            Self::Identity => content.payload.clone(),
            Self::Code(code) => code.convert(&content.payload, key.name().as_str()).map_err(failed)?,
        };
        let mut converted = proto::Content { payload, schema: version.to_stored(), ..content.clone() };
        let (id, before) = (key.id(), converted.payload.clone());
        let mut checked = content::resource(&id, &converted);
        if let Err(ContentError::Resource(ResourceError::NameMismatch { .. })) = &checked {
            converted.payload =
                renamed(&before, key.name().as_str()).map_err(|error| failed(error.to_string()))?;
            checked = content::resource(&id, &converted);
        }
        if let Err(ContentError::Resource(ResourceError::MissingServiceName { .. })) = &checked {
            converted.payload = with_service_name(&converted.payload, &before);
            checked = content::resource(&id, &converted);
        }
        checked.map_err(|error| failed(error.to_string()))?;
        Ok(converted)
    }
}

/// D23: the payload with another name in it. All types that have a name there have it in field 1.
fn renamed(payload: &Bytes, name: &str) -> Result<Bytes, DecodeError> {
    let mut renamed = BytesMut::with_capacity(payload.len() + name.len());
    encoding::string::encode(NAME_FIELD, &name.to_owned(), &mut renamed);
    let mut rest = &payload[..];
    while !rest.is_empty() {
        let field = rest;
        let (number, wire_type) = encoding::decode_key(&mut rest)?;
        encoding::skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        if number != NAME_FIELD {
            renamed.put_slice(&field[..field.len() - rest.len()]);
        }
    }
    Ok(renamed.freeze())
}

/// X16: a cluster whose endpoints have its name keeps their name when it is renamed. The field is merged
/// with what the cluster has already.
fn with_service_name(payload: &Bytes, before: &Bytes) -> Bytes {
    let service_name = Named::decode(&**before).map(|named| named.name).unwrap_or_default();
    let config = ClusterConfig { eds_cluster_config: Some(EdsClusterConfig { service_name }) };
    let mut payload = BytesMut::from(&payload[..]);
    payload.put_slice(&config.encode_to_vec());
    payload.freeze()
}

/// The name in a payload.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

/// The fields of `envoy.config.cluster.v3.Cluster` that name its endpoints.
#[derive(Clone, PartialEq, Message)]
struct ClusterConfig {
    #[prost(message, optional, tag = "3")]
    eds_cluster_config: Option<EdsClusterConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct EdsClusterConfig {
    #[prost(string, tag = "2")]
    service_name: String,
}

const NAME_FIELD: u32 = 1;

/// The key of the new form.
pub(super) fn key_up(
    key: &RecordKey,
    type_url: &str,
    template: &NameTemplate,
) -> Result<RecordKey, ConvertError> {
    let name = template.up(key.name().as_str());
    key_of(key, type_url, name)
}

/// A key with another type and name.
pub(super) fn key_of(key: &RecordKey, type_url: &str, name: String) -> Result<RecordKey, ConvertError> {
    let wire = proto::Key { type_url: type_url.to_owned(), name, ..key.to_proto() };
    match RecordKey::parse(&wire) {
        // SV9: two spellings of one name would be two old keys of one new key.
        Ok(other) if other.name().as_str() == wire.name => Ok(other),
        Ok(_) | Err(_) => Err(ConvertError::Name { name: wire.name }),
    }
}

#[cfg(test)]
mod tests {
    use xds_proto::type_url::CLUSTER;

    use super::*;

    fn key(name: &str) -> RecordKey {
        let key = proto::Key { type_url: CLUSTER.into(), name: name.into(), when: String::new() };
        RecordKey::parse(&key).unwrap()
    }

    fn convert(payload: &[u8], name: &str) -> Result<Vec<u8>, ConvertError> {
        let content = proto::Content { payload: payload.to_vec().into(), ..Default::default() };
        let converted = Converter::Identity.content(&content, &key(name), SchemaVersion::FIRST)?;
        Ok(converted.payload.to_vec())
    }

    const NEW: &str = "xdstp://acme/envoy.config.cluster.v3.Cluster/shop";

    #[test]
    fn sv10_a_rename_changes_the_name_in_the_payload_and_nothing_else() {
        // An unknown field 1000 is kept.
        let (old, unknown) = (b"\x0a\x04shop", b"\xc2\x3e\x01x");
        let up = convert(&[&old[..], unknown].concat(), NEW).unwrap();
        assert!(up.ends_with(unknown) && up[2..].starts_with(NEW.as_bytes()));
        assert_eq!(convert(&up, "shop").unwrap(), [&old[..], unknown].concat());
        assert!(matches!(convert(b"\x0a\x7f", NEW), Err(ConvertError::Payload { .. })));
    }

    #[test]
    fn sv10_a_cluster_keeps_the_name_of_its_endpoints() {
        // The type EDS, and an EDS config without a name.
        let old = b"\x0a\x04shop\x10\x03\x1a\x00";
        let up = convert(old, NEW).unwrap();
        assert!(up.ends_with(b"\x1a\x06\x12\x04shop"), "{up:?}");
        // Another name of the endpoints stays.
        let named = b"\x0a\x04shop\x10\x03\x1a\x07\x12\x05other";
        assert!(convert(named, NEW).unwrap().ends_with(b"\x1a\x07\x12\x05other"));
    }
}
