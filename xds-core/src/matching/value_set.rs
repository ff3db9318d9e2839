//! Sets of outcomes of one key, with their algebra.
//!
//! Constraints distinguish these outcomes of a key: absent, each value that a constraint names, and
//! any other value. So a list of values and two flags describe every set, and equal sets are equal
//! values.

use std::cmp::Ordering;

/// One outcome of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOutcome<T> {
    /// The parameters do not have the key.
    Absent,
    /// The key has this value.
    Value(T),
    /// The key has a value that no constraint names.
    Other,
}

/// The outcomes of one key that a condition allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ValueSet<T> {
    /// Sorted, each once.
    values: Values<T>,
    /// Whether `values` are the values that are not allowed.
    inverted: bool,
    absent: bool,
}

/// A list of values. Most conditions name a single value, which needs no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Values<T> {
    One([T; 1]),
    /// None or at least two.
    Several(Vec<T>),
}

impl<T: Ord + Clone> ValueSet<T> {
    /// Exactly this value (T6).
    pub fn only(value: T) -> Self {
        Self { values: Values::One([value]), inverted: false, absent: false }
    }

    /// Every value, but not absent (T6).
    #[must_use]
    pub fn present() -> Self {
        Self { values: Values::Several(Vec::new()), inverted: true, absent: false }
    }

    /// The empty set.
    #[must_use]
    pub fn none() -> Self {
        Self { values: Values::Several(Vec::new()), inverted: false, absent: false }
    }

    /// These values, or all others if `inverted`; also absent if `absent`. The values need not be
    /// sorted.
    pub fn of(values: Vec<T>, inverted: bool, absent: bool) -> Self {
        Self::gather(values, inverted, absent)
    }

    /// [`of`](Self::of) for any iterator. A single value needs no memory of its own.
    pub(super) fn gather(values: impl IntoIterator<Item = T>, inverted: bool, absent: bool) -> Self {
        let mut values = Values::from_iter(values);
        if let Values::Several(several) = &mut values {
            several.sort_unstable();
            several.dedup();
            values = values.shrunk();
        }
        Self { values, inverted, absent }
    }

    /// The named values: the allowed ones, or those that are not allowed when the set [has any
    /// other value](Self::has_other).
    #[must_use]
    pub fn values(&self) -> &[T] {
        match &self.values {
            Values::One(one) => one,
            Values::Several(several) => several,
        }
    }

    /// Whether the set has every value that it does not name.
    #[must_use]
    pub fn has_other(&self) -> bool {
        self.inverted
    }

    /// Whether the key may be absent.
    #[must_use]
    pub fn has_absent(&self) -> bool {
        self.absent
    }

    /// Whether this value is in the set.
    pub fn has_value(&self, value: &T) -> bool {
        self.values().binary_search(value).is_ok() != self.inverted
    }

    /// Whether the outcome is in the set; [`KeyOutcome::Other`] is one that the set does not name.
    pub fn has(&self, outcome: &KeyOutcome<T>) -> bool {
        match outcome {
            KeyOutcome::Absent => self.absent,
            KeyOutcome::Value(value) => self.has_value(value),
            KeyOutcome::Other => self.inverted,
        }
    }

    /// Whether no outcome is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values().is_empty() && !self.inverted && !self.absent
    }

    /// Whether every outcome is in the set, so that the key makes no difference.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.values().is_empty() && self.inverted && self.absent
    }

    /// The outcomes that are not in this set.
    #[must_use]
    pub fn complement(mut self) -> Self {
        self.inverted = !self.inverted;
        self.absent = !self.absent;
        self
    }

    /// The outcomes in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let absent = self.absent && other.absent;
        let (values, inverted) = match (self.inverted, other.inverted) {
            (false, _) => {
                (self.values().iter().filter(|value| other.has_value(value)).cloned().collect(), false)
            }
            (true, false) => {
                (other.values().iter().filter(|value| self.has_value(value)).cloned().collect(), false)
            }
            (true, true) => (Values::Several(union(self.values(), other.values())).shrunk(), true),
        };
        Self { values, inverted, absent }
    }

    /// The outcomes in at least one of the two sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.complement().and(&other.complement()).complement()
    }

    /// An outcome in both sets, if there is one: absent, else the least value, else a value that
    /// neither set names.
    pub fn meet(&self, other: &Self) -> Option<KeyOutcome<T>> {
        if self.absent && other.absent {
            return Some(KeyOutcome::Absent);
        }
        let value = match (self.inverted, other.inverted) {
            (false, _) => self.values().iter().find(|value| other.has_value(value)),
            (true, false) => other.values().iter().find(|value| self.has_value(value)),
            (true, true) => return Some(KeyOutcome::Other),
        };
        value.cloned().map(KeyOutcome::Value)
    }

    /// An outcome of the set, if it has any.
    pub fn any(&self) -> Option<KeyOutcome<T>> {
        if self.absent {
            Some(KeyOutcome::Absent)
        } else if self.inverted {
            Some(KeyOutcome::Other)
        } else {
            self.values().first().cloned().map(KeyOutcome::Value)
        }
    }
}

impl<T> Values<T> {
    /// The same values, without a list around a single one.
    fn shrunk(self) -> Self {
        match self {
            Self::Several(several) if several.len() == 1 => several.into_iter().collect(),
            values => values,
        }
    }
}

impl<T> FromIterator<T> for Values<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(one), None) => Self::One([one]),
            (first, second) => Self::Several(first.into_iter().chain(second).chain(values).collect()),
        }
    }
}

/// Merges two sorted lists.
fn union<T: Ord + Clone>(left: &[T], right: &[T]) -> Vec<T> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut at, mut with) = (0, 0);
    while let (Some(mine), Some(theirs)) = (left.get(at), right.get(with)) {
        let order = mine.cmp(theirs);
        merged.push(if order == Ordering::Greater { theirs.clone() } else { mine.clone() });
        at += usize::from(order != Ordering::Greater);
        with += usize::from(order != Ordering::Less);
    }
    merged.extend_from_slice(&left[at..]);
    merged.extend_from_slice(&right[with..]);
    merged
}
