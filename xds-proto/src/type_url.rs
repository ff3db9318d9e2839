//! Type URLs: how requests, responses and [`Any`](crate::Any) name the type of a resource.

/// Listeners, served by LDS.
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// Route configurations, served by RDS.
pub const ROUTE_CONFIGURATION: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// Scoped route configurations, served by SRDS.
pub const SCOPED_ROUTE_CONFIGURATION: &str =
    "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
/// Virtual hosts, served by VHDS.
pub const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
/// Clusters, served by CDS.
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// The endpoints of a cluster, served by EDS.
pub const CLUSTER_LOAD_ASSIGNMENT: &str =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Single endpoints, served by LEDS.
pub const LB_ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint";
/// Keys, certificates and validation contexts, served by SDS.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// Runtime layers, served by RTDS.
pub const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";
/// Configurations of single extensions, served by ECDS.
pub const TYPED_EXTENSION_CONFIG: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// [`Resource`](crate::envoy::service::discovery::v3::Resource), the wrapper around a payload.
/// State-of-the-world responses may hold it in place of the payload.
pub const RESOURCE: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
/// [`DiscoveryResponse`](crate::envoy::service::discovery::v3::DiscoveryResponse), which Envoy also
/// reads from files.
pub const DISCOVERY_RESPONSE: &str = "type.googleapis.com/envoy.service.discovery.v3.DiscoveryResponse";

#[cfg(test)]
mod tests {
    use prost::Name;

    use super::*;
    use crate::envoy::service::discovery::v3::{DiscoveryResponse, Resource};

    #[test]
    fn type_urls_of_declared_messages_are_those_of_the_messages() {
        assert_eq!(
            [RESOURCE, DISCOVERY_RESPONSE],
            [Resource::type_url().as_str(), DiscoveryResponse::type_url().as_str()]
        );
    }
}
