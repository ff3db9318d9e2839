//! A response says something that the client was not told, or answers something that it asked for;
//! so a NACK, and content that was rejected, never cause one (S6, S7, D8, D12).

use xds_core::Snapshot;

use super::{Sent, Violation};
use crate::content::selected;
use crate::exceptions;
use crate::known::Held;
use crate::script::Protocol;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    let seen = sent.before;
    // D8: what was rejected beside something that was put right is told once more.
    let is_retold = sent.received.names().is_subset(&seen.uncertain) && !seen.uncertain.is_empty();
    let is_answer = seen.has_asked || !seen.is_answered || seen.is_endpoints_due || is_retold;
    if is_answer || has_news(sent) || is_excused(sent) {
        return Ok(());
    }
    Err(Violation::new("news", format!("S6, D12: all of this was sent before: {}", sent.received)))
}

fn is_excused(sent: &Sent<'_>) -> bool {
    exceptions::is_removed_twice(sent)
}

fn has_news(sent: &Sent<'_>) -> bool {
    let (before, after) = (&sent.before.ideal, sent.after);
    // Known: what a client brought to a proxy that did not know yet what there is comes again
    // (D21). S32: in SotW nobody says what it brings, so what comes to a replica that lags is new
    // to the client for all that is known there.
    let is_untold =
        |held: &Held| (sent.is_relayed || before.protocol == Protocol::Sotw) && !held.is_of_this_stream();
    // What was tried and taken back, as the stream that brought it ended, is new when it comes
    // again.
    let has_left = |name: &str, held: &Held| {
        let is_there = |snapshot: &Snapshot| {
            let mut locators = after.locators(name).into_iter();
            locators.any(|params| selected(snapshot, sent.kind(), name, &params).is_some())
        };
        sent.is_relayed && !sent.history[held.sent_at..].iter().all(|snapshot| is_there(snapshot))
    };
    let is_new = |name: &str, held: Option<&Held>, now: &Held| {
        held.is_none_or(|held| held.content != now.content || is_untold(held) || has_left(name, held))
    };
    let changes = after.held.iter().any(|(key, now)| is_new(&key.0, before.held.get(key), now));
    let removes =
        before.held.keys().any(|key| !after.held.contains_key(key)) || after.absent != before.absent;
    changes || removes || has_blinked(sent)
}

/// D14: what came and went since it was told to be gone is told so again, which does no harm.
fn has_blinked(sent: &Sent<'_>) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    sent.received.removed.iter().chain(variants).any(|name| {
        let since = sent.before.removed.get(name).map_or(0, |at| *at);
        sent.history[since..]
            .iter()
            .any(|snapshot| snapshot.get(&sent.kind().url().into(), &name.as_str().into()).is_some())
    })
}
