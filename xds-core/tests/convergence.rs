//! Whatever happened on a stream, in the end its client holds what it asked for as the cache has it.
//!
//! A model client of each protocol asks, ACKs late, comes back on new streams; commits happen in between. Then all is
//! answered and time passes, and what the client holds must be the newest snapshot's selection.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use xds_core::server::{
    DeltaRequest, DeltaStream, Next, Response, Service, SotwRequest, SotwStream, StreamConfig,
};
use xds_core::{Cache, KnownType, Nonce, Resource, ResourceName, Transaction, VariantId};
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, ROUTE_CONFIGURATION};

const TYPES: [&str; 4] = [CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, ROUTE_CONFIGURATION];

/// One thing that happens. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    /// Puts or removes names of types, all at once.
    Commit(Vec<(u8, u8, Option<u8>)>),
    /// Asks for these names of a type; `*` for an odd last number.
    Ask {
        type_url: u8,
        names: Vec<u8>,
        star: bool,
    },
    /// The client takes the oldest response from its inbox, and ACKs or NACKs it.
    Take {
        accept: bool,
    },
    Pass {
        ms: u16,
    },
    Reconnect,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 16 {
            0..5 => Self::Commit(Vec::arbitrary(g)),
            5..9 => {
                let star = u8::arbitrary(g) % 4 == 0;
                Self::Ask { type_url: u8::arbitrary(g), names: Vec::arbitrary(g), star }
            }
            9..13 => Self::Take { accept: u8::arbitrary(g) % 4 > 0 },
            13..15 => Self::Pass { ms: u16::arbitrary(g) % 3000 },
            _ => Self::Reconnect,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match self {
            Self::Commit(changes) => Box::new(changes.shrink().map(Self::Commit)),
            Self::Ask { type_url, names, star } => {
                let (type_url, star) = (*type_url, *star);
                Box::new(names.shrink().map(move |names| Self::Ask { type_url, names, star }))
            }
            Self::Take { .. } | Self::Pass { .. } | Self::Reconnect => quickcheck::empty_shrinker(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    /// An EDS cluster; a field that the other types do not have.
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(int32, tag = "100")]
    content: i32,
}

fn type_of(number: u8) -> &'static str {
    TYPES[usize::from(number) % TYPES.len()]
}

fn name_of(number: u8) -> String {
    format!("r{}", number % 6)
}

fn commit(cache: &Cache, changes: &[(u8, u8, Option<u8>)]) {
    let changes: BTreeMap<_, _> =
        changes.iter().map(|(t, n, content)| ((type_of(*t), name_of(*n)), *content)).collect();
    let mut transaction = Transaction::new();
    for ((type_url, name), content) in changes {
        match content {
            Some(content) => {
                let discovery_type = if type_url == CLUSTER { 3 } else { 0 };
                let payload = Payload { name: name.clone(), discovery_type, content: (content % 4).into() };
                let payload = payload.encode_to_vec().into();
                transaction.put(Resource::new(type_url.into(), name.as_str().into(), payload).unwrap());
            }
            None => transaction.remove(VariantId::unconstrained(type_url.into(), name.as_str().into())),
        }
    }
    cache.commit(transaction).unwrap();
}

fn content_of(value: &[u8]) -> (String, i32) {
    let payload = Payload::decode(value).unwrap();
    (payload.name, payload.content)
}

fn encoded(response: &Response) -> Vec<u8> {
    let mut bytes = response.head().to_vec();
    for chunk in response.bodies.iter().flat_map(|body| body.chunks()) {
        bytes.extend_from_slice(chunk);
    }
    bytes
}

/// What a client knows of one type.
#[derive(Debug, Default)]
struct Known {
    names: BTreeSet<String>,
    wildcard: bool,
    held: BTreeMap<String, (i32, String)>,
    nonce: String,
    version: String,
    asked: bool,
}

impl Known {
    fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    fn drop_unsubscribed(&mut self) {
        let (names, wildcard) = (self.names.clone(), self.wildcard);
        self.held.retain(|name, _| wildcard || names.contains(name));
    }

    /// Compares with what the cache has; `removals` says whether the client can know what is gone.
    fn check(&self, type_url: &str, cache: &Cache, removals: bool) -> Result<(), String> {
        let snapshot = cache.snapshot();
        let resources = snapshot.of_type(&type_url.into());
        let mut expected = BTreeMap::new();
        for (name, variants) in resources.iter().flat_map(|resources| resources.iter()) {
            if self.covers(name.as_str()) {
                expected.insert(
                    name.as_str().to_owned(),
                    content_of(variants.iter().next().unwrap().payload()).1,
                );
            }
        }
        let held = self.held.iter().filter(|(name, _)| removals || expected.contains_key(*name));
        let held: BTreeMap<_, _> = held.map(|(name, (content, _))| (name.clone(), *content)).collect();
        if held == expected {
            Ok(())
        } else {
            Err(format!("{type_url}: client {held:?}, cache {expected:?}"))
        }
    }
}

/// A client with its stream, of either protocol.
trait Client {
    fn ask(&mut self, type_url: &'static str, names: BTreeSet<String>, wildcard: bool);
    fn give_up_missing(&mut self, type_url: &'static str) {
        let (cache, known) = self.known(type_url);
        let snapshot = cache.snapshot();
        let exists = |name: &&String| snapshot.get(&type_url.into(), &name.as_str().into()).is_some();
        let names = known.map(|known| (known.names.iter().filter(exists).cloned().collect(), known.wildcard));
        if let Some((names, wildcard)) = names {
            self.ask(type_url, names, wildcard);
        }
    }
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>);
    fn take(&mut self, accept: bool) -> bool;
    fn receive(&mut self);
    fn pass(&mut self, time: Duration);
    fn reconnect(&mut self);
    fn check(&self) -> Result<(), String>;
}

struct SotwClient {
    cache: Arc<Cache>,
    stream: SotwStream,
    now: Duration,
    inbox: VecDeque<DiscoveryResponse>,
    types: BTreeMap<&'static str, Known>,
}

impl SotwClient {
    fn new(cache: &Arc<Cache>) -> Self {
        let stream = SotwStream::new(cache.watch(), Service::Aggregated, StreamConfig::default());
        let (inbox, types) = (VecDeque::new(), BTreeMap::new());
        Self { cache: Arc::clone(cache), stream, now: Duration::ZERO, inbox, types }
    }

    fn request(&mut self, type_url: &str, error_detail: Option<String>) {
        let known = &self.types[type_url];
        let star = known.wildcard.then(|| "*".to_owned());
        let request = SotwRequest {
            type_url: type_url.into(),
            version_info: known.version.clone(),
            response_nonce: Nonce::parse(&known.nonce),
            error_detail,
            asked: Some(resource_names(star.iter().chain(&known.names)).into()),
        };
        self.stream.on_request(self.now, request).unwrap();
    }
}

impl Client for SotwClient {
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>) {
        (Arc::clone(&self.cache), self.types.get(type_url))
    }

    fn ask(&mut self, type_url: &'static str, names: BTreeSet<String>, wildcard: bool) {
        let known = self.types.entry(type_url).or_default();
        // A first empty list would be the legacy wildcard; this client says what it means.
        if !known.asked && names.is_empty() && !wildcard {
            return;
        }
        (known.names, known.wildcard, known.asked) = (names, wildcard, true);
        known.drop_unsubscribed();
        self.request(type_url, None);
    }

    fn take(&mut self, accept: bool) -> bool {
        let Some(response) = self.inbox.pop_front() else { return false };
        let type_url = TYPES.into_iter().find(|url| *url == response.type_url).unwrap();
        let known = self.types.get_mut(type_url).unwrap();
        known.nonce = response.nonce;
        known.version = response.version_info;
        if KnownType::of(type_url).full_state {
            known.held.clear();
        }
        for any in &response.resources {
            let (name, content) = content_of(&any.value);
            if known.covers(&name) {
                known.held.insert(name, (content, String::new()));
            }
        }
        // A client may use all of what it rejects.
        self.request(type_url, (!accept).then(|| "bad".to_owned()));
        true
    }

    fn receive(&mut self) {
        loop {
            match self.stream.next(self.now, &self.cache.snapshot()) {
                Next::Send(response) => {
                    let decoded = DiscoveryResponse::decode(encoded(&response).as_slice()).unwrap();
                    assert!(self.types[response.type_url.as_str()].asked, "S24: a type nobody asked for");
                    self.inbox.push_back(decoded);
                }
                Next::Wait { until } => {
                    assert!(until.is_none_or(|until| until > self.now), "a deadline that has passed");
                    return;
                }
                Next::Close(error) => panic!("{error}"),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn reconnect(&mut self) {
        self.stream = SotwStream::new(self.cache.watch(), Service::Aggregated, StreamConfig::default());
        self.now = Duration::ZERO;
        self.inbox.clear();
        for type_url in self.types.keys().copied().collect::<Vec<_>>() {
            let known = self.types.get_mut(type_url).unwrap();
            known.nonce.clear();
            known.asked = known.wildcard || !known.names.is_empty();
            if known.asked {
                self.request(type_url, None);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut known = self.types.iter();
        known.try_for_each(|(url, known)| known.check(url, &self.cache, KnownType::of(url).full_state))
    }
}

struct DeltaClient {
    cache: Arc<Cache>,
    stream: DeltaStream,
    now: Duration,
    inbox: VecDeque<DeltaDiscoveryResponse>,
    types: BTreeMap<&'static str, Known>,
}

impl DeltaClient {
    fn new(cache: &Arc<Cache>) -> Self {
        let stream = DeltaStream::new(cache.watch(), Service::Aggregated, StreamConfig::default());
        let (inbox, types) = (VecDeque::new(), BTreeMap::new());
        Self { cache: Arc::clone(cache), stream, now: Duration::ZERO, inbox, types }
    }
}

fn resource_names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<ResourceName> {
    names.map(|name| ResourceName::new(name.as_str())).collect()
}

impl Client for DeltaClient {
    fn known(&self, type_url: &'static str) -> (Arc<Cache>, Option<&Known>) {
        (Arc::clone(&self.cache), self.types.get(type_url))
    }

    fn ask(&mut self, type_url: &'static str, names: BTreeSet<String>, wildcard: bool) {
        let known = self.types.entry(type_url).or_default();
        if !known.asked && names.is_empty() && !wildcard {
            return;
        }
        let star = ["*".to_owned()];
        let subscribe =
            names.difference(&known.names).chain(star.iter().filter(|_| wildcard && !known.wildcard));
        let unsubscribe =
            known.names.difference(&names).chain(star.iter().filter(|_| !wildcard && known.wildcard));
        let (subscribe, unsubscribe) = (resource_names(subscribe).into(), resource_names(unsubscribe).into());
        (known.names, known.wildcard, known.asked) = (names, wildcard, true);
        known.drop_unsubscribed();
        let type_url = type_url.to_owned();
        let request = DeltaRequest { type_url, subscribe, unsubscribe, ..DeltaRequest::default() };
        self.stream.on_request(request).unwrap();
    }

    fn take(&mut self, accept: bool) -> bool {
        let Some(response) = self.inbox.pop_front() else { return false };
        let known = self.types.get_mut(response.type_url.as_str()).unwrap();
        let mut seen = BTreeSet::new();
        for resource in &response.resources {
            assert!(seen.insert(resource.name.clone()), "D13: {} twice", resource.name);
            let (name, content) = content_of(&resource.resource.as_ref().unwrap().value);
            if known.covers(&name) {
                known.held.insert(name, (content, resource.version.clone()));
            }
        }
        for name in &response.removed_resources {
            assert!(seen.insert(name.clone()), "D13: {name} added and removed");
            known.held.remove(name);
        }
        let request = DeltaRequest {
            type_url: response.type_url,
            response_nonce: Nonce::parse(&response.nonce),
            error_detail: (!accept).then(|| "bad".to_owned()),
            ..DeltaRequest::default()
        };
        self.stream.on_request(request).unwrap();
        true
    }

    fn receive(&mut self) {
        loop {
            match self.stream.next(self.now, &self.cache.snapshot()) {
                Next::Send(response) => {
                    let decoded = DeltaDiscoveryResponse::decode(encoded(&response).as_slice()).unwrap();
                    self.inbox.push_back(decoded);
                }
                Next::Wait { until } => {
                    assert!(until.is_none_or(|until| until > self.now), "a deadline that has passed");
                    return;
                }
                Next::Close(error) => panic!("{error}"),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn reconnect(&mut self) {
        self.stream = DeltaStream::new(self.cache.watch(), Service::Aggregated, StreamConfig::default());
        self.now = Duration::ZERO;
        self.inbox.clear();
        for (type_url, known) in &mut self.types {
            known.asked = known.wildcard || !known.names.is_empty();
            if !known.asked {
                continue;
            }
            let brought = known.held.iter();
            let brought = brought.map(|(name, (_, version))| (name.as_str().into(), version.clone()));
            let star = ["*".to_owned()];
            let subscribe = known.names.iter().chain(star.iter().filter(|_| known.wildcard));
            let request = DeltaRequest {
                type_url: (*type_url).into(),
                subscribe: resource_names(subscribe).into(),
                initial_resource_versions: brought.collect(),
                ..DeltaRequest::default()
            };
            self.stream.on_request(request).unwrap();
        }
    }

    fn check(&self) -> Result<(), String> {
        self.types.iter().try_for_each(|(url, known)| known.check(url, &self.cache, true))
    }
}

/// Runs the steps, heals, and compares.
fn converges(cache: &Arc<Cache>, client: &mut dyn Client, steps: &[Step]) -> Result<(), String> {
    for step in steps {
        match step {
            Step::Commit(changes) => commit(cache, changes),
            Step::Ask { type_url, names, star } => {
                client.ask(type_of(*type_url), names.iter().map(|name| name_of(*name)).collect(), *star);
            }
            Step::Take { accept } => _ = client.take(*accept),
            Step::Pass { ms } => client.pass(Duration::from_millis((*ms).into())),
            Step::Reconnect => client.reconnect(),
        }
        client.receive();
    }
    if !cache.snapshot().is_synced() {
        commit(cache, &[]);
    }
    settle(client);
    // S33: what was NACKed holds removals until something of its type is accepted.
    if !steps.iter().any(|step| matches!(step, Step::Take { accept: false })) {
        client.check()?;
    }
    let everything: Vec<_> = (0..4).flat_map(|t| (0..6).map(move |name| (t, name, Some(9)))).collect();
    let keeps = |name: u8| steps.len() & 1 << (name % 3) == 0;
    let some_gone = everything.iter().map(|(t, name, _)| (*t, *name, keeps(*name).then_some(10))).collect();
    for last in [everything, some_gone] {
        commit(cache, &last);
        settle(client);
    }
    client.check()
}

/// The client takes all there is, until nothing more comes.
fn settle(client: &mut dyn Client) {
    // As long as it asks for routes that are gone it uses those it has, and their clusters stay (S33).
    client.give_up_missing(ROUTE_CONFIGURATION);
    for _ in 0..8 {
        client.pass(Duration::from_secs(20));
        client.receive();
        while client.take(true) {
            client.receive();
        }
    }
}

fn check(make: fn(&Arc<Cache>) -> Box<dyn Client>, steps: &[Step]) -> Result<(), String> {
    let cache = Cache::new();
    converges(&cache, make(&cache).as_mut(), steps)
}

fn report(result: Result<(), String>) -> bool {
    result.inspect_err(|difference| eprintln!("{difference}")).is_ok()
}

#[test]
fn a_sotw_client_holds_what_the_cache_has() {
    fn holds(steps: Vec<Step>) -> bool {
        report(check(|cache| Box::new(SotwClient::new(cache)), &steps))
    }
    QuickCheck::new().tests(1500).quickcheck(holds as fn(Vec<Step>) -> bool);
}

#[test]
fn a_delta_client_holds_what_the_cache_has() {
    fn holds(steps: Vec<Step>) -> bool {
        report(check(|cache| Box::new(DeltaClient::new(cache)), &steps))
    }
    QuickCheck::new().tests(1500).quickcheck(holds as fn(Vec<Step>) -> bool);
}
