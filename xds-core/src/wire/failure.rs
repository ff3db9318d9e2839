//! The error for a subscribed name that is not sent (S37).

use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::shortened::shortened;

/// One entry of `resource_errors`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Failure {
    pub(crate) name: ResourceName,
    /// The parameters that it is about, when other parameters get a variant of the name (T36).
    pub(crate) constraints: Constraints,
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(name: ResourceName, code: Code, message: impl Into<String>) -> Self {
        // The message may quote a text of the client.
        let message = shortened(&message.into(), MESSAGE_LIMIT_BYTES).into_owned();
        Self { name, constraints: Constraints::NONE, code, message }
    }

    /// W2, G8: no resource can have the name.
    pub(crate) fn of_name(type_url: &TypeUrl, name: ResourceName) -> Self {
        Self::invalid(type_url, name, "is not a valid name: it is empty or has control characters")
    }

    /// W2, G8: no constraints can name a key of its parameters.
    pub(crate) fn of_key(type_url: &TypeUrl, name: ResourceName) -> Self {
        Self::invalid(type_url, name, "has a parameter whose key has control characters")
    }

    fn invalid(type_url: &TypeUrl, name: ResourceName, why: &str) -> Self {
        let shown = shortened(name.as_str(), NAME_LIMIT_BYTES);
        let message = format!("{} {shown:?} {why}", type_url.message_name());
        Self::new(name, Code::INVALID_ARGUMENT, message)
    }
}

/// How many bytes of a name the message shows. The error has the whole name in another field.
const NAME_LIMIT_BYTES: usize = 256;
/// The longest message for one name.
const MESSAGE_LIMIT_BYTES: usize = 1024;
