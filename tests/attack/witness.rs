//! The healthy client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use xds::type_url::CLUSTER;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use crate::server::Server;

/// A client that receives and ACKs everything.
#[derive(Debug)]
pub(crate) struct Witness {
    request: DiscoveryRequest,
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Witness {
    /// A client with its own connection that has sent its first request.
    pub(crate) async fn connect(server: &Server) -> Self {
        timeout(TOO_LONG, Self::try_connect(server)).await.expect("a healthy client connects")
    }

    async fn try_connect(server: &Server) -> Self {
        loop {
            // Try again after a failure, as a gRPC client does.
            if let Ok(channel) = channel(server).await {
                let (requests, receiver) = mpsc::channel(4);
                let request = request();
                requests.send(request.clone()).await.unwrap();
                let mut client = AggregatedDiscoveryServiceClient::new(channel);
                if let Ok(responses) = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await
                {
                    return Self { request, requests, responses: responses.into_inner() };
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Waits until it has this content.
    pub(crate) async fn sees(&mut self, content: &str) {
        let seen = async {
            loop {
                let response = self.responses.message().await.expect("the stream goes on").expect("and on");
                let payload = &response.resources[0].value;
                let cluster = Cluster::decode(payload.clone()).unwrap();
                let DiscoveryResponse { version_info, nonce, .. } = response;
                let ack = DiscoveryRequest { version_info, response_nonce: nonce, ..self.request.clone() };
                self.requests.send(ack).await.unwrap();
                if cluster.alt_stat_name == content {
                    return;
                }
            }
        };
        timeout(TOO_LONG, seen).await.expect("a healthy client gets its update");
    }
}

async fn channel(server: &Server) -> Result<Channel, tonic::transport::Error> {
    match &server.certificate {
        None => Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await,
        Some(pem) => {
            let tls =
                ClientTlsConfig::new().domain_name("localhost").ca_certificate(Certificate::from_pem(pem));
            let endpoint = Channel::from_shared(format!("https://{}", server.address)).unwrap();
            endpoint.tls_config(tls).unwrap().connect().await
        }
    }
}

/// Asks for the cluster that changes, and for one that nobody asked for before and that does not exist: a proxy
/// has to ask its upstream before it can answer.
fn request() -> DiscoveryRequest {
    static WITNESSES: AtomicUsize = AtomicUsize::new(0);
    let absent = format!("absent-{}", WITNESSES.fetch_add(1, Ordering::Relaxed));
    DiscoveryRequest {
        type_url: CLUSTER.into(),
        resource_names: vec!["witnessed".into(), absent],
        node: Some(Node { id: "witness".into(), ..Node::default() }),
        ..DiscoveryRequest::default()
    }
}

/// More than an update may take, so that a failure reports the time that it took.
const TOO_LONG: Duration = Duration::from_secs(20);
