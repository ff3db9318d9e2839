//! Which versions a server knows.

use std::collections::BTreeMap;

use super::version::SchemaVersion;

/// The schema versions that a server knows (SV2). The default declares nothing: all types are 1.0.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Schemas {
    declared: BTreeMap<String, SchemaVersion>,
    ceilings: BTreeMap<String, SchemaVersion>,
}

/// Why versions cannot be declared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A type is declared twice.
    #[error("the type {type_url} is declared twice")]
    Twice {
        /// The type.
        type_url: String,
    },
    /// A type has two ceilings.
    #[error("the type {type_url} has two ceilings")]
    TwoCeilings {
        /// The type.
        type_url: String,
    },
}

impl Schemas {
    /// Declares nothing.
    pub const NONE: &'static Self = &Self { declared: BTreeMap::new(), ceilings: BTreeMap::new() };

    /// Declares the highest version of a type that the server knows.
    ///
    /// # Errors
    /// [`SchemaError::Twice`].
    pub fn declare(mut self, type_url: &str, version: SchemaVersion) -> Result<Self, SchemaError> {
        match self.declared.insert(type_url.to_owned(), version) {
            None => Ok(self),
            Some(_) => Err(SchemaError::Twice { type_url: type_url.to_owned() }),
        }
    }

    /// Limits a type to a version, whatever is declared: a server that shall behave as an older one.
    ///
    /// # Errors
    /// [`SchemaError::TwoCeilings`].
    pub fn with_ceiling(mut self, type_url: &str, version: SchemaVersion) -> Result<Self, SchemaError> {
        match self.ceilings.insert(type_url.to_owned(), version) {
            None => Ok(self),
            Some(_) => Err(SchemaError::TwoCeilings { type_url: type_url.to_owned() }),
        }
    }

    /// The server's version of a type: what is declared, or the ceiling if that is lower (SV2).
    #[must_use]
    pub fn version(&self, type_url: &str) -> SchemaVersion {
        let declared = self.declared.get(type_url).copied().unwrap_or(SchemaVersion::FIRST);
        self.ceilings.get(type_url).map_or(declared, |ceiling| declared.min(*ceiling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sv2_the_version_of_a_server_is_the_lowest_of_what_is_declared_and_its_ceiling() {
        let version = |text: &str| text.parse::<SchemaVersion>().unwrap();
        let schemas = Schemas::default().declare("t", version("1.3")).unwrap();
        assert_eq!((schemas.version("t"), schemas.version("other")), (version("1.3"), SchemaVersion::FIRST));
        let low = schemas.clone().with_ceiling("t", version("1.1")).unwrap();
        assert_eq!(low.version("t"), version("1.1"));
        // A ceiling above makes nothing known.
        let high = schemas.clone().with_ceiling("t", version("2")).unwrap();
        assert_eq!(high.version("t"), version("1.3"));
        assert!(matches!(schemas.declare("t", version("1.4")), Err(SchemaError::Twice { .. })));
        assert!(matches!(low.with_ceiling("t", version("1")), Err(SchemaError::TwoCeilings { .. })));
    }
}
