//! Names that a policy gives to the region of this node, and that are not all here (SG27).
//!
//! They come by a comparison with a node that has them all (SR51), not by a snapshot: that one would have to be taken
//! again whenever a message is lost or a node crashes, and its node knows no more than what a comparison finds. Until
//! one has found all of them, the engine has the prefix. So a crash loses nothing, and what this node writes before
//! cannot cross with what it has not seen yet (SG28).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::staging::Alone;
use super::{Store, Writing};
use crate::checked;
use crate::engine::View;
use crate::key::{RecordKey, stored};
use crate::log::StoredFetching;
use crate::record::RecordState;
use crate::region::{self, FetchingChanges, Policies};
use crate::stored::ReadError;

/// Names that a store fetches.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToFetch {
    /// Their prefix, and the policy that gave them to the region of this node.
    pub names: proto::Fetching,
    /// The regions whose nodes have them: its own, the owner, and the one that gave them; with their nodes that have
    /// committed something.
    pub regions: BTreeMap<String, BTreeSet<String>>,
    /// The nodes of the regions that owned the names before, as far as this store knew: one of them may have written
    /// names without knowing that they were handed over.
    pub former: BTreeSet<String>,
}

impl Store {
    /// The names that this store fetches.
    #[must_use]
    pub fn fetching(&self) -> Vec<ToFetch> {
        let (policies, region) = (self.index.policies(), &self.head.region);
        let of = |(prefix, giver): (&str, &str)| {
            let regions = policies.givers(prefix, region, giver).into_iter().chain([region.clone()]);
            ToFetch {
                names: proto::Fetching { prefix: prefix.to_owned(), revision: self.policy_revision(prefix) },
                regions: regions.map(|region| (region.clone(), self.origins.of_region(&region))).collect(),
                former: policies
                    .former_owners(prefix)
                    .iter()
                    .flat_map(|region| self.origins.of_region(region))
                    .collect(),
            }
        };
        policies.fetching().map(of).collect()
    }

    /// Of the record of a policy; empty: there is none.
    fn policy_revision(&self, prefix: &str) -> Bytes {
        let record = region::key_of(prefix).and_then(|key| self.index.get(&key));
        record.map(|record| Bytes::copy_from_slice(&record.revision.to_bytes())).unwrap_or_default()
    }

    /// Adds to a batch what came of the names that were fetched, and what its policies say.
    pub(super) fn add_fetching(&mut self, writing: &mut Writing) {
        for (names, floor) in std::mem::take(&mut self.fetched) {
            // SR27: a name that was deleted elsewhere starts above that deletion, which other nodes have.
            writing.head.incarnation_floor = writing.head.incarnation_floor.max(floor);
            for proto::Fetching { prefix, revision } in names {
                // Another policy may say more.
                if revision == self.policy_revision(&prefix) {
                    writing.fetching.insert(prefix.into(), None);
                }
            }
        }
        let changed = self.changed_policies(writing);
        if changed.is_empty() && !matches!(writing.alone, Some(Alone::Snapshot(..))) {
            return;
        }
        let (region, before) = (&self.head.region, self.index.policies());
        let mut after = before.clone();
        changed.iter().for_each(|(key, state)| after.note(key, state));
        let mut decided = self.fetching_of_snapshot(writing, &after);
        for (key, state) in changed {
            let (_, prefix) = key.type_and_name();
            let giver = state.written_by.as_ref().map_or("", |by| &by.region);
            // A policy that is deleted gives names that it owned.
            let giver = before
                .policy_of(prefix)
                .filter(|_| state.lifecycle() == proto::State::Deleted)
                .map_or(giver, |policy| policy.owner());
            let former = before.fetching_of(prefix).map(|(_, giver)| giver);
            // Another node of this region wrote it, which had all names. It does not say where they were before.
            let giver = former.filter(|_| after.givers(prefix, region, giver).is_empty()).unwrap_or(giver);
            let is_fetching = former.is_some()
                || before.is_widened_by(&after, prefix, region)
                || !self.covers(writing, state);
            let is_needed =
                is_fetching && after.gives(prefix, region) && !after.givers(prefix, region, giver).is_empty();
            if is_needed {
                // The one who wrote the policy before owned the names before that.
                let policy = before.policy_of(prefix);
                let owners = policy.into_iter().flat_map(|policy| [policy.owner(), policy.author()]);
                let fetched = before.fetching_of(prefix).map_or("", |(fetched, _)| fetched);
                let known = before.former_owners(fetched).iter().cloned();
                let of_snapshot = decided.get(prefix).into_iter().flatten().flat_map(|of| of.former.clone());
                let all = known.chain(of_snapshot).chain(owners.map(str::to_owned));
                let former: BTreeSet<_> =
                    all.filter(|former| former != region && !former.is_empty()).collect();
                let (region, former) = (giver.to_owned(), former.into_iter().collect());
                decided.insert(prefix.into(), Some(StoredFetching { region, former }));
            } else if before.fetching().any(|(of, _)| of == prefix) {
                decided.entry(prefix.into()).or_insert(None);
            }
        }
        writing.fetching.extend(decided);
    }

    fn changed_policies<'w>(&self, writing: &'w Writing) -> Vec<(&'w RecordKey, &'w RecordState)> {
        if !writing.head.has_policies {
            return Vec::new();
        }
        writing.pending.states.iter().filter(|(key, _)| Policies::is_policy(key)).collect()
    }

    /// What a snapshot lacks: names that its node fetches itself; and if that is of another region, names that it does
    /// not tell, for a node that has nothing yet.
    fn fetching_of_snapshot(&self, writing: &Writing, after: &Policies) -> FetchingChanges {
        let mut fetching = FetchingChanges::new();
        let Some(Alone::Snapshot(..)) = &writing.alone else { return fetching };
        let Some((_, page)) = self.staging.as_ref().and_then(|staging| staging.page.as_ref()) else {
            return fetching;
        };
        let region = &self.head.region;
        if self.head.is_joining && page.region != *region {
            for policy in after.iter() {
                let (prefix, author) = (policy.prefix(), policy.author());
                // What its own region wrote comes from its nodes in any case.
                let is_told = policy.owner() == page.region;
                let is_own = policy.owner() == region && author == region;
                if !is_told && !is_own && after.gives(prefix, region) {
                    fetching.insert(prefix.into(), Some(StoredFetching::given_by(author)));
                }
            }
        }
        for (prefix, giver) in &page.fetching {
            if after.gives(prefix, region) {
                let of_page = page.former_owners.get(prefix).into_iter().flat_map(|former| &former.regions);
                let known = self.index.policies().former_owners(prefix).iter().chain(of_page);
                let former: BTreeSet<_> =
                    known.filter(|former| *former != region && !former.is_empty()).cloned().collect();
                let (of_giver, former) = (giver.clone(), former.into_iter().collect());
                fetching.insert(prefix.as_str().into(), Some(StoredFetching { region: of_giver, former }));
            }
        }
        let has_giver = |prefix: &str, fetched: &Option<StoredFetching>| {
            let giver = fetched.as_ref().map_or("", |fetched| &fetched.region);
            !after.givers(prefix, region, giver).is_empty()
        };
        fetching.retain(|prefix, fetched| has_giver(prefix, fetched));
        fetching
    }

    /// SG42: whether this store has all that came before a policy. A snapshot of a third region may have the policy
    /// alone.
    fn covers(&self, writing: &Writing, state: &RecordState) -> bool {
        let Some(by) = state.written_by.as_ref().filter(|by| !self.head.is_node(&by.origin)) else {
            return true;
        };
        let of_snapshot = match &writing.alone {
            Some(Alone::Snapshot(_, origins)) => {
                origins.iter().find(|(origin, _)| **origin == *by.origin).map_or(0, |(_, at)| at.counter)
            }
            _ => 0,
        };
        let of_batch = writing.positions.get(&*by.origin).map_or(0, |at| at.counter);
        self.origins.position(&by.origin).counter.max(of_batch).max(of_snapshot) >= by.counter
    }

    pub(super) fn write_fetching(&self, writing: &mut Writing) {
        for (prefix, fetched) in &writing.fetching.clone() {
            let at = stored::fetching(prefix);
            match fetched {
                Some(fetched) => {
                    let value = checked::encode(&at, fetched);
                    writing.write(at, value);
                }
                None => writing.delete(at),
            }
        }
    }

    pub(super) fn load_fetching(&mut self, view: &dyn View) -> Result<(), ReadError> {
        let fetching =
            region::read_fetching(view)?.into_iter().map(|(prefix, fetched)| (prefix.into(), Some(fetched)));
        self.index.note_fetching(fetching.collect());
        Ok(())
    }
}
