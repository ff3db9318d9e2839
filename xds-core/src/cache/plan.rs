//! How a transaction is to be rolled out: who gets it when.

use std::time::Duration;

use super::audience::Audience;

/// The steps of a rollout. After the last step all clients get the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutPlan {
    steps: Vec<Audience>,
    wait: Duration,
}

impl RolloutPlan {
    /// A plan with these steps; without steps a rollout is a plain commit. Each step takes `wait`.
    #[must_use]
    pub fn new(steps: Vec<Audience>, wait: Duration) -> Self {
        Self { steps, wait }
    }

    /// The steps.
    #[must_use]
    pub fn steps(&self) -> &[Audience] {
        &self.steps
    }

    /// How long each step takes.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait
    }
}

/// The plan that a source asks for, for what it commits. A commit that asks for none repeats the last
/// request, so that a reader which does not see each commit knows it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedRollout {
    /// Grows with each request. Once its change is stable, a request has no effect any more.
    pub number: u64,
    /// The steps.
    pub plan: RolloutPlan,
}
