//! Parts of encoded messages, below the cache and the streams.

pub use body::Body;
pub(crate) use body::BodyWriter;
pub(crate) use failure::Failure;
pub(crate) use resource_key::ResourceKey;

mod body;
mod failure;
pub(crate) mod fields;
mod resource_key;

/// The last byte of the version of a delta response that the next response continues.
pub(crate) const CONTINUED: u8 = b'+';
