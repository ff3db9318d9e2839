//! Connections of the port.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use xds_server::Peer;

use super::Door;

/// Takes connections for ever.
pub(super) async fn serve(listener: TcpListener, routes: Router, door: Option<Door>) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS_LIMIT));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        // Their results are of no use, but each takes room until it is taken.
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to the admin port failed");
                // Without file handles the next would fail as well.
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        // Events are small, and somebody waits for them.
        _ = stream.set_nodelay(true);
        let (routes, door) = (routes.clone(), door.clone());
        connections.spawn(async move {
            let _place = place;
            let Some(door) = door else { return converse(stream, TowerToHyperService::new(routes)).await };
            match timeout(HEAD_WAIT, door.tls.accept_http1(stream)).await {
                Ok(Ok((stream, peer))) if door.authorizer.may_inspect(&peer) => {
                    let routes = routes.layer(from_fn_with_state((door, peer), ask_again));
                    converse(stream, TowerToHyperService::new(routes)).await;
                }
                Ok(Ok((_, peer))) => tracing::info!(
                    identity = peer.name(),
                    "the policy does not let this one see the admin page"
                ),
                Ok(Err(_)) | Err(_) => tracing::debug!("a handshake at the admin port failed"),
            }
        });
    }
}

/// Who may look says a policy that changes, and a certificate that expires; a connection lasts.
async fn ask_again(State((door, peer)): State<(Door, Peer)>, request: Request, next: Next) -> Response {
    let has_expired = peer.identity.as_ref().is_some_and(|identity| identity.has_expired());
    if has_expired || !door.authorizer.may_inspect(&peer) {
        let head = [(header::CONNECTION, "close")];
        return (StatusCode::FORBIDDEN, head, "you may not look any more\n").into_response();
    }
    next.run(request).await
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: TowerToHyperService<Router>,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::trace!(%error, "a connection to the admin port ended");
    }
}

/// Connections at the same time; a browser opens up to six for a page.
const CONNECTIONS_LIMIT: usize = 512;

/// How long a client may take to say what it wants, also on a connection that was used before.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// How long nothing is accepted after the system refused a connection.
const REST: Duration = Duration::from_millis(50);
