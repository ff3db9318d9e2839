//! What happens on streams, for whoever counts it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use xds_core::server::{Response, Service, StreamError, Verdict};
use xds_core::{TypeUrl, Variant};

use crate::protocol::Protocol;
use crate::skim::{Client, SkimError};

/// Is told what happens on the streams of a server: a hook for metrics.
///
/// Called from the tasks of the streams, so it must be quick and must not block.
pub trait Observer: Debug + Send + Sync {
    /// Something happened on a stream of this client, which is unknown until its first request.
    fn on_event(&self, client: &Client, event: Event<'_>);
}

/// Each of them is told, in this order.
impl Observer for Vec<Arc<dyn Observer>> {
    fn on_event(&self, client: &Client, event: Event<'_>) {
        for observer in self {
            observer.on_event(client, event);
        }
    }
}

/// One thing that happened on one stream.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The stream was accepted; nothing came on it yet.
    Accepted {
        /// The service that it was opened on.
        service: &'a Service,
        /// Its protocol.
        protocol: Protocol,
    },
    /// The first request came, mostly with the node.
    Opened,
    /// The stream ended; its last event.
    Ended {
        /// The service that it was opened on.
        service: &'a Service,
        /// Its protocol.
        protocol: Protocol,
        /// The status that the client was sent.
        code: Code,
        /// How long it was open.
        after: Duration,
    },
    /// A response went to the transport.
    Sent(&'a Response),
    /// The client accepted or rejected a response.
    Answered(&'a Verdict),
    /// After [`Answered`](Self::Answered) with a rejection: what the response held of this type, as
    /// far as it is still the newest content. Which of it the client cannot use it says in words
    /// only.
    Rejected {
        /// The type.
        type_url: &'a TypeUrl,
        /// The contents.
        variants: &'a [Arc<Variant>],
        /// The client's own words.
        detail: &'a str,
    },
    /// A request named a response that does not wait for an answer (S8, D5).
    StaleNonce,
    /// A request brought another node than the first, which counts (G7).
    NodeChanged,
    /// The stream has to end: malformed requests and limits alike (G2, G3, G8, G9).
    Refused(&'a StreamError),
    /// The client may not read anything here, or not any more; the stream ends with this.
    Denied {
        /// `PERMISSION_DENIED` or `UNAUTHENTICATED`.
        code: Code,
    },
    /// No more streams are accepted (G9).
    TooManyStreams,
    /// A request was larger than allowed (G9).
    RequestTooLarge,
    /// No complete request came in time: the first of a stream, or one that had begun.
    RequestTimeout,
    /// Incomplete requests of all clients take more memory than allowed (G9).
    TooMuchPartial,
    /// The server ended a connection, or did not take it.
    ConnectionEnded(ConnectionEnd),
    /// A request could not be read; the stream ends with this (G1).
    Unreadable(&'a SkimError),
}

/// Why a server ended a connection or did not take it, as far as the peer is the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEnd {
    /// The TLS handshake failed.
    HandshakeFailed,
    /// The peer did not complete its TLS handshake, or did not begin with HTTP, in
    /// [time](crate::ServerConfig::handshake_timeout).
    HandshakeTimeout,
    /// What the peer sent is no HTTP, or breaks a rule or a limit of HTTP/2, as a flood of resets
    /// does.
    Protocol,
    /// No request was open for [too long](crate::ServerConfig::idle_timeout).
    Idle,
    /// It had no request when another connection needed its place.
    Displaced,
    /// There are [as many as may be](crate::ServerConfig::connections_limit), and all have
    /// requests.
    TooManyConnections,
    /// There are as many of its address [as may
    /// be](crate::ServerConfig::address_connections_limit).
    TooManyOfAddress,
}

impl ConnectionEnd {
    /// All of them.
    #[cfg(feature = "prometheus")]
    pub(crate) const ALL: [Self; 7] = [
        Self::HandshakeFailed,
        Self::HandshakeTimeout,
        Self::Protocol,
        Self::Idle,
        Self::Displaced,
        Self::TooManyConnections,
        Self::TooManyOfAddress,
    ];

    /// As metrics and logs name it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::HandshakeFailed => "handshake_failed",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::Protocol => "protocol",
            Self::Idle => "idle",
            Self::Displaced => "displaced",
            Self::TooManyConnections => "connections",
            Self::TooManyOfAddress => "address_connections",
        }
    }
}
