//! Versions as texts: `1.1`, and `1.1+downgraded`.

use std::fmt;
use std::str::FromStr;

/// The schema version of a content (SV1). A minor step adds optional fields; any other change is a
/// major step (SV3, SV4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchemaVersion {
    major: u32,
    minor: u32,
}

/// A version as clients see it. A client that gets a content of a newer version than it understands,
/// or than the server knows, gets it with the mark `+downgraded` (SV7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkedVersion {
    /// The version.
    pub version: SchemaVersion,
    /// Whether the stored content is newer.
    pub is_downgraded: bool,
}

/// Why a text is no schema version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// It does not have the form of a version.
    #[error("a schema version is MAJOR.MINOR or MAJOR, such as 1.1, with a major of at least 1")]
    Malformed,
}

impl SchemaVersion {
    /// The version of contents of undeclared types (SV1).
    pub const FIRST: Self = Self { major: 1, minor: 0 };

    /// A later version of this program wrote a text that this one cannot read. No server knows this
    /// major, so the record is not read and not overwritten (SV34).
    const UNREADABLE: Self = Self { major: u32::MAX, minor: 0 };

    /// The major version.
    #[must_use]
    pub fn major(self) -> u32 {
        self.major
    }

    /// The first version of the next major.
    #[must_use]
    pub fn next_major(self) -> Self {
        Self { major: self.major.saturating_add(1), minor: 0 }
    }

    /// The version of a stored content. The first version is stored without a text: so are the records
    /// of programs that had no versions.
    #[must_use]
    pub fn of_stored(text: &str) -> Self {
        if text.is_empty() { Self::FIRST } else { text.parse().unwrap_or(Self::UNREADABLE) }
    }

    /// The text that is stored. Equal contents keep equal digests.
    #[must_use]
    pub fn to_stored(self) -> String {
        if self == Self::FIRST { String::new() } else { self.to_string() }
    }
}

impl MarkedVersion {
    /// A version without the mark.
    #[must_use]
    pub fn plain(version: SchemaVersion) -> Self {
        Self { version, is_downgraded: false }
    }
}

impl FromStr for SchemaVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        let number = |text: &str| {
            let is_number = (1..=DIGITS_LIMIT).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'));
            if is_number { text.parse::<u32>().ok() } else { None }
        };
        match (number(major), number(minor)) {
            (Some(major @ 1..), Some(minor)) => Ok(Self { major, minor }),
            (Some(_) | None, Some(_) | None) => Err(VersionError::Malformed),
        }
    }
}

impl FromStr for MarkedVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let version = text.strip_suffix(MARK);
        let is_downgraded = version.is_some();
        Ok(Self { version: version.unwrap_or(text).parse()?, is_downgraded })
    }
}

impl fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for MarkedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.version, if self.is_downgraded { MARK } else { "" })
    }
}

/// The mark of a content whose stored version is newer.
const MARK: &str = "+downgraded";
/// The most digits of a number. So no text is [`SchemaVersion::UNREADABLE`].
const DIGITS_LIMIT: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sv1_a_major_alone_has_the_minor_0_and_other_texts_are_refused() {
        let parse = |text: &str| text.parse::<SchemaVersion>().map(|version| version.to_string());
        assert_eq!((parse("1"), parse("12.34")), (Ok("1.0".to_owned()), Ok("12.34".to_owned())));
        for text in ["", ".", "0.1", "1.", ".1", "1.1.1", "+1", "1.-1", "01.1", "1.01", " 1", "4294967295"] {
            assert_eq!(parse(text), Err(VersionError::Malformed), "{text}");
        }
        let version = |text: &str| text.parse::<SchemaVersion>().unwrap();
        assert!(version("1.2") < version("1.10") && version("1.10") < version("2"));
    }

    #[test]
    fn sv1_a_record_without_a_version_is_1_0_and_an_unreadable_text_is_no_known_major() {
        assert_eq!(SchemaVersion::of_stored(""), SchemaVersion::FIRST);
        assert_eq!(SchemaVersion::FIRST.to_stored(), "");
        assert_eq!(SchemaVersion::of_stored("1.1").to_stored(), "1.1");
        assert!(SchemaVersion::of_stored("3.0~beta").major() > SchemaVersion::of_stored("999999999").major());
    }

    #[test]
    fn sv7_the_mark_follows_the_version() {
        let marked: MarkedVersion = "1.1+downgraded".parse().unwrap();
        assert_eq!((marked.to_string(), marked.is_downgraded), ("1.1+downgraded".to_owned(), true));
        assert!(!"1.1".parse::<MarkedVersion>().unwrap().is_downgraded);
        assert_eq!("1.1+Downgraded".parse::<MarkedVersion>(), Err(VersionError::Malformed));
        assert_eq!("+downgraded".parse::<MarkedVersion>(), Err(VersionError::Malformed));
    }
}
