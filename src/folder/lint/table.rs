//! Which fields of which messages name other resources, as data.

use xds_proto::type_url as url;

/// A message that names resources.
#[derive(Debug)]
pub(super) struct Naming {
    /// Its full name.
    pub(super) message: &'static str,
    /// The fields with the name, or names; the first that is set counts. Parts of a path are
    /// separated by dots.
    pub(super) names: &'static [&'static str],
    /// The field that says where to get it from; `None` where that is not said and clients know one
    /// place only.
    pub(super) source: Option<&'static str>,
    /// An enumeration that must have this value, or else nothing is named.
    pub(super) only_if: Option<(&'static str, i32)>,
    /// The type of what is named.
    pub(super) target: &'static str,
}

impl Naming {
    const fn cluster(message: &'static str, names: &'static [&'static str]) -> Self {
        Self { message, names, source: None, only_if: None, target: url::CLUSTER }
    }

    /// A filter or an extension whose configuration comes under its own name (ECDS).
    const fn extension(message: &'static str) -> Self {
        Self {
            message,
            names: &["name"],
            source: Some("config_discovery.config_source"),
            only_if: None,
            target: url::TYPED_EXTENSION_CONFIG,
        }
    }
}

/// The messages, by their types' order of use: listeners, routes, clusters.
pub(super) static NAMINGS: &[Naming] = &[
    Naming {
        message: "envoy.extensions.filters.network.http_connection_manager.v3.Rds",
        names: &["route_config_name"],
        source: Some("config_source"),
        only_if: None,
        target: url::ROUTE_CONFIGURATION,
    },
    Naming::extension("envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"),
    Naming::extension("envoy.config.listener.v3.Filter"),
    Naming::extension("envoy.config.listener.v3.ListenerFilter"),
    Naming {
        message: "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig",
        names: &["name"],
        source: Some("sds_config"),
        only_if: None,
        target: url::SECRET,
    },
    Naming::cluster("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", &["cluster"]),
    Naming::cluster(
        "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight",
        &["name"],
    ),
    Naming::cluster("envoy.extensions.filters.network.thrift_proxy.v3.RouteAction", &["cluster"]),
    Naming::cluster(
        "envoy.extensions.filters.network.thrift_proxy.v3.WeightedCluster.ClusterWeight",
        &["name"],
    ),
    Naming::cluster(
        "envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route",
        &["cluster"],
    ),
    Naming::cluster("envoy.extensions.filters.udp.udp_proxy.v3.Route", &["cluster"]),
    Naming::cluster("envoy.config.core.v3.GrpcService.EnvoyGrpc", &["cluster_name"]),
    Naming::cluster("envoy.config.core.v3.HttpUri", &["cluster"]),
    Naming {
        // The listener says where from, and that is where this came from.
        message: "envoy.config.route.v3.ScopedRouteConfiguration",
        names: &["route_configuration_name"],
        source: None,
        only_if: None,
        target: url::ROUTE_CONFIGURATION,
    },
    Naming::cluster("envoy.config.route.v3.RouteAction", &["cluster"]),
    Naming::cluster("envoy.config.route.v3.RouteAction.RequestMirrorPolicy", &["cluster"]),
    Naming::cluster("envoy.config.route.v3.WeightedCluster.ClusterWeight", &["name"]),
    Naming {
        message: "envoy.config.cluster.v3.Cluster",
        names: &["eds_cluster_config.service_name", "name"],
        source: Some("eds_cluster_config.eds_config"),
        only_if: Some(("type", DISCOVERY_TYPE_EDS)),
        target: url::CLUSTER_LOAD_ASSIGNMENT,
    },
    Naming::extension("envoy.config.cluster.v3.Filter"),
    Naming::cluster("envoy.extensions.clusters.aggregate.v3.ClusterConfig", &["clusters"]),
];

/// Types whose resources name nothing, and of which there are many.
pub(super) static NAMING_NOTHING: &[&str] =
    &[url::CLUSTER_LOAD_ASSIGNMENT, url::LB_ENDPOINT, url::SECRET, url::RUNTIME];

/// Messages that are not looked into: a source names the servers of a client's own bootstrap, and
/// metadata is for whoever reads it.
pub(super) static CLOSED: &[&str] =
    &["envoy.config.core.v3.ConfigSource", "envoy.config.core.v3.Metadata", "google.protobuf.Struct"];

/// `EDS` in `envoy.config.cluster.v3.Cluster.DiscoveryType`.
const DISCOVERY_TYPE_EDS: i32 = 3;

#[cfg(test)]
mod tests {
    use prost_reflect::{Kind, MessageDescriptor};

    use super::*;
    use crate::folder::Descriptors;

    /// The kind of what a path leads to.
    fn kind(message: &MessageDescriptor, path: &str) -> Option<Kind> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
        match (message.get_field_by_name(first)?.kind(), rest) {
            (kind, None) => Some(kind),
            (Kind::Message(inner), Some(rest)) => kind(&inner, rest),
            _ => None,
        }
    }

    #[test]
    fn envoy_has_every_message_and_field_of_the_table() {
        let descriptors = Descriptors::envoy();
        for naming in NAMINGS {
            let message = descriptors.builtin(naming.message);
            for name in naming.names {
                assert_eq!(kind(&message, name), Some(Kind::String), "{naming:?}");
            }
            if let Some(source) = naming.source {
                let Some(Kind::Message(source)) = kind(&message, source) else { panic!("{naming:?}") };
                assert_eq!(source.full_name(), "envoy.config.core.v3.ConfigSource", "{naming:?}");
            }
            if let Some((field, number)) = naming.only_if {
                let Some(Kind::Enum(enumeration)) = kind(&message, field) else { panic!("{naming:?}") };
                assert!(enumeration.get_value(number).is_some(), "{naming:?}");
            }
        }
        for message in CLOSED {
            descriptors.builtin(message);
        }
    }
}
