//! No watcher gets "does not exist" because no server could be reached. Only a server reports an
//! absence, or a timer that ran on a stream with the subscription (C5, P5.4, P5.5). A server that
//! does not serve a type does not know what there is of it (G4).

use std::time::Duration;

use xds_core::client::Code;

use super::Violation;
use crate::agent::{Event, Turn};
use crate::link::Locator;

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    let is_absent = |error: Option<Code>| error == Some(Code::NOT_FOUND);
    if !is_absent(turn.after.error) || is_absent(turn.before.error) {
        return Ok(());
    }
    // For a collection, the error of an outage hides the absence that was known before.
    let was_hidden = turn.watcher.name == "*" && turn.before.error == Some(Code::UNAVAILABLE);
    let is_known = match turn.event {
        Event::Answered { server } => !is_refused(turn, server),
        Event::Passed => was_silent(turn) || was_hidden,
        Event::Watched | Event::Opened | Event::Requested | Event::Ended => false,
    };
    if is_known {
        return Ok(());
    }
    let what = format!("{} is reported as absent by {:?}: {}", turn.watcher, turn.event, turn.after);
    Err(Violation::new("absence", what))
}

/// Whether the server of a stream sends errors for the type of the watcher.
pub(super) fn is_refused(turn: &Turn<'_>, server: usize) -> bool {
    turn.agent.links[server].as_ref().is_some_and(|link| link.refuses(turn.watcher.kind))
}

/// Whether the subscription was sent long enough ago on a current stream.
pub(super) fn was_silent(turn: &Turn<'_>) -> bool {
    let locator = locator_of(turn);
    let links = turn.agent.links.iter().flatten();
    let mut since = links.filter_map(|link| link.subscribed.get(&locator));
    since.any(|since| *since + TIMEOUT <= turn.now)
}

/// The subscription of the watcher.
pub(super) fn locator_of(turn: &Turn<'_>) -> Locator {
    let watcher = turn.watcher;
    (watcher.kind.url().into(), watcher.name.clone(), watcher.parameters.clone())
}

const TIMEOUT: Duration = Duration::from_secs(15);
