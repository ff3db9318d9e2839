//! A stream between our client and a server: the frames on the wire, and the requests of the
//! client.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_core::client::health::Status;
use xds_core::server::{Next, Protocol, Service, Stream};
use xds_core::{Cache, ClientName, Parameters, Snapshot, Watch};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, ResourceLocator,
};
use xds_server::skim::Skimmer;

use crate::content::Kind;
use crate::invariant::Violation;
use crate::refusing::{Refusals, stream_config};
use crate::wire::Received;

/// A subscription of a client on a stream: type, name, parameters.
pub(crate) type Locator = (String, String, Parameters);

pub(crate) struct Link {
    protocol: Protocol,
    /// `None`: a liar, whose responses are made elsewhere, or a server that ended the stream.
    served: Option<Served>,
    pub(crate) requests: VecDeque<Bytes>,
    pub(crate) responses: VecDeque<Bytes>,
    pub(crate) opened: Duration,
    /// The subscriptions that the client sent on this stream, and since when.
    pub(crate) subscribed: BTreeMap<Locator, Duration>,
    /// All subscriptions that it ever sent on this stream.
    pub(crate) ever_subscribed: BTreeSet<Locator>,
    /// For each request in flight, the subscriptions of the client after it.
    asked: VecDeque<BTreeSet<Locator>>,
    /// The subscriptions that the server has read.
    read: BTreeSet<Locator>,
    /// The responses that the client has not applied yet, each with the subscriptions that the server
    /// had read when it made the response.
    made_for: VecDeque<(Bytes, BTreeSet<Locator>)>,
    /// Types for which a SotW request had a name.
    named: BTreeSet<String>,
    /// The types that the server refuses on this stream.
    refusals: Refusals,
    /// The types of the requests that the server has read.
    types: BTreeSet<Kind>,
    /// The status with which the server ended the stream. The client reads it after the responses.
    end: Option<Status>,
}

/// The server side, run in the way of the driver.
struct Served {
    machine: Stream,
    skimmer: Skimmer,
    watch: Arc<Watch>,
    window: usize,
    is_due: bool,
    until: Option<Duration>,
}

impl Link {
    /// A stream to a server that serves a cache.
    pub(crate) fn new(
        name: &str,
        (protocol, window): (Protocol, usize),
        cache: &Arc<Cache>,
        refusals: &Refusals,
        now: Duration,
    ) -> Self {
        let watch = cache.watch();
        watch.name_client(ClientName { id: name.into(), cluster: "".into() });
        let (of_machine, config) = (Arc::clone(&watch), stream_config(refusals));
        let machine = Stream::new(of_machine, Service::Aggregated, protocol, config);
        let skimmer = Skimmer::new(String::new());
        let served = Served { machine, skimmer, watch, window, is_due: false, until: None };
        Self { served: Some(served), refusals: refusals.clone(), ..Self::to_liar(protocol, now) }
    }

    /// A stream to a liar.
    pub(crate) fn to_liar(protocol: Protocol, now: Duration) -> Self {
        Self {
            protocol,
            served: None,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            opened: now,
            subscribed: BTreeMap::new(),
            ever_subscribed: BTreeSet::new(),
            asked: VecDeque::new(),
            read: BTreeSet::new(),
            made_for: VecDeque::new(),
            named: BTreeSet::new(),
            refusals: Refusals::new(),
            types: BTreeSet::new(),
            end: None,
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The state that the stream sees; `None` for one to a liar, and for one that ended.
    pub(crate) fn seen(&self) -> Option<Arc<Snapshot>> {
        self.served.as_ref().map(|served| served.watch.snapshot())
    }

    /// The client sends a request.
    pub(crate) fn say(&mut self, now: Duration, request: Bytes) -> Result<(), Violation> {
        let undecodable = |error| Violation::new("form", format!("a request of our client: {error}"));
        match self.protocol {
            Protocol::Sotw => {
                let mut request = DiscoveryRequest::decode(request.clone()).map_err(undecodable)?;
                let is_empty = request.resource_names.is_empty() && request.resource_locators.is_empty();
                if !is_empty {
                    self.named.insert(request.type_url.clone());
                } else if !self.named.contains(&request.type_url) {
                    // S19
                    request.resource_names.push("*".to_owned());
                }
                let asked = locators(&request.type_url, request.resource_names, request.resource_locators);
                let subscribed = std::mem::take(&mut self.subscribed).into_iter();
                let (others, before): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    subscribed.partition(|(locator, _)| locator.0 != request.type_url);
                self.subscribed = others;
                let since = |locator: &Locator| before.get(locator).copied().unwrap_or(now);
                self.subscribed.extend(asked.map(|locator| (locator.clone(), since(&locator))));
            }
            Protocol::Delta => {
                let request = DeltaDiscoveryRequest::decode(request.clone()).map_err(undecodable)?;
                let (names, located) =
                    (request.resource_names_unsubscribe, request.resource_locators_unsubscribe);
                for locator in locators(&request.type_url, names, located) {
                    if self.subscribed.remove(&locator).is_none() {
                        let what = format!("D2: {locator:?} is unsubscribed, but was not subscribed to");
                        return Err(Violation::new("form", what));
                    }
                }
                let (names, located) =
                    (request.resource_names_subscribe, request.resource_locators_subscribe);
                for locator in locators(&request.type_url, names, located) {
                    if self.subscribed.insert(locator.clone(), now).is_some() {
                        let what = format!("D2: {locator:?} is subscribed to twice");
                        return Err(Violation::new("form", what));
                    }
                }
            }
        }
        self.ever_subscribed.extend(self.subscribed.keys().cloned());
        self.asked.push_back(self.subscribed.keys().cloned().collect());
        self.requests.push_back(request);
        Ok(())
    }

    /// The server reads one request.
    pub(crate) fn read(&mut self, now: Duration) -> Result<(), Violation> {
        let Some(request) = self.requests.pop_front() else { return Ok(()) };
        self.read = self.asked.pop_front().unwrap_or_default();
        if let Some(status) = self.refuse(&request) {
            (self.served, self.end) = (None, Some(status));
        }
        let Some(served) = &mut self.served else { return Ok(()) };
        let now = now.saturating_sub(self.opened);
        let refused =
            |error: String| Violation::new("stream", format!("the server ends the stream: {error}"));
        let request = served.skimmer.request(served.machine.protocol(), &request);
        let request = request.map_err(|error| refused(error.to_string()))?;
        served.machine.on_request(now, request).map_err(|error| refused(error.to_string()))?;
        served.is_due = true;
        Ok(())
    }

    /// G4b: the status with which the server ends the stream because of this request.
    fn refuse(&mut self, request: &Bytes) -> Option<Status> {
        self.served.as_ref()?;
        let type_url = match self.protocol {
            Protocol::Sotw => DiscoveryRequest::decode(request.clone()).ok()?.type_url,
            Protocol::Delta => DeltaDiscoveryRequest::decode(request.clone()).ok()?.type_url,
        };
        self.types.insert(Kind::of_url(&type_url)?);
        let refused = self.refusals.iter().filter(|(kind, _)| self.types.contains(kind));
        refused.map(|(_, refusal)| refusal.status(self.types.len() > 1)).find_map(|status| status)
    }

    /// Whether the server refuses a type on this stream.
    pub(crate) fn refuses(&self, kind: Kind) -> bool {
        self.refusals.contains_key(&kind)
    }

    /// The client reads the end of the stream, if the server ended it and all responses are read.
    pub(crate) fn take_end(&mut self) -> Option<Status> {
        self.end.take_if(|_| self.responses.is_empty())
    }

    /// The server sends one response, if it has one and the window has room.
    pub(crate) fn serve(&mut self, now: Duration) -> Result<Option<Bytes>, Violation> {
        let Some(served) = &mut self.served else { return Ok(None) };
        let now = now.saturating_sub(self.opened);
        served.is_due |= served.is_woken() || served.until.is_some_and(|until| until <= now);
        if !served.is_due || self.responses.len() >= served.window {
            return Ok(None);
        }
        match served.watch.read(|snapshot| served.machine.next(now, snapshot)) {
            Next::Wait { until } => {
                (served.is_due, served.until) = (false, until);
                Ok(None)
            }
            Next::Close(error) => {
                Err(Violation::new("stream", format!("the server ends the stream: {error}")))
            }
            Next::Send(response) => {
                let mut frame = response.head().to_vec();
                let chunks = response.bodies.iter().flat_map(|body| body.chunks());
                chunks.for_each(|chunk| frame.extend_from_slice(chunk));
                let frame = Bytes::from(frame);
                self.responses.push_back(frame.clone());
                self.made_for.push_back((frame.clone(), self.read.clone()));
                Ok(Some(frame))
            }
        }
    }

    /// T30b: the subscriptions that a response reports as absent, although the server had not read
    /// them when it made the response. To be called when the client applies it.
    pub(crate) fn overtaken(&mut self, frame: &Bytes) -> Vec<Locator> {
        let is_it = |(made, _): &(Bytes, _)| made.as_ptr() == frame.as_ptr();
        let Some(at) = self.made_for.iter().position(is_it) else { return Vec::new() };
        let Some((_, read)) = self.made_for.drain(..=at).next_back() else { return Vec::new() };
        let Ok(received) = Received::of_frame(frame, self.protocol) else { return Vec::new() };
        let is_absent = |(of, name, params): &&Locator| {
            let mut variants = received.removed_variants.iter();
            let is_removed = received.removed.contains(name)
                || variants.any(|(removed, sent_with)| removed == name && sent_with.matches(params));
            of == received.kind.url() && is_removed
        };
        let late = self.subscribed.keys().filter(|locator| !read.contains(*locator));
        late.filter(is_absent).cloned().collect()
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty() && self.end.is_none()
    }
}

impl Served {
    /// Polls the wake-up like a driver.
    fn is_woken(&self) -> bool {
        let woken = pin!(self.watch.woken());
        woken.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }
}

fn locators(
    type_url: &str,
    names: Vec<String>,
    located: Vec<ResourceLocator>,
) -> impl Iterator<Item = Locator> {
    let names = names.into_iter().map(|name| (type_url.to_owned(), name, Parameters::new()));
    let located = located.into_iter().map(|locator| {
        let pairs = locator.dynamic_parameters.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        (type_url.to_owned(), locator.name.clone(), pairs.collect())
    });
    names.chain(located)
}

/// A response as text for people.
pub(crate) fn show(protocol: Protocol, frame: &Bytes) -> String {
    if let Ok(received) = Received::of_frame(frame, protocol) {
        return received.to_string();
    }
    let shown = match protocol {
        Protocol::Sotw => DiscoveryResponse::decode(frame.clone()).map(|response| format!("{response:?}")),
        Protocol::Delta => {
            DeltaDiscoveryResponse::decode(frame.clone()).map(|response| format!("{response:?}"))
        }
    };
    shown.unwrap_or_else(|_| format!("{frame:?}"))
}

/// A request as text for people.
pub(crate) fn show_request(protocol: Protocol, frame: &Bytes) -> String {
    let show = |names: Vec<String>, located: Vec<ResourceLocator>| {
        let all = locators("", names, located).map(|(_, name, params)| match params.is_empty() {
            true => name,
            false => format!("{name}?{params}"),
        });
        all.collect::<Vec<_>>().join(" ")
    };
    let kind = |url: &str| Kind::of_url(url).map_or_else(|| url.to_owned(), |kind| kind.to_string());
    match protocol {
        Protocol::Sotw => DiscoveryRequest::decode(frame.clone()).map(|request| {
            let verdict = request.error_detail.map(|error| format!(" NACK {}", error.message));
            let names = show(request.resource_names, request.resource_locators);
            let (version, nonce) = (request.version_info, request.response_nonce);
            let version = version.get(..6).unwrap_or(&version);
            format!(
                "{} {{{names}}} v{version} n{nonce}{}",
                kind(&request.type_url),
                verdict.unwrap_or_default()
            )
        }),
        Protocol::Delta => DeltaDiscoveryRequest::decode(frame.clone()).map(|request| {
            let verdict = request.error_detail.map(|error| format!(" NACK {}", error.message));
            let added = show(request.resource_names_subscribe, request.resource_locators_subscribe);
            let removed = show(request.resource_names_unsubscribe, request.resource_locators_unsubscribe);
            let brought: Vec<_> = request.initial_resource_versions.into_keys().collect();
            let (kind, nonce, verdict) =
                (kind(&request.type_url), request.response_nonce, verdict.unwrap_or_default());
            format!("{kind} +{{{added}}} -{{{removed}}} has {brought:?} n{nonce}{verdict}")
        }),
    }
    .unwrap_or_default()
}
