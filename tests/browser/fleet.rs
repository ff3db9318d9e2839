//! A server with its admin page, and clients on real streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost_types::value::Kind;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::admin::{self, Admin, HostNames};
use xds::folder::{Folder, domains};
use xds::{Cache, Commit, CommitError, Resource, Server, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::google::rpc::Status;

/// The server, and the address of its page.
pub(crate) struct Fleet {
    pub(crate) cache: Arc<Cache>,
    pub(crate) admin: SocketAddr,
    uri: String,
}

impl Fleet {
    /// Serves an empty cache.
    pub(crate) async fn start() -> Self {
        let cache = Cache::new();
        let page = Admin::new(&cache).with_domains(|| domains("examples/variants".as_ref()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let uri = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Server::new(Arc::clone(&cache));
        let admin_listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let admin = admin_listener.local_addr().expect("an address");
        tokio::spawn(admin::serve(admin_listener, page.routes(server.clients()), HostNames::default(), None));
        tokio::spawn(server.serve(listener, std::future::pending()));
        Self { cache, admin, uri }
    }

    pub(crate) fn load_example(&self) {
        let loaded = Folder::new("examples/variants").load(&self.cache, |_| {});
        loaded.expect("the example is good");
    }

    /// Commits resources with these names and this content.
    pub(crate) fn put(
        &self,
        type_url: &str,
        names: impl Iterator<Item = String>,
        content: &str,
    ) -> Result<Commit, CommitError> {
        let mut transaction = Transaction::new();
        for name in names {
            let resource = Resource::new(type_url, &*name, content.to_owned());
            transaction.put(resource.expect("a resource"));
        }
        self.cache.commit(transaction)
    }

    /// A connection, for up to 200 clients.
    pub(crate) async fn connect(&self) -> Channel {
        Channel::from_shared(self.uri.clone()).expect("a URI").connect().await.expect("the server listens")
    }

    pub(crate) fn page(&self, view: &str) -> String {
        format!("http://{}/{view}", self.admin)
    }
}

/// A delta client of one resource.
pub(crate) struct Client {
    type_url: &'static str,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    /// Subscribes with these parameters, and ACKs the first response.
    pub(crate) async fn join(
        channel: &Channel,
        id: &str,
        parameters: &[(&str, &str)],
        type_url: &'static str,
        name: &str,
    ) -> Self {
        let text = |value: &str| Kind::StringValue(value.to_owned());
        let metadata = parameters.iter().map(|(key, value)| (*key, text(value)));
        Self::join_with(channel, id, metadata.collect(), type_url, name).await
    }

    /// Subscribes with metadata of any kind, and ACKs the first response.
    pub(crate) async fn join_with(
        channel: &Channel,
        id: &str,
        metadata: Vec<(&str, Kind)>,
        type_url: &'static str,
        name: &str,
    ) -> Self {
        let (requests, receiver) = mpsc::channel(4);
        let value = |kind| prost_types::Value { kind: Some(kind) };
        let fields = metadata.into_iter().map(|(key, kind)| (key.to_owned(), value(kind))).collect();
        let node = Node {
            id: id.into(),
            cluster: "web".into(),
            metadata: Some(prost_types::Struct { fields }),
            user_agent_name: "envoy".into(),
            ..Node::default()
        };
        let request = DeltaDiscoveryRequest {
            node: Some(node),
            type_url: type_url.into(),
            resource_names_subscribe: vec![name.into()],
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).await.expect("there is room");
        let mut service = AggregatedDiscoveryServiceClient::new(channel.clone());
        let responses = service.delta_aggregated_resources(ReceiverStream::new(receiver)).await;
        let mut client = Self { type_url, requests, responses: responses.expect("a stream").into_inner() };
        client.answer(None).await;
        client
    }

    /// Receives the next response and ACKs it, or NACKs it with this message.
    pub(crate) async fn answer(&mut self, error: Option<&str>) {
        let response = timeout(SOON, self.responses.message()).await.expect("a response in time");
        let response = response.expect("the stream goes on").expect("the stream goes on");
        let error_detail =
            error.map(|message| Status { code: 3, message: message.into(), details: Vec::new() });
        let request = DeltaDiscoveryRequest {
            type_url: self.type_url.into(),
            response_nonce: response.nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.expect("the stream goes on");
    }
}

const SOON: Duration = Duration::from_secs(20);
