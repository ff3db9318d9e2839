//! Nodes that step through a plan, back too, while they write, join, are restored, lose their disks and take other ids
//! (SV15, SV41, SV42): no write that a node accepted is lost, and each plan ends.
//!
//!     NODES=20000 cargo test --release -p xds-store --test resync rolling

use driven::migrating::{put_new, step};
use xds_store::phase::{PeerPhases, Phase};

use super::phases::{joining, knowing, node_in, phase_of, read};
use super::random::Random;
use super::*;

const NAMES: [&str; 4] = ["a1", "a2", "a3", "a4"];

struct World {
    seed: u64,
    random: Random,
    nodes: Vec<Server>,
    /// What each name has: each is written at one node at a time.
    values: BTreeMap<&'static str, String>,
    /// The node and the number of the last write of each name.
    written: BTreeMap<&'static str, (String, u64)>,
    /// Older states of the nodes.
    backups: Vec<MemoryEngine>,
    writes: u32,
    ids: u32,
    trace: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let nodes: Vec<_> = ["n1", "n2", "n3"].map(|id| node_in(id, Phase::F0)).into();
        let backups = nodes.iter().map(|node| copy_of(&node.engine)).collect();
        let values = NAMES.map(|name| (name, String::new())).into();
        Self {
            seed,
            random: Random(seed),
            nodes,
            values,
            written: BTreeMap::new(),
            backups,
            writes: 0,
            ids: 3,
            trace: Vec::new(),
        }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    fn act(&mut self) {
        let at = self.any();
        match self.random.below(16) {
            0..=4 => self.write(at),
            5..=8 => {
                let from = (at + 1 + self.random.below(2) as usize) % self.nodes.len();
                self.pull(at, from);
            }
            9 | 10 => self.step(at, true),
            11 => self.step(at, false),
            12 => self.nodes[at].wait(130 * SECOND),
            13 => self.backups[at] = copy_of(&self.nodes[at].engine),
            14 => {
                self.trace.push(format!("{at} starts again"));
                self.nodes[at].restart();
            }
            _ => self.replace(at),
        }
    }

    /// A node hears a peer, and gets all that it has (SR10).
    fn pull(&mut self, to: usize, from: usize) {
        self.trace.push(format!("{to} pulls {from}"));
        self.hear(to);
        let (to, from) = pair(&mut self.nodes, to, from);
        // SR19: entries of a node that only a snapshot has.
        let out_of_sync = from.store.lacking(&to.store.clock(), 1).out_of_sync;
        match out_of_sync.is_empty() {
            true => pull(to, from),
            false => _ = to.resync(from, out_of_sync.iter().any(|origin| origin.must_replace), "other"),
        }
    }

    fn hear(&mut self, at: usize) {
        let mut phases = PeerPhases::default();
        for (_, peer) in self.nodes.iter().enumerate().filter(|(other, _)| *other != at) {
            let phase = BTreeMap::from([(1, phase_of(peer).number())]);
            phases.insert(&peer.store.head().node, true, Some(phase));
        }
        self.nodes[at].step(Event::PeerPhases(phases));
    }

    /// SV15, SV42: no operator leads a node away from another one.
    fn step(&mut self, at: usize, is_forward: bool) {
        let phase = phase_of(&self.nodes[at]).number();
        let to = if is_forward { phase + 1 } else { phase.wrapping_sub(1) };
        let away = |other: &Server, phase: u32| phase_of(other).number().abs_diff(phase);
        let leads_away = |other: &Server| away(other, to) > 1 && away(other, to) > away(other, phase);
        if to > 5 || self.nodes.iter().any(leads_away) {
            return;
        }
        self.hear(at);
        let stepped = step(&mut self.nodes[at], phase, to);
        self.trace.push(format!("{at} steps from {phase} to {to}: {}", stepped.is_ok()));
        if let Err(refused) = stepped {
            assert!(refused.message.contains("the last pass"), "{refused:?}");
        }
    }

    /// Whoever writes a name has seen what it had.
    fn write(&mut self, at: usize) {
        let name = *self.random.pick(&NAMES);
        let clock = self.nodes[at].store.clock();
        if self.written.get(name).is_some_and(|(node, counter)| clock.get(node).counter < *counter) {
            return;
        }
        self.writes += 1;
        let value = self.writes.to_string();
        let (of_old, of_new) = (put(name, &value), put_new(name, &format!("new:{value}")));
        let (change, value) = match self.random.below(8) {
            0 => (delete(name), String::new()),
            1..=3 => (of_old, value),
            _ => (of_new, value),
        };
        let accepted = self.nodes[at].commit(of([change]));
        self.trace.push(format!(
            "{at} writes {name} {value:?} in {:?}: {}",
            phase_of(&self.nodes[at]),
            accepted.is_ok()
        ));
        if accepted.is_ok() {
            self.values.insert(name, value);
            // SR5: a deletion of nothing takes no number.
            let head = self.nodes[at].store.head();
            if head.counter > clock.get(&head.node).counter {
                self.written.insert(name, (head.node.clone(), head.counter));
            }
        }
    }

    /// A node starts anew: without a disk, with an older one, or as a copy with another id.
    fn replace(&mut self, at: usize) {
        let others: Vec<_> = (0..self.nodes.len()).filter(|other| *other != at).collect();
        // What only this node has would be lost with it.
        for other in &others {
            self.pull(*other, at);
        }
        self.ids += 1;
        let id = format!("n{}", self.ids);
        let now = self.nodes[at].now;
        let engine = match self.random.below(3) {
            0 => joining(&id),
            of => {
                let mut engine =
                    if of == 1 { self.backups[at].clone() } else { copy_of(&self.nodes[at].engine) };
                engine = copy_of(&engine);
                let (batch, _) = Store::rename(&*engine.view().unwrap(), &id, false).unwrap();
                engine.commit(&batch).unwrap();
                engine
            }
        };
        self.nodes[at] = knowing(engine, now);
        self.trace.push(format!("{at} starts as {id} in {:?}", phase_of(&self.nodes[at])));
        self.hear(at);
        // SR31: it may write before its snapshot.
        if self.random.chance(50) {
            self.write(at);
        }
        let from = *self.random.pick(&others);
        let (to, from) = pair(&mut self.nodes, at, from);
        to.resync(from, false, "other");
        self.trace.push(format!("{at} has its snapshot, in {:?}", phase_of(&self.nodes[at])));
        self.backups[at] = copy_of(&self.nodes[at].engine);
    }

    /// All get all, and time for passes.
    fn meet(&mut self) {
        for _ in 0..3 {
            for to in 0..self.nodes.len() {
                for from in (0..self.nodes.len()).filter(|from| *from != to) {
                    self.pull(to, from);
                }
            }
            self.nodes.iter_mut().for_each(|node| node.wait(130 * SECOND));
        }
    }

    fn check(&self) {
        for node in &self.nodes {
            for (name, value) in &self.values {
                let found = read(node, name);
                assert_eq!(&found, value, "{name} at {} in {:?}", node.store.head().node, phase_of(node));
            }
        }
    }
}

/// What led to a failure.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("SEED={}: {:#?}", self.seed, self.trace);
        }
    }
}

fn pair(nodes: &mut [Server], one: usize, other: usize) -> (&mut Server, &Server) {
    let [one, other] = nodes.get_disjoint_mut([one, other]).unwrap();
    (one, other)
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..10 + world.random.below(60) {
        world.act();
    }
    // Every plan can be ended, from wherever its nodes are.
    for _ in 0..12 {
        world.meet();
        for at in 0..world.nodes.len() {
            world.step(at, true);
        }
    }
    world.meet();
    let phases: Vec<_> = world.nodes.iter().map(phase_of).collect();
    assert_eq!(phases, [Phase::F5; 3]);
    world.check();
}

#[test]
fn sv41_sv42_no_write_is_lost_when_nodes_join_and_are_replaced_in_each_phase() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let usual = if std::env::var_os("CI").is_some() { 2_000_u64 } else { 200 };
    let (seed, count) = (setting("SEED"), setting("NODES").unwrap_or(usual));
    for seed in seed.map_or(1..=count, |seed| seed..=seed) {
        play(seed);
    }
}
