//! What makes constraints invalid, and where in the tree.

use std::fmt;
use std::sync::Arc;

/// Why constraints were refused (G16). To a peer it is an INVALID_ARGUMENT or a NACK; who wrote
/// them has to change them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The bytes are no message of this shape: cut off, of a wrong wire type, or no UTF-8 where
    /// text belongs.
    #[error("{path}: malformed message")]
    Malformed {
        /// The message or field.
        path: ConstraintPath,
    },
    /// T8, T9: a message in the tree says neither condition nor operator, or one from the future.
    #[error("{path}: neither a condition nor an operator this version knows")]
    Untyped {
        /// The message.
        path: ConstraintPath,
    },
    /// T8: a condition on a key asks neither for a value nor whether it exists.
    #[error("{path}: key `{}` has neither `value` nor `exists`", key.escape_debug())]
    Untested {
        /// The condition.
        path: ConstraintPath,
        /// Its key.
        key: Arc<str>,
    },
    /// W2: a key holds a character below U+0020, as a message in the draft encoding does when it is
    /// read as this one.
    #[error("{path}: key `{}` has a control character at byte {at}", key.escape_debug())]
    ControlCharacter {
        /// The key in the tree.
        path: ConstraintPath,
        /// Its text.
        key: Arc<str>,
        /// The byte position of the character.
        at: usize,
    },
    /// T11: more than `limit` operators stand inside one another.
    #[error("{path}: more than {limit} operators inside one another")]
    TooDeep {
        /// The operator that is one too many.
        path: ConstraintPath,
        /// [`Constraints::DEPTH_LIMIT`](super::Constraints::DEPTH_LIMIT).
        limit: usize,
    },
    /// T11: there are more than `limit` leaves.
    #[error("{path}: more than {limit} conditions")]
    TooManyLeaves {
        /// The leaf that is one too many.
        path: ConstraintPath,
        /// [`Constraints::LEAF_LIMIT`](super::Constraints::LEAF_LIMIT).
        limit: usize,
    },
}

impl ConstraintError {
    /// The place of the offender.
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

/// The way down to where a walk is, kept on its stack: a path costs nothing until there is an
/// error.
#[derive(Clone, Copy)]
pub(super) struct Trail<'a> {
    above: Option<(&'a Self, PathStep)>,
    /// How many steps it is from the top.
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
