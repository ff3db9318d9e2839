//! The streams of each upstream, type by type: which types its main stream subscribes to, and which
//! types have a stream of their own.
//!
//! [`Health`] decides which types the stream of a route may subscribe to. The shared streams and those of nodes are
//! main streams: when a type ends one, the proxy subscribes to the type on a [side
//! stream](RouteKind::SideStream), once for each locator. Resources of a side stream pass through to
//! clients and are not kept. If the side stream ends too, clients get its status (G4). When another
//! server replaces the upstream and may know the type, the main stream subscribes to the type
//! again. Resources of the side stream stay until the main stream has its responses, so no client
//! is sent a resource twice.
//!
//! A stream for parameters [alone](RouteKind::Alone) has no side streams: clients get the status of the type (G4), and
//! the stream itself subscribes to the type again later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::route::Route;
use super::upstreams::UpstreamClient;
use super::{Notice, Proxy};
use crate::cache::{LocatorStatus, Transaction};
use crate::client::health::{Event, Health, Status, SyncState};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::known_type::KnownType;
use crate::name::TypeUrl;
use crate::resource::VariantId;
use crate::variants::Variants;

/// The streams of one route.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// `None` for a side stream.
    health: Option<Health>,
    /// The server of the open stream, and the number of this stream.
    stream: Option<(usize, u64)>,
    /// When it was opened.
    opened_at: Duration,
    types: BTreeMap<TypeUrl, SubscribedType>,
    /// The types that the open stream ever had a subscription to, and those that have a side stream. A server does
    /// not forget a type before the stream ends, and ends a stream with too many.
    ever: BTreeSet<TypeUrl>,
    /// The types to subscribe to may have changed.
    pub(super) is_changed: bool,
    /// The status of the last stream, until another stream has a response.
    ended: Option<Status>,
    /// Only for a side stream: it uses the service of its type, which says nothing about the main
    /// stream.
    is_own_service: bool,
    /// Only for a side stream: the first stream that had a response, or ended. A later stream may lead to another
    /// server.
    first_stream: Option<u64>,
}

/// What a response says of its type.
pub(super) enum TypeAnswer {
    Served,
    Refused(Status),
    /// It refuses some names. The upstream may be a proxy of several control planes, of which one does not serve
    /// the type.
    RefusedInPart,
}

/// A type with subscriptions.
#[derive(Debug, Default)]
struct SubscribedType {
    subscriptions: usize,
    /// It has had a response, on this stream or before.
    is_known: bool,
    /// Since when a response is due: since the first subscription, or the end of the last stream.
    due_since: Option<Duration>,
}

impl StreamState {
    /// Whether the stream may have this type, if it may have so many. Clients may make up types without end: types
    /// outside of the protocol leave room for those in it.
    pub(super) fn has_room_for(&self, type_url: &TypeUrl, limit: usize) -> bool {
        if self.ever.contains(type_url) {
            return true;
        }
        let is_known = |type_url: &TypeUrl| KnownType::is_known(type_url.as_str());
        let others = self.ever.iter().filter(|other| !is_known(other)).count();
        let reserved = KnownType::COUNT.min(limit / 2);
        self.ever.len() < limit && (is_known(type_url) || others < limit - reserved)
    }

    /// Whether a stream is open.
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// A stream opened or ended: only what is subscribed to now counts.
    fn renew(&mut self) {
        let on_side_streams = self.health.iter().flat_map(Health::isolated);
        self.ever = self.types.keys().chain(on_side_streams).cloned().collect();
    }

    /// How many subscriptions the type has.
    pub(super) fn subscriptions(&self, type_url: &TypeUrl) -> usize {
        self.types.get(type_url).map_or(0, |subscribed| subscribed.subscriptions)
    }

    pub(super) fn new(route: &Route, resource_timeout: Duration) -> Self {
        Self {
            health: route.side_stream_type().is_none().then(|| Health::new(resource_timeout)),
            ..Self::default()
        }
    }

    /// When a stream can prove that the upstream serves the type: a stream that is being made, or
    /// was opened a short while ago.
    fn proof_at(&self, now: Duration, timeout: Duration) -> Option<Duration> {
        match (self.stream, self.first_stream) {
            (None, _) => Some(now + timeout),
            (Some((_, stream)), Some(first)) if stream > first && !self.is_own_service => {
                Some(self.opened_at + timeout).filter(|at| *at > now)
            }
            _ => None,
        }
    }

    /// Whether the stream has been open for the timeout. A type that had a response before needs no
    /// other one then: in delta the upstream may have nothing new (D21).
    fn is_settled(&self, now: Duration, timeout: Duration) -> bool {
        self.stream.is_some() && self.opened_at + timeout <= now
    }

    /// The stream ended: a response of each type is due.
    fn on_end(&mut self, now: Duration, timeout: Duration) {
        let is_settled = self.is_settled(now, timeout);
        for subscribed in self.types.values_mut() {
            if subscribed.is_known && is_settled {
                subscribed.due_since = None;
            }
            subscribed.due_since.get_or_insert(now);
        }
    }

    /// Whether the open stream is newer than the first one that had a response, and has been open
    /// for the timeout. In delta the upstream may have nothing to send (D21).
    fn has_outlived_timeout(&self, now: Duration, timeout: Duration) -> bool {
        let is_new = self.stream.zip(self.first_stream).is_some_and(|((_, stream), first)| stream > first);
        is_new && !self.is_own_service && self.opened_at + timeout <= now
    }
}

impl Proxy {
    /// The states of the types of a stream; `None` for a side stream, and a route without subscriptions.
    #[must_use]
    pub fn health(&self, route: &Route) -> Option<&Health> {
        self.upstreams.get(route)?.state.health.as_ref()
    }

    /// Since when a response of the upstream is due: since a stream ended, or since the first
    /// subscription of a type that has had no response. `None` if none is due. While no stream is
    /// open, the cached resources are as old as this.
    ///
    /// After a new stream has been open for the [resource
    /// timeout](super::ProxyConfig::resource_timeout), only types without any response are counted,
    /// because the upstream may have nothing new (D21).
    #[must_use]
    pub fn response_due_since(&self, now: Duration, route: &Route) -> Option<Duration> {
        let state = &self.upstreams.get(route)?.state;
        let is_settled = state.is_settled(now, self.config.resource_timeout);
        let is_rejected = |type_url: &TypeUrl| {
            let health = state.health.as_ref();
            matches!(health.and_then(|health| health.state(type_url)), Some(SyncState::Rejected(..)))
        };
        let due = state.types.iter().filter(|(type_url, subscribed)| {
            !(subscribed.is_known && is_settled || state.stream.is_some() && is_rejected(type_url))
        });
        due.filter_map(|(_, subscribed)| subscribed.due_since).min()
    }

    /// Whether a type has a side stream.
    pub(super) fn is_on_side_stream(&self, main: &Route, type_url: &TypeUrl) -> bool {
        main.is_main() && self.health(main).is_some_and(|health| health.probe_at(type_url).is_some())
    }

    /// The stream of a server ended, with the status of the server if it sent one. To be called
    /// before the [`change`](Self::change) of its client for the same event.
    pub fn on_stream_end(&mut self, now: Duration, route: &Route, server: usize, status: Option<Status>) {
        // Clients were told the status of the main stream. A missing service answers without a text.
        let told = route.side_stream_type().and_then(|type_url| {
            let health = self.health(&route.of_health())?;
            health.refusal(type_url).map(refusal_for_clients)
        });
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        if state.stream.is_some_and(|(current, _)| current != server) {
            return;
        }
        state.on_end(now, self.config.resource_timeout);
        let stream = state.stream.take();
        // The type was refused on its side stream too. If a later stream has a response, its server
        // knows more types.
        let refusal = status.as_ref().filter(|status| status.may_mean_a_type());
        if refusal.is_some() {
            let refused = stream.map(|(_, stream)| stream);
            state.first_stream = state.first_stream.or(refused);
        }
        // G4: what came on it before goes too. It may alternate with the service of its type, which is refused as well
        // if this is the second end in a row.
        let was_refused = state.ended.as_ref().is_some_and(Status::may_mean_a_type);
        if let Some((type_url, status)) = route.side_stream_type().zip(refusal).filter(|_| was_refused) {
            let told = told.unwrap_or_else(|| refusal_for_clients(status));
            upstream.client.refuse_type(server, type_url, told);
        }
        state.ended.clone_from(&status);
        state.is_changed = true;
        let (mut events, mut culprit) = (Vec::new(), None);
        if let Some(health) = &mut state.health {
            let before: BTreeSet<_> = health.isolated().cloned().collect();
            events = health.on_end(now, status);
            culprit = health.isolated().find(|type_url| !before.contains(*type_url)).cloned();
            if let Some(type_url) = culprit.as_ref().filter(|_| !route.is_main()) {
                let status = health.refusal(type_url).map(refusal_for_clients).expect("it was isolated now");
                upstream.client.refuse_type(server, type_url, status);
            }
            if health.explains_end() {
                upstream.client.explain_end(server, health.is_searching());
            }
        }
        self.on_health_events(route, events);
        // The side stream starts now: the Init of the next stream comes only after the resource
        // timeout if the upstream has nothing new (D21).
        culprit.inspect(|type_url| self.reroute_rejected(route, type_url));
        if let Some(type_url) = route.side_stream_type() {
            self.reroute(type_url);
        }
    }

    /// The next side stream of a route uses the service of its type, or the aggregated service.
    pub fn on_own_service(&mut self, side_stream: &Route, is_own_service: bool) {
        if let Some(upstream) = self.upstreams.get_mut(side_stream) {
            upstream.state.is_own_service = is_own_service;
        }
    }

    /// Notes which stream of a client is open after an event.
    pub(super) fn follow_streams(&mut self, now: Duration, route: &Route) {
        let Some(UpstreamClient { client, state, without_room, .. }) = self.upstreams.get_mut(route) else {
            return;
        };
        let stream = (0..client.servers()).find_map(|server| Some((server, client.stream(server)?)));
        let mut events = Vec::new();
        let is_open = stream.is_some() && stream != state.stream;
        if stream != state.stream {
            if state.stream.is_some() {
                state.on_end(now, self.config.resource_timeout);
            }
            let ended = state.stream.take();
            // The next stream may lead to another server, also if this one had no response.
            state.first_stream = state.first_stream.or_else(|| ended.map(|(_, stream)| stream));
            state.is_changed = true;
            if let Some(health) = &mut state.health {
                if ended.is_some() {
                    events.extend(health.on_end(now, None));
                }
                if stream.is_some() {
                    events.extend(health.on_open(now));
                }
            }
            (state.stream, state.opened_at) = (stream, now);
            state.renew();
            self.pending.begun.extend(without_room.take_all());
        }
        self.on_health_events(route, events);
        if is_open {
            self.note_subscribed(now, route);
            if let Some(type_url) = route.side_stream_type() {
                self.expect_probe(now, &route.of_health(), type_url);
            }
        }
    }

    /// Awaits what the side stream of a type proves, if it may lead to an upstream that knows the
    /// type. Returns whether it may.
    fn expect_probe(&mut self, now: Duration, main: &Route, type_url: &TypeUrl) -> bool {
        let side_stream = self.upstreams.get(&main.side_stream(type_url));
        let proof_at = side_stream.and_then(|of| of.state.proof_at(now, self.config.resource_timeout));
        let health = self.upstreams.get_mut(main).and_then(|main| main.state.health.as_mut());
        health.zip(proof_at).into_iter().for_each(|(health, at)| health.probe_next(type_url, at));
        proof_at.is_some()
    }

    /// Subscriptions that the stream may have go out as soon as the transport has room.
    fn note_subscribed(&mut self, now: Duration, route: &Route) {
        let Some(UpstreamClient { client, state, .. }) = self.upstreams.get_mut(route) else { return };
        let Some(health) = &mut state.health else { return };
        for type_url in health.to_subscribe().cloned().collect::<Vec<_>>() {
            health.on_subscribe(now, &type_url, client.brings_version(&type_url));
        }
    }

    /// A response of a type came.
    pub(super) fn on_answer(&mut self, now: Duration, route: &Route, type_url: &TypeUrl, answer: TypeAnswer) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        state.ended = None;
        if let Some(subscribed) = state.types.get_mut(type_url) {
            (subscribed.is_known, subscribed.due_since) = (true, None);
        }
        let stream = state.stream.map_or(0, |(_, stream)| stream);
        let is_new = stream > *state.first_stream.get_or_insert(stream);
        let is_own_service = state.is_own_service;
        let mut events = Vec::new();
        if let Some(health) = &mut state.health {
            events = match answer {
                TypeAnswer::Served => health.on_response(type_url),
                TypeAnswer::Refused(status) => health.on_rejected(type_url, status),
                TypeAnswer::RefusedInPart => Vec::new(),
            };
            state.is_changed |= health.to_subscribe().next().is_some();
        }
        self.on_health_events(route, events);
        // A new side stream had a response. It may lead to another server, which knows the type.
        if route.side_stream_type().is_some() && is_new && !is_own_service {
            self.on_probe(now, route, type_url, Ok(()));
        }
    }

    fn on_probe(
        &mut self,
        now: Duration,
        side_stream: &Route,
        type_url: &TypeUrl,
        outcome: Result<(), Status>,
    ) {
        if outcome.is_ok()
            && let Some(upstream) = self.upstreams.get_mut(side_stream)
        {
            upstream.state.first_stream = None;
        }
        let main = side_stream.of_health();
        let upstream = self.upstreams.get_mut(&main);
        let Some(state) = upstream.map(|upstream| &mut upstream.state) else { return };
        state.is_changed = true;
        let health = state.health.as_mut();
        let events = health.map(|health| health.on_probe(now, type_url, outcome)).unwrap_or_default();
        self.on_health_events(&main, events);
        self.reroute(type_url);
    }

    /// Notes changed states of types.
    fn on_health_events(&mut self, route: &Route, events: Vec<Event>) {
        for event in events {
            let types: Vec<_> = match &event {
                Event::Init(init) => init.rejected.keys().cloned().collect(),
                Event::Reclassified { type_url, .. } => vec![type_url.clone()],
            };
            for type_url in types {
                self.reroute_rejected(route, &type_url);
            }
            if let Some(upstream) = self.upstreams.get_mut(route) {
                upstream.state.is_changed = true;
            }
            self.notices.push(Notice::Health { route: route.clone(), event });
        }
    }

    /// As [`reroute`](Self::reroute), for a type that may be isolated now: its side stream stays.
    fn reroute_rejected(&mut self, main: &Route, type_url: &TypeUrl) {
        if self.is_on_side_stream(main, type_url) {
            self.keep_side_stream(&main.side_stream(type_url));
        }
        self.reroute(type_url);
    }

    /// The routes of the subscriptions of a type may have changed.
    fn reroute(&mut self, type_url: &TypeUrl) {
        for (name, of_name) in self.names.of_type_mut(type_url) {
            of_name.is_stale = true;
            self.pending.touched.insert((type_url.clone(), name.clone()));
        }
    }

    /// When a type will have been without a response for too long, or has its next probe.
    pub(super) fn health_deadline(&self) -> Option<Duration> {
        let healths = self.upstreams.values().filter_map(|upstream| upstream.state.health.as_ref());
        let of_health = |health: &Health| {
            let probes = health.states().filter_map(|(type_url, _)| health.probe_at(type_url));
            probes.chain(health.next_deadline()).min()
        };
        healths.filter_map(of_health).min()
    }

    /// Handles the timers that are due.
    pub(super) fn health_timeout(&mut self, now: Duration) {
        for route in self.upstreams.keys().cloned().collect::<Vec<_>>() {
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            let Some(health) = &mut upstream.state.health else { continue };
            let events = health.on_timeout(now);
            upstream.state.is_changed |= health.to_subscribe().next().is_some();
            let is_due = |type_url: &&TypeUrl| health.probe_at(type_url).is_some_and(|at| at <= now);
            let due: Vec<_> = health.states().map(|(type_url, _)| type_url).filter(is_due).cloned().collect();
            self.on_health_events(&route, events);
            for type_url in due {
                if !route.is_main() {
                    self.on_probe(now, &route, &type_url, Ok(()));
                    continue;
                }
                if self.expect_probe(now, &route, &type_url) {
                    continue;
                }
                let side_stream = route.side_stream(&type_url);
                if self.subscriptions_of(&route, &type_url) + self.subscriptions_of(&side_stream, &type_url)
                    == 0
                {
                    self.forget_type(&route, &type_url);
                    continue;
                }
                let state = self.upstreams.get(&side_stream).map(|upstream| &upstream.state);
                let timeout = self.config.resource_timeout;
                let outcome = match state.is_some_and(|state| state.has_outlived_timeout(now, timeout)) {
                    true => Ok(()),
                    // The same stream proves nothing: the type would end the main stream again.
                    false => Err(Status { code: Code::UNAVAILABLE, message: "nothing changed".into() }),
                };
                self.on_probe(now, &side_stream, &type_url, outcome);
            }
        }
    }

    /// The client gets a watch of this type.
    pub(super) fn request_type(&mut self, now: Duration, route: &Route, type_url: &TypeUrl) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        state.ever.insert(type_url.clone());
        let subscribed = state.types.entry(type_url.clone()).or_default();
        subscribed.subscriptions += 1;
        if subscribed.subscriptions == 1 {
            subscribed.due_since = Some(now);
        }
        if let Some(health) = &mut state.health {
            health.request(now, type_url);
            state.is_changed = true;
        }
    }

    /// A watch of this type ended.
    pub(super) fn release_type(&mut self, route: &Route, type_url: &TypeUrl) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        let Some(subscribed) = state.types.get_mut(type_url) else { return };
        subscribed.subscriptions -= 1;
        if subscribed.subscriptions > 0 {
            return;
        }
        state.types.remove(type_url);
        if !state.is_open() {
            state.ever.remove(type_url);
        }
        let main = route.of_health();
        // A type with a side stream stays requested as long as a subscription uses the side stream.
        if self.is_on_side_stream(&main, type_url) != route.side_stream_type().is_some() {
            return;
        }
        self.forget_type(&main, type_url);
    }

    fn forget_type(&mut self, main: &Route, type_url: &TypeUrl) {
        let upstream = self.upstreams.get_mut(main);
        if let Some(health) = upstream.and_then(|upstream| upstream.state.health.as_mut()) {
            let events = health.release(type_url);
            self.on_health_events(main, events);
        }
    }

    fn subscriptions_of(&self, route: &Route, type_url: &TypeUrl) -> usize {
        self.upstreams.get(route).map_or(0, |upstream| upstream.state.subscriptions(type_url))
    }

    /// Lets a client subscribe to the types that its stream may have; others are deferred.
    pub(super) fn defer_types(&mut self, now: Duration, route: &Route) {
        let Some(UpstreamClient { client, state, .. }) = self.upstreams.get_mut(route) else { return };
        state.is_changed = false;
        let Some(health) = &mut state.health else { return };
        let types: Vec<_> = health.states().map(|(type_url, _)| type_url.clone()).collect();
        for type_url in types {
            client.defer(&type_url, !health.may_subscribe(&type_url));
        }
        self.note_subscribed(now, route);
    }

    /// The status for locators of a type when the upstream sent none for them (G4).
    pub(super) fn refusal(&self, route: &Route, type_url: &TypeUrl) -> Option<LocatorStatus> {
        let state = &self.upstreams.get(route)?.state;
        let failed = |status: &Status| {
            let Status { code, message } = refusal_for_clients(status);
            LocatorStatus::Failed { code, message }
        };
        if route.side_stream_type().is_some() {
            let rejected = self.health(&route.of_health()).and_then(|health| health.state(type_url));
            return match rejected {
                Some(SyncState::Rejected(_, status)) if state.ended.is_some() => Some(failed(status)),
                _ => None,
            };
        }
        match state.health.as_ref()?.state(type_url)? {
            SyncState::Rejected(_, status) => Some(failed(status)),
            _ => None,
        }
    }

    /// Removes resources of side streams that the main stream did not confirm, once it has all its
    /// responses. Then the side streams are not needed any more.
    pub(super) fn retire_side_streams(&mut self) {
        let retiring = self.upstreams.iter().filter(|(_, upstream)| upstream.is_retiring);
        for side_stream in retiring.map(|(route, _)| route.clone()).collect::<Vec<_>>() {
            let main = side_stream.of_health();
            let Some(type_url) = side_stream.side_stream_type() else { continue };
            let mut subscriptions = self.names.of_type(type_url).flat_map(|(_, name)| &name.upstream);
            if !subscriptions.all(|(id, subscription)| id.0 != main || subscription.is_answered) {
                continue;
            }
            let mut transaction = Transaction::new();
            let snapshot = self.cache.snapshot();
            let stamp = side_stream.relay(&self.cache, &self.config.upstream).stamp;
            // Resources of other nodes, and of single locators, belong to other clients.
            let is_own = |constraints: &Constraints| match &stamp {
                Some(stamp) => constraints == stamp,
                None => !constraints.is_exact(),
            };
            let of_type = snapshot.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
            for variant in of_type.flat_map(|(_, variants)| Variants::iter(variants)) {
                let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
                let id = VariantId { type_url: type_url.clone(), name, constraints };
                let client = self.client(&main);
                if self.authorities.of(&id.name) == main.authority
                    && is_own(&id.constraints)
                    && client.is_none_or(|client| !client.has_variant(&id))
                {
                    transaction.remove(id);
                }
            }
            self.cache
                .commit(transaction)
                .expect("a transaction that removes variants leaves no two that overlap");
            self.upstreams.remove(&side_stream);
            self.pending.changed.insert(side_stream);
        }
    }
}

/// UNIMPLEMENTED is what the next proxy understands: other codes in errors are about a name (G4, D28).
fn refusal_for_clients(status: &Status) -> Status {
    let message = match status.code {
        Code::UNIMPLEMENTED => Arc::clone(&status.message),
        _ => status.to_string().into(),
    };
    Status { code: Code::UNIMPLEMENTED, message }
}
