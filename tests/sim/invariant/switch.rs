//! A locator whose variant changes is never without one, if every snapshot since it was sent one had one for it (T31).

use super::{Sent, Violation};
use crate::content::selected;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    for ((name, constraints), held) in &sent.before.ideal.held {
        for params in sent.after.locators(name) {
            if !constraints.matches(&params) || sent.after.serves(name, &params).is_some() {
                continue;
            }
            let mut since = sent.history[held.sent_at..].iter();
            if since.all(|snapshot| selected(snapshot, sent.kind(), name, &params).is_some()) {
                let what = format!("T31: {name} for {{{params}}} was always there: {}", sent.received);
                return Err(Violation::new("switch", what));
            }
        }
    }
    Ok(())
}
