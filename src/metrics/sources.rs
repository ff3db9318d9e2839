//! Whether the newest content of sources is in use.

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use xds_file::Reloads;

use super::Registry;

/// Registers the metrics of sources that are read again, such as those of a
/// [`Supervisor`](crate::source::Supervisor): the `xds_source_*` of `docs/metrics.md`, with the name
/// of each as the label `source`. Call it once per registry.
///
/// ```
/// use std::sync::Arc;
/// use xds::Reloads;
/// use xds::metrics::{Registry, watch_sources};
///
/// // `Supervisor::add` returns such a value.
/// let reloads = Arc::new(Reloads::default());
/// watch_sources(&mut Registry::default(), [("registry", reloads)]);
/// ```
pub fn watch_sources<N: Into<String>>(
    registry: &mut Registry,
    sources: impl IntoIterator<Item = (N, Arc<Reloads>)>,
) {
    let sources: Vec<_> = sources.into_iter().map(|(source, reloads)| (source.into(), reloads)).collect();
    // A family without a sample would be noise.
    if !sources.is_empty() {
        registry.register_collector(Box::new(Sources(sources)));
    }
}

#[derive(Debug)]
struct Sources(Vec<(String, Arc<Reloads>)>);

impl Sources {
    /// Encodes a gauge: one sample for each source that has a value.
    fn gauge<V: EncodeGaugeValue>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&Reloads) -> Option<V>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (source, reloads) in &self.0 {
            if let Some(value) = value(reloads) {
                ConstGauge::new(value).encode(family.encode_family(&[("source", source.as_str())])?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let what =
            ("xds_source_last_reload_successful", "Whether the newest content of the source is in use");
        self.gauge(&mut encoder, what, |reloads| Some(i64::from(reloads.is_current())))?;
        let what = (
            "xds_source_last_reload_success_timestamp_seconds",
            "When the source was last read and valid, whether or not it had changed",
        );
        self.gauge(&mut encoder, what, |reloads| {
            let since = reloads.good_at()?.duration_since(UNIX_EPOCH);
            i64::try_from(since.unwrap_or_default().as_secs()).ok()
        })?;
        let what = (
            "xds_source_isolated_files",
            "Files or objects that keep their last good content while others are served",
        );
        self.gauge(&mut encoder, what, |reloads| i64::try_from(reloads.isolated()).ok())?;
        let what = (
            "xds_source_read_seconds",
            "How long the current read of a file has taken; 0 if no read is running",
        );
        self.gauge(&mut encoder, what, |reloads| {
            Some(reloads.longest_read().map_or(0.0, |(_, age)| age.as_secs_f64()))
        })?;
        let (name, help) = ("xds_source_reloads", "How often new content came into use, or was refused");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (source, reloads) in &self.0 {
            for (outcome, count) in [("changed", reloads.changes()), ("refused", reloads.refusals())] {
                let labels = [("source", source.as_str()), ("outcome", outcome)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let labelled = self.0.iter().map(|(source, reloads)| (source.as_str(), reloads.label()));
        let labelled: Vec<_> = labelled.filter(|(_, label)| !label.is_empty()).collect();
        if !labelled.is_empty() {
            let (name, help) = ("xds_source_info", "The label of the content in use");
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (source, label) in labelled {
                let labels = [("source", source), ("label", &*label)];
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_its_samples_and_without_sources_there_is_nothing() {
        let encoded = |sources: Vec<(&str, Arc<Reloads>)>| {
            let (mut registry, mut text) = (Registry::default(), String::new());
            watch_sources(&mut registry, sources);
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        assert_eq!(encoded(Vec::new()), "# EOF\n");
        let (good, bad) = (Arc::new(Reloads::default()), Arc::new(Reloads::default()));
        good.on_new();
        good.set_label("1a2b");
        bad.on_refused("away".into());
        let text = encoded(vec![("good", good), ("bad", bad)]);
        for line in [
            r#"xds_source_last_reload_successful{source="good"} 1"#,
            r#"xds_source_last_reload_successful{source="bad"} 0"#,
            r#"xds_source_reloads_total{source="good",outcome="changed"} 1"#,
            r#"xds_source_reloads_total{source="bad",outcome="refused"} 1"#,
            r#"xds_source_info{source="good",label="1a2b"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let never_good = r#"xds_source_last_reload_success_timestamp_seconds{source="bad"}"#;
        assert!(!text.contains(never_good), "{text}");
    }
}
