//! The errors of a folder, as data.

use std::fmt;
use std::io;
use std::sync::Arc;

use xds_core::when::WhenError;
use xds_core::{CommitError, ConstraintError, Formula, KnownType, ResourceError, TypeUrl, VariantId};
use xds_file::Refused;

use super::Location;
use super::lint::Warning;

/// An error in a folder, and its place.
///
/// The author of the files can correct it, except for system errors
/// ([`FolderError::is_environment`]). The cache is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FolderError {
    /// The path of the file below the folder, with `/` as separator; empty for an error of the
    /// whole folder.
    pub file: Box<str>,
    /// The position in the file, if it is known.
    pub at: Option<Position>,
    /// The type and name of the resource, as far as they could be read:
    /// `envoy.config.cluster.v3.Cluster "a"`.
    pub resource: Option<Box<str>>,
    /// The path of the field within the resource, such as `load_assignment.endpoints[0].priority`;
    /// may be empty.
    pub field: Box<str>,
    /// The kind of error.
    pub problem: Problem,
}

impl FolderError {
    pub(super) fn new(file: &str, problem: Problem) -> Self {
        Self { file: file.into(), at: None, resource: None, field: "".into(), problem }
    }

    pub(super) fn of_warning(warning: Warning) -> Self {
        let place = warning.locations.first();
        let (file, at) = place.map_or(("", None), |place| (&*place.file, place.position()));
        Self { at, ..Self::new(file, Problem::Warning(Box::new(warning.clone()))) }
    }

    /// A store refuses the resource at this place, or the folder as a whole.
    #[must_use]
    pub fn of_store(place: Option<&Location>, message: String) -> Self {
        let (file, at) = place.map_or(("", None), |place| (&*place.file, place.position()));
        Self { at, ..Self::new(file, Problem::Store { message }) }
    }

    /// Whether it is a system error (an unreadable file) rather than an error in the files.
    #[must_use]
    pub fn is_environment(&self) -> bool {
        matches!(self.problem, Problem::Unreadable { .. })
    }
}

/// A position in a text file.
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

    /// The position after a text that begins the file.
    pub(super) fn after(text: &[u8]) -> Self {
        let line_start = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let newlines = text.iter().filter(|&&byte| byte == b'\n').count();
        Self::new(newlines + 1, text.len() - line_start + 1)
    }
}

/// The kind of an error in a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file or folder cannot be read.
    #[error("cannot be read: {}", reason(*kind))]
    Unreadable {
        /// The error of the system.
        kind: io::ErrorKind,
    },
    /// The path is not a regular file, or the file is too large.
    #[error("{0}")]
    Refused(Refused),
    /// The folder contains no resource. It is refused, because an unmounted volume would otherwise
    /// remove the configuration of all clients.
    #[error(
        "no resource in any *.yaml, *.yml, *.json or *.pb file of this folder (--allow-empty allows that)"
    )]
    NoResources,
    /// G13: also with [`Isolation::File`](super::Isolation::File), the first load needs all files
    /// to be valid.
    #[error(
        "the server starts only if all files are valid: otherwise clients would drop the resources of an invalid file"
    )]
    UnknownAtStart,
    /// The name of a file or directory is not UTF-8.
    #[error("the file name is not UTF-8")]
    FileName,
    /// The content of a text file is not UTF-8.
    #[error("the file is not UTF-8")]
    NotUtf8,
    /// The file is empty, as a file is when a program starts to write it.
    #[error("the file is empty; for a file without resources write `resources: []`")]
    Blank,
    /// The text is not YAML or JSON, or the bytes are not protobuf.
    #[error("{message}")]
    Syntax {
        /// The error of the parser.
        message: String,
    },
    /// The document is not a map with `@type` or `resources`.
    #[error("expected a resource with `@type`, or a map with `resources`")]
    NotADocument,
    /// A resource, or an `Any` within one, has no `@type`.
    #[error("missing `@type`")]
    MissingType,
    /// A map with `resource`, or with several at the top, has no `@type`.
    #[error(
        "missing `@type`: with `resource` and `when` it is type.googleapis.com/envoy.service.discovery.v3.Resource; \
         a list of resources at the top of a file is `resources`"
    )]
    MissingWrapperType,
    /// There is no descriptor for the type.
    #[error("unknown `@type` {type_url:?}{}", type_hint(type_url, nearest))]
    UnknownType {
        /// As written.
        type_url: String,
        /// A type URL that is known and similar.
        nearest: Option<String>,
    },
    /// The message has no such field.
    #[error("no field `{field}` in {message}{}", hint(nearest))]
    UnknownField {
        /// As written.
        field: String,
        /// The message that does not have it.
        message: String,
        /// A field of the message with a similar name.
        nearest: Option<String>,
    },
    /// The field is given twice, perhaps once in snake_case and once in camelCase.
    #[error("given twice")]
    GivenTwice,
    /// Two fields of one oneof are given.
    #[error("`{first}` is given already; `{oneof}` allows only one of its fields")]
    OneofConflict {
        /// The name of the oneof.
        oneof: String,
        /// The field that came first.
        first: String,
    },
    /// The enumeration has no such value.
    #[error("no value {value:?} in {enumeration}{}", hint(nearest))]
    UnknownEnumValue {
        /// As written.
        value: String,
        /// The enumeration that does not have it.
        enumeration: String,
        /// A value with a similar name.
        nearest: Option<String>,
    },
    /// The value has the wrong kind.
    #[error("expected {expected}, found {found}")]
    WrongValue {
        /// The kind of value that the field needs.
        expected: &'static str,
        /// The value in words.
        found: String,
    },
    /// The value has the right kind but is not valid.
    #[error("{found}: {reason}")]
    InvalidValue {
        /// The value in words.
        found: String,
        /// Why it is not valid.
        reason: String,
    },
    /// A validation rule of the message is broken, so clients would reject the resource.
    #[error("{reason} (rule {rule})")]
    Rule {
        /// The rule as in `validate/validate.proto`, such as `repeated.min_items`; `of Envoy` for
        /// what Envoy rejects besides.
        rule: String,
        /// What the value must be.
        reason: String,
    },
    /// A field of the wrapper `envoy.service.discovery.v3.Resource` that is not implemented. It
    /// cannot be ignored, because clients would get something else than the file says.
    #[error("`{field}` is not supported yet")]
    Unsupported {
        /// The field of the wrapper.
        field: String,
    },
    /// The wrapper `envoy.service.discovery.v3.Resource` has no resource.
    #[error("missing `resource`")]
    EmptyWrapper,
    /// `domains.yaml` is not a map of keys.
    #[error("expected a map from keys to their values, such as `env: [prod, test]`")]
    NotDomains,
    /// `domains.yaml` contains a resource, but the name is reserved for the values of clients.
    #[error("this file name is reserved for the values that clients have; put resources into another file")]
    ResourceInDomains,
    /// There is a second domains file.
    #[error("{file} lists the values of clients already; keep only one of these files")]
    DomainsTwice {
        /// The first file.
        file: Box<str>,
    },
    /// A key has no value, so no client could have it.
    #[error("no value: list the values of clients, or write `absent: true` or `other: true`")]
    NoValues,
    /// A value of a key is listed twice.
    #[error("{value:?} is listed already")]
    RepeatedValue {
        /// The value.
        value: String,
    },
    /// A key has an unknown field.
    #[error("no field `{field}`; the fields are `values`, `absent` and `other`")]
    UnknownDomainField {
        /// As written.
        field: String,
    },
    /// The cache does not accept the resource.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// `when` is not in the syntax of constraints.
    #[error(transparent)]
    When(#[from] WhenError),
    /// The constraints of a wrapper's `resource_name` are not valid.
    #[error(transparent)]
    Constraints(#[from] ConstraintError),
    /// Another resource has the same type, name and constraints.
    #[error("{} {:?}{} is also in {file}, line {line}", id.type_url.message_name(), id.name.as_str(), bracketed(id))]
    Duplicate {
        /// The type, name and constraints of both.
        id: VariantId,
        /// The file of the other resource.
        file: Box<str>,
        /// The line of the other resource; in a .pb file its number.
        line: u32,
    },
    /// Another source of the server, such as Kubernetes, has the same type, name and constraints.
    #[error(
        "{} {:?}{} is already in another source of this server",
        id.type_url.message_name(), id.name.as_str(), bracketed(id)
    )]
    TakenElsewhere {
        /// The type, name and constraints of both.
        id: VariantId,
    },
    /// Each resource is valid, but they conflict.
    #[error("{error}{}{}", elsewhere(other), remedy(error))]
    Commit {
        /// The error of the cache. The place of this problem is the place of the last variant in
        /// it.
        error: Box<CommitError>,
        /// If the error names two variants: file and line of the first; in a .pb file, and without a
        /// file, the number of the resource.
        other: Option<(Box<str>, u32)>,
    },
    /// A warning, and [`Reaction::Refuse`](super::Reaction::Refuse) makes it an error.
    #[error("{0} (--strict refuses warnings; --allow {kind} accepts this kind)", kind = .0.kind())]
    Warning(Box<Warning>),
    /// The store to which the folder is applied refuses it (ST60).
    #[error("the store refuses it: {message}")]
    Store {
        /// Why.
        message: String,
    },
}

fn bracketed(id: &VariantId) -> String {
    if id.constraints.is_unconstrained() { String::new() } else { format!(" [{}]", id.constraints) }
}

fn elsewhere(other: &Option<(Box<str>, u32)>) -> String {
    match other {
        None => String::new(),
        Some((file, number)) if file.is_empty() => format!("; the first is resource {number}"),
        Some((file, line)) => format!("; the first is in {file}, line {line}"),
    }
}

fn reason(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::NotADirectory => "it is a file; give the folder that has it".to_owned(),
        other => other.to_string(),
    }
}

/// What to write instead, if the intention is usually clear.
fn remedy(error: &CommitError) -> String {
    match error {
        // A variant without `when` is usually meant for the clients that no other variant matches.
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
                format!(
                    "; add `,{}` to the {which}: that names the missing keys and does not restrict it",
                    naming(keys)
                )
            };
            lacking.map(advice).collect()
        }
        _ => String::new(),
    }
}

fn rest(which: &str, other: &VariantId) -> String {
    let others = Formula::Not(Box::new(other.constraints.formula().clone()));
    format!("; if the {which} is for all other clients, give it `when: '{others}'`")
}

/// A condition that names the keys and is always true.
fn naming(keys: &[Arc<str>]) -> String {
    let either = |key: &Arc<str>| {
        let exists = Formula::Exists { key: key.clone() };
        format!("({})", Formula::Any(vec![exists.clone(), Formula::Not(Box::new(exists))]))
    };
    keys.iter().map(either).collect::<Vec<_>>().join(",")
}

fn type_hint(type_url: &str, nearest: &Option<String>) -> String {
    match nearest {
        Some(_) => hint(nearest),
        None if type_url.contains("/envoy.extensions.") => {
            " (--descriptors adds types, such as those of the contrib build of Envoy)".to_owned()
        }
        None => " (--descriptors adds types)".to_owned(),
    }
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!(", perhaps `{name}`"))
}

/// How a resource of this type gets its name, if no field of the payload is the name.
fn named_by(type_url: &TypeUrl) -> &'static str {
    let name = type_url.message_name();
    let is_filter = name.starts_with("envoy.extensions.")
        || ["envoy.config.listener.v3.Filter", "envoy.config.listener.v3.ListenerFilter"].contains(&name);
    if KnownType::of(type_url.as_str()).payload_is_named {
        ""
    } else if is_filter {
        ": ECDS serves envoy.config.core.v3.TypedExtensionConfig, which has `name` and `typed_config`"
    } else {
        ": its name is in a wrapper, envoy.service.discovery.v3.Resource with `name` and `resource`"
    }
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
    /// The message without the place.
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
        // The messages of these problems name the resource already.
        if let (Some(resource), false) = (
            &self.resource,
            matches!(
                self.problem,
                Problem::Resource(_)
                    | Problem::Duplicate { .. }
                    | Problem::TakenElsewhere { .. }
                    | Problem::Commit { .. }
            ),
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
            Problem::Resource(ResourceError::MissingName { ref type_url }) => f.write_str(named_by(type_url)),
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

/// All errors of a folder, in the order of files and lines. At least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderErrors(Vec<FolderError>);

impl FolderErrors {
    pub(super) fn sorted(mut errors: Vec<FolderError>) -> Self {
        errors.sort_by(|a, b| (&a.file, a.at).cmp(&(&b.file, b.at)));
        Self(errors)
    }

    /// The single errors.
    pub fn iter(&self) -> std::slice::Iter<'_, FolderError> {
        self.0.iter()
    }

    /// How many errors there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all of them are system errors (unreadable files) rather than errors in the files.
    #[must_use]
    pub fn are_environment(&self) -> bool {
        self.0.iter().all(FolderError::is_environment)
    }
}

impl<'a> IntoIterator for &'a FolderErrors {
    type Item = &'a FolderError;
    type IntoIter = std::slice::Iter<'a, FolderError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for FolderErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for FolderErrors {}
