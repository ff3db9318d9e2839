//! Headers that a resource adds or removes.

use prost_reflect::DynamicMessage;

use super::super::command_operators::{self, Commands};
use super::super::rules::Violation;
use super::{Found, messages, sub, text, texts};

/// Checks the fields of a message that add or remove headers.
pub(super) fn check(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    for field in ADDED {
        for (index, option) in messages(message, field).iter().enumerate() {
            if let Some(reason) = flaw(option) {
                found.add_at(true, field, Some(index), reason);
            }
        }
    }
    for field in REMOVED {
        for (index, name) in texts(message, field).iter().enumerate() {
            let reason = format!("the header {name:?} cannot be removed");
            found.add_at(is_fixed(name), field, Some(index), reason);
        }
    }
    found.violations
}

/// Checks a `HeaderMutation`, which may remove any header.
pub(super) fn mutation(message: &DynamicMessage) -> Vec<Violation> {
    let mut found = Found::new(message);
    if let Some(reason) = sub(message, "append").as_ref().and_then(flaw) {
        found.add(true, "append", reason);
    }
    found.violations
}

/// Why Envoy does not add a header, given as `HeaderValueOption`.
fn flaw(option: &DynamicMessage) -> Option<String> {
    let header = sub(option, "header")?;
    let (key, value) = (text(&header, "key"), text(&header, "value"));
    if is_fixed(&key) {
        return Some(format!("the header {key:?} cannot be changed"));
    }
    let flaw = command_operators::check(&value, Commands::Http).err()?;
    Some(format!("the value of the header {key:?} is not valid: {flaw}"))
}

fn is_fixed(name: &str) -> bool {
    name.starts_with(':') || name.eq_ignore_ascii_case("host")
}

const ADDED: [&str; 5] = [
    "headers_to_add",
    "initial_metadata",
    "request_headers_to_add",
    "request_headers_to_add_when_not_enforced",
    "response_headers_to_add",
];
const REMOVED: [&str; 2] = ["request_headers_to_remove", "response_headers_to_remove"];
