//! Which versions a server knows.

use std::collections::BTreeMap;

use xds_core::Constraints;

use super::{Ceiling, Form, Plan, PlanError};
use crate::key::RecordKey;
use crate::schema::SchemaVersion;

/// The schema versions that a server knows (SV2). The default declares nothing: all types are 1.0.
#[derive(Debug, Default, Clone)]
pub struct Schemas {
    declared: BTreeMap<String, SchemaVersion>,
    ceilings: BTreeMap<String, SchemaVersion>,
    /// Those that the store keeps (SV33).
    stored_ceilings: BTreeMap<String, SchemaVersion>,
    /// In the order of their numbers.
    plans: Vec<Plan>,
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
    /// The plans are wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A type has two ceilings.
    #[error("the type {type_url} has two ceilings")]
    TwoCeilings {
        /// The type.
        type_url: String,
    },
}

impl Schemas {
    /// Declares nothing.
    pub const NONE: &'static Self = &Self {
        declared: BTreeMap::new(),
        ceilings: BTreeMap::new(),
        stored_ceilings: BTreeMap::new(),
        plans: Vec::new(),
    };

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

    /// Takes all plans of the program, in the order of their numbers. Old forms have the versions that
    /// were declared before. The plan gives the version of the new form.
    ///
    /// # Errors
    /// [`SchemaError::Plan`], and [`SchemaError::Twice`] if the type of a new form is declared, too.
    pub fn with_plans(mut self, plans: Vec<Plan>) -> Result<Self, SchemaError> {
        let declared = |type_url: &str| self.declared.get(type_url).copied().unwrap_or(SchemaVersion::FIRST);
        Plan::check_all(&plans, declared)?;
        for plan in &plans {
            let type_url = plan.type_url(Form::New);
            if type_url != plan.type_url(Form::Old) && self.declared.contains_key(type_url) {
                return Err(SchemaError::Twice { type_url: type_url.to_owned() });
            }
        }
        self.plans = plans;
        Ok(self)
    }

    /// Takes or forgets a ceiling that the store keeps.
    pub(crate) fn set_stored_ceiling(&mut self, ceiling: Ceiling) {
        let Ceiling { type_url, version } = ceiling;
        match version {
            Some(version) => _ = self.stored_ceilings.insert(type_url, version),
            None => _ = self.stored_ceilings.remove(&type_url),
        }
    }

    /// The ceilings that the store keeps, by type.
    pub fn stored_ceilings(&self) -> impl Iterator<Item = (&str, SchemaVersion)> {
        self.stored_ceilings.iter().map(|(type_url, version)| (&**type_url, *version))
    }

    /// The lower one of the ceilings of a type.
    fn ceiling(&self, type_url: &str) -> Option<SchemaVersion> {
        let ceilings = [&self.ceilings, &self.stored_ceilings];
        ceilings.iter().filter_map(|ceilings| ceilings.get(type_url)).min().copied()
    }

    /// The plans.
    #[must_use]
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// The plan that has a key, and the form of the key.
    pub(crate) fn form(&self, key: &RecordKey) -> Option<(&Plan, Form)> {
        self.plans.iter().find_map(|plan| Some((plan, plan.form_of(key)?)))
    }

    /// The constraints with which a record is compared with other variants of its name. Those of the two
    /// forms of a plan match different clients (SV31).
    pub(crate) fn selecting(&self, key: &RecordKey) -> Constraints {
        let beside = match self.form(key) {
            Some((plan, Form::Old)) => plan.key_beside(key),
            Some((_, Form::New)) | None => None,
        };
        beside.as_ref().unwrap_or(key).id().constraints
    }

    /// The key of the record that clients of xDS get under this key. If both forms of a plan have one type
    /// and name, clients get the old one with the constraint `xds.schema!=MAJOR` besides (SV31).
    #[must_use]
    pub fn stored_key(&self, served: RecordKey) -> RecordKey {
        self.plans.iter().find_map(|plan| plan.key_alone(&served)).unwrap_or(served)
    }

    /// The server's version of both forms of a plan (SV2). Below the major version of the new form it
    /// does not know the new form.
    pub(crate) fn pair_version(&self, plan: &Plan) -> SchemaVersion {
        let types = [Form::Old, Form::New].map(|form| plan.type_url(form));
        let ceilings = types.iter().filter_map(|type_url| self.ceiling(type_url));
        let version = ceilings.fold(plan.new_version(), SchemaVersion::min);
        match version.major() < plan.new_version().major() {
            true => self.version(plan.type_url(Form::Old)),
            false => version,
        }
    }

    /// Whether the server knows the new form of a plan: no ceiling hides it.
    #[must_use]
    pub fn knows(&self, plan: &Plan) -> bool {
        self.pair_version(plan).major() >= plan.new_version().major()
    }

    /// The server's version of the resource of a key.
    pub(crate) fn server_version(&self, key: &RecordKey) -> SchemaVersion {
        match self.form(key) {
            Some((plan, _)) => self.pair_version(plan),
            None => self.version(key.type_url().as_str()),
        }
    }

    /// The highest version that the server knows of the form under a key (SV1).
    pub(crate) fn form_version(&self, key: &RecordKey) -> SchemaVersion {
        match self.form(key) {
            Some((plan, Form::New)) => self.pair_version(plan).max(plan.new_version()),
            Some((_, Form::Old)) | None => self.version(key.type_url().as_str()),
        }
    }

    /// The server's version of a type: what is declared, or the ceiling if that is lower (SV2).
    #[must_use]
    pub fn version(&self, type_url: &str) -> SchemaVersion {
        let declared = self.declared.get(type_url).copied().unwrap_or(SchemaVersion::FIRST);
        self.ceiling(type_url).map_or(declared, |ceiling| declared.min(ceiling))
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
