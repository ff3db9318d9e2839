//! The canonical form (T21): one encoding for all ways to write the same operands.
//!
//! - Negations move to the leaves.
//! - Nested lists of the same operator become one list.
//! - Constants are folded. True is the empty message, false an empty OR.
//! - Operands are sorted by their encoding, each once.
//! - A list of one operand becomes the operand.
//!
//! Formulas with equal meaning, such as `a` and `a || a,b`, may still have different canonical
//! forms. That makes the conversion linear (T22).

use prost::encoding::encode_varint;

use super::Formula;

/// The canonical form as an encoded `DynamicParameterConstraints`.
pub(super) fn encode(formula: &Formula) -> Vec<u8> {
    Canon::of(formula, Sign::Positive).encode()
}

/// A canonical form that may become an operand of another.
enum Canon {
    Constant(bool),
    /// A condition or its negation, encoded.
    Literal(Vec<u8>),
    /// Two or more encoded operands, sorted, each once, none of them a list of the same operator.
    List(Operator, Vec<Vec<u8>>),
}

impl Canon {
    fn of(formula: &Formula, sign: Sign) -> Self {
        match (formula, sign) {
            (Formula::Equals { key, value }, _) => Self::literal(key, VALUE, value.as_bytes(), sign),
            (Formula::Exists { key }, _) => Self::literal(key, EXISTS, &[], sign),
            (Formula::Not(part), Sign::Positive) => Self::of(part, Sign::Negative),
            (Formula::Not(part), Sign::Negative) => Self::of(part, Sign::Positive),
            // De Morgan: a negated list is the other list of its negated parts.
            (Formula::All(parts), Sign::Positive) | (Formula::Any(parts), Sign::Negative) => {
                Self::list(Operator::And, parts, sign)
            }
            (Formula::Any(parts), Sign::Positive) | (Formula::All(parts), Sign::Negative) => {
                Self::list(Operator::Or, parts, sign)
            }
        }
    }

    fn literal(key: &str, test: u8, content: &[u8], sign: Sign) -> Self {
        let mut single = Vec::with_capacity(key.len() + content.len() + 12);
        // Encoders leave out an empty string outside a oneof.
        if !key.is_empty() {
            append_field(&mut single, KEY, key.as_bytes());
        }
        append_field(&mut single, test, content);
        let condition = field(CONSTRAINT, &single);
        Self::Literal(match sign {
            Sign::Positive => condition,
            Sign::Negative => field(NOT, &condition),
        })
    }

    fn list(operator: Operator, parts: &[Formula], sign: Sign) -> Self {
        let mut operands = Vec::with_capacity(parts.len());
        let mut last = None;
        for part in parts {
            match Self::of(part, sign) {
                Self::Constant(value) if value == operator.of_nothing() => {}
                Self::Constant(value) => return Self::Constant(value),
                Self::List(inner, list) if inner == operator => operands.extend(list),
                other => {
                    operands.push(other.encode());
                    last = Some(other);
                }
            }
        }
        operands.sort_unstable();
        operands.dedup();
        match (operands.len(), last) {
            (0, _) => Self::Constant(operator.of_nothing()),
            // An inner list adds at least two different operands, so this operand is not from one.
            (1, Some(only)) => only,
            _ => Self::List(operator, operands),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Constant(true) => Vec::new(),
            Self::Constant(false) => field(OR, &[]),
            Self::Literal(encoded) => encoded.clone(),
            Self::List(operator, operands) => {
                let size = operands.iter().map(|operand| operand.len() + 6).sum();
                let mut list = Vec::with_capacity(size);
                operands.iter().for_each(|operand| append_field(&mut list, CONSTRAINTS, operand));
                field(operator.number(), &list)
            }
        }
    }
}

/// Negative inside an odd number of negations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Positive,
    Negative,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    And,
    Or,
}

impl Operator {
    /// The value of an empty list (T7). An operand with this value makes no difference.
    fn of_nothing(self) -> bool {
        self == Self::And
    }

    fn number(self) -> u8 {
        match self {
            Self::And => AND,
            Self::Or => OR,
        }
    }
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(content.len() + 6);
    append_field(&mut encoded, number, content);
    encoded
}

fn append_field(encoded: &mut Vec<u8>, number: u8, content: &[u8]) {
    const LENGTH_DELIMITED: u8 = 2;
    encoded.push(number << 3 | LENGTH_DELIMITED);
    encode_varint(content.len() as u64, encoded);
    encoded.extend_from_slice(content);
}

// Field numbers of `DynamicParameterConstraints`.
const CONSTRAINT: u8 = 1;
const OR: u8 = 2;
const AND: u8 = 3;
const NOT: u8 = 4;
// Field number of `ConstraintList`.
const CONSTRAINTS: u8 = 1;
// Field numbers of `SingleConstraint`.
const KEY: u8 = 1;
const VALUE: u8 = 2;
const EXISTS: u8 = 3;
