//! Virtual hosts, by the route configurations that they belong to.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::name::ResourceName;

/// The name spaces of some route configurations: their virtual hosts have names of the form
/// `<route configuration>/<host>` (D25).
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostSpaces(Arc<BTreeSet<ResourceName>>);

/// Virtual hosts that a client is sent without a subscription (D33).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnaskedHosts {
    /// It is not known which route configurations the client has.
    All,
    Of(HostSpaces),
}

impl HostSpaces {
    /// Whether a virtual host of this name belongs to one of the route configurations.
    #[must_use]
    pub fn contains(&self, host: &ResourceName) -> bool {
        space_of(host).is_some_and(|space| self.0.contains(space))
    }

    /// Whether there is no route configuration.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of these spaces; `None` without any.
    pub(super) fn union<'s>(mut all: impl Iterator<Item = &'s Self>) -> Option<Self> {
        let first = all.next()?.clone();
        Some(all.fold(first, |spaces, other| match spaces == *other {
            true => spaces,
            false => spaces.0.union(&other.0).cloned().collect(),
        }))
    }
}

impl FromIterator<ResourceName> for HostSpaces {
    fn from_iter<I: IntoIterator<Item = ResourceName>>(route_configurations: I) -> Self {
        Self(Arc::new(route_configurations.into_iter().collect()))
    }
}

impl UnaskedHosts {
    pub(crate) fn contains(&self, host: &ResourceName) -> bool {
        match self {
            Self::All => true,
            Self::Of(spaces) => spaces.contains(host),
        }
    }
}

/// The name of the route configuration of a virtual host: what is before the last slash (D25).
fn space_of(host: &ResourceName) -> Option<&str> {
    host.as_str().rsplit_once('/').map(|(space, _)| space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d25_the_last_slash_ends_the_name_of_the_route_configuration() {
        let spaces: HostSpaces = ["rc".into(), "team/rc".into()].into_iter().collect();
        for (host, is_in) in [
            ("rc/a.example", true),
            ("rc/", true),
            ("team/rc/a", true),
            ("rc", false),
            ("rc/x/a", false),
            ("team/a", false),
            ("rc2/a", false),
        ] {
            assert_eq!(spaces.contains(&host.into()), is_in, "{host}");
        }
    }
}
