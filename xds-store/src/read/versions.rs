//! Schema versions of what is read (SV6).

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::{ReadError, Reads};
use crate::key::RecordKey;
use crate::phase::Schemas;
use crate::record::RecordState;
use crate::schema::{
    MarkedVersion, ReadEffect, SchemaRefusal, SchemaRule, SchemaVersion, VersionError, judge_read,
};

/// The highest versions that a caller understands, by type. A type that is not in it is read in the
/// version that the server knows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Knows(BTreeMap<String, SchemaVersion>);

impl Knows {
    /// Understands everything that the server does.
    pub const ALL: &'static Self = &Self(BTreeMap::new());

    /// The versions of a request. Of a type that appears twice, the lower version counts.
    ///
    /// # Errors
    /// See [`VersionError`].
    pub fn parse(knows: &[proto::Knows]) -> Result<Self, VersionError> {
        let mut versions = BTreeMap::new();
        for proto::Knows { type_url, version } in knows {
            let version: SchemaVersion = version.parse()?;
            let known = versions.entry(type_url.clone()).or_insert(version);
            *known = version.min(*known);
        }
        Ok(Self(versions))
    }

    /// The version that the caller understands of the resource of a key. By default it understands the
    /// form under the key.
    pub(super) fn version(&self, key: &RecordKey, schemas: &Schemas) -> SchemaVersion {
        let known = self.0.get(key.type_url().as_str()).copied();
        known.unwrap_or_else(|| schemas.form_version(key))
    }

    /// This version of one type.
    #[must_use]
    pub fn of(key: &RecordKey, version: SchemaVersion) -> Self {
        Self(BTreeMap::from([(key.type_url().as_str().to_owned(), version)]))
    }
}

impl Reads<'_> {
    /// Whether there is a version of a record that the server and the caller know. Lists and watches
    /// leave out others (SV36).
    pub(super) fn is_readable(&self, key: &RecordKey, state: &RecordState, knows: &Knows) -> bool {
        self.shown_version(key, state, knows).is_ok()
    }

    /// The text of the version with which a reader gets a content.
    pub(super) fn shown_version(
        &self,
        key: &RecordKey,
        state: &RecordState,
        knows: &Knows,
    ) -> Result<String, ReadError> {
        let (server, form) = (self.schemas.server_version(key), self.schemas.form_version(key));
        // The caller gets the form under the key, whatever else it knows.
        let known = match self.schemas.form(key) {
            Some(_) => knows.version(key, self.schemas).min(form),
            None => knows.version(key, self.schemas),
        };
        let stored = self.stored_of(key, state)?;
        let marked = match judge_read(stored, server, known)? {
            // A type without other versions is answered without a version, as it was written.
            Some(ReadEffect::Alone(marked)) if marked == ONLY && server == SchemaVersion::FIRST => {
                return Ok(String::new());
            }
            Some(ReadEffect::Alone(marked) | ReadEffect::Old(marked)) => marked,
            Some(ReadEffect::ConvertedDown(_) | ReadEffect::New(_)) | None => {
                let rule = SchemaRule::NoConverter;
                return Err(SchemaRefusal { rule, stored, written: None, server }.into());
            }
        };
        Ok(marked.to_string())
    }
}

const ONLY: MarkedVersion = MarkedVersion { version: SchemaVersion::FIRST, is_downgraded: false };
