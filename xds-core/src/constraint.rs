//! Constraints: the part of a resource's identity that selects its clients (T1).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;

use crate::parameters::{Parameters, WHOLE};
use draft::{Draft, DraftError};
use when::WhenError;

pub use error::{ConstraintError, ConstraintPath};
pub use formula::Formula;

mod canon;
pub mod draft;
mod error;
mod formula;
mod limits;
#[cfg(test)]
mod properties;
mod proto;
#[cfg(test)]
mod tests;
pub mod when;
mod wire;
#[cfg(test)]
mod world;

/// The condition on parameters under which a client gets a variant, as received or written.
///
/// Two constraints are equal when their canonical forms (T21) and their keys (T12) are equal. The
/// order of operands, nesting and the received bytes make no difference. Order and hash agree with
/// this. Clones share memory, and [`Constraints::NONE`] allocates none.
///
/// ```
/// use xds_core::{Constraints, Parameters};
///
/// let written: Constraints = "env in (prod,canary), !beta".parse()?;
/// assert!(written.matches(&Parameters::from_iter([("env", "canary"), ("zone", "b")])));
/// assert!(!written.matches(&Parameters::from_iter([("env", "prod"), ("beta", "")])));
///
/// let received = Constraints::from_wire(written.wire())?;
/// assert_eq!(received.to_string(), "env in (prod,canary),!beta");
///
/// let reordered: Constraints = "!beta, (env=canary || env=prod)".parse()?;
/// assert_eq!(reordered, written);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default, Clone)]
pub struct Constraints(Option<Arc<Condition>>);

/// The contents of constraints other than [`Constraints::NONE`].
struct Condition {
    formula: Arc<Formula>,
    /// The bytes to send: the received ones, else the encoding of the formula (T23).
    wire: Bytes,
    canon: Box<[u8]>,
    keys: Box<[Arc<str>]>,
}

impl Constraints {
    /// Matches every parameter set.
    pub const NONE: Self = Self(None);

    /// How many operators may be nested (T11).
    pub const DEPTH_LIMIT: usize = 32;

    /// How many leaves there may be: conditions on a key, and empty lists (T11).
    pub const LEAF_LIMIT: usize = 1024;

    /// Reads an encoded `DynamicParameterConstraints`, and keeps a copy of its bytes to send them
    /// unchanged (T23).
    ///
    /// An empty message is [`Constraints::NONE`] (T7). If a field occurs twice, the last one wins;
    /// lists are merged (T9). Unknown fields beside a known type are kept and ignored.
    ///
    /// # Errors
    /// See [`ConstraintError`]. Above all: the type of a message is unset, or one that this version
    /// does not know (T8, T9).
    pub fn from_wire(raw: &[u8]) -> Result<Self, ConstraintError> {
        if raw.is_empty() {
            return Ok(Self::NONE);
        }
        let formula = proto::formula(&wire::read(raw)?)?;
        Ok(Self::new(formula, Bytes::copy_from_slice(raw)))
    }

    /// Converts a decoded message; an unset type is [`Constraints::NONE`] (T7).
    ///
    /// Decoding drops unknown fields. So read messages of peers with [`Self::from_wire`]: it
    /// refuses a type that it does not know instead of ignoring it (T9), and keeps the bytes (T23).
    ///
    /// # Errors
    /// See [`ConstraintError`].
    pub fn from_proto(message: &DynamicParameterConstraints) -> Result<Self, ConstraintError> {
        if message.r#type.is_none() {
            return Ok(Self::NONE);
        }
        let formula = proto::formula(message)?;
        Ok(Self::new(formula, message.encode_to_vec().into()))
    }

    /// Makes constraints of a formula.
    ///
    /// # Errors
    /// [`ConstraintError::TooDeep`], [`ConstraintError::TooManyLeaves`] or
    /// [`ConstraintError::ControlCharacter`].
    pub fn from_formula(formula: Formula) -> Result<Self, ConstraintError> {
        limits::check(&formula)?;
        Ok(Self::authored(formula))
    }

    /// Makes constraints of the draft form of TP2 (W6).
    ///
    /// # Errors
    /// See [`DraftError`].
    pub fn from_draft(draft: &Draft) -> Result<Self, DraftError> {
        Ok(Self::from_formula(draft.to_formula()?)?)
    }

    /// Matches exactly the parameter sets that agree with these on the keys. With these constraints
    /// a server reports to one locator that the name has no variant for it (T35).
    ///
    /// # Errors
    /// [`ConstraintError::TooManyLeaves`] or [`ConstraintError::ControlCharacter`], because of the
    /// keys.
    pub fn agreeing_with(parameters: &Parameters, keys: &[Arc<str>]) -> Result<Self, ConstraintError> {
        let mut sorted: Vec<_> = keys.iter().filter(|key| ***key != *WHOLE).cloned().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let literal = |key: Arc<str>| match parameters.get(&key) {
            Some(value) => Formula::Equals { key, value: value.clone() },
            None => Formula::Not(Box::new(Formula::Exists { key })),
        };
        Self::from_formula(Formula::All(sorted.into_iter().map(literal).collect()))
    }

    /// Matches exactly these parameters, if all parameters are [bound](Parameters::bound). It is
    /// never sent: peers refuse its key.
    pub(crate) fn exactly(parameters: &Parameters) -> Self {
        let bound = parameters.bound();
        let value = bound.get(WHOLE).expect("it was bound").clone();
        Self::authored(Formula::Equals { key: WHOLE.into(), value })
    }

    /// Whether they match [exactly](Self::exactly) one parameter set.
    pub(crate) fn is_exact(&self) -> bool {
        self.keys().first().is_some_and(|key| **key == *WHOLE)
    }

    /// Whether the parameters satisfy them (T3).
    #[must_use]
    pub fn matches(&self, parameters: &Parameters) -> bool {
        self.0.as_ref().is_none_or(|condition| condition.formula.matches(parameters))
    }

    /// Whether they equal [`Constraints::NONE`]: they match all parameters and name no key.
    ///
    /// A condition that always holds but names a key, such as `a || !a`, is not unconstrained.
    #[must_use]
    pub fn is_unconstrained(&self) -> bool {
        self.canon().is_empty() && self.keys().is_empty()
    }

    /// The condition as it was written.
    #[must_use]
    pub fn formula(&self) -> &Formula {
        self.0.as_ref().map_or(&ALWAYS, |condition| &condition.formula)
    }

    /// Every key that occurs in them, in order, even if it makes no difference (T12).
    #[must_use]
    pub fn keys(&self) -> &[Arc<str>] {
        self.0.as_ref().map_or(&[], |condition| &condition.keys)
    }

    /// The encoded `DynamicParameterConstraints` to send, byte for byte as received (T23). If it is
    /// empty, the field is left unset.
    #[must_use]
    pub fn wire(&self) -> &Bytes {
        self.0.as_ref().map_or(&UNSET, |condition| &condition.wire)
    }

    /// The encoded canonical form (T21): equal for all ways to nest and order the same operands.
    #[must_use]
    pub fn canon(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |condition| &condition.canon)
    }

    /// The constraints of a formula that keeps the limits.
    fn authored(formula: Formula) -> Self {
        if formula == ALWAYS {
            return Self::NONE;
        }
        let wire = DynamicParameterConstraints::from(&formula).encode_to_vec();
        Self::new(formula, wire.into())
    }

    fn new(formula: Formula, wire: Bytes) -> Self {
        let canon = canon::encode(&formula).into();
        let keys = formula.keys().into_iter().cloned().collect();
        Self(Some(Arc::new(Condition { formula: Arc::new(formula), wire, canon, keys })))
    }
}

impl From<&Constraints> for Arc<Formula> {
    fn from(constraints: &Constraints) -> Self {
        let shared = |condition: &Arc<Condition>| Self::clone(&condition.formula);
        constraints.0.as_ref().map_or_else(|| Self::new(ALWAYS.clone()), shared)
    }
}

impl PartialEq for Constraints {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.0, &other.0) {
            (Some(this), Some(that)) => Arc::ptr_eq(this, that),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same || (self.canon() == other.canon() && self.keys() == other.keys())
    }
}

impl Eq for Constraints {}

impl Ord for Constraints {
    fn cmp(&self, other: &Self) -> Ordering {
        self.canon().cmp(other.canon()).then_with(|| self.keys().cmp(other.keys()))
    }
}

impl PartialOrd for Constraints {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Constraints {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canon().hash(state);
        self.keys().hash(state);
    }
}

/// Reads the `when:` syntax; see [`when`].
impl FromStr for Constraints {
    type Err = WhenError;

    fn from_str(text: &str) -> Result<Self, WhenError> {
        // The parser keeps the limits.
        text.parse().map(Self::authored)
    }
}

/// Prints the `when:` syntax. The text reads back as equal constraints.
impl fmt::Display for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.formula(), f)
    }
}

impl fmt::Debug for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constraints({self})")
    }
}

static ALWAYS: Formula = Formula::All(Vec::new());

static UNSET: Bytes = Bytes::new();
