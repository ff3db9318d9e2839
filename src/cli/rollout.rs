//! `xds rollout`: shows and steers the rollouts of a server on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::Value;
use xds::printable_lines;
use xds_core::RolloutCounts;

use super::Failure;
use super::rollout_state::{Order, RolloutState, RolloutStateError};

/// Show or steer the rollout of a server, by the folder of its --rollout-state
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xds rollout status /var/lib/xds/rollout\n  xds rollout abort /var/lib/xds/rollout"
)]
pub(super) struct RolloutCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the state of the rollout, as JSON
    #[command(after_help = STATUS_FIELDS)]
    Status(StateFolder),
    /// Give the change that is rolled out to all clients now; if none is, what was refused
    Promote(Promote),
    /// End the rollout: its clients are sent what they had
    ///
    /// The change is refused: it is not tried again until one of its resources changes, also after a
    /// restart. Later changes that need it wait.
    Abort(StateFolder),
}

#[derive(Debug, Args)]
struct Promote {
    #[command(flatten)]
    state: StateFolder,

    /// Give all that was refused to all clients now; a rollout that runs begins again
    ///
    /// Later changes that wait for it are rolled out next. Exception: if what was refused may name a resource
    /// that a later change adds, or removes one that only a later change stops using, all of them go to all
    /// clients at once, untested.
    #[arg(long)]
    refused: bool,
}

#[derive(Debug, Args)]
struct StateFolder {
    /// The folder of --rollout-state of the server
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl RolloutCommand {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.action {
            Action::Status(state) => state.print_status(),
            Action::Promote(Promote { state, refused: true }) => state.order(Order::PromoteRefused),
            Action::Promote(Promote { state, refused: false }) => state.order(Order::Promote),
            Action::Abort(state) => state.order(Order::Abort),
        }
        .map_err(Failure::Rollout)
    }
}

impl StateFolder {
    fn open(&self) -> Result<RolloutState, RolloutStateError> {
        if !self.folder.is_dir() {
            return Err(RolloutStateError::NoState { path: self.folder.clone() });
        }
        RolloutState::open(&self.folder)
    }

    fn print_status(&self) -> Result<ExitCode, RolloutStateError> {
        let state = self.open()?;
        print!("{}", printable_lines(&state.status()?));
        if state.is_used() {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("warning: no server uses {} now; this is the last state of one", self.folder.display());
        Ok(ExitCode::from(1))
    }

    /// Waits until the order is carried out.
    fn order(&self, order: Order) -> Result<ExitCode, RolloutStateError> {
        let state = self.open()?;
        let path = || self.folder.clone();
        // The server writes its status several times a second, so a rollout that has just begun may
        // not be in it yet.
        let until = Instant::now() + WRITTEN_WITHIN;
        let before = loop {
            let status = state.status()?;
            if !state.is_used() {
                return Err(RolloutStateError::NoServer { path: path() });
            }
            if is_possible(order, &status) {
                break status;
            }
            if Instant::now() >= until {
                return Err(match order {
                    Order::Promote => RolloutStateError::NothingToPromote { path: path() },
                    Order::PromoteRefused => RolloutStateError::NothingRefused { path: path() },
                    Order::Abort => RolloutStateError::NothingToAbort { path: path() },
                });
            }
            sleep(LOOK_EVERY);
        };
        state.store_order(order, ended(&before))?;
        let until = Instant::now() + DONE_WITHIN;
        while state.has_order() || !is_done(order, &before, &state.status()?) {
            if Instant::now() >= until {
                let is_taken = !state.has_order();
                state.remove_order();
                return Err(match is_taken {
                    true => RolloutStateError::TooLate { path: path() },
                    false => RolloutStateError::NoServer { path: path() },
                });
            }
            sleep(LOOK_EVERY);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn is_possible(order: Order, status: &str) -> bool {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let is_running = !status["running"].is_null();
    match order {
        Order::Promote => is_running || is_refused(&status),
        Order::PromoteRefused => is_refused(&status),
        Order::Abort => is_running,
    }
}

fn is_refused(status: &Value) -> bool {
    status["refused"].as_array().is_some_and(|refused| !refused.is_empty())
}

/// Whether one more rollout ended as the order says, or nothing is refused any more.
fn is_done(order: Order, before: &str, now: &str) -> bool {
    match order {
        Order::Promote => ended(now).promoted > ended(before).promoted,
        Order::PromoteRefused => serde_json::from_str(now).is_ok_and(|now| !is_refused(&now)),
        Order::Abort => ended(now).refused > ended(before).refused,
    }
}

fn ended(status: &str) -> RolloutCounts {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let count = |counter| status[counter].as_u64().unwrap_or_default();
    let mut ended = RolloutCounts::default();
    (ended.promoted, ended.refused, ended.replaced) =
        (count("promoted"), count("refused_total"), count("replaced"));
    ended
}

/// How old the status may be at most.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// A server takes orders, and writes its status, several times a second.
const DONE_WITHIN: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(20);

const STATUS_FIELDS: &str = "\
Fields, as in /api/rollout of the admin port:
  steps         of the rollout that runs; without one, of --rollout
  running       null, or {step, audience, ends_at_ms, clients, acked, variants,
                first_variants: [{type, name, when}]}
  refused       [{reason, at_ms, variants, first_variants}], the newest last
  waiting       how many changed variants wait because they need what is refused
  promoted, refused_total, replaced
                how many rollouts ended so since the server started
  not_stored    null, or why a file of the folder cannot be written

Exit status:
  0  a server uses the folder
  1  none does: this is the last state of one; or there is none";
