//! Whether the removal of a resource may be sent.

use std::borrow::Cow;
use std::sync::Arc;

use super::Resolution;
use crate::cache::LocatorStatus;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::Locator;
use crate::variants::Variant;
use crate::wire::ResourceKey;
use crate::xdstp;

/// The removal of a resource that a client may have, and what the client gets instead.
#[derive(Debug, Clone, Copy)]
pub(in crate::server) struct Removal<'a> {
    resolution: Resolution<'a>,
    key: &'a ResourceKey,
    /// The aliases that the resource had, by which the client may subscribe to it (D24).
    aliases: &'a [ResourceName],
}

/// A locator with which a client may have a removed resource, and what it gets now.
#[derive(Debug)]
struct Holder<'a> {
    name: Cow<'a, ResourceName>,
    parameters: &'a Parameters,
    found: Option<&'a Arc<Variant>>,
}

impl<'a> Resolution<'a> {
    /// The removal of the resource with this key. `variant` is its last content, if that is known.
    pub(in crate::server) fn removal(
        self,
        key: &'a ResourceKey,
        variant: Option<&'a Variant>,
    ) -> Removal<'a> {
        Removal { resolution: self, key, aliases: variant.map_or(&[], Variant::aliases) }
    }
}

impl<'a> Removal<'a> {
    /// The locators with which the client may have the resource: by its name, a wildcard, a glob or an
    /// alias.
    fn holders(self) -> impl Iterator<Item = Holder<'a>> {
        let Self { resolution, key, aliases } = self;
        let variants = resolution.variants(&key.name);
        let glob = xdstp::glob_of(&key.name).map(Cow::Owned);
        let names = [Cow::Borrowed(&key.name)].into_iter().chain(glob);
        let by_name = names.flat_map(move |name| {
            let parameters = self.covering(&name).collect::<Vec<_>>();
            parameters.into_iter().map(move |parameters| {
                let found = variants.and_then(|variants| variants.resolve(parameters));
                Holder { name: name.clone(), parameters, found }
            })
        });
        let by_alias = aliases.iter().flat_map(move |alias| {
            self.covering(alias).map(move |parameters| {
                let found = resolution.found_by(alias, parameters).next();
                Holder { name: Cow::Borrowed(alias), parameters, found }
            })
        });
        by_name.chain(by_alias)
    }

    /// The parameters with which the client subscribes to this name, of those that the resource
    /// matches.
    fn covering(self, name: &ResourceName) -> impl Iterator<Item = &'a Parameters> + use<'a, '_> {
        let Self { resolution, key, .. } = self;
        resolution.state.subscription.covering(name).filter(move |parameters| key.matches(parameters))
    }

    /// Whether the removal is known for all locators: each gets another variant, or is known to get
    /// none. If the cache is not on demand, a resource that it does not contain does not exist.
    pub(in crate::server) fn is_known(self) -> bool {
        let Self { resolution, key, .. } = self;
        self.holders().all(|Holder { name, parameters, found }| match found {
            Some(found) => resolution.state.key(found) != *key,
            None => resolution.is_answered_for(&name, parameters),
        })
    }

    /// The listed locators with which the client may have the resource, and of which the source cannot say
    /// any more what they get.
    pub(in crate::server) fn failed_locators(self) -> impl Iterator<Item = Locator> {
        let resolution = self.resolution;
        let failed = self.holders().filter(move |Holder { name, parameters, found }| {
            let status = resolution.status(name, parameters);
            found.is_none() && matches!(status, Some(LocatorStatus::Failed { .. }))
        });
        let locator =
            |of: Holder<'a>| Locator { name: of.name.into_owned(), parameters: of.parameters.clone() };
        failed.map(locator).filter(move |locator| resolution.state.subscription.lists(locator))
    }

    /// Whether it may be sent. T31: not before the client was sent the variants that its locators
    /// get instead, which may have to wait for other types (S33).
    pub(in crate::server) fn may_be_sent(self) -> bool {
        let state = self.resolution.state;
        self.is_known() && !self.holders().any(|of| of.found.is_some_and(|found| state.is_unsent(found)))
    }

    /// Whether it is sent at once: it is known for each locator that had the variant, and one of
    /// them gets another variant, which it was sent or is sent now. C4b: nor may it wait when another
    /// variant that the client gets overlaps it.
    pub(in crate::server) fn is_replacement(self) -> bool {
        self.may_be_sent() && (self.holders().any(|of| of.found.is_some()) || self.overlaps_others())
    }

    /// Whether another variant of the name that the client gets overlaps this one. A variant that
    /// came back overlaps only itself.
    pub(in crate::server) fn overlaps_others(self) -> bool {
        let Self { resolution, key, .. } = self;
        let (Some(constraints), Some(variants)) = (&key.constraints, resolution.variants(&key.name)) else {
            return false;
        };
        let chosen = resolution.chosen(&key.name);
        let is_chosen = |met: &Arc<Variant>| chosen.iter().any(|variant| Arc::ptr_eq(variant, met));
        let is_other = |met: &&Arc<Variant>| resolution.state.key(met) != *key;
        // The overlap is known: a commit of variants that are too complex to compare is refused.
        variants.meeting(constraints).is_ok_and(|met| met.iter().filter(is_other).any(is_chosen))
    }
}
