//! A watcher never loses its copy because of an outage: only a response removes it (P1.2, P1.4,
//! C10), or the silence of a server that had to confirm it (C5).

use xds_core::client::Accepted;

use super::Violation;
use super::absence::{is_refused, locator_of, was_silent};
use crate::agent::{Event, Turn};

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    // Honest servers here set no TTL (S38). G4: one that does not serve a type removes nothing of it.
    if matches!(turn.event, Event::Answered { server } if !is_refused(turn, server)) {
        return Ok(());
    }
    let is_passed = matches!(turn.event, Event::Passed);
    // C15: members of a wildcard that only a former server sent are dropped when its successor
    // stays silent for long, because no server would report their removal.
    if is_passed && turn.watcher.name == "*" {
        return Ok(());
    }
    let is_dropped = is_passed && turn.agent.profile.policy.fail_on_data_errors && was_silent(turn);
    let is_there = |name: &str| turn.after.copies(&turn.watcher.name).any(|(other, _)| other == name);
    let lost = turn.before.copies(&turn.watcher.name).find(|(name, _)| !is_there(name));
    match lost {
        None => Ok(()),
        Some((_, copy)) if is_dropped && !is_confirmed(turn, copy) => Ok(()),
        Some((name, _)) => {
            let what = format!("{} lost {name} by {:?}: {}", turn.watcher, turn.event, turn.after);
            Err(Violation::new("kept", what))
        }
    }
}

/// C5: whether a copy came on a stream that still has the subscription. If not, the server of the
/// current stream may have to confirm it, and its silence counts as an absence (seeds 2258, 7299,
/// 10535 and 12655).
fn is_confirmed(turn: &Turn<'_>, copy: &Accepted) -> bool {
    let locator = locator_of(turn);
    let links = turn.agent.links.iter().enumerate();
    let mut open = links.filter_map(|(server, link)| Some((server, link.as_ref()?)));
    open.any(|(server, link)| {
        let is_of_stream = *copy.server == *format!("s{server}")
            && turn.agent.client.stream(server) == Some(copy.generation);
        is_of_stream && link.subscribed.contains_key(&locator)
    })
}
