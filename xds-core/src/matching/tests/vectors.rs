use std::sync::Arc;

use super::world::{equals, exists, not, parameters};
use crate::constraint::Formula;
use crate::matching::{KeySetRule, SetError, VariantSet};

type Set = VariantSet<&'static str>;

fn set(rule: KeySetRule, variants: &[(&Formula, &'static str)]) -> Result<Set, SetError<&'static str>> {
    Set::new().edit([], variants.iter().map(|(formula, id)| (Arc::new((*formula).clone()), *id)), rule)
}

fn all(parts: &[Formula]) -> Formula {
    Formula::All(parts.to_vec())
}

fn any(parts: &[Formula]) -> Formula {
    Formula::Any(parts.to_vec())
}

/// The witness of the overlap of two formulas, as text; `None` if they are disjoint.
fn overlap(left: &Formula, right: &Formula) -> Option<String> {
    match set(KeySetRule::Free, &[(left, "left"), (right, "right")]) {
        Ok(_) => None,
        Err(SetError::Overlap { first: "left", second: "right", witness }) => {
            assert!(left.matches(&witness) && right.matches(&witness));
            Some(witness.iter().map(|(key, value)| format!("{key}={value};")).collect())
        }
        Err(error) => panic!("{error}"),
    }
}

fn prod() -> Formula {
    equals("env", "prod")
}

#[test]
fn t14_different_values_are_disjoint() {
    assert_eq!(overlap(&prod(), &equals("env", "test")), None);
}

#[test]
fn t14_lists_with_a_common_value_overlap_in_it() {
    let (left, right) =
        (any(&[prod(), equals("env", "test")]), any(&[equals("env", "qa"), equals("env", "test")]));
    assert_eq!(overlap(&left, &right).as_deref(), Some("env=test;"));
}

#[test]
fn t14_a_narrower_variant_overlaps_and_names_other_keys() {
    let narrower = all(&[prod(), equals("version", "v1")]);
    assert_eq!(overlap(&prod(), &narrower).as_deref(), Some("env=prod;version=v1;"));
}

#[test]
fn t14_absent_and_a_value_are_disjoint() {
    let (left, right) = (all(&[prod(), not(exists("version"))]), all(&[prod(), equals("version", "v1")]));
    assert_eq!(overlap(&left, &right), None);
}

#[test]
fn t14_not_a_value_and_not_there_overlap_where_the_key_is_absent() {
    assert_eq!(overlap(&not(prod()), &not(exists("env"))).as_deref(), Some(""));
}

#[test]
fn t14_the_empty_value_is_there() {
    assert_eq!(overlap(&exists("env"), &equals("env", "")).as_deref(), Some("env=;"));
}

#[test]
fn t14_no_constraints_overlap_everything_that_can_match() {
    assert_eq!(overlap(&all(&[]), &prod()).as_deref(), Some("env=prod;"));
    assert_eq!(overlap(&not(exists("env")), &all(&[])).as_deref(), Some(""));
}

#[test]
fn t14_different_keys_overlap() {
    assert_eq!(overlap(&prod(), &equals("version", "v1")).as_deref(), Some("env=prod;version=v1;"));
}

#[test]
fn t14_an_empty_list_of_alternatives_overlaps_nothing_since_it_matches_nothing() {
    let never = set(KeySetRule::Free, &[(&any(&[]), "never"), (&all(&[]), "all")]);
    assert_eq!(never.unwrap_err(), SetError::Unsatisfiable { variant: "never" });
}

#[test]
fn t12_keys_are_those_written_down_and_t15_strict_is_the_default() {
    let (left, right) = (all(&[prod(), not(exists("version"))]), equals("env", "test"));
    let error = set(KeySetRule::default(), &[(&left, "left"), (&right, "right")]).unwrap_err();
    let (only_first, only_second) = (vec!["version".into()], Vec::new());
    assert_eq!(error, SetError::KeySets { first: "left", second: "right", only_first, only_second });
    // A condition that names a key without a restriction makes the key sets equal.
    let listed = all(&[right, any(&[exists("version"), not(exists("version"))])]);
    assert!(set(KeySetRule::Equal, &[(&left, "left"), (&listed, "right")]).is_ok());
}

#[test]
fn t15_disjoint_variants_of_different_keys_are_accepted_when_that_rule_is_lowered() {
    let (left, right) = (all(&[prod(), not(exists("version"))]), equals("env", "test"));
    let set = set(KeySetRule::Free, &[(&left, "left"), (&right, "right")]).unwrap();
    assert_eq!(set.key_sets().map(|(keys, count)| (keys.len(), count)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert_eq!(set.resolve(&parameters(&[("env", "prod")])), Some(&"left"));
}

#[test]
fn t15_an_overlap_is_refused_with_a_witness_under_either_rule() {
    for rule in [KeySetRule::Equal, KeySetRule::Free] {
        let error = set(rule, &[(&prod(), "a"), (&not(equals("env", "test")), "b")]).unwrap_err();
        let witness = parameters(&[("env", "prod")]);
        assert_eq!(error.to_string(), "two variants match the parameters env=\"prod\"");
        assert_eq!(error, SetError::Overlap { first: "a", second: "b", witness });
    }
}

#[test]
fn t16_a_variant_gives_its_place_to_others_in_one_edit_and_not_in_two() {
    let before = set(KeySetRule::Equal, &[(&prod(), "old")]).unwrap();
    let parts = ["v1", "v2"].map(|version| (Arc::new(all(&[prod(), equals("version", version)])), version));
    assert!(matches!(before.edit([], parts.clone(), KeySetRule::Equal), Err(SetError::Overlap { .. })));
    let after = before.edit([&prod()], parts, KeySetRule::Equal).unwrap();
    assert_eq!(after.resolve(&parameters(&[("env", "prod"), ("version", "v2")])), Some(&"v2"));
    assert_eq!(after.resolve(&parameters(&[("env", "prod")])), None);
    assert_eq!(before.resolve(&parameters(&[("env", "prod")])), Some(&"old"));
}

#[test]
fn t17_what_can_never_match_is_refused() {
    let never = all(&[equals("k", "a"), equals("k", "b")]);
    assert_eq!(
        set(KeySetRule::Equal, &[(&never, "a")]).unwrap_err(),
        SetError::Unsatisfiable { variant: "a" }
    );
}

#[test]
fn t17_what_always_matches_may_be_the_only_variant() {
    let always = any(&[exists("k"), not(exists("k"))]);
    assert_eq!(set(KeySetRule::Equal, &[(&always, "a")]).unwrap().resolve(&parameters(&[])), Some(&"a"));
    assert_eq!(overlap(&always, &equals("k", "v")).as_deref(), Some("k=v;"));
}

#[test]
fn t19_the_default_for_clients_without_a_new_key() {
    let version = |version| all(&[prod(), equals("version", version)]);
    let (v1, v2, without) = (version("v1"), version("v2"), all(&[prod(), not(exists("version"))]));
    let old = set(KeySetRule::Equal, &[(&v1, "v1"), (&v2, "v2")]).unwrap();
    let (plain, third) = (parameters(&[("env", "prod")]), parameters(&[("env", "prod"), ("version", "v3")]));
    assert_eq!(old.resolve(&plain), None);
    let with = old.edit([], [(Arc::new(without.clone()), "default")], KeySetRule::Equal).unwrap();
    assert_eq!((with.resolve(&plain), with.resolve(&third)), (Some(&"default"), None));
    let wider = all(&[prod(), not(equals("version", "v1")), not(equals("version", "v2"))]);
    let with = with.edit([&without], [(Arc::new(wider), "wider")], KeySetRule::Equal).unwrap();
    assert_eq!((with.resolve(&plain), with.resolve(&third)), (Some(&"wider"), Some(&"wider")));
}

#[test]
fn t5_an_explanation_names_the_keys_on_the_way() {
    let v1 = all(&[prod(), equals("version", "v1")]);
    let v2 = all(&[prod(), equals("version", "v2")]);
    let set = set(KeySetRule::Equal, &[(&v1, "v1"), (&v2, "v2")]).unwrap();
    let given = parameters(&[("env", "prod"), ("version", "v3"), ("zone", "z")]);
    let explanation = set.explain(&given);
    let tests: Vec<_> = explanation.tests.iter().map(|test| (&*test.key, test.is_named)).collect();
    assert_eq!((tests, explanation.found), (vec![("version", false)], None));
    let given = parameters(&[("env", "prod"), ("version", "v2")]);
    let explanation = set.explain(&given);
    let tests: Vec<_> = explanation.tests.iter().map(|test| (&*test.key, test.is_named)).collect();
    assert_eq!((tests, explanation.found), (vec![("version", true), ("env", true)], Some((&v2, &"v2"))));
}

#[test]
fn a_variant_for_everyone_costs_its_value() {
    assert!(size_of::<VariantSet<Arc<str>>>() <= size_of::<Arc<str>>() + size_of::<usize>());
    let set = set(KeySetRule::Equal, &[(&all(&[]), "only")]).unwrap();
    assert_eq!((set.size(), set.len()), (Default::default(), 1));
    assert_eq!(set.iter().collect::<Vec<_>>(), [(&all(&[]), &"only")]);
    let narrower = set.edit([&all(&[])], [(Arc::new(prod()), "prod")], KeySetRule::Equal).unwrap();
    assert_eq!(narrower.resolve(&parameters(&[])), None);
    assert!(narrower.edit([&prod()], [], KeySetRule::Equal).unwrap().is_empty());
}
