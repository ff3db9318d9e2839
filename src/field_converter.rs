//! Payloads of one form of a plan from those of the other, by the places of their fields (SV10, SV11).
//!
//! A field goes to the place that is named for it, such as `baz` to `baz2.qux`, and otherwise to the field
//! of the same name. Its number may differ, and the package of its type. Conversion never guesses: what the
//! other form cannot say is an error of the payload.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, Value};
use xds_store::phase::Convert;

use crate::folder::{Descriptors, encode};
use same::same_type;

mod same;
#[cfg(test)]
mod tests;
mod value;

/// Converts payloads in one direction.
///
/// Equal messages have equal bytes on all machines: fields in the order of their numbers, entries of maps
/// in the order of their keys, then fields that the descriptors do not have.
#[derive(Clone)]
pub struct FieldConverter {
    from: MessageDescriptor,
    to: MessageDescriptor,
    /// Where the fields go, by their paths. A field that is neither here nor in `opened` has no place.
    places: BTreeMap<String, String>,
    /// Messages whose fields have places of their own, and whether the other form has the message, too.
    opened: BTreeMap<String, bool>,
}

/// Why fields cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The descriptors do not have a type.
    #[error("there is no descriptor of {type_url}: add it with --descriptors")]
    NoDescriptor {
        /// The type.
        type_url: String,
    },
    /// A named field does not exist.
    #[error("{message} has no field {path}, or it is inside a field that is not a single message")]
    NoField {
        /// The message.
        message: String,
        /// The path.
        path: String,
    },
    /// A field of the old form has no place.
    #[error("{message} has no field for {path}: name its new place in `fields`")]
    NoPlace {
        /// The new form.
        message: String,
        /// The path in the old form.
        path: String,
    },
    /// A field and its place have different types.
    #[error("the field {path} has another type than its new place {place}")]
    OtherType {
        /// The path in the old form.
        path: String,
        /// The path in the new form.
        place: String,
    },
    /// Two fields have one place, or one is inside the other.
    #[error("two fields cannot be at {path}, or one inside the other")]
    Twice {
        /// The path.
        path: String,
    },
    /// The way down is not the way up in reverse.
    #[error("`down` does not invert `up`: write down: {{ fields: {{ {} }} }}", listed(expected))]
    NotInverse {
        /// What inverts it.
        expected: BTreeMap<String, String>,
    },
}

impl FieldConverter {
    /// The converters up and down of a plan, from the named places in each direction.
    ///
    /// # Errors
    /// A field of the old form has no place of its type, or the places do not invert each other.
    pub fn pair(
        descriptors: &Descriptors,
        (from_type, to_type): (&str, &str),
        (up, down): (&BTreeMap<String, String>, &BTreeMap<String, String>),
    ) -> Result<(Self, Self), FieldError> {
        let (from, to) = (message(descriptors, from_type)?, message(descriptors, to_type)?);
        check_places(up)?;
        let inverse: BTreeMap<_, _> = up.iter().map(|(path, place)| (place.clone(), path.clone())).collect();
        if inverse != *down {
            return Err(FieldError::NotInverse { expected: inverse });
        }
        let of_up = Self::new(&from, &to, up)?;
        of_up.check("", &from)?;
        Ok((of_up, Self::new(&to, &from, down)?))
    }

    /// The converter up of a plan that has no way down. A field of the old form may have no place: then
    /// payloads that set it are not converted.
    ///
    /// # Errors
    /// A named field does not exist or has another type, or two have one place.
    pub fn up_alone(
        descriptors: &Descriptors,
        (from_type, to_type): (&str, &str),
        up: &BTreeMap<String, String>,
    ) -> Result<Self, FieldError> {
        let (from, to) = (message(descriptors, from_type)?, message(descriptors, to_type)?);
        check_places(up)?;
        let converter = Self::new(&from, &to, up)?;
        for (path, place) in up {
            let fields = field_at(&from, path).zip(field_at(&to, place));
            if fields.is_some_and(|(field, there)| !is_like(&field, &there)) {
                return Err(FieldError::OtherType { path: path.clone(), place: place.clone() });
            }
        }
        Ok(converter)
    }

    fn new(
        from: &MessageDescriptor,
        to: &MessageDescriptor,
        named: &BTreeMap<String, String>,
    ) -> Result<Self, FieldError> {
        let mut converter =
            Self { from: from.clone(), to: to.clone(), places: BTreeMap::new(), opened: BTreeMap::new() };
        for (message, path) in named.iter().flat_map(|(path, place)| [(from, path), (to, place)]) {
            let none = || FieldError::NoField { message: message.full_name().into(), path: path.clone() };
            field_at(message, path).ok_or_else(none)?;
        }
        converter.add("", from, named);
        Ok(converter)
    }

    /// Adds the places of the fields of a message at a path.
    fn add(&mut self, prefix: &str, message: &MessageDescriptor, named: &BTreeMap<String, String>) {
        for field in message.fields() {
            let path = join(prefix, field.name());
            if let Some(place) = named.get(&path) {
                self.places.insert(path, place.clone());
                continue;
            }
            let is_taken = named.values().any(|place| *place == path || is_in(&path, place));
            let there = field_at(&self.to, &path).filter(|_| !is_taken);
            let has_parts = named.iter().flat_map(<[_; 2]>::from).any(|named| is_in(named, &path));
            match (single_message(&field).filter(|_| has_parts), there) {
                (Some(inner), there) => {
                    let is_there = there.is_some_and(|there| single_message(&there).is_some());
                    self.opened.insert(path.clone(), is_there);
                    self.add(&path, &inner, named);
                }
                (None, Some(there)) if is_like(&field, &there) => {
                    self.places.insert(path.clone(), path);
                }
                (None, Some(_) | None) => {}
            }
        }
    }

    /// Whether each field of the old form at a path has a place of its type. Then each place has a field
    /// of its type on the way down, too.
    fn check(&self, prefix: &str, message: &MessageDescriptor) -> Result<(), FieldError> {
        for field in message.fields() {
            let path = join(prefix, field.name());
            if self.opened.contains_key(&path) {
                single_message(&field).map_or(Ok(()), |inner| self.check(&path, &inner))?;
                continue;
            }
            let place = self.places.get(&path).unwrap_or(&path).clone();
            let is_placed = self.places.contains_key(&path);
            match field_at(&self.to, &place) {
                Some(there) if is_placed && same_type(&field, &there, &mut BTreeSet::new()) => {}
                Some(there) if is_placed || !is_like(&field, &there) => {
                    return Err(FieldError::OtherType { path, place });
                }
                Some(_) | None => {
                    return Err(FieldError::NoPlace { message: self.to.full_name().into(), path });
                }
            }
        }
        Ok(())
    }

    fn convert_fields(
        &self,
        prefix: &str,
        source: &DynamicMessage,
        target: &mut DynamicMessage,
    ) -> Result<(), String> {
        value::check_whole(prefix, source)?;
        for (field, value) in source.fields() {
            let path = join(prefix, field.name());
            let place = self.places.get(&path);
            if let Some((place, there)) = place.and_then(|place| Some((place, field_at(&self.to, place)?))) {
                let value = value::converted(&path, value, &field, &there)?;
                let around = place.rsplit_once('.').map_or("", |(around, _)| around);
                value::put(value::message_at(target, around)?, &there, value)?;
                continue;
            }
            let no_place = || format!("{path} is set, and {} has no place for it", self.to.full_name());
            let (Some(is_there), Value::Message(inner)) = (self.opened.get(&path), value) else {
                return Err(no_place());
            };
            if *is_there {
                value::message_at(target, &path)?;
            } else if inner.fields().next().is_none() {
                return Err(no_place());
            }
            self.convert_fields(&path, inner, target)?;
        }
        Ok(())
    }
}

impl Convert for FieldConverter {
    fn convert(&self, payload: &Bytes, _: &str) -> Result<Bytes, String> {
        let source = DynamicMessage::decode(self.from.clone(), payload.clone())
            .map_err(|error| format!("it is no {}: {error}", self.from.full_name()))?;
        let mut target = DynamicMessage::new(self.to.clone());
        self.convert_fields("", &source, &mut target)?;
        Ok(encode::to_vec(&target).into())
    }
}

impl fmt::Debug for FieldConverter {
    /// Without the descriptors, which contain themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from.full_name(), self.to.full_name());
        f.debug_struct("FieldConverter").field("from", &from).field("to", &to).finish_non_exhaustive()
    }
}

fn message(descriptors: &Descriptors, type_url: &str) -> Result<MessageDescriptor, FieldError> {
    let none = || FieldError::NoDescriptor { type_url: type_url.to_owned() };
    descriptors.message(type_url).ok_or_else(none)
}

/// No two fields have one place, and none is inside another one.
fn check_places(up: &BTreeMap<String, String>) -> Result<(), FieldError> {
    let mut paths: Vec<_> = up.values().collect();
    paths.sort_unstable();
    for paths in [paths, up.keys().collect()] {
        let is_inside = |pair: &&[&String]| pair[0] == pair[1] || is_in(pair[1], pair[0]);
        if let Some(pair) = paths.windows(2).find(is_inside) {
            return Err(FieldError::Twice { path: pair[1].clone() });
        }
    }
    Ok(())
}

/// The field at a path. All fields before it are single messages.
fn field_at(message: &MessageDescriptor, path: &str) -> Option<FieldDescriptor> {
    match path.rsplit_once('.') {
        None => message.get_field_by_name(path),
        Some((around, name)) => single_message(&field_at(message, around)?)?.get_field_by_name(name),
    }
}

fn single_message(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    field.kind().as_message().filter(|_| !field.is_list() && !field.is_map()).cloned()
}

/// Whether two fields have the same type. On the way down, a message may have fields that the old form
/// does not have.
fn is_like(one: &FieldDescriptor, other: &FieldDescriptor) -> bool {
    same_type(one, other, &mut BTreeSet::new()) || same_type(other, one, &mut BTreeSet::new())
}

/// Whether a path leads into the field at another one.
fn is_in(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'))
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

fn listed(places: &BTreeMap<String, String>) -> String {
    places.iter().map(|(path, place)| format!("{path}: {place}")).collect::<Vec<_>>().join(", ")
}
