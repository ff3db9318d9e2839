//! Names that no wildcard stands for.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::name::ResourceName;
use crate::xdstp::XdstpName;

/// Authorities with servers of their own, in front of which a proxy is: a wildcard stands for what
/// the other servers have, so their names are asked for one by one or by globs (C16).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExcludedAuthorities(Arc<BTreeSet<String>>);

impl ExcludedAuthorities {
    /// `None` without authorities: a wildcard stands for everything then.
    #[must_use]
    pub fn new(authorities: BTreeSet<String>) -> Option<Self> {
        (!authorities.is_empty()).then(|| Self(Arc::new(authorities)))
    }

    /// Whether no wildcard stands for a name.
    pub(crate) fn has(&self, name: &ResourceName) -> bool {
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        new_style.is_some_and(|new_style| self.0.contains(new_style.authority()))
    }
}
