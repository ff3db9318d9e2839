use std::sync::Arc;

use quickcheck::{Arbitrary, Gen};

use super::world::{POINTS, Written, check, equals, exists, not, shuffled, truth};
use crate::constraint::Formula;
use crate::matching::{KeySetRule, SetError, VariantSet};
use crate::parameters::Parameters;

type Set = VariantSet<usize>;

/// A random edit: the variants to remove, by their position in the model, and those to insert.
#[derive(Debug, Clone)]
struct Edit {
    removals: Vec<usize>,
    insertions: Vec<Written>,
}

impl Arbitrary for Edit {
    fn arbitrary(g: &mut Gen) -> Self {
        let few = |g: &mut Gen| usize::arbitrary(g) % 3;
        let removals = (0..few(g)).map(|_| usize::arbitrary(g) % 4).collect();
        Self { removals, insertions: (0..few(g) + 1).map(|_| Written::arbitrary(g)).collect() }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let parts = (self.removals.clone(), self.insertions.clone());
        Box::new(parts.shrink().map(|(removals, insertions)| Self { removals, insertions }))
    }
}

/// The second implementation: a list of all variants with the points at which they match.
type Model = Vec<(usize, Formula, u128)>;

fn scan(model: &Model, at: usize) -> Option<usize> {
    model.iter().find(|(_, _, truth)| truth >> at & 1 == 1).map(|(id, _, _)| *id)
}

fn agree(set: &Set, model: &Model) -> bool {
    let everywhere =
        POINTS.iter().enumerate().all(|(at, point)| set.resolve(point).copied() == scan(model, at));
    let warm = POINTS.iter().enumerate().step_by(31).all(|(at, point)| {
        let explained = set.explain(point).found.map(|(_, id)| *id);
        let id = scan(model, at);
        set.prepare(point).resolve().copied() == id && explained == id
    });
    everywhere && warm && set.len() == model.len() && set.iter().count() == model.len()
}

/// Whether the error is right for the variants of the refused set.
fn is_justified(error: &SetError<usize>, model: &Model) -> bool {
    let variant = |id: &usize| &model.iter().find(|(other, _, _)| other == id).unwrap().1;
    match error {
        SetError::Unsatisfiable { variant: id } => truth(variant(id)) == 0,
        SetError::Overlap { first, second, witness } => {
            let named = format!("{:?}{:?}", variant(first), variant(second));
            let is_named = |(key, _): (&Arc<str>, _)| named.contains(&format!("key: {key:?}"));
            first != second
                && variant(first).matches(witness)
                && variant(second).matches(witness)
                && witness.iter().all(is_named)
        }
        SetError::KeySets { .. } | SetError::TooComplex { .. } => false,
    }
}

#[test]
fn t3_t13_t15_random_edits_give_what_a_list_of_all_variants_gives() {
    fn prop(edits: Vec<Edit>) -> bool {
        let (mut set, mut model, mut next) = (Set::new(), Model::new(), 0);
        for edit in edits.iter().take(4) {
            let mut result = model.clone();
            let gone: Vec<_> = edit.removals.iter().filter_map(|at| model.get(*at)).collect();
            result.retain(|(id, _, _)| !gone.iter().any(|(other, _, _)| other == id));
            let mut insertions = Vec::new();
            for Written(formula) in &edit.insertions {
                result.push((next, formula.clone(), truth(formula)));
                insertions.push((Arc::new(formula.clone()), next));
                next += 1;
            }
            let removals = gone.iter().map(|(_, formula, _)| formula);
            let is_satisfiable = result.iter().all(|(_, _, truth)| *truth != 0);
            let mut seen = 0;
            let is_disjoint = result.iter().all(|(_, _, truth)| {
                let is_new = seen & truth == 0;
                seen |= truth;
                is_new
            });
            match set.edit(removals, insertions, KeySetRule::Free) {
                Ok(_) if !is_satisfiable || !is_disjoint => return false,
                Ok(edited) => (set, model) = (edited, result),
                Err(error) if is_satisfiable && is_disjoint || !is_justified(&error, &result) => {
                    return false;
                }
                Err(_) => {}
            }
            if !agree(&set, &model) {
                return false;
            }
        }
        let removals: Vec<_> = model.iter().map(|(_, formula, _)| formula.clone()).collect();
        let emptied = set.edit(&removals, [], KeySetRule::Free).unwrap();
        emptied.is_empty() && POINTS.iter().all(|point| emptied.resolve(point).is_none())
    }
    check(prop as fn(Vec<Edit>) -> bool);
}

/// Disjoint parts of the given formulas: each without what the earlier ones match.
fn disjoint(formulas: &[Written]) -> Vec<Formula> {
    let mut parts: Vec<Formula> = Vec::new();
    let mut seen = 0;
    for Written(formula) in formulas.iter().take(5) {
        let part = match seen {
            0 => formula.clone(),
            _ => {
                let earlier =
                    Formula::Any(formulas[..parts.len()].iter().map(|part| part.0.clone()).collect());
                Formula::All(vec![formula.clone(), Formula::Not(Box::new(earlier))])
            }
        };
        let truth = truth(&part);
        if truth == 0 || seen & truth != 0 {
            break;
        }
        seen |= truth;
        parts.push(part);
    }
    parts
}

#[test]
fn t15_a_disjoint_family_is_accepted_in_any_order_and_any_portions() {
    fn prop(formulas: Vec<Written>, order: usize, portion: usize) -> bool {
        let parts = disjoint(&formulas);
        let variants = || parts.iter().enumerate().map(|(id, formula)| (Arc::new(formula.clone()), id));
        let at_once = Set::new().edit([], variants(), KeySetRule::Free).unwrap();
        let mut in_portions = Set::new();
        for some in shuffled(variants().collect(), order).chunks(portion % 3 + 1) {
            in_portions = in_portions.edit([], some.iter().cloned(), KeySetRule::Free).unwrap();
        }
        let model = variants().map(|(formula, id)| (id, (*formula).clone(), truth(&formula))).collect();
        agree(&at_once, &model) && agree(&in_portions, &model)
    }
    check(prop as fn(Vec<Written>, usize, usize) -> bool);
}

#[test]
fn t15_no_order_makes_an_overlapping_family_acceptable() {
    fn prop(formulas: Vec<Written>, order: usize) -> bool {
        let formulas: Vec<_> = formulas.iter().take(4).collect();
        let truths: Vec<_> = formulas.iter().map(|formula| truth(&formula.0)).collect();
        let mut seen = 0;
        let overlaps = truths.iter().any(|truth| {
            let is_met = seen & truth != 0;
            seen |= truth;
            is_met
        });
        let mut set = Set::new();
        let refused = shuffled((0..formulas.len()).collect(), order).into_iter().any(|id| {
            let insertion = (Arc::new(formulas[id].0.clone()), id);
            set.edit([], [insertion], KeySetRule::Free).map(|edited| set = edited).is_err()
        });
        refused == (overlaps || truths.contains(&0))
    }
    check(prop as fn(Vec<Written>, usize) -> bool);
}

#[test]
fn t16_what_is_left_counts_whatever_the_order_of_inserts_and_removals() {
    fn prop(formulas: Vec<Written>, order: usize, removed: u8) -> bool {
        let parts = disjoint(&formulas);
        // Each variant is inserted before it is removed, otherwise in any order.
        let goes = |id: &usize| removed >> id & 1 == 1;
        let steps = (0..parts.len()).chain((0..parts.len()).filter(goes)).collect();
        let (mut set, mut seen) = (Set::new(), [false; 8]);
        for id in shuffled(steps, order) {
            let insertion = (!seen[id]).then(|| (Arc::new(parts[id].clone()), id));
            let removal = seen[id].then(|| &parts[id]);
            set = set.edit(removal, insertion, KeySetRule::Free).unwrap();
            seen[id] = true;
        }
        let left = (0..parts.len()).filter(|id| !goes(id));
        agree(&set, &left.map(|id| (id, parts[id].clone(), truth(&parts[id]))).collect())
    }
    check(prop as fn(Vec<Written>, usize, u8) -> bool);
}

#[test]
fn parameters_prepared_before_an_edit_keep_their_answer_and_fresh_ones_get_the_new() {
    fn prop(formulas: Vec<Written>, kept: usize) -> bool {
        let parts = disjoint(&formulas);
        let variants: Vec<_> =
            parts.iter().enumerate().map(|(id, formula)| (Arc::new(formula.clone()), id)).collect();
        // The second half may name values that the first half does not.
        let (first, second) = variants.split_at(kept % (variants.len() + 1));
        let before = Set::new().edit([], first.iter().cloned(), KeySetRule::Free).unwrap();
        let prepared: Vec<_> = POINTS.iter().map(|point| before.prepare(point)).collect();
        let after = before.edit([], second.iter().cloned(), KeySetRule::Free).unwrap();
        let answer = |variants: &[(Arc<Formula>, usize)], point| {
            variants.iter().find(|(formula, _)| formula.matches(point)).map(|(_, id)| *id)
        };
        POINTS.iter().zip(&prepared).step_by(7).all(|(point, prepared)| {
            prepared.resolve().copied() == answer(first, point)
                && after.prepare(point).resolve().copied() == answer(&variants, point)
        })
    }
    check(prop as fn(Vec<Written>, usize) -> bool);
}

#[test]
fn t12_the_key_set_rule_refuses_exactly_different_written_keys() {
    fn written(formula: &Formula) -> [bool; 3] {
        ["a", "b", "c"].map(|key| format!("{formula:?}").contains(&format!("key: {key:?}")))
    }
    fn prop(formulas: Vec<Written>) -> bool {
        let parts = disjoint(&formulas);
        let variants = parts.iter().enumerate().map(|(id, formula)| (Arc::new(formula.clone()), id));
        let is_equal = parts.iter().all(|part| written(part) == written(&parts[0]));
        match Set::new().edit([], variants, KeySetRule::Equal) {
            Ok(_) => is_equal,
            Err(SetError::KeySets { first, second, only_first, only_second }) => {
                let has = |id: usize, keys: &[Arc<str>]| {
                    keys.iter().all(|key| written(&parts[id])[usize::from(key.as_bytes()[0] - b'a')])
                };
                !is_equal
                    && has(first, &only_first)
                    && has(second, &only_second)
                    && only_first.len() + only_second.len() > 0
                    && !only_first.iter().any(|key| only_second.contains(key))
            }
            Err(_) => false,
        }
    }
    check(prop as fn(Vec<Written>) -> bool);
}

#[test]
fn t5_keys_and_values_that_no_variant_names_change_nothing() {
    fn prop(formulas: Vec<Written>, at: usize) -> bool {
        let parts = disjoint(&formulas).into_iter().enumerate();
        let variants = parts.map(|(id, formula)| (Arc::new(formula), id));
        let set = Set::new().edit([], variants, KeySetRule::Free).unwrap();
        let point = &POINTS[at % POINTS.len()];
        let pairs = || point.iter().map(|(key, value)| (&**key, &**value));
        let renamed = pairs().map(|(key, value)| (key, if value == "fresh" { "another" } else { value }));
        let more: Parameters = renamed.chain([("unheard-of", "x"), ("", "")]).collect();
        set.resolve(&more) == set.resolve(point)
    }
    check(prop as fn(Vec<Written>, usize) -> bool);
}

#[test]
fn t3_a_value_that_is_named_later_is_found_by_those_who_had_it_before() {
    let one = |value: &str| Arc::new(equals("k", value));
    let before = Set::new().edit([], [(one("a"), 0)], KeySetRule::Equal).unwrap();
    let parameters = super::world::parameters(&[("k", "b")]);
    let prepared = before.prepare(&parameters);
    let after = before.edit([], [(one("b"), 1)], KeySetRule::Equal).unwrap();
    assert_eq!((prepared.resolve(), after.prepare(&parameters).resolve()), (None, Some(&1)));
}

#[test]
fn reachable_are_the_variants_that_some_matching_parameters_get() {
    fn prop(formulas: Vec<Written>, within: Written) -> bool {
        let parts = disjoint(&formulas);
        let variants = parts.iter().enumerate().map(|(id, formula)| (Arc::new(formula.clone()), id));
        let set = Set::new().edit([], variants, KeySetRule::Free).unwrap();
        let mut found = set.reachable(&within.0).unwrap();
        found.sort_unstable();
        let expected = (0..parts.len()).filter(|id| truth(&parts[*id]) & truth(&within.0) != 0);
        let proven = found.iter().all(|(id, sample)| parts[**id].matches(sample) && within.0.matches(sample));
        proven && found.iter().map(|(id, _)| **id).eq(expected)
    }
    check(prop as fn(Vec<Written>, Written) -> bool);
}

#[test]
fn to_restrict_twice_is_to_restrict_by_both() {
    /// Known parameters as a formula: for each key no condition, absent, or a value.
    fn known(outcomes: [u8; 3]) -> Formula {
        let condition = |(key, outcome): (&str, u8)| match outcome % 6 {
            0 => Some(not(exists(key))),
            1 => Some(equals(key, "x")),
            2 => Some(equals(key, "")),
            3 => Some(equals(key, "fresh")),
            _ => None,
        };
        Formula::All(["a", "b", "c"].into_iter().zip(outcomes).filter_map(condition).collect())
    }
    type Outcomes = (u8, u8, u8);
    fn prop(formulas: Vec<Written>, one: Outcomes, other: Outcomes) -> bool {
        let parts = disjoint(&formulas);
        let variants = parts.iter().enumerate().map(|(id, formula)| (Arc::new(formula.clone()), id));
        let set = Set::new().edit([], variants, KeySetRule::Free).unwrap();
        let (one, other) = (known(one.into()), known(other.into()));
        let both = Formula::All(vec![one.clone(), other.clone()]);
        let ids = |set: &Set, within: &Formula| {
            let found = set.reachable(within).unwrap();
            assert!(
                found.iter().all(|(id, sample)| set.resolve(sample) == Some(id) && within.matches(sample))
            );
            let mut ids: Vec<_> = found.iter().map(|(id, _)| **id).collect();
            ids.sort_unstable();
            ids
        };
        let within_one = |id: usize| {
            let formula = Formula::All(vec![parts[id].clone(), one.clone()]);
            (Arc::new(formula), id)
        };
        let once = ids(&set, &one).into_iter().map(within_one);
        let once = Set::new().edit([], once, KeySetRule::Free).unwrap();
        let expected = (0..parts.len()).filter(|id| truth(&parts[*id]) & truth(&both) != 0);
        let found = ids(&set, &both);
        found.iter().copied().eq(expected) && ids(&once, &other) == found
    }
    check(prop as fn(Vec<Written>, Outcomes, Outcomes) -> bool);
}

#[test]
fn t22_a_removal_takes_the_variant_of_the_same_meaning_and_no_other() {
    fn prop(kept: Written, removed: Written) -> bool {
        let Ok(set) = Set::new().edit([], [(Arc::new(kept.0.clone()), 0)], KeySetRule::Equal) else {
            return truth(&kept.0) == 0;
        };
        let after = set.edit([&removed.0], [], KeySetRule::Equal).unwrap();
        after.is_empty() == (truth(&kept.0) == truth(&removed.0))
    }
    check(prop as fn(Written, Written) -> bool);
}
