//! One delta stream, seen from the server.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::client_group::ClientGroup;
use super::clusters_sent::ClustersSent;
use super::config::StreamConfig;
use super::covering::is_subscribed;
use super::encode::{self, DELTA_ERRORS};
use super::report::TypeReport;
use super::response::{DeniedNames, Next, Response, Service, StreamError, Verdict};
use super::stream::{Owed, Stream, TypeEntry};
use super::type_state::{Possession, ResponseBasis, TypeState};
use crate::access::Access;
use crate::cache::{Membership, Snapshot, TypeSnapshot, Watch};
use crate::name::{Nonce, ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, Requested, Subscription, WILDCARD, can_be, is_set};
use crate::variants::{KeyedBy, Variant};
use crate::wire::{Failure, ResourceKey};
use crate::xdstp;

use content::DeltaContent;

mod content;

/// One delta stream, seen from the server.
///
/// Pass requests to [`on_request`](Self::on_request), then call [`next`](Self::next) until it
/// returns [`Next::Wait`].
#[derive(Debug)]
pub struct DeltaStream {
    stream: Stream<DeltaOwed>,
    clusters_sent: ClustersSent,
}

/// A `DeltaDiscoveryRequest`, without the fields that only the transport needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DeltaRequest {
    /// Empty on the service of one type (S12).
    pub type_url: String,
    /// The names and locators to add (D2).
    pub subscribe: Requested,
    /// The names and locators to remove (D2).
    pub unsubscribe: Requested,
    /// The resources that the client has from another stream, with their versions (D1).
    pub initial_resource_versions: BTreeMap<ResourceName, String>,
    /// The nonce of the response that it answers; `None` when the field is empty.
    pub response_nonce: Option<Nonce>,
    /// Why the client rejected that response (D4).
    pub error_detail: Option<String>,
}

/// What the server owes the client, to be answered at once (D9, D10, D18).
#[derive(Debug, Default)]
struct DeltaOwed {
    locators: Locators,
    /// Locators from which the client unsubscribed while a wildcard stays (D18).
    unsubscribed: Locators,
    /// The same while changes must wait: without those changes the answer would leave the wildcard
    /// without a variant (T31).
    unsubscribed_later: Locators,
    /// Removals of such locators that were withheld, of invalid names, and of names that are not
    /// served.
    removals: BTreeSet<ResourceKey>,
    everything: bool,
    /// Errors about names and types that cannot be served (G4, G8).
    errors: BTreeSet<Failure>,
    /// S21: the client subscribed to nothing, and waits for an empty response.
    nothing: bool,
    /// Resources of rejected responses of which a later response corrected others (D8).
    uncertain: BTreeSet<ResourceKey>,
    /// Assignments whose cluster was sent (S34). The client did not request them, so no removal is
    /// sent for one that does not exist.
    endpoints: BTreeSet<ResourceName>,
    /// The versions that the client brought from another stream, for the first response.
    brought: BTreeMap<ResourceName, String>,
}

impl DeltaStream {
    /// A stream without requests.
    #[must_use]
    pub fn new(watch: Arc<Watch>, service: Service, config: StreamConfig) -> Self {
        Self {
            stream: Stream::new(watch, service, config),
            clusters_sent: ClustersSent::Some(BTreeSet::new()),
        }
    }

    /// Sets the parameters that were derived from the node. Call it before the first request: the
    /// node of a stream does not change (G7), so later calls have no effect on existing
    /// subscriptions.
    pub fn on_node(&mut self, parameters: Parameters) {
        self.stream.parameters = parameters;
    }

    /// Sets what the client may read. Call it before the first request. For names that the client
    /// may not read it gets resource errors, `PERMISSION_DENIED`, and keeps what it has of them. Of
    /// a wildcard or glob it gets the resources that it may read.
    pub fn on_access(&mut self, access: Arc<Access>) {
        self.stream.access = Some(access);
    }

    /// The names of the last request that the client may not read; `None` without any.
    pub fn take_denied_names(&mut self) -> Option<DeniedNames> {
        self.stream.take_denied_names()
    }

    /// Sets that the client removes a resource when its TTL ends, so it may be sent TTLs (S38).
    /// Call it before the first request.
    pub fn on_ttl_support(&mut self) {
        self.stream.honours_ttl = true;
    }

    /// Joins the other streams of the client. Call it before the first request. All streams of a
    /// group must take `now` from the same clock, as they compare the times of their responses.
    pub fn join(&mut self, group: &ClientGroup) {
        self.stream.join(group);
    }

    /// Applies one request: its changes of the subscription, and its ACK or NACK.
    ///
    /// # Errors
    /// The stream must end with this error.
    pub fn on_request(&mut self, request: DeltaRequest) -> Result<Option<Verdict>, StreamError> {
        let (at, is_first) = self.stream.find_or_add(&request.type_url)?;
        let mut request = request;
        let mut ignored = Vec::new();
        if !request.unsubscribe.is_empty() {
            // D19: unsubscribing from an invalid name changes nothing.
            let spelled = self.stream.entry(at).state.spelled.clone();
            ignored = self.stream.take_invalid(at, &mut request.unsubscribe)?;
            self.stream.entry(at).state.spelled = spelled;
        }
        let mut failures = self.stream.take_invalid(at, &mut request.subscribe)?;
        let brought = std::mem::take(&mut request.initial_resource_versions);
        let (watch, names_limit) = (Arc::clone(&self.stream.watch), self.stream.config.names_limit);
        let TypeEntry { state, owed } = self.stream.entry(at);
        // D6: answers are paired with responses by nonce, in any order. D5: an unknown nonce has no
        // effect and blocks nothing.
        let recorded =
            request.response_nonce.and_then(|nonce| state.record_answer(nonce, request.error_detail));
        let verdict = recorded.map(|(verdict, mut uncertain)| {
            state.is_resending |= !uncertain.is_empty();
            owed.uncertain.append(&mut uncertain);
            verdict
        });
        // D17: later requests do not end it.
        if is_first && (!failures.is_empty() || !ignored.is_empty()) {
            state.subscription.end_legacy_wildcard();
        }
        // G8, X6: an invalid name does not exist, so it is sent as removed: Envoy reads removals
        // and no errors (D28).
        let is_unreadable = |name: &ResourceName| !can_be(name.as_str()) || state.canonical(name).is_err();
        let unreadable = failures.iter().map(|failure| &failure.name).filter(|name| is_unreadable(name));
        owed.removals.extend(unreadable.map(ResourceKey::of_name));
        // C4: a client rejects an error without a name.
        failures.retain(|failure| !failure.name.as_str().is_empty());
        // As for a type that is not served (G4): a client that has nothing of the name need not
        // wait for it.
        let denied = failures.iter().filter(|failure| !state.allows(&failure.name));
        let denied = denied.filter(|failure| !brought.contains_key(&failure.name));
        owed.removals.extend(denied.map(|failure| ResourceKey::of_name(&failure.name)));
        state.note_denied(&failures);
        owed.errors.extend(failures);
        // D1: only the first request has the versions that the client has from another stream.
        if is_first {
            // X4: the names of these versions become canonical too.
            let canonical = |name: ResourceName| state.canonical(&name).ok().flatten().unwrap_or(name);
            owed.brought = brought.into_iter().map(|(name, version)| (canonical(name), version)).collect();
        }
        // D21: the client drops a resource from which it unsubscribes, so it no longer has the
        // version that it brought.
        for name in request.unsubscribe.all_names() {
            if let Some(version) = owed.brought.get_mut(name) {
                version.clear();
            }
        }
        if is_first || !request.subscribe.is_empty() || !request.unsubscribe.is_empty() {
            let legacy = state.known.legacy_wildcard;
            let is_giving_up = state.responses.are_in_flight() && !request.unsubscribe.is_empty();
            let before = is_giving_up.then(|| state.subscription.locators());
            let added = state.subscription.edit(request.subscribe, request.unsubscribe, legacy);
            state.awaits_wildcards |= added.wildcard;
            let dropped = before.map(|before| before.without(&state.subscription.locators()));
            // By name, the answer to a new subscription replaces everything that the client has of
            // the name.
            let leaves_variants = |dropped: &Locators| {
                state.keyed_by() == KeyedBy::Locator || dropped.names().any(|name| is_set(name.as_str()))
            };
            if let Some(dropped) = dropped.filter(leaves_variants) {
                state.responses.cross_contents(covers_key(&dropped));
            }
            state.check_limit(names_limit)?;
            let dropped = state.reselect(&watch);
            if is_first {
                state.forget_unsubscribed(&mut owed.brought);
            }
            // D18: without a wildcard the client does not wait for these removals.
            owed.removals.extend(dropped.into_iter().filter(|_| state.subscription.is_wildcard()));
            state.retain_subscribed(&mut owed.uncertain);
            owed.nothing = (is_first || owed.nothing) && state.membership.is_none();
            if !state.is_served {
                // G4: the client keeps what it has, and does not wait for what it does not have.
                let missing = added.locators.names().filter(|name| !owed.brought.contains_key(*name));
                owed.removals.extend(missing.map(ResourceKey::of_name));
                let unserved: Vec<_> = state.unserved(&added.locators).collect();
                state.note_denied(&unserved);
                owed.errors.extend(unserved);
                owed.nothing |= added.wildcard;
                return Ok(verdict);
            }
            owed.locators.extend(added.locators);
            state.subscription.retain_covered(&mut owed.locators);
            owed.unsubscribed.extend(added.unsubscribed);
            if !state.subscription.is_wildcard() {
                owed.unsubscribed.clear();
                owed.unsubscribed_later.clear();
            }
            owed.everything = state.subscription.is_wildcard() && (owed.everything || added.wildcard);
        }
        Ok(verdict)
    }

    /// What to do now. Load the newest snapshot after the last request was passed in.
    pub fn next(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        let Self { stream, clusters_sent } = self;
        stream.next(now, snapshot, |stream, at| respond(stream, clusters_sent, at, now, snapshot))
    }

    /// Until when [`next`](Self::next) would return [`Next::Wait`], where `Some(None)` means
    /// without a time; `None` if there may be something to send. This costs less than `next`, so a
    /// caller without room for another response can find out whether it must call `next` when it
    /// has room.
    pub fn until_due(&mut self, now: Duration, snapshot: &Snapshot) -> Option<Option<Duration>> {
        self.stream.until_due(now, snapshot)
    }

    /// The status of each resource of each type (C20), given the newest snapshot. Changes nothing.
    /// O(subscribed resources).
    pub fn report(&mut self, snapshot: &Snapshot) -> Vec<TypeReport> {
        self.stream.report(snapshot)
    }

    /// Whether the client rejected a response of a type that no later response corrected (D8).
    #[must_use]
    pub fn rejects(&self, type_url: &TypeUrl) -> bool {
        self.stream.rejects(type_url)
    }

    /// The resources of the newest rejected response of a type, as far as they are still the
    /// newest. Call it when [a request](Self::on_request) was a NACK. O(subscribed resources).
    pub fn rejected(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        self.stream.rejected(type_url, snapshot)
    }

    /// Takes the only resource of the response of a type that was rejected last; `None` if the
    /// client may mean another one too, or without
    /// [`attributes_nacks`](StreamConfig::attributes_nacks).
    pub fn take_rejected_alone(&mut self, type_url: &TypeUrl) -> Option<Arc<Variant>> {
        self.stream.take_rejected_alone(type_url)
    }
}

/// Makes the response of a type that is due; `None` when it turns out that the client needs
/// nothing.
fn respond(
    stream: &mut Stream<DeltaOwed>,
    clusters_sent: &mut ClustersSent,
    at: usize,
    now: Duration,
    snapshot: &Snapshot,
) -> Result<Option<Response>, StreamError> {
    // D11: each subscriber gets a removal once.
    let released = stream.release(at, now, snapshot);
    let mut content = DeltaContent { removed: released.into_iter().collect(), ..DeltaContent::default() };
    let must_wait = stream.must_wait(at, now, snapshot);
    let attributes_nacks = stream.config.attributes_nacks;
    let TypeEntry { state, owed } = stream.entry(at);
    let mut owed = std::mem::take(owed);
    owed.errors.extend(state.reasons(&owed.locators, snapshot));
    let mut unsubscribed_later = std::mem::take(&mut owed.unsubscribed_later);
    content.removed.extend(owed.removals.iter().cloned());
    // S8b: the client unsubscribed from resources in an unanswered response and subscribes to them
    // again. They may have been removed in the meantime.
    if owed.everything || !owed.locators.is_empty() {
        let is_requested = covers_key(&owed.locators);
        let is_requested = |key: &ResourceKey| owed.everything || is_requested(key);
        let mut crossed = state.responses.take_crossed_contents(is_requested);
        crossed.retain(|key| {
            let chosen = state.chosen(&key.name, snapshot);
            let is_it = |variant| key.constraints.is_none() || state.key(variant) == *key;
            !chosen.into_iter().any(|variant| is_it(variant))
        });
        // T33: the client drops resources that match none of its locators by itself.
        state.retain_subscribed(&mut crossed);
        content.removed.extend(crossed);
    }
    if state.membership.is_some() {
        let keyed_by = state.keyed_by();
        let is_requested = covers_key(&owed.locators);
        let has = |_: &Subscription, removed: &Variant| match is_requested(&removed.key(keyed_by)) {
            // The answer for the name has the removal already. D14: a second removal would do no
            // harm.
            true if keyed_by == KeyedBy::Name && owed.locators.has_name(removed.name()) => Possession::None,
            is_requested if is_requested || owed.everything => Possession::Possible,
            _ => Possession::Certain,
        };
        let ResponseBasis { update, removed, resend } = match must_wait && !owed.everything {
            true => {
                unsubscribed_later.append(&mut owed.unsubscribed);
                state.answer_only(&owed.locators, snapshot)
            }
            false => state.advance(now, snapshot, has)?,
        };
        content.removed.extend(removed);
        if update.from == Revision::ZERO {
            content.first_answer(state, &owed, &update, clusters_sent, now, snapshot);
        } else {
            content.update(state, &owed, &resend, &update, snapshot);
        }
        content.refresh(state, now, update.from, snapshot);
    }
    content.split_unresolved(state, &owed, snapshot);
    content.narrow_names(state, snapshot);
    content.drop_returned();
    // D15, S21: a client that subscribes to everything or to nothing gets an answer, even an empty
    // one.
    let is_answer = owed.nothing || !owed.errors.is_empty() || (owed.everything && owed.brought.is_empty());
    let mut uncertain = owed.uncertain;
    if content.is_empty() && !is_answer {
        content.resend_uncertain(state, &std::mem::take(&mut uncertain), snapshot);
    }
    state.is_resending = false;
    if content.is_empty() && !is_answer {
        state.responses.bring_uncertain();
        stream.entry(at).owed.unsubscribed_later = unsubscribed_later;
        return Ok(None);
    }
    // A bare name removes everything that the client has of the name.
    for key in &content.removed {
        match key.constraints {
            None => state.on_name_removal_sent(&key.name),
            Some(_) => state.on_removal_sent(key),
        }
    }
    let resources = snapshot.of_type(&state.type_url);
    let version = Version(resources.map_or(0, TypeSnapshot::sum));
    let (resources, mut bodies) = (content.body(state), Vec::new());
    if !content.unresolved.is_empty() {
        bodies.push(Arc::new(encode::unresolved(state.encoding(), content.unresolved.iter())));
    }
    if !content.heartbeats.is_empty() {
        bodies.push(Arc::new(encode::heartbeats(state.encoding(), now, content.heartbeats.iter())));
    }
    if !owed.errors.is_empty() {
        bodies.push(Arc::new(encode::errors(DELTA_ERRORS, state.encoding(), owed.errors.iter())));
    }
    let endpoints: Cow<'_, [_]> = match &content.shared {
        Some(update) if content.changed.is_empty() => update.endpoints().into(),
        _ => content.changed().filter_map(|cluster| cluster.endpoints().cloned()).collect(),
    };
    let contents = content.contents(state);
    // D8: changes are sent first, and the uncertain resources after them.
    uncertain.retain(|key| !contents.has(key));
    if uncertain.is_empty() {
        state.responses.bring_uncertain();
    }
    let alone = if attributes_nacks { state.only_resource(&contents, snapshot) } else { None };
    let response = stream.send(at, now, version, (resources, bodies), contents, snapshot);
    stream.sent_alone(at, alone);
    let TypeEntry { state, owed: owed_next } = stream.entry(at);
    state.refresh_late(now, content.changed());
    state.is_resending = !uncertain.is_empty();
    owed_next.uncertain = uncertain;
    owed_next.unsubscribed_later = unsubscribed_later;
    // S34, D27: a cluster that was sent warms until its endpoints follow, whether they changed or
    // not.
    stream.owe_endpoints(&endpoints);
    match stream.endpoints() {
        Some(TypeEntry { state, owed }) if state.is_answered() => {
            let covered = endpoints.iter().filter(|name| state.subscription.covers(name));
            owed.endpoints.extend(covered.cloned());
        }
        _ => clusters_sent.add(&endpoints, content.is_whole()),
    }
    Ok(Some(response))
}

/// Whether the locators cover a key: by its name, or by a set that the name may belong to.
fn covers_key(locators: &Locators) -> impl Fn(&ResourceKey) -> bool {
    let is_wildcard = locators.has_name(&WILDCARD.into());
    move |ResourceKey { name, .. }| {
        let glob = || xdstp::glob_of(name);
        is_wildcard || locators.has_name(name) || glob().is_some_and(|glob| locators.has_name(&glob))
    }
}

impl TypeState {
    /// D1: the client drops resources that it brought and does not subscribe to, so it later has
    /// none of these versions.
    fn forget_unsubscribed(&self, brought: &mut BTreeMap<ResourceName, String>) {
        let newest = self.membership.as_ref().map(Membership::newest);
        let resources = newest.as_ref().and_then(|snapshot| snapshot.of_type(&self.type_url));
        for (name, version) in brought {
            if !is_subscribed(&ResourceKey::of_name(name), &self.subscription, resources) {
                version.clear();
            }
        }
    }
}

impl DeltaOwed {
    fn is_empty(&self) -> bool {
        let has_answers = !self.locators.is_empty()
            || !self.unsubscribed.is_empty()
            || !self.removals.is_empty()
            || !self.uncertain.is_empty()
            || !self.endpoints.is_empty();
        !has_answers && !self.everything && !self.nothing && self.errors.is_empty()
    }
}

impl Owed for DeltaOwed {
    const IS_SOTW: bool = false;
    const ERRORS_FIELD: u32 = DELTA_ERRORS;

    fn has_deferred(&self) -> bool {
        !self.unsubscribed_later.is_empty()
    }

    fn resume(&mut self) {
        self.unsubscribed.append(&mut self.unsubscribed_later);
    }

    fn defer(&mut self, is_unknown: impl Fn(&Locator) -> bool) -> Vec<Locator> {
        self.locators.take(is_unknown)
    }

    fn owe(&mut self, locator: Locator, _: Duration) {
        self.locators.extend(std::iter::once(locator).collect());
    }

    fn owe_error(&mut self, failure: Failure, _: Duration) {
        self.errors.insert(failure);
    }

    fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.locators.names()
    }

    fn owes_everything(&self) -> bool {
        self.everything
    }

    fn due(&self) -> Option<Duration> {
        if self.is_empty() { None } else { Some(Duration::ZERO) }
    }

    fn add_endpoints(&mut self, names: impl Iterator<Item = ResourceName>, _: Duration) {
        self.endpoints.extend(names);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod uncertain_tests;
