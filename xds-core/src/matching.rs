//! Finds the variant of a name that matches given parameters, and proves that no other one does
//! (T3-T5, T12-T17).
//!
//! A [`VariantSet`] holds all variants of one name. Two variants overlap if some parameters match
//! both. The set refuses a change after which two variants would overlap, and reports parameters
//! that match both, the *witness*. So a search stops at its first match, and the parameters that no
//! variant covers can be counted.
//!
//! Words of this module: the *outcome* of a key is absent, a value that a constraint names, or any
//! other value. A *cube* allows a set of outcomes for each of some keys. Two cubes *meet* if some
//! parameters are in both. A *tangled* formula is one that no single cube expresses.
//!
//! | part | does |
//! | --- | --- |
//! | `value_set`, `cube` | the allowed outcomes of one key; of several keys |
//! | `normal`, `diagram` | the meaning of one formula, however it was written, within a budget |
//! | `query` | a formula to search with, normalised only if a check needs it |
//! | `symbols`, `index` | the search tree over all variants, with numbers for strings |
//! | `part`, `edit` | a large frozen tree, a small one for new variants, and when they are merged |
//! | `coverage`, `count` | the parameters that no variant covers, exactly |

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
/// It needs no cache and no server: any program can use it to find values by constraints.
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
/// // Variants that overlap are refused, with parameters that match both.
/// let staging: Constraints = "env=staging".parse()?;
/// let Err(SetError::Overlap { first, second, witness }) = VariantSet::of([(&others, 1), (&staging, 2)]) else {
///     unreachable!("staging is not prod");
/// };
/// assert_eq!((first, second), (1, 2));
/// assert_eq!(witness, Parameters::from_iter([("env", "staging")]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A set is immutable. [`edit`](Self::edit) makes a new one, which shares the unchanged parts. A
/// clone only increments a counter. Nearly every name has one variant without constraints; such a
/// set is no larger than its `V`.
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
    /// Variants that were added after the base was built; empty in small sets.
    delta: Part<V>,
    /// How many members name each set of keys.
    keys: BTreeMap<KeySet, usize>,
}

/// Parameters whose strings were looked up once, to resolve them many times in the same set. They
/// are valid for this set only: the next version of it may name other values.
#[derive(Debug)]
pub struct Prepared<'a, V> {
    set: &'a VariantSet<V>,
    /// The outcome of each key of the base, then of each key of the delta.
    outcomes: Box<[OutcomeId]>,
}

/// Why parameters get their variant, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation<'a, V> {
    /// The keys that the search tested, in order, each once.
    pub tests: Vec<KeyTest>,
    /// The matching variant, with its constraints.
    pub found: Option<(&'a Formula, &'a V)>,
}

/// One key that the search tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTest {
    /// The key.
    pub key: Arc<str>,
    /// Its value in the parameters; `None` when it is absent.
    pub value: Option<Arc<str>>,
    /// Whether some variant names this value. All values that no variant names have the same
    /// result.
    pub is_named: bool,
}

/// The size of the data structures of a set, for tests, metrics and benches.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SetSize {
    /// Bytes of the trees, without strings, formulas and values.
    pub tree_bytes: usize,
    /// Nodes at which a search may have to branch.
    pub wild_nodes: usize,
    /// Variants in the small tree, until the next merge.
    pub pending: usize,
    /// Slots of removed variants that the next merge frees.
    pub vacant: usize,
}

impl<V> VariantSet<V> {
    /// A set without variants.
    #[must_use]
    pub const fn new() -> Self {
        Self(Inner::Empty)
    }

    /// The set of one variant that matches all parameters.
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

    /// The variant that these parameters match (T3); `None` when the name does not exist for them
    /// (T4).
    ///
    /// The cost depends on the keys that the search tests, not on the number of variants.
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

    /// Looks up the strings of the parameters, to resolve them many times.
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

    /// The variant that these parameters match, and the keys that the search tested.
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

    /// The variants that share parameters with this formula, each once, with an example of such
    /// parameters.
    ///
    /// If the formula lists the parameters that are known of a client, these are the variants that
    /// the client can still get, depending on its unknown parameters.
    ///
    /// # Errors
    /// When the formula needs more than the [budget](normal::NODE_BUDGET).
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
            debug_assert!(flow.is_continue(), "this visitor never stops the walk");
        }
        slots.sort_unstable_by_key(|(side, slot, _)| (*side, *slot));
        slots.dedup_by_key(|(side, slot, _)| (*side, *slot));
        let part = |side| if side == 0 { &parts.base } else { &parts.delta };
        let found = slots.into_iter();
        Ok(found.filter_map(|(side, slot, witness)| Some((&part(side).get(slot)?.value, witness))).collect())
    }

    /// The sets of keys that variants name, each with the number of its variants; at most one set
    /// under [`KeySetRule::Equal`].
    pub fn key_sets(&self) -> impl Iterator<Item = (&[Arc<str>], usize)> {
        let (everyone, parts) = match &self.0 {
            Inner::Empty => (None, None),
            Inner::Everyone(_) => (Some((&[][..], 1)), None),
            Inner::Parts(parts) => (None, Some(parts)),
        };
        let counted = parts.into_iter().flat_map(|parts| &parts.keys);
        everyone.into_iter().chain(counted.map(|(keys, count)| (&**keys, *count)))
    }

    /// The size of the data structures.
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
    /// The variant that the parameters match; see [`VariantSet::resolve`].
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

    /// Whether any part names the value of this key.
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
