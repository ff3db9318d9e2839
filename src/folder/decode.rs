//! Shows encoded messages as JSON for people, also messages of unknown types.
//!
//! `prost-reflect` also writes messages as JSON, but refuses a message if an `Any` in it has an
//! unknown type. Here such an `Any` is shown as its bytes. `prost-reflect` still writes the
//! well-known types with difficult formats.

use std::collections::BTreeSet;

use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, Kind, MapKey, ReflectMessage, Value};
use serde_json::{Map, Value as Json, json};

use super::convert::{ANY, NULL_VALUE, is_special};
use super::descriptors::Descriptors;

/// A message as JSON, and the fields that JSON cannot show.
#[derive(Debug, Clone, PartialEq)]
pub struct Readable {
    /// An object with `@type` and the fields by their own names. A message of an unknown type, or
    /// one that cannot be decoded, has its bytes as base64 in `@value`.
    pub json: Json,
    /// Fields that the descriptors do not have, as `message: number`. The JSON does not have them.
    pub left_out: BTreeSet<String>,
}

impl Descriptors {
    /// A message as JSON for people. If [`left_out`](Readable::left_out) is empty and the JSON has
    /// no `@value`, a folder reads it back as the same message.
    #[must_use]
    pub fn readable(&self, type_url: &str, payload: &Bytes) -> Readable {
        let mut writer = JsonWriter { descriptors: self, left_out: BTreeSet::new() };
        let json = writer.packed(type_url, payload, 0);
        Readable { json, left_out: writer.left_out }
    }

    /// Whether the descriptors have the type.
    #[must_use]
    pub fn knows(&self, type_url: &str) -> bool {
        self.message(type_url).is_some()
    }
}

struct JsonWriter<'a> {
    descriptors: &'a Descriptors,
    left_out: BTreeSet<String>,
}

impl JsonWriter<'_> {
    /// `packed_in` is the number of `Any` messages around this one.
    fn packed(&mut self, type_url: &str, payload: &Bytes, packed_in: usize) -> Json {
        let descriptor = self.descriptors.message(type_url).filter(|_| packed_in < PACKED_LIMIT);
        let message = descriptor.and_then(|message| DynamicMessage::decode(message, payload.clone()).ok());
        let Some(message) = message else {
            return json!({ "@type": type_url, "@value": self.base64(payload.clone()) });
        };
        let mut object = match self.message(&message, packed_in) {
            Json::Object(fields) if !is_special(message.descriptor().full_name()) => fields,
            // Their JSON is no map of fields, so it stands under `value`.
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        object.insert("@type".to_owned(), type_url.into());
        Json::Object(object)
    }

    fn message(&mut self, message: &DynamicMessage, packed_in: usize) -> Json {
        let descriptor = message.descriptor();
        let name = descriptor.full_name();
        if name == ANY {
            return self.any(message, packed_in);
        }
        if is_special(name)
            && let Ok(json) = serde_json::to_value(message)
        {
            return json;
        }
        let unknown = message.unknown_fields().map(|field| format!("{name}: {}", field.number()));
        self.left_out.extend(unknown);
        let fields = message.fields().map(|(field, value)| {
            let json = match value {
                Value::Map(entries) => {
                    let kind = field.kind();
                    let kind = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
                    let mut value = |value| self.value(kind.as_ref(), value, packed_in);
                    let entries = entries.iter().map(|(key, inner)| (map_key(key), value(inner)));
                    Json::Object(entries.collect())
                }
                value => self.value(Some(&field.kind()), value, packed_in),
            };
            (field.name().to_owned(), json)
        });
        Json::Object(fields.collect())
    }

    fn any(&mut self, any: &DynamicMessage, packed_in: usize) -> Json {
        let (type_url, payload) = (any.get_field_by_number(1), any.get_field_by_number(2));
        let type_url = type_url.as_deref().and_then(Value::as_str).unwrap_or_default();
        let payload = payload.as_deref().and_then(Value::as_bytes).cloned().unwrap_or_default();
        if type_url.is_empty() && payload.is_empty() {
            return json!({});
        }
        self.packed(type_url, &payload, packed_in + 1)
    }

    fn value(&mut self, kind: Option<&Kind>, value: &Value, packed_in: usize) -> Json {
        match value {
            Value::Bool(value) => json!(value),
            Value::I32(value) => json!(value),
            Value::U32(value) => json!(value),
            // As strings, because doubles cannot represent all of them.
            Value::I64(value) => json!(value.to_string()),
            Value::U64(value) => json!(value.to_string()),
            Value::F32(value) => float(f64::from(*value)),
            Value::F64(value) => float(*value),
            Value::String(text) => json!(text),
            Value::Bytes(bytes) => self.base64(bytes.clone()),
            Value::EnumNumber(number) => match kind.and_then(Kind::as_enum) {
                Some(of) if of.full_name() == NULL_VALUE => Json::Null,
                of => match of.and_then(|of| of.get_value(*number)) {
                    Some(value) => json!(value.name()),
                    None => json!(number),
                },
            },
            Value::Message(message) => self.message(message, packed_in),
            Value::List(items) => items.iter().map(|item| self.value(kind, item, packed_in)).collect(),
            Value::Map(entries) => {
                let entries =
                    entries.iter().map(|(key, value)| (map_key(key), self.value(None, value, packed_in)));
                Json::Object(entries.collect())
            }
        }
    }

    fn base64(&self, bytes: Bytes) -> Json {
        let mut wrapper = DynamicMessage::new(self.descriptors.builtin("google.protobuf.BytesValue"));
        wrapper.set_field_by_number(1, Value::Bytes(bytes));
        serde_json::to_value(&wrapper).expect("BytesValue has a JSON form")
    }
}

fn float(value: f64) -> Json {
    if value.is_nan() {
        json!("NaN")
    } else if value.is_infinite() {
        json!(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        json!(value)
    }
}

fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// Real resources have up to about five levels of typed configuration. Reading each level uses
/// stack.
pub(super) const PACKED_LIMIT: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::contents::Contents;
    use super::*;

    const LISTENER: &str = "\
\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener
name: web
address: { socket_address: { address: 0.0.0.0, port_value: 80, protocol: TCP } }
listener_filters_timeout: 1.5s
per_connection_buffer_limit_bytes: 7
metadata: { filter_metadata: { team: { owner: [shop, 1, null] } } }
filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: web
      rds: { route_config_name: r, config_source: { ads: {} } }
      http_filters:
      - name: router
        typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
";

    #[test]
    fn it_is_the_json_of_prost_reflect_where_that_can_write_it() {
        let contents = Contents::of_texts(&[("a.yaml", LISTENER)]);
        let listener = "type.googleapis.com/envoy.config.listener.v3.Listener";
        let (_, variants) = contents.names(listener).next().unwrap();
        let (_, located) = variants.iter().next().unwrap();
        let readable = Descriptors::envoy().readable(listener, located.resource.payload());
        let mut expected = contents.payload_json(&located.resource).unwrap();
        expected["@type"] = listener.into();
        assert_eq!(readable, Readable { json: expected, left_out: BTreeSet::new() });
    }

    #[test]
    fn what_is_not_known_is_bytes_at_any_depth_and_unknown_fields_are_told() {
        let descriptors = Descriptors::envoy();
        // google.protobuf.Any { type_url: "x/y", value: 1 } in field 3 of a TypedExtensionConfig
        // named a, and a field 99.
        let any = b"\x0a\x03x/y\x12\x01\x01";
        let payload = [b"\x0a\x01a\x12\x08".as_slice(), any, b"\x98\x06\x01"].concat();
        let of = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
        let readable = descriptors.readable(of, &payload.into());
        let config = json!({ "@type": "x/y", "@value": "AQ==" });
        assert_eq!(readable.json, json!({ "@type": of, "name": "a", "typed_config": config }));
        assert_eq!(Vec::from_iter(readable.left_out), ["envoy.config.core.v3.TypedExtensionConfig: 99"]);

        let unknown = descriptors.readable("example.com/acme.Thing", &Bytes::from_static(b"\x0a\x01a"));
        assert_eq!(unknown.json, json!({ "@type": "example.com/acme.Thing", "@value": "CgFh" }));
        let broken = descriptors.readable(of, &Bytes::from_static(b"\xff"));
        assert_eq!(broken.json, json!({ "@type": of, "@value": "/w==" }));
    }
}
