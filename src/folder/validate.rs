//! What keeps clients from accepting a message: broken validation rules.

use prost_reflect::{DynamicMessage, ReflectMessage};

use super::descriptors::Descriptors;
use super::rules::Violation;

/// Checks one message without the messages in it, which are checked on their own.
pub(super) fn message(message: &DynamicMessage, descriptors: &Descriptors) -> Vec<Violation> {
    descriptors.rules(&message.descriptor()).check(message)
}
