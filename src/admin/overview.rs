//! What there is at all, and how upstreams stand.

use std::sync::Arc;

use axum::extract::State;
use serde_json::json;

use super::Shared;
use super::answer::{Answer, Json, Refusal};

/// `/api/`: numbers for the head of the page.
pub(super) async fn overview(State(shared): State<Arc<Shared>>) -> Json {
    let snapshot = shared.cache.snapshot();
    let resources: usize = snapshot.counts().map(|(_, count)| count).sum();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "revision": snapshot.revision().to_string(),
        "is_synced": snapshot.is_synced(),
        "resources": resources,
        "streams": shared.clients.streams(),
        "has_upstreams": shared.upstreams.is_some(),
    }))
}

/// Where nothing is.
pub(super) async fn nothing() -> Refusal {
    Refusal::missing("nothing is at this path of the API: docs/admin.md has those that there are")
}

/// `/api/upstreams`: of a proxy alone.
pub(super) async fn upstreams(State(shared): State<Arc<Shared>>) -> Answer {
    if shared.upstreams.is_none() {
        return Err(Refusal::missing("this server is no proxy: it has no upstreams"));
    }
    let told = shared.work(|shared| shared.upstreams.as_ref().map(|upstreams| (upstreams.0)())).await;
    Ok(Json(told.unwrap_or_default()))
}
