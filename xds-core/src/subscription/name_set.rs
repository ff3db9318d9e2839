//! Sets of names.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{WILDCARD, can_be, difference};
use crate::name::ResourceName;
use crate::xdstp::XdstpName;

/// A sorted set of names. Streams that subscribe to the same names share it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct NameSet(Arc<Names>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Names {
    list: Vec<ResourceName>,
    /// Whether all of them are valid old-style names, so that requests need not check or parse
    /// them.
    is_plain: bool,
}

impl NameSet {
    /// Whether the set has the name.
    #[must_use]
    pub fn contains(&self, name: &ResourceName) -> bool {
        self.as_slice().binary_search(name).is_ok()
    }

    /// The names in order.
    pub fn iter(&self) -> std::slice::Iter<'_, ResourceName> {
        self.as_slice().iter()
    }

    /// The names in order.
    #[must_use]
    pub fn as_slice(&self) -> &[ResourceName] {
        &self.0.list
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.list.len()
    }

    /// Whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.list.is_empty()
    }

    pub(super) fn has_wildcard(&self) -> bool {
        self.as_slice().binary_search_by(|name| name.as_str().cmp(WILDCARD)).is_ok()
    }

    /// Whether all of them are valid old-style names.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_plain
    }

    /// Whether both share one list in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The same set with some names and without others; both lists are sorted. Copies the set, but compares
    /// only O(edited names * log set) names.
    pub(super) fn edited(&self, add: &[ResourceName], remove: &[ResourceName]) -> Self {
        let mut kept = Vec::with_capacity(self.len() + add.len());
        let mut rest = self.as_slice();
        for name in remove {
            let at = rest.partition_point(|of| of < name);
            kept.extend_from_slice(&rest[..at]);
            rest = &rest[at + usize::from(rest.get(at) == Some(name))..];
        }
        kept.extend_from_slice(rest);
        if !self.is_plain() {
            return kept.into_iter().chain(add.iter().cloned()).collect();
        }
        Self::merged(kept, add, add.iter().all(is_plain))
    }

    /// The names of both. Costs as [`edited`](Self::edited), and copies no name that only this set has if no
    /// other one shares its list.
    pub(super) fn union(self, other: &Self) -> Self {
        if self.is_empty() || self.is_same(other) {
            return other.clone();
        }
        if other.is_empty() {
            return self;
        }
        let is_plain = self.is_plain() && other.is_plain();
        let list = Arc::try_unwrap(self.0).map_or_else(|shared| shared.list.clone(), |own| own.list);
        Self::merged(list, other.as_slice(), is_plain)
    }

    /// Adds names to others, both sorted. Moves those between two added ones all at once.
    fn merged(names: Vec<ResourceName>, add: &[ResourceName], is_plain: bool) -> Self {
        let (mut list, mut moved) = (names, Vec::new());
        for name in add.iter().rev() {
            let at = list.partition_point(|of| of < name);
            if list.get(at) != Some(name) {
                moved.push((name, list.split_off(at)));
            }
        }
        for (name, mut after) in moved.into_iter().rev() {
            list.push(name.clone());
            list.append(&mut after);
        }
        Self(Arc::new(Names { list, is_plain }))
    }

    /// The names that `other` does not have. O(both), unless both share one list in memory.
    pub(super) fn without(&self, other: &Self) -> Self {
        match () {
            () if self.is_same(other) => Self::default(),
            () if other.is_empty() => self.clone(),
            () => self.part(difference(self.as_slice(), other.as_slice())),
        }
    }

    /// The names that pass. Asks once for each, in order.
    pub(crate) fn filter(&self, mut is_kept: impl FnMut(&ResourceName) -> bool) -> Self {
        let Some(first) = self.iter().position(|name| !is_kept(name)) else { return self.clone() };
        let (kept, rest) = self.as_slice().split_at(first);
        let rest = rest[1..].iter().filter(|name| is_kept(name));
        self.part(kept.iter().chain(rest).cloned().collect())
    }

    /// Some of its names, in order.
    fn part(&self, list: Vec<ResourceName>) -> Self {
        match self.is_plain() {
            true if !list.is_empty() => Self(Arc::new(Names { list, is_plain: true })),
            true => Self::default(),
            false => list.into_iter().collect(),
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Self { list: Vec::new(), is_plain: true }
    }
}

impl Ord for NameSet {
    /// Equal sets mostly share one list in memory; their names are then not compared.
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_same(other) { Ordering::Equal } else { self.as_slice().cmp(other.as_slice()) }
    }
}

impl PartialOrd for NameSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromIterator<ResourceName> for NameSet {
    fn from_iter<I: IntoIterator<Item = ResourceName>>(names: I) -> Self {
        let mut list: Vec<_> = names.into_iter().collect();
        // S23: a name counts once.
        if !list.is_sorted_by(|one, other| one < other) {
            list.sort_unstable();
            list.dedup();
        }
        let is_plain = list.iter().all(is_plain);
        Self(Arc::new(Names { list, is_plain }))
    }
}

/// Whether it is a valid old-style name.
fn is_plain(name: &ResourceName) -> bool {
    can_be(name.as_str()) && !XdstpName::is_new_style(name.as_str())
}

impl<'a> IntoIterator for &'a NameSet {
    type Item = &'a ResourceName;
    type IntoIter = std::slice::Iter<'a, ResourceName>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
