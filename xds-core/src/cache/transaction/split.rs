//! Parts of a transaction, and whether one of them can be without the other.

use std::collections::BTreeSet;

use super::{Change, Transaction, VariantChange};
use crate::cache::snapshot::Snapshot;
use crate::name::ResourceName;
use crate::references::{References, Target, Targets};
use crate::resource::VariantId;

/// Resources by name, and the types of which any resource may be meant.
#[derive(Default)]
struct NamedSet {
    names: BTreeSet<(Target, ResourceName)>,
    types: Targets,
}

impl NamedSet {
    /// Adds what the resource `own` names.
    fn add_named_by(&mut self, of_type: Target, own: &ResourceName, references: &References) {
        self.names.extend(references.iter(own).map(|(target, name)| (target, name.clone())));
        // Only clusters name others of their type.
        let unknown = references.unknown();
        self.types.extend(if of_type == Target::Cluster { unknown } else { unknown.without(of_type) });
    }
}

impl Transaction {
    /// The changes of these variants, and all others.
    pub(crate) fn split(mut self, variants: &BTreeSet<VariantId>) -> (Self, Self) {
        let mut first = Self::new();
        for (type_url, changes) in &mut self.changes {
            let is_first = |VariantChange { name, constraints, .. }: &mut VariantChange| {
                let (name, constraints) = (name.clone(), constraints.clone());
                variants.contains(&VariantId { type_url: type_url.clone(), name, constraints })
            };
            let of_first: Vec<_> = changes.extract_if(.., is_first).collect();
            if !of_first.is_empty() {
                first.changes.insert(type_url.clone(), of_first);
            }
        }
        self.changes.retain(|_, changes| !changes.is_empty());
        (first, self)
    }

    /// Whether, in this state, one of its resources may name what only `rest` adds, or it removes what only
    /// `rest` ceases to name.
    pub(crate) fn needs(&self, rest: &Self, state: &Snapshot) -> bool {
        let (mut added, mut ended) = (NamedSet::default(), NamedSet::default());
        for (type_url, changes) in &rest.changes {
            let Some(target) = Target::of(type_url.as_str()) else { continue };
            for VariantChange { name, constraints, change } in changes {
                let variants = state.get(type_url, name);
                match (variants.and_then(|variants| variants.get(constraints)), change) {
                    (Some(variant), _) => ended.add_named_by(target, name, &variant.references),
                    (None, Change::Put(resource)) => {
                        let aliases = resource.aliases().iter().cloned();
                        added.names.extend(aliases.chain([name.clone()]).map(|name| (target, name)));
                        added.types.add(target);
                    }
                    (None, Change::Remove | Change::RemoveBecause(_)) => {}
                }
            }
        }
        self.changes.iter().any(|(type_url, changes)| {
            let Some(target) = Target::of(type_url.as_str()) else { return false };
            changes.iter().any(|VariantChange { name, change, .. }| match change {
                Change::Put(resource) => {
                    let mut named = NamedSet::default();
                    named.add_named_by(target, name, &resource.references);
                    named.types.meet(added.types) || !named.names.is_disjoint(&added.names)
                }
                Change::Remove | Change::RemoveBecause(_) => {
                    ended.types.has(target) || ended.names.contains(&(target, name.clone()))
                }
            })
        })
    }
}
