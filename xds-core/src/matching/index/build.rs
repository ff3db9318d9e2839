//! Builds the search tree.
//!
//! A *group* is a list of cubes that lie below the same branch. The builder picks a key for the
//! group, splits the group by the outcomes of the key, and goes on with the parts. A cube that
//! allows several outcomes of the key goes to several children: these are its *copies*, which a
//! budget limits.

use super::{
    Candidate, Edge, Index, IndexNode, LINEAR_EDGES, Link, NO_VALUE, Residual, ResidualNode, Slot, Test,
    place,
};
use crate::hash::HashMap;
use crate::matching::normal::{Diagram, Normal};
use crate::matching::symbols::ABSENT;
use crate::matching::value_set::ValueSet;

/// The position of a cube in the list of all cubes.
type CubeId = u32;

struct Builder {
    index: Index,
    cubes: Vec<NumberedCube>,
    /// The keys that the path to the current group has tested.
    decided: Vec<bool>,
    known_sets: HashMap<ValueSet<u32>, u32>,
    /// For each key and value the last group that named it, to count distinct values.
    stamps: Vec<Vec<u32>>,
    stamp: u32,
    uses: Vec<Uses>,
}

/// A cube with numbers for keys and values.
struct NumberedCube {
    slot: Slot,
    tests: Vec<(u32, ValueSet<u32>)>,
    residual: Option<u32>,
    /// The cost of a copy: a long list of values makes many edges.
    weight: usize,
}

/// How many cubes of a group constrain a key, and how many of its values they name.
#[derive(Default, Clone, Copy)]
struct Uses {
    cubes: u32,
    values: u32,
}

/// A group, split by one key.
struct Split {
    /// Values with the same members share a child.
    classes: Vec<(Vec<u32>, Vec<CubeId>)>,
    other: Vec<CubeId>,
    absent: Vec<CubeId>,
    wild: Vec<CubeId>,
    copies: usize,
}

/// Which members of a group go to the children of the key's outcomes. The others go to the wild
/// child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admit {
    All,
    /// The members with a condition on the key.
    Constrained,
    /// The members that allow one outcome of the key, so that they need no copy.
    Single,
}

impl Index {
    /// The tree of these variants, each with its slot.
    pub(in crate::matching) fn build(variants: impl IntoIterator<Item = (Slot, Normal)>) -> Self {
        let mut builder = Builder {
            index: Self::default(),
            cubes: Vec::new(),
            decided: Vec::new(),
            known_sets: HashMap::default(),
            stamps: Vec::new(),
            stamp: 0,
            uses: Vec::new(),
        };
        for (slot, normal) in variants {
            builder.add(slot, &normal);
        }
        let keys = builder.index.symbols.len();
        builder.decided = vec![false; keys];
        builder.uses = vec![Uses::default(); keys];
        builder.stamps = (0..keys).map(|key| vec![0; builder.index.symbols.values(key as u32)]).collect();
        let all: Vec<_> = (0..builder.cubes.len() as u32).collect();
        let budget = COPIES_PER_CUBE * builder.weigh(&all) + SPARE_COPIES;
        builder.index.root = builder.group(all, budget, Depth::default());
        builder.finish()
    }
}

/// How deep a group lies.
#[derive(Default, Clone, Copy)]
struct Depth {
    nodes: u32,
    wild: u32,
}

impl Builder {
    fn add(&mut self, slot: Slot, normal: &Normal) {
        let residual = normal.residual().map(|diagram| self.residual(diagram));
        for cube in normal.cubes() {
            let mut tests = Vec::with_capacity(cube.tests().len());
            for (key, set) in cube.tests() {
                let key = self.index.symbols.add_key(key);
                tests.push((key, self.index.symbols.add_set(key, set)));
            }
            let extra: usize = tests.iter().map(|(_, set)| set.values().len().saturating_sub(1)).sum();
            self.cubes.push(NumberedCube { slot, tests, residual, weight: 1 + extra / 4 });
        }
    }

    fn residual(&mut self, diagram: &Diagram) -> u32 {
        let (store, symbols) = (&diagram.store, &mut self.index.symbols);
        let nodes = store.reachable(diagram.root).into_iter().map(|node| {
            let theirs = store.key(node);
            let key = symbols.add_key(&store.keys()[theirs as usize]);
            let edges = store.edges(node).iter();
            let edges = edges.map(|(value, child)| {
                (symbols.add_value(key, &store.values(theirs)[*value as usize]), *child)
            });
            let mut edges: Vec<_> = edges.collect();
            edges.sort_unstable();
            (node, ResidualNode { key, absent: store.absent(node), other: store.other(node), edges })
        });
        let residual = Residual { nodes: nodes.collect(), root: diagram.root };
        self.index.residuals.push(residual);
        (self.index.residuals.len() - 1) as u32
    }

    fn weigh(&self, items: &[CubeId]) -> usize {
        items.iter().map(|item| self.cubes[*item as usize].weight).sum()
    }

    fn open_tests(&self, item: CubeId) -> impl Iterator<Item = &(u32, ValueSet<u32>)> {
        self.cubes[item as usize].tests.iter().filter(|(key, _)| !self.decided[*key as usize])
    }

    /// Makes the tree of a group, with a budget for copies.
    fn group(&mut self, mut group: Vec<CubeId>, budget: usize, depth: Depth) -> Link {
        let is_decided = |item: &CubeId| self.open_tests(*item).next().is_none();
        let matches_all = |item: &&CubeId| self.cubes[**item as usize].residual.is_none() && is_decided(item);
        if let Some(winner) = group.iter().find(matches_all).copied() {
            let slot = self.cubes[winner as usize].slot;
            group.retain(|item| *item == winner || self.cubes[*item as usize].slot != slot);
            return self.list(&group);
        }
        if group.len() < 2 || depth.nodes > DEPTH_LIMIT || depth.wild > WILD_DEPTH_LIMIT {
            return self.list(&group);
        }
        if let Some(table) = self.table(&group) {
            return table;
        }
        for key in self.preferred_keys(&group) {
            if let Some(split) = self.split(key, &group, budget) {
                drop(group);
                return self.node(key, split, budget, depth);
            }
        }
        self.list(&group)
    }

    /// Makes a table of the group, if each cube requires one value of each of the same keys.
    fn table(&mut self, group: &[CubeId]) -> Option<Link> {
        let keys: Vec<_> = self.open_tests(group[0]).map(|(key, _)| *key).collect();
        let mut rows = Vec::new();
        for item in group {
            let cube = &self.cubes[*item as usize];
            let mut expected = keys.iter();
            let values = self.open_tests(*item).map(|(key, set)| match (set.values(), set.has_other()) {
                ([value], false) if !set.has_absent() && expected.next() == Some(key) => Some(*value),
                _ => None,
            });
            let values = values.collect::<Option<Vec<_>>>()?;
            if cube.residual.is_some() || values.len() < keys.len() {
                return None;
            }
            rows.push((values, cube.slot));
        }
        Some(Link::new(Link::TABLE, self.index.add_table(&keys, &rows)?))
    }

    /// The keys of a group that the path did not test. The key that most cubes constrain comes
    /// first; of two such keys the one with more values.
    fn preferred_keys(&mut self, group: &[CubeId]) -> Vec<u32> {
        self.stamp += 1;
        let mut keys = Vec::new();
        for item in group {
            for (key, set) in &self.cubes[*item as usize].tests {
                if self.decided[*key as usize] {
                    continue;
                }
                let uses = &mut self.uses[*key as usize];
                if uses.cubes == 0 {
                    keys.push(*key);
                }
                uses.cubes += 1;
                for value in set.values() {
                    let stamp = &mut self.stamps[*key as usize][*value as usize];
                    uses.values += u32::from(*stamp != self.stamp);
                    *stamp = self.stamp;
                }
            }
        }
        keys.sort_unstable_by_key(|key| {
            let Uses { cubes, values } = self.uses[*key as usize];
            (std::cmp::Reverse((cubes, values)), *key)
        });
        keys.iter().for_each(|key| self.uses[*key as usize] = Uses::default());
        keys
    }

    /// The split by a key that sorts as many cubes as the budget allows; `None` if none fits.
    fn split(&self, key: u32, group: &[CubeId], budget: usize) -> Option<Split> {
        let admits = [Admit::All, Admit::Constrained, Admit::Single];
        admits.into_iter().find_map(|admit| self.split_by(key, group, budget, admit))
    }

    fn split_by(&self, key: u32, group: &[CubeId], budget: usize, admit: Admit) -> Option<Split> {
        let (mut wild, mut free, mut inverted, mut absent) = (vec![], vec![], vec![], vec![]);
        // Value, item, and whether the item excludes the value.
        let mut named: Vec<(u32, CubeId, bool)> = Vec::new();
        for &item in group {
            let test = self.cubes[item as usize].tests.iter().find(|(mine, _)| *mine == key);
            let Some((_, set)) = test else {
                if admit == Admit::All { &mut free } else { &mut wild }.push(item);
                continue;
            };
            let is_single = !set.has_other() && set.values().len() + usize::from(set.has_absent()) == 1;
            if admit == Admit::Single && !is_single {
                wild.push(item);
                continue;
            }
            named.extend(set.values().iter().map(|value| (*value, item, set.has_other())));
            if set.has_other() {
                inverted.push(item);
            }
            if set.has_absent() {
                absent.push(item);
            }
        }
        // Without a sorted member, the wild child would be the same group again.
        if wild.len() == group.len() {
            return None;
        }
        named.sort_unstable();
        let mut by_members: HashMap<Vec<(CubeId, bool)>, Vec<u32>> = HashMap::default();
        for of_value in named.chunk_by(|left, right| left.0 == right.0) {
            let members = of_value.iter().map(|(_, item, excludes)| (*item, *excludes)).collect();
            by_members.entry(members).or_default().push(of_value[0].0);
        }

        // Count the copies before the lists are made: a split that does not fit costs little.
        let weight = |item: &CubeId| self.cubes[*item as usize].weight;
        let everywhere = self.weigh(&free) + self.weigh(&inverted);
        let mut total = everywhere + self.weigh(&absent) + self.weigh(&free);
        for members in by_members.keys() {
            let excluding = members.iter().filter(|(_, excludes)| *excludes);
            let (excluding, naming) =
                (excluding.map(|(item, _)| weight(item)).sum::<usize>(), members.iter());
            let naming: usize = naming.filter(|(_, excludes)| !excludes).map(|(item, _)| weight(item)).sum();
            total += naming + everywhere - excluding;
        }
        let copies = total.saturating_sub(self.weigh(group) - self.weigh(&wild));
        if copies > budget {
            return None;
        }

        let classes = by_members.into_iter().map(|(mentions, values)| {
            let excludes = |item: &&CubeId| mentions.binary_search(&(**item, true)).is_err();
            let mut members: Vec<_> = free.iter().chain(inverted.iter().filter(excludes)).copied().collect();
            members.extend(mentions.iter().filter(|(_, excludes)| !excludes).map(|(item, _)| *item));
            members.sort_unstable();
            (values, members)
        });
        let mut classes: Vec<_> = classes.collect();
        classes.sort_unstable();
        absent.extend(&free);
        absent.sort_unstable();
        let mut other: Vec<_> = free.into_iter().chain(inverted).collect();
        other.sort_unstable();
        Some(Split { classes, other, absent, wild, copies })
    }

    fn node(&mut self, key: u32, split: Split, budget: usize, depth: Depth) -> Link {
        let Split { classes, other, absent, wild, copies } = split;
        let lists = classes.iter().map(|(_, members)| members).chain([&other, &absent, &wild]);
        let total = lists.map(|members| self.weigh(members)).sum::<usize>().max(1);
        // Every child gets its share of the rest of the budget.
        let share = |weight: usize| (budget - copies) * weight / total;
        let below = Depth { nodes: depth.nodes + 1, wild: depth.wild };

        self.decided[key as usize] = true;
        let (has_like_absent, budget_of_other) = (absent == other, share(self.weigh(&other)));
        let budget_of_absent = share(self.weigh(&absent));
        let other = self.group(other, budget_of_other, below);
        let absent = if has_like_absent { other } else { self.group(absent, budget_of_absent, below) };
        let mut edges = Vec::new();
        for (values, members) in classes {
            let budget = share(self.weigh(&members));
            let child = self.group(members, budget, below);
            edges.extend(values.into_iter().map(|value| Edge { value, child }));
        }
        self.decided[key as usize] = false;
        let budget = share(self.weigh(&wild));
        let wild = self.group(wild, budget, Depth { wild: depth.wild + 1, ..below });

        let first = self.index.edges.len() as u32;
        self.lay_out(edges);
        let edges = self.index.edges.len() as u32 - first;
        self.index.nodes.push(IndexNode { key, absent, other, wild, first, edges });
        Link::new(Link::NODE, self.index.nodes.len() - 1)
    }

    fn lay_out(&mut self, mut edges: Vec<Edge>) {
        if edges.len() <= LINEAR_EDGES {
            edges.sort_unstable_by_key(|edge| edge.value);
            self.index.edges.extend(edges);
            return;
        }
        let places = (edges.len() + edges.len() / 4).next_power_of_two();
        let mut table = vec![Edge { value: NO_VALUE, child: Link::NOTHING }; places];
        for edge in edges {
            let mut at = place(edge.value, places - 1);
            while table[at].value != NO_VALUE {
                at = (at + 1) & (places - 1);
            }
            table[at] = edge;
        }
        self.index.edges.extend(table);
    }

    /// A leaf: the cubes with their open tests.
    fn list(&mut self, group: &[CubeId]) -> Link {
        match group {
            [] => return Link::NOTHING,
            [item]
                if self.cubes[*item as usize].residual.is_none()
                    && self.open_tests(*item).next().is_none() =>
            {
                return Link::new(Link::SLOT, self.cubes[*item as usize].slot as usize);
            }
            _ => {}
        }
        self.index.lists.push(self.index.candidates.len() as u32);
        for item in group {
            let cube = &self.cubes[*item as usize];
            self.index.candidates.push(Candidate { slot: cube.slot, tests: self.index.tests.len() as u32 });
            for (key, set) in cube.tests.iter().filter(|(key, _)| !self.decided[*key as usize]) {
                let test = match (set.values(), set.has_other(), set.has_absent()) {
                    ([value], false, false) => Test::new(Test::IS, *key, *value),
                    ([], false, true) => Test::new(Test::IS, *key, ABSENT),
                    _ => {
                        let sets = &mut self.index.sets;
                        let known = self.known_sets.entry(set.clone());
                        let at = *known.or_insert_with(|| {
                            sets.push(set.clone());
                            sets.len() as u32 - 1
                        });
                        Test::new(Test::IN, *key, at)
                    }
                };
                self.index.tests.push(test);
            }
            self.index.tests.extend(cube.residual.map(|residual| Test::new(Test::HOLDS, 0, residual)));
        }
        Link::new(Link::LIST, self.index.lists.len() - 1)
    }

    fn finish(self) -> Index {
        let mut index = self.index;
        index.lists.push(index.candidates.len() as u32);
        index.nodes.shrink_to_fit();
        index.tables.shrink_to_fit();
        index.columns.shrink_to_fit();
        index.cells.shrink_to_fit();
        index.edges.shrink_to_fit();
        index.lists.shrink_to_fit();
        index.candidates.shrink_to_fit();
        index.tests.shrink_to_fit();
        index
    }
}

/// How many copies of a cube a tree may have, on average. Three would make a set of alternatives
/// with 3 terms a tenth faster and 60 % larger.
const COPIES_PER_CUBE: usize = 1;
/// How many more copies any tree may have.
const SPARE_COPIES: usize = 64;
/// A group below more nodes than this becomes a list.
const DEPTH_LIMIT: u32 = 64;
/// A group below more wild branches than this becomes a list. This also limits how many ways a
/// search has to try.
const WILD_DEPTH_LIMIT: u32 = 16;
