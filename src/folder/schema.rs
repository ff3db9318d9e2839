//! JSON Schemas (draft 2020-12) for the files of a folder, which editors complete and check files
//! with.
//!
//! A schema knows the form of a document: its fields, the kinds of their values, the names of
//! enumerations and types, and what a wrapper may have. Which variants overlap, the text of `when`
//! and validation rules are left to a check of the folder.

use prost_reflect::Kind;
use serde_json::{Value as Json, json};

use super::descriptors::Descriptors;
use super::document::{RESOURCE_NAME, RESPONSE, WHEN, WRAPPER};
use super::wrapper::WrapperExtras;
use messages::{Messages, is_type, nullable, properties, reference, whole};

mod messages;

/// The schema of a document with resources, of the types of these descriptors.
///
/// With all types of Envoy it has 1.8 MB as compact JSON.
#[must_use]
pub fn document(descriptors: &Descriptors) -> Json {
    let mut messages = Messages::new(descriptors);
    let parts = [
        (RESPONSE_PART, response(&messages)),
        (RESOURCE_PART, resource(&messages)),
        (WRAPPER_PART, wrapper(&mut messages)),
        (WHEN_PART, when(&messages)),
        (DRAFT_PART, draft()),
    ];
    let is_bare_response = json!({ "required": ["resources"], "not": { "required": ["@type"] } });
    let mut definitions = messages.definitions();
    definitions.extend(parts.map(|(name, part)| (name.to_owned(), part)));
    json!({
        "$schema": DIALECT,
        "title": "A document of a folder of xds",
        "type": "object",
        "if": { "anyOf": [is_type(RESPONSE), is_bare_response] },
        "then": reference(RESPONSE_PART),
        "else": reference(RESOURCE_PART),
        "$defs": definitions,
    })
}

/// The schema of `domains.yaml`.
#[must_use]
pub fn domains() -> Json {
    let values = json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true });
    let flag = json!({ "type": "boolean" });
    let some = |field: &str| json!({ "required": [field], "properties": { field: { "const": true } } });
    let has_values = json!({ "required": ["values"], "properties": { "values": { "minItems": 1 } } });
    json!({
        "$schema": DIALECT,
        "title": "The values that clients have",
        "type": "object",
        "properties": { "@type": false },
        "additionalProperties": {
            "type": ["array", "object"],
            "if": { "type": "array" },
            "then": { "$ref": "#/$defs/values", "minItems": 1 },
            "else": {
                "properties": { "values": { "$ref": "#/$defs/values" }, "absent": flag, "other": flag },
                "additionalProperties": false,
                "anyOf": [some("absent"), some("other"), has_values],
            },
        },
        "$defs": { "values": values },
    })
}

/// Envoy's own file form.
fn response(messages: &Messages<'_>) -> Json {
    // A folder does not use the other fields of a response, so it does not read their values.
    let mut properties = properties(messages.builtin(RESPONSE).fields(), |_| json!({}));
    properties.insert("@type".into(), json!({}));
    properties
        .insert("resources".into(), nullable(&json!({ "type": "array", "items": reference(RESOURCE_PART) })));
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// A resource, or a wrapper around one.
fn resource(messages: &Messages<'_>) -> Json {
    let mut plain = messages.packed(&messages.served_types());
    plain["properties"][WHEN] = reference(WHEN_PART);
    json!({ "type": "object", "if": is_type(WRAPPER), "then": reference(WRAPPER_PART), "else": plain })
}

fn wrapper(messages: &mut Messages<'_>) -> Json {
    let message = messages.builtin(WRAPPER);
    let extras = message.fields().filter(|field| WrapperExtras::has(field.name()));
    let mut properties = properties(extras, |field| messages.field(field));
    let naming = messages.builtin(RESOURCE_NAME);
    let naming = messages.item(&Kind::Message(naming));
    // The version of a resource is a digest of its content, so any version is ignored.
    let own = [("@type", json!({})), ("version", json!({})), ("name", json!({ "type": "string" }))];
    properties.extend(own.map(|(name, value)| (name.to_owned(), value)));
    properties.insert("resource_name".into(), naming.clone());
    properties.insert("resourceName".into(), naming);
    properties.insert(WHEN.into(), reference(WHEN_PART));
    // A wrapper in a wrapper is a plain resource of that type.
    let mut inner = messages.packed(&messages.served_types());
    inner["type"] = "object".into();
    inner["properties"][WHEN] = reference(WHEN_PART);
    properties.insert("resource".into(), inner);
    json!({ "properties": properties, "additionalProperties": false, "required": ["resource"] })
}

/// W11: text, the draft form of TP2, or the message.
fn when(messages: &Messages<'_>) -> Json {
    let constraints = messages.builtin(CONSTRAINTS);
    json!({
        "type": ["string", "object"],
        "if": { "type": "object", "required": ["constraints"] },
        "then": reference(DRAFT_PART),
        "else": { "if": { "type": "object" }, "then": whole(&constraints) },
    })
}

/// W6: the draft form of constraints.
fn draft() -> Json {
    let text = json!({ "type": "string" });
    let match_type = json!({ "enum": ["AND", "OR", "UNSPECIFIED", "MATCH_TYPE_UNSPECIFIED", null] });
    let condition = json!({
        "type": "object",
        "properties": {
            "key": text,
            "value": nullable(&text),
            "exists": { "type": ["object", "null"], "maxProperties": 0 },
            "invert": { "type": ["boolean", "null"] },
        },
        "additionalProperties": false,
        "required": ["key"],
        "anyOf": [
            { "required": ["value"], "properties": { "value": text } },
            { "required": ["exists"], "properties": { "exists": { "type": "object" } } },
        ],
    });
    let conditions = nullable(&json!({ "type": "array", "items": condition }));
    let list = json!({
        "type": "object",
        "properties": { "constraints": conditions, "match_type": match_type, "matchType": match_type },
        "additionalProperties": false,
    });
    json!({
        "properties": { "constraints": nullable(&json!({ "type": "array", "items": list })) },
        "additionalProperties": false,
    })
}

/// The dialect of the schemas.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

const CONSTRAINTS: &str = "envoy.service.discovery.v3.DynamicParameterConstraints";

// No message has a name with a hyphen.
const RESPONSE_PART: &str = "a-response";
const RESOURCE_PART: &str = "a-resource";
const WRAPPER_PART: &str = "a-wrapper";
const WHEN_PART: &str = "a-when";
const DRAFT_PART: &str = "a-draft";

#[cfg(test)]
mod tests;
