//! `xds quarantine`: withholds the present content of a record.

use std::process::ExitCode;

use clap::Args;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::names::{self, RecordName};
use super::report::Report;
use super::write::{WriteOptions, change, commit};
use super::{records, run};
use crate::cli::Failure;
use crate::cli::check::ReportFormat;

/// Withhold the present content of a resource, and serve its last good content
///
/// It ends with the next put. `xds apply` puts other content only, so a folder with the same content
/// does not end it. Without older content the resource is removed from clients; clients that subscribe
/// to it get the reason.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES,
    mut_arg("owner", |owner| owner.help("Act as this named owner, for the history").long_help(None)))]
pub(in crate::cli) struct Quarantine {
    #[command(flatten)]
    record: RecordName,
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
        let type_url = self.record.type_url()?;
        run(&self.connection, self.format, async |connection| {
            let key = self.record.key(&connection, &type_url).await?;
            let label = records::label(&key);
            // The reason is about what was read.
            let record = records::get(&connection, &key).await?;
            let Some(record) = record else {
                return Err(names::missing(&key, "does not exist"));
            };
            let act = proto::change::Act::Quarantine(proto::Quarantine {
                reason: self.reason.clone(),
                serve_nothing: self.serve_nothing,
            });
            let condition = Some(records::as_read(Some(&record)));
            let request = self.write.request(vec![change(key, condition, act)]);
            let mut report = Report::default();
            report.add(commit(&connection, request).await?, &[]);
            self.write.print(&report, &label, self.format);
            Ok(ExitCode::SUCCESS)
        })
    }
}

const EXAMPLES: &str = "\
Example:
  xds quarantine RDS web --store data --reason 'sends /api to the wrong cluster'

JSON is that of `xds apply`.

Exit codes:
  0  withheld, also if it was before: the first reason stays
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  it does not exist
  4  refused by the state: changed meanwhile";
