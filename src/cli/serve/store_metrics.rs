//! The metrics of the durable store.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use xds::metrics::Registry;
use xds_proto::xds::store::v1 as proto;
use xds_store::store::{PassProgress, PlanProgress};
use xds_store_server::{PeersStatus, Stage};

use super::store::ServedStore;

/// Registers the metrics of a store.
pub(super) fn watch_store(registry: &mut Registry, store: ServedStore) {
    registry.register_collector(Box::new(StoreMetrics(store)));
}

#[derive(Debug)]
struct StoreMetrics(ServedStore);

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct CommitLabels {
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct PlanLabels {
    name: String,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct PlanStateLabels {
    name: String,
    state: &'static str,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct RegionLabels {
    region: String,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct PeerLabels {
    peer: String,
}

fn seconds(lag: prost_types::Duration) -> f64 {
    lag.seconds as f64 + f64::from(lag.nanos) / 1e9
}

/// A number that a metric has of a peer.
type OfPeer = fn(&proto::PeerStatus) -> f64;

fn encode_peers(status: &PeersStatus, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let metrics: [(_, _, OfPeer); 3] = [
        ("xds_store_peer_up", "Whether the last call to a peer was answered", |peer| {
            f64::from(u8::from(peer.is_up))
        }),
        ("xds_store_entries_behind", "Commits that a peer has and that are missing here", |peer| {
            peer.entries_behind as f64
        }),
        (
            "xds_store_lag_seconds",
            "How long commits that a peer has have been missing here without a break",
            |peer| peer.lag.map_or(0.0, seconds),
        ),
    ];
    let (name, help) = ("xds_store_mended", "Records that were not as at a peer, and were mended");
    let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(status.mended).encode(counter)?;
    for (name, help, value) in metrics {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for peer in &status.peers {
            let labels = PeerLabels { peer: peer.address.clone() };
            ConstGauge::new(value(peer)).encode(family.encode_family(&labels)?)?;
        }
    }
    // SG29
    let (name, help) =
        ("xds_store_region_age_seconds", "How old copies of the names of a region are at most");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for proto::RegionStatus { region, age, .. } in &status.regions {
        let labels = RegionLabels { region: region.clone() };
        ConstGauge::new(age.map_or(0.0, seconds)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(store) = self;
        let (statistics, standing) = (store.handle.statistics(), store.handle.standing().borrow().clone());
        let (name, help) = ("xds_store_commits", "Commits that were answered, by their outcome");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((outcome, reason), count) in statistics.commits() {
            ConstCounter::new(count).encode(family.encode_family(&CommitLabels { outcome, reason })?)?;
        }
        let (name, help) = ("xds_store_commit_seconds", "How long the stages of commits take");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for stage in Stage::ALL {
            let times = statistics.times(stage);
            let buckets = times.buckets();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = StageLabels { stage: stage.as_str() };
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<StageLabels>(times.sum().as_secs_f64(), count, &buckets, None)?;
        }
        let help = "Conflicts that this node has journaled";
        let family = encoder.encode_descriptor("xds_store_conflicts", help, None, MetricType::Counter)?;
        ConstCounter::new(standing.head.conflicts).encode(family)?;
        let (name, help) = ("xds_store_records", "Records, by their state");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (state, count) in
            [("live", standing.records), ("deleting", standing.deleting), ("deleted", standing.tombstones)]
        {
            gauge(count).encode(family.encode_family(&StateLabels { state })?)?;
        }
        let (waiting, _) = store.handle.waiting_commits();
        let is_accepting = i64::from(store.handle.refuses_commits().is_none());
        for (name, help, value) in [
            (
                "xds_store_revision",
                "The last revision",
                i64::try_from(standing.revision()).unwrap_or(i64::MAX),
            ),
            ("xds_store_accepts_commits", "Whether commits are accepted", is_accepting),
            (
                "xds_store_waiting_commits",
                "Commits that wait for an answer",
                i64::try_from(waiting).unwrap_or(i64::MAX),
            ),
        ] {
            ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        if let Some(status) = store.handle.peers() {
            encode_peers(&status, &mut encoder)?;
        }
        if !standing.plans.is_empty() {
            let schemas = store.handle.schemas();
            let name_of = |progress: &PlanProgress| {
                let plan = schemas.plans().iter().find(|plan| plan.number() == progress.number);
                plan.map(|plan| plan.name().to_owned()).unwrap_or_default()
            };
            let (name, help) = ("xds_migration_phase", "The phase of each plan, 0 to 5");
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for plan in &standing.plans {
                let labels = PlanLabels { name: name_of(plan) };
                ConstGauge::new(i64::from(plan.phase.number())).encode(family.encode_family(&labels)?)?;
            }
            let (name, help) =
                ("xds_migration_records", "Records that the present or last pass of a plan looked at");
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for plan in &standing.plans {
                let PassProgress { looked_at, failed, .. } = plan.pass;
                for (state, count) in [("looked_at", looked_at), ("failed", failed)] {
                    let labels = PlanStateLabels { name: name_of(plan), state };
                    let count = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
                    count.encode(family.encode_family(&labels)?)?;
                }
            }
        }
        if let Some(bytes) = store.size_bytes() {
            let (name, help) = ("xds_store_size_bytes", "The size of the file of the store");
            let size = ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
            size.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let since = standing.deleting_since.unwrap_or_else(SystemTime::now);
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        let name = "xds_store_deleting_oldest_seconds";
        let help = "How long the oldest deletion in progress has waited; 0 without one";
        let age = ConstGauge::new(age.as_secs_f64());
        age.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        if let Some(oldest) = store.oldest_kept() {
            let age = SystemTime::now().duration_since(oldest).unwrap_or_default();
            let (name, help) = ("xds_store_floor_age_seconds", "The age of the oldest commit that is kept");
            let age = ConstGauge::new(age.as_secs_f64());
            age.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let (name, help) = ("xds_store_sync_failures", "Writes that failed for another reason than a limit");
        let failed = ConstCounter::new(statistics.failed_writes());
        failed.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

fn gauge(count: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}
