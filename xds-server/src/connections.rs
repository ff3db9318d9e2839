//! Connections: accepted, greeted, served over HTTP, and asked to leave in time.
//!
//! Tonic's own loop would do for most of it. This one is there because a handshake must not hold up who comes next, because the age
//! at which a connection is asked to leave differs from one to the next, and because an accept that fails for want of
//! descriptors must not be tried in a circle.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::{Stream, StreamExt};
use tonic::codegen::Service;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use crate::peer::Peer;

/// How connections are treated.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) accepts_http1: bool,
    pub(crate) keepalive: Option<Duration>,
    /// After this time, a tenth more or less, a connection is asked to leave.
    pub(crate) age: Option<Duration>,
    /// How many greet at the same time.
    pub(crate) greetings: usize,
    /// How many streams one of them has at the same time.
    pub(crate) streams: u32,
}

/// What a connection becomes before it is served: what TLS does, and nothing where there is none.
pub(crate) trait Greet<IO>: Clone + Send + Sync + 'static {
    /// The connection as it is served.
    type Greeted: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Greets, and says who is there.
    fn greet(&self, io: IO) -> impl Future<Output = io::Result<(Self::Greeted, Peer)>> + Send;
}

/// Serves connections as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain;

impl<IO> Greet<IO> for Plain
where
    IO: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
{
    type Greeted = IO;

    async fn greet(&self, io: IO) -> io::Result<(IO, Peer)> {
        let mut extensions = http::Extensions::new();
        extensions.insert(io.connect_info());
        Ok((io, Peer::of(&extensions)))
    }
}

/// Serves connections until `stopping` says so, then asks those that are there to leave, and returns when all have.
pub(crate) async fn serve<IO, G>(
    incoming: impl Stream<Item = io::Result<IO>> + Send,
    greet: G,
    routes: axum::Router,
    terms: Terms,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()>
where
    IO: Send + 'static,
    G: Greet<IO>,
{
    let present = watch::Sender::new(());
    let builder = builder(&terms);
    let greetings = Arc::new(Semaphore::new(terms.greetings));
    {
        let mut incoming = pin!(incoming);
        loop {
            let next = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break,
                next = incoming.next() => next,
            };
            match next {
                Some(Ok(io)) => {
                    let connection = Connection {
                        greet: greet.clone(),
                        greetings: Arc::clone(&greetings),
                        builder: builder.clone(),
                        routes: routes.clone(),
                        leaves_at: terms.age.map(|age| Instant::now() + jittered(age)),
                        stopping: stopping.clone(),
                        _present: present.subscribe(),
                    };
                    tokio::spawn(connection.run(io));
                }
                Some(Err(error)) if is_out_of_resources(&error) => {
                    warn!(%error, "cannot take another connection, trying again in {RETRY:?}");
                    sleep(RETRY).await;
                }
                Some(Err(error)) if is_lasting(&error) => return Err(error),
                Some(Err(error)) => debug!(%error, "a connection was gone before it was accepted"),
                // Those that are there are served on.
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

/// One connection and what it needs.
struct Connection<G> {
    greet: G,
    greetings: Arc<Semaphore>,
    builder: auto::Builder<TokioExecutor>,
    routes: axum::Router,
    leaves_at: Option<Instant>,
    stopping: watch::Receiver<bool>,
    /// Dropped with it.
    _present: watch::Receiver<()>,
}

impl<G> Connection<G> {
    async fn run<IO>(self, io: IO)
    where
        IO: Send + 'static,
        G: Greet<IO>,
    {
        let Self { greet, greetings, builder, routes, leaves_at, mut stopping, _present } = self;
        let greeted = async {
            // In a storm some are done soon, rather than all late.
            let _turn = greetings.acquire().await.map_err(io::Error::other)?;
            timeout(GREETING, greet.greet(io)).await.map_err(io::Error::other)?
        };
        let (io, mut peer) = match greeted.await {
            Ok(greeted) => greeted,
            Err(error) => return debug!(%error, "a connection could not be greeted"),
        };
        peer.ends_at = leaves_at;
        peer.connection = Some(CONNECTIONS.fetch_add(1, Ordering::Relaxed));
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let mut request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(peer.clone());
            routes.clone().call(request)
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        let age = async {
            match leaves_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let done = tokio::select! {
            done = connection.as_mut() => Some(done),
            () = age => None,
            _ = stopping.wait_for(|stopping| *stopping) => None,
        };
        let done = match done {
            Some(done) => done,
            None => {
                // GOAWAY: what runs goes on, and new streams go elsewhere.
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = done {
            debug!(%error, "a connection ended");
        }
    }
}

/// The number of the next connection of this process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

fn builder(terms: &Terms) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if !terms.accepts_http1 {
        builder = builder.http2_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(terms.keepalive)
        .max_concurrent_streams(terms.streams)
        .initial_connection_window_size(window_bytes(terms.streams));
    // Without a timer hyper would wait for headers for ever.
    builder.http1().timer(TokioTimer::new());
    builder
}

/// The window of a connection that bears a burst of all its streams.
///
/// HTTP/2 counts each small DATA frame that was not read yet as [`SMALL_FRAME_BYTES`] and ends the connection
/// (`too_many_data_frames`) where the sum exceeds half of this window. Frames of all streams may come before any stream is read.
fn window_bytes(streams: u32) -> u32 {
    let burst = u64::from(streams) * BURST_FRAMES * SMALL_FRAME_BYTES;
    let window = (2 * burst).clamp(1 << 20, MAX_WINDOW_BYTES);
    window.try_into().expect("the largest window is below 2^31")
}

/// Up to a tenth more or less, so that what began together does not end together.
pub(crate) fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * random())
}

/// From 0 to 1.
pub(crate) fn random() -> f64 {
    (RandomState::new().hash_one(0) % 10_001) as f64 / 10_000.0
}

/// The process or the system has no more descriptors or memory; what was to be accepted still waits.
fn is_out_of_resources(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::QuotaExceeded)
        || error.raw_os_error().is_some_and(|code| OUT_OF_RESOURCES.contains(&code))
}

/// Nothing will ever be accepted there.
fn is_lasting(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
        || error.raw_os_error().is_some_and(|code| LASTING.contains(&code))
}

/// EBADF and ENOTSOCK, by the numbers of Linux.
const LASTING: [i32; 2] = [9, 88];
/// EMFILE, ENFILE and ENOBUFS, by the numbers of Linux; elsewhere an error is asked again at once.
const OUT_OF_RESOURCES: [i32; 3] = [24, 23, 105];
/// What a DATA frame counts at least, as `h2` has it.
const SMALL_FRAME_BYTES: u64 = 256;
/// Requests in a row from each stream: those of an Envoy for LDS, CDS, EDS and RDS, or its ACKs of them.
const BURST_FRAMES: u64 = 4;
/// The largest window that HTTP/2 has.
const MAX_WINDOW_BYTES: u64 = (1 << 31) - 1;
/// How long an accept waits that found no room.
const RETRY: Duration = Duration::from_millis(100);
/// How long a handshake may take, once it has begun.
const GREETING: Duration = Duration::from_secs(10);
