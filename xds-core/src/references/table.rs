//! The fields that name other resources, by message, with their numbers and names in Envoy's API.

use super::Target;

/// The fields of a message that lead to names, each with its number, name and content. All other fields
/// are skipped. The value of an entry of a map has no name of its own.
pub(super) type Shape = [(u32, &'static str, Field)];

/// The content of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    /// The name of a resource, or several.
    Name(Target),
    /// A message, or several; of a map, the entries.
    Message(&'static Shape),
    /// A `google.protobuf.Any`, whose message is read if [`extension`] knows its type.
    Any,
    /// When this field is set, field 1 of the same message is the name of the resource.
    Own(Target, &'static Shape, Source),
    /// When this field is set, any resource of the type may be used.
    AnyOf(Target),
    /// The same, and all of them come from this source (S34b).
    AllFrom(Target, Source),
}

/// Where a field has the `ConfigSource` that a resource comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// The field is it.
    Field,
    /// This field of the message in it.
    Inner(u32),
}

use Field::{AllFrom, Any, AnyOf, Message, Name, Own};
use Target::{Assignment, Cluster, Endpoint, Extension, Routes, Scope, Secret, VirtualHost};

/// The fields of a resource of this type; `None` for types whose resources name nothing.
pub(super) fn resource(target: Target) -> Option<&'static Shape> {
    match target {
        Target::Listener => Some(LISTENER),
        Routes => Some(ROUTES),
        Scope => Some(SCOPE),
        VirtualHost => Some(VIRTUAL_HOST),
        Cluster => Some(CLUSTER),
        Assignment => Some(ASSIGNMENT),
        Extension => Some(TYPED_CONFIG),
        Endpoint | Secret | Target::Runtime => None,
    }
}

/// The fields of a message in an `Any`; `None` when the table does not know the message.
pub(super) fn extension(message_name: &str) -> Option<&'static Shape> {
    let name = message_name.strip_prefix("envoy.extensions.").unwrap_or(message_name);
    if let Ok(at) = EXTENSIONS.binary_search_by(|(known, _)| (*known).cmp(name)) {
        return Some(EXTENSIONS[at].1);
    }
    NAMING_NOTHING.binary_search(&name).is_ok().then_some(&[])
}

/// The fields of all messages in an `Any` that the table knows.
pub(super) fn extensions() -> impl Iterator<Item = &'static Shape> {
    EXTENSIONS.iter().map(|(_, shape)| *shape)
}

static LISTENER: &Shape = &[
    (3, "filter_chains", Message(FILTER_CHAIN)),
    (
        9,
        "listener_filters",
        Message(&[
            (3, "typed_config", Any),
            (5, "config_discovery", Own(Extension, DISCOVERY, EXTENSION_SOURCE)),
        ]),
    ),
    (19, "api_listener", Message(&[(1, "api_listener", Any)])),
    (22, "access_log", Message(ACCESS_LOG)),
    (25, "default_filter_chain", Message(FILTER_CHAIN)),
    // Filter chains from elsewhere (FCDS).
    (36, "fcds_config", AnyOf(Cluster)),
    (36, "fcds_config", AnyOf(Routes)),
    (36, "fcds_config", AnyOf(Scope)),
    (36, "fcds_config", AnyOf(Secret)),
    (36, "fcds_config", AnyOf(Extension)),
];

static FILTER_CHAIN: &Shape =
    &[(3, "filters", Message(FILTER)), (6, "transport_socket", Message(TRANSPORT_SOCKET))];

/// A filter of a listener or of a connection manager. Its content is here or comes by ECDS.
static FILTER: &Shape =
    &[(4, "typed_config", Any), (5, "config_discovery", Own(Extension, DISCOVERY, EXTENSION_SOURCE))];

/// `config_source` in `envoy.config.core.v3.ExtensionConfigSource`.
const EXTENSION_SOURCE: Source = Source::Inner(1);

static DISCOVERY: &Shape = &[(2, "default_config", Any)];

static TRANSPORT_SOCKET: &Shape = &[(3, "typed_config", Any)];

static WRAPPED_SOCKET: &Shape = &[(1, "transport_socket", Message(TRANSPORT_SOCKET))];

static TYPED_CONFIG: &Shape = &[(2, "typed_config", Any)];

static ACCESS_LOG: &Shape = &[(4, "typed_config", Any)];

/// A map of `Any`s, as in `typed_per_filter_config`.
static ANY_ENTRY: &Shape = &[(2, "", Any)];

static HTTP_CONNECTION_MANAGER: &Shape = &[
    (3, "rds", Message(&[(2, "route_config_name", Name(Routes))])),
    (4, "route_config", Message(ROUTES)),
    (5, "http_filters", Message(FILTER)),
    (7, "tracing", Message(&[(9, "provider", Message(&[(3, "typed_config", Any)]))])),
    (13, "access_log", Message(ACCESS_LOG)),
    (23, "upgrade_configs", Message(&[(2, "filters", Message(FILTER))])),
    (
        31,
        "scoped_routes",
        Message(&[
            (
                4,
                "scoped_route_configurations_list",
                Message(&[(1, "scoped_route_configurations", Message(SCOPE))]),
            ),
            (5, "scoped_rds", AllFrom(Scope, Source::Inner(1))),
        ]),
    ),
];

static ROUTES: &Shape = &[
    (2, "virtual_hosts", Message(VIRTUAL_HOST)),
    (9, "vhds", AnyOf(VirtualHost)),
    (12, "cluster_specifier_plugins", Message(&[(1, "extension", Message(TYPED_CONFIG))])),
    (13, "request_mirror_policies", Message(MIRROR)),
    (16, "typed_per_filter_config", Message(ANY_ENTRY)),
    (19, "route_specifiers", Message(TYPED_CONFIG)),
];

static VIRTUAL_HOST: &Shape = &[
    (3, "routes", Message(ROUTE)),
    (15, "typed_per_filter_config", Message(ANY_ENTRY)),
    (21, "matcher", Message(MATCHER)),
    (22, "request_mirror_policies", Message(MIRROR)),
    (26, "route_specifiers", Message(TYPED_CONFIG)),
];

static ROUTE: &Shape = &[
    (2, "route", Message(ROUTE_ACTION)),
    (13, "typed_per_filter_config", Message(ANY_ENTRY)),
    (17, "filter_action", Message(&[(1, "action", Any)])),
    (21, "route_specifiers", Message(TYPED_CONFIG)),
];

static ROUTE_ACTION: &Shape = &[
    (1, "cluster", Name(Cluster)),
    (2, "cluster_header", AnyOf(Cluster)),
    (3, "weighted_clusters", Message(&[(1, "clusters", Message(WEIGHTED))])),
    (30, "request_mirror_policies", Message(MIRROR)),
    (39, "inline_cluster_specifier_plugin", Message(&[(1, "extension", Message(TYPED_CONFIG))])),
];

static WEIGHTED: &Shape = &[
    (1, "name", Name(Cluster)),
    (10, "typed_per_filter_config", Message(ANY_ENTRY)),
    (12, "cluster_header", AnyOf(Cluster)),
];

static MIRROR: &Shape = &[(1, "cluster", Name(Cluster)), (5, "cluster_header", AnyOf(Cluster))];

static SCOPE: &Shape =
    &[(2, "route_configuration_name", Name(Routes)), (5, "route_configuration", Message(ROUTES))];

/// The assignment is not in this table: `endpoints_of` reads it, because its name may be that of
/// the cluster.
static CLUSTER: &Shape = &[
    (24, "transport_socket", Message(TRANSPORT_SOCKET)),
    (36, "typed_extension_protocol_options", Message(ANY_ENTRY)),
    (38, "cluster_type", Message(TYPED_CONFIG)),
    (
        40,
        "filters",
        Message(&[
            (2, "typed_config", Any),
            (3, "config_discovery", Own(Extension, DISCOVERY, EXTENSION_SOURCE)),
        ]),
    ),
    (43, "transport_socket_matches", Message(&[(3, "transport_socket", Message(TRANSPORT_SOCKET))])),
];

static ASSIGNMENT: &Shape =
    &[(2, "endpoints", Message(&[(8, "leds_cluster_locality_config", AnyOf(Endpoint))]))];

static MATCHER: &Shape = &[
    (1, "matcher_list", Message(&[(1, "matchers", Message(&[(2, "on_match", Message(&ON_MATCH))]))])),
    (
        2,
        "matcher_tree",
        Message(&[
            (2, "exact_match_map", Message(MATCH_MAP)),
            (3, "prefix_match_map", Message(MATCH_MAP)),
            (4, "custom_match", Message(TYPED_CONFIG)),
        ]),
    ),
    (3, "on_no_match", Message(&ON_MATCH)),
];

static MATCH_MAP: &Shape = &[(1, "map", Message(&[(2, "", Message(&ON_MATCH))]))];

static ON_MATCH: [(u32, &str, Field); 2] =
    [(1, "matcher", Message(MATCHER)), (2, "action", Message(TYPED_CONFIG))];

/// Without a source, the secret is one of the bootstrap of the client.
static SDS: &Shape = &[(2, "sds_config", Own(Secret, &[], Source::Field))];

static UPSTREAM_TLS: &Shape = &[(1, "common_tls_context", Message(COMMON_TLS))];

static DOWNSTREAM_TLS: &Shape = &[
    (1, "common_tls_context", Message(COMMON_TLS)),
    (5, "session_ticket_keys_sds_secret_config", Message(SDS)),
];

static COMMON_TLS: &Shape = &[
    (6, "tls_certificate_sds_secret_configs", Message(SDS)),
    (7, "validation_context_sds_secret_config", Message(SDS)),
    (8, "combined_validation_context", Message(&[(2, "validation_context_sds_secret_config", Message(SDS))])),
    (16, "custom_tls_certificate_selector", Message(TYPED_CONFIG)),
];

static GRPC_SERVICE: &Shape = &[(1, "envoy_grpc", Message(&[(1, "cluster_name", Name(Cluster))]))];

static HTTP_URI: &Shape = &[(2, "cluster", Name(Cluster))];

static HTTP_SERVICE: &Shape = &[(1, "http_uri", Message(HTTP_URI))];

/// Of the filter `ext_authz`, which has a message of its own.
static AUTHORIZATION_SERVICE: &Shape = &[(1, "server_uri", Message(HTTP_URI))];

static RATE_LIMIT_SERVICE: &Shape = &[(2, "grpc_service", Message(GRPC_SERVICE))];

static COMMON_GRPC_LOG: &Shape = &[(2, "grpc_service", Message(GRPC_SERVICE))];

static COMPOSITE_CHAIN: &Shape = &[(1, "typed_config", Message(TYPED_CONFIG))];

static CREDENTIALS: &Shape = &[(2, "token_secret", Message(SDS)), (3, "hmac_secret", Message(SDS))];

static REDIS_ROUTE: &Shape =
    &[(3, "cluster", Name(Cluster)), (4, "request_mirror_policy", Message(&[(1, "cluster", Name(Cluster))]))];

static COLLECTOR: &Shape = &[(1, "collector_cluster", Name(Cluster))];

/// A message whose first field is a cluster by the name `cluster`.
static CLUSTER_FIELD: &Shape = &[(1, "cluster", Name(Cluster))];

/// A message whose first field is a cluster by the name `name`.
static CLUSTER_NAME: &Shape = &[(1, "name", Name(Cluster))];

/// The messages in an `Any` that may name resources, sorted by name. For those of
/// `envoy.extensions` the name leaves out this prefix.
static EXTENSIONS: &[(&str, &Shape)] = &[
    ("access_loggers.fluentd.v3.FluentdAccessLogConfig", CLUSTER_FIELD),
    ("access_loggers.grpc.v3.HttpGrpcAccessLogConfig", &[(1, "common_config", Message(COMMON_GRPC_LOG))]),
    ("access_loggers.grpc.v3.TcpGrpcAccessLogConfig", &[(1, "common_config", Message(COMMON_GRPC_LOG))]),
    (
        "access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        &[
            (1, "common_config", Message(COMMON_GRPC_LOG)),
            (8, "http_service", Message(HTTP_SERVICE)),
            (9, "grpc_service", Message(GRPC_SERVICE)),
        ],
    ),
    ("clusters.aggregate.v3.ClusterConfig", &[(1, "clusters", Name(Cluster))]),
    ("clusters.composite.v3.ClusterConfig", &[(1, "clusters", Message(CLUSTER_NAME))]),
    (
        "common.matching.v3.ExtensionWithMatcher",
        &[
            (1, "matcher", Message(MATCHER)),
            (2, "extension_config", Message(TYPED_CONFIG)),
            (3, "xds_matcher", Message(MATCHER)),
        ],
    ),
    ("common.matching.v3.ExtensionWithMatcherPerRoute", &[(1, "xds_matcher", Message(MATCHER))]),
    ("envoy.config.route.v3.FilterConfig", &[(1, "config", Any)]),
    ("envoy.config.route.v3.Route", ROUTE),
    ("envoy.config.route.v3.RouteList", &[(1, "routes", Message(ROUTE))]),
    ("envoy.config.trace.v3.DatadogConfig", COLLECTOR),
    (
        "envoy.config.trace.v3.OpenTelemetryConfig",
        &[(1, "grpc_service", Message(GRPC_SERVICE)), (3, "http_service", Message(HTTP_SERVICE))],
    ),
    ("envoy.config.trace.v3.SkyWalkingConfig", &[(1, "grpc_service", Message(GRPC_SERVICE))]),
    (
        "envoy.config.trace.v3.ZipkinConfig",
        &[(1, "collector_cluster", Name(Cluster)), (9, "collector_service", Message(HTTP_SERVICE))],
    ),
    (
        "filters.http.composite.v3.Composite",
        &[
            (1, "named_filter_chains", Message(&[(2, "", Message(COMPOSITE_CHAIN))])),
            (2, "matcher", Message(MATCHER)),
        ],
    ),
    ("filters.http.composite.v3.CompositePerRoute", &[(1, "matcher", Message(MATCHER))]),
    (
        "filters.http.composite.v3.ExecuteFilterAction",
        &[
            (1, "typed_config", Message(TYPED_CONFIG)),
            (
                2,
                "dynamic_config",
                Message(&[(2, "config_discovery", Own(Extension, DISCOVERY, EXTENSION_SOURCE))]),
            ),
            (4, "filter_chain", Message(COMPOSITE_CHAIN)),
        ],
    ),
    ("filters.http.credential_injector.v3.CredentialInjector", &[(3, "credential", Message(TYPED_CONFIG))]),
    (
        "filters.http.ext_authz.v3.ExtAuthz",
        &[(1, "grpc_service", Message(GRPC_SERVICE)), (3, "http_service", Message(AUTHORIZATION_SERVICE))],
    ),
    (
        "filters.http.ext_authz.v3.ExtAuthzPerRoute",
        &[(
            2,
            "check_settings",
            Message(&[
                (4, "grpc_service", Message(GRPC_SERVICE)),
                (5, "http_service", Message(AUTHORIZATION_SERVICE)),
            ]),
        )],
    ),
    (
        "filters.http.ext_proc.v3.ExtProcPerRoute",
        &[(2, "overrides", Message(&[(5, "grpc_service", Message(GRPC_SERVICE))]))],
    ),
    (
        "filters.http.ext_proc.v3.ExternalProcessor",
        &[
            (1, "grpc_service", Message(GRPC_SERVICE)),
            (20, "http_service", Message(&[(1, "http_service", Message(HTTP_SERVICE))])),
        ],
    ),
    (
        "filters.http.gcp_authn.v3.GcpAuthnFilterConfig",
        &[(1, "http_uri", Message(HTTP_URI)), (5, "cluster", Name(Cluster))],
    ),
    (
        "filters.http.jwt_authn.v3.JwtAuthentication",
        &[(1, "providers", Message(&[(2, "", Message(JWT_PROVIDER))]))],
    ),
    (
        "filters.http.oauth2.v3.OAuth2",
        &[(
            1,
            "config",
            Message(&[(1, "token_endpoint", Message(HTTP_URI)), (3, "credentials", Message(CREDENTIALS))]),
        )],
    ),
    ("filters.http.ratelimit.v3.RateLimit", &[(7, "rate_limit_service", Message(RATE_LIMIT_SERVICE))]),
    (
        "filters.http.router.v3.Router",
        &[(3, "upstream_log", Message(ACCESS_LOG)), (8, "upstream_http_filters", Message(FILTER))],
    ),
    ("filters.network.ext_authz.v3.ExtAuthz", &[(2, "grpc_service", Message(GRPC_SERVICE))]),
    ("filters.network.ext_proc.v3.NetworkExternalProcessor", &[(1, "grpc_service", Message(GRPC_SERVICE))]),
    (
        "filters.network.http_connection_manager.v3.EnvoyMobileHttpConnectionManager",
        &[(1, "config", Message(HTTP_CONNECTION_MANAGER))],
    ),
    ("filters.network.http_connection_manager.v3.HttpConnectionManager", HTTP_CONNECTION_MANAGER),
    ("filters.network.ratelimit.v3.RateLimit", &[(6, "rate_limit_service", Message(RATE_LIMIT_SERVICE))]),
    (
        "filters.network.redis_proxy.v3.RedisProxy",
        &[
            (
                5,
                "prefix_routes",
                Message(&[(1, "routes", Message(REDIS_ROUTE)), (4, "catch_all_route", Message(REDIS_ROUTE))]),
            ),
            (10, "external_auth_provider", Message(&[(1, "grpc_service", Message(GRPC_SERVICE))])),
        ],
    ),
    (
        "filters.network.tcp_proxy.v3.TcpProxy",
        &[
            (2, "cluster", Name(Cluster)),
            (5, "access_log", Message(ACCESS_LOG)),
            (10, "weighted_clusters", Message(&[(1, "clusters", Message(CLUSTER_NAME))])),
            (14, "on_demand", AnyOf(Cluster)),
        ],
    ),
    ("filters.udp.udp_proxy.v3.Route", CLUSTER_FIELD),
    (
        "filters.udp.udp_proxy.v3.UdpProxyConfig",
        &[
            (2, "cluster", Name(Cluster)),
            (8, "access_log", Message(ACCESS_LOG)),
            (9, "matcher", Message(MATCHER)),
            (10, "proxy_access_log", Message(ACCESS_LOG)),
            (
                11,
                "session_filters",
                Message(&[
                    (2, "typed_config", Any),
                    (3, "config_discovery", Own(Extension, DISCOVERY, EXTENSION_SOURCE)),
                ]),
            ),
        ],
    ),
    ("http.injected_credentials.generic.v3.Generic", &[(1, "credential", Message(SDS))]),
    ("router.cluster_specifiers.matcher.v3.ClusterAction", CLUSTER_FIELD),
    (
        "router.cluster_specifiers.matcher.v3.MatcherClusterSpecifier",
        &[(1, "cluster_matcher", Message(MATCHER))],
    ),
    ("transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport", WRAPPED_SOCKET),
    (
        "transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
        &[(3, "transport_socket", Message(TRANSPORT_SOCKET))],
    ),
    (
        "transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport",
        &[(2, "transport_socket", Message(TRANSPORT_SOCKET))],
    ),
    (
        "transport_sockets.quic.v3.QuicDownstreamTransport",
        &[(1, "downstream_tls_context", Message(DOWNSTREAM_TLS))],
    ),
    (
        "transport_sockets.quic.v3.QuicUpstreamTransport",
        &[(1, "upstream_tls_context", Message(UPSTREAM_TLS))],
    ),
    ("transport_sockets.starttls.v3.StartTlsConfig", &[(2, "tls_socket_config", Message(DOWNSTREAM_TLS))]),
    (
        "transport_sockets.starttls.v3.UpstreamStartTlsConfig",
        &[(2, "tls_socket_config", Message(UPSTREAM_TLS))],
    ),
    ("transport_sockets.tcp_stats.v3.Config", WRAPPED_SOCKET),
    ("transport_sockets.tls.v3.DownstreamTlsContext", DOWNSTREAM_TLS),
    ("transport_sockets.tls.v3.UpstreamTlsContext", UPSTREAM_TLS),
    (
        "upstreams.http.v3.HttpProtocolOptions",
        &[(6, "http_filters", Message(FILTER)), (9, "request_mirror_policies", Message(MIRROR))],
    ),
];

static JWT_PROVIDER: &Shape = &[(3, "remote_jwks", Message(&[(1, "http_uri", Message(HTTP_URI))]))];

/// The messages in an `Any` that name nothing, sorted by name. A message is not in this list if it
/// chooses clusters by a program or by data of a connection.
static NAMING_NOTHING: &[&str] = &[
    "access_loggers.file.v3.FileAccessLog",
    "access_loggers.stream.v3.StderrAccessLog",
    "access_loggers.stream.v3.StdoutAccessLog",
    "clusters.dns.v3.DnsCluster",
    "clusters.dynamic_forward_proxy.v3.ClusterConfig",
    "clusters.original_dst.v3.OriginalDstCluster",
    "clusters.redis.v3.RedisClusterConfig",
    "filters.common.matcher.action.v3.SkipFilter",
    "filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
    "filters.http.admission_control.v3.AdmissionControl",
    "filters.http.alternate_protocols_cache.v3.FilterConfig",
    "filters.http.api_key_auth.v3.ApiKeyAuth",
    "filters.http.api_key_auth.v3.ApiKeyAuthPerRoute",
    "filters.http.bandwidth_limit.v3.BandwidthLimit",
    "filters.http.basic_auth.v3.BasicAuth",
    "filters.http.basic_auth.v3.BasicAuthPerRoute",
    "filters.http.buffer.v3.Buffer",
    "filters.http.buffer.v3.BufferPerRoute",
    "filters.http.cache.v3.CacheConfig",
    "filters.http.cdn_loop.v3.CdnLoopConfig",
    "filters.http.compressor.v3.Compressor",
    "filters.http.compressor.v3.CompressorPerRoute",
    "filters.http.connect_grpc_bridge.v3.FilterConfig",
    "filters.http.cors.v3.Cors",
    "filters.http.cors.v3.CorsPolicy",
    "filters.http.csrf.v3.CsrfPolicy",
    "filters.http.decompressor.v3.Decompressor",
    "filters.http.fault.v3.HTTPFault",
    "filters.http.grpc_field_extraction.v3.GrpcFieldExtractionConfig",
    "filters.http.grpc_http1_bridge.v3.Config",
    "filters.http.grpc_http1_reverse_bridge.v3.FilterConfig",
    "filters.http.grpc_http1_reverse_bridge.v3.FilterConfigPerRoute",
    "filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder",
    "filters.http.grpc_stats.v3.FilterConfig",
    "filters.http.grpc_web.v3.GrpcWeb",
    "filters.http.header_mutation.v3.HeaderMutation",
    "filters.http.header_mutation.v3.HeaderMutationPerRoute",
    "filters.http.header_to_metadata.v3.Config",
    "filters.http.ip_tagging.v3.IPTagging",
    "filters.http.json_to_metadata.v3.JsonToMetadata",
    "filters.http.jwt_authn.v3.PerRouteConfig",
    "filters.http.kill_request.v3.KillRequest",
    "filters.http.local_ratelimit.v3.LocalRateLimit",
    "filters.http.original_src.v3.OriginalSrc",
    "filters.http.ratelimit.v3.RateLimitPerRoute",
    "filters.http.rbac.v3.RBAC",
    "filters.http.rbac.v3.RBACPerRoute",
    "filters.http.set_metadata.v3.Config",
    "filters.http.stateful_session.v3.StatefulSession",
    "filters.http.stateful_session.v3.StatefulSessionPerRoute",
    "filters.http.upstream_codec.v3.UpstreamCodec",
    "filters.listener.http_inspector.v3.HttpInspector",
    "filters.listener.local_ratelimit.v3.LocalRateLimit",
    "filters.listener.original_dst.v3.OriginalDst",
    "filters.listener.original_src.v3.OriginalSrc",
    "filters.listener.proxy_protocol.v3.ProxyProtocol",
    "filters.listener.tls_inspector.v3.TlsInspector",
    "filters.network.connection_limit.v3.ConnectionLimit",
    "filters.network.direct_response.v3.Config",
    "filters.network.echo.v3.Echo",
    "filters.network.local_ratelimit.v3.LocalRateLimit",
    "filters.network.mongo_proxy.v3.MongoProxy",
    "filters.network.rbac.v3.RBAC",
    "filters.network.redis_proxy.v3.RedisProtocolOptions",
    "filters.network.thrift_proxy.v3.ThriftProtocolOptions",
    "filters.network.zookeeper_proxy.v3.ZooKeeperProxy",
    "google.protobuf.Empty",
    "google.protobuf.StringValue",
    "transport_sockets.alts.v3.Alts",
    "transport_sockets.raw_buffer.v3.RawBuffer",
    "upstreams.http.generic.v3.GenericConnectionPoolProto",
    "upstreams.http.http.v3.HttpConnectionPoolProto",
    "upstreams.http.tcp.v3.TcpConnectionPoolProto",
    "upstreams.tcp.v3.TcpProtocolOptions",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_the_order_that_they_are_searched_by() {
        assert!(EXTENSIONS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(NAMING_NOTHING.is_sorted_by(|a, b| a < b));
        assert!(EXTENSIONS.iter().all(|(name, _)| NAMING_NOTHING.binary_search(name).is_err()));
    }
}
