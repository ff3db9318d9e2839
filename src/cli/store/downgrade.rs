//! `xds store downgrade`: ceilings of versions, before an older program serves the store.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;

use super::connection::{Connection, ConnectionOptions};
use super::error::{Refused, StoreError};
use super::run;
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say, type_name};

/// Prepare a store for an older version of its servers
///
/// A ceiling is the highest schema version of a type that the servers of the store write. It holds for
/// all servers of the store until it is lifted. With a ceiling, and with all plans in F0 or done, an older
/// program opens the store and understands all that is in it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Downgrade {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what prevents ceilings
    ///
    /// Records of newer versions, and plans that have begun, prevent a ceiling. Put such records in the
    /// older version, and take such plans back, first.
    Check(Enable),
    /// Set ceilings
    ///
    /// Records of newer versions, and plans that have begun, prevent a ceiling. Put such records in the
    /// older version, and take such plans back, first.
    Enable(Enable),
    Cancel(Cancel),
}

#[derive(Debug, Args)]
struct Enable {
    /// A type and its highest version, such as acme.v1.Route=1.1
    #[arg(value_name = "TYPE=VERSION", required = true)]
    ceilings: Vec<String>,
    #[command(flatten)]
    look: Look,
}

/// Lift ceilings
#[derive(Debug, Args)]
struct Cancel {
    /// The types [default: all types with a ceiling]
    #[arg(value_name = "TYPE")]
    types: Vec<String>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Args)]
struct Look {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// What became of a ceiling.
struct Done {
    ceiling: proto::Knows,
    gates: Vec<proto::ClosedGate>,
}

impl Downgrade {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.action {
            Action::Check(enable) => enable.run(true),
            Action::Enable(enable) => enable.run(false),
            Action::Cancel(cancel) => cancel.run(),
        }
    }
}

impl Enable {
    fn run(&self, dry_run: bool) -> Result<ExitCode, Failure> {
        let ceilings = self.ceilings.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
        let Look { connection, format } = &self.look;
        run(connection, *format, async |connection| {
            let mut done = Vec::with_capacity(ceilings.len());
            for ceiling in ceilings {
                let gates = set(&connection, ceiling.clone(), dry_run).await?;
                done.push(Done { ceiling, gates });
            }
            print(&done, *format, if dry_run { "nothing prevents the ceiling" } else { "has the ceiling" });
            let is_prevented = done.iter().any(|done| !done.gates.is_empty());
            Ok(if is_prevented { ExitCode::from(4) } else { ExitCode::SUCCESS })
        })
    }
}

impl Cancel {
    fn run(&self) -> Result<ExitCode, Failure> {
        let named = self.types.iter().map(|text| type_name::parse_any(text)).collect::<Result<Vec<_>, _>>();
        let named = named.map_err(Failure::Type)?;
        let Look { connection, format } = &self.look;
        run(connection, *format, async |connection| {
            let types = if named.is_empty() {
                let mut client = connection.migration.clone();
                let plans = connection.answer(client.plans(proto::PlansRequest {})).await?;
                plans.ceilings.into_iter().map(|ceiling| ceiling.type_url).collect()
            } else {
                named.iter().map(ToString::to_string).collect::<Vec<_>>()
            };
            let mut done = Vec::with_capacity(types.len());
            for type_url in types {
                let ceiling = proto::Knows { type_url, version: String::new() };
                let gates = set(&connection, ceiling.clone(), false).await?;
                done.push(Done { ceiling, gates });
            }
            print(&done, *format, "has no ceiling");
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn set(
    connection: &Connection,
    ceiling: proto::Knows,
    dry_run: bool,
) -> Result<Vec<proto::ClosedGate>, StoreError> {
    let of = Some(proto::set_ceiling_request::Of::Schema(ceiling));
    let mut client = connection.migration.clone();
    match connection.answer(client.set_ceiling(proto::SetCeilingRequest { of, dry_run })).await {
        Ok(proto::SetCeilingResponse {}) => Ok(Vec::new()),
        Err(StoreError::Refused(refused)) if !gates_of(&refused).is_empty() => Ok(gates_of(&refused)),
        Err(error) => Err(error),
    }
}

/// What prevents a ceiling.
fn gates_of(refused: &Refused) -> Vec<proto::ClosedGate> {
    let gates = refused.violations.iter().filter_map(|violation| match &violation.why {
        Some(Why::Gate(gate)) => Some(gate.clone()),
        _ => None,
    });
    gates.collect()
}

/// TYPE=VERSION.
fn parse(text: &str) -> Result<proto::Knows, Failure> {
    let wrong = || {
        let message = format!("{text:?} is no TYPE=VERSION, such as acme.v1.Route=1.1");
        Failure::Store(StoreError::Input(message))
    };
    let (type_name, version) = text.rsplit_once('=').ok_or_else(wrong)?;
    if version.parse::<xds_store::schema::SchemaVersion>().is_err() {
        return Err(wrong());
    }
    let type_url = type_name::parse_any(type_name).map_err(Failure::Type)?;
    Ok(proto::Knows { type_url: type_url.to_string(), version: version.to_owned() })
}

fn print(done: &[Done], format: ReportFormat, is_open: &str) {
    if format == ReportFormat::Json {
        let object = |done: &Done| {
            let gates = done.gates.iter().map(|gate| json!({ "gate": gate.gate, "count": gate.count }));
            let proto::Knows { type_url, version } = &done.ceiling;
            json!({ "type": type_url, "version": version, "gates": gates.collect::<Vec<_>>() })
        };
        let ceilings: Vec<_> = done.iter().map(object).collect();
        return say(format_args!("{:#}", json!({ "ceilings": ceilings })));
    }
    if done.is_empty() {
        say("no type has a ceiling");
    }
    for Done { ceiling: proto::Knows { type_url, version }, gates } in done {
        let shown = if version.is_empty() { String::new() } else { format!(" {version}") };
        if gates.is_empty() {
            say(format_args!("{type_url} {is_open}{shown}"));
        }
        for gate in gates {
            say(format_args!(
                "{type_url} cannot have the ceiling{shown}: {} need a newer version",
                gate.count
            ));
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  xds store downgrade check acme.v1.Route=1.1 --store data
  xds store downgrade enable acme.v1.Route=1.1 --store data
  xds store downgrade cancel --store data

JSON: {ceilings: [{type, version, gates [{gate, count}]}]}; gates is what prevents the ceiling.
A count ends at 1000 records. Fields may be added.

Exit codes:
  0  done; check: nothing prevents the ceilings
  1  the server cannot be reached, or refuses
  2  invalid input: arguments
  4  something prevents a ceiling; it is not set";
