//! All variants of one name, and which of them a subscription gets (T1-T5).

use std::sync::Arc;

use bytes::Bytes;

use crate::constraint::Constraints;
use crate::name::{ResourceName, Revision, Version, digest};
use crate::resource::Resource;

/// One stored variant of a resource.
#[derive(Debug)]
pub struct Variant {
    name: ResourceName,
    constraints: Constraints,
    payload: Bytes,
    version: Version,
    /// The commit that brought this content.
    pub(crate) changed_at: Revision,
    /// The commit since which the name is there, its remembered removals not counted.
    pub(crate) born_at: Revision,
    /// The assignment that holds the endpoints of this cluster (S34).
    pub(crate) endpoints: Option<Box<ResourceName>>,
}

impl Variant {
    pub(crate) fn new(resource: Resource, changed_at: Revision, born_at: Revision) -> Self {
        let Resource { id, payload, version, endpoints } = resource;
        let endpoints = endpoints.map(Box::new);
        Self { name: id.name, constraints: id.constraints, payload, version, changed_at, born_at, endpoints }
    }

    /// Digest of name, constraints and version: what this variant adds to the version of a SotW response (T38).
    ///
    /// Not stored: it is asked for when the variant comes and goes, and 100,000 resources would each pay for it.
    pub(crate) fn identity(&self) -> u128 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.version.0.to_be_bytes()).update(self.name.as_str().as_bytes());
        digest(&hasher)
    }

    /// The name clients ask for.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// Whom it is for.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The digest of the payload.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }
}

/// The variants of one name. So far a name has one, which is for everyone.
#[derive(Debug, Clone)]
pub struct VariantSet(Arc<Variant>);

impl VariantSet {
    pub(crate) fn of(variant: Arc<Variant>) -> Self {
        Self(variant)
    }

    /// The variant a subscription to the name gets.
    #[must_use]
    pub fn resolve(&self) -> &Arc<Variant> {
        &self.0
    }
}
