//! What keeps clients from accepting a message: broken validation rules, then what Envoy is known to
//! reject.

use prost_reflect::{DynamicMessage, ReflectMessage};

use super::descriptors::Descriptors;
use super::known_rejections;
use super::rules::Violation;

/// Checks one message without the messages in it, which are checked on their own.
pub(super) fn message(
    message: &DynamicMessage,
    is_resource: bool,
    descriptors: &Descriptors,
) -> Vec<Violation> {
    let descriptor = message.descriptor();
    let mut violations = descriptors.rules(&descriptor).check(message);
    // These checks take for granted that the rules hold.
    if violations.is_empty() {
        violations =
            known_rejections::of(descriptor.full_name()).map(|check| check(message)).unwrap_or_default();
        if is_resource {
            violations.extend(known_rejections::of_resource(message));
        }
    }
    violations
}
