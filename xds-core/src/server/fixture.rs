//! A short notation for the machines' tests: `CDS a=1 -b` puts cluster `a` with content `1` and
//! removes `b`.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as WireResource, ResourceError,
    ResourceName as WireName,
};
use xds_proto::type_url as url;

use super::{DeltaRequest, Next, Protocol, Response, Service, SotwRequest, Stream, StreamConfig, Verdict};
use crate::name::{Nonce, ResourceName, TypeUrl, Version};
use crate::resource::{Resource, VariantId};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Code, Commit, CommitError, Constraints, LocatorStatus, Parameters, Transaction, Watch};

pub(crate) mod wildcard;

/// The fields that the tests write: a name, the type of an EDS cluster, and a content to
/// distinguish versions.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(string, tag = "100")]
    content: String,
}

pub(crate) fn type_url(short: &str) -> TypeUrl {
    let known = TYPES.iter().find(|(name, _)| *name == short);
    known.map_or_else(|| format!("type.googleapis.com/{short}").as_str().into(), |(_, url)| (*url).into())
}

fn short(type_url: &str) -> &str {
    let known = TYPES.iter().find(|(_, url)| *url == type_url);
    known.map_or_else(|| type_url.rsplit_once('/').unwrap().1, |(name, _)| name)
}

/// A content `1>a,b` names `a` and `b`: clusters in routes, routes in a listener. Routes with `vhds:SOURCE`
/// use VHDS; a listener with `demand:ROUTES` subscribes to virtual hosts on demand. A listener or a cluster
/// with `SDS:NAME@SOURCE` names a secret, a listener with `ECDS:NAME@SOURCE` a filter, and one with
/// `SRDS:@SOURCE` scopes; one with `any:` may name anything.
pub(crate) fn payload(type_name: &str, name: &str, content: &str) -> Bytes {
    // A cluster with content "static" has no EDS.
    let discovery_type = if type_name == "CDS" && content != "static" { 3 } else { 0 };
    let mut bytes = Payload { name: name.into(), discovery_type, content: content.into() }.encode_to_vec();
    let named = content.split_once('>').map(|(_, names)| names.split(',')).into_iter().flatten();
    for name in named {
        let reference = match type_name {
            _ if name.contains('@') => sourced(type_name, name),
            // The cluster of a route action of a route of a virtual host.
            "RDS" => match name.strip_prefix("vhds:") {
                Some(source) => nested(&[9, 1], source.as_bytes()),
                None => nested(&[2, 3, 2, 1], name.as_bytes()),
            },
            // The only cluster of a TCP proxy, or the routes of a connection manager.
            "LDS" => {
                let manager = "http_connection_manager.v3.HttpConnectionManager";
                let (filter, config) = match name.split_once(':') {
                    // A filter that the table of references does not know.
                    Some(("any", _)) => ("any.v3.Any", Vec::new()),
                    Some(("tcp", cluster)) => ("tcp_proxy.v3.TcpProxy", nested(&[2], cluster.as_bytes())),
                    Some(("demand", routes)) => {
                        let filter = "/envoy.extensions.filters.http.on_demand.v3.OnDemand";
                        let filter = nested(&[5, 4, 1], filter.as_bytes());
                        (manager, [nested(&[3, 2], routes.as_bytes()), filter].concat())
                    }
                    _ => (manager, nested(&[3, 2], name.as_bytes())),
                };
                let type_url = format!("type.googleapis.com/envoy.extensions.filters.network.{filter}");
                nested(&[3, 3, 4], &[nested(&[1], type_url.as_bytes()), nested(&[2], &config)].concat())
            }
            // The route configuration of a scope.
            "SRDS" => nested(&[2], name.as_bytes()),
            other => panic!("{other} names nothing here"),
        };
        bytes.extend(reference);
    }
    bytes.into()
}

/// `TYPE:NAME@SOURCE`.
fn sourced(type_name: &str, text: &str) -> Vec<u8> {
    let (name, source) = text.split_once('@').unwrap();
    let (of, name) = name.split_once(':').unwrap();
    let named = |path: &[u32]| [nested(&[1], name.as_bytes()), nested(path, source.as_bytes())].concat();
    let any = |message: &str, value: &[u8]| {
        let type_url = format!("type.googleapis.com/envoy.extensions.{message}");
        [nested(&[1], type_url.as_bytes()), nested(&[2], value)].concat()
    };
    let context =
        |message: &str| any(&format!("transport_sockets.tls.v3.{message}"), &nested(&[1, 6], &named(&[2])));
    match (type_name, of) {
        ("CDS", "SDS") => nested(&[24, 3], &context("UpstreamTlsContext")),
        ("LDS", "SDS") => nested(&[3, 6, 3], &context("DownstreamTlsContext")),
        ("LDS", "ECDS") => nested(&[9], &named(&[5, 1])),
        ("LDS", "SRDS") => {
            let manager = "filters.network.http_connection_manager.v3.HttpConnectionManager";
            nested(&[3, 3, 4], &any(manager, &nested(&[31, 5, 1], source.as_bytes())))
        }
        other => panic!("{other:?} is not written here"),
    }
}

/// A field at the end of a path of messages.
fn nested(path: &[u32], value: &[u8]) -> Vec<u8> {
    path.iter().rev().fold(value.to_vec(), |value, number| {
        let mut field = Vec::new();
        prost::encoding::bytes::encode(*number, &value, &mut field);
        field
    })
}

pub(crate) fn version(type_name: &str, name: &str, content: &str) -> String {
    Version::of_payload(&payload(type_name, name, content)).to_string()
}

/// Commits lines of `TYPE name=content name[when]=content -name -name[when] ..`. `!name` and
/// `!name?key=value` set the status of a locator to complete, `!name/14` to failed with this code,
/// and `!name/` to unknown.
pub(crate) fn commit(cache: &Cache, text: &str) -> Commit {
    try_commit(cache, text).unwrap()
}

pub(crate) fn try_commit(cache: &Cache, text: &str) -> Result<Commit, CommitError> {
    cache.commit(transaction(text))
}

pub(crate) fn transaction(text: &str) -> Transaction {
    let mut transaction = Transaction::new();
    for line in text.split(';') {
        let mut words = line.split_whitespace();
        let Some(type_name) = words.next() else { continue };
        for word in words {
            let type_url = type_url(type_name);
            if let Some(word) = word.strip_prefix('!') {
                let (word, answer) = match word.split_once('/') {
                    Some((word, "")) => (word, None),
                    Some((word, code)) => (word, Some(failed(code))),
                    None => (word, Some(LocatorStatus::Complete)),
                };
                let requested = requested(std::iter::once(if word.contains('?') { word } else { "" }));
                let plain = || Locator { name: word.into(), parameters: Parameters::new() };
                let locator = requested.locators.iter().find(|_| word.contains('?')).unwrap_or_else(plain);
                let locator = Locator { parameters: locator.parameters.bound(), ..locator };
                transaction.set_status(type_url, locator, answer);
            } else if let Some(word) = word.strip_prefix('-') {
                let (name, constraints, _) = variant(word);
                transaction.remove(VariantId { type_url, name: name.into(), constraints });
            } else {
                let (name, constraints, content) = variant(word);
                let (name, extras) = name.split_once('{').unwrap_or((name, ""));
                let content = content.strip_prefix('=').expect("name=content or -name");
                let resource = Resource::new(type_url, name, payload(type_name, name, content)).unwrap();
                let resource = with_extras(resource.with_constraints(constraints), extras);
                transaction.put(resource);
            }
        }
    }
    transaction
}

fn failed(code: &str) -> LocatorStatus {
    LocatorStatus::Failed { code: Code(code.parse().unwrap()), message: "upstream says so".into() }
}

/// The contents of `{ttl=SECONDS|alias=NAME}`.
fn with_extras(resource: Resource, text: &str) -> Resource {
    let pairs = || text.trim_end_matches('}').split('|').filter_map(|pair| pair.split_once('='));
    let aliases: Vec<_> = pairs().filter(|(key, _)| *key == "alias").map(|(_, name)| name.into()).collect();
    let ttl = pairs().find(|(key, _)| *key == "ttl");
    let resource = if aliases.is_empty() { resource } else { resource.with_aliases(aliases) };
    match ttl {
        Some((_, seconds)) => resource.with_ttl(Duration::from_secs(seconds.parse().unwrap())),
        None => resource,
    }
}

/// Splits `name[when]rest`, and `name{extras}[when]rest` behind the extras.
fn variant(word: &str) -> (&str, Constraints, &str) {
    let extras = word.find('}').map_or(0, |at| at + 1);
    let end = word[extras..].find(['[', '=']).map_or(word.len(), |at| at + extras);
    let (name, rest) = word.split_at(end);
    match rest.strip_prefix('[').map(|rest| rest.split_once(']').expect("a closing bracket")) {
        Some((when, rest)) => (name, when.parse().unwrap(), rest),
        None => (name, Constraints::NONE, rest),
    }
}

/// `key=value` pairs, separated by spaces.
pub(crate) fn parameters(text: &str) -> Parameters {
    text.split_whitespace().map(|pair| pair.split_once('=').expect("key=value")).collect()
}

/// Names, and locators as `name?key=value&key=value`.
fn requested<'a>(words: impl Iterator<Item = &'a str>) -> Requested {
    let (located, plain): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('?'));
    let locator = |word: &str| {
        let (name, pairs) = word.split_once('?').unwrap();
        Locator { name: name.into(), parameters: parameters(&pairs.replace('&', " ")) }
    };
    Requested {
        names: plain.into_iter().map(Into::into).collect(),
        locators: located.into_iter().map(locator).collect(),
    }
}

/// A variant as it is sent to a client that knows locators: `name[when]`.
fn located(name: &WireName) -> String {
    let wire = name.dynamic_parameter_constraints.as_ref();
    let when = wire.map(|message| Constraints::from_proto(message).unwrap().to_string());
    format!("{}[{}]", name.name, when.unwrap_or_default())
}

/// Whether the stream was woken since the last call.
pub(crate) fn is_woken(watch: &Watch) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(watch.woken()).poll(&mut context).is_ready()
}

fn encoded(response: &Response) -> Vec<u8> {
    let chunks = response.bodies.iter().flat_map(|body| body.chunks());
    chunks.fold(response.head().to_vec(), |bytes, chunk| [&bytes, chunk.as_ref()].concat())
}

/// The fields of all types.
#[derive(Clone, PartialEq, Message)]
struct Content {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "100")]
    content: String,
}

fn describe(type_url: &str, value: &[u8]) -> String {
    let payload = Content::decode(value).unwrap();
    assert!(!type_url.is_empty());
    format!(" {}={}", payload.name, payload.content)
}

/// A wrapped resource, as `name=content` or `name[when]=content`, `{..}` with what goes with it, or
/// without a content.
fn describe_resource(resource: &WireResource, type_url: &str) -> String {
    let ttl = resource.ttl.as_ref().map(|ttl| format!("ttl={}", ttl.seconds));
    let aliases = resource.aliases.iter().map(|alias| format!("alias={alias}"));
    let extras: Vec<_> = ttl.into_iter().chain(aliases).collect();
    let braces = if extras.is_empty() { String::new() } else { format!("{{{}}}", extras.join("|")) };
    // T25: only one of the two names.
    assert_eq!(resource.name.is_empty(), resource.resource_name.is_some());
    let name = resource.resource_name.as_ref().map_or_else(|| resource.name.clone(), located);
    let Some(any) = &resource.resource else { return format!(" {name}{braces}") };
    assert_eq!(any.type_url, type_url);
    // T37: constraints are part of the content.
    if resource.resource_name.as_ref().is_some_and(|name| name.dynamic_parameter_constraints.is_some()) {
        assert_ne!(resource.version, Version::of_payload(&any.value).to_string());
    }
    let payload = Content::decode(any.value.clone()).unwrap();
    format!(" {name}{braces}={}", payload.content)
}

/// What cannot be, as `!name(code)`.
fn errors(errors: &[ResourceError]) -> String {
    let describe = |error: &ResourceError| {
        let status = error.error_detail.as_ref().unwrap();
        assert!(!status.message.is_empty());
        let name = error.resource_name.as_ref().unwrap();
        let shown = if name.dynamic_parameter_constraints.is_none() {
            format!("{:?}", name.name)
        } else {
            located(name)
        };
        format!(" !{shown}({})", status.code)
    };
    errors.iter().map(describe).collect()
}

/// A client of a SotW stream.
pub(crate) struct Sotw {
    pub(crate) cache: Arc<Cache>,
    pub(crate) stream: Stream,
    pub(crate) watch: Arc<Watch>,
    pub(crate) now: Duration,
    /// The last response as decoded.
    pub(crate) last: DiscoveryResponse,
    pub(crate) last_bodies: Vec<Arc<super::Body>>,
}

impl Sotw {
    pub(crate) fn new(cache: &Arc<Cache>) -> Self {
        Self::on(cache, Service::Aggregated)
    }

    pub(crate) fn on(cache: &Arc<Cache>, service: Service) -> Self {
        Self::with(cache, service, StreamConfig::default())
    }

    pub(crate) fn with(cache: &Arc<Cache>, service: Service, config: StreamConfig) -> Self {
        let watch = cache.watch();
        let stream = Stream::new(Arc::clone(&watch), service, Protocol::Sotw, config);
        let last = DiscoveryResponse::default();
        Self { cache: Arc::clone(cache), stream, watch, now: Duration::ZERO, last, last_bodies: Vec::new() }
    }

    pub(crate) fn send(&mut self, request: SotwRequest) -> Option<Verdict> {
        self.stream.on_request(self.now, request).unwrap()
    }

    /// Subscribes to names without answering a response, or answers response `nonce`.
    pub(crate) fn ask(&mut self, type_name: &str, list: &str, nonce: &str) -> Option<Verdict> {
        self.send(SotwRequest {
            type_url: type_url(type_name).as_str().into(),
            response_nonce: Nonce::parse(nonce),
            requested: Some(requested(list.split_whitespace())),
            ..SotwRequest::default()
        })
    }

    /// ACKs response `nonce` with an unchanged list.
    pub(crate) fn ack(&mut self, type_name: &str, nonce: &str) -> Option<Verdict> {
        let type_url = type_url(type_name).as_str().into();
        self.send(SotwRequest { type_url, response_nonce: Nonce::parse(nonce), ..SotwRequest::default() })
    }

    pub(crate) fn nack(&mut self, type_name: &str, nonce: &str) -> Option<Verdict> {
        self.send(SotwRequest {
            type_url: type_url(type_name).as_str().into(),
            response_nonce: Nonce::parse(nonce),
            error_detail: Some("bad".into()),
            ..SotwRequest::default()
        })
    }

    fn next(&mut self) -> Next {
        let Self { watch, stream, now, .. } = self;
        watch.read(|snapshot| stream.next(*now, snapshot))
    }

    /// What the stream sends now, a line each: nonce, type, resources.
    pub(crate) fn sent(&mut self) -> String {
        let mut lines = Vec::new();
        while let Next::Send(response) = self.next() {
            let bytes = encoded(&response);
            assert_eq!(bytes.len(), response.size_bytes());
            let decoded = DiscoveryResponse::decode(bytes.as_slice()).unwrap();
            assert_eq!(decoded.type_url, response.type_url.as_str());
            assert_eq!(decoded.resources.len(), response.resources());
            let mut line = format!("n{} {}", decoded.nonce, short(&decoded.type_url));
            for any in &decoded.resources {
                if any.type_url == url::RESOURCE {
                    let resource = WireResource::decode(any.value.clone()).unwrap();
                    line += &describe_resource(&resource, &decoded.type_url);
                } else {
                    // S29: every resource has the type of the response.
                    assert_eq!(any.type_url, decoded.type_url);
                    line += &describe(&any.type_url, &any.value);
                }
            }
            line += &errors(&decoded.resource_errors);
            lines.push(line);
            self.last = decoded;
            self.last_bodies = response.bodies;
        }
        lines.join("; ")
    }

    /// The version of what is sent now.
    pub(crate) fn sent_version(mut self) -> String {
        self.sent();
        self.last.version_info
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The time of [`Next::Wait`], in milliseconds since the start of the stream.
    pub(crate) fn waits_until(&mut self) -> Option<u128> {
        match self.stream.next(self.now, &self.cache.snapshot()) {
            Next::Wait { until } => until.map(|until| until.as_millis()),
            other => panic!("{other:?} is no wait"),
        }
    }
}

/// A client of a delta stream.
pub(crate) struct Delta {
    pub(crate) cache: Arc<Cache>,
    pub(crate) stream: Stream,
    pub(crate) watch: Arc<Watch>,
    pub(crate) now: Duration,
    pub(crate) last: DeltaDiscoveryResponse,
    pub(crate) last_bodies: Vec<Arc<super::Body>>,
}

impl Delta {
    pub(crate) fn new(cache: &Arc<Cache>) -> Self {
        Self::with(cache, StreamConfig::default())
    }

    pub(crate) fn with(cache: &Arc<Cache>, config: StreamConfig) -> Self {
        let watch = cache.watch();
        let stream = Stream::new(Arc::clone(&watch), Service::Aggregated, Protocol::Delta, config);
        let last = DeltaDiscoveryResponse::default();
        Self { cache: Arc::clone(cache), stream, watch, now: Duration::ZERO, last, last_bodies: Vec::new() }
    }

    pub(crate) fn send(&mut self, request: DeltaRequest) -> Option<Verdict> {
        self.stream.on_request(self.now, request).unwrap()
    }

    /// Subscribes and unsubscribes (`-name`).
    pub(crate) fn ask(&mut self, type_name: &str, edits: &str) -> Option<Verdict> {
        self.ask_with(type_name, edits, "", &[])
    }

    pub(crate) fn ask_with(
        &mut self,
        type_name: &str,
        edits: &str,
        nonce: &str,
        brought: &[(&str, &str)],
    ) -> Option<Verdict> {
        let (unsubscribe, subscribe) =
            edits.split_whitespace().partition::<Vec<_>, _>(|word| word.starts_with('-'));
        self.send(DeltaRequest {
            type_url: type_url(type_name).as_str().into(),
            subscribe: requested(subscribe.into_iter()),
            unsubscribe: requested(unsubscribe.into_iter().map(|word| &word[1..])),
            initial_resource_versions: brought
                .iter()
                .map(|(name, version)| (ResourceName::new(*name), (*version).to_owned()))
                .collect(),
            response_nonce: Nonce::parse(nonce),
            error_detail: None,
        })
    }

    pub(crate) fn ack(&mut self, type_name: &str, nonce: &str) -> Option<Verdict> {
        self.ask_with(type_name, "", nonce, &[])
    }

    pub(crate) fn nack(&mut self, type_name: &str, nonce: &str) -> Option<Verdict> {
        self.send(DeltaRequest {
            type_url: type_url(type_name).as_str().into(),
            response_nonce: Nonce::parse(nonce),
            error_detail: Some("bad".into()),
            ..DeltaRequest::default()
        })
    }

    fn next(&mut self) -> Next {
        let Self { watch, stream, now, .. } = self;
        watch.read(|snapshot| stream.next(*now, snapshot))
    }

    /// What the stream sends now, a line each: nonce, type, resources, removals.
    pub(crate) fn sent(&mut self) -> String {
        let mut lines = Vec::new();
        while let Next::Send(response) = self.next() {
            let bytes = encoded(&response);
            assert_eq!(bytes.len(), response.size_bytes());
            let decoded = DeltaDiscoveryResponse::decode(bytes.as_slice()).unwrap();
            assert_eq!(decoded.type_url, response.type_url.as_str());
            let mut line = format!("n{} {}", decoded.nonce, short(&decoded.type_url));
            for resource in &decoded.resources {
                line += &describe_resource(resource, &decoded.type_url);
            }
            for name in &decoded.removed_resources {
                line += &format!(" -{name}");
            }
            for name in &decoded.removed_resource_names {
                line += &format!(" -{}", located(name));
            }
            line += &errors(&decoded.resource_errors);
            lines.push(line);
            self.last = decoded;
            self.last_bodies = response.bodies;
        }
        lines.join("; ")
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn waits_until(&mut self) -> Option<u128> {
        match self.stream.next(self.now, &self.cache.snapshot()) {
            Next::Wait { until } => until.map(|until| until.as_millis()),
            other => panic!("{other:?} is no wait"),
        }
    }
}

const TYPES: [(&str, &str); 9] = [
    ("LDS", url::LISTENER),
    ("RDS", url::ROUTE_CONFIGURATION),
    ("SRDS", url::SCOPED_ROUTE_CONFIGURATION),
    ("VHDS", url::VIRTUAL_HOST),
    ("CDS", url::CLUSTER),
    ("EDS", url::CLUSTER_LOAD_ASSIGNMENT),
    ("SDS", url::SECRET),
    ("ECDS", url::TYPED_EXTENSION_CONFIG),
    ("RTDS", url::RUNTIME),
];
