//! Streams with the same node id: two processes do not wait for each other; the streams per type of
//! one client do (S33b).
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds_core::Cache;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;
use xds_proto::envoy::service::route::v3::route_discovery_service_client::RouteDiscoveryServiceClient;
use xds_proto::type_url::{CLUSTER_LOAD_ASSIGNMENT, ROUTE_CONFIGURATION};

mod common;
use common::{Running, put};

/// The time limit for an update of a healthy client, whatever its twin does. Without a twin it
/// takes milliseconds.
const SOON: Duration = Duration::from_secs(2);

/// One delta stream of node `twin`.
struct Stream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Stream {
    async fn aggregated(channel: Channel) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    async fn endpoints(channel: Channel) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = EndpointDiscoveryServiceClient::new(channel);
        let responses = client.delta_endpoints(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    async fn routes(channel: Channel) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = RouteDiscoveryServiceClient::new(channel);
        let responses = client.delta_routes(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    /// Subscribes to a name; returns the nonce of the response.
    async fn subscribe(&mut self, type_url: &str, name: &str) -> String {
        let node = Node { id: "twin".into(), cluster: "fleet".into(), ..Node::default() };
        let request = DeltaDiscoveryRequest {
            node: Some(node),
            type_url: type_url.into(),
            resource_names_subscribe: vec![name.into()],
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
        self.next().await
    }

    async fn ack(&self, type_url: &str, nonce: String) {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.into(),
            response_nonce: nonce,
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> String {
        let response = tokio::time::timeout(SOON, self.responses.message()).await;
        response.expect("a response soon").unwrap().unwrap().nonce
    }

    /// Whether nothing arrives for a while.
    async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(300), self.responses.message()).await.is_err()
    }
}

async fn served() -> (std::sync::Arc<Cache>, Running) {
    let cache = Cache::new();
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "e", "1");
    put(&cache, ROUTE_CONFIGURATION, "r", "1");
    let server = Running::new(&cache).await;
    (cache, server)
}

#[tokio::test]
async fn s33b_an_aggregated_stream_does_not_wait_for_its_twin_that_answers_nothing() {
    let (cache, server) = served().await;
    // Another process with the same node id, or the former connection.
    let mut silent = Stream::aggregated(server.channel().await).await;
    silent.subscribe(CLUSTER_LOAD_ASSIGNMENT, "e").await;
    let mut healthy = Stream::aggregated(server.channel().await).await;
    let nonce = healthy.subscribe(ROUTE_CONFIGURATION, "r").await;
    healthy.ack(ROUTE_CONFIGURATION, nonce).await;
    put(&cache, ROUTE_CONFIGURATION, "r", "2");
    healthy.next().await;
}

#[tokio::test]
async fn s33b_aggregated_streams_of_one_connection_are_clients_of_their_own() {
    let (cache, server) = served().await;
    let channel = server.channel().await;
    let mut silent = Stream::aggregated(channel.clone()).await;
    silent.subscribe(CLUSTER_LOAD_ASSIGNMENT, "e").await;
    let mut healthy = Stream::routes(channel).await;
    let nonce = healthy.subscribe(ROUTE_CONFIGURATION, "r").await;
    healthy.ack(ROUTE_CONFIGURATION, nonce).await;
    put(&cache, ROUTE_CONFIGURATION, "r", "2");
    healthy.next().await;
}

#[tokio::test]
async fn s33b_streams_per_type_of_two_connections_do_not_wait_for_each_other() {
    let (cache, server) = served().await;
    let mut silent = Stream::endpoints(server.channel().await).await;
    silent.subscribe(CLUSTER_LOAD_ASSIGNMENT, "e").await;
    let mut healthy = Stream::routes(server.channel().await).await;
    let nonce = healthy.subscribe(ROUTE_CONFIGURATION, "r").await;
    healthy.ack(ROUTE_CONFIGURATION, nonce).await;
    put(&cache, ROUTE_CONFIGURATION, "r", "2");
    healthy.next().await;
}

#[tokio::test]
async fn s33b_streams_per_type_of_one_connection_are_one_client() {
    let (cache, server) = served().await;
    let channel = server.channel().await;
    let mut endpoints = Stream::endpoints(channel.clone()).await;
    let unanswered = endpoints.subscribe(CLUSTER_LOAD_ASSIGNMENT, "e").await;
    let mut routes = Stream::routes(channel).await;
    let nonce = routes.subscribe(ROUTE_CONFIGURATION, "r").await;
    routes.ack(ROUTE_CONFIGURATION, nonce).await;
    put(&cache, ROUTE_CONFIGURATION, "r", "2");
    assert!(routes.is_silent().await, "routes wait for endpoints that are not ACKed");
    endpoints.ack(CLUSTER_LOAD_ASSIGNMENT, unanswered).await;
    routes.next().await;
}
