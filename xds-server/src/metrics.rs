//! Metrics of a server for Prometheus.
//!
//! | metric | type | labels | meaning |
//! | --- | --- | --- | --- |
//! | `xds_server_streams` | gauge | service, protocol | open streams |
//! | `xds_server_streams_ended_total` | counter | code | streams that ended, by gRPC status |
//! | `xds_server_streams_refused_total` | counter | reason | streams that the server closed because of an invalid request, a limit, or missing permission |
//! | `xds_server_limits_hit_total` | counter | limit | how often a client reached a limit |
//! | `xds_server_responses_total`, `xds_server_response_bytes_total` | counter | type | responses sent, and their bytes |
//! | `xds_server_acks_total`, `xds_server_nacks_total` | counter | type | responses that clients ACKed or rejected |
//! | `xds_server_connections_ended_total` | counter | reason | connections that the server closed or refused |
//! | `xds_server_handshakes_failed_total` | counter | reason | TLS handshakes that failed |
//! | `xds_server_stale_nonces_total` | counter | | requests whose nonce is not that of a response that waits for an ACK |
//! | `xds_server_node_changes_total` | counter | | requests with another node than the first one |
//! | `xds_cache_resources`, `xds_cache_variants` | gauge | type | names that have a resource, and variants of all names |
//! | `xds_cache_subscriptions`, `xds_cache_classes`, `xds_cache_subscribed_names` | gauge | type | streams, selection classes and names in the interest index |
//! | `xds_cache_commits_total` | counter | outcome | `changed` or `unchanged` |
//! | `xds_cache_commits_refused_total` | counter | reason | those of [`CommitError::REASONS`](xds_core::CommitError::REASONS) |
//! | `xds_cache_newest_commit_clients` | gauge | state | `acked`, `nacked`, `pending`, `late` (after [`LATE_AFTER`]) or `gone` |
//! | `xds_cache_answers_awaited` | gauge | state | `pending` or `late`: missing answers of streams to recent commits |
//! | `xds_propagation_seconds` | histogram | type | from a commit to each ACK |
//! | `xds_propagation_lost_total` | counter | what | not measured: `commits` and `answers` that came too fast, and answers `given_up` |
//!
//! No client can choose a label value. A type has its own label if it has a service or was ever
//! committed, and at most [`TYPES_LIMIT`] types have one; all others are `#other`. Polls over REST
//! are not streams and are not counted.
//!
//! Per response this costs one look-up in a table of types and two or three atomic additions,
//! without a lock or an allocation. An ACK of a commit costs its stream one entry in a queue, under
//! a lock, for the task that measures propagation.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use prometheus_client::registry::Registry;
//! use xds_core::Cache;
//! use xds_server::metrics::Metrics;
//! use xds_server::{Server, ServerConfig};
//!
//! let cache = Cache::new();
//! let mut registry = Registry::default();
//! let metrics = Metrics::register(&mut registry, &cache);
//! tokio::spawn(metrics.measure(&cache));
//! let config = ServerConfig { observer: Some(metrics), ..ServerConfig::default() };
//! let server = Server::new(cache).with_config(config);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tonic::Code;
use xds_core::Cache;
use xds_core::server::{Protocol, Service, StreamError, Verdict};
use xds_proto::service::{ADS, SERVICES};

use crate::follow::follow;
use crate::observe::{ConnectionEnd, Event, HandshakeFailure, Observer};
use crate::skim::{Client, SkimError};

use cache::CacheCollector;
use propagation::Propagation;
use types::Types;

pub use propagation::LATE_AFTER;
pub use types::TYPES_LIMIT;

mod cache;
mod propagation;
mod types;

/// Counts the events of the streams of one cache: an [`Observer`].
#[derive(Debug)]
pub struct Metrics {
    types: Arc<Types>,
    streams: Family<StreamLabels, Gauge>,
    ended: Family<CodeLabel, Counter>,
    refused: Family<ReasonLabel, Counter>,
    limits_hit: Family<LimitLabel, Counter>,
    connections_ended: Family<ReasonLabel, Counter>,
    handshakes_failed: Family<ReasonLabel, Counter>,
    stale_nonces: Counter,
    node_changes: Counter,
    propagation: Propagation,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StreamLabels {
    service: &'static str,
    protocol: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

impl Metrics {
    /// Registers the metrics of one cache; call it once for each registry. It does not keep the
    /// cache alive.
    pub fn register(registry: &mut Registry, cache: &Arc<Cache>) -> Arc<Self> {
        let types = Arc::new(Types::register(registry));
        let propagation = Propagation::register(registry, Arc::clone(&types));
        let metrics = Self {
            types: Arc::clone(&types),
            streams: Family::default(),
            ended: Family::default(),
            refused: Family::default(),
            limits_hit: Family::default(),
            connections_ended: Family::default(),
            handshakes_failed: Family::default(),
            stale_nonces: Counter::default(),
            node_changes: Counter::default(),
            propagation,
        };
        let Self { streams, ended, refused, limits_hit, stale_nonces, node_changes, .. } = &metrics;
        registry.register("xds_server_streams", "Open streams", streams.clone());
        registry.register("xds_server_streams_ended", "Streams that ended, by gRPC status", ended.clone());
        let help = "Streams that the server closed: invalid request, limit, or missing permission";
        registry.register("xds_server_streams_refused", help, refused.clone());
        let help = "How often a client reached a limit";
        registry.register("xds_server_limits_hit", help, limits_hit.clone());
        let help = "Connections that the server closed or refused, by reason";
        registry.register("xds_server_connections_ended", help, metrics.connections_ended.clone());
        for end in ConnectionEnd::ALL {
            metrics.connections_ended.get_or_create_owned(&ReasonLabel { reason: end.label() });
        }
        let help = "TLS handshakes that failed, by reason";
        registry.register("xds_server_handshakes_failed", help, metrics.handshakes_failed.clone());
        for failure in HandshakeFailure::ALL {
            metrics.handshakes_failed.get_or_create_owned(&ReasonLabel { reason: failure.label() });
        }
        let help = "Requests whose nonce is not that of a response that waits for an ACK";
        registry.register("xds_server_stale_nonces", help, stale_nonces.clone());
        let help = "Requests with another node than the first one";
        registry.register("xds_server_node_changes", help, node_changes.clone());
        LIMITS.iter().for_each(|limit| metrics.limit_hit(limit, 0));
        for protocol in [Protocol::Sotw, Protocol::Delta] {
            metrics.streams.get_or_create_owned(&StreamLabels::of(&Service::Aggregated, protocol));
        }
        metrics.ended.get_or_create_owned(&CodeLabel { code: format!("{:?}", Code::Ok) });
        metrics.refused.get_or_create_owned(&ReasonLabel { reason: "limit" });
        let awaited = Arc::clone(metrics.propagation.awaited());
        let collector = CacheCollector { cache: Arc::downgrade(cache), types, awaited };
        registry.register_collector(Box::new(collector));
        Arc::new(metrics)
    }

    /// Measures how long clients take to ACK commits. Spawn it once; it ends with the cache, and
    /// does not keep the cache alive. Without it, `xds_propagation_seconds` stays empty and no
    /// answer counts as awaited.
    pub fn measure(&self, cache: &Cache) -> impl Future<Output = ()> + Send + use<> {
        follow(cache, self.propagation.clone())
    }

    fn limit_hit(&self, limit: &'static str, count: u64) {
        self.limits_hit.get_or_create_owned(&LimitLabel { limit }).inc_by(count);
    }

    fn refused(&self, error: &StreamError) {
        let (reason, limit) = match error {
            StreamError::MissingTypeUrl => ("missing_type_url", None),
            StreamError::WrongTypeUrl { .. } => ("wrong_type_url", None),
            StreamError::NotServed { .. } => ("not_served", None),
            StreamError::TooManyInvalidNames { .. } => ("limit", Some("invalid_names")),
            StreamError::TooManyNames { .. } => ("limit", Some("names")),
            StreamError::TooManyParameters { .. } => ("limit", Some("parameters")),
            StreamError::TooManyTypes { .. } => ("limit", Some("types")),
            StreamError::FellBehind { .. } => ("limit", Some("removals")),
            StreamError::TooManyRoutesAway { .. } => ("limit", Some("routes_away")),
            _ => ("other", None),
        };
        self.count_refusal(reason, limit);
    }

    fn count_refusal(&self, reason: &'static str, limit: Option<&'static str>) {
        self.refused.get_or_create_owned(&ReasonLabel { reason }).inc();
        if let Some(limit) = limit {
            self.limit_hit(limit, 1);
        }
    }
}

impl Observer for Metrics {
    fn on_event(&self, _: &Client, event: Event<'_>) {
        match event {
            Event::Accepted { service, protocol } => {
                self.streams.get_or_create_owned(&StreamLabels::of(service, protocol)).inc();
            }
            Event::Ended { service, protocol, code, .. } => {
                self.streams.get_or_create_owned(&StreamLabels::of(service, protocol)).dec();
                self.ended.get_or_create_owned(&CodeLabel { code: format!("{code:?}") }).inc();
            }
            Event::Sent(response) => self.types.with(&response.type_url, |of_type| {
                of_type.responses.inc();
                of_type.response_bytes.inc_by(response.size_bytes() as u64);
            }),
            Event::Answered(Verdict::Acked { type_url, .. }) => {
                self.types.with(type_url, |of_type| of_type.acks.inc());
            }
            // S6c: the NACK of a part belongs to the first one.
            Event::Answered(Verdict::Nacked { is_repeat: true, .. }) => {}
            Event::Answered(Verdict::Nacked { type_url, .. }) => {
                self.types.with(type_url, |of_type| of_type.nacks.inc());
            }
            Event::NamesDenied(denied) => self.types.with(&denied.type_url, |of_type| {
                of_type.names_denied.inc_by(denied.count as u64);
            }),
            Event::StaleNonce => _ = self.stale_nonces.inc(),
            Event::NodeChanged => _ = self.node_changes.inc(),
            Event::Refused(error) => self.refused(error),
            Event::Denied { code } => {
                let reason =
                    if code == Code::Unauthenticated { "unauthenticated" } else { "permission_denied" };
                self.refused.get_or_create_owned(&ReasonLabel { reason }).inc();
            }
            Event::TooManyStreams => self.limit_hit("streams", 1),
            Event::Unreadable(error) => {
                let (reason, limit) = match error {
                    SkimError::TypeUrlTooLong { .. } => ("limit", Some("type_url")),
                    SkimError::Malformed(_) | SkimError::NotUtf8 { .. } => ("malformed", None),
                };
                self.count_refusal(reason, limit);
            }
            Event::RequestTooLarge => self.limit_hit("request_bytes", 1),
            Event::TooMuchPartial => self.limit_hit("partial_request_bytes", 1),
            Event::RequestTimeout => self.limit_hit("request_time", 1),
            Event::ConnectionEnded(end) => {
                self.connections_ended.get_or_create_owned(&ReasonLabel { reason: end.label() }).inc();
            }
            Event::HandshakeFailed(failure) => {
                self.handshakes_failed.get_or_create_owned(&ReasonLabel { reason: failure.label() }).inc();
            }
            // Already counted with an earlier event.
            Event::Opened | Event::Rejected { .. } => {}
        }
    }
}

impl StreamLabels {
    fn of(service: &Service, protocol: Protocol) -> Self {
        let service = match service {
            Service::Aggregated => ADS,
            // Streams can only be opened on the services of this table.
            Service::Single(type_url) => {
                SERVICES.iter().find(|row| row.type_url == type_url.as_str()).map_or("", |row| row.service)
            }
        };
        let protocol = match protocol {
            Protocol::Sotw => "sotw",
            Protocol::Delta => "delta",
        };
        Self { service, protocol }
    }
}

/// The limits that a client can reach; all are counted from zero.
const LIMITS: [&str; 10] = [
    "streams",
    "request_bytes",
    "partial_request_bytes",
    "request_time",
    "type_url",
    "names",
    "parameters",
    "types",
    "removals",
    "invalid_names",
];
