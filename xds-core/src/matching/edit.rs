//! Changes a set. Only the resulting set is checked, never an intermediate one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::error::SetError;
use super::index::Slot;
use super::normal::Normal;
use super::part::{KeySet, Member, Part};
use super::{Inner, Parts, VariantSet};
use crate::constraint::{Constraints, Formula};
use crate::hash::HashMap;

/// Whether the variants of a name must name the same keys (T12, T15).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum KeySetRule {
    /// They must.
    #[default]
    Equal,
    /// They need not, as long as no two of them overlap.
    Free,
}

impl<V: Clone> VariantSet<V> {
    /// The set of these variants, under [`KeySetRule::Equal`].
    ///
    /// # Errors
    /// See [`edit`](Self::edit).
    pub fn of<'c>(variants: impl IntoIterator<Item = (&'c Constraints, V)>) -> Result<Self, SetError<V>> {
        let insertions = variants.into_iter().map(|(constraints, value)| (constraints.into(), value));
        Self::new().edit([], insertions, KeySetRule::Equal)
    }

    /// The set without the removed variants and with the inserted ones.
    ///
    /// Only the resulting set is checked. So the order of removals and insertions does not matter,
    /// and one edit may replace a variant by others that overlap it (T16). A removal removes the
    /// variant whose constraints have the same meaning as the given ones, if there is one. A
    /// variant that is removed and inserted again with the same meaning is cheap: only its value
    /// changes.
    ///
    /// # Errors
    /// When a variant can never match (T17), two variants overlap (T13), their keys differ under
    /// [`KeySetRule::Equal`] (T12), or a check needs more than its
    /// [budget](super::normal::NODE_BUDGET). The first error, in this order of checks, is reported.
    pub fn edit<'f>(
        &self,
        removals: impl IntoIterator<Item = &'f Formula>,
        insertions: impl IntoIterator<Item = (Arc<Formula>, V)>,
        rule: KeySetRule,
    ) -> Result<Self, SetError<V>> {
        let mut edit = Edit::of(self);
        for formula in removals {
            edit.remove(formula);
        }
        for (formula, value) in insertions {
            edit.insert(formula, value)?;
        }
        edit.finish(rule)
    }
}

/// One of the two parts of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Base,
    Delta,
}

struct Edit<V> {
    parts: Parts<V>,
    /// The slots of removed variants, by the digest of the variant's meaning.
    vacant: HashMap<[u8; 16], (Side, Slot)>,
    fresh: Vec<Member<V>>,
}

impl<V: Clone> Edit<V> {
    fn of(set: &VariantSet<V>) -> Self {
        let parts = match &set.0 {
            Inner::Empty => Parts::default(),
            Inner::Everyone(value) => {
                let formula = Arc::new(super::EVERYONE.clone());
                let normal = Normal::of(&formula).expect("it is a constant");
                let keys = KeySet::default();
                let base = Part::new(vec![Member::new(value.clone(), formula, Arc::clone(&keys), &normal)]);
                Parts { base, delta: Part::default(), keys: BTreeMap::from([(keys, 1)]) }
            }
            Inner::Parts(parts) => Parts::clone(parts),
        };
        Self { parts, vacant: HashMap::default(), fresh: Vec::new() }
    }

    fn part(&mut self, side: Side) -> &mut Part<V> {
        match side {
            Side::Base => &mut self.parts.base,
            Side::Delta => &mut self.parts.delta,
        }
    }

    fn remove(&mut self, formula: &Formula) {
        // A formula that is too complex or unsatisfiable was never accepted into a set.
        let Ok(normal) = Normal::of(formula) else { return };
        let Some(sample) = normal.sample() else { return };
        for side in [Side::Base, Side::Delta] {
            let part = self.part(side);
            let found = part.find(&sample).and_then(|slot| Some((slot, part.get(slot)?.clone())));
            if let Some((slot, member)) = found.filter(|(_, member)| member.normal() == normal) {
                part.set(slot, None);
                self.vacant.insert(normal.digest().0, (side, slot));
                self.count_out(member.keys());
            }
        }
    }

    fn insert(&mut self, formula: Arc<Formula>, value: V) -> Result<(), SetError<V>> {
        let normal = match Normal::of(&formula) {
            Ok(normal) => normal,
            Err(reason) => return Err(SetError::TooComplex { variant: value, reason }),
        };
        if normal.is_unsatisfiable() {
            return Err(SetError::Unsatisfiable { variant: value });
        }
        let keys = self.count_in(formula.keys().into_iter().cloned().collect());
        let member = Member::new(value, formula, keys, &normal);
        let vacant = if self.vacant.is_empty() { None } else { self.vacant.remove(&normal.digest().0) };
        match vacant {
            Some((side, slot)) => self.part(side).set(slot, Some(member)),
            None => self.fresh.push(member),
        }
        Ok(())
    }

    fn count_in(&mut self, keys: Vec<Arc<str>>) -> KeySet {
        if let Some((known, _)) = self.parts.keys.get_key_value(&*keys) {
            let known = Arc::clone(known);
            *self.parts.keys.entry(Arc::clone(&known)).or_default() += 1;
            return known;
        }
        let keys = KeySet::from(keys);
        self.parts.keys.insert(Arc::clone(&keys), 1);
        keys
    }

    fn count_out(&mut self, keys: &KeySet) {
        let count = self.parts.keys.get_mut(keys).expect("the keys of every member are counted");
        *count -= 1;
        if *count == 0 {
            self.parts.keys.remove(keys);
        }
    }

    /// Builds the trees that changed, checks the new members, and makes the set.
    fn finish(mut self, rule: KeySetRule) -> Result<VariantSet<V>, SetError<V>> {
        let fresh = std::mem::take(&mut self.fresh);
        let (base, delta) = (&self.parts.base, &self.parts.delta);
        let total = base.live + delta.live + fresh.len();
        let removed = base.built_from() - base.live;
        // A new base is expensive in a large set, so new members go to the delta until a merge
        // pays.
        let is_due = if total <= ALWAYS_REBUILT {
            !fresh.is_empty() || removed > 0
        } else {
            let pending = delta.live + fresh.len();
            pending > DELTA_LIMIT.min(total / MERGE_SHARE) || removed > total / MERGE_SHARE
        };
        // A single insertion is checked before a tree is built for it.
        if let [only] = &*fresh {
            self.check(None, only)?;
        }
        let mut new = None;
        if is_due {
            let members = base.members().chain(delta.members()).chain(&fresh).cloned().collect();
            self.parts.base = Part::new(members);
            self.parts.delta = Part::default();
            new = Some((Side::Base, total - fresh.len()));
        } else if !fresh.is_empty() {
            let members: Vec<_> = delta.members().chain(&fresh).cloned().collect();
            new = Some((Side::Delta, members.len() - fresh.len()));
            self.parts.delta = Part::new(members);
        }
        // Several insertions are checked in the new trees: they may overlap each other, too.
        if let Some((side, first)) = new
            && fresh.len() > 1
        {
            for (slot, member) in (first as Slot..).zip(&fresh) {
                self.check(Some((side, slot)), member)?;
            }
        }
        if rule == KeySetRule::Equal && self.parts.keys.len() > 1 {
            return Err(self.key_sets());
        }
        if total == 0 {
            return Ok(VariantSet::new());
        }
        let mut without_keys = self.parts.members().filter(|member| member.keys().is_empty());
        if total == 1
            && let Some(member) = without_keys.next()
        {
            return Ok(VariantSet::everyone(member.value.clone()));
        }
        drop(without_keys);
        Ok(VariantSet(Inner::Parts(Arc::new(self.parts))))
    }

    /// Checks that a new member overlaps no other member. `own` is its slot, if it has one already.
    fn check(&self, own: Option<(Side, Slot)>, member: &Member<V>) -> Result<(), SetError<V>> {
        let query = member.query();
        for (side, part) in [(Side::Base, &self.parts.base), (Side::Delta, &self.parts.delta)] {
            let mut overlap = None;
            let walked = part.each_meeting(&query, &mut |slot, other, witness| {
                if own == Some((side, slot)) {
                    return ControlFlow::Continue(());
                }
                let is_later = own.is_some_and(|own| side == own.0 && slot > own.1);
                let (first, second) = if is_later { (member, other) } else { (other, member) };
                let (first, second) = (first.value.clone(), second.value.clone());
                overlap = Some(SetError::Overlap { first, second, witness });
                ControlFlow::Break(())
            });
            if let Err(reason) = walked {
                return Err(SetError::TooComplex { variant: member.value.clone(), reason });
            }
            if let Some(overlap) = overlap {
                return Err(overlap);
            }
        }
        Ok(())
    }

    /// The error for a set whose members have more than one key set.
    fn key_sets(&self) -> SetError<V> {
        let first = self.parts.members().next().expect("a key set has a member");
        let differs = |member: &&Member<V>| member.keys() != first.keys();
        let second = self.parts.members().find(differs).expect("another key set has another member");
        let missing =
            |from: &KeySet, than: &KeySet| from.iter().filter(|key| !than.contains(key)).cloned().collect();
        SetError::KeySets {
            first: first.value.clone(),
            second: second.value.clone(),
            only_first: missing(first.keys(), second.keys()),
            only_second: missing(second.keys(), first.keys()),
        }
    }
}

/// With up to this many variants, a change rebuilds the whole tree. That takes a millisecond if all
/// variants require single values, and some milliseconds if they have alternatives.
const ALWAYS_REBUILT: usize = 1_024;
/// The most variants in the small tree of a large set. Every change copies them.
const DELTA_LIMIT: usize = 1_024;
/// The two trees of a large set are merged when more than one in this many variants is in the small
/// tree or removed.
const MERGE_SHARE: usize = 20;
