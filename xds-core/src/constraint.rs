//! Constraints: the part of a resource's identity that says whom it is for (T1).

/// The constraints of one variant, as identity.
///
/// So far the only constraints are none at all: such a variant is for everyone.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constraints(());

impl Constraints {
    /// Matches every parameter set.
    pub const NONE: Self = Self(());
}

impl Constraints {
    pub(crate) fn matches(&self, _: &crate::parameters::Parameters) -> bool {
        true
    }

    pub(crate) fn keys(&self) -> &[std::sync::Arc<str>] {
        &[]
    }
}
