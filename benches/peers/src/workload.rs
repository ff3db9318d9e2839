//! The measured sets of variants.

use std::sync::Arc;

use xds_core::{Formula, Parameters};

use crate::dice::Dice;

/// All variants of one name, without overlaps, and parameters to look up.
#[derive(Debug)]
pub struct Workload {
    /// Its name in the tables.
    pub name: &'static str,
    /// The keys that the variants name.
    pub keys: Vec<Key>,
    /// Each variant as alternatives.
    pub variants: Vec<Vec<Term>>,
}

/// A key with its values. Each has a number.
#[derive(Debug)]
pub struct Key {
    /// The key.
    pub name: Arc<str>,
    /// The values that variants name.
    pub values: Vec<Arc<str>>,
}

/// Conditions on different keys, all of which must hold.
pub type Term = Vec<Test>;

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Test {
    /// The number of the key.
    pub key: usize,
    /// The values of the condition.
    pub values: Vec<u32>,
    /// Whether the key must not have these values; it may then be absent.
    pub is_negated: bool,
}

/// Parameters in the forms of the engines.
#[derive(Debug)]
pub struct Query {
    /// As strings.
    pub parameters: Parameters,
    /// As the number of the value of each key, or one of [`FRESH`] and [`ABSENT`].
    pub point: Box<[u32]>,
}

/// The key has a value that no variant names.
pub const FRESH: u32 = u32::MAX - 1;
/// The key is absent.
pub const ABSENT: u32 = u32::MAX;

impl Workload {
    /// W1: each variant names one value of each of four keys; nearly all combinations exist.
    #[must_use]
    pub fn exact(count: usize) -> Self {
        Self::exact_of("W1 exact", count, 1)
    }

    /// W1 with one in sixteen combinations.
    #[must_use]
    pub fn exact_and_few(count: usize) -> Self {
        Self::exact_of("W1 exact, few of the grid", count, 2)
    }

    fn exact_of(name: &'static str, count: usize, stretch: usize) -> Self {
        let side = (1..).find(|side: &usize| side.pow(4) >= count).expect("numbers do not end") * stretch;
        let numbers = Dice(1).some_of(count, side.pow(4));
        let variants = numbers.into_iter().map(|number| {
            vec![(0..4).map(|key| Test::is(key, number / side.pow(key as u32) % side)).collect()]
        });
        Self { name, keys: keys(&[side; 4]), variants: variants.collect() }
    }

    /// W2: lists of values, and for each combination of them one variant for all other values of
    /// the last key.
    ///
    /// 10, 1,080 or 99,144 variants.
    #[must_use]
    pub fn or_sets(count: usize) -> Self {
        let groups = match count {
            10 => [2, 1, 1, 5],
            1_000 => [6, 6, 6, 5],
            _ => [18, 18, 18, 17],
        };
        let widths = [3, 3, 3, 2];
        let mut variants = Vec::new();
        for number in 0..groups.iter().product() {
            let mut rest = number;
            let tests = (0..4).map(|key| {
                let (group, width) = (rest % groups[key], widths[key]);
                rest /= groups[key];
                let is_negated = key == 3 && group == groups[key] - 1;
                let values = if is_negated { 0..group * width } else { group * width..(group + 1) * width };
                Test { key, values: values.map(|value| value as u32).collect(), is_negated }
            });
            variants.push(vec![tests.collect()]);
        }
        let values: Vec<_> = (0..4).map(|key| (groups[key] - usize::from(key == 3)) * widths[key]).collect();
        Self { name: "W2 or-sets", keys: keys(&values), variants }
    }

    /// W3a: the leaves of a random tree over eight keys, four to a variant.
    #[must_use]
    pub fn random_tree(count: usize) -> Self {
        let mut dice = Dice(3);
        let mut leaves: Vec<Term> = vec![Vec::new()];
        while leaves.len() < 4 * count {
            let leaf = dice.below(leaves.len());
            let key = dice.below(8);
            if leaves[leaf].iter().any(|test| test.key == key) {
                continue;
            }
            let leaf = leaves.swap_remove(leaf);
            let branches = 2 + dice.below(3);
            let values = dice.some_of(branches, 16);
            let with = |test: Test| leaf.iter().cloned().chain([test]).collect::<Term>();
            leaves.extend(values.iter().map(|value| with(Test::is(key, *value))));
            let values = values.iter().map(|value| *value as u32).collect();
            leaves.push(with(Test { key, values, is_negated: true }));
        }
        let order = dice.some_of(4 * count, leaves.len());
        let terms: Vec<_> = order.into_iter().map(|leaf| leaves[leaf].clone()).collect();
        let variants = terms.chunks(4).map(<[Term]>::to_vec).collect();
        Self { name: "W3a random tree", keys: keys(&[16; 8]), variants }
    }

    /// W3b: alternatives of three random terms, each of six of eight keys with 16 values;
    /// overlapping ones are discarded.
    #[must_use]
    pub fn random_terms(count: usize) -> Self {
        let mut dice = Dice(4);
        let mut variants: Vec<Vec<Term>> = Vec::new();
        while variants.len() < count {
            let variant = random_alternatives(&mut dice);
            let is_free =
                |other: &Vec<Term>| other.iter().all(|term| variant.iter().all(|mine| are_apart(mine, term)));
            if variants.iter().all(is_free) {
                variants.push(variant);
            }
        }
        Self { name: "W3b random DNF", keys: keys(&[16; 8]), variants }
    }

    /// W4: each variant names three of 32 keys: one that nearly identifies the variant, and two
    /// others that vary.
    #[must_use]
    pub fn sparse(count: usize) -> Self {
        let mut dice = Dice(5);
        let mut variants = Vec::new();
        for pair in 0..count.div_ceil(2) {
            let others = dice.some_of(3, 31);
            let values = dice.some_of(2, 4);
            for (value, last) in values.into_iter().zip([1, 2]) {
                let tests = [
                    Test::is(0, pair),
                    Test::is(1 + others[0], value),
                    Test::is(1 + others[last], dice.below(4)),
                ];
                variants.push(vec![tests.to_vec()]);
            }
        }
        variants.truncate(count);
        let mut values = [4; 32];
        values[0] = count.div_ceil(2);
        Self { name: "W4 sparse", keys: keys(&values), variants }
    }

    /// W5: each variant names one value of the only key.
    #[must_use]
    pub fn one_key(count: usize) -> Self {
        let order = Dice(6).some_of(count, count);
        let variants = order.into_iter().map(|value| vec![vec![Test::is(0, value)]]).collect();
        Self { name: "W5 one key", keys: keys(&[count]), variants }
    }

    /// The formula of a variant.
    #[must_use]
    pub fn formula(&self, variant: usize) -> Arc<Formula> {
        Arc::new(self.spell(&self.variants[variant]))
    }

    /// The formula of alternatives over these keys.
    #[must_use]
    pub fn spell(&self, terms: &[Term]) -> Formula {
        let mut terms: Vec<_> = terms.iter().map(|term| self.conjunction(term)).collect();
        if terms.len() == 1 { terms.remove(0) } else { Formula::Any(terms) }
    }

    fn conjunction(&self, term: &[Test]) -> Formula {
        let tests = term.iter().map(|test| {
            let key = &self.keys[test.key];
            let equals = |value: &u32| {
                let value = Arc::clone(&key.values[*value as usize]);
                Formula::Equals { key: Arc::clone(&key.name), value }
            };
            let mut values: Vec<_> = test.values.iter().map(equals).collect();
            let any = if values.len() == 1 { values.remove(0) } else { Formula::Any(values) };
            if test.is_negated { Formula::Not(Box::new(any)) } else { any }
        });
        Formula::All(tests.collect())
    }

    /// Random parameters. Of ten, four are inside a variant, four are anywhere in the grid of named
    /// values, one is inside a variant except for a value that is not named, and one is inside a
    /// variant except for a missing key.
    #[must_use]
    pub fn queries(&self, count: usize) -> Vec<Query> {
        let mut dice = Dice(7);
        (0..count).map(|_| self.query(&mut dice)).collect()
    }

    fn query(&self, dice: &mut Dice) -> Query {
        // If there are many keys, most clients have few of them.
        let is_sparse = self.keys.len() > 8;
        let any = |dice: &mut Dice, key: usize| {
            if is_sparse && key > 0 && dice.below(4) > 0 {
                return ABSENT;
            }
            dice.below(self.keys[key].values.len()) as u32
        };
        let mut point: Box<[u32]> = (0..self.keys.len()).map(|key| any(dice, key)).collect();
        let kind = dice.below(10);
        if kind < 6 {
            let variant = &self.variants[dice.below(self.variants.len())];
            let term = &variant[dice.below(variant.len())];
            for test in term {
                point[test.key] =
                    if test.is_negated { FRESH } else { test.values[dice.below(test.values.len())] };
            }
            let broken = term[dice.below(term.len())].key;
            match kind {
                0 => point[broken] = FRESH,
                1 => point[broken] = ABSENT,
                _ => {}
            }
        }
        let pairs = self.keys.iter().zip(&point).filter_map(|(key, value)| {
            let value = match *value {
                ABSENT => return None,
                FRESH => "nobody names this".into(),
                value => Arc::clone(&key.values[value as usize]),
            };
            Some((Arc::clone(&key.name), value))
        });
        Query { parameters: pairs.collect(), point }
    }
}

impl Test {
    fn is(key: usize, value: usize) -> Self {
        Self { key, values: vec![value as u32], is_negated: false }
    }

    /// Whether the point meets the condition.
    #[must_use]
    pub fn holds(&self, point: &[u32]) -> bool {
        self.values.contains(&point[self.key]) != self.is_negated
    }
}

/// A variant of W3b.
#[must_use]
pub fn random_alternatives(dice: &mut Dice) -> Vec<Term> {
    let term = |_| dice.some_of(6, 8).into_iter().map(|key| Test::is(key, dice.below(16))).collect();
    (0..3).map(term).collect()
}

/// Whether two terms of W3b name different values of some key.
#[must_use]
pub fn are_apart(left: &[Test], right: &[Test]) -> bool {
    left.iter().any(|mine| right.iter().any(|theirs| mine.key == theirs.key && mine.values != theirs.values))
}

/// Keys with these numbers of values; the strings are as long as those that people write.
fn keys(values: &[usize]) -> Vec<Key> {
    let key = |(number, count): (usize, &usize)| Key {
        name: format!("parameter-{number}").into(),
        values: (0..*count).map(|value| format!("value-{value}").into()).collect(),
    };
    values.iter().enumerate().map(key).collect()
}
