use std::collections::BTreeMap;
use std::sync::Arc;

use super::world::{ALWAYS, POINTS, Written, check, equals, exists, not, parameters, truth};
use crate::constraint::Formula;
use crate::matching::coverage::{Domains, Gap};
use crate::matching::value_set::{KeyOutcome, ValueSet};
use crate::matching::{KeySetRule, VariantSet};

type Set = VariantSet<usize>;

/// A set of the formulas, without those that overlap an earlier one.
fn set(formulas: &[Written]) -> (Set, Vec<Formula>) {
    let (mut set, mut kept) = (Set::new(), Vec::new());
    for Written(formula) in formulas.iter().take(6) {
        let insertion = (Arc::new(formula.clone()), kept.len());
        if let Ok(with) = set.edit([], [insertion], KeySetRule::Free) {
            set = with;
            kept.push(formula.clone());
        }
    }
    (set, kept)
}

fn whole() -> Formula {
    Formula::All(Vec::new())
}

#[test]
fn t18_gaps_are_found_exactly_if_there_are_any_and_no_variant_matches_them() {
    fn prop(formulas: Vec<Written>, within: Written) -> bool {
        let (set, kept) = set(&formulas);
        let coverage = set.coverage(&Domains::new(), &within.0, 4).unwrap();
        let covered = kept.iter().fold(0, |bits, formula| bits | truth(formula));
        let has_gap = truth(&within.0) & !covered != 0;
        let is_gap = |gap: &Gap| within.0.matches(&gap.witness) && set.resolve(&gap.witness).is_none();
        let dead = (0..kept.len()).filter(|id| truth(&kept[*id]) & truth(&within.0) == 0);
        coverage.gaps.is_empty() != has_gap
            && coverage.gaps.iter().all(is_gap)
            && coverage.dead.iter().map(|id| **id).eq(dead)
    }
    check(prop as fn(Vec<Written>, Written) -> bool);
}

#[test]
fn t18_all_gaps_together_are_all_that_is_uncovered() {
    fn prop(formulas: Vec<Written>) -> bool {
        let (set, kept) = set(&formulas);
        let coverage = set.coverage(&Domains::new(), &whole(), usize::MAX).unwrap();
        let uncovered = kept.iter().fold(ALWAYS, |bits, formula| bits & !truth(formula));
        let named = crate::matching::cube::named(&kept);
        // A key that no formula names can have any outcome, and all values that no formula names are
        // alike.
        let listed = coverage.gaps.iter().fold(0, |bits, gap| {
            let alike =
                named.iter().filter(|(key, _)| !gap.free.contains(key)).map(|(key, values)| {
                    match gap.witness.get(key) {
                        None => not(exists(key)),
                        Some(value) if values.contains(value) => equals(key, value),
                        Some(_) => {
                            let values = values.iter().map(|value| not(equals(key, value)));
                            Formula::All(values.chain([exists(key)]).collect())
                        }
                    }
                });
            bits | truth(&Formula::All(alike.collect()))
        });
        listed == uncovered
    }
    check(prop as fn(Vec<Written>) -> bool);
}

#[test]
fn t18_domains_limit_what_must_be_covered() {
    type Parts = (Vec<usize>, bool, bool);
    fn prop(formulas: Vec<Written>, a: Parts, b: Parts) -> bool {
        let (set, kept) = set(&formulas);
        let domain = |(values, inverted, absent): Parts| {
            let values = values.into_iter().map(|at| Arc::from(["x", "", "é"][at % 3])).collect();
            ValueSet::of(values, inverted, absent)
        };
        let domains = Domains::from([("a".into(), domain(a)), ("b".into(), domain(b))]);
        let named = format!("{kept:?}");
        let is_inside = |point: &crate::Parameters| {
            domains.iter().all(|(key, set)| {
                let outcome =
                    point.get(key).map_or(KeyOutcome::Absent, |value| KeyOutcome::Value(Arc::clone(value)));
                !named.contains(&format!("key: {key:?}")) || set.has(&outcome)
            })
        };
        let coverage = set.coverage(&domains, &whole(), 3).unwrap();
        let has_gap = POINTS.iter().any(|point| is_inside(point) && set.resolve(point).is_none());
        let is_gap = |gap: &Gap| is_inside(&gap.witness) && set.resolve(&gap.witness).is_none();
        let is_dead = |id: &usize| !POINTS.iter().any(|point| is_inside(point) && kept[*id].matches(point));
        coverage.gaps.is_empty() != has_gap
            && coverage.gaps.iter().all(is_gap)
            && coverage.dead.iter().map(|id| **id).eq((0..kept.len()).filter(is_dead))
    }
    check(prop as fn(Vec<Written>, Parts, Parts) -> bool);
}

#[test]
fn an_idle_key_is_one_that_no_answer_depends_on() {
    fn prop(formulas: Vec<Written>) -> bool {
        let (set, kept) = set(&formulas);
        let coverage = set.coverage(&Domains::new(), &whole(), 1).unwrap();
        let named = format!("{kept:?}");
        let depends = |key: &str| {
            let mut answers = BTreeMap::new();
            POINTS.iter().any(|point| {
                let rest: Vec<_> = point.iter().filter(|(other, _)| ***other != *key).collect();
                let answer = set.resolve(point);
                *answers.entry(rest).or_insert(answer) != answer
            })
        };
        let is_idle = |key: &&str| named.contains(&format!("key: {key:?}")) && !depends(key);
        coverage.idle_keys.iter().map(|key| &**key).eq(["a", "b", "c"].into_iter().filter(is_idle))
    }
    check(prop as fn(Vec<Written>) -> bool);
}

#[test]
fn t18_a_gap_says_which_keys_do_not_matter_in_it() {
    let variant = |env, version: Formula| Arc::new(Formula::All(vec![equals("env", env), version]));
    let v1 = || equals("version", "v1");
    let variants = [(variant("prod", v1()), 0), (variant("prod", not(v1())), 1), (variant("test", v1()), 2)];
    let set = Set::new().edit([], variants, KeySetRule::Equal).unwrap();
    let envs = ["prod", "qa", "test"].map(Arc::from).to_vec();
    let domains = Domains::from([("env".into(), ValueSet::of(envs, false, false))]);
    let coverage = set.coverage(&domains, &whole(), 10).unwrap();
    let gap = |pairs: &[(&str, &str)], free: &[&str]| Gap {
        witness: parameters(pairs),
        free: free.iter().copied().map(Arc::from).collect(),
    };
    let expected = [
        gap(&[("env", "qa")], &["version"]),
        gap(&[("env", "test")], &[]),
        gap(&[("env", "test"), ("version", "other")], &[]),
    ];
    assert_eq!(coverage.gaps, expected);
}

#[test]
fn t18_more_combinations_than_128_bits_are_counted() {
    let key = |at: usize| format!("k{at:02}");
    let value =
        |at: usize| Formula::Any((0..16).map(|value| equals(&key(at), &format!("{value}"))).collect());
    let inside = Formula::All((0..40).map(value).collect());
    let edge = Formula::All((0..39).map(value).chain([exists(&key(39)), not(value(39))]).collect());
    let outside = not(Formula::All((0..39).map(value).chain([exists(&key(39))]).collect()));
    let variants = [(Arc::new(inside), 0), (Arc::new(edge), 1), (Arc::new(outside), 2)];
    let set = Set::new().edit([], variants.clone(), KeySetRule::Equal).unwrap();
    assert_eq!(set.coverage(&Domains::new(), &whole(), 1).unwrap().gaps, []);
    let set = set.edit([&*variants[1].0], [], KeySetRule::Equal).unwrap();
    let gaps = set.coverage(&Domains::new(), &whole(), 1).unwrap().gaps;
    assert_eq!(gaps[0].witness.get("k39").map(|value| &**value), Some("other"));
    assert!(set.resolve(&gaps[0].witness).is_none());
}
