//! Sets that are too large to try all parameters: sampled points, and the two trees that only large
//! sets have.

use std::sync::Arc;

use super::world::equals;
use crate::constraint::Formula;
use crate::matching::coverage::Domains;
use crate::matching::{KeySetRule, SetError, VariantSet};
use crate::parameters::Parameters;

/// A sequence of numbers that look random, the same in every run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// One of 16^4 exact variants.
fn exact(at: usize) -> Arc<Formula> {
    let part = |key: usize| equals(&format!("k{key}"), &format!("v{}", at >> (4 * key) & 15));
    Arc::new(Formula::All((0..4).map(part).collect()))
}

/// Parameters that match the exact variant with this number.
fn point(at: usize) -> Parameters {
    (0..4).map(|key| (format!("k{key}"), format!("v{}", at >> (4 * key) & 15))).collect()
}

#[test]
fn a_large_set_that_is_edited_again_and_again_gives_what_a_table_gives() {
    let mut dice = Dice(1);
    let size = 6_000;
    let mut model: Vec<Option<usize>> = (0..16_384).map(|at| (at < size).then_some(at)).collect();
    let all = (0..size).map(|at| (exact(at), at));
    let mut set = VariantSet::new().edit([], all, KeySetRule::Equal).unwrap();
    let (mut merges, mut pending, mut most) = (0, 0, 0);
    for round in 0..60 {
        let (mut removals, mut insertions) = (Vec::new(), Vec::new());
        for _ in 0..dice.below(40) {
            let at = dice.below(model.len());
            if removals.contains(&exact(at)) || insertions.iter().any(|(formula, _)| *formula == exact(at)) {
                continue;
            }
            match (model[at], dice.below(3)) {
                (None, _) => model[at] = Some(100_000 + round),
                (Some(_), 0) => model[at] = None,
                (Some(_), _) => model[at] = Some(200_000 + round),
            }
            removals.push(exact(at));
            insertions.extend(model[at].map(|id| (exact(at), id)));
        }
        set = set.edit(removals.iter().map(|formula| &**formula), insertions, KeySetRule::Equal).unwrap();
        merges += usize::from(set.size().pending < pending);
        pending = set.size().pending;
        most = most.max(pending);
        assert_eq!(set.len(), model.iter().flatten().count());
        for _ in 0..500 {
            let at = dice.below(model.len());
            assert_eq!(set.resolve(&point(at)), model[at].as_ref(), "variant {at} in round {round}");
        }
        let taken = model.iter().position(Option::is_some).unwrap();
        set.edit([], [(exact(taken), 0)], KeySetRule::Equal).unwrap_err();
    }
    assert!(
        merges > 0 && most > 100,
        "the small part was merged {merges} times and had up to {most} variants"
    );
}

#[test]
fn an_edit_that_exchanges_a_value_leaves_the_trees_alone() {
    let set = VariantSet::new().edit([], (0..2_000).map(|at| (exact(at), at)), KeySetRule::Equal).unwrap();
    let edited = set.edit([&*exact(7)], [(exact(7), 99)], KeySetRule::Equal).unwrap();
    assert_eq!((edited.size(), edited.size().pending), (set.size(), 0));
    assert_eq!((set.resolve(&point(7)), edited.resolve(&point(7))), (Some(&7), Some(&99)));
}

/// A value for some of eight keys: one alternative of a variant, or a point.
type Row = [Option<u8>; 8];

fn row_formula(row: &Row) -> Formula {
    let value =
        |(key, value): (usize, &Option<u8>)| Some(equals(&format!("k{key}"), &format!("v{}", (*value)?)));
    Formula::All(row.iter().enumerate().filter_map(value).collect())
}

fn row_parameters(row: &Row) -> Parameters {
    let value = |(key, value): (usize, &Option<u8>)| Some((format!("k{key}"), format!("v{}", (*value)?)));
    row.iter().enumerate().filter_map(value).collect()
}

/// Whether a point has every value that a row requires.
fn is_in(point: &Row, row: &Row) -> bool {
    row.iter().zip(point).all(|(required, given)| required.is_none() || required == given)
}

/// Whether no point is in both rows.
fn are_disjoint(one: &Row, other: &Row) -> bool {
    one.iter().zip(other).any(|(one, other)| one.is_some() && other.is_some() && one != other)
}

#[test]
fn random_alternatives_over_many_keys_are_found_as_by_a_scan() {
    let mut dice = Dice(2);
    let mut row = || {
        let skipped = [dice.below(8), dice.below(8)];
        std::array::from_fn(|key| (!skipped.contains(&key)).then(|| dice.below(16) as u8))
    };
    let mut set = VariantSet::new();
    let mut kept: Vec<[Row; 3]> = Vec::new();
    let mut refused = 0;
    while kept.len() < 1_000 {
        let portion: Vec<[Row; 3]> = (0..50).map(|_| [row(), row(), row()]).collect();
        let meets = |one: &[Row; 3], other: &[Row; 3]| {
            one.iter().any(|one| other.iter().any(|other| !are_disjoint(one, other)))
        };
        let insertions = |rows: &[[Row; 3]], first: usize| {
            let formula = |rows: &[Row; 3]| Arc::new(Formula::Any(rows.iter().map(row_formula).collect()));
            rows.iter().map(formula).zip(first..).collect::<Vec<_>>()
        };
        let mut fit: Vec<[Row; 3]> = Vec::new();
        for rows in &portion {
            if !kept.iter().chain(&fit).any(|other| meets(rows, other)) {
                fit.push(*rows);
            }
        }
        if fit.len() < portion.len() {
            refused += 1;
            let error = set.edit([], insertions(&portion, kept.len()), KeySetRule::Free).unwrap_err();
            assert!(matches!(error, SetError::Overlap { .. }), "{error}");
        }
        set = set.edit([], insertions(&fit, kept.len()), KeySetRule::Free).unwrap();
        kept.extend(fit);
    }
    assert!(refused > 3, "{refused} portions had an overlap");

    let mut tried = 0;
    let mut agree = |point: &Row, expected: Option<usize>| {
        tried += 1;
        let parameters = row_parameters(point);
        assert_eq!(set.resolve(&parameters).copied(), expected, "{point:?}");
        if tried % 16 == 0 {
            assert_eq!(set.prepare(&parameters).resolve().copied(), expected, "{point:?}");
            assert_eq!(set.explain(&parameters).found.map(|(_, id)| *id), expected, "{point:?}");
        }
    };
    let scan = |point: &Row| kept.iter().position(|rows| rows.iter().any(|row| is_in(point, row)));
    for (id, rows) in kept.iter().enumerate() {
        for row in rows {
            // A point of the row, with more values than the row requires, and its neighbours in one
            // key of the row.
            let inside: Row =
                row.map(|value| value.or_else(|| Some(dice.below(17) as u8).filter(|v| *v < 16)));
            agree(&inside, Some(id));
            let key = (0..8).cycle().skip(dice.below(8)).find(|key| row[*key].is_some()).expect("it asks");
            let mut beside = inside;
            beside[key] = Some((inside[key].unwrap_or(0) + 1 + dice.below(16) as u8) % 17);
            agree(&beside, scan(&beside));
            beside[key] = None;
            agree(&beside, scan(&beside));
        }
    }
    for _ in 0..1_000 {
        let point: Row = std::array::from_fn(|_| Some(dice.below(18) as u8).filter(|value| *value < 17));
        agree(&point, scan(&point));
    }
    assert!(tried >= 10_000);
}

#[test]
fn a_set_that_grew_by_edits_and_one_built_at_once_are_the_same_to_every_question() {
    let gone = |at: &usize| at.is_multiple_of(50);
    let all = || (0..1_500).filter(|at| !gone(at)).map(|at| (exact(at), at));
    let at_once = VariantSet::new().edit([], all(), KeySetRule::Equal).unwrap();
    let first = (0..1_460).map(|at| (exact(at), at));
    let grown = VariantSet::new().edit([], first, KeySetRule::Equal).unwrap();
    let removals: Vec<_> = (0..1_500).filter(gone).map(exact).collect();
    let later = (1_460..1_500).filter(|at| !gone(at)).map(|at| (exact(at), at));
    let grown = grown.edit(removals.iter().map(|formula| &**formula), later, KeySetRule::Equal).unwrap();
    let (size, merged) = (grown.size(), at_once.size());
    assert!(size.pending > 0 && size.vacant > 0 && (merged.pending, merged.vacant) == (0, 0), "{size:?}");

    for at in 0..1_600 {
        let expected = Some(at).filter(|at| *at < 1_500 && !gone(at));
        for set in [&grown, &at_once] {
            assert_eq!(set.resolve(&point(at)).copied(), expected);
            assert_eq!(set.prepare(&point(at)).resolve().copied(), expected);
            assert_eq!(set.explain(&point(at)).found.map(|(_, id)| *id), expected);
        }
    }
    let key_sets = |set: &VariantSet<usize>| set.key_sets().map(|(_, count)| count).collect::<Vec<_>>();
    assert_eq!(key_sets(&grown), key_sets(&at_once));
    for within in [equals("k1", "v11"), equals("k0", "v0"), Formula::Not(Box::new(equals("k2", "v5")))] {
        let reachable = |set: &VariantSet<usize>| {
            let mut ids: Vec<_> = set.reachable(&within).unwrap().into_iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(reachable(&grown), reachable(&at_once));
        assert!(!reachable(&grown).is_empty());
        let coverage = |set: &VariantSet<usize>| {
            let coverage = set.coverage(&Domains::new(), &within, 20).unwrap();
            let mut dead: Vec<_> = coverage.dead.into_iter().copied().collect();
            dead.sort_unstable();
            (coverage.gaps, dead, coverage.idle_keys)
        };
        assert_eq!(coverage(&grown), coverage(&at_once));
    }
    for taken in [3, 1_470] {
        for set in [&grown, &at_once] {
            let error = set.edit([], [(exact(taken), 9_999)], KeySetRule::Equal).unwrap_err();
            let witness = point(taken);
            assert_eq!(error, SetError::Overlap { first: taken, second: 9_999, witness });
        }
    }
}

#[test]
fn lists_of_values_and_their_complement_stay_small() {
    let list = |values: std::ops::Range<usize>, key: &str| {
        Formula::Any(values.map(|value| equals(key, &format!("v{value:03}"))).collect())
    };
    let mut variants = Vec::new();
    for at in 0..30 {
        for zone in 0..10 {
            let parts = vec![list(at * 10..at * 10 + 10, "shard"), list(zone * 10..zone * 10 + 10, "zone")];
            variants.push((Arc::new(Formula::All(parts)), variants.len()));
        }
    }
    let rest = Formula::All(vec![Formula::Not(Box::new(list(0..300, "shard"))), list(0..100, "zone")]);
    variants.push((Arc::new(rest), variants.len()));
    let set = VariantSet::new().edit([], variants, KeySetRule::Equal).unwrap();
    let size = set.size();
    assert_eq!(size.wild_nodes, 0);
    assert!(size.tree_bytes < 150 * set.len(), "{} bytes for {} variants", size.tree_bytes, set.len());
    let point = |shard: &str| [("shard", shard), ("zone", "v011")].into_iter().collect();
    assert_eq!((set.resolve(&point("v299")), set.resolve(&point("v300"))), (Some(&291), Some(&300)));
}
