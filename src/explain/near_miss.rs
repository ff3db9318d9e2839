//! What parameters lack to match a variant.

use std::fmt;
use std::sync::Arc;

use xds_core::matching::normal::Normal;
use xds_core::{Formula, Parameters};

/// Why parameters do not match a variant.
#[derive(Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// The failing conditions, which all have to hold: the smallest set that is enough.
    pub failing: Vec<Condition>,
    /// Parameters that match, with as few changes as possible.
    pub matching: Option<Parameters>,
}

/// One condition on one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    /// The key.
    pub key: Arc<str>,
    requirement: Requirement,
    /// The value in the parameters; `None` if the key is absent.
    pub found: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Requirement {
    Value(Arc<str>),
    AnyBut(Arc<str>),
    Present,
    Absent,
}

/// What the parameters lack to match the formula; `None` if no change makes them match.
#[must_use]
pub fn near_miss(formula: &Formula, parameters: &Parameters) -> Option<NearMiss> {
    let mut failing = failing(formula, true, parameters)?;
    failing.sort_unstable();
    failing.dedup();
    let changed = |other: Option<&str>| -> Parameters {
        let kept =
            parameters.iter().filter(|(key, _)| !failing.iter().any(|condition| condition.key == **key));
        let kept = kept.map(|(key, value)| (Arc::clone(key), Arc::clone(value)));
        let mended = failing.iter().filter_map(|condition| {
            let value = match &condition.requirement {
                Requirement::Value(value) => Some(Arc::clone(value)),
                Requirement::AnyBut(_) => other.map(Arc::from),
                Requirement::Present => Some("any".into()),
                Requirement::Absent => None,
            };
            Some((Arc::clone(&condition.key), value?))
        });
        kept.chain(mended).collect()
    };
    // First without the keys that must not have a certain value. If another condition needs such a
    // key to be present, it gets the value "other".
    let changed = [None, Some("other")].map(changed).into_iter().find(|changed| formula.matches(changed));
    let matching = changed.or_else(|| Normal::of(formula).ok()?.sample());
    Some(NearMiss { failing, matching })
}

/// The fewest conditions because of which the formula does not have the expected value.
fn failing(formula: &Formula, expected: bool, parameters: &Parameters) -> Option<Vec<Condition>> {
    let literal = |key: &Arc<str>, requirement: Requirement| {
        let found = parameters.get(key).cloned();
        let holds = formula.matches(parameters) == expected;
        Some(if holds { Vec::new() } else { vec![Condition { key: Arc::clone(key), requirement, found }] })
    };
    match formula {
        Formula::Equals { key, value } => {
            let value = Arc::clone(value);
            literal(key, if expected { Requirement::Value(value) } else { Requirement::AnyBut(value) })
        }
        Formula::Exists { key } => {
            literal(key, if expected { Requirement::Present } else { Requirement::Absent })
        }
        Formula::Not(part) => failing(part, !expected, parameters),
        Formula::All(parts) | Formula::Any(parts) => {
            let mut each = parts.iter().map(|part| failing(part, expected, parameters));
            if matches!(formula, Formula::All(_)) == expected {
                each.collect::<Option<Vec<_>>>().map(|lists| lists.concat())
            } else {
                each.by_ref().flatten().min_by_key(Vec::len)
            }
        }
    }
}

/// The condition in the `when:` syntax, and the value that the parameters have.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(f, "{}, but {} is {found:?}", self.formula(), self.key),
            None => write!(f, "{}, but {} is absent", self.formula(), self.key),
        }
    }
}

impl Condition {
    /// The condition as a formula.
    #[must_use]
    pub fn formula(&self) -> Formula {
        let key = || Arc::clone(&self.key);
        let equals = |value: &Arc<str>| Formula::Equals { key: key(), value: Arc::clone(value) };
        match &self.requirement {
            Requirement::Value(value) => equals(value),
            Requirement::AnyBut(value) => Formula::Not(Box::new(equals(value))),
            Requirement::Present => Formula::Exists { key: key() },
            Requirement::Absent => Formula::Not(Box::new(Formula::Exists { key: key() })),
        }
    }
}

#[cfg(test)]
mod tests {
    use xds_core::Constraints;

    use super::*;

    fn miss(when: &str, parameters: &[(&str, &str)]) -> Option<(Vec<String>, Parameters)> {
        let constraints: Constraints = when.parse().unwrap();
        let miss = near_miss(constraints.formula(), &parameters.iter().copied().collect())?;
        Some((miss.failing.iter().map(ToString::to_string).collect(), miss.matching?))
    }

    fn expected(failing: &[&str], matching: &[(&str, &str)]) -> Option<(Vec<String>, Parameters)> {
        Some((failing.iter().map(ToString::to_string).collect(), matching.iter().copied().collect()))
    }

    #[test]
    fn the_conditions_that_fail_are_told_with_parameters_that_would_do() {
        assert_eq!(
            miss("env=prod,version=v1", &[("env", "qa"), ("version", "v1"), ("zone", "b")]),
            expected(&["env=prod, but env is \"qa\""], &[("env", "prod"), ("version", "v1"), ("zone", "b")])
        );
        assert_eq!(
            miss("env!=prod,!beta,canary", &[("env", "prod"), ("beta", "")]),
            expected(
                &[
                    "!beta, but beta is \"\"",
                    "canary, but canary is absent",
                    "env!=prod, but env is \"prod\""
                ],
                &[("canary", "any")]
            )
        );
        assert_eq!(
            miss("env,env!=prod", &[("env", "prod")]),
            expected(&["env!=prod, but env is \"prod\""], &[("env", "other")])
        );
    }

    #[test]
    fn of_alternatives_the_nearest_counts() {
        assert_eq!(
            miss("(a=1,b=2) || c=3", &[("a", "0")]),
            expected(&["c=3, but c is absent"], &[("a", "0"), ("c", "3")])
        );
        assert_eq!(miss("false", &[]), None);
    }
}
