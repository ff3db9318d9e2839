//! Which comparisons fetch names that a policy gave to the region of this node (SG27).

use xds_proto::xds::store::v1 as proto;

use super::{Replica, SECOND};
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
        // One that began before would take what the region gets for something that was lost here.
        let outdated = self.comparing.running_with().filter(|(address, of)| self.fetched_at(address) != **of);
        if let Some(address) = outdated.map(|(address, _)| address.to_owned()) {
            self.end_comparison_with(&address);
        }
        let has_some = |address: &&String| !self.fetched_at(address).is_empty();
        let addresses: Vec<_> = self.peers.keys().filter(has_some).cloned().collect();
        addresses.iter().for_each(|address| self.comparing.compare_at(address, self.now));
    }

    /// The names that a comparison with a peer can fetch.
    pub(super) fn fetched_at(&self, address: &str) -> Vec<proto::Fetching> {
        let session = self.peers.get(address).and_then(|peer| peer.session.as_ref());
        let Some(session) = session.filter(|_| !self.fetching.is_empty()) else { return Vec::new() };
        let has = |fetched: &&ToFetch| fetched.regions.contains(&session.region);
        self.fetching.iter().filter(has).map(|fetched| fetched.names.clone()).collect()
    }

    /// How long after a comparison with a peer the next one is due; `None`: never. It found all of these names.
    pub(super) fn compared_again(&self, address: &str, complete: &[proto::Fetching]) -> Option<i64> {
        let is_missing = |names: &proto::Fetching| !complete.contains(names);
        let is_soon = self.fetched_at(address).iter().any(is_missing).then_some(AGAIN);
        self.config.compare_interval.into_iter().chain(is_soon).min()
    }
}

/// A peer may lack names itself, or the policy.
pub(super) const AGAIN: i64 = 5 * SECOND;
