//! Converts the tree of a document to a message, by the rules of proto3 JSON.
//!
//! `prost-reflect` can read messages through serde, but it stops at the first error and does not
//! know its place. This converter finds all errors of a resource, each with its line and field. It
//! still uses `prost-reflect` for the well-known types with difficult formats (durations,
//! timestamps, field masks, structs).

use std::collections::HashMap;
use std::fmt::Write;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    Value,
};

use super::descriptors::Descriptors;
use super::encode;
use super::error::{Position, Problem};
use super::rules::{Target, Violation};
use super::tree::{Entry, Node, Tree};
use super::validate;

/// One error within a resource.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Position,
    pub(super) field: Box<str>,
    pub(super) problem: Problem,
}

/// A payload with its type, as in a `google.protobuf.Any`.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    pub(super) type_url: &'a str,
    pub(super) payload: Vec<u8>,
}

/// Reads a map with `@type` as the message of that type, whose validation rules must hold.
///
/// # Errors
/// All mistakes, in the order of the document.
pub(super) fn any<'a>(node: &'a Node, descriptors: &'a Descriptors) -> Result<Packed<'a>, Vec<Fault>> {
    let mut converter = Converter { checks_rules: true, ..Converter::new(descriptors) };
    let packed = converter.any(node);
    converter.result(packed)
}

/// Reads a value as the given message.
///
/// # Errors
/// All mistakes, in the order of the document.
pub(super) fn message(
    message: &MessageDescriptor,
    node: &Node,
    descriptors: &Descriptors,
) -> Result<DynamicMessage, Vec<Fault>> {
    let mut converter = Converter::new(descriptors);
    let message = converter.message(message, node);
    converter.result(message)
}

/// Keeps the path from the resource to the current value. A method that returns `None` has added a
/// fault.
struct Converter<'a> {
    descriptors: &'a Descriptors,
    path: Vec<PathStep<'a>>,
    faults: Vec<Fault>,
    checks_rules: bool,
    /// Broken validation rules. They keep no value from being read, so those of the messages around
    /// it are checked, too.
    broken_rules: Vec<Fault>,
}

/// A step of the path to a field.
#[derive(Clone, Copy)]
pub(super) enum PathStep<'a> {
    Field(&'a str),
    Item(usize),
    Key(&'a str),
}

impl<'a> Converter<'a> {
    fn new(descriptors: &'a Descriptors) -> Self {
        Self {
            descriptors,
            path: Vec::new(),
            faults: Vec::new(),
            checks_rules: false,
            broken_rules: Vec::new(),
        }
    }

    fn result<T>(self, read: Option<T>) -> Result<T, Vec<Fault>> {
        let mut faults = self.faults;
        faults.extend(self.broken_rules);
        faults.sort_by_key(|fault| fault.at);
        match read {
            Some(read) if faults.is_empty() => Ok(read),
            _ => Err(faults),
        }
    }

    fn any(&mut self, node: &'a Node) -> Option<Packed<'a>> {
        let Some(entries) = node.entries() else {
            return self.wrong(node, "a map with `@type`");
        };
        let Some(type_node) = node.get("@type") else {
            let has_resource = node.get("resource").is_some();
            let problem = if has_resource { Problem::MissingWrapperType } else { Problem::MissingType };
            return self.fault(node.at, problem);
        };
        let Some(type_url) = type_node.text() else {
            return self.wrong(type_node, "a type URL");
        };
        let Some(message) = self.descriptors.message(type_url) else {
            let nearest = nearest_type(type_url, self.descriptors);
            return self.fault(type_node.at, Problem::UnknownType { type_url: type_url.into(), nearest });
        };
        let message = if is_special(message.full_name()) {
            // The JSON of these types is not a map of fields, so it is in the field `value`.
            let Some(value) = node.get("value") else {
                return self.wrong(node, "a map with `@type` and `value`");
            };
            self.message(&message, value)?
        } else {
            self.fields(&message, node.at, entries, true)?
        };
        Some(Packed { type_url, payload: encode::to_vec(&message) })
    }

    fn message(&mut self, message: &MessageDescriptor, node: &'a Node) -> Option<DynamicMessage> {
        let name = message.full_name();
        if name == ANY {
            let packed = self.any(node)?;
            let mut any = DynamicMessage::new(message.clone());
            any.set_field_by_number(1, Value::String(packed.type_url.into()));
            any.set_field_by_number(2, Value::Bytes(packed.payload.into()));
            return Some(any);
        }
        if WRAPPERS.contains(&name) {
            let field = message.get_field(1)?;
            let value = self.value(&field.kind(), node)?;
            let mut wrapper = DynamicMessage::new(message.clone());
            wrapper.set_field(&field, value);
            return Some(wrapper);
        }
        if is_special(name) {
            return DynamicMessage::deserialize(message.clone(), node.to_json())
                .map_err(|error| self.invalid(node, invalid_special(&error.to_string())))
                .ok();
        }
        let Some(entries) = node.entries() else {
            return self.wrong(node, "a map");
        };
        self.fields(message, node.at, entries, false)
    }

    fn fields(
        &mut self,
        message: &MessageDescriptor,
        at: Position,
        entries: &'a [Entry],
        is_any: bool,
    ) -> Option<DynamicMessage> {
        let mut result = DynamicMessage::new(message.clone());
        let mut given: Vec<u32> = Vec::with_capacity(entries.len());
        let faults = self.faults.len();
        for entry in entries {
            if is_any && entry.key == "@type" {
                continue;
            }
            self.path.push(PathStep::Field(&entry.key));
            self.field(message, entry, &mut given, &mut result);
            self.path.pop();
        }
        if faults != self.faults.len() {
            return None;
        }
        if self.checks_rules {
            self.check_rules(&result, at, entries);
        }
        Some(result)
    }

    fn field(
        &mut self,
        message: &MessageDescriptor,
        entry: &'a Entry,
        given: &mut Vec<u32>,
        result: &mut DynamicMessage,
    ) -> Option<()> {
        let key = entry.key.as_str();
        let Some(field) = message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key))
        else {
            self.path.pop();
            let nearest = nearest_field(key, message);
            let message = message.full_name().to_owned();
            self.fault::<()>(entry.at, Problem::UnknownField { field: key.into(), message, nearest });
            self.path.push(PathStep::Field(key));
            return None;
        };
        if matches!(entry.value.tree, Tree::Null) && !takes_null(&field) {
            return Some(());
        }
        if given.contains(&field.number()) {
            return self.fault(entry.at, Problem::GivenTwice);
        }
        if let Some(oneof) = field.containing_oneof()
            && let Some(first) = oneof.fields().find(|other| given.contains(&other.number()))
        {
            let (oneof, first) = (oneof.name().into(), first.name().into());
            return self.fault(entry.at, Problem::OneofConflict { oneof, first });
        }
        given.push(field.number());
        let broken_rules = self.broken_rules.len();
        let value = if field.is_map() {
            self.map(&field, &entry.value)?
        } else if field.is_list() {
            self.list(&field.kind(), &entry.value)?
        } else if field.full_name() == FILTER_CONFIG && entry.value.entries().is_some_and(<[_]>::is_empty) {
            // An empty `Any`: the route changes whether a filter is on, not its configuration.
            Value::Message(DynamicMessage::new(field.kind().as_message()?.clone()))
        } else {
            self.value(&field.kind(), &entry.value)?
        };
        result.set_field(&field, value);
        if broken_rules != self.broken_rules.len() && self.descriptors.rules(message).skips(&field) {
            self.broken_rules.truncate(broken_rules);
        }
        Some(())
    }

    /// Notes the validation rules that a message breaks, each where the value is, or where the
    /// message begins if there is no value.
    fn check_rules(&mut self, message: &DynamicMessage, message_at: Position, entries: &[Entry]) {
        for violation in validate::message(message, self.path.is_empty(), self.descriptors) {
            let mut path = self.field_path();
            append_target(&violation.at, &mut path);
            let at = violation.at.field().and_then(|field| {
                let is_it = |entry: &&Entry| entry.key == field.name() || entry.key == field.json_name();
                let value = &entries.iter().find(is_it)?.value;
                Some(node_of(&violation.at, value).unwrap_or(value).at)
            });
            let Violation { rule, reason, .. } = violation;
            let problem = Problem::Rule { rule, reason };
            self.broken_rules.push(Fault { at: at.unwrap_or(message_at), field: path.into(), problem });
        }
    }

    fn list(&mut self, kind: &Kind, node: &'a Node) -> Option<Value> {
        let Tree::List(items) = &node.tree else {
            return self.wrong(node, "a list");
        };
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            self.path.push(PathStep::Item(index));
            values.extend(self.value(kind, item));
            self.path.pop();
        }
        Some(Value::List(values))
    }

    fn map(&mut self, field: &FieldDescriptor, node: &'a Node) -> Option<Value> {
        let Some(entries) = node.entries() else {
            return self.wrong(node, "a map");
        };
        let kind = field.kind();
        let entry_type = kind.as_message()?;
        let key_kind = entry_type.map_entry_key_field().kind();
        let value_kind = entry_type.map_entry_value_field().kind();
        let mut values = HashMap::with_capacity(entries.len());
        for entry in entries {
            self.path.push(PathStep::Key(&entry.key));
            if let Some(value) = self.value(&value_kind, &entry.value) {
                match map_key(&key_kind, &entry.key) {
                    None => {
                        let found = format!("the key {:?}", entry.key);
                        let expected = expected(&key_kind);
                        self.fault::<()>(entry.at, Problem::WrongValue { expected, found });
                    }
                    Some(key) => {
                        if values.insert(key, value).is_some() {
                            self.fault::<()>(entry.at, Problem::GivenTwice);
                        }
                    }
                }
            }
            self.path.pop();
        }
        Some(Value::Map(values))
    }

    fn value(&mut self, kind: &Kind, node: &'a Node) -> Option<Value> {
        let value = match (kind, &node.tree) {
            (Kind::Message(message), _) => return self.message(message, node).map(Value::Message),
            (Kind::Enum(enumeration), _) => return self.enumeration(enumeration, node),
            (Kind::Bytes, Tree::Text(_)) => return self.base64(node),
            (Kind::String, Tree::Text(text)) => Some(Value::String(text.clone())),
            (Kind::Bool, Tree::Bool(value)) => Some(Value::Bool(*value)),
            (Kind::String | Kind::Bool | Kind::Bytes, _) => None,
            (Kind::Double, _) => number(node).map(Value::F64),
            (Kind::Float, _) => {
                number(node).filter(|value| !value.is_finite() || value.abs() <= f64::from(f32::MAX)).map(
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "the range was checked; precision may be lost"
                    )]
                    |value| Value::F32(value as f32),
                )
            }
            (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, _) => integer(node).map(Value::I32),
            (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, _) => integer(node).map(Value::I64),
            (Kind::Uint32 | Kind::Fixed32, _) => integer(node).map(Value::U32),
            (Kind::Uint64 | Kind::Fixed64, _) => integer(node).map(Value::U64),
        };
        value.or_else(|| self.wrong(node, expected(kind)))
    }

    fn enumeration(&mut self, enumeration: &EnumDescriptor, node: &'a Node) -> Option<Value> {
        match &node.tree {
            Tree::Null if enumeration.full_name() == NULL_VALUE => Some(Value::EnumNumber(0)),
            Tree::Text(text) => {
                // Envoy ignores case in its files.
                let is_it = |value: &EnumValueDescriptor| value.name().eq_ignore_ascii_case(text);
                let value = enumeration.get_value_by_name(text);
                let Some(value) = value.or_else(|| enumeration.values().find(is_it)) else {
                    let nearest = nearest(text, enumeration.values().map(|value| value.name().to_owned()));
                    let enumeration = enumeration.full_name().to_owned();
                    let value = text.clone();
                    return self.fault(node.at, Problem::UnknownEnumValue { value, enumeration, nearest });
                };
                Some(Value::EnumNumber(value.number()))
            }
            _ => match integer(node) {
                Some(number) => Some(Value::EnumNumber(number)),
                None => self.wrong(node, "the name of an enumeration value"),
            },
        }
    }

    fn base64(&mut self, node: &'a Node) -> Option<Value> {
        let bytes = self.descriptors.builtin("google.protobuf.BytesValue");
        match DynamicMessage::deserialize(bytes, node.to_json()) {
            Ok(mut wrapper) => {
                wrapper.take_field_by_number(1).or_else(|| Some(Value::Bytes(Vec::new().into())))
            }
            Err(error) => {
                self.invalid(node, error.to_string());
                None
            }
        }
    }

    fn wrong<T>(&mut self, node: &Node, expected: &'static str) -> Option<T> {
        self.fault(node.at, Problem::WrongValue { expected, found: node.describe() })
    }

    fn invalid(&mut self, node: &Node, reason: String) {
        self.fault::<()>(node.at, Problem::InvalidValue { found: node.describe(), reason });
    }

    fn fault<T>(&mut self, at: Position, problem: Problem) -> Option<T> {
        self.faults.push(Fault { at, field: self.field_path().into(), problem });
        None
    }

    fn field_path(&self) -> String {
        let mut path = String::new();
        self.path.iter().for_each(|step| step.append_to(&mut path));
        path
    }
}

impl PathStep<'_> {
    pub(super) fn append_to(&self, path: &mut String) {
        match self {
            PathStep::Field(name) if path.is_empty() => path.push_str(name),
            PathStep::Field(name) => write!(path, ".{name}").expect("a string takes all"),
            PathStep::Item(index) => write!(path, "[{index}]").expect("a string takes all"),
            PathStep::Key(key) => write!(path, "[{key:?}]").expect("a string takes all"),
        }
    }
}

/// Adds the steps from a message to what breaks a rule.
pub(super) fn append_target(target: &Target, path: &mut String) {
    if let Some(field) = target.field() {
        PathStep::Field(field.name()).append_to(path);
    }
    match target {
        Target::Item(_, index) => PathStep::Item(*index).append_to(path),
        Target::Key(_, key) => PathStep::Key(key).append_to(path),
        Target::Oneof | Target::Field(_) => {}
    }
}

/// The item or entry that breaks a rule, within the value of its field.
fn node_of<'n>(target: &Target, value: &'n Node) -> Option<&'n Node> {
    match (target, &value.tree) {
        (Target::Item(_, index), Tree::List(items)) => items.get(*index),
        (Target::Key(_, key), _) => value.get(key),
        _ => None,
    }
}

/// Whether the JSON of a message is not the map of its fields.
pub(super) fn is_special(name: &str) -> bool {
    WRAPPERS.contains(&name) || SPECIAL.contains(&name)
}

/// Whether `null` is a value for this field. For other fields it means that the field is not given.
fn takes_null(field: &FieldDescriptor) -> bool {
    match field.kind() {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(enumeration) => enumeration.full_name() == NULL_VALUE,
        _ => false,
    }
}

fn number(node: &Node) -> Option<f64> {
    match &node.tree {
        #[expect(clippy::cast_precision_loss, reason = "as every JSON reader does")]
        Tree::Int(value) => Some(*value as f64),
        #[expect(clippy::cast_precision_loss, reason = "as every JSON reader does")]
        Tree::Uint(value) => Some(*value as f64),
        Tree::Float(value) => Some(*value),
        Tree::Text(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
        },
        _ => None,
    }
}

fn integer<T: TryFrom<i128>>(node: &Node) -> Option<T> {
    let wide = match &node.tree {
        Tree::Int(value) => i128::from(*value),
        Tree::Uint(value) => i128::from(*value),
        // 1e3 and 1000.0 are integers in JSON.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the cast saturates, and no target type is that wide"
        )]
        Tree::Float(value) if value.fract() == 0.0 => *value as i128,
        Tree::Text(text) => text.parse().ok()?,
        _ => return None,
    };
    T::try_from(wide).ok()
}

fn map_key(kind: &Kind, text: &str) -> Option<MapKey> {
    match kind {
        Kind::String => Some(MapKey::String(text.into())),
        Kind::Bool => text.parse().ok().map(MapKey::Bool),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => text.parse().ok().map(MapKey::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => text.parse().ok().map(MapKey::I64),
        Kind::Uint32 | Kind::Fixed32 => text.parse().ok().map(MapKey::U32),
        Kind::Uint64 | Kind::Fixed64 => text.parse().ok().map(MapKey::U64),
        // Protobuf has no maps with other keys.
        Kind::Double | Kind::Float | Kind::Bytes | Kind::Message(_) | Kind::Enum(_) => None,
    }
}

fn expected(kind: &Kind) -> &'static str {
    match kind {
        Kind::Double => "a number",
        Kind::Float => "a number of single precision",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "an integer of 32 bits",
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "an integer of 64 bits",
        Kind::Uint32 | Kind::Fixed32 => "an integer from 0 to 4294967295",
        Kind::Uint64 | Kind::Fixed64 => "an integer of 64 bits from 0",
        Kind::Bool => "true or false",
        Kind::String => "a string (quote it if it looks like a number)",
        Kind::Bytes => "a base64 string",
        Kind::Message(_) => "a map",
        Kind::Enum(_) => "the name of an enumeration value",
    }
}

/// Of a type with a JSON form of its own: the converter does not say what the form is.
fn invalid_special(message: &str) -> String {
    let form = "a duration in seconds, such as \"5s\" or \"0.25s\"";
    message
        .replace("a duration string", form)
        .replace("failed to parse duration", &format!("expected {form}"))
}

/// The field of a message whose name is most similar to the word.
pub(super) fn nearest_field(word: &str, message: &MessageDescriptor) -> Option<String> {
    nearest(word, message.fields().map(|field| field.name().to_owned()))
}

/// The type URL with the most similar name in the same package; also for a name without the part before the slash.
pub(super) fn nearest_type(type_url: &str, descriptors: &Descriptors) -> Option<String> {
    let name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
    let (package, _) = name.rsplit_once('.')?;
    // A file may have this error very often, and there are a thousand types.
    let of_package = descriptors.messages().filter(|message| message.parent_message().is_none());
    let of_package = of_package.filter(|message| message.package_name() == package);
    let close = |known: &String| distance(name, known) <= 3;
    let names = of_package.map(|message| message.full_name().to_owned()).filter(close);
    nearest(name, names).map(|known| format!("type.googleapis.com/{known}"))
}

/// The candidate that is most similar to a misspelt word, if one is similar enough.
pub(super) fn nearest(word: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    let close = word.len() / 3 + 1;
    candidates
        .map(|candidate| (distance(word, &candidate), candidate))
        .filter(|(distance, _)| *distance <= close)
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many bytes to insert, delete or replace (Levenshtein distance), ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The configuration of a filter for one route, which may be empty.
pub(super) const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig.config";

pub(super) const ANY: &str = "google.protobuf.Any";
pub(super) const NULL_VALUE: &str = "google.protobuf.NullValue";

/// Messages whose JSON is the JSON of their only field.
pub(super) const WRAPPERS: [&str; 9] = [
    "google.protobuf.BoolValue",
    "google.protobuf.BytesValue",
    "google.protobuf.DoubleValue",
    "google.protobuf.FloatValue",
    "google.protobuf.Int32Value",
    "google.protobuf.Int64Value",
    "google.protobuf.StringValue",
    "google.protobuf.UInt32Value",
    "google.protobuf.UInt64Value",
];

/// Messages with a JSON form of their own.
const SPECIAL: [&str; 7] = [
    ANY,
    "google.protobuf.Duration",
    "google.protobuf.FieldMask",
    "google.protobuf.ListValue",
    "google.protobuf.Struct",
    "google.protobuf.Timestamp",
    "google.protobuf.Value",
];
