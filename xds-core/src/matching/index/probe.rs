//! Finds the variants of an index that a cube meets.

use std::ops::ControlFlow;

use super::{Column, Index, Link, LinkTarget, NO_VALUE, Rule, Slot};
use crate::matching::cube::Cube;
use crate::matching::symbols::{ABSENT, OTHER, OutcomeId};
use crate::matching::value_set::ValueSet;
use crate::parameters::Parameters;

/// A cube with the numbers of an index. The index need not know all of its strings.
pub(in crate::matching) struct Probe(Vec<(u32, Range)>);

/// The outcomes of one key that the cube allows, in the numbers of the index.
struct Range {
    set: ValueSet<u32>,
    /// Whether a value that the index does not know is allowed.
    other: bool,
}

impl Probe {
    /// The probe of a cube. It leaves out keys that the index does not know.
    pub(in crate::matching) fn new(cube: &Cube, index: &Index) -> Self {
        let symbols = &index.symbols;
        let ranges = cube.tests().iter().filter_map(|(name, set)| {
            let key = symbols.key(name)?;
            let outcomes = set.values().iter().map(|value| symbols.outcome(key, Some(value)));
            let known = outcomes.filter(|outcome| *outcome != OTHER);
            let known = ValueSet::gather(known, set.has_other(), set.has_absent());
            let other = set.has_other() || known.values().len() < set.values().len();
            Some((key, Range { set: known, other }))
        });
        Self(ranges.collect())
    }

    /// The probe of a cube that requires these values, and allows any outcome of all other keys.
    pub(in crate::matching) fn at(point: &Parameters, index: &Index) -> Self {
        let symbols = &index.symbols;
        let ranges = point.iter().filter_map(|(name, value)| {
            let key = symbols.key(name)?;
            let outcome = symbols.outcome(key, Some(value));
            let other = outcome == OTHER;
            let set = if other { ValueSet::none() } else { ValueSet::only(outcome) };
            Some((key, Range { set, other }))
        });
        Self(ranges.collect())
    }

    fn range(&self, key: u32) -> Option<&Range> {
        self.0.iter().find(|(mine, _)| *mine == key).map(|(_, range)| range)
    }
}

impl Range {
    fn has(&self, outcome: OutcomeId) -> bool {
        if outcome == OTHER { self.other } else { self.set.has_id(outcome) }
    }

    fn meets(&self, set: &ValueSet<u32>) -> bool {
        self.other && set.has_other() || self.set.meet(set).is_some()
    }
}

impl Index {
    /// Calls `visit` for each variant that the cube meets. A variant with a residual is visited if
    /// the cube may meet it.
    pub(in crate::matching) fn walk(
        &self,
        probe: &Probe,
        visit: &mut impl FnMut(Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.walk_below(self.root, probe, visit)
    }

    fn walk_below(
        &self,
        at: Link,
        probe: &Probe,
        visit: &mut impl FnMut(Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let node = match at.target() {
            LinkTarget::Nothing => return ControlFlow::Continue(()),
            LinkTarget::Slot(slot) => return visit(slot),
            LinkTarget::List(list) => {
                for candidate in self.candidates(list) {
                    if self.tests(candidate).all(|rule| rule.may_meet(probe)) {
                        visit(self.slot(candidate))?;
                    }
                }
                return ControlFlow::Continue(());
            }
            LinkTarget::Table(table) => return self.walk_table(table, probe, visit),
            LinkTarget::Node(node) => &self.nodes[node as usize],
        };
        self.walk_below(node.wild, probe, visit)?;
        if let Some(Range { set, other: false }) = probe.range(node.key)
            && let ([value], false, false) = (set.values(), set.has_other(), set.has_absent())
        {
            return self.walk_below(self.child(node, *value), probe, visit);
        }
        // Several outcomes share children. Each child is walked once, so the walk is linear in the
        // nodes that the probe reaches.
        let mut children = Vec::new();
        match probe.range(node.key) {
            Some(range) if !range.set.has_other() => {
                children.extend(range.set.values().iter().map(|value| self.child(node, *value)));
                children.extend(range.other.then_some(node.other));
                children.extend(range.set.has_absent().then_some(node.absent));
            }
            range => {
                let has = |outcome| range.is_none_or(|range| range.has(outcome));
                let edges = self.edges(node).iter().filter(|edge| edge.value != NO_VALUE && has(edge.value));
                children.extend(edges.map(|edge| edge.child));
                children.push(node.other);
                children.extend(has(ABSENT).then_some(node.absent));
            }
        }
        children.sort_unstable();
        children.dedup();
        for child in children {
            self.walk_below(child, probe, visit)?;
        }
        ControlFlow::Continue(())
    }

    fn walk_table(
        &self,
        table: u32,
        probe: &Probe,
        visit: &mut impl FnMut(Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let columns = self.columns(table);
        let look_ups = columns.iter().try_fold(1, |look_ups: usize, column| {
            let range = probe.range(column.key).filter(|range| !range.set.has_other())?;
            look_ups.checked_mul(range.set.values().len())
        });
        // If there are more combinations than cells, it is faster to read all rows.
        if look_ups.is_some_and(|look_ups| look_ups <= self.cell_count(table)) {
            return self.walk_rows(table, columns, 0, probe, visit);
        }
        let meets = |(number, _): &(u64, Slot)| {
            let has = |column: &Column| {
                probe.range(column.key).is_none_or(|range| range.has(column.value(*number)))
            };
            columns.iter().all(has)
        };
        self.rows(table).filter(meets).try_for_each(|(_, slot)| visit(slot))
    }

    /// Looks up every combination of the values that the probe allows. `columns` are the columns
    /// that have no value yet.
    fn walk_rows(
        &self,
        table: u32,
        columns: &[Column],
        number: u64,
        probe: &Probe,
        visit: &mut impl FnMut(Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some((column, rest)) = columns.split_first() else {
            return self.slots_at(table, number).try_for_each(visit);
        };
        let values = probe.range(column.key).map_or(&[][..], |range| range.set.values());
        let mut digits = values.iter().filter_map(|value| column.digit(*value));
        digits.try_for_each(|digit| self.walk_rows(table, rest, number + digit, probe, visit))
    }
}

impl Rule<'_> {
    fn may_meet(&self, probe: &Probe) -> bool {
        match self {
            Rule::Is { key, outcome } => probe.range(*key).is_none_or(|range| range.has(*outcome)),
            Rule::In { key, set } => probe.range(*key).is_none_or(|range| range.meets(set)),
            Rule::Holds(_) => true,
        }
    }
}
