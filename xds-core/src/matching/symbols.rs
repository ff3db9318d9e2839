//! The keys and values that the variants of a set name, as numbers.
//!
//! Only constraints add keys and values. Those of a client are only looked up, so a client cannot
//! make the tables grow.

use std::sync::Arc;

use super::value_set::ValueSet;
use crate::hash::HashMap;

/// The number that stands for a value, or one of the two below.
pub(super) type OutcomeId = u32;
/// The key is absent.
pub(super) const ABSENT: OutcomeId = u32::MAX;
/// The key has a value that no constraint names.
pub(super) const OTHER: OutcomeId = u32::MAX - 1;

#[derive(Debug, Default)]
pub(super) struct Symbols {
    ids: HashMap<Arc<str>, u32>,
    keys: Vec<KeySymbols>,
}

#[derive(Debug)]
struct KeySymbols {
    name: Arc<str>,
    values: HashMap<Arc<str>, u32>,
}

impl Symbols {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn name(&self, key: u32) -> &Arc<str> {
        &self.keys[key as usize].name
    }

    /// How many values constraints name for the key.
    pub(super) fn values(&self, key: u32) -> usize {
        self.keys[key as usize].values.len()
    }

    pub(super) fn key(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// The outcome of a key that has this value.
    pub(super) fn outcome(&self, key: u32, value: Option<&Arc<str>>) -> OutcomeId {
        value.map_or(ABSENT, |value| self.keys[key as usize].values.get(value).copied().unwrap_or(OTHER))
    }

    pub(super) fn add_key(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&key) = self.ids.get(name) {
            return key;
        }
        let key = self.keys.len() as u32;
        self.ids.insert(Arc::clone(name), key);
        self.keys.push(KeySymbols { name: Arc::clone(name), values: HashMap::default() });
        key
    }

    pub(super) fn add_value(&mut self, key: u32, value: &Arc<str>) -> u32 {
        let values = &mut self.keys[key as usize].values;
        if let Some(&id) = values.get(value) {
            return id;
        }
        let id = values.len() as u32;
        values.insert(Arc::clone(value), id);
        id
    }

    /// The set with numbers for its values, which are added if they are new.
    pub(super) fn add_set(&mut self, key: u32, set: &ValueSet<Arc<str>>) -> ValueSet<u32> {
        let values = set.values().iter().map(|value| self.add_value(key, value));
        ValueSet::gather(values, set.has_other(), set.has_absent())
    }
}

impl ValueSet<u32> {
    pub(super) fn has_id(&self, outcome: OutcomeId) -> bool {
        match outcome {
            ABSENT => self.has_absent(),
            OTHER => self.has_other(),
            value => self.has_value(&value),
        }
    }
}
