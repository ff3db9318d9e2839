//! The proxy in front of an upstream that ends streams which subscribe to runtimes beside other
//! types, over sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use xds::type_url::{CLUSTER, RUNTIME, SECRET};
use xds::{Cache, Constraints, Parameters, Resource, Server, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_proto::envoy::service::runtime::v3::runtime_discovery_service_server::{
    RuntimeDiscoveryService, RuntimeDiscoveryServiceServer,
};

use super::{Running, SOON, until, until_within};

/// Which streams that subscribe to runtimes the upstream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Streams that also subscribe to another type.
    AmongOthers,
    /// All such streams.
    Always,
    /// All aggregated streams; the service of runtimes serves them.
    Aggregated,
    /// No stream: a newer server.
    Never,
}

/// An upstream that refuses some subscriptions. A server of the origin's cache answers all others.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    runtime: Runtime,
}

#[derive(Clone)]
struct Gate {
    origin: AggregatedDiscoveryServiceClient<Channel>,
    refusal: Refusal,
    code: Code,
}

impl Upstream {
    pub(super) fn start(origin: &Arc<Cache>, refusal: Refusal, code: Code) -> Self {
        Self::start_on("127.0.0.1:0", origin, refusal, code)
    }

    fn start_on(address: &str, origin: &Arc<Cache>, refusal: Refusal, code: Code) -> Self {
        let runtime = Runtime::new().unwrap();
        let server = Server::new(Arc::clone(origin));
        let address = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let behind = listener.local_addr().unwrap().to_string();
            tokio::spawn(server.serve(listener, std::future::pending()));
            let origin = AggregatedDiscoveryServiceClient::new(connect(&behind).await);
            let own = Gate { origin: origin.clone(), refusal: Refusal::Never, code };
            let own = (refusal == Refusal::Aggregated).then(|| RuntimeDiscoveryServiceServer::new(own));
            let service = AggregatedDiscoveryServiceServer::new(Gate { origin, refusal, code });
            let listener = TcpListener::bind(address).await.unwrap();
            let address = listener.local_addr().unwrap();
            let router = tonic::transport::Server::builder().add_service(service).add_optional_service(own);
            tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
            address
        });
        Self { address, runtime }
    }

    /// Looks to clients as if the process had ended.
    pub(super) fn stop(self) {
        self.runtime.shutdown_timeout(SOON);
    }

    /// Starts again as a server of all types.
    pub(super) fn upgrade(self, origin: &Arc<Cache>) -> Self {
        let address = self.address.to_string();
        self.stop();
        Self::start_on(&address, origin, Refusal::Never, Code::Ok)
    }
}

impl Gate {
    fn refuses(&self, types: &BTreeSet<String>) -> bool {
        types.contains(RUNTIME)
            && match self.refusal {
                Refusal::AmongOthers => types.len() > 1,
                Refusal::Always | Refusal::Aggregated => true,
                Refusal::Never => false,
            }
    }

    /// Forwards requests and responses of one stream, until a refused subscription.
    fn pass<Q: Send + 'static, R: Send + 'static>(
        &self,
        mut requests: Streaming<Q>,
        type_of: impl Fn(&Q) -> &str + Send + 'static,
        passed: mpsc::Sender<Q>,
        mut responses: Streaming<R>,
    ) -> Response<ReceiverStream<Result<R, Status>>> {
        let gate = self.clone();
        let (answers, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut types = BTreeSet::new();
            loop {
                tokio::select! {
                    request = requests.message() => {
                        let Ok(Some(request)) = request else { return };
                        types.insert(type_of(&request).to_owned());
                        if gate.refuses(&types) {
                            _ = answers.send(Err(Status::new(gate.code, REFUSED))).await;
                            return;
                        }
                        _ = passed.send(request).await;
                    }
                    response = responses.message() => {
                        let Ok(Some(response)) = response else { return };
                        _ = answers.send(Ok(response)).await;
                    }
                }
            }
        });
        Response::new(ReceiverStream::new(receiver))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Gate {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (passed, receiver) = mpsc::channel(16);
        let answer = self.origin.clone().stream_aggregated_resources(ReceiverStream::new(receiver)).await?;
        Ok(self.pass(requests.into_inner(), |request| &request.type_url, passed, answer.into_inner()))
    }

    async fn delta_aggregated_resources(
        &self,
        requests: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (passed, receiver) = mpsc::channel(16);
        let answer = self.origin.clone().delta_aggregated_resources(ReceiverStream::new(receiver)).await?;
        Ok(self.pass(requests.into_inner(), |request| &request.type_url, passed, answer.into_inner()))
    }
}

#[tonic::async_trait]
impl RuntimeDiscoveryService for Gate {
    type StreamRuntimeStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaRuntimeStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_runtime(
        &self,
        requests: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamRuntimeStream>, Status> {
        self.stream_aggregated_resources(requests).await
    }

    async fn delta_runtime(
        &self,
        requests: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaRuntimeStream>, Status> {
        self.delta_aggregated_resources(requests).await
    }

    async fn fetch_runtime(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("nobody polls"))
    }
}

/// A message with the name in field 1, and content that distinguishes versions.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "100")]
    content: String,
}

/// Changes all three types: a cluster and a secret without constraints, and a runtime with a
/// variant for each environment.
pub(super) fn commit(origin: &Cache, content: &str) {
    let mut transaction = Transaction::new();
    let mut put = |type_url: &str, content: String, constraints| {
        let payload = Payload { name: "x".into(), content }.encode_to_vec();
        let resource = Resource::new(type_url, "x", payload).unwrap();
        transaction.put(resource.with_constraints(constraints));
    };
    put(CLUSTER, content.into(), Constraints::NONE);
    put(SECRET, content.into(), Constraints::NONE);
    for env in ["a", "b"] {
        let parameters = Parameters::from_iter([("env", env)]);
        let whom = Constraints::agreeing_with(&parameters, &["env".into()]).unwrap();
        put(RUNTIME, format!("{content} of {env}"), whom);
    }
    origin.commit(transaction).unwrap();
}

/// The responses of each type, in order: the contents of a response, `-` with removals, `!` with
/// errors. The end of the stream counts as a response of each type.
type Heard = Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>;

/// A delta stream that subscribes to names of some types and ACKs every response.
struct Subscriber {
    env: &'static str,
    types: Vec<&'static str>,
    heard: Heard,
}

impl Subscriber {
    fn new(proxy: &Proxy, env: &'static str, types: &[&'static str]) -> Self {
        let subscriber = Self { env, types: types.to_vec(), heard: Heard::default() };
        for type_url in types {
            subscriber.heard.lock().unwrap().insert(type_url, Vec::new());
        }
        proxy.clients.spawn(listen(
            proxy.running.address.clone(),
            node(env, proxy.next_pod()),
            subscriber.types.clone(),
            Arc::clone(&subscriber.heard),
        ));
        subscriber
    }

    fn heard(&self, type_url: &str) -> Vec<String> {
        self.heard.lock().unwrap()[type_url].clone()
    }

    /// Whether it got these contents of all its types, each once and in order. Fails if it got
    /// anything else.
    fn has(&self, contents: &[&str]) -> bool {
        self.types.iter().all(|type_url| {
            let heard = self.heard(type_url);
            let expected: Vec<_> = contents.iter().map(|content| self.expected(type_url, content)).collect();
            assert!(expected.starts_with(&heard), "{type_url} for {}: {heard:?}", self.env);
            heard == expected
        })
    }

    fn expected(&self, type_url: &str, content: &str) -> String {
        match type_url {
            RUNTIME => format!("{content} of {}", self.env),
            _ => content.to_owned(),
        }
    }
}

async fn listen(address: String, node: Node, types: Vec<&'static str>, heard: Heard) {
    let note = |type_url: &str, text: String| {
        heard.lock().unwrap().get_mut(type_url).unwrap().push(text);
    };
    let mut client = AggregatedDiscoveryServiceClient::new(connect(&address).await);
    let (requests, receiver) = mpsc::channel(16);
    let mut node = Some(node);
    for &type_url in &types {
        let type_url = type_url.into();
        let resource_names_subscribe = vec!["x".into()];
        let node = node.take();
        let request =
            DeltaDiscoveryRequest { node, type_url, resource_names_subscribe, ..Default::default() };
        requests.send(request).await.unwrap();
    }
    let mut responses =
        client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    loop {
        let response = match responses.message().await {
            Ok(Some(response)) => response,
            end => return types.iter().for_each(|type_url| note(type_url, format!("{end:?}"))),
        };
        let type_url = response.type_url;
        let contents = response.resources.into_iter().map(|resource| {
            let payload = resource.resource.expect("a payload").value;
            Payload::decode(payload).unwrap().content
        });
        let removed = response.removed_resources.into_iter().map(|name| format!("-{name}"));
        let refused = response.resource_errors.into_iter().map(|error| {
            let status = error.error_detail.unwrap_or_default();
            format!("!{} {}", status.code, status.message)
        });
        note(&type_url, contents.chain(removed).chain(refused).collect::<Vec<_>>().join(" "));
        let response_nonce = response.nonce;
        let ack = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
        _ = requests.send(ack).await;
    }
}

async fn connect(address: &str) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn node(env: &str, pod: usize) -> Node {
    let pairs = [("env", env.to_owned()), ("pod", pod.to_string())];
    let fields = pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into()));
    let metadata = Some(prost_types::Struct { fields: fields.collect() });
    Node { id: format!("pod-{pod}"), metadata, ..Node::default() }
}

/// A proxy and its clients.
struct Proxy {
    running: Running,
    clients: Runtime,
    pods: Mutex<usize>,
    /// How many upstream streams it has for subscriptions that can share one.
    main_streams: usize,
}

impl Proxy {
    fn start(upstream: &Upstream, mode: Mode) -> Self {
        let address = upstream.address.to_string();
        // UNAVAILABLE after a wait is another rule, and a busy machine may take long to find the
        // type.
        let arguments = ["proxy", "--upstream", &address, "--miss-deadline", "60s"];
        let (more, main_streams): (&[&str], _) = match mode {
            Mode::Delta => (&[], 1),
            Mode::Sotw => (&["--sotw"], 1),
            Mode::ByNode => (&["--by-node", "env"], 2),
        };
        Self {
            running: Running::start(&[&arguments, more].concat()),
            clients: Runtime::new().unwrap(),
            pods: Mutex::default(),
            main_streams,
        }
    }

    /// Gives each client parameters of its own.
    fn next_pod(&self) -> usize {
        let mut pods = self.pods.lock().unwrap();
        *pods += 1;
        *pods
    }

    /// One client per type, and one of all types, with a runtime for each environment. The clients of
    /// one type come last: an upstream stream with the runtime alone would be served, and the proxy
    /// would blame the next type.
    fn subscribers(&self) -> Vec<Subscriber> {
        let all = ["a", "b"].map(|env| Subscriber::new(self, env, &TYPES));
        until("the proxy subscribes to all types", || {
            TYPES.iter().all(|type_url| self.states(type_url).len() == self.main_streams)
        });
        let alone = TYPES.map(|type_url| Subscriber::new(self, "a", &[type_url]));
        all.into_iter().chain(alone).collect()
    }

    /// The state of a type on each shared stream.
    fn states(&self, type_url: &str) -> Vec<String> {
        let status = self.running.status();
        let is_main = |upstream: &&Value| !upstream["route"].as_str().unwrap().starts_with("aside");
        let upstreams = status["upstreams"].as_array().unwrap().iter().filter(is_main);
        upstreams
            .filter_map(|upstream| Some(upstream["types"][type_url]["state"].as_str()?.to_owned()))
            .collect()
    }

    /// Whether a type has this state on all streams that subscribe to it.
    fn is(&self, type_url: &str, state: &str) -> bool {
        self.states(type_url) == vec![state; self.main_streams]
    }

    /// Whether a type is available on all streams that subscribe to it. D21: it stays stale on a
    /// new stream if nothing changed, because then there is nothing to send.
    fn is_healthy(&self, type_url: &str) -> bool {
        let states = self.states(type_url);
        states.len() == self.main_streams
            && states.iter().all(|state| ["synced", "stale"].contains(&state.as_str()))
    }

    /// How many side streams there are for a type.
    fn asides(&self) -> usize {
        let status = self.running.status();
        let routes = status["upstreams"].as_array().unwrap().iter().map(|upstream| &upstream["route"]);
        routes.filter(|route| route.as_str().unwrap().starts_with("aside")).count()
    }

    fn asked_upstream(&self) -> u64 {
        self.running.status()["asked_upstream"].as_u64().unwrap()
    }

    /// Waits until clusters and secrets are available and runtimes are not, on both pages.
    fn assert_partial(&self, code: &str) {
        until("the type is found and the others are had", || {
            self.is(RUNTIME, "rejected") && [CLUSTER, SECRET].into_iter().all(|of| self.is_healthy(of))
        });
        assert_eq!(self.running.http("/readyz/CDS"), (200, "ready\n".into()));
        assert_eq!(self.running.http("/readyz/SDS"), (200, "ready\n".into()));
        let why = format!("the upstream does not serve the type: {code}: {REFUSED}\n");
        assert_eq!(self.running.http("/readyz/RTDS"), (503, why));
        assert_eq!(self.asides(), self.main_streams, "{:#}", self.running.status());
    }
}

/// The protocol to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Delta,
    Sotw,
    ByNode,
}

/// Waits until all clients have these contents, and checks that none gets anything else.
fn until_all_have(subscribers: &[Subscriber], contents: &[&str]) {
    until(&format!("{contents:?} came"), || {
        // No short-circuit: check every client.
        subscribers.iter().filter(|subscriber| subscriber.has(contents)).count() == subscribers.len()
    });
}

fn a_refused_type_comes_back(mode: Mode, code: Code, code_name: &str) {
    let origin = Cache::new();
    commit(&origin, "1");
    let upstream = Upstream::start(&origin, Refusal::AmongOthers, code);
    let proxy = Proxy::start(&upstream, mode);
    let mut subscribers = proxy.subscribers();
    until_all_have(&subscribers, &["1"]);
    proxy.assert_partial(code_name);
    commit(&origin, "2");
    until_all_have(&subscribers, &["1", "2"]);
    let before = proxy.asked_upstream();
    let late = Subscriber::new(&proxy, "a", &[RUNTIME]);
    until("the runtime came", || late.has(&["2"]));
    if mode != Mode::ByNode {
        assert_eq!(proxy.asked_upstream(), before + 1, "what passes through is asked for by each");
    }
    proxy.assert_partial(code_name);

    let upstream = upstream.upgrade(&origin);
    until_within(UPGRADE, "the type is cached", || {
        assert!(late.has(&["2"]), "nothing changed");
        until_all_have(&subscribers, &["1", "2"]);
        proxy.running.http("/readyz/RTDS").0 == 200 && proxy.asides() == 0
    });
    for type_url in TYPES {
        assert!(proxy.is_healthy(type_url), "{:#}", proxy.running.status());
    }
    commit(&origin, "3");
    until_all_have(&subscribers, &["1", "2", "3"]);
    until("the change came", || late.has(&["2", "3"]));
    // A repeated response would come before this.
    commit(&origin, "4");
    until_all_have(&subscribers, &["1", "2", "3", "4"]);
    until("the next change came", || late.has(&["2", "3", "4"]));

    // It is cached: a new client is served from the cache, also without the upstream.
    let before = proxy.asked_upstream();
    subscribers = vec![Subscriber::new(&proxy, "a", &TYPES), Subscriber::new(&proxy, "b", &TYPES)];
    until_all_have(&subscribers, &["4"]);
    assert_eq!(proxy.asked_upstream(), before);
    upstream.stop();
    until("the loss is reported", || {
        let status = proxy.running.status();
        let all = status["upstreams"].as_array().unwrap();
        all.iter().all(|upstream| upstream["servers"][0]["connected"] == false)
    });
    subscribers.push(Subscriber::new(&proxy, "b", &TYPES));
    until_all_have(&subscribers, &["4"]);
}

#[test]
fn a_type_that_delta_upstreams_refuse_among_others_passes_through_and_is_cached_after_their_upgrade() {
    a_refused_type_comes_back(Mode::Delta, Code::Unimplemented, "UNIMPLEMENTED");
}

#[test]
fn a_type_that_sotw_upstreams_refuse_among_others_passes_through_and_is_cached_after_their_upgrade() {
    a_refused_type_comes_back(Mode::Sotw, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[test]
fn a_type_that_upstreams_by_node_refuse_among_others_passes_through_and_is_cached_after_their_upgrade() {
    a_refused_type_comes_back(Mode::ByNode, Code::NotFound, "NOT_FOUND");
}

#[test]
fn a_type_that_only_its_own_service_serves_passes_through() {
    for (mode, code, code_name) in [
        (Mode::Delta, Code::Unimplemented, "UNIMPLEMENTED"),
        (Mode::Sotw, Code::InvalidArgument, "INVALID_ARGUMENT"),
    ] {
        let origin = Cache::new();
        commit(&origin, "1");
        let upstream = Upstream::start(&origin, Refusal::Aggregated, code);
        let proxy = Proxy::start(&upstream, mode);
        let all = ["a", "b"].map(|env| Subscriber::new(&proxy, env, &[CLUSTER, SECRET]));
        until("the others come", || all.iter().all(|one| one.has(&["1"])));
        let runtimes = ["a", "b"].map(|env| Subscriber::new(&proxy, env, &[RUNTIME]));
        // Until the proxy knows that the other service has the type, clients may get the error.
        let come = |content: &str| {
            runtimes.iter().all(|one| one.heard(RUNTIME).last() == Some(&one.expected(RUNTIME, content)))
        };
        until("the runtimes come", || come("1"));
        proxy.assert_partial(code_name);
        commit(&origin, "2");
        until("changes come", || all.iter().all(|one| one.has(&["1", "2"])) && come("2"));
        upstream.stop();
    }
}

#[test]
fn g4_clients_of_a_type_that_is_refused_on_every_stream_are_told_the_original_status_and_others_go_on() {
    let modes = [
        (Mode::Delta, Code::Unimplemented, "UNIMPLEMENTED"),
        (Mode::Sotw, Code::InvalidArgument, "INVALID_ARGUMENT"),
        (Mode::ByNode, Code::Unimplemented, "UNIMPLEMENTED"),
    ];
    for (mode, code, code_name) in modes {
        let origin = Cache::new();
        commit(&origin, "1");
        let upstream = Upstream::start(&origin, Refusal::Always, code);
        let proxy = Proxy::start(&upstream, mode);
        let all = ["a", "b"].map(|env| Subscriber::new(&proxy, env, &TYPES));
        // UNIMPLEMENTED is what the next proxy understands (G4); the text has the code of the upstream.
        let refused = match code {
            Code::Unimplemented => vec![format!("!12 {REFUSED}")],
            _ => vec![format!("!12 {code_name}: {REFUSED}")],
        };
        until("clients get the error", || all.iter().all(|one| one.heard(RUNTIME) == refused));
        proxy.assert_partial(code_name);
        commit(&origin, "2");
        for type_url in [CLUSTER, SECRET] {
            until("changes come", || all.iter().all(|one| one.heard(type_url) == ["1", "2"]));
        }
        let others = ["a", "b"].map(|env| Subscriber::new(&proxy, env, &[CLUSTER, SECRET]));
        until("the others come", || others.iter().all(|other| other.has(&["2"])));
        let late = Subscriber::new(&proxy, "a", &[RUNTIME]);
        until("late clients get the error, too", || late.heard(RUNTIME) == refused);
        // No client gets a response twice, whatever happened to the side stream.
        commit(&origin, "3");
        for type_url in [CLUSTER, SECRET] {
            until("changes come", || all.iter().all(|one| one.heard(type_url) == ["1", "2", "3"]));
        }
        assert!(all.iter().chain([&late]).all(|one| one.heard(RUNTIME) == refused), "{mode:?}");
        proxy.assert_partial(code_name);

        let upstream = upstream.upgrade(&origin);
        until_within(UPGRADE, "the type is cached", || {
            proxy.running.http("/readyz/RTDS").0 == 200 && proxy.asides() == 0
        });
        let have = |contents: &[&str]| {
            let mut clients = all.iter().chain([&late]);
            clients.all(|one| {
                let served = contents.iter().map(|content| one.expected(RUNTIME, content));
                one.heard(RUNTIME) == refused.iter().cloned().chain(served).collect::<Vec<_>>()
            })
        };
        until("the content came", || have(&["3"]));
        commit(&origin, "4");
        until("each content came once", || have(&["3", "4"]));
        upstream.stop();
    }
}

/// The refused type is the last in order. The proxy tries the first half of the suspects first. An
/// upstream that serves the refused type alone would answer then, and the proxy would blame the
/// next type.
const TYPES: [&str; 3] = [CLUSTER, SECRET, RUNTIME];
pub(super) const REFUSED: &str = "no such type beside others";

/// If nothing changed, the side stream gets no delta response, so a check after 30 s decides.
const UPGRADE: Duration = Duration::from_secs(150);
