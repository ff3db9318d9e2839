//! A small world to check formulas in: three keys, each absent, empty, `x`, or a value that no
//! formula names.
//!
//! A formula over these keys and the values "" and `x` cannot distinguish more, so 64 points are
//! enough.

use std::sync::{Arc, OnceLock};

use quickcheck::{Arbitrary, Gen};

use super::Formula;
use crate::parameters::Parameters;

pub(super) const KEYS: [&str; 3] = ["env", "", "true"];
const VALUES: [&str; 2] = ["", "x"];

/// The outcome of a key at a point.
const ABSENT: usize = 0;
const OUTCOMES: [Option<&str>; 4] = [None, Some(VALUES[0]), Some(VALUES[1]), Some("fresh")];

/// The points at which a formula holds, one bit each. This evaluation shares no code with
/// `Formula::matches`.
pub(super) fn truth(formula: &Formula) -> u64 {
    match formula {
        Formula::Equals { key, value } => points_where(key, |outcome| OUTCOMES[outcome] == Some(&**value)),
        Formula::Exists { key } => points_where(key, |outcome| outcome != ABSENT),
        Formula::All(parts) => parts.iter().fold(u64::MAX, |points, part| points & truth(part)),
        Formula::Any(parts) => parts.iter().fold(0, |points, part| points | truth(part)),
        Formula::Not(part) => !truth(part),
    }
}

fn points_where(key: &str, holds: impl Fn(usize) -> bool) -> u64 {
    let at = KEYS.iter().position(|known| *known == key).expect("formulas are about these keys");
    (0..64).filter(|point| holds(outcome(*point, at))).fold(0, |points, point| points | 1 << point)
}

fn outcome(point: usize, key: usize) -> usize {
    point >> (2 * key) & 3
}

/// The parameters of every point.
pub(super) fn points() -> &'static [Parameters] {
    static POINTS: OnceLock<Vec<Parameters>> = OnceLock::new();
    POINTS.get_or_init(|| {
        let value = |point, key| Some((KEYS[key], OUTCOMES[outcome(point, key)]?));
        (0..64).map(|point| (0..3).filter_map(|key| value(point, key)).collect()).collect()
    })
}

/// Any formula of this world, to depth four.
#[derive(Debug, Clone)]
pub(super) struct AnyFormula(pub(super) Formula);

impl Arbitrary for AnyFormula {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(formula(g, 4))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(smaller(&self.0).into_iter().map(Self))
    }
}

fn formula(g: &mut Gen, depth: usize) -> Formula {
    let key = Arc::from(*g.choose(&KEYS).unwrap());
    match below(g, if depth == 0 { 2 } else { 7 }) {
        0 => Formula::Equals { key, value: Arc::from(*g.choose(&VALUES).unwrap()) },
        1 => Formula::Exists { key },
        2 | 3 => Formula::All((0..below(g, 4)).map(|_| formula(g, depth - 1)).collect()),
        4 | 5 => Formula::Any((0..below(g, 4)).map(|_| formula(g, depth - 1)).collect()),
        _ => Formula::Not(Box::new(formula(g, depth - 1))),
    }
}

/// The parts of a formula, and the formula with one part removed or made smaller.
fn smaller(formula: &Formula) -> Vec<Formula> {
    let lists = |parts: &[Formula]| {
        let without = (0..parts.len()).map(|at| [&parts[..at], &parts[at + 1..]].concat());
        let replaced = (0..parts.len()).flat_map(|at| {
            smaller(&parts[at]).into_iter().map(move |part| {
                let mut parts = parts.to_vec();
                parts[at] = part;
                parts
            })
        });
        without.chain(replaced).collect::<Vec<_>>()
    };
    match formula {
        Formula::Equals { .. } | Formula::Exists { .. } => Vec::new(),
        Formula::All(parts) => {
            parts.iter().cloned().chain(lists(parts).into_iter().map(Formula::All)).collect()
        }
        Formula::Any(parts) => {
            parts.iter().cloned().chain(lists(parts).into_iter().map(Formula::Any)).collect()
        }
        Formula::Not(part) => {
            let parts = smaller(part).into_iter().map(|part| Formula::Not(Box::new(part)));
            [(**part).clone()].into_iter().chain(parts).collect()
        }
    }
}

/// The formula, written in another way with the same canonical form: other order, other nesting,
/// De Morgan, double negation, an operand twice, constants that make no difference.
pub(super) fn rewritten(formula: &Formula, g: &mut Gen) -> Formula {
    let not = |formula| Formula::Not(Box::new(formula));
    let same = match formula {
        Formula::Equals { .. } | Formula::Exists { .. } => formula.clone(),
        Formula::Not(part) => not(rewritten(part, g)),
        Formula::All(parts) => rewritten_list(parts, Formula::All, &Formula::Any(Vec::new()), g),
        Formula::Any(parts) => rewritten_list(parts, Formula::Any, &Formula::All(Vec::new()), g),
    };
    match (below(g, 6), same) {
        (0, same) => not(not(same)),
        (1, same) => Formula::All(vec![same]),
        (2, same) => Formula::Any(vec![same]),
        (3, Formula::All(parts)) => not(Formula::Any(parts.into_iter().map(not).collect())),
        (3, Formula::Any(parts)) => not(Formula::All(parts.into_iter().map(not).collect())),
        (_, same) => same,
    }
}

fn rewritten_list(
    parts: &[Formula],
    list: fn(Vec<Formula>) -> Formula,
    absorbing: &Formula,
    g: &mut Gen,
) -> Formula {
    let mut parts: Vec<_> = parts.iter().map(|part| rewritten(part, g)).collect();
    if bool::arbitrary(g) {
        let twice = g.choose(&parts).cloned();
        parts.extend(twice);
    }
    if bool::arbitrary(g) {
        parts.push(Formula::Not(Box::new(absorbing.clone())));
    }
    for at in (1..parts.len()).rev() {
        parts.swap(at, below(g, at + 1));
    }
    if bool::arbitrary(g) {
        let tail = parts.split_off(below(g, parts.len() + 1));
        parts.push(list(tail));
    }
    list(parts)
}

pub(super) fn below(g: &mut Gen, bound: usize) -> usize {
    usize::arbitrary(g) % bound
}
