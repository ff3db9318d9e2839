//! The events of a world, as text for people.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use xds_core::RolloutEvent;

use crate::wire::Received;

/// Counters, and lines of text if they are requested.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
    pub(crate) stats: Stats,
}

/// The amount of traffic of a run. It shows that the checks had something to check.
#[derive(Debug, Default, Clone)]
pub(crate) struct Stats {
    pub(crate) requests: usize,
    pub(crate) responses: usize,
    resources: usize,
    removals: usize,
    /// Responses that have a variant and remove another one of the same name.
    switches: usize,
    nacks: usize,
    /// Streams that ended because of a type that the server refuses.
    pub(crate) refused: usize,
    /// Rollouts that began, that reached all clients, and that were refused.
    rollouts: [usize; 3],
}

impl Trace {
    pub(crate) fn written() -> Self {
        Self { lines: Some(Vec::new()), stats: Stats::default() }
    }

    pub(crate) fn note(&mut self, now: Duration, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>8.2}s {}", now.as_secs_f64(), line()));
        }
    }

    pub(crate) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}

impl Stats {
    pub(crate) fn count_response(&mut self, received: &Received) {
        self.responses += 1;
        self.resources += received.resources.len();
        self.removals += received.removed.len() + received.removed_variants.len();
        let is_back = |name: &String| received.resources.iter().any(|item| item.name == *name);
        self.switches += usize::from(received.removed_variants.iter().any(|(name, _)| is_back(name)));
    }

    pub(crate) fn count_rollout(&mut self, event: &RolloutEvent) {
        let at = match event {
            RolloutEvent::Began { .. } => 0,
            RolloutEvent::Promoted => 1,
            RolloutEvent::Refused(_) => 2,
            RolloutEvent::Widened(_)
            | RolloutEvent::Committed
            | RolloutEvent::Overtaken
            | RolloutEvent::Replaced(_) => return,
        };
        self.rollouts[at] += 1;
    }

    pub(crate) fn count_verdict(&mut self, is_accepted: bool) {
        self.nacks += usize::from(!is_accepted);
    }
}

impl AddAssign<&Self> for Stats {
    fn add_assign(&mut self, other: &Self) {
        self.requests += other.requests;
        self.responses += other.responses;
        self.resources += other.resources;
        self.removals += other.removals;
        self.switches += other.switches;
        self.nacks += other.nacks;
        self.refused += other.refused;
        self.rollouts.iter_mut().zip(other.rollouts).for_each(|(count, more)| *count += more);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, responses, resources, removals, switches, nacks, refused, rollouts } = self;
        let [began, promoted, rejected] = rollouts;
        write!(
            f,
            "{requests} requests, {responses} responses ({switches} switch a variant), {resources} resources, \
             {removals} removals, {nacks} NACKs, {refused} streams ended because of a type, \
             {began} rollouts ({promoted} promoted, {rejected} refused)"
        )
    }
}
