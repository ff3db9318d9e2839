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
use super::response::{Next, Response, Service, StreamError, Verdict};
use super::stream::{Owed, Stream, TypeEntry};
use super::type_state::{Has, ResponseBasis, TypeState};
use crate::access::Access;
use crate::cache::{Membership, Snapshot, TypeSnapshot, Watch};
use crate::name::{Nonce, ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, Requested, Subscription, WILDCARD, can_be, is_set};
use crate::variants::{Form, Variant};
use crate::wire::{Failure, ResourceKey};
use crate::xdstp;

use content::DeltaContent;

mod content;

/// One delta stream, seen from the server.
///
/// Feed it requests with [`on_request`](Self::on_request), then ask [`next`](Self::next) until it
/// says to wait.
#[derive(Debug)]
pub struct DeltaStream {
    stream: Stream<DeltaOwed>,
    clusters_sent: ClustersSent,
}

/// A `DeltaDiscoveryRequest`, without what only the edge needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DeltaRequest {
    /// Empty on the service of one type (S12).
    pub type_url: String,
    /// What to add (D2).
    pub subscribe: Requested,
    /// What to drop (D2).
    pub unsubscribe: Requested,
    /// What the client brings from another stream, with its versions (D1).
    pub initial_resource_versions: BTreeMap<ResourceName, String>,
    /// The response it answers; `None` when the field is empty.
    pub response_nonce: Option<Nonce>,
    /// What was wrong with that response (D4).
    pub error_detail: Option<String>,
}

/// What has to be answered at once (D9, D10, D18).
#[derive(Debug, Default)]
struct DeltaOwed {
    locators: Locators,
    /// Given up while a wildcard stays (D18).
    unsubscribed: Locators,
    /// The same while what is new is held back: without that a wildcard would be left without a
    /// variant (T31).
    unsubscribed_later: Locators,
    /// Held removals of what was given up so.
    removals: BTreeSet<ResourceKey>,
    everything: bool,
    /// What cannot be asked for (G8).
    errors: BTreeSet<Failure>,
    /// S21: nothing was asked for, and the client waits to hear so.
    nothing: bool,
    /// What rejected responses held besides something that was put right since (D8).
    uncertain: BTreeSet<ResourceKey>,
    /// Assignments whose cluster was sent (S34). Nobody asked for them, so one that does not exist
    /// is not told.
    endpoints: BTreeSet<ResourceName>,
    /// What the client brought from another stream; used up by the first answer.
    brought: BTreeMap<ResourceName, String>,
}

impl DeltaStream {
    /// A stream on which nothing was asked for yet.
    #[must_use]
    pub fn new(watch: Arc<Watch>, service: Service, config: StreamConfig) -> Self {
        Self {
            stream: Stream::new(watch, service, config),
            clusters_sent: ClustersSent::Some(BTreeSet::new()),
        }
    }

    /// Takes what was derived from the node, before the first request is handed over. The node of a
    /// stream does not change (G7), so later calls would come too late for what is subscribed.
    pub fn on_node(&mut self, parameters: Parameters) {
        self.stream.parameters = parameters;
    }

    /// Says what the client may read, before the first request is handed over. What it may not is
    /// told by resource errors, `PERMISSION_DENIED`, and what it has of that it keeps; of a
    /// wildcard or glob it gets what it may read.
    pub fn on_access(&mut self, access: Arc<Access>) {
        self.stream.access = Some(access);
    }

    /// The client removes a resource when its TTL ends, so it may be told of it (S38). To be said
    /// before the first request is handed over.
    pub fn on_ttl_support(&mut self) {
        self.stream.honours_ttl = true;
    }

    /// Joins the other streams of its client, before the first request is handed over. All streams
    /// of a group take `now` from one clock, as they look at when the others were sent something.
    pub fn join(&mut self, group: &ClientGroup) {
        self.stream.join(group);
    }

    /// Takes one request: what it asks for, and what it says about a response.
    ///
    /// # Errors
    /// The stream has to end with this error.
    pub fn on_request(&mut self, request: DeltaRequest) -> Result<Option<Verdict>, StreamError> {
        let (at, is_first) = self.stream.find_or_add(&request.type_url)?;
        let mut request = request;
        let mut ignored = Vec::new();
        if !request.unsubscribe.is_empty() {
            // D19: giving up what cannot be changes nothing.
            let spelled = self.stream.entry(at).state.spelled.clone();
            ignored = self.stream.take_invalid(at, &mut request.unsubscribe)?;
            self.stream.entry(at).state.spelled = spelled;
        }
        let mut failures = self.stream.take_invalid(at, &mut request.subscribe)?;
        let brought = std::mem::take(&mut request.initial_resource_versions);
        let (watch, names_limit) = (Arc::clone(&self.stream.watch), self.stream.config.names_limit);
        let TypeEntry { state, owed } = self.stream.entry(at);
        // D6: verdicts pair by nonce, in any order. D5: an unknown nonce has no effect and blocks
        // nothing.
        let booked = request.response_nonce.and_then(|nonce| state.book(nonce, request.error_detail));
        let verdict = booked.map(|(verdict, mut uncertain)| {
            state.is_resending |= !uncertain.is_empty();
            owed.uncertain.append(&mut uncertain);
            verdict
        });
        // D17: later ones do not end it.
        if is_first && (!failures.is_empty() || !ignored.is_empty()) {
            state.subscription.end_legacy_wildcard();
        }
        // G8, X6: a name that cannot exist does not. Envoy reads that and no errors (D28).
        let is_unreadable = |name: &ResourceName| !can_be(name.as_str()) || state.canonical(name).is_err();
        let unreadable = failures.iter().map(|failure| &failure.name).filter(|name| is_unreadable(name));
        owed.removals.extend(unreadable.map(ResourceKey::of_name));
        // C4: a client rejects an error that has no name.
        failures.retain(|failure| !failure.name.as_str().is_empty());
        // As where a type is not served (G4): who has nothing of it need not wait for it.
        let denied = failures.iter().filter(|failure| !state.allows(&failure.name));
        let denied = denied.filter(|failure| !brought.contains_key(&failure.name));
        owed.removals.extend(denied.map(|failure| ResourceKey::of_name(&failure.name)));
        owed.errors.extend(failures);
        // D1: only the first request says what the client has from another stream.
        if is_first {
            // X4: also what it has goes by its canonical name.
            let canonical = |name: ResourceName| state.canonical(&name).ok().flatten().unwrap_or(name);
            owed.brought = brought.into_iter().map(|(name, version)| (canonical(name), version)).collect();
        }
        // D21: what is given up is dropped by the client, so no version that it brought is one it
        // has.
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
            // By name the answer to who asks again says all.
            let leaves_variants = |dropped: &Locators| {
                state.form() == Form::Located || dropped.names().any(|name| is_set(name.as_str()))
            };
            if let Some(dropped) = dropped.filter(leaves_variants) {
                state.responses.cross_contents(covers_key(&dropped));
            }
            state.check_limit(names_limit)?;
            let dropped = state.reselect(&watch);
            if is_first {
                state.forget_unsubscribed(&mut owed.brought);
            }
            // D18: as without a wildcard nobody waits to hear of them.
            owed.removals.extend(dropped.into_iter().filter(|_| state.subscription.is_wildcard()));
            state.retain_subscribed(&mut owed.uncertain);
            owed.nothing = (is_first || owed.nothing) && state.membership.is_none();
            if !state.is_served {
                // G4: what the client has it keeps, and what it has not it need not wait for.
                let missing = added.locators.names().filter(|name| !owed.brought.contains_key(*name));
                owed.removals.extend(missing.map(ResourceKey::of_name));
                owed.errors.extend(state.unserved(&added.locators));
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

    /// What to do now, given the newest snapshot: load it after the last request was handed over.
    pub fn next(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        let Self { stream, clusters_sent } = self;
        stream.next(now, snapshot, |stream, at| respond(stream, clusters_sent, at, now, snapshot))
    }

    /// Until when [`next`](Self::next) would say to wait, `Some(None)` for no time in particular;
    /// `None` when there may be something to send. Costs less than asking that, so a caller without
    /// room for another response knows whether it has to come back for one.
    pub fn until_due(&mut self, now: Duration, snapshot: &Snapshot) -> Option<Option<Duration>> {
        self.stream.until_due(now, snapshot)
    }

    /// How far each resource of each type has come (C20), given the newest snapshot. Changes
    /// nothing; O(what is asked for).
    pub fn report(&mut self, snapshot: &Snapshot) -> Vec<TypeReport> {
        self.stream.report(snapshot)
    }

    /// What the response of a type held that the client rejected last, as far as it is still the
    /// newest content. To be asked when [a request](Self::on_request) was such an answer; O(what is
    /// asked for).
    pub fn rejected(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Vec<Arc<Variant>> {
        self.stream.rejected(type_url, snapshot)
    }
}

/// Makes the response of a type that is due; `None` when it turns out that the client lacks
/// nothing.
fn respond(
    stream: &mut Stream<DeltaOwed>,
    clusters_sent: &mut ClustersSent,
    at: usize,
    now: Duration,
    snapshot: &Snapshot,
) -> Result<Option<Response>, StreamError> {
    // D11: each subscriber is told once.
    let released = stream.release(at, now, snapshot);
    let mut content = DeltaContent { removed: released.into_iter().collect(), ..DeltaContent::default() };
    let must_wait = stream.must_wait(at, now, snapshot);
    let TypeEntry { state, owed } = stream.entry(at);
    let mut owed = std::mem::take(owed);
    let mut unsubscribed_later = std::mem::take(&mut owed.unsubscribed_later);
    content.removed.extend(owed.removals.iter().cloned());
    // S8b: what was on its way when it was given up, and is asked for again before it came, may be
    // gone meanwhile.
    if owed.everything || !owed.locators.is_empty() {
        let is_requested = covers_key(&owed.locators);
        let is_requested = |key: &ResourceKey| owed.everything || is_requested(key);
        let mut crossed = state.responses.take_crossed_contents(is_requested);
        crossed.retain(|key| {
            let chosen = state.chosen(&key.name, snapshot);
            let is_it = |variant| key.constraints.is_none() || state.key(variant) == *key;
            !chosen.into_iter().any(|variant| is_it(variant))
        });
        // T33: what is for none of its locators the client drops by itself.
        state.retain_subscribed(&mut crossed);
        content.removed.extend(crossed);
    }
    if state.membership.is_some() {
        let form = state.form();
        let is_requested = covers_key(&owed.locators);
        let has = |_: &Subscription, removed: &Variant| match is_requested(&removed.key(form)) {
            // Its answer says so already. D14: a removal too many does no harm.
            true if form == Form::Name && owed.locators.has_name(removed.name()) => Has::No,
            is_requested if is_requested || owed.everything => Has::Perhaps,
            _ => Has::Yes,
        };
        let ResponseBasis { update, removed, resend } = match must_wait && !owed.everything {
            true => {
                unsubscribed_later.append(&mut owed.unsubscribed);
                state.stay(&owed.locators, snapshot)
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
    // D15, S21: who asks for everything or for nothing is answered, though there is nothing to say.
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
    // A bare name removes all that the client has of it.
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
    // D8: what changed goes alone, the rest after it.
    uncertain.retain(|key| !contents.has(key));
    if uncertain.is_empty() {
        state.responses.bring_uncertain();
    }
    let response = stream.send(at, now, version, (resources, bodies), contents, snapshot);
    let TypeEntry { state, owed: owed_next } = stream.entry(at);
    state.refresh_late(now, content.changed());
    state.is_resending = !uncertain.is_empty();
    owed_next.uncertain = uncertain;
    owed_next.unsubscribed_later = unsubscribed_later;
    // S34, D27: a cluster that was sent keeps warming until its endpoints follow, changed or not.
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

/// What they ask for, by its name or by a set that it may belong to.
fn covers_key(locators: &Locators) -> impl Fn(&ResourceKey) -> bool {
    let is_wildcard = locators.has_name(&WILDCARD.into());
    move |ResourceKey { name, .. }| {
        let glob = || xdstp::glob_of(name);
        is_wildcard || locators.has_name(name) || glob().is_some_and(|glob| locators.has_name(&glob))
    }
}

impl TypeState {
    /// D1: what the client brought and does not ask for it drops, so later it has none of these
    /// versions.
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
