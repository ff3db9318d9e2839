//! What a client knows a resource by.

use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::variants::{Form, Variant};

/// What a client knows a resource by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle {
    pub(super) name: ResourceName,
    /// Those of the variant, to a client that knows locators (T30). Without them it stands for all that the client has
    /// under the name.
    pub(super) constraints: Option<Constraints>,
}

impl Handle {
    pub(super) fn of(variant: &Variant, form: Form) -> Self {
        // T43c: what is for one locator alone goes out as it came.
        let constraints = (form == Form::Located).then(|| match variant.constraints() {
            exact if exact.is_exact() => Constraints::NONE,
            constraints => constraints.clone(),
        });
        Self { name: variant.name().clone(), constraints }
    }

    pub(super) fn of_name(name: &ResourceName) -> Self {
        Self { name: name.clone(), constraints: None }
    }

    pub(super) fn of_variant(name: &ResourceName, constraints: Constraints) -> Self {
        Self { name: name.clone(), constraints: Some(constraints) }
    }

    /// Whether who asks with these parameters had it.
    pub(super) fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }
}
