//! Each response has something that the client was not sent, or answers a new subscription, or is a
//! part of a rejected response (S6, S7, D8, D12, S6c). `bounds` limits the parts.

use std::collections::BTreeSet;

use xds_core::Snapshot;
use xds_core::server::Protocol;

use super::{Sent, Violation};
use crate::content::selected;
use crate::exceptions;
use crate::known::{Held, Key, Known};
use crate::wire::ReceivedError;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    let seen = sent.before;
    // S6c: a part has names of rejected responses. S6e: a full state is repeated after it made room.
    let (names, rejections) = (sent.received.names(), &seen.rejections);
    let is_repeated = match seen.ideal.takes_full_state() {
        true => rejections.is_repeat_due,
        false => rejections.is_part(sent.received),
    };
    let is_answer = seen.has_asked || !seen.is_answered || seen.is_endpoints_due || is_repeated;
    // S34: of what is not there when a cluster is sent, the client gets the endpoints when it comes back.
    let is_due = !names.is_empty() && names.is_subset(&seen.endpoints_due);
    let mut tried = names.iter().map(|name| seen.tried.contains_key(name));
    // A full state has the rest, too.
    let is_tried = match seen.ideal.takes_full_state() {
        true => tried.any(|is_tried| is_tried),
        false => !names.is_empty() && tried.all(|is_tried| is_tried),
    };
    let is_given_up = !names.is_empty() && names.is_subset(&seen.given_up);
    // S6d: the answer to a new subscription comes later, if another client rejected the content alone.
    let is_owed = |name: &String| rejections.owed.contains(name) || !rejections.sends.contains_key(name);
    let is_left_out = names.len() == 1 && names.iter().all(is_owed);
    let is_owed = is_due || is_tried || is_given_up || is_left_out;
    let is_about_error = ends_error(sent) || begins_error(sent) || ends_refusal(sent);
    if is_answer || is_owed || has_news(sent) || is_about_error || is_excused(sent) {
        return Ok(());
    }
    Err(Violation::new("news", format!("S6, D12: all of this was sent before: {}", sent.received)))
}

/// S37: a full state without the error for a name says that there is no resource (seed 3348).
fn ends_error(sent: &Sent<'_>) -> bool {
    let count = |errors: &[ReceivedError], of| errors.iter().filter(|error| *error == of).count();
    let (before, now) = (&sent.before.errors, &sent.received.errors);
    sent.after.takes_full_state() && before.iter().any(|of| count(before, of) > count(now, of))
}

/// G4, S37: a proxy sends an error for what it does not know any more, also to a client that has it. A client
/// remembers an error until a new one arrives, so another text is news (seed 18228).
fn begins_error(sent: &Sent<'_>) -> bool {
    sent.is_relayed && sent.received.errors.iter().any(|error| !sent.before.errors.contains(error))
}

/// G4: when a wildcard that was refused is answered again, or has another error, everything is sent.
pub(crate) fn ends_refusal(sent: &Sent<'_>) -> bool {
    sent.before.rejections.ends_refusal(sent.received)
}

fn is_excused(sent: &Sent<'_>) -> bool {
    exceptions::is_removed_twice(sent)
}

fn has_news(sent: &Sent<'_>) -> bool {
    let before = sent.before.ideal.held.keys().map(|(name, _)| name);
    let absent = sent.before.ideal.absent.symmetric_difference(&sent.after.absent).map(|(name, _)| name);
    let names: BTreeSet<_> =
        before.chain(sent.after.held.keys().map(|(name, _)| name)).chain(absent).collect();
    names.into_iter().any(|name| is_news_of(sent, name))
        || sent.received.names().iter().any(|name| has_blinked(sent, name))
}

/// Whether a response has something of a name that the client was not sent.
pub(crate) fn is_news_of(sent: &Sent<'_>, name: &str) -> bool {
    let (before, after) = (&sent.before.ideal, sent.after);
    // Known: resources that a client brought to a proxy are sent again, if the proxy did not know
    // yet what exists (D21). S32: in SotW a client does not report what it has. So resources of a
    // replica that lags are new to the client, in the eyes of the server.
    let is_unknown =
        |held: &Held| (sent.is_relayed || before.protocol == Protocol::Sotw) && !held.is_of_this_stream();
    // Content that was tried, and withdrawn because its stream ended, is new when it is sent again.
    // S17, S26: so is a resource that was created again, if no response could report its removal
    // (seed 18845).
    let may_leave = sent.is_relayed || !before.learns_of_removals();
    // A variant of a proxy that other ones replaced, and that came back, is a new one (seed 81882).
    let was_replaced = |(name, constraints): &Key, held: &Held| {
        let is_there = |snapshot: &Snapshot| {
            let variants = snapshot.get(&sent.kind().url().into(), &name.as_str().into());
            variants.is_some_and(|variants| variants.get(constraints).is_some())
        };
        sent.is_relayed && !sent.history[held.sent_at..].iter().all(|snapshot| is_there(snapshot))
    };
    let has_left = |name: &str, held: &Held| {
        let is_there = |snapshot: &Snapshot| {
            let mut locators = after.locators(name).into_iter();
            locators.any(|params| selected(snapshot, sent.kind(), name, &params).is_some())
        };
        may_leave && !sent.history[held.sent_at..].iter().all(|snapshot| is_there(snapshot))
    };
    let is_new = |key: &Key, held: &Held, now: &Held| {
        held.content != now.content || is_unknown(held) || has_left(&key.0, held) || was_replaced(key, held)
    };
    let mut now = after.held.iter().filter(|(key, _)| key.0 == name);
    let changes = now.any(|(key, now)| before.held.get(key).is_none_or(|held| is_new(key, held, now)));
    let mut had = before.held.keys().filter(|key| key.0 == name);
    let absent = |known: &Known| -> Vec<_> {
        known.absent.iter().filter(|(of, _)| of == name).map(|(_, params)| params.clone()).collect()
    };
    let removes = had.any(|key| !after.held.contains_key(key)) || absent(after) != absent(before);
    changes || removes || has_blinked(sent, name)
}

/// D14: a resource that was created and removed again since its removal was sent is reported as
/// removed again, which is harmless.
fn has_blinked(sent: &Sent<'_>, of: &str) -> bool {
    let variants = sent.received.removed_variants.iter().map(|(name, _)| name);
    sent.received.removed.iter().chain(variants).filter(|name| *name == of).any(|name| {
        let since = sent.before.removed.get(name).map_or(0, |at| *at);
        sent.history[since..]
            .iter()
            .any(|snapshot| snapshot.get(&sent.kind().url().into(), &name.as_str().into()).is_some())
    })
}
