//! Orders to the clients of upstreams, and the effects of their events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::health::Status;
use super::name::UpstreamSubscription;
use super::route::Route;
use super::set::{RestoredSets, SetChange, SetId};
use super::stream_state::StreamState;
use super::{Key, Notice, Proxy};
use crate::cache::LocatorStatus;
use crate::client::{Client, Effects, WatchId};
use crate::code::Code;
use crate::parameters::Parameters;
use crate::resource::VariantId;
use crate::subscription::{WILDCARD, is_set};
use crate::xdstp::glob_of;

/// What the proxy knows of one client.
#[derive(Debug, Default)]
pub(super) struct UpstreamClient {
    orders: Vec<Order>,
    watches: BTreeMap<WatchId, (Key, Parameters)>,
    /// It is connected to one of its servers.
    is_connected: bool,
    pub(super) state: StreamState,
    /// Its side stream is not needed any more: the main stream has these subscriptions now.
    pub(super) is_retiring: bool,
    /// Nothing that it put into the cache is left there.
    is_idle: bool,
}

/// An order to a client.
#[derive(Debug)]
pub(super) enum Order {
    Watch {
        key: Key,
        parameters: Parameters,
    },
    /// `None`: the order to watch was not applied yet.
    Unwatch {
        watch: Option<WatchId>,
    },
}

impl Proxy {
    pub(super) fn order(&mut self, route: &Route, order: Order) {
        match self.upstreams.get_mut(route) {
            Some(upstream) => upstream.orders.push(order),
            None => {
                let state = StreamState::new(route, self.config.resource_timeout);
                let upstream = UpstreamClient { orders: vec![order], state, ..UpstreamClient::default() };
                self.upstreams.insert(route.clone(), upstream);
            }
        }
    }

    /// The routes whose clients have orders. If a route has no client yet, the caller makes one,
    /// for the [relay](Route::relay) of the route.
    #[must_use]
    pub fn routes_with_orders(&self) -> Vec<Route> {
        let is_due = |upstream: &UpstreamClient| !upstream.orders.is_empty() || upstream.state.is_changed();
        let ordered = self.upstreams.iter().filter(|(_, upstream)| is_due(upstream));
        ordered.map(|(route, _)| route.clone()).collect()
    }

    /// The main stream has the subscriptions of this side stream now. The client goes when the main
    /// stream has a response.
    pub(super) fn retire(&mut self, route: &Route) {
        if let Some(upstream) = self.upstreams.get_mut(route) {
            upstream.is_retiring = true;
        }
    }

    /// The routes whose clients are not needed any more, each returned once. A client is not needed
    /// when it has no subscriptions and nothing of it is left in the cache.
    pub fn take_unneeded(&mut self) -> Vec<Route> {
        let is_unneeded = |(route, upstream): &(&Route, &UpstreamClient)| {
            let is_unused =
                upstream.orders.is_empty() && upstream.watches.is_empty() && !upstream.is_retiring;
            **route != Route::Shared && is_unused && upstream.is_idle && !upstream.state.is_changed()
        };
        let mut unneeded: Vec<_> =
            self.upstreams.iter().filter(is_unneeded).map(|(route, _)| route.clone()).collect();
        for route in &unneeded {
            self.upstreams.remove(route);
        }
        unneeded.append(&mut self.unneeded);
        unneeded
    }

    /// Applies the orders for a client. T43b: it watches before it unwatches, so no shared variant
    /// goes in between, and the server gets both in one request.
    pub fn apply_orders(&mut self, now: Duration, route: &Route, client: &mut Client) {
        while let Some(upstream) =
            self.upstreams.get_mut(route).filter(|upstream| !upstream.orders.is_empty())
        {
            let orders = std::mem::take(&mut upstream.orders);
            let mut touched = BTreeSet::new();
            let mut unwatched = Vec::new();
            for order in orders {
                match order {
                    Order::Watch { key, parameters } => {
                        if self.watch(now, route, &key, &parameters, client) {
                            touched.insert(key);
                        }
                    }
                    Order::Unwatch { watch } => unwatched.extend(watch),
                }
            }
            for watch in unwatched {
                let is_renewed = self.is_renewed(route, watch);
                let upstream = self.upstreams.get_mut(route).filter(|_| !is_renewed);
                let known = upstream.and_then(|upstream| upstream.watches.remove(&watch));
                client.on_unwatch(watch);
                if let Some((key, parameters)) = known {
                    if is_set(key.1.as_str()) {
                        self.sets.changes.push(SetChange::Left(set_id(&key, &parameters)));
                    }
                    self.release_type(route, &key.0);
                }
            }
            if let Some(upstream) = self.upstreams.get_mut(route) {
                upstream.is_idle = client.is_idle();
            }
            self.match_names(now, touched);
        }
        self.defer_types(now, route, client);
        self.retire_side_streams(route, client);
    }

    /// Whether another subscription has the same watch now, because it replaced the one that ends
    /// in the same batch.
    fn is_renewed(&self, route: &Route, watch: WatchId) -> bool {
        let watched = self.upstreams.get(route).and_then(|upstream| upstream.watches.get(&watch));
        let Some((key, parameters)) = watched else { return false };
        let id = Arc::new((route.clone(), parameters.clone()));
        let subscription = self.names.get(key).and_then(|name| name.upstream.get(&id));
        subscription.is_some_and(|subscription| subscription.watch == Some(watch))
    }

    /// Watches for an upstream subscription, unless it has ended. Returns whether something is
    /// known of it at once.
    fn watch(
        &mut self,
        now: Duration,
        route: &Route,
        key: &Key,
        parameters: &Parameters,
        client: &mut Client,
    ) -> bool {
        let Some(name) = self.names.get_mut(key) else { return false };
        let id = Arc::new((route.clone(), parameters.clone()));
        let Some(subscription) = name.upstream.get_mut(&id) else { return false };
        let Some(upstream) = self.upstreams.get_mut(route) else { return false };
        if subscription.watch.is_some() {
            return false;
        }
        let mut is_new = false;
        match client.on_watch(&key.0, key.1.as_str(), Some(parameters.clone())) {
            Ok(watch) => {
                upstream.watches.insert(watch, (key.clone(), parameters.clone()));
                subscription.watch = Some(watch);
                subscription.sent_at = upstream.is_connected.then_some(now);
                subscription.read_answer(watch, client);
                is_new = true;
                // Restored sets are used once: when this subscription ends, the members go.
                let is_restored = !self.sets.restored.is_empty()
                    && is_set(key.1.as_str())
                    && self.sets.restored.take(&set_id(key, parameters), &self.cache.snapshot());
                if is_restored && !subscription.is_answered {
                    subscription.answer = Some(LocatorStatus::Complete);
                }
            }
            Err(error) => {
                subscription.is_answered = true;
                let (code, message) = (Code::INVALID_ARGUMENT, error.to_string().into());
                subscription.answer = Some(LocatorStatus::Failed { code, message });
            }
        }
        let is_known = subscription.is_answered || subscription.answer.is_some();
        if is_known {
            name.match_waiting(&id);
        } else if upstream.is_connected && name.downstream.len() > name.upstream.len() {
            // Other locators wait for its response, but not for ever.
            self.timers.insert((now + self.config.coalesce, key.clone()));
        }
        if is_new {
            self.request_type(now, route, &key.0);
        }
        is_known
    }

    /// Takes the effects of an event on the watches of a client. To be called after each event of
    /// the client, also after events without effects.
    pub fn on_effects(&mut self, now: Duration, route: &Route, client: &Client, effects: &Effects) {
        let mut touched = self.follow_streams(now, route, client);
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let mut refused = None;
        upstream.is_idle = client.is_idle();
        let is_connected = (0..client.servers()).any(|server| client.is_connected(server));
        // Only a connected upstream can be late: locators that joined a subscription wait from the
        // connection on.
        if std::mem::replace(&mut upstream.is_connected, is_connected) != is_connected {
            for (key, parameters) in upstream.watches.values() {
                let id = Arc::new((route.clone(), parameters.clone()));
                let subscription = self.names.get_mut(key).and_then(|name| name.upstream.get_mut(&id));
                if let Some(subscription) = subscription.filter(|subscription| !subscription.is_answered) {
                    subscription.sent_at = is_connected.then_some(now);
                    if subscription.waiting.len() > 1 {
                        self.timers.insert((now + self.config.coalesce, key.clone()));
                    }
                }
            }
        }
        for of_watch in &effects.touched {
            let Some((key, parameters)) = upstream.watches.get(&of_watch.watch) else { continue };
            let id = Arc::new((route.clone(), parameters.clone()));
            let Some(name) = self.names.get_mut(key) else { continue };
            let Some(subscription) = name.upstream.get_mut(&id) else { continue };
            if of_watch.member.is_none() {
                subscription.read_answer(of_watch.watch, client);
                if let Some(LocatorStatus::Failed { code: code @ Code::UNIMPLEMENTED, message }) =
                    &subscription.answer
                {
                    refused = Some(Status { code: *code, message: Arc::clone(message) });
                }
                let is_complete = subscription.answer == Some(LocatorStatus::Complete);
                if is_set(key.1.as_str()) {
                    self.sets.changes.extend(match route {
                        Route::Shared | Route::Node(_) if is_complete && !name.is_unshared => {
                            Some(SetChange::Complete(set_id(key, parameters)))
                        }
                        Route::Shared | Route::Node(_) => Some(SetChange::Left(set_id(key, parameters))),
                        Route::Alone(_) | Route::SideStream { .. } => is_complete.then(|| unkept(key)),
                    });
                }
                name.match_waiting(&id);
                touched.insert(key.clone());
            }
        }
        // Locators with other parameters may have waited for these variants, or shared removed
        // ones.
        let accepted =
            effects.accepted.iter().map(|accepted| (accepted.type_url.clone(), accepted.name().clone()));
        let removed = effects.removed.iter().map(|id| (id.type_url.clone(), id.name.clone()));
        touched.extend(accepted.chain(removed).filter(|key| self.names.get(key).is_some()));
        if let Some(applied) = &effects.response {
            self.counts.replaced += applied.replaced as u64;
            for plain in &applied.plain {
                // A wildcard or glob without one of its members is not complete.
                let wildcard = client.is_in_wildcards(plain).then(|| WILDCARD.into());
                let sets = glob_of(plain).into_iter().chain(wildcard);
                for name in std::iter::once(plain.clone()).chain(sets) {
                    self.stop_sharing(&(applied.type_url.clone(), name), &mut touched);
                }
            }
            // With a valid resource in the response, the type is served.
            let refused = refused.filter(|_| applied.valid == 0);
            touched.extend(self.on_answer(now, route, &applied.type_url, refused));
        }
        if matches!(route, Route::Shared | Route::Node(_)) {
            self.check_side_streams(route, &touched);
        }
        self.end_concluded_trial();
        self.match_names(now, touched);
    }

    /// T43c: a resource came without constraints, or must not be kept. Each locator gets an
    /// upstream subscription and a stream of its own.
    fn stop_sharing(&mut self, key: &Key, touched: &mut BTreeSet<Key>) {
        if let Some(name) = self.names.get_mut(key).filter(|name| !name.is_unshared) {
            (name.is_unshared, name.is_stale) = (true, true);
            if is_set(key.1.as_str()) {
                self.sets.changes.push(unkept(key));
            }
            self.counts.unshared += 1;
            self.notices.push(Notice::Unshared { type_url: key.0.clone(), name: key.1.clone() });
            touched.insert(key.clone());
        }
    }

    /// Takes the wildcards and globs that were complete before the restart, and all restored
    /// variants. Until an upstream responds, these are all members of each set, unless one of them
    /// is missing when the set gets its first subscription.
    pub fn restore_sets(
        &mut self,
        sets: impl IntoIterator<Item = SetId>,
        restored: impl IntoIterator<Item = VariantId>,
    ) {
        self.sets.restored = RestoredSets::new(sets, restored);
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

fn set_id((type_url, name): &Key, parameters: &Parameters) -> SetId {
    SetId { type_url: type_url.clone(), name: name.clone(), parameters: parameters.unbound() }
}

fn unkept((type_url, name): &Key) -> SetChange {
    SetChange::Unkept { type_url: type_url.clone(), name: name.clone() }
}
