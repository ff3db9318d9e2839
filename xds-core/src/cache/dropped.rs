//! References that resources dropped: an older version of the resource named another resource, and
//! a newer version does not.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::snapshot::NameMap;
use crate::hash::{HashTrieMap, empty_map};
use crate::name::{ResourceName, Revision};
use crate::references::{Reference, Target, Targets};
use crate::variants::Variant;

/// The references that the resources of one type dropped.
///
/// When a resource stops naming another one (S33), a client that has not ACKed this may still use it.
/// So each name that is present, or whose removal is remembered, keeps the references that it
/// dropped.
#[derive(Debug, Clone)]
pub(crate) struct DroppedReferences {
    by_name: NameMap<Arc<Dropped>>,
    /// Up to this revision, dropped references of other names are forgotten.
    known_since: Revision,
    last: LastDropped,
}

impl DroppedReferences {
    /// The resources of a type to which the resource with this name dropped its references after a
    /// revision.
    pub(crate) fn after<'s>(
        &'s self,
        name: &ResourceName,
        revision: Revision,
        target: Target,
    ) -> impl Iterator<Item = Reference<'s>> + use<'s> {
        // Also for a name that is present: it may have been removed and added again.
        let forgotten = (self.known_since > revision).then_some(Reference::Any);
        let dropped = self.by_name.get(name).into_iter();
        forgotten.into_iter().chain(dropped.flat_map(move |dropped| dropped.since(revision, target)))
    }

    /// The names that dropped references, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.by_name.keys()
    }

    /// For each resource that was named, when a reference to it was dropped last.
    pub(crate) fn last(&self) -> &LastDropped {
        &self.last
    }

    /// Notes that a commit replaced the variants `removed` of a name by the variants `inserted`.
    pub(super) fn note(
        &mut self,
        name: &ResourceName,
        removed: &[Arc<Variant>],
        inserted: &[Arc<Variant>],
        revision: Revision,
    ) {
        let before = self.by_name.get(name).map(Arc::as_ref);
        if let Some(dropped) = Dropped::after(before, removed, inserted, revision) {
            self.last.note(&dropped, revision);
            self.by_name.insert_mut(name.clone(), Arc::new(dropped));
        }
    }

    /// Forgets the references of a name that is neither present nor remembered.
    pub(super) fn forget(&mut self, name: &ResourceName) {
        if let Some(dropped) = self.by_name.get(name) {
            self.known_since = self.known_since.max(dropped.last());
            self.by_name.remove_mut(name);
        }
    }
}

impl Default for DroppedReferences {
    fn default() -> Self {
        Self { by_name: empty_map(), known_since: Revision::ZERO, last: LastDropped::new() }
    }
}

/// The references that the variants of one name dropped, each with the revision of the commit.
///
/// When a client has not ACKed the newer version (S33), it may still use the resources that the
/// older version named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dropped {
    /// The newest dropped references, oldest first.
    names: Vec<(Revision, Target, ResourceName)>,
    /// The types for which the exact names are not known: any resource of these types may have been
    /// dropped, at this revision or before.
    unknown: (Revision, Targets),
}

impl Dropped {
    /// Adds the references that a commit dropped when it replaced the variants `removed` of a name
    /// by the variants `inserted`; `None` when it dropped none.
    ///
    /// A reference counts as dropped unless every inserted variant has it: a client may get another
    /// variant than before.
    pub(crate) fn after(
        before: Option<&Self>,
        removed: &[Arc<Variant>],
        inserted: &[Arc<Variant>],
        at: Revision,
    ) -> Option<Self> {
        let kept = |target, name: &ResourceName| {
            !inserted.is_empty()
                && inserted.iter().all(|variant| variant.references.has(variant.name(), target, name))
        };
        let named = removed.iter().flat_map(|variant| variant.references.iter(variant.name()));
        let lost: BTreeSet<_> = named.filter(|(target, name)| !kept(*target, name)).collect();
        let mut unknown = Targets::NONE;
        removed.iter().for_each(|variant| unknown.extend(variant.references.unknown()));
        if lost.is_empty() && unknown == Targets::NONE {
            return None;
        }
        let mut dropped = before.cloned().unwrap_or_default();
        if unknown != Targets::NONE {
            dropped.forget(at, unknown);
        }
        dropped.names.retain(|(_, target, name)| !lost.contains(&(*target, name)));
        dropped.names.extend(lost.into_iter().map(|(target, name)| (at, target, name.clone())));
        let over = dropped.names.len().saturating_sub(DROPPED_REMEMBERED);
        for (at, target, _) in dropped.names.drain(..over).collect::<Vec<_>>() {
            let mut types = Targets::NONE;
            types.add(target);
            dropped.forget(at, types);
        }
        dropped.names.shrink_to_fit();
        Some(dropped)
    }

    /// The resources of a type whose references were dropped after a revision.
    pub(crate) fn since(&self, revision: Revision, target: Target) -> impl Iterator<Item = Reference<'_>> {
        let (at, types) = self.unknown;
        let any = (at > revision && types.has(target)).then_some(Reference::Any);
        let newer = self.names.iter().rev().take_while(move |(at, ..)| *at > revision);
        let names = newer.filter(move |(_, of, _)| *of == target).map(|(.., name)| Reference::Name(name));
        any.into_iter().chain(names)
    }

    /// The revision of the newest dropped reference.
    pub(crate) fn last(&self) -> Revision {
        self.names.last().map_or(self.unknown.0, |(at, ..)| self.unknown.0.max(*at))
    }

    fn forget(&mut self, at: Revision, types: Targets) {
        let (newest, unknown) = &mut self.unknown;
        *newest = at.max(*newest);
        unknown.extend(types);
    }
}

/// For each resource, the last revision at which a reference to it was dropped, as far as it is
/// remembered (S33).
#[derive(Debug, Clone)]
pub(crate) struct LastDropped {
    at: HashTrieMap<(Target, ResourceName), Revision>,
    /// The last revision at which a resource with unknown references was removed or replaced.
    unknown: Revision,
}

impl LastDropped {
    pub(crate) fn new() -> Self {
        Self { at: empty_map(), unknown: Revision::ZERO }
    }

    /// Adds the references that were dropped at this revision.
    pub(crate) fn note(&mut self, dropped: &Dropped, at: Revision) {
        if dropped.unknown.0 == at {
            self.unknown = at;
        }
        if self.at.size() > LAST_DROPPED_REMEMBERED {
            self.at = empty_map();
        }
        for (_, target, name) in dropped.names.iter().rev().take_while(|(then, ..)| *then == at) {
            self.at.insert_mut((*target, name.clone()), at);
        }
    }

    /// The last revision at which a reference to a resource was dropped; `None` when there was none
    /// or it is forgotten.
    pub(crate) fn of(&self, target: Target, name: &ResourceName) -> Option<Revision> {
        self.at.get(&(target, name.clone())).copied()
    }

    /// The last revision at which a resource with unknown references was removed or replaced.
    pub(crate) fn unknown(&self) -> Revision {
        self.unknown
    }
}

/// The largest number of resources that [`LastDropped`] remembers. When one is forgotten, its
/// removal waits for the whole grace time.
const LAST_DROPPED_REMEMBERED: usize = 10_000;

/// The largest number of references that [`Dropped`] remembers for one name. Before that, any
/// resource of the type counts as dropped.
const DROPPED_REMEMBERED: usize = 64;

#[cfg(test)]
mod tests;
