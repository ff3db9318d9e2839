//! Reads names from encoded messages without decoding them.

use std::collections::BTreeSet;
use std::str;

use super::sources::FoundSource;
use super::table::{self, Field, Shape, Source};
use super::{Target, Targets};
use crate::name::ResourceName;
use crate::subscription::WILDCARD;
use crate::wire::fields::{Edit, edited, fields, text};
use crate::xdstp;

/// The references that were found in a payload.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    pub(super) found: Vec<(Target, &'a str)>,
    pub(super) unknown: Targets,
    /// Where resources come from (S34b), also when it is not known which other ones it names.
    pub(super) sources: Vec<FoundSource<'a>>,
    depth: usize,
    sought: Option<Sought<'a>>,
}

/// Finds the fields that name resources.
#[derive(Debug, Default)]
struct Sought<'a> {
    /// `None`: any resource.
    resource: Option<(Target, &'a ResourceName)>,
    /// The names of the fields around the present one.
    path: Vec<&'static str>,
    fields: BTreeSet<(String, Target, ResourceName)>,
}

impl<'a> Walk<'a> {
    /// The fields of a message that name this resource, or any: names of fields, joined by dots.
    pub(super) fn fields(
        shape: &'static Shape,
        bytes: &'a [u8],
        resource: Option<(Target, &'a ResourceName)>,
    ) -> BTreeSet<(String, Target, ResourceName)> {
        let sought = Sought { resource, ..Sought::default() };
        let mut walk = Self { sought: Some(sought), ..Self::default() };
        walk.message(shape, bytes);
        walk.sought.map(|sought| sought.fields).unwrap_or_default()
    }

    /// Reads a message. If the bytes are not a valid message, it may name any resource.
    pub(super) fn message(&mut self, shape: &'static Shape, bytes: &'a [u8]) {
        if shape.is_empty() {
            return;
        }
        if self.depth >= DEPTH_LIMIT {
            self.unknown = Targets::ALL;
            return;
        }
        self.depth += 1;
        let mut own = None;
        for field in fields(bytes) {
            let Some((number, value)) = field else {
                self.unknown = Targets::ALL;
                break;
            };
            for (_, name, field) in shape.iter().filter(|(known, ..)| *known == number) {
                if let Field::Own(target, _, source) = field {
                    own = Some((*target, source.of(value)));
                }
                self.enter(name);
                self.field(*field, value);
                self.leave();
            }
        }
        if let Some((target, source)) = own {
            let name = text(bytes, 1).unwrap_or_default();
            self.enter("name");
            self.name(target, name);
            self.leave();
            self.sources.extend(str::from_utf8(name).map(|name| FoundSource { target, name, source }));
        }
        self.depth -= 1;
    }

    fn enter(&mut self, field: &'static str) {
        if let Some(sought) = &mut self.sought {
            sought.path.push(field);
        }
    }

    fn leave(&mut self) {
        if let Some(sought) = &mut self.sought {
            sought.path.pop();
        }
    }

    fn field(&mut self, field: Field, value: &'a [u8]) {
        match field {
            Field::Name(target) => self.name(target, value),
            Field::Message(shape) | Field::Own(_, shape, _) => self.message(shape, value),
            Field::Any => self.any(value),
            Field::AnyOf(target) => self.unknown.add(target),
            Field::AllFrom(target, source) => {
                self.unknown.add(target);
                self.sources.push(FoundSource { target, name: WILDCARD, source: source.of(value) });
            }
        }
    }

    fn name(&mut self, target: Target, name: &'a [u8]) {
        match str::from_utf8(name) {
            Ok("") => {}
            Ok(name) => match &mut self.sought {
                Some(sought) => sought.add(target, name),
                None => self.found.push((target, name)),
            },
            Err(_) => self.unknown.add(target),
        }
    }

    fn any(&mut self, any: &'a [u8]) {
        match shape_of(any) {
            Some(shape) => self.message(shape, text(any, 2).unwrap_or_default()),
            None => self.unknown = Targets::ALL,
        }
    }
}

impl Source {
    /// The encoded source in the value of the field.
    fn of(self, value: &[u8]) -> &[u8] {
        match self {
            Self::Field => value,
            Self::Inner(number) => text(value, number).unwrap_or_default(),
        }
    }
}

impl Sought<'_> {
    fn add(&mut self, target: Target, name: &str) {
        let name = xdstp::canonical(name);
        if self.resource.is_none_or(|resource| resource == (target, &name)) {
            self.fields.insert((joined(&self.path), target, name));
        }
    }
}

/// The shape of the message in an `Any`, if the table knows it.
fn shape_of(any: &[u8]) -> Option<&'static Shape> {
    table::extension(message_of(any))
}

/// The name of the message in an `Any`; empty if it cannot be read.
pub(super) fn message_of(any: &[u8]) -> &str {
    let type_url = str::from_utf8(text(any, 1).unwrap_or_default()).unwrap_or_default();
    type_url.rsplit_once('/').map_or(type_url, |(_, name)| name)
}

fn joined(path: &[&'static str]) -> String {
    let path: Vec<_> = path.iter().copied().filter(|field| !field.is_empty()).collect();
    path.join(".")
}

/// The type of the resources that a field names; `None` if the table does not have the field. `path`
/// has the names of the fields from the top of the message.
pub(super) fn target_of(shape: &'static Shape, path: &[&str]) -> Option<Target> {
    let (first, rest) = path.split_first()?;
    shape.iter().find_map(|(_, name, field)| {
        if let (Field::Own(target, ..), "name", []) = (field, *first, rest) {
            return Some(*target);
        }
        let rest = match *name {
            "" => path,
            name if name == *first => rest,
            _ => return None,
        };
        match field {
            Field::Name(target) => rest.is_empty().then_some(*target),
            Field::Message(shape) | Field::Own(_, shape, _) => target_of(shape, rest),
            Field::Any => table::extensions().find_map(|shape| target_of(shape, rest)),
            Field::AnyOf(_) | Field::AllFrom(..) => None,
        }
    })
}

/// A field that is cleared where it names one resource.
#[derive(Debug)]
pub(super) struct Cleared<'a> {
    pub(super) field: &'a str,
    pub(super) target: Target,
    pub(super) name: &'a ResourceName,
}

impl Cleared<'_> {
    /// A copy of a message without the name; `None` if nothing changed.
    pub(super) fn message(
        &self,
        shape: &'static Shape,
        bytes: &[u8],
        path: &mut Vec<&'static str>,
    ) -> Option<Vec<u8>> {
        if shape.is_empty() || path.len() >= DEPTH_LIMIT {
            return None;
        }
        let has = |number: u32| fields(bytes).any(|field| field.is_some_and(|(found, _)| found == number));
        let own = shape.iter().find_map(|(number, _, field)| match field {
            Field::Own(target, ..) if has(*number) => Some((1, "name", Field::Name(*target))),
            _ => None,
        });
        edited(bytes, |number, value| {
            let known = shape.iter().chain(&own).filter(|(known, ..)| *known == number);
            for (_, name, field) in known {
                path.push(name);
                let edit = self.field(*field, value, path);
                path.pop();
                if !matches!(edit, Edit::Keep) {
                    return edit;
                }
            }
            Edit::Keep
        })
    }

    fn field(&self, field: Field, value: &[u8], path: &mut Vec<&'static str>) -> Edit {
        let edited = match field {
            Field::Name(target) => {
                let is_it = |name: &str| xdstp::canonical(name) == *self.name && joined(path) == self.field;
                let is_named = target == self.target && str::from_utf8(value).is_ok_and(is_it);
                return if is_named { Edit::Drop } else { Edit::Keep };
            }
            Field::Message(shape) | Field::Own(_, shape, _) => self.message(shape, value, path),
            Field::Any => shape_of(value).and_then(|shape| {
                edited(value, |number, message| match number {
                    2 => self.message(shape, message, path).map_or(Edit::Keep, Edit::Replace),
                    _ => Edit::Keep,
                })
            }),
            Field::AnyOf(_) | Field::AllFrom(..) => None,
        };
        edited.map_or(Edit::Keep, Edit::Replace)
    }
}

/// Up to this many nested messages are read.
pub(super) const DEPTH_LIMIT: usize = 64;
