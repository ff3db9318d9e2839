//! The validation rules that an encoded resource breaks, with the paths of its fields.

use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use super::convert::{ANY, PathStep, append_target, is_special};
use super::decode::PACKED_LIMIT;
use super::descriptors::Descriptors;
use super::error::Problem;
use super::rules::key_text;
use super::validate;

/// Checks a message and the messages in it, also those in an `Any` of a known type.
pub(super) fn of(message: &DynamicMessage, descriptors: &Descriptors) -> Vec<(String, Problem)> {
    let mut search = RuleSearch { descriptors, packed_in: 0, found: Vec::new() };
    search.message(message, "");
    search.found
}

struct RuleSearch<'a> {
    descriptors: &'a Descriptors,
    /// The number of `Any` messages around the current one.
    packed_in: usize,
    found: Vec<(String, Problem)>,
}

impl RuleSearch<'_> {
    fn message(&mut self, message: &DynamicMessage, path: &str) {
        let descriptor = message.descriptor();
        if descriptor.full_name() == ANY {
            return self.any(message, path);
        }
        if is_special(descriptor.full_name()) {
            return;
        }
        let rules = self.descriptors.rules(&descriptor);
        for violation in validate::message(message, path.is_empty(), self.descriptors) {
            let mut path = path.to_owned();
            append_target(&violation.at, &mut path);
            self.found.push((path, Problem::Rule { rule: violation.rule, reason: violation.reason }));
        }
        for (field, value) in message.fields().filter(|(field, _)| !rules.skips(field)) {
            let mut path = path.to_owned();
            PathStep::Field(field.name()).append_to(&mut path);
            self.value(value, &path);
        }
    }

    fn value(&mut self, value: &Value, path: &str) {
        let below = |step: PathStep<'_>| {
            let mut path = path.to_owned();
            step.append_to(&mut path);
            path
        };
        match value {
            Value::Message(message) => self.message(message, path),
            Value::List(items) => {
                for (index, item) in items.iter().enumerate().filter(|(_, item)| item.as_message().is_some())
                {
                    self.value(item, &below(PathStep::Item(index)));
                }
            }
            Value::Map(entries) => {
                for (key, value) in entries.iter().filter(|(_, value)| value.as_message().is_some()) {
                    self.value(value, &below(PathStep::Key(&key_text(key))));
                }
            }
            _ => {}
        }
    }

    fn any(&mut self, any: &DynamicMessage, path: &str) {
        let (type_url, payload) = (any.get_field_by_number(1), any.get_field_by_number(2));
        let type_url = type_url.as_deref().and_then(Value::as_str).unwrap_or_default();
        let payload = payload.as_deref().and_then(Value::as_bytes).cloned().unwrap_or_default();
        if self.packed_in < PACKED_LIMIT
            && let Some(descriptor) = self.descriptors.message(type_url)
            && let Ok(message) = DynamicMessage::decode(descriptor, payload)
        {
            self.packed_in += 1;
            self.message(&message, path);
            self.packed_in -= 1;
        }
    }
}
