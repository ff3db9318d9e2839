//! What goes over the wire, below the cache and the streams.

pub(crate) use failure::Failure;

mod failure;
pub(crate) mod fields;
