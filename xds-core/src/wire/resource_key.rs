//! What a client knows a resource by.

use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;

/// What a client knows a resource by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceKey {
    pub(crate) name: ResourceName,
    /// Those of the variant, to a client that knows locators (T30). Without them it stands for all
    /// that the client has under the name.
    pub(crate) constraints: Option<Constraints>,
}

impl ResourceKey {
    pub(crate) fn of_name(name: &ResourceName) -> Self {
        Self { name: name.clone(), constraints: None }
    }

    pub(crate) fn of_variant(name: &ResourceName, constraints: Constraints) -> Self {
        Self { name: name.clone(), constraints: Some(constraints) }
    }

    /// Whether who asks with these parameters had it.
    pub(crate) fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }
}
