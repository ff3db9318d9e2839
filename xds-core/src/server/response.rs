//! What goes in and out of the stream machines, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::name::{Nonce, ResourceName, TypeUrl, Version};
use crate::wire::fields::{field_len, put_field};
use crate::wire::{Body, CONTINUED};

/// Which service a stream was opened on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// The aggregated service: any type, each request names its own.
    Aggregated,
    /// The service of one type.
    Single(TypeUrl),
}

/// What a stream has to do now.
#[derive(Debug, Clone)]
pub enum Next {
    /// Send this, then ask again.
    Send(Response),
    /// Nothing, until the stream is woken, gets a request, or reaches this time, on the clock from
    /// which its caller takes `now`.
    Wait {
        /// When to ask again at the latest.
        until: Option<Duration>,
    },
    /// End the stream. The client comes back and is told everything it then lacks.
    Close(StreamError),
}

/// One response: a small head of its own and bodies that it shares with other streams.
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
    /// What comes next.
    pub continuation: Continuation,
}

/// What comes after a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Continuation {
    /// Nothing that was to be in it.
    #[default]
    None,
    /// The next part of it (D32). The protocol has no word for that, so `system_version_info`,
    /// which is for people, ends with a plus sign: our own clients do not take the first part of a
    /// wildcard for all of it.
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

    /// Appends the same. Of the space that it takes 128 bytes are enough with the types of Envoy.
    pub fn put_head(&self, buffer: &mut BytesMut) {
        match self.continuation {
            Continuation::None => put_field(buffer, 1, &self.version.digits()),
            Continuation::Part => put_field(buffer, 1, &[&self.version.digits()[..], &[CONTINUED]].concat()),
        }
        put_field(buffer, 4, self.type_url.as_str().as_bytes());
        put_field(buffer, 5, self.nonce.text().as_bytes());
    }

    /// How many bytes it takes encoded, without what gRPC adds.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let mark = if self.continuation == Continuation::Part { 1 } else { 0 };
        let head = [self.version.digits().len() + mark, self.type_url.as_str().len(), self.nonce.len()];
        head.into_iter().map(field_len).chain(self.bodies.iter().map(|body| body.len())).sum()
    }

    /// How many resources it holds.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.bodies.iter().map(|body| body.resources()).sum()
    }
}

/// What a client said about a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It uses the response (S3, D4).
    Acked {
        /// The type of the response.
        type_url: TypeUrl,
        /// The response.
        nonce: Nonce,
    },
    /// It rejected the response, or part of it (S4, S5, D4).
    Nacked {
        /// The type of the response.
        type_url: TypeUrl,
        /// The response.
        nonce: Nonce,
        /// The client's own words, for people.
        detail: String,
    },
}

/// Why a stream has to end. Its client can mend it, or come back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// G2: an aggregated stream cannot tell what a request is about.
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
    /// G4: the type is not served here, and the configuration says that asking for it is an error.
    #[error("{} is not served here", type_url.message_name())]
    NotServed {
        /// The type of the request.
        type_url: TypeUrl,
    },
    /// G8: too many names in one request that no resource can have; a client that sends more is no
    /// xDS client.
    #[error("{found} names of {} in one request cannot exist, which exceeds the limit of {limit}", type_url.message_name())]
    TooManyInvalidNames {
        /// The type of the request.
        type_url: TypeUrl,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// G9: too many names on one stream and type.
    #[error("{} names of {} on one stream exceed the limit of {limit}", found, type_url.message_name())]
    TooManyNames {
        /// The type of the request.
        type_url: TypeUrl,
        /// How many there would be.
        found: usize,
        /// What is allowed.
        limit: usize,
    },
    /// G9: too many parameters of one locator.
    #[error("{} {name:?} is asked for with {found} parameters, which exceed the limit of {limit}", type_url.message_name())]
    TooManyParameters {
        /// The type of the request.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
        /// How many there are.
        found: usize,
        /// What is allowed.
        limit: usize,
    },
    /// G9: too many types on one aggregated stream.
    #[error("more than {limit} types on one stream")]
    TooManyTypes {
        /// What is allowed.
        limit: usize,
    },
    /// The client read so slowly that removals it has not heard of are forgotten.
    #[error("the stream fell too far behind the changes of {}", type_url.message_name())]
    FellBehind {
        /// The type it missed changes of.
        type_url: TypeUrl,
    },
}
