//! The schemas of messages, by the rules of proto3 JSON as a folder reads them.

use std::collections::BTreeMap;

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value as Json, json};
use xds_proto::service::SERVICES;

use super::super::convert::{ANY, FILTER_CONFIG, NULL_VALUE, WRAPPERS, is_special};
use super::super::descriptors::Descriptors;

/// Makes the definitions of all messages.
///
/// A null field counts as not given, so the definitions accept null. Items of lists and values of
/// maps have to be there: [`item`](Self::item) narrows the kind.
pub(super) struct Messages<'a> {
    descriptors: &'a Descriptors,
    definitions: Map<String, Json>,
}

impl<'a> Messages<'a> {
    pub(super) fn new(descriptors: &'a Descriptors) -> Self {
        Self { descriptors, definitions: Map::new() }
    }

    pub(super) fn builtin(&self, name: &str) -> MessageDescriptor {
        self.descriptors.builtin(name)
    }

    /// All definitions: the messages, the enumerations, and how a type URL leads to its message.
    pub(super) fn definitions(mut self) -> Map<String, Json> {
        let mut types = TypeTree::default();
        let messages: Vec<_> = self.descriptors.messages().collect();
        for message in &messages {
            types.insert(message.full_name());
            let schema = self.message(message);
            self.definitions.insert(message.full_name().to_owned(), schema);
        }
        self.definitions.insert(ANY.to_owned(), self.any());
        self.definitions.insert(TYPES.to_owned(), types.schema(""));
        self.definitions
    }

    /// A map with `@type` and the fields of that type. Editors suggest the types of `examples`.
    pub(super) fn packed(&self, examples: &[String]) -> Json {
        json!({
            "required": ["@type"],
            "properties": { "@type": { "type": "string", "examples": examples } },
            "allOf": [reference(TYPES)],
            "unevaluatedProperties": false,
        })
    }

    /// The type URLs that services of xDS serve.
    pub(super) fn served_types(&self) -> Vec<String> {
        let urls = SERVICES.iter().map(|service| service.type_url.to_owned());
        urls.filter(|url| self.descriptors.message(url).is_some()).collect()
    }

    /// The value of a field.
    pub(super) fn field(&mut self, field: &FieldDescriptor) -> Json {
        if field.is_map() {
            let kind = field.kind();
            let Some(entry) = kind.as_message() else { return json!({}) };
            let mut map = json!({
                "type": ["object", "null"],
                "additionalProperties": self.item(&entry.map_entry_value_field().kind()),
            });
            if let Some(pattern) = key_pattern(&entry.map_entry_key_field().kind()) {
                map["propertyNames"] = json!({ "pattern": pattern });
            }
            return map;
        }
        if field.is_list() {
            return json!({ "type": ["array", "null"], "items": self.item(&field.kind()) });
        }
        if field.full_name() == FILTER_CONFIG {
            return json!({ "anyOf": [self.value(&field.kind()), { "type": "object", "maxProperties": 0 }] });
        }
        self.value(&field.kind())
    }

    /// A value that is not null, unless null is a value of its kind.
    pub(super) fn item(&mut self, kind: &Kind) -> Json {
        let mut value = self.value(kind);
        if let Some(types) = types(kind) {
            value["type"] = types;
        }
        value
    }

    fn value(&mut self, kind: &Kind) -> Json {
        match kind {
            Kind::Message(message) => whole(message),
            Kind::Enum(enumeration) => {
                let name = enumeration.full_name();
                if !self.definitions.contains_key(name) {
                    self.definitions.insert(name.to_owned(), self::enumeration(enumeration));
                }
                reference(name)
            }
            Kind::String | Kind::Bool => json!({ "type": [types(kind), "null"] }),
            Kind::Bytes => json!({ "type": ["string", "null"], "pattern": "^[A-Za-z0-9+/_-]*={0,2}$" }),
            Kind::Double | Kind::Float => json!({ "type": ["number", "string", "null"], "pattern": NUMBER }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(json!(i32::MIN), Some(json!(i32::MAX))),
            Kind::Uint32 | Kind::Fixed32 => integer(json!(0), Some(json!(u32::MAX))),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(json!(i64::MIN), None),
            Kind::Uint64 | Kind::Fixed64 => integer(json!(0), None),
        }
    }

    fn message(&mut self, message: &MessageDescriptor) -> Json {
        let name = message.full_name();
        if WRAPPERS.contains(&name) {
            return message.get_field(1).map_or_else(|| json!({}), |field| self.value(&field.kind()));
        }
        match name {
            "google.protobuf.Duration" => {
                json!({ "type": ["string", "null"], "pattern": "^-?[0-9]+(\\.[0-9]+)?s$" })
            }
            "google.protobuf.Timestamp" | "google.protobuf.FieldMask" => {
                json!({ "type": ["string", "null"] })
            }
            "google.protobuf.Struct" => json!({ "type": ["object", "null"] }),
            "google.protobuf.ListValue" => json!({ "type": ["array", "null"] }),
            "google.protobuf.Value" => json!({}),
            _ => {
                let properties = properties(message.fields(), |field| self.field(field));
                json!({ "type": ["object", "null"], "properties": properties })
            }
        }
    }

    fn any(&self) -> Json {
        let extensions = self.descriptors.messages().filter(|message| {
            message.parent_message().is_none() && message.package_name().starts_with("envoy.extensions.")
        });
        let urls: Vec<_> =
            extensions.map(|message| format!("type.googleapis.com/{}", message.full_name())).collect();
        let mut any = self.packed(&urls);
        any["type"] = json!(["object", "null"]);
        any
    }
}

/// The names of messages, by their parts between the dots. An editor compares a type URL with one
/// level after another, instead of with thousands of names.
#[derive(Default)]
struct TypeTree<'a> {
    is_message: bool,
    below: BTreeMap<&'a str, Self>,
}

impl<'a> TypeTree<'a> {
    fn insert(&mut self, name: &'a str) {
        let mut at = self;
        for part in name.split('.') {
            at = at.below.entry(part).or_default();
        }
        at.is_message = true;
    }

    /// What a map with a type below this name has to be. `name` ends with a dot, unless it is empty.
    fn schema(&self, name: &str) -> Json {
        let (mut known, mut cases) = (Vec::new(), Vec::new());
        for (part, tree) in &self.below {
            let full = format!("{name}{part}");
            let mut case = |end: &str, then: Json| {
                known.push(format!("{part}{end}"));
                let pattern = format!("/{}{end}", full.replace('.', "\\."));
                cases.push(
                    json!({ "if": { "properties": { "@type": { "pattern": pattern } } }, "then": then }),
                );
            };
            if tree.is_message {
                case("$", fields_of(&full));
            }
            if !tree.below.is_empty() {
                case("\\.", tree.schema(&format!("{full}.")));
            }
        }
        let pattern = format!("/{}(?:{})", name.replace('.', "\\."), known.join("|"));
        json!({ "properties": { "@type": { "pattern": pattern } }, "allOf": cases })
    }
}

/// The fields beside `@type`.
fn fields_of(message: &str) -> Json {
    match is_special(message) {
        // Their JSON is no map of fields, so it is under `value`. Other fields are not read.
        true => {
            let properties = json!({ "value": reference(message) });
            json!({ "required": ["value"], "properties": properties, "additionalProperties": true })
        }
        false => reference(message),
    }
}

/// A message without other fields.
pub(super) fn whole(message: &MessageDescriptor) -> Json {
    let mut whole = reference(message.full_name());
    if !is_special(message.full_name()) {
        whole["unevaluatedProperties"] = false.into();
    }
    whole
}

/// The kinds of JSON values that are not null; `None` for any value.
fn types(kind: &Kind) -> Option<Json> {
    Some(match kind {
        Kind::String | Kind::Bytes => json!("string"),
        Kind::Bool => json!("boolean"),
        Kind::Double | Kind::Float => json!(["number", "string"]),
        Kind::Enum(enumeration) if enumeration.full_name() == NULL_VALUE => return None,
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Value" => return None,
            "google.protobuf.Duration" | "google.protobuf.Timestamp" | "google.protobuf.FieldMask" => {
                json!("string")
            }
            "google.protobuf.ListValue" => json!("array"),
            name if WRAPPERS.contains(&name) => return types(&message.get_field(1)?.kind()),
            _ => json!("object"),
        },
        _ => json!(["integer", "string"]),
    })
}

/// An enumeration. Envoy, and so a folder, ignores the case of names.
fn enumeration(enumeration: &EnumDescriptor) -> Json {
    let names: Vec<_> = enumeration.values().map(|value| value.name().to_owned()).collect();
    let any_case = |name: &String| -> String {
        let of = |c: char| match c.is_ascii_alphabetic() {
            true => format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()),
            false => c.to_string(),
        };
        name.chars().map(of).collect()
    };
    let pattern = format!("^(?:{})$", names.iter().map(any_case).collect::<Vec<_>>().join("|"));
    json!({ "anyOf": [
        { "enum": names },
        { "type": "string", "pattern": pattern },
        { "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX },
        { "type": "null" },
    ] })
}

fn integer(minimum: Json, maximum: Option<Json>) -> Json {
    let mut schema =
        json!({ "type": ["integer", "string", "null"], "minimum": minimum, "pattern": "^[+-]?[0-9]+$" });
    if let Some(maximum) = maximum {
        schema["maximum"] = maximum;
    }
    schema
}

/// The keys of a map; `None` for any.
fn key_pattern(kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::String => None,
        Kind::Bool => Some("^(?:true|false)$"),
        _ => Some("^[+-]?[0-9]+$"),
    }
}

/// A property for each of the two names of a field.
pub(super) fn properties(
    fields: impl Iterator<Item = FieldDescriptor>,
    mut schema: impl FnMut(&FieldDescriptor) -> Json,
) -> Map<String, Json> {
    let names = |field: FieldDescriptor| {
        let schema = schema(&field);
        [(field.json_name().to_owned(), schema.clone()), (field.name().to_owned(), schema)]
    };
    fields.flat_map(names).collect()
}

/// The same schema for a field that may be null.
pub(super) fn nullable(schema: &Json) -> Json {
    let mut nullable = schema.clone();
    nullable["type"] = json!([schema["type"], "null"]);
    nullable
}

/// Whether a map has this message as its `@type`.
pub(super) fn is_type(message: &str) -> Json {
    let pattern = format!("(?:^|/){}$", message.replace('.', "\\."));
    json!({ "required": ["@type"], "properties": { "@type": { "type": "string", "pattern": pattern } } })
}

pub(super) fn reference(definition: &str) -> Json {
    json!({ "$ref": format!("#/$defs/{definition}") })
}

/// The definition that leads from a type URL to its message.
const TYPES: &str = "the-types";

const NUMBER: &str = "^(?:NaN|-?Infinity|[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)$";
