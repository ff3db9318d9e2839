//! The connections of the admin port.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tower::ServiceExt as _;
use xds_server::{Peer, TimedWrites};

use super::activity::Activity;
use super::unread::{Calls, Unread, timed};
use super::{RemoteAccess, guard};

/// Accepts connections until the future is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    remote_access: Option<RemoteAccess>,
    protocols: Protocols,
) -> Infallible {
    let unread = Arc::new(Unread::default());
    let builder = builder(protocols, &unread);
    tokio::select! {
        never = accept(listener, routes, remote_access, (protocols, builder)) => never,
        never = unread.end_late_ones() => never,
    }
}

async fn accept(
    listener: TcpListener,
    routes: Router,
    remote_access: Option<RemoteAccess>,
    (protocols, builder): (Protocols, auto::Builder<Calls>),
) -> Infallible {
    let builder = Arc::new(builder);
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
        let (builder, activity) = (Arc::clone(&builder), Activity::new());
        let of_connection = Arc::clone(&activity);
        connections.spawn(address, activity, async move {
            let activity = of_connection;
            let Some(remote_access) = remote_access else {
                return converse(stream, routes, &builder, &activity).await;
            };
            let accepted = async {
                match protocols {
                    Protocols::Http1 => remote_access.tls.accept_http1(stream).await,
                    Protocols::WithGrpc => remote_access.tls.accept_http(stream).await,
                }
            };
            match timeout(HEAD_WAIT, accepted).await {
                // ST56: with gRPC each request is judged by its own right.
                Ok(Ok((stream, peer)))
                    if protocols == Protocols::WithGrpc || remote_access.authorizer.may_inspect(&peer) =>
                {
                    let judge = Judge { remote_access, peer: Arc::new(peer), address, protocols, refusals };
                    let routes = routes.layer(from_fn_with_state(judge, ask_again));
                    converse(stream, routes, &builder, &activity).await;
                }
                Ok(Ok((_, peer))) => refusals.on(address, &peer),
                // Logged with its reason.
                Ok(Err(_)) => {}
                Err(_) => tracing::debug!(peer = %address, "a TLS handshake at the admin port took too long"),
            }
        });
    }
}

/// What the port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocols {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/1.1, and gRPC over HTTP/2, also without TLS (prior knowledge).
    WithGrpc,
}

/// The open connections, the oldest first. Dropping this ends all of them.
///
/// A new connection never waits: health checks must work even while many connections are idle, or
/// do not read their answers. So the oldest connection ends. If it was a browser or a scraper, it
/// connects again.
#[derive(Debug, Default)]
struct AdminConnections {
    tasks: JoinSet<()>,
    in_order: VecDeque<(SocketAddr, Arc<Activity>, AbortHandle)>,
    warned_at: Option<Instant>,
    ended: u64,
}

impl AdminConnections {
    fn spawn(
        &mut self,
        address: SocketAddr,
        activity: Arc<Activity>,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        // The results of finished tasks are not needed, but a set keeps them until they are taken.
        while self.tasks.try_join_next().is_some() {}
        self.in_order.retain(|(.., task)| !task.is_finished());
        if self.in_order.len() >= CONNECTIONS_LIMIT
            && let Some((oldest, _, task)) = self.ended_first().and_then(|at| self.in_order.remove(at))
        {
            task.abort();
            self.on_ended(oldest);
        }
        let task = self.tasks.spawn(connection);
        self.in_order.push_back((address, activity, task));
    }

    /// The place of the connection that ends for a new one.
    fn ended_first(&self) -> Option<usize> {
        let is_kept = |(_, activity, _): &(SocketAddr, Arc<Activity>, AbortHandle)| activity.is_kept();
        let kept = self.in_order.iter().filter(|connection| is_kept(connection)).count();
        self.in_order.iter().position(|connection| is_kept(connection) == (kept > KEPT_LIMIT))
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

/// Judges the requests of a connection from another machine.
#[derive(Debug, Clone)]
struct Judge {
    remote_access: RemoteAccess,
    peer: Arc<Peer>,
    address: SocketAddr,
    protocols: Protocols,
    refusals: Arc<Refusals>,
}

/// Checks each request: during a connection, the policy may change and the certificate may expire.
async fn ask_again(State(judge): State<Judge>, mut request: Request, next: Next) -> Response {
    let Judge { remote_access, peer, address, protocols, refusals } = judge;
    let has_expired = peer.identity.as_ref().is_some_and(|identity| identity.has_expired());
    let is_grpc = protocols == Protocols::WithGrpc && guard::is_grpc(&request);
    if has_expired || !(is_grpc || remote_access.authorizer.may_inspect(&peer)) {
        if protocols == Protocols::WithGrpc {
            refusals.on(address, &peer);
        }
        let text = "access was revoked or never given, or the certificate has expired\n";
        let is_http1 = request.version() < Version::HTTP_2;
        let mut refusal = (StatusCode::FORBIDDEN, text).into_response();
        if is_http1 {
            refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        return refusal;
    }
    request.extensions_mut().insert(Peer::clone(&peer));
    next.run(request).await
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
    builder: &auto::Builder<Calls>,
    activity: &Arc<Activity>,
) {
    let of_requests = Arc::clone(activity);
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (open, routes) = (of_requests.begin(), routes.clone());
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&of_requests));
        async move {
            // A client may send many requests at once. Other connections get a turn before each one.
            tokio::task::yield_now().await;
            routes.oneshot(request).await.map(|response| response.map(|body| timed(open.until_end_of(body))))
        }
    });
    let io = TokioIo::new(TimedWrites::new(stream, HEAD_WAIT));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = activity.idle(HEAD_WAIT, IDLE) => {
            connection.as_mut().graceful_shutdown();
            timeout(HEAD_WAIT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::trace!(%error, "a connection to the admin port ended");
    }
}

fn builder(protocols: Protocols, unread: &Arc<Unread>) -> auto::Builder<Calls> {
    let mut builder = auto::Builder::new(Calls(Arc::clone(unread)));
    if protocols == Protocols::Http1 {
        builder = builder.http1_only();
    }
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(HEAD_WAIT)
        .max_concurrent_streams(STREAMS_LIMIT);
    builder
}

/// The shortest time between two lines about closed connections, or about refused clients.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Connections at the same time; a browser opens up to six for a page.
const CONNECTIONS_LIMIT: usize = 512;

/// Connections that are kept for their calls.
const KEPT_LIMIT: usize = CONNECTIONS_LIMIT / 4 * 3;

/// Calls at the same time on one connection of HTTP/2.
const STREAMS_LIMIT: u32 = 100;

/// How often a silent peer of HTTP/2 is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a connection may have no call. For HTTP/1.1 [`HEAD_WAIT`] counts.
const IDLE: Duration = Duration::from_secs(300);

/// How long a client may take to send a request, also the next one on a connection, and how long it
/// may read nothing of its answer.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// The pause after the system refused a connection.
const REST: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
