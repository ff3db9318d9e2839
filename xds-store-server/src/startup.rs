//! Plans that run to their end before the store is served (SV32).

use std::time::Duration;

use tokio::time::timeout;
use xds_store::commit::{Draft, Refused};
use xds_store::key::RecordKey;
use xds_store::phase::{Phase, PhaseStep, Plan};
use xds_store::store::PlanProgress;

use crate::handle::StoreHandle;
use crate::queue::Message;
use crate::status::gates_of;

/// Why plans did not run to their end. What they did stays, and the next startup goes on there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A ceiling of the server, or of the store.
    #[error("a ceiling hides the new form of the plan {plan}")]
    Hidden {
        /// The name of the plan.
        plan: String,
    },
    /// SV24: nobody renews records before the store is served, and F4 would hide them.
    #[error(
        "the plan {plan} is a heartbeat plan, and the writers of {behind} of its records have not converted them"
    )]
    Heartbeat {
        /// The name of the plan.
        plan: String,
        /// How many records have the old form only.
        behind: u64,
    },
    /// A step is refused: a gate is closed, or the store accepts no commits.
    #[error("the plan {plan} cannot leave F{}: {}", .phase.number(), .refused.message)]
    Refused {
        /// The name of the plan.
        plan: String,
        /// The phase in which it stays.
        phase: Phase,
        /// Why.
        refused: Refused,
    },
    /// A pass cannot convert records, or in F4 cannot replace names in them.
    #[error("the plan {plan} cannot leave F{}: its pass failed for {failed} records", .phase.number())]
    Failed {
        /// The name of the plan.
        plan: String,
        /// The phase in which it stays.
        phase: Phase,
        /// How many records.
        failed: u64,
        /// The first of them, and why.
        failures: Vec<(RecordKey, String)>,
    },
    /// The store accepts no commits.
    #[error("the store accepts no commits: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
}

impl StoreHandle {
    /// Runs all plans to their end, one after another (SV32). Meanwhile nobody should be served, because the
    /// passes are not paced. `report` gets the progress of the plan that runs, each time that it changes.
    ///
    /// A store without any commit has nothing to migrate. Its plans stay as they are, because a step would
    /// be its first commit, and clients would be sent that nothing exists (ST5).
    ///
    /// The future may be dropped; then the plans stay where they are.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run_plans(&self, mut report: impl FnMut(&PlanProgress)) -> Result<(), RunError> {
        if self.standing().borrow().revision() == 0 {
            return Ok(());
        }
        self.pause_passes(Some(0));
        let mut done = Ok(());
        for plan in self.schemas().plans() {
            done = self.run_plan(plan, &mut report).await;
            if done.is_err() {
                break;
            }
        }
        self.pause_passes(None);
        done
    }

    async fn run_plan(&self, plan: &Plan, report: &mut dyn FnMut(&PlanProgress)) -> Result<(), RunError> {
        let name = || plan.name().to_owned();
        // A step that is refused once more after a clean pass waits for something else.
        let mut was_clean = false;
        loop {
            let Some(progress) = self.progress(plan) else { return Ok(()) };
            report(&progress);
            let phase = progress.phase;
            if progress.done_at.is_some() {
                return Ok(());
            }
            if !self.schemas().knows(plan) {
                return Err(RunError::Hidden { plan: name() });
            }
            let Some(to) = Phase::of_number(phase.number() + 1) else {
                self.wait_for_pass(plan, report, |progress| progress.done_at.is_some()).await?;
                continue;
            };
            if plan.is_heartbeat() && !phase.ignores_old() {
                let behind = progress.counts.behind;
                if behind > 0 {
                    return Err(RunError::Heartbeat { plan: name(), behind });
                }
            }
            let step = PhaseStep { plan: plan.number(), from: phase, to };
            match self.commit(Draft::set_phase_at_startup(step)).await {
                Ok(_) => was_clean = false,
                Err(refused) if !was_clean && waits_for_pass(plan, &refused) => {
                    self.wait_for_pass(plan, report, |progress| progress.pass.is_clean).await?;
                    was_clean = true;
                }
                Err(refused) => return Err(RunError::Refused { plan: name(), phase, refused }),
            }
        }
    }

    /// Waits until passes have led to this.
    async fn wait_for_pass(
        &self,
        plan: &Plan,
        report: &mut dyn FnMut(&PlanProgress),
        is_done: impl Fn(&PlanProgress) -> bool,
    ) -> Result<(), RunError> {
        let mut standing = self.standing();
        loop {
            standing.mark_unchanged();
            let Some(progress) = self.progress(plan) else { return Ok(()) };
            report(&progress);
            if is_done(&progress) {
                return Ok(());
            }
            if progress.pass.is_over && progress.pass.failed > 0 {
                let (plan, phase) = (plan.name().to_owned(), progress.phase);
                let (failed, failures) = (progress.pass.failed, progress.pass.failures);
                return Err(RunError::Failed { plan, phase, failed, failures });
            }
            if let Some(reason) = self.refuses_commits() {
                return Err(RunError::Unavailable { reason });
            }
            // An alarm does not change the standing. The end of the store refuses commits.
            _ = timeout(LOOK_EVERY, standing.changed()).await;
        }
    }

    fn progress(&self, plan: &Plan) -> Option<PlanProgress> {
        let standing = self.standing();
        let standing = standing.borrow();
        standing.plans.iter().find(|progress| progress.number == plan.number()).cloned()
    }

    fn pause_passes(&self, pause: Option<i64>) {
        self.send(Message::PassPause(pause));
    }
}

/// Whether a clean pass may open the gate.
fn waits_for_pass(plan: &Plan, refused: &Refused) -> bool {
    gates_of(refused).any(|gate| match &*gate.gate {
        "pass_not_clean" => true,
        // SV30: passes in F4 replace the names.
        "still_named" => plan.rewrites_references(),
        _ => false,
    })
}

/// How often to look whether the store still accepts commits.
const LOOK_EVERY: Duration = Duration::from_secs(1);
