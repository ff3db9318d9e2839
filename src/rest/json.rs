//! Conversion between proto3 JSON and encoded messages.

use std::sync::OnceLock;

use prost_reflect::prost::{DecodeError, Message};
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, ReflectMessage, Value,
};
use xds_proto::Any;

use crate::folder::Descriptors;

/// Why JSON cannot represent a resource.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    /// The descriptors do not have the type of the message, or of a message within it.
    #[error("no descriptor for the type {type_url:?}")]
    UnknownType { type_url: String },
    /// The bytes are not a message of the type.
    #[error("its {message} cannot be decoded: {error}")]
    Undecodable { message: String, error: DecodeError },
    /// The message has a field that the descriptors do not have. JSON would lose the field.
    #[error("its {message} has the field {number}, which the descriptors do not have")]
    UnknownField { message: String, number: u32 },
    /// Too many levels of messages are packed in each other.
    #[error("more than {limit} messages are packed in each other")]
    TooDeep { limit: usize },
    /// JSON has no form for a value, such as a duration of a million years.
    #[error(transparent)]
    Value(serde_json::Error),
}

/// The bytes of a `DiscoveryRequest`.
///
/// # Errors
/// The text is not JSON, or not the JSON of that message.
pub(super) fn request_frame(json: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut reader = serde_json::Deserializer::from_slice(json);
    let request = DynamicMessage::deserialize_with_options(request_type(), &mut reader, &options)?;
    reader.end()?;
    Ok(request.encode_to_vec())
}

/// Appends a message with its `@type`. Map entries are in the order of their keys.
///
/// # Errors
/// JSON cannot represent the message. Nothing was appended.
pub(super) fn write_any(any: &Any, descriptors: &Descriptors, text: &mut Vec<u8>) -> Result<(), JsonError> {
    let mut message = DynamicMessage::new(descriptors.builtin(ANY));
    message.set_field_by_number(1, Value::String(any.type_url.clone()));
    message.set_field_by_number(2, Value::Bytes(any.value.clone()));
    check(&message, descriptors, 0)?;
    let value = serde_json::to_value(&message).map_err(JsonError::Value)?;
    serde_json::to_writer(text, &value).map_err(JsonError::Value)
}

/// Fails if the descriptors do not know a part of the message, at any depth: JSON would silently
/// lose that part.
fn check(message: &DynamicMessage, descriptors: &Descriptors, packed_in: usize) -> Result<(), JsonError> {
    let name = || message.descriptor().full_name().to_owned();
    if let Some(field) = message.unknown_fields().next() {
        return Err(JsonError::UnknownField { message: name(), number: field.number() });
    }
    if message.descriptor().full_name() == ANY {
        return check(&unpack(message, descriptors, packed_in)?, descriptors, packed_in + 1);
    }
    for (_, value) in message.fields() {
        let messages: Box<dyn Iterator<Item = &DynamicMessage>> = match value {
            Value::Message(inner) => Box::new(std::iter::once(inner)),
            Value::List(items) => Box::new(items.iter().filter_map(Value::as_message)),
            Value::Map(entries) => Box::new(entries.values().filter_map(Value::as_message)),
            _ => continue,
        };
        for inner in messages {
            check(inner, descriptors, packed_in)?;
        }
    }
    Ok(())
}

fn unpack(
    any: &DynamicMessage,
    descriptors: &Descriptors,
    packed_in: usize,
) -> Result<DynamicMessage, JsonError> {
    if packed_in >= PACKED_LIMIT {
        return Err(JsonError::TooDeep { limit: PACKED_LIMIT });
    }
    let any: Any =
        any.transcode_to().map_err(|error| JsonError::Undecodable { message: ANY.into(), error })?;
    let Some(descriptor) = descriptors.message(&any.type_url) else {
        return Err(JsonError::UnknownType { type_url: any.type_url });
    };
    let message = descriptor.full_name().to_owned();
    DynamicMessage::decode(descriptor, any.value).map_err(|error| JsonError::Undecodable { message, error })
}

/// The request as our own protos declare it, without two fields that the server does not use. The
/// JSON reader skips them as unknown fields. `error_detail` may contain messages of any type, and
/// an Envoy lists some 500 extensions in each request.
fn request_type() -> MessageDescriptor {
    static REQUEST: OnceLock<MessageDescriptor> = OnceLock::new();
    let make = || {
        let invariant = "the built-in descriptors hold the request";
        let mut set = FileDescriptorSet::decode(xds_proto::FILE_DESCRIPTOR_SET).expect(invariant);
        for message in set.file.iter_mut().flat_map(|file| &mut file.message_type) {
            match message.name() {
                "DiscoveryRequest" => message.field.retain(|field| field.name() != "error_detail"),
                "Node" => message.field.retain(|field| field.name() != "extensions"),
                _ => {}
            }
        }
        let pool = DescriptorPool::from_file_descriptor_set(set).expect(invariant);
        pool.get_message_by_name("envoy.service.discovery.v3.DiscoveryRequest").expect(invariant)
    };
    REQUEST.get_or_init(make).clone()
}

const ANY: &str = "google.protobuf.Any";

/// Real resources have up to about five levels of typed configuration. Reading each level uses
/// stack.
const PACKED_LIMIT: usize = 32;

#[cfg(test)]
mod tests;
