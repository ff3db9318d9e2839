//! The commands of the durable store: most are clients of its API.

use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::sleep;

use super::Failure;
use super::check::ReportFormat;
use super::progress::Spinner;
pub(super) use backup_file::BackupFileError;
pub(in crate::cli) use connection::bearer;
use connection::{Connection, ConnectionOptions};
pub(super) use error::StoreError;
pub(super) use init::JoinError;

pub(super) mod apply;
mod backup;
pub(super) mod backup_file;
mod check;
mod conflicts;
mod connection;
pub(super) mod delete;
pub(super) mod diff;
mod document;
mod downgrade;
mod error;
pub(super) mod etcd;
mod forget;
pub(super) mod history;
pub(super) mod init;
pub(super) mod list;
mod maintenance;
mod migrate;
mod mirror;
mod names;
mod owner_record;
mod peers;
pub(super) mod place;
mod promote;
pub(super) mod put;
pub(super) mod quarantine;
pub(super) mod records;
pub(super) mod refs;
mod reid;
mod report;
mod restore;
pub(super) mod rollback;
mod upgrade;
mod write;

/// Create and look after a durable store
#[derive(Debug, Args)]
pub(super) struct StoreCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Init(init::Init),
    Status(maintenance::StatusCommand),
    Compact(maintenance::Compact),
    Peers(Box<peers::Peers>),
    Forget(forget::Forget),
    Promote(Box<promote::Promote>),
    Demote(promote::Demote),
    Conflicts(conflicts::Conflicts),
    Mirror(Box<mirror::Mirror>),
    Migrate(migrate::Migrate),
    Downgrade(downgrade::Downgrade),
    Backup(backup::BackupCommand),
    Restore(restore::Restore),
    Check(check::CheckCommand),
    Upgrade(upgrade::Upgrade),
    Reid(reid::Reid),
}

impl StoreCommand {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.action {
            Action::Init(init) => init.run(),
            Action::Status(status) => status.run(),
            Action::Compact(compact) => compact.run(),
            Action::Peers(peers) => peers.run(),
            Action::Forget(forget) => forget.run(),
            Action::Promote(promote) => promote.run(),
            Action::Demote(demote) => demote.run(),
            Action::Conflicts(conflicts) => conflicts.run(),
            Action::Mirror(mirror) => mirror.run(),
            Action::Migrate(migrate) => migrate.run(),
            Action::Downgrade(downgrade) => downgrade.run(),
            Action::Backup(backup) => backup.run(),
            Action::Restore(restore) => restore.run(),
            Action::Check(check) => check.run(),
            Action::Upgrade(upgrade) => upgrade.run(),
            Action::Reid(reid) => reid.run(),
        }
    }
}

/// Connects and runs a command.
fn run(
    options: &ConnectionOptions,
    format: ReportFormat,
    command: impl AsyncFnOnce(Connection) -> Result<ExitCode, StoreError>,
) -> Result<ExitCode, Failure> {
    let done = wait_for(Box::pin(async { command(options.connect().await?).await }));
    done.map_err(Failure::System)?.map_err(|error| {
        write::print_error(format, &error);
        Failure::Store(error)
    })
}

/// Runs a future on a new runtime. The future is boxed, so that this code is compiled once, and not for each command.
fn wait_for<T>(work: Pin<Box<dyn Future<Output = T> + '_>>) -> io::Result<T> {
    let runtime = tokio::runtime::Runtime::new()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

/// Shows the spinner if the work takes longer than a second.
async fn while_waiting<T>(spinner: &Spinner, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = sleep(LONG) => spinner.show(),
    }
    work.await
}

const LONG: Duration = Duration::from_secs(1);
