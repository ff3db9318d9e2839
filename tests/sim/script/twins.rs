//! Worlds in which a client shares its node id with another one, or has none (G6, S33b): one in six
//! for each of the two cases. The other worlds are the same as without this file.

use std::time::Duration;

use super::{Action, Profile, Rejects, Script, Writer};
use crate::content::Kind;
use crate::random::Random;

/// The identity in the node of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// An id that no other client has.
    Own,
    /// The id of another client, as during a hot restart or with one bootstrap for many processes.
    Twin {
        of: usize,
        /// A proxy sends the streams of the two clients over one connection.
        shares_connection: bool,
    },
    /// No id.
    Nobody,
}

impl Script {
    /// Sets the identities of the clients, as the seed says.
    pub(super) fn write_identities(&mut self, seed: u64, servers: usize) {
        // Random numbers of their own, so that the rest of the script does not depend on them.
        let mut random = Random::new(seed.rotate_left(48));
        match seed % 6 {
            1 => self.write_twin(&mut random, servers),
            2 => self.write_nobodies(&mut random),
            _ => {}
        }
    }

    /// The first client answers every response at once, and the last one is its twin.
    fn write_twin(&mut self, random: &mut Random, servers: usize) {
        let (first, twin) = (&mut self.clients[0], Profile::random(random));
        (first.is_prompt, first.rejects) = (true, Rejects::Nothing);
        let node = first.node.clone();
        let identity = Identity::Twin { of: 0, shares_connection: random.chance(20) };
        self.clients.push(Profile { identity, node, ..twin });
        let client = self.clients.len() - 1;
        let mut writer = Writer {
            random: Random::new(random.next()),
            number: 0,
            replicas: servers,
            clients: client + 1,
            twins: false,
            steps: Vec::new(),
        };
        for (at, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            writer.steps.push(step);
            match at {
                0 => writer.begin(client),
                _ if random.chance(30) => writer.act(client),
                _ if random.chance(8) => writer.push(Action::Pass { time: PAUSE }),
                _ if random.chance(3) => writer.push(Action::Silence { client }),
                _ => {}
            }
        }
        self.steps = writer.steps;
    }

    fn write_nobodies(&mut self, random: &mut Random) {
        for client in &mut self.clients {
            if random.chance(70) {
                client.identity = Identity::Nobody;
                client.is_aggregated &= random.chance(50);
            }
        }
    }
}

impl Writer {
    /// A client subscribes to a few types, and its server reads the requests.
    fn begin(&mut self, client: usize) {
        for kind in Kind::ALL {
            if self.random.chance(60) {
                self.ask(client, kind);
                self.push(Action::Deliver { client, kind, count: 1 });
            }
        }
    }

    /// Adds an event of a client.
    fn act(&mut self, client: usize) {
        let kind = self.random.pick(&Kind::ALL);
        let (count, replica) = (1 + self.random.below(3), self.random.below(self.replicas));
        match self.random.below(100) {
            0..15 => self.ask(client, kind),
            15..40 => self.push(Action::Deliver { client, kind, count }),
            40..65 => self.push(Action::Take { client, kind, count }),
            65..90 => self.push(Action::Exchange { client }),
            _ => self.push(Action::Reconnect { client, kind, replica }),
        }
    }
}

/// Longer than an update may take, and shorter than the time that a server waits for an answer.
const PAUSE: Duration = Duration::from_secs(3);
