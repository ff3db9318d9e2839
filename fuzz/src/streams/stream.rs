//! One stream, with its server and its client.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use prost::Message;
use xds_core::server::{
    self, ClientGroup, Next, Protocol, Request, Response, Service, StreamConfig, StreamError, Verdict,
};
use xds_core::subscription::{Locator, Requested};
use xds_core::{Nonce, Parameters, Watch};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, ResourceLocator,
};
use xds_proto::google::rpc::Status;
use xds_server::skim::Skimmer;

use super::content::Content;
use super::response;
use super::script::{Script, TYPES};
use super::subscribed::Subscribed;

/// A stream, seen from its driver and from its client.
pub(super) struct Stream {
    protocol: Protocol,
    /// `None` when the stream has ended.
    machine: Option<server::Stream>,
    skimmer: Skimmer,
    watch: Arc<Watch>,
    /// `None` on the aggregated service.
    service: Option<&'static str>,
    /// The node in the first request.
    node: Option<Node>,
    derived: Parameters,
    types: BTreeMap<String, OfType>,
    /// The types of the stream before, until the client sends a request for them.
    former: BTreeMap<String, OfType>,
    nonces: BTreeSet<String>,
    unanswered: Vec<Unanswered>,
    has_rejected: bool,
    /// The stream has a reason to call the machine.
    is_due: bool,
    until: Option<Duration>,
}

struct OfType {
    subscribed: Subscribed,
    /// The lists of the last request, which an ACK repeats in SotW.
    lists: Lists,
    nonces: Vec<String>,
}

struct Unanswered {
    type_url: String,
    nonce: String,
    version: String,
}

impl Stream {
    /// Opens a stream; `how` selects its service and the node of the client.
    pub(super) fn open(protocol: Protocol, how: u8, content: &Content, former: Option<Self>) -> Self {
        let service = match how % 8 {
            5 => Some(TYPES[0]),
            6 => Some(TYPES[1]),
            7 => Some(TYPES[5]),
            _ => None,
        };
        let watch = content.cache.watch();
        let of_service = service.map_or(Service::Aggregated, |type_url| Service::Single(type_url.into()));
        let config = StreamConfig {
            names_limit: NAMES_LIMIT,
            parameters_limit: PARAMETERS_LIMIT,
            types_limit: TYPES.len(),
            ..StreamConfig::default()
        };
        let machine = server::Stream::new(Arc::clone(&watch), of_service, protocol, config);
        let has_metadata = how & 0x10 != 0;
        let node = (how & 0x18 != 0).then(|| Node {
            id: if how & 0x08 != 0 { "node".into() } else { String::new() },
            metadata: has_metadata.then(|| {
                let value = prost_types::value::Kind::StringValue("prod".into());
                let fields = [("env".into(), prost_types::Value { kind: Some(value) })];
                prost_types::Struct { fields: fields.into() }
            }),
            ..Node::default()
        });
        Self {
            protocol,
            machine: Some(machine),
            skimmer: Skimmer::new(service.unwrap_or_default().into()),
            watch,
            service,
            node,
            derived: Parameters::new(),
            types: BTreeMap::new(),
            former: former.map(|former| former.types).unwrap_or_default(),
            nonces: BTreeSet::new(),
            unanswered: Vec::new(),
            has_rejected: false,
            is_due: false,
            until: None,
        }
    }

    /// Ends the stream; the client keeps its resources.
    pub(super) fn close(&mut self) {
        self.machine = None;
        self.former.clear();
    }

    /// A request. A damaged one has no versions of an earlier stream, because a damaged version
    /// would hide a missing resource.
    pub(super) fn request(&mut self, script: &mut Script<'_>, brings: bool) -> Vec<u8> {
        let type_url = script.type_url();
        let how = script.byte().unwrap_or_default();
        let type_url = match self.service {
            Some(_) if how & 0x30 == 0 => "",
            Some(own) if how & 0x30 != 0x30 => own,
            _ => type_url,
        };
        let lists = script.lists();
        let unsubscribed = script.lists();
        let of_type =
            self.types.get(if type_url.is_empty() { self.service.unwrap_or_default() } else { type_url });
        let nonces = of_type.map_or(&[][..], |of| &of.nonces);
        let nonce = match how % 8 {
            0 => None,
            1..=3 => nonces.last().cloned(),
            4 => nonces.first().cloned(),
            5 => self.nonces.first().cloned(),
            6 => Some("4711".into()),
            _ => Some("not of ours".into()),
        };
        let nonce = nonce.unwrap_or_default();
        let error = (how & 0x08 != 0).then(|| Status { code: 3, message: "no".into(), ..Status::default() });
        self.has_rejected |= error.is_some();
        let former = of_type.is_none().then(|| self.former.get(type_url)).flatten().filter(|_| brings);
        let node = self.node.take();
        match self.protocol {
            Protocol::Delta => {
                let mut versions = BTreeMap::<_, Vec<_>>::new();
                for (key, received) in former.iter().flat_map(|former| &former.subscribed.held) {
                    versions.entry(key.name.clone()).or_default().push(received.version.clone());
                }
                // T37: only names with one variant.
                let single = |(name, mut versions): (_, Vec<_>)| {
                    Some((name, versions.pop()?)).filter(|_| versions.is_empty())
                };
                DeltaDiscoveryRequest {
                    node,
                    type_url: type_url.into(),
                    resource_names_subscribe: lists.0,
                    resource_names_unsubscribe: unsubscribed.0,
                    resource_locators_subscribe: lists.1,
                    resource_locators_unsubscribe: unsubscribed.1,
                    initial_resource_versions: versions.into_iter().filter_map(single).collect(),
                    response_nonce: nonce,
                    error_detail: error,
                }
                .encode_to_vec()
            }
            Protocol::Sotw => DiscoveryRequest {
                version_info: former.map(|former| former.subscribed.version.clone()).unwrap_or_default(),
                node,
                resource_names: lists.0,
                type_url: type_url.into(),
                response_nonce: nonce,
                error_detail: error,
                resource_locators: lists.1,
            }
            .encode_to_vec(),
        }
    }

    /// ACKs or NACKs one of the unanswered responses.
    pub(super) fn answer(&mut self, which: usize, rejects: bool) -> Option<Vec<u8>> {
        let at = which.checked_rem(self.unanswered.len())?;
        let Unanswered { type_url, nonce, version } = self.unanswered.remove(at);
        self.has_rejected |= rejects;
        let error_detail = rejects.then(|| Status { code: 3, message: "no".into(), ..Status::default() });
        let node = self.node.take();
        Some(match self.protocol {
            Protocol::Delta => {
                let response_nonce = nonce;
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url,
                    response_nonce,
                    error_detail,
                    ..Default::default()
                };
                request.encode_to_vec()
            }
            Protocol::Sotw => {
                let (resource_names, resource_locators) =
                    self.types.get(&type_url).map(|of| of.lists.clone()).unwrap_or_default();
                DiscoveryRequest {
                    version_info: if rejects { String::new() } else { version },
                    node,
                    resource_names,
                    type_url,
                    response_nonce: nonce,
                    error_detail,
                    resource_locators,
                }
                .encode_to_vec()
            }
        })
    }

    /// Passes a request to the machine in the way of the driver. Returns whether the stream
    /// continues. It must if the request `is_good`, unless its subscription is invalid.
    pub(super) fn receive(
        &mut self,
        now: Duration,
        frame: &[u8],
        is_good: bool,
        groups: &mut BTreeMap<(String, String), ClientGroup>,
    ) -> bool {
        self.is_due = true;
        let is_new = self.skimmer.client().is_none();
        let Some(machine) = &mut self.machine else { panic!("the stream is open") };
        let request = match self.skimmer.request(self.protocol, frame) {
            Ok(request) => request,
            Err(error) => {
                assert!(!is_good, "{error}");
                return false;
            }
        };
        if is_new && let Some(client) = self.skimmer.client() {
            self.derived = client.parameters.clone();
            let group = groups.entry((client.id.clone(), client.cluster.clone())).or_default();
            machine.on_node(client.parameters.clone());
            // G6, S33b
            if !client.id.is_empty() && self.service.is_some() {
                machine.join(group);
            }
        }
        self.hand_over(now, &request, is_good)
    }

    fn hand_over(&mut self, now: Duration, request: &Request, is_good: bool) -> bool {
        let asked = lists_in(request);
        let type_url = match (type_of(request), self.service) {
            ("", Some(own)) => own.to_owned(),
            (type_url, _) => type_url.to_owned(),
        };
        let former = self.former.remove(&type_url).filter(|_| is_good).map(|former| former.subscribed);
        let (mut subscribed, lists, nonces) = match self.types.remove(&type_url) {
            Some(OfType { subscribed, lists, nonces }) => (subscribed, lists, nonces),
            None => (Subscribed::new(&type_url, &self.derived, former), Lists::default(), Vec::new()),
        };
        let before = subscribed.clone();
        match request {
            Request::Sotw(request) => request.requested.iter().for_each(|asked| subscribed.replace(asked)),
            Request::Delta(request) => subscribed.edit(&request.subscribe, &request.unsubscribe),
        }
        let Some(machine) = &mut self.machine else { panic!("the stream is open") };
        match machine.on_request(now, request.clone()) {
            Ok(verdict) => {
                self.check_request(&type_url);
                if let Some(verdict) = verdict {
                    self.check_verdict(&verdict, &type_url, request);
                }
                let lists = match request {
                    Request::Sotw(request) => request.requested.as_ref().map_or(lists, lists_of),
                    Request::Delta(_) => lists,
                };
                self.types.insert(type_url, OfType { subscribed, lists, nonces });
                true
            }
            Err(error) => {
                let is_new = before.is_new();
                self.check_error(&error, type_of(request), &asked, is_new, subscribed.len());
                self.types.insert(type_url, OfType { subscribed: before, lists, nonces });
                false
            }
        }
    }

    /// An accepted request has a type that the stream may subscribe to.
    fn check_request(&self, type_url: &str) {
        assert!(!type_url.is_empty(), "G2");
        assert!(self.service.is_none_or(|own| own == type_url), "G3");
    }

    /// An error is the right one for the request.
    fn check_error(
        &self,
        error: &StreamError,
        found: &str,
        asked: &[&Requested],
        is_new: bool,
        names: usize,
    ) {
        let is_own = |found: &str| self.service.is_none_or(|own| found.is_empty() || found == own);
        let has_locator = |wanted: &str, is_it: &dyn Fn(&Parameters) -> bool| {
            let mut locators = asked.iter().flat_map(|asked| asked.locators.iter());
            locators.any(|locator| locator.name.as_str() == wanted && is_it(&locator.parameters))
        };
        let is_right = match error {
            StreamError::MissingTypeUrl => self.service.is_none() && found.is_empty(),
            StreamError::WrongTypeUrl { .. } => !is_own(found),
            StreamError::TooManyNames { found, limit, .. } => {
                (*found, *limit) == (names, NAMES_LIMIT) && names > NAMES_LIMIT
            }
            StreamError::TooManyParameters { name, found, limit, .. } => {
                let is_it = |parameters: &Parameters| parameters.len() == *found;
                *limit == PARAMETERS_LIMIT && found > limit && has_locator(name.as_str(), &is_it)
            }
            StreamError::TooManyTypes { limit } => {
                is_new && self.service.is_none() && *limit == TYPES.len() && self.types.len() == *limit
            }
            _ => false,
        };
        assert!(is_right, "{error}");
    }

    fn check_verdict(&self, verdict: &Verdict, type_url: &str, request: &Request) {
        let (of, nonce, detail) = match verdict {
            Verdict::Acked { type_url, nonce } => (type_url, nonce, None),
            Verdict::Nacked { type_url, nonce, detail, .. } => (type_url, nonce, Some(detail)),
        };
        let (response_nonce, error_detail) = answer_of(request);
        assert_eq!((of.as_str(), Some(*nonce), detail), (type_url, response_nonce, error_detail));
        assert!(self.nonces.contains(&nonce.to_string()), "a response that was never sent is answered");
    }

    /// Lets the stream send one response, if the driver would call it. Returns whether it sent one.
    pub(super) fn send(&mut self, now: Duration, content: &Content) -> bool {
        if !self.is_due(now) {
            return false;
        }
        match self.next(now, content) {
            Next::Send(response) => {
                self.take(&response);
                true
            }
            Next::Wait { until } => {
                assert!(until.is_none_or(|until| until > now), "it waits for what is past");
                (self.is_due, self.until) = (false, until);
                false
            }
            Next::Close(error) => panic!("{error}"),
        }
    }

    /// Whether the driver would call the machine now.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_woken = pin!(self.watch.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        self.is_due |= is_woken || self.until.is_some_and(|until| until <= now);
        self.is_due
    }

    /// Whether the machine waits for a time.
    pub(super) fn is_waiting(&self) -> bool {
        self.until.is_some()
    }

    /// Checks that the machine has nothing to send, although nothing woke it.
    pub(super) fn check_rest(&mut self, now: Duration, content: &Content) {
        match self.next(now, content) {
            Next::Wait { until: None } => {}
            next => panic!("nothing woke the stream for {next:?}"),
        }
    }

    fn next(&mut self, now: Duration, content: &Content) -> Next {
        let snapshot = content.cache.snapshot();
        self.machine.as_mut().expect("the stream is open").next(now, &snapshot)
    }

    /// The client applies a response.
    fn take(&mut self, response: &Response) {
        let bodies = response.bodies.iter().flat_map(|body| body.chunks());
        let frame: Vec<u8> = bodies.fold(response.head().to_vec(), |frame, chunk| [&*frame, chunk].concat());
        let type_url = response.type_url.as_str();
        let of_type = self.types.get_mut(type_url).expect("only subscribed types are sent (S24)");
        let (nonce, version) = match self.protocol {
            Protocol::Delta => {
                let message = DeltaDiscoveryResponse::decode(&*frame).expect("a response decodes");
                assert_eq!((&*message.type_url, message.resources.len()), (type_url, response.resources()));
                let (nonce, version) = (message.nonce.clone(), message.system_version_info.clone());
                let (resources, removed, errors) = response::changes(message);
                of_type.subscribed.take_changes(resources, &removed, &errors);
                (nonce, version)
            }
            Protocol::Sotw => {
                let message = DiscoveryResponse::decode(&*frame).expect("a response decodes");
                assert_eq!((&*message.type_url, message.resources.len()), (type_url, response.resources()));
                let (nonce, version) = (message.nonce.clone(), message.version_info.clone());
                let (resources, errors) = response::state(message);
                of_type.subscribed.take_state(resources, &errors, &version);
                (nonce, version)
            }
        };
        assert!(
            !nonce.is_empty() && self.nonces.insert(nonce.clone()),
            "nonce {nonce:?} is not new (S2, D7)"
        );
        assert!(!version.is_empty(), "S2");
        of_type.nonces.push(nonce.clone());
        self.unanswered.push(Unanswered { type_url: type_url.into(), nonce, version });
    }

    /// Whether, by its requests and answers, the client uses no removed resource.
    pub(super) fn is_settled(&self, content: &Content) -> bool {
        let has_all = |(type_url, of): (&String, &OfType)| of.subscribed.has_all(type_url, content);
        !self.has_rejected && self.types.iter().all(has_all)
    }

    /// Checks that the client has the resources that it subscribed to; see
    /// [`Subscribed::check_held`].
    pub(super) fn check_held(&self, content: &Content, is_settled: bool) {
        let is_delta = self.protocol == Protocol::Delta;
        for (type_url, OfType { subscribed, .. }) in &self.types {
            // S26: no response reports removals of the other types.
            let are_removals_sent = is_settled && (is_delta || subscribed.is_full_state());
            subscribed.check_held(type_url, content, are_removals_sent);
        }
    }
}

/// The lists of a request.
fn lists_in(request: &Request) -> Vec<&Requested> {
    match request {
        Request::Sotw(request) => request.requested.iter().collect(),
        Request::Delta(request) => vec![&request.subscribe, &request.unsubscribe],
    }
}

fn type_of(request: &Request) -> &str {
    match request {
        Request::Sotw(request) => &request.type_url,
        Request::Delta(request) => &request.type_url,
    }
}

fn answer_of(request: &Request) -> (Option<Nonce>, Option<&String>) {
    match request {
        Request::Sotw(request) => (request.response_nonce, request.error_detail.as_ref()),
        Request::Delta(request) => (request.response_nonce, request.error_detail.as_ref()),
    }
}

fn lists_of(asked: &Requested) -> Lists {
    let locator = |locator: Locator| ResourceLocator {
        name: locator.name.as_str().into(),
        dynamic_parameters: locator
            .parameters
            .iter()
            .map(|(key, value)| ((**key).into(), (**value).into()))
            .collect(),
    };
    let names = asked.names.iter().map(|name| name.as_str().into());
    (names.collect(), asked.locators.iter().map(locator).collect())
}

/// Names and locators.
type Lists = (Vec<String>, Vec<ResourceLocator>);

/// Names of one type.
const NAMES_LIMIT: usize = 8;

/// Parameters of one locator.
const PARAMETERS_LIMIT: usize = 3;
