//! The names besides its own that a resource is asked for by: its aliases (D24) and the glob it is a member of (X12).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::snapshot::{NameMap, empty_map};
use crate::name::ResourceName;

/// Of all resources of a type. Nearly all types have none.
#[derive(Debug, Clone)]
pub(crate) struct OtherNames {
    /// Own names, by the name asked for.
    members: NameMap<Arc<BTreeSet<ResourceName>>>,
    /// The names asked for, by the own name.
    others: NameMap<Arc<[ResourceName]>>,
}

impl OtherNames {
    /// Replaces what a resource is asked for by.
    pub(super) fn set(&mut self, name: &ResourceName, others: &BTreeSet<ResourceName>) {
        let before = self.others.get(name).cloned();
        if before.is_none() && others.is_empty() {
            return;
        }
        for other in before.iter().flat_map(|before| before.iter()).filter(|other| !others.contains(*other)) {
            let mut members = BTreeSet::clone(self.members.get(other).expect("it is listed both ways"));
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

    pub(super) fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// What a resource is asked for by besides its name.
    pub(super) fn of(&self, name: &ResourceName) -> &[ResourceName] {
        self.others.get(name).map_or(&[], |others| others)
    }

    /// The resources that are asked for by a name which is not, or not only, their own; in order.
    pub(super) fn members(&self, asked: &ResourceName) -> impl Iterator<Item = &ResourceName> {
        self.members.get(asked).into_iter().flat_map(|members| members.iter())
    }
}

impl Default for OtherNames {
    fn default() -> Self {
        Self { members: empty_map(), others: empty_map() }
    }
}
