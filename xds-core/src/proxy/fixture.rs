//! A proxy between our own machines: an origin, the clients of its routes, and streams in front,
//! without a socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};

use super::{Proxy, ProxyConfig, Route, UpstreamKind, scripted};
use crate::client::health::Status;
use crate::client::{AuthorityConfig, ClientConfig, Effects, Protocol, ServerConfig, StreamEnd};
use crate::server::fixture::{Delta, Sotw, commit, type_url};
use crate::server::{self, DeltaRequest, Next, Service, Serving, SotwRequest, StreamConfig, TypeConfig};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Code, Delivery, Nonce};

/// An authority with a server of its own, if the proxy knows it.
pub(super) const OWN: &str = "own";

/// How an origin refuses a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It ends streams that subscribe to it and to other types.
    AmongOthers,
    /// It ends streams that subscribe to it.
    Always,
    /// The same with another code than UNIMPLEMENTED.
    With(Code),
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

/// The stream of the client of one route.
struct Upstream {
    stream: Stream,
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
    /// How many streams its clients opened.
    pub(super) opened: usize,
    /// Names that were subscribed (`+`) and unsubscribed (`-`) since the last call of `requested`;
    /// in SotW the list.
    requested: Vec<String>,
    pub(super) is_up: bool,
    /// Types that the origin refuses.
    pub(super) refused: BTreeMap<&'static str, Refusal>,
    /// The server of the authority `own`, which has the same content.
    is_own_up: bool,
    pub(super) refused_by_own: BTreeMap<&'static str, Refusal>,
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
            proxy: proxy(config.clone(), protocol),
            config,
            protocol,
            is_scripted: false,
            rejected: Vec::new(),
            upstreams: BTreeMap::new(),
            opened: 0,
            requested: Vec::new(),
            is_up: true,
            refused: BTreeMap::new(),
            is_own_up: true,
            refused_by_own: BTreeMap::new(),
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
        self.get_from(&Route::SHARED, text)
    }

    pub(super) fn get_from(&mut self, route: &Route, text: &str) -> Effects {
        let response = scripted::response(text, self.protocol);
        let effects = self.respond(route, &response);
        self.run();
        effects.expect("it is asked")
    }

    fn respond(&mut self, route: &Route, response: &Bytes) -> Option<Effects> {
        let (now, server) = (self.now, server_of(route));
        self.proxy.change(now, route, |client| client.on_response(now, server, response).expect("a response"))
    }

    /// Has the upstream send something wrong, if its stream is open.
    pub(super) fn lie(&mut self, text: &str) {
        if self.upstreams.contains_key(&Route::SHARED) && self.trying.is_none() {
            self.respond(&Route::SHARED, &scripted::response(text, self.protocol));
        }
    }

    /// The same for a response that could be tried first, but has no client to try it.
    pub(super) fn try_lie(&mut self, text: &str) {
        let response = scripted::response(text, self.protocol);
        assert!(self.proxy.try_first(&Route::SHARED, 0, &response).is_none());
        self.lie(text);
    }

    /// How many downstream subscriptions the cache reported to the proxy.
    pub(super) fn reported(&self) -> usize {
        self.proxy.names.iter().map(|(_, name)| name.downstream.len() + name.sharing.len()).sum()
    }

    /// How many clients of upstreams there are.
    pub(super) fn upstreams(&self) -> usize {
        self.proxy.upstreams.len()
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
        self.proxy.upstreams.keys().cloned().collect()
    }

    /// The subscriptions that the upstreams got since the last call.
    pub(super) fn requested(&mut self) -> String {
        assert_eq!(self.rejected, [""; 0], "the origin keeps to the rules");
        std::mem::take(&mut self.requested).join(" ")
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.proxy.on_timeout(self.now);
        for route in self.routes() {
            self.proxy.change(self.now, &route, |client| client.on_timeout(self.now));
        }
        self.run();
    }

    /// Concludes a trial: its clients answered, or will not.
    pub(super) fn conclude(&mut self) {
        let (response, delivery) = self.trying.take().expect("one is tried");
        let now = self.now;
        self.proxy
            .conclude(now, &delivery.results(), |client| client.on_response(now, 0, &response).unwrap());
        self.run();
    }

    /// The origin goes away.
    pub(super) fn lose(&mut self) {
        self.is_up = false;
        self.held.clear();
        if self.trying.take().is_some() {
            self.proxy.abandon();
        }
        for route in std::mem::take(&mut self.upstreams).into_keys() {
            self.end(&route);
        }
    }

    fn end(&mut self, route: &Route) {
        self.proxy.change(self.now, route, |client| {
            client.on_end(self.now, server_of(route), StreamEnd::lost("lost", u32::MAX / 2))
        });
    }

    /// The server of the authority `own` goes away, or comes back.
    pub(super) fn set_own_up(&mut self, is_up: bool) {
        self.is_own_up = is_up;
        let of_own = self.upstreams.keys().filter(|route| server_of(route) == 1 && !is_up);
        for route in of_own.cloned().collect::<Vec<_>>() {
            self.upstreams.remove(&route);
            self.end(&route);
        }
    }

    /// Everything goes where it has to.
    pub(super) fn run(&mut self) {
        while self.run_once() {}
    }

    /// One way up and one way down; whether anything went.
    pub(super) fn run_once(&mut self) -> bool {
        self.proxy.on_demand(self.now);
        let mut is_busy = !self.proxy.take_changed().is_empty();
        self.upstreams.retain(|route, _| self.proxy.client(route).is_some());
        for route in self.routes() {
            is_busy |= self.pump(&route);
        }
        is_busy
    }

    fn pump(&mut self, route: &Route) -> bool {
        let (mut is_busy, now, server) = (false, self.now, server_of(route));
        let Some(client) = self.proxy.client(route) else { return false };
        let (is_needed, connect_at) = (client.is_needed(server), client.connect_at(server));
        let (is_up, refused) = match server {
            0 => (self.is_up, &self.refused),
            _ => (self.is_own_up, &self.refused_by_own),
        };
        if !is_needed && self.upstreams.remove(route).is_some() {
            self.proxy.change(now, route, |client| {
                client.on_closed(now, server);
                Effects::default()
            });
        }
        if !self.upstreams.contains_key(route) && is_up && connect_at.is_some_and(|at| at <= now) {
            self.proxy.change(now, route, |client| {
                client.on_connecting(server);
                client.on_open(now, server);
                Effects::default()
            });
            let stream = match self.is_scripted {
                true => Stream::Scripted { protocol: self.protocol, listed: String::new() },
                false => Stream::new(&self.origin, self.protocol, route, refused),
            };
            self.upstreams.insert(route.clone(), Upstream { stream, types: BTreeSet::new() });
            self.opened += 1;
            is_busy = true;
        }
        let Some(Upstream { stream: open, types }) = self.upstreams.get_mut(route) else { return is_busy };
        loop {
            let mut request = None;
            self.proxy.change(now, route, |client| {
                request = client.next_request(now, server);
                Effects::default()
            });
            let Some(request) = request else { break };
            types.insert(type_of(&request, self.protocol));
            let is_refused = |(short, refusal): &(&&str, &Refusal)| {
                types.contains(type_url(short).as_str())
                    && match refusal {
                        Refusal::AmongOthers => types.len() > 1,
                        Refusal::Always | Refusal::With(_) => true,
                        Refusal::ByErrors => false,
                    }
            };
            if let Some((_, refusal)) = refused.iter().find(is_refused) {
                let code = if let Refusal::With(code) = refusal { *code } else { Code::UNIMPLEMENTED };
                let status = Status { code, message: "no such type".into() };
                self.upstreams.remove(route);
                self.proxy.on_stream_end(now, route, server, Some(status));
                self.proxy.change(now, route, |client| {
                    client.on_end(now, server, StreamEnd::lost("no such type", u32::MAX / 2))
                });
                return true;
            }
            self.requested.extend(open.on_request(now, &request, &mut self.rejected));
            is_busy = true;
        }
        while let Some(response) = open.next(self.now, &self.origin) {
            self.held.push_back((route.clone(), response));
        }
        while let Some((route, response)) =
            if self.is_slow || self.trying.is_some() { None } else { self.held.pop_front() }
        {
            // A client that is not needed any more reads nothing.
            if let Some(delivery) = self.proxy.try_first(&route, 0, &response) {
                self.trying = Some((response, delivery));
                return true;
            }
            is_busy |= self.respond(&route, &response).is_some();
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

/// The server of a route: the authority `own` has one of its own.
fn server_of(route: &Route) -> usize {
    usize::from(route.authority.is_some())
}

/// A proxy whose clients have one server for all names, but for those of the authority `own`.
fn proxy(config: ProxyConfig, protocol: Protocol) -> Proxy {
    let authorities = config.authorities.clone();
    Proxy::new(config, move |route| {
        let server = |name: &str| ServerConfig { name: name.into(), protocol, errors: Default::default() };
        let mut config = ClientConfig::new(Bytes::new(), server("origin"));
        config.servers.push(server("own"));
        config.default_authority.speaks_locators = route.node().is_none();
        let of_authority = |name: &String| {
            let servers = vec![usize::from(name == OWN)];
            (name.clone(), AuthorityConfig { servers, ..config.default_authority.clone() })
        };
        config.authorities = authorities.iter().map(of_authority).collect();
        config
    })
}
