//! The draft form of TP2 (2021), which may still be written but is never sent (W1).
//!
//! A draft is an AND of lists. A list is an AND or an OR of conditions on a key, and each condition
//! may be inverted. [`Draft::to_formula`] converts a draft to a formula. [`Draft::of_shape`]
//! converts a formula of this shape back to the same draft. [`Draft::of_meaning`] makes a draft
//! with the meaning of any formula, if that is not too large.

use std::sync::Arc;

use super::canon::Sign;
use super::{ConstraintError, Constraints, Formula};

#[cfg(test)]
mod tests;

/// Constraints in the draft form. All lists must hold. Without lists, all parameters match (W8).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Draft {
    /// `constraints`
    pub lists: Vec<DraftList>,
}

/// A list of conditions. An empty AND holds, an empty OR does not (W8).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DraftList {
    /// `constraints`
    pub conditions: Vec<DraftCondition>,
    /// `match_type`
    pub match_type: MatchType,
}

/// How the conditions of a list are joined.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum MatchType {
    /// Not given, which is valid for exactly one condition (W7).
    #[default]
    Unspecified,
    /// All must hold.
    And,
    /// At least one must hold.
    Or,
}

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftCondition {
    /// `key`
    pub key: Arc<str>,
    /// `value` or `exists`
    pub test: DraftTest,
    /// `invert`: whether the test must fail. An absent key fails every test.
    pub invert: bool,
}

/// The test of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DraftTest {
    /// The key has this value.
    Value(Arc<str>),
    /// The key exists.
    Exists,
}

/// Why a draft cannot become constraints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// W7: a list without a match type has more or less than one condition.
    #[error("constraints[{list}]: match_type is needed to join {conditions} conditions")]
    UnspecifiedMatchType {
        /// The index of the list.
        list: usize,
        /// How many conditions it has.
        conditions: usize,
    },
    /// The formula of the draft breaks a rule of all constraints.
    #[error(transparent)]
    Invalid(#[from] ConstraintError),
}

/// The smallest draft found for a formula has more than `limit` conditions (W10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the draft form needs more than {limit} conditions")]
pub struct DraftTooLarge {
    /// [`Constraints::LEAF_LIMIT`].
    pub limit: usize,
}

impl Draft {
    /// The same as a formula: an AND of the lists. Order, empty lists and lists of one stay (W6).
    ///
    /// # Errors
    /// [`DraftError::UnspecifiedMatchType`].
    pub fn to_formula(&self) -> Result<Formula, DraftError> {
        let lists = self.lists.iter().enumerate().map(|(index, list)| {
            let conditions = list.conditions.iter().map(DraftCondition::to_formula).collect();
            match (list.match_type, list.conditions.len()) {
                (MatchType::And, _) | (MatchType::Unspecified, 1) => Ok(Formula::All(conditions)),
                (MatchType::Or, _) => Ok(Formula::Any(conditions)),
                (MatchType::Unspecified, conditions) => {
                    Err(DraftError::UnspecifiedMatchType { list: index, conditions })
                }
            }
        });
        lists.collect::<Result<_, _>>().map(Formula::All)
    }

    /// The draft of a formula that has the shape of a draft: a condition, a list of conditions, or
    /// an AND of both. `None` for any other formula (W9).
    ///
    /// For a formula of [`Self::to_formula`] it returns the same draft, with AND in place of each
    /// unspecified match type.
    #[must_use]
    pub fn of_shape(formula: &Formula) -> Option<Self> {
        if let Some(list) = DraftList::of_shape(formula) {
            // A draft without lists becomes an empty AND.
            let lists = if *formula == Formula::All(Vec::new()) { Vec::new() } else { vec![list] };
            return Some(Self { lists });
        }
        let Formula::All(parts) = formula else { return None };
        let lists = parts.iter().map(DraftList::of_shape).collect::<Option<_>>()?;
        Some(Self { lists })
    }

    /// A draft that matches the same parameters and names the same keys (W10).
    ///
    /// # Errors
    /// When it would have more than [`Constraints::LEAF_LIMIT`] conditions: an OR of n ANDs of two
    /// becomes 2^n lists.
    pub fn of_meaning(formula: &Formula) -> Result<Self, DraftTooLarge> {
        let keys = formula.keys();
        let mut clauses = clauses(formula, Sign::Positive)?;
        if clauses.iter().any(Vec::is_empty) {
            // False: a key both exists and does not exist. Without a key, an empty OR (W8).
            clauses = keys.first().map_or_else(
                || vec![Vec::new()],
                |key| vec![vec![DraftCondition::exists(key, false)], vec![DraftCondition::exists(key, true)]],
            );
        }
        for key in keys {
            if !clauses.iter().flatten().any(|condition| condition.key == *key) {
                // T12: a key that makes no difference must occur, too.
                clauses.push(vec![DraftCondition::exists(key, false), DraftCondition::exists(key, true)]);
            }
        }
        check_size(clauses.iter().map(Vec::len).sum())?;
        let list = |conditions| DraftList { conditions, match_type: MatchType::Or };
        Ok(Self { lists: clauses.into_iter().map(list).collect() })
    }
}

impl DraftList {
    fn of_shape(formula: &Formula) -> Option<Self> {
        let (parts, match_type) = match formula {
            Formula::All(parts) => (&parts[..], MatchType::And),
            Formula::Any(parts) => (&parts[..], MatchType::Or),
            condition => (std::slice::from_ref(condition), MatchType::And),
        };
        let conditions = parts.iter().map(DraftCondition::of_shape).collect::<Option<_>>()?;
        Some(Self { conditions, match_type })
    }
}

impl DraftCondition {
    fn to_formula(&self) -> Formula {
        let key = self.key.clone();
        let formula = match &self.test {
            DraftTest::Value(value) => Formula::Equals { key, value: value.clone() },
            DraftTest::Exists => Formula::Exists { key },
        };
        if self.invert { Formula::Not(Box::new(formula)) } else { formula }
    }

    fn of_shape(formula: &Formula) -> Option<Self> {
        match formula {
            Formula::Not(part) => Self::leaf(part, true),
            part => Self::leaf(part, false),
        }
    }

    fn leaf(formula: &Formula, invert: bool) -> Option<Self> {
        match formula {
            Formula::Equals { key, value } => Some(Self::equals(key, value, invert)),
            Formula::Exists { key } => Some(Self::exists(key, invert)),
            Formula::All(_) | Formula::Any(_) | Formula::Not(_) => None,
        }
    }

    fn equals(key: &Arc<str>, value: &Arc<str>, invert: bool) -> Self {
        Self { key: key.clone(), test: DraftTest::Value(value.clone()), invert }
    }

    fn exists(key: &Arc<str>, invert: bool) -> Self {
        Self { key: key.clone(), test: DraftTest::Exists, invert }
    }
}

/// An AND of ORs. True has no clause, false has an empty one.
type Clauses = Vec<Vec<DraftCondition>>;

fn clauses(formula: &Formula, sign: Sign) -> Result<Clauses, DraftTooLarge> {
    match (formula, sign) {
        (Formula::Not(part), Sign::Positive) => clauses(part, Sign::Negative),
        (Formula::Not(part), Sign::Negative) => clauses(part, Sign::Positive),
        (Formula::All(parts), Sign::Positive) | (Formula::Any(parts), Sign::Negative) => {
            let mut all = Clauses::new();
            for part in parts {
                all.extend(clauses(part, sign)?);
                check_size(all.iter().map(Vec::len).sum())?;
            }
            // The size limit does not count empty clauses, so one stands for all of them.
            let falsehood = all.iter().any(Vec::is_empty);
            Ok(if falsehood { vec![Vec::new()] } else { all })
        }
        (Formula::Any(parts), Sign::Positive) | (Formula::All(parts), Sign::Negative) => {
            let mut any = vec![Vec::new()];
            for part in parts {
                any = either(&any, &clauses(part, sign)?)?;
            }
            Ok(any)
        }
        (Formula::Equals { key, value }, sign) => {
            Ok(vec![vec![DraftCondition::equals(key, value, sign == Sign::Negative)]])
        }
        (Formula::Exists { key }, sign) => {
            Ok(vec![vec![DraftCondition::exists(key, sign == Sign::Negative)]])
        }
    }
}

/// The OR of two: joins every clause of one with every clause of the other.
fn either(left: &Clauses, right: &Clauses) -> Result<Clauses, DraftTooLarge> {
    let size = |clauses: &Clauses| clauses.iter().map(Vec::len).sum::<usize>();
    check_size(size(left) * right.len() + size(right) * left.len())?;
    let pairs = left.iter().flat_map(|first| right.iter().map(move |second| (first, second)));
    let joined = pairs.map(|(first, second)| {
        let mut clause = first.clone();
        clause.extend(second.iter().filter(|condition| !first.contains(condition)).cloned());
        clause
    });
    Ok(joined.collect())
}

fn check_size(conditions: usize) -> Result<(), DraftTooLarge> {
    if conditions > Constraints::LEAF_LIMIT {
        return Err(DraftTooLarge { limit: Constraints::LEAF_LIMIT });
    }
    Ok(())
}
