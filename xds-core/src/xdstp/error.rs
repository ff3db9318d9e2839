//! Errors of new-style names, with their column.

/// Why a text is not a valid new-style name, so that no resource can have it (X6). Columns count
/// characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XdstpError {
    /// It is an old-style name, which is opaque.
    #[error("column 1: a new-style name starts with `xdstp:`")]
    NotXdstp,
    /// The scheme is not followed by an authority, which may be empty.
    #[error("column {column}: expected `//` after `xdstp:`")]
    MissingSlashes {
        /// Where the slashes belong.
        column: usize,
    },
    /// There is no type between the authority and the id.
    #[error("column {column}: the type is missing: `xdstp://authority/type/id`")]
    MissingType {
        /// Where the type belongs.
        column: usize,
    },
    /// The type is not the name of a message.
    #[error("column {column}: {found:?} is not the name of a message")]
    BadType {
        /// Where the type starts.
        column: usize,
        /// The decoded text in its place.
        found: String,
    },
    /// X2: the name has another type than its request or resource.
    #[error("the name is of type {found:?}, not {expected:?}")]
    WrongType {
        /// The type in the name.
        found: String,
        /// The message name of the request or resource.
        expected: String,
    },
    /// A percent sign is not followed by two hex digits.
    #[error("column {column}: {found:?} is not an escape; write `%25` for a percent sign")]
    BadEscape {
        /// Where the percent sign is.
        column: usize,
        /// The percent sign and up to two characters after it.
        found: String,
    },
    /// The escaped bytes are not UTF-8.
    #[error("column {column}: the escapes from {found:?} on are not UTF-8")]
    NotUtf8 {
        /// Where the first invalid byte is.
        column: usize,
        /// The escape of this byte.
        found: String,
    },
    /// W2: a control character, plain or escaped.
    #[error("column {column}: {found:?} is a control character")]
    ControlCharacter {
        /// Where the character is.
        column: usize,
        /// The decoded character.
        found: char,
    },
    /// X3: the text has directives, which are not part of a name.
    #[error("column {column}: directives are for clients; a name ends before the `#`")]
    Directives {
        /// Where the `#` is.
        column: usize,
    },
    /// X9: a directive that is neither `alt` nor `entry`.
    #[error("column {column}: {found:?} is not a directive; the directives are `alt=` and `entry=`")]
    UnknownDirective {
        /// Where the directive starts.
        column: usize,
        /// Its text up to the `=`.
        found: String,
    },
    /// X9: a directive that occurs twice.
    #[error("column {column}: directive `{directive}` is given twice")]
    RepeatedDirective {
        /// Where the second one starts.
        column: usize,
        /// Its name.
        directive: &'static str,
    },
    /// X9: the name of an entry is empty, or has other characters than letters, digits and
    /// `_-./~:`.
    #[error("column {column}: {found:?} is not a valid name of an entry")]
    BadEntry {
        /// Where the name starts.
        column: usize,
        /// Its decoded text.
        found: String,
    },
    /// X9: an alternative without a URL.
    #[error("column {column}: the URL of `alt` is missing")]
    MissingAlternative {
        /// Where the URL belongs.
        column: usize,
    },
}

impl XdstpError {
    /// Where the error is, in characters from 1; `None` for an error without a place.
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
