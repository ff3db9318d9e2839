//! Counts of the whole server, and the state of upstreams.

use std::sync::Arc;

use axum::extract::State;
use serde_json::json;

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody};

/// `/api/`: the counts at the top of the page.
pub(super) async fn overview(State(state): State<Arc<AdminState>>) -> JsonBody {
    let (errors, warnings) = Arc::clone(&state).trouble_work(|state| state.troubles.counts()).await;
    let snapshot = state.cache.snapshot();
    let resources: usize = snapshot.counts().map(|(_, count)| count).sum();
    JsonBody(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "revision": snapshot.revision().to_string(),
        "is_synced": snapshot.is_synced(),
        "resources": resources,
        "streams": state.clients.streams(),
        "has_upstreams": state.upstreams.is_some(),
        "has_store": state.store.is_some(),
        "has_rollouts": state.rollouts.is_some(),
        "errors": errors,
        "warnings": warnings,
    }))
}

/// All unknown paths of the API.
pub(super) async fn nothing() -> ApiError {
    ApiError::missing("unknown path of the API: see docs/admin.md")
}

/// `/api/upstreams`: only proxies have it.
pub(super) async fn upstreams(State(state): State<Arc<AdminState>>) -> JsonAnswer {
    if state.upstreams.is_none() {
        return Err(ApiError::missing("this server is not a proxy: it has no upstreams"));
    }
    let answer = state.work(|state| state.upstreams.as_ref().map(|upstreams| (upstreams.0)())).await;
    Ok(JsonBody(answer.unwrap_or_default()))
}
