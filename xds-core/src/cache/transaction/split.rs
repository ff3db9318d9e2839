//! Parts of a transaction, and whether one of them can be without the other.

use std::collections::BTreeSet;

use super::{Change, Transaction, VariantChange};
use crate::cache::snapshot::Snapshot;
use crate::name::{ResourceName, TypeUrl};
use crate::references::{References, Target, Targets};

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
    /// The changes of these resources, and all others.
    pub(crate) fn split(mut self, resources: &BTreeSet<(TypeUrl, ResourceName)>) -> (Self, Self) {
        let mut first = Self::new();
        for (type_url, changes) in &mut self.changes {
            let is_first =
                |change: &mut VariantChange| resources.contains(&(type_url.clone(), change.name.clone()));
            let of_first: Vec<_> = changes.extract_if(.., is_first).collect();
            if !of_first.is_empty() {
                first.changes.insert(type_url.clone(), of_first);
            }
        }
        self.changes.retain(|_, changes| !changes.is_empty());
        (first, self)
    }

    /// The changes of these resources with all that [need](Self::needs) them in this state, and the rest.
    pub(crate) fn split_with_needing(
        self,
        resources: &BTreeSet<(TypeUrl, ResourceName)>,
        state: &Snapshot,
    ) -> (Self, Self) {
        let (mut first, mut rest) = self.split(resources);
        loop {
            let needing = rest.needing(&first, state).collect::<BTreeSet<_>>();
            if needing.is_empty() {
                return (first, rest);
            }
            let (more, others) = rest.split(&needing);
            for (type_url, changes) in more.changes {
                first.changes.entry(type_url).or_default().extend(changes);
            }
            rest = others;
        }
    }

    /// Whether, in this state, one of its resources may name what only `other` adds, or it removes what only
    /// `other` ceases to name, or gives another name.
    pub(crate) fn needs(&self, other: &Self, state: &Snapshot) -> bool {
        self.needing(other, state).next().is_some()
    }

    /// Its resources that need `other`.
    fn needing(
        &self,
        other: &Self,
        state: &Snapshot,
    ) -> impl Iterator<Item = (TypeUrl, ResourceName)> + use<'_> {
        let (mut added, mut ended) = (NamedSet::default(), NamedSet::default());
        for (type_url, changes) in &other.changes {
            let Some(target) = Target::of(type_url.as_str()) else { continue };
            for VariantChange { name, constraints, change } in changes {
                let before = state.get(type_url, name).and_then(|variants| variants.get(constraints));
                if let Some(before) = before {
                    let mut named = NamedSet::default();
                    named.add_named_by(target, name, &before.references);
                    if let Change::Put(resource) = change {
                        named.names.retain(|(target, named)| !resource.references.has(name, *target, named));
                    }
                    ended.names.append(&mut named.names);
                    ended.types.extend(named.types);
                }
                if let Change::Put(resource) = change {
                    let had: BTreeSet<_> = before.into_iter().flat_map(|variant| variant.aliases()).collect();
                    let aliases = resource.aliases().iter().filter(|alias| !had.contains(alias));
                    for name in aliases.chain(before.is_none().then_some(name)) {
                        added.types.add(target);
                        added.names.insert((target, name.clone()));
                    }
                }
            }
        }
        let needs = move |target: Target, VariantChange { name, change, .. }: &VariantChange| match change {
            Change::Put(resource) => {
                let mut named = NamedSet::default();
                named.add_named_by(target, name, &resource.references);
                named.types.meet(added.types) || !named.names.is_disjoint(&added.names)
            }
            Change::Remove | Change::RemoveBecause(_) => {
                let of_this = (target, name.clone());
                ended.types.has(target) || ended.names.contains(&of_this) || added.names.contains(&of_this)
            }
        };
        let with_target =
            self.changes.iter().filter_map(|(of, changes)| Some((of, Target::of(of.as_str())?, changes)));
        with_target.flat_map(move |(type_url, target, changes)| {
            let needing: Vec<_> = changes.iter().filter(|change| needs(target, change)).collect();
            needing.into_iter().map(|change| (type_url.clone(), change.name.clone()))
        })
    }
}
