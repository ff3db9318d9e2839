//! What goes over the wire, below the cache and the streams.

pub(crate) mod fields;
