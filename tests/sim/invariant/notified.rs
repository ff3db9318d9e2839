//! A watcher whose view changes is notified at once, whether it reads the state or not. No watcher
//! is notified of the same state twice (C8, P1.19).

use super::Violation;
use crate::agent::{Turn, is_same};
use crate::exceptions::{is_notified_again, is_other_outage, is_rejected_again};

pub(crate) fn check(turn: &Turn<'_>) -> Result<(), Violation> {
    let Turn { watcher, before, after, touched, event, .. } = turn;
    let is_touched = |member: Option<&str>| touched.iter().any(|touched| touched.as_deref() == member);
    if !is_touched(None) && !is_same(&before.own, &after.own) && !is_other_outage(turn) {
        return violation(format!("{watcher} is not notified of {event:?}: {before}, now {after}"));
    }
    for name in before.members.keys().chain(after.members.keys()) {
        let [had, has] = [before, after].map(|sight| sight.members.get(name).cloned());
        let is_same =
            had.is_some() == has.is_some() && is_same(&had.unwrap_or_default(), &has.unwrap_or_default());
        if is_same == is_touched(Some(name)) && !(is_same && is_rejected_again(turn, name)) {
            let said = if is_same { "is notified twice" } else { "is not notified" };
            return violation(format!("{watcher} {said} of {name} by {event:?}: {before}, now {after}"));
        }
    }
    // Only this notification shows that a collection is complete.
    let is_news = !is_same(&before.own, &after.own) || watcher.name == "*";
    if is_touched(None) && !is_news && !is_notified_again(turn) {
        return violation(format!(
            "{watcher} is notified of the same state twice by {event:?}: {before}, now {after}"
        ));
    }
    Ok(())
}

fn violation(what: String) -> Result<(), Violation> {
    Err(Violation::new("notified", what))
}
