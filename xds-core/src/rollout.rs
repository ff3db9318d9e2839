//! A rollout: a candidate is tried by more and more clients, until all have it.
//!
//! A step lasts as long as the [plan](RolloutPlan) says. A client that rejects the candidate ends the
//! rollout at once. At the end of a step at least half of the clients that the candidate affects
//! must have ACKed it. `machine` carries out the steps, for each change of a source.

use std::str::FromStr;
use std::time::Duration;

use crate::cache::{Audience, AudienceError, ClientOutcome, DECIDE_WITHIN, Outcome, RolloutPlan};

mod machine;

pub use machine::{
    OnChange, RefusedChange, RolloutCounts, RolloutEvent, RolloutMachine, RolloutOrder, RunningCandidate,
};

/// Steps as text, separated by commas: `2 clients, 10%, 100%`. A condition with a comma goes in
/// parentheses. Each step is larger than those before.
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
        let steps: Vec<_> = text.split(is_comma).map(str::parse).collect::<Result<_, _>>()?;
        Self::check(&steps)?;
        Ok(Self(steps))
    }
}

impl RolloutSteps {
    /// Checks that each step has clients that those before lack.
    ///
    /// # Errors
    /// [`AudienceError::NotLarger`].
    pub fn check(steps: &[Audience]) -> Result<(), AudienceError> {
        for (at, step) in steps.iter().enumerate() {
            if let Some(before) = steps[..at].iter().find(|before| before.includes(step)) {
                let (step, before) = (Box::new(step.clone()), Box::new(before.clone()));
                return Err(AudienceError::NotLarger { step, before });
            }
        }
        Ok(())
    }
}

/// The steps of one rollout.
#[derive(Debug)]
struct Rollout {
    plan: RolloutPlan,
    /// The number of the step, from zero.
    step: usize,
    /// Who tries the candidate since this step.
    audience: Audience,
    began_at: Duration,
    /// The clients of the step were chosen once more, because there were none.
    is_chosen_again: bool,
    /// At its end it was not known what a client rejects, so the step is longer (S6f).
    is_extended: bool,
}

/// What to do now.
enum RolloutAction {
    /// Look again when a client answered, and at the end of the step at the latest.
    Wait,
    /// [Widen](crate::Candidate::widen) the candidate to this audience: a step begins.
    Widen(Audience),
    /// [Promote](crate::Candidate::promote) the candidate.
    Promote,
    /// [End](crate::Candidate::end) the candidate, for this reason.
    End(String),
}

impl Rollout {
    /// A rollout whose first step begins now; `None` if the plan has no steps.
    fn begin(plan: &RolloutPlan, now: Duration) -> Option<Self> {
        let (plan, audience) = (plan.clone(), plan.steps().first()?.clone());
        Some(Self { plan, step: 0, audience, began_at: now, is_chosen_again: false, is_extended: false })
    }

    /// When the step ends.
    fn step_ends_at(&self) -> Duration {
        let extension = if self.is_extended { DECIDE_WITHIN } else { Duration::ZERO };
        self.began_at + self.plan.wait() + extension
    }

    /// Decides, given the [outcomes](crate::Delivery::results) at the clients that try the
    /// candidate.
    fn decide(&mut self, now: Duration, outcomes: &[ClientOutcome]) -> RolloutAction {
        let rejection = outcomes.iter().find_map(|of| match &of.outcome {
            Outcome::Nacked { type_url, detail, names } => Some((&of.client, type_url, detail, names)),
            _ => None,
        });
        if let Some((client, type_url, detail, names)) = rejection {
            let (client, type_name) = (&client.id, type_url.message_name());
            let names: String = names.iter().map(|name| format!(" {name:?}")).collect();
            return RolloutAction::End(format!("client {client:?} rejected {type_name}{names}: {detail}"));
        }
        // S6f: a step neither ends nor passes while it is not known what a client rejects.
        self.is_extended = outcomes.iter().any(|of| of.outcome == Outcome::Splitting);
        if now < self.step_ends_at() {
            return RolloutAction::Wait;
        }
        let (affected, acked) =
            (outcomes.len(), outcomes.iter().filter(|of| of.outcome == Outcome::Acked).count());
        // After a restart clients are not back yet when the step begins, and those that tried what was before it
        // return first. A number of clients is chosen among those that are there.
        if affected == 0 && matches!(self.audience, Audience::Clients(_)) && !self.is_chosen_again {
            (self.began_at, self.is_chosen_again, self.is_extended) = (now, true, false);
            return RolloutAction::Widen(self.audience.clone());
        }
        if acked * 2 < affected {
            return RolloutAction::End(format!("only {acked} of {affected} clients ACKed it in time"));
        }
        let Some(audience) = self.plan.steps().get(self.step + 1) else { return RolloutAction::Promote };
        self.audience = audience.clone();
        (self.step, self.began_at) = (self.step + 1, now);
        (self.is_chosen_again, self.is_extended) = (false, false);
        RolloutAction::Widen(self.audience.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::ClientName;

    const SECOND: Duration = Duration::from_secs(1);

    fn rollout(steps: &str) -> Rollout {
        let RolloutSteps(steps) = steps.parse().unwrap();
        Rollout::begin(&RolloutPlan::new(steps, 10 * SECOND), Duration::ZERO).unwrap()
    }

    fn outcomes(text: &str) -> Vec<ClientOutcome> {
        let of = |word: &str| match word {
            "ack" => Outcome::Acked,
            "nack" => Outcome::Nacked { type_url: "t/T".into(), detail: "bad".into(), names: [].into() },
            "splitting" => Outcome::Splitting,
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
            RolloutAction::Wait => format!("wait {}", rollout.step_ends_at().as_secs()),
            RolloutAction::Widen(audience) => format!("widen {audience}"),
            RolloutAction::Promote => "promote".to_owned(),
            RolloutAction::End(end) => format!("end: {end}"),
        }
    }

    #[test]
    fn each_step_takes_its_time_and_then_comes_the_next() {
        let mut rollout = rollout("2 clients, 10%, 100%");
        assert_eq!(decide(&mut rollout, 1, "ack ack"), "wait 10");
        assert_eq!((rollout.step, &rollout.audience), (0, &Audience::Clients(2)));
        assert_eq!(decide(&mut rollout, 10, "ack ack"), "widen 10%");
        assert_eq!(decide(&mut rollout, 12, "ack ack wait"), "wait 20");
        assert_eq!(decide(&mut rollout, 20, "ack ack ack"), "widen 100%");
        assert_eq!(decide(&mut rollout, 31, "ack ack ack wait"), "promote");
        assert_eq!(rollout.step, 2);
        assert_eq!(decide(&mut rollout, 32, ""), "promote");
    }

    #[test]
    fn a_rejection_ends_it_at_once() {
        let end = r#"end: client "envoy" rejected T: bad"#;
        assert_eq!(decide(&mut rollout("2 clients"), 1, "ack wait nack"), end);
        // Also at the end of the last step.
        assert_eq!(decide(&mut rollout("100%"), 10, "ack nack"), end);
    }

    #[test]
    fn s6f_a_step_goes_on_while_it_is_not_known_what_a_client_rejects() {
        let mut waits = rollout("2 clients");
        assert_eq!(decide(&mut waits, 9, "ack splitting"), "wait 26");
        assert_eq!(decide(&mut waits, 25, "ack splitting"), "wait 26");
        assert_eq!(decide(&mut waits, 25, "ack ack"), "promote");
        assert_eq!(
            decide(&mut waits, 26, "ack splitting splitting"),
            "end: only 1 of 3 clients ACKed it in time"
        );
        let rejection = decide(&mut rollout("2 clients"), 12, "ack nack splitting");
        assert_eq!(rejection, r#"end: client "envoy" rejected T: bad"#);
    }

    #[test]
    fn silence_and_crashes_end_it_when_the_step_is_over() {
        let few = "end: only 1 of 3 clients ACKed it in time";
        assert_eq!(decide(&mut rollout("2 clients"), 9, "ack wait gone"), "wait 10");
        assert_eq!(decide(&mut rollout("2 clients"), 10, "ack wait gone"), few);
        assert_eq!(decide(&mut rollout("2 clients"), 10, "ack wait"), "promote");
    }

    /// The clients may not be back from a restart of the server.
    #[test]
    fn a_step_for_which_there_was_no_client_begins_once_more() {
        let mut empty = rollout("2 clients, 100%");
        assert_eq!(decide(&mut empty, 10, ""), "widen 2 clients");
        assert_eq!(decide(&mut empty, 19, "wait wait"), "wait 20");
        assert_eq!(decide(&mut empty, 20, "wait wait"), "end: only 0 of 2 clients ACKed it in time");
        // No client is affected, also now.
        let mut empty = rollout("2 clients, 10%, 3 clients");
        let steps = [10, 20, 30, 40, 50].map(|at| decide(&mut empty, at, ""));
        assert_eq!(steps, ["widen 2 clients", "widen 10%", "widen 3 clients", "widen 3 clients", "promote"]);
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
        for text in ["100%, 10%", "10%, 10%", "3 clients, 2 clients", "env=a, env=a", "100%, 1 client"] {
            assert!(read(text).contains("is not larger than"), "{text}");
        }
        assert_eq!(read("10%, env=a, 5 clients, 20%"), "10% | env=a | 5 clients | 20%");
        assert_eq!(read("0 clients"), "at least 1 client has to try a candidate");
        assert!(read("env in").starts_with(r#""env in" is neither a number of clients"#));
    }
}
