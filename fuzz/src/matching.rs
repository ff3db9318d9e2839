//! Sets of variants, compared with a scan of all variants.
//!
//! The tests of `xds-core` lower a limit so that small formulas exceed it; here the limit has its
//! real value.

use std::collections::BTreeMap;
use std::sync::Arc;

use xds_core::matching::coverage::Domains;
use xds_core::matching::normal::Normal;
use xds_core::matching::{KeySetRule, SetError};
use xds_core::{Formula, Parameters, VariantSet};

/// Reads a formula in the `when:` syntax from each line, and adds its variant to a set. If the line
/// begins with `-`, removes the variant from the set.
///
/// # Panics
/// When a property does not hold.
pub fn variant_sets(raw: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(raw) else { return false };
    let steps: Vec<_> = text.lines().take(STEP_LIMIT).filter_map(step).collect();
    let formulas = || steps.iter().map(|step| &step.formula);
    let world = World::of(formulas().map(|formula| &**formula));
    let truths: Vec<_> = formulas().map(|formula| world.truth(formula)).collect();

    let mut set = VariantSet::new();
    let mut model: Vec<usize> = Vec::new();
    for (id, step) in steps.iter().enumerate() {
        if step.is_removal {
            set = set.edit([&*step.formula], [], KeySetRule::Free).expect("a removal cannot fail");
            // If only a part of the points is tried, two formulas can look equal without being
            // equal.
            let means_the_same = |other: &usize| {
                let (one, other) = (Normal::of(&step.formula), Normal::of(&steps[*other].formula));
                matches!((one, other), (Ok(one), Ok(other)) if one.digest() == other.digest())
            };
            model.retain(|other| !means_the_same(other));
        } else {
            let meets = |other: &usize| world.meets(&truths[id], &truths[*other]);
            match set.edit([], [(Arc::clone(&step.formula), id)], KeySetRule::Free) {
                Ok(edited) => {
                    assert!(!model.iter().any(meets), "{} overlaps another", step.formula);
                    assert!(!world.is_whole || truths[id].contains(&true), "{} never matches", step.formula);
                    set = edited;
                    model.push(id);
                }
                Err(SetError::Overlap { first, second, witness }) => {
                    assert!(second == id && model.contains(&first));
                    for formula in [&steps[first].formula, &step.formula] {
                        assert!(formula.matches(&witness), "{formula} at {witness:?}");
                    }
                    let (one, other) = (steps[first].formula.keys(), step.formula.keys());
                    let is_named = |key| one.contains(key) || other.contains(key);
                    assert!(witness.iter().all(|(key, _)| is_named(key)), "{witness:?}");
                }
                Err(SetError::Unsatisfiable { variant }) => {
                    assert_eq!(variant, id);
                    assert!(!truths[id].contains(&true), "{} matches", step.formula);
                }
                Err(SetError::TooComplex { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        check(&set, &model, &world, &truths);
    }

    let variants = model.iter().map(|id| (Arc::clone(&steps[*id].formula), *id));
    if let Ok(at_once) = VariantSet::new().edit([], variants, KeySetRule::Free) {
        check(&at_once, &model, &world, &truths);
    }
    for (one, other) in steps.windows(2).zip(truths.windows(2)).filter_map(|(steps, truths)| {
        let normal = |step: &Step| Normal::of(&step.formula).ok();
        Some(((normal(&steps[0])?, &truths[0]), (normal(&steps[1])?, &truths[1])))
    }) {
        let is_equal = one.0.digest() == other.0.digest();
        assert!(if world.is_whole { is_equal == (one.1 == other.1) } else { !is_equal || one.1 == other.1 });
    }
    if let Some(last) = steps.last() {
        questions(&set, &model, &world, &truths, last);
    }
    !model.is_empty()
}

struct Step {
    is_removal: bool,
    formula: Arc<Formula>,
}

fn step(line: &str) -> Option<Step> {
    let (is_removal, text) = line.strip_prefix('-').map_or((false, line), |text| (true, text));
    Some(Step { is_removal, formula: Arc::new(text.parse().ok()?) })
}

/// Compares a set with a scan of its variants.
fn check(set: &VariantSet<usize>, model: &[usize], world: &World, truths: &[Vec<bool>]) {
    assert_eq!(set.len(), model.len());
    for (at, point) in world.points.iter().enumerate() {
        let expected = model.iter().find(|id| truths[**id][at]);
        assert_eq!(set.resolve(point), expected, "{point:?}");
        if at % 8 == 0 {
            assert_eq!(set.prepare(point).resolve(), expected, "{point:?}");
            assert_eq!(set.explain(point).found.map(|(_, id)| id), expected, "{point:?}");
        }
    }
}

/// Checks the variants that parameters of one formula can and cannot get.
fn questions(set: &VariantSet<usize>, model: &[usize], world: &World, truths: &[Vec<bool>], last: &Step) {
    let within = &truths[truths.len() - 1];
    if let Ok(found) = set.reachable(&last.formula) {
        for (id, sample) in &found {
            assert!(set.resolve(sample) == Some(*id) && last.formula.matches(sample), "{sample:?}");
        }
        let is_found = |id: &usize| found.iter().any(|(other, _)| *other == id);
        assert!(model.iter().all(|id| is_found(id) || !world.meets(within, &truths[*id])));
    }
    if let Ok(coverage) = set.coverage(&Domains::new(), &last.formula, 3) {
        for gap in &coverage.gaps {
            assert!(set.resolve(&gap.witness).is_none() && last.formula.matches(&gap.witness), "{gap:?}");
        }
        let is_uncovered = |at: usize| within[at] && !model.iter().any(|id| truths[*id][at]);
        let has_gap = (0..world.points.len()).any(is_uncovered);
        assert!(!has_gap || !coverage.gaps.is_empty(), "a gap is not reported");
        assert!(!world.is_whole || has_gap != coverage.gaps.is_empty(), "{:?} is no gap", coverage.gaps);
        for id in coverage.dead {
            assert!(!world.meets(within, &truths[*id]));
        }
    }
}

/// Parameters to try: all that the formulas distinguish, if these are few.
struct World {
    points: Vec<Parameters>,
    is_whole: bool,
}

impl World {
    fn of<'a>(formulas: impl Iterator<Item = &'a Formula>) -> Self {
        let mut named = BTreeMap::new();
        let leaves: usize = formulas.map(|formula| name_values(formula, &mut named)).sum();
        for values in named.values_mut() {
            values.sort_unstable();
            values.dedup();
        }
        let outcomes = named.values().map(|values: &Vec<&str>| values.len() as u64 + 2);
        let all = outcomes.fold(1_u64, u64::saturating_mul);
        let is_whole = all.saturating_mul(leaves as u64) <= WORK_LIMIT;
        let point = |mut number: u64| -> Parameters {
            let value = |(key, values): (&&'a str, &Vec<&'a str>)| {
                let outcomes = values.len() as u64 + 2;
                let outcome = (number % outcomes) as usize;
                number /= outcomes;
                match outcome {
                    0 => None,
                    1 => Some((*key, FRESH)),
                    named => Some((*key, values[named - 2])),
                }
            };
            named.iter().filter_map(value).collect()
        };
        let points = if is_whole {
            (0..all).map(point).collect()
        } else {
            // The samples are far apart, and all keys vary.
            (1..=SAMPLES).map(|at| point(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
        };
        Self { points, is_whole }
    }

    fn truth(&self, formula: &Formula) -> Vec<bool> {
        self.points.iter().map(|point| formula.matches(point)).collect()
    }

    /// Whether a point matches the two formulas. If not all points are tried, `false` is no proof.
    fn meets(&self, one: &[bool], other: &[bool]) -> bool {
        one.iter().zip(other).any(|(one, other)| *one && *other)
    }
}

/// Collects the values of each key, and counts the leaves.
fn name_values<'a>(formula: &'a Formula, named: &mut BTreeMap<&'a str, Vec<&'a str>>) -> usize {
    match formula {
        Formula::Equals { key, value } => {
            named.entry(key).or_default().push(value);
            1
        }
        Formula::Exists { key } => {
            named.entry(key).or_default();
            1
        }
        Formula::All(parts) | Formula::Any(parts) => parts.iter().map(|part| name_values(part, named)).sum(),
        Formula::Not(part) => name_values(part, named),
    }
}

const FRESH: &str = "a value that no formula names";

/// More variants find the same errors more slowly.
const STEP_LIMIT: usize = 24;

/// All points are tried if points times leaves is at most this number.
const WORK_LIMIT: u64 = 50_000;

/// The number of points that are tried when there are too many.
const SAMPLES: u64 = 128;

pub(crate) const WORDS: &[&[u8]] = &[
    b"\n",
    b"\n-",
    b"a=1",
    b"a!=1",
    b"b=2",
    b"b!=2",
    b"c",
    b"!c",
    b",",
    b"||",
    b"!(",
    b"(",
    b")",
    b"k in (x,y)",
    b"k notin (x,y)",
    b"k=z",
    b"\na=1,b=1\na=1,b=2\na=2,b=1",
    b"(a=1,b=1)||(a=2,b=2)||(a=3,b=3)",
    b"true",
    b"a||!a",
];
