//! What can be wrong with a folder, as data.

use std::fmt;
use std::io;
use std::sync::Arc;

use xds_core::when::WhenError;
use xds_core::{CommitError, ConstraintError, Formula, ResourceError, VariantId};
use xds_file::Refused;

/// One thing that is wrong with a folder, and where.
///
/// Whoever writes the files can mend it, except for [`FolderError::is_environment`]. The cache is
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FolderError {
    /// The file below the folder, with `/` between its parts; empty where the folder as a whole is
    /// meant.
    pub file: Box<str>,
    /// Where in the file, if that can be known.
    pub at: Option<Position>,
    /// The message and name of the resource, as far as they could be read:
    /// `envoy.config.cluster.v3.Cluster "a"`.
    pub resource: Option<Box<str>>,
    /// The path of the field within the resource, such as `load_assignment.endpoints[0].priority`;
    /// may be empty.
    pub field: Box<str>,
    /// What is wrong.
    pub problem: Problem,
}

impl FolderError {
    pub(super) fn new(file: &str, problem: Problem) -> Self {
        Self { file: file.into(), at: None, resource: None, field: "".into(), problem }
    }

    /// Whether the machine is to blame rather than what the files say.
    #[must_use]
    pub fn is_environment(&self) -> bool {
        matches!(self.problem, Problem::Unreadable { .. })
    }
}

/// A place in a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1.
    pub column: u32,
}

impl Position {
    pub(super) fn new(line: usize, column: usize) -> Self {
        let clamp = |number: usize| u32::try_from(number.max(1)).unwrap_or(u32::MAX);
        Self { line: clamp(line), column: clamp(column) }
    }
}

/// What is wrong at one place of a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file or folder cannot be read.
    #[error("cannot be read: {kind}")]
    Unreadable {
        /// What the system said.
        kind: io::ErrorKind,
    },
    /// The path leads to what is no regular file, or to one that is too large.
    #[error("{0}")]
    Refused(Refused),
    /// A folder must hold a resource: an unmounted volume would otherwise empty a fleet.
    #[error(
        "no resource in any *.yaml, *.yml, *.json or *.pb file of this folder (--allow-empty permits that)"
    )]
    NoResources,
    /// G13: with files that are isolated, too, a folder is not served before each file was good
    /// once.
    #[error(
        "nothing is served before every file was good once, as clients would be told that what the others hold does not exist"
    )]
    UnknownAtStart,
    /// The name of a file or directory is not UTF-8.
    #[error("the file name is not UTF-8")]
    FileName,
    /// The content of a text file is not UTF-8.
    #[error("the file is not UTF-8")]
    NotUtf8,
    /// The file holds nothing, like one that is being written.
    #[error("the file is empty; a file without resources says `resources: []`")]
    Blank,
    /// The text is no YAML or JSON, or the bytes are no protobuf.
    #[error("{message}")]
    Syntax {
        /// What the parser said.
        message: String,
    },
    /// The document is not a map with `@type` or `resources`.
    #[error("expected a resource with `@type`, or a map with `resources`")]
    NotADocument,
    /// A resource or an `Any` within one does not say its type.
    #[error("missing `@type`")]
    MissingType,
    /// No descriptor for that type.
    #[error("unknown `@type` {type_url:?} (--descriptors adds types)")]
    UnknownType {
        /// As written.
        type_url: String,
    },
    /// The message has no such field.
    #[error("no field `{field}` in {message}{}", hint(nearest))]
    UnknownField {
        /// As written.
        field: String,
        /// The message it was looked for in.
        message: String,
        /// A field of the message with a similar name.
        nearest: Option<String>,
    },
    /// The field is given twice, perhaps once in snake_case and once in camelCase.
    #[error("given twice")]
    GivenTwice,
    /// Two fields exclude each other.
    #[error("`{first}` is given already, and only one of `{oneof}` can be")]
    OneofConflict {
        /// The name of the group of fields.
        oneof: String,
        /// The field that came first.
        first: String,
    },
    /// The enumeration has no such value.
    #[error("no value {value:?} in {enumeration}{}", hint(nearest))]
    UnknownEnumValue {
        /// As written.
        value: String,
        /// The enumeration it was looked for in.
        enumeration: String,
        /// A value with a similar name.
        nearest: Option<String>,
    },
    /// The value is of another kind.
    #[error("expected {expected}, found {found}")]
    WrongValue {
        /// What the field holds.
        expected: &'static str,
        /// The value in words.
        found: String,
    },
    /// The value is of the right kind but not valid.
    #[error("{found}: {reason}")]
    InvalidValue {
        /// The value in words.
        found: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A field of the wrapper `envoy.service.discovery.v3.Resource` that would change what clients
    /// get, but is not implemented.
    #[error("`{field}` is not supported yet")]
    Unsupported {
        /// The field of the wrapper.
        field: String,
    },
    /// The wrapper `envoy.service.discovery.v3.Resource` wraps nothing.
    #[error("missing `resource`")]
    EmptyWrapper,
    /// The file with what clients have is no map of keys.
    #[error("expected a map from keys to their values, such as `env: [prod, test]`")]
    NotDomains,
    /// A resource has come under the name that is reserved for what clients have.
    #[error("this file says what values clients have; put resources into another file")]
    ResourceInDomains,
    /// A second file with what clients have.
    #[error("{file} says already what values clients have")]
    DomainsTwice {
        /// The first one.
        file: Box<str>,
    },
    /// A key that no client could have.
    #[error("no value: list what clients have, or say `absent: true` or `other: true`")]
    NoValues,
    /// A value of a key is listed twice.
    #[error("{value:?} is listed already")]
    RepeatedValue {
        /// The value.
        value: String,
    },
    /// What clients have of a key is said by other fields.
    #[error("no field `{field}`; there are `values`, `absent` and `other`")]
    UnknownDomainField {
        /// As written.
        field: String,
    },
    /// The cache does not take such a resource.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// `when` is not in the syntax of constraints.
    #[error(transparent)]
    When(#[from] WhenError),
    /// The constraints of a wrapper's `resource_name` are not valid.
    #[error(transparent)]
    Constraints(#[from] ConstraintError),
    /// Another place has a resource of the same type and name, for the same parameters.
    #[error("{} {:?}{} is also in {file}, line {line}", id.type_url.message_name(), id.name.as_str(), bracketed(id))]
    Duplicate {
        /// What both are known by.
        id: VariantId,
        /// The file of the other.
        file: Box<str>,
        /// The line of the other; in a .pb file the number of the resource.
        line: u32,
    },
    /// Each resource is right, and still they do not go together.
    #[error("{error}{}{}", elsewhere(other), remedy(error))]
    Commit {
        /// What the cache said; the place of this problem is that of the variant it names last.
        error: Box<CommitError>,
        /// File and line of the variant it names first, where there are two; in a .pb file the
        /// number of the resource.
        other: Option<(Box<str>, u32)>,
    },
}

fn bracketed(id: &VariantId) -> String {
    if id.constraints.is_unconstrained() { String::new() } else { format!(" [{}]", id.constraints) }
}

fn elsewhere(other: &Option<(Box<str>, u32)>) -> String {
    other.as_ref().map_or_else(String::new, |(file, line)| format!("; the first is in {file}, line {line}"))
}

/// What to write instead, where the usual intention is clear.
fn remedy(error: &CommitError) -> String {
    match error {
        // One without `when` is meant for the clients that no other variant is for.
        CommitError::Ambiguous { first, second, .. } if first.constraints.is_unconstrained() => {
            rest("first", second)
        }
        CommitError::Ambiguous { first, second, .. } if second.constraints.is_unconstrained() => {
            rest("second", first)
        }
        CommitError::KeySets { only_first, only_second, .. } => {
            let lacking = [("first", &**only_second), ("second", &**only_first)];
            let lacking = lacking.into_iter().filter(|(_, keys)| !keys.is_empty());
            let advice = |(which, keys): (&str, &[Arc<str>])| {
                format!("; `,{}` names for the {which} what it lacks, without restricting it", naming(keys))
            };
            lacking.map(advice).collect()
        }
        _ => String::new(),
    }
}

fn rest(which: &str, other: &VariantId) -> String {
    let others = Formula::Not(Box::new(other.constraints.formula().clone()));
    format!("; if the {which} is for all others, give it `when: '{others}'`")
}

/// A condition that names the keys and always holds.
fn naming(keys: &[Arc<str>]) -> String {
    let either = |key: &Arc<str>| {
        let exists = Formula::Exists { key: key.clone() };
        format!("({})", Formula::Any(vec![exists.clone(), Formula::Not(Box::new(exists))]))
    };
    keys.iter().map(either).collect::<Vec<_>>().join(",")
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!(", perhaps `{name}`"))
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if let Some(at) = self.at {
                write!(f, ":{}:{}", at.line, at.column)?;
            }
            f.write_str(": ")?;
        }
        self.fmt_message(f)
    }
}

impl FolderError {
    /// What is displayed without the place.
    #[must_use]
    pub fn message(&self) -> impl fmt::Display {
        struct Message<'a>(&'a FolderError);
        impl fmt::Display for Message<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt_message(f)
            }
        }
        Message(self)
    }

    fn fmt_message(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These problems name the resource themselves.
        if let (Some(resource), false) = (
            &self.resource,
            matches!(self.problem, Problem::Resource(_) | Problem::Duplicate { .. } | Problem::Commit { .. }),
        ) {
            write!(f, "{resource}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        fmt::Display::fmt(&self.problem, f)?;
        match self.problem {
            Problem::Refused(Refused::TooLarge { .. }) => f.write_str(" (--file-limit raises it)"),
            Problem::Resource(ResourceError::TooLarge { .. }) => f.write_str(" (--resource-limit raises it)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem.source()
    }
}

impl From<serde_saphyr::Location> for Position {
    fn from(location: serde_saphyr::Location) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self::new(number(location.line()), number(location.column()))
    }
}
