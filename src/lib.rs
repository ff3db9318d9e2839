//! The facade of the workspace.
#![forbid(unsafe_code)]

pub use xds_core as core;
