//! Metrics of a proxy for Prometheus; all are read with each scrape.
//!
//! | metric | type | labels | meaning |
//! | --- | --- | --- | --- |
//! | `xds_proxy_lookups_total` | counter | result | downstream: `hit`, `joined`, `refused`; upstream: `miss`; see [`ProxyCounts`] |
//! | `xds_proxy_downstream_subscriptions`, `xds_proxy_upstream_subscriptions` | gauge | | downstream subscriptions (locators of clients), and upstream subscriptions |
//! | `xds_proxy_requalified_total`, `xds_proxy_replaced_total`, `xds_proxy_unshared_total` | counter | | how sharing ended, as in [`ProxyCounts`] |
//! | `xds_proxy_audits_total` | counter | result | hits that were verified with the upstream: `agreed` or `disagreed` |
//! | `xds_proxy_trials_total` | counter | result | responses that a few clients tried first: `accepted` or `refused` by them |
//! | `xds_proxy_cache_file_behind` | gauge | | 1 while a change could not be written to the file, so no set is restored from it; only with a file |
//! | `xds_proxy_cache_file_failures_total` | counter | | failed writes; only with a file |
//! | `xds_proxy_upstream_types` | gauge | route, type, state | upstreams in which a type is `requested`, `synced`, `stale` or `rejected` |
//! | `xds_proxy_upstream_connections` | gauge | route, server, state | upstreams that are `connected` to a server, or `disconnected` |
//! | `xds_proxy_upstream_silent_seconds` | gauge | route | how long a response of an upstream has been due, at most; 0 if none is |
//!
//! There may be an upstream for each set of parameters, so `route` is only its kind: `shared`,
//! `node`, `alone` or `aside`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use xds_core::proxy::{ProxyCounts, ProxyLoad};

use super::{Learned, Types, gauges, word};
use crate::client::ServerState;
use crate::proxy::{CacheFile, Proxy, Route, RouteKind};

/// Registers the metrics of a proxy; call it once for each registry. It does not keep the proxy
/// alive.
pub fn register_proxy(registry: &mut Registry, proxy: &Proxy) {
    let types = Types { learned: Mutex::new(BTreeSet::new()), from: Learned::FromResponses };
    registry.register_collector(Box::new(ProxyCollector { proxy: Box::new(proxy.downgrade()), types }));
}

struct ProxyCollector {
    proxy: Box<dyn Fn() -> Option<Proxy> + Send + Sync>,
    types: Types,
}

impl fmt::Debug for ProxyCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyCollector").field("types", &self.types).finish_non_exhaustive()
    }
}

#[derive(Debug, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct UpstreamTypeLabels {
    route: &'static str,
    r#type: String,
    state: &'static str,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct UpstreamServerLabels {
    route: &'static str,
    server: Arc<str>,
    state: &'static str,
}

impl Collector for ProxyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(proxy) = (self.proxy)() else { return Ok(()) };
        encode_counts(&mut encoder, proxy.counts())?;
        let ProxyLoad { downstream, upstream } = proxy.load();
        gauge(&mut encoder, "xds_proxy_downstream_subscriptions", "Locators of clients", downstream)?;
        gauge(&mut encoder, "xds_proxy_upstream_subscriptions", "Upstream subscriptions", upstream)?;
        if let Some(CacheFile { is_behind, failures }) = proxy.cache_file() {
            let (name, help) =
                ("xds_proxy_cache_file_behind", "Whether a change could not be written to the file");
            gauge(&mut encoder, name, help, usize::from(is_behind))?;
            let (name, help) = ("xds_proxy_cache_file_failures", "Failed writes of the file");
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(failures).encode(metric)?;
        }
        self.encode_upstreams(&mut encoder, &proxy)
    }
}

impl ProxyCollector {
    fn encode_upstreams(&self, encoder: &mut DescriptorEncoder<'_>, proxy: &Proxy) -> fmt::Result {
        for (type_url, _) in proxy.cache().snapshot().counts().filter(|(_, count)| *count > 0) {
            self.types.learn(type_url.as_str());
        }
        let mut types = BTreeMap::<_, i64>::new();
        let mut servers = BTreeMap::<_, i64>::new();
        let mut silent = BTreeMap::<_, f64>::new();
        for upstream in proxy.upstreams() {
            let route = kind(&upstream.route);
            for (type_url, state) in &upstream.types {
                let (r#type, state) = (self.types.label(type_url.as_str()), word(state));
                *types.entry(UpstreamTypeLabels { route, r#type, state }).or_default() += 1;
            }
            for ServerState { uri: server, is_connected, .. } in upstream.servers {
                let state = if is_connected { "connected" } else { "disconnected" };
                *servers.entry(UpstreamServerLabels { route, server, state }).or_default() += 1;
            }
            let silence = upstream.silent_for.unwrap_or_default().as_secs_f64();
            let longest = silent.entry(RouteLabel { route }).or_default();
            *longest = longest.max(silence);
        }
        let (name, help) = ("xds_proxy_upstream_types", "Upstreams by the state of a type");
        gauges(encoder, name, help, types)?;
        let (name, help) = ("xds_proxy_upstream_connections", "Upstreams by whether a server is connected");
        gauges(encoder, name, help, servers)?;
        let (name, help) =
            ("xds_proxy_upstream_silent_seconds", "How long a response of an upstream has been due, at most");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, seconds) in silent {
            ConstGauge::new(seconds).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

fn encode_counts(encoder: &mut DescriptorEncoder<'_>, counts: ProxyCounts) -> fmt::Result {
    let ProxyCounts {
        hits,
        misses,
        joined,
        requalified,
        replaced,
        unshared,
        audited,
        disagreed,
        refused,
        tried,
        refused_by_clients,
    } = counts;
    let lookups = [("hit", hits), ("miss", misses), ("joined", joined), ("refused", refused)];
    results(encoder, "xds_proxy_lookups", "Results of downstream subscriptions", &lookups)?;
    let audits = [("agreed", audited.saturating_sub(disagreed)), ("disagreed", disagreed)];
    results(encoder, "xds_proxy_audits", "Hits that were verified with the upstream", &audits)?;
    let accepted = tried.saturating_sub(refused_by_clients);
    let trials = [("accepted", accepted), ("refused", refused_by_clients)];
    results(encoder, "xds_proxy_trials", "Responses that a few clients tried first", &trials)?;
    let others = [
        (
            "xds_proxy_requalified",
            "Downstream subscriptions that lost a shared variant and were matched again",
            requalified,
        ),
        ("xds_proxy_replaced", "Variants that were replaced by overlapping ones", replaced),
        ("xds_proxy_unshared", "Names that clients no longer share", unshared),
    ];
    for (name, help, count) in others {
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(count).encode(metric)?;
    }
    Ok(())
}

fn results(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: &[(&'static str, u64)],
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (result, count) in counts {
        ConstCounter::new(*count).encode(family.encode_family(&ResultLabel { result })?)?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> fmt::Result {
    ConstGauge::new(value as i64).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn kind(route: &Route) -> &'static str {
    match route.kind {
        RouteKind::Shared => "shared",
        RouteKind::Node(_) => "node",
        RouteKind::Alone(_) => "alone",
        RouteKind::SideStream { .. } => "aside",
    }
}
