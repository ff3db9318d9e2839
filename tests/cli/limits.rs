//! The options of `xds serve` for limits and types, seen by a client over a socket.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::type_url::{CLUSTER, ROUTE_CONFIGURATION};

use super::{LONG, Scratch, cluster, refused};

/// A delta stream of one client.
struct Client {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    async fn new(address: SocketAddr) -> Result<Self, Status> {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let (requests, receiver) = mpsc::channel(4);
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let stream = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await?;
        Ok(Self { requests, responses: stream.into_inner() })
    }

    /// The response to a request for these names.
    async fn ask(&mut self, type_url: &str, names: &[&str]) -> Result<DeltaDiscoveryResponse, Status> {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.into(),
            resource_names_subscribe: names.iter().map(|name| (*name).into()).collect(),
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
        let message = tokio::time::timeout(LONG, self.responses.message()).await.expect("an answer");
        message.map(|response| response.expect("a stream ends with a status"))
    }
}

#[tokio::test]
async fn g9_limits_of_the_command_line_end_a_stream_and_are_told() {
    let scratch = Scratch::with_cluster("limits");
    scratch.write("b.yaml", cluster("b"));
    let serving = scratch.serve(&["--names-limit", "1", "--types-limit", "1", "--streams-limit", "1"]);
    let address = serving.address();
    let mut client = Client::new(address).await.unwrap();
    assert_eq!(client.ask(CLUSTER, &["a"]).await.unwrap().resources.len(), 1);
    let mut second = Client::new(address).await;
    if let Ok(client) = &mut second {
        second = client.ask(CLUSTER, &["a"]).await.map(|_| panic!("one stream too many"));
    }
    let status = second.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("the limit of this server is 1"), "{status}");
    let status = client.ask(CLUSTER, &["b"]).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().ends_with("Cluster on one stream exceed the limit of 1"), "{status}");
}

#[tokio::test]
async fn g4_a_type_is_not_served_or_refused_as_the_command_line_says() {
    let scratch = Scratch::with_cluster("not-served");
    let serving = scratch.serve(&["--not-served", "RDS", "--refuse", "sds", "--stream-age", "10h"]);
    let mut client = Client::new(serving.address()).await.unwrap();
    let response = client.ask(ROUTE_CONFIGURATION, &["r"]).await.unwrap();
    let [error] = &*response.resource_errors else { panic!("{response:?}") };
    assert_eq!(error.error_detail.as_ref().unwrap().code, Code::Unimplemented as i32);
    assert_eq!(client.ask(CLUSTER, &["a"]).await.unwrap().resources.len(), 1);
    let status = client.ask(xds_proto::type_url::SECRET, &["s"]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[test]
fn options_with_bad_values_have_code_2_and_say_what_to_write() {
    let scratch = Scratch::with_cluster("options");
    let cases: [(&[&str], &str); 5] = [
        (&["--names-limit", "0"], "write a whole number from 1 to 4294967295, such as 10000"),
        (&["--stream-age", "1d"], "write a whole number and its unit, ms, s, m or h"),
        (&["--legacy-wildcard", "RDS"], "write TYPE=on or TYPE=off, such as RDS=on"),
        (
            &["--not-served", "Clusters"],
            "error: --not-served: no type is called \"Clusters\"; known types: Cluster (CDS); a whole type URL is \
             always accepted",
        ),
        (&["--refuse", "cds", "--not-served", "cds"], "error: --not-served and --refuse both name"),
    ];
    for (arguments, expected) in cases {
        let (code, text) = refused(&scratch.xds("serve").args(arguments).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}
