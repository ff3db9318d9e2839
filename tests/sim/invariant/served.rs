//! What is sent is what a locator of the stream selects, in the form that the client understands (T3, T24, T25, T46).

use xds_core::Constraints;

use super::{Sent, Violation};
use crate::content::{Content, selected};
use crate::exceptions::is_held_for_former_names;
use crate::wire::Item;

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    for item in &sent.received.resources {
        if item.told.is_some() != sent.after.knows_locators {
            return violation(sent, item, "T24: the client does not understand this form");
        }
        if !is_selected(sent, item)? && !is_held(sent, item) && !is_held_for_former_names(sent, item) {
            return violation(sent, item, "T3: no locator of the stream selects this");
        }
    }
    Ok(())
}

/// Whether the newest snapshot has it for one of the locators.
fn is_selected(sent: &Sent<'_>, item: &Item) -> Result<bool, Violation> {
    for params in sent.after.locators(&item.name) {
        let Some(variant) = selected(sent.snapshot, sent.kind(), &item.name, &params) else { continue };
        let content = Content::of(sent.kind(), variant.payload());
        let content = content.map_err(|error| Violation::new("served", error))?;
        // Who asks by name is not told the constraints.
        let is_it = item.told.as_ref().is_none_or(|told| told == variant.constraints());
        if is_it && content == item.content {
            return Ok(true);
        }
    }
    Ok(false)
}

/// S33: a full state goes on holding what is gone and may still be in use, as it was sent before.
fn is_held(sent: &Sent<'_>, item: &Item) -> bool {
    let has_referrers = !sent.kind().known().referrers.is_empty();
    let is_it = |constraints: &Constraints| {
        // V25: what was sent by name comes again with its constraints.
        item.told.as_ref().is_none_or(|told| told == constraints || constraints.is_unconstrained())
    };
    let mut held = sent.before.ideal.held.iter();
    let was_sent = held.any(|((name, constraints), held)| {
        *name == item.name && held.content == item.content && is_it(constraints)
    });
    let is_asked = sent.after.locators(&item.name).iter().any(|params| item.constraints().matches(params));
    sent.after.takes_full_state() && has_referrers && was_sent && is_asked
}

fn violation(sent: &Sent<'_>, item: &Item, what: &str) -> Result<(), Violation> {
    Err(Violation::new("served", format!("{what}: {} in {}", item.name, sent.received)))
}
