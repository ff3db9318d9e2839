//! No content is sent to a stream more often than S6d says: of n units of a rejected response, each at
//! most 1 + ceil(log2 n) times. For listeners each response that made room allows once more (S6e).
//! A new subscription (D9, S15, S16), a cluster for its endpoints (S34), other constraints (V25) and a
//! rollout that begins or ends start a new count. A full state always has everything (S25).

use std::time::Duration;

use super::{Sent, Violation};
use crate::exceptions;
use crate::rejections::Rejections;

pub(crate) fn check(sent: &Sent<'_>, now: Duration) -> Result<(), Violation> {
    let sends = &sent.before.rejections.sends;
    for name in Rejections::repeated(sent) {
        let of_name = &sends[&name];
        if of_name.times >= of_name.allowed && !exceptions::is_removed_twice(sent) {
            let what = format!(
                "S6d, S6e: {name} was sent {} times, and may be {} times, at {now:?}: {}",
                of_name.times, of_name.allowed, sent.received
            );
            return Err(Violation::new("bounds", what));
        }
    }
    Ok(())
}
