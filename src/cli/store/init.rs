//! `xds store init`: creates a durable store.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use xds_store::store::Identity;

use super::place;
use crate::cli::{Failure, say};

/// Create a store in a new or empty folder
///
/// The store has no resources yet, and says nothing to clients before its first commit. Serve it
/// with `xds serve --store DIR`.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// The folder; it must not exist, or be empty
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Init {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let identity = new_identity()?;
        place::init(&self.folder, &identity).map_err(Failure::Place)?;
        let (folder, Identity { node, cluster, .. }) = (self.folder.display(), identity);
        say(format!("{folder}: a new store, node {node}, cluster {cluster}"));
        Ok(ExitCode::SUCCESS)
    }
}

/// The identity of a new store that is the first of its cluster.
pub(in crate::cli) fn new_identity() -> Result<Identity, Failure> {
    Ok(Identity { node: random_hex()?, cluster: random_hex()?, ..Identity::default() })
}

/// 128 random bits.
pub(in crate::cli) fn random_hex() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::System(error.into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
