//! No response removes a resource that exists for a locator of the stream (S25, D11, T30, T35).

use super::{Sent, Violation};
use crate::content::{names, selected};

pub(crate) fn check(sent: &Sent<'_>) -> Result<(), Violation> {
    names_are_gone(sent)?;
    variants_are_gone(sent)?;
    absences_are_true(sent)?;
    if sent.after.takes_full_state() { full_state_is_full(sent) } else { Ok(()) }
}

/// T30: the removal of a bare name says that no locator has a resource.
fn names_are_gone(sent: &Sent<'_>) -> Result<(), Violation> {
    for name in &sent.received.removed {
        let locators = sent.after.locators(name);
        if locators.iter().any(|params| selected(sent.snapshot, sent.kind(), name, params).is_some()) {
            return violation(sent, format!("T30: {name} exists"));
        }
    }
    Ok(())
}

/// T30b: no variant is removed that a locator gets.
fn variants_are_gone(sent: &Sent<'_>) -> Result<(), Violation> {
    for (name, sent_with) in &sent.received.removed_variants {
        let locators = sent.after.locators(name);
        let mut variants =
            locators.iter().filter_map(|params| selected(sent.snapshot, sent.kind(), name, params));
        if variants.any(|variant| variant.constraints() == sent_with) {
            return violation(sent, format!("T30b: {name}[{sent_with}] exists"));
        }
    }
    Ok(())
}

/// D10, T30b: a resource that the client now treats as absent does not exist.
fn absences_are_true(sent: &Sent<'_>) -> Result<(), Violation> {
    for (name, params) in sent.after.absent.difference(&sent.before.ideal.absent) {
        if selected(sent.snapshot, sent.kind(), name, params).is_some() {
            return violation(sent, format!("T35: there is {name} for {{{params}}}"));
        }
    }
    Ok(())
}

/// S25: a client deletes what a full state lacks, so a full state has the whole subscription.
fn full_state_is_full(sent: &Sent<'_>) -> Result<(), Violation> {
    for name in names(sent.snapshot, sent.kind()) {
        for params in sent.after.locators(name) {
            let is_there = selected(sent.snapshot, sent.kind(), name, &params).is_some();
            if is_there && sent.after.serves(name, &params).is_none() {
                return violation(sent, format!("S25: {name} for {{{params}}} is left out"));
            }
        }
    }
    Ok(())
}

fn violation(sent: &Sent<'_>, what: String) -> Result<(), Violation> {
    Err(Violation::new("removal", format!("{what}: {}", sent.received)))
}
