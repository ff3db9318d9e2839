//! Worlds with caching proxies: one, or one behind another, between the origin and all clients.

use xds_core::client::ErrorPolicy;
use xds_core::proxy::Sharing;

use super::{Action, Home, Protocol, Script, Step};
use crate::agent::Access;
use crate::random::Random;
use crate::relay::RelayDeed;

/// What a caching proxy is like.
#[derive(Debug, Clone)]
pub(crate) struct RelayProfile {
    /// The replica that it asks, which may be another proxy.
    pub(crate) home: usize,
    pub(crate) protocol: Protocol,
    pub(crate) window: usize,
    pub(crate) sharing: Sharing,
    pub(crate) relaying: Relaying,
    /// How it takes the errors of whom it asks.
    pub(crate) policy: ErrorPolicy,
    /// Until faults stop.
    pub(crate) liar: Option<Liar>,
    /// How many clients try what is new before the others are sent it.
    pub(crate) canaries: usize,
}

/// Who lies to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liar {
    /// Whom it asks, beside the truth.
    Upstream,
    /// Another server, which it asks for the names of an authority.
    OfAuthority,
}

/// What a proxy knows when it starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relaying {
    /// Nothing.
    Forgetful,
    /// What it had, from its disk.
    Restored,
}

/// Every third world is one with proxies. The others are what they were without.
pub(crate) fn is_relayed(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// The proxies of a world with one origin.
pub(crate) fn profiles(random: &mut Random) -> Vec<RelayProfile> {
    // Two make a chain, and clients at both of its ends.
    (0..1 + random.below(2)).map(|at| RelayProfile::random(random, at)).collect()
}

/// In every other world with proxies a few clients try first what is new. Only delta tells them
/// from others.
pub(crate) fn canaries(seed: u64, relays: &mut [RelayProfile]) {
    if seed % 6 == 3 {
        for (relay, at) in relays.iter_mut().zip(seed..) {
            (relay.protocol, relay.liar) = (Protocol::Delta, None);
            relay.canaries = 1 + (at / 6 % 2) as usize;
        }
    }
}

/// Of most proxies nobody.
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
                // In SotW only silence says that there is none of most types (S17).
                resource_timer_is_transient_error: protocol == Protocol::Delta && random.chance(60),
            },
            liar: None,
            canaries: 0,
        }
    }
}

impl Script {
    /// Adds what happens to the proxies, in between.
    pub(super) fn write_relays(&mut self, random: &mut Random) {
        for step in &mut self.steps {
            // What routes name stays with who may use it (S33), a proxy among them; it would hide
            // what is lost on the way.
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
            // Most proxies answer at once: what they do not know yet is only one of the things to
            // try.
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

    /// Adds lies to some of the proxies, in between. What else happens stays as it is.
    pub(super) fn write_lies(&mut self, random: &mut Random) {
        let asked = self.relays.iter().position(|relay| relay.liar == Some(Liar::OfAuthority));
        if let Some(asked) = asked {
            // Who watches names of that authority asks the proxy for them.
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

    /// Adds disks that are full for a while, or damage what they hold. What else happens stays as
    /// it is.
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
