//! The schema of the file: one property for each option.

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value as Json, json};
use xds::folder::schema::DIALECT;

/// The JSON Schema of a file with options of the command.
pub(in crate::cli) fn schema(command: &Command) -> Json {
    let properties: Map<_, _> =
        super::options(command).map(|option| (super::key(option).to_owned(), property(option))).collect();
    json!({
        "$schema": DIALECT,
        "title": format!("Options of `xds {}`", command.get_name()),
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": false,
    })
}

fn property(option: &Arg) -> Json {
    let names: Vec<_> = option
        .get_possible_values()
        .iter()
        .flat_map(|value| value.get_name_and_aliases().map(String::from).collect::<Vec<_>>())
        .collect();
    // A number or a boolean is read as its text.
    let value = match names.is_empty() {
        true => json!({ "type": ["string", "number", "boolean"] }),
        false => json!({ "enum": names }),
    };
    let mut property = match option.get_action() {
        ArgAction::SetTrue => json!({ "type": "boolean" }),
        ArgAction::Append => json!({ "anyOf": [value, { "type": "array", "items": value, "minItems": 1 }] }),
        _ => value,
    };
    if let Some(help) = option.get_help() {
        property["description"] = help.to_string().into();
    }
    property
}
