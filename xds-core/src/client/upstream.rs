//! One server: its connection, and what its present stream was told (S1-S16, D1-D7, C7, C14).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::config::{Protocol, ServerConfig};
use super::resource_failure::ResourceFailure;

/// One server, and the stream to it if there is one.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) config: ServerConfig,
    pub(super) phase: Phase,
    /// It could not be reached, and nothing came from it since.
    pub(super) failure: Option<Arc<ResourceFailure>>,
    /// How many attempts failed in a row.
    failures: u32,
    /// How many streams there were before.
    pub(super) generation: u64,
    /// S11: of this stream.
    pub(super) is_node_sent: bool,
    /// By the number of the type.
    pub(super) types: Vec<TypeStream>,
    /// How many responses the client had judged when the stream began.
    pub(super) responses_before: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No stream, and the next attempt not before this time.
    Away { retry_at: Duration },
    /// The transport is at it.
    Connecting,
    /// Requests go out.
    Open { since: Duration, is_answered: bool },
}

/// What one stream was told of one type, apart from all others (S13).
#[derive(Debug, Default)]
pub(super) struct TypeStream {
    /// S1, C14: the version accepted last, from this server. Survives the stream.
    pub(super) version: Arc<str>,
    /// What is held is not what the version stands for: a part of what was rejected is in use (C2),
    /// something came from another server (C15) or ended by itself (S38). S32: a server must not
    /// take it for that.
    pub(super) is_partial: bool,
    /// Of the response that came last. Ends with the stream.
    pub(super) nonce: Arc<str>,
    /// Whether the type was asked for on this stream.
    pub(super) is_open: bool,
    /// What has to be said about responses, in order (C1).
    pub(super) pending_acks: VecDeque<AckOrNack>,
    /// Entries whose subscription may have to change; each once, by a mark at the entry.
    pub(super) dirty: Vec<u32>,
    /// SotW: what was asked for last.
    pub(super) list: RequestedNames,
    /// SotW: names were told, so that no names do not mean everything any more (S19).
    pub(super) has_named: bool,
}

/// What a SotW request asks for.
#[derive(Debug, Clone, Default)]
pub(super) enum RequestedNames {
    #[default]
    Nothing,
    /// S19: everything, by naming nothing. Some servers know no other way, go-control-plane's
    /// snapshots among them.
    Everything,
    /// Of everything nothing is wanted any more, which can be said only once it has been asked for
    /// by its name (S20).
    GivingUp,
    /// Encoded.
    Named(bytes::Bytes),
}

/// What is said about one response.
#[derive(Debug)]
pub(super) struct AckOrNack {
    pub(super) nonce: Arc<str>,
    /// What is in use once it was judged (S3, S4).
    pub(super) version: Arc<str>,
    /// Why it is rejected; `None` accepts it.
    pub(super) error: Option<String>,
}

impl Upstream {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self {
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
        matches!(self.phase, Phase::Open { .. })
    }

    pub(super) fn of_type(&mut self, at: usize) -> &mut TypeStream {
        if self.types.len() <= at {
            self.types.resize_with(at + 1, TypeStream::default);
        }
        &mut self.types[at]
    }

    /// S2, C14: a stream begins with nothing told; nonces of the one before mean nothing.
    pub(super) fn open(&mut self, now: Duration, responses: u64) {
        self.phase = Phase::Open { since: now, is_answered: false };
        self.responses_before = responses;
        self.generation += 1;
        self.is_node_sent = false;
        self.forget_stream();
    }

    pub(super) fn forget_stream(&mut self) {
        for of_type in &mut self.types {
            let (version, is_partial) = (std::mem::take(&mut of_type.version), of_type.is_partial);
            *of_type = TypeStream { version, is_partial, ..TypeStream::default() };
        }
    }

    /// P5.2: something came, so the next attempts begin anew.
    pub(super) fn on_response(&mut self) {
        self.failures = 0;
        if let Phase::Open { is_answered, .. } = &mut self.phase {
            *is_answered = true;
        }
    }

    /// C7: a stream that was answered may be opened again at once, though not more than once a
    /// second: a server that answers and ends each stream must not be hammered. All else backs off.
    /// Whether it was a failure.
    pub(super) fn end(&mut self, now: Duration, jitter: u32) -> bool {
        let retry_at = match self.phase {
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

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(120);
