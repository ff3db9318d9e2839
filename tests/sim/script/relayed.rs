//! Worlds with caching proxies: one, or one behind another, between the origin and all clients.

use xds_core::client::ErrorPolicy;
use xds_core::proxy::Sharing;

use super::{Action, Home, Protocol, Script, Step};
use crate::agent::Access;
use crate::random::Random;
use crate::relay::RelayDeed;

/// The properties of a caching proxy.
#[derive(Debug, Clone)]
pub(crate) struct RelayProfile {
    /// Its upstream replica, which may be another proxy.
    pub(crate) home: usize,
    pub(crate) protocol: Protocol,
    pub(crate) window: usize,
    pub(crate) sharing: Sharing,
    pub(crate) relaying: Relaying,
    /// How it handles errors of its upstream.
    pub(crate) policy: ErrorPolicy,
    /// The liar, until faults stop.
    pub(crate) liar: Option<Liar>,
    /// The number of clients that try new content before the others are sent it.
    pub(crate) canaries: usize,
}

/// The server that lies to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liar {
    /// Its upstream, which also sends the truth.
    Upstream,
    /// Another server, which is the server of an authority.
    OfAuthority,
}

/// What a proxy has after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relaying {
    /// Nothing.
    Forgetful,
    /// Its content from before, from its disk.
    Restored,
}

/// Every third world has proxies. The other worlds are the same as without this function.
pub(crate) fn is_relayed(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// The proxies of a world with one origin.
pub(crate) fn profiles(random: &mut Random) -> Vec<RelayProfile> {
    // Two proxies make a chain. Clients connect to each of them.
    (0..1 + random.below(2)).map(|at| RelayProfile::random(random, at)).collect()
}

/// In every second world with proxies a few clients try new content first. Only in delta can a
/// proxy tell these clients from others.
pub(crate) fn canaries(seed: u64, relays: &mut [RelayProfile]) {
    if seed % 6 == 3 {
        for (relay, at) in relays.iter_mut().zip(seed..) {
            (relay.protocol, relay.liar) = (Protocol::Delta, None);
            relay.canaries = 1 + (at / 6 % 2) as usize;
        }
    }
}

/// Most proxies have no liar.
pub(crate) fn liar(random: &mut Random) -> Option<Liar> {
    random.pick(&[None, None, None, Some(Liar::Upstream), Some(Liar::OfAuthority)])
}

impl RelayProfile {
    fn random(random: &mut Random, home: usize) -> Self {
        let lazy = [Sharing::Trust, Sharing::Trust, Sharing::Trust];
        let protocol = random.pick(&[Protocol::Sotw, Protocol::Delta]);
        Self {
            home,
            protocol,
            window: 1 + random.below(3),
            sharing: random.pick(&[&lazy[..], &[Sharing::Audit { one_in: 2 }, Sharing::Off]].concat()),
            relaying: random.pick(&[Relaying::Forgetful, Relaying::Restored]),
            policy: ErrorPolicy {
                fail_on_data_errors: random.chance(25),
                // For most types, SotW shows only by silence that a resource does not exist (S17).
                resource_timer_is_transient_error: protocol == Protocol::Delta && random.chance(60),
            },
            liar: None,
            canaries: 0,
        }
    }
}

impl Script {
    /// Adds the events of the proxies between the steps.
    pub(super) fn write_relays(&mut self, random: &mut Random) {
        for step in &mut self.steps {
            // Routes name no clusters here: a client or a proxy that may use such clusters keeps
            // them (S33), which would hide a loss on the way.
            if let Action::Commit { changes, .. } = &mut step.action {
                changes.iter_mut().for_each(|change| change.clusters = 0);
            }
        }
        for agent in &mut self.agents {
            agent.is_relayed = true;
            for home in &mut agent.homes {
                if let Home::Replica(replica) = home {
                    *replica += self.replicas;
                }
            }
        }
        for step in std::mem::take(&mut self.steps) {
            // Often a proxy reads a subscription at once: a proxy that does not know a resource yet
            // is only one of the cases to test.
            let is_prompt = matches!(step.action, Action::Ask { .. }) && random.chance(40);
            self.steps.push(step);
            for relay in 0..self.relays.len() {
                if is_prompt {
                    self.push_relay(random, relay, RelayDeed::Exchange);
                }
                while random.chance(55) {
                    let deed = deed(random);
                    self.push_relay(random, relay, deed);
                }
            }
        }
    }

    /// Adds lies to some of the proxies between the steps. The other events stay the same.
    pub(super) fn write_lies(&mut self, random: &mut Random) {
        let asked = self.relays.iter().position(|relay| relay.liar == Some(Liar::OfAuthority));
        if let Some(asked) = asked {
            // Watchers of names of that authority request them from the proxy.
            let homes = self.agents.iter_mut().flat_map(|agent| &mut agent.homes);
            let homes = homes.filter(|home| **home == Home::Liar);
            homes.for_each(|home| *home = Home::Replica(self.replicas + asked));
        }
        for step in std::mem::take(&mut self.steps) {
            self.steps.push(step);
            for relay in 0..self.relays.len() {
                if self.relays[relay].liar.is_some() && random.chance(10) {
                    let deed = RelayDeed::Lie { salt: random.next(), count: 1 + random.below(3) };
                    self.push_relay(random, relay, deed);
                }
            }
        }
    }

    /// Adds disks that are full for a while, or damage their content. The other events stay the
    /// same.
    pub(super) fn write_disks(&mut self, random: &mut Random) {
        for step in std::mem::take(&mut self.steps) {
            self.steps.push(step);
            for relay in 0..self.relays.len() {
                if self.relays[relay].relaying == Relaying::Restored && random.chance(6) {
                    let rooms = [None, Some(0), Some(100), Some(1_000)];
                    let deed = match random.below(2) {
                        0 => RelayDeed::Fill { room_bytes: random.pick(&rooms) },
                        _ => RelayDeed::Damage { salt: random.next() },
                    };
                    self.push_relay(random, relay, deed);
                }
            }
        }
    }

    fn push_relay(&mut self, random: &mut Random, relay: usize, deed: RelayDeed) {
        let serves = random.chance(75);
        self.steps.push(Step { action: Action::Relay { relay, deed }, serves });
    }
}

fn deed(random: &mut Random) -> RelayDeed {
    let count = 1 + random.below(3);
    match random.below(100) {
        0..15 => RelayDeed::Work,
        15..32 => RelayDeed::Say { count },
        32..49 => RelayDeed::Deliver { count },
        49..66 => RelayDeed::Take { count },
        66..71 => RelayDeed::Cut,
        71..79 => {
            let access = random.pick(&[Access::Open, Access::Open, Access::Refused, Access::Hanging]);
            RelayDeed::Access { access }
        }
        79..81 => RelayDeed::Restart,
        _ => RelayDeed::Exchange,
    }
}
