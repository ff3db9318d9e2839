//! The crate `a-tree`: finds the matches among many expressions. It checks nothing when an
//! expression is added.

use std::fmt::Write as _;

use a_tree::{AttributeDefinition, Event};

use crate::workload::{ABSENT, FRESH, Query, Test, Workload};

/// The variants as expressions.
#[derive(Debug)]
pub struct ATree<'a> {
    workload: &'a Workload,
    tree: a_tree::ATree<u32>,
}

impl<'a> ATree<'a> {
    /// The tree of the variants.
    ///
    /// # Panics
    /// When the crate refuses an expression.
    #[must_use]
    pub fn of(workload: &'a Workload) -> Self {
        let definitions = (0..workload.keys.len()).map(|key| AttributeDefinition::string(&format!("k{key}")));
        let definitions: Vec<_> = definitions.collect();
        let mut tree = a_tree::ATree::new(&definitions).expect("the attributes are different");
        for (at, terms) in (0..).zip(&workload.variants) {
            let text = terms.iter().map(|term| {
                let tests = term.iter().map(|test| expression(workload, test)).collect::<Vec<_>>();
                format!("({})", tests.join(" and "))
            });
            let text = text.collect::<Vec<_>>().join(" or ");
            if let Err(error) = tree.insert(&at, &text) {
                panic!("{text} is refused: {error:?}");
            }
        }
        Self { workload, tree }
    }

    /// The parameters in the form of the tree.
    ///
    /// # Panics
    /// When the crate does not know an attribute, which it does.
    #[must_use]
    pub fn event(&self, query: &Query) -> Event {
        let mut event = self.tree.make_event();
        for (key, value) in query.point.iter().enumerate() {
            let value = match *value {
                ABSENT => continue,
                FRESH => "nobody names this",
                value => &*self.workload.keys[key].values[value as usize],
            };
            event.with_string(&format!("k{key}"), value).expect("the attribute is defined");
        }
        event.build().expect("every attribute may be undefined")
    }

    /// The variant that matches.
    ///
    /// # Panics
    /// When the crate cannot search, which it can.
    #[must_use]
    pub fn find(&self, event: &Event) -> Option<u32> {
        let report = self.tree.search(event).expect("the event is of this tree");
        report.matches().first().map(|id| **id)
    }
}

/// In this crate an undefined value is neither equal nor unequal, so a negation must allow it.
fn expression(workload: &Workload, test: &Test) -> String {
    let (key, values) = (test.key, &workload.keys[test.key].values);
    if let ([value], false) = (&*test.values, test.is_negated) {
        return format!("k{key} = '{}'", values[*value as usize]);
    }
    let mut text =
        if test.is_negated { format!("(k{key} is null or k{key} not in [") } else { format!("k{key} in [") };
    for (at, value) in test.values.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(text, "{comma}'{}'", values[*value as usize]).expect("a string takes everything");
    }
    text.push_str(if test.is_negated { "])" } else { "]" });
    text
}
