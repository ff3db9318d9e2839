//! Plans that run to their end before the store is served (SV32).

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, Refused};
use xds_store::key::RecordKey;
use xds_store::phase::{Phase, PhaseStep, Plan};
use xds_store::store::PlanProgress;

use crate::handle::StoreHandle;
use crate::migration::peers;
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
    /// A peer serves, and is not as far.
    #[error(
        "the plan {plan} cannot leave F{}: the peer {peer} serves and {}: stop it, or move all nodes by single steps",
        .phase.number(),
        .of_peer.map_or_else(|| "does not know the new form".to_owned(), |of| format!("is in F{} only", of.number()))
    )]
    Peer {
        /// The name of the plan.
        plan: String,
        /// The phase in which it stays.
        phase: Phase,
        /// The id of the peer.
        peer: String,
        /// The phase of the peer; `None` if it does not know the new form.
        of_peer: Option<Phase>,
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
    /// Each peer that serves has to be as far as a step leads, because nodes that replicate are at most one phase apart
    /// (SV15); one that does not answer counts as stopped. So all nodes of a store may start together, or one after
    /// another. The first step waits for the answers of the peers, for 12 s at most.
    ///
    /// The future may be dropped; then the plans stay where they are.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run_plans(&self, mut report: impl FnMut(&PlanProgress)) -> Result<(), RunError> {
        if self.standing().borrow().revision() == 0 {
            return Ok(());
        }
        let is_done = |progress: &PlanProgress| progress.done_at.is_some();
        if !self.standing().borrow().plans.iter().all(is_done) {
            self.wait_for_peers().await;
        }
        // Passes begin again at once, so what they found before does not count.
        let before = self.pause_passes(Some(0)).await;
        let mut done = Ok(());
        for plan in self.schemas().plans() {
            let before = before.iter().find(|before| before.number == plan.number());
            let run = Run { store: self, plan, before };
            done = run.to_the_end(&mut report).await;
            if done.is_err() {
                break;
            }
        }
        self.pause_passes(None).await;
        done
    }

    /// Waits until each peer said how far its plans are, or did not answer.
    async fn wait_for_peers(&self) {
        let is_known = |peer: &proto::PeerStatus| match peer.is_up {
            true => !peer.phases.is_empty(),
            false => !peer.error.is_empty(),
        };
        let until = Instant::now() + PEERS_WAIT;
        while let Some(status) = self.peers()
            && (status.peers.is_empty() || !status.peers.iter().all(is_known))
            && Instant::now() < until
        {
            sleep(PEERS_LOOK).await;
        }
    }

    /// Returns how far the plans are then; nothing if the store has ended.
    async fn pause_passes(&self, pause: Option<i64>) -> Vec<PlanProgress> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::PassPause(pause, sender));
        receiver.await.unwrap_or_default()
    }
}

/// One plan on its way to the end.
struct Run<'a> {
    store: &'a StoreHandle,
    plan: &'a Plan,
    /// How far it was before all plans began to run.
    before: Option<&'a PlanProgress>,
}

impl Run<'_> {
    async fn to_the_end(&self, report: &mut dyn FnMut(&PlanProgress)) -> Result<(), RunError> {
        let Self { store, plan, .. } = *self;
        let name = || plan.name().to_owned();
        // A step that is refused once more after a clean pass waits for something else.
        let mut was_clean = false;
        loop {
            let Some(progress) = self.progress() else { return Ok(()) };
            report(&progress);
            let phase = progress.phase;
            if progress.done_at.is_some() {
                return Ok(());
            }
            if !store.schemas().knows(plan) {
                return Err(RunError::Hidden { plan: name() });
            }
            let Some(to) = Phase::of_number(phase.number() + 1) else {
                self.wait_for_pass(report, |progress| progress.done_at.is_some()).await?;
                continue;
            };
            if plan.is_heartbeat() && !phase.ignores_old() {
                let behind = progress.counts.behind;
                if behind > 0 {
                    return Err(RunError::Heartbeat { plan: name(), behind });
                }
            }
            let step = PhaseStep { plan: plan.number(), from: phase, to };
            if let Some((peer, of_peer)) = self.peer_behind(step) {
                return Err(RunError::Peer { plan: name(), phase, peer, of_peer });
            }
            match store.commit(Draft::set_phase_at_startup(step)).await {
                Ok(_) => was_clean = false,
                Err(refused) if !was_clean && waits_for_pass(plan, &refused) => {
                    self.wait_for_pass(report, |progress| progress.pass.is_clean).await?;
                    was_clean = true;
                }
                Err(refused) => return Err(RunError::Refused { plan: name(), phase, refused }),
            }
        }
    }

    /// A peer that serves and that a step would leave behind, with its phase. One that is ahead is no hindrance: the
    /// step leads towards it.
    fn peer_behind(&self, step: PhaseStep) -> Option<(String, Option<Phase>)> {
        let status = self.store.peers()?;
        let needs = self.plan.needs();
        let behind = |peer: &proto::PeerStatus| {
            let of_peer = peer.phases.get(&step.plan).filter(|_| peers::knows(peer, &needs));
            let of_peer = of_peer.and_then(|of| Phase::of_number(*of));
            let is_behind = of_peer.is_none_or(|of| of.number() < step.to.number());
            (peer.is_up && is_behind).then(|| (peer.node.clone(), of_peer))
        };
        status.peers.iter().find_map(behind)
    }

    /// Waits until passes have led to this.
    async fn wait_for_pass(
        &self,
        report: &mut dyn FnMut(&PlanProgress),
        is_done: impl Fn(&PlanProgress) -> bool,
    ) -> Result<(), RunError> {
        let Self { store, plan, before } = *self;
        let mut standing = store.standing();
        loop {
            standing.mark_unchanged();
            let Some(progress) = self.progress() else { return Ok(()) };
            report(&progress);
            let is_old = before.is_some_and(|before| {
                (before.phase, before.pass.ended) == (progress.phase, progress.pass.ended)
            });
            if !is_old && is_done(&progress) {
                return Ok(());
            }
            if !is_old && progress.pass.is_over && progress.pass.failed > 0 {
                let (plan, phase) = (plan.name().to_owned(), progress.phase);
                let (failed, failures) = (progress.pass.failed, progress.pass.failures);
                return Err(RunError::Failed { plan, phase, failed, failures });
            }
            if let Some(reason) = store.refuses_commits() {
                return Err(RunError::Unavailable { reason });
            }
            // An alarm does not change the standing. The end of the store refuses commits.
            _ = timeout(LOOK_EVERY, standing.changed()).await;
        }
    }

    fn progress(&self) -> Option<PlanProgress> {
        let standing = self.store.standing();
        let standing = standing.borrow();
        standing.plans.iter().find(|progress| progress.number == self.plan.number()).cloned()
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
/// How long peers may take to answer, which is longer than the deadline of a call.
const PEERS_WAIT: Duration = Duration::from_secs(12);
const PEERS_LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
