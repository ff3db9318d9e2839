//! `xds delete`: deletes records.

use std::process::ExitCode;

use clap::Args;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::names::{self, RecordSelection, Selected};
use super::report::Report;
use super::run;
use super::write::{WriteOptions, change, commit};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say};

/// Delete a resource from a store, or several
///
/// A resource with owners is deleted by its last owner (--owner), or with --take-over. A resource that
/// others use is not deleted: change or delete those first, or use --drain.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Delete {
    #[command(flatten)]
    records: RecordSelection,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Delete the resource only if it has this revision, as `xds list` shows it
    #[arg(long, value_name = "REV", conflicts_with = "patterns")]
    if_revision: Option<String>,
    #[command(flatten)]
    write: WriteOptions,
    /// If other resources use it, delete it when the last of them no longer does. Until then it is served,
    /// and accepts neither changes nor new uses. There is no way back
    #[arg(long)]
    drain: bool,
    /// Delete the resource although it has other owners
    #[arg(long)]
    take_over: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Delete {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let type_url = self.records.type_url()?;
        run(&self.connection, self.format, async |connection| {
            let selected = self.records.find(&connection, &type_url).await?;
            let changes = match &selected {
                Selected::Named(key) => vec![self.deletion(key.clone(), self.if_revision.clone())],
                // Only what was read is deleted.
                Selected::Matching(records) => records
                    .iter()
                    .filter_map(|record| {
                        Some(self.deletion(record.key.clone()?, Some(record.revision.clone())))
                    })
                    .collect(),
            };
            let write = self.records.confirmed(&self.write);
            let request = proto::CommitRequest { take_over: self.take_over, ..write.request(changes) };
            let mut report = Report::default();
            report.add(commit(&connection, request).await?, &[]);
            if let Selected::Named(key) = &selected
                && report.is_absent()
            {
                return Err(names::missing(key, "does not exist"));
            }
            write.print(&report, &self.records.label(&selected), self.format);
            if self.format == ReportFormat::Text {
                report.waits_for().for_each(|line| say(format_args!("  {line}")));
            }
            self.records.print_unconfirmed(self.format);
            Ok(ExitCode::SUCCESS)
        })
    }

    fn deletion(&self, key: proto::Key, revision: Option<String>) -> proto::Change {
        let is = revision.map(proto::condition::Is::Revision);
        let condition = is.map(|is| proto::Condition { is: Some(is) });
        change(key, condition, proto::change::Act::Delete(proto::Delete { drain: self.drain }))
    }
}

const EXAMPLES: &str = "\
Examples:
  xds delete CDS web --store data
  xds delete RDS web --when env=prod --store data
  xds delete CDS web --store data --owner shop      only if shop is its last owner
  xds delete CDS --match 'shop-*' --store data      shows which it would delete; add --yes to delete them

What --match selects is deleted as a whole or not at all. JSON is that of `xds apply`.

Exit codes:
  0  deleted, or --owner is released, or the deletion waits (--drain); shown (--match without --yes)
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  it does not exist; no resource matches
  4  refused by the state: another revision, other owners, or in use";
