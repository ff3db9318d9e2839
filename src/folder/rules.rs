//! The validation rules that messages of Envoy carry: `validate.rules` of protoc-gen-validate,
//! which each Envoy applies to what it is sent.
//!
//! The one library for this, prost-reflect-validate, needs `protoc` where it is built, so
//! `cargo install xds` would fail. The rules are read from the descriptors and
//! interpreted. Not interpreted, as no message of Envoy has them: `email`, `hostname`, `address`,
//! `ip`, `ipv4`, `ipv6`, `uri`, `uri_ref`, `uuid`, `no_sparse`, `lt_now`, `gt_now` and `within`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, OneofDescriptor,
    ReflectMessage, Value,
};
use regex::Regex;

use super::convert::WRAPPERS;

/// The rules of one message; those of the messages in its fields are their own.
#[derive(Debug, Default)]
pub(super) struct MessageRules {
    fields: Vec<FieldRules>,
    /// Of each of these, one field has to be set.
    required_oneofs: Vec<OneofDescriptor>,
}

#[derive(Debug)]
struct FieldRules {
    field: FieldDescriptor,
    rules: ValueRules,
}

/// The rules of a value.
#[derive(Debug, Default)]
struct ValueRules {
    /// A message field has to be set.
    is_required: bool,
    /// The rules of the message in the field do not apply.
    is_skipped: bool,
    /// The kind of value, such as `uint32`, with its rules.
    of_kind: Option<(String, DynamicMessage)>,
    pattern: Option<Regex>,
    enumeration: Option<EnumDescriptor>,
    items: Option<Box<Self>>,
    keys: Option<Box<Self>>,
    values: Option<Box<Self>>,
}

/// One rule that a message breaks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Violation {
    pub(super) at: Target,
    /// The rule, such as `repeated.min_items`.
    pub(super) rule: String,
    /// What the value must be.
    pub(super) reason: String,
}

/// The part of a message that breaks a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    Oneof,
    Field(FieldDescriptor),
    Item(FieldDescriptor, usize),
    Key(FieldDescriptor, String),
}

impl Target {
    pub(super) fn field(&self) -> Option<&FieldDescriptor> {
        match self {
            Self::Oneof => None,
            Self::Field(field) | Self::Item(field, _) | Self::Key(field, _) => Some(field),
        }
    }
}

impl MessageRules {
    /// Reads the rules of a message from its descriptor.
    pub(super) fn of(message: &MessageDescriptor) -> Self {
        let is_disabled = |option: &str| extension(&message.options(), option).is_some_and(|it| is_true(&it));
        if is_disabled("validate.disabled") || is_disabled("validate.ignored") {
            return Self::default();
        }
        let rules_of = |field: FieldDescriptor| {
            let Value::Message(rules) = extension(&field.options(), "validate.rules")? else { return None };
            let rules = ValueRules::of(&rules, &field.kind());
            Some(FieldRules { field, rules })
        };
        let is_required = |oneof: &OneofDescriptor| {
            extension(&oneof.options(), "validate.required").is_some_and(|value| is_true(&value))
        };
        Self {
            fields: message.fields().filter_map(rules_of).collect(),
            required_oneofs: message.oneofs().filter(is_required).collect(),
        }
    }

    /// Whether the rules of the message in this field are not for it.
    pub(super) fn skips(&self, field: &FieldDescriptor) -> bool {
        // gRPC clients read it, and no Envoy that serves a port: most of its rules are not theirs.
        field.full_name() == "envoy.config.listener.v3.Listener.api_listener"
            || self.fields.iter().any(|it| it.rules.is_skipped && it.field == *field)
    }

    /// All rules that the message breaks.
    pub(super) fn check(&self, message: &DynamicMessage) -> Vec<Violation> {
        let mut violations = Vec::new();
        for oneof in &self.required_oneofs {
            if !oneof.fields().any(|field| message.has_field(&field)) {
                let names: Vec<_> = oneof.fields().map(|field| format!("`{}`", field.name())).collect();
                violations.push(Violation {
                    at: Target::Oneof,
                    rule: "oneof.required".to_owned(),
                    reason: format!("one of {} must be set", names.join(", ")),
                });
            }
        }
        for FieldRules { field, rules } in &self.fields {
            // In a oneof it is the oneof that can be required.
            if rules.is_required && field.containing_oneof().is_none() && !message.has_field(field) {
                let (rule, reason) = ("message.required".to_owned(), "must be set".to_owned());
                violations.push(Violation { at: Target::Field(field.clone()), rule, reason });
            }
            if !field.supports_presence() || message.has_field(field) {
                rules.check(&message.get_field(field), &Target::Field(field.clone()), &mut violations);
            }
        }
        violations
    }
}

impl ValueRules {
    /// Reads a `validate.FieldRules` for values of this kind.
    fn of(rules: &DynamicMessage, of_values: &Kind) -> Self {
        let mut result = Self { enumeration: of_values.as_enum().cloned(), ..Self::default() };
        let entry = of_values.as_message().filter(|message| message.is_map_entry());
        for (kind, value) in rules.fields() {
            let Some(of_kind) = value.as_message() else { continue };
            let flag = |name: &str| of_kind.get_field_by_name(name).is_some_and(|value| is_true(&value));
            result.is_required |= flag("required");
            if kind.name() == "message" {
                result.is_skipped = flag("skip");
                continue;
            }
            let nested = |name: &str| {
                let field = of_kind.descriptor().get_field_by_name(name)?;
                let nested = of_kind.has_field(&field).then(|| of_kind.get_field(&field))?;
                let of_values = match (entry, name) {
                    (Some(entry), "keys") => entry.map_entry_key_field().kind(),
                    (Some(entry), _) => entry.map_entry_value_field().kind(),
                    (None, _) => of_values.clone(),
                };
                Some(Box::new(Self::of(nested.as_message()?, &of_values)))
            };
            (result.items, result.keys, result.values) = (nested("items"), nested("keys"), nested("values"));
            result.pattern = regex(of_kind);
            result.of_kind = Some((kind.name().to_owned(), of_kind.clone()));
        }
        result
    }

    fn check(&self, value: &Value, at: &Target, violations: &mut Vec<Violation>) {
        let Some((kind, rules)) = &self.of_kind else { return };
        let value = unwrapped(value);
        let ignores_empty = rules.get_field_by_name("ignore_empty").is_some_and(|value| is_true(&value));
        if ignores_empty && is_empty(&value) {
            return;
        }
        let mut broken = |rule: &str, reason: String| {
            violations.push(Violation { at: at.clone(), rule: format!("{kind}.{rule}"), reason });
        };
        if let Some((rule, reason)) = out_of_range(rules, &value) {
            broken(&rule, reason);
        }
        for (rule, limit) in rules.fields() {
            if let Some(reason) = self.broken(rule.name(), limit, &value) {
                broken(rule.name(), reason);
            }
        }
        match (&*value, at) {
            (Value::List(items), Target::Field(field)) => {
                let Some(rules) = &self.items else { return };
                for (index, item) in items.iter().enumerate() {
                    rules.check(item, &Target::Item(field.clone(), index), violations);
                }
            }
            (Value::Map(entries), Target::Field(field)) => {
                for (key, value) in entries {
                    let at = Target::Key(field.clone(), key_text(key));
                    self.keys.iter().for_each(|rules| rules.check(&key.clone().into(), &at, violations));
                    self.values.iter().for_each(|rules| rules.check(value, &at, violations));
                }
            }
            _ => {}
        }
    }

    /// Why a value breaks one rule, if it does. Ranges are rules of two limits and not here.
    fn broken(&self, rule: &str, limit: &Value, value: &Value) -> Option<String> {
        let number = || limit.as_u64().unwrap_or_default();
        let text = limit.as_str().unwrap_or_default();
        let is_among =
            |limit: &Value| limit.as_list().is_some_and(|all| all.iter().any(|it| same(it, value)));
        let count = |unit: &str| format!("{} {unit}{}", number(), if number() == 1 { "" } else { "s" });
        let at_least = |unit: &str| format!("must have at least {}", count(unit));
        let at_most = |unit: &str| format!("must have at most {}", count(unit));
        let exactly = |unit: &str| format!("must have {}", count(unit));
        let (is_broken, reason) = match rule {
            "const" => (!same(limit, value), format!("must be {}", Shown(limit))),
            "in" => (!is_among(limit), format!("must be one of {}", Shown(limit))),
            "not_in" => (is_among(limit), format!("must be none of {}", Shown(limit))),
            "min_len" => (length(value) < number(), at_least(unit_of(value))),
            "max_len" => (length(value) > number(), at_most(unit_of(value))),
            "len" => (length(value) != number(), exactly(unit_of(value))),
            "min_bytes" => ((as_bytes(value).len() as u64) < number(), at_least("byte")),
            "max_bytes" => (as_bytes(value).len() as u64 > number(), at_most("byte")),
            "len_bytes" => (as_bytes(value).len() as u64 != number(), exactly("byte")),
            "prefix" => {
                (!as_bytes(value).starts_with(as_bytes(limit)), format!("must begin with {}", Shown(limit)))
            }
            "suffix" => {
                (!as_bytes(value).ends_with(as_bytes(limit)), format!("must end with {}", Shown(limit)))
            }
            "contains" => (!contains(value, limit), format!("must contain {}", Shown(limit))),
            "not_contains" => (contains(value, limit), format!("must not contain {}", Shown(limit))),
            "pattern" | "well_known_regex" => {
                let pattern = self.pattern.as_ref()?;
                let reason = match rule {
                    "pattern" => format!("must match {text:?}"),
                    _ => "has a character that a header cannot have".to_owned(),
                };
                (value.as_str().is_some_and(|value| !pattern.is_match(value)), reason)
            }
            "defined_only" => {
                let (enumeration, number) = (self.enumeration.as_ref()?, value.as_enum_number()?);
                let is_defined = enumeration.get_value(number).is_some();
                (is_true(limit) && !is_defined, format!("must be a value of {}", enumeration.full_name()))
            }
            "min_items" => (length(value) < number(), at_least("item")),
            "max_items" => (length(value) > number(), at_most("item")),
            "min_pairs" => (length(value) < number(), at_least("key")),
            "max_pairs" => (length(value) > number(), at_most("key")),
            "unique" => (is_true(limit) && has_repeated(value), "must not have equal items".to_owned()),
            _ => return None,
        };
        is_broken.then_some(reason)
    }
}

/// An extension among the options of a field, oneof or message.
fn extension(options: &DynamicMessage, name: &str) -> Option<Value> {
    let mut extensions = options.extensions();
    extensions.find(|(extension, _)| extension.full_name() == name).map(|(_, value)| value.clone())
}

/// The pattern of rules for texts, also one that only has a name.
fn regex(rules: &DynamicMessage) -> Option<Regex> {
    let given = |name: &str| {
        let field = rules.descriptor().get_field_by_name(name)?;
        rules.has_field(&field).then(|| rules.get_field(&field).into_owned())
    };
    if let Some(pattern) = given("pattern") {
        return Regex::new(pattern.as_str()?).ok();
    }
    let is_strict = given("strict").is_none_or(|value| is_true(&value));
    let pattern = match (given("well_known_regex")?.as_enum_number()?, is_strict) {
        (HTTP_HEADER_NAME, true) => "^:?[0-9a-zA-Z!#$%&'*+,.^_|~`-]+$",
        (HTTP_HEADER_VALUE, true) => r"^[^\x00-\x08\x0A-\x1F\x7F]*$",
        (HTTP_HEADER_NAME | HTTP_HEADER_VALUE, false) => r"^[^\x00\x0A\x0D]*$",
        _ => return None,
    };
    Regex::new(pattern).ok()
}

/// The value in a wrapper such as `google.protobuf.UInt32Value`; any other value as it is.
fn unwrapped(value: &Value) -> Cow<'_, Value> {
    match value.as_message().filter(|message| WRAPPERS.contains(&message.descriptor().full_name())) {
        Some(wrapper) => wrapper.get_field_by_number(1).unwrap_or(Cow::Borrowed(value)),
        None => Cow::Borrowed(value),
    }
}

/// The limits among `gt`, `gte`, `lt` and `lte` that a value is outside of, and why. A lower limit
/// above the upper one excludes the values between them.
fn out_of_range(rules: &DynamicMessage, value: &Value) -> Option<(String, String)> {
    let limit = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            let field = rules.descriptor().get_field_by_name(name)?;
            rules.has_field(&field).then(|| (name, rules.get_field(&field).into_owned()))
        })
    };
    let holds = |(name, limit): &(&str, Value)| {
        let order = order(value, limit);
        match *name {
            "gt" => order == Some(Ordering::Greater),
            "gte" => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            "lt" => order == Some(Ordering::Less),
            _ => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        }
    };
    let words = |(name, limit): &(&str, Value)| {
        let than = match *name {
            "gt" => "greater than",
            "gte" => "at least",
            "lt" => "less than",
            _ => "at most",
        };
        format!("{than} {}", Shown(limit))
    };
    match (limit(["gt", "gte"]), limit(["lt", "lte"])) {
        (None, None) => None,
        (Some(one), None) | (None, Some(one)) => {
            (!holds(&one)).then(|| (one.0.to_owned(), format!("must be {}", words(&one))))
        }
        (Some(low), Some(high)) => {
            let is_inside = order(&low.1, &high.1) == Some(Ordering::Less);
            let (is_valid, and) = match is_inside {
                true => (holds(&low) && holds(&high), "and"),
                false => (holds(&low) || holds(&high), "or"),
            };
            let reason = || format!("must be {} {and} {}", words(&low), words(&high));
            (!is_valid).then(|| (format!("{}, {}", low.0, high.0), reason()))
        }
    }
}

/// The order of two numbers, durations or times; none for what has no order.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::I32(a) | Value::EnumNumber(a), Value::I32(b) | Value::EnumNumber(b)) => Some(a.cmp(b)),
        (Value::I64(a), Value::I64(b)) => Some(a.cmp(b)),
        (Value::U32(a), Value::U32(b)) => Some(a.cmp(b)),
        (Value::U64(a), Value::U64(b)) => Some(a.cmp(b)),
        (Value::F32(a), Value::F32(b)) => a.partial_cmp(b),
        (Value::F64(a), Value::F64(b)) => a.partial_cmp(b),
        (Value::Message(a), Value::Message(b)) => {
            let time = |of: &DynamicMessage| {
                let (seconds, nanos) = (of.get_field_by_name("seconds")?, of.get_field_by_name("nanos")?);
                Some((seconds.as_i64()?, nanos.as_i32()?))
            };
            Some(time(a)?.cmp(&time(b)?))
        }
        _ => None,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || order(a, b) == Some(Ordering::Equal)
}

fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::EnumNumber(0) | Value::I32(0) | Value::I64(0) | Value::U32(0) | Value::U64(0) => true,
        Value::F32(value) => *value == 0.0,
        Value::F64(value) => *value == 0.0,
        _ => false,
    }
}

/// Characters of a text, else bytes, items or entries.
fn length(value: &Value) -> u64 {
    let length = match value {
        Value::String(text) => text.chars().count(),
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        other => as_bytes(other).len(),
    };
    length as u64
}

fn unit_of(value: &Value) -> &'static str {
    if matches!(value, Value::Bytes(_)) { "byte" } else { "character" }
}

fn as_bytes(value: &Value) -> &[u8] {
    match value {
        Value::String(text) => text.as_bytes(),
        Value::Bytes(bytes) => bytes,
        _ => &[],
    }
}

fn contains(value: &Value, part: &Value) -> bool {
    let part = as_bytes(part);
    part.is_empty() || as_bytes(value).windows(part.len()).any(|window| window == part)
}

fn has_repeated(value: &Value) -> bool {
    let items = value.as_list().unwrap_or_default();
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().any(|item| !seen.insert(item.to_string()))
}

pub(super) fn key_text(key: &MapKey) -> String {
    Value::from(key.clone()).as_str().map_or_else(|| Value::from(key.clone()).to_string(), str::to_owned)
}

/// A value as people write it in a file.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // A duration is text in JSON.
            Value::Message(message) => match serde_json::to_value(message) {
                Ok(serde_json::Value::String(text)) => f.write_str(&text),
                _ => message.fmt(f),
            },
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if index == 0 { "" } else { ", " }, Self(item))?;
                }
                Ok(())
            }
            other => other.fmt(f),
        }
    }
}

/// Numbers of `validate.KnownRegex`.
const HTTP_HEADER_NAME: i32 = 1;
const HTTP_HEADER_VALUE: i32 = 2;

#[cfg(test)]
mod tests {
    use xds_core::PAYLOAD_LIMIT_BYTES;

    use super::super::descriptors::Descriptors;
    use super::super::document::read;
    use super::super::format::FileFormat;

    fn errors(document: &str) -> Vec<String> {
        let text = format!("\"@type\": type.googleapis.com/{document}");
        let read =
            read("a.yaml", FileFormat::Yaml, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES);
        read.err().iter().flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn each_kind_of_rule_is_told_with_its_place_field_and_name() {
        let cases = [
            (
                "envoy.config.route.v3.RouteConfiguration\nname: r\nvirtual_hosts: [{ name: v, domains: [] }]",
                "a.yaml:3:37: envoy.config.route.v3.RouteConfiguration \"r\": virtual_hosts[0].domains: \
                 must have at least 1 item (rule repeated.min_items)",
            ),
            (
                "envoy.config.cluster.v3.Cluster\nname: c\nconnect_timeout: -1s",
                "a.yaml:3:18: envoy.config.cluster.v3.Cluster \"c\": connect_timeout: \
                 must be greater than 0s (rule duration.gt)",
            ),
        ];
        for (document, expected) in cases {
            assert_eq!(errors(document), [expected]);
        }
    }

    #[test]
    fn rules_of_what_is_not_set_do_not_count() {
        let valid = [
            "envoy.config.cluster.v3.Cluster\nname: c",
            "envoy.config.route.v3.RouteConfiguration\nname: r\nvirtual_hosts:\n- name: v\n  domains: ['*']\n  \
             routes:\n  - { match: { prefix: / }, route: { cluster: c } }",
        ];
        for document in valid {
            assert_eq!(errors(document), [""; 0], "{document}");
        }
    }
}
