//! A part of a rejected response has only names of rejected responses, and no other change. A part waits
//! for the answers of its type, but not longer than `ack_wait` since the newest response (S6c, S9b).

use std::time::Duration;

use xds_core::server::StreamConfig;

use super::news::is_news_of;
use super::{Sent, Violation};
use crate::exceptions;
use crate::rejections::Rejections;

pub(crate) fn check(sent: &Sent<'_>, now: Duration) -> Result<(), Violation> {
    let rejected = &sent.before.rejections.names;
    let is_right = |name: &String| rejected.contains(name) || exceptions::is_removed_again(sent, name);
    let repeated = Rejections::repeated(sent);
    let names = sent.received.names();
    // S6c: a name whose change waits for its order (S33) stays until the change is sent. A rejected removal
    // of a resource that went meanwhile goes with the other changes (seed 9878).
    let is_change = repeated.iter().all(|name| exceptions::is_removed_again(sent, name))
        && names.iter().any(|name| !repeated.contains(name) && is_news_of(sent, name));
    if repeated.is_empty() || is_change {
        return Ok(());
    }
    let newest = sent.before.unanswered.values().map(|(sent_at, _)| *sent_at).max();
    let ack_wait = StreamConfig::default().ack_wait;
    if newest.is_some_and(|newest| now < newest + ack_wait) {
        let what = format!("S6c: a part does not wait for the answer: {}", sent.received);
        return Err(Violation::new("parts", what));
    }
    match names.iter().find(|name| !is_right(name)) {
        None => Ok(()),
        Some(other) => {
            let what = format!("S6c: a part has {other}, which was not rejected: {}", sent.received);
            Err(Violation::new("parts", what))
        }
    }
}
