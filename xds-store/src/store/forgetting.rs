//! Nodes that will not come back (SR33).

use super::{Store, Writing};
use crate::forgotten::Forgotten;
use crate::key::stored;

/// What would be lost with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgetting {
    /// How many entries of the node exist, as far as is known here.
    pub counter: u64,
    /// The nodes that lack some of them, this one included. Forgotten nodes are left out.
    pub lacking: Vec<String>,
}

impl Store {
    /// The nodes that are forgotten.
    pub fn forgotten(&self) -> impl Iterator<Item = &str> {
        self.index.forgotten().iter()
    }

    /// What would be lost if a node were forgotten now; `None` if it is not known here. `heard` is up to where another
    /// node has its entries, as that said last: the store remembers that only now and then.
    #[must_use]
    pub fn forgetting(&self, node: &str, heard: impl Fn(&str) -> u64) -> Option<Forgetting> {
        let here = self.origins.position(node).counter;
        let of = |counters: &crate::clock::Counters| counters.get(node).copied().unwrap_or_default();
        let is_known =
            here > 0 || self.forgotten().chain(self.nodes.iter().map(|(id, _)| id)).any(|id| id == node);
        let forgotten = self.index.forgotten();
        let others = || {
            let known = self.nodes.iter().map(|(id, counters)| (id, of(counters).max(heard(id))));
            known.chain([(self.head.node.as_str(), here)])
        };
        let counter = others().map(|(_, counter)| counter).max().unwrap_or_default();
        let lacking = others()
            .filter(|(id, at)| *at < counter && *id != node && !forgotten.contains(id))
            .map(|(id, _)| id.to_owned());
        is_known.then(|| Forgetting { counter, lacking: lacking.collect() })
    }

    /// Adds the removal of what is known of forgotten nodes, once all other nodes know that they are forgotten:
    /// before, another node may take entries from one of them.
    pub(super) fn drop_forgotten(&mut self, writing: &mut Writing) {
        let forgotten = self.index.forgotten();
        let others = || self.nodes.iter().filter(|(id, _)| !forgotten.contains(id));
        let covered = others().map(|(_, counters)| self.origins.covered(counters)).min().unwrap_or(u64::MAX);
        let is_known_to_all = |node: &str| {
            let record = Forgotten::key(node).and_then(|key| self.index.get(&key));
            record.is_some_and(|record| record.changed_at <= covered)
        };
        let gone = self.nodes.iter().map(|(id, _)| id).filter(|id| forgotten.contains(id));
        let gone: Vec<String> = gone.filter(|id| is_known_to_all(id)).map(str::to_owned).collect();
        for node in gone {
            self.nodes.keep_as_stored(&node);
            writing.delete(stored::node(&node));
            writing.dropped_nodes.insert(node.into());
        }
    }
}
