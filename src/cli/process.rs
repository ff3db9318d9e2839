//! Metrics of the process and of its build. On systems other than Linux, those of resources are
//! missing.

use std::fmt;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// When the process started. `/proc` has it in ticks since the boot of the machine, whose time a
/// process without access to `/proc/stat` cannot read.
static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// To be called when the process starts.
pub(super) fn note_start() {
    LazyLock::force(&STARTED);
}

/// Registers the metrics of the process.
pub(super) fn watch_process(registry: &mut Registry) {
    registry.register_collector(Box::new(Process));
}

#[derive(Debug)]
struct Process;

#[derive(Debug, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("xds_build_info", "The version of xds; the value is always 1");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let build = BuildLabels { version: env!("CARGO_PKG_VERSION") };
        ConstGauge::new(1_i64).encode(family.encode_family(&build)?)?;
        let (name, help) = ("process_start_time_seconds", "When the process started, in seconds since 1970");
        let started = STARTED.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        ConstGauge::new(started).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        resources(&mut encoder)
    }
}

/// What the process uses. A value that the system does not give is left out.
#[cfg(target_os = "linux")]
fn resources(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    use prometheus_client::metrics::counter::ConstCounter;

    let Ok(process) = procfs::process::Process::myself() else { return Ok(()) };
    if let Ok(stat) = process.stat() {
        let (name, help) = ("process_cpu_seconds", "CPU time of the process, of all its threads");
        let seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        let counter = ConstCounter::new(seconds);
        counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        let bytes = stat.rss.saturating_mul(procfs::page_size());
        gauge(encoder, "process_resident_memory_bytes", "Physical memory of the process", bytes)?;
        let threads = stat.num_threads.unsigned_abs();
        gauge(encoder, "process_threads", "Threads of the process", threads)?;
    }
    if let Ok(open) = process.fd_count() {
        gauge(encoder, "process_open_fds", "Open file descriptors", open as u64)?;
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        gauge(encoder, "process_max_fds", "The limit of open file descriptors", most)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn resources(_: &mut DescriptorEncoder<'_>) -> fmt::Result {
    Ok(())
}

#[cfg(target_os = "linux")]
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
