//! The xDS client: for programs that consume xDS.
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod last_good;
