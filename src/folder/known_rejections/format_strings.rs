//! Formats of access logs and of bodies.

use prost_reflect::{DynamicMessage, Value};

use super::super::command_operators::{self, Commands};
use super::super::rules::Violation;
use super::{Found, messages, sub, text};

/// Checks a `SubstitutionFormatString`.
pub(super) fn substitution(message: &DynamicMessage) -> Vec<Violation> {
    let has_formatters = !messages(message, "formatters").is_empty();
    let commands = if has_formatters { Commands::Any } else { Commands::HttpOrGeneric };
    let mut found = Found::new(message);
    let source = sub(message, "text_format_source").map(|source| text(&source, "inline_string"));
    let mut of_json = Vec::new();
    if let Some(json) = sub(message, "json_format") {
        add_texts(&Value::Message(json), &mut of_json);
    }
    add_flaws(&mut found, "text_format", &[text(message, "text_format")], commands);
    add_flaws(&mut found, "text_format_source", source.as_slice(), commands);
    add_flaws(&mut found, "json_format", &of_json, commands);
    found.violations
}

pub(super) fn file_access_log(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    add_flaws(&mut found, "format", &[text(message, "format")], Commands::HttpOrGeneric);
    found.violations
}

fn add_flaws(found: &mut Found<'_>, field: &str, formats: &[String], commands: Commands) {
    for flaw in formats.iter().filter_map(|format| command_operators::check(format, commands).err()) {
        found.add(true, field, flaw.to_string());
    }
}

/// Adds the texts in a `google.protobuf.Struct`, without its keys, which have no commands.
fn add_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::Message(message) => {
            for (field, value) in message.fields() {
                match value.as_str() {
                    Some(text) if field.name() == "string_value" => texts.push(text.to_owned()),
                    _ => add_texts(value, texts),
                }
            }
        }
        Value::List(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Map(entries) => entries.values().for_each(|value| add_texts(value, texts)),
        _ => {}
    }
}
