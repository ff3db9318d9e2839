//! Failed TLS handshakes as few lines of the log.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};
use xds_core::shortened;

use crate::line_times::{LineTimes, LogAction};
use crate::observe::HandshakeFailure;

/// Logs the first failure of a reason at once, and further ones as [`LineTimes`] says.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLog(Mutex<BTreeMap<HandshakeFailure, Failures>>);

/// The failures with one reason.
#[derive(Debug)]
struct Failures {
    times: LineTimes,
    last: Failure,
}

#[derive(Debug, Clone)]
struct Failure {
    reason: HandshakeFailure,
    peer: Option<SocketAddr>,
    error: String,
}

impl HandshakeLog {
    /// Notes a failure, and logs it now or later.
    pub(crate) fn on(
        self: &Arc<Self>,
        reason: HandshakeFailure,
        error: &io::Error,
        peer: Option<SocketAddr>,
    ) {
        let error = shortened(&error.to_string(), ERROR_LIMIT_BYTES).into_owned();
        let failure = Failure { reason, peer, error };
        // Port scanners and health checks close connections all the time.
        if reason == HandshakeFailure::Closed {
            let (words, error) = (reason.words(), &*failure.error);
            return debug!(?peer, error, "a TLS handshake failed: {words}");
        }
        match self.note(&failure, Instant::now()) {
            LogAction::Nothing => {}
            LogAction::Log => failure.log(None),
            LogAction::LogAt(at) => {
                let log = Arc::clone(self);
                tokio::spawn(async move {
                    sleep_until(at).await;
                    if let Some((more, last)) = log.take(reason, Instant::now()) {
                        last.log(Some(more));
                    }
                });
            }
        }
    }

    fn note(&self, failure: &Failure, now: Instant) -> LogAction {
        match self.failures().entry(failure.reason) {
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                known.last = failure.clone();
                known.times.on_event(now)
            }
            Entry::Vacant(entry) => {
                let (times, action) = LineTimes::start(now);
                entry.insert(Failures { times, last: failure.clone() });
                action
            }
        }
    }

    /// The number of failures since the last line, and the last failure; `None` if no line is due.
    fn take(&self, reason: HandshakeFailure, now: Instant) -> Option<(u64, Failure)> {
        let mut failures = self.failures();
        let known = failures.get_mut(&reason)?;
        Some((known.times.take(now)?, known.last.clone()))
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn failures(&self) -> MutexGuard<'_, BTreeMap<HandshakeFailure, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
    /// `more` is the number of failures since the line before.
    fn log(&self, more: Option<u64>) {
        let (peer, error) = (self.peer.map(tracing::field::display), &*self.error);
        let (reason, words) = (self.reason.label(), self.reason.words());
        match more {
            None => info!(peer, reason, error, "a TLS handshake failed: {words}"),
            Some(more) => info!(more, peer, reason, error, "more TLS handshakes failed: {words}"),
        }
    }
}

/// The limit for the text of an error.
const ERROR_LIMIT_BYTES: usize = 300;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn g15_failed_handshakes_are_summed_up_by_reason_with_the_last_peer() {
        let (log, start) = (HandshakeLog::default(), Instant::now());
        let failure = |reason, port: u16| Failure {
            reason,
            peer: Some(([192, 0, 2, 1], port).into()),
            error: String::new(),
        };
        let (unknown, plain) = (HandshakeFailure::UnknownAuthority, HandshakeFailure::NotTls);
        assert_eq!(log.note(&failure(unknown, 1), start), LogAction::Log);
        assert_eq!(log.note(&failure(plain, 2), start), LogAction::Log, "another reason");
        let at = start + Duration::from_secs(10);
        assert_eq!(log.note(&failure(unknown, 3), start), LogAction::LogAt(at));
        assert_eq!(log.note(&failure(unknown, 4), start), LogAction::Nothing);
        let (more, last) = log.take(unknown, at).unwrap();
        assert_eq!((more, last.peer.unwrap().port()), (2, 4));
        assert!(log.take(plain, at).is_none());
    }
}
