//! A conjunction of conditions on single keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::value_set::{KeyOutcome, ValueSet};
use crate::constraint::Formula;
use crate::parameters::Parameters;

/// The allowed outcomes of some keys; the conditions on all keys must hold. It has no key that
/// makes no difference, so two cubes with equal meaning are equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Cube {
    /// Sorted by key; no set is empty or full.
    tests: Vec<(Arc<str>, ValueSet<Arc<str>>)>,
}

/// A formula, or a part of one, that a single cube expresses.
pub(super) enum Simple {
    /// It never holds.
    Never,
    /// It holds for the parameters in the cube.
    Cube(Cube),
}

impl Cube {
    /// The cube of these sets, sorted by key; `None` when one of them is empty.
    pub(super) fn new(tests: Vec<(Arc<str>, ValueSet<Arc<str>>)>) -> Option<Self> {
        let mut tests = tests;
        tests.retain(|(_, set)| !set.is_full());
        (!tests.iter().any(|(_, set)| set.is_empty())).then_some(Self { tests })
    }

    pub(super) fn tests(&self) -> &[(Arc<str>, ValueSet<Arc<str>>)] {
        &self.tests
    }

    pub(super) fn set(&self, key: &str) -> Option<&ValueSet<Arc<str>>> {
        let at = self.tests.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
        Some(&self.tests[at].1)
    }

    /// Parameters in this cube.
    pub(super) fn sample(&self) -> Parameters {
        self.meet(&Self::default()).expect("no set of a cube is empty")
    }

    /// Parameters in both cubes, with only keys that one of the two names; `None` if there are none
    /// (T13).
    pub(super) fn meet(&self, other: &Self) -> Option<Parameters> {
        let mut chosen = Vec::with_capacity(self.tests.len() + other.tests.len());
        let mut theirs = other.tests.iter().peekable();
        // Both are sorted by key, so one pass is enough.
        for (key, set) in &self.tests {
            while let Some((key, set)) = theirs.next_if(|(other, _)| other < key) {
                chosen.push((key, concrete(set.any()?, &[set.values()])));
            }
            let value = match theirs.next_if(|(other, _)| other == key) {
                Some((_, theirs)) => concrete(set.meet(theirs)?, &[set.values(), theirs.values()]),
                None => concrete(set.any()?, &[set.values()]),
            };
            chosen.push((key, value));
        }
        for (key, set) in theirs {
            chosen.push((key, concrete(set.any()?, &[set.values()])));
        }
        let chosen = chosen.into_iter().filter_map(|(key, value)| Some((Arc::clone(key), value?)));
        Some(chosen.collect())
    }

    fn and(mut self, other: Self) -> Simple {
        if self.tests.is_empty() {
            return Simple::Cube(other);
        }
        let is_possible = other.tests.into_iter().all(|(key, set)| self.narrow(key, set));
        if is_possible { Simple::Cube(self) } else { Simple::Never }
    }

    /// Adds a condition on one key; false when no outcome of the key is left.
    fn narrow(&mut self, key: Arc<str>, set: ValueSet<Arc<str>>) -> bool {
        // Most formulas list their conditions in the order of the keys.
        if self.tests.last().is_none_or(|(last, _)| *last < key) {
            self.tests.push((key, set));
            return true;
        }
        match self.tests.binary_search_by(|(mine, _)| mine.cmp(&key)) {
            Ok(at) => {
                let both = self.tests[at].1.and(&set);
                let is_possible = !both.is_empty();
                self.tests[at].1 = both;
                is_possible
            }
            Err(at) => {
                self.tests.insert(at, (key, set));
                true
            }
        }
    }
}

impl Simple {
    /// The formula, or its negation, if one cube expresses it. Needs no diagram, and linear time
    /// per level.
    pub(super) fn of(formula: &Formula, negated: bool) -> Option<Self> {
        match formula {
            Formula::Equals { .. } | Formula::Exists { .. } => {
                let test = literal(formula, negated)?;
                Some(Self::Cube(Cube { tests: vec![test] }))
            }
            Formula::Not(part) => Self::of(part, !negated),
            Formula::All(parts) if !negated => Self::conjunction(parts, negated),
            Formula::Any(parts) if negated => Self::conjunction(parts, negated),
            Formula::All(parts) | Formula::Any(parts) => Self::disjunction(parts, negated),
        }
    }

    fn conjunction(parts: &[Formula], negated: bool) -> Option<Self> {
        let mut whole = Cube::default();
        let mut never = false;
        for part in parts {
            if let Some((key, set)) = literal(part, negated) {
                never |= !whole.narrow(key, set);
                continue;
            }
            match Self::of(part, negated)? {
                Self::Never => never = true,
                Self::Cube(_) if never => {}
                Self::Cube(cube) => match whole.and(cube) {
                    Self::Cube(both) => whole = both,
                    Self::Never => (never, whole) = (true, Cube::default()),
                },
            }
        }
        Some(if never { Self::Never } else { Self::Cube(whole) })
    }

    /// An OR is one cube only if all of its alternatives are about the same key.
    fn disjunction(parts: &[Formula], negated: bool) -> Option<Self> {
        let mut cubes = Vec::new();
        for part in parts {
            match Self::of(part, negated)? {
                Self::Never => {}
                Self::Cube(cube) if cube.tests.is_empty() => return Some(Self::Cube(cube)),
                Self::Cube(cube) => cubes.push(cube),
            }
        }
        cubes.dedup();
        if cubes.len() < 2 {
            return Some(cubes.pop().map_or(Self::Never, Self::Cube));
        }
        let key = Arc::clone(&cubes[0].tests[0].0);
        if cubes.iter().any(|cube| cube.tests.len() != 1 || cube.tests[0].0 != key) {
            return None;
        }
        let set = cubes.into_iter().flat_map(|cube| cube.tests).map(|(_, set)| set);
        let set = either(set.collect());
        let tests = if set.is_full() { Vec::new() } else { vec![(key, set)] };
        Some(Self::Cube(Cube { tests }))
    }
}

/// A condition on a single key, or its negation.
fn literal(formula: &Formula, negated: bool) -> Option<(Arc<str>, ValueSet<Arc<str>>)> {
    let (key, set) = match formula {
        Formula::Equals { key, value } => (key, ValueSet::only(Arc::clone(value))),
        Formula::Exists { key } => (key, ValueSet::present()),
        Formula::Not(part) => return literal(part, !negated),
        Formula::All(_) | Formula::Any(_) => return None,
    };
    Some((Arc::clone(key), if negated { set.complement() } else { set }))
}

/// The union of sets. Joins them by halves, because one by one would cost quadratic time.
fn either(mut sets: Vec<ValueSet<Arc<str>>>) -> ValueSet<Arc<str>> {
    match sets.len() {
        0 => ValueSet::none(),
        1 => sets.swap_remove(0),
        count => {
            let rest = sets.split_off(count / 2);
            either(sets).or(either(rest))
        }
    }
}

/// A value with this outcome, for formulas that name the values `named`; `None` for absent.
pub(super) fn concrete(outcome: KeyOutcome<Arc<str>>, named: &[&[Arc<str>]]) -> Option<Arc<str>> {
    match outcome {
        KeyOutcome::Absent => None,
        KeyOutcome::Value(value) => Some(value),
        KeyOutcome::Other => {
            Some(fresh(|text| named.iter().any(|values| values.iter().any(|value| **value == *text))))
        }
    }
}

/// A value that is not taken: `other`, else `other-2` and so on.
pub(super) fn fresh(is_taken: impl Fn(&str) -> bool) -> Arc<str> {
    let mut text = "other".to_owned();
    let mut number = 1;
    while is_taken(&text) {
        number += 1;
        text = format!("other-{number}");
    }
    text.into()
}

/// Every key and value that the formulas name, in byte order.
pub(super) fn named<'a>(
    formulas: impl IntoIterator<Item = &'a Formula>,
) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
    let mut named = BTreeMap::new();
    for formula in formulas {
        collect(formula, &mut named);
    }
    for values in named.values_mut() {
        values.sort_unstable();
        values.dedup();
    }
    named
}

fn collect(formula: &Formula, named: &mut BTreeMap<Arc<str>, Vec<Arc<str>>>) {
    match formula {
        Formula::Equals { key, value } => match named.get_mut(key) {
            Some(values) => values.push(Arc::clone(value)),
            None => drop(named.insert(Arc::clone(key), vec![Arc::clone(value)])),
        },
        Formula::Exists { key } => {
            if !named.contains_key(key) {
                named.insert(Arc::clone(key), Vec::new());
            }
        }
        Formula::All(parts) | Formula::Any(parts) => parts.iter().for_each(|part| collect(part, named)),
        Formula::Not(part) => collect(part, named),
    }
}
