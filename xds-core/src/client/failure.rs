//! Why a watcher has no resource, or should know that something is wrong with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What watchers are told in the place of a resource, or beside one (C8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of error it is. Not to be handed on as the status of a request (P1.20).
    pub code: Code,
    /// For people.
    pub message: Arc<str>,
    /// The version that was rejected, where something was (P6.4).
    pub rejected_version: Option<Arc<str>>,
    /// When, since the start of the client.
    pub at: Duration,
}

/// A status code of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub i32);

impl Code {
    /// The resource was received and is not valid.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// There is no such resource.
    pub const NOT_FOUND: Self = Self(5);
    /// This client may not have it.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// Nobody knows at the moment.
    pub const UNAVAILABLE: Self = Self(14);

    /// Whether it says something about the resource, and not only about who was asked for it (C9, C10).
    #[must_use]
    pub fn is_data_error(self) -> bool {
        self == Self::NOT_FOUND || self == Self::PERMISSION_DENIED
    }

    /// The name that gRPC has for it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<Arc<str>>, at: Duration) -> Self {
        Self { code, message: message.into(), rejected_version: None, at }
    }

    /// Whether it tells a watcher the same, at whatever time.
    pub(super) fn tells_the_same(&self, other: &Self) -> bool {
        (self.code, &self.message) == (other.code, &other.message)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

/// By number.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
