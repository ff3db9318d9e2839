//! A world so small that every parameter set in it can be tried: the oracle of all properties here.

use std::sync::{Arc, LazyLock};

use quickcheck::{Arbitrary, Gen, QuickCheck, Testable};

use crate::constraint::Formula;
use crate::parameters::Parameters;

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "", "é"];

/// Every parameter set that formulas of this world can distinguish.
pub(super) static POINTS: LazyLock<Vec<Parameters>> = LazyLock::new(|| {
    let mut points = vec![Parameters::new()];
    for key in KEYS {
        let with = |point: &Parameters, value: Option<&str>| {
            let pairs = point.iter().map(|(key, value)| (Arc::clone(key), Arc::clone(value)));
            pairs.chain(value.map(|value| (key.into(), value.into()))).collect::<Parameters>()
        };
        let outcomes = || VALUES.into_iter().map(Some).chain([Some("fresh"), None]);
        points = points.iter().flat_map(|point| outcomes().map(move |value| with(point, value))).collect();
    }
    points
});

/// The points at which a formula holds, one bit each.
pub(super) fn truth(formula: &Formula) -> u128 {
    POINTS.iter().rev().fold(0, |bits, point| bits << 1 | u128::from(formula.matches(point)))
}

/// Holds at every point.
pub(super) const ALWAYS: u128 = (1 << 125) - 1;

pub(super) fn equals(key: &str, value: &str) -> Formula {
    Formula::Equals { key: key.into(), value: value.into() }
}

pub(super) fn exists(key: &str) -> Formula {
    Formula::Exists { key: key.into() }
}

pub(super) fn not(part: Formula) -> Formula {
    Formula::Not(Box::new(part))
}

pub(super) fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    pairs.iter().copied().collect()
}

/// A formula over the keys and values of this world; half of them are conjunctions of conditions on
/// single keys.
#[derive(Debug, Clone)]
pub(super) struct Written(pub(super) Formula);

impl Arbitrary for Written {
    fn arbitrary(g: &mut Gen) -> Self {
        if bool::arbitrary(g) {
            let keys = KEYS.into_iter().filter(|_| u8::arbitrary(g) % 4 > 0).collect::<Vec<_>>();
            return Self(Formula::All(keys.into_iter().map(|key| about(g, key)).collect()));
        }
        Self(tree(g, 3))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let parts = match &self.0 {
            Formula::Equals { .. } | Formula::Exists { .. } => return quickcheck::empty_shrinker(),
            Formula::Not(part) => return Box::new(std::iter::once(Self((**part).clone()))),
            Formula::All(parts) | Formula::Any(parts) => parts.clone(),
        };
        let is_all = matches!(self.0, Formula::All(_));
        let join = move |parts| Self(if is_all { Formula::All(parts) } else { Formula::Any(parts) });
        let fewer = (0..parts.len()).map({
            let parts = parts.clone();
            move |at| {
                let mut parts = parts.clone();
                parts.remove(at);
                join(parts)
            }
        });
        let smaller = (0..parts.len()).flat_map({
            let parts = parts.clone();
            move |at| {
                let parts = parts.clone();
                Self(parts[at].clone()).shrink().map(move |part| {
                    let mut parts = parts.clone();
                    parts[at] = part.0;
                    join(parts)
                })
            }
        });
        Box::new(parts.into_iter().map(Self).chain(fewer).chain(smaller))
    }
}

/// A condition on one key.
fn about(g: &mut Gen, key: &str) -> Formula {
    let value = |g: &mut Gen| *g.choose(&VALUES).unwrap();
    match u8::arbitrary(g) % 8 {
        0 => exists(key),
        1 => not(exists(key)),
        2 => not(equals(key, value(g))),
        3 => Formula::Any(vec![equals(key, value(g)), equals(key, value(g))]),
        4 => Formula::All(vec![exists(key), not(equals(key, value(g)))]),
        _ => equals(key, value(g)),
    }
}

fn tree(g: &mut Gen, depth: u32) -> Formula {
    let parts = |g: &mut Gen| {
        let count = [0, 1, 2, 2, 3, 3, 4][usize::arbitrary(g) % 7];
        (0..count).map(|_| tree(g, depth - 1)).collect()
    };
    match u8::arbitrary(g) % 8 {
        _ if depth == 0 => {
            let key = *g.choose(&KEYS).unwrap();
            about(g, key)
        }
        0 => {
            let key = *g.choose(&KEYS).unwrap();
            about(g, key)
        }
        1 => not(tree(g, depth - 1)),
        2..=4 => Formula::Any(parts(g)),
        _ => Formula::All(parts(g)),
    }
}

/// Checks a property many times, with lists of up to eleven items: no property uses more.
pub(super) fn check(property: impl Testable) {
    QuickCheck::new().rng(Gen::new(12)).tests(10_000).quickcheck(property);
}

/// The items in the order with this number. Every order has a number.
pub(super) fn shuffled<T>(mut items: Vec<T>, mut order: usize) -> Vec<T> {
    for at in (1..items.len()).rev() {
        items.swap(at, order % (at + 1));
        order /= at + 1;
    }
    items
}
