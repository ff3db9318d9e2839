//! The connections of the admin port.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use xds_server::{Peer, TimedWrites};

use super::RemoteAccess;

/// Accepts connections until the future is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    remote_access: Option<RemoteAccess>,
) -> Infallible {
    let mut connections = AdminConnections::default();
    let refusals = Arc::new(Refusals::default());
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection to the admin port failed");
                // If the process has no file descriptors left, the next accept fails as well.
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        // Events are small, and a person waits for them.
        _ = stream.set_nodelay(true);
        let (routes, remote_access, refusals) =
            (routes.clone(), remote_access.clone(), Arc::clone(&refusals));
        connections.spawn(address, async move {
            let Some(remote_access) = remote_access else {
                return converse(stream, TowerToHyperService::new(routes)).await;
            };
            match timeout(HEAD_WAIT, remote_access.tls.accept_http1(stream)).await {
                Ok(Ok((stream, peer))) if remote_access.authorizer.may_inspect(&peer) => {
                    let routes = routes.layer(from_fn_with_state((remote_access, peer), ask_again));
                    converse(stream, TowerToHyperService::new(routes)).await;
                }
                Ok(Ok((_, peer))) => refusals.on(address, &peer),
                // Logged with its reason.
                Ok(Err(_)) => {}
                Err(_) => tracing::debug!(peer = %address, "a TLS handshake at the admin port took too long"),
            }
        });
    }
}

/// The open connections, the oldest first. Dropping this ends all of them.
///
/// A new connection never waits: health checks must work even while many connections are idle, or
/// do not read their answers. So the oldest connection ends. If it was a browser or a scraper, it
/// connects again.
#[derive(Debug, Default)]
struct AdminConnections {
    tasks: JoinSet<()>,
    in_order: VecDeque<(SocketAddr, AbortHandle)>,
    warned_at: Option<Instant>,
    ended: u64,
}

impl AdminConnections {
    fn spawn(&mut self, address: SocketAddr, connection: impl Future<Output = ()> + Send + 'static) {
        // The results of finished tasks are not needed, but a set keeps them until they are taken.
        while self.tasks.try_join_next().is_some() {}
        self.in_order.retain(|(_, task)| !task.is_finished());
        if self.in_order.len() >= CONNECTIONS_LIMIT
            && let Some((oldest, task)) = self.in_order.pop_front()
        {
            task.abort();
            self.on_ended(oldest);
        }
        self.in_order.push_back((address, self.tasks.spawn(connection)));
    }

    /// Logs at most one warning per [`WARN_EVERY`]: a client that opens too many connections does
    /// it often.
    fn on_ended(&mut self, oldest: SocketAddr) {
        self.ended += 1;
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            let (limit, ended) = (CONNECTIONS_LIMIT, self.ended);
            tracing::warn!(%oldest, limit, ended, "the admin port has too many connections: the oldest are closed");
        }
    }
}

/// Clients that the policy does not let inspect.
#[derive(Debug, Default)]
struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    /// Logs at most one line per [`WARN_EVERY`]: a scraper comes back every few seconds.
    fn on(&self, address: SocketAddr, peer: &Peer) {
        // No code panics while it holds the lock, so the data of a poisoned lock is consistent.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (logged_at, refused) = &mut *state;
        *refused += 1;
        if logged_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *logged_at = Some(Instant::now());
            let (identity, refused) = (peer.name(), std::mem::take(refused));
            tracing::info!(
                peer = %address,
                identity,
                refused,
                "the admin port refused clients that the policy does not let inspect; this is the last of them"
            );
        }
    }
}

/// Checks each request again: during a connection, the policy may change and the certificate may
/// expire.
async fn ask_again(
    State((remote_access, peer)): State<(RemoteAccess, Peer)>,
    request: Request,
    next: Next,
) -> Response {
    let has_expired = peer.identity.as_ref().is_some_and(|identity| identity.has_expired());
    if has_expired || !remote_access.authorizer.may_inspect(&peer) {
        let head = [(header::CONNECTION, "close")];
        return (StatusCode::FORBIDDEN, head, "access was revoked, or the certificate has expired\n")
            .into_response();
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
        .serve_connection(TokioIo::new(TimedWrites::new(stream, HEAD_WAIT)), service)
        .await;
    if let Err(error) = served {
        tracing::trace!(%error, "a connection to the admin port ended");
    }
}

/// The shortest time between two lines about closed connections, or about refused clients.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Connections at the same time; a browser opens up to six for a page.
const CONNECTIONS_LIMIT: usize = 512;

/// How long a client may take to send a request, also the next one on a connection, and how long it
/// may read nothing of its answer.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// The pause after the system refused a connection.
const REST: Duration = Duration::from_millis(50);
