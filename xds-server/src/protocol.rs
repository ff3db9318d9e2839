//! Which protocol a stream speaks.

/// Which protocol a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Only what changes.
    Delta,
}
