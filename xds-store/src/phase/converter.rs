//! Converters: the content of one form from that of the other.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::names::NameTemplate;
use crate::content;
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
    /// They stay as they are.
    #[default]
    Identity,
    /// By code.
    Code(Arc<dyn Convert>),
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
            // A locator of another resource is no message of the type.
            Self::Identity | Self::Code(_) if content.redirect => content.payload.clone(),
            Self::Identity => content.payload.clone(),
            Self::Code(code) => code.convert(&content.payload, key.name().as_str()).map_err(failed)?,
        };
        let converted = proto::Content { payload, schema: version.to_stored(), ..content.clone() };
        // ST18: what the store has, the cache accepts.
        content::resource(&key.id(), &converted).map_err(|error| failed(error.to_string()))?;
        Ok(converted)
    }
}

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
