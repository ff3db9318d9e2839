//! Which fields have the same type, although their messages may be of different packages.

use std::collections::BTreeSet;

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

/// Pairs of messages that are being compared: messages may contain themselves.
pub(super) type Compared = BTreeSet<(String, String)>;

/// Whether each value of a field can be a value of another one, and nothing else becomes of it on the way
/// back. Enums and messages of other packages are compared by the names of their values and fields.
pub(super) fn same_type(one: &FieldDescriptor, other: &FieldDescriptor, compared: &mut Compared) -> bool {
    let shape = |field: &FieldDescriptor| {
        (field.cardinality(), field.is_map(), field.is_group(), field.supports_presence())
    };
    if shape(one) != shape(other) {
        return false;
    }
    match (one.kind(), other.kind()) {
        (Kind::Message(one), Kind::Message(other)) => same_message(&one, &other, compared),
        (Kind::Enum(of_one), Kind::Enum(of_other)) if same_enum(&of_one, &of_other) => {
            let default = |field: &FieldDescriptor, of: &EnumDescriptor| {
                let number = field.default_value().as_enum_number();
                number.and_then(|number| of.get_value(number)).map(|value| value.name().to_owned())
            };
            one.is_list() || default(one, &of_one) == default(other, &of_other)
        }
        // A field that is not set means its default.
        (of_one, of_other) => of_one == of_other && one.default_value() == other.default_value(),
    }
}

fn same_message(one: &MessageDescriptor, other: &MessageDescriptor, compared: &mut Compared) -> bool {
    let names = (one.full_name().to_owned(), other.full_name().to_owned());
    if names.0 == names.1 || !compared.insert(names) {
        return true;
    }
    one.fields().all(|field| {
        let there = other.get_field_by_name(field.name());
        there.is_some_and(|there| same_type(&field, &there, compared))
    })
}

/// Whether each value goes to another enum and back. A value that the other one does not have is an error of
/// the records that have it.
fn same_enum(one: &EnumDescriptor, other: &EnumDescriptor) -> bool {
    let is_back = |value: &prost_reflect::EnumValueDescriptor| {
        let Some(there) = in_enum(value.number(), one, other) else { return true };
        in_enum(there, other, one) == Some(value.number())
    };
    one.full_name() == other.full_name() || one.values().all(|value| is_back(&value))
}

/// The number of a value of an enum in another one that has a value of this name.
pub(super) fn in_enum(number: i32, of: &EnumDescriptor, other: &EnumDescriptor) -> Option<i32> {
    Some(other.get_value_by_name(of.get_value(number)?.name())?.number())
}
