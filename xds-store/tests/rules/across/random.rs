//! Random histories of two regions whose calls are lost, late and repeated, and whose processes crash.

use xds_proto::xds::store::v1 as proto;
use xds_store::store::{Event, RegionRequest, Ticket, Unanswered};

use super::World;
use crate::driven::envoy::*;
use crate::driven::*;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29) % bound
    }
}

/// A call that is on its way, or whose answer was lost.
struct Message {
    from_us: bool,
    call: Ticket,
    request: RegionRequest,
}

const CLUSTERS: [&str; 3] = ["eu/a", "eu/b", "eu/c"];
const ROUTES: [&str; 3] = ["us/r", "us/s", "us/t"];

struct Run {
    random: Random,
    world: World,
    messages: Vec<Message>,
    /// Calls arrive late, twice or not at all.
    is_faulty: bool,
}

impl Run {
    fn commit(&mut self) {
        let random = &mut self.random;
        let (server, change) = match random.below(5) {
            0 => (&mut self.world.eu, cluster(CLUSTERS[random.below(3) as usize])),
            1 => (&mut self.world.eu, delete_at(cluster_key(CLUSTERS[random.below(3) as usize]))),
            2 => (&mut self.world.eu, drain_at(cluster_key(CLUSTERS[random.below(3) as usize]))),
            3 => (&mut self.world.us, delete_at(routes_key(ROUTES[random.below(3) as usize]))),
            _ => {
                let named: Vec<_> = CLUSTERS.into_iter().filter(|_| random.below(2) == 0).collect();
                (&mut self.world.us, routes(ROUTES[random.below(3) as usize], &named))
            }
        };
        server.request(of([change])).unwrap();
    }

    fn collect(&mut self) {
        let World { eu, us } = &mut self.world;
        for (from_us, server) in [(false, eu), (true, us)] {
            let calls = server.region_calls.drain(..);
            self.messages.extend(calls.map(|(call, _, request)| Message { from_us, call, request }));
        }
    }

    fn deliver(&mut self) {
        self.collect();
        if self.messages.is_empty() {
            return;
        }
        // The oldest one, if the network is as it should be.
        let at = if self.is_faulty { self.random.below(self.messages.len() as u64) as usize } else { 0 };
        let Message { from_us, call, request } = self.messages.remove(at);
        let World { eu, us } = &mut self.world;
        let (from, to) = if from_us { (us, eu) } else { (eu, us) };
        let fate = if self.is_faulty { self.random.below(8) } else { 7 };
        if fate == 0 {
            return from.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
        }
        // A write whose outcome is not known yet comes first.
        while !to.store.is_idle() {
            to.wait(SECOND);
        }
        let before = to.region_answers.len();
        to.step(Event::Region(Ticket(0), request.clone()));
        while to.region_answers.len() == before {
            to.wait(SECOND);
        }
        let answer = to.region_answers.pop().unwrap().map_err(Unanswered::Refused);
        match fate {
            // The answer is lost, and the call may arrive once more.
            1 => from.step(Event::RegionAnswered(call, Err(Unanswered::Silent))),
            2 => self.messages.push(Message { from_us, call, request }),
            3 => {
                self.messages.push(Message { from_us, call, request });
                from.step(Event::RegionAnswered(call, answer));
            }
            _ => from.step(Event::RegionAnswered(call, answer)),
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..4 => self.commit(),
            4..8 => self.deliver(),
            8 => {
                self.mend_disks();
                self.world.pull();
            }
            9 => {
                let length = [1, 5, 61, 300][self.random.below(4) as usize] * SECOND;
                self.world.eu.wait(length);
                self.world.us.wait(length);
            }
            10 => {
                // The calls of the process before are answered to nobody, but they may still arrive.
                self.collect();
                let server = if self.random.below(2) == 0 { &mut self.world.eu } else { &mut self.world.us };
                let number = self.random.0;
                server.restart_as(number);
            }
            _ => {
                let server = if self.random.below(2) == 0 { &mut self.world.eu } else { &mut self.world.us };
                server.fates.push_back(
                    [Fate::Full, Fate::Unavailable, Fate::LostUnknown][self.random.below(3) as usize],
                );
            }
        }
        self.check();
    }

    /// SG32: a reference that exists never loses its block, so its target is there.
    fn check(&self) {
        for name in ROUTES {
            let Some(state) = self.world.us.state(&routes_key(name)) else { continue };
            if state.lifecycle() == proto::State::Deleted {
                continue;
            }
            let payload = state.content.unwrap().payload;
            for cluster in CLUSTERS
                .into_iter()
                .filter(|cluster| payload.windows(4).any(|part| part == cluster.as_bytes()))
            {
                let target = self.world.eu.state(&cluster_key(cluster)).unwrap();
                assert_ne!(target.lifecycle(), proto::State::Deleted, "{name} leads to {cluster}");
            }
        }
    }

    fn mend_disks(&mut self) {
        for server in [&mut self.world.eu, &mut self.world.us] {
            server.fates.clear();
            server.wait(10 * SECOND);
        }
    }

    fn deliver_all(&mut self) {
        self.collect();
        while !self.messages.is_empty() {
            self.deliver();
            self.check();
            self.collect();
        }
    }

    /// The network heals, and everything that is under way ends.
    fn heal(&mut self) {
        self.is_faulty = false;
        self.mend_disks();
        for _ in 0..200 {
            self.world.pull();
            self.deliver_all();
            self.world.eu.wait(5 * SECOND);
            self.world.us.wait(5 * SECOND);
        }
        // Without references, everything can be deleted.
        self.world.us.commit(of(ROUTES.map(|name| delete_at(routes_key(name))))).unwrap();
        for _ in 0..5 {
            self.deliver_all();
            self.world.pull();
            self.world.eu.wait(5 * SECOND);
            self.world.us.wait(5 * SECOND);
        }
        // Without a delete that asks.
        assert_eq!((self.world.eu.blocks(), self.world.us.blocks()), (0, 0));
        let deleted = self.world.eu.request(of(CLUSTERS.map(|name| delete_at(cluster_key(name))))).unwrap();
        self.deliver_all();
        self.world.eu.answers.remove(&deleted).unwrap().unwrap();
        self.world.pull();
        assert_eq!(self.world.eu.store.deleting_since(), (0, None));
        assert_eq!((self.world.eu.blocks(), self.world.us.blocks()), (0, 0));
    }
}

#[test]
fn sg32_a_reference_that_exists_never_loses_its_block() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    let one = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        let mut run =
            Run { random: Random(seed), world: World::new(), messages: Vec::new(), is_faulty: true };
        for _ in 0..120 {
            run.step();
        }
        run.heal();
    }
}
