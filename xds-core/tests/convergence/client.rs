//! A model client of each protocol.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use xds_core::server::{DeltaRequest, Next, Protocol, Response, Service, SotwRequest, Stream, StreamConfig};
use xds_core::subscription::{self, Locator};
use xds_core::{Cache, KnownType, Nonce, Parameters};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as WireResource,
};
use xds_proto::type_url::RESOURCE;

use crate::history::{Asked, TYPES};
use crate::known::Known;

/// A client with its stream, of either protocol.
pub(crate) trait Client {
    fn ask(&mut self, type_url: &'static str, asked: BTreeSet<Asked>);
    fn give_up_missing(&mut self, type_url: &'static str) {
        let (cache, known) = self.known(type_url);
        let snapshot = cache.snapshot();
        let Some(known) = known else { return };
        let exists = |(name, params): &&Asked| {
            let Some(name) = name else { return true };
            let variants = snapshot.get(&type_url.into(), &name.as_str().into());
            let params = params.as_ref().unwrap_or(&known.node);
            variants.is_some_and(|variants| variants.resolve(params).is_some())
        };
        let asked = known.asked.iter().filter(exists).cloned().collect();
        self.ask(type_url, asked);
    }
    /// Reads all responses before it subscribes to a wildcard again. Otherwise it could not
    /// distinguish the resources of the wildcard that it dropped from those of the new one.
    fn catch_up(&mut self, type_url: &'static str, asked: &BTreeSet<Asked>) {
        let (_, known) = self.known(type_url);
        let is_known = |one: &Asked| known.is_some_and(|known| known.asked.contains(one));
        if asked.iter().any(|one| one.0.is_none() && !is_known(one)) {
            while self.take(true) {}
        }
    }
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>);
    fn take(&mut self, accept: bool) -> bool;
    fn receive(&mut self);
    /// Whether all that it asked for was answered, and all answers taken.
    fn is_idle(&mut self) -> bool;
    fn pass(&mut self, time: Duration);
    fn reconnect(&mut self);
    fn check(&self) -> Result<(), String>;
    /// Compares what this stream brought with the cache, and not what is missing.
    fn check_held(&self) -> Result<(), String>;
    /// The same when everything that is asked for has just changed.
    fn check_last(&self) -> Result<(), String> {
        self.check()
    }
}

pub(crate) struct SotwClient {
    cache: Arc<Cache>,
    node: Parameters,
    stream: Stream,
    now: Duration,
    inbox: VecDeque<DiscoveryResponse>,
    types: BTreeMap<&'static str, Known>,
}

impl SotwClient {
    pub(crate) fn new(cache: &Arc<Cache>, node: Parameters) -> Self {
        let stream = Self::stream(cache, &node);
        let (inbox, types) = (VecDeque::new(), BTreeMap::new());
        Self { cache: Arc::clone(cache), node, stream, now: Duration::ZERO, inbox, types }
    }

    fn stream(cache: &Arc<Cache>, node: &Parameters) -> Stream {
        let mut stream =
            Stream::new(cache.watch(), Service::Aggregated, Protocol::Sotw, StreamConfig::default());
        stream.on_node(node.clone());
        stream
    }

    /// The version that a new stream is sent; that of a client without any response, when it is
    /// sent none.
    fn fresh_version(&self, type_url: &str, known: &Known) -> String {
        let mut stream = Self::stream(&self.cache, &self.node);
        let requested = Some(request(known.asked.iter()));
        let message = SotwRequest { type_url: type_url.into(), requested, ..SotwRequest::default() };
        stream.on_request(Duration::ZERO, message).unwrap();
        match stream.next(Duration::ZERO, &self.cache.snapshot()) {
            Next::Send(response) => response.version.to_string(),
            Next::Wait { .. } | Next::Close(_) => known.version.clone(),
        }
    }

    fn request(&mut self, type_url: &str, error_detail: Option<String>) {
        let known = &self.types[type_url];
        let request = SotwRequest {
            type_url: type_url.into(),
            version_info: known.version_info().to_owned(),
            response_nonce: Nonce::parse(&known.nonce),
            error_detail,
            requested: Some(request(known.asked.iter())),
        };
        self.stream.on_request(self.now, request).unwrap();
    }
}

impl Client for SotwClient {
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>) {
        (Arc::clone(&self.cache), self.types.get(type_url))
    }

    fn ask(&mut self, type_url: &'static str, asked: BTreeSet<Asked>) {
        self.catch_up(type_url, &asked);
        let node = &self.node;
        let known = self.types.entry(type_url).or_insert_with(|| Known::new(node, true));
        // A first empty list would be the legacy wildcard; this client says what it means.
        if !known.has_asked && asked.is_empty() {
            return;
        }
        let asked = known.distinct(asked);
        known.ask(asked);
        self.request(type_url, None);
    }

    fn take(&mut self, accept: bool) -> bool {
        let Some(response) = self.inbox.pop_front() else { return false };
        let type_url = TYPES.into_iter().find(|url| *url == response.type_url).unwrap();
        let known = self.types.get_mut(type_url).unwrap();
        known.nonce = response.nonce;
        known.take_version(response.version_info);
        if KnownType::of(type_url).full_state {
            known.held.clear();
        }
        for any in &response.resources {
            if any.type_url == RESOURCE {
                assert!(known.knows_locators, "S30: wrapped for who sent no locator");
                let resource = WireResource::decode(any.value.clone()).unwrap();
                let value = &resource.resource.as_ref().unwrap().value;
                known.take(resource.resource_name.as_ref(), value, &resource.version);
            } else {
                known.take(None, &any.value, "");
            }
        }
        // A client may use all of what it rejects.
        self.request(type_url, (!accept).then(|| "bad".to_owned()));
        true
    }

    fn receive(&mut self) {
        while let Some(response) = sent(self.stream.next(self.now, &self.cache.snapshot()), self.now) {
            let decoded = DiscoveryResponse::decode(response.as_slice()).unwrap();
            assert!(self.types[decoded.type_url.as_str()].has_asked, "S24: a type nobody asked for");
            self.inbox.push_back(decoded);
        }
    }

    fn is_idle(&mut self) -> bool {
        self.inbox.is_empty() && self.stream.until_due(self.now, &self.cache.snapshot()) == Some(None)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn reconnect(&mut self) {
        self.stream = Self::stream(&self.cache, &self.node);
        self.now = Duration::ZERO;
        self.inbox.clear();
        for type_url in self.types.keys().copied().collect::<Vec<_>>() {
            let known = self.types.get_mut(type_url).unwrap();
            known.reconnect();
            if known.has_asked {
                self.request(type_url, None);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut known = self.types.iter();
        known.try_for_each(|(url, known)| known.check(url, &self.cache, KnownType::of(url).full_state))
    }

    fn check_held(&self) -> Result<(), String> {
        let mut known = self.types.iter();
        known.try_for_each(|(url, known)| known.check_held(url, &self.cache, KnownType::of(url).full_state))
    }

    fn check_last(&self) -> Result<(), String> {
        self.check()?;
        for (url, known) in self.types.iter().filter(|(url, _)| KnownType::of(url).full_state) {
            // T38: the version is that of what is selected, however the stream came to it.
            let is_alike =
                known.knows_locators == known.asked.iter().any(|(_, parameters)| parameters.is_some());
            if is_alike && !known.asked.is_empty() && self.fresh_version(url, known) != known.version {
                return Err(format!("{url}: version {} is not that of a fresh stream", known.version));
            }
        }
        Ok(())
    }
}

pub(crate) struct DeltaClient {
    cache: Arc<Cache>,
    node: Parameters,
    stream: Stream,
    now: Duration,
    inbox: VecDeque<DeltaDiscoveryResponse>,
    types: BTreeMap<&'static str, Known>,
}

impl DeltaClient {
    pub(crate) fn new(cache: &Arc<Cache>, node: Parameters) -> Self {
        let stream = Self::stream(cache, &node);
        let (inbox, types) = (VecDeque::new(), BTreeMap::new());
        Self { cache: Arc::clone(cache), node, stream, now: Duration::ZERO, inbox, types }
    }

    fn stream(cache: &Arc<Cache>, node: &Parameters) -> Stream {
        let mut stream =
            Stream::new(cache.watch(), Service::Aggregated, Protocol::Delta, StreamConfig::default());
        stream.on_node(node.clone());
        stream
    }
}

impl Client for DeltaClient {
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>) {
        (Arc::clone(&self.cache), self.types.get(type_url))
    }

    fn ask(&mut self, type_url: &'static str, asked: BTreeSet<Asked>) {
        self.catch_up(type_url, &asked);
        let node = &self.node;
        let known = self.types.entry(type_url).or_insert_with(|| Known::new(node, false));
        if !known.has_asked && asked.is_empty() {
            return;
        }
        let asked = known.distinct(asked);
        let message = DeltaRequest {
            type_url: type_url.to_owned(),
            subscribe: request(asked.difference(&known.asked)),
            unsubscribe: request(known.asked.difference(&asked)),
            ..DeltaRequest::default()
        };
        known.ask(asked);
        self.stream.on_request(self.now, message).unwrap();
    }

    fn take(&mut self, accept: bool) -> bool {
        let Some(response) = self.inbox.pop_front() else { return false };
        let known = self.types.get_mut(response.type_url.as_str()).unwrap();
        let mut seen = BTreeSet::new();
        let key = |name: &xds_proto::envoy::service::discovery::v3::ResourceName| format!("{name:?}");
        for name in &response.removed_resources {
            assert!(seen.insert(name.clone()), "D13: {name} removed twice");
            known.take_removal(name);
        }
        let mut absent = Vec::new();
        for name in &response.removed_resource_names {
            assert!(seen.insert(key(name)), "D13: {name:?} removed twice");
            absent.extend(known.take_variant_removal(name));
        }
        for resource in &response.resources {
            let located = resource.resource_name.as_ref();
            let name = located.map_or(&resource.name, |located| &located.name);
            assert!(!response.removed_resources.contains(name), "T30: {name} added and removed");
            let is_new = seen.insert(located.map_or_else(|| name.clone(), key));
            assert!(is_new, "D13, T30b: {name} twice, or added and removed");
            known.take(located, &resource.resource.as_ref().unwrap().value, &resource.version);
        }
        known.take_absent(absent);
        let message = DeltaRequest {
            type_url: response.type_url,
            response_nonce: Nonce::parse(&response.nonce),
            error_detail: (!accept).then(|| "bad".to_owned()),
            ..DeltaRequest::default()
        };
        self.stream.on_request(self.now, message).unwrap();
        true
    }

    fn receive(&mut self) {
        while let Some(response) = sent(self.stream.next(self.now, &self.cache.snapshot()), self.now) {
            self.inbox.push_back(DeltaDiscoveryResponse::decode(response.as_slice()).unwrap());
        }
    }

    fn is_idle(&mut self) -> bool {
        self.inbox.is_empty() && self.stream.until_due(self.now, &self.cache.snapshot()) == Some(None)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn reconnect(&mut self) {
        self.stream = Self::stream(&self.cache, &self.node);
        self.now = Duration::ZERO;
        self.inbox.clear();
        for (type_url, known) in &mut self.types {
            let brought = known.reconnect();
            if !known.has_asked {
                continue;
            }
            let message = DeltaRequest {
                type_url: (*type_url).into(),
                subscribe: request(known.asked.iter()),
                initial_resource_versions: brought
                    .into_iter()
                    .map(|(name, v)| (name.as_str().into(), v))
                    .collect(),
                ..DeltaRequest::default()
            };
            self.stream.on_request(self.now, message).unwrap();
        }
    }

    fn check(&self) -> Result<(), String> {
        self.types.iter().try_for_each(|(url, known)| known.check(url, &self.cache, true))
    }

    fn check_held(&self) -> Result<(), String> {
        self.types.iter().try_for_each(|(url, known)| known.check_held(url, &self.cache, true))
    }
}

/// The plain names and the locators of a request.
fn request<'a>(asked: impl Iterator<Item = &'a Asked>) -> subscription::Requested {
    let (mut names, mut locators) = (Vec::new(), Vec::new());
    for (name, parameters) in asked {
        let name = name.as_deref().unwrap_or("*").into();
        match parameters {
            None => names.push(name),
            Some(parameters) => locators.push(Locator { name, parameters: parameters.clone() }),
        }
    }
    subscription::Requested { locators: locators.into_iter().collect(), ..names.into() }
}

/// The bytes of what is to be sent, if something is.
fn sent(next: Next, now: Duration) -> Option<Vec<u8>> {
    match next {
        Next::Send(response) => Some(encoded(&response)),
        Next::Wait { until } => {
            assert!(until.is_none_or(|until| until > now), "a deadline that has passed");
            None
        }
        Next::Close(error) => panic!("{error}"),
    }
}

fn encoded(response: &Response) -> Vec<u8> {
    let mut bytes = response.head().to_vec();
    for chunk in response.bodies.iter().flat_map(|body| body.chunks()) {
        bytes.extend_from_slice(chunk);
    }
    bytes
}
