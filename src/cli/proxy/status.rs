//! The state of a proxy over HTTP, for people and for health checks.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Value, json};
use xds::client::ServerState;
use xds::client::health::SyncState;
use xds::client::proxy::{Proxy, Upstream};
use xds::{Peer, Readiness, RejectedVariant, Rejections, ServerConfig, TypeUrl, shortened};

use crate::cli::health::Ready;
pub(super) use troubles::add as add_troubles;

mod troubles;

/// `/proxy`, for clients that may inspect.
pub(super) fn routes(proxy: Proxy, rejections: Arc<Rejections>, config: ServerConfig) -> axum::Router {
    let answer = async move |peer: Option<Extension<Peer>>| {
        let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
        if !config.may_inspect(&peer) {
            return (StatusCode::FORBIDDEN, "the policy does not let this client inspect\n".to_owned())
                .into_response();
        }
        let text = report(&proxy, &rejections);
        ([(CONTENT_TYPE, "application/json")], format!("{text:#}\n")).into_response()
    };
    axum::Router::new().route("/proxy", get(answer))
}

/// The state as JSON.
pub(super) fn report(proxy: &Proxy, rejections: &Rejections) -> Value {
    let (counts, load) = (proxy.counts(), proxy.load());
    json!({
        "upstreams": proxy.upstreams().iter().map(upstream).collect::<Vec<_>>(),
        "asked_by_clients": load.downstream,
        "asked_upstream": load.upstream,
        "counts": {
            "hits": counts.hits, "misses": counts.misses, "joined": counts.joined,
            "requalified": counts.requalified, "replaced": counts.replaced, "unshared": counts.unshared,
            "audited": counts.audited, "disagreed": counts.disagreed, "refused": counts.refused,
            "tried": counts.tried, "refused_by_clients": counts.refused_by_clients,
        },
        "cache_file": proxy.cache_file().map(|file| json!({"behind": file.is_behind, "failures": file.failures})),
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
    let route = upstream.route.to_string();
    let servers = upstream.servers.iter();
    let types = upstream.types.iter().map(|(type_url, state)| {
        let state = match state {
            SyncState::Requested => json!({"state": "requested"}),
            SyncState::Synced(generation) => json!({"state": "synced", "generation": generation.to_string()}),
            SyncState::Stale(generation) => json!({"state": "stale", "generation": generation.to_string()}),
            SyncState::Rejected(generation, status) => {
                json!({"state": "rejected", "generation": generation.to_string(), "status": status.to_string()})
            }
        };
        (type_url.as_str().to_owned(), state)
    });
    json!({
        "route": route,
        "servers": servers.map(server).collect::<Vec<_>>(),
        "silent_for_seconds": upstream.silent_for.map(|silent| silent.as_secs()),
        "types": types.collect::<serde_json::Map<_, _>>(),
    })
}

fn server(server: &ServerState) -> Value {
    let failure = server.failure.as_ref().map(|failure| {
        json!({
            "reason": shortened(&failure.reason, REASON_LIMIT_BYTES),
            "since_ms": at_ms(failure.since), "last_at_ms": at_ms(failure.last_at), "count": failure.count,
        })
    });
    json!({
        "uri": *server.uri, "connected": server.is_connected, "in_use": server.is_needed, "failure": failure,
    })
}

/// Milliseconds since 1970, in UTC.
fn at_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The longest reason of a failure; a server chooses its text.
const REASON_LIMIT_BYTES: usize = 1024;

/// Whether the proxy can serve clients, for checks over HTTP.
pub(super) fn ready(proxy: &Proxy) -> Ready {
    let proxy = proxy.clone();
    Arc::new(move |type_url| proxy.readiness(type_url).map_err(|error| error.to_string()))
}

/// The same for gRPC health.
pub(super) fn readiness(proxy: &Proxy) -> Arc<dyn Readiness> {
    Arc::new(ProxyReadiness(proxy.clone()))
}

#[derive(Debug)]
struct ProxyReadiness(Proxy);

impl Readiness for ProxyReadiness {
    fn is_ready(&self, type_url: Option<&TypeUrl>) -> bool {
        self.0.readiness(type_url).is_ok()
    }
}
