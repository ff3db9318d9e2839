//! `xds store restore`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_store::log::{Head, StoreRevision};
use xds_store::restore::{NewIds, RestoreError, Step, restore};

use super::backup_file::{BackupFileError, Pace};
use super::etcd::EtcdOptions;
use super::init::random_hex;
use super::place::{self, Place};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say};

/// Make a store from a backup
///
/// The whole backup is verified before anything is written. The new store has the resources of the
/// backup and another node id. Its revisions are not those of the old store: programs that go on from
/// one of those read everything again.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder of the new store, which must not exist, or be empty; or etcd://HOST:PORT/PREFIX,
    /// where no key may begin with /PREFIX/
    #[arg(value_name = "TARGET")]
    target: Place,
    /// Also take a new cluster id, so that remaining nodes of the old cluster cannot join
    #[arg(long)]
    new_cluster: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    // Its heading would be that of options behind it.
    #[command(flatten)]
    etcd: EtcdOptions,
}

impl Restore {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let cluster = self.new_cluster.then(random_hex).transpose()?;
        let ids = NewIds { node: random_hex()?, cluster };
        let head = self.restore(&ids).map_err(Failure::Backup)?;
        let revision = StoreRevision::of(&head, head.revision).to_string();
        match self.format {
            ReportFormat::Json => say(json!({
                "target": self.target.to_string(), "revision": revision, "node": head.node, "cluster": head.cluster,
            })),
            ReportFormat::Text => say(format_args!(
                "{}: the store of {} at revision {revision}, node {}",
                self.target,
                self.file.display(),
                head.node
            )),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn restore(&self, ids: &NewIds) -> Result<Head, BackupFileError> {
        let unreadable = |error| BackupFileError::Unreadable { file: self.file.clone(), error };
        let mut file = BufReader::new(File::open(&self.file).map_err(unreadable)?);
        place::create(&self.target, &self.etcd, |engine| {
            let mut pace = Pace::new();
            let restored = restore(&mut file, engine, ids, &mut |progress| {
                let step = match progress.step {
                    Step::Verify => "verifying the backup",
                    Step::Write => "writing the store",
                };
                pace.report(step, progress.entries_done, progress.entries);
            });
            restored.map_err(|error| match error {
                RestoreError::Backup(error) => BackupFileError::Unusable { file: self.file.clone(), error },
                error => BackupFileError::NotRestored(error),
            })
        })
    }
}

const AFTER: &str = "\
Example:
  xds store restore data.backup new-data

JSON: one object with target, revision, node, cluster.

Exit codes:
  0  the store is there
  1  the file cannot be read, or the target cannot be written
  2  the file is no whole backup; the target is not empty; arguments";
