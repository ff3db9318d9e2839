//! Answers to subscribed locators.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::covering::covering_locators;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision};
use crate::subscription::{Locator, Locators};
use crate::variants::{KeyedBy, Variant};
use crate::wire::{Failure, ResourceKey};

/// For each name, whether the stream gets any variant of it.
pub(super) type NamePresence = BTreeMap<ResourceName, bool>;

/// The answer to a subscribed locator.
#[derive(Debug)]
pub(super) enum LocatorAnswer {
    Variants(Vec<Arc<Variant>>),
    /// There is no variant; these keys are sent as removed.
    Absent(Vec<ResourceKey>),
}

impl TypeState {
    /// The variants that a locator gets: one, unless its name is a glob (X12).
    pub(super) fn find(&self, locator: &Locator, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        let Some(resources) = snapshot.of_type(&self.terms.type_url) else { return Vec::new() };
        let members = resources.selected_by(&locator.name).filter(|name| self.terms.allows(name));
        let variants = members.filter_map(|name| resources.get(name));
        let found = variants.filter_map(|variants| variants.resolve(&locator.parameters));
        found.filter(|variant| variant.is_named(&locator.name)).cloned().collect()
    }

    /// The answer to a subscribed locator, which is sent at once (D9, D10).
    ///
    /// `presence` remembers for each name whether the stream gets any variant of it.
    pub(super) fn answer(
        &mut self,
        locator: &Locator,
        presence: &mut NamePresence,
        snapshot: &Snapshot,
    ) -> LocatorAnswer {
        let found = self.find(locator, snapshot);
        if !found.is_empty() {
            return LocatorAnswer::Variants(found);
        }
        let Locator { name, parameters } = locator;
        let by_name = ResourceKey::of_name(name);
        if self.keyed_by() == KeyedBy::Name {
            self.on_removal_sent(&by_name);
            return LocatorAnswer::Absent(vec![by_name]);
        }
        // T35: variants that this locator had are removed by their constraints; variants of other
        // locators stay.
        let retained = self.holding.removed_of(name);
        // A variant that other locators have too is removed only when it may be removed for all of
        // them.
        let own = retained.iter().filter(|key| key.matches(parameters) && self.is_removable(key, snapshot));
        let own: Vec<_> = own.cloned().collect();
        if !own.is_empty() {
            own.iter().for_each(|key| self.on_removal_sent(key));
            return LocatorAnswer::Absent(own);
        }
        // The source has not answered all locators of the name yet, so this answer is for one
        // locator only.
        let mut locators = self.subscription.covering(name);
        if !locators.all(|other| self.is_answered_for(name, other, snapshot)) {
            return LocatorAnswer::Absent(vec![ResourceKey::of_variant(
                name,
                self.only_for(locator, snapshot),
            )]);
        }
        let constraint_keys = retained.iter().find_map(|key| key.constraints.as_ref()).map(Constraints::keys);
        let disjoint = match (snapshot.get(&self.terms.type_url, name), constraint_keys) {
            (Some(variants), _) if self.is_there(name, presence, snapshot) => variants.unmatched(parameters),
            (_, Some(keys)) => Constraints::agreeing_with(parameters, keys).ok(),
            _ => None,
        };
        LocatorAnswer::Absent(vec![
            disjoint.map_or(by_name, |constraints| ResourceKey::of_variant(name, constraints)),
        ])
    }

    /// Errors for the requested locators whose variants were removed for a reason (SR45).
    pub(super) fn reasons(&self, requested: &Locators, snapshot: &Snapshot) -> Vec<Failure> {
        let resources = snapshot.of_type(&self.terms.type_url).filter(|resources| resources.has_reasons());
        let Some(resources) = resources else { return Vec::new() };
        let failure = |locator: Locator| {
            let Locator { name, parameters } = &locator;
            let reason = resources.reason(name, parameters).filter(|_| self.terms.allows(name))?;
            if !self.find(&locator, snapshot).is_empty() {
                return None;
            }
            // T36: which one of the locators of the name it is about.
            let others = resources.get(name).filter(|_| self.keyed_by() == KeyedBy::Locator);
            let constraints = others.and_then(|others| others.unmatched(parameters)).unwrap_or_default();
            Some(Failure { constraints, ..Failure::new(locator.name, Code::UNAVAILABLE, &**reason) })
        };
        requested.iter().filter_map(failure).collect()
    }

    /// Whether the stream gets any variant of a name.
    fn is_there(&self, name: &ResourceName, presence: &mut NamePresence, snapshot: &Snapshot) -> bool {
        let is_there = || !self.chosen(name, snapshot).is_empty();
        *presence.entry(name.clone()).or_insert_with(is_there)
    }

    /// D18: the answers for a locator that the client unsubscribed from while a wildcard stays,
    /// whether or not the wildcard covers it. The client was sent everything up to the revision
    /// `since`.
    pub(super) fn answer_unsubscribed(
        &mut self,
        locator: &Locator,
        since: Revision,
        snapshot: &Snapshot,
    ) -> Vec<LocatorAnswer> {
        if self.keyed_by() == KeyedBy::Name && !self.subscription.covers(&locator.name) {
            let by_name = ResourceKey::of_name(&locator.name);
            self.on_removal_sent(&by_name);
            return vec![LocatorAnswer::Absent(vec![by_name])];
        }
        if self.keyed_by() == KeyedBy::Name {
            return vec![self.answer(locator, &mut NamePresence::new(), snapshot)];
        }
        let had = |variant: &Variant| variant.existed_at(since);
        let resources = snapshot.of_type(&self.terms.type_url).into_iter();
        let removed = resources.flat_map(|resources| resources.removals().after(&locator.name, since));
        let removed = removed.map(|removed| &removed.variant);
        // When the subscription still covers the variant, the update has its removal.
        let is_shared = |variant: &Variant| covering_locators(&self.subscription, variant).next().is_some();
        let is_own =
            |variant: &Variant| variant.constraints().matches(&locator.parameters) && !is_shared(variant);
        let removed = removed.filter(|variant| had(variant) && is_own(variant));
        let mut answers: Vec<_> =
            removed.map(|variant| LocatorAnswer::Absent(vec![self.key(variant)])).collect();
        for variant in self.find(locator, snapshot) {
            if self.chosen(variant.name(), snapshot).iter().any(|other| Arc::ptr_eq(other, &variant)) {
                answers.push(LocatorAnswer::Variants(vec![variant]));
            } else if had(&variant) {
                answers.push(LocatorAnswer::Absent(vec![self.key(&variant)]));
            }
        }
        answers
    }
}
