//! Names that a policy gives to a region that does not have them (SG27).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use xds_proto::xds::store::v1 as proto;

use super::{POLICY_TYPE, Policies, Policy};
use crate::checked;
use crate::engine::View;
use crate::key::{RecordKey, is_configuration, stored};
use crate::log::StoredFetching;
use crate::stored::ReadError;

/// What a batch changes of the names that a store fetches, by their prefixes; `None`: all of them are here.
pub(crate) type FetchingChanges = BTreeMap<Box<str>, Option<StoredFetching>>;

impl Policy {
    /// The types of which a region does not have these names, where an empty one stands for all; `None`: it has none
    /// of the names.
    fn withheld(&self, region: &str) -> Option<BTreeSet<String>> {
        self.regions().find(|own| *own == region)?;
        let types = self.disabled.iter().map(|disabled| disabled.type_url.as_str());
        let is_withheld =
            |type_url: &&str| *self.owner != *region && !self.is_for(type_url, &self.owner, region);
        Some(types.filter(is_withheld).map(str::to_owned).collect())
    }

    /// Whether a region keeps all of these names by the policy, and can give them to the owner.
    pub(crate) fn lets_give(&self, region: &str) -> bool {
        let is_all_or = |text: &str, value: &str| text.is_empty() || text == value;
        let is_cut = self.disabled.iter().any(|disabled| {
            is_all_or(&disabled.source_region, region) && is_all_or(&disabled.target_region, &self.owner)
        });
        let has_all = self.withheld(region).is_some_and(|types| types.is_empty());
        has_all && (*self.owner == *region || !is_cut)
    }
}

impl Policies {
    /// The prefix of names that are not all here, and the region that gave them to this one, if the name is one of
    /// them.
    #[must_use]
    pub fn fetching_of(&self, name: &str) -> Option<(&str, &str)> {
        // Names with a longer prefix have a policy of their own.
        let least = self.policy_of(name).map_or(0, |policy| policy.prefix.len());
        self.fetching().find(|(prefix, _)| prefix.len() >= least && name.starts_with(prefix))
    }

    /// The same for a record.
    pub(crate) fn fetching_record(&self, key: &RecordKey) -> Option<(&str, &str)> {
        if self.fetching.is_empty() {
            return None;
        }
        let (type_url, name) = key.type_and_name();
        if is_configuration(type_url) { None } else { self.fetching_of(name) }
    }

    /// The prefixes of names that are not all here, with the regions that gave them to this one.
    pub fn fetching(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fetching.iter().map(|(prefix, fetched)| (&**prefix, &*fetched.region))
    }

    /// What is known of such names.
    pub(crate) fn fetched(&self) -> impl Iterator<Item = (&str, &StoredFetching)> {
        self.fetching.iter().map(|(prefix, fetched)| (&**prefix, fetched))
    }

    /// Takes what a store fetches.
    pub(crate) fn note_fetching(&mut self, changes: FetchingChanges) {
        for (prefix, fetched) in changes {
            match fetched {
                Some(fetched) => _ = self.fetching.insert(prefix, fetched),
                None => _ = self.fetching.remove(&prefix),
            }
        }
    }

    /// Whether a region has names with a prefix.
    pub(crate) fn gives(&self, prefix: &str, region: &str) -> bool {
        self.withheld(prefix, region).is_some()
    }

    /// Whether a region has names with a prefix by the later policies that it does not have by these.
    pub(crate) fn is_widened_by(&self, later: &Self, prefix: &str, region: &str) -> bool {
        let (before, after) = (self.withheld(prefix, region), later.withheld(prefix, region));
        after.is_some_and(|after| before.is_none_or(|before| !before.is_subset(&after)))
    }

    fn withheld(&self, prefix: &str, region: &str) -> Option<BTreeSet<String>> {
        let nothing = || Some(BTreeSet::new());
        self.policy_of(prefix).map_or_else(nothing, |policy| policy.withheld(region))
    }

    /// The other regions from which a region can fetch names with a prefix: their owner, and the one that gave them.
    pub(crate) fn givers(&self, prefix: &str, region: &str, giver: &str) -> BTreeSet<String> {
        let giver = Some(giver).filter(|giver| !giver.is_empty() && self.gives(prefix, giver));
        let all = giver.into_iter().chain(self.policy_of(prefix).map(Policy::owner));
        all.filter(|other| *other != region).map(str::to_owned).collect()
    }

    /// Whether a node of a region tells a node of another one of a record that the latter fetches: the region has the
    /// name, and gave it away, or the other one owns it now.
    pub(crate) fn is_given(
        &self,
        key: &RecordKey,
        (source, target): (&str, &str),
        fetching: &[&str],
    ) -> bool {
        let (type_url, name) = key.type_and_name();
        let is_of = |policy: &Policy| {
            (*policy.author == *source || *policy.owner == *target) && policy.is_for(type_url, source, target)
        };
        fetching.iter().any(|prefix| name.starts_with(prefix))
            && self.keeps(key, source)
            && self.of(key).is_some_and(is_of)
    }
}

/// The prefixes of the names that a store fetches.
pub(crate) fn read_fetching(view: &dyn View) -> Result<BTreeMap<String, StoredFetching>, ReadError> {
    let (mut fetching, mut failed) = (BTreeMap::new(), None);
    view.range(stored::FETCHING.0, stored::FETCHING.1, &mut |key, value| {
        let Some(prefix) = stored::parse_fetching(key) else { return ControlFlow::Continue(()) };
        match checked::decode::<StoredFetching>(key, value.bytes) {
            Ok(fetched) => _ = fetching.insert(prefix.to_owned(), fetched),
            Err(damaged) => {
                failed = Some(damaged);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(fetching), |damaged| Err(damaged.into()))
}

/// The record of the policy of a prefix; `None` if there is none of such a name.
pub(crate) fn key_of(prefix: &str) -> Option<RecordKey> {
    let key = proto::Key { type_url: POLICY_TYPE.into(), name: prefix.into(), when: String::new() };
    RecordKey::parse(&key).ok()
}
