//! Accepts connections, performs TLS handshakes, serves HTTP, and closes connections in time.
//!
//! The loop of tonic would be enough for most of it. This loop exists for three reasons: a slow
//! handshake must not delay other connections; each connection gets its own random maximal age; and
//! when `accept` fails because no file descriptor is free, the server must not retry in a busy
//! loop.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, TryFutureExt, lazy};
use futures_util::stream::FuturesUnordered;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::Service;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::config::ServerConfig;
use crate::observe::{ConnectionEnd, HandshakeFailure};
use crate::peer::{Identity, Peer};
use crate::timed_writes::TimedWrites;

use activity::{FairIo, Phase, PhaseTimeouts, TrackedBody};
use admission::{Admission, Admitted};
use connection_log::ConnectionLog;
use timed_request::{PartialBytes, TimedRequest};

mod activity;
mod admission;
mod connection_log;
mod timed_request;

/// The settings of HTTP.
#[derive(Debug, Clone)]
pub(crate) struct HttpConfig {
    pub(crate) accepts_http1: bool,
    pub(crate) config: Arc<ServerConfig>,
}

/// The handshake of a connection: TLS, or nothing.
pub(crate) trait Handshake<IO>: Clone + Send + Sync + 'static {
    /// The connection after the first message of its peer.
    type Hello: Send;
    /// The connection after the handshake.
    type Secured: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The peer, before any bytes arrive.
    fn peer(&self, io: &IO) -> Peer;

    /// Waits for the first message of the peer, which costs the server next to nothing.
    fn hello(&self, io: IO) -> impl Future<Output = io::Result<Self::Hello>> + Send;

    /// Completes the handshake, and returns the identity in the certificate of the peer.
    fn complete(
        &self,
        hello: Self::Hello,
    ) -> impl Future<Output = io::Result<(Self::Secured, Option<Arc<Identity>>)>> + Send;

    /// Why it failed.
    fn failure(_: &io::Error) -> HandshakeFailure {
        HandshakeFailure::Other
    }
}

/// No handshake: serves connections as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain;

impl<IO> Handshake<IO> for Plain
where
    IO: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
{
    type Hello = IO;
    type Secured = IO;

    fn peer(&self, io: &IO) -> Peer {
        let mut extensions = http::Extensions::new();
        extensions.insert(io.connect_info());
        Peer::of(&extensions)
    }

    async fn hello(&self, io: IO) -> io::Result<IO> {
        Ok(io)
    }

    async fn complete(&self, io: IO) -> io::Result<(IO, Option<Arc<Identity>>)> {
        Ok((io, None))
    }
}

/// Serves connections until the shutdown begins. Then it asks the open connections to leave, and
/// returns when all have left.
pub(crate) async fn serve<IO, G>(
    incoming: impl Stream<Item = io::Result<IO>> + Send,
    handshake: G,
    routes: axum::Router,
    http: HttpConfig,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()>
where
    IO: Send + 'static,
    G: Handshake<IO>,
{
    let present = watch::Sender::new(());
    let builder = Arc::new(builder(&http));
    let config = http.config;
    let admission =
        Admission::new(config.connections_limit, config.address_connections_limit, config.handshakes_limit);
    let log = ConnectionLog::new(config.observer.clone());
    let partial = PartialBytes::new(config.partial_requests_limit_bytes);
    {
        let mut incoming = pin!(incoming);
        loop {
            let accept = async {
                admission.room().await;
                incoming.next().await
            };
            let next = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                next = accept => next,
            };
            match next {
                Some(Ok(io)) => {
                    let peer = handshake.peer(&io);
                    let admitted = match admission.admit(peer.address.map(|address| address.ip())) {
                        Ok(admitted) => admitted,
                        Err(end) => {
                            log.on_end(end, &peer);
                            continue;
                        }
                    };
                    let connection = Connection {
                        handshake: handshake.clone(),
                        peer,
                        admitted,
                        builder: Arc::clone(&builder),
                        routes: routes.clone(),
                        config: Arc::clone(&config),
                        log: Arc::clone(&log),
                        partial: Arc::clone(&partial),
                        stopping: stopping.clone(),
                        _present: present.subscribe(),
                    };
                    tokio::spawn(connection.run(io));
                }
                Some(Err(error)) if is_out_of_resources(&error) => {
                    warn!(
                        %error,
                        "cannot accept a connection: no free file descriptors or memory; trying again in {RETRY:?}"
                    );
                    sleep(RETRY).await;
                }
                Some(Err(error)) if is_lasting(&error) => return Err(error),
                Some(Err(error)) => debug!(%error, "a connection closed before it was accepted"),
                // No more connections come; the open ones are served until the shutdown.
                None => {
                    _ = stopping.wait_for(|stopping| *stopping).await;
                    break;
                }
            }
        }
    }
    present.closed().await;
    Ok(())
}

/// One connection and what its task needs.
struct Connection<G> {
    handshake: G,
    peer: Peer,
    admitted: Admitted,
    builder: Arc<auto::Builder<TokioExecutor>>,
    routes: axum::Router,
    config: Arc<ServerConfig>,
    log: Arc<ConnectionLog>,
    partial: Arc<PartialBytes>,
    stopping: watch::Receiver<bool>,
    /// Dropped with the connection; `serve` waits until no connection has one.
    _present: watch::Receiver<()>,
}

impl<G> Connection<G> {
    async fn run<IO>(mut self, io: IO)
    where
        IO: Send + 'static,
        G: Handshake<IO>,
    {
        let (config, log) = (&self.config, &self.log);
        let timeouts = PhaseTimeouts { handshake: config.handshake_timeout, idle: config.idle_timeout };
        let activity = Arc::clone(self.admitted.activity());
        let secured = async {
            let hello = self.handshake.hello(io).await?;
            activity.enter(Phase::Queued);
            self.admitted.in_turn(self.handshake.complete(hello), || activity.enter(Phase::Handshake)).await
        };
        // In a box that is freed after the handshake, so that an open connection does not keep
        // memory that only its start needs.
        let secured = Box::pin(async {
            tokio::select! {
                secured = secured => Ok(secured),
                end = activity.overdue(timeouts) => Err(end),
            }
        });
        let (io, identity) = match secured.await {
            Err(end) => return log.on_end(end, &self.peer),
            Ok(Ok(secured)) => secured,
            Ok(Err(error)) => {
                return log.on_handshake_failed(G::failure(&error), &error, &self.peer);
            }
        };
        activity.enter(Phase::Preface);
        let leaves_at = config.connection_age.map(|age| Instant::now() + jittered(age));
        (self.peer.identity, self.peer.ends_at) = (identity, leaves_at);
        self.peer.connection = Some(CONNECTIONS.fetch_add(1, Ordering::Relaxed));
        let service = {
            let peer = Arc::new(self.peer.clone());
            let (activity, log) = (Arc::clone(&activity), Arc::clone(log));
            let (routes, partial) = (self.routes.clone(), Arc::clone(&self.partial));
            let time = config.request_timeout;
            hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let (open, fresh) = (activity.open(), activity.came());
                let (mut head, body) = request.into_parts();
                let body = TimedRequest::new(
                    body,
                    &head.headers,
                    time,
                    &partial,
                    Arc::clone(&log),
                    Arc::clone(&peer),
                );
                head.extensions.insert(Peer::clone(&peer));
                let answer = routes.clone().call(Request::from_parts(head, axum::body::Body::new(body)));
                // An async block would reserve memory twice, for its captured values and for the
                // future that it awaits, and would do so for each stream.
                let answer = lazy(move |_| drop(fresh)).then(move |()| answer);
                answer.map_ok(move |answer| answer.map(|body| TrackedBody::new(body, open)))
            })
        };
        let io = FairIo::new(TimedWrites::new(io, UNREAD), Arc::clone(&activity));
        // Boxed, because the allocator places two smaller pieces better than one large one.
        let mut connection = Box::pin(self.builder.serve_connection(TokioIo::new(io), service));
        let age = async {
            match leaves_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // `FuturesUnordered` polls this future only when it is woken, not with each frame of the
        // connection.
        let mut ends = FuturesUnordered::new();
        ends.push(async {
            tokio::select! {
                () = age => None,
                _ = self.stopping.wait_for(|stopping| *stopping) => None,
                end = activity.overdue(timeouts) => Some(end),
            }
        });
        let end = tokio::select! {
            done = connection.as_mut() => return on_done(done, log, &self.peer),
            end = ends.next() => end.flatten(),
        };
        if let Some(end) = end {
            log.on_end(end, &self.peer);
            if end != ConnectionEnd::Idle {
                return;
            }
        }
        // GOAWAY: open streams continue, and the client opens new streams elsewhere.
        connection.as_mut().graceful_shutdown();
        let overdue = async {
            match end {
                Some(_) => sleep(LAST_WORDS).await,
                None => log.on_end(activity.overdue(timeouts).await, &self.peer),
            }
        };
        // In its own box, because the future of the connection would reserve memory for it from the
        // start.
        let overdue = Box::pin(overdue);
        tokio::select! {
            done = connection.as_mut() => on_done(done, log, &self.peer),
            () = overdue => {}
        }
    }
}

/// Reports a connection that HTTP or its peer ended.
fn on_done(
    done: Result<(), Box<dyn std::error::Error + Send + Sync>>,
    log: &Arc<ConnectionLog>,
    peer: &Peer,
) {
    let Err(error) = done else { return };
    debug!(peer = ?peer.address, %error, "a connection ended");
    let mut causes =
        std::iter::successors(Some(&*error as &(dyn std::error::Error + 'static)), |error| error.source());
    // A lost or silent peer breaks no rule.
    let is_lost = causes.any(|cause| {
        cause.is::<io::Error>()
            || cause.downcast_ref::<hyper::Error>().is_some_and(|error| {
                error.is_timeout() || error.is_incomplete_message() || error.is_canceled()
            })
    });
    if !is_lost {
        log.on_end(ConnectionEnd::Protocol, peer);
    }
}

/// The number of the next connection of this process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

fn builder(http: &HttpConfig) -> auto::Builder<TokioExecutor> {
    let streams = http.config.connection_streams_limit;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if !http.accepts_http1 {
        builder = builder.http2_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(http.config.keepalive)
        .max_concurrent_streams(streams)
        .initial_connection_window_size(window_bytes(streams));
    // Without a timer, hyper would wait forever for headers.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(http.config.request_timeout);
    builder
}

/// The flow-control window of a connection: large enough for a burst from all its streams.
///
/// The HTTP/2 library counts each small unread DATA frame as [`SMALL_FRAME_BYTES`]. It closes the
/// connection (`too_many_data_frames`) when the sum exceeds half of this window. Frames of all
/// streams may arrive before any stream is read.
fn window_bytes(streams: u32) -> u32 {
    let burst = u64::from(streams) * BURST_FRAMES * SMALL_FRAME_BYTES;
    let window = (2 * burst).clamp(1 << 20, MAX_WINDOW_BYTES);
    window.try_into().expect("the largest window is below 2^31")
}

/// The time plus or minus up to 10 %, so that connections which opened together do not end
/// together.
pub(crate) fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * random())
}

/// A random number from 0 to 1.
pub(crate) fn random() -> f64 {
    (RandomState::new().hash_one(0) % 10_001) as f64 / 10_000.0
}

/// Whether the process or the system has no free descriptors or memory. The new connection stays in
/// the accept queue.
fn is_out_of_resources(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::QuotaExceeded)
        || error.raw_os_error().is_some_and(|code| OUT_OF_RESOURCES.contains(&code))
}

/// Whether the listener can never accept again.
fn is_lasting(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
        || error.raw_os_error().is_some_and(|code| LASTING.contains(&code))
}

/// EBADF and ENOTSOCK, by the numbers of Linux.
const LASTING: [i32; 2] = [9, 88];
/// EMFILE, ENFILE and ENOBUFS, by the numbers of Linux. On other systems, the server retries such
/// errors at once.
const OUT_OF_RESOURCES: [i32; 3] = [24, 23, 105];
/// The least that a DATA frame counts, as in `h2`.
const SMALL_FRAME_BYTES: u64 = 256;
/// Requests in a row from each stream: those of an Envoy for LDS, CDS, EDS and RDS, or its ACKs for
/// them.
const BURST_FRAMES: u64 = 4;
/// The largest window that HTTP/2 allows.
const MAX_WINDOW_BYTES: u64 = (1 << 31) - 1;
/// The wait before the next accept when no resources are free.
const RETRY: Duration = Duration::from_millis(100);
/// How long an idle connection may take to close after GOAWAY.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a peer may read nothing while bytes wait for it. Over HTTP/2, an unanswered ping ends
/// the connection earlier.
const UNREAD: Duration = Duration::from_secs(60);
