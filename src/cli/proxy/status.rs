//! How a proxy stands, over HTTP: for people, and for who decides whether to send clients to it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Value, json};
use xds::client::proxy::health::State as TypeState;
use xds::client::proxy::{Proxy, Route, Upstream};
use xds::{RejectedVariant, Rejections};

use crate::cli::type_name;

/// `/proxy`, `/readyz` and `/readyz/TYPE`.
pub(super) fn routes(proxy: Proxy, rejections: Arc<Rejections>) -> axum::Router {
    let readiness = axum::Router::new().route("/readyz/{type}", get(ready)).with_state(proxy.clone());
    axum::Router::new()
        .route("/proxy", get(tell))
        .with_state((proxy, rejections))
        .route("/readyz", get(async || "ready\n"))
        .merge(readiness)
}

async fn tell(State((proxy, rejections)): State<(Proxy, Arc<Rejections>)>) -> impl IntoResponse {
    let text = report(&proxy, &rejections);
    ([(CONTENT_TYPE, "application/json")], format!("{text:#}\n"))
}

/// How it stands, as JSON.
pub(super) fn report(proxy: &Proxy, rejections: &Rejections) -> Value {
    let (counts, load) = (proxy.counts(), proxy.load());
    json!({
        "upstreams": proxy.upstreams().iter().map(upstream).collect::<Vec<_>>(),
        "asked_by_clients": load.wants,
        "asked_upstream": load.questions,
        "counts": {
            "hits": counts.hits, "misses": counts.misses, "joined": counts.joined,
            "requalified": counts.requalified, "replaced": counts.replaced, "unshared": counts.unshared,
            "audited": counts.audited, "disagreed": counts.disagreed, "refused": counts.refused,
            "tried": counts.tried, "refused_by_clients": counts.refused_by_clients,
        },
        "rejected_by_clients": rejections.list().iter().map(rejected).collect::<Vec<_>>(),
    })
}

fn rejected(rejected: &RejectedVariant) -> Value {
    let clients = rejected
        .clients
        .iter()
        .map(|(client, count)| json!({"node": *client.id, "cluster": *client.cluster, "count": count}));
    json!({
        "type": rejected.id.type_url.as_str(),
        "name": rejected.id.name.as_str(),
        "constraints": rejected.id.constraints.to_string(),
        "version": rejected.version.to_string(),
        "count": rejected.count,
        "clients": clients.collect::<Vec<_>>(),
        "last": rejected.detail,
    })
}

fn upstream(upstream: &Upstream) -> Value {
    let route = match &upstream.route {
        Route::Shared => "shared".to_owned(),
        Route::Node(parameters) => format!("node {parameters}"),
        Route::Alone(parameters) => format!("alone {parameters}"),
        Route::Aside { of: None, type_url } => format!("aside {}", type_url.message_name()),
        Route::Aside { of: Some(parameters), type_url } => {
            format!("aside {} of node {parameters}", type_url.message_name())
        }
    };
    let servers = upstream.servers.iter();
    let types = upstream.types.iter().map(|(type_url, state)| {
        let state = match state {
            TypeState::Requested => json!({"state": "requested"}),
            TypeState::Synced(generation) => json!({"state": "synced", "generation": generation.to_string()}),
            TypeState::Stale(generation) => json!({"state": "stale", "generation": generation.to_string()}),
            TypeState::Rejected(generation, status) => {
                json!({"state": "rejected", "generation": generation.to_string(), "status": status.to_string()})
            }
        };
        (type_url.as_str().to_owned(), state)
    });
    json!({
        "route": route,
        "servers": servers.map(|(name, is)| json!({"uri": **name, "connected": is})).collect::<Vec<_>>(),
        "silent_for_seconds": upstream.silent_for.map(|silent| silent.as_secs()),
        "types": types.collect::<serde_json::Map<_, _>>(),
    })
}

/// A type that nobody asked for yet is not known to be missing, so it is ready.
async fn ready(State(proxy): State<Proxy>, Path(type_name): Path<String>) -> impl IntoResponse {
    let type_url = match type_name::parse_any(&type_name) {
        Ok(type_url) => type_url,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let upstreams = proxy.upstreams();
    let states = upstreams.iter().flat_map(|upstream| &upstream.types);
    let mut missing = states.filter(|(of, state)| *of == type_url && !state.is_readable());
    match missing.next() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some((_, TypeState::Rejected(_, status))) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("the upstream does not serve it: {status}\n"))
        }
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the upstream did not answer yet\n".to_owned()),
    }
}
