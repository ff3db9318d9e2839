//! `xds quarantine`: withholds the present content of records.

use std::process::ExitCode;

use clap::Args;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::names::{self, RecordSelection, Selected};
use super::report::Report;
use super::write::{WriteOptions, change, commit};
use super::{records, run};
use crate::cli::Failure;
use crate::cli::check::ReportFormat;

/// Withhold the present content of a resource, or of several, and serve the last good content
///
/// It ends with the next put. `xds apply` puts other content only, so a folder with the same content
/// does not end it. Without older content the resource is removed from clients; clients that subscribe
/// to it get the reason.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES,
    mut_arg("owner", |owner| owner.help("Act as this named owner, for the history").long_help(None)))]
pub(in crate::cli) struct Quarantine {
    #[command(flatten)]
    records: RecordSelection,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Why, for operators, and for clients that get nothing; at most 4 KiB
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Remove the resource from clients, also if there is older content
    #[arg(long)]
    serve_nothing: bool,
    #[command(flatten)]
    write: WriteOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Quarantine {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let type_url = self.records.type_url()?;
        run(&self.connection, self.format, async |connection| {
            let selected = self.records.find(&connection, &type_url).await?;
            // The reason is about what was read.
            let changes = match &selected {
                Selected::Named(key) => {
                    let record = records::get(&connection, key).await?;
                    let record = record.ok_or_else(|| names::missing(key, "does not exist"))?;
                    vec![self.withholding(key.clone(), &record)]
                }
                Selected::Matching(records) => records
                    .iter()
                    .filter_map(|record| Some(self.withholding(record.key.clone()?, record)))
                    .collect(),
            };
            let write = self.records.confirmed(&self.write);
            let mut report = Report::default();
            report.add(commit(&connection, write.request(changes)).await?, &[]);
            write.print(&report, &self.records.label(&selected), self.format);
            self.records.print_unconfirmed(self.format);
            Ok(ExitCode::SUCCESS)
        })
    }

    fn withholding(&self, key: proto::Key, record: &proto::Record) -> proto::Change {
        let act = proto::change::Act::Quarantine(proto::Quarantine {
            reason: self.reason.clone(),
            serve_nothing: self.serve_nothing,
        });
        change(key, Some(records::as_read(Some(record))), act)
    }
}

const EXAMPLES: &str = "\
Examples:
  xds quarantine RDS web --store data --reason 'sends /api to the wrong cluster'
  xds quarantine RDS --match 'shop-*' --store data --reason incident      shows which; add --yes to withhold them

What --match selects is withheld as a whole or not at all. JSON is that of `xds apply`.

Exit codes:
  0  withheld, also if it was before: the first reason stays; shown (--match without --yes)
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  it does not exist; no resource matches
  4  refused by the state: changed meanwhile";
