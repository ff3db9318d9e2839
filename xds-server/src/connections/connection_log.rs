//! Reports connections that the server ended: counts each, and logs few lines even for many.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, info};

use crate::handshake_log::HandshakeLog;
use crate::observe::{ConnectionEnd, Event, HandshakeFailure, Observer};
use crate::peer::Peer;
use crate::skim::Client;

/// Counts and logs the ends of connections.
#[derive(Debug)]
pub(crate) struct ConnectionLog {
    observer: Option<Arc<dyn Observer>>,
    /// Per reason, the number of ends since the logged one.
    more: Mutex<BTreeMap<&'static str, u64>>,
    handshakes: Arc<HandshakeLog>,
}

impl ConnectionLog {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Arc<Self> {
        Arc::new(Self { observer, more: Mutex::default(), handshakes: Arc::default() })
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
            ConnectionEnd::HandshakeTimeout => {
                self.log(end.label(), "it did not complete TLS, or did not begin with HTTP, in time", peer);
            }
            ConnectionEnd::Protocol => {
                self.log(end.label(), "it sends no HTTP, or breaks a rule or limit of HTTP/2", peer);
            }
            ConnectionEnd::Displaced => {
                let words = "the limit of connections is reached, and this one had no request for longest";
                self.log(end.label(), words, peer);
            }
            ConnectionEnd::TooManyConnections => {
                self.log(end.label(), "the limit of connections is reached, and all have requests", peer);
            }
            ConnectionEnd::TooManyOfAddress => {
                self.log(end.label(), "the limit of connections from its address is reached", peer);
            }
        }
    }

    pub(crate) fn on_handshake_failed(
        self: &Arc<Self>,
        failure: HandshakeFailure,
        error: &io::Error,
        peer: &Peer,
    ) {
        self.notify(Event::HandshakeFailed(failure));
        self.handshakes.on(failure, error, peer.address);
        self.on_end(ConnectionEnd::HandshakeFailed, peer);
    }

    pub(crate) fn on_request_timeout(self: &Arc<Self>, peer: &Peer) {
        self.notify(Event::RequestTimeout);
        self.log("request_timeout", "a request was not complete in time", peer);
    }

    pub(crate) fn on_too_much_partial(self: &Arc<Self>, peer: &Peer) {
        self.notify(Event::TooMuchPartial);
        let words = "the incomplete requests of all clients exceed their limit, so this one was ended";
        self.log("partial_request_bytes", words, peer);
    }

    /// Logs the first end of a reason, and after 10 s the number of further ones.
    fn log(self: &Arc<Self>, reason: &'static str, words: &'static str, peer: &Peer) {
        match self.more().entry(reason) {
            Entry::Occupied(mut more) => return *more.get_mut() += 1,
            Entry::Vacant(none) => _ = none.insert(0),
        }
        let address = peer.address.map(tracing::field::display);
        info!(peer = address, identity = peer.name(), reason, "ended a connection or request: {words}");
        let log = Arc::clone(self);
        tokio::spawn(async move {
            sleep(SUMMARY).await;
            let more = log.more().remove(reason).unwrap_or_default();
            if more > 0 {
                info!(reason, more, "ended more connections or requests in the last {SUMMARY:?}: {words}");
            }
        });
    }

    fn notify(&self, event: Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.on_event(&Client::default(), event);
        }
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn more(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long further ends of a reason are counted instead of logged.
const SUMMARY: Duration = Duration::from_secs(10);
