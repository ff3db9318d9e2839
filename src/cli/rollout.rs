//! `xds rollout`: shows and steers the rollouts of a server on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::Value;

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
    Status(StateFolder),
    /// Give the current or the refused change to all clients now
    Promote(StateFolder),
    /// End the rollout: its clients are sent what they had, and the change is not tried again until
    /// one of its resources changes
    Abort(StateFolder),
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
            Action::Status(state) => {
                print!("{}", state.open()?.status().map_err(Failure::Rollout)?);
                Ok(ExitCode::SUCCESS)
            }
            Action::Promote(state) => state.order(Order::Promote),
            Action::Abort(state) => state.order(Order::Abort),
        }
    }
}

impl StateFolder {
    fn open(&self) -> Result<RolloutState, Failure> {
        if !self.folder.is_dir() {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            let path = self.folder.clone();
            return Err(Failure::Rollout(RolloutStateError::File { path, error }));
        }
        RolloutState::open(&self.folder).map_err(Failure::Rollout)
    }

    /// Waits until the server has taken the order.
    fn order(&self, order: Order) -> Result<ExitCode, Failure> {
        let state = self.open()?;
        // The server writes its status several times a second, so a rollout that has just begun may
        // not be in it yet.
        let until = Instant::now() + WRITTEN_WITHIN;
        while !is_possible(order, &state.status().map_err(Failure::Rollout)?) {
            if Instant::now() >= until {
                let (path, word) = (self.folder.clone(), order.word());
                return Err(Failure::Rollout(RolloutStateError::Nothing { path, word }));
            }
            sleep(Duration::from_millis(20));
        }
        state.store_order(order).map_err(Failure::Rollout)?;
        let until = Instant::now() + TAKEN_WITHIN;
        while state.has_order() {
            if Instant::now() >= until {
                _ = state.take_order();
                return Err(Failure::Rollout(RolloutStateError::NoServer { path: self.folder.clone() }));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn is_possible(order: Order, status: &str) -> bool {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    !status["running"].is_null() || (order == Order::Promote && !status["refused"].is_null())
}

/// How old the status may be at most.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// A server takes orders several times a second.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
