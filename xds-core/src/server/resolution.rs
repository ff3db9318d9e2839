//! What a client should get of a type now.

use std::sync::Arc;
use std::time::Duration;

use super::covering::covering_locators;
use super::order::Release;
use super::type_state::TypeState;
use crate::cache::{LocatorStatus, Removed, Snapshot, TypeSnapshot, Update};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, WILDCARD};
use crate::variants::{KeyedBy, Variant, Variants};
use crate::wire::{Failure, ResourceKey};
use crate::xdstp;

mod removal;

/// The subscription of a client to one type, resolved in a snapshot. It answers what the client
/// should get, and changes nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resolution<'a> {
    state: &'a TypeState,
    snapshot: &'a Snapshot,
}

/// What the cache knows of a locator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// The cache has a variant for it.
    Found {
        /// The client was not sent all of it yet.
        is_unsent: bool,
        /// The client had a part of it, which was removed meanwhile.
        is_again: bool,
    },
    /// The source has answered that there is none.
    Absent,
    Failed {
        code: Code,
        message: Arc<str>,
    },
    Unknown,
}

/// Locators, by what the cache knows of them.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) unknown: Locators,
    /// Found, and not sent yet.
    pub(super) unsent: Locators,
    /// Found, and sent.
    pub(super) sent: Locators,
}

impl TypeState {
    /// Resolves the subscription in a snapshot.
    pub(super) fn resolve<'a>(&'a self, snapshot: &'a Snapshot) -> Resolution<'a> {
        Resolution { state: self, snapshot }
    }
}

impl<'a> Resolution<'a> {
    /// The resources of the type; `None` if the cache never had any.
    pub(super) fn resources(self) -> Option<&'a TypeSnapshot> {
        self.snapshot.of_type(&self.state.terms.type_url)
    }

    /// The variants of a name, also those that the client does not get.
    pub(super) fn variants(self, name: &ResourceName) -> Option<&'a Variants> {
        self.resources()?.get(name)
    }

    /// The variants that the client gets of a name, each once.
    pub(super) fn chosen(self, name: &ResourceName) -> Vec<&'a Arc<Variant>> {
        self.state.holding.chosen(name, self.snapshot)
    }

    /// Whether the client gets any variant of a name.
    pub(super) fn has(self, name: &ResourceName) -> bool {
        !self.chosen(name).is_empty()
    }

    /// The variant that the client gets under this key.
    pub(super) fn with_key(self, key: &ResourceKey) -> Option<&'a Arc<Variant>> {
        self.chosen(&key.name).into_iter().find(|variant| self.state.key(variant) == *key)
    }

    /// Whether the client had another content under the key of this variant at a revision.
    pub(super) fn had(self, variant: &Arc<Variant>, at: Revision) -> bool {
        let was_there = |removed: &Removed| removed.at > at && removed.variant.existed_at(at);
        variant.existed_at(at) || self.predecessors(variant).any(was_there)
    }

    /// T32: the removed variants whose place this one took, for a client that subscribes by name.
    pub(super) fn predecessors(self, variant: &Arc<Variant>) -> impl Iterator<Item = &'a Removed> {
        let resources = self.resources().filter(|_| self.state.keyed_by() == KeyedBy::Name);
        let removals =
            resources.into_iter().flat_map(|of| of.removals().after(variant.name(), Revision::ZERO));
        let subscription = &self.state.subscription;
        removals.filter(|removed| covering_locators(subscription, &removed.variant).next().is_some())
    }

    /// The variants that a locator gets: one, unless its name is a glob (X12).
    pub(super) fn find(self, locator: &Locator) -> Vec<Arc<Variant>> {
        self.found(locator).cloned().collect()
    }

    /// The same, without a list.
    fn found<'l>(self, locator: &'l Locator) -> impl Iterator<Item = &'l Arc<Variant>>
    where
        'a: 'l,
    {
        self.found_by(&locator.name, &locator.parameters)
    }

    /// The variants that a name gets with these parameters.
    fn found_by<'l>(
        self,
        name: &'l ResourceName,
        parameters: &'l Parameters,
    ) -> impl Iterator<Item = &'l Arc<Variant>>
    where
        'a: 'l,
    {
        let variants = self.resources().into_iter().flat_map(|of| of.variants_selected_by(name));
        let allowed = variants.filter(move |(name, _)| self.state.terms.allows(name));
        let found = allowed.filter_map(move |(_, variants)| variants.resolve(parameters));
        found.filter(move |variant| variant.is_named(name))
    }

    /// The whole selection. If `update`, the last one, starts at revision zero, it is the whole
    /// selection already.
    pub(super) fn everything(self, update: &Arc<Update>) -> Arc<Update> {
        match self.state.holding.selection() {
            Some(membership) if update.from > Revision::ZERO => membership.everything(self.snapshot),
            _ => Arc::clone(update),
        }
    }

    /// T38: in SotW, the version of the client's resources after the next response.
    pub(super) fn version(self) -> Version {
        let selected = self.state.holding.selection().map_or(0, |membership| membership.sum(self.snapshot));
        let keyed_by = self.state.keyed_by();
        let add = |sum: u128, variant: &Arc<Variant>| sum.wrapping_add(variant.identity(keyed_by));
        Version(self.state.holding.withheld().fold(selected, add))
    }

    /// Whether the client would reject a full state (C4b): the state would contain a removed
    /// variant, whose removal is not confirmed for one locator, and an overlapping variant for
    /// another locator.
    pub(super) fn full_state_overlaps(self) -> bool {
        let Self { state, snapshot } = self;
        let Some(membership) = state.holding.selection() else { return false };
        if !state.holding.has_removed() && !membership.position().is_behind(snapshot) {
            return false;
        }
        let update = membership.update(snapshot);
        let removed = update.iter().flat_map(|update| &update.removed).map(|removed| &removed.variant);
        let overlaps = |variant: &Arc<Variant>| {
            let key = state.key(variant);
            let removal = self.removal(&key, Some(variant));
            !removal.is_known() && removal.overlaps_others()
        };
        removed.chain(state.holding.withheld()).any(overlaps)
    }

    /// When the first withheld removal may be sent.
    pub(super) fn release_at(self, release: &Release, grace: Duration) -> Option<Duration> {
        let removed = self.state.holding.removed();
        let known = removed.filter(|(key, removed)| self.removal(key, removed.variant()).may_be_sent());
        known.filter_map(|(key, retained)| retained.release_at(&key.name, release, grace)).min()
    }

    /// Errors for the requested locators whose variants were removed for a reason (SR45).
    pub(super) fn reasons(self, requested: &Locators) -> Vec<Failure> {
        let Some(resources) = self.resources().filter(|of| of.has_reasons()) else { return Vec::new() };
        let failure = |locator: Locator| {
            let Locator { name, parameters } = &locator;
            let reason = resources.reason(name, parameters).filter(|_| self.state.terms.allows(name))?;
            if self.found(&locator).next().is_some() {
                return None;
            }
            // T36: which one of the locators of the name it is about.
            let others = resources.get(name).filter(|_| self.state.keyed_by() == KeyedBy::Locator);
            let constraints = others.and_then(|others| others.unmatched(parameters)).unwrap_or_default();
            Some(Failure { constraints, ..Failure::new(locator.name, Code::UNAVAILABLE, &**reason) })
        };
        requested.iter().filter_map(failure).collect()
    }

    /// The status of a locator that the source of an on-demand cache set; `None` without one.
    fn status(self, name: &ResourceName, parameters: &Parameters) -> Option<&'a LocatorStatus> {
        self.snapshot.locator_status(&self.state.terms.type_url, name, parameters)
    }

    /// What the cache knows of a locator.
    pub(super) fn knows(self, locator: &Locator) -> Knowledge {
        let mut found = self.found(locator).peekable();
        if found.peek().is_some() {
            return self.knows_of(found);
        }
        match self.status(&locator.name, &locator.parameters) {
            None => Knowledge::Unknown,
            Some(LocatorStatus::Complete) => Knowledge::Absent,
            Some(LocatorStatus::Failed { code, message }) => {
                Knowledge::Failed { code: *code, message: Arc::clone(message) }
            }
        }
    }

    /// What the cache knows of these locators of the subscription, if they are plain names. Most clients
    /// wait for all their names at once, and this is found once for all streams with the same names.
    /// `None`: each has to be looked up.
    pub(super) fn divide(self, locators: &Locators) -> Option<Divided> {
        let Self { state, snapshot } = self;
        let (names, list) = (state.subscription.plain_part(locators)?, state.subscription.plain_names());
        let selection = state.holding.selection().filter(|of| of.is_list_of(list, snapshot))?;
        // To go through the whole list for some of its names costs more than to look them up, unless
        // other streams do the same.
        let is_worth_it =
            names.is_same(list) || selection.position().is_shared() && names.len() * LIST_SHARE >= list.len();
        if state.holding.has_exceptions() || !is_worth_it {
            return None;
        }
        let everything = selection.everything(snapshot);
        let [unknown, unsent, sent] = everything.divide(names, state.holding.cursor())?;
        // Any status of the type may be that of one of these locators.
        if !unknown.is_empty() && self.resources().is_some_and(TypeSnapshot::has_statuses) {
            return None;
        }
        let [unknown, unsent, sent] = [unknown, unsent, sent].map(|names| state.subscription.plain(names));
        let divided = Divided { unknown, unsent, sent };
        let is = |part: &Locators, known: &Knowledge| part.iter().all(|of| self.knows(&of) == *known);
        let found = |is_unsent| Knowledge::Found { is_unsent, is_again: false };
        debug_assert!(is(&divided.unknown, &Knowledge::Unknown), "{divided:?}");
        debug_assert!(is(&divided.unsent, &found(true)) && is(&divided.sent, &found(false)), "{divided:?}");
        Some(divided)
    }

    /// Whether the source has answered all wildcards: the first response shows a client that it has
    /// everything (D15, S27). A source that cannot say what there is has not. Where a response does not stand
    /// for everything, it can say so (S37).
    pub(super) fn knows_wildcards(self) -> bool {
        let wildcard = ResourceName::from(WILDCARD);
        let is_full = self.state.terms.sends_full_state();
        let is_known = |parameters: &Parameters| match self.status(&wildcard, parameters) {
            None => false,
            Some(LocatorStatus::Complete) => true,
            Some(LocatorStatus::Failed { .. }) => !is_full,
        };
        self.state.subscription.wildcards().all(is_known)
    }

    /// Why wildcards cannot be answered.
    pub(super) fn wildcard_failures(self) -> Vec<Failure> {
        let wildcards: Vec<_> = self.state.subscription.wildcards().collect();
        let failure = |parameters: &&Parameters| match self.status(&WILDCARD.into(), parameters) {
            Some(LocatorStatus::Failed { code, message }) => {
                let locator = Locator { name: WILDCARD.into(), parameters: Parameters::clone(parameters) };
                let constraints =
                    if wildcards.len() > 1 { self.only_for(&locator) } else { Constraints::NONE };
                Some(Failure { constraints, ..Failure::new(locator.name, *code, &**message) })
            }
            Some(LocatorStatus::Complete) | None => None,
        };
        wildcards.iter().filter_map(failure).collect()
    }

    /// Whether the source has answered for this name and these parameters.
    pub(super) fn is_answered_for(self, name: &ResourceName, parameters: &Parameters) -> bool {
        if !self.snapshot.is_on_demand() {
            return true;
        }
        let subscription = &self.state.subscription;
        let is_answered =
            |name: &ResourceName| matches!(self.status(name, parameters), Some(LocatorStatus::Complete));
        let listed = |name: &ResourceName| {
            subscription.lists(&Locator { name: name.clone(), parameters: parameters.clone() })
        };
        if listed(name) {
            return is_answered(name);
        }
        // T45: the source has a variant of this member, but not one that clients may be sent.
        if matches!(self.status(name, parameters), Some(LocatorStatus::Failed { .. })) {
            return false;
        }
        match xdstp::glob_of(name).filter(listed) {
            Some(glob) => is_answered(&glob),
            None => !subscription.is_wildcard_under(parameters) || is_answered(&ResourceName::from(WILDCARD)),
        }
    }

    /// What the client has of what a locator finds.
    fn knows_of<'v>(self, found: impl Iterator<Item = &'v Arc<Variant>>) -> Knowledge {
        let (mut is_unsent, mut is_again) = (false, false);
        for variant in found {
            is_unsent |= self.state.is_unsent(variant);
            is_again |= self.has_again(variant);
        }
        Knowledge::Found { is_unsent, is_again }
    }

    /// Whether a variant is what the client had, which was removed meanwhile.
    fn has_again(self, variant: &Arc<Variant>) -> bool {
        let Self { state, .. } = self;
        let removed = || state.holding.removed_with(&state.key(variant));
        let had = state.holding.has_exceptions().then(removed).flatten();
        had.is_some_and(|removed| removed.is_content_of(variant, state.keyed_by()))
            || (state.is_unsent(variant) && !variant.differs_since(state.holding.cursor()))
    }

    /// T36: if other locators may get a variant of the name, the error has constraints that say
    /// which locator it is about.
    pub(super) fn failure_of(self, locator: &Locator, code: Code, message: &str) -> Failure {
        let Locator { name, parameters } = locator;
        let others = self.state.subscription.covering(name).any(|other| other != parameters);
        let constraints = if others { self.only_for(locator) } else { Constraints::NONE };
        Failure { constraints, ..Failure::new(name.clone(), code, message) }
    }

    /// T35: constraints that match these parameters and none of the stream's other locators of the
    /// name.
    pub(super) fn only_for(self, locator: &Locator) -> Constraints {
        let Locator { name, parameters } = locator;
        // T43c: for variants that are bound to the parameters of one locator, `unmatched` is
        // unconstrained, which would mean all locators.
        let unmatched = self.variants(name).and_then(|variants| variants.unmatched(parameters));
        if let Some(constraints) = unmatched.filter(|constraints| !constraints.is_unconstrained()) {
            return constraints;
        }
        let others = self.state.subscription.covering(name).flat_map(Parameters::iter);
        let mut keys: Vec<_> = others.map(|(key, _)| Arc::clone(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        Constraints::agreeing_with(parameters, &keys).unwrap_or_default()
    }
}

/// How many times as many names the whole list may have as those that [`Resolution::divide`] looks at.
const LIST_SHARE: usize = 8;
