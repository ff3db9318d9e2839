//! Values of one form as values of the other.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, Value};

use super::join;
use super::same::in_enum;

/// SV11: a field that the descriptor does not have would be lost.
pub(super) fn check_whole(path: &str, message: &DynamicMessage) -> Result<(), String> {
    let unknown = message.unknown_fields().next().map(prost_reflect::UnknownField::number);
    let extension = message.extensions().next().map(|(extension, _)| extension.number());
    match unknown.or(extension) {
        Some(number) => {
            let path = join(path, &number.to_string());
            Err(format!("{} has no field with the number of {path}", message.descriptor().full_name()))
        }
        None => Ok(()),
    }
}

/// The value of a field as one of another field of the same type.
pub(super) fn converted(
    path: &str,
    value: &Value,
    of: &FieldDescriptor,
    to: &FieldDescriptor,
) -> Result<Value, String> {
    match (value, of.kind(), to.kind()) {
        (Value::List(items), ..) => {
            let items = items.iter().map(|item| converted(path, item, of, to));
            items.collect::<Result<_, _>>().map(Value::List)
        }
        (Value::Map(entries), Kind::Message(of), Kind::Message(to)) => {
            let (of, to) = (of.map_entry_value_field(), to.map_entry_value_field());
            let entries = entries
                .iter()
                .map(|(key, value)| Ok::<_, String>((key.clone(), converted(path, value, &of, &to)?)));
            entries.collect::<Result<_, _>>().map(Value::Map)
        }
        (Value::Message(message), _, Kind::Message(to)) if message.descriptor() != to => {
            moved(path, message, to).map(Value::Message)
        }
        (Value::EnumNumber(number), Kind::Enum(of), Kind::Enum(to)) if of != to => {
            let name = of.get_value(*number).map(|value| value.name().to_owned());
            let unknown = || match name {
                Some(name) => format!("{path}: {} has no value {name}", to.full_name()),
                None => format!("{path}: {} has no value {number}", of.full_name()),
            };
            in_enum(*number, &of, &to).map(Value::EnumNumber).ok_or_else(unknown)
        }
        // Of one type, it is the same in both forms, with all that the descriptor does not know.
        (value, ..) => Ok(value.clone()),
    }
}

fn moved(path: &str, message: &DynamicMessage, to: MessageDescriptor) -> Result<DynamicMessage, String> {
    check_whole(path, message)?;
    let mut target = DynamicMessage::new(to);
    for (field, value) in message.fields() {
        let path = join(path, field.name());
        let Some(there) = target.descriptor().get_field_by_name(field.name()) else {
            return Err(format!(
                "{path} is set, and {} has no place for it",
                target.descriptor().full_name()
            ));
        };
        let value = converted(&path, value, &field, &there)?;
        put(&mut target, &there, value)?;
    }
    Ok(target)
}

/// The message at a path, which is made, with those around it.
pub(super) fn message_at<'m>(
    message: &'m mut DynamicMessage,
    path: &str,
) -> Result<&'m mut DynamicMessage, String> {
    if path.is_empty() {
        return Ok(message);
    }
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let none = || format!("{} has no message {name}", message.descriptor().full_name());
    let field = message.descriptor().get_field_by_name(name).ok_or_else(none)?;
    check_oneof(message, &field)?;
    match message.get_field_mut(&field) {
        Value::Message(inner) => message_at(inner, rest),
        _ => Err(format!("{name} is no message")),
    }
}

/// Sets a field.
pub(super) fn put(message: &mut DynamicMessage, field: &FieldDescriptor, value: Value) -> Result<(), String> {
    check_oneof(message, field)?;
    message.set_field(field, value);
    Ok(())
}

/// SV11: of the fields of a oneof, the other form can have one only.
fn check_oneof(message: &DynamicMessage, field: &FieldDescriptor) -> Result<(), String> {
    let Some(oneof) = field.containing_oneof() else { return Ok(()) };
    let mut others = oneof.fields().filter(|other| other != field);
    match others.find(|other| message.has_field(other)) {
        Some(other) => {
            let (message, one, other) = (message.descriptor(), field.name(), other.name());
            Err(format!("{} can have one of {other} and {one} only", message.full_name()))
        }
        None => Ok(()),
    }
}
