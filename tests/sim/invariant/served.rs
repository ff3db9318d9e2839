//! Each resource that is sent is one that a locator of the stream selects, in the form that the
//! client understands (T3, T24, T25, T46).

use xds_core::{Constraints, Snapshot};

use super::{Sent, Violation};
use crate::content::{Content, selected};
use crate::wire::Item;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    for item in &sent.received.resources {
        if item.sent_with.is_some() != sent.after.knows_locators {
            return violation(sent, item, "T24: the client does not understand this form");
        }
        if !is_selected(sent, item, sent.snapshot) && !is_held(sent, item) {
            return violation(sent, item, "T3: no locator of the stream selects this");
        }
    }
    Ok(())
}

/// Whether a snapshot has it for one of the locators.
fn is_selected(sent: &Sent<'_>, item: &Item, snapshot: &Snapshot) -> bool {
    let locators = sent.after.locators(&item.name);
    let mut variants =
        locators.iter().filter_map(|params| selected(snapshot, sent.kind(), &item.name, params));
    variants.any(|variant| {
        // A client that subscribes by name is not sent the constraints.
        let is_it = item.sent_with.as_ref().is_none_or(|sent_with| sent_with == variant.constraints());
        is_it && Content::of(sent.kind(), variant.payload()).is_ok_and(|content| content == item.content)
    })
}

/// S33: a full state still has a removed resource that may be in use: as it was sent, or with its
/// last content. A full state of a proxy has everything that left its cache, until the proxy knows
/// that nothing exists for the client (T43).
fn is_held(sent: &Sent<'_>, item: &Item) -> bool {
    let has_referrers = !sent.kind().known().referrers.is_empty();
    let had: Vec<_> = sent.before.ideal.held.iter().filter(|((name, _), _)| *name == item.name).collect();
    // V25: a resource that was sent by name is sent again with its constraints.
    let is_it = |held: &Constraints| {
        item.sent_with.as_ref().is_none_or(|sent_with| sent_with == held || held.is_unconstrained())
    };
    let was_sent = had.iter().any(|((_, held), had)| is_it(held) && had.content == item.content);
    let is_asked = sent.after.locators(&item.name).iter().any(|params| item.constraints().matches(params));
    let mut since =
        sent.history.iter().skip(had.iter().map(|(_, had)| had.sent_at).min().unwrap_or(usize::MAX));
    let mut is_last = || since.any(|snapshot| is_selected(sent, item, snapshot));
    // If the client subscribed again before the server could respond, the removal was never sent.
    let mut states = sent.history.iter();
    // S32: on a new stream the version of a client says what it has, also of what it rejected.
    let is_brought = !sent.before.is_answered;
    if (sent.is_relayed || is_brought) && sent.after.takes_full_state() {
        return states.any(|snapshot| is_selected(sent, item, snapshot));
    }
    sent.after.takes_full_state() && has_referrers && ((was_sent && is_asked) || is_last())
}

fn violation(sent: &Sent<'_>, item: &Item, what: &str) -> Result<(), Violation> {
    Err(Violation::new("served", format!("{what}: {} in {}", item.name, sent.received)))
}
