//! Which resources of one type name which other resources (S33).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hash::{HashTrieMap, empty_map};
use crate::name::ResourceName;
use crate::references::Target;
use crate::variants::{Variant, Variants};

/// The names of the resources of one type that reference a cluster, a secret and so on. A cluster
/// that names the assignment with its own name is left out.
#[derive(Debug, Clone)]
pub(super) struct Referrers(HashTrieMap<(Target, ResourceName), Arc<BTreeSet<ResourceName>>>);

impl Referrers {
    /// The resources that name this one in any of their variants.
    pub(super) fn of<'s>(
        &'s self,
        target: Target,
        name: &ResourceName,
    ) -> impl Iterator<Item = &'s ResourceName> + use<'s> {
        self.0.get(&(target, name.clone())).into_iter().flat_map(|names| names.iter())
    }

    pub(super) fn has(&self, target: Target, name: &ResourceName) -> bool {
        self.0.contains_key(&(target, name.clone()))
    }

    /// Notes that a commit replaced the variants `removed` of a name by the variants `inserted`. The
    /// name has the variants `present` now.
    pub(super) fn note(
        &mut self,
        name: &ResourceName,
        removed: &[Arc<Variant>],
        inserted: &[Arc<Variant>],
        present: Option<&Variants>,
    ) {
        // A new version usually names the same resources as the one before.
        let (before, after) = (removed.iter(), inserted.iter());
        if before.map(|variant| &variant.references).eq(after.map(|variant| &variant.references)) {
            return;
        }
        let named = |variants: &[Arc<Variant>]| -> BTreeSet<_> {
            let references = variants.iter().flat_map(|variant| variant.references.iter(name));
            let others = references.filter(|(target, named)| *target != Target::Assignment || *named != name);
            others.map(|(target, named)| (target, named.clone())).collect()
        };
        let (before, after) = (named(removed), named(inserted));
        let mut dropped: BTreeSet<_> = before.difference(&after).collect();
        // A name may have very many variants: read them only when a reference was dropped.
        let still = present.filter(|_| !dropped.is_empty()).into_iter().flat_map(Variants::iter);
        for variant in still {
            dropped.retain(|(target, named)| !variant.references.has(name, *target, named));
        }
        for key in dropped {
            let mut names = self.0.get(key).map(|names| BTreeSet::clone(names)).unwrap_or_default();
            names.remove(name);
            match names.is_empty() {
                true => _ = self.0.remove_mut(key),
                false => self.0.insert_mut(key.clone(), Arc::new(names)),
            }
        }
        for key in after {
            let names = self.0.get(&key);
            if names.is_none_or(|names| !names.contains(name)) {
                let mut names = names.map(|names| BTreeSet::clone(names)).unwrap_or_default();
                names.insert(name.clone());
                self.0.insert_mut(key, Arc::new(names));
            }
        }
    }
}

impl Default for Referrers {
    fn default() -> Self {
        Self(empty_map())
    }
}
