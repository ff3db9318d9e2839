//! The types of one stream and the turn each of them takes, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use xds_proto::type_url::ROUTE_CONFIGURATION;

use super::client_group::{Awaited, ClientGroup, OrderStatus, Seat};
use super::config::{Serving, StreamConfig};
use super::encode;
use super::in_use::Referrer;
use super::order::{self, Gate, Release, TargetStatus, Unnamed};
use super::response::{Continuation, Next, Response, Service, StreamError};
use super::responses::ResponseContents;
use super::responses::ResponsePart;
use super::type_state::TypeState;
use crate::access::{Access, NamePatterns};
use crate::cache::{Snapshot, Watch};
use crate::code::Code;
use crate::name::{Nonce, ResourceName, Revision, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, NameSet, Requested, can_be};
use crate::wire::{Body, Failure, ResourceKey};

/// All types of a stream, in the order of S33.
#[derive(Debug)]
pub(super) struct Stream<O> {
    pub(super) watch: Arc<Watch>,
    pub(super) config: StreamConfig,
    /// Derived from the node of the stream (T46); none until it is known.
    pub(super) parameters: Parameters,
    /// What the client may read; `None` is everything.
    pub(super) access: Option<Arc<Access>>,
    /// The client removes what has a TTL when that ends (S38).
    pub(super) honours_ttl: bool,
    /// With the other streams of the client.
    seat: Option<Seat>,
    service: Service,
    entries: Vec<TypeEntry<O>>,
    last_nonce: u64,
}

/// One type: what was sent, and what has to be answered. No type sees another's nonces, names or
/// versions (S13).
#[derive(Debug)]
pub(super) struct TypeEntry<O> {
    pub(super) state: TypeState,
    pub(super) owed: O,
}

/// What a client asked for and was not answered yet; each protocol has its own.
pub(super) trait Owed: Default {
    /// Whether the protocol is SotW.
    const IS_SOTW: bool;

    /// `resource_errors` in a response.
    const ERRORS_FIELD: u32;

    /// Whether something is answered only with what else is new.
    fn has_deferred(&self) -> bool {
        false
    }

    /// What else is new may go now.
    fn resume(&mut self) {}

    /// Takes out locators that cannot be answered yet.
    fn defer(&mut self, is_unknown: impl Fn(&Locator) -> bool) -> Vec<Locator>;

    /// Has a locator answered.
    fn owe(&mut self, locator: Locator, now: Duration);

    /// Has an error told.
    fn owe_error(&mut self, failure: Failure, now: Duration);

    /// The names that were asked for.
    fn names(&self) -> impl Iterator<Item = &ResourceName>;

    /// Whether a wildcard was asked for.
    fn owes_everything(&self) -> bool;

    /// When it is to be answered; `None` when there is nothing to answer.
    fn due(&self) -> Option<Duration>;

    /// Adds assignments whose cluster was sent (S34).
    fn add_endpoints(&mut self, names: impl Iterator<Item = ResourceName>, now: Duration);
}

impl<O: Owed> Stream<O> {
    pub(super) fn new(watch: Arc<Watch>, service: Service, config: StreamConfig) -> Self {
        Self {
            watch,
            config,
            parameters: Parameters::new(),
            access: None,
            honours_ttl: false,
            seat: None,
            service,
            entries: Vec::new(),
            last_nonce: 0,
        }
    }

    pub(super) fn join(&mut self, group: &ClientGroup) {
        self.seat = Some(group.join(&self.watch));
    }

    /// The place of the type a request is about (S12, G2, G3), and whether it is new on this
    /// stream.
    pub(super) fn find_or_add(&mut self, type_url: &str) -> Result<(usize, bool), StreamError> {
        let known = |entry: &TypeEntry<O>| entry.state.type_url.as_str() == type_url;
        if let Some(at) = self.entries.iter().position(known) {
            return Ok((at, false));
        }
        let type_url = self.request_type(type_url)?;
        if let Some(at) = self.entries.iter().position(|entry| entry.state.type_url == type_url) {
            return Ok((at, false));
        }
        if self.entries.len() >= self.config.types_limit {
            return Err(StreamError::TooManyTypes { limit: self.config.types_limit });
        }
        let (known, serving) = self.config.type_of(&type_url);
        if serving == Serving::Refused {
            return Err(StreamError::NotServed { type_url });
        }
        // G5.
        let is_served = serving == Serving::Served && !(O::IS_SOTW && known.delta_only);
        let is_on_demand = self.watch.cache().read(Snapshot::is_on_demand);
        let access = self.access.as_deref();
        let scope = access.map(|access| access.of_type(&type_url)).filter(|names| !names.is_everything());
        let is_denied = scope.is_some_and(NamePatterns::is_empty);
        let scope = scope.cloned();
        let derived =
            access.map_or_else(|| self.parameters.clone(), |access| access.overlay(&self.parameters));
        let derived = if is_on_demand { derived.bound() } else { derived };
        let mut state = TypeState::new(type_url, known, is_served && !is_denied, derived, is_on_demand);
        state.scope = scope;
        let apart = self.watch.cache().read(|snapshot| snapshot.apart.clone());
        state.subscription = std::mem::take(&mut state.subscription).without(apart);
        state.ttl = self.honours_ttl && (known.ttl_in_sotw || !O::IS_SOTW);
        // S40: only heartbeats can tell it, as what comes with a payload is content.
        state.sends_ttl_left = is_on_demand && known.heartbeats && !O::IS_SOTW;
        let at = self.entries.partition_point(|entry| entry.state.known.rank <= state.known.rank);
        self.entries.insert(at, TypeEntry { state, owed: O::default() });
        Ok((at, true))
    }

    /// With the other streams of the client, where anything depends on them.
    fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|seat| seat.group().is_tied())
    }

    pub(super) fn entry(&mut self, at: usize) -> &mut TypeEntry<O> {
        &mut self.entries[at]
    }

    pub(super) fn entry_ref(&self, at: usize) -> &TypeEntry<O> {
        &self.entries[at]
    }

    pub(super) fn entries_mut(&mut self) -> &mut [TypeEntry<O>] {
        &mut self.entries
    }

    /// The state of a type, if the stream ever asked for it.
    pub(super) fn of_type(&self, type_url: &str) -> Option<&TypeEntry<O>> {
        self.entries.iter().find(|entry| entry.state.type_url.as_str() == type_url)
    }

    /// The same to change it.
    pub(super) fn of_type_mut(&mut self, type_url: &str) -> Option<&mut TypeEntry<O>> {
        self.entries.iter_mut().find(|entry| entry.state.type_url.as_str() == type_url)
    }

    pub(super) fn endpoints(&mut self) -> Option<&mut TypeEntry<O>> {
        self.of_type_mut(xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT)
    }

    /// S34: the other streams of the client, too, send the endpoints of clusters that were sent.
    pub(super) fn owe_endpoints(&mut self, names: &[ResourceName]) {
        // On one stream for all a client asks for them before it ACKs the clusters.
        let is_alone = self.endpoints().is_some();
        if let Some(seat) = self.seat.as_ref().filter(|_| !names.is_empty() && !is_alone) {
            seat.owe_endpoints(names);
        }
    }

    /// Gives each type its turn until one has something to send: of several requests only the
    /// newest is answered (S9).
    pub(super) fn next(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        respond: impl FnMut(&mut Self, usize) -> Result<Option<Response>, StreamError>,
    ) -> Next {
        self.entries.iter_mut().for_each(|entry| entry.state.note_clean());
        let group = self.seat().map(|seat| seat.group().clone());
        let _deciding = group.as_ref().map(ClientGroup::begin_deciding);
        if let Some(seat) = &self.seat {
            if group.is_some() {
                seat.set_waiting(true);
            }
            let owed = seat.take_endpoints();
            if let Some(TypeEntry { state, owed: answers }) = self.endpoints().filter(|_| !owed.is_empty())
                && state.is_answered()
            {
                answers.add_endpoints(owed.into_iter().filter(|name| state.subscription.covers(name)), now);
            }
        }
        let next = self.next_in_order(now, snapshot, respond);
        self.entries.iter_mut().for_each(|entry| entry.state.publish(snapshot));
        if let Some(seat) = &self.seat {
            let mut states = self.entries.iter_mut().map(|entry| &mut entry.state);
            if seat.group().is_tied() || states.any(|state| state.is_unpublished) {
                seat.publish(self.entries.iter_mut().map(|entry| &mut entry.state));
            }
            if group.is_some() {
                let mut states = self.entries.iter().map(|entry| &entry.state);
                seat.set_waiting(states.any(|state| state.is_behind(snapshot) || !state.retained.is_empty()));
            }
        }
        next
    }

    fn next_in_order(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        mut respond: impl FnMut(&mut Self, usize) -> Result<Option<Response>, StreamError>,
    ) -> Next {
        // A type that turns out to lack nothing may be what one before it waits for (S33).
        let mut next = Next::Wait { until: None };
        for _ in 0..=self.entries.len() {
            let is_decided;
            (next, is_decided) = self.pass(now, snapshot, &mut respond);
            if is_decided {
                break;
            }
        }
        next
    }

    /// Looks at each type once, until one has something to send; the other half is false when one
    /// turned out to lack nothing though something was due.
    fn pass(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        respond: &mut impl FnMut(&mut Self, usize) -> Result<Option<Response>, StreamError>,
    ) -> (Next, bool) {
        let mut is_decided = true;
        let mut until = None;
        for at in 0..self.entries.len() {
            let state = &mut self.entries[at].state;
            // G13: before the first sync nothing is known, so only who asks for nothing can be
            // answered.
            if state.membership.is_some() && !snapshot.is_synced() {
                match self.unknown(at, now) {
                    Ok(response) => return (Next::Send(response), true),
                    Err(gate) => until = gate.earlier(until),
                }
                continue;
            }
            if !state.unknown.is_empty() {
                state.unknown.clear();
            }
            let (type_url, last_nonce) = (&state.type_url, &mut self.last_nonce);
            let part = state.responses.next_part(now, || {
                *last_nonce += 1;
                Nonce::nth(*last_nonce)
            });
            if let Some((nonce, ResponsePart { version, bodies, .. })) = part {
                let continuation = Self::continuation(state.responses.has_parts());
                let response = Response { type_url: type_url.clone(), nonce, version, bodies, continuation };
                return (Next::Send(response), true);
            }
            if let Some(gate) = self.defer_unanswerable(at, now, snapshot) {
                until = gate.earlier(until);
                continue;
            }
            let state = &mut self.entries[at].state;
            state.refresh(snapshot);
            state.time_refresh(now, snapshot);
            if O::IS_SOTW && state.known.full_state && snapshot.is_on_demand() && state.is_torn(snapshot) {
                until = self.waits_until(at).into_iter().chain(until).min();
                continue;
            }
            if self.entries[at].owed.has_deferred() && !self.must_wait(at, now, snapshot) {
                self.entries[at].owed.resume();
            }
            let mut gate = self.due(at, now, snapshot);
            while gate == Gate::Open {
                match respond(self, at) {
                    Ok(Some(response)) => return (Next::Send(response), true),
                    Ok(None) => {
                        is_decided = false;
                        gate = self.due(at, now, snapshot);
                    }
                    Err(error) => return (Next::Close(error), true),
                }
            }
            until = gate.earlier(self.waits_until(at).into_iter().chain(until).min());
        }
        (Next::Wait { until }, is_decided)
    }

    /// Until when no type is due; `None` when one may be.
    pub(super) fn until_due(&mut self, now: Duration, snapshot: &Snapshot) -> Option<Option<Duration>> {
        if !snapshot.is_synced() {
            return None;
        }
        let mut until = None;
        for at in 0..self.entries.len() {
            let TypeEntry { state, owed } = &mut self.entries[at];
            if state.responses.has_parts() || owed.has_deferred() || snapshot.is_on_demand() {
                return None;
            }
            state.refresh(snapshot);
            state.time_refresh(now, snapshot);
            match self.due(at, now, snapshot) {
                Gate::Open => return None,
                gate => until = gate.earlier(until),
            }
        }
        Some(until)
    }

    /// G13: after a while the client is told of each name that nobody knows yet. What it has it
    /// keeps, and it is answered as soon as somebody does.
    fn unknown(&mut self, at: usize, now: Duration) -> Result<Response, Gate> {
        let TypeEntry { state, owed } = &mut self.entries[at];
        // No full state can be told, and one without resources deletes.
        if O::IS_SOTW && state.known.full_state {
            return Err(Gate::Shut);
        }
        state.unknown.retain(|name, _| state.subscription.lists_name(name));
        for name in owed.names().filter(|name| state.subscription.lists_name(name)) {
            if !state.unknown.contains_key(name) {
                state.unknown.insert(name.clone(), (now, false));
            }
        }
        let wait = self.config.sync_wait;
        let message = format!("{} is not known yet: no source was read", state.type_url.message_name());
        let mut failures = Vec::new();
        let mut gate = Gate::Shut;
        for (name, (since, is_reported)) in
            state.unknown.iter_mut().filter(|(_, (_, is_reported))| !is_reported)
        {
            match Gate::at(*since + wait, now) {
                Gate::Open => {
                    *is_reported = true;
                    failures.push(Failure::new(name.clone(), Code::UNAVAILABLE, message.clone()));
                }
                until => gate = until.earlier(gate.earlier(None)).map_or(Gate::Shut, Gate::Until),
            }
        }
        if failures.is_empty() {
            return Err(gate);
        }
        let type_url = state.type_url.clone();
        let bodies = vec![Arc::new(encode::errors(O::ERRORS_FIELD, state.encoding(), failures.iter()))];
        let nonce = self.next_nonce();
        self.entries[at].state.responses.sent(now, nonce, ResponseContents::nothing(), Revision::ZERO);
        Ok(Response { type_url, nonce, version: Version(0), bodies, continuation: Continuation::None })
    }

    /// Lets go the held removals of a type that may be; their names.
    pub(super) fn release(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Vec<ResourceKey> {
        if self.entries[at].state.retained.is_empty() {
            return Vec::new();
        }
        let release = self.removals(at, snapshot);
        self.entries[at].state.release(&release, self.config.removal_grace, now, snapshot)
    }

    /// Whether an answer must leave out what else is new, because that waits for other types (S33).
    pub(super) fn must_wait(&self, at: usize, now: Duration, snapshot: &Snapshot) -> bool {
        let state = &self.entries[at].state;
        state.is_answered() && state.is_behind(snapshot) && self.additions(at, now, snapshot) != Gate::Open
    }

    /// Books a response: the resources, and what goes besides. G10, D32: one that is too large goes
    /// in parts, but a full state cannot, as a part would delete the rest (T39).
    pub(super) fn send(
        &mut self,
        at: usize,
        now: Duration,
        version: Version,
        (resources, besides): (Arc<Body>, Vec<Arc<Body>>),
        contents: ResponseContents,
        snapshot: &Snapshot,
    ) -> Response {
        let nonce = self.next_nonce();
        let state = &mut self.entries[at].state;
        let type_url = state.type_url.clone();
        let is_whole = matches!(contents, ResponseContents::FullState);
        let mut parts = if is_whole { vec![(Arc::clone(&resources), None)] } else { resources.parts() };
        if parts.len() == 1 {
            state.sent(now, nonce, contents, snapshot);
            let bodies = std::iter::once(resources).chain(besides).collect();
            return Response { type_url, nonce, version, bodies, continuation: Continuation::None };
        }
        let (first, mut after) = parts.remove(0);
        let first_contents = contents.part(None, after.as_ref());
        let mut later_parts = Vec::new();
        for (body, until) in parts {
            let part_contents = contents.part(after.as_ref(), until.as_ref());
            later_parts.push(ResponsePart::new(version, vec![body], part_contents));
            after = until;
        }
        if let Some(last) = later_parts.last_mut() {
            last.bodies.extend(besides);
        }
        state.sent_first(now, nonce, first_contents, later_parts, snapshot);
        Response { type_url, nonce, version, bodies: vec![first], continuation: Self::continuation(true) }
    }

    /// In SotW the version is what a client gives back, and a part there is a whole of what it
    /// names.
    fn continuation(has_parts: bool) -> Continuation {
        if has_parts && !O::IS_SOTW { Continuation::Part } else { Continuation::None }
    }

    /// A nonce that was not used on this stream (S2, D7).
    pub(super) fn next_nonce(&mut self) -> Nonce {
        self.last_nonce += 1;
        Nonce::nth(self.last_nonce)
    }

    /// Takes out what no resource can match: names that none can have, and keys that no constraints
    /// can (W2, G8).
    ///
    /// # Errors
    /// The stream ends when there are very many of them, and where a locator has too many
    /// parameters (G9).
    pub(super) fn take_invalid(
        &mut self,
        at: usize,
        requested: &mut Requested,
    ) -> Result<Vec<Failure>, StreamError> {
        if requested.is_empty() {
            return Ok(Vec::new());
        }
        let mut failures = self.entries[at].state.read_names(requested);
        if let Some(access) = &self.access {
            failures.extend(self.entries[at].state.take_denied(access, requested));
        }
        let type_url = &self.entries[at].state.type_url;
        let limit = self.config.parameters_limit;
        let too_many = requested.locators.sets().find(|(parameters, _)| parameters.len() > limit);
        if let Some((parameters, names)) = too_many {
            let (name, found) = (names.as_slice()[0].clone(), parameters.len());
            return Err(StreamError::TooManyParameters { type_url: type_url.clone(), name, found, limit });
        }
        requested.edit_names(|names| {
            let is_valid = |name: &&ResourceName| can_be(name.as_str());
            let invalid = names.iter().filter(|name| !is_valid(name)).cloned();
            failures.extend(invalid.map(|name| Failure::of_name(type_url, name)));
            names.iter().filter(is_valid).cloned().collect()
        });
        // An empty key is one that constraints can have.
        let has_control = |text: &str| text.bytes().any(|byte| byte < b' ');
        requested.locators.retain(|parameters, names| {
            if !parameters.iter().any(|(key, _)| has_control(key)) {
                return names.clone();
            }
            let names = names.iter().cloned();
            failures.extend(names.map(|name| Failure::of_key(type_url, name)));
            NameSet::default()
        });
        if self.entries[at].state.is_on_demand {
            requested.locators = requested.locators.bound();
        }
        let found = failures.iter().filter(|failure| failure.code == Code::INVALID_ARGUMENT).count();
        let limit = REFUSED_LIMIT;
        if found > limit {
            return Err(StreamError::TooManyInvalidNames { type_url: type_url.clone(), found, limit });
        }
        Ok(failures)
    }

    fn request_type(&self, type_url: &str) -> Result<TypeUrl, StreamError> {
        match &self.service {
            Service::Aggregated if type_url.is_empty() => Err(StreamError::MissingTypeUrl),
            Service::Aggregated => Ok(type_url.into()),
            // S12, D31.
            Service::Single(expected) if type_url.is_empty() || type_url == expected.as_str() => {
                Ok(expected.clone())
            }
            Service::Single(expected) => {
                Err(StreamError::WrongTypeUrl { expected: expected.clone(), found: type_url.into() })
            }
        }
    }

    /// Whether a response of a type is due. What was asked for comes first; pushes keep the order
    /// of S33.
    fn due(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Gate {
        let TypeEntry { state, owed } = &self.entries[at];
        let answer = owed.due().map_or(Gate::Shut, |due| Gate::at(due, now));
        if answer == Gate::Open || state.membership.is_none() {
            return answer;
        }
        let is_behind = state.is_behind(snapshot);
        let push = if is_behind {
            self.additions(at, now, snapshot)
        } else if state.retained.is_empty() {
            Gate::Shut
        } else {
            let release = self.removals(at, snapshot);
            let release_at = state.release_at(&release, self.config.removal_grace, snapshot);
            release_at.map_or(Gate::Shut, |time| Gate::at(time, now))
        };
        let state = &mut self.entries[at].state;
        let push = match state.responses.wait_until(now, &self.config) {
            Some(until) if push == Gate::Open => Gate::Until(until),
            _ => push,
        };
        state.waiting_since = is_behind.then(|| state.waiting_since.unwrap_or(now));
        let refresh = state.refresh_at.map_or(Gate::Shut, |at| Gate::at(at, now));
        match answer.earlier(push.earlier(refresh.earlier(None))) {
            _ if push == Gate::Open || refresh == Gate::Open => Gate::Open,
            Some(until) => Gate::Until(until),
            None => Gate::Shut,
        }
    }

    fn additions(&self, at: usize, now: Duration, snapshot: &Snapshot) -> Gate {
        let state = &self.entries[at].state;
        let types = state.known.waits_for;
        let gate = match order::additions(state, now, &self.config, self.others(types, snapshot)) {
            Gate::Until(_) if self.is_unrelated(state, types, snapshot) => Gate::Open,
            gate => gate,
        };
        let Some(seat) = self.seat().filter(|_| gate == Gate::Open && !types.is_empty()) else {
            return gate;
        };
        let patience = match seat.awaits_endpoints() {
            None => return gate,
            Some(Awaited::Surely) if self.is_unrelated(state, types, snapshot) => return gate,
            Some(Awaited::Surely) => self.config.order_wait,
            Some(Awaited::Perhaps) => self.config.ack_wait,
        };
        let gate = Gate::at(state.waiting_since.unwrap_or(now) + patience, now);
        if gate == Gate::Open {
            seat.forget_awaited();
        }
        gate
    }

    /// Whether what is new of a type names nothing of these that the client has yet to take. A
    /// listener names some through routes.
    fn is_unrelated(&self, state: &TypeState, types: &[&str], snapshot: &Snapshot) -> bool {
        let is_relevant = |type_url: &str| types.contains(&type_url) || type_url == ROUTE_CONFIGURATION;
        let own = self.entries.iter().map(|entry| &entry.state);
        let own = own.filter(|other| is_relevant(other.type_url.as_str()));
        let mut targets: Vec<_> = own.filter_map(|other| TargetStatus::of(other, snapshot)).collect();
        if let Some(seat) = self.seat() {
            targets.extend(seat.target_statuses(is_relevant, snapshot));
        }
        order::is_unrelated(state, &targets, snapshot)
    }

    fn removals(&self, at: usize, snapshot: &Snapshot) -> Release {
        let state = &self.entries[at].state;
        let types = state.known.referrers;
        let own = self.entries.iter().map(|entry| &entry.state);
        let own = own.filter(|other| types.contains(&other.type_url.as_str()));
        let mut referrers: Vec<_> = own.filter_map(Referrer::of).collect();
        if let Some(seat) = self.seat() {
            referrers.extend(seat.referrers(types));
        }
        order::removals(state, &referrers, || self.unnamed(at, snapshot), snapshot)
    }

    /// When the client was sent the end of what named the removals that a type holds: only where no
    /// other stream of it can tell.
    fn unnamed(&self, at: usize, snapshot: &Snapshot) -> Unnamed {
        let state = &self.entries[at].state;
        let types = state.known.referrers;
        if self.seat().is_some_and(|seat| !seat.referrers(types).is_empty()) {
            return Unnamed::new();
        }
        let own = self.entries.iter().map(|entry| &entry.state);
        let referrers: Vec<_> = own.filter(|other| types.contains(&other.type_url.as_str())).collect();
        order::unnamed(state, &referrers, snapshot)
    }

    /// How far the client is with these types, on this stream and its others.
    fn others(
        &self,
        types: &'static [&'static str],
        snapshot: &Snapshot,
    ) -> impl Iterator<Item = OrderStatus> {
        let own = self.entries.iter().map(|entry| &entry.state);
        let own = own.filter(|other| types.contains(&other.type_url.as_str()));
        let own = own.map(|state| OrderStatus::of(state, snapshot));
        let seat = self.seat().filter(|_| !types.is_empty());
        own.chain(seat.map(|seat| seat.others(types, snapshot)).unwrap_or_default())
    }
}

/// Names of one request that are answered though they cannot exist (G8).
const REFUSED_LIMIT: usize = 100;
