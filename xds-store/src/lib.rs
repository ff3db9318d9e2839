//! The durable store. So far the crate has its engines: what keeps ordered bytes.
//!
//! The crate has no runtime, clock, entropy or threads; only the engine on a file does I/O.
#![forbid(unsafe_code)]

pub mod engine;
