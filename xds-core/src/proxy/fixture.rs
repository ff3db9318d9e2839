//! A proxy between our own machines: an origin, the clients of its routes, and streams in front,
//! without a socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};

use super::health::Status;
use super::{Proxy, ProxyConfig, Route, UpstreamKind, scripted};
use crate::client::{Client, ClientConfig, Effects, Protocol, Restored, ServerConfig};
use crate::server::fixture::{Delta, Sotw, commit, type_url};
use crate::server::{self, DeltaRequest, Next, Service, Serving, SotwRequest, StreamConfig, TypeConfig};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Code, Delivery, Nonce};

/// How an origin refuses a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It ends streams that subscribe to it and to other types.
    AmongOthers,
    /// It ends streams that subscribe to it.
    Always,
    /// It sends resource errors.
    ByErrors,
}

/// A stream of the origin.
enum Stream {
    Served {
        protocol: Protocol,
        machine: Box<server::Stream>,
    },
    /// Nobody answers by himself.
    Scripted {
        protocol: Protocol,
        /// SotW: what was listed last.
        listed: String,
    },
}

/// The client of one route.
struct Upstream {
    client: Client,
    stream: Option<Stream>,
    /// The types that the stream subscribed to.
    types: BTreeSet<String>,
}

/// An origin and a proxy.
pub(super) struct World {
    pub(super) origin: Arc<Cache>,
    pub(super) proxy: Proxy,
    config: ProxyConfig,
    protocol: Protocol,
    is_scripted: bool,
    /// What the proxy rejected of what the origin sent.
    pub(super) rejected: Vec<String>,
    upstreams: BTreeMap<Route, Upstream>,
    /// Names that were subscribed (`+`) and unsubscribed (`-`) since the last call of `requested`;
    /// in SotW the list.
    requested: Vec<String>,
    pub(super) is_up: bool,
    /// Types that the origin refuses.
    pub(super) refused: BTreeMap<&'static str, Refusal>,
    /// Responses that the proxy has not read yet, because it is slow.
    pub(super) is_slow: bool,
    held: VecDeque<(Route, Bytes)>,
    /// A response that some clients try, and its delivery to them.
    pub(super) trying: Option<(Bytes, Delivery)>,
    pub(super) now: Duration,
}

impl World {
    /// Of an origin with this content.
    pub(super) fn new(protocol: Protocol, content: &str, config: ProxyConfig) -> Self {
        let origin = Cache::new();
        commit(&origin, content);
        Self {
            origin,
            proxy: Proxy::new(config.clone()),
            config,
            protocol,
            is_scripted: false,
            rejected: Vec::new(),
            upstreams: BTreeMap::new(),
            requested: Vec::new(),
            is_up: true,
            refused: BTreeMap::new(),
            is_slow: false,
            held: VecDeque::new(),
            trying: None,
            now: Duration::ZERO,
        }
    }

    pub(super) fn delta(content: &str) -> Self {
        Self::new(Protocol::Delta, content, ProxyConfig::default())
    }

    /// In front of an upstream that sends only the responses of [`get`](Self::get).
    pub(super) fn scripted(protocol: Protocol) -> Self {
        Self::scripted_for(protocol, ProxyConfig::default())
    }

    /// The same of a proxy that shares so.
    pub(super) fn scripted_for(protocol: Protocol, config: ProxyConfig) -> Self {
        Self { is_scripted: true, ..Self::new(protocol, "", config) }
    }

    /// In front of another proxy.
    pub(super) fn behind(other: &Self) -> Self {
        Self {
            origin: Arc::clone(other.proxy.cache()),
            ..Self::new(other.protocol, "", other.config.clone())
        }
    }

    /// Has the upstream send [a response](super::scripted).
    pub(super) fn get(&mut self, text: &str) -> Effects {
        self.get_from(&Route::Shared, text)
    }

    pub(super) fn get_from(&mut self, route: &Route, text: &str) -> Effects {
        let upstream = self.upstreams.get_mut(route).expect("it is asked");
        let response = scripted::response(text, self.protocol);
        let effects = upstream.client.on_response(self.now, 0, &response).expect("a response");
        self.proxy.on_effects(self.now, route, &upstream.client, &effects);
        self.run();
        effects
    }

    /// Has the upstream send something wrong, if its stream is open.
    pub(super) fn lie(&mut self, text: &str) {
        let asked = self.upstreams.get_mut(&Route::Shared).filter(|upstream| upstream.stream.is_some());
        let Some(upstream) = asked.filter(|_| self.trying.is_none()) else { return };
        let effects = upstream.client.on_response(self.now, 0, &scripted::response(text, self.protocol));
        self.proxy.on_effects(self.now, &Route::Shared, &upstream.client, &effects.expect("a response"));
    }

    /// The same for a response that could be tried first, but has no client to try it.
    pub(super) fn try_lie(&mut self, text: &str) {
        let client = &mut self.upstreams.get_mut(&Route::Shared).expect("it was made").client;
        let response = scripted::response(text, self.protocol);
        assert!(self.proxy.try_first(&Route::Shared, client, 0, &response).is_none());
        self.lie(text);
    }

    /// Makes the client of the shared route before the first subscription, with restored resources.
    pub(super) fn restore(&mut self, restored: Vec<Restored>) {
        let mut client = Client::new(self.config_of(&Route::Shared));
        client.restore(self.now, restored);
        self.upstreams.insert(Route::Shared, Upstream { client, stream: None, types: BTreeSet::new() });
    }

    /// How many clients of upstreams there are.
    pub(super) fn upstreams(&self) -> usize {
        self.upstreams.len()
    }

    /// A client of the proxy that subscribes by delta.
    pub(super) fn leaf(&self, type_name: &str, list: &str) -> Delta {
        let mut leaf = Delta::new(self.proxy.cache());
        leaf.now = self.now;
        leaf.ask(type_name, list);
        leaf
    }

    pub(super) fn sotw_leaf(&self, type_name: &str, list: &str) -> Sotw {
        let mut leaf = Sotw::new(self.proxy.cache());
        leaf.now = self.now;
        leaf.ask(type_name, list, "");
        leaf
    }

    pub(super) fn commit(&mut self, text: &str) {
        commit(&self.origin, text);
        self.run();
    }

    /// The routes that there are clients of.
    pub(super) fn routes(&self) -> Vec<Route> {
        self.upstreams.keys().cloned().collect()
    }

    /// The subscriptions that the upstreams got since the last call.
    pub(super) fn requested(&mut self) -> String {
        assert_eq!(self.rejected, [""; 0], "the origin keeps to the rules");
        std::mem::take(&mut self.requested).join(" ")
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.proxy.on_timeout(self.now);
        for (route, upstream) in &mut self.upstreams {
            let effects = upstream.client.on_timeout(self.now);
            self.proxy.on_effects(self.now, route, &upstream.client, &effects);
        }
        self.run();
    }

    /// Concludes a trial: its clients answered, or will not.
    pub(super) fn conclude(&mut self) {
        let (response, delivery) = self.trying.take().expect("one is tried");
        let upstream = self.upstreams.get_mut(&Route::Shared).unwrap();
        self.proxy.conclude(&mut upstream.client, &delivery.results());
        let effects = upstream.client.on_response(self.now, 0, &response).unwrap();
        self.proxy.on_effects(self.now, &Route::Shared, &upstream.client, &effects);
        self.run();
    }

    /// The origin goes away.
    pub(super) fn lose(&mut self) {
        self.is_up = false;
        self.held.clear();
        if self.trying.take().is_some() {
            self.proxy.abandon(&mut self.upstreams.get_mut(&Route::Shared).expect("it was made").client);
        }
        for (route, upstream) in &mut self.upstreams {
            if upstream.stream.take().is_some() {
                let effects = upstream.client.on_end(self.now, 0, "lost", u32::MAX / 2);
                self.proxy.on_effects(self.now, route, &upstream.client, &effects);
            }
        }
    }

    /// Everything goes where it has to.
    pub(super) fn run(&mut self) {
        while self.run_once() {}
    }

    /// One way up and one way down; whether anything went.
    pub(super) fn run_once(&mut self) -> bool {
        self.proxy.on_demand(self.now);
        let routes = self.proxy.routes_with_orders();
        let mut is_busy = !routes.is_empty();
        for route in routes {
            let client = || self.config_of(&route);
            let new = (!self.upstreams.contains_key(&route)).then(client);
            if let Some(config) = new {
                let client = Client::new(config);
                let upstream = Upstream { client, stream: None, types: BTreeSet::new() };
                self.upstreams.insert(route.clone(), upstream);
            }
            let upstream = self.upstreams.get_mut(&route).unwrap();
            self.proxy.apply_orders(self.now, &route, &mut upstream.client);
        }
        for route in self.proxy.take_unneeded() {
            self.upstreams.remove(&route);
        }
        for route in self.upstreams.keys().cloned().collect::<Vec<_>>() {
            is_busy |= self.pump(&route);
        }
        is_busy
    }

    fn config_of(&self, route: &Route) -> ClientConfig {
        let server =
            ServerConfig { name: "origin".into(), protocol: self.protocol, errors: Default::default() };
        let mut config = ClientConfig::new(Bytes::new(), server);
        config.default_authority.speaks_locators = route.node().is_none();
        let of_authority = |name: &String| (name.clone(), config.default_authority.clone());
        config.authorities = self.config.authorities.iter().map(of_authority).collect();
        config.relay = Some(route.relay(self.proxy.cache(), &self.config.upstream));
        config
    }

    fn pump(&mut self, route: &Route) -> bool {
        let mut is_busy = false;
        let upstream = self.upstreams.get_mut(route).unwrap();
        let Upstream { client, stream, types } = upstream;
        if stream.is_some() && !client.is_needed(0) {
            *stream = None;
            client.on_closed(self.now, 0);
            self.proxy.on_effects(self.now, route, client, &Effects::default());
        }
        if stream.is_none() && self.is_up && client.connect_at(0).is_some_and(|at| at <= self.now) {
            client.on_connecting(0);
            client.on_open(self.now, 0);
            self.proxy.on_effects(self.now, route, client, &Effects::default());
            types.clear();
            *stream = Some(match self.is_scripted {
                true => Stream::Scripted { protocol: self.protocol, listed: String::new() },
                false => Stream::new(&self.origin, self.protocol, route, &self.refused),
            });
            is_busy = true;
        }
        let Some(open) = stream else { return is_busy };
        while let Some(request) = client.next_request(self.now, 0) {
            types.insert(type_of(&request, self.protocol));
            let is_refused = |(short, refusal): (&&str, &Refusal)| {
                types.contains(type_url(short).as_str())
                    && match refusal {
                        Refusal::AmongOthers => types.len() > 1,
                        Refusal::Always => true,
                        Refusal::ByErrors => false,
                    }
            };
            if self.refused.iter().any(is_refused) {
                let status = Status { code: Code::UNIMPLEMENTED, message: "no such type".into() };
                *stream = None;
                self.proxy.on_stream_end(self.now, route, 0, Some(status));
                let effects = client.on_end(self.now, 0, "no such type", u32::MAX / 2);
                self.proxy.on_effects(self.now, route, client, &effects);
                return true;
            }
            self.requested.extend(open.on_request(self.now, &request, &mut self.rejected));
            is_busy = true;
        }
        while let Some(response) = open.next(self.now, &self.origin) {
            self.held.push_back((route.clone(), response));
        }
        while let Some((route, response)) =
            if self.is_slow || self.trying.is_some() { None } else { self.held.pop_front() }
        {
            // A client that is not needed any more reads nothing.
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            if let Some(delivery) = self.proxy.try_first(&route, &mut upstream.client, 0, &response) {
                self.trying = Some((response, delivery));
                return true;
            }
            let effects = upstream.client.on_response(self.now, 0, &response).unwrap();
            self.proxy.on_effects(self.now, &route, &upstream.client, &effects);
            is_busy = true;
        }
        is_busy
    }
}

impl Stream {
    fn new(
        origin: &Arc<Cache>,
        protocol: Protocol,
        route: &Route,
        refused: &BTreeMap<&'static str, Refusal>,
    ) -> Self {
        let by_errors = refused.iter().filter(|(_, refusal)| **refusal == Refusal::ByErrors);
        let types = by_errors.map(|(short, _)| {
            let config = TypeConfig::of(type_url(short).as_str());
            (type_url(short), TypeConfig { serving: Serving::NotServed, ..config })
        });
        let config = StreamConfig { types: types.collect(), ..StreamConfig::default() };
        let watch = origin.watch();
        // The node of a stream to a server without TP2 has the parameters.
        let derived = route.node().cloned().unwrap_or_default();
        let mut machine = server::Stream::new(watch, Service::Aggregated, protocol, config);
        machine.on_node(derived);
        Self::Served { protocol, machine: Box::new(machine) }
    }

    /// The names that a request subscribes to and unsubscribes from.
    fn on_request(&mut self, now: Duration, frame: &Bytes, rejected: &mut Vec<String>) -> Option<String> {
        match self {
            Self::Served { protocol: Protocol::Sotw, machine } => {
                let request = DiscoveryRequest::decode(frame.as_ref()).unwrap();
                let asked = asked(request.resource_names, request.resource_locators);
                let names = format!("[{}]", shown("", &asked));
                let error_detail = request.error_detail.map(|status| status.message);
                rejected.extend(error_detail.clone());
                let is_answer = !request.response_nonce.is_empty();
                let request = SotwRequest {
                    type_url: request.type_url,
                    version_info: request.version_info,
                    response_nonce: Nonce::parse(&request.response_nonce),
                    error_detail,
                    requested: Some(asked),
                };
                machine.on_request(now, request).unwrap();
                (!is_answer || names != "[]").then_some(names)
            }
            Self::Served { protocol: Protocol::Delta, machine } => {
                let request = DeltaDiscoveryRequest::decode(frame.as_ref()).unwrap();
                let error_detail = request.error_detail.map(|status| status.message);
                rejected.extend(error_detail.clone());
                let subscribe = asked(request.resource_names_subscribe, request.resource_locators_subscribe);
                let unsubscribe =
                    asked(request.resource_names_unsubscribe, request.resource_locators_unsubscribe);
                let names = [shown("+", &subscribe), shown("-", &unsubscribe)];
                let names: Vec<_> = names.into_iter().filter(|names| !names.is_empty()).collect();
                let brought = request.initial_resource_versions.into_iter();
                let request = DeltaRequest {
                    type_url: request.type_url,
                    subscribe,
                    unsubscribe,
                    initial_resource_versions: brought.map(|(name, is)| (name.as_str().into(), is)).collect(),
                    response_nonce: Nonce::parse(&request.response_nonce),
                    error_detail,
                };
                machine.on_request(now, request).unwrap();
                (!names.is_empty()).then(|| names.join(" "))
            }
            Self::Scripted { protocol: Protocol::Sotw, listed } => {
                let request = DiscoveryRequest::decode(frame.as_ref()).unwrap();
                let now =
                    format!("[{}]", shown("", &asked(request.resource_names, request.resource_locators)));
                let is_new = std::mem::replace(listed, now.clone()) != now;
                let error = request.error_detail.map(|status| format!("!{}", status.message));
                error.or_else(|| is_new.then_some(now))
            }
            Self::Scripted { protocol: Protocol::Delta, .. } => {
                let request = DeltaDiscoveryRequest::decode(frame.as_ref()).unwrap();
                let error = request.error_detail.map(|status| format!("!{}", status.message));
                let subscribe = asked(request.resource_names_subscribe, request.resource_locators_subscribe);
                let unsubscribe =
                    asked(request.resource_names_unsubscribe, request.resource_locators_unsubscribe);
                let names = [error.unwrap_or_default(), shown("+", &subscribe), shown("-", &unsubscribe)];
                let names: Vec<_> = names.into_iter().filter(|names| !names.is_empty()).collect();
                (!names.is_empty()).then(|| names.join(" "))
            }
        }
    }

    fn next(&mut self, now: Duration, origin: &Cache) -> Option<Bytes> {
        let next = match self {
            Self::Served { machine, .. } => machine.next(now, &origin.snapshot()),
            Self::Scripted { .. } => return None,
        };
        match next {
            Next::Send(response) => {
                let chunks = response.bodies.iter().flat_map(|body| body.chunks());
                Some(
                    chunks
                        .fold(response.head().to_vec(), |all, chunk| [&all, chunk.as_ref()].concat())
                        .into(),
                )
            }
            Next::Wait { .. } => None,
            Next::Close(error) => panic!("{error}"),
        }
    }
}

fn type_of(frame: &Bytes, protocol: Protocol) -> String {
    match protocol {
        Protocol::Sotw => DiscoveryRequest::decode(frame.as_ref()).unwrap().type_url,
        Protocol::Delta => DeltaDiscoveryRequest::decode(frame.as_ref()).unwrap().type_url,
    }
}

fn asked(names: Vec<String>, locators: Vec<ResourceLocator>) -> Requested {
    let locators = locators.into_iter().map(|locator| Locator {
        name: locator.name.as_str().into(),
        parameters: locator.dynamic_parameters.into_iter().collect(),
    });
    let names: Vec<_> = names.iter().map(|name| name.as_str().into()).collect();
    Requested { locators: locators.collect(), ..names.into() }
}

/// Names as they are, locators as `name{key=value,..}`.
fn shown(sign: &str, asked: &Requested) -> String {
    let names = asked.names.iter().map(|name| format!("{sign}{}", name.as_str()));
    let locators = asked.locators.iter().map(|Locator { name, parameters }| {
        let pairs = parameters.iter().map(|(key, value)| format!("{key}={value}"));
        format!("{sign}{}{{{}}}", name.as_str(), pairs.collect::<Vec<_>>().join(","))
    });
    let mut all: Vec<_> = names.chain(locators).collect();
    all.sort();
    all.join(" ")
}

/// To servers without TP2, by these keys.
pub(super) fn by_node(keys: &[&str]) -> ProxyConfig {
    let keys = keys.iter().map(|key| (*key).into()).collect();
    ProxyConfig { upstream: UpstreamKind::Node { keys }, ..ProxyConfig::default() }
}
