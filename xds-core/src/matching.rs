//! Which variant of a name some parameters get, and the proof that there is never more than one
//! (T3-T5, T12-T17).
//!
//! A [`VariantSet`] holds all variants of one name. It accepts a change only when no two of the
//! resulting variants have parameters in common, and else gives parameters that prove it. So a
//! search may stop at its first hit, and what nobody covers is a matter of counting.
//!
//! | part | does |
//! | --- | --- |
//! | `value_set`, `cube` | what one key may be; a condition on several keys |
//! | `normal`, `diagram` | the meaning of one formula, whatever way it was written, within a budget |
//! | `query` | a formula worked out as far as a check needs it |
//! | `symbols`, `index` | the tree of all variants over numbered strings: finds one, and all that a cube meets |
//! | `part`, `edit` | a large frozen tree, a small one aside, and when they are merged |
//! | `coverage`, `count` | what no variant covers, exactly |

mod count;
pub mod coverage;
mod cube;
mod diagram;
mod edit;
mod error;
mod index;
pub mod normal;
mod part;
mod query;
mod symbols;
pub mod value_set;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub use edit::KeySetRule;
pub use error::SetError;

use crate::constraint::Formula;
use crate::parameters::Parameters;
use normal::TooComplex;
use part::{KeySet, Member, Part};
use query::Query;
use symbols::OutcomeId;

/// All variants of one name, at most one of which matches any parameters.
///
/// It needs no cache and no server: whoever has constraints and something to find by them can use
/// it.
///
/// ```
/// use xds_core::{Constraints, Parameters, VariantSet};
/// use xds_core::matching::SetError;
///
/// let production: Constraints = "env=prod".parse()?;
/// let others: Constraints = "env!=prod".parse()?;
/// let ports = VariantSet::of([(&production, 443), (&others, 8443)])?;
/// assert_eq!(ports.resolve(&Parameters::from_iter([("env", "prod")])), Some(&443));
/// assert_eq!(ports.resolve(&Parameters::from_iter([("env", "test"), ("zone", "b")])), Some(&8443));
/// assert_eq!(ports.resolve(&Parameters::new()), Some(&8443));
///
/// // Two variants for one client are refused, with a client that proves it.
/// let staging: Constraints = "env=staging".parse()?;
/// let Err(SetError::Overlap { first, second, witness }) = VariantSet::of([(&others, 1), (&staging, 2)]) else {
///     unreachable!("staging is not prod");
/// };
/// assert_eq!((first, second), (1, 2));
/// assert_eq!(witness, Parameters::from_iter([("env", "staging")]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Immutable; [`edit`](Self::edit) makes a new one that shares what it did not change. A clone
/// costs a counter. A set of one variant without constraints, which is what nearly every name has,
/// is no larger than its `V`.
#[derive(Debug)]
pub struct VariantSet<V>(Inner<V>);

#[derive(Debug)]
enum Inner<V> {
    Empty,
    /// One variant, without constraints.
    Everyone(V),
    Parts(Arc<Parts<V>>),
}

#[derive(Debug)]
struct Parts<V> {
    base: Part<V>,
    /// What came since the base was built; empty in small sets.
    delta: Part<V>,
    /// How many members write down each set of keys.
    keys: BTreeMap<KeySet, usize>,
}

/// Parameters looked up once, to be resolved many times against the one set they are tied to:
/// another set, even the next version of this one, may name values that this one does not know.
#[derive(Debug)]
pub struct Prepared<'a, V> {
    set: &'a VariantSet<V>,
    /// What each key of the base is, then each of the delta.
    outcomes: Box<[OutcomeId]>,
}

/// How parameters came to their variant, or to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation<'a, V> {
    /// The keys that were looked at, in order, each once.
    pub tests: Vec<KeyTest>,
    /// The variant, with its constraints.
    pub found: Option<(&'a Formula, &'a V)>,
}

/// One key on the way to a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTest {
    /// The key.
    pub key: Arc<str>,
    /// What the parameters say of it; `None` when it is absent.
    pub value: Option<Arc<str>>,
    /// Whether some variant names this value; one that nobody names is treated like any other such
    /// value.
    pub is_named: bool,
}

/// How a set is built, for tests, metrics and benches.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SetSize {
    /// Bytes of the trees, without strings, formulas and values.
    pub tree_bytes: usize,
    /// Nodes at which a search may have to branch.
    pub wild_nodes: usize,
    /// Variants that are aside until the next merge.
    pub pending: usize,
    /// Places of removed variants that the next merge frees.
    pub vacant: usize,
}

impl<V> VariantSet<V> {
    /// A set without variants.
    #[must_use]
    pub const fn new() -> Self {
        Self(Inner::Empty)
    }

    /// The set of one variant that is for everyone.
    pub const fn everyone(value: V) -> Self {
        Self(Inner::Everyone(value))
    }

    /// How many variants there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Empty => 0,
            Inner::Everyone(_) => 1,
            Inner::Parts(parts) => parts.base.live + parts.delta.live,
        }
    }

    /// Whether there is no variant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All variants with their constraints, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Formula, &V)> {
        let (everyone, parts) = match &self.0 {
            Inner::Empty => (None, None),
            Inner::Everyone(value) => (Some((&EVERYONE, value)), None),
            Inner::Parts(parts) => (None, Some(parts)),
        };
        let members = parts.into_iter().flat_map(|parts| parts.members());
        everyone.into_iter().chain(members.map(|member| (member.formula(), &member.value)))
    }

    /// The variant that these parameters get (T3); `None` when the name does not exist for them
    /// (T4).
    ///
    /// Takes a look at each key on the way, however many variants there are.
    #[must_use]
    pub fn resolve(&self, parameters: &Parameters) -> Option<&V> {
        match &self.0 {
            Inner::Empty => None,
            Inner::Everyone(value) => Some(value),
            Inner::Parts(parts) => {
                let found = parts.base.resolve(parameters).or_else(|| parts.delta.resolve(parameters));
                found.map(|member| &member.value)
            }
        }
    }

    /// Looks the parameters up, to resolve them again and again.
    #[must_use]
    pub fn prepare(&self, parameters: &Parameters) -> Prepared<'_, V> {
        let outcomes = match &self.0 {
            Inner::Empty | Inner::Everyone(_) => Box::default(),
            Inner::Parts(parts) => {
                parts.base.outcomes(parameters).chain(parts.delta.outcomes(parameters)).collect()
            }
        };
        Prepared { set: self, outcomes }
    }

    /// The variant that these parameters get, and the tests on the way.
    #[must_use]
    pub fn explain(&self, parameters: &Parameters) -> Explanation<'_, V> {
        let parts = match &self.0 {
            Inner::Empty => return Explanation { tests: Vec::new(), found: None },
            Inner::Everyone(value) => {
                return Explanation { tests: Vec::new(), found: Some((&EVERYONE, value)) };
            }
            Inner::Parts(parts) => parts,
        };
        let mut tests: Vec<KeyTest> = Vec::new();
        for part in [&parts.base, &parts.delta] {
            let symbols = &part.index.symbols;
            let slot = part.index.find(&mut |key| {
                let (name, value) = (symbols.name(key), parameters.get(symbols.name(key)));
                let outcome = symbols.outcome(key, value);
                if !tests.iter().any(|test| test.key == *name) {
                    let is_named = value.is_some() && parts.names(name, outcome, parameters);
                    tests.push(KeyTest { key: Arc::clone(name), value: value.cloned(), is_named });
                }
                outcome
            });
            if let Some(member) = slot.and_then(|slot| part.get(slot)) {
                return Explanation { tests, found: Some((member.formula(), &member.value)) };
            }
        }
        Explanation { tests, found: None }
    }

    /// The variants that parameters of this formula can get, each once, with such parameters.
    ///
    /// With the known parameters as a formula these are the variants that the unknown ones decide
    /// between.
    ///
    /// # Errors
    /// When the formula takes too long to judge.
    pub fn reachable(&self, formula: &Formula) -> Result<Vec<(&V, Parameters)>, TooComplex> {
        let query = Query::of(formula)?;
        let parts = match &self.0 {
            Inner::Empty => return Ok(Vec::new()),
            Inner::Everyone(value) => {
                return Ok(query.normal().sample().map(|sample| (value, sample)).into_iter().collect());
            }
            Inner::Parts(parts) => parts,
        };
        let mut slots = Vec::new();
        for (side, part) in [&parts.base, &parts.delta].into_iter().enumerate() {
            let flow = part.each_meeting(&query, &mut |slot, _, witness| {
                slots.push((side, slot, witness));
                ControlFlow::Continue(())
            })?;
            debug_assert!(flow.is_continue(), "nobody stops the walk");
        }
        slots.sort_unstable_by_key(|(side, slot, _)| (*side, *slot));
        slots.dedup_by_key(|(side, slot, _)| (*side, *slot));
        let part = |side| if side == 0 { &parts.base } else { &parts.delta };
        let found = slots.into_iter();
        Ok(found.filter_map(|(side, slot, witness)| Some((&part(side).get(slot)?.value, witness))).collect())
    }

    /// The sets of keys that variants write down, with how many do; under [`KeySetRule::Equal`] at
    /// most one.
    pub fn key_sets(&self) -> impl Iterator<Item = (&[Arc<str>], usize)> {
        let (everyone, parts) = match &self.0 {
            Inner::Empty => (None, None),
            Inner::Everyone(_) => (Some((&[][..], 1)), None),
            Inner::Parts(parts) => (None, Some(parts)),
        };
        let counted = parts.into_iter().flat_map(|parts| &parts.keys);
        everyone.into_iter().chain(counted.map(|(keys, count)| (&**keys, *count)))
    }

    /// How large the structure is.
    #[must_use]
    pub fn size(&self) -> SetSize {
        let Inner::Parts(parts) = &self.0 else { return SetSize::default() };
        let (base, delta) = (&parts.base, &parts.delta);
        SetSize {
            tree_bytes: base.index.tree_bytes() + delta.index.tree_bytes(),
            wild_nodes: base.index.wild_nodes() + delta.index.wild_nodes(),
            pending: delta.live,
            vacant: base.built_from() - base.live + delta.built_from() - delta.live,
        }
    }
}

impl<V> Clone for VariantSet<V>
where
    V: Clone,
{
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Inner::Empty => Inner::Empty,
            Inner::Everyone(value) => Inner::Everyone(value.clone()),
            Inner::Parts(parts) => Inner::Parts(Arc::clone(parts)),
        })
    }
}

impl<V> Default for VariantSet<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, V> Prepared<'a, V> {
    /// The variant that the parameters get; see [`VariantSet::resolve`].
    #[must_use]
    pub fn resolve(&self) -> Option<&'a V> {
        match &self.set.0 {
            Inner::Empty => None,
            Inner::Everyone(value) => Some(value),
            Inner::Parts(parts) => {
                let mut found = parts.base.resolve_outcomes(&self.outcomes);
                if found.is_none() && parts.delta.live > 0 {
                    found = parts.delta.resolve_outcomes(&self.outcomes[parts.base.index.symbols.len()..]);
                }
                found.map(|member| &member.value)
            }
        }
    }
}

impl<V> Parts<V> {
    fn members(&self) -> impl Iterator<Item = &Member<V>> {
        self.base.members().chain(self.delta.members())
    }

    /// Whether any part names the value that a key has.
    fn names(&self, name: &str, outcome: OutcomeId, parameters: &Parameters) -> bool {
        let knows = |part: &Part<V>| {
            let key = part.index.symbols.key(name)?;
            Some(part.index.symbols.outcome(key, parameters.get(name)) != symbols::OTHER)
        };
        outcome != symbols::OTHER
            || [&self.base, &self.delta].into_iter().any(|part| knows(part) == Some(true))
    }
}

impl<V> Clone for Parts<V> {
    fn clone(&self) -> Self {
        Self { base: self.base.clone(), delta: self.delta.clone(), keys: self.keys.clone() }
    }
}

impl<V> Default for Parts<V> {
    fn default() -> Self {
        Self { base: Part::default(), delta: Part::default(), keys: BTreeMap::new() }
    }
}

/// The constraints of a variant that has none.
static EVERYONE: Formula = Formula::All(Vec::new());
