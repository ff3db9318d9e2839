//! Names of a request: how the client spelled them, and the errors for names that cannot be served.

use std::collections::{BTreeMap, BTreeSet};

use super::response::DeniedNames;
use super::terms::Terms;
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};
use crate::subscription::Requested;
use crate::wire::Failure;

/// What is known of the names in the client's requests.
#[derive(Debug, Default)]
pub(super) struct RequestNames {
    /// The client's spelling of new-style names, by their canonical text, where the two differ
    /// (X5).
    pub(super) spelled: BTreeMap<ResourceName, ResourceName>,
    /// SotW: errors about names of the last request. A request repeats its names, so each error is
    /// reported once (G8, S37).
    pub(super) reported_errors: BTreeSet<Failure>,
    /// The names of the last request that the client may not read, for the log.
    pub(super) denied_names: Option<DeniedNames>,
}

impl RequestNames {
    /// Replaces new-style names by their canonical text (X4), and removes names that no resource
    /// can have (X6). Returns an error for each removed name.
    pub(super) fn read(&mut self, requested: &mut Requested, terms: &Terms) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut read = |name: &ResourceName| match terms.canonical(name) {
            Ok(None) => Some(name.clone()),
            Ok(Some(canonical)) => {
                match *name == canonical {
                    true => _ = self.spelled.remove(&canonical),
                    false => _ = self.spelled.insert(canonical.clone(), name.clone()),
                }
                Some(canonical)
            }
            Err(error) => {
                let message = format!("{} {name:?}: {error}", terms.type_url.message_name());
                failures.push(Failure::new(name.clone(), Code::INVALID_ARGUMENT, message));
                None
            }
        };
        requested.edit_names(|names| names.iter().filter_map(&mut read).collect());
        failures
    }

    /// Notes which of these errors are denials.
    pub(super) fn note_denied(&mut self, failures: &[Failure], type_url: &TypeUrl) {
        let mut denied = failures.iter().filter(|failure| failure.code == Code::PERMISSION_DENIED);
        let Some(first) = denied.next() else { return };
        let (type_url, reason) = (type_url.clone(), first.message.clone());
        self.denied_names = Some(DeniedNames { type_url, count: 1 + denied.count(), reason });
    }
}
