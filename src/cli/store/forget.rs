//! `xds store forget`: a node that will not come back (SR33).

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_proto::xds::store::v1 as proto;

use super::connection::{Connection, ConnectionOptions};
use super::error::StoreError;
use super::run;
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say};

/// Forget a node that will not come back, so that nothing waits for it any more
///
/// Stop the node first, and remove its address from the lists of peers. The other nodes refuse it from
/// now on, for good; another one of them takes over its leases, which end unless they are renewed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Forget {
    /// The id of the node, or the beginning of it that `xds store peers` shows
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Forget it also while it answers, or while a node lacks commits of it, which may be lost then
    #[arg(long)]
    force: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Forget {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        run(&self.connection, self.format, async |connection| {
            let node = whole_id(&connection, &self.node).await?;
            let mut client = connection.maintenance.clone();
            let request = proto::ForgetRequest { node: node.clone(), force: self.force };
            let proto::ForgetResponse { counter, .. } = connection.answer(client.forget(request)).await?;
            match self.format {
                ReportFormat::Json => say(json!({ "node": node, "counter": counter })),
                ReportFormat::Text => {
                    say(format_args!("{node} is forgotten; its last known commit is {counter}"));
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// The id that begins so. `xds store peers` shows beginnings only.
async fn whole_id(connection: &Connection, beginning: &str) -> Result<String, StoreError> {
    let mut client = connection.maintenance.clone();
    let status = connection.answer(client.status(proto::StatusRequest::default())).await?;
    let clocks = status.peers.iter().flat_map(|peer| peer.clock.keys()).chain(status.clock.keys());
    let known = status.peers.iter().map(|peer| &peer.node).chain(clocks).chain([&status.node]);
    let found: BTreeSet<_> = known.filter(|node| node.starts_with(beginning)).collect();
    let is_short = beginning.len() < SHORTEST;
    match (found.first(), found.len()) {
        (Some(node), _) if *node == beginning => Ok((*node).clone()),
        (Some(_), _) if is_short => {
            let message =
                format!("{beginning:?} is too short: give at least {SHORTEST} characters of the id");
            Err(StoreError::Input(message))
        }
        (Some(node), 1) => Ok((*node).clone()),
        (Some(_), _) => {
            Err(StoreError::Input(format!("more than one node has an id that begins with {beginning:?}")))
        }
        // The server may know it from the past.
        (None, _) => Ok(beginning.to_owned()),
    }
}

/// As many characters as `xds store peers` shows.
const SHORTEST: usize = 8;

const EXAMPLES: &str = "\
Examples:
  xds store peers --store data
    this node 5f2c9a01  5f2c9a01:48 b7711e3d:12
    http://b.example:9901  b7711e3d  down: connection refused
        nothing of it is missing here; has 5f2c9a01:40 b7711e3d:12
  xds store forget b7711e3d --store data

JSON: one object with node and counter (the number of the last commit of it that is known). Fields
may be added.

Exit codes:
  0  done, or the node was forgotten before
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; more than one node has such an id
  3  the store does not know such a node
  4  the node answers, or a node lacks commits of it: use --force; or it is the node of the server";
