//! What goes over the wire, below the cache and the streams.

pub use body::Body;
pub(crate) use body::BodyWriter;
pub(crate) use failure::Failure;
pub(crate) use resource_key::ResourceKey;

mod body;
mod failure;
pub(crate) mod fields;
mod resource_key;

/// Stands behind the version of a response in delta that the next one continues.
pub(crate) const CONTINUED: u8 = b'+';
