//! Refusals of the tables.

use std::fmt;

use xds_proto::xds::store::v1 as proto;

use super::version::{MarkedVersion, SchemaVersion};
use super::write::StoredForms;

/// Why a content may not be written or read: what is stored, what was written, and what the server
/// knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaRefusal {
    /// The row of the table.
    pub rule: SchemaRule,
    /// What is stored.
    pub stored: StoredForms,
    /// What was written; `None` for a read.
    pub written: Option<MarkedVersion>,
    /// The server's version of the type.
    pub server: SchemaVersion,
}

/// The row of a table that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaRule {
    /// The stored version is newer than the server knows.
    W2,
    /// The server does not know the written version.
    W5,
    /// The content was read in a downgraded form.
    W6,
    /// The same, and the server does not know its version.
    W8,
    /// Both forms are stored, and the server knows the old one only.
    W9,
    /// The server does not know the major version that is stored.
    W14,
    /// The server does not know the major version that is stored, and neither does the client.
    Rd3,
    /// The same, and the client knows it.
    Rd4,
    /// A content of another major version has another key (SV4). It is no row.
    OtherMajor,
    /// The client knows an older major version, and nothing converts to it. It is no row.
    NoConverter,
}

impl SchemaRefusal {
    /// SV35: whether the server does not know the stored major version. Another server may know it.
    #[must_use]
    pub fn is_unknown_major(&self) -> bool {
        match self.rule {
            SchemaRule::W14 | SchemaRule::Rd3 | SchemaRule::Rd4 => true,
            SchemaRule::W2
            | SchemaRule::W5
            | SchemaRule::W6
            | SchemaRule::W8
            | SchemaRule::W9
            | SchemaRule::OtherMajor
            | SchemaRule::NoConverter => false,
        }
    }

    /// Whether the same write with force is accepted.
    #[must_use]
    pub fn may_force(&self) -> bool {
        match self.rule {
            SchemaRule::W2 | SchemaRule::W6 | SchemaRule::W9 => true,
            SchemaRule::W5
            | SchemaRule::W8
            | SchemaRule::W14
            | SchemaRule::Rd3
            | SchemaRule::Rd4
            | SchemaRule::OtherMajor
            | SchemaRule::NoConverter => false,
        }
    }

    /// The refusal as a detail of an error.
    #[must_use]
    pub fn to_proto(&self) -> proto::SchemaRefused {
        proto::SchemaRefused {
            rule: self.rule.to_string(),
            stored: self.stored.to_string(),
            written: self.written.map(|written| written.to_string()).unwrap_or_default(),
            server: self.server.to_string(),
            may_force: self.may_force(),
        }
    }
}

impl std::error::Error for SchemaRefusal {}

impl fmt::Display for SchemaRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, stored, written, server } = self;
        let written = written.map(|written| written.to_string()).unwrap_or_default();
        match rule {
            SchemaRule::W2 | SchemaRule::W9 => {
                write!(f, "schema version {stored} is stored, and this server knows {server}")
            }
            SchemaRule::W5 | SchemaRule::W8 => {
                write!(f, "this server knows schema version {server}, and the content has {written}")
            }
            SchemaRule::W6 => write!(
                f,
                "the content has schema version {written}: it was read in an older form than the stored one"
            ),
            SchemaRule::W14 | SchemaRule::Rd3 | SchemaRule::Rd4 => {
                write!(f, "schema version {stored} is stored; this server knows {server}: use a newer server")
            }
            SchemaRule::NoConverter => {
                write!(f, "schema version {stored} is stored, and nothing converts it to an older one")
            }
            SchemaRule::OtherMajor => write!(
                f,
                "a content of schema version {written} does not belong under this key: a major version has a key \
                 of its own"
            ),
        }
    }
}

impl fmt::Display for SchemaRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::W2 => "W2",
            Self::W5 => "W5",
            Self::W6 => "W6",
            Self::W8 => "W8",
            Self::W9 => "W9",
            Self::W14 => "W14",
            Self::Rd3 => "Rd3",
            Self::Rd4 => "Rd4",
            Self::OtherMajor | Self::NoConverter => "",
        })
    }
}
