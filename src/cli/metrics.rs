//! The metrics of `xds serve` and `xds proxy`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tracing_appender::non_blocking::ErrorCounter;
use xds::admin::{Trouble, Troubles};
use xds::client::prometheus::{self as client, Target, register_proxy};
use xds::client::proxy::Proxy;
use xds::folder::StandingWarnings;
use xds::metrics::{Metrics, Registry};
use xds::rest::Answers;
use xds::{Cache, Reloads, ServerConfig, Tls};
use xds_core::RolloutCounts;
use xds_server::Rollouts;

use super::health::Ready;
use super::listen::Files;
use super::policy::PolicyFile;
use super::process::watch_process;

/// Registers the metrics of a server, and of its process, before it starts.
pub(super) fn watch_server(registry: &mut Registry, cache: &Arc<Cache>, config: &mut ServerConfig) {
    watch_process(registry);
    let metrics = Metrics::register(registry, cache);
    tokio::spawn(metrics.measure(cache));
    config.add_observer(metrics);
}

/// Registers the metrics of a proxy's upstream clients. The clients need the returned recorder
/// before they start.
pub(super) fn upstream_recorder(registry: &mut Registry) -> Arc<Target> {
    client::Metrics::register(registry).proxy_target("upstream")
}

/// Registers the metrics of a proxy, and counts the resources of the clients that it starts with.
pub(super) fn watch_proxy(registry: &mut Registry, proxy: &Proxy, target: &Target) {
    register_proxy(registry, proxy);
    for (_, client) in proxy.clients() {
        target.count_resources_of(&client);
    }
}

/// Registers the metrics of files that are read again: whether their newest content is in use.
pub(super) fn watch_sources(registry: &mut Registry, sources: &Sources) {
    let all = sources.all().into_iter();
    xds::metrics::watch_sources(registry, all.map(|(source, reloads)| (source, Arc::clone(reloads))));
    if let Some(tls) = &sources.tls {
        registry.register_collector(Box::new(Certificate(Arc::clone(tls))));
    }
}

/// Registers the number of warnings about the folder in use.
pub(super) fn watch_warnings(registry: &mut Registry, warnings: Arc<StandingWarnings>) {
    registry.register_collector(Box::new(Warnings(warnings)));
}

/// Registers the rollouts: how they ended, and how many changes clients refused.
pub(super) fn watch_rollouts(registry: &mut Registry, rollouts: Arc<Rollouts>) {
    registry.register_collector(Box::new(RolloutMetrics(rollouts)));
}

#[derive(Debug)]
struct RolloutMetrics(Arc<Rollouts>);

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct RolloutLabels {
    result: &'static str,
}

impl Collector for RolloutMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.0.status();
        let (name, help) = ("xds_rollouts", "Rollouts that ended, by result");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let RolloutCounts { promoted, refused, replaced } = status.counts;
        for (result, count) in [("promoted", promoted), ("refused", refused), ("replaced", replaced)] {
            ConstCounter::new(count).encode(family.encode_family(&RolloutLabels { result })?)?;
        }
        let step = status.running.map_or(0, |running| running.step + 1);
        let gauges = [
            ("xds_rollout_step", "The step of the rollout that runs, from 1; 0 without one", step),
            (
                "xds_rollout_refused",
                "Changes that are not rolled out, because clients refused them",
                status.refused.len(),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Warnings(Arc<StandingWarnings>);

#[derive(Debug, Clone, Copy, EncodeLabelSet)]
struct WarningLabels {
    source: &'static str,
    kind: &'static str,
}

impl Collector for Warnings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Nothing before the first check: 0 would mean that there is no warning.
        let Some(counts) = self.0.counts() else { return Ok(()) };
        let (name, help) = ("xds_source_warnings", "Warnings about the content of the source in use");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (kind, count) in counts {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&WarningLabels { source: "folder", kind })?)?;
        }
        Ok(())
    }
}

/// Registers whether the server is ready, as `/readyz` says.
pub(super) fn watch_ready(registry: &mut Registry, ready: Ready) {
    registry.register_collector(Box::new(IsReady(ready)));
}

struct IsReady(Ready);

impl fmt::Debug for IsReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsReady").finish_non_exhaustive()
    }
}

impl Collector for IsReady {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = ConstGauge::new(i64::from((self.0)(None).is_ok()));
        let help = "Whether the server can serve clients, as /readyz says";
        gauge.encode(encoder.encode_descriptor("xds_ready", help, None, MetricType::Gauge)?)
    }
}

/// Registers the count of the troubles that the admin page shows.
pub(super) fn watch_troubles(registry: &mut Registry, troubles: Troubles) {
    registry.register_collector(Box::new(TroubleCounts(troubles)));
}

#[derive(Debug)]
struct TroubleCounts(Troubles);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct TroubleLabels {
    kind: &'static str,
    severity: &'static str,
}

impl Collector for TroubleCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counts = BTreeMap::<_, i64>::new();
        for Trouble { kind, severity, .. } in &*self.0.list() {
            *counts.entry(TroubleLabels { kind, severity: severity.as_str() }).or_default() += 1;
        }
        let (name, help) = ("xds_troubles", "Standing troubles, as the admin page shows them");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, count) in counts {
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Registers the count of log lines that were dropped.
pub(super) fn watch_log(registry: &mut Registry, dropped: ErrorCounter) {
    registry.register_collector(Box::new(DroppedLines(dropped)));
}

#[derive(Debug)]
struct DroppedLines(ErrorCounter);

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("xds_log_lines_dropped", "Log lines that were dropped because their reader was too slow");
        let counter = ConstCounter::new(self.0.dropped_lines() as u64);
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

/// Registers the metrics of REST polls.
pub(super) fn watch_polls(registry: &mut Registry, answers: Arc<Answers>) {
    registry.register_collector(Box::new(Polls(answers)));
}

#[derive(Debug)]
struct Polls(Arc<Answers>);

impl Collector for Polls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("xds_rest_bytes", "Bytes of REST requests, and of answers that clients have not read");
        let gauge = ConstGauge::new(i64::try_from(self.0.bytes()).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        let (name, help) =
            ("xds_rest_polls_refused", "REST polls that got 503 because the limit of bytes was reached");
        let counter = ConstCounter::new(self.0.refused());
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        let (name, help) = (
            "xds_rest_answers_given_up",
            "REST answers that were dropped because clients did not read them in time",
        );
        let counter = ConstCounter::new(self.0.given_up());
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    }
}

/// The files that are read again while a server runs.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    folder: Option<Arc<Reloads>>,
    kubernetes: Option<Arc<Reloads>>,
    tls: Option<Arc<Tls>>,
    policy: Option<Arc<PolicyFile>>,
    api_policy: Option<Arc<PolicyFile>>,
    tokens: Option<Arc<Reloads>>,
}

impl Sources {
    pub(super) fn new(
        folder: Option<Arc<Reloads>>,
        kubernetes: Option<Arc<Reloads>>,
        (tls, policy): Files,
    ) -> Self {
        Self { folder, kubernetes, tls, policy, api_policy: None, tokens: None }
    }

    /// The same with the tokens of the API of a store, and the policy for it alone.
    pub(super) fn with_api(self, tokens: Option<Arc<Reloads>>, api_policy: Option<Arc<PolicyFile>>) -> Self {
        Self { tokens, api_policy, ..self }
    }

    /// The certificates of the server, if it has any.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_deref()
    }

    /// All of them, with their names.
    pub(super) fn all(&self) -> Vec<(&'static str, &Arc<Reloads>)> {
        let Self { folder, kubernetes, tls, policy, api_policy, tokens } = self;
        let all = [
            ("folder", folder.as_ref()),
            ("kubernetes", kubernetes.as_ref()),
            ("certificates", tls.as_deref().map(Tls::reloads)),
            ("policy", policy.as_deref().map(|policy| &policy.reloads)),
            ("api_policy", api_policy.as_deref().map(|policy| &policy.reloads)),
            ("tokens", tokens.as_ref()),
        ];
        all.into_iter().filter_map(|(source, reloads)| Some((source, reloads?))).collect()
    }
}

/// The certificate of a server.
#[derive(Debug)]
struct Certificate(Arc<Tls>);

impl Collector for Certificate {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("xds_server_certificate_expiration_timestamp_seconds", "When the certificate in use expires");
        let gauge = ConstGauge::new(seconds(self.0.expires()));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

/// Seconds since 1970, in UTC.
fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
