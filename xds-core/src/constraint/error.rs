//! Errors of constraints, with their place in the tree.

use std::fmt;
use std::sync::Arc;

/// Why constraints were refused (G16). A peer that sent them gets INVALID_ARGUMENT or a NACK. Their
/// author has to change them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The bytes are not a valid message: cut off, a wrong wire type, or text that is not UTF-8.
    #[error("{path}: malformed message")]
    Malformed {
        /// The message or field.
        path: ConstraintPath,
    },
    /// T8, T9: a message in the tree has no type, or one that this version does not know.
    #[error("{path}: neither a condition nor an operator that this version knows")]
    Untyped {
        /// The message.
        path: ConstraintPath,
    },
    /// T8: a condition on a key has neither `value` nor `exists`.
    #[error("{path}: key `{}` has neither `value` nor `exists`", key.escape_debug())]
    Untested {
        /// The condition.
        path: ConstraintPath,
        /// Its key.
        key: Arc<str>,
    },
    /// W2: a key has a character below U+0020. A message in the encoding of the draft has them, if
    /// it is read as this message.
    #[error("{path}: key `{}` has a control character at byte {at}", key.escape_debug())]
    ControlCharacter {
        /// The place of the key.
        path: ConstraintPath,
        /// Its text.
        key: Arc<str>,
        /// The byte position of the character.
        at: usize,
    },
    /// T11: more than `limit` operators are nested.
    #[error("{path}: operators are nested more than {limit} deep")]
    TooDeep {
        /// The first operator that is too deep.
        path: ConstraintPath,
        /// [`Constraints::DEPTH_LIMIT`](super::Constraints::DEPTH_LIMIT).
        limit: usize,
    },
    /// T11: there are more than `limit` leaves.
    #[error("{path}: more than {limit} conditions")]
    TooManyLeaves {
        /// The first leaf above the limit.
        path: ConstraintPath,
        /// [`Constraints::LEAF_LIMIT`](super::Constraints::LEAF_LIMIT).
        limit: usize,
    },
}

impl ConstraintError {
    /// The place of the error in the tree.
    #[must_use]
    pub fn path(&self) -> &ConstraintPath {
        match self {
            Self::Malformed { path }
            | Self::Untyped { path }
            | Self::Untested { path, .. }
            | Self::ControlCharacter { path, .. }
            | Self::TooDeep { path, .. }
            | Self::TooManyLeaves { path, .. } => path,
        }
    }
}

/// A place in a tree of constraints, printed as `and[1].not.key`. The whole tree prints as `top
/// level`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstraintPath(Vec<PathStep>);

impl fmt::Display for ConstraintPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("top level");
        }
        for (at, step) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(".")?;
            }
            match step {
                PathStep::And(index) => write!(f, "and[{index}]"),
                PathStep::Or(index) => write!(f, "or[{index}]"),
                PathStep::Not => f.write_str("not"),
                PathStep::Key => f.write_str("key"),
                PathStep::Value => f.write_str("value"),
            }?;
        }
        Ok(())
    }
}

/// One step down the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathStep {
    And(usize),
    Or(usize),
    Not,
    Key,
    Value,
}

/// The path to the current message or operator of a walk, linked on its stack. So a path is
/// allocated only for an error.
#[derive(Clone, Copy)]
pub(super) struct Trail<'a> {
    above: Option<(&'a Self, PathStep)>,
    /// How many steps there are from the top.
    pub(super) depth: usize,
}

impl Trail<'_> {
    pub(super) const TOP: Trail<'static> = Trail { above: None, depth: 0 };

    pub(super) fn down(&self, step: PathStep) -> Trail<'_> {
        Trail { above: Some((self, step)), depth: self.depth + 1 }
    }

    pub(super) fn path(&self) -> ConstraintPath {
        let mut steps = Vec::with_capacity(self.depth);
        let mut trail = self;
        while let Some((above, step)) = trail.above {
            steps.push(step);
            trail = above;
        }
        steps.reverse();
        ConstraintPath(steps)
    }
}
