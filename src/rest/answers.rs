//! Answers on their way to their clients: converted once, within a budget of bytes, and kept for a
//! limited time.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::task::JoinHandle;
use xds_core::{TypeUrl, Version};

use super::error::PollError;

/// The bytes that polls keep in memory: requests until they are decoded, answers until their
/// clients have read them.
///
/// Polls with the same content share one answer. A poll that would exceed the limit gets 503. Its
/// client keeps its resources and polls again. If the poll waited instead, its client would give up
/// before other clients have read their answers.
#[derive(Debug)]
pub struct Answers {
    limit_bytes: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
    given_up: AtomicU64,
    shared: Mutex<HashMap<AnswerKey, Weak<SharedAnswer>>>,
    warned_at: Mutex<Option<Instant>>,
}

/// The type, the version, and the digest of the bytes that a stream would get. Together they decide
/// the bytes of an answer.
pub(super) type AnswerKey = (TypeUrl, String, Version);

/// A converted answer, shared by all clients that get it.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    text: Box<[u8]>,
    _reservation: Reservation,
}

/// Reserved bytes of the budget. Dropping it releases them.
#[derive(Debug)]
pub(super) struct Reservation {
    answers: Arc<Answers>,
    bytes: usize,
}

impl Answers {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            bytes: AtomicUsize::default(),
            refused: AtomicU64::default(),
            given_up: AtomicU64::default(),
            shared: Mutex::default(),
            warned_at: Mutex::default(),
        })
    }

    /// How many bytes are reserved now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many polls got 503 because the budget was used up.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many answers were dropped because their clients did not read them in time.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    pub(super) fn new_reservation(self: &Arc<Self>) -> Reservation {
        Reservation { answers: Arc::clone(self), bytes: 0 }
    }

    /// Returns the answer that other clients are reading already, or makes it.
    pub(super) fn shared(
        self: &Arc<Self>,
        key: AnswerKey,
        make: impl FnOnce(&mut Reservation) -> Result<Vec<u8>, PollError>,
    ) -> Result<Arc<SharedAnswer>, PollError> {
        if let Some(answer) = self.known().get(&key).and_then(Weak::upgrade) {
            return Ok(answer);
        }
        let mut reservation = self.new_reservation();
        let text = make(&mut reservation)?.into_boxed_slice();
        let answer = Arc::new(SharedAnswer { text, _reservation: reservation });
        let mut known = self.known();
        // Another thread may have made the same answer meanwhile.
        if let Some(answer) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(answer);
        }
        known.retain(|_, answer| answer.strong_count() > 0);
        known.insert(key, Arc::downgrade(&answer));
        Ok(answer)
    }

    /// No code panics while it holds the lock, so the map is consistent even if the lock is
    /// poisoned.
    fn known(&self) -> MutexGuard<'_, HashMap<AnswerKey, Weak<SharedAnswer>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the log may have another warning. Slow clients are slow at each poll, so warnings
    /// are limited to one per [`WARN_EVERY`].
    fn may_warn(&self) -> bool {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if is_due {
            *warned_at = Some(Instant::now());
        }
        is_due
    }
}

impl Reservation {
    /// Grows the reservation to this many bytes.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), PollError> {
        let limit = self.answers.limit_bytes;
        let more = bytes.saturating_sub(self.bytes);
        let before = self.answers.bytes.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        if before + more <= limit {
            return Ok(());
        }
        self.answers.refused.fetch_add(1, Ordering::Relaxed);
        if self.answers.may_warn() {
            let (refused, given_up) = (self.answers.refused(), self.answers.given_up());
            tracing::warn!(
                limit,
                refused,
                given_up,
                "REST polls get 503: answers that clients have not read fill the limit (--rest-limit)"
            );
        }
        Err(PollError::Busy { limit })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.answers.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl SharedAnswer {
    /// The response to one client, which has to read all of it within `within`.
    pub(super) fn respond(self: Arc<Self>, answers: Arc<Answers>, within: Duration) -> Response {
        let head = [
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::CONTENT_LENGTH, self.text.len().to_string()),
        ];
        // Copy the bytes: a slice in the transport would keep the whole shared buffer in memory.
        (head, Body::from_stream(tokio_stream::iter(Chunks::new(self, answers, within)))).into_response()
    }
}

/// An answer in chunks, until its time is over.
///
/// The transport asks for a chunk when it has room. While a client reads nothing, the transport
/// does not ask, so a task drops the answer when the time is over. Then only the few 100 KB in the
/// transport stay in memory, until its own timeout.
struct Chunks {
    left: Arc<Mutex<Option<Arc<SharedAnswer>>>>,
    at: usize,
    timer: JoinHandle<()>,
}

impl Chunks {
    fn new(answer: Arc<SharedAnswer>, answers: Arc<Answers>, within: Duration) -> Self {
        let left = Arc::new(Mutex::new(Some(answer)));
        let lasting = Arc::clone(&left);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(within).await;
            if lock(&lasting).take().is_some() {
                answers.given_up.fetch_add(1, Ordering::Relaxed);
                if answers.may_warn() {
                    let given_up = answers.given_up();
                    tracing::warn!(
                        given_up,
                        "an answer to a REST poll is dropped: its client did not read it within {within:?}"
                    );
                }
            }
        });
        Self { left, at: 0, timer }
    }
}

impl Iterator for Chunks {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut left = lock(&self.left);
        let Some(answer) = &*left else { return Some(Err(io::ErrorKind::TimedOut.into())) };
        let chunk = &answer.text[self.at..answer.text.len().min(self.at + CHUNK_BYTES)];
        if chunk.is_empty() {
            *left = None;
            self.timer.abort();
            return None;
        }
        self.at += chunk.len();
        Some(Ok(Bytes::copy_from_slice(chunk)))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// No code panics while it holds the lock, so the answer is consistent even if the lock is
/// poisoned.
fn lock(left: &Mutex<Option<Arc<SharedAnswer>>>) -> MutexGuard<'_, Option<Arc<SharedAnswer>>> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of a chunk for the transport.
const CHUNK_BYTES: usize = 64 << 10;

/// The shortest time between two warnings. The metrics count every refused poll and every dropped
/// answer.
const WARN_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(version: &str) -> AnswerKey {
        ("t".into(), version.to_owned(), Version::of_payload(b""))
    }

    fn made(answers: &Arc<Answers>, version: &str, len: usize) -> Result<Arc<SharedAnswer>, PollError> {
        answers.shared(key(version), |reservation| reservation.grow_to(len).map(|()| vec![b'x'; len]))
    }

    #[test]
    fn equal_answers_are_one_and_count_once_until_the_last_client_has_them() {
        let answers = Answers::new(100);
        let (one, same) = (made(&answers, "1", 60).unwrap(), made(&answers, "1", 60).unwrap());
        assert!(Arc::ptr_eq(&one, &same) && answers.bytes() == 60);
        assert!(matches!(made(&answers, "2", 41), Err(PollError::Busy { limit: 100 })));
        assert_eq!((answers.bytes(), answers.refused()), (60, 1), "what was refused takes nothing");
        drop(one);
        assert!(made(&answers, "2", 41).is_err());
        drop(same);
        assert!(made(&answers, "2", 41).is_ok());
        assert_eq!(answers.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_in_time_is_let_go_of() {
        let answers = Answers::new(1 << 20);
        let large = made(&answers, "1", 3 * CHUNK_BYTES).unwrap();
        let mut chunks = Chunks::new(large, Arc::clone(&answers), Duration::from_secs(60));
        assert_eq!(chunks.next().unwrap().unwrap().len(), CHUNK_BYTES);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!((answers.bytes(), answers.given_up()), (0, 1));
        assert!(chunks.next().unwrap().is_err(), "the connection ends");
    }
}
