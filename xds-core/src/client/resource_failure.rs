//! The error of a watched resource.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::code::Code;

/// Why a watcher has no resource, or an error beside a resource that stays in use (C8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceFailure {
    /// The kind of error. Do not use it as the status of a data plane request (P1.20).
    pub code: Code,
    /// The explanation, for people.
    pub message: Arc<str>,
    /// The rejected version, if the client rejected the resource (P6.4).
    pub rejected_version: Option<Arc<str>>,
    /// When it happened, since the start of the client.
    pub at: Duration,
}

impl ResourceFailure {
    pub(super) fn new(code: Code, message: impl Into<Arc<str>>, at: Duration) -> Self {
        Self { code, message: message.into(), rejected_version: None, at }
    }

    /// Whether both have the same code and message; the time may differ.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.code, &self.message) == (other.code, &other.message)
    }
}

impl fmt::Display for ResourceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ResourceFailure {}
