//! `--migrate startup`: plans run to their end before the server serves (SV32).

use std::fmt;
use std::pin::Pin;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tracing::info;
use xds_store::commit::RefusalCode;
use xds_store::phase::Phase;
use xds_store::store::PlanProgress;
use xds_store_server::{RunError, StoreHandle};

use crate::cli::Failure;
use crate::cli::running::shutdown;
use crate::cli::store::records::label;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct MigrateOptions {
    /// Run the plans of --schemas to their end, one after another, before the server listens
    ///
    /// For upgrades over several releases, and for plans without `down`. The server does not start if a
    /// plan cannot go on, such as while another server of the store is alive. Nothing is lost then, and
    /// the next start goes on. A store without a commit is served at once.
    #[arg(long, value_enum, value_name = "WHEN", requires = "schemas")]
    migrate: Option<MigrationTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MigrationTime {
    /// Before the server listens
    Startup,
}

/// Why plans did not run to their end.
#[derive(Debug)]
pub(in crate::cli) struct MigrationError(RunError);

/// Completes at the signal to stop.
pub(super) type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What comes after the migration.
pub(super) enum Migrated {
    /// The store is served. Signals that come meanwhile end this future.
    Done(Option<Stop>),
    /// There was a signal.
    Stopped,
}

impl MigrateOptions {
    /// Runs the plans, if that is requested.
    pub(super) async fn run(&self, store: &StoreHandle) -> Result<Migrated, Failure> {
        let Some(MigrationTime::Startup) = self.migrate else { return Ok(Migrated::Done(None)) };
        let mut stop: Stop = Box::pin(shutdown().map_err(Failure::System)?);
        if store.standing().borrow().revision() == 0 {
            info!("--migrate startup: no commit yet, so there is nothing to migrate");
            return Ok(Migrated::Done(Some(stop)));
        }
        let mut log = Log::new(store);
        let done = tokio::select! {
            done = store.run_plans(|progress| log.on_progress(progress)) => Some(done),
            () = &mut stop => None,
        };
        match done {
            Some(Ok(())) => {
                info!("--migrate startup: all plans are done");
                Ok(Migrated::Done(Some(stop)))
            }
            Some(Err(error)) => {
                store.stop().await;
                Err(Failure::Migration(MigrationError(error)))
            }
            None => {
                store.stop().await;
                info!("--migrate startup: stopped; the next start goes on");
                Ok(Migrated::Stopped)
            }
        }
    }
}

/// Logs each phase, and from time to time how far its pass is.
struct Log {
    /// The names of the plans, in the order of their numbers.
    names: Vec<String>,
    /// The plan, its phase, and whether it is done.
    last: Option<(u32, Phase, bool)>,
    at: Instant,
}

impl Log {
    fn new(store: &StoreHandle) -> Self {
        let names = store.schemas().plans().iter().map(|plan| plan.name().to_owned()).collect();
        Self { names, last: None, at: Instant::now() }
    }

    fn on_progress(&mut self, progress: &PlanProgress) {
        let (number, phase) = (progress.number, progress.phase);
        let name = self.names.get(number as usize - 1).map_or("", |name| name);
        let is_done = progress.done_at.is_some();
        let is_new = self.last.replace((number, phase, is_done)) != Some((number, phase, is_done));
        if is_done && is_new {
            info!("plan {number} {name} is done");
        } else if is_new {
            info!("plan {number} {name} is in {phase}");
        } else if self.at.elapsed() >= LOG_EVERY && !progress.pass.is_over {
            let looked_at = progress.pass.looked_at;
            info!("plan {number} {name} is in {phase}: its pass has seen {looked_at} records");
        } else {
            return;
        }
        self.at = Instant::now();
    }
}

impl MigrationError {
    /// See [`Failure::exit_code`].
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match &self.0 {
            RunError::Hidden { .. }
            | RunError::Heartbeat { .. }
            | RunError::Peer { .. }
            | RunError::Failed { .. } => STATE,
            RunError::Refused { refused, .. } => match refused.code {
                RefusalCode::FailedPrecondition | RefusalCode::Aborted => STATE,
                _ => 1,
            },
            _ => 1,
        }
    }
}

impl fmt::Display for MigrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--migrate startup: {}", self.0)?;
        if let RunError::Failed { failures, .. } = &self.0 {
            for (key, why) in failures {
                write!(f, "\n  {}: {why}", label(&key.to_proto()))?;
            }
        }
        let advice = match &self.0 {
            RunError::Heartbeat { .. } => "serve without --migrate, and use `xds store migrate`",
            _ => "the next start goes on; without --migrate the server serves in the present phases",
        };
        f.write_str("\n  nothing is lost: ")?;
        f.write_str(advice)
    }
}

/// The exit code if the state of the store refuses.
const STATE: u8 = 4;

/// The time between two log lines of one pass.
const LOG_EVERY: Duration = Duration::from_secs(5);
