//! Wildcards and globs in a file, so that after a restart the proxy can distinguish a complete set
//! from a part of one.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::Snapshot;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::resource::VariantId;
use crate::subscription::WILDCARD;
use crate::xdstp::glob_of;

/// A wildcard or glob, with the parameters of its subscription.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetId {
    /// The type of its members.
    pub type_url: TypeUrl,
    /// `*`, or a glob.
    pub name: ResourceName,
    /// The parameters of the subscription.
    pub parameters: Parameters,
}

impl SetId {
    /// Whether a variant is a member. A wildcard covers names of all authorities: a proof with too
    /// many records can only fail more often.
    #[must_use]
    pub fn covers(&self, id: &VariantId) -> bool {
        self.type_url == id.type_url
            && (self.name.as_str() == WILDCARD || glob_of(&id.name).as_ref() == Some(&self.name))
            && id.constraints.matches(&self.parameters)
    }
}

/// A change of a wildcard or glob, for the file for the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange {
    /// All its members are in the cache, and the proxy receives their changes.
    Complete(SetId),
    /// The proxy does not receive changes of its members any more.
    Left(SetId),
    /// A member must not be kept, or came without constraints (T43c), whatever the parameters: the
    /// file cannot prove such a set.
    Unkept {
        /// The type.
        type_url: TypeUrl,
        /// `*`, or a glob.
        name: ResourceName,
    },
}

/// What the proxy and its file know of wildcards and globs.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pub(super) restored: RestoredSets,
    /// Changes that the file does not have yet.
    pub(super) changes: Vec<SetChange>,
}

/// Sets that were complete before the restart, until each has its first subscription.
#[derive(Debug, Default)]
pub(super) struct RestoredSets {
    sets: BTreeSet<SetId>,
    /// The restored variants of their types.
    members: BTreeMap<TypeUrl, Vec<VariantId>>,
}

impl RestoredSets {
    pub(super) fn new(
        sets: impl IntoIterator<Item = SetId>,
        restored: impl IntoIterator<Item = VariantId>,
    ) -> Self {
        let sets: BTreeSet<_> = sets.into_iter().collect();
        let types: BTreeSet<_> = sets.iter().map(|set| &set.type_url).collect();
        let mut members = BTreeMap::<_, Vec<_>>::new();
        for id in restored.into_iter().filter(|id| types.contains(&id.type_url)) {
            members.entry(id.type_url.clone()).or_default().push(id);
        }
        Self { sets, members }
    }

    /// Takes a set out, once. Returns whether all its restored members are still in the cache:
    /// since the start, the response to another subscription, the end of one, or a TTL may have
    /// removed a member.
    pub(super) fn take(&mut self, id: &SetId, snapshot: &Snapshot) -> bool {
        if !self.sets.remove(id) {
            return false;
        }
        let is_there = |member: &VariantId| {
            let variants = snapshot.get(&member.type_url, &member.name);
            variants.is_some_and(|variants| variants.get(&member.constraints).is_some())
        };
        let members = self.members.get(&id.type_url);
        let is_whole = members.into_iter().flatten().filter(|member| id.covers(member)).all(is_there);
        if !self.sets.iter().any(|set| set.type_url == id.type_url) {
            self.members.remove(&id.type_url);
        }
        is_whole
    }
}
