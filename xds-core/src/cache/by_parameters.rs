//! Finds the classes that a variant can match, by the parameters that its constraints require.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::class::ClassId;
use super::type_selection::TypeSelection;
use crate::constraint::Formula;

/// The classes of one type by the values in their parameters, whatever names they select.
///
/// A name may have many variants, and each variant few classes. A commit that changes one variant
/// must not visit the classes of all the others. Values come from peers, so the maps are ordered,
/// as those of names are: no choice of values makes a look-up slow.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ByParameters(BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<ClassId>>>);

impl ByParameters {
    pub(super) fn insert(&mut self, id: ClassId, selection: &TypeSelection) {
        self.replace(id, &TypeSelection::default(), selection);
    }

    pub(super) fn remove(&mut self, id: ClassId, selection: &TypeSelection) {
        self.replace(id, selection, &TypeSelection::default());
    }

    /// Replaces the selection of a class. Costs nothing when the parameters stay the same.
    pub(super) fn replace(&mut self, id: ClassId, before: &TypeSelection, after: &TypeSelection) {
        if before.parameters().eq(after.parameters()) {
            return;
        }
        let (before, after) = (pairs(before), pairs(after));
        for (key, value) in before.difference(&after) {
            self.remove_pair(id, key, value);
        }
        for (key, value) in after.difference(&before) {
            let values = self.0.entry(Arc::clone(key)).or_default();
            values.entry(Arc::clone(value)).or_default().insert(id);
        }
    }

    fn remove_pair(&mut self, id: ClassId, key: &str, value: &str) {
        let values = self.0.get_mut(key).expect("each key of a class is in the index");
        let classes = values.get_mut(value).expect("each value of a class is in the index");
        classes.remove(&id);
        if classes.is_empty() {
            values.remove(value);
        }
        if values.is_empty() {
            self.0.remove(key);
        }
    }

    /// Every class whose parameters match the formula, and possibly classes whose parameters do not
    /// match. `None` when the formula requires no value, for example when it only requires that a
    /// key is absent.
    pub(super) fn matching(&self, formula: &Formula) -> Option<Matching<'_>> {
        match formula {
            Formula::Equals { key, value } => {
                let classes = self.0.get(key).and_then(|values| values.get(value));
                Some(classes.map(Matching::of).unwrap_or_default())
            }
            // A class must match every part, so the part with the fewest classes is enough.
            Formula::All(parts) => {
                parts.iter().filter_map(|part| self.matching(part)).min_by_key(Matching::len)
            }
            Formula::Any(parts) => {
                parts.iter().try_fold(Matching::default(), |all, part| Some(all.and(self.matching(part)?)))
            }
            Formula::Exists { .. } | Formula::Not(_) => None,
        }
    }
}

/// Lists of classes; a class may be in several lists.
#[derive(Debug, Default)]
pub(super) struct Matching<'a> {
    lists: Vec<&'a BTreeSet<ClassId>>,
    len: usize,
}

impl<'a> Matching<'a> {
    fn of(classes: &'a BTreeSet<ClassId>) -> Self {
        Self { lists: vec![classes], len: classes.len() }
    }

    /// The sum of the lengths of the lists.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ClassId> {
        self.lists.iter().copied().flatten().copied()
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self.lists.extend(other.lists);
        self.len += other.len;
        self
    }
}

/// The keys and values in the parameters of a class, each pair once.
fn pairs(selection: &TypeSelection) -> BTreeSet<(&Arc<str>, &Arc<str>)> {
    selection.parameters().flat_map(|parameters| parameters.iter()).collect()
}
