//! Names as a client asks for them, and what it is told of those that cannot be.

use std::collections::BTreeSet;

use super::failure::Failure;
use super::progress::Progress;
use crate::code::Code;
use crate::name::ResourceName;
use crate::subscription::{Asked, Locators};
use crate::xdstp::{XdstpError, XdstpName};

impl Progress {
    /// Takes new-style names by their canonical text (X4), and out those that no resource can have (X6).
    pub(super) fn read_names(&mut self, asked: &mut Asked) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut read = |name: &ResourceName| match self.canonical(name) {
            Ok(None) => Some(name.clone()),
            Ok(Some(canonical)) => {
                match *name == canonical {
                    true => _ = self.spelled.remove(&canonical),
                    false => _ = self.spelled.insert(canonical.clone(), name.clone()),
                }
                Some(canonical)
            }
            Err(error) => {
                let message = format!("{} {name:?}: {error}", self.type_url.message_name());
                failures.push(Failure::new(name.clone(), Code::INVALID_ARGUMENT, message));
                None
            }
        };
        asked.edit_names(|names| names.iter().filter_map(&mut read).collect());
        failures
    }

    /// The canonical text of a new-style name of this type; `None` for an old-style one (X1, X2).
    pub(super) fn canonical(&self, name: &ResourceName) -> Result<Option<ResourceName>, XdstpError> {
        let Some(parsed) = XdstpName::of(name.as_str())? else { return Ok(None) };
        parsed.check_type(&self.type_url)?;
        Ok(Some(parsed.canonical()))
    }

    /// G4: what is said of names that were asked for, when the type is not served.
    pub(super) fn unserved(&self, asked: &Locators) -> impl Iterator<Item = Failure> {
        let message = format!("{} is not served here", self.type_url.message_name());
        let names: BTreeSet<_> = asked.names().collect();
        names.into_iter().map(move |name| Failure::new(name.clone(), Code::UNIMPLEMENTED, message.clone()))
    }
}
