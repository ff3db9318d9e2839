//! The name and the constraints by which a client knows a resource.

use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;

/// The name and the constraints by which a client knows a resource. On the wire: a name (SotW, and
/// delta without locators) or a `ResourceName`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceKey {
    pub(crate) name: ResourceName,
    /// The constraints of the variant, for a client that knows locators (T30). `None` means every
    /// resource that the client has under the name.
    pub(crate) constraints: Option<Constraints>,
}

impl ResourceKey {
    pub(crate) fn of_name(name: &ResourceName) -> Self {
        Self { name: name.clone(), constraints: None }
    }

    pub(crate) fn of_variant(name: &ResourceName, constraints: Constraints) -> Self {
        Self { name: name.clone(), constraints: Some(constraints) }
    }

    /// Whether a locator with these parameters could have got the resource.
    pub(crate) fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }
}
