//! Reports connections that the server ended: counts each, and logs few lines even for many.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};
use xds_core::shortened;

use crate::line_times::{LineTimes, LogAction};
use crate::observe::{ConnectionEnd, Event, HandshakeFailure, Observer};
use crate::peer::Peer;
use crate::skim::Client;

/// Counts and logs the ends of connections.
#[derive(Debug)]
pub(crate) struct ConnectionLog {
    observer: Option<Arc<dyn Observer>>,
    /// Per reason, the number of ends since the logged one.
    more: Mutex<BTreeMap<&'static str, u64>>,
    handshakes: Mutex<BTreeMap<HandshakeFailure, FailedHandshakes>>,
}

/// Failed handshakes with the same reason.
#[derive(Debug)]
struct FailedHandshakes {
    times: LineTimes,
    last: FailedHandshake,
}

#[derive(Debug, Clone)]
struct FailedHandshake {
    peer: Peer,
    error: String,
}

impl ConnectionLog {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Arc<Self> {
        Arc::new(Self { observer, more: Mutex::default(), handshakes: Mutex::default() })
    }

    pub(crate) fn on_end(self: &Arc<Self>, end: ConnectionEnd, peer: &Peer) {
        self.notify(Event::ConnectionEnded(end));
        match end {
            // An idle connection is no error.
            ConnectionEnd::Idle => {
                debug!(peer = ?peer.address, reason = end.label(), "a connection ended");
            }
            // Logged with its reason.
            ConnectionEnd::HandshakeFailed => {}
            _ => self.log(end.label(), peer),
        }
    }

    /// Logs the first failure of a reason at once, and further ones as [`LineTimes`] says.
    pub(crate) fn on_handshake_failed(
        self: &Arc<Self>,
        failure: HandshakeFailure,
        error: &io::Error,
        peer: &Peer,
    ) {
        self.notify(Event::HandshakeFailed(failure));
        let error = shortened(&error.to_string(), ERROR_LIMIT_BYTES).into_owned();
        let failed = FailedHandshake { peer: peer.clone(), error };
        // Port scanners and health checks close connections all the time.
        if failure == HandshakeFailure::Closed {
            debug!(peer = ?peer.address, error = failed.error, "a TLS handshake failed: {}", failure.words());
            return self.on_end(ConnectionEnd::HandshakeFailed, peer);
        }
        let action = match self.handshakes().entry(failure) {
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                known.last = failed.clone();
                known.times.on_event(Instant::now())
            }
            Entry::Vacant(entry) => {
                let (times, action) = LineTimes::start(Instant::now());
                entry.insert(FailedHandshakes { times, last: failed.clone() });
                action
            }
        };
        match action {
            LogAction::Nothing => {}
            LogAction::Log => failed.log(failure, None),
            LogAction::LogAt(at) => {
                let log = Arc::clone(self);
                tokio::spawn(async move {
                    sleep_until(at).await;
                    let due = log
                        .handshakes()
                        .get_mut(&failure)
                        .and_then(|known| Some((known.times.take(Instant::now())?, known.last.clone())));
                    if let Some((more, last)) = due {
                        last.log(failure, Some(more));
                    }
                });
            }
        }
        self.on_end(ConnectionEnd::HandshakeFailed, peer);
    }

    pub(crate) fn on_request_timeout(self: &Arc<Self>, peer: &Peer) {
        self.notify(Event::RequestTimeout);
        self.log("request_timeout", peer);
    }

    pub(crate) fn on_too_much_partial(self: &Arc<Self>, peer: &Peer) {
        self.notify(Event::TooMuchPartial);
        self.log("partial_request_bytes", peer);
    }

    /// Logs the first end of a reason, and after 10 s the number of further ones.
    fn log(self: &Arc<Self>, reason: &'static str, peer: &Peer) {
        match self.more().entry(reason) {
            Entry::Occupied(mut more) => return *more.get_mut() += 1,
            Entry::Vacant(none) => _ = none.insert(0),
        }
        let address = peer.address.map(tracing::field::display);
        info!(
            peer = address,
            identity = peer.name(),
            reason,
            "a peer reached a limit of connections or requests"
        );
        let log = Arc::clone(self);
        tokio::spawn(async move {
            sleep(SUMMARY).await;
            let more = log.more().remove(reason).unwrap_or_default();
            if more > 0 {
                info!(reason, more, "peers reached this limit more often in the last {SUMMARY:?}");
            }
        });
    }

    fn notify(&self, event: Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.on_event(&Client::default(), event);
        }
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn handshakes(&self) -> MutexGuard<'_, BTreeMap<HandshakeFailure, FailedHandshakes>> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As above.
    fn more(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailedHandshake {
    /// `more` is the number of failures since the line before.
    fn log(&self, failure: HandshakeFailure, more: Option<u64>) {
        let (peer, error) = (self.peer.address.map(tracing::field::display), &*self.error);
        let (reason, words) = (failure.label(), failure.words());
        match more {
            None => info!(peer, reason, error, "a TLS handshake failed: {words}"),
            Some(more) => info!(more, peer, reason, error, "more TLS handshakes failed: {words}"),
        }
    }
}

/// The limit for the text of an error.
const ERROR_LIMIT_BYTES: usize = 300;
/// How long further ends of a reason are counted instead of logged.
const SUMMARY: Duration = Duration::from_secs(10);
