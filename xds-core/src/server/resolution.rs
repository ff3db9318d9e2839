//! What a client should get of a type now.

use std::sync::Arc;

use super::type_state::TypeState;
use crate::cache::{Snapshot, TypeSnapshot, Update};
use crate::code::Code;
use crate::name::{ResourceName, Revision, Version};
use crate::subscription::{Locator, Locators};
use crate::variants::{KeyedBy, Variant, Variants};
use crate::wire::{Failure, ResourceKey};

/// The subscription of a client to one type, resolved in a snapshot. It answers what the client
/// should get, and changes nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resolution<'a> {
    state: &'a TypeState,
    snapshot: &'a Snapshot,
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

    /// The variants that a locator gets: one, unless its name is a glob (X12).
    pub(super) fn find(self, locator: &Locator) -> Vec<Arc<Variant>> {
        let Some(resources) = self.resources() else { return Vec::new() };
        let members = resources.selected_by(&locator.name).filter(|name| self.state.terms.allows(name));
        let variants = members.filter_map(|name| resources.get(name));
        let found = variants.filter_map(|variants| variants.resolve(&locator.parameters));
        found.filter(|variant| variant.is_named(&locator.name)).cloned().collect()
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

    /// Errors for the requested locators whose variants were removed for a reason (SR45).
    pub(super) fn reasons(self, requested: &Locators) -> Vec<Failure> {
        let Some(resources) = self.resources().filter(|of| of.has_reasons()) else { return Vec::new() };
        let failure = |locator: Locator| {
            let Locator { name, parameters } = &locator;
            let reason = resources.reason(name, parameters).filter(|_| self.state.terms.allows(name))?;
            if !self.find(&locator).is_empty() {
                return None;
            }
            // T36: which one of the locators of the name it is about.
            let others = resources.get(name).filter(|_| self.state.keyed_by() == KeyedBy::Locator);
            let constraints = others.and_then(|others| others.unmatched(parameters)).unwrap_or_default();
            Some(Failure { constraints, ..Failure::new(locator.name, Code::UNAVAILABLE, &**reason) })
        };
        requested.iter().filter_map(failure).collect()
    }
}
