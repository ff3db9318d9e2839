//! The table of message fields that name other resources.

use xds_proto::type_url as url;

/// A message with fields that name resources.
#[derive(Debug)]
pub(super) struct Naming {
    /// The full name of the message.
    pub(super) message: &'static str,
    /// The paths of the fields with the name or names; the first field that is set counts. Dots
    /// separate the parts of a path.
    pub(super) names: &'static [&'static str],
    /// The field with the config source of the resource; `None` if the message has none.
    pub(super) source: Option<&'static str>,
    /// An enumeration field that must have this value; otherwise the message names nothing.
    pub(super) only_if: Option<(&'static str, i32)>,
    /// The type of the named resource.
    pub(super) target: &'static str,
}

impl Naming {
    const fn cluster(message: &'static str, names: &'static [&'static str]) -> Self {
        Self { message, names, source: None, only_if: None, target: url::CLUSTER }
    }

    /// A filter or an extension whose configuration is a resource of the same name (ECDS).
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

/// The messages, in the order of the types that use them: listeners, routes, clusters.
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
        // The listener has the config source, and this resource came from it.
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

/// Types whose resources name nothing. They are skipped, because there are many of them.
pub(super) static NAMING_NOTHING: &[&str] =
    &[url::CLUSTER_LOAD_ASSIGNMENT, url::LB_ENDPOINT, url::SECRET, url::RUNTIME];

/// Messages that are not searched. A config source names servers of the client's bootstrap, and
/// metadata has no references.
pub(super) static CLOSED: &[&str] =
    &["envoy.config.core.v3.ConfigSource", "envoy.config.core.v3.Metadata", "google.protobuf.Struct"];

/// `EDS` in `envoy.config.cluster.v3.Cluster.DiscoveryType`.
const DISCOVERY_TYPE_EDS: i32 = 3;

#[cfg(test)]
mod tests {
    use prost_reflect::{Kind, MessageDescriptor};

    use super::*;
    use crate::folder::Descriptors;

    /// The kind of the field at a path.
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
