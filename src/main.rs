//! The `xds` binary.
#![forbid(unsafe_code)]

fn main() {}
