//! Metrics over HTTP, for Prometheus and all that speak OpenMetrics.
//!
//! `docs/metrics.md` has what `xds serve` and `xds proxy` export. A program puts whatever it likes
//! into its [`Registry`]:
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
//! // Until the cache is gone.
//! tokio::spawn(metrics.measure(&cache));
//! let mut config = xds::ServerConfig::default();
//! config.add_observer(metrics);
//! // To be served on a port that is for monitoring.
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
pub use xds_server::metrics::{LATE_AFTER, Metrics, TYPES_LIMIT};

/// `GET /metrics`: all of a registry, as OpenMetrics text.
pub fn routes(registry: Registry) -> Router {
    Router::new().route("/metrics", get(tell)).with_state(Arc::new(registry))
}

async fn tell(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    // Of a large cache it takes milliseconds, in which streams need their threads.
    let encoded = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| text)
    });
    match encoded.await {
        Ok(Ok(text)) => Ok(([(CONTENT_TYPE, OPEN_METRICS)], text)),
        Ok(Err(_)) | Err(_) => Err((StatusCode::INTERNAL_SERVER_ERROR, "a metric cannot be told\n")),
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
