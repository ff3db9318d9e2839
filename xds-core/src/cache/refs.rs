//! What the cache reads out of payloads at commit: the resource's own name and the resources it names.

use prost::Message;
use xds_proto::type_url;

use crate::name::{ResourceName, TypeUrl};

/// The name in field 1 of a payload; empty when it has none.
pub(crate) fn payload_name(payload: &[u8]) -> Result<String, ()> {
    Named::decode(payload).map(|message| message.name).map_err(|_| ())
}

/// The assignment that holds the endpoints of a cluster, for clusters that get them by EDS (S34).
pub(crate) fn endpoints_of(type_url: &TypeUrl, name: &ResourceName, payload: &[u8]) -> Option<ResourceName> {
    if type_url.as_str() != type_url::CLUSTER {
        return None;
    }
    let cluster = Cluster::decode(payload).ok()?;
    if cluster.discovery_type != Some(DISCOVERY_TYPE_EDS) {
        return None;
    }
    let service_name = cluster.eds_cluster_config.map(|config| config.service_name).unwrap_or_default();
    if service_name.is_empty() { Some(name.clone()) } else { Some(ResourceName::new(service_name)) }
}

/// The one field that the named types of the table have in common.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

/// The fields of `envoy.config.cluster.v3.Cluster` that say where its endpoints are.
#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(int32, optional, tag = "2")]
    discovery_type: Option<i32>,
    #[prost(message, optional, tag = "3")]
    eds_cluster_config: Option<EdsClusterConfig>,
}

/// The same of `envoy.config.cluster.v3.Cluster.EdsClusterConfig`.
#[derive(Clone, PartialEq, Message)]
struct EdsClusterConfig {
    #[prost(string, tag = "2")]
    service_name: String,
}

/// `EDS` in `envoy.config.cluster.v3.Cluster.DiscoveryType`.
const DISCOVERY_TYPE_EDS: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(discovery_type: i32, service_name: &str) -> Vec<u8> {
        let eds_cluster_config = Some(EdsClusterConfig { service_name: service_name.into() });
        Cluster { discovery_type: Some(discovery_type), eds_cluster_config }.encode_to_vec()
    }

    fn endpoints(payload: &[u8]) -> Option<String> {
        let found = endpoints_of(&type_url::CLUSTER.into(), &"c".into(), payload);
        found.map(|name| name.as_str().to_owned())
    }

    #[test]
    fn s34_an_eds_cluster_names_its_assignment_by_service_name_or_its_own() {
        assert_eq!(endpoints(&cluster(DISCOVERY_TYPE_EDS, "service")).as_deref(), Some("service"));
        assert_eq!(endpoints(&cluster(DISCOVERY_TYPE_EDS, "")).as_deref(), Some("c"));
        assert_eq!(endpoints(&cluster(0, "service")), None);
    }
}
