//! The metrics of gRFC A78 for Prometheus.
//!
//! Names and labels are those of the proposal with `_` for each dot. Counters end in `_total`, as
//! in the exporters of OpenTelemetry. The units in braces are omitted, because Prometheus has none.
//!
//! | metric | type | labels | here |
//! | --- | --- | --- | --- |
//! | `grpc.xds_client.connected` | gauge | target, server | `grpc_xds_client_connected` |
//! | `grpc.xds_client.server_failure` | counter | target, server | `grpc_xds_client_server_failure_total` |
//! | `grpc.xds_client.resource_updates_valid` | counter | target, server, resource_type | `grpc_xds_client_resource_updates_valid_total` |
//! | `grpc.xds_client.resource_updates_invalid` | counter | target, server, resource_type | `grpc_xds_client_resource_updates_invalid_total` |
//! | `grpc.xds_client.resources` | gauge | target, authority, cache_state, resource_type | `grpc_xds_client_resources` |
//!
//! One more is ours: `xds_client_types`, a gauge by target, server, resource_type and state, counts the types
//! that are watched on each server by their [state](crate::health::SyncState): `requested`, `synced`, `stale`,
//! or `rejected` for a type that the server does not serve. Clients of a proxy have none:
//! [`register_proxy`] counts their types.
//!
//! | label | here | value |
//! | --- | --- | --- |
//! | `grpc.target` | `grpc_target` | the name that the program gives the client; gRPC uses its target, or `#server` |
//! | `grpc.xds.server` | `grpc_xds_server` | the URI of the server |
//! | `grpc.xds.resource_type` | `grpc_xds_resource_type` | the type without `type.googleapis.com/`; `#other` once a target has [`TYPES_LIMIT`] types |
//! | `grpc.xds.authority` | `grpc_xds_authority` | `#old` for names that are not `xdstp:`; empty for such names without an authority |
//! | `grpc.xds.cache_state` | `grpc_xds_cache_state` | `requested`, `does_not_exist`, `acked`, `nacked`, `timeout`, `received_error`, with the suffix `_but_cached` for an error with a cached copy |
//!
//! So the number of label sets is bounded: by the targets of the program, by the servers and
//! authorities of their bootstrap documents, by the limit of types, and by nine states.
//! [`Recorder`] says when each metric counts. `resources` is computed with each scrape, by a walk
//! over all watched resources; each locator counts as a resource, and so does each member of a glob
//! or wildcard.
//!
//! ```no_run
//! # async fn run(bootstrap: xds_client::bootstrap::Bootstrap) -> Result<(), xds_client::StartError> {
//! use prometheus_client::registry::Registry;
//! use xds_client::{Client, prometheus::Metrics};
//!
//! let mut registry = Registry::default();
//! let metrics = Metrics::register(&mut registry);
//! let checkout = metrics.target("checkout");
//! let client = Client::builder(bootstrap).recorder(checkout.clone()).start()?;
//! checkout.count_resources_of(&client);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use xds_core::XdstpName;
use xds_core::client::health::{Health, SyncState};
use xds_core::client::{Client as Machine, Report, ResourceStatus};
use xds_proto::service::SERVICES;

use crate::client::Client;
use crate::hub::Handle;
use crate::metrics::Recorder;

pub use proxy::register_proxy;

mod proxy;

/// The metrics of all clients of a program, in one registry.
#[derive(Debug, Clone)]
pub struct Metrics {
    families: Families,
    clients: Arc<Mutex<Vec<Counted>>>,
}

/// The metrics of one target: a [`Recorder`] for its client.
#[derive(Debug)]
pub struct Target {
    name: Arc<str>,
    types: Arc<Types>,
    metrics: Metrics,
}

/// The metrics that are updated with each event.
#[derive(Debug, Clone, Default)]
struct Families {
    connected: Family<ServerLabels, Gauge>,
    server_failure: Family<ServerLabels, Counter>,
    updates_valid: Family<TypeLabels, Counter>,
    updates_invalid: Family<TypeLabels, Counter>,
}

/// A client whose resources are counted; it is not kept alive for this.
#[derive(Debug, Clone)]
struct Counted {
    target: Arc<str>,
    types: Arc<Types>,
    handle: Weak<Handle>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabels {
    grpc_target: Arc<str>,
    grpc_xds_server: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    grpc_target: Arc<str>,
    grpc_xds_server: String,
    grpc_xds_resource_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ResourceLabels {
    grpc_target: Arc<str>,
    grpc_xds_authority: String,
    grpc_xds_cache_state: &'static str,
    grpc_xds_resource_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct TypeStateLabels {
    grpc_target: Arc<str>,
    grpc_xds_server: String,
    grpc_xds_resource_type: String,
    state: &'static str,
}

impl Metrics {
    /// Registers the metrics; call it once for each registry.
    pub fn register(registry: &mut Registry) -> Self {
        let families = Families::default();
        registry.register(
            "grpc_xds_client_connected",
            "Whether or not the xDS client currently has a working ADS stream to the xDS server",
            families.connected.clone(),
        );
        registry.register(
            "grpc_xds_client_server_failure",
            "xDS servers going from healthy to unhealthy",
            families.server_failure.clone(),
        );
        registry.register(
            "grpc_xds_client_resource_updates_valid",
            "Resources received that were considered valid, unchanged ones too",
            families.updates_valid.clone(),
        );
        registry.register(
            "grpc_xds_client_resource_updates_invalid",
            "Resources received that were considered invalid",
            families.updates_invalid.clone(),
        );
        let clients = Arc::default();
        registry.register_collector(Box::new(Resources { clients: Arc::clone(&clients) }));
        Self { families, clients }
    }

    /// The metrics of the clients of a proxy, which share one target. A type has its own label if
    /// it has a service or if a valid resource of it has arrived, so clients of the proxy cannot
    /// choose labels. If several clients use the same server, `connected` has the value of the last
    /// update.
    pub fn proxy_target(&self, name: impl Into<Arc<str>>) -> Arc<Target> {
        let types = Types { learned: Mutex::default(), from: Learned::FromResponses };
        Arc::new(Target { name: name.into(), types: Arc::new(types), metrics: self.clone() })
    }

    /// The metrics of one target. Each client needs its own target: two clients with the same
    /// target and server overwrite each other.
    pub fn target(&self, name: impl Into<Arc<str>>) -> Arc<Target> {
        Arc::new(Target { name: name.into(), types: Arc::default(), metrics: self.clone() })
    }
}

impl Target {
    /// Counts the resources of a client with each scrape, for as long as the client is used
    /// elsewhere.
    pub fn count_resources_of(&self, client: &Client) {
        let (target, types) = (Arc::clone(&self.name), Arc::clone(&self.types));
        let mut clients = lock(&self.metrics.clients);
        clients.retain(|counted| counted.handle.strong_count() > 0);
        clients.push(Counted { target, types, handle: Arc::downgrade(client.handle()) });
    }

    fn server(&self, server: &str) -> ServerLabels {
        ServerLabels { grpc_target: Arc::clone(&self.name), grpc_xds_server: server.to_owned() }
    }
}

impl Recorder for Target {
    fn connected(&self, server: &str, is_connected: bool) {
        let gauge = self.metrics.families.connected.get_or_create_owned(&self.server(server));
        gauge.set(i64::from(is_connected));
    }

    fn left(&self, server: &str) {
        self.metrics.families.connected.remove(&self.server(server));
    }

    fn server_failure(&self, server: &str) {
        self.metrics.families.server_failure.get_or_create_owned(&self.server(server)).inc();
    }

    fn updates(&self, server: &str, type_url: &str, valid: usize, invalid: usize) {
        let ServerLabels { grpc_target, grpc_xds_server } = self.server(server);
        if valid > 0 {
            self.types.learn(type_url);
        }
        let labels =
            TypeLabels { grpc_target, grpc_xds_server, grpc_xds_resource_type: self.types.label(type_url) };
        let Families { updates_valid, updates_invalid, .. } = &self.metrics.families;
        for (family, count) in [(updates_valid, valid), (updates_invalid, invalid)] {
            family.get_or_create_owned(&labels).inc_by(count as u64);
        }
    }
}

/// The types that have their own label.
#[derive(Debug, Default)]
struct Types {
    learned: Mutex<BTreeSet<String>>,
    from: Learned,
}

/// What gives a type its own label.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Learned {
    /// It is watched.
    #[default]
    FromWatches,
    /// It has a valid resource. Types with a service have a label from the start.
    FromResponses,
}

impl Types {
    fn learn(&self, type_url: &str) {
        let mut learned = lock(&self.learned);
        if learned.len() < TYPES_LIMIT {
            learned.insert(short(type_url).to_owned());
        }
    }

    fn label(&self, type_url: &str) -> String {
        let has_service = || SERVICES.iter().any(|row| row.type_url == type_url);
        match self.from {
            Learned::FromWatches => self.learn(type_url),
            Learned::FromResponses if has_service() => return short(type_url).to_owned(),
            Learned::FromResponses => {}
        }
        let name = short(type_url);
        if lock(&self.learned).contains(name) { name } else { OTHER }.to_owned()
    }
}

fn short(type_url: &str) -> &str {
    type_url.strip_prefix("type.googleapis.com/").unwrap_or(type_url)
}

/// Counts resources and types by state with each scrape.
#[derive(Debug)]
struct Resources {
    clients: Arc<Mutex<Vec<Counted>>>,
}

impl Collector for Resources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Not under the lock: the last reference to a client may be dropped here.
        let clients = lock(&self.clients).clone();
        let (mut resources, mut types) = (BTreeMap::new(), BTreeMap::new());
        for client in clients {
            client.count(&mut resources);
            client.count_types(&mut types);
        }
        gauges(&mut encoder, "grpc_xds_client_resources", "xDS resources by state", resources)?;
        gauges(&mut encoder, "xds_client_types", "Watched types by their state on a server", types)
    }
}

fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: BTreeMap<L, i64>,
) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn word(state: &SyncState) -> &'static str {
    match state {
        SyncState::Requested => "requested",
        SyncState::Synced(_) => "synced",
        SyncState::Stale(_) => "stale",
        SyncState::Rejected(..) => "rejected",
    }
}

impl Counted {
    fn count(&self, counts: &mut BTreeMap<ResourceLabels, i64>) {
        let Some(handle) = self.handle.upgrade() else { return };
        let Some(mut reports) = handle.hub().read(Machine::report) else { return };
        // A resource that is watched by name and also as a member counts once.
        reports.dedup_by(|one, other| {
            (&one.type_url, &one.name, &one.parameters) == (&other.type_url, &other.name, &other.parameters)
                && cache_state(one) == cache_state(other)
        });
        for report in &reports {
            let labels = ResourceLabels {
                grpc_target: Arc::clone(&self.target),
                grpc_xds_authority: authority(report.name.as_str()),
                grpc_xds_cache_state: cache_state(report),
                grpc_xds_resource_type: self.types.label(report.type_url.as_str()),
            };
            *counts.entry(labels).or_default() += 1;
        }
    }
}

impl Counted {
    fn count_types(&self, counts: &mut BTreeMap<TypeStateLabels, i64>) {
        let Some(handle) = self.handle.upgrade() else { return };
        let count = |machine: &Machine| {
            for server in 0..machine.servers() {
                for (type_url, state) in machine.health(server).into_iter().flat_map(Health::states) {
                    let labels = TypeStateLabels {
                        grpc_target: Arc::clone(&self.target),
                        grpc_xds_server: machine.server_name(server).to_string(),
                        grpc_xds_resource_type: self.types.label(type_url.as_str()),
                        state: word(state),
                    };
                    *counts.entry(labels).or_default() += 1;
                }
            }
        };
        _ = handle.hub().read(count);
    }
}

/// Only names whose authority is in the bootstrap document can be watched, so the number of labels
/// is bounded.
fn authority(name: &str) -> String {
    let new_style = XdstpName::of(name).ok().flatten();
    new_style.as_ref().map_or("#old", XdstpName::authority).to_owned()
}

/// The states of A78 and A88.
fn cache_state(report: &Report) -> &'static str {
    match (report.status, report.copy.is_some()) {
        // A copy in this state comes from the last-known-good file, and no server has confirmed it.
        (ResourceStatus::Requested, _) => "requested",
        (ResourceStatus::Acked, _) => "acked",
        (ResourceStatus::Timeout, _) => "timeout",
        (ResourceStatus::DoesNotExist, false) => "does_not_exist",
        (ResourceStatus::DoesNotExist, true) => "does_not_exist_but_cached",
        (ResourceStatus::Nacked, false) => "nacked",
        (ResourceStatus::Nacked, true) => "nacked_but_cached",
        (ResourceStatus::ReceivedError, false) => "received_error",
        (ResourceStatus::ReceivedError, true) => "received_error_but_cached",
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even after a panic.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The label of all types without their own label.
const OTHER: &str = "#other";

/// How many types of one target have their own label. A program such as a proxy may watch any type
/// that its clients subscribe to.
pub const TYPES_LIMIT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2_names_of_the_old_style_share_an_authority() {
        assert_eq!(authority("a"), "#old");
        assert_eq!(authority("xdstp://shop/acme.Thing/a"), "shop");
        assert_eq!(authority("xdstp:///acme.Thing/a"), "");
    }

    #[test]
    fn p2_types_past_the_limit_share_a_label() {
        let types = Types::default();
        assert_eq!(types.label("type.googleapis.com/acme.Thing"), "acme.Thing");
        assert_eq!(types.label("example.com/acme.Thing"), "example.com/acme.Thing");
        for number in 2..TYPES_LIMIT {
            assert_eq!(types.label(&format!("t{number}")), format!("t{number}"));
        }
        assert_eq!(types.label("one more"), "#other");
        assert_eq!(types.label("type.googleapis.com/acme.Thing"), "acme.Thing");
    }

    #[test]
    fn who_asks_a_proxy_cannot_choose_labels() {
        let types = Types { from: Learned::FromResponses, ..Types::default() };
        assert_eq!(types.label("example.com/acme.Invented"), "#other");
        assert_eq!(types.label(xds_proto::type_url::SECRET), short(xds_proto::type_url::SECRET));
        types.learn("example.com/acme.Thing");
        assert_eq!(types.label("example.com/acme.Thing"), "example.com/acme.Thing");
        assert_eq!(types.label("example.com/acme.Invented"), "#other");
    }
}
