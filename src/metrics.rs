//! Metrics over HTTP, for Prometheus and other readers of OpenMetrics.
//!
//! `docs/metrics.md` lists what `xds serve` and `xds proxy` export. A program may add its own
//! metrics to its [`Registry`]:
//!
//! ```
//! use xds::Cache;
//! use xds::metrics::{Metrics, Registry, routes};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let cache = Cache::new();
//! let mut registry = Registry::default();
//! let metrics = Metrics::register(&mut registry, &cache);
//! // Runs until the cache is dropped.
//! tokio::spawn(metrics.measure(&cache));
//! let mut config = xds::ServerConfig::default();
//! config.add_observer(metrics);
//! // Serve it on a port for monitoring.
//! let router = routes(registry);
//! # }
//! ```

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;

pub use prometheus_client::registry::Registry;
pub use sources::watch_sources;
pub use xds_server::metrics::{LATE_AFTER, Metrics, TYPES_LIMIT};

mod sources;

/// `GET /metrics`: all metrics of a registry, as OpenMetrics text.
pub fn routes(registry: Registry) -> Router {
    Router::new().route("/metrics", get(export)).with_state(Arc::new(registry))
}

async fn export(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    // For a large cache this takes milliseconds, and the streams need the threads of the runtime.
    let encoded = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| text)
    });
    match encoded.await {
        Ok(Ok(text)) => Ok(([(CONTENT_TYPE, OPEN_METRICS)], text)),
        Ok(Err(_)) | Err(_) => Err((StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the metrics\n")),
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
