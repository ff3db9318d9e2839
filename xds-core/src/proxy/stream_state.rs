//! How each upstream stands, type by type: which types its stream is asked for, and which go on a
//! stream of their own.
//!
//! The stream of a route is its main stream; [`Health`] says what of it can be asked. A type that
//! ends it is asked for on a stream [aside](Route::SideStream), by each locator, and nothing of it is
//! kept: what the upstream serves there passes through, and when that stream ends, too, clients are
//! told its status (G4). When the upstream is replaced by one that knows the type, the main stream
//! is asked again, and what came aside stays until that is answered: no client is sent anything
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::health::{Event, Health, Status, SyncState};
use super::route::Route;
use super::{Key, Notice, Proxy};
use crate::cache::{LocatorStatus, Transaction};
use crate::client::Client;
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::TypeUrl;
use crate::resource::VariantId;
use crate::variants::Variants;

/// The streams of one route.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// Of a main stream; none of what goes aside or alone.
    health: Option<Health>,
    /// The server whose stream stands, and which stream of it.
    stream: Option<(usize, u64)>,
    /// Since when.
    opened_at: Duration,
    /// How many things are watched of each type.
    types: BTreeMap<TypeUrl, usize>,
    /// Which types may be asked for may have changed.
    is_changed: bool,
    /// Why the last stream ended, as long as there is no other.
    ended: Option<Status>,
    /// When a response came last.
    heard_at: Option<Duration>,
    /// Of a route aside: its stream is one of the service of the type, which says nothing of the
    /// main stream.
    is_own_service: bool,
    /// Of a route aside: the first stream that was answered or refused. A later one may lead to
    /// another server.
    first_stream: Option<u64>,
}

impl StreamState {
    pub(super) fn new(route: &Route, resource_timeout: Duration) -> Self {
        let is_main = matches!(route, Route::Shared | Route::Node(_));
        Self { health: is_main.then(|| Health::new(resource_timeout)), ..Self::default() }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// When a stream that is being made, or was made a short while ago, may show something.
    fn proof_at(&self, now: Duration, timeout: Duration) -> Option<Duration> {
        match (self.stream, self.first_stream) {
            (None, _) => Some(now + timeout),
            (Some((_, stream)), Some(first)) if stream > first && !self.is_own_service => {
                Some(self.opened_at + timeout).filter(|at| *at > now)
            }
            _ => None,
        }
    }

    /// Whether a stream stands that was made after the one that answered first, and long enough. In
    /// delta there may be nothing to say (D21).
    fn has_outlived_timeout(&self, now: Duration, timeout: Duration) -> bool {
        let is_new = self.stream.zip(self.first_stream).is_some_and(|((_, stream), first)| stream > first);
        is_new && !self.is_own_service && self.opened_at + timeout <= now
    }
}

impl Proxy {
    /// How the types of a main stream stand; `None` where nothing was asked by this route.
    #[must_use]
    pub fn health(&self, route: &Route) -> Option<&Health> {
        self.upstreams.get(route)?.state.health.as_ref()
    }

    /// When a response came last by a route; what is at hand is as old as that, where no stream
    /// stands.
    #[must_use]
    pub fn heard_at(&self, route: &Route) -> Option<Duration> {
        self.upstreams.get(route)?.state.heard_at
    }

    /// Whether a type is asked for aside of its main stream.
    pub(super) fn is_on_side_stream(&self, main: &Route, type_url: &TypeUrl) -> bool {
        self.health(main).is_some_and(|health| health.probe_at(type_url).is_some())
    }

    /// The stream of a server ended, with the status that it gave, if it gave one. To be told
    /// before [`on_effects`](Self::on_effects) of that.
    pub fn on_stream_end(&mut self, now: Duration, route: &Route, server: usize, status: Option<Status>) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        if state.stream.is_some_and(|(current, _)| current != server) {
            return;
        }
        let stream = state.stream.take();
        // Refused also alone: who answers a later stream knows more.
        if status.as_ref().is_some_and(Status::may_mean_a_type) {
            let refused = stream.map(|(_, stream)| stream);
            state.first_stream = state.first_stream.or(refused);
        }
        state.ended.clone_from(&status);
        state.is_changed = true;
        let events = state.health.as_mut().map(|health| health.on_end(now, status)).unwrap_or_default();
        let mut touched = self.on_health_events(route, events);
        if let Route::SideStream { type_url, .. } = route {
            touched.extend(self.reroute(type_url));
        }
        self.match_names(now, touched);
    }

    /// The next stream of a route aside is opened on the service of the type, or on the aggregated
    /// one.
    pub fn on_own_service(&mut self, aside: &Route, is_own_service: bool) {
        if let Some(upstream) = self.upstreams.get_mut(aside) {
            upstream.state.is_own_service = is_own_service;
        }
    }

    /// Which stream of a client stands after an event; the names that have to be looked at again.
    pub(super) fn follow_streams(&mut self, now: Duration, route: &Route, client: &Client) -> BTreeSet<Key> {
        let Some(upstream) = self.upstreams.get_mut(route) else { return BTreeSet::new() };
        let state = &mut upstream.state;
        let stream = (0..client.servers()).find_map(|server| Some((server, client.stream(server)?)));
        let mut events = Vec::new();
        let is_open = stream.is_some() && stream != state.stream;
        if stream != state.stream {
            let ended = state.stream.take().is_some();
            state.is_changed = true;
            if let Some(health) = &mut state.health {
                if ended {
                    events.extend(health.on_end(now, None));
                }
                if stream.is_some() {
                    events.extend(health.on_open(now));
                }
            }
            (state.stream, state.opened_at) = (stream, now);
        }
        let touched = self.on_health_events(route, events);
        if is_open {
            self.note_subscribed(now, route);
            self.expect_probe(now, route);
        }
        touched
    }

    /// A stream aside was made anew: that may be to an upstream that knows the type.
    fn expect_probe(&mut self, now: Duration, aside: &Route) {
        let Route::SideStream { type_url, .. } = aside else { return };
        let timeout = self.config.resource_timeout;
        let proof_at = self.upstreams.get(aside).and_then(|of| of.state.proof_at(now, timeout));
        let main = self.upstreams.get_mut(&aside.main());
        if let (Some(at), Some(health)) = (proof_at, main.and_then(|main| main.state.health.as_mut())) {
            health.probe_next(type_url, at);
        }
    }

    /// What may be asked goes out as soon as the transport has room.
    fn note_subscribed(&mut self, now: Duration, route: &Route) {
        let upstream = self.upstreams.get_mut(route);
        let Some(health) = upstream.and_then(|upstream| upstream.state.health.as_mut()) else { return };
        for type_url in health.to_subscribe().cloned().collect::<Vec<_>>() {
            health.on_subscribe(now, &type_url);
        }
    }

    /// A response of a type came: with resources, or what its names were refused with.
    pub(super) fn on_answer(
        &mut self,
        now: Duration,
        route: &Route,
        type_url: &TypeUrl,
        refused: Option<Status>,
    ) -> BTreeSet<Key> {
        let Some(upstream) = self.upstreams.get_mut(route) else { return BTreeSet::new() };
        let state = &mut upstream.state;
        state.ended = None;
        state.heard_at = Some(now);
        let stream = state.stream.map_or(0, |(_, stream)| stream);
        let is_new = stream > *state.first_stream.get_or_insert(stream);
        let is_own_service = state.is_own_service;
        let mut events = Vec::new();
        if let Some(health) = &mut state.health {
            events = match refused {
                Some(status) => health.on_rejected(type_url, status),
                None => health.on_response(type_url),
            };
            state.is_changed |= health.to_subscribe().next().is_some();
        }
        let mut touched = self.on_health_events(route, events);
        // It is served aside on a stream that was made since: that may be another server, which
        // knows the type.
        if matches!(route, Route::SideStream { .. }) && is_new && !is_own_service {
            touched.extend(self.on_probe(now, route, type_url, Ok(())));
        }
        touched
    }

    /// What came aside of a main stream may be confirmed by what became of these names: nothing
    /// else may be due for long.
    pub(super) fn check_side_streams(&mut self, main: &Route, touched: &BTreeSet<Key>) {
        let types: BTreeSet<_> = touched.iter().map(|(type_url, _)| type_url).collect();
        let is_retiring = |type_url: &TypeUrl| {
            self.upstreams.get(&main.side_stream(type_url)).is_some_and(|upstream| upstream.is_retiring)
        };
        if types.into_iter().any(is_retiring)
            && let Some(upstream) = self.upstreams.get_mut(main)
        {
            upstream.state.is_changed = true;
        }
    }

    fn on_probe(
        &mut self,
        now: Duration,
        aside: &Route,
        type_url: &TypeUrl,
        outcome: Result<(), Status>,
    ) -> BTreeSet<Key> {
        if outcome.is_ok()
            && let Some(upstream) = self.upstreams.get_mut(aside)
        {
            upstream.state.first_stream = None;
        }
        let main = aside.main();
        let upstream = self.upstreams.get_mut(&main);
        let Some(state) = upstream.map(|upstream| &mut upstream.state) else { return BTreeSet::new() };
        state.is_changed = true;
        let health = state.health.as_mut();
        let events = health.map(|health| health.on_probe(now, type_url, outcome)).unwrap_or_default();
        let mut touched = self.on_health_events(&main, events);
        touched.extend(self.reroute(type_url));
        touched
    }

    /// Notes what became of types; the names that go another way now.
    fn on_health_events(&mut self, route: &Route, events: Vec<Event>) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        for event in events {
            let types: Vec<_> = match &event {
                Event::Init(init) => init.rejected.keys().cloned().collect(),
                Event::Reclassified { type_url, .. } => vec![type_url.clone()],
            };
            for type_url in types {
                touched.extend(self.reroute(&type_url));
                let aside = route.side_stream(&type_url);
                if self.is_on_side_stream(route, &type_url)
                    && let Some(upstream) = self.upstreams.get_mut(&aside)
                {
                    upstream.is_retiring = false;
                }
            }
            if let Some(upstream) = self.upstreams.get_mut(route) {
                upstream.state.is_changed = true;
            }
            self.notices.push(Notice::Health { route: route.clone(), event });
        }
        touched
    }

    /// The names of a type, whose wants all may go another way from now on.
    fn reroute(&mut self, type_url: &TypeUrl) -> Vec<Key> {
        let keys = self.keys_of(type_url);
        for key in &keys {
            self.names.get_mut(key).expect("the name is one of the keys").is_stale = true;
        }
        keys
    }

    fn keys_of(&self, type_url: &TypeUrl) -> Vec<Key> {
        let first = (type_url.clone(), "".into());
        let of_type = self.names.range(first..).take_while(|((of, _), _)| of == type_url);
        of_type.map(|(key, _)| key.clone()).collect()
    }

    /// When a type was silent for too long, or is to be tried again.
    pub(super) fn health_deadline(&self) -> Option<Duration> {
        let healths = self.upstreams.values().filter_map(|upstream| upstream.state.health.as_ref());
        let of_health = |health: &Health| {
            let probes = health.states().filter_map(|(type_url, _)| health.probe_at(type_url));
            probes.chain(health.next_deadline()).min()
        };
        healths.filter_map(of_health).min()
    }

    /// Does what is due.
    pub(super) fn health_timeout(&mut self, now: Duration) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        for route in self.upstreams.keys().cloned().collect::<Vec<_>>() {
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            let Some(health) = &mut upstream.state.health else { continue };
            let events = health.on_timeout(now);
            upstream.state.is_changed |= health.to_subscribe().next().is_some();
            let is_due = |type_url: &&TypeUrl| health.probe_at(type_url).is_some_and(|at| at <= now);
            let due: Vec<_> = health.states().map(|(type_url, _)| type_url).filter(is_due).cloned().collect();
            touched.extend(self.on_health_events(&route, events));
            for type_url in due {
                let aside = route.side_stream(&type_url);
                let state = self.upstreams.get(&aside).map(|upstream| &upstream.state);
                let timeout = self.config.resource_timeout;
                let proof_at = state.and_then(|state| state.proof_at(now, timeout));
                if let Some(at) = proof_at {
                    let health = self.upstreams.get_mut(&route).and_then(|of| of.state.health.as_mut());
                    health.into_iter().for_each(|health| health.probe_next(&type_url, at));
                    continue;
                }
                let outcome = match state.is_some_and(|state| state.has_outlived_timeout(now, timeout)) {
                    true => Ok(()),
                    // The same stream as before shows nothing new: the type would end the main
                    // stream again.
                    false => Err(Status { code: Code::UNAVAILABLE, message: "nothing changed".into() }),
                };
                touched.extend(self.on_probe(now, &aside, &type_url, outcome));
            }
        }
        touched
    }

    /// Something of a type is to be watched.
    pub(super) fn request_type(&mut self, now: Duration, route: &Route, type_url: &TypeUrl) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        *state.types.entry(type_url.clone()).or_default() += 1;
        if let Some(health) = &mut state.health {
            health.request(now, type_url);
            state.is_changed = true;
        }
    }

    /// Something of a type is not watched any more.
    pub(super) fn release_type(&mut self, route: &Route, type_url: &TypeUrl) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        let Some(count) = state.types.get_mut(type_url) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        state.types.remove(type_url);
        let is_on_side_stream = matches!(route, Route::SideStream { .. });
        let main = route.main();
        let upstream = self.upstreams.get_mut(&main);
        let Some(health) = upstream.and_then(|upstream| upstream.state.health.as_mut()) else { return };
        // A type that goes aside is wanted of the upstream as long as somebody asks for it there.
        if health.probe_at(type_url).is_some() == is_on_side_stream {
            let events = health.release(type_url);
            self.on_health_events(&main, events);
        }
    }

    /// Has a client ask for those types that its stream may be asked for.
    pub(super) fn defer_types(&mut self, now: Duration, route: &Route, client: &mut Client) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let state = &mut upstream.state;
        state.is_changed = false;
        let Some(health) = &mut state.health else { return };
        let types: Vec<_> = health.states().map(|(type_url, _)| type_url.clone()).collect();
        for type_url in types {
            client.defer(&type_url, !health.may_subscribe(&type_url));
        }
        self.note_subscribed(now, route);
    }

    /// What who asks for something of a type is told although the upstream said nothing of it (G4).
    pub(super) fn refusal(&self, route: &Route, type_url: &TypeUrl) -> Option<LocatorStatus> {
        let state = &self.upstreams.get(route)?.state;
        let failed =
            |status: &Status| LocatorStatus::Failed { code: status.code, message: status.message.clone() };
        if let Route::SideStream { .. } = route {
            let rejected = self.health(&route.main()).and_then(|health| health.state(type_url));
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

    /// What came aside and was not confirmed on the main stream goes, once that is answered; then
    /// nobody needs it there.
    pub(super) fn retire_side_streams(&mut self, main: &Route, client: &Client) {
        let asides =
            self.upstreams.iter().filter(|(route, upstream)| upstream.is_retiring && route.main() == *main);
        for aside in asides.map(|(route, _)| route.clone()).collect::<Vec<_>>() {
            let Route::SideStream { type_url, .. } = &aside else { continue };
            let keys = self.keys_of(type_url);
            let mut subscriptions = keys.iter().flat_map(|key| &self.names[key].upstream);
            if !subscriptions.all(|(id, subscription)| id.0 != *main || subscription.is_answered) {
                continue;
            }
            let mut transaction = Transaction::new();
            let snapshot = self.cache.snapshot();
            let stamp = aside.relay(&self.cache, &self.config.upstream).stamp;
            // What other nodes have, and what is for one locator alone, came by other clients.
            let is_own = |constraints: &Constraints| match &stamp {
                Some(stamp) => constraints == stamp,
                None => !constraints.is_exact(),
            };
            let of_type = snapshot.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
            for variant in of_type.flat_map(|(_, variants)| Variants::iter(variants)) {
                let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
                let id = VariantId { type_url: type_url.clone(), name, constraints };
                if is_own(&id.constraints) && !client.has_variant(&id) {
                    transaction.remove(id);
                }
            }
            self.cache
                .commit(transaction)
                .expect("a transaction that removes variants leaves no two that overlap");
            self.upstreams.remove(&aside);
            self.unneeded.push(aside);
        }
    }
}
