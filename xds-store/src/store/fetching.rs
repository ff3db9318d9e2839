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
use crate::clock::Counters;
use crate::conflict::Conflict;
use crate::engine::View;
use crate::key::{RecordKey, stored};
use crate::log::{StoredCounters, StoredFetching};
use crate::record::RecordState;
use crate::region::{self, FetchingChanges, Policies};
use crate::stored::{ReadError, Stored};

/// Names that a store fetches.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToFetch {
    /// Their prefix, and the policy that gave them to the region of this node.
    pub names: proto::Fetching,
    /// The regions whose nodes have them: its own, the owner, and the one that gave them; once those are lost, the ones
    /// with copies. With their nodes that have committed something.
    pub regions: BTreeMap<String, BTreeSet<String>>,
    /// What a node needs of each origin to give them: what this one had once it had all that came before the policy.
    /// `None`: it does not have that yet.
    pub upto: Option<Counters>,
}

impl Store {
    /// The names that this store fetches.
    #[must_use]
    pub fn fetching(&self) -> Vec<ToFetch> {
        let (policies, region) = (self.index.policies(), &self.head.region);
        let of = |(prefix, fetched): (&str, &StoredFetching)| {
            let others = self.regions_with(prefix, &fetched.region).unwrap_or_default();
            let regions = others.into_iter().chain([region.clone()]);
            ToFetch {
                names: proto::Fetching { prefix: prefix.to_owned(), revision: self.policy_revision(prefix) },
                regions: regions.map(|region| (region.clone(), self.origins.of_region(&region))).collect(),
                upto: fetched.upto.as_ref().map(|upto| upto.counters.clone()),
            }
        };
        policies.fetched().map(of).collect()
    }

    /// The other regions that can give names with a prefix to this one. If all nodes of those are forgotten, a region
    /// with copies gives them to the new owner; and so it does to an owner that lost its own names with all of its
    /// nodes, or if some of those nodes are forgotten, as another one in its place may lack them. `None`: no region is
    /// left that can.
    fn regions_with(&self, prefix: &str, giver: &str) -> Option<BTreeSet<String>> {
        let (policies, own) = (self.index.policies(), self.head.region.as_str());
        let givers = policies.givers(prefix, own, giver);
        let is_left = match givers.is_empty() {
            true => !self.is_alone(),
            false => !givers.iter().all(|region| self.is_lost(region)),
        };
        let is_owner = policies.policy_of(prefix).is_some_and(|policy| policy.owner() == own);
        let has_lost = |region: &String| self.nodes_of(region).any(|node| self.is_forgotten(node));
        if is_left && !(is_owner && givers.iter().any(has_lost)) {
            return Some(givers);
        }
        let left = match policies.policy_of(prefix) {
            Some(policy) if policy.owner() == own => policy.regions().map(str::to_owned).collect(),
            // A region with copies gives them to nobody but the owner. That may have a new node one day.
            Some(_) => return Some(givers),
            None => self.regions_of_nodes(),
        };
        let has_nodes =
            |region: &String| *region != own && self.nodes_of(region).any(|node| !self.is_forgotten(node));
        let left: BTreeSet<_> = left.into_iter().filter(has_nodes).collect();
        // Others lack the types that the policy disables for them.
        let has_all =
            |region: &&String| policies.policy_of(prefix).is_none_or(|policy| policy.lets_give(region));
        let whole: BTreeSet<_> = left.iter().filter(has_all).cloned().collect();
        if is_left {
            return Some(givers.into_iter().chain(whole).collect());
        }
        Some(if whole.is_empty() { left } else { whole }).filter(|left| !left.is_empty())
    }

    /// The regions of the nodes that are known.
    fn regions_of_nodes(&self) -> BTreeSet<String> {
        self.all_nodes().map(|node| self.region_of(node).to_owned()).filter(|of| !of.is_empty()).collect()
    }

    /// Whether nodes of a region are known, and all of them are forgotten (SR33).
    fn is_lost(&self, region: &str) -> bool {
        self.nodes_of(region).next().is_some() && self.nodes_of(region).all(|node| self.is_forgotten(node))
    }

    /// Whether no other node of the own region is left.
    fn is_alone(&self) -> bool {
        self.nodes_of(&self.head.region).all(|node| self.is_forgotten(node))
    }

    fn is_forgotten(&self, node: &str) -> bool {
        self.index.forgotten().contains(node)
    }

    /// The other nodes that are of a region, or may be, as their region is not known.
    fn nodes_of(&self, region: &str) -> impl Iterator<Item = &str> {
        self.all_nodes().filter(move |node| [region, ""].contains(&self.region_of(node)))
    }

    /// The other nodes, also forgotten ones.
    fn all_nodes(&self) -> impl Iterator<Item = &str> {
        let of_known = self.nodes.iter().map(|(node, _)| node);
        self.origins.nodes().chain(of_known).filter(|node| !self.head.is_node(node))
    }

    /// Of the record of a policy; empty: there is none.
    fn policy_revision(&self, prefix: &str) -> Bytes {
        let record = region::key_of(prefix).and_then(|key| self.index.get(&key));
        record.map(|record| Bytes::copy_from_slice(&record.revision.to_bytes())).unwrap_or_default()
    }

    /// Adds to a batch what came of the names that were fetched, and what its policies say.
    pub(super) fn add_fetching(&mut self, writing: &mut Writing, stored: &Stored<'_>) {
        self.add_fetched(writing);
        self.end_lost(writing, stored);
        self.add_last(writing);
        self.add_names_to_fetch(writing);
        self.add_upto(writing);
    }

    /// Ends what no region can give any more, and journals it. As long as this region has other nodes, which may have
    /// the names, they are compared with those.
    fn end_lost(&self, writing: &mut Writing, stored: &Stored<'_>) {
        let (fetched, is_alone) = (self.index.policies().fetched(), self.is_alone());
        let is_lost = |(prefix, of): &(&str, &StoredFetching)| {
            let is_new = is_alone || !of.is_lost;
            is_new
                && !writing.fetching.contains_key(*prefix)
                && self.regions_with(prefix, &of.region).is_none()
        };
        let lost: Vec<_> = fetched.filter(is_lost).collect();
        for (prefix, of) in lost {
            let key = region::key_of(prefix);
            let record = key.and_then(|key| Some((self.index.get(&key)?.changed_at, key)));
            // If it cannot be read now, the next batch tries again.
            let Ok(state) = record.map(|(at, key)| stored.state(&key, at)).transpose() else { continue };
            let state = state.filter(|_| !of.is_lost);
            writing.lost.extend(state.map(|state| Conflict::of_lost_region(&state, prefix, &of.region)));
            let left = (!is_alone).then(|| StoredFetching { is_lost: true, ..of.clone() });
            writing.fetching.insert(prefix.into(), left);
        }
    }

    /// Notes of which names no region is left that could give them, but for their owner, which may lack them, too: then
    /// it fetches what is here, and does not wait for this node. So it is also if this node is the only one left of the
    /// region that gave them away.
    fn add_last(&self, writing: &mut Writing) {
        let policies = self.index.policies();
        for (prefix, of) in policies.fetched() {
            let mut givers = policies.givers(prefix, &self.head.region, &of.region);
            if let Some(policy) = policies.policy_of(prefix) {
                givers.remove(policy.owner());
            }
            let is_own = of.region == self.head.region
                && policies.policy_of(prefix).is_some_and(|policy| policy.owner() != of.region);
            let is_any = if is_own { self.is_alone() } else { !givers.is_empty() };
            let is_last = is_any && givers.iter().all(|region| self.is_lost(region));
            if is_last && !of.is_last && !writing.fetching.contains_key(prefix) {
                writing.fetching.insert(prefix.into(), Some(StoredFetching { is_last, ..of.clone() }));
            }
        }
    }

    fn add_fetched(&mut self, writing: &mut Writing) {
        let policies = self.index.policies();
        for (names, floor) in std::mem::take(&mut self.fetched) {
            // SR27: a name that was deleted elsewhere starts above that deletion, which other nodes have.
            writing.head.incarnation_floor = writing.head.incarnation_floor.max(floor);
            for proto::Fetching { prefix, revision } in names {
                let is_known =
                    |(of, fetched): (&str, &StoredFetching)| of == prefix && fetched.upto.is_some();
                // Another policy may say more.
                if revision == self.policy_revision(&prefix) && policies.fetched().any(is_known) {
                    writing.fetching.insert(prefix.into(), None);
                }
            }
        }
    }

    fn add_names_to_fetch(&self, writing: &mut Writing) {
        let changed = self.changed_policies(writing);
        if changed.is_empty() && !matches!(writing.alone, Some(Alone::Snapshot(..))) {
            return;
        }
        let (region, before) = (&self.head.region, self.index.policies());
        let mut after = before.clone();
        changed.iter().for_each(|(key, state)| after.note(key, state));
        let counters = self.counters_after(writing);
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
            // What the own region wrote comes whole from its nodes.
            let by = state.written_by.as_ref().filter(|by| by.region != *region);
            let is_fetching = former.is_some()
                || before.is_widened_by(&after, prefix, region)
                || !self.has_all_before(by, &counters);
            let is_needed =
                is_fetching && after.gives(prefix, region) && !after.givers(prefix, region, giver).is_empty();
            if is_needed {
                decided.insert(prefix.into(), Some(StoredFetching::given_by(giver)));
            } else if before.fetching().any(|(of, _)| of == prefix) {
                decided.entry(prefix.into()).or_insert(None);
            }
        }
        writing.fetching.extend(decided);
    }

    /// Once this node has all that came before a policy, notes what it has. Its entries may have had such names, which
    /// were left out here, or dropped. What comes later comes from nodes that know the policy (SG25). So this does not
    /// grow, and a node that goes on writing delays no fetch.
    fn add_upto(&self, writing: &mut Writing) {
        let policies = self.index.policies();
        let is_decided = |prefix: &str| writing.fetching.contains_key(prefix);
        let present = policies.fetched().filter(|(prefix, _)| !is_decided(prefix));
        let new = writing.fetching.iter().filter_map(|(prefix, of)| Some((&**prefix, of.as_ref()?)));
        let open = present.chain(new).filter(|(_, of)| of.upto.is_none());
        let open: Vec<(Box<str>, StoredFetching)> =
            open.map(|(prefix, of)| (prefix.into(), of.clone())).collect();
        if open.is_empty() {
            return;
        }
        let counters = self.counters_after(writing);
        for (prefix, of) in open {
            let changed = region::key_of(&prefix).and_then(|key| writing.pending.states.get(&key));
            let by = match changed {
                Some(state) => state.written_by.as_ref(),
                None => policies.written_by(&prefix),
            };
            // What only a forgotten node had is lost.
            let is_lost = by.is_some_and(|by| self.is_forgotten(&by.origin));
            if is_lost || self.has_all_before(by, &counters) {
                let upto = Some(StoredCounters { counters: counters.clone() });
                writing.fetching.insert(prefix, Some(StoredFetching { upto, ..of }));
            }
        }
    }

    /// What this node has of each origin with a batch. Of what it wrote under a former id, other nodes may follow
    /// another log (SR30).
    fn counters_after(&self, writing: &Writing) -> Counters {
        let mut counters = self.origins.clock().counters();
        if let Some(Alone::Snapshot(_, origins)) = &writing.alone {
            counters.extend(origins.iter().map(|(origin, at)| (origin.to_string(), at.counter)));
        }
        counters.extend(writing.positions.iter().map(|(origin, at)| (origin.to_string(), at.counter)));
        counters.retain(|origin, counter| *counter > 0 && !self.head.is_node(origin));
        counters.insert(writing.head.node.clone(), writing.head.counter);
        counters
    }

    fn changed_policies<'w>(&self, writing: &'w Writing) -> Vec<(&'w RecordKey, &'w RecordState)> {
        if !writing.head.has_policies {
            return Vec::new();
        }
        writing.pending.states.iter().filter(|(key, _)| Policies::is_policy(key)).collect()
    }

    /// What a snapshot lacks: names that its node fetches itself; and if that is of another region, names that it does
    /// not tell, for a node that has nothing yet. A node that has something got the snapshot of another region for what
    /// that wrote, and may be the one that gives it these names. So it may be in its own region for names that the
    /// region gave away. It also lacks what policies give that its node did not know (SG25).
    fn fetching_of_snapshot(&self, writing: &Writing, after: &Policies) -> FetchingChanges {
        let Some(Alone::Snapshot(..)) = &writing.alone else { return FetchingChanges::new() };
        let Some((_, page)) = self.staging.as_ref().and_then(|staging| staging.page.as_ref()) else {
            return FetchingChanges::new();
        };
        let (region, mut givers, mut own) = (&self.head.region, BTreeMap::new(), Vec::new());
        if self.head.is_joining && page.region != *region {
            for policy in after.iter() {
                let (prefix, author) = (policy.prefix(), policy.author());
                // SG28: what the region owned before has another node of it, or a region with copies.
                let is_own = policy.owner() == region;
                own.extend(is_own.then_some((prefix, region.as_str())));
                if !is_own && policy.owner() != page.region && after.gives(prefix, region) {
                    givers.insert(prefix, author);
                }
            }
        }
        let of_clock = || page.clock.iter().map(|(origin, at)| (origin.clone(), at.counter)).collect();
        let counters = if page.counters.is_empty() { of_clock() } else { page.counters.clone() };
        for (prefix, by) in after.written().filter(|(_, by)| by.region != *region) {
            // A node may have the policy of a forgotten one by a comparison.
            let is_known = self.has_all_before(Some(by), &counters) || self.is_forgotten(&by.origin);
            if !is_known && after.gives(prefix, region) {
                givers.insert(prefix, by.region.as_str());
            }
        }
        let is_lacking = |giver: &str| self.head.is_joining || (page.region == *region && giver != region);
        let given =
            page.fetching.iter().filter(|(prefix, giver)| is_lacking(giver) && after.gives(prefix, region));
        givers.extend(given.map(|(prefix, giver)| (prefix.as_str(), giver.as_str())));
        givers.retain(|prefix, giver| !after.givers(prefix, region, giver).is_empty());
        let is_own =
            |prefix: &&String| after.policy_of(prefix).is_some_and(|policy| policy.owner() == region);
        let given = page.fetching.keys().filter(|prefix| self.head.is_joining && is_own(prefix));
        own.extend(given.map(|prefix| (prefix.as_str(), region.as_str())));
        givers.extend(own);
        let of = |(prefix, giver): (&str, &str)| (prefix.into(), Some(StoredFetching::given_by(giver)));
        givers.into_iter().map(of).collect()
    }

    /// SG42: whether a store with this clock has all that came before a policy. A snapshot of a third region may have
    /// the policy alone.
    fn has_all_before(&self, by: Option<&proto::WrittenBy>, counters: &Counters) -> bool {
        let has = |by: &proto::WrittenBy| counters.get(&by.origin).is_some_and(|at| *at >= by.counter);
        by.is_none_or(|by| self.head.is_node(&by.origin) || has(by))
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
