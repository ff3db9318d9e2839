//! Commands of this repository: `cargo xtask --help` lists them.
//!
//! | module | command |
//! | --- | --- |
//! | [`descriptors`] | makes `descriptors/envoy.binpb.gz`, or checks that it is current |
//! | [`dist`] | makes what is shipped: archive, Debian package, bill of materials, check sums |
//! | [`peers`] | installs the foreign programs that some tests need |
//! | [`test`](mod@test) | runs every test |
#![forbid(unsafe_code)]

mod descriptors;
mod dist;
mod peers;
mod step;
mod test;

use std::{error::Error, process::ExitCode};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make the descriptor set of all Envoy types from the sources of a crate
    Descriptors(descriptors::Args),
    /// Make what is shipped: archive, Debian package, bill of materials and check sums
    Dist(dist::Args),
    /// Run the tests with a real Kubernetes API server, which it builds first
    Kubernetes,
    /// Install the foreign programs that the tests need into target/peers
    Peers,
    /// Run every test, those with a real Envoy and real gRPC clients included
    Test,
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn Error>> = match Cli::parse().command {
        Command::Descriptors(args) => args.run().map_err(Into::into),
        Command::Dist(args) => args.run().map_err(Into::into),
        Command::Kubernetes => return test::run_kubernetes(),
        Command::Peers => return peers::run(),
        Command::Test => return test::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  caused by: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}
