//! The log, and spans of commits for a trace collector.

use clap::Args;
use tokio::runtime::Handle;
use tracing_appender::non_blocking::ErrorCounter;
use xds::Cache;

use super::Failure;
use super::running::{Log, LogFormat, report_dropped};

#[derive(Debug, Args)]
pub(super) struct Traces {
    /// Send spans to this collector: one for each commit, and in it one for each answer, until the
    /// ACK
    ///
    /// The collector speaks OTLP over gRPC, for example http://127.0.0.1:4317. OTEL_SERVICE_NAME
    /// and OTEL_RESOURCE_ATTRIBUTES identify the sender.
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

/// The log and the traces. Dropping this sends the remaining spans, which takes at most 2 s.
#[derive(Debug)]
pub(super) struct Telemetry {
    log: Log,
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Traces {
    /// Starts the log and the traces; the collector is connected to by the runtime.
    #[cfg(not(feature = "otel"))]
    pub(super) fn start(&self, log_format: LogFormat, runtime: &Handle) -> Result<Telemetry, Failure> {
        Ok(Telemetry { log: log_format.start(None, runtime)? })
    }

    /// Starts the log and the traces; the collector is connected to by the runtime.
    #[cfg(feature = "otel")]
    pub(super) fn start(&self, log_format: LogFormat, runtime: &Handle) -> Result<Telemetry, Failure> {
        use opentelemetry::trace::TracerProvider as _;
        use opentelemetry_otlp::{SpanExporter, WithExportConfig};
        use opentelemetry_sdk::Resource;
        use opentelemetry_sdk::trace::SdkTracerProvider;
        use tracing::Level;
        use tracing_subscriber::Layer;
        use tracing_subscriber::filter::Targets;

        let Some(endpoint) = &self.otlp_endpoint else {
            return Ok(Telemetry { log: log_format.start(None, runtime)?, provider: None });
        };
        let _runtime = runtime.enter();
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| Failure::Traces { endpoint: endpoint.clone(), error })?;
        let resource = match std::env::var("OTEL_SERVICE_NAME") {
            Ok(_) => Resource::builder().build(),
            Err(_) => Resource::builder().with_service_name("xds").build(),
        };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        // Only spans of commits: the exporter must not send what it logs itself.
        let commits = Targets::new().with_target(xds::TRACE_TARGET, Level::DEBUG);
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("xds")).with_filter(commits);
        let log = log_format.start(Some(Box::new(layer)), runtime)?;
        Ok(Telemetry { log, provider: Some(provider) })
    }
}

impl Telemetry {
    /// Returns the count of dropped log lines, and starts the task that logs it.
    pub(super) fn dropped_lines(&self) -> ErrorCounter {
        tokio::spawn(report_dropped(self.log.dropped()));
        self.log.dropped()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        #[cfg(feature = "otel")]
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(std::time::Duration::from_secs(2))
        {
            tracing::warn!(%error, "the last spans were not sent to the collector");
        }
    }
}

/// Traces the commits of a cache from now on, if a layer receives the spans.
pub(super) fn trace(cache: &Cache) {
    if tracing::enabled!(target: xds::TRACE_TARGET, tracing::Level::DEBUG) {
        tokio::spawn(xds::trace_commits(cache));
    }
}
