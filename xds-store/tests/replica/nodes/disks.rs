//! Disks that are lost, and stores that come back from older copies.

use std::io::Cursor;

use xds_store::backup::{Backup, History as OfLog};
use xds_store::engine::{Engine as _, MemoryEngine};
use xds_store::restore::{NewIds, restore};
use xds_store::store::{Identity, Store};

use super::history::Durable;
use super::{CLUSTER, Happens, Outcome, START, Sim, TROUBLE, name};
use crate::random::Random;

/// A backup of a store, and what the store had.
pub(super) struct Copy {
    file: Vec<u8>,
    had: Durable,
}

/// Whether such events happen in this run: `WITHOUT=losses,restores` leaves them out.
pub(super) fn has(kind: &str) -> bool {
    std::env::var("WITHOUT").map_or(true, |without| !without.split(',').any(|left_out| left_out == kind))
}

/// A time while things go wrong, behind this one.
pub(super) fn time(random: &mut Random, from: i64) -> i64 {
    from + random.below((TROUBLE - from) as u64) as i64
}

impl Sim {
    /// What happens to the disks. These are numbers of their own, so that a run without such events is the same
    /// whether others have them or not.
    pub(super) fn plan_disks(&mut self, seed: u64) {
        let mut random = Random(!seed);
        self.plan_twins(&mut random);
        // With nodes that were away, two nodes may each lack deletions which the other one has forgotten, and wait
        // for an operator (SR22).
        if self.regions.is_some() {
            return self.plan_losses(seed);
        }
        if !self.away.is_empty() || !self.is_exact() {
            return;
        }
        // One node of the core keeps its disk, so that others can join.
        let keeper = self.core.first().copied();
        for node in 0..self.nodes.len() {
            let (is_lost, at) = (random.chance(12), time(&mut random, START));
            if is_lost && keeper != Some(node) && has("losses") {
                self.at(at, Happens::LosesDisk(node));
            }
            let (is_restored, copied_at) = (random.chance(15), time(&mut random, START));
            let restored_at = time(&mut random, copied_at);
            if is_restored && has("restores") {
                if self.forgets {
                    self.away.insert(node);
                }
                self.at(copied_at, Happens::BacksUp(node));
                self.at(restored_at, Happens::Restores(node));
            }
        }
    }

    /// The node joins anew, under another id (SR24).
    pub(super) fn lose_disk(&mut self, node: usize) -> Outcome {
        self.crash(node)?;
        self.next += 1;
        let (id, joined) = (self.id(node), format!("{}.d{}", name(node), self.next));
        let identity = Identity { node: joined.clone(), cluster: CLUSTER.into(), ..Identity::default() };
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init_joining(&identity)).unwrap();
        self.history.replaced(&id, joined.clone(), Durable::default());
        (self.nodes[node].engine, self.nodes[node].id) = (engine, joined);
        self.counts.losses += 1;
        Ok(())
    }

    pub(super) fn back_up(&mut self, node: usize) {
        // What is known of regions is read from the log.
        let is_whole = self.random.chance(70) || self.regions.is_some();
        let of_log = if is_whole { OfLog::Whole } else { OfLog::LeftOut };
        self.regions.iter_mut().for_each(|regions| regions.back_up(node));
        let parts = Backup::new(self.nodes[node].engine.view().unwrap(), of_log).unwrap();
        let file = parts.flat_map(|part| part.unwrap().data.to_vec()).collect();
        let had = self.history.had(&self.id(node));
        self.nodes[node].copy = Some(Copy { file, had });
    }

    /// SR31: the node goes on from its backup, under another id.
    pub(super) fn restore(&mut self, node: usize) -> Outcome {
        let Some(Copy { file, mut had }) = self.nodes[node].copy.take() else { return Ok(()) };
        self.crash(node)?;
        self.next += 1;
        let (id, new_id) = (self.id(node), format!("{}.r{}", name(node), self.next));
        let mut engine = MemoryEngine::default();
        let ids = NewIds { node: new_id.clone(), cluster: None };
        let head = restore(&mut Cursor::new(file), &mut engine, &ids, &mut |_| {}).unwrap();
        had.formers = head.former_nodes;
        self.history.replaced(&id, new_id.clone(), had);
        (self.nodes[node].engine, self.nodes[node].id) = (engine, new_id);
        self.counts.restores += 1;
        if let Some(regions) = &mut self.regions {
            let is_replica = regions.nodes[node].is_replica;
            regions.restore(node);
            self.set_replica(node, is_replica);
            self.forget_later(id);
        }
        Ok(())
    }
}
