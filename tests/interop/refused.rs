//! What Envoy rejects: each row is served to a real Envoy, which NACKs it, and is an error of a
//! folder.

use std::io::Read;
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use xds::{Cache, Resource, Server, StreamClient, Transaction, Verdict};
use xds_server::{Event, Observer, ServerConfig};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::mode::Mode;
use crate::peers;
use crate::wait::{SOON, until};
use crate::world::every_turn;

/// All verdicts of the client, in their order: the type, and the words of a NACK.
#[derive(Debug, Default)]
struct Verdicts(Mutex<Vec<(String, Option<String>)>>);

impl Observer for Verdicts {
    fn on_event(&self, _: &StreamClient, event: Event<'_>) {
        let Event::Answered(verdict) = event else { return };
        let verdict = match verdict {
            Verdict::Acked { type_url, .. } => (type_url.to_string(), None),
            Verdict::Nacked { type_url, detail, .. } => (type_url.to_string(), Some(detail.clone())),
        };
        self.0.lock().expect("no panic").push(verdict);
    }
}

impl Verdicts {
    fn len(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    /// The first verdict on a response of this type after the first `seen`: the words of a NACK, or
    /// none for an ACK.
    fn of(&self, url: &str, seen: usize) -> Option<Option<String>> {
        let verdicts = self.0.lock().expect("no panic");
        verdicts[seen..].iter().find(|(type_url, _)| type_url == url).map(|(_, nack)| nack.clone())
    }
}

fn pool() -> DescriptorPool {
    let mut set = Vec::new();
    let packed = include_bytes!("../../descriptors/envoy.binpb.gz").as_slice();
    GzDecoder::new(packed).read_to_end(&mut set).expect("a gzip file");
    DescriptorPool::decode(set.as_slice()).expect("a descriptor set")
}

fn resource(pool: &DescriptorPool, json: &Value) -> Resource {
    let mut fields = json.clone();
    let url = fields.as_object_mut().expect("a map").remove("@type").expect("a type");
    let url = url.as_str().expect("a type URL").to_owned();
    let name = url.rsplit('/').next().expect("a name");
    let message = pool.get_message_by_name(name).expect("a known type");
    let message =
        DynamicMessage::deserialize(message, fields).unwrap_or_else(|error| panic!("{json}: {error}"));
    Resource::from_payload(url.as_str(), message.encode_to_vec()).expect("a resource")
}

fn cluster(fields: Value) -> Value {
    with(json!({ "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster" }), fields)
}

fn routes(fields: Value) -> Value {
    with(json!({ "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration" }), fields)
}

/// Routes with one virtual host for all domains that has this one route.
fn route(fields: Value) -> Value {
    let route = with(json!({ "match": { "prefix": "/" } }), fields);
    routes(json!({ "virtual_hosts": [{ "name": "v", "domains": ["*"], "routes": [route] }] }))
}

/// A listener for HTTP whose requests this matcher allows.
fn matched(matcher: Value) -> Value {
    let url = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let rbac = json!({ "name": "rbac", "typed_config": { "@type": url, "matcher": matcher } });
    http(json!({ "http_filters": [rbac, router()] }))
}

/// The action of a matcher: to allow the request.
fn to_allow() -> Value {
    let action =
        json!({ "@type": "type.googleapis.com/envoy.config.rbac.v3.Action", "name": "a", "action": "ALLOW" });
    json!({ "action": { "name": "allow", "typed_config": action } })
}

/// Routes with a body of this format.
fn formatted(format: Value) -> Value {
    route(json!({ "direct_response": { "status": 200, "body_format": format } }))
}

fn to_add(key: &str, value: &str) -> Value {
    json!({ "header": { "key": key, "value": value } })
}

/// A listener for HTTP that changes a header of each request.
fn mutated(mutation: Value) -> Value {
    let url = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";
    let config = json!({ "@type": url, "mutations": { "request_mutations": [mutation] } });
    http(json!({ "http_filters": [{ "name": "mutation", "typed_config": config }, router()] }))
}

fn to_check_health() -> Value {
    json!({ "timeout": "1s", "interval": "1s", "unhealthy_threshold": 1, "healthy_threshold": 1, "tcp_health_check": {} })
}

fn fcds() -> Value {
    json!({ "config_source": { "ads": {} } })
}

/// A matcher of filter chains.
fn by_port() -> Value {
    let url = "type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.DestinationPortInput";
    let chain = json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "a" });
    json!({ "matcher_tree": {
        "input": { "name": "port", "typed_config": { "@type": url } },
        "exact_match_map": { "map": { "443": { "action": { "name": "a", "typed_config": chain } } } },
    } })
}

fn endpoints(fields: Value) -> Value {
    with(json!({ "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment" }), fields)
}

fn listener(fields: Value) -> Value {
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let plain =
        json!({ "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "address": address });
    with(plain, fields)
}

/// A listener with a filter chain for each of these conditions.
fn chains(conditions: &[Value]) -> Value {
    let chains: Vec<_> = conditions.iter().map(|it| json!({ "filter_chain_match": it })).collect();
    listener(json!({ "filter_chains": chains }))
}

/// The condition of a filter chain for these addresses.
fn to(prefix: &str, length: u32) -> Value {
    json!({ "prefix_ranges": [{ "address_prefix": prefix, "prefix_len": length }] })
}

/// A listener with a UDP address.
fn udp(fields: Value) -> Value {
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0, "protocol": "UDP" } });
    with(listener(json!({ "address": address })), fields)
}

fn tls_inspector() -> Value {
    let url = "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
    json!({ "name": "tls", "typed_config": { "@type": url } })
}

/// A listener with one filter chain of these network filters.
fn filters(filters: Value) -> Value {
    listener(json!({ "filter_chains": [{ "filters": filters }] }))
}

/// A listener for HTTP.
fn http(fields: Value) -> Value {
    filters(json!([{ "name": "http", "typed_config": manager(fields) }]))
}

fn manager(fields: Value) -> Value {
    let url = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let inline = json!({ "name": "r", "virtual_hosts": [] });
    let plain =
        json!({ "@type": url, "stat_prefix": "s", "route_config": inline, "http_filters": [router()] });
    with(plain, fields)
}

fn router() -> Value {
    json!({ "name": "router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" } })
}

fn provided_by_cluster() -> Value {
    let url =
        "type.googleapis.com/envoy.extensions.load_balancing_policies.cluster_provided.v3.ClusterProvided";
    let policy = json!({ "name": "provided", "typed_config": { "@type": url } });
    json!({ "policies": [{ "typed_extension_config": policy }] })
}

/// An endpoint at this address.
fn at(address: &str) -> Value {
    json!({ "endpoint": { "address": { "socket_address": { "address": address, "port_value": 80 } } } })
}

fn assigned(lb_endpoints: Value) -> Value {
    json!({ "cluster_name": "c", "endpoints": [{ "lb_endpoints": lb_endpoints }] })
}

fn with(mut all: Value, fields: Value) -> Value {
    let fields = fields.as_object().expect("a map").clone();
    all.as_object_mut().expect("a map").extend(fields);
    all
}

/// Each row is an error of a folder just when Envoy sends a NACK.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_and_envoy_reject_the_same_resources() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let (pool, cache, verdicts) = (pool(), Cache::new(), Arc::new(Verdicts::default()));
    let mut first = Transaction::new();
    first.put(resource(&pool, &cluster(json!({ "name": "plain" }))));
    cache.commit(first).expect("a plain cluster");
    let listening = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listening.local_addr().expect("an address").port();
    let config = ServerConfig { observer: Some(Arc::clone(&verdicts) as _), ..ServerConfig::default() };
    tokio::spawn(
        Server::new(Arc::clone(&cache)).with_config(config).serve(listening, std::future::pending()),
    );
    let scratch = Folder::new();
    let _envoy = Envoy::start(scratch.path(), Mode::ADS[1], port).await.expect("it was found before");

    let (mut rejected, mut differences) = (0, Vec::new());
    for (number, mut row) in rows().into_iter().enumerate() {
        let name = format!("row-{number}");
        let url = row["@type"].as_str().expect("a type").to_owned();
        let name_field = if url.ends_with("Assignment") { "cluster_name" } else { "name" };
        row[name_field] = name.as_str().into();
        let mut transaction = Transaction::new();
        transaction.put(resource(&pool, &row));
        if let Some(referrer) = referrer(&url, &name) {
            transaction.put(resource(&pool, &referrer));
        }
        let seen = verdicts.len();
        cache.commit(transaction).expect("no other has its name");
        let newest = || verdicts.of(&url, seen);
        let (by_envoy, _) = until(&row.to_string(), SOON, async || newest()).await;
        let by_folder = errors_of_folder(&row);
        rejected += usize::from(by_envoy.is_some());
        if by_envoy.is_some() == by_folder.is_empty() {
            differences.push(format!("{row}\n  Envoy: {by_envoy:?}\n  folder: {by_folder:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(rejected >= 90, "only {rejected} rows are rejected");
}

/// The resource that makes Envoy subscribe to one of this type and name.
fn referrer(url: &str, name: &str) -> Option<Value> {
    if url.ends_with("RouteConfiguration") {
        let rds = json!({ "route_config_name": name, "config_source": { "ads": {} } });
        let listener = http(json!({ "route_config": null, "rds": rds }));
        return Some(with(listener, json!({ "name": name })));
    }
    let eds = json!({ "name": name, "type": "EDS", "eds_cluster_config": { "eds_config": { "ads": {} } } });
    url.ends_with("Assignment").then(|| cluster(eds))
}

/// What `xds check` says of a folder with this resource.
fn errors_of_folder(row: &Value) -> Vec<String> {
    let scratch = Folder::new();
    scratch.write("row.json", std::slice::from_ref(row));
    let contents = xds::folder::Folder::new(scratch.path()).contents(|_| {});
    contents.errors().iter().flat_map(|errors| errors.iter().map(ToString::to_string)).collect()
}

fn rows() -> Vec<Value> {
    let of_regex = |regex: &&str| {
        route(json!({ "match": { "safe_regex": { "regex": regex } }, "route": { "cluster": "plain" } }))
    };
    let of_value = |value: &&str| {
        let headers = json!([to_add("a", value)]);
        route(json!({ "route": { "cluster": "plain" }, "request_headers_to_add": headers }))
    };
    let mut rows = various_rows();
    rows.extend(HEADER_VALUES.iter().map(of_value));
    rows.extend(REGEXES.iter().map(of_regex));
    rows
}

/// Values of a header.
const HEADER_VALUES: &[&str] = &[
    "%%",
    "100%",
    "a%20b",
    "%PROTOCOL%",
    "%PROTOCOLS%",
    "%protocol%",
    "%%NONE%%",
    "%REQ(x?y):10%",
    "%REQ(x%",
    "%START_TIME(%Y-%m)%",
    "%DYNAMIC_METADATA([\"a\", \"b\"])%",
    "%PER_REQUEST_STATE(a)%",
    "%REQ_WITHOUT_QUERY(x)%",
    "%METHOD%",
];

/// Regular expressions.
const REGEXES: &[&str] = &[
    "*.a",
    "+a",
    "a|*",
    "a**",
    "a{2}{3}",
    "a{1,2000}",
    "(a{40}){30}",
    "a{2}?",
    "a{,5}",
    "^*",
    "a(?i)*",
    "(?x)a",
    "(?i-s:a)",
    "(?P<n>a)(?<m>b)",
    "(?P<a-b>x)",
    "[[:alpha:]]",
    "[[:foo:]]",
    "[a&&b]",
    "\\pN\\p{Greek}",
    "\\p{greek}",
    "[z-a]",
    "[a-]",
    "[a-\\d]",
    "[\\b]",
    "\\y",
    "\\Z",
    "\\C\\b\\z",
    "\\8",
    "\\12",
    "\\x4",
    "\\x{41}",
    "\\x{110000}",
    "\\_\\-\\/",
];

fn various_rows() -> Vec<Value> {
    let host = |domains: Value| json!({ "name": "v", "domains": domains });
    vec![
        cluster(json!({})),
        routes(json!({ "virtual_hosts": [host(json!([]))] })),
        routes(json!({ "virtual_hosts": [host(json!(["*", "*"]))] })),
        routes(json!({ "virtual_hosts": [host(json!(["a", "A"]))] })),
        routes(
            json!({ "virtual_hosts": [{ "name": "a", "domains": ["*"] }, { "name": "b", "domains": ["*"] }] }),
        ),
        routes(
            json!({ "virtual_hosts": [{ "name": "a", "domains": ["x"] }, { "name": "b", "domains": ["x"] }] }),
        ),
        routes(
            json!({ "virtual_hosts": [{ "name": "a", "domains": ["x"] }, { "name": "a", "domains": ["y"] }] }),
        ),
        routes(json!({ "virtual_hosts": [host(json!(["a*b"]))] })),
        routes(json!({ "virtual_hosts": [host(json!(["*.x", "*.X"]))] })),
        routes(json!({ "virtual_hosts": [host(json!([""]))] })),
        routes(json!({ "virtual_hosts": [{ "name": "", "domains": ["x"] }] })),
        route(json!({})),
        route(json!({ "match": {}, "route": { "cluster": "plain" } })),
        route(json!({ "route": { } })),
        route(json!({ "route": { "cluster": "" } })),
        route(json!({ "route": { "weighted_clusters": { "clusters": [] } } })),
        route(
            json!({ "route": { "weighted_clusters": { "clusters": [{ "name": "plain", "weight": 0 }] } } }),
        ),
        route(json!({ "route": { "weighted_clusters": { "clusters": [{ "name": "plain" }] } } })),
        route(json!({ "route": { "weighted_clusters": { "clusters": [{ "weight": 1 }] } } })),
        route(
            json!({ "route": { "weighted_clusters": { "clusters": [{ "name": "a", "cluster_header": "h", "weight": 1 }] } } }),
        ),
        route(
            json!({ "route": { "weighted_clusters": { "clusters": [{ "name": "plain", "weight": 4294967295u32 }, { "name": "plain", "weight": 4294967295u32 }] } } }),
        ),
        route(
            json!({ "route": { "cluster": "plain", "prefix_rewrite": "/", "regex_rewrite": { "pattern": { "regex": "a" }, "substitution": "b" } } }),
        ),
        route(json!({ "match": { "safe_regex": { "regex": "(" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "(?=a)" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "/a/{id}" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "[[]a" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "[^[]+b" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "a)" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "(a)\\1" } }, "route": { "cluster": "plain" } })),
        route(json!({ "match": { "safe_regex": { "regex": "\\Q(\\E" } }, "route": { "cluster": "plain" } })),
        route(
            json!({ "match": { "prefix": "/", "headers": [{ "name": "h", "string_match": { "safe_regex": { "regex": "[" } } }] }, "route": { "cluster": "plain" } }),
        ),
        route(
            json!({ "match": { "prefix": "/", "headers": [{ "name": "h", "range_match": { "start": 5, "end": 1 } }] }, "route": { "cluster": "plain" } }),
        ),
        route(
            json!({ "route": { "cluster": "plain", "retry_policy": { "retry_back_off": { "base_interval": "2s", "max_interval": "1s" } } } }),
        ),
        route(json!({ "route": { "cluster": "plain", "retry_policy": { "retry_on": "nonsense" } } })),
        route(json!({ "route": { "cluster": "plain", "timeout": "-1s" } })),
        route(json!({ "route": { "cluster": "plain", "hash_policy": [{}] } })),
        route(
            json!({ "route": { "cluster": "plain" }, "request_headers_to_add": [{ "header": { "key": ":path", "value": "x" } }] }),
        ),
        route(
            json!({ "route": { "cluster": "plain" }, "request_headers_to_add": [{ "header": { "key": "host", "value": "x" } }] }),
        ),
        route(json!({ "route": { "cluster": "plain" }, "request_headers_to_remove": ["host"] })),
        route(json!({ "route": { "cluster": "plain" }, "request_headers_to_remove": [":path"] })),
        route(
            json!({ "route": { "cluster": "plain" }, "response_headers_to_add": [to_add(":status", "x")] }),
        ),
        route(json!({ "route": { "cluster": "plain" }, "response_headers_to_add": [to_add("a", "%NONE%")] })),
        route(json!({ "route": { "cluster": "plain" }, "response_headers_to_remove": [":status"] })),
        routes(json!({ "virtual_hosts": [], "response_headers_to_add": [to_add("host", "x")] })),
        routes(json!({ "virtual_hosts": [], "response_headers_to_remove": ["host"] })),
        routes(
            json!({ "virtual_hosts": [{ "name": "v", "domains": ["*"], "response_headers_to_remove": ["host"] }] }),
        ),
        route(
            json!({ "route": { "weighted_clusters": { "clusters": [{ "name": "plain", "weight": 1, "request_headers_to_add": [to_add(":path", "x")] }] } } }),
        ),
        mutated(json!({ "append": to_add(":path", "x") })),
        mutated(json!({ "append": to_add("a", "100%") })),
        mutated(json!({ "remove": ":path" })),
        cluster(
            json!({ "health_checks": [with(to_check_health(), json!({ "tcp_health_check": null, "http_health_check": { "path": "/", "request_headers_to_add": [to_add("a", "%NONE%")] } }))] }),
        ),
        formatted(json!({ "text_format_source": { "inline_string": "%PROTOCOL%" } })),
        formatted(json!({ "text_format_source": { "inline_string": "%NONE%" } })),
        formatted(json!({ "json_format": { "%": { "a": ["%PROTOCOL%", 5] } } })),
        formatted(json!({ "json_format": { "a": { "b": ["100%"] } } })),
        route(json!({ "direct_response": { "status": 99 } })),
        route(json!({ "direct_response": { "status": 200, "body": { "inline_string": "x".repeat(5000) } } })),
        route(json!({ "redirect": { "response_code": 77 } })),
        route(
            json!({ "match": { "prefix": "/", "runtime_fraction": { "default_value": { "numerator": 1, "denominator": 9 } } }, "route": { "cluster": "plain" } }),
        ),
        route(json!({ "route": { "cluster": "plain", "rate_limits": [{ "actions": [] }] } })),
        route(json!({ "route": { "cluster": "plain", "request_mirror_policies": [{}] } })),
        route(
            json!({ "route": { "cluster": "plain", "upgrade_configs": [{ "upgrade_type": "a" }, { "upgrade_type": "A" }] } }),
        ),
        cluster(json!({ "health_checks": [to_check_health()] })),
        cluster(json!({ "connect_timeout": "-1s" })),
        cluster(json!({ "connect_timeout": "0s" })),
        cluster(json!({ "type": "EDS" })),
        cluster(json!({ "type": "EDS", "eds_cluster_config": {} })),
        cluster(
            json!({ "type": "EDS", "eds_cluster_config": { "eds_config": { "ads": {} } }, "load_assignment": assigned(json!([at("127.0.0.1")])) }),
        ),
        cluster(json!({ "type": "STATIC" })),
        cluster(
            json!({ "type": "STATIC", "eds_cluster_config": { "eds_config": { "ads": {} } }, "load_assignment": assigned(json!([])) }),
        ),
        cluster(json!({ "type": "STATIC", "load_assignment": assigned(json!([at("example.com")])) })),
        cluster(json!({ "type": "STATIC", "load_assignment": { "cluster_name": "" } })),
        cluster(json!({ "type": "STATIC", "load_assignment": assigned(json!([{}])) })),
        cluster(json!({ "type": "STATIC", "load_assignment": assigned(json!([{ "endpoint": {} }])) })),
        cluster(
            json!({ "type": "STATIC", "load_assignment": assigned(json!([{ "load_balancing_weight": 0, "endpoint": at("127.0.0.1")["endpoint"] }])) }),
        ),
        cluster(
            json!({ "type": "LOGICAL_DNS", "load_assignment": assigned(json!([at("a.test"), at("b.test")])) }),
        ),
        cluster(json!({ "type": "LOGICAL_DNS" })),
        cluster(json!({ "type": "LOGICAL_DNS", "load_assignment": assigned(json!([])) })),
        cluster(json!({ "type": "STRICT_DNS" })),
        cluster(json!({ "type": "ORIGINAL_DST" })),
        cluster(json!({ "type": "ORIGINAL_DST", "load_balancing_policy": provided_by_cluster() })),
        cluster(
            json!({ "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "load_assignment": assigned(json!([at("127.0.0.1")])) }),
        ),
        cluster(json!({ "type": "STATIC", "lb_policy": "CLUSTER_PROVIDED" })),
        cluster(
            json!({ "lb_policy": "RING_HASH", "ring_hash_lb_config": { "minimum_ring_size": 2048, "maximum_ring_size": 1024 } }),
        ),
        cluster(json!({ "lb_policy": "MAGLEV", "maglev_lb_config": { "table_size": 100 } })),
        cluster(json!({ "lb_policy": "LOAD_BALANCING_POLICY_CONFIG" })),
        cluster(json!({ "health_checks": [{}] })),
        cluster(
            json!({ "health_checks": [{ "timeout": "1s", "interval": "1s", "unhealthy_threshold": 1, "healthy_threshold": 1 }] }),
        ),
        cluster(
            json!({ "health_checks": [{ "timeout": "1s", "interval": "1s", "unhealthy_threshold": 1, "healthy_threshold": 1, "http_health_check": { "path": "" } }] }),
        ),
        cluster(json!({ "health_checks": [to_check_health(), to_check_health()] })),
        cluster(json!({ "outlier_detection": { "max_ejection_percent": 101 } })),
        cluster(json!({ "outlier_detection": { "interval": "0s" } })),
        cluster(json!({ "dns_refresh_rate": "0s" })),
        cluster(json!({ "circuit_breakers": { "thresholds": [{ "priority": 9 }] } })),
        cluster(
            json!({ "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": { "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions" } } }),
        ),
        cluster(json!({ "upstream_bind_config": { "source_address": { "address": "not-an-ip" } } })),
        cluster(json!({ "common_lb_config": { "healthy_panic_threshold": { "value": 101.0 } } })),
        cluster(
            json!({ "type": "STATIC", "load_assignment": { "cluster_name": "c", "endpoints": [{ "priority": 129, "lb_endpoints": [] }] } }),
        ),
        cluster(
            json!({ "type": "STATIC", "load_assignment": { "cluster_name": "c", "policy": { "overprovisioning_factor": 0 } } }),
        ),
        endpoints(json!({ "endpoints": [{ "lb_endpoints": [at("example.com")] }] })),
        endpoints(json!({ "endpoints": [{ "lb_endpoints": [{}] }] })),
        endpoints(json!({ "endpoints": [{ "lb_endpoints": [{ "endpoint_name": "nobody" }] }] })),
        endpoints(json!({ "endpoints": [{ "priority": 129 }] })),
        endpoints(json!({ "endpoints": [{ "load_balancing_weight": 0 }] })),
        endpoints(json!({ "endpoints": [{ "lb_endpoints": [at("127.0.0.1"), at("127.0.0.1")] }] })),
        endpoints(json!({ "endpoints": [{ "priority": 2, "lb_endpoints": [at("127.0.0.1")] }] })),
        endpoints(
            json!({ "endpoints": [{ "lb_endpoints": [{ "load_balancing_weight": 4294967295u32, "endpoint": at("127.0.0.1")["endpoint"] }, { "load_balancing_weight": 4294967295u32, "endpoint": at("127.0.0.2")["endpoint"] }] }] }),
        ),
        endpoints(
            json!({ "endpoints": [{ "load_balancing_weight": 4294967295u32 }, { "load_balancing_weight": 4294967295u32 }] }),
        ),
        endpoints(
            json!({ "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 65536 } } } }] }] }),
        ),
        endpoints(json!({ "policy": { "drop_overloads": [{ "category": "" }] } })),
        endpoints(
            json!({ "policy": { "drop_overloads": [{ "category": "a", "drop_percentage": { "numerator": 200 } }, { "category": "b", "drop_percentage": { "numerator": 1 } }] } }),
        ),
        listener(json!({})),
        listener(json!({ "address": null, "filter_chains": [{ "filters": [] }] })),
        listener(
            json!({ "address": { "socket_address": { "address": "example.com", "port_value": 0 } }, "filter_chains": [{}] }),
        ),
        filters(
            json!([{ "name": "a", "typed_config": manager(json!({})) }, { "name": "b", "typed_config": manager(json!({})) }]),
        ),
        listener(json!({ "filter_chains": [{}] })),
        listener(json!({ "filter_chains": [{}, {}] })),
        listener(
            json!({ "filter_chains": [{ "name": "a" }, { "name": "a", "filter_chain_match": { "destination_port": 1 } }] }),
        ),
        listener(json!({ "filter_chains": [{ "filter_chain_match": { "server_names": ["*w.x"] } }] })),
        listener(json!({ "filter_chains": [{ "filter_chain_match": { "server_names": ["*"] } }] })),
        listener(json!({ "filter_chains": [{ "filter_chain_match": { "destination_port": 0 } }] })),
        listener(
            json!({ "filter_chains": [{ "filter_chain_match": { "prefix_ranges": [{ "address_prefix": "x" }] } }] }),
        ),
        listener(json!({ "fcds_config": fcds(), "filter_chain_matcher": by_port() })),
        listener(json!({ "fcds_config": fcds() })),
        listener(json!({ "fcds_config": {}, "filter_chain_matcher": by_port() })),
        listener(json!({ "filter_chain_matcher": by_port() })),
        listener(json!({ "filter_chain_matcher": by_port(), "filter_chains": [{}] })),
        listener(
            json!({ "filter_chain_matcher": by_port(), "filter_chains": [{ "name": "a" }, { "name": "a" }] }),
        ),
        listener(
            json!({ "filter_chain_matcher": by_port(), "filter_chains": [{ "name": "a" }, { "name": "b" }] }),
        ),
        chains(&[json!({ "source_type": "ANY" }), json!({})]),
        chains(&[to("10.1.0.0", 8), to("10.2.0.0", 8)]),
        chains(&[to("10.0.0.0", 8), to("10.0.0.0", 16)]),
        chains(&[to("0.0.0.0", 0), json!({})]),
        chains(&[to("::1", 128), to("0:0:0:0:0:0:0:1", 128)]),
        chains(&[to("10.0.0.0", 40), to("10.0.0.0", 32)]),
        chains(&[json!({ "server_names": ["a", "b"] }), json!({ "server_names": ["B", "c"] })]),
        chains(&[json!({ "server_names": ["*.a"] }), json!({ "server_names": [".a"] })]),
        chains(&[json!({ "server_names": ["*.a.b"] }), json!({ "server_names": ["x.a.b"] })]),
        chains(&[json!({ "server_names": ["a", "A"] })]),
        chains(&[json!({ "source_ports": [1, 2] }), json!({ "source_ports": [2, 3] })]),
        chains(&[
            json!({ "application_protocols": ["h2", "x"] }),
            json!({ "application_protocols": ["h2"] }),
        ]),
        chains(&[json!({ "application_protocols": ["H2"] }), json!({ "application_protocols": ["h2"] })]),
        chains(&[json!({ "suffix_len": 1 })]),
        listener(json!({ "filter_chain_matcher": by_port(), "filter_chains": [
            { "name": "a", "filter_chain_match": { "server_names": ["*w.x"] } },
            { "name": "b", "filter_chain_match": { "server_names": ["*w.x"] } },
        ] })),
        udp(json!({})),
        udp(json!({ "filter_chains": [{}] })),
        udp(json!({ "default_filter_chain": {} })),
        udp(json!({ "udp_listener_config": {}, "filter_chains": [{}] })),
        udp(json!({ "udp_listener_config": { "quic_options": {} } })),
        udp(json!({ "udp_listener_config": { "quic_options": {} }, "filter_chains": [{}] })),
        udp(json!({ "listener_filters": [tls_inspector()] })),
        udp(json!({ "additional_addresses": [{ "address": listener(json!({}))["address"] }] })),
        listener(json!({ "filter_chains": [{}], "listener_filters": [tls_inspector()] })),
        listener(json!({ "udp_listener_config": {} })),
        filters(json!([{ "name": "" }])),
        filters(
            json!([{ "name": "tcp", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy" } }]),
        ),
        filters(
            json!([{ "name": "tcp", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "s" } }]),
        ),
        filters(
            json!([{ "name": "rbac", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC", "stat_prefix": "s" } }]),
        ),
        filters(
            json!([{ "name": "tcp", "typed_config": { "@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "value": { "stat_prefix": "s", "cluster": "plain" } } }]),
        ),
        filters(
            json!([{ "name": "tcp", "typed_config": { "@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "type_url": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "value": { "stat_prefix": "s", "cluster": "plain" } } }]),
        ),
        matched(json!({ "matcher_list": { "matchers": [{
            "predicate": { "single_predicate": {
                "input": { "name": "attributes", "typed_config": { "@type": "type.googleapis.com/xds.type.matcher.v3.HttpAttributesCelMatchInput" } },
                "custom_match": { "name": "cel", "typed_config": { "@type": "type.googleapis.com/xds.type.matcher.v3.CelMatcher", "expr_match": { "cel_expr_parsed": { "expr": { "id": 1, "const_expr": { "bool_value": true } } } } } },
            } },
            "on_match": to_allow(),
        }] } })),
        matched(json!({ "matcher_list": { "matchers": [{
            "predicate": { "single_predicate": {
                "input": { "name": "header", "typed_config": { "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": "h" } },
                "value_match": { "safe_regex": { "google_re2": {}, "regex": "*a" } },
            } },
            "on_match": to_allow(),
        }] } })),
        matched(json!({ "matcher_tree": {
            "input": { "name": "ip", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.SourceIPInput" } },
            "custom_match": { "name": "ip", "typed_config": { "@type": "type.googleapis.com/xds.type.matcher.v3.IPMatcher", "range_matchers": [{ "ranges": [{ "address_prefix": "10.0.0.0", "prefix_len": 8 }], "on_match": to_allow() }] } },
        } })),
        http(json!({ "stat_prefix": "" })),
        http(json!({ "http_filters": [] })),
        http(json!({ "http_filters": [router(), router()] })),
        http(
            json!({ "http_filters": [{ "name": "cors", "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors" } }] }),
        ),
        http(json!({ "http_filters": [{ "name": "" }] })),
        http(
            json!({ "route_config": { "name": "r", "virtual_hosts": [{ "name": "v", "domains": ["*", "*"] }] } }),
        ),
        http(json!({ "codec_type": 9 })),
        http(json!({ "server_name": "\n" })),
        http(json!({ "http2_protocol_options": { "max_concurrent_streams": 0 } })),
        http(json!({ "http2_protocol_options": { "initial_stream_window_size": 1 } })),
        http(json!({ "stream_idle_timeout": "-1s" })),
        http(json!({ "forward_client_cert_details": 9 })),
        http(json!({ "local_reply_config": { "mappers": [{}] } })),
        http(json!({ "tracing": { "client_sampling": { "value": 101.0 } } })),
        http(
            json!({ "upgrade_configs": [{ "upgrade_type": "websocket" }, { "upgrade_type": "WEBSOCKET" }] }),
        ),
        http(json!({ "route_config": null, "rds": { "config_source": { "ads": {} } } })),
        http(json!({ "route_config": null, "rds": { "route_config_name": "r" } })),
    ]
}
