//! The leases of nodes that are forgotten (SR33), and of names that a region owns (SG22).

use super::Store;
use crate::key::RecordKey;
use crate::log::Head;
use crate::region::{Policies, Policy};
use crate::time::SECOND;

impl Store {
    /// Takes over the leases of forgotten nodes: they start again here, and end unless somebody renews them.
    ///
    /// One node does it, that with the smallest id: any node may be cut off from the one at which a client
    /// renews a lease, so the fewer end leases, the better. Nodes that know others may both do it; then the two
    /// deletions merge.
    pub(super) fn take_over_leases(&mut self, now: i64) {
        self.assign_leases(now);
        let is_forgotten = |node: &&str| self.index.forgotten().contains(node);
        let lessors: Vec<String> = self.index.lessors().filter(is_forgotten).map(str::to_owned).collect();
        if lessors.is_empty() || !self.is_smallest() {
            return;
        }
        lessors.iter().for_each(|node| self.index.take_over_leases(node, now));
    }

    /// SG22: only the writer of a region ends the leases of names that it owns. After a handover, the former one ends
    /// none of them, and they start again at the new one, when it has all of the names.
    fn assign_leases(&mut self, now: i64) {
        if !self.head.has_policies || now < self.leases_at {
            return;
        }
        // A lease may also come late, renewed by a node that was the writer.
        self.leases_at = now.saturating_add(ASSIGNED_EVERY);
        let Head { region, is_replica, node, .. } = &self.head;
        let ends_here = |policies: &Policies, key: &RecordKey| {
            let is_own = |policy: &Policy| {
                policy.owner() == region && !is_replica && policies.fetching_record(key).is_none()
            };
            policies.of(key).map(is_own)
        };
        self.index.assign_leases(node, ends_here, now);
    }

    /// Whether this node has the smallest id of those that it knows, but for forgotten ones.
    pub(super) fn is_smallest(&self) -> bool {
        let own = self.head.node.as_str();
        let forgotten = self.index.forgotten();
        let mut others = self.nodes.iter().map(|(node, _)| node).filter(|node| !forgotten.contains(node));
        !forgotten.contains(own) && others.all(|node| own < node)
    }
}

const ASSIGNED_EVERY: i64 = 60 * SECOND;
