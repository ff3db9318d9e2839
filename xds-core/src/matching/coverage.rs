//! Finds parameters that no variant of a name covers.
//!
//! No two variants overlap. So they cover everything exactly when the numbers of parameter
//! combinations that they match add up to all combinations, which needs no search. If the sum is
//! too small, the search for a gap goes key by key to an outcome for which the sum is too small.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::count::Count;
use super::cube::{concrete, named};
use super::diagram::{FALSE, NodeId, Store, TRUE};
use super::normal::{NODE_BUDGET, TooComplex};
use super::value_set::{KeyOutcome, ValueSet};
use super::{Inner, VariantSet};
use crate::constraint::Formula;
use crate::parameters::Parameters;

/// The outcomes that each key can have in practice. A key that is not listed can have any outcome.
pub type Domains = BTreeMap<Arc<str>, ValueSet<Arc<str>>>;

/// How well a set covers some parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage<'a, V> {
    /// Parameters that no variant matches; empty when all are covered.
    pub gaps: Vec<Gap>,
    /// Variants that match none of the parameters.
    pub dead: Vec<&'a V>,
    /// Keys that variants name although they make no difference.
    pub idle_keys: Vec<Arc<str>>,
}

/// Parameters that no variant matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// An example.
    pub witness: Parameters,
    /// Keys that make no difference: with any outcome of their domain it is still a gap.
    pub free: Vec<Arc<str>>,
}

impl<V> VariantSet<V> {
    /// Checks whether all parameters that match `within`, with outcomes as in `domains`, have a
    /// variant.
    ///
    /// Lists at most `limit` gaps, but at least one if there is any. If `within` is the constraints
    /// of a resource that refers to this name, the gaps are parameters for which the reference
    /// leads to no resource.
    ///
    /// # Errors
    /// When `within`, or a variant within it, needs more than the [budget](NODE_BUDGET).
    pub fn coverage(
        &self,
        domains: &Domains,
        within: &Formula,
        limit: usize,
    ) -> Result<Coverage<'_, V>, TooComplex> {
        let mut named = named(self.iter().map(|(formula, _)| formula).chain([within]));
        let mut limits = vec![within.clone()];
        for (key, set) in domains {
            if let Some(values) = named.get_mut(key) {
                values.extend_from_slice(set.values());
                values.sort_unstable();
                values.dedup();
                limits.push(condition(key, set));
            }
        }
        let mut store = Store::new(named, NODE_BUDGET);
        let target = store.formula(&Formula::All(limits))?;
        let roots = self.iter().map(|(formula, _)| store.formula(formula)).collect::<Result<Vec<_>, _>>()?;
        let idle_keys = store.idle_keys(&roots, self.written_keys());
        let shares = roots.into_iter().map(|root| store.both(root, target)).collect::<Result<Vec<_>, _>>()?;
        let dead =
            self.iter().zip(&shares).filter(|(_, share)| **share == FALSE).map(|((_, value), _)| value);
        let dead = dead.collect();

        let mut search =
            GapSearch { counts: store.counts(), store: &store, path: Vec::new(), limit, gaps: Vec::new() };
        let live: Vec<_> = shares.into_iter().filter(|share| *share != FALSE).collect();
        let mut covered = Count::default();
        live.iter().for_each(|share| covered.add(&search.count(*share, 0)));
        if covered != search.count(target, 0) {
            search.search(0, target, &live);
        }
        Ok(Coverage { gaps: search.gaps, dead, idle_keys })
    }

    fn written_keys(&self) -> Vec<Arc<str>> {
        let Inner::Parts(parts) = &self.0 else { return Vec::new() };
        let mut keys: Vec<_> = parts.keys.keys().flat_map(|keys| keys.iter().cloned()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// A formula that matches when the outcome of the key is in the set.
fn condition(key: &Arc<str>, set: &ValueSet<Arc<str>>) -> Formula {
    let exists = || Formula::Exists { key: Arc::clone(key) };
    let equals = |value: &Arc<str>| Formula::Equals { key: Arc::clone(key), value: Arc::clone(value) };
    let mut either: Vec<_> = set.values().iter().map(equals).collect();
    if set.has_other() {
        let but = Formula::Not(Box::new(Formula::Any(either)));
        either = vec![Formula::All(vec![exists(), but])];
    }
    if set.has_absent() {
        either.push(Formula::Not(Box::new(exists())));
    }
    Formula::Any(either)
}

struct GapSearch<'a> {
    store: &'a Store,
    /// For every node, how many combinations of its key and all later keys match.
    counts: Vec<Count>,
    /// The outcomes chosen so far, and whether each key makes a difference.
    path: Vec<(KeyOutcome<u32>, Choice)>,
    limit: usize,
    gaps: Vec<Gap>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Decided,
    Free,
}

impl GapSearch<'_> {
    /// How many combinations of the keys from `level` on match.
    fn count(&self, node: NodeId, level: usize) -> Count {
        self.store.scaled(self.counts[node as usize].clone(), level, node)
    }

    /// Lists the gaps below one node of each diagram.
    ///
    /// `target` is the node of everything that should be covered. `nodes` are those of the
    /// variants: disjoint parts of it, which match fewer combinations than it does, so there is a
    /// gap.
    fn search(&mut self, level: usize, target: NodeId, nodes: &[NodeId]) {
        let levels = self.store.keys().len();
        if level == levels || target == TRUE && nodes.is_empty() {
            self.path.resize(levels, (KeyOutcome::Absent, Choice::Free));
            self.report();
            self.path.truncate(level);
            return;
        }
        let key = level as u32;
        if self.store.key(target) != key && nodes.iter().all(|node| self.store.key(*node) != key) {
            self.path.push((KeyOutcome::Absent, Choice::Free));
            self.search(level + 1, target, nodes);
            self.path.pop();
            return;
        }
        let short = self.short_outcomes(key, target, nodes);
        for outcome in short {
            if self.gaps.len() >= self.limit.max(1) {
                return;
            }
            let target = self.store.step(target, key, outcome);
            let nodes = nodes.iter().map(|node| self.store.step(*node, key, outcome));
            let nodes: Vec<_> = nodes.filter(|node| *node != FALSE).collect();
            self.path.push((outcome, Choice::Decided));
            self.search(level + 1, target, &nodes);
            self.path.pop();
        }
    }

    /// The outcomes of a key for which the nodes match fewer combinations than the target: named
    /// values first.
    fn short_outcomes(&self, key: u32, target: NodeId, nodes: &[NodeId]) -> Vec<KeyOutcome<u32>> {
        let store = self.store;
        let below = key as usize + 1;
        let values = store.values(key).len();
        // To take every value through every node would be too slow. So `other` sums up what all
        // nodes match with a value that they do not name. For a value that some nodes name, `named`
        // is what these nodes match with it, and `instead` is what they added to `other`.
        let (mut named, mut instead) = (vec![Count::default(); values], vec![Count::default(); values]);
        let (mut other, mut absent) = (Count::default(), Count::default());
        for &node in nodes {
            let beyond = self.count(store.step(node, key, KeyOutcome::Other), below);
            absent.add(&self.count(store.step(node, key, KeyOutcome::Absent), below));
            if store.key(node) == key {
                for (value, child) in store.edges(node) {
                    named[*value as usize].add(&self.count(*child, below));
                    instead[*value as usize].add(&beyond);
                }
            }
            other.add(&beyond);
        }
        let expected = |outcome| self.count(store.step(target, key, outcome), below);
        let mut short = Vec::new();
        for (value, (mut covered, mut instead)) in (0..).zip(named.into_iter().zip(instead)) {
            // The test is `covered + other - instead < expected`; this form has no negative
            // numbers.
            covered.add(&other);
            instead.add(&expected(KeyOutcome::Value(value)));
            if covered != instead {
                short.push(KeyOutcome::Value(value));
            }
        }
        if absent != expected(KeyOutcome::Absent) {
            short.push(KeyOutcome::Absent);
        }
        if other != expected(KeyOutcome::Other) {
            short.push(KeyOutcome::Other);
        }
        short
    }

    fn report(&mut self) {
        let (mut witness, mut free) = (Vec::new(), Vec::new());
        for (key, (outcome, choice)) in (0..).zip(&self.path) {
            let (name, named) = (&self.store.keys()[key as usize], self.store.values(key));
            if *choice == Choice::Free {
                free.push(Arc::clone(name));
            }
            let outcome = match outcome {
                KeyOutcome::Absent => KeyOutcome::Absent,
                KeyOutcome::Value(value) => KeyOutcome::Value(Arc::clone(&named[*value as usize])),
                KeyOutcome::Other => KeyOutcome::Other,
            };
            witness.extend(concrete(outcome, &[named]).map(|value| (Arc::clone(name), value)));
        }
        self.gaps.push(Gap { witness: witness.into_iter().collect(), free });
    }
}

impl Store {
    /// The child that an outcome of a key leads to.
    fn step(&self, node: NodeId, key: u32, outcome: KeyOutcome<u32>) -> NodeId {
        if self.key(node) != key {
            return node;
        }
        match outcome {
            KeyOutcome::Absent => self.absent(node),
            KeyOutcome::Other => self.other(node),
            KeyOutcome::Value(value) => {
                let edges = self.edges(node);
                let found = edges.binary_search_by_key(&value, |edge| edge.0);
                found.map_or_else(|_| self.other(node), |at| edges[at].1)
            }
        }
    }

    /// How many outcomes of a key there are: its named values, any other, and absent.
    fn outcomes(&self, key: usize) -> u64 {
        self.values(key as u32).len() as u64 + 2
    }

    /// Turns a count for the keys from the node's key on into one for the keys from `level` on: the
    /// keys in between may have any outcome.
    fn scaled(&self, count: Count, level: usize, node: NodeId) -> Count {
        let depth = (self.key(node) as usize).min(self.keys().len());
        (level..depth).fold(count, |count, key| count.times(self.outcomes(key)))
    }

    /// For each node, how many combinations of its key and all later keys match.
    fn counts(&self) -> Vec<Count> {
        let mut counts = vec![Count::default(), Count::one()];
        for node in 2..self.len() as NodeId {
            let key = self.key(node) as usize;
            let below = |child: NodeId| self.scaled(counts[child as usize].clone(), key + 1, child);
            let edges = self.edges(node);
            let mut count = below(self.other(node)).times(self.outcomes(key) - 1 - edges.len() as u64);
            count.add(&below(self.absent(node)));
            edges.iter().for_each(|(_, child)| count.add(&below(*child)));
            counts.push(count);
        }
        counts
    }

    /// Of the given keys, those on which no root depends.
    fn idle_keys(&self, roots: &[NodeId], keys: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let mut marked = vec![false; self.len()];
        roots.iter().for_each(|root| marked[*root as usize] = true);
        let mut decisive = vec![false; self.keys().len()];
        // Children have smaller ids than their parents.
        for node in (2..self.len() as NodeId).rev() {
            if marked[node as usize] {
                decisive[self.key(node) as usize] = true;
                marked[self.absent(node) as usize] = true;
                marked[self.other(node) as usize] = true;
                self.edges(node).iter().for_each(|edge| marked[edge.1 as usize] = true);
            }
        }
        let is_idle = |name: &Arc<str>| self.keys().binary_search(name).is_ok_and(|key| !decisive[key]);
        keys.into_iter().filter(is_idle).collect()
    }
}
