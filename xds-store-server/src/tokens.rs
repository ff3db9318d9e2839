//! The tokens of a token file.

use std::collections::BTreeMap;
use std::fmt;

use subtle::{Choice, ConstantTimeEq};

/// Tokens with their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    entries: Vec<(String, TokenDigest)>,
}

/// The digest of a token, so that no token is in memory or in a debug output. Tokens of any length
/// have digests of one length, so a comparison takes one time.
#[derive(Clone, Copy)]
pub(crate) struct TokenDigest([u8; 32]);

/// Why a token file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// A line is not `NAME TOKEN`.
    #[error("line {line}: expected NAME TOKEN")]
    Malformed {
        /// The line, from 1.
        line: usize,
    },
    /// A name has other characters than `[A-Za-z0-9._/-]`, or is too long.
    #[error("line {line}: a name has at most 128 letters, digits and ._/-")]
    Name {
        /// The line, from 1.
        line: usize,
    },
    /// A token that could be guessed.
    #[error("line {line}: a token has at least {SHORTEST_TOKEN} characters")]
    Short {
        /// The line, from 1.
        line: usize,
    },
    /// Two lines have one token.
    #[error("line {line}: the token is in line {first} already")]
    Twice {
        /// The line, from 1.
        line: usize,
        /// The other line.
        first: usize,
    },
    /// The file has too many tokens: each call is compared with all of them.
    #[error("the file has more than {TOKENS_LIMIT} tokens")]
    TooMany,
    /// There is no token.
    #[error("the file has no token: write a line NAME TOKEN")]
    Empty,
}

impl Tokens {
    /// Reads lines `NAME TOKEN`. Empty lines and lines that begin with `#` are left out. A name may
    /// have several tokens, so that a token can be replaced without an interruption.
    ///
    /// # Errors
    /// See [`TokenFileError`]. No error has a token in it.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut entries = Vec::new();
        let mut lines: BTreeMap<[u8; 32], usize> = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split_whitespace();
            let (name, token) = match (words.next(), words.next(), words.next()) {
                (None, ..) => continue,
                (Some(word), ..) if word.starts_with('#') => continue,
                (Some(name), Some(token), None) => (name, token),
                _ => return Err(TokenFileError::Malformed { line }),
            };
            let is_allowed = |char: char| char.is_ascii_alphanumeric() || "._/-".contains(char);
            if name.len() > LONGEST_NAME || !name.chars().all(is_allowed) {
                return Err(TokenFileError::Name { line });
            }
            if token.len() < SHORTEST_TOKEN {
                return Err(TokenFileError::Short { line });
            }
            let digest = TokenDigest::of(token.as_bytes());
            if let Some(first) = lines.insert(digest.0, line) {
                return Err(TokenFileError::Twice { line, first });
            }
            entries.push((name.to_owned(), digest));
        }
        match entries.len() {
            0 => Err(TokenFileError::Empty),
            found if found > TOKENS_LIMIT => Err(TokenFileError::TooMany),
            _ => Ok(Self { entries }),
        }
    }

    /// Whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name of a token. Compares with all of them, so the time does not show which one it was
    /// (ST51).
    pub(crate) fn find(&self, presented: &TokenDigest) -> Option<&str> {
        let mut found = None;
        for (name, digest) in &self.entries {
            if digest.is(presented) {
                found = Some(&**name);
            }
        }
        found
    }
}

impl TokenDigest {
    pub(crate) fn of(token: &[u8]) -> Self {
        Self(*blake3::hash(token).as_bytes())
    }

    /// Whether they are equal, in constant time (ST51).
    pub(crate) fn is(&self, other: &Self) -> bool {
        let equal: Choice = self.0.ct_eq(&other.0);
        equal.into()
    }
}

impl PartialEq for TokenDigest {
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}

impl Eq for TokenDigest {}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest")
    }
}

/// In characters.
const SHORTEST_TOKEN: usize = 16;
const LONGEST_NAME: usize = 128;
const TOKENS_LIMIT: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_names_and_tokens_are_read() {
        let text = "# for CI\nci  0123456789abcdef\n\n team/a fedcba9876543210 \nci aaaaaaaaaaaaaaaa\n";
        let tokens = Tokens::parse(text).unwrap();
        let find = |token: &str| tokens.find(&TokenDigest::of(token.as_bytes()));
        assert_eq!(find("0123456789abcdef"), Some("ci"));
        assert_eq!(find("aaaaaaaaaaaaaaaa"), Some("ci"));
        assert_eq!(find("fedcba9876543210"), Some("team/a"));
        assert_eq!([find(""), find("ci"), find("0123456789abcdeF")], [None; 3]);
        assert!(!format!("{tokens:?}").contains("0123"));
    }

    #[test]
    fn files_with_a_mistake_are_refused_with_the_line_and_without_the_token() {
        let error = |text: &str| Tokens::parse(text).unwrap_err().to_string();
        assert_eq!(error("# nothing\n"), "the file has no token: write a line NAME TOKEN");
        assert_eq!(error("0123456789abcdef"), "line 1: expected NAME TOKEN");
        assert_eq!(error("a 0123456789abcdef x"), "line 1: expected NAME TOKEN");
        assert_eq!(error("\na b"), "line 2: a token has at least 16 characters");
        assert_eq!(error("a:b 0123456789abcdef"), "line 1: a name has at most 128 letters, digits and ._/-");
        let twice = error("a 0123456789abcdef\nb 0123456789abcdef");
        assert_eq!(twice, "line 2: the token is in line 1 already");
    }
}
