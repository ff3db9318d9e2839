//! Deterministic encoding: equal messages give equal bytes in every process.
//!
//! `prost-reflect` keeps maps in a `HashMap` and writes them in its order, which differs in each
//! process. Versions are digests of the bytes, so this module writes map entries sorted, at every
//! depth.

use prost_reflect::prost::Message;
use prost_reflect::prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value};

/// Encodes a message with its map entries sorted by their encoded keys, at every depth. Fields that the
/// descriptor does not have come last.
///
/// The bytes in a `google.protobuf.Any` are written unchanged.
pub(crate) fn to_vec(message: &DynamicMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes.shrink_to_fit();
    bytes
}

fn encode(message: &DynamicMessage, bytes: &mut Vec<u8>) {
    for (field, value) in message.fields() {
        encode_field(message, &field, value, bytes);
    }
    // Messages that come from documents have neither.
    for (extension, value) in message.extensions() {
        match value {
            Value::Message(inner) if !extension.is_group() => {
                encode_delimited(extension.number(), &to_vec(inner), bytes);
            }
            Value::List(items) if matches!(extension.kind(), Kind::Message(_)) && !extension.is_group() => {
                for inner in items.iter().filter_map(Value::as_message) {
                    encode_delimited(extension.number(), &to_vec(inner), bytes);
                }
            }
            plain => {
                let mut one = DynamicMessage::new(message.descriptor());
                one.set_extension(&extension, plain.clone());
                one.encode_raw(bytes);
            }
        }
    }
    message.unknown_fields().for_each(|field| field.encode(bytes));
}

fn encode_field(message: &DynamicMessage, field: &FieldDescriptor, value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Message(inner) if !field.is_group() => {
            encode_delimited(field.number(), &to_vec(inner), bytes);
        }
        Value::Map(entries) => {
            let Kind::Message(entry) = field.kind() else { return };
            let mut encoded: Vec<(Vec<u8>, Vec<u8>)> = entries
                .iter()
                .map(|(key, value)| {
                    let mut one = DynamicMessage::new(entry.clone());
                    one.set_field(&entry.map_entry_key_field(), key.clone().into());
                    let key = one.encode_to_vec();
                    one.set_field(&entry.map_entry_value_field(), value.clone());
                    (key, to_vec(&one))
                })
                .collect();
            encoded.sort_unstable();
            for (_, entry) in encoded {
                encode_delimited(field.number(), &entry, bytes);
            }
        }
        Value::List(items) if matches!(field.kind(), Kind::Message(_)) && !field.is_group() => {
            for inner in items.iter().filter_map(Value::as_message) {
                encode_delimited(field.number(), &to_vec(inner), bytes);
            }
        }
        // These values contain no message, so no map either: prost-reflect handles packing,
        // presence and defaults.
        plain => {
            let mut one = DynamicMessage::new(message.descriptor());
            one.set_field(field, plain.clone());
            one.encode_raw(bytes);
        }
    }
}

fn encode_delimited(number: u32, content: &[u8], bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use prost_reflect::MapKey;
    use quickcheck::quickcheck;

    use super::*;
    use crate::folder::Descriptors;

    /// A `google.protobuf.Struct` whose fields are numbers, nested to this depth.
    fn nested(fields: &[(String, u8)], depth: u8) -> DynamicMessage {
        let descriptors = Descriptors::envoy();
        let value_type = descriptors.builtin("google.protobuf.Value");
        let mut message = DynamicMessage::new(descriptors.builtin("google.protobuf.Struct"));
        let entries = fields.iter().map(|(key, number)| {
            let mut value = DynamicMessage::new(value_type.clone());
            match depth {
                0 => value.set_field_by_name("number_value", Value::F64(f64::from(*number))),
                _ => value.set_field_by_name("struct_value", Value::Message(nested(fields, depth - 1))),
            }
            (MapKey::String(key.clone()), Value::Message(value))
        });
        if !fields.is_empty() {
            message.set_field_by_name("fields", Value::Map(entries.collect()));
        }
        message
    }

    quickcheck! {
        fn the_bytes_decode_to_the_same_message_and_do_not_depend_on_hash_order(fields: Vec<(String, u8)>) -> bool {
            let fields = &fields[..fields.len().min(6)];
            // Each HashMap has its own seed, so the second message has another order.
            let (one, other) = (nested(fields, 2), nested(fields, 2));
            let bytes = to_vec(&one);
            let decoded = DynamicMessage::decode(one.descriptor(), bytes.as_slice());
            bytes == to_vec(&other) && decoded.is_ok_and(|decoded| decoded == one)
        }
    }
}
