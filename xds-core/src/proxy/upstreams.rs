//! The clients of the upstreams: their watches, and what their events mean for the names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::name::{SubscriptionId, UpstreamSubscription};
use super::room::{WithoutRoom, too_long};
use super::route::{Authorities, Route, RouteKind};
use super::set::{RestoredSets, SetChange, SetId};
use super::stream_state::{StreamState, TypeAnswer};
use super::{Key, Notice, Proxy};
use crate::cache::LocatorStatus;
use crate::client::health::Status;
use crate::client::{Applied, Client, ClientConfig, Effects, Relay, Restored, WatchId};
use crate::code::Code;
use crate::resource::VariantId;
use crate::subscription::{WILDCARD, is_set};
use crate::xdstp::glob_of;

/// The client of one route.
#[derive(Debug)]
pub(super) struct UpstreamClient {
    pub(super) client: Client,
    watches: BTreeMap<WatchId, (Key, SubscriptionId)>,
    pub(super) without_room: WithoutRoom,
    /// It is connected to one of its servers.
    is_connected: bool,
    pub(super) state: StreamState,
    /// The main stream has the subscriptions of this side stream now. The client goes when the main
    /// stream has a response to each.
    pub(super) is_retiring: bool,
}

/// What a new client starts with.
pub(super) struct NewClients {
    configure: Box<dyn Fn(&Route) -> ClientConfig + Send + Sync>,
    /// Resources from the file, until the client of their route is made; and when they were read.
    restored: Vec<Restored>,
    restored_at: Duration,
}

/// What remains to be done before an event ends.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Names to match again.
    pub(super) touched: BTreeSet<Key>,
    /// Upstream subscriptions that begin.
    pub(super) begun: Vec<(Key, SubscriptionId)>,
    /// Watches of upstream subscriptions that ended. T43b: they end after all new ones have begun,
    /// so no shared variant goes in between, and the server gets both in one request.
    pub(super) ended: Vec<(Route, WatchId)>,
    /// Watches that their server refuses, as it does not serve the type.
    refused: BTreeSet<(Route, WatchId)>,
    /// See [`Proxy::take_dropped`].
    dropped: Vec<VariantId>,
    /// Names of which locators may wait that the cache has not reported.
    pub(super) awaiting: Vec<Key>,
    /// See [`Proxy::take_changed`].
    pub(super) changed: BTreeSet<Route>,
}

impl NewClients {
    pub(super) fn new(configure: impl Fn(&Route) -> ClientConfig + Send + Sync + 'static) -> Self {
        Self { configure: Box::new(configure), restored: Vec::new(), restored_at: Duration::ZERO }
    }

    fn make(&mut self, route: &Route, relay: Relay, authorities: &Authorities) -> Client {
        let is_own = |restored: &Restored| match (&relay.stamp, &route.kind) {
            _ if authorities.of(&restored.id.name) != route.authority => false,
            (Some(stamp), RouteKind::Node(_)) => restored.id.constraints == *stamp,
            _ => route.is_shared(),
        };
        let (own, others) = std::mem::take(&mut self.restored).into_iter().partition(is_own);
        self.restored = others;
        let mut client = Client::new(ClientConfig { relay: Some(relay), ..(self.configure)(route) });
        client.restore(self.restored_at, own);
        client
    }
}

impl Proxy {
    /// The client of a route. `None` if it has no subscriptions and nothing of it is left in the
    /// cache.
    #[must_use]
    pub fn client(&self, route: &Route) -> Option<&Client> {
        Some(&self.upstreams.get(route)?.client)
    }

    /// The routes that changed since the last call: their client may have a request to send, was
    /// made, or is gone. To be called after each event.
    pub fn take_changed(&mut self) -> BTreeSet<Route> {
        std::mem::take(&mut self.pending.changed)
    }

    /// Gives the client of a route an event, such as a response or its timer, and follows the
    /// effects. Returns the effects, or `None` if the route has no client.
    pub fn change(
        &mut self,
        now: Duration,
        route: &Route,
        event: impl FnOnce(&mut Client) -> Effects,
    ) -> Option<Effects> {
        let effects = event(&mut self.upstreams.get_mut(route)?.client);
        self.follow_streams(now, route);
        self.follow_connection(now, route);
        self.follow_effects(now, route, &effects);
        self.finish(now);
        Some(effects)
    }

    /// Variants that no main stream brings any more since the last call, although no server removed them: the type is
    /// refused, or has a stream of its own. The file must forget them, because it would not follow their changes.
    /// To be called after each event, after [`take_set_changes`](Self::take_set_changes).
    pub fn take_dropped(&mut self) -> Vec<VariantId> {
        std::mem::take(&mut self.pending.dropped)
    }

    /// Makes the clients of the shared routes, and takes what the file of an earlier run has: the
    /// wildcards and globs that were complete, and all variants. Until an upstream responds, these
    /// are all members of each set, unless one of them is missing when the set gets its first
    /// subscription.
    pub fn restore(&mut self, now: Duration, sets: impl IntoIterator<Item = SetId>, restored: Vec<Restored>) {
        self.sets.restored = RestoredSets::new(sets, restored.iter().map(|restored| restored.id.clone()));
        (self.new_clients.restored, self.new_clients.restored_at) = (restored, now);
        for authority in self.authorities.all() {
            self.make_client(&Route { authority, kind: RouteKind::Shared });
        }
    }

    /// The resources of the file whose route has no client yet.
    #[must_use]
    pub fn restored(&self) -> &[Restored] {
        &self.new_clients.restored
    }

    fn make_client(&mut self, route: &Route) {
        let relay = route.relay(&self.cache, &self.config.upstream);
        let upstream = UpstreamClient {
            client: self.new_clients.make(route, relay, &self.authorities),
            watches: BTreeMap::new(),
            without_room: WithoutRoom::default(),
            is_connected: false,
            state: StreamState::new(route, self.config.resource_timeout),
            is_retiring: false,
        };
        self.upstreams.insert(route.clone(), upstream);
        self.pending.changed.insert(route.clone());
    }

    /// Watches for a new upstream subscription, unless it has ended.
    pub(super) fn watch(&mut self, now: Duration, key: &Key, id: &SubscriptionId) {
        let (route, parameters) = &**id;
        self.leave_room(key, id);
        if let Some(name) = self.names.get_mut(key) {
            name.look_at_unused(id);
        }
        if let Some(status) = self.no_stream(route) {
            let Some(name) = self.names.get_mut(key) else { return };
            let Some(subscription) = name.upstream.get_mut(id) else { return };
            (subscription.is_answered, subscription.answer) = (true, Some(status));
            name.match_waiting(id);
            self.without_stream.add(key, id);
            self.pending.touched.insert(key.clone());
            return;
        }
        if !self.upstreams.contains_key(route) {
            self.make_client(route);
        }
        let refusal = too_long(&key.1, parameters);
        let no_room = self.upstreams.get(route).and_then(|upstream| self.no_room(&upstream.state, &key.0));
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let Some(name) = self.names.get_mut(key) else { return };
        let subscription = name.upstream.get_mut(id).filter(|subscription| subscription.watch.is_none());
        let Some(subscription) = subscription else { return };
        if subscription.is_answered {
            // It had no room before. Downstream subscriptions that wait for it have that error now, so they are matched
            // again.
            (subscription.is_answered, subscription.answer) = (false, None);
            name.match_waiting(id);
            self.pending.touched.insert(key.clone());
        }
        let subscription = name.upstream.get_mut(id).expect("it was read above");
        let is_connected = upstream.is_connected;
        let may_wait = refusal.is_none();
        let watched = match refusal.or(no_room) {
            None => Ok(upstream.client.on_watch(&key.0, key.1.as_str(), Some(parameters.clone()))),
            Some(status) => Err(status),
        };
        match watched {
            Err(status) => {
                if may_wait {
                    upstream.without_room.add(key, id);
                }
                (subscription.is_answered, subscription.answer) = (true, Some(status));
            }
            Ok(Ok(watch)) => {
                upstream.watches.insert(watch, (key.clone(), Arc::clone(id)));
                subscription.watch = Some(watch);
                subscription.sent_at = is_connected.then_some(now);
                subscription.read_answer(watch, &upstream.client);
                // Restored sets are used once: when this subscription ends, the members go.
                let is_restored = is_set(key.1.as_str())
                    && self.sets.restored.take(&set_id(key, id), &self.cache.snapshot());
                if is_restored && !subscription.is_answered {
                    subscription.answer = Some(LocatorStatus::Complete);
                }
            }
            Ok(Err(error)) => {
                subscription.is_answered = true;
                let (code, message) = (Code::INVALID_ARGUMENT, error.to_string().into());
                subscription.answer = Some(LocatorStatus::Failed { code, message });
            }
        }
        let is_watched = subscription.watch.is_some();
        if subscription.is_answered || subscription.answer.is_some() {
            name.match_waiting(id);
            self.pending.touched.insert(key.clone());
        } else if is_connected {
            // Other locators wait for its response, but not for ever.
            if name.downstream.len() > name.upstream.len() {
                self.timers.insert((now + self.config.coalesce, key.clone()));
            }
            self.await_further(key);
        }
        if is_watched {
            self.pending.changed.insert(route.clone());
            self.request_type(now, route, &key.0);
        }
    }

    /// G4: nobody who subscribes later is sent what the proxy has of a type that is not served any more. Clients
    /// that have it were sent the status before this.
    fn drop_refused(&mut self) {
        for (route, watch) in std::mem::take(&mut self.pending.refused) {
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            if !upstream.watches.contains_key(&watch) {
                continue;
            }
            let dropped = upstream.client.drop_refused(watch);
            let touched = dropped.iter().map(|id| (id.type_url.clone(), id.name.clone()));
            self.pending.touched.extend(touched.filter(|key| self.names.get(key).is_some()));
            if route.is_main() {
                self.pending.dropped.extend(dropped);
            }
        }
    }

    /// A side stream that was about to go stays. Its subscriptions begin anew, so those from before end.
    pub(super) fn keep_side_stream(&mut self, side_stream: &Route) {
        let Some(upstream) = self.upstreams.get_mut(side_stream).filter(|upstream| upstream.is_retiring)
        else {
            return;
        };
        upstream.is_retiring = false;
        let has_ended = |(key, id): &(Key, SubscriptionId)| {
            self.names.get(key).is_none_or(|name| !name.upstream.contains_key(id))
        };
        let ended = upstream.watches.iter().filter(|(_, of)| has_ended(of));
        self.pending.ended.extend(ended.map(|(watch, _)| (side_stream.clone(), *watch)));
    }

    fn unwatch(&mut self, route: &Route, watch: WatchId) {
        let Some(upstream) = self.upstreams.get(route) else { return };
        let key = upstream.watches.get(&watch).map(|(key, _)| key);
        if key.is_some_and(|key| route.is_main() && self.is_on_side_stream(&route.of_health(), &key.0)) {
            self.pending.dropped.extend(upstream.client.variants_of(watch));
        }
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        upstream.client.on_unwatch(watch);
        self.pending.changed.insert(route.clone());
        let Some((key, id)) = upstream.watches.get(&watch).cloned() else { return };
        // Another subscription has the same watch now, if it replaced this one in the same event.
        let subscription = self.names.get(&key).and_then(|name| name.upstream.get(&id));
        if subscription.is_none_or(|subscription| subscription.watch != Some(watch)) {
            upstream.watches.remove(&watch);
            if is_set(key.1.as_str()) {
                self.sets.changes.push(SetChange::Left(set_id(&key, &id)));
            }
        }
        self.release_type(route, &key.0);
        self.use_room(route, &key.0);
    }

    /// Completes an event: matches the names that it touched, ends the watches that are not needed
    /// any more, and lets each client subscribe to the types that its stream may have.
    pub(super) fn finish(&mut self, now: Duration) {
        loop {
            self.settle(now);
            let begun = self.use_streams();
            if begun.is_empty() {
                break;
            }
            self.pending.begun.extend(begun);
        }
    }

    fn settle(&mut self, now: Duration) {
        loop {
            self.match_touched(now);
            self.drop_refused();
            for (route, watch) in std::mem::take(&mut self.pending.ended) {
                self.unwatch(&route, watch);
            }
            let changed = self.upstreams.iter().filter(|(_, upstream)| upstream.state.is_changed);
            let changed: Vec<_> = changed.map(|(route, _)| route.clone()).collect();
            if changed.is_empty() && self.pending.touched.is_empty() && self.pending.begun.is_empty() {
                break;
            }
            for route in &changed {
                self.defer_types(now, route);
            }
            self.pending.changed.extend(changed);
        }
        self.look_for_further(now);
        self.retire_side_streams();
        // A client is not needed when it has no subscriptions and nothing of it is left in the
        // cache.
        self.upstreams.retain(|route, upstream| {
            let is_needed = route.is_shared()
                || !upstream.watches.is_empty()
                || upstream.is_retiring
                || !upstream.client.is_idle();
            if !is_needed {
                self.pending.changed.insert(route.clone());
            }
            is_needed
        });
    }

    /// Only a connected upstream can be late: locators that joined a subscription wait from the
    /// connection on.
    fn follow_connection(&mut self, now: Duration, route: &Route) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let client = &upstream.client;
        let is_connected = (0..client.servers()).any(|server| client.is_connected(server));
        if std::mem::replace(&mut upstream.is_connected, is_connected) == is_connected {
            return;
        }
        for (key, id) in upstream.watches.values() {
            let Some(name) = self.names.get_mut(key) else { continue };
            let is_without_keys = name.keys.is_empty();
            let subscription = name.upstream.get_mut(id);
            if let Some(subscription) = subscription.filter(|subscription| !subscription.is_answered) {
                subscription.sent_at = is_connected.then_some(now);
                let has_further = || is_without_keys && self.subscriptions.has_further(&key.0, &key.1);
                if subscription.waiting.len() > 1 || has_further() {
                    self.timers.insert((now + self.config.coalesce, key.clone()));
                }
            }
        }
    }

    fn follow_effects(&mut self, now: Duration, route: &Route, effects: &Effects) {
        let mut refused = None;
        for touched in effects.touched.iter().filter(|touched| touched.member.is_none()) {
            refused = self.follow_answer(route, touched.watch).or(refused);
        }
        // Locators with other parameters may have waited for these variants, or shared removed
        // ones.
        let accepted =
            effects.accepted.iter().map(|accepted| (accepted.type_url.clone(), accepted.name().clone()));
        let removed = effects.removed.iter().map(|id| (id.type_url.clone(), id.name.clone()));
        let known = accepted.chain(removed).filter(|key| self.names.get(key).is_some());
        self.pending.touched.extend(known);
        if let Some(applied) = &effects.response {
            self.counts.replaced += applied.replaced as u64;
            self.stop_sharing(route, applied);
            let type_url = &applied.type_url;
            let is_whole = self.client(route).is_some_and(|client| client.refuses_type(type_url));
            let answer = match refused {
                // With a valid resource in the response, the type is served.
                Some(status) if applied.valid == 0 && is_whole => TypeAnswer::Refused(status),
                Some(_) if applied.valid == 0 => TypeAnswer::RefusedInPart,
                Some(_) | None => TypeAnswer::Served,
            };
            self.on_answer(now, route, type_url, answer);
        }
    }

    /// Takes the response to a watch. Returns the status if the upstream does not serve the type.
    fn follow_answer(&mut self, route: &Route, watch: WatchId) -> Option<Status> {
        let upstream = self.upstreams.get(route)?;
        let (key, id) = upstream.watches.get(&watch)?;
        let name = self.names.get_mut(key)?;
        let subscription = name.upstream.get_mut(id)?;
        subscription.read_answer(watch, &upstream.client);
        let refused = match &subscription.answer {
            Some(LocatorStatus::Failed { code: code @ Code::UNIMPLEMENTED, message }) => {
                self.pending.refused.insert((route.clone(), watch));
                Some(Status { code: *code, message: Arc::clone(message) })
            }
            _ => None,
        };
        let is_complete = subscription.answer == Some(LocatorStatus::Complete);
        if is_set(key.1.as_str()) {
            self.sets.changes.extend(match route.is_main() {
                true if is_complete && !name.is_unshared => Some(SetChange::Complete(set_id(key, id))),
                true => Some(SetChange::Left(set_id(key, id))),
                false => is_complete.then(|| unkept(key)),
            });
        }
        name.match_waiting(id);
        name.look_at_unused(id);
        self.pending.touched.insert(key.clone());
        refused
    }

    /// T43c: resources came without constraints, or must not be kept. Each locator gets an upstream
    /// subscription and a stream of its own.
    fn stop_sharing(&mut self, route: &Route, applied: &Applied) {
        let type_url = &applied.type_url;
        for plain in &applied.plain {
            // A wildcard or glob without one of its members is not complete.
            let client = self.client(route);
            let is_in_wildcards = client.is_some_and(|client| client.is_in_wildcards(plain));
            let sets = glob_of(plain).into_iter().chain(is_in_wildcards.then(|| WILDCARD.into()));
            for key in std::iter::once(plain.clone()).chain(sets).map(|name| (type_url.clone(), name)) {
                let name = self.names.get_mut(&key).filter(|name| !name.is_unshared);
                let Some(name) = name else { continue };
                (name.is_unshared, name.is_stale) = (true, true);
                if is_set(key.1.as_str()) {
                    self.sets.changes.push(unkept(&key));
                }
                self.counts.unshared += 1;
                self.notices.push(Notice::Unshared { type_url: key.0.clone(), name: key.1.clone() });
                self.pending.touched.insert(key);
            }
        }
    }
}

impl UpstreamSubscription {
    /// Takes the response that the client has for it.
    fn read_answer(&mut self, watch: WatchId, client: &Client) {
        self.is_answered = client.is_answered(watch);
        if self.is_answered {
            self.answer = client.answer(watch);
        }
    }
}

impl fmt::Debug for NewClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewClients").field("restored", &self.restored).finish_non_exhaustive()
    }
}

fn set_id((type_url, name): &Key, id: &SubscriptionId) -> SetId {
    SetId { type_url: type_url.clone(), name: name.clone(), parameters: id.1.unbound() }
}

fn unkept((type_url, name): &Key) -> SetChange {
    SetChange::Unkept { type_url: type_url.clone(), name: name.clone() }
}
