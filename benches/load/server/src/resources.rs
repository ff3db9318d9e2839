//! The resources that every server under test serves, with the fields of the contract.

use bytes::Bytes;
use prost::Message;
use xds_core::{Constraints, Formula, Resource};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};

/// The reason why a resource or a commit failed, as text for people.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The number of variants and their size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) endpoints: usize,
    /// One means that the assignments have no constraints.
    pub(crate) variants: usize,
}

/// The name of the cluster and of its load assignment.
fn name(index: usize) -> String {
    format!("cluster-{index:06}")
}

fn variant_name(variant: usize) -> String {
    format!("v{variant:03}")
}

pub(crate) fn cluster(index: usize) -> Result<Resource, Error> {
    let source = ConfigSource { ads: Some(Empty {}), resource_api_version: 2 };
    let message = Cluster {
        name: name(index),
        kind: 3,
        eds: Some(EdsClusterConfig { source: Some(source) }),
        connect_timeout: Some(Duration { seconds: 1 }),
    };
    Ok(Resource::new(CLUSTER, message.name.as_str(), encoded(&message))?)
}

/// The assignment with the number of the last round that changed it.
pub(crate) fn load_assignment(
    index: usize,
    round: u32,
    variant: usize,
    shape: Shape,
) -> Result<Resource, Error> {
    let endpoint = |number: usize| {
        let address = format!("10.{}.{}.{number}", index >> 8 & 255, index & 255);
        let socket = SocketAddress { address, port: 8080 };
        let address = Some(Address { socket: Some(socket) });
        let weight = Some(UInt32Value { value: 100 });
        LbEndpoint { endpoint: Some(Endpoint { address }), health: 1, weight }
    };
    let sub_zone = variant_name(variant);
    let locality = Locality { region: "region-1".into(), zone: "zone-1".into(), sub_zone: sub_zone.clone() };
    let message = ClusterLoadAssignment {
        name: name(index),
        localities: vec![LocalityLbEndpoints {
            locality: Some(locality),
            endpoints: (0..shape.endpoints).map(endpoint).collect(),
        }],
        policy: Some(Policy { overprovisioning: Some(UInt32Value { value: 1000 + round }) }),
    };
    let resource = Resource::new(CLUSTER_LOAD_ASSIGNMENT, message.name.as_str(), encoded(&message))?;
    if shape.variants == 1 {
        return Ok(resource);
    }
    let only = Formula::Equals { key: "variant".into(), value: sub_zone.as_str().into() };
    Ok(resource.with_constraints(Constraints::from_formula(only)?))
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct UInt32Value {
    #[prost(uint32, tag = "1")]
    value: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    kind: i32,
    #[prost(message, optional, tag = "3")]
    eds: Option<EdsClusterConfig>,
    #[prost(message, optional, tag = "4")]
    connect_timeout: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct EdsClusterConfig {
    #[prost(message, optional, tag = "1")]
    source: Option<ConfigSource>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigSource {
    #[prost(message, optional, tag = "3")]
    ads: Option<Empty>,
    #[prost(int32, tag = "6")]
    resource_api_version: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ClusterLoadAssignment {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    localities: Vec<LocalityLbEndpoints>,
    #[prost(message, optional, tag = "4")]
    policy: Option<Policy>,
}

#[derive(Clone, PartialEq, Message)]
struct LocalityLbEndpoints {
    #[prost(message, optional, tag = "1")]
    locality: Option<Locality>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<LbEndpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Locality {
    #[prost(string, tag = "1")]
    region: String,
    #[prost(string, tag = "2")]
    zone: String,
    #[prost(string, tag = "3")]
    sub_zone: String,
}

#[derive(Clone, PartialEq, Message)]
struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<Endpoint>,
    #[prost(int32, tag = "2")]
    health: i32,
    #[prost(message, optional, tag = "4")]
    weight: Option<UInt32Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, tag = "3")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Policy {
    #[prost(message, optional, tag = "3")]
    overprovisioning: Option<UInt32Value>,
}
