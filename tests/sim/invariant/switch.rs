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
            // T35: a variant from an earlier stream goes with the first of its locators that is reported
            // as absent, because the client does not know the constraints that the server has for it
            // (seed 50372).
            let mut users = sent.after.locators(name).into_iter();
            let is_shared = users.any(|other| {
                other != params
                    && sent.after.is_for(key, held, &other)
                    && sent.after.absent.contains(&(name.clone(), other))
            });
            if is_there && (held.is_of_this_stream() || !is_shared) {
                let what = format!("T31: {name} for {{{params}}} was always there: {}", sent.received);
                return Err(Violation::new("switch", what));
            }
        }
    }
    Ok(())
}
