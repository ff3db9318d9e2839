//! How servers give a commit to their clients: in steps, to a few first.
//!
//! A commit may ask for steps. The store writes the request in the batch of the commit, so no crash separates the two,
//! and peers get both. The head has the last request, with the store revision of its commit. Servers roll out by it
//! what is not stable yet.

use std::time::Duration;

use xds_core::{Audience, AudienceError, RequestedRollout, RolloutPlan, RolloutSteps};
use xds_proto::xds::store::v1 as proto;

use crate::log::{Head, StoredRollout};
use crate::time::length_of;

/// What is wrong with steps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// There are none, or too many.
    #[error("a rollout has 1 to {STEPS} steps, and not {0}")]
    Steps(usize),
    /// A step is no audience.
    #[error(transparent)]
    Step(#[from] AudienceError),
    /// The steps are too long a text.
    #[error("the steps have at most {STEPS_BYTES} bytes together")]
    Long,
    /// A time below zero, or too long a time.
    #[error("a step takes at most 1 day")]
    Wait,
}

/// Reads the steps of a commit.
///
/// # Errors
/// See [`RolloutError`].
pub fn plan(rollout: &proto::Rollout) -> Result<RolloutPlan, RolloutError> {
    let steps = &rollout.steps;
    if steps.is_empty() || steps.len() > STEPS {
        return Err(RolloutError::Steps(steps.len()));
    }
    if steps.iter().map(String::len).sum::<usize>() > STEPS_BYTES {
        return Err(RolloutError::Long);
    }
    let wait = match &rollout.wait {
        None => WAIT,
        Some(wait) => length_of(*wait).ok_or(RolloutError::Wait)?,
    };
    if wait > LONGEST_WAIT {
        return Err(RolloutError::Wait);
    }
    let steps: Vec<Audience> = steps.iter().map(|step| step.parse()).collect::<Result<_, _>>()?;
    Ok(RolloutPlan::new(steps, wait))
}

/// Checks the steps of a new commit: that they can be read, and that each is larger than those before. Not all servers
/// check the last, so steps from a peer may not be.
pub(crate) fn check(rollout: &proto::Rollout) -> Result<(), RolloutError> {
    Ok(RolloutSteps::check(plan(rollout)?.steps())?)
}

impl Head {
    /// The last request of a commit for a rollout, for the cache.
    #[must_use]
    pub fn requested_rollout(&self) -> Option<RequestedRollout> {
        let StoredRollout { revision, rollout, .. } = self.rollout.as_ref()?;
        Some(requested_by(*revision, rollout.as_ref()?))
    }
}

/// What the commit with this store revision asked for, for the cache. Steps that this version cannot read are those of
/// another one: then one client tries the change for a day, unless an operator decides before.
#[must_use]
pub fn requested_by(revision: u64, rollout: &proto::Rollout) -> RequestedRollout {
    let plan = plan(rollout).unwrap_or_else(|_| RolloutPlan::new(vec![Audience::Clients(1)], LONGEST_WAIT));
    RequestedRollout { number: revision, plan }
}

const STEPS: usize = 16;
/// A log entry and the head have them, within what a batch reserves for them.
const STEPS_BYTES: usize = 300;
/// What `--rollout-wait` of a server is by default, too.
const WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_with_their_limits() {
        let rollout = |steps: &[&str], seconds: Option<i64>| proto::Rollout {
            steps: steps.iter().map(ToString::to_string).collect(),
            wait: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        };
        let read = plan(&rollout(&["2 clients", "env in (a,b)", "100%"], None)).unwrap();
        assert_eq!((read.steps().len(), read.wait()), (3, WAIT));
        assert_eq!(plan(&rollout(&["10%"], Some(1))).unwrap().wait(), Duration::from_secs(1));
        let wrong = [
            (rollout(&[], None), "a rollout has 1 to 16 steps, and not 0"),
            (rollout(&["10%"; 17], None), "a rollout has 1 to 16 steps, and not 17"),
            (rollout(&["10"], None), "has no unit"),
            (rollout(&[&"k".repeat(2000)], None), "at most 300 bytes"),
            (rollout(&["10%"], Some(-1)), "at most 1 day"),
            (rollout(&["10%"], Some(86_401)), "at most 1 day"),
        ];
        for (rollout, expected) in wrong {
            let error = plan(&rollout).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let shrinking = rollout(&["10%", "5%"], None);
        assert!(plan(&shrinking).is_ok(), "a server before accepted it");
        let error = check(&shrinking).unwrap_err();
        assert!(matches!(error, RolloutError::Step(AudienceError::NotLarger { .. })), "{error}");
    }

    #[test]
    fn steps_of_another_version_are_tried_by_one_client() {
        let rollout = proto::Rollout { steps: vec!["the moon".into()], wait: None };
        let rollout = Some(StoredRollout { revision: 3, rollout: Some(rollout), ..StoredRollout::default() });
        let requested = Head { rollout, ..Head::default() }.requested_rollout().unwrap();
        assert_eq!((requested.number, requested.plan.steps()), (3, &[Audience::Clients(1)][..]));
        assert_eq!(Head::default().requested_rollout(), None);
    }
}
