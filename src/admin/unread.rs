//! Answers of HTTP/2 that wait for their clients.
//!
//! A client of HTTP/2 decides for each call how much of the answer it takes, although it reads from
//! the connection. An answer that waits takes memory, and may have a place of which there are few.
//! So an answer ends if its client takes less than a piece of it in [`TAKE_WAIT`]. If all answers that wait
//! take too much memory, those that have waited longest end before that. The other calls of the
//! connection go on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use hyper::rt::Executor;
use tokio::sync::Notify;
use tokio::time::{Instant, interval};

/// The answers of a port that wait.
#[derive(Debug)]
pub(super) struct Unread {
    limit_bytes: usize,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// By their numbers, which grow with time.
    of_pieces: BTreeMap<u64, Wait>,
    next: u64,
    bytes: usize,
}

/// A piece of an answer that was given to the connection.
#[derive(Debug)]
struct Wait {
    since: Instant,
    /// Of the message that the piece is from.
    bytes: usize,
    end: Arc<Notify>,
}

/// Runs the calls of HTTP/2 until their answers end.
#[derive(Debug, Clone)]
pub(super) struct Calls(pub(super) Arc<Unread>);

/// The body of an answer, in pieces of which each one waits until the client takes it.
#[derive(Debug)]
struct InPieces {
    body: Body,
    /// The rest of a message.
    rest: Bytes,
    message_bytes: usize,
    wait: Option<u64>,
    unread: Arc<Unread>,
    end: Arc<Notify>,
}

tokio::task_local! {
    /// Ends the call that this task runs.
    static CALL: (Arc<Unread>, Arc<Notify>);
}

impl Default for Unread {
    fn default() -> Self {
        Self::new(LIMIT_BYTES)
    }
}

impl Unread {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, waits: Mutex::default() }
    }

    /// Ends answers that wait too long, until the future is dropped.
    pub(super) async fn end_late_ones(&self) -> Infallible {
        let mut ticks = interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let ended = self.end_late();
            if ended > 0 {
                tracing::debug!(ended, "clients of the admin port took nothing of their answers");
            }
        }
    }

    fn end_late(&self) -> usize {
        let (mut waits, mut ended) = (self.lock(), 0);
        // The first one has waited longest.
        while let Some((&number, first)) = waits.of_pieces.first_key_value() {
            let waited = first.since.elapsed();
            let is_late = waited >= TAKE_WAIT || waited >= LOOK_EVERY && waits.bytes > self.limit_bytes;
            if !is_late {
                break;
            }
            first.end.notify_one();
            waits.remove(number);
            ended += 1;
        }
        ended
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        // No code panics while it holds the lock.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    fn add(&mut self, bytes: usize, end: &Arc<Notify>) -> u64 {
        self.next += 1;
        self.bytes += bytes;
        let wait = Wait { since: Instant::now(), bytes, end: Arc::clone(end) };
        self.of_pieces.insert(self.next, wait);
        self.next
    }

    fn remove(&mut self, number: u64) {
        if let Some(wait) = self.of_pieces.remove(&number) {
            self.bytes -= wait.bytes;
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        let (unread, end) = (Arc::clone(&self.0), Arc::new(Notify::new()));
        let ended = Arc::clone(&end);
        // To drop a call resets its stream, which frees what the connection has of the answer.
        tokio::spawn(CALL.scope((unread, end), async move {
            tokio::select! {
                biased;
                _ = call => {}
                () = ended.notified() => {}
            }
        }));
    }
}

/// The body of an answer, whose call ends if the client does not take it. For HTTP/1.1 the
/// connection itself notices that.
pub(super) fn timed(body: Body) -> Body {
    let Ok((unread, end)) = CALL.try_with(Clone::clone) else { return body };
    Body::new(InPieces { body, rest: Bytes::new(), message_bytes: 0, wait: None, unread, end })
}

impl InPieces {
    fn on_taken(&mut self) {
        if let Some(number) = self.wait.take() {
            self.unread.lock().remove(number);
        }
    }
}

impl hyper::body::Body for InPieces {
    type Data = Bytes;
    type Error = axum::Error;

    /// Is called again when the connection had room for the last piece.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.on_taken();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => (self.message_bytes, self.rest) = (data.len(), data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        let wait = self.unread.lock().add(self.message_bytes, &self.end);
        self.wait = Some(wait);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked for before the first piece only.
        self.body.size_hint()
    }
}

impl Drop for InPieces {
    fn drop(&mut self) {
        self.on_taken();
    }
}

/// How long a client may take nothing of an answer.
const TAKE_WAIT: Duration = Duration::from_secs(60);

/// How often to look, and how long each answer may wait whatever the memory is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What all answers that wait may take. Answers that have just begun to wait may take more.
const LIMIT_BYTES: usize = 256 << 20;

/// A piece of an answer: one frame of HTTP/2, unless the client allows larger ones.
const PIECE_BYTES: usize = 16 << 10;
