//! `xds store check`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_store::check::{Checked, Finding, check_backup, check_store};
use xds_store::engine::Engine as _;

use super::backup_file::BackupFileError;
use super::place::Place;
use crate::cli::check::ReportFormat;
use crate::cli::progress::while_working;
use crate::cli::{Failure, counted, say};

/// Look for damage in a store or a backup
///
/// Verifies checksums, the log, the states of records that it names, digests, and that no two
/// variants match the same parameters. Changes nothing. If a server has the store open, check a
/// backup of it.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct CheckCommand {
    /// The folder of a store, or a backup
    #[arg(value_name = "DIR|FILE")]
    place: PathBuf,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl CheckCommand {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let mut shown = Vec::new();
        let mut found = |finding: Finding| match self.format {
            ReportFormat::Text => say(&finding),
            ReportFormat::Json if shown.len() < JSON_FINDINGS_LIMIT => shown.push(finding.to_string()),
            ReportFormat::Json => {}
        };
        let checked = while_working("checking", || self.check(&mut found))?;
        let Checked { revision, floor, records, versions, log_entries, findings } = checked;
        match self.format {
            ReportFormat::Json => say(json!({
                "revision": revision, "floor": floor, "records": records, "versions": versions,
                "log_entries": log_entries, "findings": findings, "messages": shown,
            })),
            ReportFormat::Text => say(format_args!(
                "{}: {}, {} of them, {} of the log: {}",
                self.place.display(),
                counted(records as usize, "record"),
                counted(versions as usize, "state"),
                counted(log_entries as usize, "commit"),
                if findings == 0 { "no damage".to_owned() } else { counted(findings as usize, "finding") },
            )),
        }
        Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
    }

    fn check(&self, found: &mut (dyn FnMut(Finding) + Send)) -> Result<Checked, Failure> {
        if !self.place.is_file() {
            let place = Place::Folder(self.place.clone());
            let engine = Place::read(&self.place).map_err(Failure::Place)?;
            let view = engine.view().map_err(|error| Failure::Place(place.not_loaded(error.into())))?;
            let checked = check_store(&*view, found);
            return checked.map_err(|error| Failure::Place(place.not_loaded(error)));
        }
        let file = || self.place.clone();
        let backup = File::open(&self.place);
        let backup =
            backup.map_err(|error| Failure::Backup(BackupFileError::Unreadable { file: file(), error }))?;
        let checked = check_backup(BufReader::new(backup), found);
        checked.map_err(|error| Failure::Backup(BackupFileError::Unusable { file: file(), error }))
    }
}

/// The exit code if something was found.
const DAMAGED: u8 = 5;

/// JSON has the texts of so many findings.
const JSON_FINDINGS_LIMIT: usize = 10_000;

const AFTER: &str = "\
JSON: one object with revision, floor, records, versions, log_entries, findings (their number) and
messages (the first 10,000).

Exit codes:
  0  there is no damage
  1  the store is in use, or cannot be read
  2  there is no store; the file is no whole backup; arguments
  5  something was found";
