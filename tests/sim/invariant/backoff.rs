//! A content that was rejected alone is sent again only after a back-off, which starts with 1 s and
//! doubles up to 10 min (S6e).

use std::time::Duration;

use super::{Sent, Violation};
use crate::rejections::Rejections;

pub(crate) fn check(sent: &Sent<'_>, now: Duration) -> Result<(), Violation> {
    for name in Rejections::repeated(sent) {
        let sends = &sent.before.rejections.sends[&name];
        let wait = FIRST.saturating_mul(1 << sends.resends.min(16)).min(LONGEST);
        if sends.is_rejected_alone && now < sends.last + wait {
            let what = format!("S6e: {name} waits {wait:?} since {:?}: {}", sends.last, sent.received);
            return Err(Violation::new("backoff", what));
        }
    }
    Ok(())
}

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);
