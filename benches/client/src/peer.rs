//! The crate `xds-client` of the registry, through its public interface.

use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::Cluster as ClusterMessage;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use peer_client::resource::TypeUrl;
use peer_client::{
    ClientConfig, Node, ProstCodec, Resource, ResourceEvent, TokioRuntime, TonicTransportBuilder, XdsClient,
};
use prost::Message;
use xds_proto::type_url;

use crate::Error;
use crate::measured::Measured;
use crate::workload::{Kind, Workload, cluster_revision, load_assignment_revision};

/// The cost of the client of the registry.
pub(crate) fn run_peer(workload: &Workload) -> Result<Measured, Error> {
    match workload.kind {
        Kind::Cluster => run(workload, |cluster: &Cluster| cluster_revision(&cluster.0)),
        Kind::LoadAssignment => {
            run(workload, |assignment: &LoadAssignment| load_assignment_revision(&assignment.0))
        }
    }
}

fn run<T: Resource>(workload: &Workload, revision: fn(&T) -> u32) -> Result<Measured, Error> {
    Measured::of(workload, async |uri, progress| {
        let node = Node::new("bench", "1").with_id("bench").with_cluster("bench");
        // Subscribing must not reach the timeout. The cost of a timer does not depend on its
        // duration.
        let config = ClientConfig::new(node, uri).with_resource_initial_timeout(Some(TIMEOUT));
        let transport = TonicTransportBuilder::new().with_max_decoding_message_size(LARGEST_BYTES);
        let client = XdsClient::builder(config, transport, ProstCodec, TokioRuntime).build();
        for (index, name) in workload.names().enumerate() {
            let mut watcher = client.watch::<T>(name).await;
            let mut witness = progress.witness(index);
            tokio::spawn(async move {
                while let Some(event) = watcher.next().await {
                    let ResourceEvent::ResourceChanged { result, done } = event else {
                        panic!("the stream does not break");
                    };
                    witness.saw(revision(&*result.expect("what is sent is valid and stays")));
                    drop(done);
                }
            });
        }
        client
    })
}

struct Cluster(ClusterMessage);

struct LoadAssignment(ClusterLoadAssignment);

impl Resource for Cluster {
    type Message = ClusterMessage;
    const TYPE_URL: TypeUrl = TypeUrl::new(type_url::CLUSTER);

    fn deserialize(bytes: Bytes) -> Result<Self::Message, peer_client::Error> {
        Ok(Message::decode(bytes)?)
    }

    fn name(message: &Self::Message) -> &str {
        &message.name
    }

    fn validate(message: Self::Message) -> Result<Self, peer_client::Error> {
        Ok(Self(message))
    }
}

impl Resource for LoadAssignment {
    type Message = ClusterLoadAssignment;
    const TYPE_URL: TypeUrl = TypeUrl::new(type_url::CLUSTER_LOAD_ASSIGNMENT);
    const ALL_RESOURCES_REQUIRED_IN_SOTW: bool = false;

    fn deserialize(bytes: Bytes) -> Result<Self::Message, peer_client::Error> {
        Ok(Message::decode(bytes)?)
    }

    fn name(message: &Self::Message) -> &str {
        &message.cluster_name
    }

    fn validate(message: Self::Message) -> Result<Self, peer_client::Error> {
        Ok(Self(message))
    }
}

const TIMEOUT: Duration = Duration::from_secs(600);
const LARGEST_BYTES: usize = 64 << 20;
