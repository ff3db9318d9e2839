//! The leases of nodes that are forgotten (SR33).

use super::Store;

impl Store {
    /// Takes over the leases of forgotten nodes: they start again here, and end unless somebody renews them.
    ///
    /// One node does it, that with the smallest id: any node may be cut off from the one at which a client
    /// renews a lease, so the fewer end leases, the better. Nodes that know others may both do it; then the two
    /// deletions merge.
    pub(super) fn take_over_leases(&mut self, now: i64) {
        let is_forgotten = |node: &&str| self.index.forgotten().contains(node);
        let lessors: Vec<String> = self.index.lessors().filter(is_forgotten).map(str::to_owned).collect();
        if lessors.is_empty() || !self.is_smallest() {
            return;
        }
        lessors.iter().for_each(|node| self.index.take_over_leases(node, now));
    }

    /// Whether this node has the smallest id of those that it knows, but for forgotten ones.
    pub(super) fn is_smallest(&self) -> bool {
        let own = self.head.node.as_str();
        let forgotten = self.index.forgotten();
        let mut others = self.nodes.iter().map(|(node, _)| node).filter(|node| !forgotten.contains(node));
        !forgotten.contains(own) && others.all(|node| own < node)
    }
}
