//! A watcher uses only the resource that it subscribed to, and only a variant for its parameters
//! (T3, T41).

use super::Violation;
use crate::agent::Turn;

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    let watcher = turn.watcher;
    for (name, copy) in turn.after.copies(&watcher.name) {
        if !copy.constraints().matches(&watcher.parameters) {
            let what = format!("{watcher} uses {name}[{}]: {}", copy.constraints(), turn.after);
            return Err(Violation::new("fits", what));
        }
        // D24: in these worlds only liars send aliases.
        if copy.name().as_str() != name && turn.agent.profile.liar.is_none() {
            let what = format!("{watcher} uses {} as {name}: {}", copy.name(), turn.after);
            return Err(Violation::new("fits", what));
        }
    }
    Ok(())
}
