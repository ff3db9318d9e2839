//! A rollout: a candidate is tried by more and more clients, until all have it.
//!
//! The machine is pure: it takes the outcomes at the clients, and returns what to do next. A step
//! lasts as long as the [plan](RolloutPlan) says. A client that rejects the candidate ends the
//! rollout at once. At the end of a step at least half of the clients that the candidate affects
//! must have ACKed it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Audience, AudienceError, ClientName, ClientOutcome, Outcome, RolloutPlan};
use crate::name::TypeUrl;

/// Steps as text, separated by commas: `2 clients, 10%, 100%`. A condition with a comma goes in
/// parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutSteps(pub Vec<Audience>);

impl FromStr for RolloutSteps {
    type Err = AudienceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut depth, mut is_quoted, mut is_escaped) = (0_u32, false, false);
        let is_comma = |c: char| {
            match c {
                _ if std::mem::take(&mut is_escaped) => {}
                '\\' if is_quoted => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                '(' if !is_quoted => depth += 1,
                ')' if !is_quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0 && !is_quoted
        };
        text.split(is_comma).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// A rollout that runs.
#[derive(Debug)]
pub struct Rollout {
    plan: RolloutPlan,
    /// The number of the step, from zero.
    step: usize,
    began_at: Duration,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutAction {
    /// Look again when a client answered, and at this time at the latest.
    Wait(Duration),
    /// [Widen](crate::Candidate::widen) the candidate to this audience: a step begins.
    Widen(Audience),
    /// [Promote](crate::Candidate::promote) the candidate.
    Promote,
    /// [End](crate::Candidate::end) the candidate, for this reason.
    End(RolloutEnd),
}

/// Why a rollout ended before all clients had the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutEnd {
    /// A client rejected it.
    Rejected {
        /// The first client that did.
        client: ClientName,
        /// The type of the response.
        type_url: TypeUrl,
        /// The error message of the client.
        detail: Arc<str>,
    },
    /// Too few clients ACKed it within the time of a step.
    TooFew {
        /// How many did.
        acked: usize,
        /// How many clients it affects.
        affected: usize,
    },
}

impl fmt::Display for RolloutEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { client, type_url, detail } => {
                let type_name = type_url.message_name();
                write!(f, "client {:?} rejected {type_name}: {detail}", &*client.id)
            }
            Self::TooFew { acked, affected } => {
                write!(f, "only {acked} of {affected} clients ACKed it in time")
            }
        }
    }
}

impl Rollout {
    /// A rollout whose candidate has just begun with the first step of the plan.
    #[must_use]
    pub fn new(plan: RolloutPlan, now: Duration) -> Self {
        Self { plan, step: 0, began_at: now }
    }

    /// The number of the step, from zero, and its audience; `None` after the last one.
    #[must_use]
    pub fn step(&self) -> Option<(usize, &Audience)> {
        Some((self.step, self.plan.steps().get(self.step)?))
    }

    /// When the step ends.
    #[must_use]
    pub fn step_ends_at(&self) -> Duration {
        self.began_at + self.plan.wait()
    }

    /// Decides, given the [outcomes](crate::Delivery::results) at the clients that try the
    /// candidate.
    pub fn decide(&mut self, now: Duration, outcomes: &[ClientOutcome]) -> RolloutAction {
        let rejection = outcomes.iter().find_map(|of| match &of.outcome {
            Outcome::Nacked { type_url, detail } => Some((&of.client, type_url, detail)),
            _ => None,
        });
        if let Some((client, type_url, detail)) = rejection {
            let (client, type_url, detail) = (client.clone(), type_url.clone(), Arc::clone(detail));
            return RolloutAction::End(RolloutEnd::Rejected { client, type_url, detail });
        }
        if self.step >= self.plan.steps().len() {
            return RolloutAction::Promote;
        }
        if now < self.step_ends_at() {
            return RolloutAction::Wait(self.step_ends_at());
        }
        let (affected, acked) =
            (outcomes.len(), outcomes.iter().filter(|of| of.outcome == Outcome::Acked).count());
        if acked * 2 < affected {
            return RolloutAction::End(RolloutEnd::TooFew { acked, affected });
        }
        self.step += 1;
        self.began_at = now;
        match self.plan.steps().get(self.step) {
            Some(audience) => RolloutAction::Widen(audience.clone()),
            None => RolloutAction::Promote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rollout(steps: &str) -> Rollout {
        let RolloutSteps(steps) = steps.parse().unwrap();
        Rollout::new(RolloutPlan::new(steps, 10 * SECOND), Duration::ZERO)
    }

    fn outcomes(text: &str) -> Vec<ClientOutcome> {
        let of = |word: &str| match word {
            "ack" => Outcome::Acked,
            "nack" => Outcome::Nacked { type_url: "t/T".into(), detail: "bad".into() },
            "gone" => Outcome::Disconnected,
            _ => Outcome::Pending,
        };
        let client = || ClientName { id: "envoy".into(), cluster: "".into() };
        text.split(' ')
            .filter(|word| !word.is_empty())
            .map(|word| ClientOutcome { client: client(), outcome: of(word) })
            .collect()
    }

    fn decide(rollout: &mut Rollout, seconds: u32, text: &str) -> String {
        match rollout.decide(seconds * SECOND, &outcomes(text)) {
            RolloutAction::Wait(until) => format!("wait {}", until.as_secs()),
            RolloutAction::Widen(audience) => format!("widen {audience}"),
            RolloutAction::Promote => "promote".to_owned(),
            RolloutAction::End(end) => format!("end: {end}"),
        }
    }

    #[test]
    fn each_step_takes_its_time_and_then_comes_the_next() {
        let mut rollout = rollout("2 clients, 10%, 100%");
        assert_eq!(decide(&mut rollout, 1, "ack ack"), "wait 10");
        assert_eq!(rollout.step(), Some((0, &Audience::Clients(2))));
        assert_eq!(decide(&mut rollout, 10, "ack ack"), "widen 10%");
        assert_eq!(decide(&mut rollout, 12, "ack ack wait"), "wait 20");
        assert_eq!(decide(&mut rollout, 20, "ack ack ack"), "widen 100%");
        assert_eq!(decide(&mut rollout, 31, "ack ack ack wait"), "promote");
        assert_eq!(rollout.step(), None);
        assert_eq!(decide(&mut rollout, 32, ""), "promote");
    }

    #[test]
    fn a_rejection_ends_it_at_once() {
        let end = r#"end: client "envoy" rejected T: bad"#;
        assert_eq!(decide(&mut rollout("2 clients"), 1, "ack wait nack"), end);
        // Also after the last step, before the promotion.
        let mut rollout = rollout("100%");
        assert_eq!(decide(&mut rollout, 10, "ack"), "promote");
        assert_eq!(decide(&mut rollout, 10, "nack"), end);
    }

    #[test]
    fn silence_and_crashes_end_it_when_the_step_is_over() {
        let few = "end: only 1 of 3 clients ACKed it in time";
        assert_eq!(decide(&mut rollout("2 clients"), 9, "ack wait gone"), "wait 10");
        assert_eq!(decide(&mut rollout("2 clients"), 10, "ack wait gone"), few);
        assert_eq!(decide(&mut rollout("2 clients"), 10, "ack wait"), "promote");
        // No connected client is affected.
        assert_eq!(decide(&mut rollout("2 clients"), 10, ""), "promote");
    }

    #[test]
    fn steps_are_read_from_text() {
        let read = |text: &str| match text.parse::<RolloutSteps>() {
            Ok(RolloutSteps(steps)) => steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "),
            Err(error) => error.to_string(),
        };
        assert_eq!(read("1 client,10 %, 100%"), "1 client | 10% | 100%");
        assert_eq!(read("env in (a,b), (env=c,zone=z), 50%"), "env in (a,b) | env=c,zone=z | 50%");
        assert_eq!(read(r#"env="a,b", 2 clients"#), r#"env="a,b" | 2 clients"#);
        assert_eq!(read("2 clients, 101%"), r#""101%" is no whole number of percent from 1 to 100"#);
        assert_eq!(read("2"), r#""2" has no unit; write for example "2 clients", "10%" or "env=canary""#);
        assert_eq!(read("0 clients"), "at least 1 client has to try a candidate");
        assert!(read("env in").starts_with(r#""env in" is neither a number of clients"#));
    }
}
