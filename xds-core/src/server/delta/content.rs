//! The content of a delta response.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{LEFT_OUT_LIMIT, RejectedOfType, Snapshot, Update};
use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, Version};
use crate::references::Target;
use crate::server::answers::{LocatorAnswer, NamePresence};
use crate::server::contents::ResponseContents;
use crate::server::encode::{self, Encoding};
use crate::server::holding::Exception;
use crate::server::owed::Owed;
use crate::server::referrers_sent::ReferrersSent;
use crate::server::turn::Followers;
use crate::server::type_state::TypeState;
use crate::subscription::Locator;
use crate::variants::{self, KeyedBy, Variant};
use crate::wire::{Body, ResourceKey};
use crate::xdstp::{self};

/// The content of a delta response.
#[derive(Debug, Default)]
pub(super) struct DeltaContent {
    /// An update that is sent unchanged, with the body that the streams of a class share.
    pub(super) shared: Option<Arc<Update>>,
    /// Resources that are sent besides the update, or instead of it.
    pub(super) changed: BTreeMap<ResourceKey, Arc<Variant>>,
    pub(super) removed: BTreeSet<ResourceKey>,
    /// Resources that are sent without their content (D26).
    pub(super) heartbeats: Vec<Arc<Variant>>,
    /// Names without a resource (D24).
    pub(super) unresolved: BTreeSet<ResourceName>,
}

impl DeltaContent {
    /// Takes an update unchanged, unless it reports a name as absent whose removal is withheld:
    /// that name is sent only to a client that has just subscribed to it (S33, D10).
    fn share(&mut self, state: &TypeState, owed: &Owed, update: &Arc<Update>) {
        if !update.absent.iter().any(|name| state.holding.withholds(name)) {
            self.shared = Some(Arc::clone(update));
            return;
        }
        let changed = update.changed.iter().map(|variant| (state.key(variant), Arc::clone(variant)));
        self.changed.extend(changed);
        let is_withheld = |key: &ResourceKey| key.constraints.is_none() && state.holding.withholds(&key.name);
        let removed = state.encoding().immediate_removals(update);
        self.removed.extend(removed.filter(|key| !is_withheld(key) || owed.locators.has_name(&key.name)));
    }

    /// The first response of a type on a stream: it takes the versions that the client brought into
    /// account (D1, D21).
    pub(super) fn first_answer(
        &mut self,
        state: &mut TypeState,
        owed: &Owed,
        update: &Arc<Update>,
        sent: &ReferrersSent,
        now: Duration,
        snapshot: &Snapshot,
    ) {
        if owed.brought.versions.is_empty() {
            self.share(state, owed, update);
        } else {
            let target = Target::of(state.terms.type_url.as_str());
            for variant in &update.changed {
                let version = variant.version_for(state.keyed_by()).to_string();
                let is_equal = owed.brought.versions.get(variant.name()) == Some(&version);
                // D9: what follows a resource that was sent is sent even if its version is equal.
                if !is_equal || sent.have(target, variant.name()) {
                    self.changed.insert(state.key(variant), Arc::clone(variant));
                }
            }
            self.removed.extend(state.encoding().immediate_removals(update));
            self.removed.extend(
                owed.brought
                    .versions
                    .iter()
                    .flat_map(|(name, version)| deny_brought(state, name, version, snapshot)),
            );
            let covers = |name: &ResourceName| state.subscription.covers(name);
            let is_covered =
                |name: &&ResourceName| covers(name) || xdstp::glob_of(name).is_some_and(|of| covers(&of));
            let brought = owed.brought.versions.keys().filter(is_covered);
            let brought = brought.filter(|name| !owed.has_given_up(name));
            let without_resource: Vec<_> =
                brought.filter(|name| !state.resolve(snapshot).has(name)).collect();
            for name in without_resource {
                let key = ResourceKey::of_name(name);
                if state.terms.withholds_removals() {
                    // S33: the resources that refer to it may come from another server, so the
                    // removal waits for ACKs of the referrers.
                    self.removed.remove(&key);
                    // Before the source of an on-demand cache answers, it is not known which of several
                    // locators had the resource.
                    let version = owed.brought.versions.get(name).filter(|_| !snapshot.is_on_demand());
                    // D9: as above.
                    let version = version.filter(|_| !sent.have(target, name));
                    let version = version.and_then(|version| Version::parse(version));
                    let removed_at = Revision::ZERO;
                    let withheld = Exception::Withheld { variant: None, version, removed_at, since: now };
                    state.holding.withhold(key, withheld);
                } else {
                    self.removed.insert(key);
                }
            }
        }
        // D10: beside a wildcard, a subscribed name without a resource is sent as removed too.
        if state.subscription.is_wildcard() || snapshot.is_on_demand() {
            let is_brought = |name: &ResourceName| {
                owed.brought.versions.contains_key(name)
                    && !owed.has_given_up(name)
                    && !state.resolve(snapshot).has(name)
            };
            let answered: Vec<_> =
                owed.locators.iter().filter(|locator| !is_brought(&locator.name)).collect();
            let mut presence = NamePresence::new();
            for locator in &answered {
                if let LocatorAnswer::Absent(keys) = state.answer(locator, &mut presence, snapshot) {
                    self.removed.extend(keys);
                }
            }
        }
    }

    /// A later response: changes, and answers to new subscriptions.
    pub(super) fn update(
        &mut self,
        state: &mut TypeState,
        owed: &Owed,
        resend: &[Arc<Variant>],
        update: &Arc<Update>,
        snapshot: &Snapshot,
    ) {
        let fresh =
            if owed.everything { state.resolve(snapshot).everything(update) } else { Arc::clone(update) };
        if !fresh.changed.is_empty() || state.encoding().immediate_removals(&fresh).next().is_some() {
            self.share(state, owed, &fresh);
        }
        if owed.everything {
            self.removed.extend(state.encoding().immediate_removals(update));
        }
        // D10, D18: answered at once, and again for each new subscription.
        let mut presence = NamePresence::new();
        let answers = owed.locators.iter().map(|locator| state.answer(&locator, &mut presence, snapshot));
        let answers = answers.collect::<Vec<_>>();
        let unsubscribed = owed
            .unsubscribed
            .iter()
            .flat_map(|locator| state.answer_unsubscribed(&locator, update.from, snapshot));
        for answer in answers.into_iter().chain(unsubscribed.collect::<Vec<_>>()) {
            match answer {
                // D9, D18: sent again even if nothing changed.
                LocatorAnswer::Variants(found) => {
                    let is_new = |variant: &Arc<Variant>| !fresh.has(variant.name(), variant.constraints());
                    let found = found.into_iter().filter(is_new);
                    self.changed.extend(found.map(|variant| (state.key(&variant), variant)));
                }
                LocatorAnswer::Absent(keys) => self.removed.extend(keys),
            }
        }
        let followers = owed.followers.iter().flat_map(|name| state.resolve(snapshot).chosen(name));
        for variant in followers.chain(resend) {
            if !fresh.has(variant.name(), variant.constraints()) {
                self.changed.insert(state.key(variant), Arc::clone(variant));
            }
        }
    }

    /// D24: subscribed names without a resource are sent as unresolved, for types where they are
    /// not sent as removed.
    pub(super) fn split_unresolved(&mut self, state: &TypeState, owed: &Owed, snapshot: &Snapshot) {
        if !state.encoding().sends_unresolved() {
            return;
        }
        let absent = self.shared.iter().flat_map(|update| &update.absent);
        let requested =
            owed.locators.iter().filter(|locator| state.resolve(snapshot).find(locator).is_empty());
        let missing = absent.cloned().chain(requested.map(|locator| locator.name));
        // D21: what the client brought by this name is there until it is removed.
        let is_removed = |name: &ResourceName| {
            owed.brought.versions.get(name).is_some_and(|version| !version.is_empty())
                && self.removed.contains(&ResourceKey::of_name(name))
        };
        self.unresolved.extend(missing.filter(|name| !is_removed(name)));
        self.removed.retain(|key| !self.unresolved.contains(&key.name));
    }

    /// D26: resources with a TTL are sent again before it ends.
    pub(super) fn refresh(
        &mut self,
        state: &mut TypeState,
        now: Duration,
        since: Revision,
        snapshot: &Snapshot,
    ) {
        for variant in state.take_refresh(now, since, snapshot) {
            let key = state.key(&variant);
            let is_sent = self.shared.iter().any(|of| of.has(variant.name(), variant.constraints()));
            if is_sent || self.changed.contains_key(&key) {
                continue;
            }
            if state.terms.known.heartbeats {
                self.heartbeats.push(variant);
            } else {
                self.changed.insert(key, variant);
            }
        }
    }

    /// T30: the removal of a bare name means that nothing of the name exists. If the client has a
    /// resource under the bare name, or from another stream, and another of its locators gets
    /// something, the variant without constraints is removed instead.
    pub(super) fn narrow_names(&mut self, state: &TypeState, snapshot: &Snapshot) {
        if state.keyed_by() == KeyedBy::Name {
            return;
        }
        let resolution = state.resolve(snapshot);
        let is_there = |key: &ResourceKey| key.constraints.is_none() && resolution.has(&key.name);
        let narrow = |key: ResourceKey| {
            if !is_there(&key) {
                return vec![key];
            }
            // T35: for a resource from another stream only the locators that get nothing now are
            // known.
            let unmatched = state.subscription.covering(&key.name);
            let unmatched = unmatched.filter(|params| resolution.is_answered_for(&key.name, params));
            let unmatched = unmatched.filter_map(|params| resolution.variants(&key.name)?.unmatched(params));
            let chosen = resolution.chosen(&key.name);
            let is_unused = |constraints: &Constraints| {
                !chosen.iter().any(|variant| variant.constraints() == constraints)
            };
            let narrowed = unmatched.chain([Constraints::NONE].into_iter().filter(is_unused));
            narrowed.map(|constraints| ResourceKey::of_variant(&key.name, constraints)).collect()
        };
        self.removed = std::mem::take(&mut self.removed).into_iter().flat_map(narrow).collect();
    }

    /// D13: drops removals of resources that came back in the meantime.
    pub(super) fn drop_returned(&mut self) {
        let Self { shared, changed, removed, .. } = self;
        removed.retain(|key| {
            let ResourceKey { name, constraints } = key;
            let shared = shared.as_ref();
            match constraints {
                Some(constraints) => {
                    !changed.contains_key(key) && !shared.is_some_and(|update| update.has(name, constraints))
                }
                None => {
                    let next = changed.range(key..).next();
                    next.is_none_or(|(next, _)| next.name != *name)
                        && !shared.is_some_and(|update| update.has_name(name))
                }
            }
        });
    }

    /// S6d: leaves out contents that other clients rejected alone, unless there is nothing else.
    pub(super) fn leave_out(&mut self, known: Option<&Arc<RejectedOfType>>) -> Vec<Arc<Variant>> {
        // What is removed or absent stays, so it counts once.
        let shared = self.shared.as_ref().map_or(0, |update| {
            let lists = [update.replaced.is_empty(), update.removed.is_empty(), update.absent.is_empty()];
            let is_more = lists.contains(&false) || !update.unmatched.is_empty();
            update.changed.len() + usize::from(is_more)
        });
        let own = self.changed.len() + self.removed.len() + self.unresolved.len();
        let Some(known) = known.filter(|_| shared + own > 1) else {
            return Vec::new();
        };
        let mut left_out = Vec::new();
        if let Some(spared) = self.shared.as_ref().and_then(|update| update.spare(known)) {
            // T31: what takes the place of another variant is not left out.
            let is_single = |variant: &&Arc<Variant>| self.besides(variant.name()) == 0;
            left_out.extend(spared.left_out.iter().filter(is_single).cloned());
            self.shared = if left_out.len() == spared.left_out.len() {
                Some(spared.update)
            } else {
                let is_left_out = |of: &Arc<Variant>| left_out.iter().any(|left| Arc::ptr_eq(left, of));
                self.shared.take().map(|update| Arc::new(update.without(is_left_out)))
            };
        }
        let is_left_out = |(key, variant): &(&ResourceKey, &Arc<Variant>)| {
            let is_in_update = self.shared.iter().any(|update| update.has_name(&key.name));
            known.has(variant) && !is_in_update && self.besides(&key.name) == 1
        };
        let own = self.changed.iter().filter(is_left_out).take(LEFT_OUT_LIMIT - left_out.len());
        let own: Vec<_> = own.map(|(key, _)| key.clone()).collect();
        left_out.extend(own.iter().filter_map(|key| self.changed.remove(key)));
        left_out
    }

    /// How many keys of a name are sent besides the update.
    fn besides(&self, name: &ResourceName) -> usize {
        let first = ResourceKey::of_name(name);
        let changed = self.changed.range(first.clone()..).take_while(|(key, _)| key.name == *name);
        let removed = self.removed.range(first..).take_while(|key| key.name == *name);
        changed.count() + removed.count()
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_shared_empty = |update: &Arc<Update>| {
            update.changed.is_empty()
                && update.replaced.is_empty()
                && update.removed.is_empty()
                && update.absent.is_empty()
                && update.unmatched.is_empty()
        };
        let has_own = !self.changed.is_empty()
            || !self.removed.is_empty()
            || !self.heartbeats.is_empty()
            || !self.unresolved.is_empty();
        self.shared.as_ref().is_none_or(is_shared_empty) && !has_own
    }

    /// The contents of the response, which the client's answer will be about.
    pub(super) fn contents(&self, state: &TypeState) -> ResponseContents {
        let shared = self.shared.as_ref().map(|update| state.encoding().keys(update));
        ResponseContents::Resources {
            shared,
            own: self.changed.keys().chain(&self.removed).cloned().collect(),
        }
    }

    /// Whether the response has what a locator gets.
    pub(super) fn has_all_of(&self, state: &TypeState, locator: &Locator, snapshot: &Snapshot) -> bool {
        let found = state.resolve(snapshot).find(locator);
        let has = |variant: &Arc<Variant>| self.changed().any(|sent| Arc::ptr_eq(sent, variant));
        !found.is_empty() && found.iter().all(has)
    }

    /// Whether the response has the whole selection.
    pub(super) fn is_whole(&self) -> bool {
        self.shared.as_ref().is_some_and(|update| update.from == Revision::ZERO)
    }

    pub(super) fn changed(&self) -> impl Iterator<Item = &Arc<Variant>> {
        self.shared.iter().flat_map(|update| &update.changed).chain(self.changed.values())
    }

    /// The only resource in the response, if there is nothing else but removals of its name (T31).
    pub(super) fn only(&self, encoding: Encoding<'_>) -> Option<Arc<Variant>> {
        let mut changed = self.changed();
        let first = changed.next()?;
        let is_it = |name: &ResourceName| name == first.name();
        let is_bare = |update: &Arc<Update>| {
            encoding.immediate_removals(update).all(|key| is_it(&key.name)) && update.absent.iter().all(is_it)
        };
        let is_alone = changed.next().is_none()
            && self.removed.iter().all(|key| is_it(&key.name))
            && self.shared.as_ref().is_none_or(is_bare);
        is_alone.then(|| Arc::clone(first))
    }

    /// Whether the response removes or changes something that the client may have (S6e).
    pub(super) fn makes_room(&self, state: &TypeState, owed: &Owed, snapshot: &Snapshot) -> bool {
        if !state.terms.known.conflicts {
            return false;
        }
        let since = self.shared.as_ref().map_or(Revision::ZERO, |update| update.from);
        let resolution = state.resolve(snapshot);
        let is_change = |variant: &Arc<Variant>| since > Revision::ZERO && resolution.had(variant, since);
        let shared = self.shared.as_ref();
        // S33: a removal that is withheld makes no room.
        let is_withheld = state.terms.withholds_removals();
        let removes = |update: &Arc<Update>| {
            !update.replaced.is_empty() || (!is_withheld && !update.removed.is_empty())
        };
        // The answer to a new subscription changes only what the client brought.
        let is_requested = super::covers_key(&owed.locators);
        let is_new = |key: &ResourceKey| is_requested(key) && !owed.brought.versions.contains_key(&key.name);
        shared.is_some_and(removes)
            || !self.removed.is_empty()
            || !self.changed.keys().all(is_new)
            || shared.is_some_and(|of| of.changed.iter().any(is_change))
    }

    /// S34, S34b: what follows the resources in the response.
    pub(super) fn followers(&self) -> Followers {
        let shared = self.shared.as_ref();
        if let Some(update) = shared.filter(|_| self.changed.is_empty()) {
            return Followers::Of(Arc::clone(update));
        }
        let shared = shared.into_iter().flat_map(|of| of.changed.iter().map(|variant| (variant, of.from)));
        let own = self.changed.values().map(|variant| (variant, Revision::ZERO));
        Followers::Some(variants::followers(shared.chain(own)))
    }

    /// The encoded resources and removals; D13: each once.
    pub(super) fn body(&self, state: &TypeState) -> Arc<Body> {
        let encoding = state.encoding();
        let removals = || -> BTreeSet<_> {
            self.shared.iter().flat_map(|update| encoding.immediate_removals(update)).collect()
        };
        match &self.shared {
            Some(update) if self.changed.is_empty() && self.removed.is_empty() && encoding.is_shared() => {
                let make = || Arc::new(encode::delta(encoding, update.changed.iter(), removals().iter()));
                Arc::clone(update.made.delta_body.get_or_init(make))
            }
            _ => Arc::new(encode::delta(encoding, self.changed(), removals().union(&self.removed))),
        }
    }
}

/// T37: of a resource that the client brought only the version is known, not the variant. If it
/// is none of the variants that the client gets now, the locators that get nothing must not
/// keep it, also under a wildcard.
fn deny_brought(
    state: &TypeState,
    name: &ResourceName,
    version: &str,
    snapshot: &Snapshot,
) -> Vec<ResourceKey> {
    let (keyed_by, resolution) = (state.keyed_by(), state.resolve(snapshot));
    let chosen = resolution.chosen(name);
    let is_known = |variant: &&Arc<Variant>| variant.version_for(keyed_by).to_string() == version;
    let variants = resolution.variants(name).filter(|_| keyed_by == KeyedBy::Locator);
    let Some(variants) = variants.filter(|_| !chosen.is_empty() && !chosen.iter().any(is_known)) else {
        return Vec::new();
    };
    let known = state.subscription.covering(name);
    let known = known.filter(|params| resolution.is_answered_for(name, params));
    let unmatched = known.filter_map(|params| variants.unmatched(params));
    unmatched.map(|constraints| ResourceKey::of_variant(name, constraints)).collect()
}
