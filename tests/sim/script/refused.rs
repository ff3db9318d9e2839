//! Worlds whose servers refuse types at times, as after their replacement by an older release (G4, G4b). The
//! other worlds are the same as without this file.

use std::time::Duration;

use xds_core::Code;

use super::{Action, Deed, Kind, Script, Step};
use crate::random::Random;
use crate::refusing::Refusal;
use crate::relay::RelayDeed;

impl Script {
    /// In every fourth world with proxies or with our own clients, servers refuse types. The clients by the rules
    /// keep their streams to a server without a proxy.
    pub(super) fn write_refusals(&mut self, random: &mut Random) {
        if (self.agents.is_empty() && self.relays.is_empty()) || !random.chance(25) {
            return;
        }
        // Mostly it is one type.
        let kind = random.pick(&Kind::ALL);
        let kinds = if random.chance(70) { vec![kind] } else { Kind::ALL.to_vec() };
        for step in std::mem::take(&mut self.steps) {
            self.steps.push(step);
            if random.chance(5) {
                self.push_refusal(random, &kinds);
                if random.chance(60) {
                    self.push_search(random.pick(&[1, 2, 4, 6]));
                }
            }
            if random.chance(3) {
                self.push_pass(Duration::from_secs(random.pick(&[1, 16, 31, 65, 130, 700])));
                if random.chance(70) {
                    self.push_search(random.pick(&[1, 2, 4]));
                }
            }
        }
    }

    /// A server begins to refuse a type, or stops.
    fn push_refusal(&mut self, random: &mut Random, kinds: &[Kind]) {
        let code = random.pick(&[Code::UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::NOT_FOUND]);
        // G4b is about servers that do not know a type. A client without a proxy has one stream, so it can use no
        // type that a server serves on streams of its own alone.
        let is_relayed = !self.relays.is_empty();
        let partly = if is_relayed { Refusal::AmongOthers(code) } else { Refusal::Always(code) };
        let refusal =
            random.pick(&[None, Some(Refusal::ByErrors), Some(Refusal::Always(code)), Some(partly)]);
        let (replica, kind) = (random.below(self.replicas), random.pick(kinds));
        let action = Action::Refuse { replica, kind, refusal };
        self.steps.push(Step { action, serves: random.chance(75) });
    }

    /// All proxies and clients exchange messages, and go on with the streams that follow.
    fn push_search(&mut self, streams: usize) {
        for _ in 0..streams {
            self.push_exchange();
            self.push_pass(A_STREAM);
        }
    }

    fn push_pass(&mut self, time: Duration) {
        self.steps.push(Step { action: Action::Pass { time }, serves: true });
    }

    fn push_exchange(&mut self) {
        let relays = 0..self.relays.len();
        let relays = relays.map(|relay| Action::Relay { relay, deed: RelayDeed::Exchange });
        let agents = 0..self.agents.len();
        let agents = agents.map(|agent| Action::Agent { agent, deed: Deed::Exchange });
        let clients = (0..self.clients.len()).map(|client| Action::Exchange { client });
        let actions: Vec<_> = relays.chain(clients).chain(agents).collect();
        self.steps.extend(actions.into_iter().map(|action| Step { action, serves: true }));
    }
}

/// Longer than the time to the next stream of a search (G4b).
const A_STREAM: Duration = Duration::from_millis(400);
