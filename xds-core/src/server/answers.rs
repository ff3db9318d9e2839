//! Answers to subscribed locators.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::covering::covering_locators;
use super::holding::Exception;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision};
use crate::subscription::Locator;
use crate::variants::{KeyedBy, Variant};
use crate::wire::ResourceKey;

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
    /// The answer to a subscribed locator, which is sent at once (D9, D10).
    ///
    /// `presence` remembers for each name whether the stream gets any variant of it.
    pub(super) fn answer(
        &mut self,
        locator: &Locator,
        presence: &mut NamePresence,
        snapshot: &Snapshot,
    ) -> LocatorAnswer {
        let found = self.resolve(snapshot).find(locator);
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
        let may_be_sent = |key: &ResourceKey| {
            let variant = self.holding.removed_with(key).and_then(Exception::variant);
            self.resolve(snapshot).removal(key, variant).may_be_sent()
        };
        let own = retained.iter().filter(|key| key.matches(parameters) && may_be_sent(key));
        let own: Vec<_> = own.cloned().collect();
        if !own.is_empty() {
            own.iter().for_each(|key| self.on_removal_sent(key));
            return LocatorAnswer::Absent(own);
        }
        // T35: the client drops for this locator what it keeps for others.
        self.holding.forget_content(name);
        // The source has not answered all locators of the name yet, so this answer is for one
        // locator only.
        let resolved = self.resolve(snapshot);
        let mut locators = self.subscription.covering(name);
        if !locators.all(|other| resolved.is_answered_for(name, other)) {
            return LocatorAnswer::Absent(vec![ResourceKey::of_variant(name, resolved.only_for(locator))]);
        }
        let constraint_keys = retained.iter().find_map(|key| key.constraints.as_ref()).map(Constraints::keys);
        let disjoint = match (snapshot.get(&self.terms.type_url, name), constraint_keys) {
            (Some(variants), _) if *presence.entry(name.clone()).or_insert_with(|| resolved.has(name)) => {
                variants.unmatched(parameters)
            }
            (_, Some(keys)) => Constraints::agreeing_with(parameters, keys).ok(),
            _ => None,
        };
        LocatorAnswer::Absent(vec![
            disjoint.map_or(by_name, |constraints| ResourceKey::of_variant(name, constraints)),
        ])
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
        for variant in self.resolve(snapshot).find(locator) {
            if self.resolve(snapshot).chosen(variant.name()).iter().any(|other| Arc::ptr_eq(other, &variant))
            {
                answers.push(LocatorAnswer::Variants(vec![variant]));
            } else if had(&variant) {
                answers.push(LocatorAnswer::Absent(vec![self.key(&variant)]));
            }
        }
        answers
    }
}
