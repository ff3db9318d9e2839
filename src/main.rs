//! The `xds` command: serves a folder of resources, checks one, and queries xDS servers.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod cli;

/// After it parsed a large folder or served a storm of clients, jemalloc returns the memory to the
/// system within 10 s, even if the server is idle (`benches/folder_scale.rs`,
/// `benches/load/storm.py`). glibc's allocator and mimalloc keep holes, and the heaps of idle
/// threads. Its own build takes long, so a build for a first try goes without it.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run()
}
