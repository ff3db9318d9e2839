//! The protocol of a stream: SotW or delta.

/// The protocol of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world (SotW): a response carries all resources of its type.
    Sotw,
    /// Incremental (delta): a response carries only changes.
    Delta,
}
