//! The names, aliases and globs by which a subscription covers a resource.

use crate::cache::TypeSnapshot;
use crate::name::ResourceName;
use crate::subscription::{Locator, Subscription};
use crate::variants::Variant;
use crate::wire::ResourceKey;
use crate::xdstp;

/// Whether a subscription covers the resource with this key: by its name, an alias or a glob.
pub(super) fn is_subscribed(
    key: &ResourceKey,
    subscription: &Subscription,
    resources: Option<&TypeSnapshot>,
) -> bool {
    let others = resources.into_iter().flat_map(|resources| resources.other_names().of(&key.name));
    let covers = |name: &ResourceName| subscription.covering(name).any(|params| key.matches(params));
    covers(&key.name)
        || others.into_iter().any(covers)
        || xdstp::glob_of(&key.name).is_some_and(|of| covers(&of))
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
