//! Worlds whose servers roll out what their source commits. The other worlds are the same as without
//! this file.

use std::fmt;
use std::time::Duration;

use xds_core::{Audience, OnChange, RolloutOrder};

use super::{Action, Script, Step};
use crate::random::Random;

/// How a server rolls out what its source commits.
#[derive(Debug, Clone)]
pub(crate) struct RolloutProfile {
    pub(crate) steps: Vec<Audience>,
    pub(crate) wait: Duration,
    pub(crate) on_change: OnChange,
}

impl Script {
    /// In every fifth world there are rollouts, which operators steer now and then.
    pub(super) fn write_rollouts(&mut self, random: &mut Random) {
        if !random.chance(20) {
            return;
        }
        self.rollouts = Some(RolloutProfile::random(random));
        for step in std::mem::take(&mut self.steps) {
            self.steps.push(step);
            if random.chance(5) {
                self.steps.push(Step { action: Action::Pass { time: A_STEP }, serves: true });
            }
            if random.chance(3) {
                let order =
                    random.pick(&[RolloutOrder::Promote, RolloutOrder::PromoteRefused, RolloutOrder::Abort]);
                let action = Action::Order { replica: random.below(self.replicas), order };
                self.steps.push(Step { action, serves: random.chance(75) });
            }
        }
    }
}

/// Longer than responses wait for those of other types (S33), at a client that is slow by some seconds:
/// a shorter step would end with too few ACKs of healthy clients.
const A_STEP: Duration = Duration::from_secs(24);

impl RolloutProfile {
    fn random(random: &mut Random) -> Self {
        let when = |text: &str| Audience::When(text.parse().unwrap());
        let first = [Audience::Clients(1), Audience::Clients(2), when("env=a"), when("!ver")];
        let mut steps = vec![random.pick(&first)];
        if random.chance(50) {
            steps.push(random.pick(&[Audience::Clients(2), when("env"), Audience::Percent(100)]));
        }
        Self {
            steps,
            wait: A_STEP * random.pick(&[1, 1, 2]),
            on_change: random.pick(&[OnChange::Wait, OnChange::Replace]),
        }
    }
}

impl fmt::Display for RolloutProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, wait, on_change } = self;
        let steps: Vec<_> = steps.iter().map(ToString::to_string).collect();
        write!(f, "{}, {wait:?} each, {on_change:?}", steps.join(", "))
    }
}
