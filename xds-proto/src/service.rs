//! The discovery services: which service serves which type, and its methods; and CSDS.

use crate::type_url;

/// A service that serves one type; its streams are independent.
///
/// The path of a method on the wire is `/{service}/{method}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// The type it serves.
    pub type_url: &'static str,
    /// Full name, package included.
    pub service: &'static str,
    /// Method for streams in state-of-the-world form.
    pub sotw: Option<&'static str>,
    /// Method for streams in delta form.
    pub delta: Option<&'static str>,
    /// HTTP path that takes one `DiscoveryRequest` as JSON by POST, for polling clients.
    pub rest: Option<&'static str>,
}

/// All services that serve one type, a row per type.
pub const SERVICES: &[Service] = &[
    Service {
        type_url: type_url::LISTENER,
        service: "envoy.service.listener.v3.ListenerDiscoveryService",
        sotw: Some("StreamListeners"),
        delta: Some("DeltaListeners"),
        rest: Some("/v3/discovery:listeners"),
    },
    Service {
        type_url: type_url::ROUTE_CONFIGURATION,
        service: "envoy.service.route.v3.RouteDiscoveryService",
        sotw: Some("StreamRoutes"),
        delta: Some("DeltaRoutes"),
        rest: Some("/v3/discovery:routes"),
    },
    Service {
        type_url: type_url::SCOPED_ROUTE_CONFIGURATION,
        service: "envoy.service.route.v3.ScopedRoutesDiscoveryService",
        sotw: Some("StreamScopedRoutes"),
        delta: Some("DeltaScopedRoutes"),
        rest: Some("/v3/discovery:scoped-routes"),
    },
    Service {
        type_url: type_url::VIRTUAL_HOST,
        service: "envoy.service.route.v3.VirtualHostDiscoveryService",
        sotw: None,
        delta: Some("DeltaVirtualHosts"),
        rest: None,
    },
    Service {
        type_url: type_url::CLUSTER,
        service: "envoy.service.cluster.v3.ClusterDiscoveryService",
        sotw: Some("StreamClusters"),
        delta: Some("DeltaClusters"),
        rest: Some("/v3/discovery:clusters"),
    },
    Service {
        type_url: type_url::CLUSTER_LOAD_ASSIGNMENT,
        service: "envoy.service.endpoint.v3.EndpointDiscoveryService",
        sotw: Some("StreamEndpoints"),
        delta: Some("DeltaEndpoints"),
        rest: Some("/v3/discovery:endpoints"),
    },
    Service {
        type_url: type_url::LB_ENDPOINT,
        service: "envoy.service.endpoint.v3.LocalityEndpointDiscoveryService",
        sotw: None,
        delta: Some("DeltaLocalityEndpoints"),
        rest: None,
    },
    Service {
        type_url: type_url::SECRET,
        service: "envoy.service.secret.v3.SecretDiscoveryService",
        sotw: Some("StreamSecrets"),
        delta: Some("DeltaSecrets"),
        rest: Some("/v3/discovery:secrets"),
    },
    Service {
        type_url: type_url::RUNTIME,
        service: "envoy.service.runtime.v3.RuntimeDiscoveryService",
        sotw: Some("StreamRuntime"),
        delta: Some("DeltaRuntime"),
        rest: Some("/v3/discovery:runtime"),
    },
    Service {
        type_url: type_url::TYPED_EXTENSION_CONFIG,
        service: "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
        sotw: Some("StreamExtensionConfigs"),
        delta: Some("DeltaExtensionConfigs"),
        rest: Some("/v3/discovery:extension_configs"),
    },
];

/// Full name of the service that serves any number of types on one stream (ADS).
pub const ADS: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
/// Method of [`ADS`] for streams in state-of-the-world form.
pub const ADS_SOTW: &str = "StreamAggregatedResources";
/// Method of [`ADS`] for streams in delta form.
pub const ADS_DELTA: &str = "DeltaAggregatedResources";

/// Full name of the service that reports the resources of clients, and whether they ACKed them
/// (CSDS).
pub const CSDS: &str = "envoy.service.status.v3.ClientStatusDiscoveryService";
/// Method of [`CSDS`] that answers each request of a stream.
pub const CSDS_STREAM: &str = "StreamClientStatus";
/// Method of [`CSDS`] that answers once.
pub const CSDS_FETCH: &str = "FetchClientStatus";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::FILE_DESCRIPTOR_SET;

    /// Service, method, input type and whether both sides stream.
    type Method = (String, String, String, bool);

    const SOTW: &str = ".envoy.service.discovery.v3.DiscoveryRequest";
    const DELTA: &str = ".envoy.service.discovery.v3.DeltaDiscoveryRequest";
    const STATUS: &str = ".envoy.service.status.v3.ClientStatusRequest";

    fn declared() -> BTreeSet<Method> {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                methods.extend(service.method.iter().map(|method| {
                    assert_eq!(method.client_streaming(), method.server_streaming(), "{name}");
                    let streaming = method.client_streaming();
                    (name.clone(), method.name().to_owned(), method.input_type().to_owned(), streaming)
                }));
            }
        }
        methods
    }

    fn method(service: &str, method: &str, input: &str, streaming: bool) -> Method {
        (service.to_owned(), method.to_owned(), input.to_owned(), streaming)
    }

    #[test]
    fn the_tables_name_every_declared_method() {
        let mut tabled =
            BTreeSet::from([method(ADS, ADS_SOTW, SOTW, true), method(ADS, ADS_DELTA, DELTA, true)]);
        tabled.extend([method(CSDS, CSDS_STREAM, STATUS, true), method(CSDS, CSDS_FETCH, STATUS, false)]);
        for row in SERVICES {
            tabled.extend(row.sotw.map(|name| method(row.service, name, SOTW, true)));
            tabled.extend(row.delta.map(|name| method(row.service, name, DELTA, true)));
            // The unary method has no column: it is the stream's name with another verb, and what
            // REST polls.
            let fetch =
                row.sotw.filter(|_| row.rest.is_some()).map(|name| name.replacen("Stream", "Fetch", 1));
            tabled.extend(fetch.map(|name| method(row.service, &name, SOTW, false)));
        }
        assert_eq!(tabled, declared());
    }

    #[test]
    fn no_type_and_no_service_has_two_rows() {
        let types: BTreeSet<_> = SERVICES.iter().map(|row| row.type_url).collect();
        let services: BTreeSet<_> = SERVICES.iter().map(|row| row.service).collect();
        assert_eq!((types.len(), services.len()), (SERVICES.len(), SERVICES.len()));
    }
}
