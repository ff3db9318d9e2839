//! What a client is told of a name that it asked for and is not sent (S37).

use super::response::StreamError;
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;

/// One entry of `resource_errors`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    pub(super) name: ResourceName,
    /// For which parameters, where others get something of the name (T36).
    pub(super) constraints: Constraints,
    pub(super) code: Code,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(name: ResourceName, code: Code, message: impl Into<String>) -> Self {
        Self { name, constraints: Constraints::NONE, code, message: message.into() }
    }

    /// An error that concerns one name only; `None` for those that end the stream.
    pub(super) fn of(error: &StreamError) -> Option<Self> {
        match error {
            StreamError::InvalidName { name, .. } | StreamError::InvalidKey { name, .. } => {
                Some(Self::new(name.clone(), Code::INVALID_ARGUMENT, error.to_string()))
            }
            _ => None,
        }
    }
}
