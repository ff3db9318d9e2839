//! What goes over the wire, below the cache and the streams.

pub(crate) use failure::Failure;
pub(crate) use handle::Handle;

mod failure;
pub(crate) mod fields;
mod handle;

/// Stands behind the version of a response in delta that the next one continues.
pub(crate) const CONTINUED: u8 = b'+';
