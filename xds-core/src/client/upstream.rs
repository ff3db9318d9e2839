//! One server: its connection, and the state of its stream (S1-S16, D1-D7, C7, C14).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::config::ServerConfig;
use super::health::{Health, Status};
use super::received::ReceivedResponse;
use super::resource_failure::ResourceFailure;
use crate::name::ResourceName;
use crate::protocol::Protocol;

/// One server, and the stream to it if one is open.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) config: ServerConfig,
    pub(super) phase: Phase,
    /// The error of the last attempt to reach it, until the server works again (P5.2).
    pub(super) failure: Option<Arc<ResourceFailure>>,
    /// How many attempts failed in a row (C7).
    failures: u32,
    /// The state of each type; `None` in a client of a proxy.
    pub(super) health: Option<Health>,
    /// In a client of a proxy: whether a type explains the end of the stream.
    pub(super) is_end_explained: bool,
    /// In a client of a proxy: the type that ends the stream, by number, and why.
    pub(super) refused: Option<(usize, Status)>,
    /// How many streams in a row ended because of a type, without any response.
    searches: u32,
    /// The number of the newest stream, 1 for the first.
    pub(super) generation: u64,
    /// S11: whether the node was sent on this stream.
    pub(super) is_node_sent: bool,
    /// The state of each type on this stream, by the number of the type.
    pub(super) types: Vec<TypeStream>,
    /// How many responses the client had applied, from all servers, when the stream was opened.
    pub(super) responses_before: u64,
}

/// The connection to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no stream. The next attempt is not before this time.
    Away { retry_at: Duration },
    /// The caller connects.
    Connecting,
    /// The stream is open. `is_answered`: a response came on it.
    Open { since: Duration, is_answered: bool },
}

/// One type on one stream. Types are independent of each other (S13).
#[derive(Debug, Default)]
pub(super) struct TypeStream {
    /// S1, C14: the last version that was accepted from this server. The next stream starts with
    /// it.
    pub(super) version: Arc<str>,
    /// Whether the resources in use differ from those of `version`: valid parts of a rejected
    /// response are in use (C2), a resource came from another server (C15), or a TTL ended (S38).
    /// S32: the next stream then must not start with the version if there is a wildcard.
    pub(super) is_partial: bool,
    /// The nonce of the last response on this stream.
    pub(super) nonce: Arc<str>,
    /// Whether the type was requested on this stream.
    pub(super) is_open: bool,
    /// The ACKs and NACKs to send, in the order of the responses (C1).
    pub(super) pending_acks: VecDeque<AckOrNack>,
    /// Entries whose subscription may have to change. A bit of the entry prevents duplicates.
    pub(super) dirty: Vec<u32>,
    /// SotW: the names in the last request.
    pub(super) requested: RequestedNames,
    /// Delta: names that were not answered when a glob or wildcard was subscribed to after them. A
    /// response with only some of these answers them, and says nothing about the collection (C12).
    pub(super) awaited_before: BTreeSet<ResourceName>,
    /// S19: SotW: whether a request had names. From then on a request without names no longer
    /// means the wildcard.
    pub(super) has_sent_names: bool,
}

/// The names in a SotW request.
#[derive(Debug, Clone, Default)]
pub(super) enum RequestedNames {
    /// Nothing is subscribed to.
    #[default]
    Nothing,
    /// S19: a request without names, which means the wildcard. Some servers support only this form
    /// of the wildcard, for example go-control-plane's snapshots.
    Everything,
    /// S20: the unsubscription of a wildcard that was requested without names. A request must name
    /// the wildcard first; only then can the next request leave it out.
    NamedWildcard,
    /// Names and locators, encoded.
    Names(bytes::Bytes),
}

/// The ACK or NACK of one response, not sent yet.
#[derive(Debug)]
pub(super) struct AckOrNack {
    pub(super) nonce: Arc<str>,
    /// The last accepted version, after the response was applied (S3, S4).
    pub(super) version: Arc<str>,
    /// For a NACK: why the response is rejected.
    pub(super) error: Option<String>,
}

impl TypeStream {
    /// Whether a response is the answer to the globs and wildcards, or may come after it.
    pub(super) fn is_for_collections(&mut self, response: &ReceivedResponse<'_>) -> bool {
        let is_empty = response.names().next().is_none();
        if is_empty || !response.names().all(|name| self.awaited_before.contains(name)) {
            self.awaited_before.clear();
            return true;
        }
        response.names().for_each(|name| _ = self.awaited_before.remove(name));
        false
    }
}

impl Upstream {
    pub(super) fn new(config: ServerConfig, health: Option<Health>) -> Self {
        Self {
            health,
            is_end_explained: false,
            refused: None,
            searches: 0,
            config,
            phase: Phase::Away { retry_at: Duration::ZERO },
            failure: None,
            failures: 0,
            generation: 0,
            is_node_sent: false,
            types: Vec::new(),
            responses_before: 0,
        }
    }

    pub(super) fn is_delta(&self) -> bool {
        self.config.protocol == Protocol::Delta
    }

    pub(super) fn is_open(&self) -> bool {
        self.opened_at().is_some()
    }

    /// When its stream was opened; `None` without an open stream.
    pub(super) fn opened_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Open { since, .. } => Some(since),
            Phase::Away { .. } | Phase::Connecting => None,
        }
    }

    pub(super) fn of_type(&mut self, at: usize) -> &mut TypeStream {
        if self.types.len() <= at {
            self.types.resize_with(at + 1, TypeStream::default);
        }
        &mut self.types[at]
    }

    /// S2, C14: a new stream starts without subscriptions, and nonces of the old one are invalid.
    pub(super) fn open(&mut self, now: Duration, responses: u64) {
        self.phase = Phase::Open { since: now, is_answered: false };
        self.responses_before = responses;
        self.generation += 1;
        self.is_node_sent = false;
        self.forget_stream();
    }

    /// Resets everything that belongs to one stream only.
    pub(super) fn forget_stream(&mut self) {
        for of_type in &mut self.types {
            let (version, is_partial) = (std::mem::take(&mut of_type.version), of_type.is_partial);
            *of_type = TypeStream { version, is_partial, ..TypeStream::default() };
        }
    }

    /// G4b: during a search for the type that a server refuses, it answers each other one at once, because the next
    /// stream brings no version (S32). With versions, a server without news would be silent.
    pub(super) fn forget_versions(&mut self) {
        for of_type in &mut self.types {
            (of_type.version, of_type.is_partial) = (Arc::default(), false);
        }
    }

    /// P5.2: a response came, so the backoff starts again.
    pub(super) fn on_response(&mut self) {
        (self.failures, self.searches) = (0, 0);
        if let Phase::Open { is_answered, .. } = &mut self.phase {
            *is_answered = true;
        }
    }

    /// The stream ended, or the attempt to connect failed. Returns whether that is a failure.
    ///
    /// C7: if a response came on the stream, it is no failure, and the client connects again at
    /// once, but at most once a second, so that a server that ends each stream after a response is
    /// not flooded. The same if a type `is_explained`: at once, and a little later each time.
    /// Otherwise the backoff applies.
    pub(super) fn end(&mut self, now: Duration, jitter: u32, is_explained: bool) -> bool {
        self.searches = if is_explained { self.searches + 1 } else { 0 };
        let retry_at = match self.phase {
            _ if is_explained => Some(now + SEARCH_STEP * self.searches),
            Phase::Open { since, is_answered: true } => Some(now.max(since + FIRST_BACKOFF)),
            Phase::Open { .. } | Phase::Connecting | Phase::Away { .. } => None,
        };
        self.phase = Phase::Away { retry_at: retry_at.unwrap_or_else(|| now + self.backoff(jitter)) };
        self.forget_stream();
        if retry_at.is_none() {
            self.failures = self.failures.saturating_add(1);
        }
        retry_at.is_none()
    }

    /// C7: 1 s, then 1.6 times as long each time up to 120 s, and 20 % more or less.
    fn backoff(&self, jitter: u32) -> Duration {
        let exponent = i32::try_from(self.failures).unwrap_or(i32::MAX).min(100);
        let base = (FIRST_BACKOFF.as_secs_f64() * 1.6_f64.powi(exponent)).min(LONGEST_BACKOFF.as_secs_f64());
        let share = f64::from(jitter) / f64::from(u32::MAX);
        Duration::from_secs_f64(base * (0.8 + 0.4 * share))
    }
}

const SEARCH_STEP: Duration = Duration::from_millis(50);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(120);
