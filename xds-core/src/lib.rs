//! The cache and the stream machines of an xDS control plane.
#![forbid(unsafe_code)]

pub use cache::{Cache, Commit, CommitError, Snapshot, Transaction, TypeSnapshot, Watch};
pub use constraint::Constraints;
pub use known_type::KnownType;
pub use name::{Nonce, ResourceName, Revision, TypeUrl, Version};
pub use resource::{PAYLOAD_LIMIT_BYTES, Resource, ResourceError, VariantId};
pub use variants::{Variant, VariantSet};

mod cache;
mod constraint;
mod known_type;
mod name;
mod resource;
pub mod server;
pub mod subscription;
mod variants;
