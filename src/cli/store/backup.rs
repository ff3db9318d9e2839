//! `xds store backup`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tokio::time::timeout;
use xds_proto::xds::store::v1 as proto;
use xds_store::backup::{Backup, BackupError, BackupHeader, History};
use xds_store::engine::{Engine, EngineError};
use xds_store::log::StoreRevision;

use super::StoreError;
use super::backup_file::{BackupFileError, NewBackup, Pace};
use super::connection::{Connection, ConnectionOptions};
use super::place::{Place, PlaceError, causes};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, counted, say};

/// Write a backup of a store into a file
///
/// The backup has the store at one revision, and is made while it serves. The command verifies the
/// written file. A file of this name is replaced by the whole backup, or not at all.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct BackupCommand {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Leave out the log and the former states of records
    #[arg(long)]
    without_history: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl BackupCommand {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let header = match self.connection.folder() {
            Some(folder) => match Place::read(folder) {
                // A server has it open, and answers on this machine.
                Err(PlaceError::Locked { .. }) => self.ask_server()?,
                opened => {
                    let (place, engine) = (Place::Folder(folder.into()), opened.map_err(Failure::Place)?);
                    self.read_engine(&place, &engine).map_err(Failure::Backup)?
                }
            },
            None => self.ask_server()?,
        };
        self.report(&header);
        Ok(ExitCode::SUCCESS)
    }

    fn read_engine(&self, place: &Place, engine: &dyn Engine) -> Result<BackupHeader, BackupFileError> {
        let failed = |error: BackupError| match error {
            BackupError::Damaged(_) | BackupError::Engine(EngineError::Corrupt { .. }) => {
                let cause = causes(&error);
                BackupFileError::Place(PlaceError::Damaged { place: place.clone(), cause })
            }
            error => BackupFileError::Store(error),
        };
        let view = engine.view().map_err(|error| failed(error.into()))?;
        let backup = Backup::new(view, self.history()).map_err(failed)?;
        let all = backup.header().entries;
        let (mut file, mut pace) = (NewBackup::create(&self.file)?, Pace::new());
        for part in backup {
            let part = part.map_err(failed)?;
            file.write(&part.data)?;
            pace.report("backup", part.entries_done, all);
        }
        file.finish()
    }

    fn ask_server(&self) -> Result<BackupHeader, Failure> {
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let done = runtime.block_on(async {
            let connection = self.connection.connect().await.map_err(Failure::Store)?;
            self.download(&connection).await
        });
        runtime.shutdown_background();
        done
    }

    async fn download(&self, connection: &Connection) -> Result<BackupHeader, Failure> {
        let mut client = connection.maintenance.clone();
        let request = proto::BackupRequest { without_history: self.history() == History::LeftOut };
        let mut parts = connection.answer(client.backup(request)).await.map_err(Failure::Store)?;
        let (mut file, mut pace) = (NewBackup::create(&self.file).map_err(Failure::Backup)?, Pace::new());
        loop {
            let part = timeout(connection.timeout, parts.message()).await.map_err(|_| {
                let (server, timeout) = (connection.name.clone(), connection.timeout);
                Failure::Store(StoreError::Silent { server, timeout, is_commit: false })
            })?;
            let Some(part) =
                part.map_err(|status| Failure::Store(StoreError::of(&status, &connection.name)))?
            else {
                break;
            };
            file.write(&part.data).map_err(Failure::Backup)?;
            pace.report("backup", part.records_done, part.records);
        }
        file.finish().map_err(Failure::Backup)
    }

    fn history(&self) -> History {
        if self.without_history { History::LeftOut } else { History::Whole }
    }

    fn report(&self, header: &BackupHeader) {
        let BackupHeader { head, records, has_history, .. } = header;
        let revision = StoreRevision::of(head, head.revision).to_string();
        match self.format {
            ReportFormat::Json => say(json!({
                "file": self.file, "revision": revision, "records": records, "history": has_history,
                "node": head.node, "cluster": head.cluster,
            })),
            ReportFormat::Text => say(format_args!(
                "{}: {} at revision {revision}{}",
                self.file.display(),
                counted(*records as usize, "record"),
                if *has_history { "" } else { ", without history" },
            )),
        }
    }
}

const AFTER: &str = "\
JSON: one object with file, revision, records, history, node, cluster.

Exit codes:
  0  the backup is written, and was verified
  1  the store is damaged; the file cannot be written; the server cannot be reached, or refuses
  2  invalid input: arguments; there is no store";
