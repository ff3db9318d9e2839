//! What is wrong with a new-style name, and where.

/// Why a text is no new-style name, so that no resource can have it (X6). Columns count characters
/// from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XdstpError {
    /// It is an old-style name, which is opaque.
    #[error("column 1: a new-style name starts with `xdstp:`")]
    NotXdstp,
    /// The scheme is not followed by an authority, which may be empty.
    #[error("column {column}: expected `//` after `xdstp:`")]
    MissingSlashes {
        /// Where they belong.
        column: usize,
    },
    /// Nothing stands between the authority and the id.
    #[error("column {column}: the type is missing: `xdstp://authority/type/id`")]
    MissingType {
        /// Where it belongs.
        column: usize,
    },
    /// The type is not the bare name of a message.
    #[error("column {column}: {found:?} is no name of a message")]
    BadType {
        /// Where it starts.
        column: usize,
        /// The decoded text in its place.
        found: String,
    },
    /// X2: the name is one of another type than the request or resource.
    #[error("the name is one of type {found:?}, not {expected:?}")]
    WrongType {
        /// The type in the name.
        found: String,
        /// The message name of the request or resource.
        expected: String,
    },
    /// A percent sign is not followed by two hex digits.
    #[error("column {column}: {found:?} is no escape; a percent sign itself is written `%25`")]
    BadEscape {
        /// Where the percent sign stands.
        column: usize,
        /// It and up to two characters behind it.
        found: String,
    },
    /// Escaped bytes are no text.
    #[error("column {column}: the escapes from {found:?} on are not UTF-8")]
    NotUtf8 {
        /// Where the first of these bytes stands.
        column: usize,
        /// The first of them, as it is written.
        found: String,
    },
    /// W2: a control character, plain or escaped.
    #[error("column {column}: {found:?} is a control character")]
    ControlCharacter {
        /// Where it stands.
        column: usize,
        /// The decoded character.
        found: char,
    },
    /// X3: directives follow, which are not part of a name.
    #[error("column {column}: directives are for clients; a name ends before the `#`")]
    Directives {
        /// Where the `#` stands.
        column: usize,
    },
    /// X9: a directive that is neither `alt` nor `entry`.
    #[error("column {column}: {found:?} is no directive; there are `alt=` and `entry=`")]
    UnknownDirective {
        /// Where it starts.
        column: usize,
        /// Its text up to the `=`.
        found: String,
    },
    /// X9: a directive that was given before.
    #[error("column {column}: directive `{directive}` is given twice")]
    RepeatedDirective {
        /// Where the second one starts.
        column: usize,
        /// Its name.
        directive: &'static str,
    },
    /// X9: an entry with other characters than letters, digits and `_-./~:`, or none.
    #[error("column {column}: {found:?} is no name of an entry")]
    BadEntry {
        /// Where it starts.
        column: usize,
        /// Its decoded text.
        found: String,
    },
    /// X9: an alternative without a URL.
    #[error("column {column}: the URL of `alt` is missing")]
    MissingAlternative {
        /// Where it belongs.
        column: usize,
    },
}

impl XdstpError {
    /// Where the offender stands, in characters from 1; `None` where it is not about a place.
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        match self {
            Self::WrongType { .. } => None,
            Self::NotXdstp => Some(1),
            Self::MissingSlashes { column }
            | Self::MissingType { column }
            | Self::BadType { column, .. }
            | Self::BadEscape { column, .. }
            | Self::NotUtf8 { column, .. }
            | Self::ControlCharacter { column, .. }
            | Self::Directives { column }
            | Self::UnknownDirective { column, .. }
            | Self::RepeatedDirective { column, .. }
            | Self::BadEntry { column, .. }
            | Self::MissingAlternative { column } => Some(*column),
        }
    }
}
