//! The resources that the tests serve, as proto JSON.

use serde_json::Value;
use serde_json::json;

use crate::mode::Mode;

/// A listener on a port that Envoy picks, with its routes over RDS.
pub(crate) fn listener(mode: Mode, name: &str, routes: &str) -> Value {
    let mut manager = connection_manager(mode, routes);
    manager["stat_prefix"] = name.into();
    json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    })
}

/// A listener for gRPC clients, which open no port.
pub(crate) fn api_listener(mode: Mode, name: &str, routes: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": name,
        "api_listener": {"api_listener": connection_manager(mode, routes)},
    })
}

/// A route configuration that sends each prefix to its cluster, first match first.
pub(crate) fn routes(name: &str, prefixes: &[(&str, &str)]) -> Value {
    let routes: Vec<Value> = prefixes
        .iter()
        .map(|(prefix, cluster)| json!({"match": {"prefix": prefix}, "route": {"cluster": cluster}}))
        .collect();
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": name,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
    })
}

/// A cluster whose endpoints come over EDS.
pub(crate) fn cluster(mode: Mode, name: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": mode.config_source()},
    })
}

/// The endpoints of the cluster `name`: one, on this machine.
pub(crate) fn endpoints(name: &str, port: u16) -> Value {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": name,
        "endpoints": [{
            // gRPC clients ignore a locality without a name or a weight.
            "locality": {"region": "here"},
            "load_balancing_weight": 1,
            "lb_endpoints": [{"endpoint": {"address": address}}],
        }],
    })
}

/// The variant of `resource` for the clients that `constraints` match.
pub(crate) fn when(constraints: &str, mut resource: Value) -> Value {
    resource["when"] = constraints.into();
    resource
}

fn connection_manager(mode: Mode, routes: &str) -> Value {
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "rds": {"route_config_name": routes, "config_source": mode.config_source()},
        "http_filters": [{"name": "router", "typed_config": {"@type": router}}],
    })
}
