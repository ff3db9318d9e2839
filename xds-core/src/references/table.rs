//! The fields that name other resources, by message, with their numbers in Envoy's API.

use super::Target;

/// The fields of a message that lead to names, each with its content. All other fields are skipped.
pub(super) type Shape = [(u32, Field)];

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
    Own(Target, &'static Shape),
    /// When this field is set, any resource of the type may be used.
    AnyOf(Target),
}

use Field::{Any, AnyOf, Message, Name, Own};
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

static LISTENER: &Shape = &[
    (3, Message(FILTER_CHAIN)),
    (9, Message(&[(3, Any), (5, Own(Extension, DISCOVERY))])),
    (19, Message(&[(1, Any)])),
    (22, Message(ACCESS_LOG)),
    (25, Message(FILTER_CHAIN)),
    // Filter chains from elsewhere (FCDS).
    (36, AnyOf(Cluster)),
    (36, AnyOf(Routes)),
    (36, AnyOf(Scope)),
    (36, AnyOf(Secret)),
    (36, AnyOf(Extension)),
];

static FILTER_CHAIN: &Shape = &[(3, Message(FILTER)), (6, Message(TRANSPORT_SOCKET))];

/// A filter of a listener or of a connection manager. Its content is here or comes by ECDS.
static FILTER: &Shape = &[(4, Any), (5, Own(Extension, DISCOVERY))];

static DISCOVERY: &Shape = &[(2, Any)];

static TRANSPORT_SOCKET: &Shape = &[(3, Any)];

static WRAPPED_SOCKET: &Shape = &[(1, Message(TRANSPORT_SOCKET))];

static TYPED_CONFIG: &Shape = &[(2, Any)];

static ACCESS_LOG: &Shape = &[(4, Any)];

/// A map of `Any`s, as in `typed_per_filter_config`.
static ANY_ENTRY: &Shape = &[(2, Any)];

static HTTP_CONNECTION_MANAGER: &Shape = &[
    (3, Message(&[(2, Name(Routes))])),
    (4, Message(ROUTES)),
    (5, Message(FILTER)),
    (7, Message(&[(9, Message(&[(3, Any)]))])),
    (13, Message(ACCESS_LOG)),
    (23, Message(&[(2, Message(FILTER))])),
    (31, Message(&[(4, Message(&[(1, Message(SCOPE))])), (5, AnyOf(Scope))])),
];

static ROUTES: &Shape = &[
    (2, Message(VIRTUAL_HOST)),
    (9, AnyOf(VirtualHost)),
    (12, Message(&[(1, Message(TYPED_CONFIG))])),
    (13, Message(MIRROR)),
    (16, Message(ANY_ENTRY)),
    (19, Message(TYPED_CONFIG)),
];

static VIRTUAL_HOST: &Shape = &[
    (3, Message(ROUTE)),
    (15, Message(ANY_ENTRY)),
    (21, Message(MATCHER)),
    (22, Message(MIRROR)),
    (26, Message(TYPED_CONFIG)),
];

static ROUTE: &Shape = &[
    (2, Message(ROUTE_ACTION)),
    (13, Message(ANY_ENTRY)),
    (17, Message(&[(1, Any)])),
    (21, Message(TYPED_CONFIG)),
];

static ROUTE_ACTION: &Shape = &[
    (1, Name(Cluster)),
    (2, AnyOf(Cluster)),
    (3, Message(&[(1, Message(WEIGHTED))])),
    (30, Message(MIRROR)),
    (39, Message(&[(1, Message(TYPED_CONFIG))])),
];

static WEIGHTED: &Shape = &[(1, Name(Cluster)), (10, Message(ANY_ENTRY)), (12, AnyOf(Cluster))];

static MIRROR: &Shape = &[(1, Name(Cluster)), (5, AnyOf(Cluster))];

static SCOPE: &Shape = &[(2, Name(Routes)), (5, Message(ROUTES))];

/// The assignment is not in this table: `endpoints_of` reads it, because its name may be that of
/// the cluster.
static CLUSTER: &Shape = &[
    (24, Message(TRANSPORT_SOCKET)),
    (36, Message(ANY_ENTRY)),
    (38, Message(TYPED_CONFIG)),
    (40, Message(&[(2, Any), (3, Own(Extension, DISCOVERY))])),
    (43, Message(&[(3, Message(TRANSPORT_SOCKET))])),
];

static ASSIGNMENT: &Shape = &[(2, Message(&[(8, AnyOf(Endpoint))]))];

static MATCHER: &Shape = &[
    (1, Message(&[(1, Message(&[(2, Message(&ON_MATCH))]))])),
    (2, Message(&[(2, Message(MATCH_MAP)), (3, Message(MATCH_MAP)), (4, Message(TYPED_CONFIG))])),
    (3, Message(&ON_MATCH)),
];

static MATCH_MAP: &Shape = &[(1, Message(&[(2, Message(&ON_MATCH))]))];

static ON_MATCH: [(u32, Field); 2] = [(1, Message(MATCHER)), (2, Message(TYPED_CONFIG))];

static SDS: &Shape = &[(1, Name(Secret))];

static UPSTREAM_TLS: &Shape = &[(1, Message(COMMON_TLS))];

static DOWNSTREAM_TLS: &Shape = &[(1, Message(COMMON_TLS)), (5, Message(SDS))];

static COMMON_TLS: &Shape =
    &[(6, Message(SDS)), (7, Message(SDS)), (8, Message(&[(2, Message(SDS))])), (16, Message(TYPED_CONFIG))];

static GRPC_SERVICE: &Shape = &[(1, Message(&[(1, Name(Cluster))]))];

static HTTP_URI: &Shape = &[(2, Name(Cluster))];

static HTTP_SERVICE: &Shape = &[(1, Message(HTTP_URI))];

static RATE_LIMIT_SERVICE: &Shape = &[(2, Message(GRPC_SERVICE))];

static COMMON_GRPC_LOG: &Shape = &[(2, Message(GRPC_SERVICE))];

static COMPOSITE_CHAIN: &Shape = &[(1, Message(TYPED_CONFIG))];

static CREDENTIALS: &Shape = &[(2, Message(SDS)), (3, Message(SDS))];

static REDIS_ROUTE: &Shape = &[(3, Name(Cluster)), (4, Message(&[(1, Name(Cluster))]))];

static COLLECTOR: &Shape = &[(1, Name(Cluster))];

/// The messages in an `Any` that may name resources, sorted by name. For those of
/// `envoy.extensions` the name leaves out this prefix.
static EXTENSIONS: &[(&str, &Shape)] = &[
    ("access_loggers.fluentd.v3.FluentdAccessLogConfig", COLLECTOR),
    ("access_loggers.grpc.v3.HttpGrpcAccessLogConfig", &[(1, Message(COMMON_GRPC_LOG))]),
    ("access_loggers.grpc.v3.TcpGrpcAccessLogConfig", &[(1, Message(COMMON_GRPC_LOG))]),
    (
        "access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        &[(1, Message(COMMON_GRPC_LOG)), (8, Message(HTTP_SERVICE)), (9, Message(GRPC_SERVICE))],
    ),
    ("clusters.aggregate.v3.ClusterConfig", &[(1, Name(Cluster))]),
    ("clusters.composite.v3.ClusterConfig", &[(1, Message(COLLECTOR))]),
    (
        "common.matching.v3.ExtensionWithMatcher",
        &[(1, Message(MATCHER)), (2, Message(TYPED_CONFIG)), (3, Message(MATCHER))],
    ),
    ("common.matching.v3.ExtensionWithMatcherPerRoute", &[(1, Message(MATCHER))]),
    ("envoy.config.route.v3.FilterConfig", &[(1, Any)]),
    ("envoy.config.route.v3.Route", ROUTE),
    ("envoy.config.route.v3.RouteList", &[(1, Message(ROUTE))]),
    ("envoy.config.trace.v3.DatadogConfig", COLLECTOR),
    ("envoy.config.trace.v3.OpenTelemetryConfig", &[(1, Message(GRPC_SERVICE)), (3, Message(HTTP_SERVICE))]),
    ("envoy.config.trace.v3.SkyWalkingConfig", &[(1, Message(GRPC_SERVICE))]),
    ("envoy.config.trace.v3.ZipkinConfig", &[(1, Name(Cluster)), (9, Message(HTTP_SERVICE))]),
    (
        "filters.http.composite.v3.Composite",
        &[(1, Message(&[(2, Message(COMPOSITE_CHAIN))])), (2, Message(MATCHER))],
    ),
    ("filters.http.composite.v3.CompositePerRoute", &[(1, Message(MATCHER))]),
    (
        "filters.http.composite.v3.ExecuteFilterAction",
        &[
            (1, Message(TYPED_CONFIG)),
            (2, Message(&[(2, Own(Extension, DISCOVERY))])),
            (4, Message(COMPOSITE_CHAIN)),
        ],
    ),
    ("filters.http.credential_injector.v3.CredentialInjector", &[(3, Message(TYPED_CONFIG))]),
    ("filters.http.ext_authz.v3.ExtAuthz", &[(1, Message(GRPC_SERVICE)), (3, Message(HTTP_SERVICE))]),
    (
        "filters.http.ext_authz.v3.ExtAuthzPerRoute",
        &[(2, Message(&[(4, Message(GRPC_SERVICE)), (5, Message(HTTP_SERVICE))]))],
    ),
    ("filters.http.ext_proc.v3.ExtProcPerRoute", &[(2, Message(&[(5, Message(GRPC_SERVICE))]))]),
    (
        "filters.http.ext_proc.v3.ExternalProcessor",
        &[(1, Message(GRPC_SERVICE)), (20, Message(&[(1, Message(HTTP_SERVICE))]))],
    ),
    ("filters.http.gcp_authn.v3.GcpAuthnFilterConfig", &[(1, Message(HTTP_URI)), (5, Name(Cluster))]),
    ("filters.http.jwt_authn.v3.JwtAuthentication", &[(1, Message(&[(2, Message(JWT_PROVIDER))]))]),
    ("filters.http.oauth2.v3.OAuth2", &[(1, Message(&[(1, Message(HTTP_URI)), (3, Message(CREDENTIALS))]))]),
    ("filters.http.ratelimit.v3.RateLimit", &[(7, Message(RATE_LIMIT_SERVICE))]),
    ("filters.http.router.v3.Router", &[(3, Message(ACCESS_LOG)), (8, Message(FILTER))]),
    ("filters.network.ext_authz.v3.ExtAuthz", &[(2, Message(GRPC_SERVICE))]),
    ("filters.network.ext_proc.v3.NetworkExternalProcessor", &[(1, Message(GRPC_SERVICE))]),
    (
        "filters.network.http_connection_manager.v3.EnvoyMobileHttpConnectionManager",
        &[(1, Message(HTTP_CONNECTION_MANAGER))],
    ),
    ("filters.network.http_connection_manager.v3.HttpConnectionManager", HTTP_CONNECTION_MANAGER),
    ("filters.network.ratelimit.v3.RateLimit", &[(6, Message(RATE_LIMIT_SERVICE))]),
    (
        "filters.network.redis_proxy.v3.RedisProxy",
        &[
            (5, Message(&[(1, Message(REDIS_ROUTE)), (4, Message(REDIS_ROUTE))])),
            (10, Message(&[(1, Message(GRPC_SERVICE))])),
        ],
    ),
    (
        "filters.network.tcp_proxy.v3.TcpProxy",
        &[
            (2, Name(Cluster)),
            (5, Message(ACCESS_LOG)),
            (10, Message(&[(1, Message(COLLECTOR))])),
            (14, AnyOf(Cluster)),
        ],
    ),
    ("filters.udp.udp_proxy.v3.Route", COLLECTOR),
    (
        "filters.udp.udp_proxy.v3.UdpProxyConfig",
        &[
            (2, Name(Cluster)),
            (8, Message(ACCESS_LOG)),
            (9, Message(MATCHER)),
            (10, Message(ACCESS_LOG)),
            (11, Message(&[(2, Any), (3, Own(Extension, DISCOVERY))])),
        ],
    ),
    ("http.injected_credentials.generic.v3.Generic", &[(1, Message(SDS))]),
    ("router.cluster_specifiers.matcher.v3.ClusterAction", COLLECTOR),
    ("router.cluster_specifiers.matcher.v3.MatcherClusterSpecifier", &[(1, Message(MATCHER))]),
    ("transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport", WRAPPED_SOCKET),
    ("transport_sockets.internal_upstream.v3.InternalUpstreamTransport", &[(3, Message(TRANSPORT_SOCKET))]),
    ("transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport", &[(2, Message(TRANSPORT_SOCKET))]),
    ("transport_sockets.quic.v3.QuicDownstreamTransport", &[(1, Message(DOWNSTREAM_TLS))]),
    ("transport_sockets.quic.v3.QuicUpstreamTransport", &[(1, Message(UPSTREAM_TLS))]),
    ("transport_sockets.starttls.v3.StartTlsConfig", &[(2, Message(DOWNSTREAM_TLS))]),
    ("transport_sockets.starttls.v3.UpstreamStartTlsConfig", &[(2, Message(UPSTREAM_TLS))]),
    ("transport_sockets.tcp_stats.v3.Config", WRAPPED_SOCKET),
    ("transport_sockets.tls.v3.DownstreamTlsContext", DOWNSTREAM_TLS),
    ("transport_sockets.tls.v3.UpstreamTlsContext", UPSTREAM_TLS),
    ("upstreams.http.v3.HttpProtocolOptions", &[(6, Message(FILTER)), (9, Message(MIRROR))]),
];

static JWT_PROVIDER: &Shape = &[(3, Message(&[(1, Message(HTTP_URI))]))];

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
