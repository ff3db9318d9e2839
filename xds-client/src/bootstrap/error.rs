//! Errors of a bootstrap document, with their paths.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::ServerUriError;

/// Why the bootstrap document is not usable. The author of the document, or of the start command,
/// can correct it.
///
/// A `path` leads from the top of the document to the invalid value, such as
/// `xds_servers[1].channel_creds`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// C17: neither variable is set.
    #[error(
        "no bootstrap: set GRPC_XDS_BOOTSTRAP to the path of a file, or GRPC_XDS_BOOTSTRAP_CONFIG to its text"
    )]
    NotSet,
    /// `GRPC_XDS_BOOTSTRAP_CONFIG` is not UTF-8.
    #[error("GRPC_XDS_BOOTSTRAP_CONFIG is not UTF-8")]
    VariableNotUtf8,
    /// The file is not readable.
    #[error("{} cannot be read: {kind}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        kind: io::ErrorKind,
    },
    /// The file is too large.
    #[error("{} {refused}", .file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// Why.
        refused: xds_file::Refused,
    },
    /// The text of a file is invalid.
    #[error("{}: {error}", .file.display())]
    InFile {
        /// The file.
        file: PathBuf,
        /// The error in it.
        error: Box<Self>,
    },
    /// The text in `GRPC_XDS_BOOTSTRAP_CONFIG` is invalid.
    #[error("GRPC_XDS_BOOTSTRAP_CONFIG: {error}")]
    InVariable {
        /// The error in it.
        error: Box<Self>,
    },
    /// The text is not JSON.
    #[error("not JSON: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The message of the parser, with line and column.
        reason: String,
    },
    /// A value has the wrong type.
    #[error("{path}: expected {expected}, found {found}")]
    WrongType {
        /// The value.
        path: String,
        /// The expected type.
        expected: JsonType,
        /// Its type.
        found: JsonType,
    },
    /// A required string or list is absent, null or empty.
    #[error("{path}: missing or empty")]
    Missing {
        /// Its path.
        path: String,
    },
    /// There is a certificate without a private key, or a private key without a certificate.
    #[error("{path}: missing or empty, but {partner} needs it")]
    MissingPartner {
        /// The path of the missing one.
        path: String,
        /// The JSON key of the other one.
        partner: &'static str,
    },
    /// A `file_watcher` without files.
    #[error("{path}: neither a certificate_file nor a ca_certificate_file")]
    NoFiles {
        /// The configuration of the provider.
        path: String,
    },
    /// C17: no type of the channel credentials is supported.
    #[error("{path}: none of the types {found:?} is supported")]
    UnsupportedCredentials {
        /// The list of credentials.
        path: String,
        /// The types in it, in order.
        found: Vec<String>,
    },
    /// The URI of a server is not usable.
    #[error("{path}: {error}")]
    ServerUri {
        /// The URI.
        path: String,
        /// Its error.
        error: ServerUriError,
    },
    /// The text is not a duration above zero in the JSON format of protobuf.
    #[error("{path}: {found:?} is not a duration above zero, such as \"600s\" or \"1.5s\"")]
    BadDuration {
        /// The duration.
        path: String,
        /// Its text.
        found: String,
    },
    /// C18: the template of an authority makes names of another authority.
    #[error("{path}: {found:?} does not start with {prefix:?}")]
    ForeignTemplate {
        /// The template.
        path: String,
        /// Its text.
        found: String,
        /// The required prefix.
        prefix: String,
    },
    /// W2: an authority or a key of dynamic parameters has control characters.
    #[error("{path}: the key has control characters")]
    ControlCharacter {
        /// The key.
        path: String,
    },
}

/// The type of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// A list of values.
    Array,
    /// Values by keys.
    Object,
}

impl JsonType {
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }
}

/// The type with its article.
impl fmt::Display for JsonType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "a bool",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}
