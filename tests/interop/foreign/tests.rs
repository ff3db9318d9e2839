//! The foreign servers follow their commands, and report events.

use prost::Message;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use xds_proto::envoy::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_proto::google::rpc;
use xds_proto::type_url::CLUSTER;

use super::{Event, Foreign, ForeignServer};
use crate::mode::{Mode, Protocol, Streams};
use crate::resources::{api_listener, cluster, endpoints, listener, routes};
use crate::wait::SOON;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_servers_serve_what_is_set_tell_of_answers_and_come_back_after_a_stop() {
    for kind in Foreign::ALL {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        for mode in Mode::ALL {
            eprintln!("{kind}: {mode}");
            try_all(&mut server, kind, mode).await;
        }
    }
}

async fn try_all(server: &mut ForeignServer, kind: Foreign, mode: Mode) {
    server.set("one", &resources(mode, &["a", "b"])).await;
    let mut client = Client::open(mode, server.port).await;
    let Event::StreamOpen { stream, type_url } = server.event().await else {
        panic!("{kind}, {mode}: a stream is opened first")
    };
    assert_eq!(type_url, if mode.streams == Streams::Ads { "" } else { CLUSTER }, "{kind}, {mode}");

    let first = client.next().await.expect("a response");
    assert_eq!(first.names, ["a", "b"], "{kind}, {mode}");
    assert_eq!(first.version == "one", kind != Foreign::GoControlPlaneLinear, "{kind}, {mode}: {first:?}");
    client.ack(&first).await;
    assert_eq!(
        server.event().await,
        Event::Ack {
            stream: stream.clone(),
            type_url: CLUSTER.into(),
            version: first.version.clone(),
            nonce: first.nonce.clone(),
        },
        "{kind}, {mode}"
    );

    server.set("two", &resources(mode, &["a"])).await;
    let second = client.next().await.expect("a response");
    match mode.protocol {
        Protocol::Sotw => assert_eq!(second.names, ["a"], "{kind}, {mode}"),
        Protocol::Delta => assert_eq!(second.removed, ["b"], "{kind}, {mode}"),
    }
    client.nack(&second, &first.version, "keep b").await;
    assert_eq!(
        server.event().await,
        Event::Nack {
            stream: stream.clone(),
            type_url: CLUSTER.into(),
            nonce: second.nonce,
            detail: "keep b".into(),
        },
        "{kind}, {mode}"
    );

    server.stop().await;
    while client.next().await.is_ok() {}
    assert_eq!(server.event().await, Event::StreamClosed { stream }, "{kind}, {mode}");
    server.start_again().await;
    let mut again = Client::open(mode, server.port).await;
    assert_eq!(again.next().await.expect("a response").names, ["a"], "{kind}, {mode}");
    drop(again);
    let closed = |event: &Event| matches!(event, Event::StreamClosed { .. });
    server.until("the second stream is closed", closed).await;
}

/// Clusters, and one resource of each other type, with messages in an `Any`.
fn resources(mode: Mode, clusters: &[&str]) -> Vec<Value> {
    let others = [
        listener(mode, "web", "routes"),
        api_listener(mode, "api", "routes"),
        routes("routes", &[("/", "a")]),
        endpoints("a", 80),
    ];
    clusters.iter().map(|name| cluster(mode, name)).chain(others).collect()
}

/// A stream that subscribes to all clusters.
enum Client {
    Sotw { requests: mpsc::Sender<DiscoveryRequest>, responses: Streaming<DiscoveryResponse> },
    Delta { requests: mpsc::Sender<DeltaDiscoveryRequest>, responses: Streaming<DeltaDiscoveryResponse> },
}

/// A response of either protocol.
#[derive(Debug)]
struct Response {
    version: String,
    nonce: String,
    /// Sorted.
    names: Vec<String>,
    removed: Vec<String>,
}

impl Client {
    async fn open(mode: Mode, port: u16) -> Self {
        let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).expect("a URI");
        let channel = channel.connect().await.expect("it listens");
        let mut ads = AggregatedDiscoveryServiceClient::new(channel.clone());
        let mut cds = ClusterDiscoveryServiceClient::new(channel);
        let opened = async {
            Ok::<_, Status>(match mode.protocol {
                Protocol::Sotw => {
                    // A server may answer the call only after the first request.
                    let (requests, receiver) = with_first(DiscoveryRequest {
                        type_url: CLUSTER.into(),
                        ..DiscoveryRequest::default()
                    });
                    let responses = match mode.streams {
                        Streams::Ads => ads.stream_aggregated_resources(receiver).await?,
                        Streams::PerType => cds.stream_clusters(receiver).await?,
                    };
                    Self::Sotw { requests, responses: responses.into_inner() }
                }
                Protocol::Delta => {
                    let (requests, receiver) = with_first(DeltaDiscoveryRequest {
                        type_url: CLUSTER.into(),
                        ..DeltaDiscoveryRequest::default()
                    });
                    let responses = match mode.streams {
                        Streams::Ads => ads.delta_aggregated_resources(receiver).await?,
                        Streams::PerType => cds.delta_clusters(receiver).await?,
                    };
                    Self::Delta { requests, responses: responses.into_inner() }
                }
            })
        };
        time::timeout(SOON, opened).await.expect("in time").expect("a stream")
    }

    async fn next(&mut self) -> Result<Response, Status> {
        let ended = || Status::ok("the stream is over");
        let next = async {
            Ok(match self {
                Self::Sotw { responses, .. } => {
                    let response = responses.message().await?.ok_or_else(ended)?;
                    Response {
                        version: response.version_info,
                        nonce: response.nonce,
                        names: sorted(response.resources.into_iter().map(|any| name(&any.value))),
                        removed: Vec::new(),
                    }
                }
                Self::Delta { responses, .. } => {
                    let response = responses.message().await?.ok_or_else(ended)?;
                    Response {
                        version: response.system_version_info,
                        nonce: response.nonce,
                        names: sorted(response.resources.into_iter().map(|resource| resource.name)),
                        removed: response.removed_resources,
                    }
                }
            })
        };
        time::timeout(SOON, next).await.expect("a response in time")
    }

    async fn ack(&self, response: &Response) {
        self.answer(&response.nonce, &response.version, None).await;
    }

    async fn nack(&self, response: &Response, accepted: &str, detail: &str) {
        let error = rpc::Status { code: 3, message: detail.into(), ..rpc::Status::default() };
        self.answer(&response.nonce, accepted, Some(error)).await;
    }

    async fn answer(&self, nonce: &str, version: &str, error_detail: Option<rpc::Status>) {
        let sent = match self {
            Self::Sotw { requests, .. } => {
                let request = DiscoveryRequest {
                    type_url: CLUSTER.into(),
                    version_info: version.into(),
                    response_nonce: nonce.into(),
                    error_detail,
                    ..DiscoveryRequest::default()
                };
                requests.send(request).await.is_ok()
            }
            Self::Delta { requests, .. } => {
                let request = DeltaDiscoveryRequest {
                    type_url: CLUSTER.into(),
                    response_nonce: nonce.into(),
                    error_detail,
                    ..DeltaDiscoveryRequest::default()
                };
                requests.send(request).await.is_ok()
            }
        };
        assert!(sent, "the stream is open");
    }
}

fn with_first<T>(request: T) -> (mpsc::Sender<T>, ReceiverStream<T>) {
    let (sender, receiver) = mpsc::channel(4);
    sender.try_send(request).expect("there is room");
    (sender, ReceiverStream::new(receiver))
}

/// The name in an encoded cluster.
fn name(cluster: &[u8]) -> String {
    Named::decode(cluster).expect("a cluster").name
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[derive(Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}
