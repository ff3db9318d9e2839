//! The protocol of a stream.

/// The protocol of a stream. Every server supports SotW.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world (SotW): a request lists the whole subscription to its type. For some types
    /// a response has all resources (S25).
    #[default]
    Sotw,
    /// Incremental (delta): requests and responses have changes only, and the server reports at once
    /// that a resource does not exist.
    Delta,
}
