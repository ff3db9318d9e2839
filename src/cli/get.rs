//! `xds get`: prints resources of a server, once.

use std::process::ExitCode;

use clap::Args;

use super::Failure;
use super::query::{Differences, Mode, Query};

/// Fetch resources from an xDS server, as its clients do
///
/// Connects to any server that speaks ADS, waits until each name is known, prints the resources in
/// the order of the arguments and exits. A server that is down is an error within 2 s, or, with
/// --wait, after --timeout.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = LONG)]
pub(super) struct Get {
    #[command(flatten)]
    query: Query,
    /// Show what the connected client with this node id has, instead of subscribing
    ///
    /// The server reports by CSDS which resources it sent to the client, with their versions, and
    /// whether the client ACKed them; of secrets it reports no content. Without TYPE: all types.
    /// A server with a policy must let you inspect its clients.
    #[arg(long, value_name = "ID", conflicts_with_all = ["metadata", "node_id", "node_cluster", "sotw", "delta"])]
    as_client: Option<String>,
}

impl Get {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.as_client {
            Some(id) => self.query.inspect(id),
            None => self.query.run(Mode::Get, Differences::Whole),
        }
    }
}

macro_rules! examples {
    () => {
        "\
Examples:
  xds get --server localhost:18000 CDS                               all clusters
  xds get --server localhost:18000 CDS web
  xds get --server localhost:18000 RDS web env=prod                  by dynamic parameters
  xds get --server localhost:18000 RDS web --metadata env=prod       as an Envoy with this metadata
  xds get --server localhost:18000 CDS --format yaml > c.yaml        as files for `xds serve`
  xds get --server localhost:18000 --as-client edge-1 RDS            what this client has
  GRPC_XDS_BOOTSTRAP=bootstrap.json xds get LDS checkout"
    };
}

const EXAMPLES: &str = examples!();

const LONG: &str = concat!(
    examples!(),
    "

JSON: one object per line, with `event`, `type`, `name`, and
  changed   version, constraints (in the syntax of `when:`; null: for all clients, or not sent),
            generation (of the stream), stale, resource
  gone      code, message: the resource does not exist
  With --as-client: client, cluster, type, name (with the constraints of the variant), version,
  status (SYNCED, STALE, NOT_SENT, ERROR as in CSDS), detail (of a rejection), resource
  Fields may be added.

Exit codes:
  0  all resources were printed
  1  the server cannot be reached, refuses, or fails
  2  invalid input: arguments, bootstrap document
  3  a resource does not exist; the others were printed
  5  no answer about a resource within --timeout, so it is not known whether it exists (in SotW a
     server may be silent about what does not exist); the others were printed"
);
