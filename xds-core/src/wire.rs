//! What goes over the wire, below the cache and the streams.

pub(crate) use failure::Failure;

mod failure;
pub(crate) mod fields;

/// Stands behind the version of a response in delta that the next one continues.
pub(crate) const CONTINUED: u8 = b'+';
