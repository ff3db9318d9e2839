//! Resources that the cache removed and that the client may still use: their removal is withheld,
//! or the client keeps them until it unsubscribes (S33).

use std::time::Duration;

use super::holding::Exception;
use super::order::Release;
use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::name::ResourceName;
use crate::variants::Variant;
use crate::wire::ResourceKey;

impl Exception {
    /// When the removal of this name may be sent; `None` if it waits for an event.
    pub(super) fn release_at(
        &self,
        name: &ResourceName,
        release: &Release,
        grace: Duration,
    ) -> Option<Duration> {
        let Self::Withheld { since, variant, .. } = self else { return None };
        match release {
            Release::Later => None,
            Release::Now(used) | Release::AfterGrace(used, _) if used.contains(name) => None,
            Release::Now(_) if variant.is_some() => Some(*since),
            Release::AfterGrace(_, unreferenced_since) if variant.is_some() => {
                Some(unreferenced_since.get(name).map_or(*since, |at| *at.min(since)) + grace)
            }
            Release::Now(_) | Release::AfterGrace(..) => Some(*since + grace),
        }
    }
}

impl TypeState {
    /// A variant came back before its removal was sent, so it is no longer retained. Returns whether
    /// the client still has its content (V29).
    pub(super) fn is_returned(&mut self, variant: &Variant) -> bool {
        let keyed_by = self.keyed_by();
        if let Some(removed) = self.holding.take_removed(&self.key(variant)) {
            return removed.is_content_of(variant, keyed_by);
        }
        // D21: of a resource that the client brought, the constraints are not known. So other
        // locators of the name may have to give it up.
        let brought = ResourceKey::of_name(variant.name());
        let is_same = |removed: &Exception| {
            let is_brought = matches!(removed, Exception::Withheld { variant: None, .. });
            is_brought && removed.is_content_of(variant, keyed_by)
        };
        let is_returned = self.holding.removed_with(&brought).is_some_and(is_same)
            && self.subscription.covering(variant.name()).all(|of| variant.constraints().matches(of));
        is_returned && self.holding.take_removed(&brought).is_some()
    }

    /// Returns the withheld removals that may be sent now.
    ///
    /// A client deletes listeners, clusters and scopes when it gets the removal. It keeps using
    /// resources of other types until it unsubscribes from them (D29).
    pub(super) fn release(
        &mut self,
        release: &Release,
        grace: Duration,
        now: Duration,
        snapshot: &Snapshot,
    ) -> Vec<ResourceKey> {
        let is_due = |(key, retained): &(&ResourceKey, &Exception)| {
            retained.release_at(&key.name, release, grace).is_some_and(|time| time <= now)
                && self.resolve(snapshot).removal(key, retained.variant()).may_be_sent()
        };
        let due = self.holding.removed().filter(is_due);
        let released: Vec<_> = due.map(|(key, _)| key.clone()).collect();
        released.iter().for_each(|key| self.on_removal_sent(key));
        released
    }

    /// Records that the removal of a resource is sent to the client, if the client had the
    /// resource.
    pub(super) fn on_removal_sent(&mut self, key: &ResourceKey) {
        // X13: a client drops a member of a glob when it gets the removal.
        let is_listed = self.subscription.lists_name(&key.name);
        // D25: virtual hosts come and go on demand. Envoy drops a virtual host when it gets the
        // removal, and stays subscribed to it.
        let drops = self.terms.known.full_state
            || self.subscription.is_wildcard()
            || self.encoding().sends_unresolved()
            || !is_listed;
        let withheld = self.holding.on_removal_sent(key, !drops);
        withheld.into_iter().for_each(|removed_at| self.responses.bring(removed_at));
    }
}
