//! A locator whose variant changes always has a variant, if every snapshot since the last response
//! had one for it (T31).

use super::{Sent, Violation};
use crate::content::selected;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    for (key, held) in &sent.before.ideal.held {
        let name = &key.0;
        for params in sent.after.locators(name) {
            if !sent.after.is_for(key, held, &params) || sent.after.serves(name, &params).is_some() {
                continue;
            }
            let mut since = sent.history[held.sent_at..].iter();
            let is_there = since.all(|snapshot| selected(snapshot, sent.kind(), name, &params).is_some());
            if is_there {
                let what = format!("T31: {name} for {{{params}}} was always there: {}", sent.received);
                return Err(Violation::new("switch", what));
            }
        }
    }
    Ok(())
}
