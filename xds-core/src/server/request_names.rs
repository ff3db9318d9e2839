//! Names of a request: how the client spelled them, and the errors for names that cannot be served.

use std::collections::{BTreeMap, BTreeSet};

use super::response::DeniedNames;
use super::type_state::TypeState;
use crate::access::{Access, NamePatterns};
use crate::code::Code;
use crate::name::ResourceName;
use crate::subscription::{Locators, NameSet, Requested, is_set};
use crate::wire::Failure;
use crate::xdstp::{XdstpError, XdstpName};

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

impl TypeState {
    /// Replaces new-style names by their canonical text (X4), and removes names that no resource
    /// can have (X6). Returns an error for each removed name.
    pub(super) fn read_names(&mut self, requested: &mut Requested) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut read = |name: &ResourceName| match self.canonical(name) {
            Ok(None) => Some(name.clone()),
            Ok(Some(canonical)) => {
                match *name == canonical {
                    true => _ = self.names.spelled.remove(&canonical),
                    false => _ = self.names.spelled.insert(canonical.clone(), name.clone()),
                }
                Some(canonical)
            }
            Err(error) => {
                let message = format!("{} {name:?}: {error}", self.terms.type_url.message_name());
                failures.push(Failure::new(name.clone(), Code::INVALID_ARGUMENT, message));
                None
            }
        };
        requested.edit_names(|names| names.iter().filter_map(&mut read).collect());
        failures
    }

    /// The canonical text of a new-style name of this type; `None` for an old-style one (X1, X2).
    pub(super) fn canonical(&self, name: &ResourceName) -> Result<Option<ResourceName>, XdstpError> {
        let Some(parsed) = XdstpName::of(name.as_str())? else { return Ok(None) };
        parsed.check_type(&self.terms.type_url)?;
        Ok(Some(parsed.canonical()))
    }

    /// G4: the errors for requested names when the type is not served, or not to this client.
    pub(super) fn unserved(&self, requested: &Locators) -> impl Iterator<Item = Failure> {
        let r#type = self.terms.type_url.message_name();
        let (code, message) = match self.is_denied() {
            true => (Code::PERMISSION_DENIED, format!("this client may not read any {}", r#type)),
            false => (Code::UNIMPLEMENTED, format!("{} is not served here", r#type)),
        };
        let names: BTreeSet<_> = requested.names().collect();
        names.into_iter().map(move |name| Failure::new(name.clone(), code, message.clone()))
    }

    /// Removes names that the client may not read, and locators with parameters that the client may
    /// not claim. Returns an error for each.
    pub(super) fn take_denied(&self, access: &Access, requested: &mut Requested) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut deny = |name: &ResourceName, message: String| {
            failures.push(Failure::new(name.clone(), Code::PERMISSION_DENIED, message));
        };
        let r#type = self.terms.type_url.message_name();
        if self.terms.scope.is_some() && self.terms.is_served {
            // The members of a set are checked one by one.
            let is_allowed = |name: &ResourceName| is_set(name.as_str()) || self.allows(name);
            let mut allowed = |names: &NameSet| {
                let denied = names.iter().filter(|name| !is_allowed(name));
                denied.for_each(|name| deny(name, format!("this client may not read {} {name:?}", r#type)));
                names.filter(is_allowed)
            };
            requested.names = allowed(&requested.names);
            requested.locators.retain(|_, names| allowed(names));
        }
        requested.locators.retain(|parameters, names| {
            let Some((key, value)) = access.missing(parameters) else { return names.clone() };
            let text = format!("this client must subscribe to {} with the parameter {key}={value}", r#type);
            names.iter().for_each(|name| deny(name, text.clone()));
            NameSet::default()
        });
        failures
    }

    /// Notes which of these errors are denials.
    pub(super) fn note_denied(&mut self, failures: &[Failure]) {
        let mut denied = failures.iter().filter(|failure| failure.code == Code::PERMISSION_DENIED);
        let Some(first) = denied.next() else { return };
        let (type_url, reason) = (self.terms.type_url.clone(), first.message.clone());
        self.names.denied_names = Some(DeniedNames { type_url, count: 1 + denied.count(), reason });
    }

    /// Whether the client may read nothing of the type.
    fn is_denied(&self) -> bool {
        self.terms.scope.as_ref().is_some_and(NamePatterns::is_empty)
    }
}
