//! What a proxy subscribes to on one stream, at most. A control plane ends the whole stream of a
//! client that asks for too much (G9), and to it all clients of the proxy are one: the names of one
//! of them must not end the stream of all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::linger::locator_len;
use super::name::SubscriptionId;
use super::route::{Route, RouteKind};
use super::stream_state::StreamState;
use super::{Key, Proxy};
use crate::cache::LocatorStatus;
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;

/// Upstream subscriptions for which the stream of a route has no room, or for which there is no stream. They begin when
/// others end.
#[derive(Debug, Default)]
pub(super) struct WithoutRoom(BTreeMap<TypeUrl, BTreeSet<(ResourceName, SubscriptionId)>>);

impl WithoutRoom {
    pub(super) fn add(&mut self, (type_url, name): &Key, id: &SubscriptionId) {
        self.0.entry(type_url.clone()).or_default().insert((name.clone(), Arc::clone(id)));
    }

    fn remove(&mut self, (type_url, name): &Key, id: &SubscriptionId) {
        let Some(of_type) = self.0.get_mut(type_url) else { return };
        of_type.remove(&(name.clone(), Arc::clone(id)));
        if of_type.is_empty() {
            self.0.remove(type_url);
        }
    }

    /// Takes one of a type of which a subscription ended. If there is none and `frees_type`, takes all of another
    /// type.
    fn take(&mut self, type_url: &TypeUrl, frees_type: bool) -> Vec<(Key, SubscriptionId)> {
        let key = |type_url: &TypeUrl, (name, id)| ((type_url.clone(), name), id);
        if let Some(of_type) = self.0.get_mut(type_url) {
            let next = of_type.pop_first();
            if of_type.is_empty() {
                self.0.remove(type_url);
            }
            return next.map(|next| key(type_url, next)).into_iter().collect();
        }
        let other = if frees_type { self.0.pop_first() } else { None };
        let of_other = other.into_iter().flat_map(|(type_url, of_type)| {
            of_type.into_iter().map(move |next| key(&type_url, next)).collect::<Vec<_>>()
        });
        of_other.collect()
    }

    /// Takes at most so many.
    fn take_some(&mut self, count: usize) -> Vec<(Key, SubscriptionId)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(mut of_type) = self.0.first_entry()
        {
            let next = of_type.get_mut().pop_first().map(|(name, id)| ((of_type.key().clone(), name), id));
            if of_type.get().is_empty() {
                of_type.remove();
            }
            taken.extend(next);
        }
        taken
    }

    /// Takes all: the next stream has room for other types.
    pub(super) fn take_all(&mut self) -> Vec<(Key, SubscriptionId)> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.flat_map(|(type_url, of_type)| {
            of_type.into_iter().map(move |(name, id)| ((type_url.clone(), name), id))
        })
        .collect()
    }
}

/// Why no stream has room for a locator: with the others of a request, it would exceed what a control plane reads.
pub(super) fn too_long(name: &ResourceName, parameters: &Parameters) -> Option<LocatorStatus> {
    let len = locator_len(name, parameters);
    if len <= LOCATOR_LIMIT_BYTES {
        return None;
    }
    let message = format!(
        "a name with its parameters has {len} bytes; the proxy subscribes to at most {LOCATOR_LIMIT_BYTES} bytes, so \
         that the control plane does not end the stream of all clients"
    );
    Some(LocatorStatus::Failed { code: Code::RESOURCE_EXHAUSTED, message: message.into() })
}

impl Proxy {
    /// Why the stream of the route has no room for one more subscription of the type.
    pub(super) fn no_room(&self, state: &StreamState, type_url: &TypeUrl) -> Option<LocatorStatus> {
        let (types, names) = (self.config.upstream_types_limit, self.config.upstream_names_limit);
        let message = match state.subscriptions(type_url) {
            0 if !state.has_room_for(type_url, types) => format!(
                "the proxy subscribes to {types} types on one stream, and to no more, so that the control plane does not \
                 end the stream of all clients"
            ),
            subscriptions if subscriptions >= names => format!(
                "the proxy has {names} upstream subscriptions of this type, and makes no more, so that the control \
                 plane does not end the stream of all clients"
            ),
            _ => return None,
        };
        Some(LocatorStatus::Failed { code: Code::RESOURCE_EXHAUSTED, message: message.into() })
    }

    /// Why there is no stream for the route.
    pub(super) fn no_stream(&self, route: &Route) -> Option<LocatorStatus> {
        let limit = self.config.upstream_streams_limit;
        let is_chosen = matches!(route.kind, RouteKind::Node(_) | RouteKind::Alone(_));
        if !is_chosen || self.upstreams.len() < limit || self.upstreams.contains_key(route) {
            return None;
        }
        let message = format!(
            "the proxy has {limit} upstream streams, and opens no more for clients with other parameters"
        );
        Some(LocatorStatus::Failed { code: Code::RESOURCE_EXHAUSTED, message: message.into() })
    }

    /// The upstream subscriptions that may have a stream now, as others ended.
    pub(super) fn use_streams(&mut self) -> Vec<(Key, SubscriptionId)> {
        let free = self.config.upstream_streams_limit.saturating_sub(self.upstreams.len());
        self.without_stream.take_some(free)
    }

    /// A subscription of the type ended: those begin that have room now.
    pub(super) fn use_room(&mut self, route: &Route, type_url: &TypeUrl) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let frees_type = upstream.state.subscriptions(type_url) == 0 && !upstream.state.is_open();
        self.pending.begun.extend(upstream.without_room.take(type_url, frees_type));
    }

    /// The upstream subscription begins, or is not needed any more.
    pub(super) fn leave_room(&mut self, key: &Key, id: &SubscriptionId) {
        self.without_stream.remove(key, id);
        if let Some(upstream) = self.upstreams.get_mut(&id.0) {
            upstream.without_room.remove(key, id);
        }
    }
}

/// How long a name with its parameters may be. A request has others of up to 1 MiB, and servers commonly refuse
/// requests of more than 4 MiB.
const LOCATOR_LIMIT_BYTES: usize = 1 << 20;
