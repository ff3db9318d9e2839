//! What is wrong with a bootstrap document, and where.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::ServerUriError;

/// Why there is no bootstrap. Whoever wrote the document, or starts the program, can mend it.
///
/// A `path` leads from the top of the document to the offender, such as
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
    /// The file cannot be read.
    #[error("{} cannot be read: {kind}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        kind: io::ErrorKind,
    },
    /// The file is not read, as it is too large.
    #[error("{} {refused}", .file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// Why.
        refused: xds_file::Refused,
    },
    /// The text of a file is wrong.
    #[error("{}: {error}", .file.display())]
    InFile {
        /// The file.
        file: PathBuf,
        /// What is wrong in it.
        error: Box<Self>,
    },
    /// The text in `GRPC_XDS_BOOTSTRAP_CONFIG` is wrong.
    #[error("GRPC_XDS_BOOTSTRAP_CONFIG: {error}")]
    InVariable {
        /// What is wrong in it.
        error: Box<Self>,
    },
    /// The text is no JSON.
    #[error("not JSON: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What the parser says, with line and column.
        reason: String,
    },
    /// A value has another type than it must have.
    #[error("{path}: expected {expected}, found {found}")]
    WrongType {
        /// The value.
        path: String,
        /// What it must be.
        expected: JsonType,
        /// What it is.
        found: JsonType,
    },
    /// A string or list that must be there is absent, null or empty.
    #[error("{path}: missing or empty")]
    Missing {
        /// Where it belongs.
        path: String,
    },
    /// A certificate is given without its private key, or the key without the certificate.
    #[error("{path}: missing or empty, and {partner} is of no use alone")]
    MissingPartner {
        /// Where the missing one belongs.
        path: String,
        /// The key of the one that is given.
        partner: &'static str,
    },
    /// A `file_watcher` that provides nothing.
    #[error("{path}: neither a certificate_file nor a ca_certificate_file")]
    NoFiles {
        /// The configuration of the provider.
        path: String,
    },
    /// C17: no type of channel credentials is one of ours.
    #[error("{path}: none of the types {found:?} is supported")]
    UnsupportedCredentials {
        /// The list of credentials.
        path: String,
        /// The types in it, in order.
        found: Vec<String>,
    },
    /// The URI of a server leads nowhere.
    #[error("{path}: {error}")]
    ServerUri {
        /// The URI.
        path: String,
        /// What is wrong with it.
        error: ServerUriError,
    },
    /// The text is no span of time above zero as protobuf's JSON has it.
    #[error("{path}: {found:?} is no duration above zero, such as \"600s\" or \"1.5s\"")]
    BadDuration {
        /// The duration.
        path: String,
        /// Its text.
        found: String,
    },
    /// C18: the template of an authority would make names of another one.
    #[error("{path}: {found:?} does not start with {prefix:?}")]
    ForeignTemplate {
        /// The template.
        path: String,
        /// Its text.
        found: String,
        /// How it must start.
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

/// With its article.
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
