//! Metadata of clients that gives no parameter (T46).

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::type_url::ROUTE_CONFIGURATION;

use super::*;

/// A client of the routes "web" whose metadata has a number.
struct Numbered {
    responses: Streaming<DeltaDiscoveryResponse>,
    _requests: mpsc::Sender<DeltaDiscoveryRequest>,
}

impl Numbered {
    async fn new(server: SocketAddr, key: &str, number: f64) -> Self {
        let channel = Channel::from_shared(format!("http://{server}")).unwrap();
        let (requests, receiver) = mpsc::channel(8);
        let value = Value { kind: Some(Kind::NumberValue(number)) };
        let metadata = Some(Struct { fields: [(key.to_owned(), value)].into() });
        let node = Some(Node { id: "edge".into(), metadata, ..Node::default() });
        let request = DeltaDiscoveryRequest {
            node,
            type_url: ROUTE_CONFIGURATION.into(),
            resource_names_subscribe: vec!["web".into()],
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel.connect().await.unwrap());
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { responses: responses.into_inner(), _requests: requests }
    }

    /// The number of resources in the next response.
    async fn sent(&mut self) -> usize {
        let response = tokio::time::timeout(LONG, self.responses.message()).await.expect("a response");
        response.unwrap().unwrap().resources.len()
    }
}

fn routes(when: &str) -> String {
    format!("\"@type\": {ROUTE_CONFIGURATION}\nwhen: {when}\nname: web\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_g15_a_number_in_the_metadata_is_logged_with_its_cure_when_a_variant_names_the_key() {
    let scratch = Scratch::new("metadata");
    scratch.write("a.yaml", routes("env!=prod"));
    let serving = scratch.serve(&[]);
    // No variant names the key yet.
    let mut client = Numbered::new(serving.address(), "bucket", 0.0).await;
    assert_eq!(client.sent().await, 1);
    scratch.write("a.yaml", routes("bucket=0"));
    let lines = serving.until("lacks a parameter");
    let line = lines.last().unwrap();
    for part in [
        "node=\"edge\"",
        "node.metadata.bucket is the number 0: write it as the string",
        "--param bucket=node.metadata.bucket",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // The client has no such routes any more.
    assert_eq!(client.sent().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_a_mapped_path_selects_the_variant_of_a_whole_number() {
    let scratch = Scratch::new("mapped-number");
    scratch.write("a.yaml", routes("bucket=7"));
    let serving = scratch.serve(&["--param", "bucket=node.metadata.bucket"]);
    let server = serving.address();
    assert_eq!(Numbered::new(server, "bucket", 7.0).await.sent().await, 1);
    assert_eq!(Numbered::new(server, "bucket", 7.5).await.sent().await, 0);
    let lines = serving.until("lacks a parameter");
    assert!(lines.last().unwrap().contains("node.metadata.bucket is the number 7.5"), "{lines:?}");
}
