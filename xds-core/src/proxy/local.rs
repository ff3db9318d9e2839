//! Subscriptions of the program that the proxy runs in. They get what a client on a stream gets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Proxy;
use super::config::UpstreamKind;
use super::route::{Route, RouteKind};
use crate::cache::{Cache, Snapshot, TypeSnapshot, Watch};
use crate::client::health::{Health, SyncState};
use crate::client::{
    Client, ReadGuard, ReadLimits, ReadRoute, Routes, WatchError, check_name, check_parameters, readable,
};
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::payload::Raw;
use crate::protocol::Protocol;
use crate::resource::VariantId;
use crate::server::{DeltaRequest, Next, Service, Stream, StreamConfig, StreamError};
use crate::subscription::{Locator, WILDCARD};
use crate::variants::Variant;

/// Names of one type, with the parameters of the program.
#[derive(Debug, Clone)]
pub struct LocalSubscription {
    type_url: TypeUrl,
    names: Arc<[ResourceName]>,
    parameters: Parameters,
}

/// The stream of a local subscription. Dropping it ends the subscription.
///
/// It is a stream of the cache without a socket, so its subscriptions are shared, limited and
/// answered like those of clients. It ACKs what it is sent, and tries no response first: the program
/// reads what is stable.
#[derive(Debug)]
pub struct LocalStream {
    watch: Arc<Watch>,
    stream: Stream,
    subscription: LocalSubscription,
}

/// Why a local subscription is refused. Nothing is subscribed to then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// There is no name.
    #[error("the subscription has no names")]
    NoNames,
    /// A name or a key of the parameters is invalid.
    #[error(transparent)]
    Invalid(#[from] WatchError),
    /// G9: more than one stream may subscribe to.
    #[error(transparent)]
    Limit(#[from] StreamError),
}

impl LocalSubscription {
    /// A subscription to names, globs (X12) or the wildcard (`*`).
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub fn new<'n>(
        type_url: TypeUrl,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Parameters,
    ) -> Result<Self, SubscribeError> {
        let mut checked = BTreeSet::new();
        for name in names {
            checked.insert(ResourceName::new(&*check_name(name, &type_url)?));
        }
        check_parameters(&parameters)?;
        if checked.is_empty() {
            return Err(SubscribeError::NoNames);
        }
        Ok(Self { type_url, names: checked.into_iter().collect(), parameters })
    }

    fn request(&self) -> DeltaRequest {
        let names = self.names.iter().cloned();
        let subscribe = if self.parameters.is_empty() {
            names.collect::<Vec<_>>().into()
        } else {
            names.map(|name| Locator { name, parameters: self.parameters.clone() }).collect()
        };
        DeltaRequest { type_url: self.type_url.as_str().into(), subscribe, ..DeltaRequest::default() }
    }
}

impl LocalStream {
    /// Subscribes to the names in the cache of a proxy, with the limits that clients have by default.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn new(
        now: Duration,
        cache: &Arc<Cache>,
        subscription: LocalSubscription,
    ) -> Result<Self, StreamError> {
        Self::with(StreamConfig::default(), now, cache, subscription)
    }

    pub(super) fn with(
        config: StreamConfig,
        now: Duration,
        cache: &Arc<Cache>,
        subscription: LocalSubscription,
    ) -> Result<Self, StreamError> {
        let watch = cache.watch();
        watch.keep_stable();
        let mut stream = Stream::new(Arc::clone(&watch), Service::Aggregated, Protocol::Delta, config);
        stream.on_request(now, subscription.request())?;
        Ok(Self { watch, stream, subscription })
    }

    /// Wakes the caller when there is [work](Self::work).
    #[must_use]
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Takes the responses that are due, and ACKs them. Returns when to call again, if it is not woken
    /// before.
    ///
    /// # Errors
    /// The stream has ended. As a client does, make another one.
    pub fn work(&mut self, now: Duration) -> Result<Option<Duration>, StreamError> {
        loop {
            match self.stream.next(now, &self.watch.snapshot()) {
                Next::Send(response) => {
                    let ack = DeltaRequest {
                        type_url: self.subscription.type_url.as_str().into(),
                        response_nonce: Some(response.nonce),
                        ..DeltaRequest::default()
                    };
                    self.stream.on_request(now, ack)?;
                }
                Next::Wait { until } => return Ok(until),
                Next::Close(error) => return Err(error),
            }
        }
    }
}

impl Proxy {
    /// Reads what a local subscription has now. A type that the upstream rejects on the main stream
    /// is read from its [side stream](RouteKind::SideStream), and from nothing that came before.
    #[must_use]
    pub fn read<T>(&self, subscription: &LocalSubscription) -> ReadGuard<T> {
        let LocalSubscription { type_url, names, parameters } = subscription;
        let snapshot = self.cache.snapshot();
        let routes: BTreeSet<_> = names.iter().map(|name| self.main_route(subscription, name)).collect();
        let generation = routes.iter().filter_map(|route| self.health(route)).map(Health::generation).max();
        let routes = match self.limits(subscription, &snapshot) {
            Some(ReadLimits { unserved, status, .. }) if unserved.len() == names.len() => {
                Routes::One(Err(status))
            }
            limits => Routes::OfSubscription { names: Arc::clone(names), limits },
        };
        let (type_url, parameters) = (type_url.clone(), parameters.clone());
        ReadGuard::new(type_url, snapshot, parameters, routes, generation.unwrap_or_default())
    }

    /// Whether each name of a local subscription has a resource, is absent, or has an error.
    #[must_use]
    pub fn is_answered(&self, subscription: &LocalSubscription) -> bool {
        let guard = self.read::<Raw>(subscription);
        subscription.names.iter().all(|name| {
            let main = self.main_route(subscription, name);
            let state = self.state_on(&main, subscription);
            if !is_served(state) && self.other_clients(&main, subscription).is_empty() {
                return matches!(state, Some(SyncState::Rejected(..)));
            }
            match guard.route() {
                ReadRoute::Cache(resources) => resources.is_answered(name),
                ReadRoute::Upstream(_) => false,
            }
        })
    }

    /// The main stream for a name (C16).
    fn main_route(&self, subscription: &LocalSubscription, name: &ResourceName) -> Route {
        let shared = self.shared_route(&(subscription.type_url.clone(), name.clone()));
        match &self.config.upstream {
            UpstreamKind::Node { keys } => {
                let projected = subscription.parameters.project(|key| keys.contains(key));
                shared.with(RouteKind::Node(projected))
            }
            UpstreamKind::Locators { .. } => shared,
        }
    }

    fn state_on(&self, main: &Route, subscription: &LocalSubscription) -> Option<&SyncState> {
        self.health(main)?.state(&subscription.type_url)
    }

    /// The clients that have the type on another stream than the main one, unless it was refused there too: on its
    /// side stream, and on a stream for the parameters alone (T43c).
    fn other_clients(&self, main: &Route, subscription: &LocalSubscription) -> Vec<&Client> {
        let LocalSubscription { type_url, parameters, .. } = subscription;
        let (side_stream, alone) =
            (main.side_stream(type_url), main.with(RouteKind::Alone(parameters.clone())));
        let routes = [side_stream, alone].into_iter().filter(|route| self.refusal(route, type_url).is_none());
        let upstreams = routes.filter_map(|route| self.upstreams.get(&route));
        let with_type = upstreams.filter(|upstream| upstream.state.subscriptions(type_url) > 0);
        with_type.map(|upstream| &upstream.client).collect()
    }

    /// `None` if all main streams of the subscription have the type.
    fn limits(&self, subscription: &LocalSubscription, snapshot: &Snapshot) -> Option<ReadLimits> {
        let LocalSubscription { type_url, names, .. } = subscription;
        let is_on_main = |name| is_served(self.state_on(&self.main_route(subscription, name), subscription));
        if names.iter().all(is_on_main) {
            return None;
        }
        let (mut unserved, mut confirmed, mut first) = (BTreeMap::new(), BTreeSet::new(), None);
        for name in names.iter() {
            let main = self.main_route(subscription, name);
            let is_on_main = readable(type_url, self.state_on(&main, subscription));
            let clients = self.other_clients(&main, subscription);
            if let Err(status) = &is_on_main {
                first.get_or_insert_with(|| status.clone());
                if clients.is_empty() {
                    unserved.insert(name.clone(), status.clone());
                    continue;
                }
            }
            let variants = snapshot.of_type(type_url).into_iter().flat_map(|of| selected_by(of, name));
            let ids = variants.map(|variant| variant.id(type_url));
            let has =
                |id: &VariantId| is_on_main.is_ok() || clients.iter().any(|client| client.has_variant(id));
            confirmed.extend(ids.filter(has));
        }
        first.map(|status| ReadLimits { unserved, confirmed, status })
    }
}

fn is_served(state: Option<&SyncState>) -> bool {
    state.is_some_and(SyncState::is_readable)
}

/// The variants that a name, a glob or the wildcard covers.
fn selected_by<'s>(
    resources: &'s TypeSnapshot,
    name: &'s ResourceName,
) -> Box<dyn Iterator<Item = &'s Arc<Variant>> + 's> {
    match name.as_str() {
        WILDCARD => Box::new(resources.iter().flat_map(|(_, variants)| variants.iter())),
        _ => Box::new(resources.variants_selected_by(name).flat_map(|(_, variants)| variants.iter())),
    }
}
