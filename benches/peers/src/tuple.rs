//! A hash table of exact values.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use xds_core::Parameters;

use crate::workload::{ABSENT, FRESH, Workload};

/// Variants that name one value for each of `N` keys; other variants cannot be represented.
#[derive(Debug)]
pub struct TupleHash<const N: usize> {
    variants: HashMap<[u32; N], u32, RandomState>,
    keys: Vec<(Arc<str>, Numbers)>,
}

/// The number of each value of a key.
type Numbers = HashMap<Arc<str>, u32, RandomState>;

impl<const N: usize> TupleHash<N> {
    /// The table; `None` if some variant does not name exactly one value for each key.
    #[must_use]
    pub fn of(workload: &Workload) -> Option<Self> {
        if workload.keys.len() != N {
            return None;
        }
        let mut variants = HashMap::with_hasher(state());
        for (at, terms) in (0..).zip(&workload.variants) {
            let [term] = &**terms else { return None };
            let mut values = [ABSENT; N];
            for test in term {
                let [value] = *test.values else { return None };
                values[test.key] = value;
            }
            if term.len() != N || term.iter().any(|test| test.is_negated) {
                return None;
            }
            variants.insert(values, at);
        }
        let keys = workload.keys.iter().map(|key| {
            let values = key.values.iter().cloned().zip(0..);
            let mut numbers = Numbers::with_hasher(state());
            numbers.extend(values);
            (Arc::clone(&key.name), numbers)
        });
        Some(Self { variants, keys: keys.collect() })
    }

    /// The variant with exactly these values.
    #[must_use]
    pub fn find(&self, point: &[u32]) -> Option<u32> {
        self.variants.get(<&[u32; N]>::try_from(point).ok()?).copied()
    }

    /// The same from strings.
    #[must_use]
    pub fn resolve(&self, parameters: &Parameters) -> Option<u32> {
        let mut point = [FRESH; N];
        for (value, (name, numbers)) in point.iter_mut().zip(&self.keys) {
            *value = *numbers.get(parameters.get(name)?)?;
        }
        self.find(&point)
    }

    /// The number of variants.
    #[must_use]
    pub fn len(&self) -> usize {
        self.variants.len()
    }

    /// Whether there is no variant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variants.is_empty()
    }

    /// Bytes of the table, without strings.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // One control byte per place, and seven of eight places may be taken.
        let places = (self.variants.len() * 8 / 7).next_power_of_two();
        places * (size_of::<([u32; N], u32)>() + 1)
    }
}

/// Seeded, because clients choose the strings; the seed is fixed, so that runs can be compared.
fn state() -> RandomState {
    RandomState::with_seeds(1, 2, 3, 4)
}
