//! `--rollout`: a change of the folder or the store reaches the clients step by step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use xds::admin::{Trouble, Troubles};
use xds_core::{Cache, OnChange, RolloutCounts, RolloutPlan, RolloutSteps};
use xds_server::Rollouts;

use super::{OptionError, limits};
use crate::cli::Failure;
use crate::cli::rollout_state::{Order, RolloutLock, RolloutState, StateSource};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new(ROLLED_OUT).multiple(true).args(["rollout", "store"]))]
pub(super) struct RolloutOptions {
    /// Give each change to a few clients first, in these steps, separated by commas
    ///
    /// A step is a number of clients for each changed resource (2 clients), a share of all node ids
    /// (10%), or a condition on the parameters of the node, in the syntax of when: (env=canary). After
    /// the last step all clients get the change. If a client rejects it, or fewer than half of the
    /// clients ACK it within the time of a step, these clients are sent what they had, and the change
    /// is not tried again until one of its resources changes. `xds rollout` shows and steers it.
    #[arg(
        id = "rollout",
        long = "rollout",
        value_name = "STEPS",
        requires = "rollout_state",
        help_heading = "Rollouts"
    )]
    steps: Option<RolloutSteps>,
    /// How long each step takes
    #[arg(
        id = "rollout_wait", long = "rollout-wait", value_name = "TIME", default_value = "30s",
        value_parser = limits::time, help_heading = "Rollouts"
    )]
    wait: Duration,
    /// What happens when something changes during a rollout
    #[arg(
        id = "rollout_on_change", long = "rollout-on-change", value_enum, value_name = "WHAT",
        default_value_t = OnChangeOption::Wait, help_heading = "Rollouts"
    )]
    on_change: OnChangeOption,
    /// A folder for the state that all clients have, the status, and orders of `xds rollout`
    ///
    /// A server that restarts during a rollout serves that state, and begins the rollout again. What was
    /// refused stays refused. With --store and without --rollout, only commits that ask for it (`xds apply
    /// --rollout`) are rolled out; others reach all clients at once, but wait while a change is rolled out
    /// or refused. The files contain what clients are sent, secrets too; only the user of the server can
    /// read them. The folder is not in the one that is served. It is for one source: with the state of
    /// another folder or store the server does not start.
    #[arg(
        id = "rollout_state",
        long = "rollout-state",
        value_name = "DIR",
        requires = ROLLED_OUT,
        help_heading = "Rollouts"
    )]
    state: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnChangeOption {
    /// The rollout goes on; the newest state comes after it
    Wait,
    /// The rollout ends, and one of the newest state begins
    Replace,
}

/// A server with rollouts.
#[derive(Debug, Clone)]
pub(super) struct ServedRollouts {
    pub(super) rollouts: Arc<Rollouts>,
    state: RolloutState,
    _lock: Arc<RolloutLock>,
}

/// The folder of the state, taken for this server.
#[derive(Debug)]
pub(super) struct TakenState {
    state: RolloutState,
    lock: RolloutLock,
    /// What the source wants.
    pub(super) source: Arc<Cache>,
}

impl RolloutOptions {
    /// The steps as they were read: a comma that was meant as "and" shows.
    pub(super) fn summary(&self) -> Vec<String> {
        let Some(RolloutSteps(steps)) = &self.steps else { return Vec::new() };
        let steps: Vec<_> = steps.iter().map(ToString::to_string).collect();
        vec![format!("rollouts: {}; each step takes {:?}", steps.join(", then "), self.wait)]
    }

    /// Takes the folder of the state; `None` without rollouts.
    ///
    /// # Errors
    /// Another server uses the folder, or it is in the folder that is served.
    pub(super) fn take(&self, of_source: Option<&Path>) -> Result<Option<TakenState>, Failure> {
        let Some(folder) = &self.state else { return Ok(None) };
        if of_source.is_some_and(|of_source| is_in(folder, of_source)) {
            return Err(Failure::Option(OptionError::StateInFolder));
        }
        let state = RolloutState::open(folder).map_err(Failure::Rollout)?;
        let lock = state.lock().map_err(Failure::Rollout)?;
        Ok(Some(TakenState { state, lock, source: Cache::new() }))
    }

    /// Commits the stored stable state of this source, and carries what the source wants to the clients.
    ///
    /// # Errors
    /// The state cannot be read, or it is of another source.
    pub(super) fn start(
        &self,
        TakenState { state, lock, source }: TakenState,
        served: &Arc<Cache>,
        of_source: &StateSource,
    ) -> Result<ServedRollouts, Failure> {
        state.take_source(of_source).map_err(Failure::Rollout)?;
        if let Some(stable) = state.stable().map_err(Failure::Rollout)? {
            served.commit(stable).map_err(|error| Failure::System(std::io::Error::other(error)))?;
        }
        let steps = self.steps.as_ref().map_or(&[][..], |RolloutSteps(steps)| steps);
        let plan = RolloutPlan::new(steps.to_vec(), self.wait);
        let on_change = match self.on_change {
            OnChangeOption::Wait => OnChange::Wait,
            OnChangeOption::Replace => OnChange::Replace,
        };
        let (kept, kept_too) = (state.clone(), state.clone());
        let refused = state.refused().map_err(Failure::Rollout)?;
        let rollouts = Rollouts::new(source, Arc::clone(served), plan, on_change)
            .after(state.requested())
            .keeping(move |stable| kept.store_stable(stable).map_err(|error| error.to_string()))
            .keeping_refused(move |refused| {
                kept_too.store_refused(refused).map_err(|error| error.to_string())
            })
            .refused_before(refused);
        // Else that of the server before is shown until this one serves.
        _ = state.store_status(&rollouts.status());
        Ok(ServedRollouts { rollouts: Arc::new(rollouts), state, _lock: Arc::new(lock) })
    }
}

impl ServedRollouts {
    /// Rolls out what the source commits, and follows the orders of operators.
    pub(super) fn run(&self) -> [JoinHandle<()>; 2] {
        let (served, state, rollouts) = (self.clone(), self.state.clone(), Arc::clone(&self.rollouts));
        let orders = tokio::spawn(async move {
            let (mut written, mut is_failing, mut is_deaf) = (None, false, false);
            loop {
                match state.take_order() {
                    Ok(order) => {
                        is_deaf = false;
                        order.into_iter().for_each(|(order, ended)| steer(&rollouts, order, ended));
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut is_deaf, true) {
                            tracing::error!(%error, "an order of xds rollout cannot be read");
                        }
                    }
                }
                let status = rollouts.status();
                if written.as_ref() != Some(&status) {
                    let is_stored = state.store_status(&status).inspect_err(|error| {
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(%error, "the status of the rollout cannot be written");
                        }
                    });
                    if is_stored.is_ok() {
                        (written, is_failing) = (Some(status), false);
                    }
                }
                sleep(ORDERS_EVERY).await;
            }
        });
        [tokio::spawn(async move { served.rollouts.run().await }), orders]
    }

    /// Shows on the page that clients refused changes, and that the stable state is not
    /// stored.
    pub(super) fn add_troubles(&self, troubles: &Troubles) {
        let rollouts = Arc::clone(&self.rollouts);
        troubles.add(move || {
            let status = rollouts.status();
            let not_stored = status.not_stored.map(|error| Trouble {
                detail: error.to_string(),
                cure: "Make room in the folder of --rollout-state; the server stores the state within 5 s then, and \
                       this message goes. Until then, do not restart the server: clients would get an older state, or \
                       what they refused would be tried again."
                    .into(),
                ..Trouble::error("rollout_not_stored", "The state of rollouts is not stored")
            });
            let waiting = match status.waiting {
                0 => String::new(),
                count => format!(". {count} later changes need it, and wait"),
            };
            // The newest are last.
            let left_out = status.refused.len().saturating_sub(REFUSED_SHOWN);
            let more = match left_out {
                0 => String::new(),
                count => format!(". {count} more refused changes are in `xds rollout status`"),
            };
            let refused = status.refused.into_iter().skip(left_out).map(|refused| Trouble {
                detail: format!("{}{waiting}{more}", refused.reason),
                since: Some(refused.at),
                cure: "Correct the resource that clients reject; it is then tried again. To give the refused change to \
                       all clients as it is, run `xds rollout promote --refused`."
                    .into(),
                ..Trouble::error("rollout_refused", "A change is not rolled out; clients keep what they had before it")
            });
            refused.chain(not_stored).collect()
        });
    }
}

/// Carries out an order that was meant for the rollout that runs, or for what is refused, now.
fn steer(rollouts: &Rollouts, order: Order, ended: [u64; 3]) {
    let RolloutCounts { promoted, refused, replaced, .. } = rollouts.status().counts;
    let is_for_this = match order {
        // Rollouts of other changes may end meanwhile.
        Order::PromoteRefused => ended[1] == refused,
        Order::Promote | Order::Abort => ended == [promoted, refused, replaced],
    };
    let is_possible = is_for_this
        && match order {
            Order::Promote => rollouts.promote(),
            Order::PromoteRefused => rollouts.promote_refused(),
            Order::Abort => rollouts.abort(),
        };
    tracing::info!(?order, is_for_this, is_possible, "an operator steers the rollout");
}

/// Whether a path, which need not exist, is in a folder, or is that folder.
fn is_in(path: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let exists = path.ancestors().find_map(|above| match above.as_os_str().is_empty() {
        true => Path::new(".").canonicalize().ok(),
        false => above.canonicalize().ok(),
    });
    exists.is_some_and(|exists| exists.starts_with(folder))
}

/// The options that bring what is rolled out.
const ROLLED_OUT: &str = "rolled_out";
/// How often the orders of operators are looked at, and the status is written.
const ORDERS_EVERY: Duration = Duration::from_millis(250);
/// How many refused changes the page shows.
const REFUSED_SHOWN: usize = 10;
