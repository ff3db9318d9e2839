#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use xds_core::matching;
pub use xds_core::server::{Serving, StreamConfig, TypeConfig};
pub use xds_core::{
    Cache, Commit, CommitError, Constraints, MetadataKeys, NamedPath, ParameterMapping, Parameters, Resource,
    ResourceError, ResourceName, Revision, Snapshot, Transaction, TypeUrl, Variant, VariantId, VariantSet,
    Variants, Version,
};
pub use xds_proto::type_url;
pub use xds_server::{ServeError, Server, ServerConfig, Stopping};

#[cfg(feature = "folder")]
pub mod folder;
#[cfg(feature = "rest")]
pub mod rest;
