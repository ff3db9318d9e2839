//! What an operator sees of the peers.

use xds_proto::xds::store::v1 as proto;

use super::peer::{Peer, Session};
use super::{Position, Replica};
use crate::clock::Clock;

/// One address, and the node behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerView {
    /// The address.
    pub address: String,
    /// The node that answered there last; empty before the first answer.
    pub node: String,
    /// The region of the node.
    pub region: String,
    /// Whether it is not the writer of its region.
    pub is_replica: bool,
    /// The version of its program.
    pub build: String,
    /// Whether its last call was answered.
    pub is_up: bool,
    /// When it was heard last, in nanoseconds; `None`: never.
    pub heard_at: Option<i64>,
    /// Up to where it has the entries of each origin, as far as is known here.
    pub counters: super::Counters,
    /// How many entries it has that are missing here.
    pub behind: u64,
    /// The phases of its plans by their numbers, as of its last round; `None` if it is down (SV15).
    pub phases: Option<std::collections::BTreeMap<u32, u32>>,
    /// The versions that it knows of the new forms of its plans, as of its last round (SG38).
    pub schemas: Vec<proto::Knows>,
    /// Since when such entries have been missing without a break.
    pub behind_since: Option<i64>,
    /// Whether another process has the id of its node (SR28).
    pub is_duplicate: bool,
}

impl Replica {
    /// The peers, in the order of their addresses.
    pub fn peers(&self) -> impl Iterator<Item = PeerView> {
        self.peers.iter().map(|(address, peer)| {
            let node = peer.node().unwrap_or_default();
            let session = peer.session.as_ref();
            let text = |of: fn(&Session) -> &str| session.map(of).unwrap_or_default().to_owned();
            PeerView {
                address: address.clone(),
                node: node.to_owned(),
                region: text(|session| &session.region),
                is_replica: session.is_some_and(|session| session.is_replica),
                build: text(|session| &session.build),
                is_up: peer.is_greeted && peer.failures == 0,
                heard_at: peer.heard_at,
                counters: self.known.heard(node).cloned().unwrap_or_default(),
                behind: self.behind(peer),
                phases: peer.phases.clone().filter(|_| peer.failures == 0),
                schemas: peer.schemas.clone(),
                behind_since: peer.behind_since,
                is_duplicate: self.known.is_twin(node),
            }
        })
    }

    /// Up to where the node that answers at an address has the entries of each origin, as it said last.
    #[must_use]
    pub fn counters_at(&self, address: &str) -> super::Counters {
        let session = self.peers.get(address).and_then(|peer| peer.session.as_ref());
        session.map(|session| session.clock.counters()).unwrap_or_default()
    }

    /// How many entries the node behind an address has that are missing here.
    fn behind(&self, peer: &Peer) -> u64 {
        let counters = peer.node().and_then(|node| self.known.heard(node));
        let missing = |(origin, counter): (&String, &u64)| counter.saturating_sub(at(&self.clock, origin));
        counters.into_iter().flatten().map(missing).fold(0, u64::saturating_add)
    }

    /// Notes which peers have entries that are missing here, after the clock of either has moved.
    pub(super) fn look_behind(&mut self) {
        let addresses: Vec<_> = self.peers.keys().cloned().collect();
        for address in addresses {
            let is_behind = self.peers.get(&address).is_some_and(|peer| self.behind(peer) > 0);
            let now = self.now;
            let Some(peer) = self.peers.get_mut(&address) else { continue };
            peer.behind_since = is_behind.then(|| peer.behind_since.unwrap_or(now));
        }
    }
}

fn at(clock: &Clock, origin: &str) -> u64 {
    let Position { counter, .. } = clock.get(origin);
    counter
}
