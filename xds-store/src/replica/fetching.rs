//! Which comparisons fetch names that a policy gave to the region of this node (SG27).

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use super::peer::Peer;
use super::{Replica, SECOND};
use crate::clock::Counters;
use crate::store::ToFetch;

impl Replica {
    /// Whether the comparison that runs fetches names: what it finds was not lost here.
    #[must_use]
    pub fn is_fetching(&self) -> bool {
        self.comparing.fetches()
    }

    /// The store fetches other names than before.
    pub(super) fn on_fetching(&mut self, fetching: Vec<ToFetch>) {
        self.fetching = fetching;
        let fetched: BTreeSet<_> =
            self.peers.keys().filter(|address| !self.fetched_at(address).is_empty()).cloned().collect();
        self.comparing.end_rests(|address| fetched.contains(address));
        // One that began before would take what the region gets for something that was lost here, or find less than the
        // store needs.
        let is_other = |(address, names, needed): &(&str, &[proto::Fetching], &Counters)| {
            self.fetched_at(address) != **names || self.needed_of(address) != **needed
        };
        let outdated = self.comparing.running_with().filter(is_other);
        if let Some(address) = outdated.map(|(address, ..)| address.to_owned()) {
            self.end_comparison_with(&address);
        }
        fetched.iter().for_each(|address| self.comparing.compare_at(address, self.now));
    }

    /// SG25: a node that lacks a policy which is known here leaves out what that policy gives, so what it leaves out is
    /// missing. The policies of this node gave others something, and it nothing. Those of a forgotten node may never
    /// reach the peer.
    pub(super) fn knows_policies(&self, address: &str) -> bool {
        let Some(session) = self.peers.get(address).and_then(|peer| peer.session.as_ref()) else {
            return false;
        };
        let hello = &self.config.hello;
        let is_own = |origin: &String| *origin == hello.node || hello.formerly.contains(origin);
        let counts = |(origin, at): &(&String, &u64)| {
            let is_here = **at <= self.clock.get(origin).counter;
            is_here && !is_own(origin) && !self.forgotten.contains(*origin)
        };
        let mut commits = self.policies.iter().filter(counts);
        commits.all(|(origin, at)| *at <= session.clock.get(origin).counter)
    }

    /// SG25: whether what a peer leaves out is left out here, too. A node of the own region relays what it left out
    /// before it knew a policy: it fetches that, and has it later.
    pub(super) fn takes_parts(&self, address: &str, is_fetching: bool) -> bool {
        let is_own = || self.peers.get(address).is_some_and(|peer| peer.region() == self.region());
        self.knows_policies(address) && !(is_fetching && is_own())
    }

    /// The names that a comparison with a peer can fetch.
    pub(super) fn fetched_at(&self, address: &str) -> Vec<proto::Fetching> {
        let session = self.peers.get(address).and_then(|peer| peer.session.as_ref());
        let Some(session) = session.filter(|_| !self.fetching.is_empty()) else { return Vec::new() };
        let has =
            |fetched: &&ToFetch| fetched.upto.is_some() && fetched.regions.contains_key(&session.region);
        self.fetching.iter().filter(has).map(|fetched| fetched.names.clone()).collect()
    }

    /// SG27: what a peer needs of each origin to give all names that it can.
    pub(super) fn needed_of(&self, address: &str) -> Counters {
        let Some(peer) = self.peers.get(address) else { return Counters::new() };
        let names = self.fetched_at(address);
        let fetched = self.fetching.iter().filter(|of| names.contains(&of.names));
        let mut needed = Counters::new();
        for (origin, counter) in fetched.flat_map(|of| self.needed_for(peer, of)) {
            let least = needed.entry(origin.clone()).or_default();
            *least = (*counter).max(*least);
        }
        needed
    }

    /// What a peer needs of each origin to give these names. Nodes that are forgotten do not count: what only they had
    /// is lost; nor those of which the peer follows another log (SR30), which never covers what is here; nor a former
    /// id of this node, as peers may do so, and get what it wrote under the new one (SR31).
    fn needed_for<'f>(&self, peer: &Peer, of: &'f ToFetch) -> impl Iterator<Item = (&'f String, &'f u64)> {
        let formerly = &self.config.hello.formerly;
        let is_out = move |origin: &String| {
            self.forgotten.contains(origin) || formerly.contains(origin) || peer.forked.contains(origin)
        };
        of.upto.iter().flatten().filter(move |(origin, _)| !is_out(origin))
    }

    /// What the names that are fetched wait for, by their prefixes: for people.
    #[must_use]
    pub fn awaited(&self) -> BTreeMap<String, String> {
        self.fetching.iter().map(|of| (of.names.prefix.clone(), self.awaited_of(of))).collect()
    }

    fn awaited_of(&self, of: &ToFetch) -> String {
        if of.upto.is_none() {
            return "the commits before the policy have not come".to_owned();
        }
        let is_up = |peer: &Peer| peer.is_greeted && peer.failures == 0;
        let up = self.peers.iter().filter(|(_, peer)| is_up(peer) && of.regions.contains_key(peer.region()));
        let lacking = up.map(|(address, peer)| (address, self.lacking_at(peer, of)));
        match lacking.min_by_key(|(_, origins)| origins.len()) {
            None => {
                let others = of.regions.keys().filter(|region| *region != self.region());
                let regions: Vec<_> = others.map(String::as_str).collect();
                format!("no node of region {} answers", regions.join(" or "))
            }
            Some((address, origins)) if origins.is_empty() => format!("they are compared with {address}"),
            Some((address, origins)) => {
                format!("{address} lacks commits that this node has, of {}", origins.join(", "))
            }
        }
    }

    /// The origins of which a peer lacks what it needs, by its last answer.
    fn lacking_at<'f>(&self, peer: &Peer, of: &'f ToFetch) -> Vec<&'f str> {
        let has = |origin: &str| peer.session.as_ref().map_or(0, |session| session.clock.get(origin).counter);
        let lacking = self.needed_for(peer, of).filter(|(origin, counter)| has(origin) < **counter);
        lacking.map(|(origin, _)| origin.as_str()).collect()
    }

    /// Whether a state of names that are fetched waits for entries of this node: those that the peer can give.
    pub(super) fn waits_for(&self, peer: &Peer, origin: &str) -> bool {
        let is_of_region =
            |of: &ToFetch| of.regions.get(peer.region()).is_some_and(|all| all.contains(origin));
        peer.region() == self.region()
            || peer.node() == Some(origin)
            || self.fetching.iter().any(is_of_region)
    }

    /// How long after a comparison with a peer the next one is due; `None`: never. After names were fetched, the store
    /// may have failed to note that, and all other records are compared then.
    pub(super) fn compared_again(&self, address: &str) -> Option<i64> {
        let is_soon = (!self.fetched_at(address).is_empty()).then_some(AGAIN);
        self.config.compare_interval.into_iter().chain(is_soon).min()
    }
}

/// A peer may lack names itself, or the policy.
pub(super) const AGAIN: i64 = 5 * SECOND;
