//! A server on its own port, and clients for it.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part, and a test may panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use xds_core::{Cache, Commit, Constraints, Resource, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_server::{ServeError, Server, ServerConfig};

/// A message with the name in field 1, and a field that distinguishes versions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Payload {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "100")]
    pub(crate) content: String,
}

pub(crate) fn put(cache: &Cache, type_url: &str, name: &str, content: &str) -> Commit {
    put_for(cache, type_url, name, content, Constraints::NONE)
}

pub(crate) fn put_for(cache: &Cache, type_url: &str, name: &str, content: &str, whom: Constraints) -> Commit {
    let payload = Payload { name: name.into(), content: content.into() }.encode_to_vec();
    let mut transaction = Transaction::new();
    let resource = Resource::new(type_url, name, payload).unwrap();
    transaction.put(resource.with_constraints(whom));
    cache.commit(transaction).unwrap()
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
    _server: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    pub(crate) async fn new(cache: &Arc<Cache>) -> Self {
        Self::with(cache, ServerConfig::default()).await
    }

    pub(crate) async fn with(cache: &Arc<Cache>, config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = Server::new(Arc::clone(cache)).with_config(config);
        let server = tokio::spawn(server.serve(listener, async { _ = stopped.await }));
        Self { address, _stop: stop, _server: server }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn sotw(&self) -> (mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>) {
        let (sender, requests) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel().await);
        let stream = client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
        (sender, stream.into_inner())
    }

    pub(crate) async fn delta(
        &self,
    ) -> (mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>) {
        let (sender, requests) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel().await);
        let stream = client.delta_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
        (sender, stream.into_inner())
    }
}

pub(crate) fn node(id: &str) -> Node {
    Node { id: id.into(), cluster: "edge".into(), ..Node::default() }
}

pub(crate) fn ask(id: &str, type_url: &str, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.into(),
        resource_names: names.iter().map(|name| (*name).into()).collect(),
        node: Some(node(id)),
        ..DiscoveryRequest::default()
    }
}

pub(crate) async fn next<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    tokio::time::timeout(Duration::from_secs(10), stream.message()).await.expect("an answer within 10 s")
}
