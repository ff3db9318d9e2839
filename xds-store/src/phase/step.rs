//! A step of a plan from one phase to the next (SV14).

use super::Phase;

/// A requested step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseStep {
    /// The number of the plan.
    pub plan: u32,
    /// The phase that the plan must be in.
    pub from: Phase,
    /// The phase before or behind it.
    pub to: Phase,
}

/// When a step is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepTime {
    /// While servers serve.
    Serving,
    /// Before the only server serves (SV32).
    Startup,
}

impl PhaseStep {
    pub(crate) fn is_forward(self) -> bool {
        self.from.number() < self.to.number()
    }

    /// Whether the phases are neighbours.
    pub(crate) fn is_one(self) -> bool {
        self.from.number().abs_diff(self.to.number()) == 1
    }
}
