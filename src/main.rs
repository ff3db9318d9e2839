//! The `xds` command: serves a folder of resources, and checks one.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::run()
}
