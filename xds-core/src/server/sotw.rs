//! One state-of-the-world stream, seen from the server.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::client_group::ClientGroup;
use super::config::StreamConfig;
use super::covering::covering_locators;
use super::encode::{self, SOTW_ERRORS};
use super::order::Release;
use super::report::TypeReport;
use super::response::{Continuation, Next, Response, Service, StreamError, Verdict};
use super::responses::ResponseContents;
use super::stream::{Owed, Stream, TypeEntry};
use super::type_state::{Has, LocatorAnswer, NamePresence, ResponseBasis, TypeState};
use crate::access::Access;
use crate::cache::{Removed, Snapshot, Update, Watch};
use crate::code::Code;
use crate::name::{Nonce, ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators, Requested, Subscription};
use crate::variants::Variant;
use crate::wire::{Body, Failure, ResourceKey};
use crate::xdstp::XdstpName;

/// One state-of-the-world stream, seen from the server.
///
/// Feed it requests with [`on_request`](Self::on_request), then ask [`next`](Self::next) until it
/// says to wait.
#[derive(Debug)]
pub struct SotwStream {
    stream: Stream<SotwOwed>,
}

/// A `DiscoveryRequest`, without what only the edge needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SotwRequest {
    /// Empty on the service of one type (S12).
    pub type_url: String,
    /// The version the client uses.
    pub version_info: String,
    /// The response it answers; `None` when the field is empty.
    pub response_nonce: Option<Nonce>,
    /// What was wrong with that response (S5).
    pub error_detail: Option<String>,
    /// The whole subscription; `None` when it is known to be that of the type's request before.
    pub requested: Option<Requested>,
}

/// What was asked for and not answered yet.
#[derive(Debug, Default)]
struct SotwOwed {
    locators: Locators,
    /// Given up while a wildcard stays (S22).
    unsubscribed: Locators,
    /// Assignments whose cluster was sent (S34, S36).
    endpoints: BTreeSet<ResourceName>,
    everything: bool,
    /// Names were asked for, or given up before that, while a full state was on its way that may
    /// hold them, gone or not: only another says so (S25).
    is_overtaken: bool,
    /// What cannot be asked for (G8).
    errors: BTreeSet<Failure>,
    /// When it is answered without another occasion.
    due: Option<Duration>,
    /// The version a reconnecting client brought with its first request (S32).
    brought: Option<String>,
}

impl SotwStream {
    /// A stream on which nothing was asked for yet.
    #[must_use]
    pub fn new(watch: Arc<Watch>, service: Service, config: StreamConfig) -> Self {
        Self { stream: Stream::new(watch, service, config) }
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
    pub fn on_request(
        &mut self,
        now: Duration,
        request: SotwRequest,
    ) -> Result<Option<Verdict>, StreamError> {
        let (at, is_first) = self.stream.find_or_add(&request.type_url)?;
        let mut request = request;
        let failures = request
            .requested
            .as_mut()
            .map(|requested| self.stream.take_invalid(at, requested))
            .transpose()?;
        let (watch, owed_wait) = (Arc::clone(&self.stream.watch), self.stream.config.owed_wait);
        let names_limit = self.stream.config.names_limit;
        let TypeEntry { state, owed } = self.stream.entry(at);
        // S10: no nonce can be stale before something was sent.
        let is_current = state.responses.last().is_none() || request.response_nonce == state.responses.last();
        let booked = request.response_nonce.and_then(|nonce| state.book(nonce, request.error_detail));
        let verdict = booked.map(|(verdict, uncertain)| {
            // S6: nothing is told again for it, and until it changes the client may use what it had
            // before (S33).
            state.responses.keep_rejected(uncertain);
            verdict
        });
        if is_current {
            if matches!(verdict, Some(Verdict::Nacked { .. })) {
                state.responses.reject_in_flight();
            }
            // S8c: whoever answers the newest response will not answer those before it.
            state.responses.forget_in_flight();
        }
        // S1: the first request says what the client has from another stream.
        if is_first {
            owed.brought = Some(request.version_info).filter(|version| !version.is_empty());
        }
        // S7: an ACK that asks for what was asked for before changes nothing.
        if let Some(failures) = failures {
            // S37: told once, though each request repeats it.
            let mut failures: BTreeSet<_> = failures.into_iter().collect();
            if !failures.is_empty() {
                state.subscription.end_legacy_wildcard();
            }
            // G8: some clients unsubscribe by an empty name; and they reject an error that has none
            // (C4).
            failures.retain(|failure| !failure.name.as_str().is_empty());
            let is_requested = |failure: &Failure| {
                failures.contains(failure) || state.subscription.lists_name(&failure.name)
            };
            owed.errors.retain(is_requested);
            owed.errors.extend(failures.difference(&state.reported_errors).cloned());
            state.reported_errors = failures;
        }
        if let Some(requested) = request.requested {
            if !is_first && let Some(brought) = &mut owed.brought {
                // S32: what it brought stands for what it asked for then.
                brought.clear();
            }
            let is_late = state.known.full_state && !is_current;
            let before = is_late.then(|| state.subscription.locators());
            let added = state.subscription.replace(requested, state.known.legacy_wildcard);
            state.awaits_wildcards |= added.wildcard;
            // S8b: who wants it again by the time that response comes takes it from there.
            let was_crossed = is_current && state.responses.take_crossed();
            if before.is_some_and(|before| !before.without(&state.subscription.locators()).is_empty()) {
                state.responses.cross();
            }
            state.check_limit(names_limit)?;
            _ = state.reselect(&watch);
            if !state.is_served && !state.known.full_state {
                // G4: but a full state without resources would delete them.
                owed.errors.extend(state.unserved(&added.locators));
            }
            // S8b: owed is what was asked for and not sent; what is dropped leaves it.
            state.subscription.retain_covered(&mut owed.locators);
            owed.endpoints.retain(|name| state.subscription.covers(name));
            // S15, S16: sent whatever version the client has, also when it was sent before.
            if state.is_served {
                owed.locators.extend(added.locators);
            }
            let is_wildcard = state.is_served && state.subscription.is_wildcard();
            owed.is_overtaken |= (is_late || was_crossed) && !owed.locators.is_empty();
            owed.everything = is_wildcard && (owed.everything || added.wildcard);
            if !is_wildcard {
                owed.unsubscribed.clear();
            }
            if state.known.full_state {
                owed.unsubscribed.extend(added.unsubscribed);
            }
            // V25: what went by name comes again in the other form, or is gone.
            owed.everything |= state.is_switching() && state.responses.last().is_some();
        }
        // S8: a stale request is no occasion to answer, but what it asks for is not forgotten.
        owed.answer_at(if is_current { now } else { now + owed_wait });
        Ok(verdict)
    }

    /// What to do now, given the newest snapshot: load it after the last request was handed over.
    pub fn next(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        self.stream.next(now, snapshot, |stream, at| respond(stream, at, now, snapshot))
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

    /// Whether the client subscribes to something of a type. When a request names something and the
    /// answer is no, all of it was refused (G8, G12).
    #[must_use]
    pub fn is_subscribed(&self, type_url: &TypeUrl) -> bool {
        self.stream.of_type(type_url.as_str()).is_some_and(|entry| !entry.state.subscription.is_empty())
    }

    /// The version that a response with all that a type's subscription selects would have; that of
    /// nothing where nothing is asked for.
    ///
    /// S41: a poll whose version it is needs no response, so none has to be made to find that out.
    pub fn version(&mut self, type_url: &TypeUrl, snapshot: &Snapshot) -> Version {
        let Some(TypeEntry { state, .. }) = self.stream.of_type_mut(type_url.as_str()) else {
            return Version(0);
        };
        state.refresh(snapshot);
        state.version(snapshot)
    }
}

/// Makes the response of a type that is due; `None` when it turns out that the client lacks
/// nothing.
fn respond(
    stream: &mut Stream<SotwOwed>,
    at: usize,
    now: Duration,
    snapshot: &Snapshot,
) -> Result<Option<Response>, StreamError> {
    let released = stream.release(at, now, snapshot);
    let releases = !released.is_empty();
    let must_wait = stream.must_wait(at, now, snapshot);
    let reports_missing = stream.config.sotw_not_found;
    let TypeEntry { state, owed } = stream.entry(at);
    let mut owed = std::mem::take(owed);
    if state.membership.is_none() && !state.is_served && state.known.full_state {
        // G4: without resources it would delete them.
        return Ok(None);
    }
    if state.membership.is_none() {
        let (type_url, version) = (state.type_url.clone(), state.version(snapshot));
        let nonce = stream.next_nonce();
        let state = &mut stream.entry(at).state;
        state.sent(now, nonce, ResponseContents::nothing(), snapshot);
        let errors = Arc::new(encode::errors(SOTW_ERRORS, state.encoding(), owed.errors.iter()));
        return Ok(Some(Response {
            type_url,
            nonce,
            version,
            bodies: vec![errors],
            continuation: Continuation::None,
        }));
    }
    // A full state with what is held would bring it to who cannot have it: all that it was for is
    // asked for anew.
    let has = |subscription: &Subscription, removed: &Variant| {
        let is_new = |locator: Locator| {
            owed.locators.contains(&locator) || (owed.everything && !subscription.lists(&locator))
        };
        let are_new: Vec<bool> = covering_locators(subscription, removed).map(is_new).collect();
        match are_new.contains(&true) {
            _ if !are_new.contains(&false) => Has::No,
            true => Has::Perhaps,
            false => Has::Yes,
        }
    };
    let is_answer_only = must_wait && !owed.everything && !state.known.full_state;
    let ResponseBasis { update, mut resend, .. } = match is_answer_only {
        true => state.stay(&owed.locators, snapshot),
        false => state.advance(now, snapshot, has)?,
    };
    if !state.known.full_state && reports_missing {
        owed.errors.extend(state.missing(released, &owed.locators, &update, snapshot));
    } else if !state.known.full_state {
        // S26: without resource errors no response can say that such a resource is gone.
        state.release(&Release::now(), Duration::ZERO, now, snapshot);
    }
    let since = update.from;
    // S40: a heartbeat would delete what it is about, or not extend its TTL, so the content is sent
    // again.
    let refreshed = state.take_refresh(now, since, snapshot);
    let needs_everything = owed.everything || state.known.full_state;
    let everything = if needs_everything { state.everything(&update, snapshot) } else { Arc::clone(&update) };
    let version = match state.version(snapshot) {
        // Not all of the snapshot's content is sent, so it is not the version of that.
        Version(sum) if is_answer_only => Version(sum.wrapping_add(1)),
        version => version,
    };
    // S32: only a wildcard is sure to be what it was on the stream before.
    let is_comparable = state.known.full_state && state.selects_all();
    if is_comparable && owed.brings(version) == Some(true) {
        return Ok(None);
    }
    let made = if state.known.full_state {
        let must_send = releases || !refreshed.is_empty();
        let bodies = state.full_state(&owed, &update, &everything, must_send, version, snapshot);
        bodies.map(|bodies| (bodies, ResponseContents::FullState))
    } else {
        resend.extend(refreshed);
        state.partial(&owed, &resend, &everything, snapshot)
    };
    let Some((mut bodies, contents)) = made else { return Ok(None) };
    if !owed.errors.is_empty() {
        bodies.push(Arc::new(encode::errors(SOTW_ERRORS, state.encoding(), owed.errors.iter())));
    }
    let is_all_fresh = owed.everything || update.from == Revision::ZERO;
    let has_globs = !is_all_fresh && owed.locators.names().any(is_glob);
    let is_fresh = |variant: &&Arc<Variant>| {
        has_globs || variant.changed_at > update.from || owed.locators.has_name(variant.name())
    };
    // S34, S36: a cluster that was sent keeps warming until its endpoints follow, changed or not.
    let endpoints: Cow<'_, [_]> = if is_all_fresh {
        everything.endpoints().into()
    } else {
        let fresh = everything.changed.iter().filter(is_fresh);
        fresh.filter_map(|cluster| cluster.endpoints().cloned()).collect()
    };
    let resources = bodies.remove(0);
    let response = stream.send(at, now, version, (resources, bodies), contents, snapshot);
    stream.owe_endpoints(&endpoints);
    if let Some(TypeEntry { state, owed }) = stream.endpoints() {
        let covered = endpoints.iter().filter(|name| state.subscription.covers(name));
        owed.add_endpoints(covered.cloned(), now);
    }
    Ok(Some(response))
}

impl SotwOwed {
    fn is_empty(&self) -> bool {
        let has_answers =
            !self.locators.is_empty() || !self.unsubscribed.is_empty() || !self.endpoints.is_empty();
        !has_answers && !self.everything && self.errors.is_empty()
    }

    /// Whether the client brought this version; `None` when it brought none.
    fn brings(&self, version: Version) -> Option<bool> {
        self.brought.as_ref().map(|brought| *brought == version.to_string())
    }

    /// Answers what is owed then, or earlier if that was to be.
    fn answer_at(&mut self, time: Duration) {
        self.due = if self.is_empty() { None } else { Some(self.due.map_or(time, |due| due.min(time))) };
    }
}

impl Owed for SotwOwed {
    const IS_SOTW: bool = true;
    const ERRORS_FIELD: u32 = SOTW_ERRORS;

    fn defer(&mut self, is_unknown: impl Fn(&Locator) -> bool) -> Vec<Locator> {
        let unknown = self.locators.take(is_unknown);
        self.due = self.due.filter(|_| !self.is_empty());
        unknown
    }

    fn owe(&mut self, locator: Locator, now: Duration) {
        self.locators.extend(std::iter::once(locator).collect());
        self.answer_at(now);
    }

    fn owe_error(&mut self, failure: Failure, now: Duration) {
        self.errors.insert(failure);
        self.answer_at(now);
    }

    fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.locators.names()
    }

    fn owes_everything(&self) -> bool {
        self.everything
    }

    fn due(&self) -> Option<Duration> {
        self.due
    }

    fn add_endpoints(&mut self, names: impl Iterator<Item = ResourceName>, now: Duration) {
        let before = self.endpoints.len();
        self.endpoints.extend(names);
        if self.endpoints.len() > before {
            self.answer_at(now);
        }
    }
}

impl TypeState {
    /// T38: the version of what the client is sent with the next response.
    fn version(&self, snapshot: &Snapshot) -> Version {
        let selected = self.membership.as_ref().map_or(0, |membership| membership.sum(snapshot));
        let add = |sum: u128, variant: &Arc<Variant>| sum.wrapping_add(variant.identity(self.form()));
        Version(self.withheld().fold(selected, add))
    }

    /// S37, V8: what there is no longer, or not at all, told by errors. T36: of one of several
    /// locators by its parameters.
    fn missing(
        &mut self,
        released: Vec<ResourceKey>,
        requested: &Locators,
        update: &Update,
        snapshot: &Snapshot,
    ) -> Vec<Failure> {
        let mut missing: BTreeSet<_> = released.into_iter().collect();
        if update.from > Revision::ZERO {
            missing.extend(self.immediate_removals(update));
        }
        let mut presence = NamePresence::new();
        for locator in requested.iter() {
            if let LocatorAnswer::Absent(keys) = self.answer(&locator, &mut presence, snapshot) {
                missing.extend(keys);
            }
        }
        missing.retain(|key| !self.is_live(key, snapshot));
        let failure = |ResourceKey { name, constraints }| {
            let message = format!("{} {name:?} does not exist", self.type_url.message_name());
            let constraints = constraints.unwrap_or_default();
            Failure { constraints, ..Failure::new(name, Code::NOT_FOUND, message) }
        };
        missing.into_iter().map(failure).collect()
    }

    /// S25: all resources, or `None` when nothing changed for the client. S6b: rejected ones are
    /// among them.
    fn full_state(
        &self,
        owed: &SotwOwed,
        update: &Update,
        everything: &Update,
        must_send: bool,
        version: Version,
        snapshot: &Snapshot,
    ) -> Option<Vec<Arc<Body>>> {
        let is_gone = |removed: &Removed| {
            removed.variant.was_there(update.from) && !self.retained.contains_key(&self.key(&removed.variant))
        };
        let removes = must_send || update.removed.iter().any(is_gone) || !update.replaced.is_empty();
        // S17: a name without a resource is no reason to send. S27: an empty wildcard is answered.
        // Who brings another version may hold what is gone by now, and only a full state says so
        // (S25).
        let answers = owed.everything
            || owed.is_overtaken
            || owed
                .locators
                .iter()
                .any(|locator| is_glob(&locator.name) || !self.find(&locator, snapshot).is_empty())
            || owed.brings(version) == Some(false)
            || !owed.errors.is_empty();
        // S22: what a wildcard with other parameters does not cover leaves the full state.
        let unsubscribed = owed.unsubscribed.iter().flat_map(|locator| self.find(&locator, snapshot));
        let leaves =
            unsubscribed.into_iter().any(|variant| !everything.has(variant.name(), variant.constraints()));
        if !answers && !removes && !leaves && update.changed.is_empty() {
            return None;
        }
        let mut bodies = vec![self.sotw_body(everything)];
        let withheld = encode::sotw(self.encoding(), self.withheld());
        if !withheld.is_empty() {
            bodies.push(Arc::new(withheld));
        }
        Some(bodies)
    }

    /// S26: what is new to the client, or `None` when nothing is.
    fn partial(
        &self,
        owed: &SotwOwed,
        resend: &[Arc<Variant>],
        fresh: &Update,
        snapshot: &Snapshot,
    ) -> Option<(Vec<Arc<Body>>, ResponseContents)> {
        // From the start there is everything.
        let requested = Some(&owed.locators).filter(|_| fresh.from > Revision::ZERO);
        let requested = requested.into_iter().flat_map(Locators::iter);
        let answers = requested.flat_map(|locator| self.find(&locator, snapshot));
        let is_missing = |variant: &Arc<Variant>| !fresh.has(variant.name(), variant.constraints());
        let endpoints = owed.endpoints.iter().flat_map(|name| self.chosen(name, snapshot));
        let besides = endpoints.chain(resend).cloned();
        let mut answers: Vec<_> = answers.chain(besides).filter(is_missing).collect();
        if answers.is_empty() {
            // G4: also a wildcard that selects nothing is answered.
            let is_due = owed.everything || !fresh.changed.is_empty() || !owed.errors.is_empty();
            let contents =
                || ResponseContents::Resources { shared: Some(self.keys(fresh)), own: BTreeSet::new() };
            return is_due.then(|| (vec![self.sotw_body(fresh)], contents()));
        }
        answers.extend(fresh.changed.iter().cloned());
        answers.sort_unstable_by(|a, b| (a.name(), a.constraints()).cmp(&(b.name(), b.constraints())));
        // S28: nothing twice.
        answers.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let own = answers.iter().map(|variant| self.key(variant)).collect();
        let body = encode::sotw(self.encoding(), answers.iter());
        Some((vec![Arc::new(body)], ResponseContents::Resources { shared: None, own }))
    }

    fn sotw_body(&self, update: &Update) -> Arc<Body> {
        let make = || Arc::new(encode::sotw(self.encoding(), update.changed.iter()));
        if self.encoding().is_shared() { Arc::clone(update.sotw_body.get_or_init(make)) } else { make() }
    }
}

/// X12: such a name is answered though there is nothing, as by an empty state it is known to be so.
fn is_glob(name: &ResourceName) -> bool {
    XdstpName::of(name.as_str()).is_ok_and(|name| name.is_some_and(|name| name.is_glob()))
}

#[cfg(test)]
mod passing_tests;
#[cfg(test)]
mod tests;
