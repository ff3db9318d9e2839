//! The node: the fields of `envoy.config.core.v3.Node` that the document has.

use prost_types::value::Kind;
use prost_types::{ListValue, NullValue, Struct};
use serde_json::{Map, Value};
use xds_proto::envoy::config::core::v3::{Locality, Node};

use super::BootstrapError;
use super::json::JsonValue;

/// P7: the client sets its user agent and its features, so they are not read.
pub(super) fn read(json: JsonValue<'_>) -> Result<Node, BootstrapError> {
    let node = json.object()?;
    let text = |key| Ok(node.text(key)?.unwrap_or_default().to_owned());
    Ok(Node {
        id: text("id")?,
        cluster: text("cluster")?,
        locality: node.get("locality").map(read_locality).transpose()?,
        metadata: node.get("metadata").map(read_metadata).transpose()?,
        ..Node::default()
    })
}

fn read_locality(json: JsonValue<'_>) -> Result<Locality, BootstrapError> {
    let locality = json.object()?;
    let text = |key| Ok(locality.text(key)?.unwrap_or_default().to_owned());
    Ok(Locality { region: text("region")?, zone: text("zone")?, sub_zone: text("sub_zone")? })
}

fn read_metadata(json: JsonValue<'_>) -> Result<Struct, BootstrapError> {
    Ok(proto_struct(json.object()?.fields))
}

fn proto_struct(fields: &Map<String, Value>) -> Struct {
    Struct { fields: fields.iter().map(|(key, value)| (key.clone(), proto_value(value))).collect() }
}

/// The recursion is not deeper than that of the JSON parser, which allows 128 levels.
fn proto_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => NULL,
        Value::Bool(value) => Kind::BoolValue(*value),
        // Numbers that do not fit into a double exist only if another crate enables a feature of
        // the parser. JSON encodes such doubles as null too.
        Value::Number(number) => number.as_f64().map_or(NULL, Kind::NumberValue),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(proto_value).collect() })
        }
        Value::Object(fields) => Kind::StructValue(proto_struct(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

const NULL: Kind = Kind::NullValue(NullValue::NullValue as i32);
