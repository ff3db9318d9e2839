use super::world::{ALWAYS, POINTS, Written, check, equals, exists, not, truth};
use crate::constraint::Formula;
use crate::matching::normal::{MeaningDigest, NODE_BUDGET, Normal};
use crate::matching::value_set::{KeyOutcome, ValueSet};
use crate::parameters::Parameters;

fn normal(formula: &Formula) -> Normal {
    Normal::of(formula).unwrap()
}

/// Whether the normal form matches some parameters: whether it meets the formula of exactly these.
fn holds(normal: &Normal, point: &Parameters) -> bool {
    let keys = ["a", "b", "c"]
        .map(|key| point.get(key).map_or_else(|| not(exists(key)), |value| equals(key, value)));
    normal.meet(&self::normal(&Formula::All(keys.to_vec()))).unwrap().is_some()
}

#[test]
fn the_normal_form_matches_what_the_formula_does() {
    fn prop(written: Written, at: usize) -> bool {
        let form = normal(&written.0);
        // All points are tried for one formula in ten, so that the test stays quick.
        let points = POINTS.iter().skip(at % 10).step_by(10);
        points.into_iter().all(|point| holds(&form, point) == written.0.matches(point))
    }
    check(prop as fn(Written, usize) -> bool);
}

#[test]
fn the_digest_is_equal_exactly_for_equal_meaning() {
    fn prop(left: Written, right: Written) -> bool {
        let (one, other) = (normal(&left.0), normal(&right.0));
        let is_equal = truth(&left.0) == truth(&right.0);
        (one.digest() == other.digest()) == is_equal && (one == other) == is_equal
    }
    check(prop as fn(Written, Written) -> bool);
}

#[test]
fn the_digest_does_not_depend_on_the_way_of_writing() {
    fn rewritten(formula: &Formula) -> Formula {
        match formula {
            Formula::Equals { .. } | Formula::Exists { .. } => not(not(formula.clone())),
            Formula::Not(part) => not(rewritten(part)),
            // De Morgan, in reverse order, with the first part twice.
            Formula::All(parts) => not(Formula::Any(
                parts.iter().rev().chain(parts.first()).map(|part| not(rewritten(part))).collect(),
            )),
            Formula::Any(parts) => not(Formula::All(
                parts.iter().rev().chain(parts.first()).map(|part| not(rewritten(part))).collect(),
            )),
        }
    }
    fn prop(written: Written) -> bool {
        normal(&written.0).digest() == normal(&rewritten(&written.0)).digest()
    }
    check(prop as fn(Written) -> bool);
}

#[test]
fn a_tangled_way_to_write_a_cube_has_the_digest_of_the_cube() {
    let cube = Formula::All(vec![equals("a", "x"), equals("b", "y")]);
    let split = |part: Formula| Formula::All(vec![cube.clone(), part]);
    let tangled = Formula::Any(vec![split(equals("c", "z")), split(not(equals("c", "z")))]);
    assert_eq!(normal(&tangled), normal(&cube));
    assert_eq!(normal(&tangled).digest(), normal(&cube).digest());
}

/// `digests.txt` has a digest and a formula in each line. Digests must be equal on every machine
/// and in every version, because programs may store them or compare them between replicas.
#[test]
fn digests_stay_as_they_are() {
    let lines: Vec<_> = include_str!("digests.txt").lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(lines.len() >= 50);
    for (expected, text) in &lines {
        let MeaningDigest(bytes) = normal(&text.parse().unwrap()).digest();
        let digest: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, *expected, "{text}");
    }
}

#[test]
fn t17_unsatisfiable_and_always_true_are_known() {
    fn prop(written: Written) -> bool {
        let form = normal(&written.0);
        let truth = truth(&written.0);
        let is_tautology = form.alternatives() == Some(vec![&[][..]]);
        form.is_unsatisfiable() == (truth == 0) && is_tautology == (truth == ALWAYS)
    }
    check(prop as fn(Written) -> bool);
}

#[test]
fn t13_a_meeting_is_found_exactly_if_there_is_one_and_the_witness_proves_it() {
    fn prop(left: Written, right: Written) -> bool {
        let found = normal(&left.0).meet(&normal(&right.0)).unwrap();
        let named = |key: &str| format!("{left:?}{right:?}").contains(&format!("{key:?}"));
        match found {
            None => truth(&left.0) & truth(&right.0) == 0,
            Some(witness) => {
                let matches = left.0.matches(&witness) && right.0.matches(&witness);
                matches && witness.iter().all(|(key, _)| named(key))
            }
        }
    }
    check(prop as fn(Written, Written) -> bool);
}

#[test]
fn a_sample_matches() {
    fn prop(written: Written) -> bool {
        let sample = normal(&written.0).sample();
        sample.map_or_else(|| truth(&written.0) == 0, |sample| written.0.matches(&sample))
    }
    check(prop as fn(Written) -> bool);
}

#[test]
fn a_small_budget_gives_the_same_answer_or_none() {
    fn prop(written: Written, budget: u8) -> bool {
        match Normal::within(&written.0, usize::from(budget) % 12) {
            Ok(form) => form.digest() == normal(&written.0).digest(),
            Err(error) => error.nodes > error.budget,
        }
    }
    check(prop as fn(Written, u8) -> bool);
}

#[test]
fn t13_pairs_far_apart_are_refused_as_too_complex() {
    let pair = |at: usize| {
        let same = (0..16).map(|value| {
            let value = format!("{value}");
            Formula::All(vec![equals(&format!("a{at}"), &value), equals(&format!("b{at}"), &value)])
        });
        Formula::Any(same.collect())
    };
    let error = Normal::of(&Formula::All((0..6).map(pair).collect())).unwrap_err();
    assert_eq!((error.budget, error.keys), (NODE_BUDGET, 12));
    assert!(Normal::of(&Formula::All((0..3).map(pair).collect())).is_ok());
}

#[test]
fn t13_pigeons_without_enough_holes_fit_nowhere_or_are_too_complex() {
    let pigeons = |pigeons: usize, holes: usize| {
        let at = |pigeon: usize, hole: usize| equals(&format!("p{pigeon}h{hole}"), "1");
        let somewhere =
            (0..pigeons).map(|pigeon| Formula::Any((0..holes).map(|hole| at(pigeon, hole)).collect()));
        let pairs = (0..pigeons).flat_map(|one| (0..one).map(move |other| (one, other)));
        let alone = pairs.flat_map(|(one, other)| {
            (0..holes).map(move |hole| not(Formula::All(vec![at(one, hole), at(other, hole)])))
        });
        Formula::All(somewhere.chain(alone).collect())
    };
    assert!(Normal::of(&pigeons(4, 3)).unwrap().is_unsatisfiable());
    assert!(!Normal::of(&pigeons(3, 3)).unwrap().is_unsatisfiable());
    assert!(Normal::of(&pigeons(11, 10)).is_err());
}

/// A set of numbers below 6, inverted or not, with absent or without. To try 0..7 and absent is
/// enough.
fn value_set((values, inverted, absent): (Vec<u8>, bool, bool)) -> ValueSet<u8> {
    ValueSet::of(values.into_iter().map(|value| value % 6).collect(), inverted, absent)
}

#[test]
fn value_sets_are_an_algebra() {
    type Parts = (Vec<u8>, bool, bool);
    fn prop(left: Parts, right: Parts) -> bool {
        let (left, right) = (value_set(left), value_set(right));
        let (both, either, neither) =
            (left.and(&right), left.clone().or(right.clone()), left.clone().complement());
        let outcomes = || (0..7).map(KeyOutcome::Value).chain([KeyOutcome::Absent, KeyOutcome::Other]);
        let is_met = match left.meet(&right) {
            Some(outcome) => left.has(&outcome) && right.has(&outcome),
            None => both.is_empty(),
        };
        let some = left.any().map_or(left.is_empty(), |outcome| left.has(&outcome));
        is_met
            && some
            && left.is_full() == outcomes().all(|outcome| left.has(&outcome))
            && left.is_empty() != outcomes().any(|outcome| left.has(&outcome))
            && outcomes().all(|outcome| {
                let (in_left, in_right) = (left.has(&outcome), right.has(&outcome));
                both.has(&outcome) == (in_left && in_right)
                    && either.has(&outcome) == (in_left || in_right)
                    && neither.has(&outcome) != in_left
            })
    }
    check(prop as fn(Parts, Parts) -> bool);
}
