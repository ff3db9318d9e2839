//! What a proxy subscribes to on one stream, at most. A control plane ends the whole stream of a
//! client that asks for too much (G9), and to it all clients of the proxy are one: the names of one
//! of them must not end the stream of all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::name::SubscriptionId;
use super::route::Route;
use super::stream_state::StreamState;
use super::{Key, Proxy};
use crate::cache::LocatorStatus;
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};

/// Upstream subscriptions for which the stream of a route has no room. They begin when others end.
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

    /// One of this type, or else of any.
    fn next(&self, type_url: &TypeUrl) -> Option<(Key, SubscriptionId)> {
        let (type_url, of_type) = self.0.get_key_value(type_url).or_else(|| self.0.first_key_value())?;
        let (name, id) = of_type.first()?;
        Some(((type_url.clone(), name.clone()), Arc::clone(id)))
    }
}

impl Proxy {
    /// Why the stream of the route has no room for one more subscription of the type.
    pub(super) fn no_room(&self, state: &StreamState, type_url: &TypeUrl) -> Option<LocatorStatus> {
        let (types, names) = (self.config.upstream_types_limit, self.config.upstream_names_limit);
        let message = match state.subscriptions(type_url) {
            0 if state.types() >= types => format!(
                "the proxy subscribes to {types} types upstream, and to no more, so that the control plane does not end \
                 the stream of all clients"
            ),
            subscriptions if subscriptions >= names => format!(
                "the proxy has {names} upstream subscriptions of this type, and makes no more, so that the control \
                 plane does not end the stream of all clients"
            ),
            _ => return None,
        };
        Some(LocatorStatus::Failed { code: Code::RESOURCE_EXHAUSTED, message: message.into() })
    }

    /// A subscription of the type ended: one of those without room begins.
    pub(super) fn use_room(&mut self, route: &Route, type_url: &TypeUrl) {
        let next = self.upstreams.get(route).and_then(|upstream| upstream.without_room.next(type_url));
        self.pending.begun.extend(next);
    }

    /// The upstream subscription begins, or is not needed any more.
    pub(super) fn leave_room(&mut self, key: &Key, id: &SubscriptionId) {
        if let Some(upstream) = self.upstreams.get_mut(&id.0) {
            upstream.without_room.remove(key, id);
        }
    }
}
