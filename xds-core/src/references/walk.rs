//! Reads names from encoded messages without decoding them.

use std::str;

use super::table::{self, Field, Shape};
use super::{Target, Targets};
use crate::wire::fields::{fields, text};

/// The references that were found in a payload.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    pub(super) found: Vec<(Target, &'a str)>,
    pub(super) unknown: Targets,
    depth: usize,
}

impl<'a> Walk<'a> {
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
            for (_, field) in shape.iter().filter(|(known, _)| *known == number) {
                if let Field::Own(target, _) = field {
                    own = Some(*target);
                }
                self.field(*field, value);
            }
        }
        if let Some(target) = own {
            self.name(target, text(bytes, 1).unwrap_or_default());
        }
        self.depth -= 1;
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
            Ok(name) => self.found.push((target, name)),
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

/// Up to this many nested messages are read.
const DEPTH_LIMIT: usize = 64;
