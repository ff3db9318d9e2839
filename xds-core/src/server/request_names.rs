//! Names of a request: how the client spelled them, and the errors for names that cannot be served.

use std::collections::{BTreeMap, BTreeSet};

use super::response::{DeniedNames, StreamError};
use super::terms::Terms;
use crate::access::Access;
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};
use crate::subscription::{NameSet, Requested, can_be};
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
    fn read(&mut self, requested: &mut Requested, terms: &Terms) -> Vec<Failure> {
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

    /// Removes from a request what no resource can match, invalid names and parameter keys that no
    /// constraint can have (W2, G8), and what the client may not read. Returns an error for each.
    ///
    /// # Errors
    /// The stream ends when there are too many invalid names, or when a locator has too many
    /// parameters (G9).
    pub(super) fn take_invalid(
        &mut self,
        requested: &mut Requested,
        terms: &Terms,
        access: Option<&Access>,
        parameters_limit: usize,
    ) -> Result<Vec<Failure>, StreamError> {
        if requested.is_empty() {
            return Ok(Vec::new());
        }
        let mut failures = self.read(requested, terms);
        if let Some(access) = access {
            failures.extend(terms.take_denied(access, requested));
        }
        let (type_url, limit) = (&terms.type_url, parameters_limit);
        let too_many = requested.locators.sets().find(|(parameters, _)| parameters.len() > limit);
        if let Some((parameters, names)) = too_many {
            let (name, found) = (names.as_slice()[0].clone(), parameters.len());
            return Err(StreamError::TooManyParameters { type_url: type_url.clone(), name, found, limit });
        }
        requested.edit_names(|names| {
            let is_valid = |name: &&ResourceName| can_be(name.as_str());
            let invalid = names.iter().filter(|name| !is_valid(name)).cloned();
            failures.extend(invalid.map(|name| Failure::of_name(type_url, name)));
            names.iter().filter(is_valid).cloned().collect()
        });
        // Constraints can have an empty key.
        let has_control = |text: &str| text.bytes().any(|byte| byte < b' ');
        requested.locators.retain(|parameters, names| {
            if !parameters.iter().any(|(key, _)| has_control(key)) {
                return names.clone();
            }
            let names = names.iter().cloned();
            failures.extend(names.map(|name| Failure::of_key(type_url, name)));
            NameSet::default()
        });
        if terms.is_on_demand {
            requested.locators = requested.locators.bound();
        }
        let found = failures.iter().filter(|failure| failure.code == Code::INVALID_ARGUMENT).count();
        let limit = REFUSED_LIMIT;
        if found > limit {
            return Err(StreamError::TooManyInvalidNames { type_url: type_url.clone(), found, limit });
        }
        Ok(failures)
    }
    /// Notes which of these errors are denials.
    pub(super) fn note_denied(&mut self, failures: &[Failure], type_url: &TypeUrl) {
        let mut denied = failures.iter().filter(|failure| failure.code == Code::PERMISSION_DENIED);
        let Some(first) = denied.next() else { return };
        let (type_url, reason) = (type_url.clone(), first.message.clone());
        self.denied_names = Some(DeniedNames { type_url, count: 1 + denied.count(), reason });
    }
}

/// The largest number of invalid names in one request that are answered with errors (G8); past it
/// the stream ends.
const REFUSED_LIMIT: usize = 100;
