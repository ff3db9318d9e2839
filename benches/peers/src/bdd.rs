//! The crate `biodivine-lib-bdd`: a diagram per variant, over the bits of the number of each value.

use std::collections::HashMap;

use biodivine_lib_bdd::{Bdd, BddPartialValuation, BddValuation, BddVariable, BddVariableSet};

use crate::workload::{ABSENT, FRESH, Term, Test, Workload};

/// The variants as diagrams.
#[derive(Debug)]
pub struct Diagrams {
    space: Space,
    variants: Vec<Bdd>,
}

#[derive(Debug)]
struct Space {
    bits: BddVariableSet,
    /// The bits of each key. Two values in addition to the named ones represent "any other value"
    /// and "absent".
    keys: Vec<Vec<BddVariable>>,
    named: Vec<u32>,
}

impl Diagrams {
    /// The diagrams of the variants.
    #[must_use]
    pub fn of(workload: &Workload) -> Self {
        let named: Vec<_> = workload.keys.iter().map(|key| key.values.len() as u32).collect();
        let widths = named.iter().map(|named| (named + 2).next_power_of_two().ilog2() as usize);
        let bits = BddVariableSet::new_anonymous(widths.clone().sum::<usize>() as u16);
        let mut free = bits.variables().into_iter();
        let keys = widths.map(|width| free.by_ref().take(width).collect()).collect();
        let space = Space { bits, keys, named };
        let mut known = HashMap::new();
        let variants = workload.variants.iter().map(|terms| space.diagram(terms, &mut known)).collect();
        Self { space, variants }
    }

    /// The parameters in the form of the diagrams.
    #[must_use]
    pub fn valuation(&self, point: &[u32]) -> BddValuation {
        let mut valuation = BddValuation::all_false(self.space.bits.num_vars());
        for (key, value) in point.iter().enumerate() {
            for (bit, is_set) in self.space.code(key, *value) {
                valuation.set_value(bit, is_set);
            }
        }
        valuation
    }

    /// The variant that matches.
    #[must_use]
    pub fn find(&self, valuation: &BddValuation) -> Option<u32> {
        self.variants.iter().position(|diagram| diagram.eval_in(valuation)).map(|at| at as u32)
    }

    /// The variant that these alternatives overlap.
    #[must_use]
    pub fn overlapped(&self, terms: &[Term]) -> Option<u32> {
        let probe = self.space.diagram(terms, &mut HashMap::new());
        self.variants.iter().position(|diagram| !diagram.and(&probe).is_false()).map(|at| at as u32)
    }

    /// Bytes of the diagrams.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A node is a variable of two bytes and two links of four, padded.
        self.variants.iter().map(|diagram| size_of::<Bdd>() + diagram.size() * 12).sum()
    }
}

impl Space {
    fn code(&self, key: usize, value: u32) -> impl Iterator<Item = (BddVariable, bool)> {
        let value = match value {
            FRESH => self.named[key],
            ABSENT => self.named[key] + 1,
            value => value,
        };
        self.keys[key].iter().enumerate().map(move |(at, bit)| (*bit, value >> at & 1 == 1))
    }

    fn diagram(&self, terms: &[Term], known: &mut HashMap<Test, Bdd>) -> Bdd {
        let terms = terms.iter().map(|term| self.term(term, known));
        terms.reduce(|left, right| left.or(&right)).expect("a variant has a term")
    }

    fn term(&self, term: &[Test], known: &mut HashMap<Test, Bdd>) -> Bdd {
        let is_single = |test: &&Test| test.values.len() == 1 && !test.is_negated;
        let mut clause = BddPartialValuation::empty();
        for test in term.iter().filter(is_single) {
            self.code(test.key, test.values[0]).for_each(|(bit, is_set)| clause.set_value(bit, is_set));
        }
        let clause = self.bits.mk_conjunctive_clause(&clause);
        term.iter().filter(|test| !is_single(test)).fold(clause, |clause, test| {
            let set = known.entry(test.clone()).or_insert_with(|| self.list(test));
            clause.and(set)
        })
    }

    fn list(&self, test: &Test) -> Bdd {
        let clause = |value: &u32| {
            let bits: Vec<_> = self.code(test.key, *value).collect();
            self.bits.mk_conjunctive_clause(&BddPartialValuation::from_values(&bits))
        };
        let any = test.values.iter().map(clause).fold(self.bits.mk_false(), |left, right| left.or(&right));
        if test.is_negated { any.not() } else { any }
    }
}
