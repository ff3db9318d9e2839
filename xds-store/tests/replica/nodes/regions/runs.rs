//! Runs with nodes of several regions, and what holds at their end.

use super::*;
use crate::nodes::{HEALING, Happens, disks};

impl Sim {
    /// With nodes of two or three regions.
    pub(in crate::nodes) fn regional(seed: u64, is_traced: bool) -> Self {
        let mut random = Random(!seed);
        let count = 2 + random.below(2) as usize;
        let nodes = count + random.below(3) as usize;
        let mut sim = Self::with(seed, is_traced, Some(Regions::new(count, nodes)));
        let regions = sim.regions.as_ref().unwrap();
        let left_out = if random.chance(30) { REGIONS[random.below(count as u64) as usize] } else { "" };
        sim.core = (0..nodes).filter(|node| regions.nodes[*node].region != left_out).collect();
        if random.chance(50) && disks::has("gone") {
            sim.regions.as_mut().unwrap().gone = left_out;
        }
        sim
    }

    pub(in crate::nodes) fn plan_regions(&mut self, seed: u64) {
        if self.regions.is_some() {
            self.at(START - 5 * SECOND, Happens::Policies);
            self.plan_promotions(seed);
        }
    }

    /// Whether some node has not heard of the policies. What it writes of these names is merged, as nodes merge names
    /// that no policy is about (SG28), so such a run shows nothing of regions.
    pub(in crate::nodes) fn lacks_policies(&self) -> bool {
        let lacks = |regions: &Regions| regions.nodes.iter().any(|has| has.policies.is_empty());
        self.regions.as_ref().is_some_and(lacks)
    }

    pub(in crate::nodes) fn commit_policies(&mut self) -> Outcome {
        let request = self.regions.as_ref().map(|regions| regions.policies(&mut self.random));
        request.map_or(Ok(()), |request| self.commit_request(0, request))
    }

    /// Whether a node still lacks names, and accepts no writes of them. Without a region, they may not be anywhere.
    pub(in crate::nodes) fn is_fetching(&self, node: usize) -> bool {
        let gone = self.regions.as_ref().map_or("", |regions| regions.gone);
        // A region with copies gives them to nobody but the owner (SG27).
        let may_end = |process: &Process, of: &ToFetch| {
            process.store.policies().policy_of(&of.names.prefix).is_none_or(|policy| policy.owner() != gone)
        };
        self.whole_process(node)
            .is_some_and(|process| process.store.fetching().iter().any(|of| may_end(process, of)))
    }

    /// What a node waits for that fetches names.
    pub(in crate::nodes) fn awaited(&self, node: usize) -> Option<BTreeMap<String, String>> {
        self.nodes[node].process.as_ref().map(|process| process.replica.awaited())
    }

    /// SG32: whether a new writer has not heard yet what refers to its names, and deletes none of them.
    pub(in crate::nodes) fn is_hearing(&self, node: usize) -> bool {
        self.whole_process(node).is_some_and(|process| process.store.head().hears_until != 0)
    }

    /// SR20: whether a node waits for a snapshot of a node that it reaches. What a region wrote that is away comes from
    /// that region, or from the own one, alone (SG26).
    pub(in crate::nodes) fn is_resyncing(&self, node: usize) -> bool {
        let clock = |node: usize| self.history.counters(&self.nodes[node].id);
        let has = |origin: &str, counter: u64| clock(node).get(origin).is_some_and(|at| *at >= counter);
        let region = |node: usize| self.regions.as_ref().map(|regions| regions.nodes[node].region);
        let ids: BTreeSet<_> = self.core.iter().map(|node| self.id(*node)).collect();
        let gives = |other: usize| {
            let gives = |(origin, at): (&String, &u64)| {
                (region(other) == region(node) || ids.contains(origin)) && !has(origin, *at)
            };
            clock(other).iter().any(gives)
        };
        let is_alone = || self.is_away_for_now() && !self.core.iter().any(|other| gives(*other));
        self.nodes[node].process.as_ref().is_some_and(Process::is_resyncing) && !is_alone()
    }

    /// Whether the nodes that cannot be reached come back some day.
    fn is_away_for_now(&self) -> bool {
        let is_gone = self.regions.as_ref().is_some_and(|regions| !regions.gone.is_empty());
        self.core.len() < self.nodes.len() && !is_gone
    }

    /// The process of a node that reaches all others, but for those that are forgotten.
    fn whole_process(&self, node: usize) -> Option<&Process> {
        self.nodes[node].process.as_ref().filter(|_| !self.is_away_for_now())
    }

    pub(in crate::nodes) fn difference_of_regions(&self) -> Option<String> {
        let regions = self.regions.as_ref().filter(|_| !self.waits_for_lost_policies());
        let fetched = |node: &usize| {
            let process = self.nodes[*node].process.as_ref();
            let fetching = process.map(|process| process.store.fetching()).unwrap_or_default();
            (*node, fetching.into_iter().map(|of| of.names.prefix).collect())
        };
        let fetched = self.core.iter().map(fetched).collect();
        regions.and_then(|regions| regions.difference(&self.core, &fetched))
    }

    /// SG25: a node that is lost wrote a policy which only some of the others know. They wait until it is back or is
    /// forgotten.
    fn waits_for_lost_policies(&self) -> bool {
        if self.regions.as_ref().is_some_and(|regions| !regions.gone.is_empty()) {
            return false;
        }
        let lost: BTreeSet<_> = (0..self.nodes.len()).filter(|node| !self.core.contains(node)).collect();
        let is_lost = |origin: &String| lost.iter().any(|node| self.nodes[*node].id == *origin);
        let stores = || self.core.iter().filter_map(|node| self.nodes[*node].process.as_ref());
        let of_lost = stores().flat_map(|process| {
            let store = &process.store;
            store.policies().commits_for(&store.head().region)
        });
        let mut of_lost = of_lost.filter(|(origin, _)| is_lost(origin));
        of_lost.any(|(origin, at)| stores().any(|process| process.store.clock().get(&origin).counter < at))
    }

    /// All that was written is somewhere, when all nodes are.
    pub(in crate::nodes) fn check_writes(&self) -> Outcome {
        let regions = self.regions.as_ref().filter(|_| self.core.len() == self.nodes.len());
        regions.map_or(Ok(()), Regions::lost_write)
    }

    /// Once nothing refers to them, all records can be deleted, and no block is left.
    pub(in crate::nodes) fn delete_all(&mut self) -> Outcome {
        // What only other regions have, the owner cannot delete.
        let is_lost = self.regions.as_ref().is_none_or(|regions| !regions.lost.is_empty());
        if is_lost || self.core.len() < self.nodes.len() {
            return Ok(());
        }
        for (keys, act) in [
            (ROUTES.map(routes_key), delete_at as fn(proto::Key) -> proto::Change),
            (CLUSTERS.map(cluster_key), drain_at),
        ] {
            let regions = self.regions.as_ref().unwrap();
            let mut commits = Vec::new();
            for prefix in regions.prefixes() {
                let owner = regions.nodes[0].policies.policy_of(&format!("{prefix}/"));
                let region = owner.map_or(REGIONS[0], |policy| policy.owner());
                let node = regions.writer_of(region);
                let of_prefix = keys.iter().map(|key| {
                    let name = format!("{prefix}/{}", key.name);
                    proto::Key { name, ..key.clone() }
                });
                let exists = |key: &proto::Key| regions.nodes[node].live(&parsed(key)).is_some();
                let changes: Vec<_> = of_prefix.filter(exists).map(act).collect();
                commits.push((node, of(changes)));
            }
            for (node, request) in commits {
                self.commit_request(node, request)?;
            }
            self.converge(self.now + HEALING)?;
            // The nodes release the blocks of what is gone, and the region of the target asks about the others.
            self.play_until(self.now + 15 * SECOND)?;
        }
        let left = self.regions.as_ref().unwrap().left(&self.core);
        if !left.is_empty() {
            return Err(format!("liveness: {left:?} are left"));
        }
        for (number, node) in self.nodes.iter().enumerate() {
            // Blocks of names that a former writer has are of no use: only a writer deletes, and asks others first.
            // SG33: so are those of a second writer, which is not told that a reference ended.
            let is_unused = |regions: &Regions| regions.nodes[number].is_replica || regions.is_split;
            let is_replica = self.regions.as_ref().is_some_and(is_unused);
            let last: &[u8] = if is_replica { b"bt" } else { b"c" };
            let mut blocks = Vec::new();
            let each = &mut |at: &[u8], value: Value| {
                blocks.push(format!("{}: {}", at.escape_ascii(), value.bytes.escape_ascii()));
                ControlFlow::Continue(())
            };
            node.engine.view().unwrap().range(b"b", last, each).unwrap();
            if !blocks.is_empty() {
                return Err(format!("liveness: {} has blocks of nothing: {blocks:?}", node.id));
            }
        }
        Ok(())
    }
}
