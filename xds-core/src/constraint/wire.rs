//! Reads encoded constraints strictly and within bounds.
//!
//! The result is that of a protobuf parser: the last of several types wins, and messages of one
//! type are merged (T9). But this reader stops at the limits of T11 before it allocates, and its
//! errors have a place.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;
use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints::single_constraint::{
    ConstraintType, Exists,
};
use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints::{
    ConstraintList, SingleConstraint, Type,
};

use super::error::{ConstraintError, PathStep, Trail};
use super::{Constraints, limits};

#[cfg(test)]
mod tests;

/// Decodes a message. It does not check for missing types.
pub(super) fn read(raw: &[u8]) -> Result<DynamicParameterConstraints, ConstraintError> {
    let mut message = DynamicParameterConstraints::default();
    Reader { operands: 0 }.constraints(raw, &mut message, &Trail::TOP, 0)?;
    Ok(message)
}

struct Reader {
    /// Elements of lists that were read, also those of lists that a later field replaced.
    operands: usize,
}

/// How many messages contain the current one.
type Level = usize;

impl Reader {
    fn constraints(
        &mut self,
        mut raw: &[u8],
        message: &mut DynamicParameterConstraints,
        trail: &Trail<'_>,
        level: Level,
    ) -> Result<(), ConstraintError> {
        while let Some(field) = next_field(&mut raw, 1..=4, level).ok_or_else(|| malformed(trail))? {
            let before = message.r#type.take();
            message.r#type = match (field, before) {
                (RawField::Known(1, content), before) => {
                    let mut single = match before {
                        Some(Type::Constraint(single)) => single,
                        _ => SingleConstraint::default(),
                    };
                    read_single(content, &mut single, trail, level + 1)?;
                    Some(Type::Constraint(single))
                }
                (RawField::Known(2, content), before) => {
                    let mut list = match before {
                        Some(Type::OrConstraints(list)) => list,
                        _ => ConstraintList::default(),
                    };
                    self.list(content, &mut list, PathStep::Or, trail, level + 1)?;
                    Some(Type::OrConstraints(list))
                }
                (RawField::Known(3, content), before) => {
                    let mut list = match before {
                        Some(Type::AndConstraints(list)) => list,
                        _ => ConstraintList::default(),
                    };
                    self.list(content, &mut list, PathStep::And, trail, level + 1)?;
                    Some(Type::AndConstraints(list))
                }
                (RawField::Known(_, content), before) => {
                    let mut negated = match before {
                        Some(Type::NotConstraints(negated)) => negated,
                        _ => Box::default(),
                    };
                    limits::operator(trail)?;
                    self.constraints(content, &mut negated, &trail.down(PathStep::Not), level + 1)?;
                    Some(Type::NotConstraints(negated))
                }
                (RawField::Unknown, before) => before,
            };
        }
        Ok(())
    }

    fn list(
        &mut self,
        mut raw: &[u8],
        list: &mut ConstraintList,
        step: fn(usize) -> PathStep,
        trail: &Trail<'_>,
        level: Level,
    ) -> Result<(), ConstraintError> {
        limits::operator(trail)?;
        while let Some(field) = next_field(&mut raw, 1..=1, level).ok_or_else(|| malformed(trail))? {
            let RawField::Known(_, content) = field else { continue };
            let trail = trail.down(step(list.constraints.len()));
            self.operands += 1;
            if self.operands > OPERAND_LIMIT {
                return Err(ConstraintError::TooManyLeaves {
                    path: trail.path(),
                    limit: Constraints::LEAF_LIMIT,
                });
            }
            let mut message = DynamicParameterConstraints::default();
            self.constraints(content, &mut message, &trail, level + 1)?;
            list.constraints.push(message);
        }
        Ok(())
    }
}

fn read_single(
    mut raw: &[u8],
    single: &mut SingleConstraint,
    trail: &Trail<'_>,
    level: Level,
) -> Result<(), ConstraintError> {
    while let Some(field) = next_field(&mut raw, 1..=3, level).ok_or_else(|| malformed(trail))? {
        match field {
            RawField::Known(1, content) => single.key = text(content, PathStep::Key, trail)?,
            RawField::Known(2, content) => {
                single.constraint_type = Some(ConstraintType::Value(text(content, PathStep::Value, trail)?));
            }
            RawField::Known(_, mut content) => {
                while next_field(&mut content, 0..=0, level + 1).ok_or_else(|| malformed(trail))?.is_some() {}
                single.constraint_type = Some(ConstraintType::Exists(Exists {}));
            }
            RawField::Unknown => {}
        }
    }
    Ok(())
}

fn text(content: &[u8], step: PathStep, trail: &Trail<'_>) -> Result<String, ConstraintError> {
    let text = std::str::from_utf8(content).map_err(|_| malformed(&trail.down(step)))?;
    Ok(text.to_owned())
}

fn malformed(trail: &Trail<'_>) -> ConstraintError {
    ConstraintError::Malformed { path: trail.path() }
}

/// One field of a message. All known fields are length-delimited.
enum RawField<'a> {
    Known(u32, &'a [u8]),
    Unknown,
}

/// Takes the next field off. `Some(None)` at the end; `None` for bytes that are not a field, or a
/// known field of another wire type.
fn next_field<'a>(
    raw: &mut &'a [u8],
    known: std::ops::RangeInclusive<u32>,
    level: Level,
) -> Option<Option<RawField<'a>>> {
    if raw.is_empty() {
        return Some(None);
    }
    let (number, wire_type) = decode_key(raw).ok()?;
    if !known.contains(&number) {
        skip(wire_type, number, raw, level)?;
        return Some(Some(RawField::Unknown));
    }
    if wire_type != WireType::LengthDelimited {
        return None;
    }
    let length = usize::try_from(decode_varint(raw).ok()?).ok()?;
    let (content, rest) = raw.split_at_checked(length)?;
    *raw = rest;
    Some(Some(RawField::Known(number, content)))
}

/// Skips the content of a field.
///
/// The bytes are sent on unchanged (T23), and other parsers count a group as one more level of
/// nesting. So it counts here, too.
fn skip(wire_type: WireType, number: u32, raw: &mut &[u8], level: Level) -> Option<()> {
    if level >= LEVEL_LIMIT {
        return None;
    }
    if wire_type != WireType::StartGroup {
        return skip_field(wire_type, number, raw, DecodeContext::default()).ok();
    }
    loop {
        match decode_key(raw).ok()? {
            (end, WireType::EndGroup) => return (end == number).then_some(()),
            (inner, wire_type) => skip(wire_type, inner, raw, level + 1)?,
        }
    }
}

/// Protobuf parsers refuse a field inside this many messages and groups.
const LEVEL_LIMIT: Level = 100;

/// No valid tree has more elements: each leaf has at most a path of lists above it.
const OPERAND_LIMIT: usize = Constraints::DEPTH_LIMIT * Constraints::LEAF_LIMIT;
