//! The clients: one with bare messages, and the client library.

use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Code, Event, Protocol, Recorder, SetEvent};
use xds::type_url::CLUSTER;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use super::Seen;

/// A delta stream, until it ends: subscribes to all clusters, sends `initial_resource_versions`,
/// ACKs everything.
pub(super) async fn follow_raw(address: String, seen: watch::Sender<Seen>) {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(4);
    let node = Some(Node { id: "raw".into(), ..Node::default() });
    let initial_resource_versions = seen.borrow().versions.clone().into_iter().collect();
    let first = DeltaDiscoveryRequest {
        node,
        type_url: CLUSTER.into(),
        initial_resource_versions,
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(first).await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    let mut responses: Streaming<DeltaDiscoveryResponse> = stream.into_inner();
    seen.send_modify(|seen| {
        seen.streams += 1;
        seen.responses.clear();
    });
    while let Ok(Some(response)) = responses.message().await {
        seen.send_modify(|seen| take(seen, &response));
        let response_nonce = response.nonce;
        let ack = DeltaDiscoveryRequest {
            type_url: CLUSTER.into(),
            response_nonce,
            ..DeltaDiscoveryRequest::default()
        };
        _ = requests.send(ack).await;
    }
    seen.send_modify(|seen| seen.failures += 1);
}

fn take(seen: &mut Seen, response: &DeltaDiscoveryResponse) {
    seen.responses.push(response.resources.len());
    for resource in &response.resources {
        let payload = resource.resource.as_ref().expect("no heartbeat, as there is no TTL");
        let cluster = Cluster::decode(payload.value.clone()).unwrap();
        let before = seen.versions.insert(cluster.name.clone(), resource.version.clone());
        if before.is_some_and(|before| before == resource.version) {
            seen.sent_again.push(cluster.name.clone());
        }
        seen.holds.insert(cluster.name, cluster.alt_stat_name);
    }
    for name in &response.removed_resources {
        seen.holds.remove(name);
        seen.versions.remove(name);
        seen.removed.insert(name.clone());
    }
}

/// A client library client that watches all clusters.
pub(super) struct Library {
    seen: watch::Receiver<Seen>,
    following: JoinHandle<()>,
}

impl Library {
    pub(super) fn start(address: &str, protocol: Protocol) -> Self {
        let (sender, seen) = watch::channel(Seen::default());
        let mut bootstrap = Bootstrap::to_server(format!("http://{address}"));
        bootstrap.node.id = format!("{protocol:?}");
        let recorder = Arc::new(Connection(sender.clone()));
        let client = Client::builder(bootstrap).protocol(protocol).recorder(recorder).start().unwrap();
        let mut clusters = client.watch_all::<Cluster>().unwrap();
        let following = tokio::spawn(async move {
            while let Some(event) = clusters.next().await {
                let SetEvent::Member(name, event) = event else { continue };
                sender.send_modify(|seen| match event {
                    Event::Changed(cluster) => {
                        let content = cluster.alt_stat_name.clone();
                        if seen
                            .holds
                            .insert(cluster.name.clone(), content.clone())
                            .is_some_and(|held| held == content)
                        {
                            seen.sent_again.push(cluster.name.clone());
                        }
                    }
                    Event::Absent(_) => {
                        seen.holds.remove(name.as_str());
                        seen.removed.insert(name.as_str().to_owned());
                    }
                    // The resource stays in use.
                    Event::Ambient(_) => {}
                });
            }
        });
        Self { seen, following }
    }

    pub(super) fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// Records the state of its connection.
struct Connection(watch::Sender<Seen>);

impl Recorder for Connection {
    fn opened(&self, _: &str) {
        self.0.send_modify(|seen| {
            seen.streams += 1;
            seen.responses.clear();
        });
    }

    fn failed(&self, _: &str, _: Option<Code>, _: &str) {
        self.0.send_modify(|seen| seen.failures += 1);
    }

    fn updates(&self, _: &str, _: &str, valid: usize, invalid: usize) {
        assert_eq!(invalid, 0);
        self.0.send_modify(|seen| seen.responses.push(valid));
    }
}
