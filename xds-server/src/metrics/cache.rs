//! Metrics that are read from the cache with each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use xds_core::Cache;

use super::ReasonLabel;
use super::propagation::Awaited;
use super::types::{TypeLabel, Types};

/// Counts the resources in a cache and the subscriptions to them.
///
/// A scrape costs a walk over the selection classes, during which no stream can change its
/// subscription, and a walk over the clients of the newest commit.
#[derive(Debug)]
pub(super) struct CacheCollector {
    pub(super) cache: Weak<Cache>,
    pub(super) types: Arc<Types>,
    pub(super) awaited: Arc<Awaited>,
}

#[derive(Debug, Default)]
struct TypeCounts {
    resources: usize,
    variants: usize,
    subscriptions: usize,
    classes: usize,
    names: usize,
}

#[derive(Debug, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

impl CacheCollector {
    fn by_type(&self, cache: &Cache) -> BTreeMap<TypeLabel, TypeCounts> {
        let snapshot = cache.snapshot();
        // The cache of a proxy also has types that clients subscribe to and that the upstream has
        // no resource of.
        let committed = snapshot.counts().filter(|(_, count)| *count > 0);
        self.types.learn(committed.map(|(type_url, _)| type_url.clone()));
        let mut by_type = BTreeMap::<_, TypeCounts>::new();
        for (type_url, count) in snapshot.counts() {
            let of_type = by_type.entry(self.types.label(type_url)).or_default();
            of_type.resources += count;
            of_type.variants += snapshot.of_type(type_url).map_or(0, |resources| resources.variants());
        }
        for (type_url, watched) in cache.subscription_counts_by_type() {
            let of_type = by_type.entry(self.types.label(&type_url)).or_default();
            of_type.subscriptions += watched.streams;
            of_type.classes += watched.classes;
            of_type.names += watched.names;
        }
        by_type
    }
}

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // When the cache is dropped, its metrics disappear.
        let Some(cache) = self.cache.upgrade() else { return Ok(()) };
        let by_type = self.by_type(&cache);
        type Of = fn(&TypeCounts) -> usize;
        let gauges: [(&str, &str, Of); 5] = [
            ("xds_cache_resources", "Names that have a resource", |of| of.resources),
            ("xds_cache_variants", "Variants of all names", |of| of.variants),
            ("xds_cache_subscriptions", "Streams that subscribe to the type", |of| of.subscriptions),
            ("xds_cache_classes", "Selection classes: groups of streams with the same selection", |of| {
                of.classes
            }),
            ("xds_cache_subscribed_names", "Names that streams subscribe to", |of| of.names),
        ];
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (label, of_type) in &by_type {
                ConstGauge::new(of(of_type) as i64).encode(family.encode_family(label)?)?;
            }
        }
        let counts = cache.commit_counts();
        let mut commits = encoder.encode_descriptor(
            "xds_cache_commits",
            "Transactions that were committed",
            None,
            MetricType::Counter,
        )?;
        for (outcome, count) in [("changed", counts.committed), ("unchanged", counts.unchanged)] {
            ConstCounter::new(count).encode(commits.encode_family(&OutcomeLabel { outcome })?)?;
        }
        let mut refused = encoder.encode_descriptor(
            "xds_cache_commits_refused",
            "Transactions that were refused",
            None,
            MetricType::Counter,
        )?;
        for (reason, count) in counts.refused {
            ConstCounter::new(count).encode(refused.encode_family(&ReasonLabel { reason })?)?;
        }
        let mut clients = encoder.encode_descriptor(
            "xds_cache_newest_commit_clients",
            "Clients that the newest commit affects, by their answer to it",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in self.awaited.clients() {
            ConstGauge::new(count as i64).encode(clients.encode_family(&StateLabel { state })?)?;
        }
        let mut answers = encoder.encode_descriptor(
            "xds_cache_answers_awaited",
            "Missing answers of streams to recent commits, one for each type",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in self.awaited.answers() {
            ConstGauge::new(count as i64).encode(answers.encode_family(&StateLabel { state })?)?;
        }
        Ok(())
    }
}
