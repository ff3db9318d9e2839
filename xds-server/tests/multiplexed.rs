//! Thousands of streams on one connection, as with proxies and multiplexing clients.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Running, ask, put};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use xds_core::Cache;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use xds_proto::type_url::CLUSTER;
use xds_server::ServerConfig;

type Stream = (mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>);

/// A channel with buffers for the responses of many streams at once.
async fn channel(server: &Running) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    endpoint.initial_connection_window_size(1 << 26).buffer_size(1 << 14).connect().await.unwrap()
}

async fn open(channel: &Channel) -> Stream {
    let (requests, receiver) = mpsc::channel(1);
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let stream = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    (requests, stream.into_inner())
}

/// The next response of each stream.
async fn all_receive(streams: &mut [Stream], version: &str) -> Vec<DiscoveryResponse> {
    let mut responses = Vec::new();
    for (number, (_, stream)) in streams.iter_mut().enumerate() {
        let received = timeout(Duration::from_secs(60), stream.message()).await.expect("a response in time");
        match received {
            Ok(Some(response)) => responses.push(response),
            ended => panic!("stream {number} ends before {version}: {ended:?}"),
        }
    }
    responses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_streams_of_one_connection_speak_at_once_and_none_is_lost() {
    // From 4,000 streams on, the connection used to end with `too_many_data_frames`: the HTTP/2
    // library treats many small unread frames as an attack, unless the window of the connection is
    // large.
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let channel = channel(&server).await;
    let mut streams = Vec::new();
    for _ in 0..10_000 {
        streams.push(open(&channel).await);
    }
    for (requests, _) in &streams {
        requests.try_send(ask("", CLUSTER, &["a"])).unwrap();
    }
    for version in ["2", "3"] {
        let responses = all_receive(&mut streams, version).await;
        put(&cache, CLUSTER, "a", version);
        for ((requests, _), response) in streams.iter().zip(responses) {
            let DiscoveryResponse { nonce, version_info, .. } = response;
            let answered =
                DiscoveryRequest { response_nonce: nonce, version_info, ..ask("", CLUSTER, &["a"]) };
            // The answer before may still wait for a place in the connection.
            let sent = timeout(Duration::from_secs(60), requests.send(answered)).await;
            sent.expect("a place in time").unwrap();
        }
    }
    all_receive(&mut streams, "the last").await;
}

#[tokio::test]
async fn g9_one_connection_has_only_so_many_streams_and_another_one_waits_for_a_place() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let config = ServerConfig { connection_streams_limit: 2, ..ServerConfig::default() };
    let server = Running::with(&cache, config).await;
    let channel = channel(&server).await;
    let first = open(&channel).await;
    let _second = open(&channel).await;
    // The client knows the limit, and does not open the stream.
    let mut third = Box::pin(open(&channel));
    let waits = timeout(Duration::from_millis(200), &mut third).await;
    assert!(waits.is_err(), "two streams are as many as one connection may have");
    let _other_connection = open(&self::channel(&server).await).await;
    drop(first);
    timeout(Duration::from_secs(10), third).await.expect("the place of the first");
}
