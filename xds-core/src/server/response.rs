//! The input and output of the stream machines, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::name::{Nonce, ResourceName, TypeUrl, Version};
use crate::protocol::Protocol;
use crate::wire::fields::{field_len, put_field};
use crate::wire::{Body, CONTINUED};

/// The service on which a stream was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// The aggregated service: any type, each request names its own.
    Aggregated,
    /// The service of one type.
    Single(TypeUrl),
}

impl Service {
    /// The type of a request (S12, G2, G3).
    pub(super) fn type_of(&self, type_url: &str) -> Result<TypeUrl, StreamError> {
        match self {
            Self::Aggregated if type_url.is_empty() => Err(StreamError::MissingTypeUrl),
            Self::Aggregated => Ok(type_url.into()),
            // S12, D31: on the service of one type, a request may leave its type URL empty.
            Self::Single(expected) if type_url.is_empty() || type_url == expected.as_str() => {
                Ok(expected.clone())
            }
            Self::Single(expected) => {
                Err(StreamError::WrongTypeUrl { expected: expected.clone(), found: type_url.into() })
            }
        }
    }
}

/// What to do for a stream now.
#[derive(Debug, Clone)]
pub enum Next {
    /// Send this response, then call `next` again.
    Send(Response),
    /// Do nothing, until the stream is woken, gets a request, or reaches this time. The time is on
    /// the clock from which the caller takes `now`.
    Wait {
        /// When to call `next` again at the latest.
        until: Option<Duration>,
    },
    /// End the stream. The client reconnects, and is then sent everything that it lacks.
    Close(StreamError),
}

/// One response: a head of its own, and bodies that it shares with other streams.
#[derive(Debug, Clone)]
pub struct Response {
    /// The type of its resources.
    pub type_url: TypeUrl,
    /// Its nonce, new within the stream (S2, D7).
    pub nonce: Nonce,
    /// `version_info` in SotW, `system_version_info` in delta.
    pub version: Version,
    /// The resources and removals.
    pub bodies: Vec<Arc<Body>>,
    /// Whether another part of the same response follows.
    pub continuation: Continuation,
}

/// What follows a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Continuation {
    /// No other part: the response is complete.
    #[default]
    None,
    /// Another part of it (D32). The protocol has no field for that, so `system_version_info`,
    /// which is for people, ends with a plus sign: our own clients then do not take the first part
    /// of a wildcard for all of it.
    Part,
}

impl Response {
    /// The fields that differ from stream to stream, encoded. SotW and delta number them alike (A).
    #[must_use]
    pub fn head(&self) -> Bytes {
        let mut head = BytesMut::new();
        self.put_head(&mut head);
        head.freeze()
    }

    /// Appends the same. With the types of Envoy, 128 bytes are enough.
    pub fn put_head(&self, buffer: &mut BytesMut) {
        match self.continuation {
            Continuation::None => put_field(buffer, 1, &self.version.digits()),
            Continuation::Part => put_field(buffer, 1, &[&self.version.digits()[..], &[CONTINUED]].concat()),
        }
        put_field(buffer, 4, self.type_url.as_str().as_bytes());
        put_field(buffer, 5, self.nonce.text().as_bytes());
    }

    /// The encoded size in bytes, without the frame of gRPC.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let mark = if self.continuation == Continuation::Part { 1 } else { 0 };
        let head = [self.version.digits().len() + mark, self.type_url.as_str().len(), self.nonce.len()];
        head.into_iter().map(field_len).chain(self.bodies.iter().map(|body| body.len())).sum()
    }

    /// The number of resources in it.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.bodies.iter().map(|body| body.resources()).sum()
    }
}

/// Names of one request that the client may not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedNames {
    /// The type of the request.
    pub type_url: TypeUrl,
    /// How many names.
    pub count: usize,
    /// Why the first one is denied, with its name.
    pub reason: String,
}

/// The client's answer to a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The client uses the response (S3, D4).
    Acked {
        /// The type of the response.
        type_url: TypeUrl,
        /// The nonce of the response.
        nonce: Nonce,
    },
    /// The client rejected the response, or a part of it (S4, S5, D4).
    Nacked {
        /// The type of the response.
        type_url: TypeUrl,
        /// The nonce of the response.
        nonce: Nonce,
        /// The client's error message, for people.
        detail: String,
        /// Whether the response repeated something that the client had rejected before (S6c, S6e).
        is_repeat: bool,
    },
}

/// Why a stream must end. The client can correct its requests, or reconnect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The request is of the other protocol.
    #[error("a request of another protocol came on a stream of {expected:?}")]
    WrongProtocol {
        /// The protocol of the stream.
        expected: Protocol,
    },
    /// G2: on an aggregated stream, a request must name its type.
    #[error("a request on an aggregated stream has no type_url")]
    MissingTypeUrl,
    /// G3: the service serves one type, and the request names another.
    #[error("this service serves {expected}, not {found}")]
    WrongTypeUrl {
        /// The type of the service.
        expected: TypeUrl,
        /// The type of the request.
        found: TypeUrl,
    },
    /// G4: the type is not served here, and by configuration a request for it ends the stream.
    #[error("{} is not served here", type_url.message_name())]
    NotServed {
        /// The type of the request.
        type_url: TypeUrl,
    },
    /// G8: one request has too many names that no resource can have. A client that sends so many is
    /// no xDS client.
    #[error(
        "{found} names of {} in one request are invalid, which exceeds the limit of {limit}",
        type_url.message_name()
    )]
    TooManyInvalidNames {
        /// The type of the request.
        type_url: TypeUrl,
        /// The number that was found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// G9: too many names on one stream and type.
    #[error("{} names of {} on one stream exceed the limit of {limit}", found, type_url.message_name())]
    TooManyNames {
        /// The type of the request.
        type_url: TypeUrl,
        /// The number that the stream would have.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// G9: too many parameters of one locator.
    #[error(
        "a subscription to {} {name:?} has {found} parameters, which exceeds the limit of {limit}",
        type_url.message_name()
    )]
    TooManyParameters {
        /// The type of the request.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
        /// The number that was found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// G9: too many types on one aggregated stream.
    #[error("more than {limit} types on one stream")]
    TooManyTypes {
        /// The limit.
        limit: usize,
    },
    /// The client read so slowly that the server no longer has all removals that it must send.
    #[error(
        "the client reads too slowly: the server no longer has all removals of {} that the client missed; \
         reconnect to get the current resources",
        type_url.message_name()
    )]
    FellBehind {
        /// The type whose removals are missing.
        type_url: TypeUrl,
    },
    /// D33: too many streams of route configurations ended whose virtual hosts are sent on this stream.
    #[error(
        "more than {limit} streams of route configurations ended since this stream of their virtual hosts began; \
         reconnect to get what changed"
    )]
    TooManyRoutesAway {
        /// The limit.
        limit: usize,
    },
}
