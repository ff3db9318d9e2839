//! The JSON Schema of a policy.

use serde_json::{Value as Json, json};
use xds::folder::schema::DIALECT;

/// The form of the documents that [`parse`](super::document::parse) reads.
pub(in crate::cli) fn schema() -> Json {
    let text = json!({ "type": "string" });
    // `null` is a key without a value, as in a file that was cut there.
    let texts = json!({ "type": "array", "items": text });
    let grants = json!({ "type": ["array", "null"], "items": {
        "type": "object",
        "properties": { "types": texts, "names": texts },
        "additionalProperties": false,
    } });
    let optional = json!({ "type": ["string", "null"] });
    let flag = json!({ "type": "boolean" });
    let rule = json!({
        "type": "object",
        "properties": {
            "client": text,
            "parameters": { "type": ["object", "null"], "additionalProperties": text },
            "read": grants,
            "inspect": flag,
            "write": grants,
            "owner": optional,
            "operate": flag,
            "replicate": optional,
        },
        "additionalProperties": false,
        "required": ["client"],
    });
    json!({
        "$schema": DIALECT,
        "title": "A policy of xds",
        "type": "object",
        "properties": { "rules": { "type": "array", "items": rule, "minItems": 1 } },
        "additionalProperties": false,
        "required": ["rules"],
    })
}
