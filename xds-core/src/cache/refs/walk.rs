//! Reading fields off the wire without decoding messages.

use std::str;

use super::table::{self, Field, Shape};
use super::{Target, Targets};

/// What was found in a payload so far.
#[derive(Debug, Default)]
pub(super) struct Walk<'a> {
    pub(super) found: Vec<(Target, &'a str)>,
    pub(super) unknown: Targets,
    depth: usize,
}

impl<'a> Walk<'a> {
    /// Looks into a message. What is no message may name anything.
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

/// The last value of a field, as it counts.
fn text(message: &[u8], wanted: u32) -> Option<&[u8]> {
    let of_number = fields(message).map_while(|field| field).filter(|(number, _)| *number == wanted);
    of_number.map(|(_, value)| value).last()
}

/// The fields of a message that have a length, with their numbers; `None` and then nothing where it is none.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Option<(u32, &[u8])>> {
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            match next_field(&mut rest) {
                Some((_, None)) => {}
                Some((number, Some(value))) => return Some(Some((number, value))),
                None => {
                    rest = &[];
                    return Some(None);
                }
            }
        }
        None
    })
}

/// One field, and its value when it has a length.
fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
    let length = match key & 7 {
        0 => {
            varint(rest)?;
            0
        }
        1 => 8,
        5 => 4,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            let (value, after) = rest.split_at_checked(length)?;
            *rest = after;
            return Some((number, Some(value)));
        }
        // Groups: no message of Envoy's has any.
        _ => return None,
    };
    *rest = rest.get(length..)?;
    Some((number, None))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (at, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *rest = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

/// How many messages within each other are looked into.
const DEPTH_LIMIT: usize = 64;
