//! Names that no wildcard covers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::name::ResourceName;
use crate::xdstp::XdstpName;

/// The authorities for which a proxy has servers of their own. A wildcard covers what the other
/// servers have; names of these authorities are subscribed to one by one or by globs (C16).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExcludedAuthorities(Arc<BTreeSet<String>>);

impl ExcludedAuthorities {
    /// `None` without authorities: a wildcard then covers every name.
    #[must_use]
    pub fn new(authorities: BTreeSet<String>) -> Option<Self> {
        (!authorities.is_empty()).then(|| Self(Arc::new(authorities)))
    }

    /// Whether the name belongs to one of these authorities, so that no wildcard covers it.
    pub(crate) fn contains(&self, name: &ResourceName) -> bool {
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        new_style.is_some_and(|new_style| self.0.contains(new_style.authority()))
    }
}
