//! `xds store init`: creates a durable store.

use std::process::ExitCode;

use clap::Args;
use xds_store::store::Identity;

use super::etcd::EtcdOptions;
use super::place::{self, Place};
use crate::cli::{Failure, say};

/// Create a store in a new or empty folder, or in etcd
///
/// The store has no resources yet, and says nothing to clients before its first commit. Serve it
/// with `xds serve --store STORE`.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct Init {
    /// The folder, which must not exist, or be empty; or etcd://HOST:PORT,HOST:PORT/PREFIX, with TLS
    /// etcds://.., where no key may begin with /PREFIX/
    #[arg(value_name = "STORE")]
    place: Place,
    #[command(flatten)]
    etcd: EtcdOptions,
}

impl Init {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let identity = new_identity()?;
        place::init(&self.place, &identity, &self.etcd).map_err(Failure::Place)?;
        let (place, Identity { node, cluster, .. }) = (&self.place, identity);
        say(format!("{place}: a new store, node {node}, cluster {cluster}"));
        Ok(ExitCode::SUCCESS)
    }
}

const AFTER: &str = "\
Examples:
  xds store init data
  xds store init etcd://10.0.0.1:2379,10.0.0.2:2379/xds

Exit codes:
  0  the store is there
  1  it cannot be written
  2  the folder, or the prefix in etcd, is not empty; arguments";

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
