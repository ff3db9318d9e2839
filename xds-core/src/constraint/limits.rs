//! The limits of every tree, from any source (T11, W2).

use std::sync::Arc;

use super::error::{ConstraintError, PathStep, Trail};
use super::{Constraints, Formula};

/// Checks a whole tree. It stops at the first operator that is too deep, so the tree may have any
/// depth.
pub(super) fn check(formula: &Formula) -> Result<(), ConstraintError> {
    Limits::default().formula(formula, &Trail::TOP)
}

/// Counts leaves during a walk of a tree.
#[derive(Default)]
pub(super) struct Limits {
    leaves: usize,
}

impl Limits {
    /// Checks a condition, which is a leaf.
    pub(super) fn condition(&mut self, key: &Arc<str>, trail: &Trail<'_>) -> Result<(), ConstraintError> {
        // W2: if a message in the encoding of the draft is decoded, keys have control characters.
        if let Some(at) = key.find(|c| c < ' ') {
            let (path, key) = (trail.down(PathStep::Key).path(), key.clone());
            return Err(ConstraintError::ControlCharacter { path, key, at });
        }
        self.leaf(trail)
    }

    /// Checks a list. An empty list counts as a leaf, because otherwise a long list of empty lists
    /// would have no size.
    pub(super) fn list(&mut self, operands: usize, trail: &Trail<'_>) -> Result<(), ConstraintError> {
        operator(trail)?;
        if operands == 0 { self.leaf(trail) } else { Ok(()) }
    }

    fn leaf(&mut self, trail: &Trail<'_>) -> Result<(), ConstraintError> {
        self.leaves += 1;
        if self.leaves > Constraints::LEAF_LIMIT {
            return Err(ConstraintError::TooManyLeaves {
                path: trail.path(),
                limit: Constraints::LEAF_LIMIT,
            });
        }
        Ok(())
    }

    fn formula(&mut self, formula: &Formula, trail: &Trail<'_>) -> Result<(), ConstraintError> {
        match formula {
            Formula::Equals { key, .. } | Formula::Exists { key } => self.condition(key, trail),
            Formula::All(parts) => {
                self.list(parts.len(), trail)?;
                let mut parts = parts.iter().enumerate();
                parts.try_for_each(|(index, part)| self.formula(part, &trail.down(PathStep::And(index))))
            }
            Formula::Any(parts) => {
                self.list(parts.len(), trail)?;
                let mut parts = parts.iter().enumerate();
                parts.try_for_each(|(index, part)| self.formula(part, &trail.down(PathStep::Or(index))))
            }
            Formula::Not(part) => {
                operator(trail)?;
                self.formula(part, &trail.down(PathStep::Not))
            }
        }
    }
}

/// Checks the depth of an operator.
pub(super) fn operator(trail: &Trail<'_>) -> Result<(), ConstraintError> {
    if trail.depth >= Constraints::DEPTH_LIMIT {
        return Err(ConstraintError::TooDeep { path: trail.path(), limit: Constraints::DEPTH_LIMIT });
    }
    Ok(())
}
