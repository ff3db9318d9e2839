//! Connections get GOAWAY: by age, and when the server stops.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{ask, next, put};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use xds_core::Cache;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use xds_proto::type_url::CLUSTER;
use xds_server::{ServeError, Server, ServerConfig, listen};

async fn start(config: ServerConfig) -> (String, oneshot::Sender<()>, JoinHandle<Result<(), ServeError>>) {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let server = Server::new(Arc::clone(&cache)).with_config(config);
    (uri, stop, tokio::spawn(server.serve(listener, async { _ = stopped.await })))
}

/// A stream with its first response.
async fn stream(channel: &Channel) -> (mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>) {
    let (requests, receiver) = mpsc::channel(1);
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let stream = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    let mut responses = stream.into_inner();
    next(&mut responses).await.unwrap().unwrap();
    (requests, responses)
}

#[tokio::test]
async fn g14_an_old_connection_is_asked_to_leave_and_its_client_comes_back_by_another_one() {
    let age = Some(Duration::from_millis(300));
    let (uri, _stop, _server) = start(ServerConfig { connection_age: age, ..ServerConfig::default() }).await;
    let channel = Channel::from_shared(uri).unwrap().connect().await.unwrap();
    let (_requests, mut responses) = stream(&channel).await;
    assert!(next(&mut responses).await.unwrap().is_none(), "the stream ends, and nothing is wrong");
    // The channel knows that its connection ends, and opens another one.
    stream(&channel).await;
}

#[tokio::test]
async fn g14_a_server_that_stops_ends_streams_one_after_the_other_and_takes_no_new_ones() {
    let config = ServerConfig { drain_rate: 100, ..ServerConfig::default() };
    let (uri, stop, server) = start(config).await;
    let (mut ends, mut channels) = (JoinSet::new(), Vec::new());
    for _ in 0..30 {
        let channel = Channel::from_shared(uri.clone()).unwrap().connect().await.unwrap();
        let (requests, mut responses) = stream(&channel).await;
        channels.push(channel);
        ends.spawn(async move {
            let status = next(&mut responses).await.unwrap_err();
            drop(requests);
            (status.code(), Instant::now())
        });
    }
    stop.send(()).unwrap();
    let ends = ends.join_all().await;
    assert!(ends.iter().all(|(code, _)| *code == Code::Unavailable));
    let (first, last) =
        (ends.iter().map(|end| end.1).min().unwrap(), ends.iter().map(|end| end.1).max().unwrap());
    assert!(
        last - first > Duration::from_millis(20),
        "30 streams take 300 ms, by chance less but never none"
    );
    server.await.unwrap().unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channels.remove(0));
    let (_requests, receiver) = mpsc::channel(1);
    assert!(client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.is_err());
}

#[tokio::test]
async fn a_port_keeps_as_many_connections_waiting_as_the_system_allows() {
    // `TcpListener::bind` has a queue of 128. When it was full, the system dropped packets, and
    // clients waited for a second or more.
    let system = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    let Some(allowed) = system.ok().and_then(|text| text.trim().parse::<usize>().ok()) else {
        return println!("SKIPPED: this system does not say how many connections may wait");
    };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let port = match listen(address.parse().unwrap()) {
            Err(error) if address.starts_with('[') => {
                println!("SKIPPED for {address}: {error}");
                continue;
            }
            port => port.unwrap(),
        };
        let address = port.local_addr().unwrap();
        let mut clients = Vec::new();
        // The server does not accept them.
        for number in 1..=allowed.min(1000) {
            let connecting = tokio::time::timeout(Duration::from_millis(900), TcpStream::connect(address));
            clients.push(connecting.await.unwrap_or_else(|_| panic!("connection {number} waits")).unwrap());
        }
    }
}
