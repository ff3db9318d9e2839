//! Tests the drivers over real sockets.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use xds_core::{Cache, Resource, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER};
use xds_server::{Event, Observer, Rejections, ServeError, Server, ServerConfig, skim};

/// A message with the name in field 1, and a field that distinguishes versions.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "100")]
    content: String,
}

fn put(cache: &Cache, type_url: &str, name: &str, content: &str) {
    let payload = Payload { name: name.into(), content: content.into() }.encode_to_vec();
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(type_url, name, payload).unwrap());
    cache.commit(transaction).unwrap();
}

struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    async fn new(cache: &Arc<Cache>) -> Self {
        Self::with(cache, ServerConfig::default()).await
    }

    async fn with(cache: &Arc<Cache>, config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = Server::new(Arc::clone(cache)).with_config(config);
        let server = tokio::spawn(server.serve(listener, async { _ = stopped.await }));
        Self { address, stop: Some(stop), server }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn sotw(&self) -> (mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>) {
        let (sender, requests) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel().await);
        let stream = client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
        (sender, stream.into_inner())
    }

    async fn delta(&self) -> (mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>) {
        let (sender, requests) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel().await);
        let stream = client.delta_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
        (sender, stream.into_inner())
    }
}

fn ask(type_url: &str, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.into(),
        resource_names: names.iter().map(|name| (*name).into()).collect(),
        node: Some(Node { id: "test".into(), ..Node::default() }),
        ..DiscoveryRequest::default()
    }
}

fn contents(response: &DiscoveryResponse) -> Vec<String> {
    response.resources.iter().map(|any| Payload::decode(any.value.clone()).unwrap().content).collect()
}

async fn next<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    tokio::time::timeout(Duration::from_secs(10), stream.message()).await.expect("an answer within 10 s")
}

/// A server looked at its shutdown signal only after the first commit.
#[tokio::test(start_paused = true)]
async fn g13_g14_a_server_without_a_commit_stops() {
    let nobody = tokio_stream::pending::<std::io::Result<tokio::io::DuplexStream>>();
    let serving = Server::new(Cache::new()).serve_with_incoming(nobody, async {});
    tokio::time::timeout(Duration::from_secs(60), serving).await.expect("it stops").unwrap();
}

#[tokio::test]
async fn sotw_a_subscription_is_answered_and_a_commit_is_pushed() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask(CLUSTER, &[])).await.unwrap();
    let first = next(&mut responses).await.unwrap().unwrap();
    assert_eq!((first.type_url.as_str(), contents(&first)), (CLUSTER, vec!["1".to_owned()]));
    requests.send(DiscoveryRequest { response_nonce: first.nonce, ..ask(CLUSTER, &[]) }).await.unwrap();
    put(&cache, CLUSTER, "a", "2");
    let second = next(&mut responses).await.unwrap().unwrap();
    assert_eq!(contents(&second), ["2"]);
    assert_ne!(first.version_info, second.version_info);
}

#[tokio::test]
async fn delta_a_subscription_is_answered_and_a_commit_is_pushed() {
    let cache = Cache::new();
    // Large enough to be sent as a shared slice.
    let large = "x".repeat(100_000);
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", &large);
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.delta().await;
    let subscribe = DeltaDiscoveryRequest {
        type_url: CLUSTER_LOAD_ASSIGNMENT.into(),
        resource_names_subscribe: vec!["a".into(), "missing".into()],
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(subscribe).await.unwrap();
    let first = next(&mut responses).await.unwrap().unwrap();
    let any = first.resources[0].resource.clone().unwrap();
    assert_eq!(Payload::decode(any.value).unwrap().content, large);
    assert_eq!(first.removed_resources, ["missing"]);
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "missing", "2");
    let second = next(&mut responses).await.unwrap().unwrap();
    assert_eq!(second.resources[0].name, "missing");
}

#[tokio::test]
async fn s12_a_service_of_one_type_needs_no_type_url_and_refuses_another() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let mut client = ClusterDiscoveryServiceClient::new(server.channel().await);
    let (requests, stream) = mpsc::channel(4);
    let mut responses = client.stream_clusters(ReceiverStream::new(stream)).await.unwrap().into_inner();
    requests.send(ask("", &[])).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().type_url, CLUSTER);
    requests.send(ask(LISTENER, &[])).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn g5_a_method_that_does_not_exist_is_unimplemented() {
    let cache = Cache::new();
    let server = Running::new(&cache).await;
    let mut grpc = tonic::client::Grpc::new(server.channel().await);
    grpc.ready().await.unwrap();
    let path = "/envoy.service.route.v3.VirtualHostDiscoveryService/StreamVirtualHosts";
    let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let requests = tokio_stream::iter([ask("", &[])]);
    let status =
        grpc.streaming(tonic::Request::new(requests), path.parse().unwrap(), codec).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

/// A codec for bytes.
#[derive(Debug, Clone, Default)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(buffer, item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let len = bytes::Buf::remaining(buffer);
        Ok(Some(bytes::Buf::copy_to_bytes(buffer, len)))
    }
}

#[tokio::test]
async fn g1_g9_a_malformed_or_oversized_frame_ends_its_stream_alone() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let config = ServerConfig { request_limit_bytes: 1 << 16, ..ServerConfig::default() };
    let server = Running::with(&cache, config).await;
    let channel = server.channel().await;
    // Uses the same connection as the bad streams.
    let (requests, stream) = mpsc::channel(4);
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let mut good =
        client.stream_aggregated_resources(ReceiverStream::new(stream)).await.unwrap().into_inner();
    for (frame, code) in [
        (Bytes::from_static(&[0x0a, 0x7f, 1]), Code::Internal),
        (Bytes::from(vec![0; 1 << 17]), Code::ResourceExhausted),
    ] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
        let requests = tonic::Request::new(tokio_stream::iter([frame]));
        let mut bad = grpc.streaming(requests, path.parse().unwrap(), Raw).await.unwrap().into_inner();
        assert_eq!(next(&mut bad).await.unwrap_err().code(), code);
    }
    requests.send(ask(CLUSTER, &[])).await.unwrap();
    assert_eq!(contents(&next(&mut good).await.unwrap().unwrap()), ["1"]);
}

#[tokio::test]
async fn a_client_that_says_no_more_after_its_request_still_gets_the_answer() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let mut client = AggregatedDiscoveryServiceClient::new(server.channel().await);
    // The client closes its side after the first request, as command line tools do.
    let requests = tokio_stream::iter([ask(CLUSTER, &[])]);
    let mut responses = client.stream_aggregated_resources(requests).await.unwrap().into_inner();
    assert_eq!(contents(&next(&mut responses).await.unwrap().unwrap()), ["1"]);
    assert!(next(&mut responses).await.unwrap().is_none());
}

#[tokio::test]
async fn g14_shutdown_ends_streams_with_unavailable_and_returns() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let mut server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask(CLUSTER, &[])).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::Unavailable);
    tokio::time::timeout(Duration::from_secs(10), server.server).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_reads_nothing_harms_no_other_and_gets_the_newest_in_the_end() {
    let cache = Cache::new();
    let large = "x".repeat(2 << 20);
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "large", &large);
    let server = Running::new(&cache).await;
    let (slow_requests, mut slow) = server.sotw().await;
    slow_requests.send(ask(CLUSTER_LOAD_ASSIGNMENT, &["large", "small"])).await.unwrap();
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask(CLUSTER_LOAD_ASSIGNMENT, &["small"])).await.unwrap();
    for round in 0..20 {
        put(&cache, CLUSTER_LOAD_ASSIGNMENT, "small", &round.to_string());
        put(&cache, CLUSTER_LOAD_ASSIGNMENT, "large", &format!("{round}{large}"));
        let response = next(&mut responses).await.unwrap().unwrap();
        assert_eq!(contents(&response).last().unwrap(), &round.to_string());
        let ack =
            DiscoveryRequest { response_nonce: response.nonce, ..ask(CLUSTER_LOAD_ASSIGNMENT, &["small"]) };
        requests.send(ack).await.unwrap();
    }
    // The client reads again, and after a few responses it has the newest content.
    let mut seen = 0;
    loop {
        let response = next(&mut slow).await.unwrap().unwrap();
        seen += 1;
        let nonce = response.nonce.clone();
        if contents(&response).iter().any(|content| content == "19") {
            break;
        }
        let ack =
            DiscoveryRequest { response_nonce: nonce, ..ask(CLUSTER_LOAD_ASSIGNMENT, &["large", "small"]) };
        slow_requests.send(ack).await.unwrap();
    }
    assert!(seen < 10, "{seen} responses for 20 rounds");
}

#[tokio::test]
async fn a_hundred_streams_that_come_and_go_leave_the_cache_as_it_was() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    // Each stream holds the cache, and each connection has routes that hold it. A few references
    // may remain, but not one per stream.
    let allowed = Arc::strong_count(&cache) + 99;
    for _ in 0..100 {
        let (requests, mut responses) = server.sotw().await;
        requests.send(ask(CLUSTER, &[])).await.unwrap();
        next(&mut responses).await.unwrap().unwrap();
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&cache) > allowed {
        assert!(tokio::time::Instant::now() < deadline, "{} holders are left", Arc::strong_count(&cache));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_may_have_hundreds_of_streams() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let channel = server.channel().await;
    let mut streams = Vec::new();
    for _ in 0..300 {
        let (requests, receiver) = mpsc::channel(1);
        let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
        let responses = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        requests.send(ask(CLUSTER, &[])).await.unwrap();
        streams.push((requests, responses.into_inner()));
    }
    for (_, responses) in &mut streams {
        assert_eq!(next(responses).await.unwrap().unwrap().resources.len(), 1);
    }
}

#[tokio::test]
async fn health_and_reflection_answer() {
    let cache = Cache::new();
    let server = Running::new(&cache).await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(server.channel().await);
    let request = tonic_health::pb::HealthCheckRequest {
        service: "envoy.service.discovery.v3.AggregatedDiscoveryService".into(),
    };
    use tonic_health::pb::health_check_response::ServingStatus;
    let mut told = health.watch(request).await.unwrap().into_inner();
    // G13: before the first commit the server cannot answer.
    assert_eq!(next(&mut told).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    put(&cache, CLUSTER, "a", "1");
    assert_eq!(next(&mut told).await.unwrap().unwrap().status(), ServingStatus::Serving);

    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        next(&mut answers).await.unwrap().unwrap().message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"envoy.service.cluster.v3.ClusterDiscoveryService".to_owned()), "{names:?}");
}

#[tokio::test]
async fn g6_a_client_that_does_not_say_who_it_is_is_served() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    for node in [None, Some(Node::default())] {
        let (requests, mut responses) = server.sotw().await;
        requests.send(DiscoveryRequest { node, ..ask(CLUSTER, &[]) }).await.unwrap();
        assert_eq!(contents(&next(&mut responses).await.unwrap().unwrap()), ["1"]);
    }
}

/// Stores all events.
#[derive(Debug, Default)]
struct Told(std::sync::Mutex<Vec<String>>);

impl Observer for Told {
    fn on_event(&self, client: &skim::Client, event: Event<'_>) {
        let text = match event {
            Event::Accepted { protocol, .. } => format!("accepted {protocol:?}"),
            Event::Opened => format!("{} opened", client.id),
            Event::Ended { code, .. } => format!("ended {code:?}"),
            Event::Sent(response) => format!("sent {}", response.nonce),
            Event::Answered(verdict) => format!("{verdict:?}").split(' ').next().unwrap().to_owned(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(text);
    }
}

#[tokio::test]
async fn g7_d5_an_observer_is_told_what_happens_on_a_stream() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let told = Arc::new(Told::default());
    let observer = Some(Arc::clone(&told) as Arc<dyn Observer>);
    let server = Running::with(&cache, ServerConfig { observer, ..ServerConfig::default() }).await;
    let (requests, mut responses) = server.delta().await;
    let request = |id: &str, nonce: &str| DeltaDiscoveryRequest {
        node: Some(Node { id: id.into(), ..Node::default() }),
        type_url: CLUSTER.into(),
        response_nonce: nonce.into(),
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(request("one", "")).await.unwrap();
    let first = next(&mut responses).await.unwrap().unwrap();
    requests.send(request("one", &first.nonce)).await.unwrap();
    requests.send(request("two", "77")).await.unwrap();
    drop(requests);
    assert!(next(&mut responses).await.unwrap().is_none());
    let told = told.0.lock().unwrap().clone();
    let expected =
        ["accepted Delta", "one opened", "sent 1", "Acked", "NodeChanged", "StaleNonce", "ended Ok"];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn what_clients_reject_is_counted_by_variant_version_and_client() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    put(&cache, CLUSTER, "b", "1");
    let rejections = Rejections::new(Arc::clone(&cache));
    let observer = Some(Arc::clone(&rejections) as Arc<dyn Observer>);
    let server = Running::with(&cache, ServerConfig { observer, ..ServerConfig::default() }).await;
    let (requests, mut responses) = server.delta().await;
    let request = |nonce: &str, error: Option<&str>| DeltaDiscoveryRequest {
        node: Some(Node { id: "one".into(), ..Node::default() }),
        type_url: CLUSTER.into(),
        response_nonce: nonce.into(),
        error_detail: error.map(|message| xds_proto::google::rpc::Status {
            code: 3,
            message: message.into(),
            details: Vec::new(),
        }),
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(request("", None)).await.unwrap();
    let first = next(&mut responses).await.unwrap().unwrap();
    requests.send(request(&first.nonce, None)).await.unwrap();
    put(&cache, CLUSTER, "b", "2");
    let second = next(&mut responses).await.unwrap().unwrap();
    requests.send(request(&second.nonce, Some("no such port"))).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while rejections.list().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the rejection is not counted");
        tokio::task::yield_now().await;
    }
    let listed = rejections.list();
    let [rejected] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((rejected.id.name.as_str(), rejected.count, &*rejected.detail), ("b", 1, "no such port"));
    assert_eq!(
        rejected.clients.iter().map(|(name, count)| (&*name.id, *count)).collect::<Vec<_>>(),
        [("one", 1)]
    );
    put(&cache, CLUSTER, "b", "3");
    assert_eq!(rejections.list(), [], "nobody rejected this version");
}

#[tokio::test]
async fn g9_streams_over_the_limit_are_refused_and_a_place_is_free_again() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::with(&cache, ServerConfig { streams_limit: 1, ..ServerConfig::default() }).await;
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask(CLUSTER, &[])).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(server.channel().await);
    let refused = client.stream_aggregated_resources(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "too many streams: the limit of this server is 1");
    drop((requests, responses));
    // The place becomes free when the server notices the end.
    while client.stream_aggregated_resources(tokio_stream::pending()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn g14_a_stream_ends_in_order_at_its_maximal_age() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let stream_age = Some(Duration::from_millis(50));
    let server = Running::with(&cache, ServerConfig { stream_age, ..ServerConfig::default() }).await;
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask(CLUSTER, &[])).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
    assert!(next(&mut responses).await.unwrap().is_none(), "ended without an error");
}

#[tokio::test]
async fn s38_an_envoy_is_told_of_a_ttl_and_others_are_not() {
    let cache = Cache::new();
    let payload = Payload { name: "a".into(), content: "1".into() }.encode_to_vec();
    let mut transaction = Transaction::new();
    let resource = Resource::new(CLUSTER, "a", payload).unwrap();
    transaction.put(resource.with_ttl(Duration::from_secs(60)));
    cache.commit(transaction).unwrap();
    let server = Running::new(&cache).await;
    for (agent, ttl) in [("envoy", Some(60)), ("gRPC", None)] {
        let (requests, mut responses) = server.delta().await;
        let node = Some(Node { user_agent_name: agent.into(), ..Node::default() });
        let type_url = CLUSTER.into();
        requests.send(DeltaDiscoveryRequest { node, type_url, ..Default::default() }).await.unwrap();
        let response = next(&mut responses).await.unwrap().unwrap();
        assert_eq!(response.resources[0].ttl.as_ref().map(|ttl| ttl.seconds), ttl, "{agent}");
    }
}
