//! `xds store status` and `xds store compact`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::status_response::Condition;

use super::connection::ConnectionOptions;
use super::document::duration;
use super::{peers, run};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, say};

/// Show the health, revisions, size and limits of a store
#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(super) struct StatusCommand {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Also write, read and delete a probe record
    #[arg(long)]
    probe: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// Forget old revisions of a store
///
/// The server does this every minute, within `--history` and `--history-revisions`. What `xds list`
/// shows does not change;
/// `xds history` and watches no longer go back to forgotten revisions.
#[derive(Debug, Args)]
#[command(after_help = COMPACT)]
pub(super) struct Compact {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Forget the revisions up to this one, as `xds history` shows it [default: what the history
    /// options of the server allow]
    #[arg(long, value_name = "REV")]
    to: Option<String>,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl StatusCommand {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        run(&self.connection, self.format, async |connection| {
            let mut client = connection.maintenance.clone();
            let request = proto::StatusRequest { probe: self.probe };
            let status = connection.answer(client.status(request)).await?;
            match self.format {
                ReportFormat::Json => say(format_args!("{:#}", object(&status))),
                ReportFormat::Text => text(&status).iter().for_each(say),
            }
            let is_serving = matches!(status.condition(), Condition::Serving | Condition::Waiting);
            Ok(if is_serving && status.alarms.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
        })
    }
}

impl Compact {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        run(&self.connection, self.format, async |connection| {
            let mut client = connection.maintenance.clone();
            let revision = self.to.clone().unwrap_or_default();
            let request = proto::CompactRequest { revision, shrink: false };
            let done = connection.answer(client.compact(request)).await?;
            let proto::CompactResponse { floor, forgotten_revisions, .. } = done;
            match self.format {
                ReportFormat::Json => say(json!({
                    "floor": floor, "forgotten_revisions": forgotten_revisions,
                })),
                ReportFormat::Text => say(format_args!(
                    "{} forgotten; revisions up to {floor} are forgotten",
                    counted(forgotten_revisions as usize, "revision")
                )),
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn text(status: &proto::StatusResponse) -> Vec<String> {
    let condition = condition(status.condition());
    let mut lines = vec![match &*status.reason {
        "" => condition.to_owned(),
        reason => format!("{condition}: {reason}"),
    }];
    let is_none = status.floor.is_empty() || status.floor.ends_with("-0");
    let floor = if is_none { "nothing".to_owned() } else { format!("up to {}", status.floor) };
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("{name:<12} {value}"));
        }
    };
    fact("revision", status.revision.clone());
    fact("forgotten", floor);
    fact("records", status.records.to_string());
    fact("tombstones", status.tombstones.to_string());
    // An engine that is no file has no size.
    let size = (status.size_bytes > 0).then(|| format!("{} bytes", status.size_bytes));
    fact("size", size.unwrap_or_default());
    fact("engine", format!("{}, format {}", status.engine, status.format));
    fact("node", status.node.clone());
    fact("cluster", status.cluster.clone());
    let role = if status.is_replica { " (replica)" } else { "" };
    fact("region", format!("{}{role}", status.region));
    fact("build", status.build.clone());
    let up = status.peers.iter().filter(|peer| peer.is_up).count();
    let peers = (!status.peers.is_empty()).then(|| format!("{up} of {} up", status.peers.len()));
    fact("peers", peers.unwrap_or_default());
    fact("last backup", status.last_backup_at.map_or_else(|| "none".to_owned(), |at| at.to_string()));
    fact("probe", status.probe_time.map(duration).unwrap_or_default());
    for (limit, value) in &status.limits {
        fact("limit", format!("{limit} {value}"));
    }
    lines.extend(status.alarms.iter().map(|alarm| format!("ALARM: {alarm}")));
    lines
}

fn object(status: &proto::StatusResponse) -> serde_json::Value {
    json!({
        "condition": condition(status.condition()), "reason": status.reason, "revision": status.revision,
        "floor": status.floor, "records": status.records, "tombstones": status.tombstones,
        "size_bytes": status.size_bytes, "engine": status.engine, "format": status.format,
        "node": status.node, "cluster": status.cluster, "region": status.region,
        "is_replica": status.is_replica, "build": status.build,
        "last_backup_at": status.last_backup_at.map(|at| at.to_string()),
        "probe_time": status.probe_time.map(duration), "limits": status.limits, "alarms": status.alarms,
        "clock": status.clock, "peers": status.peers.iter().map(peers::object).collect::<Vec<_>>(),
    })
}

fn condition(condition: Condition) -> &'static str {
    match condition {
        Condition::Unspecified => "unknown",
        Condition::Loading => "loading",
        Condition::Waiting => "waiting for the first commit",
        Condition::Serving => "serving",
        Condition::Resyncing => "resyncing",
        Condition::ReadOnly => "read-only",
        Condition::Stopping => "stopping",
    }
}

const COMPACT: &str = "\
Examples:
  xds store compact --store data
  xds store compact --store data --to s7f3a-48

JSON: one object with floor (the last forgotten revision) and forgotten_revisions (their number).
Fields may be added.

Exit codes:
  0  done
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; no revision of this store
  4  the store keeps these revisions for now";

const STATUS: &str = "\
JSON: one object with condition, reason, revision, floor, records, tombstones, size_bytes, engine,
format, node, cluster, region, is_replica, build, last_backup_at, probe_time, limits {NAME: number}, alarms
(what an operator has to act on, a line each; empty if all is well), clock {NODE: number}, and peers
(as in `xds store peers --format json`).
Fields may be added.

Exit codes:
  0  the store accepts commits, and has no alarm
  1  it does not, or has an alarm; the server cannot be reached, or refuses
  2  invalid input: arguments";
