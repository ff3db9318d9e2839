//! What Envoy rejects beyond the validation rules of its messages, as seen with Envoy 1.40. Each
//! is a row of `tests/interop/refused.rs`, where a real Envoy sends a NACK.
//!
//! A check sees one message. It reports only what each Envoy rejects, whatever its bootstrap and
//! its extensions are.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use super::re2;
use super::rules::{Target, Violation};

mod filter_chains;
mod format_strings;
mod headers;

/// The check of a message type, if there is one.
pub(super) fn of(message: &str) -> Option<fn(&DynamicMessage) -> Vec<Violation>> {
    Some(match message {
        "envoy.config.route.v3.RouteConfiguration" => route_configuration,
        "envoy.config.route.v3.VirtualHost"
        | "envoy.config.route.v3.Route"
        | "envoy.config.core.v3.HealthCheck.HttpHealthCheck"
        | "envoy.config.core.v3.HealthCheck.GrpcHealthCheck"
        | "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
        | "envoy.extensions.filters.http.ratelimit.v3.RateLimit"
        | "envoy.extensions.filters.network.http_connection_manager.v3.ResponseMapper"
        | "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig" => headers::check,
        "envoy.config.common.mutation_rules.v3.HeaderMutation" => headers::mutation,
        "envoy.config.core.v3.SubstitutionFormatString" => format_strings::substitution,
        "envoy.extensions.access_loggers.file.v3.FileAccessLog" => format_strings::file_access_log,
        "envoy.config.route.v3.RouteAction" => route_action,
        "envoy.config.route.v3.RouteAction.RequestMirrorPolicy" => mirror_policy,
        "envoy.config.route.v3.RetryPolicy.RetryBackOff" => back_off,
        "envoy.config.route.v3.WeightedCluster" => weighted_cluster,
        "envoy.config.route.v3.WeightedCluster.ClusterWeight" => cluster_weight,
        "envoy.type.matcher.v3.RegexMatcher" | "xds.type.matcher.v3.RegexMatcher" => regex_matcher,
        "envoy.config.core.v3.CidrRange" => cidr_range,
        "envoy.config.cluster.v3.Cluster" => cluster,
        "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy" => assignment_policy,
        "envoy.config.listener.v3.Listener" => listener,
        "envoy.config.listener.v3.FilterChain" => filter_chain,
        HTTP_CONNECTION_MANAGER => http_connection_manager,
        _ => return None,
    })
}

/// What Envoy rejects in a message of this type when it is a resource, and not part of one: the
/// endpoints of a cluster of type STRICT_DNS may be host names, those of EDS may not.
pub(super) fn of_resource(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    if message.descriptor().full_name() == "envoy.config.endpoint.v3.ClusterLoadAssignment" {
        for (index, locality) in messages(message, "endpoints").iter().enumerate() {
            for reason in messages(locality, "lb_endpoints").iter().filter_map(no_ip_address) {
                found.add_at(true, "endpoints", Some(index), reason);
            }
        }
    }
    found.violations
}

/// Collects what is rejected in one message.
struct Found<'a> {
    message: &'a DynamicMessage,
    violations: Vec<Violation>,
}

impl<'a> Found<'a> {
    fn new(message: &'a DynamicMessage) -> Self {
        Self { message, violations: Vec::new() }
    }

    fn add(&mut self, is_rejected: bool, field: &str, reason: impl Into<String>) {
        self.add_at(is_rejected, field, None, reason);
    }

    fn add_at(&mut self, is_rejected: bool, field: &str, item: Option<usize>, reason: impl Into<String>) {
        if !is_rejected {
            return;
        }
        let field = self.message.descriptor().get_field_by_name(field);
        let at = match (field, item) {
            (None, _) => Target::Oneof,
            (Some(field), None) => Target::Field(field),
            (Some(field), Some(item)) => Target::Item(field, item),
        };
        self.violations.push(Violation { at, rule: RULE.to_owned(), reason: reason.into() });
    }
}

fn route_configuration(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let mut hosts = BTreeMap::<String, usize>::new();
    for (index, host) in messages(message, "virtual_hosts").iter().enumerate() {
        for domain in texts(host, "domains") {
            // Envoy compares them in lower case.
            if let Some(other) = hosts.insert(domain.to_ascii_lowercase(), index) {
                let reason = match other == index {
                    true => format!("the domain {domain:?} is listed twice"),
                    false => format!("the domain {domain:?} is in virtual_hosts[{other}], too"),
                };
                found.add_at(true, "virtual_hosts", Some(index), reason);
            }
        }
    }
    let limit = sub(message, "max_direct_response_body_size_bytes").and_then(|limit| number(&limit, "value"));
    let limit = limit.unwrap_or(4096);
    for (index, host) in messages(message, "virtual_hosts").iter().enumerate() {
        for route in messages(host, "routes") {
            let body = sub(&route, "direct_response").and_then(|response| sub(&response, "body"));
            let size =
                body.map_or(0, |body| text(&body, "inline_string").len().max(bytes(&body, "inline_bytes")));
            let reason =
                format!("the body of a direct response has {size} bytes, and at most {limit} are allowed");
            found.add_at(size as u64 > limit, "virtual_hosts", Some(index), reason);
        }
    }
    found.violations.extend(headers::check(message));
    found.violations
}

fn route_action(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let rewrites = ["prefix_rewrite", "regex_rewrite", "path_rewrite_policy"];
    let given = rewrites.into_iter().filter(|field| is_set(message, field)).count();
    let reason = "only one of `prefix_rewrite`, `regex_rewrite` and `path_rewrite_policy` can be set";
    found.add(given > 1, "regex_rewrite", reason);
    found.add(is_negative(message, "timeout"), "timeout", NOT_NEGATIVE);
    repeated_upgrade(message, &mut found);
    found.violations
}

fn repeated_upgrade(message: &DynamicMessage, found: &mut Found<'_>) {
    let mut seen = BTreeSet::new();
    for (index, upgrade) in messages(message, "upgrade_configs").iter().enumerate() {
        let name = text(upgrade, "upgrade_type");
        let is_new = seen.insert(name.to_ascii_lowercase());
        found.add_at(
            !is_new,
            "upgrade_configs",
            Some(index),
            format!("the upgrade {name:?} is listed twice"),
        );
    }
}

fn mirror_policy(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let given = ["cluster", "cluster_header"].into_iter().filter(|field| is_set(message, field)).count();
    found.add(given != 1, "", "exactly one of `cluster` and `cluster_header` must be set");
    found.violations
}

fn back_off(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let (base, most) = (duration(message, "base_interval"), duration(message, "max_interval"));
    let is_rejected = matches!((base, most), (Some(base), Some(most)) if most < base);
    found.add(is_rejected, "max_interval", "must be at least `base_interval`");
    found.violations
}

fn weighted_cluster(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let weight =
        |cluster: &DynamicMessage| sub(cluster, "weight").and_then(|weight| number(&weight, "value"));
    let clusters = messages(message, "clusters");
    let sum: u64 = clusters.iter().filter_map(weight).sum();
    let has_all = !clusters.is_empty() && clusters.iter().all(|cluster| weight(cluster).is_some());
    found.add(has_all && sum == 0, "clusters", "the sum of their weights must be greater than 0");
    found.add(sum > u64::from(u32::MAX), "clusters", "the sum of their weights must be less than 2^32");
    found.violations
}

fn cluster_weight(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    found.add(!is_set(message, "weight"), "weight", "must be set");
    let given = ["name", "cluster_header"].into_iter().filter(|field| is_set(message, field)).count();
    found.add(given != 1, "", "exactly one of `name` and `cluster_header` must be set");
    found.violations.extend(headers::check(message));
    found.violations
}

fn regex_matcher(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let pattern = text(message, "regex");
    if let Err(flaw) = re2::check(&pattern) {
        found.add(true, "regex", format!("{pattern:?} is not a regular expression of RE2: {flaw}"));
    }
    found.violations
}

fn cidr_range(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let prefix = text(message, "address_prefix");
    found.add(prefix.parse::<IpAddr>().is_err(), "address_prefix", format!("{prefix:?} is no IP address"));
    found.violations
}

fn cluster(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let kind = message.get_field_by_name("type").and_then(|kind| kind.as_enum_number()).unwrap_or_default();
    let has_own_type = is_set(message, "cluster_type");
    let policy =
        message.get_field_by_name("lb_policy").and_then(|it| it.as_enum_number()).unwrap_or_default();
    let assignment = sub(message, "load_assignment");
    let localities = assignment.as_ref().map(|it| messages(it, "endpoints")).unwrap_or_default();
    let endpoints: Vec<_> = localities.iter().flat_map(|it| messages(it, "lb_endpoints")).collect();
    let checks = messages(message, "health_checks");
    // Envoy 1.40 knows a name of a health check, and the descriptors may not.
    let is_nameless =
        |check: &DynamicMessage| text(check, "name").is_empty() && check.unknown_fields().next().is_none();
    let has_nameless = checks.len() > 1 && checks.iter().any(is_nameless);
    found.add(
        has_nameless,
        "health_checks",
        "one of several has no name, and Envoy takes only one like that",
    );
    if has_own_type {
        return found.violations;
    }
    let eds = sub(message, "eds_cluster_config").and_then(|eds| sub(&eds, "eds_config"));
    found.add(
        kind == EDS && eds.is_none(),
        "eds_cluster_config",
        "a cluster of type EDS needs an `eds_config`",
    );
    let has_eds = is_set(message, "eds_cluster_config");
    found.add(kind != EDS && has_eds, "eds_cluster_config", "only for clusters of type EDS");
    if kind == STATIC {
        for address in endpoints.iter().filter_map(no_ip_address) {
            found.add(true, "load_assignment", format!("{address} (a host name needs type STRICT_DNS)"));
        }
    }
    let is_single = localities.len() == 1 && endpoints.len() == 1;
    found.add(
        kind == LOGICAL_DNS && !is_single,
        "load_assignment",
        "type LOGICAL_DNS needs exactly one endpoint",
    );
    // Also with a `load_balancing_policy`.
    let is_provided = policy == CLUSTER_PROVIDED;
    found.add(
        kind == ORIGINAL_DST && !is_provided,
        "lb_policy",
        "must be CLUSTER_PROVIDED with type ORIGINAL_DST",
    );
    let needs_original_dst = kind != ORIGINAL_DST && policy == CLUSTER_PROVIDED;
    found.add(
        needs_original_dst && !is_set(message, "load_balancing_policy"),
        "lb_policy",
        "CLUSTER_PROVIDED needs type ORIGINAL_DST",
    );
    let has_assignment = kind == ORIGINAL_DST && assignment.is_some();
    found.add(has_assignment, "load_assignment", "type ORIGINAL_DST has no endpoints");
    let needs_policy = policy == LOAD_BALANCING_POLICY_CONFIG && !is_set(message, "load_balancing_policy");
    found.add(needs_policy, "lb_policy", "LOAD_BALANCING_POLICY_CONFIG needs `load_balancing_policy`");
    if let Some(ring) = sub(message, "ring_hash_lb_config") {
        let size = |field| sub(&ring, field).and_then(|size| number(&size, "value"));
        let (least, most) = (size("minimum_ring_size"), size("maximum_ring_size"));
        let is_rejected = policy == RING_HASH && matches!((least, most), (Some(a), Some(b)) if a > b);
        found.add(
            is_rejected,
            "ring_hash_lb_config",
            "`minimum_ring_size` must be at most `maximum_ring_size`",
        );
    }
    if let Some(maglev) = sub(message, "maglev_lb_config") {
        let size = sub(&maglev, "table_size").and_then(|size| number(&size, "value"));
        let is_rejected = policy == MAGLEV && size.is_some_and(|size| !is_prime(size));
        found.add(is_rejected, "maglev_lb_config", "`table_size` must be a prime number");
    }
    found.violations
}

/// What keeps the address of an endpoint from being an IP address.
fn no_ip_address(endpoint: &DynamicMessage) -> Option<String> {
    let address = sub(endpoint, "endpoint").and_then(|endpoint| sub(&endpoint, "address"));
    let Some(address) = address else { return Some("an endpoint has no address".to_owned()) };
    let socket = sub(&address, "socket_address")?;
    no_ip(&socket)
}

/// Of a `SocketAddress`.
fn no_ip(socket: &DynamicMessage) -> Option<String> {
    let address = text(socket, "address");
    // An IPv6 address may have a scope.
    let without_scope = address.split('%').next().unwrap_or_default();
    let is_rejected =
        !is_set(socket, "resolver_name") && without_scope.parse::<IpAddr>().is_err() && !address.is_empty();
    is_rejected.then(|| format!("{address:?} is no IP address"))
}

fn assignment_policy(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    let count = messages(message, "drop_overloads").len();
    found.add(count > 1, "drop_overloads", format!("has {count} categories, and Envoy takes one"));
    found.violations
}

fn listener(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    if is_set(message, "api_listener") || is_set(message, "internal_listener") {
        return found.violations;
    }
    let has_address = is_set(message, "address") || is_set(message, "additional_addresses");
    found.add(!is_set(message, "address"), "address", "must be set");
    let socket = sub(message, "address").and_then(|address| sub(&address, "socket_address"));
    if let Some(reason) = socket.as_ref().and_then(no_ip) {
        found.add(true, "address", reason);
    }
    let has_fcds = is_set(message, "fcds_config");
    let fields = ["filter_chains", "default_filter_chain", "fcds_config"];
    let has_chains = fields.into_iter().any(|field| is_set(message, field));
    let transport = Transport::of(message);
    let needs_chains = has_address && transport != Transport::Udp;
    found.add(needs_chains && !has_chains, "filter_chains", "must have at least 1 item");
    transport_rules(transport, message, &mut found);
    let has_matcher = is_set(message, "filter_chain_matcher");
    found.add(has_fcds && !has_matcher, "fcds_config", "needs a `filter_chain_matcher`");
    filter_chains::check(message, &mut found);
    found.violations
}

/// What a listener accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// Connections of TCP or of a socket in the file system.
    Stream,
    /// Datagrams, without connections.
    Udp,
    Quic,
}

impl Transport {
    fn of(listener: &DynamicMessage) -> Self {
        if !sub(listener, "address").is_some_and(|address| is_udp(&address)) {
            return Self::Stream;
        }
        let config = sub(listener, "udp_listener_config");
        if config.is_some_and(|config| is_set(&config, "quic_options")) { Self::Quic } else { Self::Udp }
    }
}

fn is_udp(address: &DynamicMessage) -> bool {
    let protocol =
        sub(address, "socket_address").and_then(|it| it.get_field_by_name("protocol")?.as_enum_number());
    protocol == Some(UDP)
}

fn transport_rules(transport: Transport, listener: &DynamicMessage, found: &mut Found<'_>) {
    let is_datagrams = transport == Transport::Udp;
    for field in ["filter_chains", "default_filter_chain"] {
        let reason =
            "a listener with a UDP address has none, unless `udp_listener_config` has `quic_options`";
        found.add(is_datagrams && is_set(listener, field), field, reason);
    }
    if transport == Transport::Quic {
        for (index, chain) in messages(listener, "filter_chains").iter().enumerate() {
            let reason = "needs a `transport_socket` for QUIC";
            found.add_at(!is_set(chain, "transport_socket"), "filter_chains", Some(index), reason);
        }
    }
    for (index, additional) in messages(listener, "additional_addresses").iter().enumerate() {
        let address = sub(additional, "address").filter(|address| is_set(address, "socket_address"));
        let is_other = address.is_some_and(|address| is_udp(&address) == (transport == Transport::Stream));
        let reason = "all addresses must be of TCP, or all of UDP";
        found.add_at(is_other, "additional_addresses", Some(index), reason);
    }
    for (index, filter) in messages(listener, "listener_filters").iter().enumerate() {
        let name = type_of_filter(filter);
        let is_for_datagrams = name.starts_with("envoy.extensions.filters.udp.");
        let reason = format!("{name} is a filter of listeners with a UDP address and without QUIC");
        found.add_at(is_for_datagrams && !is_datagrams, "listener_filters", Some(index), reason);
        let is_for_streams = name.starts_with("envoy.extensions.filters.listener.");
        let reason = format!("{name} is no filter of listeners with a UDP address");
        found.add_at(is_for_streams && is_datagrams, "listener_filters", Some(index), reason);
    }
}

fn filter_chain(message: &DynamicMessage) -> Vec<Violation> {
    let terminal = [HTTP_CONNECTION_MANAGER, "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"];
    let not_terminal = [
        "envoy.extensions.filters.network.rbac.v3.RBAC",
        "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz",
        "envoy.extensions.filters.network.ratelimit.v3.RateLimit",
        "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit",
        "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
        "envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
    ];
    let is_not_terminal = |name: &str| not_terminal.contains(&name);
    last_is_terminal(message, "filters", &|name| terminal.contains(&name), &is_not_terminal)
}

fn http_connection_manager(message: &DynamicMessage) -> Vec<Violation> {
    let terminal = ["envoy.extensions.filters.http.router.v3.Router"];
    let is_terminal = |name: &str| terminal.contains(&name);
    let not_terminal = [
        "buffer",
        "compressor",
        "cors",
        "csrf",
        "decompressor",
        "ext_authz",
        "fault",
        "grpc_json_transcoder",
        "grpc_stats",
        "grpc_web",
        "health_check",
        "header_to_metadata",
        "jwt_authn",
        "local_ratelimit",
        "lua",
        "oauth2",
        "original_src",
        "ratelimit",
        "rbac",
        "set_metadata",
        "stateful_session",
        "tap",
    ];
    let is_not_terminal = |name: &str| {
        let name = name.strip_prefix("envoy.extensions.filters.http.");
        name.and_then(|name| name.split('.').next()).is_some_and(|filter| not_terminal.contains(&filter))
    };
    let mut found = Found::new(message);
    found.violations = last_is_terminal(message, "http_filters", &is_terminal, &is_not_terminal);
    repeated_upgrade(message, &mut found);
    found.add(is_negative(message, "stream_idle_timeout"), "stream_idle_timeout", NOT_NEGATIVE);
    if let Some(rds) = sub(message, "rds") {
        let is_rejected =
            !is_set(&rds, "config_source") && !text(&rds, "route_config_name").starts_with("xdstp:");
        found.add(
            is_rejected,
            "rds",
            "needs a `config_source`, or a `route_config_name` that begins with `xdstp:`",
        );
    }
    found.violations
}

/// A terminal filter is the last one of its list, and the last one is terminal.
fn last_is_terminal(
    message: &DynamicMessage,
    field: &str,
    is_terminal: &dyn Fn(&str) -> bool,
    is_not_terminal: &dyn Fn(&str) -> bool,
) -> Vec<Violation> {
    let mut found = Found::new(message);
    let filters = messages(message, field);
    for (index, filter) in filters.iter().enumerate() {
        let name = &*type_of_filter(filter);
        let is_last = index + 1 == filters.len();
        let reason = format!("{name} is a terminal filter and must be the last one");
        found.add_at(!is_last && is_terminal(name), field, Some(index), reason);
        let reason = format!("{name} is not a terminal filter, so it cannot be the last one");
        found.add_at(is_last && is_not_terminal(name), field, Some(index), reason);
    }
    found.violations
}

/// The full name of the message that configures a filter; empty if there is none.
fn type_of_filter(filter: &DynamicMessage) -> String {
    let url = sub(filter, "typed_config").map(|config| text(&config, "type_url")).unwrap_or_default();
    url.rsplit('/').next().unwrap_or_default().to_owned()
}

fn is_set(message: &DynamicMessage, field: &str) -> bool {
    message.has_field_by_name(field)
}

/// The message in a field, if it is set.
fn sub(message: &DynamicMessage, field: &str) -> Option<DynamicMessage> {
    let field = message.descriptor().get_field_by_name(field).filter(|field| message.has_field(field))?;
    message.get_field(&field).as_message().cloned()
}

fn list(message: &DynamicMessage, field: &str) -> Vec<Value> {
    let list = message.get_field_by_name(field);
    list.as_deref().and_then(Value::as_list).map(<[Value]>::to_vec).unwrap_or_default()
}

fn messages(message: &DynamicMessage, field: &str) -> Vec<DynamicMessage> {
    list(message, field).into_iter().filter_map(|item| item.as_message().cloned()).collect()
}

fn texts(message: &DynamicMessage, field: &str) -> Vec<String> {
    list(message, field).iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn text(message: &DynamicMessage, field: &str) -> String {
    let text = message.get_field_by_name(field);
    text.as_deref().and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn bytes(message: &DynamicMessage, field: &str) -> usize {
    message.get_field_by_name(field).as_deref().and_then(Value::as_bytes).map_or(0, |bytes| bytes.len())
}

fn number(message: &DynamicMessage, field: &str) -> Option<u64> {
    let value: Cow<'_, Value> = message.get_field_by_name(field)?;
    value.as_u64().or_else(|| value.as_u32().map(u64::from))
}

/// Seconds and nanoseconds.
fn duration(message: &DynamicMessage, field: &str) -> Option<(i64, i32)> {
    let duration = sub(message, field)?;
    let (seconds, nanos) = (duration.get_field_by_name("seconds")?, duration.get_field_by_name("nanos")?);
    Some((seconds.as_i64()?, nanos.as_i32()?))
}

fn is_negative(message: &DynamicMessage, field: &str) -> bool {
    duration(message, field).is_some_and(|duration| duration < (0, 0))
}

fn is_prime(number: u64) -> bool {
    number > 1
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

const RULE: &str = "of Envoy";
const NOT_NEGATIVE: &str = "must not be negative";
const HTTP_CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

// Values of `Cluster.DiscoveryType`.
const STATIC: i32 = 0;
const LOGICAL_DNS: i32 = 2;
const EDS: i32 = 3;
const ORIGINAL_DST: i32 = 4;

// Values of `Cluster.LbPolicy`.
const RING_HASH: i32 = 2;
const MAGLEV: i32 = 5;
const CLUSTER_PROVIDED: i32 = 6;
const LOAD_BALANCING_POLICY_CONFIG: i32 = 7;

/// Of `SocketAddress.Protocol`.
const UDP: i32 = 1;

#[cfg(test)]
mod tests;
