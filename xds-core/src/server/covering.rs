//! The names, aliases and globs by which a subscription covers a resource.

use std::sync::Arc;

use super::holding::Holding;
use super::terms::Terms;
use crate::cache::{Membership, Snapshot};
use crate::name::ResourceName;
use crate::subscription::{Locator, Subscription};
use crate::variants::Variant;
use crate::wire::ResourceKey;
use crate::xdstp;

/// The resources that a subscription covers, in the newest snapshot.
#[derive(Debug)]
pub(super) struct Coverage<'a> {
    subscription: &'a Subscription,
    terms: &'a Terms,
    newest: Option<Arc<Snapshot>>,
}

impl<'a> Coverage<'a> {
    pub(super) fn new(subscription: &'a Subscription, terms: &'a Terms, holding: &Holding) -> Self {
        Self { subscription, terms, newest: holding.selection().map(Membership::newest) }
    }

    /// Whether it covers the resource with this key: by its name, an alias or a glob.
    pub(super) fn has(&self, key: &ResourceKey) -> bool {
        let resources = self.newest.as_ref().and_then(|newest| newest.of_type(&self.terms.type_url));
        let mut others = resources.into_iter().flat_map(|resources| resources.other_names().of(&key.name));
        let covers = |name: &ResourceName| self.subscription.covering(name).any(|params| key.matches(params));
        covers(&key.name) || others.any(covers) || xdstp::glob_of(&key.name).is_some_and(|of| covers(&of))
    }
}

/// The subscribed locators that cover a variant: by its name, an alias or a glob.
pub(super) fn covering_locators(
    subscription: &Subscription,
    variant: &Variant,
) -> impl Iterator<Item = Locator> {
    let glob = xdstp::glob_of(variant.name());
    let names = std::iter::once(variant.name()).chain(variant.aliases()).cloned().chain(glob);
    names.flat_map(move |name| {
        let holders = subscription.covering(&name).filter(|params| variant.constraints().matches(params));
        let locators = holders.map(|params| Locator { name: name.clone(), parameters: params.clone() });
        locators.collect::<Vec<_>>()
    })
}

/// Whether a client that was sent a variant under this key still subscribes to it. V25, T33: by name
/// it was sent for the derived parameters only, so a locator with others does not have it.
pub(super) fn has_as(key: &ResourceKey, variant: &Variant, subscription: &Subscription) -> bool {
    covering_locators(subscription, variant)
        .any(|locator| key.constraints.is_some() || subscription.derives(&locator.parameters))
}
