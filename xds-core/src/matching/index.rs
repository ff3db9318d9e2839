//! The frozen tree that finds the variant of given parameters.
//!
//! A node tests the key that most of its variants constrain, so different branches test keys in
//! different orders. It has an edge per value, a child for any other value, a child for absent, and
//! a `wild` child for variants that this key does not sort. If each variant requires exact values,
//! the tree is a decision diagram. For sets that were made to be hard it degrades to a list, and it
//! never grows beyond a fixed multiple of its input. When all variants of a branch require single
//! values of the same keys, one table replaces the nodes below.

mod build;
mod probe;
mod table;

use super::diagram::{FALSE, NodeId, TRUE};
use super::symbols::{OutcomeId, Symbols};
use super::value_set::ValueSet;
use crate::hash::HashMap;
pub(super) use probe::Probe;
use table::{Column, Table};

/// The place of a variant in the list that the tree was built from.
pub(super) type Slot = u32;

/// The tree, in a few flat arrays.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) symbols: Symbols,
    root: Link,
    nodes: Vec<IndexNode>,
    tables: Vec<Table>,
    /// The columns of each table.
    columns: Vec<Column>,
    /// The cells of each table.
    cells: Vec<u32>,
    /// For a node with few edges a sorted range; for a node with many edges a hash table, whose
    /// length is a power of two.
    edges: Vec<Edge>,
    /// Where the candidates of each list begin, and one more entry at the end.
    lists: Vec<u32>,
    candidates: Vec<Candidate>,
    tests: Vec<Test>,
    sets: Vec<ValueSet<u32>>,
    residuals: Vec<Residual>,
}

/// The target of a branch, in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Link(u32);

/// The target of a link, unpacked.
enum LinkTarget {
    Nothing,
    /// This variant: the path tested all of its conditions.
    Slot(Slot),
    Node(u32),
    /// Some variants, each with the conditions that the path did not test.
    List(u32),
    /// Variants that require one value of each of the same keys.
    Table(u32),
}

#[derive(Debug)]
struct IndexNode {
    /// The key that the node tests.
    key: u32,
    /// The child for an absent key.
    absent: Link,
    /// The child for any value without an edge.
    other: Link,
    /// The child for variants that this key does not sort. A search tries it last.
    wild: Link,
    /// Where the range of edges begins.
    first: u32,
    /// The length of the range of edges, with empty places.
    edges: u32,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    value: u32,
    child: Link,
}

/// A variant of a list. Its tests end where those of the next candidate begin.
#[derive(Debug)]
struct Candidate {
    slot: Slot,
    tests: u32,
}

/// One condition: the top two bits of `key` are its kind, which decides the meaning of `rule`.
#[derive(Debug, Clone, Copy)]
struct Test {
    key: u32,
    rule: u32,
}

/// A test, unpacked.
enum Rule<'a> {
    Is { key: u32, outcome: OutcomeId },
    In { key: u32, set: &'a ValueSet<u32> },
    Holds(&'a Residual),
}

/// The diagram of a tangled variant, with the numbers of the index for keys and values.
#[derive(Debug)]
struct Residual {
    root: NodeId,
    nodes: HashMap<NodeId, ResidualNode>,
}

#[derive(Debug)]
struct ResidualNode {
    key: u32,
    absent: NodeId,
    other: NodeId,
    /// Sorted by value.
    edges: Vec<(u32, NodeId)>,
}

impl Index {
    /// The variant that matches; `outcome` gives the outcome of a key.
    #[inline]
    pub(super) fn find(&self, outcome: &mut impl FnMut(u32) -> OutcomeId) -> Option<Slot> {
        // If all variants require values of the same keys, the root is a table. The tree walk is a
        // function of its own, so that this case does not pay for saving its registers.
        match self.root.target() {
            LinkTarget::Table(table) => self.look_up(table, outcome),
            _ => self.find_below(self.root, outcome),
        }
    }

    #[inline(never)]
    fn find_below(&self, mut at: Link, outcome: &mut impl FnMut(u32) -> OutcomeId) -> Option<Slot> {
        loop {
            match at.target() {
                LinkTarget::Nothing => return None,
                LinkTarget::Slot(slot) => return Some(slot),
                LinkTarget::List(list) => {
                    let mut candidates = self.candidates(list);
                    return candidates
                        .find(|at| self.tests(*at).all(|rule| rule.holds(outcome)))
                        .map(|at| self.slot(at));
                }
                LinkTarget::Table(table) => return self.look_up(table, outcome),
                LinkTarget::Node(node) => {
                    let node = &self.nodes[node as usize];
                    let child = self.child(node, outcome(node.key));
                    if node.wild == Link::NOTHING {
                        at = child;
                    } else {
                        let found = self.find_below(child, outcome);
                        if found.is_some() {
                            return found;
                        }
                        at = node.wild;
                    }
                }
            }
        }
    }

    #[inline]
    fn child(&self, node: &IndexNode, outcome: OutcomeId) -> Link {
        if outcome == super::symbols::ABSENT {
            return node.absent;
        }
        let edges = self.edges(node);
        if edges.len() <= LINEAR_EDGES {
            return edges.iter().find(|edge| edge.value == outcome).map_or(node.other, |edge| edge.child);
        }
        let mask = edges.len() - 1;
        let mut at = place(outcome, mask);
        loop {
            let edge = edges[at];
            if edge.value == outcome {
                return edge.child;
            }
            if edge.value == NO_VALUE {
                return node.other;
            }
            at = (at + 1) & mask;
        }
    }

    /// All places for edges of a node; an empty place has the value [`NO_VALUE`].
    #[inline]
    fn edges(&self, node: &IndexNode) -> &[Edge] {
        &self.edges[node.first as usize..(node.first + node.edges) as usize]
    }

    #[inline]
    fn candidates(&self, list: u32) -> std::ops::Range<usize> {
        self.lists[list as usize] as usize..self.lists[list as usize + 1] as usize
    }

    #[inline]
    fn slot(&self, candidate: usize) -> Slot {
        self.candidates[candidate].slot
    }

    #[inline]
    fn tests(&self, candidate: usize) -> impl Iterator<Item = Rule<'_>> {
        let end = self.candidates.get(candidate + 1).map_or(self.tests.len(), |next| next.tests as usize);
        self.tests[self.candidates[candidate].tests as usize..end].iter().map(|test| self.rule(*test))
    }

    #[inline]
    fn rule(&self, test: Test) -> Rule<'_> {
        let key = test.key & (u32::MAX >> 2);
        match test.key >> 30 {
            Test::IS => Rule::Is { key, outcome: test.rule },
            Test::IN => Rule::In { key, set: &self.sets[test.rule as usize] },
            _ => Rule::Holds(&self.residuals[test.rule as usize]),
        }
    }

    /// The bytes of the tree, without the strings of its keys and values.
    pub(super) fn tree_bytes(&self) -> usize {
        let sets = self.sets.iter().map(|set| size_of_val(set) + size_of_val(set.values())).sum::<usize>();
        let residual_nodes = self.residuals.iter().flat_map(|residual| residual.nodes.values());
        let residuals = residual_nodes.map(|node| 2 * size_of::<ResidualNode>() + size_of_val(&*node.edges));
        size_of_val(&*self.nodes)
            + size_of_val(&*self.tables)
            + size_of_val(&*self.columns)
            + size_of_val(&*self.cells)
            + size_of_val(&*self.edges)
            + size_of_val(&*self.lists)
            + size_of_val(&*self.candidates)
            + size_of_val(&*self.tests)
            + sets
            + residuals.sum::<usize>()
    }

    /// How many nodes have variants that their key does not sort. At such a node a search has two
    /// ways to try.
    pub(super) fn wild_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| node.wild != Link::NOTHING).count()
    }
}

impl Link {
    const NOTHING: Self = Self(u32::MAX);
    const NODE: u32 = 0;
    const SLOT: u32 = 1;
    const LIST: u32 = 2;
    const TABLE: u32 = 3;

    fn new(kind: u32, at: usize) -> Self {
        assert!(at < (1 << 30) - 1, "an index has fewer than 2^30 items of each kind");
        Self(kind << 30 | at as u32)
    }

    #[inline]
    fn target(self) -> LinkTarget {
        let at = self.0 & (u32::MAX >> 2);
        match self.0 >> 30 {
            Self::NODE => LinkTarget::Node(at),
            Self::SLOT => LinkTarget::Slot(at),
            Self::LIST => LinkTarget::List(at),
            _ if self == Self::NOTHING => LinkTarget::Nothing,
            _ => LinkTarget::Table(at),
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::NOTHING
    }
}

impl Test {
    const IS: u32 = 0;
    const IN: u32 = 1;
    const HOLDS: u32 = 2;

    fn new(kind: u32, key: u32, rule: u32) -> Self {
        Self { key: kind << 30 | key, rule }
    }
}

impl Rule<'_> {
    #[inline]
    fn holds(&self, outcome: &mut impl FnMut(u32) -> OutcomeId) -> bool {
        match self {
            Rule::Is { key, outcome: required } => outcome(*key) == *required,
            Rule::In { key, set } => set.has_id(outcome(*key)),
            Rule::Holds(residual) => residual.holds(outcome),
        }
    }
}

impl Residual {
    fn holds(&self, outcome: &mut impl FnMut(u32) -> OutcomeId) -> bool {
        let mut at = self.root;
        while at != TRUE && at != FALSE {
            let node = &self.nodes[&at];
            let is = outcome(node.key);
            at = match node.edges.binary_search_by_key(&is, |edge| edge.0) {
                Ok(edge) => node.edges[edge].1,
                Err(_) if is == super::symbols::ABSENT => node.absent,
                Err(_) => node.other,
            };
        }
        at == TRUE
    }
}

/// The first place of a value in a hash table of edges. Values are dense numbers, so one
/// multiplication spreads them well.
#[inline]
fn place(value: u32, mask: usize) -> usize {
    (u64::from(value).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask
}

/// No value and no slot has this number.
const NO_VALUE: u32 = u32::MAX;
/// Up to this many edges are searched one by one. With more, the branches of the CPU cost more than
/// the multiplication for a hash table.
const LINEAR_EDGES: usize = 2;
