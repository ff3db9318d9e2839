//! A watcher never loses its copy because of an outage: only a response removes it (P1.2, P1.4,
//! C10).

use super::Violation;
use crate::agent::{Event, Turn};

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    // Honest servers here set no TTL (S38).
    if matches!(turn.event, Event::Answered { .. }) {
        return Ok(());
    }
    let is_passed = matches!(turn.event, Event::Passed);
    // C15: members of a wildcard that only a former server sent are dropped when its successor
    // stays silent for long, because no server would report their removal.
    if is_passed && turn.watcher.name == "*" {
        return Ok(());
    }
    // Known: if data errors drop copies, the silence of one server drops a copy from another server
    // (seed 333).
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
