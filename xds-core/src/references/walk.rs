//! Reads names from encoded messages without decoding them.

use std::collections::BTreeSet;
use std::str;

use super::table::{self, Field, Shape};
use super::{Target, Targets};
use crate::name::ResourceName;
use crate::wire::fields::{fields, text};
use crate::xdstp;

/// The references that were found in a payload.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    pub(super) found: Vec<(Target, &'a str)>,
    pub(super) unknown: Targets,
    depth: usize,
    sought: Option<Sought<'a>>,
}

/// Finds the fields that name one resource, for people.
#[derive(Debug)]
struct Sought<'a> {
    resource: (Target, &'a ResourceName),
    /// The names of the fields around the present one.
    path: Vec<&'static str>,
    fields: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    /// The fields of a message that name this resource: names of fields, joined by dots.
    pub(super) fn fields(
        shape: &'static Shape,
        bytes: &'a [u8],
        resource: (Target, &'a ResourceName),
    ) -> BTreeSet<String> {
        let sought = Sought { resource, path: Vec::new(), fields: BTreeSet::new() };
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
                if let Field::Own(target, _) = field {
                    own = Some(*target);
                }
                self.enter(name);
                self.field(*field, value);
                self.leave();
            }
        }
        if let Some(target) = own {
            self.enter("name");
            self.name(target, text(bytes, 1).unwrap_or_default());
            self.leave();
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
            Field::Message(shape) | Field::Own(_, shape) => self.message(shape, value),
            Field::Any => self.any(value),
            Field::AnyOf(target) => self.unknown.add(target),
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
        let type_url = str::from_utf8(text(any, 1).unwrap_or_default()).unwrap_or_default();
        let message_name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
        match table::extension(message_name) {
            Some(shape) => self.message(shape, text(any, 2).unwrap_or_default()),
            None => self.unknown = Targets::ALL,
        }
    }
}

impl Sought<'_> {
    fn add(&mut self, target: Target, name: &str) {
        if self.resource.0 == target && *self.resource.1 == xdstp::canonical(name) {
            let path: Vec<_> = self.path.iter().copied().filter(|field| !field.is_empty()).collect();
            self.fields.insert(path.join("."));
        }
    }
}

/// Up to this many nested messages are read.
const DEPTH_LIMIT: usize = 64;
