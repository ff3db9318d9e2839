//! Answers on their way to their clients: made once, within a budget, and for a limited time.

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

/// The bytes that polls keep in memory: requests until they are read, answers until their clients
/// have them.
///
/// Polls that are answered alike share one answer. One that would exceed the limit is answered 503:
/// its client keeps what it has and asks again, and would have given up by the time that others
/// have taken their answers.
#[derive(Debug)]
pub struct Answers {
    limit_bytes: usize,
    bytes: AtomicUsize,
    refused: AtomicU64,
    given_up: AtomicU64,
    shared: Mutex<HashMap<AnswerKey, Weak<SharedAnswer>>>,
    warned_at: Mutex<Option<Instant>>,
}

/// What decides the bytes of an answer: its type, its version, and what a stream would be sent.
pub(super) type AnswerKey = (TypeUrl, String, Version);

/// An answer as it goes to all clients that are to have it.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    text: Box<[u8]>,
    _reservation: Reservation,
}

/// Bytes of the budget; dropping it gives them back.
#[derive(Debug)]
pub(super) struct Reservation {
    answers: Arc<Answers>,
    bytes: usize,
}

impl Answers {
    /// For so many bytes at a time.
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

    /// How many bytes are kept now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many polls were refused, as others filled the budget.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many answers were given up, as their clients did not take them in time.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    pub(super) fn new_reservation(self: &Arc<Self>) -> Reservation {
        Reservation { answers: Arc::clone(self), bytes: 0 }
    }

    /// The answer that is on its way to others already, or the one that is made now.
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
        // Another may have made the same meanwhile.
        if let Some(answer) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(answer);
        }
        known.retain(|_, answer| answer.strong_count() > 0);
        known.insert(key, Arc::downgrade(&answer));
        Ok(answer)
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn known(&self) -> MutexGuard<'_, HashMap<AnswerKey, Weak<SharedAnswer>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time for another line in the log: those who do this do it often.
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
    /// Takes as much of the budget as there are bytes now.
    ///
    /// # Errors
    /// The budget does not have it.
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
                "polls are refused: answers that wait for their clients fill the limit"
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
    /// To one client, who has so long to take all of it.
    pub(super) fn respond(self: Arc<Self>, answers: Arc<Answers>, within: Duration) -> Response {
        let head = [
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::CONTENT_LENGTH, self.text.len().to_string()),
        ];
        // Bytes are copied, as what the transport has of a shared buffer keeps all of it.
        (head, Body::from_stream(tokio_stream::iter(Chunks::new(self, answers, within)))).into_response()
    }
}

/// An answer in pieces, until its time is over.
///
/// The transport asks for a piece when it has room. While a client reads nothing it does not ask,
/// so a task of its own lets go of the answer then: what stays are the few 100 KB that the
/// transport has, until it finds that nothing moves.
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
                        "a poll is given up: its client did not take the answer in {within:?}"
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

/// No code panics while it holds the lock.
fn lock(left: &Mutex<Option<Arc<SharedAnswer>>>) -> MutexGuard<'_, Option<Arc<SharedAnswer>>> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the transport is handed at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// How often the log says that polls are refused or given up; metrics have all of them.
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
