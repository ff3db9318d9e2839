//! Sets that are too large to try everything: sampled points, and the parts that only large sets have.

use std::sync::Arc;

use super::world::equals;
use crate::constraint::Formula;
use crate::matching::{KeySetRule, VariantSet};
use crate::parameters::Parameters;

/// A sequence of numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// One of 16^4 exact variants.
fn exact(at: usize) -> Arc<Formula> {
    let part = |key: usize| equals(&format!("k{key}"), &format!("v{}", at >> (4 * key) & 15));
    Arc::new(Formula::All((0..4).map(part).collect()))
}

/// Parameters that get the exact variant of this number.
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

#[test]
fn random_alternatives_over_many_keys_are_found_as_by_a_scan() {
    let mut dice = Dice(2);
    let mut set = VariantSet::new();
    let mut kept: Vec<Formula> = Vec::new();
    let mut candidates = Vec::new();
    for id in 0..700 {
        let terms = (0..3).map(|_| {
            let skipped = (dice.below(8), dice.below(8));
            let keys = (0..8).filter(|key| *key != skipped.0 && *key != skipped.1).collect::<Vec<_>>();
            Formula::All(
                keys.iter().map(|key| equals(&format!("k{key}"), &format!("v{}", dice.below(16)))).collect(),
            )
        });
        candidates.push((Arc::new(Formula::Any(terms.collect())), id));
    }
    for portion in candidates.chunks(10) {
        match set.edit([], portion.iter().cloned(), KeySetRule::Free) {
            Ok(edited) => {
                set = edited;
                kept.extend(portion.iter().map(|(formula, _)| (**formula).clone()));
            }
            Err(error) => assert!(error.to_string().starts_with("two variants match"), "{error}"),
        }
    }
    assert!(kept.len() > 300);
    let scan =
        |point: &Parameters| kept.iter().find(|formula| formula.matches(point)).map(std::ptr::from_ref);
    let found = |point: &Parameters| set.explain(point).found.map(|(formula, _)| formula.clone());
    for round in 0..2_000 {
        let mut pairs: Vec<_> =
            (0..8).map(|key| (format!("k{key}"), format!("v{}", dice.below(17)))).collect();
        if let Formula::Any(terms) = &kept[dice.below(kept.len())]
            && let Formula::All(tests) = &terms[dice.below(3)]
            && round % 4 > 0
        {
            // A point inside a term, or one step beside it.
            for test in tests {
                if let Formula::Equals { key, value } = test {
                    pairs.push((key.to_string(), value.to_string()));
                }
            }
        }
        if round % 4 > 1 {
            pairs.push((format!("k{}", dice.below(8)), format!("v{}", dice.below(17))));
        }
        let point = pairs.into_iter().skip(round % 2).collect();
        let expected = scan(&point)
            .map(|formula| kept.iter().find(|other| std::ptr::eq(*other, formula)).unwrap().clone());
        assert_eq!(found(&point), expected);
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
