//! What a client should have, minus what it has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::covering::has_as;
use super::holding::{Advance, Exception};
use super::response::StreamError;
use super::type_state::TypeState;
use crate::cache::{Removed, Snapshot, Update};
use crate::name::Revision;
use crate::protocol::Protocol;
use crate::subscription::{Locators, Subscription};
use crate::variants::{KeyedBy, Variant};
use crate::wire::ResourceKey;

/// What a response is made from: what the client should have, minus what it has.
#[derive(Debug)]
pub(super) struct Diff {
    /// The changes of the selection since the cursor, without those that the client has already.
    pub(super) update: Arc<Update>,
    /// Keys to remove in addition to the removals of the update.
    pub(super) removed: Vec<ResourceKey>,
    /// Variants that the update omits, because they are equal to those at the cursor, although the
    /// client was sent others ahead of the cursor.
    pub(super) resend: Vec<Arc<Variant>>,
}

/// Whether a client has a resource that was removed from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Possession {
    None,
    /// The client has just subscribed to it, and may have unsubscribed from it before.
    Possible,
    Certain,
}

impl TypeState {
    /// Answers locators without moving the cursor: other changes must wait for other types (S33).
    pub(super) fn diff_of_answers(&mut self, answered: &Locators, snapshot: &Snapshot) -> Diff {
        let selection = self.holding.selection();
        let update = selection.expect("a type with a response to make has a subscription").no_update();
        let (mut removed_keys, mut found_names) = (Vec::new(), BTreeSet::new());
        let answered = answered.iter().collect::<Vec<_>>();
        for locator in &answered {
            let found = self.resolve(snapshot).find(locator);
            let is_found = !found.is_empty();
            self.holding.answer_ahead(&locator.name);
            for variant in found {
                self.responses.bring_ahead(update.from, variant.changed_at);
                let withheld = self.holding.send_ahead(self.key(&variant), variant);
                withheld.into_iter().for_each(|removed_at| self.responses.bring(removed_at));
            }
            // T31: an answer goes with the removal of the variants that it replaces.
            if is_found && self.keyed_by() == KeyedBy::Locator {
                found_names.insert(&locator.name);
                self.holding.forget_content(&locator.name);
                let resources = snapshot.of_type(&self.terms.type_url).into_iter();
                let removed = resources.flat_map(|of| of.removals().after(&locator.name, update.from));
                let had = removed.filter(|removed| removed.variant.existed_at(update.from));
                let had = had.filter(|had| had.variant.constraints().matches(&locator.parameters));
                for Removed { variant, at } in had {
                    self.responses.bring_ahead(update.from, *at);
                    removed_keys.push(self.key(variant));
                }
            }
        }
        self.release_replaced(&mut removed_keys, snapshot, |key| found_names.contains(&key.name));
        Diff { update, removed: removed_keys, resend: Vec::new() }
    }

    /// Moves the cursor to the snapshot and returns what the client must be sent. A removed
    /// resource that the client may still use is retained, unless the client does not have it.
    pub(super) fn diff(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        has: impl Fn(&Subscription, &Variant) -> Possession,
    ) -> Result<Diff, StreamError> {
        let fell_behind = || StreamError::FellBehind { type_url: self.terms.type_url.clone() };
        let Advance { update, former, ahead } = self.holding.advance(snapshot).ok_or_else(fell_behind)?;
        self.times.note_sent(snapshot.revision(), now);
        // V29: a resource may come back before its removal was sent. With the same content, the
        // client has it.
        let mut returned = BTreeSet::new();
        if self.holding.has_removed() {
            for variant in &update.changed {
                if self.is_returned(variant) && !ahead.has_name(variant.name()) {
                    returned.insert(Arc::as_ptr(variant));
                }
            }
        }
        // A variant that is equal to the one at the cursor is not in the update, but the client was
        // sent another one ahead.
        let resend = ahead.names().flat_map(|name| self.resolve(snapshot).chosen(name));
        let resend = resend
            .filter(|variant| variant.changed_at > update.from && !ahead.has(&self.key(variant), variant));
        let resend = resend.cloned().collect();
        // D12: content that was sent ahead is not sent again. V29: neither is content that came
        // back before its removal was sent.
        let is_known = |variant: &Arc<Variant>| {
            ahead.has(&self.key(variant), variant) || returned.contains(&Arc::as_ptr(variant))
        };
        let update = match update.changed.iter().any(is_known) {
            true => Arc::new(update.without(is_known)),
            false => update,
        };
        let passed = update.transient.iter().filter(|variant| ahead.has_name(variant.name()));
        let replaced = passed.map(|variant| self.key(variant)).collect();
        let mut diff = Diff { update, removed: replaced, resend };
        let (subscription, update) = (&self.subscription, &diff.update);
        // A variant that was added and removed since the cursor was sent only if it was sent ahead.
        let was_sent = |removed: &Removed, from: Revision| {
            removed.variant.existed_at(from) || ahead.has_name(removed.variant.name())
        };
        let removed = update.removed.iter().filter(|removed| was_sent(removed, update.from));
        let removed = removed.filter(|removed| has(subscription, &removed.variant) != Possession::None);
        let removed = removed.map(|removed| (self.key(&removed.variant), removed.clone()));
        // S24: only resources that are still subscribed to.
        let is_wanted = |removed: &&Removed| {
            has_as(&ResourceKey::of_name(removed.variant.name()), &removed.variant, subscription)
        };
        let former = former.iter().flat_map(|former| {
            former.removed.iter().filter(|removed| was_sent(removed, former.from)).filter(is_wanted)
        });
        let former = former.map(|removed| (ResourceKey::of_name(removed.variant.name()), removed.clone()));
        if self.terms.withholds_removals() {
            for (key, Removed { variant, at }) in removed.chain(former).collect::<Vec<_>>() {
                let is_sent = !variant.differs_since(diff.update.from)
                    && !ahead.has_name(variant.name())
                    && has(&self.subscription, &variant) == Possession::Certain;
                let version = is_sent.then(|| variant.version_for(self.keyed_by()));
                let withheld =
                    Exception::Withheld { variant: Some(variant), version, removed_at: at, since: now };
                self.holding.withhold(key, withheld);
            }
        } else {
            diff.removed.extend(former.map(|(key, _)| key));
        }
        self.release_known(&mut diff.removed, snapshot);
        if self.keyed_by() == KeyedBy::Locator {
            self.release_replaced(&mut diff.removed, snapshot, |_| true);
            // T34: what is sent may take the place of withheld content at one of several locators.
            // When that comes back, it is a change.
            if self.holding.has_removed() {
                for variant in diff.update.changed.iter().chain(&diff.resend) {
                    self.holding.forget_content(variant.name());
                }
            }
        }
        Ok(diff)
    }

    /// S33: the removal of a resource that no other resource can name is sent with the additions, which
    /// may need its place. In an on-demand cache, the source must have answered that the resource does
    /// not exist. In SotW only a full state removes a resource.
    fn release_known(&mut self, released: &mut Vec<ResourceKey>, snapshot: &Snapshot) {
        let is_removing = self.terms.protocol == Protocol::Delta || self.terms.sends_full_state();
        if !is_removing || !self.terms.known.referrers.is_empty() {
            return;
        }
        let had = self.holding.removed().filter_map(|(key, removed)| Some((key, removed.variant()?)));
        let known =
            had.filter(|(key, variant)| self.resolve(snapshot).removal(key, Some(variant)).may_be_sent());
        for key in known.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.on_removal_sent(&key);
            released.push(key);
        }
    }

    /// T31: the removal of a variant is sent together with the variant that replaces it.
    fn release_replaced(
        &mut self,
        released: &mut Vec<ResourceKey>,
        snapshot: &Snapshot,
        is_sent: impl Fn(&ResourceKey) -> bool,
    ) {
        let is_replaced = |(key, removed): &(&ResourceKey, &Exception)| {
            is_sent(key) && self.resolve(snapshot).removal(key, removed.variant()).is_replacement()
        };
        let replaced = self.holding.removed().filter(is_replaced);
        for key in replaced.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            if let Some(Exception::Withheld { removed_at, .. }) = self.holding.take_removed(&key) {
                released.push(key);
                self.responses.bring(removed_at);
            }
        }
    }
}
