//! Why a watcher has no resource, or should know that something is wrong with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::code::Code;

/// What watchers are told in the place of a resource, or beside one (C8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceFailure {
    /// What kind of error it is. Not to be handed on as the status of a request (P1.20).
    pub code: Code,
    /// For people.
    pub message: Arc<str>,
    /// The version that was rejected, where something was (P6.4).
    pub rejected_version: Option<Arc<str>>,
    /// When, since the start of the client.
    pub at: Duration,
}

impl ResourceFailure {
    pub(super) fn new(code: Code, message: impl Into<Arc<str>>, at: Duration) -> Self {
        Self { code, message: message.into(), rejected_version: None, at }
    }

    /// Whether it tells a watcher the same, at whatever time.
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
