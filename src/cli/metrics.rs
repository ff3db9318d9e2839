//! What the commands that serve export on the port for monitoring.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tracing_appender::non_blocking::ErrorCounter;
use xds::client::prometheus::{self as client, Target, register_proxy};
use xds::client::proxy::Proxy;
use xds::metrics::{Metrics, Registry};
use xds::rest::Answers;
use xds::{Cache, Reloads, ServerConfig, Tls};

use super::listen::Files;
use super::policy::PolicyFile;

/// Counts what happens on the streams of a server that is about to be served.
pub(super) fn watch_server(registry: &mut Registry, cache: &Arc<Cache>, config: &mut ServerConfig) {
    let metrics = Metrics::register(registry, cache);
    tokio::spawn(metrics.measure(cache));
    config.add_observer(metrics);
}

/// What the clients of a proxy count, to be given to them before they start.
pub(super) fn upstream_recorder(registry: &mut Registry) -> Arc<Target> {
    client::Metrics::register(registry).proxy_target("upstream")
}

/// What a proxy tells of itself, and the resources of the clients that it starts with.
pub(super) fn watch_proxy(registry: &mut Registry, proxy: &Proxy, target: &Target) {
    register_proxy(registry, proxy);
    for (_, client) in proxy.clients() {
        target.count_resources_of(&client);
    }
}

/// What is read again while a server runs: whether the newest of it is in use.
pub(super) fn watch_sources(registry: &mut Registry, sources: Sources) {
    if !sources.all().is_empty() {
        registry.register_collector(Box::new(sources));
    }
}

/// Lines of the log that nobody took in time.
pub(super) fn watch_log(registry: &mut Registry, dropped: ErrorCounter) {
    registry.register_collector(Box::new(DroppedLines(dropped)));
}

#[derive(Debug)]
struct DroppedLines(ErrorCounter);

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("xds_log_lines_dropped", "Lines of the log that were dropped, as nobody took them in time");
        let counter = ConstCounter::new(self.0.dropped_lines() as u64);
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

/// What clients that poll cost.
pub(super) fn watch_polls(registry: &mut Registry, answers: Arc<Answers>) {
    registry.register_collector(Box::new(Polls(answers)));
}

#[derive(Debug)]
struct Polls(Arc<Answers>);

impl Collector for Polls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("xds_rest_bytes", "Bytes of requests and of answers that wait for their clients");
        let gauge = ConstGauge::new(i64::try_from(self.0.bytes()).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let (name, help) =
            ("xds_rest_polls_refused", "Polls that were answered 503, as the limit of bytes was reached");
        let counter = ConstCounter::new(self.0.refused());
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        let (name, help) = ("xds_rest_answers_given_up", "Answers that their clients did not take in time");
        let counter = ConstCounter::new(self.0.given_up());
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

/// What is read again while a server runs.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    folder: Option<Arc<Reloads>>,
    tls: Option<Arc<Tls>>,
    policy: Option<Arc<PolicyFile>>,
}

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
}

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct SourceOutcomeLabels {
    source: &'static str,
    outcome: &'static str,
}

impl Sources {
    pub(super) fn new(folder: Option<Arc<Reloads>>, (tls, policy): Files) -> Self {
        Self { folder, tls, policy }
    }

    /// With their names.
    pub(super) fn all(&self) -> Vec<(&'static str, &Reloads)> {
        let Self { folder, tls, policy } = self;
        let all = [
            ("folder", folder.as_deref()),
            ("certificates", tls.as_deref().map(Tls::reloads)),
            ("policy", policy.as_deref().map(|policy| &policy.reloads)),
        ];
        all.into_iter().filter_map(|(source, reloads)| Some((source, reloads?))).collect()
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<_> =
            self.all().into_iter().map(|(source, reloads)| (SourceLabels { source }, reloads)).collect();
        let (name, help) = (
            "xds_source_last_reload_successful",
            "Whether the newest content of what is read again is in use",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, reloads) in &all {
            let gauge = ConstGauge::new(i64::from(reloads.is_current()));
            gauge.encode(family.encode_family(source)?)?;
        }
        let (name, help) = (
            "xds_source_last_reload_success_timestamp_seconds",
            "When it was last looked at and good, whether it had changed or not",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, reloads) in &all {
            if let Some(good_at) = reloads.good_at() {
                ConstGauge::new(seconds(good_at)).encode(family.encode_family(source)?)?;
            }
        }
        let (name, help) = ("xds_source_reloads", "How often other content came into use, or was refused");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (SourceLabels { source }, reloads) in &all {
            for (outcome, count) in [("changed", reloads.changes()), ("refused", reloads.refusals())] {
                let labels = SourceOutcomeLabels { source, outcome };
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let (name, help) =
            ("xds_source_isolated_files", "Files that keep their last good content while the others go on");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, reloads) in all.iter().filter(|(SourceLabels { source }, _)| *source == "folder") {
            let count = i64::try_from(reloads.isolated()).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(source)?)?;
        }
        let (name, help) = (
            "xds_source_read_seconds",
            "For how long the read of a file goes on that has not ended; 0 without one",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, reloads) in &all {
            let seconds = reloads.longest_read().map_or(0.0, |(_, age)| age.as_secs_f64());
            ConstGauge::new(seconds).encode(family.encode_family(source)?)?;
        }
        let Some(tls) = &self.tls else { return Ok(()) };
        let (name, help) =
            ("xds_server_certificate_expiration_timestamp_seconds", "When the certificate in use expires");
        let gauge = ConstGauge::new(seconds(tls.expires()));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

/// Since 1970, in UTC.
fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
