//! The contents of a response.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::name::ResourceName;
use crate::wire::ResourceKey;

/// The contents of a response.
#[derive(Debug, Clone)]
pub(super) enum ResponseContents {
    /// Everything that the client should have (S25).
    FullState,
    /// Some resources and removals.
    Resources {
        /// The keys of an update in order, which the streams of a class share.
        shared: Option<Arc<[ResourceKey]>>,
        own: BTreeSet<ResourceKey>,
    },
}

impl ResponseContents {
    /// The contents of a part: names after one name, up to another. The last part has no end.
    pub(super) fn part(&self, after: Option<&ResourceName>, until: Option<&ResourceName>) -> Self {
        let is_in = |key: &&ResourceKey| {
            after.is_none_or(|after| key.name > *after) && until.is_none_or(|until| key.name <= *until)
        };
        Self::Resources { shared: None, own: self.keys().filter(is_in).cloned().collect() }
    }

    /// No resources.
    pub(super) fn nothing() -> Self {
        Self::Resources { shared: None, own: BTreeSet::new() }
    }

    pub(super) fn has(&self, key: &ResourceKey) -> bool {
        match self {
            Self::FullState => true,
            Self::Resources { shared, own } => {
                own.contains(key) || shared.as_ref().is_some_and(|shared| shared.binary_search(key).is_ok())
            }
        }
    }

    /// Whether it has this key. V25: a key without constraints may have some by now.
    pub(super) fn covers(&self, key: &ResourceKey) -> bool {
        self.has(key) || (key.constraints.is_none() && self.of_name(&key.name).next().is_some())
    }

    /// Whether it has resources of one name alone.
    pub(super) fn has_one_name(&self) -> bool {
        let mut names = self.keys().map(|key| &key.name);
        names.next().is_some_and(|first| names.all(|name| name == first))
    }

    /// Its keys of one name.
    pub(super) fn of_name<'s>(&'s self, name: &'s ResourceName) -> impl Iterator<Item = &'s ResourceKey> {
        let (shared, own) = self.sets();
        let first = ResourceKey::of_name(name);
        let shared = &shared[shared.partition_point(|key| *key < first)..];
        let own = own.into_iter().flat_map(move |own| own.range(first.clone()..));
        let of_name = move |key: &&ResourceKey| key.name == *name;
        shared.iter().take_while(of_name).chain(own.take_while(of_name))
    }

    pub(super) fn len(&self) -> usize {
        let (shared, own) = self.sets();
        shared.len() + own.map_or(0, BTreeSet::len)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        let (shared, own) = self.sets();
        shared.iter().chain(own.into_iter().flatten())
    }

    fn sets(&self) -> (&[ResourceKey], Option<&BTreeSet<ResourceKey>>) {
        match self {
            Self::FullState => (&[], None),
            Self::Resources { shared, own } => (shared.as_deref().unwrap_or_default(), Some(own)),
        }
    }
}
