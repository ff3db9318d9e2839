//! The `xds` command: serves a folder of resources, and checks one.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod cli;

/// What the parsing of a large folder or a storm of clients took goes back to the system within 10
/// s, also while nothing is asked of the server (`benches/folder_scale.rs`,
/// `benches/load/storm.py`): glibc's allocator and mimalloc keep holes and heaps of threads that
/// are idle.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::run()
}
