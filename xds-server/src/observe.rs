//! Events of streams and connections, for metrics and programs.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use xds_core::server::{DeniedNames, Protocol, Response, Service, StreamError, Verdict};
use xds_core::{TypeUrl, Variant};

use crate::peer::Peer;
use crate::skim::{Client, SkimError};

/// Receives the events of the streams of a server: a hook for metrics.
///
/// It is called from the tasks of the streams, so it must return quickly and must not block.
pub trait Observer: Debug + Send + Sync {
    /// An event of a stream of this client. The client is empty until its first request.
    fn on_event(&self, client: &Client, event: Event<'_>);
}

/// Each observer receives each event, in this order.
impl Observer for Vec<Arc<dyn Observer>> {
    fn on_event(&self, client: &Client, event: Event<'_>) {
        for observer in self {
            observer.on_event(client, event);
        }
    }
}

/// One event of one stream or connection.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The stream was accepted; no request has arrived yet.
    Accepted {
        /// The service of the stream.
        service: &'a Service,
        /// Its protocol.
        protocol: Protocol,
    },
    /// The first request has arrived, usually with the node.
    Opened,
    /// The stream ended; its last event.
    Ended {
        /// The service of the stream.
        service: &'a Service,
        /// Its protocol.
        protocol: Protocol,
        /// The status that was sent to the client.
        code: Code,
        /// How long it was open.
        after: Duration,
    },
    /// A response was handed to the transport.
    Sent(&'a Response),
    /// The client ACKed or rejected a response.
    Answered(&'a Verdict),
    /// Content counts as rejected (S6f): the client rejected it in a response of its own. The server sends
    /// a rejected response again in parts to find that out (S6c), so this event follows some time after
    /// the [`Answered`](Self::Answered) with the NACK, at most 16 s.
    Rejected {
        /// The type.
        type_url: &'a TypeUrl,
        /// The variants, as far as they are still the newest content. Without `alone`, the client means
        /// some of them.
        variants: &'a [Arc<Variant>],
        /// The only variant, if the client means this one.
        alone: Option<&'a Arc<Variant>>,
        /// The peer of its connection: what it says of itself may be wrong.
        peer: &'a Peer,
        /// The error message of the client.
        detail: &'a str,
    },
    /// A request has the nonce of a response that waits for no ACK (S8, D5).
    StaleNonce,
    /// A request has another node than the first one. The first node counts (G7).
    NodeChanged,
    /// The stream ends because of an invalid request or a limit (G2, G3, G8, G9).
    Refused(&'a StreamError),
    /// The authorizer refuses the client, at the start or later; the stream ends.
    Denied {
        /// `PERMISSION_DENIED` or `UNAUTHENTICATED`.
        code: Code,
    },
    /// The client subscribes to names that it may not read. It gets a resource error for each.
    NamesDenied(&'a DeniedNames),
    /// A stream was refused: the limit of streams is reached (G9).
    TooManyStreams,
    /// A request exceeds the size limit (G9).
    RequestTooLarge,
    /// No complete request arrived in time: the first of a stream, or one that had begun.
    RequestTimeout,
    /// The incomplete requests of all clients exceed the memory limit (G9).
    TooMuchPartial,
    /// The server closed or refused a connection.
    ConnectionEnded(ConnectionEnd),
    /// Precedes a [`ConnectionEnd::HandshakeFailed`]: why.
    HandshakeFailed(HandshakeFailure),
    /// A request is not readable; the stream ends (G1).
    Unreadable(&'a SkimError),
}

/// Why the server closed or refused a connection, where the peer is the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEnd {
    /// The TLS handshake failed.
    HandshakeFailed,
    /// The peer did not complete its TLS handshake, or did not start HTTP, in
    /// [time](crate::ServerConfig::handshake_timeout).
    HandshakeTimeout,
    /// The peer does not send HTTP, or breaks a rule or limit of HTTP/2, for example with a flood
    /// of resets.
    Protocol,
    /// No request was open for [too long](crate::ServerConfig::idle_timeout).
    Idle,
    /// It had no open request when another connection needed its place.
    Displaced,
    /// The [limit of connections](crate::ServerConfig::connections_limit) is reached, and all have
    /// open requests.
    TooManyConnections,
    /// The [limit for its address](crate::ServerConfig::address_connections_limit) is reached.
    TooManyOfAddress,
}

/// Why a TLS handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HandshakeFailure {
    /// The peer closed the connection, as port scanners and health checks do.
    Closed,
    /// The peer does not send TLS, for example plain text.
    NotTls,
    /// Server and peer have no common TLS version or algorithm.
    Incompatible,
    /// The peer has no certificate, and the server requires one.
    NoClientCertificate,
    /// No authority that the server trusts has signed the certificate of the peer.
    UnknownAuthority,
    /// The certificate of the peer has expired, or is not valid yet.
    CertificateExpired,
    /// The certificate of the peer is not valid for another reason.
    InvalidCertificate,
    /// The peer refused the handshake; usually it does not trust the certificate of the server.
    RefusedByPeer,
    /// Another reason.
    Other,
}

impl HandshakeFailure {
    /// All reasons.
    #[cfg(feature = "prometheus")]
    pub(crate) const ALL: [Self; 9] = [
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::NoClientCertificate,
        Self::UnknownAuthority,
        Self::CertificateExpired,
        Self::InvalidCertificate,
        Self::RefusedByPeer,
        Self::Other,
    ];

    /// Its name in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::NoClientCertificate => "no_client_certificate",
            Self::UnknownAuthority => "unknown_authority",
            Self::CertificateExpired => "certificate_expired",
            Self::InvalidCertificate => "invalid_certificate",
            Self::RefusedByPeer => "refused_by_peer",
            Self::Other => "other",
        }
    }

    /// The reason in words, for the log.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Closed => "the client closed the connection",
            Self::NotTls => "the client does not use TLS",
            Self::Incompatible => "server and client have no common TLS version or algorithm",
            Self::NoClientCertificate => "the client has no certificate, and the server requires one",
            Self::UnknownAuthority => "the client's certificate is not from a client authority of the server",
            Self::CertificateExpired => "the client's certificate has expired, or is not valid yet",
            Self::InvalidCertificate => "the client's certificate is not valid",
            Self::RefusedByPeer => "the client refused it; it may not trust the server's certificate",
            Self::Other => "see the error",
        }
    }
}

impl ConnectionEnd {
    /// All reasons.
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

    /// Its name in metrics and logs.
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
