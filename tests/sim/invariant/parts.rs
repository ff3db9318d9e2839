//! A part of a rejected response has only names of rejected responses, and no other change. A part waits
//! for the answers of its type, but not longer than `ack_wait` since the newest response (S6c, S9b).

use std::time::Duration;

use xds_core::server::StreamConfig;

use super::{Sent, Violation};
use crate::exceptions;
use crate::rejections::Rejections;

pub(crate) fn check(sent: &Sent<'_>, now: Duration) -> Result<(), Violation> {
    let rejected = &sent.before.rejections.names;
    let is_right = |name: &String| rejected.contains(name) || exceptions::is_removed_again(sent, name);
    if Rejections::repeated(sent).is_empty() {
        return Ok(());
    }
    let newest = sent.before.unanswered.values().map(|(sent_at, _)| *sent_at).max();
    let ack_wait = StreamConfig::default().ack_wait;
    if newest.is_some_and(|newest| now < newest + ack_wait) {
        let what = format!("S6c: a part does not wait for the answer: {}", sent.received);
        return Err(Violation::new("parts", what));
    }
    match sent.received.names().iter().find(|name| !is_right(name)) {
        None => Ok(()),
        Some(other) => {
            let what = format!("S6c: a part has {other}, which was not rejected: {}", sent.received);
            Err(Violation::new("parts", what))
        }
    }
}
