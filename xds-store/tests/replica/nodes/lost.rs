//! Nodes of regions whose disks are lost: each joins anew, or comes back from a backup (SR31), under another id, and an
//! operator forgets the former one (SR24, SR33).

use xds_store::engine::{Engine as _, MemoryEngine};
use xds_store::merge::merge;
use xds_store::store::{Identity, Store};

use super::history::Durable;
use super::regions::{Has, Regions};
use super::{Happens, MS, Outcome, SECOND, START, Sim, TROUBLE, disks, name};
use crate::driven::{forget, of};
use crate::random::Random;

impl Regions {
    /// The other nodes of the region of a node.
    pub(super) fn others_of_region(&self, node: usize) -> Vec<usize> {
        let is_other = |other: &usize| *other != node && self.nodes[*other].region == self.nodes[node].region;
        (0..self.nodes.len()).filter(is_other).collect()
    }

    /// A node has nothing any more.
    fn lose(&mut self, node: usize) {
        let lost = self.nodes[node].begin_anew();
        self.note_lost(node, lost);
    }

    /// What a node wrote that no node of its region has now comes from nobody: other regions give it to nobody (SG26),
    /// and keep it (SR51).
    fn note_lost(&mut self, node: usize, lost: Has) {
        let mut of_region = self.others_of_region(node);
        of_region.push(node);
        for (key, state) in lost.states {
            let has = |other: &usize| {
                let there = self.nodes[*other].states.get(&key);
                there.is_some_and(|there| merge(there, &state) == *there)
            };
            if !of_region.iter().any(has) {
                self.lost.insert(key);
            }
        }
    }

    pub(super) fn back_up(&mut self, node: usize) {
        self.backups.insert(node, self.nodes[node].clone());
    }

    /// A node has what a backup of it has. If it is a writer, it goes on before it has what the others of its region
    /// have (SR31).
    pub(super) fn restore(&mut self, node: usize) {
        let Some(backup) = self.backups.remove(&node) else { return };
        let lost = std::mem::replace(&mut self.nodes[node], backup);
        self.is_split |= !lost.is_replica && lost.states != self.nodes[node].states;
        self.note_lost(node, lost);
        self.is_restored = true;
    }
}

impl Sim {
    pub(super) fn plan_losses(&mut self, seed: u64) {
        let Some(regions) = &self.regions else { return };
        let mut random = Random(seed ^ OWN_NUMBERS);
        let count = regions.nodes.len() as u64;
        let (node, at) = (random.below(count) as usize, disks::time(&mut random, START));
        let is_gone = !regions.gone.is_empty();
        // A node joins from another one.
        if random.chance(30) && disks::has("losses") && !is_gone {
            return self.at(at, Happens::LosesDisk(node));
        }
        let restored_at = disks::time(&mut random, at);
        if random.chance(20) && disks::has("restores") && !is_gone {
            self.at(at, Happens::BacksUp(node));
            self.at(restored_at, Happens::Restores(node));
        }
    }

    /// The node joins anew, as a replica: an operator makes another one of its region the writer, if there is one.
    pub(super) fn lose_disk_in_region(&mut self, node: usize) -> Outcome {
        self.crash(node)?;
        let of_region =
            self.regions.as_ref().map(|regions| regions.others_of_region(node)).unwrap_or_default();
        let is_writer = self.regions.as_ref().is_some_and(|regions| !regions.nodes[node].is_replica);
        if let Some(writer) = of_region.first().copied().filter(|_| is_writer) {
            self.crash(writer)?;
            self.set_replica(writer, false);
        }
        self.next += 1;
        let (id, joined) = (self.id(node), format!("{}.d{}", name(node), self.next));
        let Some(regions) = &mut self.regions else { return Ok(()) };
        regions.nodes[node].is_replica = !of_region.is_empty();
        regions.lose(node);
        let identity = Identity { node: joined.clone(), ..regions.identity(node) };
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init_joining(&identity)).unwrap();
        self.history.replaced(&id, joined.clone(), Durable::default());
        (self.nodes[node].engine, self.nodes[node].id) = (engine, joined);
        self.counts.losses += 1;
        self.forget_later(id);
        Ok(())
    }

    /// SR33: an operator forgets a node that does not come back.
    pub(super) fn forget_later(&mut self, id: String) {
        let at = self.now + self.random.below(((TROUBLE - START) / MS) as u64) as i64 * MS;
        self.at(at, Happens::Forgets(id));
    }

    /// SR33: an operator forgets the nodes of a region that does not come back.
    pub(super) fn forget_region(&mut self) {
        if self.regions.as_ref().is_none_or(|regions| regions.gone.is_empty()) {
            return;
        }
        let gone: Vec<_> = (0..self.nodes.len()).filter(|node| !self.core.contains(node)).collect();
        for node in gone {
            let at = self.now + self.random.below(5_000) as i64 * MS;
            self.at(at, Happens::Forgets(self.id(node)));
        }
    }

    /// An operator forgets a node at one that serves; and later at those that do not know it by then: they may wait for
    /// commits of that node, and take none of others before (SG25).
    pub(super) fn forget(&mut self, id: String) -> Outcome {
        let has = |node: &usize| {
            let process = self.nodes[*node].process.as_ref();
            process.is_some_and(|process| process.store.forgotten().any(|of| of == id))
        };
        let lacking: Vec<_> = self.core.iter().copied().filter(|node| !has(node)).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let node = *self.random.pick(&lacking);
        self.commit_request(node, of([forget(&id)]))?;
        self.at(self.now + 2 * SECOND, Happens::Forgets(id));
        Ok(())
    }
}

const OWN_NUMBERS: u64 = 0x2545_f491_4f6c_dd1d;
