//! What the versions of a resource named that came before, and those after no longer do.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::RandomState;
use rpds::HashTrieMapSync;

use super::snapshot::empty_map;
use crate::name::{ResourceName, Revision};
use crate::references::{Reference, Target, Targets};
use crate::variants::Variant;

/// What the variants of one name stopped naming, and when: a client that did not accept the newer
/// version still uses it (S33).
#[derive(Debug, Clone, Default)]
pub(crate) struct Dropped {
    /// The newest ones, oldest first.
    names: Vec<(Revision, Target, ResourceName)>,
    /// Types of which any resource may have been named, at this revision or before.
    unknown: (Revision, Targets),
}

impl Dropped {
    /// What is lost between variants of a name, also from one to another; `None` when that is
    /// nothing.
    pub(crate) fn after(
        before: Option<&Self>,
        gone: &[Arc<Variant>],
        came: &[Arc<Variant>],
        at: Revision,
    ) -> Option<Self> {
        let kept = |target, name: &ResourceName| {
            !came.is_empty()
                && came.iter().all(|variant| variant.references.has(variant.name(), target, name))
        };
        let named = gone.iter().flat_map(|variant| variant.references.iter(variant.name()));
        let lost: BTreeSet<_> = named.filter(|(target, name)| !kept(*target, name)).collect();
        let mut unknown = Targets::NONE;
        gone.iter().for_each(|variant| unknown.extend(variant.references.unknown()));
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

    /// What was dropped of a type after a revision.
    pub(crate) fn since(&self, revision: Revision, target: Target) -> impl Iterator<Item = Reference<'_>> {
        let (at, types) = self.unknown;
        let any = (at > revision && types.has(target)).then_some(Reference::Any);
        let newer = self.names.iter().rev().take_while(move |(at, ..)| *at > revision);
        let names = newer.filter(move |(_, of, _)| *of == target).map(|(.., name)| Reference::Name(name));
        any.into_iter().chain(names)
    }

    /// The newest of it.
    pub(crate) fn last(&self) -> Revision {
        self.names.last().map_or(self.unknown.0, |(at, ..)| self.unknown.0.max(*at))
    }

    fn forget(&mut self, at: Revision, types: Targets) {
        let (newest, unknown) = &mut self.unknown;
        *newest = at.max(*newest);
        unknown.extend(types);
    }
}

/// Since when nothing that is there names a resource, as far as that is remembered (S33).
#[derive(Debug, Clone)]
pub(crate) struct LastDropped {
    at: HashTrieMapSync<(Target, ResourceName), Revision, RandomState>,
    /// When something went that may have named anything.
    unknown: Revision,
}

impl LastDropped {
    pub(crate) fn new() -> Self {
        Self { at: empty_map(), unknown: Revision::ZERO }
    }

    /// Takes what was dropped at this revision.
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

    /// The last revision at which something stopped naming a resource; `None` when nothing did, or
    /// nobody knows.
    pub(crate) fn of(&self, target: Target, name: &ResourceName) -> Option<Revision> {
        self.at.get(&(target, name.clone())).copied()
    }

    /// The last revision at which something went that may have named anything.
    pub(crate) fn unknown(&self) -> Revision {
        self.unknown
    }
}

/// What is remembered of all names; whoever asks for one that is forgotten waits for all of the
/// grace time.
const LAST_DROPPED_REMEMBERED: usize = 10_000;

/// What is remembered of one name; of what was dropped before that, any may be meant.
const DROPPED_REMEMBERED: usize = 64;

#[cfg(test)]
mod tests;
