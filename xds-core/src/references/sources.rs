//! The configuration sources by which a resource names secrets, extensions and scopes (S34b).

use std::sync::Arc;

use super::{References, Target};
use crate::hash::constant_hash;
use crate::name::{ResourceName, Revision};
use crate::xdstp;

/// A source in a payload.
#[derive(Debug)]
pub(super) struct FoundSource<'a> {
    pub(super) target: Target,
    pub(super) name: &'a str,
    /// The encoded `ConfigSource`.
    pub(super) source: &'a [u8],
}

/// A resource that comes from a source. A client that is sent another source for it subscribes anew
/// inside, and the names that it subscribes to at the server stay equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceOf {
    target: Target,
    /// `*` for all resources of the type.
    name: ResourceName,
    /// The hash of the encoded source.
    source: u64,
    /// The revision since which the variant names it so; zero outside of a cache.
    since: Revision,
}

impl SourceOf {
    pub(super) fn new(found: &FoundSource<'_>) -> Self {
        let FoundSource { target, name, source } = *found;
        let (name, source) = (xdstp::canonical(name), constant_hash(&source));
        Self { target, name, source, since: Revision::ZERO }
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.target, self.source) == (other.target, other.source) && self.name == other.name
    }
}

impl References {
    /// Notes since when each source stands in the variant: this revision, or since it was in the variant
    /// that this one replaces.
    pub(crate) fn date_sources(&mut self, before: Option<&Self>, revision: Revision) {
        let Self::Some(named) = self else { return };
        if named.sources.is_empty() {
            return;
        }
        let before = before.map_or(&[][..], Self::sources);
        let since = |source: &SourceOf| {
            before.iter().find(|of| of.is_same(source)).map_or(revision, |before| before.since)
        };
        Arc::make_mut(named).sources.iter_mut().for_each(|source| source.since = since(source));
    }

    /// The resources that it names by another source than at a revision.
    pub(crate) fn newly_sourced(&self, revision: Revision) -> impl Iterator<Item = (Target, &ResourceName)> {
        let sources = self.sources().iter().filter(move |of| of.since > revision);
        sources.map(|of| (of.target, &of.name))
    }

    fn sources(&self) -> &[SourceOf] {
        match self {
            Self::Some(named) => &named.sources,
            Self::None | Self::OwnEndpoints | Self::Unknown => &[],
        }
    }
}
