//! The other names of a resource, besides its own, that a subscription may use: its aliases (D24)
//! and the glob that it is a member of (X12).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::snapshot::NameMap;
use crate::hash::empty_map;
use crate::name::{ResourceName, Revision};

/// The other names of all resources of a type. Nearly all types have none.
#[derive(Debug, Clone)]
pub(crate) struct OtherNames {
    /// The own names of resources, by their other name.
    members: NameMap<Arc<BTreeSet<ResourceName>>>,
    /// The other names of a resource, by its own name.
    others: NameMap<Arc<[ResourceName]>>,
    /// The newest few other names that a resource gave up, with the revision of that commit, by its
    /// own name.
    former: NameMap<Arc<[(ResourceName, Revision)]>>,
}

impl OtherNames {
    /// Replaces the other names of a resource.
    pub(super) fn set(
        &mut self,
        name: &ResourceName,
        others: &BTreeSet<ResourceName>,
        is_present: bool,
        at: Revision,
    ) {
        let before = self.others.get(name).cloned();
        if is_present {
            self.note_former(name, before.as_deref().unwrap_or_default(), others, at);
        } else if self.former.contains_key(name) {
            self.former.remove_mut(name);
        }
        if before.is_none() && others.is_empty() {
            return;
        }
        for other in before.iter().flat_map(|before| before.iter()).filter(|other| !others.contains(*other)) {
            let members = self.members.get(other).expect("each other name leads back to its resource");
            let mut members = BTreeSet::clone(members);
            members.remove(name);
            match members.is_empty() {
                true => _ = self.members.remove_mut(other),
                false => self.members.insert_mut(other.clone(), Arc::new(members)),
            }
        }
        for other in others {
            if before.as_ref().is_none_or(|before| !before.contains(other)) {
                let mut members = self.members.get(other).map(|of| BTreeSet::clone(of)).unwrap_or_default();
                members.insert(name.clone());
                self.members.insert_mut(other.clone(), Arc::new(members));
            }
        }
        match others.is_empty() {
            true => _ = self.others.remove_mut(name),
            false => self.others.insert_mut(name.clone(), others.iter().cloned().collect()),
        }
    }

    /// Whether no resource has other names or gave up some.
    pub(super) fn are_none(&self) -> bool {
        self.others.is_empty() && self.former.is_empty()
    }

    fn note_former(
        &mut self,
        name: &ResourceName,
        before: &[ResourceName],
        others: &BTreeSet<ResourceName>,
        at: Revision,
    ) {
        let known = self.former.get(name).map_or(&[][..], |former| former);
        let given_up =
            before.iter().filter(|other| !others.contains(*other)).map(|other| (other.clone(), at));
        let kept = known.iter().filter(|(other, _)| !others.contains(other)).cloned();
        let former: Vec<_> = kept.chain(given_up).collect();
        if former.is_empty() {
            self.former.remove_mut(name);
        } else if former.as_slice() != known {
            let newest = former.len().saturating_sub(FORMER_LIMIT);
            self.former.insert_mut(name.clone(), former[newest..].into());
        }
    }

    /// The other names that a resource gave up after a revision.
    pub(super) fn former(&self, name: &ResourceName, since: Revision) -> impl Iterator<Item = &ResourceName> {
        let former = self.former.get(name).into_iter().flat_map(|former| former.iter());
        former.filter(move |(_, at)| *at > since).map(|(other, _)| other)
    }

    /// The resources that gave up other names.
    pub(super) fn with_former(&self) -> impl Iterator<Item = &ResourceName> {
        self.former.keys()
    }

    /// The other names of a resource.
    pub(crate) fn of(&self, name: &ResourceName) -> &[ResourceName] {
        // Nearly all types have no other names: then do not hash the name.
        if self.others.is_empty() {
            return &[];
        }
        self.others.get(name).map_or(&[], |others| others)
    }

    /// The resources that have `other` as another name, in order.
    pub(super) fn members(&self, other: &ResourceName) -> impl Iterator<Item = &ResourceName> {
        // As for `of`.
        let members = if self.members.is_empty() { None } else { self.members.get(other) };
        members.into_iter().flat_map(|members| members.iter())
    }
}

impl Default for OtherNames {
    fn default() -> Self {
        Self { members: empty_map(), others: empty_map(), former: empty_map() }
    }
}

/// The largest number of given-up names that are remembered for a resource.
const FORMER_LIMIT: usize = 16;
