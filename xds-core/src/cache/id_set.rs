//! A set of numbers that mostly has one member.

use std::collections::BTreeSet;

/// The numbers of the classes that select a name, or of the lists that have it. Clients that share a name
/// mostly share the whole list, and are then one class. A set in memory of its own costs 112 bytes for each
/// name.
#[derive(Debug)]
pub(super) enum IdSet {
    One(u64),
    /// Any number, also none or one.
    Many(BTreeSet<u64>),
}

impl IdSet {
    pub(super) fn insert(&mut self, id: u64) {
        match self {
            Self::One(only) if *only == id => {}
            Self::One(only) => *self = Self::Many(BTreeSet::from([*only, id])),
            Self::Many(ids) => _ = ids.insert(id),
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        match self {
            Self::One(only) if *only == id => *self = Self::default(),
            Self::One(_) => {}
            Self::Many(ids) => _ = ids.remove(&id),
        }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        match self {
            Self::One(only) => *only == id,
            Self::Many(ids) => ids.contains(&id),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(ids) => ids.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let (one, many) = match self {
            Self::One(only) => (Some(*only), None),
            Self::Many(ids) => (None, Some(ids)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

impl Default for IdSet {
    fn default() -> Self {
        Self::Many(BTreeSet::new())
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::QuickCheck;

    use super::*;

    #[test]
    fn it_has_what_a_plain_set_has_after_the_same_steps() {
        fn agrees(steps: Vec<(bool, u8)>) -> bool {
            let (mut set, mut plain) = (IdSet::One(0), BTreeSet::from([0]));
            steps.into_iter().all(|(is_insertion, id)| {
                let id = u64::from(id % 4);
                if is_insertion {
                    set.insert(id);
                    plain.insert(id);
                } else {
                    set.remove(id);
                    plain.remove(&id);
                }
                let has_same = (0..4).all(|id| set.contains(id) == plain.contains(&id));
                let is_same = set.iter().eq(plain.iter().copied()) && has_same;
                is_same && (set.len(), set.is_empty()) == (plain.len(), plain.is_empty())
            })
        }
        QuickCheck::new().tests(1000).quickcheck(agrees as fn(Vec<(bool, u8)>) -> bool);
    }
}
