//! `xds store peers`: the nodes that a store replicates with.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use xds::printable;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::document::duration;
use super::forget::Forget;
use super::run;
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, say};

/// Show the nodes that a store replicates with, and how far this node is behind each
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(super) struct Peers {
    #[command(subcommand)]
    action: Option<PeersAction>,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

#[derive(Debug, Subcommand)]
enum PeersAction {
    Forget(Forget),
}

impl Peers {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        if let Some(PeersAction::Forget(forget)) = &self.action {
            return forget.run();
        }
        run(&self.connection, self.format, async |connection| {
            let mut client = connection.maintenance.clone();
            let status = connection.answer(client.status(proto::StatusRequest::default())).await?;
            match self.format {
                ReportFormat::Json => {
                    let peers: Vec<_> = status.peers.iter().map(object).collect();
                    say(format_args!(
                        "{:#}",
                        json!({
                            "node": status.node, "clock": status.clock, "peers": peers,
                            "regions": status.regions.iter().map(region).collect::<Vec<_>>(),
                            "fetching": status.fetching, "awaited": status.awaited,
                        })
                    ));
                }
                ReportFormat::Text => text(&status).iter().for_each(say),
            }
            let is_well = status.peers.iter().all(|peer| peer.is_up && !peer.is_duplicate);
            Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(1) })
        })
    }
}

fn text(status: &proto::StatusResponse) -> Vec<String> {
    let clock = |clock: &std::collections::BTreeMap<String, u64>| {
        let parts: Vec<_> =
            clock.iter().map(|(origin, counter)| format!("{}:{counter}", short(origin))).collect();
        if parts.is_empty() { "no commit yet".to_owned() } else { parts.join(" ") }
    };
    let mut lines = vec![format!("this node {}  {}", short(&status.node), clock(&status.clock))];
    if status.peers.is_empty() {
        lines.push("no peers: the server has no --peer".to_owned());
    }
    for peer in &status.peers {
        let node = if peer.node.is_empty() { "not heard yet" } else { short(&peer.node) };
        let state = match (peer.is_up, &*peer.error) {
            (true, _) => "up".to_owned(),
            (false, "") => "down".to_owned(),
            (false, error) => format!("down: {}", printable(error)),
        };
        lines.push(format!("{}  {node}  {state}", peer.address));
        let lag = peer.lag.map(|lag| format!(", for {}", duration(seconds(lag)))).unwrap_or_default();
        let behind = match peer.entries_behind {
            0 => "nothing of it is missing here".to_owned(),
            behind => format!("{} missing here{lag}", counted(behind as usize, "commit")),
        };
        lines.push(format!("    {behind}; has {}", clock(&peer.clock)));
        if peer.is_duplicate {
            lines.push("    two processes have the id of this node".to_owned());
        }
    }
    // SG29
    for region in status.regions.iter().filter(|region| !region.is_reachable) {
        let age = region.age.map(|age| duration(seconds(age))).unwrap_or_default();
        lines.push(format!("region {} cannot be reached: copies of its names are {age} old", region.region));
    }
    for prefix in &status.fetching {
        lines.push(format!("names with {prefix} are being fetched: a policy gave them to this region"));
        lines.extend(status.awaited.get(prefix).map(|awaited| format!("    {}", printable(awaited))));
    }
    lines
}

fn region(region: &proto::RegionStatus) -> Value {
    json!({ "region": region.region, "is_reachable": region.is_reachable, "age": region.age.map(duration) })
}

/// The beginning of an id, which tells nodes apart.
fn short(node: &str) -> &str {
    node.get(..8).unwrap_or(node)
}

/// Whole seconds are enough for people.
fn seconds(lag: prost_types::Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: lag.seconds, nanos: 0 }
}

pub(super) fn object(peer: &proto::PeerStatus) -> Value {
    json!({
        "node": peer.node, "address": peer.address, "region": peer.region, "is_up": peer.is_up,
        "last_contact": peer.last_contact.map(|at| at.to_string()), "error": peer.error,
        "clock": peer.clock, "entries_behind": peer.entries_behind, "lag": peer.lag.map(duration),
        "tombstones_held": peer.tombstones_held, "build": peer.build, "is_duplicate": peer.is_duplicate,
    })
}

const EXAMPLES: &str = "\
Examples:
  xds store peers --store data
    this node 5f2c9a01  5f2c9a01:48 b7711e3d:12
    https://b.example:9901  b7711e3d  up
        nothing of it is missing here; has 5f2c9a01:48 b7711e3d:12

The clock of a node has, for each node, the number of the last commit that it has of that node.

JSON: one object with node, clock {NODE: number} and peers, a list of objects with node, address,
region, is_up, last_contact, error, clock, entries_behind (commits that it has and that are missing
here), lag (for how long), tombstones_held, build and is_duplicate; regions, a list of objects with
region, is_reachable and age (how old copies of its names are at most); fetching, the prefixes of
names that a policy gave to this region and that are not all here; and awaited, an object with what
each of these waits for. Fields may be added.

Exit codes:
  0  all peers are up, or there are none
  1  a peer is down, or two processes have its id; the server cannot be reached, or refuses
  2  invalid input: arguments";
