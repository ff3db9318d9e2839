//! Whether the removal of a resource may be sent.

use std::sync::Arc;

use super::Resolution;
use crate::parameters::Parameters;
use crate::variants::Variant;
use crate::wire::ResourceKey;

/// The removal of a resource that a client may have, and what the client gets instead.
#[derive(Debug, Clone, Copy)]
pub(in crate::server) struct Removal<'a> {
    resolution: Resolution<'a>,
    key: &'a ResourceKey,
}

impl<'a> Resolution<'a> {
    /// The removal of the resource with this key.
    pub(in crate::server) fn removal(self, key: &'a ResourceKey) -> Removal<'a> {
        Removal { resolution: self, key }
    }
}

impl<'a> Removal<'a> {
    /// The parameters with which the client may have the resource, each with the variant that they
    /// get now.
    fn holders(self) -> impl Iterator<Item = (&'a Parameters, Option<&'a Arc<Variant>>)> {
        let Self { resolution, key } = self;
        let variants = resolution.variants(&key.name);
        let holders =
            resolution.state.subscription.covering(&key.name).filter(move |params| key.matches(params));
        holders.map(move |params| (params, variants.and_then(|variants| variants.resolve(params))))
    }

    /// Whether the removal is known for all locators: each gets another variant, or is known to get
    /// none. If the cache is not on demand, a resource that it does not contain does not exist.
    pub(in crate::server) fn is_known(self) -> bool {
        let Self { resolution, key } = self;
        self.holders().all(|(params, found)| match found {
            Some(found) => resolution.state.key(found) != *key,
            None => resolution.is_answered_for(&key.name, params),
        })
    }

    /// Whether it may be sent. T31: not before the client was sent the variants that its locators
    /// get instead, which may have to wait for other types (S33).
    pub(in crate::server) fn may_be_sent(self) -> bool {
        let state = self.resolution.state;
        self.is_known() && !self.holders().any(|(_, found)| found.is_some_and(|found| state.is_unsent(found)))
    }

    /// Whether it is sent at once: it is known for each locator that had the variant, and one of
    /// them gets another variant. C4b: nor may it wait when another variant that the client gets
    /// overlaps it.
    pub(in crate::server) fn is_replacement(self) -> bool {
        self.is_known() && (self.holders().any(|(_, found)| found.is_some()) || self.overlaps_others())
    }

    /// Whether another variant of the name that the client gets overlaps this one. A variant that
    /// came back overlaps only itself.
    pub(in crate::server) fn overlaps_others(self) -> bool {
        let Self { resolution, key } = self;
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
