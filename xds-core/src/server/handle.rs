//! What a client knows a resource by, and who asks for it.

use crate::cache::TypeSnapshot;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::{Locator, Subscription};
use crate::variants::{Form, Variant};
use crate::xdstp;

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

    /// Whether somebody asks for it, by its name or another one.
    pub(super) fn is_asked_for(&self, subscription: &Subscription, resources: Option<&TypeSnapshot>) -> bool {
        let others = resources.into_iter().flat_map(|resources| resources.others_of(&self.name));
        let covers = |name: &ResourceName| subscription.covering(name).any(|params| self.matches(params));
        covers(&self.name)
            || others.into_iter().any(covers)
            || xdstp::glob_of(&self.name).is_some_and(|of| covers(&of))
    }

    /// Whether who asks with these parameters had it.
    pub(super) fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }
}

/// As what a subscription asks for a variant: by its name, an alias or a glob.
pub(super) fn asking_for(subscription: &Subscription, variant: &Variant) -> impl Iterator<Item = Locator> {
    let glob = xdstp::glob_of(variant.name());
    let names = std::iter::once(variant.name()).chain(variant.aliases()).cloned().chain(glob);
    names.flat_map(move |name| {
        let holders = subscription.covering(&name).filter(|params| variant.constraints().matches(params));
        let locators = holders.map(|params| Locator { name: name.clone(), parameters: params.clone() });
        locators.collect::<Vec<_>>()
    })
}
