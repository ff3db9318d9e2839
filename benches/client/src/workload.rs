//! The resources that the server sends, and the revision that the watchers read from them.

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, HealthStatus, Locality, RoutingPriority,
    SocketAddress,
};
use envoy_types::pb::envoy::config::endpoint::v3::cluster_load_assignment::Policy;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};
use prost::Message;
use xds_proto::type_url;

/// A number of resources of one type, and a number of changes of single resources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    pub(crate) resources: usize,
    pub(crate) changes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every response has all resources, as the protocol requires for this type.
    Cluster,
    /// A response has the changed resources.
    LoadAssignment,
}

impl Workload {
    /// The command line of a process that has the same workload.
    pub(crate) fn arguments(&self) -> [String; 6] {
        let (resources, changes) = (self.resources.to_string(), self.changes.to_string());
        let type_name = self.kind.name().to_owned();
        ["--type".into(), type_name, "--resources".into(), resources, "--changes".into(), changes]
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        (0..self.resources).map(name)
    }

    /// The resource of a change: each time one far from the last.
    pub(crate) fn changed(&self, change: u32) -> usize {
        change as usize * 7919 % self.resources
    }

    /// The resource after its last change; revision zero is before all changes.
    pub(crate) fn resource(&self, index: usize, revision: u32) -> Bytes {
        match self.kind {
            Kind::Cluster => cluster(index, revision).encode_to_vec().into(),
            Kind::LoadAssignment => load_assignment(index, revision).encode_to_vec().into(),
        }
    }
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Cluster, Self::LoadAssignment];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::LoadAssignment => "load-assignment",
        }
    }

    pub(crate) fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => type_url::CLUSTER,
            Self::LoadAssignment => type_url::CLUSTER_LOAD_ASSIGNMENT,
        }
    }
}

/// The revision in a cluster.
pub(crate) fn cluster_revision(cluster: &Cluster) -> u32 {
    let nanos = cluster.connect_timeout.as_ref().map_or(0, |timeout| timeout.nanos);
    u32::try_from(nanos - FIRST_NANOS).expect("the timeout only grows")
}

/// The revision in an assignment.
pub(crate) fn load_assignment_revision(assignment: &ClusterLoadAssignment) -> u32 {
    let policy = assignment.policy.as_ref();
    policy.and_then(|policy| policy.overprovisioning_factor.as_ref()).map_or(0, |factor| factor.value)
        - FIRST_FACTOR
}

fn name(index: usize) -> String {
    format!("outbound|8080||service-{index:05}.default.svc.cluster.local")
}

fn cluster(index: usize, revision: u32) -> Cluster {
    let source = ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        ..ConfigSource::default()
    };
    let thresholds = |priority: RoutingPriority, limit| Thresholds {
        priority: priority.into(),
        max_connections: number(limit),
        max_pending_requests: number(limit),
        max_requests: number(limit * 4),
        max_retries: number(3),
        ..Thresholds::default()
    };
    Cluster {
        name: name(index),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(source), service_name: name(index) }),
        connect_timeout: Some(Duration { seconds: 1, nanos: FIRST_NANOS + revision as i32 }),
        per_connection_buffer_limit_bytes: number(32_768),
        lb_policy: LbPolicy::LeastRequest.into(),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![
                thresholds(RoutingPriority::Default, 1024),
                thresholds(RoutingPriority::High, 4096),
            ],
            ..CircuitBreakers::default()
        }),
        outlier_detection: Some(OutlierDetection {
            consecutive_5xx: number(5),
            interval: Some(Duration { seconds: 10, nanos: 0 }),
            base_ejection_time: Some(Duration { seconds: 30, nanos: 0 }),
            max_ejection_percent: number(10),
            ..OutlierDetection::default()
        }),
        ..Cluster::default()
    }
}

fn load_assignment(index: usize, revision: u32) -> ClusterLoadAssignment {
    let endpoint = |host: usize| {
        let socket = SocketAddress {
            address: format!("10.{}.{}.{host}", index >> 8 & 255, index & 255),
            port_specifier: Some(PortSpecifier::PortValue(8080)),
            ..SocketAddress::default()
        };
        let address = Address { address: Some(AddressKind::SocketAddress(socket)) };
        LbEndpoint {
            health_status: HealthStatus::Healthy.into(),
            load_balancing_weight: number(100),
            host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
                address: Some(address),
                ..Endpoint::default()
            })),
            ..LbEndpoint::default()
        }
    };
    let locality =
        Locality { region: "eu-central-1".into(), zone: "eu-central-1a".into(), sub_zone: "rack-7".into() };
    let endpoints = LocalityLbEndpoints {
        locality: Some(locality),
        lb_endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        load_balancing_weight: number(1),
        ..LocalityLbEndpoints::default()
    };
    let policy = Policy { overprovisioning_factor: number(FIRST_FACTOR + revision), ..Policy::default() };
    ClusterLoadAssignment {
        cluster_name: name(index),
        endpoints: vec![endpoints],
        policy: Some(policy),
        ..ClusterLoadAssignment::default()
    }
}

fn number(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

const ENDPOINTS: usize = 10;
const FIRST_NANOS: i32 = 250_000_000;
const FIRST_FACTOR: u32 = 140;
