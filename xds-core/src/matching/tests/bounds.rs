//! Limits of size and work that hold for any formulas. They are counted in nodes and bytes, never
//! in seconds.

use std::sync::Arc;

use super::large::Dice;
use super::world::{equals, exists, not};
use crate::constraint::{Constraints, Formula};
use crate::matching::normal::{NODE_BUDGET, Normal};
use crate::matching::{KeySetRule, SetError, VariantSet};

fn all(parts: impl IntoIterator<Item = Formula>) -> Formula {
    Formula::All(parts.into_iter().collect())
}

fn any(parts: impl IntoIterator<Item = Formula>) -> Formula {
    Formula::Any(parts.into_iter().collect())
}

fn test(key: usize, value: usize) -> Formula {
    equals(&format!("key-{key}"), &format!("value-{value}"))
}

/// W1: four keys, each with an exact value.
fn exact(count: usize) -> Vec<Formula> {
    let side = (1..).find(|side: &usize| side.pow(4) >= count).expect("there is a root");
    (0..count).map(|at| all((0..4).map(|key| test(key, at / side.pow(key as u32) % side)))).collect()
}

/// W2: lists of values, and the rest of one of them.
fn lists(count: usize) -> Vec<Formula> {
    let list = |key, at: usize| any((0..5).map(move |value| test(key, at * 5 + value)));
    let pair = |at: usize| all([list(0, at / 30), list(1, at % 30)]);
    let rest = |at: usize| all([not(any((0..count / 30 * 5).map(|value| test(0, value)))), list(1, at)]);
    (0..count / 30 * 30).map(pair).chain((0..30).map(rest)).collect()
}

/// W3a: alternatives, each of which is a path of one random tree.
fn tree_paths(count: usize) -> Vec<Formula> {
    fn split(dice: &mut Dice, path: &[Formula], free: &[usize], depth: usize, paths: &mut Vec<Formula>) {
        if depth == 0 || free.is_empty() {
            paths.push(all(path.iter().cloned()));
            return;
        }
        let key = free[dice.below(free.len())];
        let free: Vec<_> = free.iter().copied().filter(|other| *other != key).collect();
        for value in 0..3 {
            split(dice, &[path, &[test(key, value)]].concat(), &free, depth - 1, paths);
        }
        let none = not(any((0..3).map(|value| test(key, value))));
        split(dice, &[path, &[none]].concat(), &free, depth - 1, paths);
    }
    let mut paths = Vec::new();
    let depth = (1..).find(|depth| 4_usize.pow(*depth) >= count * 4).expect("there is a logarithm");
    split(&mut Dice(3), &[], &[0, 1, 2, 3, 4, 5, 6, 7], depth as usize, &mut paths);
    let mut dice = Dice(4);
    for at in (1..paths.len()).rev() {
        paths.swap(at, dice.below(at + 1));
    }
    paths.chunks(4).take(count).map(|paths| any(paths.iter().cloned())).collect()
}

/// W3b: three alternatives over six of eight keys.
fn random_alternatives(count: usize) -> Vec<Formula> {
    let mut dice = Dice(5);
    let term = |dice: &mut Dice| {
        let skipped = [dice.below(8), dice.below(8)];
        let keys: Vec<_> = (0..8).filter(|key| !skipped.contains(key)).collect();
        all(keys.into_iter().map(|key| test(key, dice.below(16))).collect::<Vec<_>>())
    };
    (0..count).map(|_| any((0..3).map(|_| term(&mut dice)).collect::<Vec<_>>())).collect()
}

/// W4: one of 32 keys has a value of its own for each variant. Each variant also names two of the
/// other keys.
fn sparse(count: usize, wide: usize) -> Vec<Formula> {
    let others: Vec<_> = (0..32).filter(|key| *key != wide).collect();
    let variant =
        |at: usize| all([test(wide, at), test(others[at % 31], at % 3), test(others[at * 7 % 31], at % 3)]);
    (0..count).filter(|at| at % 31 != at * 7 % 31).map(variant).collect()
}

/// W5: one key.
fn one_key(count: usize) -> Vec<Formula> {
    (0..count).map(|value| test(0, value)).collect()
}

/// An AND of the formulas.
fn set(formulas: Vec<Formula>) -> VariantSet<usize> {
    let mut left: Vec<_> = formulas.into_iter().map(Arc::new).zip(0..).collect();
    loop {
        match VariantSet::new().edit([], left.iter().cloned(), KeySetRule::Free) {
            Ok(set) => return set,
            Err(SetError::Overlap { second, .. }) => left.retain(|(_, id)| *id != second),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_tree_of_every_workload_is_smaller_than_what_it_is_made_from() {
    let workloads = [
        ("W1", exact(1_000)),
        ("W2", lists(900)),
        ("W3a", tree_paths(250)),
        ("W3b", random_alternatives(250)),
        ("W4, wide key first", sparse(1_000, 0)),
        ("W4, wide key last", sparse(1_000, 31)),
        ("W5", one_key(2_000)),
    ];
    for (name, formulas) in workloads {
        let count = formulas.len();
        let set = set(formulas);
        assert!(set.len() > count * 9 / 10, "{name}: {} of {count} go together", set.len());
        let wire = |formula: &Formula| Constraints::from_formula(formula.clone()).unwrap().wire().len();
        let input: usize = set.iter().map(|(formula, _)| wire(formula)).sum();
        let size = set.size();
        assert!(size.tree_bytes <= input, "{name}: {} bytes of {input}", size.tree_bytes);
    }
}

/// Formulas that are made to need much work, but small enough for some budget.
fn hostile() -> Vec<Formula> {
    let same =
        |one: usize, other: usize| any((0..8).map(move |value| all([test(one, value), test(other, value)])));
    let pairs = |count: usize| all((0..count).map(|at| same(at, at + count)));
    let pigeon = |pigeon: usize, hole: usize| exists(&format!("{pigeon} in {hole}"));
    let pigeons = |count: usize| {
        let somewhere = (0..count).map(|one| any((1..count).map(move |hole| pigeon(one, hole))));
        let apart =
            (0..count).flat_map(|one| (0..one).map(move |other| (one, other))).flat_map(|(one, other)| {
                (1..count).map(move |hole| not(all([pigeon(one, hole), pigeon(other, hole)])))
            });
        all(somewhere.chain(apart).collect::<Vec<_>>())
    };
    let ladder = |depth: usize| {
        (0..depth).fold(exists("k"), |below, at| {
            let parts = [test(at % 11, at % 5), below];
            if at % 2 == 0 { all(parts) } else { any(parts) }
        })
    };
    let alternatives = |count: usize| any(random_alternatives(count));
    let mut formulas = vec![ladder(32), ladder(64), alternatives(4), alternatives(30)];
    formulas.extend([2, 3, 4, 6].map(pairs));
    formulas.extend([4, 6, 9].map(pigeons));
    formulas
}

#[test]
fn t13_a_hostile_formula_stops_at_its_budget_or_means_what_it_means_with_any_other() {
    for formula in hostile() {
        let known = Normal::of(&formula).ok().map(|normal| normal.digest());
        let mut judged = known.is_some();
        for budget in [16_384, 4_096, 1_024, 256, 64, 16, 4, 1, 0] {
            match Normal::within(&formula, budget) {
                Ok(normal) => {
                    assert!(judged, "a larger budget did not suffice");
                    assert_eq!(Some(normal.digest()), known);
                }
                Err(error) => {
                    judged = false;
                    assert_eq!(error.budget, budget);
                    // The node that exceeds the budget may have an edge for each of 16 values.
                    assert!((budget + 1..=budget + 32).contains(&error.nodes), "{error}");
                }
            }
        }
    }
}

#[test]
fn t13_a_set_refuses_what_is_too_complex_and_stays_as_it_was() {
    let before = set(one_key(50));
    let size = before.size();
    let (mut taken, mut refused) = (0, 0);
    for formula in hostile() {
        let formula = all([test(0, 1_000), formula]);
        match before.edit([], [(Arc::new(formula.clone()), 99)], KeySetRule::Free) {
            Ok(after) => {
                taken += 1;
                assert_eq!(after.len(), 51);
                assert!(Normal::of(&formula).is_ok());
            }
            Err(SetError::TooComplex { variant: 99, reason }) => {
                refused += 1;
                assert_eq!(reason.budget, NODE_BUDGET);
            }
            Err(SetError::Unsatisfiable { variant: 99 }) => assert!(Normal::of(&formula).is_ok()),
            Err(error) => panic!("{error}"),
        }
        assert_eq!((before.len(), before.size()), (50, size));
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}
