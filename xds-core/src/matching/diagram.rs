//! Reduced decision diagrams over keys: the canonical form of any formula.
//!
//! A node tests one key. It has a child for absent, a child for any other value, and an edge for
//! each value that leads to another child than that. Keys come in byte order, equal nodes are one
//! node, and a node whose children are all the same is left out. So two formulas have the same
//! meaning exactly when they have the same diagram.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::cube::{Cube, Simple};
use super::normal::TooComplex;
use super::value_set::{KeyOutcome, ValueSet};
use crate::constraint::Formula;
use crate::hash::HashMap;

/// A node of a [`Store`]; the two constants come first.
pub(super) type NodeId = u32;
/// Matches nothing.
pub(super) const FALSE: NodeId = 0;
/// Matches everything.
pub(super) const TRUE: NodeId = 1;

/// A test of one key. Its edges are a range of the store's edges.
#[derive(Debug, Clone, Copy)]
struct DiagramNode {
    key: u32,
    /// The child for an absent key.
    absent: NodeId,
    /// The child for any value without an edge.
    other: NodeId,
    /// Where the range of edges begins.
    first: u32,
    /// How many edges there are.
    edges: u32,
    /// The next node of the same hash; 0 ends the chain.
    next: NodeId,
}

/// Diagrams that share their nodes.
#[derive(Debug)]
pub(super) struct Store {
    keys: Vec<Arc<str>>,
    /// The named values of each key.
    values: Vec<Vec<Arc<str>>>,
    nodes: Vec<DiagramNode>,
    /// Value and child, sorted by value within a node.
    edges: Vec<(u32, NodeId)>,
    /// The newest node of each hash.
    unique: HashMap<u64, NodeId>,
    /// The results of earlier joins, by their operands; the smaller id comes first.
    conjunctions: HashMap<(NodeId, NodeId), NodeId>,
    disjunctions: HashMap<(NodeId, NodeId), NodeId>,
    /// Edges of nodes under construction.
    pending: Vec<(u32, NodeId)>,
    /// How much of the budget the current formula or join has used.
    spent: usize,
    budget: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    And,
    Or,
}

/// The budget is exhausted.
pub(super) struct Exhausted;

impl Store {
    /// A store for formulas that name only these keys and values.
    pub(super) fn new(named: BTreeMap<Arc<str>, Vec<Arc<str>>>, budget: usize) -> Self {
        let (keys, values) = named.into_iter().unzip();
        let constant = DiagramNode { key: u32::MAX, absent: 0, other: 0, first: 0, edges: 0, next: 0 };
        Self {
            keys,
            values,
            nodes: vec![constant; 2],
            edges: Vec::new(),
            unique: HashMap::default(),
            conjunctions: HashMap::default(),
            disjunctions: HashMap::default(),
            pending: Vec::new(),
            spent: 0,
            budget,
        }
    }

    pub(super) fn keys(&self) -> &[Arc<str>] {
        &self.keys
    }

    pub(super) fn values(&self, key: u32) -> &[Arc<str>] {
        &self.values[key as usize]
    }

    /// The key that the node tests; `u32::MAX` for a constant.
    pub(super) fn key(&self, node: NodeId) -> u32 {
        self.nodes[node as usize].key
    }

    pub(super) fn absent(&self, node: NodeId) -> NodeId {
        self.nodes[node as usize].absent
    }

    pub(super) fn other(&self, node: NodeId) -> NodeId {
        self.nodes[node as usize].other
    }

    pub(super) fn edges(&self, node: NodeId) -> &[(u32, NodeId)] {
        let DiagramNode { first, edges, .. } = self.nodes[node as usize];
        &self.edges[first as usize..(first + edges) as usize]
    }

    /// How many nodes were made. The children of a node have smaller ids than the node.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The diagram of a formula, with a budget of its own.
    pub(super) fn formula(&mut self, formula: &Formula) -> Result<NodeId, TooComplex> {
        self.spent = 0;
        let built = self.build(formula, false);
        self.within_budget(built)
    }

    /// The node that matches what both nodes match, with a budget of its own.
    pub(super) fn both(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, TooComplex> {
        self.spent = 0;
        let built = self.join(Join::And, left, right);
        self.within_budget(built)
    }

    fn within_budget(&self, built: Result<NodeId, Exhausted>) -> Result<NodeId, TooComplex> {
        built.map_err(|Exhausted| TooComplex {
            nodes: self.spent,
            budget: self.budget,
            keys: self.keys.len(),
        })
    }

    fn build(&mut self, formula: &Formula, negated: bool) -> Result<NodeId, Exhausted> {
        match Simple::of(formula, negated) {
            Some(Simple::Never) => return Ok(FALSE),
            Some(Simple::Cube(cube)) => return self.cube(&cube),
            None => {}
        }
        let (join, parts) = match formula {
            Formula::Not(part) => return self.build(part, !negated),
            Formula::All(parts) => (if negated { Join::Or } else { Join::And }, parts),
            Formula::Any(parts) => (if negated { Join::And } else { Join::Or }, parts),
            Formula::Equals { .. } | Formula::Exists { .. } => unreachable!("a leaf is a cube"),
        };
        let nodes = parts.iter().map(|part| self.build(part, negated)).collect::<Result<Vec<_>, _>>()?;
        self.join_all(join, &nodes)
    }

    /// Joins by halves: the intermediate diagrams stay small when parts are similar.
    fn join_all(&mut self, join: Join, nodes: &[NodeId]) -> Result<NodeId, Exhausted> {
        match nodes {
            [] => Ok(if join == Join::And { TRUE } else { FALSE }),
            [node] => Ok(*node),
            _ => {
                let (left, right) = nodes.split_at(nodes.len() / 2);
                let (left, right) = (self.join_all(join, left)?, self.join_all(join, right)?);
                self.join(join, left, right)
            }
        }
    }

    fn cube(&mut self, cube: &Cube) -> Result<NodeId, Exhausted> {
        let mut node = TRUE;
        for (key, set) in cube.tests().iter().rev() {
            let key = self.keys.binary_search(key).expect("the store knows every key") as u32;
            let child = |inside: bool| if inside { node } else { FALSE };
            let base = self.pending.len();
            for value in set.values() {
                let value = self.values[key as usize].binary_search(value).expect("it knows every value");
                self.pending.push((value as u32, child(!set.has_other())));
            }
            node = self.make(key, child(set.has_absent()), child(set.has_other()), base)?;
        }
        Ok(node)
    }

    pub(super) fn join(&mut self, join: Join, a: NodeId, b: NodeId) -> Result<NodeId, Exhausted> {
        let (absorbing, neutral) = if join == Join::And { (FALSE, TRUE) } else { (TRUE, FALSE) };
        if a == absorbing || b == absorbing {
            return Ok(absorbing);
        }
        if a == neutral || a == b {
            return Ok(b);
        }
        if b == neutral {
            return Ok(a);
        }
        let pair = (a.min(b), a.max(b));
        let known = if join == Join::And { &self.conjunctions } else { &self.disjunctions };
        if let Some(&node) = known.get(&pair) {
            return Ok(node);
        }
        let (left, right) = (self.nodes[a as usize], self.nodes[b as usize]);
        let key = left.key.min(right.key);
        // A node that does not test this key is its own child for every outcome of the key.
        let step = |id: NodeId, node: DiagramNode| {
            if node.key == key {
                (node.absent, node.other, node.first, node.first + node.edges)
            } else {
                (id, id, 0, 0)
            }
        };
        let (a_absent, a_other, mut at, at_end) = step(a, left);
        let (b_absent, b_other, mut with, with_end) = step(b, right);
        let absent = self.join(join, a_absent, b_absent)?;
        let other = self.join(join, a_other, b_other)?;
        let base = self.pending.len();
        while at < at_end || with < with_end {
            let mine = (at < at_end).then(|| self.edges[at as usize]);
            let theirs = (with < with_end).then(|| self.edges[with as usize]);
            let value = mine.iter().chain(&theirs).map(|edge| edge.0).min().expect("one side has an edge");
            let child = |edge: Option<(u32, NodeId)>, other, next: &mut u32| match edge {
                Some((named, child)) if named == value => {
                    *next += 1;
                    child
                }
                _ => other,
            };
            let (mine, theirs) = (child(mine, a_other, &mut at), child(theirs, b_other, &mut with));
            let node = self.join(join, mine, theirs)?;
            self.pending.push((value, node));
        }
        let node = self.make(key, absent, other, base)?;
        let known = if join == Join::And { &mut self.conjunctions } else { &mut self.disjunctions };
        known.insert(pair, node);
        Ok(node)
    }

    /// The node with these children. Its edges are the pending ones from `base` on.
    fn make(&mut self, key: u32, absent: NodeId, other: NodeId, base: usize) -> Result<NodeId, Exhausted> {
        let mut kept = base;
        for at in base..self.pending.len() {
            if self.pending[at].1 != other {
                self.pending[kept] = self.pending[at];
                kept += 1;
            }
        }
        self.pending.truncate(kept);
        let edges = &self.pending[base..];
        if edges.is_empty() && absent == other {
            return Ok(other);
        }
        // A node with many edges counts as several, so the budget also limits bytes and time.
        self.spent += 1 + edges.len() / 16;
        if self.spent > self.budget {
            self.pending.clear();
            return Err(Exhausted);
        }
        let hash = self.unique.hasher().hash_one((key, absent, other, edges));
        let newest = self.unique.get(&hash).copied().unwrap_or(FALSE);
        let mut candidate = newest;
        while candidate != FALSE {
            let node = self.nodes[candidate as usize];
            if (node.key, node.absent, node.other) == (key, absent, other) && self.edges(candidate) == edges {
                self.pending.truncate(base);
                return Ok(candidate);
            }
            candidate = node.next;
        }
        let id = self.nodes.len() as NodeId;
        let (first, edges) = (self.edges.len() as u32, (self.pending.len() - base) as u32);
        self.edges.extend(self.pending.drain(base..));
        self.nodes.push(DiagramNode { key, absent, other, first, edges, next: newest });
        self.unique.insert(hash, id);
        Ok(id)
    }

    /// Copies a node of another store. This store must know all of its keys and values.
    pub(super) fn import(&mut self, from: &Self, root: NodeId) -> Result<NodeId, TooComplex> {
        self.spent = 0;
        let keys: Vec<_> = from.keys.iter().map(|key| self.keys.binary_search(key)).collect();
        let mut copies = vec![FALSE; (root as usize + 1).max(2)];
        copies[TRUE as usize] = TRUE;
        for node in from.reachable(root) {
            let theirs = from.key(node);
            let key = keys[theirs as usize].expect("the store knows every key");
            for &(value, child) in from.edges(node) {
                let value = self.values[key].binary_search(&from.values(theirs)[value as usize]);
                self.pending.push((value.expect("it knows every value") as u32, copies[child as usize]));
            }
            let (absent, other) = (copies[from.absent(node) as usize], copies[from.other(node) as usize]);
            let made = self.make(key as u32, absent, other, 0);
            copies[node as usize] = self.within_budget(made)?;
        }
        Ok(copies[root as usize])
    }

    /// Frees the tables that only further joins would use.
    pub(super) fn forget_joins(&mut self) {
        self.conjunctions = HashMap::default();
        self.disjunctions = HashMap::default();
        self.unique = HashMap::default();
        self.pending = Vec::new();
        self.nodes.shrink_to_fit();
        self.edges.shrink_to_fit();
    }

    /// The nodes below the root and the root itself, children before parents.
    pub(super) fn reachable(&self, root: NodeId) -> Vec<NodeId> {
        let mut marked = vec![false; (root as usize + 1).max(2)];
        marked[root as usize] = true;
        // Children have smaller ids than their parents, so one pass downwards marks all of them.
        for node in (2..=root).rev() {
            if marked[node as usize] {
                let children = self.edges(node).iter().map(|edge| edge.1);
                for child in children.chain([self.absent(node), self.other(node)]) {
                    marked[child as usize] = true;
                }
            }
        }
        (2..=root).filter(|node| marked[*node as usize]).collect()
    }

    /// The children of a node, except `FALSE`, each with the outcomes that lead to it.
    pub(super) fn branches(&self, node: NodeId) -> Vec<(ValueSet<u32>, NodeId)> {
        let (absent, other, edges) = (self.absent(node), self.other(node), self.edges(node));
        let mut children: Vec<_> = edges.iter().map(|edge| edge.1).chain([absent, other]).collect();
        children.sort_unstable();
        children.dedup();
        children.retain(|child| *child != FALSE);
        let set = |child: NodeId| {
            let leads = |edge: &&(u32, NodeId)| (edge.1 == child) != (other == child);
            let values = edges.iter().filter(leads).map(|edge| edge.0).collect();
            ValueSet::of(values, other == child, absent == child)
        };
        children.into_iter().map(|child| (set(child), child)).collect()
    }

    /// A path from the node to `TRUE` through allowed outcomes, as keys with their outcomes; `None`
    /// if there is none. `allowed` gives the outcomes of a key; `None` stands for all outcomes.
    pub(super) fn path(
        &self,
        root: NodeId,
        allowed: impl Fn(u32) -> Option<ValueSet<u32>>,
    ) -> Option<Vec<(u32, KeyOutcome<u32>)>> {
        let mut visited = vec![false; root as usize + 1];
        let mut path = Vec::new();
        self.search(root, &allowed, &mut visited, &mut path).then_some(path)
    }

    fn search(
        &self,
        node: NodeId,
        allowed: &impl Fn(u32) -> Option<ValueSet<u32>>,
        visited: &mut [bool],
        path: &mut Vec<(u32, KeyOutcome<u32>)>,
    ) -> bool {
        if node == TRUE || node == FALSE || std::mem::replace(&mut visited[node as usize], true) {
            return node == TRUE;
        }
        let key = self.key(node);
        let limit = allowed(key);
        for (set, child) in self.branches(node) {
            let outcome = limit.as_ref().map_or_else(|| set.any(), |limit| set.meet(limit));
            if let Some(outcome) = outcome {
                path.push((key, outcome));
                if self.search(child, allowed, visited, path) {
                    return true;
                }
                path.pop();
            }
        }
        false
    }
}
