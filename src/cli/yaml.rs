//! Places and errors of the YAML files that hold options and policies.

use std::fmt;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_saphyr::Location;

/// A place in a file, for error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePosition {
    pub(super) file: PathBuf,
    /// Counted from 1.
    pub(super) line: u64,
    /// Counted from 1.
    pub(super) column: u64,
}

/// An error of the parser.
#[derive(Debug)]
pub(super) struct YamlError {
    pub(super) line: u64,
    pub(super) column: u64,
    /// Without the place.
    pub(super) message: String,
    /// The key, if it is there twice.
    pub(super) duplicate: Option<String>,
}

impl FilePosition {
    pub(super) fn new(file: impl Into<PathBuf>, at: Location) -> Self {
        Self { file: file.into(), line: at.line(), column: at.column() }
    }
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        write!(f, "{}:{line}:{column}", file.display())
    }
}

/// Parses a document.
///
/// # Errors
/// The text is not YAML, or not of this shape.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let options = serde_saphyr::options! {
        // Only `true` and `false` are booleans (YAML 1.2), as in folders.
        strict_booleans: true,
        emit_comments: false,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let error = error.without_snippet();
        let duplicate = match error {
            serde_saphyr::Error::DuplicateMappingKey { key, .. } => key.clone(),
            _ => None,
        };
        let message = error.to_string();
        let end = message.rfind(" at line ").unwrap_or(message.len());
        let message = message.get(..end).unwrap_or(&message).to_owned();
        YamlError { line, column, message, duplicate }
    })
}
