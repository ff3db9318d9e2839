//! The state of one type on one stream, the same for both protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::covering::{covering_locators, is_subscribed};
use super::encode::Encoding;
use super::holding::{Advance, Exception, Holding};
use super::owed::Owed;
use super::request_names::RequestNames;
use super::response::StreamError;
use super::responses::Responses;
use super::send_times::SendTimes;
use super::waiting::Unknown;
use crate::access::NamePatterns;
use crate::cache::{Ledger, Membership, Removed, Snapshot, TypeSelection, Update, Watch};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::known_type::KnownType;
use crate::name::{ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, Selection, Subscription};
use crate::variants::{KeyedBy, Variant};
use crate::wire::{Failure, ResourceKey};

/// The state of one type on one stream.
#[derive(Debug)]
pub(super) struct TypeState {
    pub(super) terms: Terms,
    pub(super) subscription: Subscription,
    /// What the client has.
    pub(super) holding: Holding,
    /// The responses that were sent, with the client's ACKs and NACKs.
    pub(super) responses: Responses,
    /// SotW: the `version_info` of the last response; `None` before.
    pub(super) sent_version: Option<Version>,
    pub(super) names: RequestNames,
    pub(super) unknown: Unknown,
    pub(super) times: Times,
    pub(super) published: Published,
    /// The revision of the last [`refresh`](Self::refresh).
    refreshed_at: Revision,
}

/// How a type is served to a client. This does not change during a stream.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) type_url: TypeUrl,
    pub(super) known: KnownType,
    /// Whether the type is served here at all (G4).
    pub(super) is_served: bool,
    /// The names that the client may read; `None` means all.
    pub(super) scope: Option<NamePatterns>,
    /// Whether resources are sent with their TTL (S38).
    pub(super) ttl: bool,
    /// Whether refreshes follow the TTL that is left, because the source of an on-demand cache
    /// extends it (S40).
    pub(super) sends_ttl_left: bool,
    /// Whether the cache is filled on demand. If so, each removal is withheld until the source has
    /// answered that the resource does not exist.
    pub(super) is_on_demand: bool,
}

/// When something was sent, or is due.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Since when there are changes that were not sent (S33).
    pub(super) waiting_since: Option<Duration>,
    /// When each revision was sent.
    pub(super) send_times: SendTimes,
    /// When resources with a TTL are sent again, before the TTL ends (S39, S40).
    pub(super) refresh_at: Option<Duration>,
}

/// What others know about the type.
#[derive(Debug)]
pub(super) struct Published {
    /// Where programs that commit read the ACKs and NACKs; `None` until the first subscription.
    pub(super) ledger: Option<Arc<Ledger>>,
    /// Whether anything was retained when the ledger was last updated.
    pub(super) was_retaining: bool,
    /// Whether the other streams of the client know an older selection than this one.
    pub(super) is_unpublished: bool,
}

/// One type: what was sent, and what the server owes. Types do not share nonces, names or versions
/// (S13).
#[derive(Debug)]
pub(super) struct TypeEntry {
    pub(super) state: TypeState,
    pub(super) owed: Owed,
}

/// What a response is made from.
#[derive(Debug)]
pub(super) struct ResponseBasis {
    pub(super) update: Arc<Update>,
    /// Keys to remove in addition to the removals of the update.
    pub(super) removed: Vec<ResourceKey>,
    /// Variants that the update omits, because they are equal to those at the cursor, although the
    /// client was sent others ahead of the cursor.
    pub(super) resend: Vec<Arc<Variant>>,
}

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
    /// The state of a type that the client has just requested. `derived` are the parameters of
    /// plain names.
    pub(super) fn new(terms: Terms, derived: Parameters) -> Self {
        Self {
            terms,
            subscription: Subscription::new(derived),
            holding: Holding::default(),
            responses: Responses::default(),
            sent_version: None,
            names: RequestNames::default(),
            unknown: Unknown::default(),
            times: Times::default(),
            published: Published { ledger: None, was_retaining: false, is_unpublished: true },
            refreshed_at: Revision::ZERO,
        }
    }

    /// Selects resources again after the subscription changed.
    ///
    /// Returns keys whose removal was withheld and that the client no longer subscribes to.
    pub(super) fn reselect(&mut self, watch: &Arc<Watch>) -> Vec<ResourceKey> {
        self.published.is_unpublished = true;
        self.names.spelled.retain(|name, _| self.subscription.lists_name(name));
        let Some(selection) = TypeSelection::of(&self.subscription, self.terms.ttl, self.terms.scope.clone())
            .filter(|_| self.terms.is_served)
        else {
            self.holding.end();
            self.unknown.waiting.clear();
            self.responses.forget_rejected();
            return Vec::new();
        };
        // T25b: everything that was sent by name is sent again with constraints.
        if self.holding.select(selection, |selection| watch.join(&self.terms.type_url, selection)) {
            // T25: queued parts have the other form, and everything is sent again.
            self.responses.drop_queued();
            self.published.ledger = Some(watch.ledger(&self.terms.type_url));
        }
        if self.terms.is_on_demand
            && let Some(selection) = self.holding.selection_mut()
        {
            selection.index_subscription(&self.subscription);
        }
        if let Some(Selection::Names(names)) = self.holding.selection().and_then(|of| of.selection().single())
        {
            self.subscription.share(names);
        }
        self.forget_uncovered();
        let subscription = &self.subscription;
        let newest = self.holding.selection().map(Membership::newest);
        let resources = newest.as_ref().and_then(|snapshot| snapshot.of_type(&self.terms.type_url));
        self.holding.retain(
            |key| is_subscribed(key, subscription, resources),
            |variant| covering_locators(subscription, variant).next().is_some(),
            subscription.is_wildcard(),
        )
    }

    /// Forgets the rejection of resources that the client no longer subscribes to.
    pub(super) fn forget_uncovered(&mut self) {
        let rejections = self.responses.rejections();
        if !rejections.is_empty() || rejections.are_uncertain() {
            let newest = self.holding.selection().map(Membership::newest);
            let resources = newest.as_ref().and_then(|snapshot| snapshot.of_type(&self.terms.type_url));
            let subscription = &self.subscription;
            self.responses.rejections_mut().retain(|key| is_subscribed(key, subscription, resources));
        }
    }

    /// Keeps the keys that the subscription covers.
    pub(super) fn retain_subscribed(&self, keys: &mut BTreeSet<ResourceKey>) {
        if keys.is_empty() {
            return;
        }
        let newest = self.holding.selection().map(Membership::newest);
        let resources = newest.as_ref().and_then(|snapshot| snapshot.of_type(&self.terms.type_url));
        keys.retain(|key| is_subscribed(key, &self.subscription, resources));
    }

    /// Whether the client ACKed everything that it was sent, and uses no other resources (S33).
    pub(super) fn is_clean(&self) -> bool {
        let responses = &self.responses;
        let rejections = responses.rejections();
        let is_open = responses.are_in_flight() || !rejections.is_empty() || rejections.are_uncertain();
        !is_open && !self.holding.has_removed()
    }

    /// Records the cursor if the state is clean (S33).
    pub(super) fn note_clean(&mut self) {
        if self.is_clean() {
            self.holding.note_clean();
        }
    }

    /// Notes since when there are changes that were not sent.
    pub(super) fn time_changes(&mut self, now: Duration, snapshot: &Snapshot) {
        let since = self.times.waiting_since.unwrap_or(now);
        self.times.waiting_since = self.holding.is_behind(snapshot).then_some(since);
    }

    /// Refuses a subscription to too many names (G9).
    pub(super) fn check_limit(&self, limit: usize) -> Result<(), StreamError> {
        let found = self.subscription.len();
        if found <= limit {
            return Ok(());
        }
        Err(StreamError::TooManyNames { type_url: self.terms.type_url.clone(), found, limit })
    }

    /// Updates the selection when the constraint keys that matter to it changed.
    pub(super) fn refresh(&mut self, snapshot: &Snapshot) {
        if snapshot.revision() == self.refreshed_at {
            return;
        }
        self.refreshed_at = snapshot.revision();
        self.published.is_unpublished |= self.holding.refresh(snapshot);
    }

    /// Answers locators without moving the cursor: other changes must wait for other types (S33).
    pub(super) fn answer_only(&mut self, answered: &Locators, snapshot: &Snapshot) -> ResponseBasis {
        let selection = self.holding.selection();
        let update = selection.expect("a type with a response to make has a subscription").no_update();
        let mut removed_keys = Vec::new();
        for locator in &answered.iter().collect::<Vec<_>>() {
            let found = self.find(locator, snapshot);
            self.holding.answer_ahead(&locator.name);
            for variant in found {
                self.responses.bring_ahead(update.from, variant.changed_at);
                let withheld = self.holding.send_ahead(self.key(&variant), variant);
                withheld.into_iter().for_each(|removed_at| self.responses.bring(removed_at));
            }
            // T31: an answer goes with the removal of the variants that it replaces.
            if self.keyed_by() == KeyedBy::Locator && !self.find(locator, snapshot).is_empty() {
                let resources = snapshot.of_type(&self.terms.type_url).into_iter();
                let removed = resources.flat_map(|of| of.removed_after(&locator.name, update.from));
                let had = removed.filter(|removed| removed.variant.existed_at(update.from));
                let had = had.filter(|had| had.variant.constraints().matches(&locator.parameters));
                for Removed { variant, at } in had {
                    self.responses.bring_ahead(update.from, *at);
                    removed_keys.push(self.key(variant));
                }
            }
        }
        ResponseBasis { update, removed: removed_keys, resend: Vec::new() }
    }

    /// Moves the cursor to the snapshot and returns what the client must be sent. A removed
    /// resource that the client may still use is retained, unless the client does not have it.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        has: impl Fn(&Subscription, &Variant) -> Possession,
    ) -> Result<ResponseBasis, StreamError> {
        let fell_behind = || StreamError::FellBehind { type_url: self.terms.type_url.clone() };
        let Advance { update, former, ahead } = self.holding.advance(snapshot).ok_or_else(fell_behind)?;
        self.times.send_times.note(snapshot.revision(), now);
        // V29: a resource may come back before its removal was sent. With the same content, the
        // client has it.
        let mut returned = BTreeSet::new();
        if self.holding.has_removed() {
            for variant in &update.changed {
                let removed = self.holding.take_removed(&self.key(variant));
                let is_same = removed.is_some_and(|removed| removed.is_content_of(variant));
                if is_same && !ahead.has_name(variant.name()) {
                    returned.insert(Arc::as_ptr(variant));
                }
            }
        }
        // A variant that is equal to the one at the cursor is not in the update, but the client was
        // sent another one ahead.
        let resend = ahead.names().flat_map(|name| self.chosen(name, snapshot));
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
        let mut basis = ResponseBasis { update, removed: replaced, resend };
        let (subscription, update) = (&self.subscription, &basis.update);
        // A variant that was added and removed since the cursor was sent only if it was sent ahead.
        let was_sent = |removed: &&Removed| {
            removed.variant.existed_at(update.from) || ahead.has_name(removed.variant.name())
        };
        let removed = update.removed.iter().filter(was_sent);
        let removed = removed.filter(|removed| has(subscription, &removed.variant) != Possession::None);
        let removed = removed.map(|removed| (self.key(&removed.variant), removed.clone()));
        // S24: only resources that are still subscribed to.
        let is_wanted =
            |removed: &&Removed| covering_locators(subscription, &removed.variant).next().is_some();
        let former = former.iter().flat_map(|former| former.removed.iter().filter(is_wanted));
        let former = former.map(|removed| (ResourceKey::of_name(removed.variant.name()), removed.clone()));
        if self.withholds_removals() {
            for (key, Removed { variant, at }) in removed.chain(former).collect::<Vec<_>>() {
                let is_sent = !variant.differs_since(basis.update.from)
                    && !ahead.has_name(variant.name())
                    && has(&self.subscription, &variant) == Possession::Certain;
                let withheld =
                    Exception::Withheld { variant: Some(variant), is_sent, removed_at: at, since: now };
                self.holding.withhold(key, withheld);
            }
        } else {
            basis.removed.extend(former.map(|(key, _)| key));
        }
        if self.keyed_by() == KeyedBy::Locator {
            self.release_replaced(&mut basis.removed, snapshot);
        }
        Ok(basis)
    }

    /// The variants that a locator gets: one, unless its name is a glob (X12).
    pub(super) fn find(&self, locator: &Locator, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        let Some(resources) = snapshot.of_type(&self.terms.type_url) else { return Vec::new() };
        let members = resources.selected_by(&locator.name).filter(|name| self.allows(name));
        let variants = members.filter_map(|name| resources.get(name));
        let found = variants.filter_map(|variants| variants.resolve(&locator.parameters));
        found.filter(|variant| variant.is_named(&locator.name)).cloned().collect()
    }

    /// Whether the client may read a resource.
    pub(super) fn allows(&self, name: &ResourceName) -> bool {
        self.terms.scope.as_ref().is_none_or(|scope| scope.matches(name))
    }

    /// The variants that the stream gets of a name, each once.
    pub(super) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        self.holding.chosen(name, snapshot)
    }

    /// The answer to a subscribed locator, which is sent at once (D9, D10).
    ///
    /// `presence` remembers for each name whether the stream gets any variant of it.
    pub(super) fn answer(
        &mut self,
        locator: &Locator,
        presence: &mut NamePresence,
        snapshot: &Snapshot,
    ) -> LocatorAnswer {
        let found = self.find(locator, snapshot);
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
        let own = retained.iter().filter(|key| key.matches(parameters) && self.is_removable(key, snapshot));
        let own: Vec<_> = own.cloned().collect();
        if !own.is_empty() {
            own.iter().for_each(|key| self.on_removal_sent(key));
            return LocatorAnswer::Absent(own);
        }
        // The source has not answered all locators of the name yet, so this answer is for one
        // locator only.
        let mut locators = self.subscription.covering(name);
        if !locators.all(|other| self.is_answered_for(name, other, snapshot)) {
            return LocatorAnswer::Absent(vec![ResourceKey::of_variant(
                name,
                self.only_for(locator, snapshot),
            )]);
        }
        let constraint_keys = retained.iter().find_map(|key| key.constraints.as_ref()).map(Constraints::keys);
        let disjoint = match (snapshot.get(&self.terms.type_url, name), constraint_keys) {
            (Some(variants), _) if self.is_there(name, presence, snapshot) => variants.unmatched(parameters),
            (_, Some(keys)) => Constraints::agreeing_with(parameters, keys).ok(),
            _ => None,
        };
        LocatorAnswer::Absent(vec![
            disjoint.map_or(by_name, |constraints| ResourceKey::of_variant(name, constraints)),
        ])
    }

    /// Errors for the requested locators whose variants were removed for a reason (SR45).
    pub(super) fn reasons(&self, requested: &Locators, snapshot: &Snapshot) -> Vec<Failure> {
        let resources = snapshot.of_type(&self.terms.type_url).filter(|resources| resources.has_reasons());
        let Some(resources) = resources else { return Vec::new() };
        let failure = |locator: Locator| {
            let Locator { name, parameters } = &locator;
            let reason = resources.reason(name, parameters).filter(|_| self.allows(name))?;
            if !self.find(&locator, snapshot).is_empty() {
                return None;
            }
            // T36: which one of the locators of the name it is about.
            let others = resources.get(name).filter(|_| self.keyed_by() == KeyedBy::Locator);
            let constraints = others.and_then(|others| others.unmatched(parameters)).unwrap_or_default();
            Some(Failure { constraints, ..Failure::new(locator.name, Code::UNAVAILABLE, &**reason) })
        };
        requested.iter().filter_map(failure).collect()
    }

    /// Whether the stream gets any variant of a name.
    fn is_there(&self, name: &ResourceName, presence: &mut NamePresence, snapshot: &Snapshot) -> bool {
        let is_there = || !self.chosen(name, snapshot).is_empty();
        *presence.entry(name.clone()).or_insert_with(is_there)
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
        let removed = resources.flat_map(|resources| resources.removed_after(&locator.name, since));
        let removed = removed.map(|removed| &removed.variant);
        // When the subscription still covers the variant, the update has its removal.
        let is_shared = |variant: &Variant| covering_locators(&self.subscription, variant).next().is_some();
        let is_own =
            |variant: &Variant| variant.constraints().matches(&locator.parameters) && !is_shared(variant);
        let removed = removed.filter(|variant| had(variant) && is_own(variant));
        let mut answers: Vec<_> =
            removed.map(|variant| LocatorAnswer::Absent(vec![self.key(variant)])).collect();
        for variant in self.find(locator, snapshot) {
            if self.chosen(variant.name(), snapshot).iter().any(|other| Arc::ptr_eq(other, &variant)) {
                answers.push(LocatorAnswer::Variants(vec![variant]));
            } else if had(&variant) {
                answers.push(LocatorAnswer::Absent(vec![self.key(&variant)]));
            }
        }
        answers
    }

    /// How resources are encoded for the client.
    pub(super) fn encoding(&self) -> Encoding<'_> {
        let scope = self.terms.scope.as_ref();
        Encoding {
            type_url: &self.terms.type_url,
            keyed_by: self.keyed_by(),
            ttl: self.terms.ttl,
            scope,
            spelled: &self.names.spelled,
        }
    }

    /// Whether the client gets resources by name alone or with constraints.
    pub(super) fn keyed_by(&self) -> KeyedBy {
        if self.subscription.knows_locators() { KeyedBy::Locator } else { KeyedBy::Name }
    }

    /// The key by which the client knows a variant.
    pub(super) fn key(&self, variant: &Variant) -> ResourceKey {
        variant.key(self.keyed_by())
    }

    /// Whether the first response was sent, or was found to be unnecessary.
    pub(super) fn is_answered(&self) -> bool {
        self.holding.cursor() > Revision::ZERO
    }

    /// The whole selection. If `update`, the last one, starts at revision zero, it is the whole
    /// selection already.
    pub(super) fn everything(&self, update: &Arc<Update>, snapshot: &Snapshot) -> Arc<Update> {
        match self.holding.selection() {
            Some(membership) if update.from > Revision::ZERO => membership.everything(snapshot),
            _ => Arc::clone(update),
        }
    }

    /// Whether the stream gets a variant with this key now.
    pub(super) fn is_live(&self, key: &ResourceKey, snapshot: &Snapshot) -> bool {
        self.chosen(&key.name, snapshot).into_iter().any(|variant| self.key(variant) == *key)
    }

    /// The keys of an update, changes and removals alike.
    pub(super) fn keys(&self, update: &Update) -> Arc<BTreeSet<ResourceKey>> {
        let changed = update.changed.iter().map(|variant| self.key(variant));
        Arc::clone(
            update.keys.get_or_init(|| Arc::new(changed.chain(self.immediate_removals(update)).collect())),
        )
    }

    /// The removals of an update that are not withheld (S33). D29: they are also sent for types
    /// whose removals clients ignore.
    pub(super) fn immediate_removals(&self, update: &Update) -> impl Iterator<Item = ResourceKey> {
        let keyed_by = self.keyed_by();
        let removed = if self.withholds_removals() { &[] } else { update.removed.as_slice() };
        let removed = removed.iter().map(|removed| &removed.variant);
        let removed = removed.chain(&update.replaced).map(move |variant| variant.key(keyed_by));
        let unmatched = update.unmatched.iter();
        let unmatched =
            unmatched.map(|(name, constraints)| ResourceKey::of_variant(name, constraints.clone()));
        // D24: names without a resource are sent separately, as unresolved aliases.
        let absent = if self.sends_unresolved() { &[] } else { update.absent.as_slice() };
        absent.iter().map(ResourceKey::of_name).chain(unmatched).chain(removed)
    }

    /// D24: whether a name without a resource is sent as an alias without a resource.
    pub(super) fn sends_unresolved(&self) -> bool {
        !self.terms.known.heartbeats && self.keyed_by() == KeyedBy::Name
    }

    /// Whether the subscription has a wildcard, under any parameters.
    pub(super) fn selects_all(&self) -> bool {
        self.subscription.is_wildcard()
    }
}

/// Whether a client has a resource that was removed from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Possession {
    None,
    /// The client has just subscribed to it, and may have unsubscribed from it before.
    Possible,
    Certain,
}
