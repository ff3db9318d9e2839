//! How far the plans of a store are.

use std::sync::Arc;

use xds_proto::xds::store::v1 as proto;

use super::{FormCounts, PassProgress, Store};
use crate::commit::Draft;
use crate::phase::{Phase, PhaseGap, Plan, Schemas};

/// How far a plan is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanProgress {
    /// The number of the plan.
    pub number: u32,
    /// Its phase.
    pub phase: Phase,
    /// When it left F0, in nanoseconds since 1970; `None` in F0.
    pub started_at: Option<i64>,
    /// When its last old record was removed in F5, in nanoseconds since 1970.
    pub done_at: Option<i64>,
    /// How many records it has in each form.
    pub counts: FormCounts,
    /// The pass that runs, or the last one of this phase.
    pub pass: PassProgress,
}

impl Store {
    /// The schema versions that this server knows and may write: those of the program, below the ceilings of
    /// the store.
    #[must_use]
    pub fn schemas(&self) -> &Arc<Schemas> {
        self.index.schemas()
    }

    /// A commit that says whether this server is alive (SV15): for a store with several servers, every 10 s,
    /// once the store has a commit. `None` before that, because the first commit ends the wait of clients
    /// (ST5).
    #[must_use]
    pub fn liveness(&self, is_alive: bool) -> Option<Draft> {
        let has_commits = self.head.revision > 0;
        has_commits.then(|| Draft::live_server(self.config.server, &self.config.schemas, is_alive)).flatten()
    }

    /// The versions of the new forms of plans that this server knows: no ceiling hides them (SV35). Peers compare them
    /// with what they need (SG38).
    #[must_use]
    pub fn known_versions(&self) -> Vec<proto::Knows> {
        let schemas = self.index.schemas();
        schemas.plans().iter().filter(|plan| schemas.knows(plan)).map(Plan::needs).collect()
    }

    /// The plans that are more than one phase further here than at a peer, or less far (SV42).
    #[must_use]
    pub fn phase_gaps(&self) -> Vec<PhaseGap> {
        let (phases, plans) = (self.index.phases(), self.index.schemas().plans());
        plans.iter().filter_map(|plan| self.peer_phases.gap(plan, phases.phase(plan))).collect()
    }

    /// How far each plan of the program is, in the order of their numbers.
    #[must_use]
    pub fn plans(&self) -> Vec<PlanProgress> {
        let phases = self.index.phases();
        let plans = self.index.schemas().plans().iter().map(|plan| {
            let (number, phase) = (plan.number(), phases.phase(plan));
            let recorded = phases.get(number);
            let time = |time: Option<i64>| time.filter(|time| *time > 0);
            let of_phase = self.passes.get(&number).filter(|pass| pass.is_of(phase));
            let is_clean = recorded.is_some_and(|recorded| recorded.is_clean);
            let none = || PassProgress { plan: number, is_clean, ..PassProgress::default() };
            PlanProgress {
                number,
                phase,
                started_at: time(recorded.map(|recorded| recorded.started_at)).filter(|_| phase != Phase::F0),
                counts: self.index.form_counts(number),
                done_at: time(recorded.map(|recorded| recorded.done_at)),
                pass: of_phase.map_or_else(none, |pass| pass.progress().clone()),
            }
        });
        plans.collect()
    }
}
