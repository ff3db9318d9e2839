//! `xds serve --store --quarantine-nacks`: contents that clients reject.
#![cfg(target_os = "linux")] // Clients have addresses of their own on the loopback interface.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::google::rpc::Status;

use super::*;

/// A client of the cluster "a".
struct Envoy {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    /// The last nonce.
    nonce: String,
}

impl Envoy {
    /// On 127.0.0.HOST.
    async fn new(server: &Running, host: u8, node: &str) -> Self {
        let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap();
        let channel = channel.local_address(Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host))));
        let mut client = AggregatedDiscoveryServiceClient::new(channel.connect().await.unwrap());
        let (requests, receiver) = mpsc::channel(8);
        let request = DeltaDiscoveryRequest {
            node: Some(Node { id: node.into(), ..Node::default() }),
            type_url: CLUSTER.into(),
            resource_names_subscribe: vec!["a".into()],
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).await.unwrap();
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner(), nonce: String::new() }
    }

    /// The seconds of the cluster in the next response.
    async fn next(&mut self) -> u8 {
        let response = tokio::time::timeout(LONG, self.responses.message()).await.expect("a response");
        let response = response.unwrap().unwrap();
        self.nonce = response.nonce;
        let [resource] = &response.resources[..] else { panic!("{:?}", response.resources) };
        *resource.resource.as_ref().unwrap().value.last().unwrap()
    }

    async fn answer(&self, error: Option<&str>) {
        let request = DeltaDiscoveryRequest {
            type_url: CLUSTER.into(),
            response_nonce: self.nonce.clone(),
            error_detail: error.map(|message| Status {
                code: 3,
                message: message.into(),
                ..Status::default()
            }),
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    /// Gets this content, and answers.
    async fn gets(&mut self, seconds: u8, error: Option<&str>) {
        assert_eq!(self.next().await, seconds);
        self.answer(error).await;
    }
}

const LONG: Duration = Duration::from_secs(20);
const NACKS: &str = "xds_server_nacks_total{type=\"envoy.config.cluster.v3.Cluster\"}";

fn put(stored: &Stored, seconds: u32) {
    stored.write("a.yaml", cluster("a", seconds));
    stored.ok("put a.yaml --store data");
}

/// What the commits did, newest first.
fn outcomes(stored: &Stored) -> Vec<String> {
    let commits = stored.json("history CDS a --store data");
    commits.iter().map(|commit| commit["changes"][0]["outcome"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn st63_a_content_that_enough_clients_rejected_and_none_accepted_is_quarantined() {
    let stored = Stored::unserved("nacks");
    let server = Running::start(&["serve", "--store", &stored.path("data"), "--quarantine-nacks", "2"]);
    put(&stored, 1);
    let mut envoys = [
        Envoy::new(&server, 2, "x").await,
        Envoy::new(&server, 2, "y").await,
        Envoy::new(&server, 3, "z").await,
    ];
    for envoy in &mut envoys {
        envoy.gets(1, None).await;
    }
    put(&stored, 2);
    let [one, same_host, other] = &mut envoys;
    // Two nodes of one host are one client.
    one.gets(2, Some("no such filter")).await;
    same_host.gets(2, Some("no such filter")).await;
    server.until_metric(NACKS, 2.0);
    assert_eq!(outcomes(&stored), ["updated", "created"]);
    other.gets(2, Some("no such filter")).await;
    server.logs("quarantined: clients get the last good content, if there is one");
    assert_eq!(outcomes(&stored), ["quarantined", "updated", "created"]);
    let record = &stored.json("list CDS a --store data")[0];
    let reason = "2 clients rejected it, and none accepted it: no such filter";
    assert_eq!(record["quarantined"]["reason"], reason, "{record:#}");
    assert_eq!(stored.json("history CDS a --store data")[0]["identity"], "nacks");
    for envoy in &mut envoys {
        envoy.gets(1, None).await;
    }

    // Another put ends it. A client that accepts the content prevents a quarantine.
    put(&stored, 3);
    let [one, same_host, other] = &mut envoys;
    one.gets(3, None).await;
    same_host.gets(3, Some("bad")).await;
    other.gets(3, Some("bad")).await;
    server.logs("not quarantined: clients reject it, but others accept it");
    put(&stored, 4);
    for envoy in &mut envoys {
        envoy.gets(4, Some("bad")).await;
    }
    server.logs("quarantined: clients get the last good content, if there is one");
    assert_eq!(outcomes(&stored), ["quarantined", "updated", "updated", "quarantined", "updated", "created"]);
    // The content of the generation before was not quarantined.
    for envoy in &mut envoys {
        envoy.gets(3, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn st63_without_the_option_nothing_is_quarantined() {
    let stored = Stored::served("nacks-off");
    put(&stored, 1);
    let mut envoy = Envoy::new(&stored.server, 2, "x").await;
    envoy.gets(1, Some("bad")).await;
    stored.server.until_metric(NACKS, 1.0);
    assert_eq!(outcomes(&stored), ["created"]);
}
