//! Some variants of a name, with a search tree over them.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::index::{Index, Slot};
use super::normal::{Normal, Tangled, TooComplex};
use super::query::Query;
use super::symbols::OutcomeId;
use crate::constraint::Formula;
use crate::hash::HashSet;
use crate::parameters::Parameters;

/// The keys that a formula names, sorted (T12).
pub(super) type KeySet = Arc<[Arc<str>]>;

/// A variant with its constraints. The value lies here, not behind the pointer, because most
/// searches need nothing else.
#[derive(Debug, Clone)]
pub(super) struct Member<V> {
    pub(super) value: V,
    constraints: Arc<MemberConstraints>,
}

#[derive(Debug)]
struct MemberConstraints {
    formula: Arc<Formula>,
    keys: KeySet,
    /// The normal form of a tangled formula. The normal form of a cube is made again when needed.
    tangled: Option<Arc<Tangled>>,
}

impl<V> Member<V> {
    pub(super) fn new(value: V, formula: Arc<Formula>, keys: KeySet, normal: &Normal) -> Self {
        let tangled = normal.tangled().cloned();
        Self { value, constraints: Arc::new(MemberConstraints { formula, keys, tangled }) }
    }

    pub(super) fn formula(&self) -> &Formula {
        &self.constraints.formula
    }

    pub(super) fn keys(&self) -> &KeySet {
        &self.constraints.keys
    }

    pub(super) fn normal(&self) -> Normal {
        match &self.constraints.tangled {
            Some(tangled) => Normal::of_tangled(tangled),
            None => Normal::of(self.formula()).expect("a single cube needs no budget"),
        }
    }

    pub(super) fn query(&self) -> Query<'_> {
        match &self.constraints.tangled {
            Some(tangled) => Query::normalised(self.formula(), Normal::of_tangled(tangled)),
            None => Query::of(self.formula()).expect("a single cube needs no budget"),
        }
    }
}

/// A frozen tree with the list of its variants. A variant can be removed from the list, or replaced
/// by one with the same meaning, without a new tree.
#[derive(Debug)]
pub(super) struct Part<V> {
    pub(super) index: Arc<Index>,
    /// The members in the order in which the tree was built from them; `None` for a removed one.
    slots: Slots<V>,
    /// How many slots have a variant.
    pub(super) live: usize,
}

/// Lists of lists, so that a change copies little.
type Slots<V> = Arc<[Arc<[Option<Member<V>>]>]>;

impl<V> Part<V> {
    pub(super) fn new(members: Vec<Member<V>>) -> Self {
        let live = members.len();
        let index = Index::build((0..).zip(members.iter().map(Member::normal)));
        let mut members = members.into_iter();
        let chunk = |_| members.by_ref().take(CHUNK).map(Some).collect();
        let slots = (0..live.div_ceil(CHUNK)).map(chunk).collect();
        Self { index: Arc::new(index), slots, live }
    }

    /// How many variants the tree was built from.
    pub(super) fn built_from(&self) -> usize {
        self.slots.last().map_or(0, |last| (self.slots.len() - 1) * CHUNK + last.len())
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&Member<V>> {
        self.slots[slot as usize / CHUNK][slot as usize % CHUNK].as_ref()
    }

    /// Replaces a member by one with the same meaning, or removes it.
    pub(super) fn set(&mut self, slot: Slot, member: Option<Member<V>>)
    where
        V: Clone,
    {
        let chunk = Arc::make_mut(&mut Arc::make_mut(&mut self.slots)[slot as usize / CHUNK]);
        let place = &mut chunk[slot as usize % CHUNK];
        self.live = self.live - usize::from(place.is_some()) + usize::from(member.is_some());
        *place = member;
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member<V>> {
        self.slots.iter().flat_map(|chunk| chunk.iter()).flatten()
    }

    /// The slot that these parameters reach. It is vacant if its member was removed.
    pub(super) fn find(&self, parameters: &Parameters) -> Option<Slot> {
        let symbols = &self.index.symbols;
        let mut known = [NOT_LOOKED_UP; REMEMBERED_KEYS];
        self.index.find(&mut |key| {
            let look_up = || symbols.outcome(key, parameters.get(symbols.name(key)));
            match known.get_mut(key as usize) {
                Some(outcome) => {
                    if *outcome == NOT_LOOKED_UP {
                        *outcome = look_up();
                    }
                    *outcome
                }
                None => look_up(),
            }
        })
    }

    pub(super) fn resolve(&self, parameters: &Parameters) -> Option<&Member<V>> {
        self.get(self.find(parameters)?)
    }

    /// The outcome of each key of the tree.
    pub(super) fn outcomes(&self, parameters: &Parameters) -> impl Iterator<Item = OutcomeId> {
        let symbols = &self.index.symbols;
        (0..symbols.len() as u32).map(|key| symbols.outcome(key, parameters.get(symbols.name(key))))
    }

    #[inline]
    pub(super) fn resolve_outcomes(&self, outcomes: &[OutcomeId]) -> Option<&Member<V>> {
        self.get(self.index.find(&mut |key| outcomes[key as usize])?)
    }

    /// Calls `visit` with each member that shares parameters with the formula, and with an example
    /// of such parameters. A member may come more than once.
    pub(super) fn each_meeting(
        &self,
        query: &Query<'_>,
        visit: &mut impl FnMut(Slot, &Member<V>, Parameters) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TooComplex> {
        if self.live == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        // Several cubes of a tangled formula can lead to the same slot; the exact check is done
        // once.
        let is_tangled = query.is_tangled();
        let mut checked = HashSet::<Slot>::default();
        for probe in query.probes(&self.index) {
            let mut too_complex = None;
            let flow = self.index.walk(&probe, &mut |slot| {
                let Some(member) = self.get(slot) else { return ControlFlow::Continue(()) };
                if is_tangled && !checked.insert(slot) {
                    return ControlFlow::Continue(());
                }
                match query.meet(member.formula(), || member.normal()) {
                    Ok(Some(witness)) => visit(slot, member, witness),
                    Ok(None) => ControlFlow::Continue(()),
                    Err(reason) => {
                        too_complex = Some(reason);
                        ControlFlow::Break(())
                    }
                }
            });
            if let Some(reason) = too_complex {
                return Err(reason);
            }
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl<V> Clone for Part<V> {
    fn clone(&self) -> Self {
        Self { index: Arc::clone(&self.index), slots: Arc::clone(&self.slots), live: self.live }
    }
}

impl<V> Default for Part<V> {
    fn default() -> Self {
        Self { index: Arc::default(), slots: Arc::default(), live: 0 }
    }
}

/// A change copies one chunk, and the list of chunks.
const CHUNK: usize = 256;
/// No outcome has this number.
const NOT_LOOKED_UP: OutcomeId = u32::MAX - 2;
/// For this many keys, a search remembers the outcome and looks it up only once.
const REMEMBERED_KEYS: usize = 32;
