//! The part of `xds check` about a policy.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::listen::ListenError;
use super::super::policy::{self, PolicyError, PolicyMistake, PolicyWarning};
use super::super::warnings::STRICT;
use super::super::yaml::FilePosition;
use super::super::{Failure, counted, say};

/// The result of the check of a policy.
#[derive(Debug)]
pub(super) struct PolicyReport {
    path: PathBuf,
    rules: usize,
    errors: Vec<PolicyMistake>,
    warnings: Vec<PolicyWarning>,
}

impl PolicyReport {
    /// # Errors
    /// The file cannot be read.
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let (rules, errors, warnings) = match policy::check(path) {
            Ok((rules, warnings)) => (rules, Vec::new(), warnings),
            Err(PolicyError::Invalid(errors)) => (0, errors, Vec::new()),
            Err(error @ PolicyError::Unreadable { .. }) => {
                return Err(Failure::Security(ListenError::Policy(error)));
            }
        };
        Ok(Self { path: path.to_owned(), rules, errors, warnings })
    }

    pub(super) fn is_refused(&self, is_strict: bool) -> bool {
        !self.errors.is_empty() || (is_strict && !self.warnings.is_empty())
    }

    pub(super) fn text(&self, is_strict: bool) {
        let Self { path, rules, errors, warnings } = self;
        let path = path.display();
        if errors.is_empty() {
            say(format_args!("{path}: {}", counted(*rules, "rule")));
        }
        errors.iter().for_each(|error| eprintln!("error: {error}"));
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        if !errors.is_empty() {
            eprintln!("{path}: {}", counted(errors.len(), "error"));
        } else if !warnings.is_empty() {
            let strict = if is_strict { STRICT } else { "" };
            eprintln!("{path}: {}{strict}", counted(warnings.len(), "warning"));
        }
    }

    pub(super) fn object(&self) -> Value {
        let Self { rules, errors, warnings, .. } = self;
        let error = |error: &PolicyMistake| placed(&error.place, json!({ "message": error.message() }));
        let warning = |warning: &PolicyWarning| {
            let message = json!({ "kind": warning.kind(), "message": warning.message() });
            placed(&warning.place, message)
        };
        json!({
            "rules": rules,
            "errors": errors.iter().map(error).collect::<Vec<_>>(),
            "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
        })
    }
}

/// Adds the place to an object.
fn placed(place: &FilePosition, mut object: Value) -> Value {
    object["file"] = place.file.display().to_string().into();
    object["line"] = place.line.into();
    object["column"] = place.column.into();
    object
}
