//! The phase of a connection, and how long each phase may last.
//!
//! ```text
//! Hello -> Queued -> Handshake -> Preface -> Idle <-> Busy
//! ```
//! A phase in which the server waits for the peer has a time limit; when it is over, the connection
//! ends. A phase in which the peer waits for the server has none.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connections::admission::Admission;
use crate::observe::ConnectionEnd;

/// The time limits of the phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseTimeouts {
    pub(crate) handshake: Duration,
    pub(crate) idle: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The TLS ClientHello has not arrived, or not completely.
    Hello,
    /// The connection waits for a place to perform its handshake.
    Queued,
    /// The rest of the TLS handshake.
    Handshake,
    /// The first bytes of HTTP have not arrived.
    Preface,
    /// No request is open.
    Idle,
    /// This number of requests is open.
    Busy(usize),
}

/// The phase and the open requests of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    admission: Arc<Admission>,
    now: Mutex<ActivityState>,
    gives_way: Notify,
}

#[derive(Debug)]
struct ActivityState {
    phase: Phase,
    since: Instant,
    /// Its number among the connections that may give way.
    number: u64,
    has_left: bool,
    /// Requests that have arrived and whose tasks have not run yet.
    fresh: usize,
    /// The reader of the connection, woken when there are fewer new requests.
    reader: Option<Waker>,
}

impl Activity {
    pub(crate) fn new(admission: Arc<Admission>, number: u64) -> Self {
        let now = ActivityState {
            phase: Phase::Hello,
            since: Instant::now(),
            number,
            has_left: false,
            fresh: 0,
            reader: None,
        };
        Self { admission, now: Mutex::new(now), gives_way: Notify::new() }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let mut now = self.now();
        (now.phase, now.since) = (phase, Instant::now());
    }

    /// Notes a request, which is open until the result is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> OpenRequest {
        let mut now = self.now();
        if let Phase::Busy(open) = &mut now.phase {
            *open += 1;
        } else {
            (now.phase, now.since) = (Phase::Busy(1), Instant::now());
            self.admission.on_busy(now.number);
        }
        OpenRequest(Arc::clone(self))
    }

    /// Notes a new request, whose task has not run until the result is dropped.
    pub(crate) fn came(self: &Arc<Self>) -> FreshRequest {
        self.now().fresh += 1;
        FreshRequest(Arc::clone(self))
    }

    /// Whether so many new requests wait that reading should pause. If so, the reader is woken when
    /// there are fewer.
    fn is_crowded(&self, cx: &Context<'_>) -> bool {
        let mut now = self.now();
        let is_crowded = now.fresh >= FRESH_REQUESTS;
        now.reader = is_crowded.then(|| cx.waker().clone());
        is_crowded
    }

    /// Ends the connection, so that another one gets its place.
    pub(crate) fn give_way(&self) {
        self.gives_way.notify_one();
    }

    /// Notes that the connection has ended; requests of it may still exist.
    pub(crate) fn leave(&self) {
        let mut now = self.now();
        now.has_left = true;
        self.admission.on_busy(now.number);
    }

    /// Returns when the connection has to end.
    pub(crate) async fn overdue(&self, timeouts: PhaseTimeouts) -> ConnectionEnd {
        loop {
            let ActivityState { phase, since, .. } = *self.now();
            let (look_at, end) = match phase {
                Phase::Hello | Phase::Handshake | Phase::Preface => {
                    (since + timeouts.handshake, Some(ConnectionEnd::HandshakeTimeout))
                }
                Phase::Idle => (since + timeouts.idle, Some(ConnectionEnd::Idle)),
                // The next phase has a time limit, which cannot be over before this moment.
                Phase::Queued => (Instant::now() + timeouts.handshake, None),
                Phase::Busy(_) => (Instant::now() + timeouts.idle, None),
            };
            tokio::select! {
                () = sleep_until(look_at) => {
                    let now = self.now();
                    if let Some(end) = end && (now.phase, now.since) == (phase, since) {
                        return end;
                    }
                }
                () = self.gives_way.notified() => return ConnectionEnd::Displaced,
            }
        }
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn now(&self) -> MutexGuard<'_, ActivityState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open request of a connection.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut now = self.0.now();
        match &mut now.phase {
            Phase::Busy(open) if *open > 1 => *open -= 1,
            _ => {
                (now.phase, now.since) = (Phase::Idle, Instant::now());
                if !now.has_left {
                    now.number = self.0.admission.on_idle(&self.0);
                }
            }
        }
    }
}

/// A request whose task has not run yet.
#[derive(Debug)]
pub(crate) struct FreshRequest(Arc<Activity>);

impl Drop for FreshRequest {
    fn drop(&mut self) {
        let mut now = self.0.now();
        now.fresh -= 1;
        if now.fresh < FRESH_REQUESTS
            && let Some(reader) = now.reader.take()
        {
            drop(now);
            reader.wake();
        }
    }
}

/// The body of a response. The request is open until the body is dropped.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: axum::body::Body,
    _request: OpenRequest,
}

impl TrackedBody {
    pub(crate) fn new(body: axum::body::Body, request: OpenRequest) -> Self {
        Self { body, _request: request }
    }
}

impl Body for TrackedBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that enters the phase [`Idle`](Phase::Idle) when the HTTP/2 preface has arrived. It
/// also gives other tasks a turn: the HTTP/2 library would read as long as bytes arrive, every few
/// bytes may open a stream, and its task would run before the tasks of those streams.
#[derive(Debug)]
pub(crate) struct FairIo<IO> {
    io: IO,
    /// Bytes read in this turn.
    in_turn: usize,
    /// Bytes of the preface that are missing.
    missing: usize,
    activity: Arc<Activity>,
}

impl<IO> FairIo<IO> {
    pub(crate) fn new(io: IO, activity: Arc<Activity>) -> Self {
        Self { io, in_turn: 0, missing: PREFACE_BYTES, activity }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for FairIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.in_turn >= TURN_BYTES {
            this.in_turn = 0;
            // Read on after all other ready tasks have run.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Few bytes bring few requests, and an ACK should not pay for this check.
        if this.in_turn >= CROWD_BYTES && this.activity.is_crowded(cx) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.io).poll_read(cx, buf) else {
            this.in_turn = 0;
            return Poll::Pending;
        };
        let len = buf.filled().len() - before;
        this.in_turn += len;
        if this.missing > 0 {
            this.missing = this.missing.saturating_sub(len);
            if this.missing == 0 {
                this.activity.enter(Phase::Idle);
            }
        }
        Poll::Ready(read)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for FairIo<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Bytes read from a connection before other tasks get a turn. A SotW ACK that names 1,000
/// resources fits into one turn, because each further turn costs as much as a wake-up.
const TURN_BYTES: usize = 16 << 10;
/// From this number of bytes in one turn on, check whether too many new requests wait.
const CROWD_BYTES: usize = 256;
/// New requests whose tasks have not run yet, from which on reading pauses.
const FRESH_REQUESTS: usize = 16;
/// The HTTP/2 preface: `PRI * HTTP/2.0` and so on. For HTTP/1, hyper has a time limit for headers.
const PREFACE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::admission::Admitted;

    const TIMEOUTS: PhaseTimeouts =
        PhaseTimeouts { handshake: Duration::from_secs(10), idle: Duration::from_secs(300) };

    fn activity() -> (Admitted, Arc<Activity>) {
        let admitted = Admission::new(1, None, 1).admit(None).unwrap();
        let activity = Arc::clone(admitted.activity());
        (admitted, activity)
    }

    async fn ends(activity: &Arc<Activity>) -> (ConnectionEnd, Duration) {
        let began = Instant::now();
        (activity.overdue(TIMEOUTS).await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_in_which_the_peer_has_to_do_something_has_its_own_time() {
        for phase in [Phase::Hello, Phase::Handshake, Phase::Preface] {
            let (_guest, activity) = activity();
            activity.enter(phase);
            assert_eq!(
                ends(&activity).await,
                (ConnectionEnd::HandshakeTimeout, TIMEOUTS.handshake),
                "{phase:?}"
            );
        }
        let (_guest, activity) = activity();
        activity.enter(Phase::Idle);
        assert_eq!(ends(&activity).await, (ConnectionEnd::Idle, TIMEOUTS.idle));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_server_has_time_and_then_that_of_the_next_phase() {
        let (_guest, activity) = activity();
        activity.enter(Phase::Queued);
        let handshake = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            activity.enter(Phase::Handshake);
        };
        let (end, ()) = tokio::join!(ends(&activity), handshake);
        assert_eq!(end, (ConnectionEnd::HandshakeTimeout, Duration::from_secs(110)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_last_request_on() {
        let (_guest, activity) = activity();
        let requests = async {
            let (first, second) = (activity.open(), activity.open());
            tokio::time::sleep(Duration::from_secs(1000)).await;
            drop(first);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(second);
        };
        let (end, ()) = tokio::join!(ends(&activity), requests);
        assert_eq!(end, (ConnectionEnd::Idle, Duration::from_secs(1301)));
    }
}
