//! A copy that is in use is never lost to an outage: only what a server says takes it away (P1.2,
//! P1.4, C10).

use super::Violation;
use crate::agent::{Event, Turn};

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    // No server here lets anything expire (S38).
    if matches!(turn.event, Event::Answered { .. }) {
        return Ok(());
    }
    let is_passed = matches!(turn.event, Event::Passed);
    // C15: what only a server that was left told of a wildcard goes when the one that took over is
    // silent for long, as nobody else would tell that it went.
    if is_passed && turn.watcher.name == "*" {
        return Ok(());
    }
    // Known: the silence of one server takes away what another one brought, if data errors do (seed
    // 333).
    let profile = &turn.agent.profile;
    if profile.is_relayed && profile.policy.fail_on_data_errors && is_passed {
        return Ok(());
    }
    let is_there = |name: &str| turn.after.copies(&turn.watcher.name).any(|(other, _)| other == name);
    let lost = turn.before.copies(&turn.watcher.name).find(|(name, _)| !is_there(name));
    match lost {
        None => Ok(()),
        Some((name, _)) => {
            let what = format!("{} lost {name} by {:?}: {}", turn.watcher, turn.event, turn.after);
            Err(Violation::new("kept", what))
        }
    }
}
