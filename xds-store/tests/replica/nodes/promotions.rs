//! An operator makes a replica the writer of its region, also while the one before may be alive (SG22, SG32, SR34).

use xds_store::engine::Engine as _;
use xds_store::replica::{Alarm, Refusal};
use xds_store::store::Store;

use super::regions::Regions;
use super::{Happens, MS, Outcome, START, Sim, TROUBLE};
use crate::random::Random;

impl Regions {
    fn writers_beside(&self, node: usize) -> Vec<usize> {
        let is_other = |other: &usize| {
            *other != node && self.nodes[*other].region == self.nodes[node].region && self.is_writer(*other)
        };
        (0..self.nodes.len()).filter(is_other).collect()
    }

    fn is_writer(&self, node: usize) -> bool {
        !self.nodes[node].is_replica
    }

    /// Whether a node lacks something that another one of its region has.
    fn lacks(&self, node: usize, other: usize) -> bool {
        let here = &self.nodes[node].states;
        self.nodes[other].states.iter().any(|(key, state)| here.get(key) != Some(state))
    }

    /// SR34: two writers of one region find each other. SR51: what a region lost with a disk comes back from a node of
    /// it that joined by a snapshot of another region; and what a node of a region changed that is gone, of a record of
    /// the own region, comes by a comparison alone. So does what one wrote, under the id that is forgotten, that came
    /// back from a backup.
    pub(super) fn may_raise(&self, alarm: &Alarm) -> bool {
        match alarm {
            Alarm::TwoWriters(_) => self.is_split,
            // SR3: a message to a forgotten node was under way.
            Alarm::Refused(_, Refusal::Forgotten) => !self.gone.is_empty(),
            Alarm::Differed(_) => self.is_restored || !self.lost.is_empty() || !self.gone.is_empty(),
            _ => false,
        }
    }
}

impl Sim {
    /// In some runs. Their random numbers are their own, so the other runs are as they were.
    pub(super) fn plan_promotions(&mut self, seed: u64) {
        let Some(regions) = &self.regions else { return };
        let mut random = Random(seed ^ OWN_NUMBERS);
        let replicas: Vec<_> = (0..self.nodes.len()).filter(|node| !regions.is_writer(*node)).collect();
        for node in replicas {
            for _ in 0..random.below(3) {
                let at = START + random.below(((TROUBLE - START) / MS) as u64) as i64 * MS;
                self.at(at, Happens::Promotes(node, random.chance(30)));
            }
        }
    }

    /// Makes a replica the writer of its region. The one before is made a replica, unless nobody can reach it.
    pub(super) fn promote(&mut self, node: usize, is_forced: bool) -> Outcome {
        let Some(regions) = self.regions.as_ref().filter(|regions| !regions.is_writer(node)) else {
            return Ok(());
        };
        let before = regions.writers_beside(node);
        let demoted = if is_forced { Vec::new() } else { before.clone() };
        for stopped in demoted.iter().chain([&node]) {
            self.crash(*stopped)?;
        }
        let Some(regions) = &mut self.regions else { return Ok(()) };
        let is_split = is_forced || before.iter().any(|other| regions.lacks(node, *other));
        regions.is_split |= is_split;
        self.counts.promotions[usize::from(is_split)] += 1;
        demoted.into_iter().for_each(|other| self.set_replica(other, true));
        self.set_replica(node, false);
        Ok(())
    }

    /// SR34: an operator leaves one of them the writer of its region.
    pub(super) fn demote_second_writers(&mut self) -> Outcome {
        for node in 0..self.nodes.len() {
            let is_second =
                |regions: &Regions| regions.is_writer(node) && !regions.writers_beside(node).is_empty();
            if self.regions.as_ref().is_some_and(is_second) {
                self.crash(node)?;
                self.set_replica(node, true);
            }
        }
        Ok(())
    }

    /// Its next process has this role.
    pub(super) fn set_replica(&mut self, node: usize, is_replica: bool) {
        let engine = &mut self.nodes[node].engine;
        let (batch, _) = Store::with_replica(&*engine.view().unwrap(), is_replica).unwrap();
        engine.commit(&batch).unwrap();
        if let Some(regions) = &mut self.regions {
            regions.nodes[node].is_replica = is_replica;
        }
    }
}

const OWN_NUMBERS: u64 = 0x5bd1_e995_9e37_79b9;
