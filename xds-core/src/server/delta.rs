//! The delta protocol: requests and responses of a stream.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::covering::Coverage;
use super::diff::{Diff, Possession};
use super::encode;
use super::entries::TypeEntry;
use super::owed::Owed;
use super::referrers_sent::ReferrersSent;
use super::request::DeltaRequest;
use super::response::{StreamError, Verdict};
use super::stream::Stream;
use super::turn::{Made, Turn};
use super::type_state::TypeState;
use crate::cache::{Snapshot, TypeSnapshot};
use crate::name::{ResourceName, Revision, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locators, Subscription, WILDCARD, can_be, is_set};
use crate::variants::{KeyedBy, Variant};
use crate::wire::{Body, ResourceKey};
use crate::xdstp;

use content::DeltaContent;

mod content;

/// Applies a request: its changes of the subscription, and its ACK or NACK. Returns the index of its type, too.
pub(super) fn on_request(
    stream: &mut Stream,
    now: Duration,
    request: DeltaRequest,
) -> Result<(usize, Option<Verdict>), StreamError> {
    let (at, is_first) = stream.find_or_add(&request.type_url)?;
    let mut request = request;
    let mut ignored = Vec::new();
    if !request.unsubscribe.is_empty() {
        // D19: unsubscribing from an invalid name changes nothing.
        let spelled = stream.entries[at].state.names.spelled.clone();
        ignored = stream.take_invalid(at, &mut request.unsubscribe)?;
        stream.entries[at].state.names.spelled = spelled;
    }
    let mut failures = stream.take_invalid(at, &mut request.subscribe)?;
    stream.note_virtual_hosts(now, &request, is_first);
    let brought = std::mem::take(&mut request.initial_resource_versions);
    let TypeEntry { state, owed } = &mut stream.entries[at];
    // D6: answers are paired with responses by nonce, in any order. D5: an unknown nonce has no
    // effect and blocks nothing.
    let verdict =
        request.response_nonce.and_then(|nonce| state.record_answer(now, nonce, request.error_detail));
    // D17: later requests do not end it.
    if is_first && (!failures.is_empty() || !ignored.is_empty()) {
        state.subscription.end_legacy_wildcard();
    }
    // G8, X6: an invalid name does not exist, so it is sent as removed: Envoy reads removals
    // and no errors (D28).
    let is_unreadable = |name: &ResourceName| !can_be(name.as_str()) || state.terms.canonical(name).is_err();
    let unreadable = failures.iter().map(|failure| &failure.name).filter(|name| is_unreadable(name));
    owed.removals.extend(unreadable.map(ResourceKey::of_name));
    // C4: a client rejects an error without a name.
    failures.retain(|failure| !failure.name.as_str().is_empty());
    // As for a type that is not served (G4): a client that has nothing of the name need not
    // wait for it.
    let denied = failures.iter().filter(|failure| !state.terms.allows(&failure.name));
    let denied = denied.filter(|failure| !brought.contains_key(&failure.name));
    owed.removals.extend(denied.map(|failure| ResourceKey::of_name(&failure.name)));
    state.names.note_denied(&failures, &state.terms.type_url);
    owed.errors.extend(failures);
    // D1: only the first request has the versions that the client has from another stream.
    if is_first {
        // X4: the names of these versions become canonical too.
        let canonical = |name: ResourceName| state.terms.canonical(&name).ok().flatten().unwrap_or(name);
        owed.brought.versions =
            brought.into_iter().map(|(name, version)| (canonical(name), version)).collect();
    }
    // D21: the client drops a resource from which it unsubscribes, so it no longer has the
    // version that it brought.
    request.unsubscribe.all_names().for_each(|name| owed.forget_brought(name));
    if is_first || !request.subscribe.is_empty() || !request.unsubscribe.is_empty() {
        let legacy = state.terms.known.legacy_wildcard;
        let is_giving_up = !state.responses.in_flight().is_empty() && !request.unsubscribe.is_empty();
        let before = is_giving_up.then(|| state.subscription.locators());
        let added = state.subscription.edit(request.subscribe, request.unsubscribe, legacy);
        state.unknown.awaits_wildcards |= added.wildcard;
        // D9: a version that the client brought counts for the subscriptions of the same message.
        if !is_first && state.terms.is_served {
            let is_added = covers_key(&added.locators);
            let brought = owed.brought.versions.iter_mut();
            let added = brought.filter(|(name, _)| added.wildcard || is_added(&ResourceKey::of_name(name)));
            added.for_each(|(_, version)| version.clear());
        }
        let dropped = before.map(|before| before.without(&state.subscription.locators()));
        // By name, the answer to a new subscription replaces everything that the client has of
        // the name.
        let leaves_variants = |dropped: &Locators| {
            state.keyed_by() == KeyedBy::Locator || dropped.names().any(|name| is_set(name.as_str()))
        };
        if let Some(dropped) = dropped.filter(leaves_variants) {
            state.responses.cross_contents(covers_key(&dropped));
        }
        state.terms.check_limit(state.subscription.len(), stream.config.names_limit)?;
        let dropped = state.reselect(&stream.watch);
        if is_first {
            // D1: the client drops resources that it brought and does not subscribe to, so it later
            // has none of these versions.
            let coverage = Coverage::new(&state.subscription, &state.terms, &state.holding);
            let brought = owed.brought.versions.iter_mut();
            let dropped = brought.filter(|(name, _)| !coverage.has(&ResourceKey::of_name(name)));
            dropped.for_each(|(_, version)| version.clear());
        }
        // D18: without a wildcard the client does not wait for these removals.
        owed.removals.extend(dropped.into_iter().filter(|_| state.subscription.is_wildcard()));
        owed.nothing = (is_first || owed.nothing) && !state.holding.is_selecting();
        if !state.terms.is_served {
            // G4: the client keeps what it has, and does not wait for what it does not have.
            // An empty version is one of a resource that the client has dropped since.
            let brought = |name: &&ResourceName| owed.brought.versions.get(*name);
            let has =
                |name: &&ResourceName| brought(name).is_some_and(|version| is_first || !version.is_empty());
            let missing = added.locators.names().filter(|name| !has(name));
            owed.removals.extend(missing.map(ResourceKey::of_name));
            let unserved = state.terms.unserved(added.locators.names());
            state.names.note_denied(&unserved, &state.terms.type_url);
            owed.errors.extend(unserved);
            state.fail_wildcard();
            owed.nothing |= added.wildcard;
            owed.answer_at(now);
            return Ok((at, verdict));
        }
        owed.locators.extend(added.locators);
        state.subscription.retain_covered(&mut owed.locators);
        owed.unsubscribed.extend(added.unsubscribed);
        if !state.subscription.is_wildcard() {
            owed.unsubscribed.clear();
            owed.unsubscribed_later.clear();
        }
        owed.everything = state.subscription.is_wildcard() && (owed.everything || added.wildcard);
    }
    owed.answer_at(now);
    Ok((at, verdict))
}

/// Makes the response of a type that is due; `None` when it turns out that the client needs
/// nothing.
pub(super) fn respond(
    entry: &mut TypeEntry,
    turn: &mut Turn<'_>,
    sent: &ReferrersSent,
) -> Result<Option<Made>, StreamError> {
    let mut owed = std::mem::take(&mut entry.owed);
    let mut unsubscribed_later = std::mem::take(&mut owed.unsubscribed_later);
    let state = &mut entry.state;
    if !state.unknown.wildcard_failures.is_empty() {
        // D18: what the wildcard covers is not known.
        unsubscribed_later.append(&mut owed.unsubscribed);
    }
    owe_reasons(state, &mut owed, turn.snapshot);
    // D11: each subscriber gets a removal once.
    let mut removed: BTreeSet<_> = std::mem::take(&mut turn.released).into_iter().collect();
    removed.extend(owed.removals.iter().cloned());
    removed.extend(crossed(state, &owed, turn));
    let mut content = DeltaContent { removed, ..DeltaContent::default() };
    let since = state.holding.cursor();
    if state.holding.is_selecting() {
        let Diff { update, removed, resend } = diff(state, &mut owed, &mut unsubscribed_later, turn)?;
        content.removed.extend(removed);
        if update.from == Revision::ZERO {
            content.first_answer(state, &owed, &update, sent, turn.now, turn.snapshot);
        } else {
            content.update(state, &owed, &resend, &update, turn.snapshot);
        }
        content.refresh(state, turn.now, update.from, turn.snapshot);
    }
    content.split_unresolved(state, &owed, turn.snapshot);
    content.narrow_names(state, turn.snapshot);
    content.drop_returned();
    let left_out = content.leave_out(turn.known.as_ref());
    if !state.unknown.wildcard_failures.is_empty() {
        // D18: a response with the resource is the answer that waits for the wildcard.
        unsubscribed_later.take(|locator| content.has_all_of(state, locator, turn.snapshot));
    }
    let had = |state: &TypeState, variant: &Arc<Variant>| {
        (since > Revision::ZERO && state.resolve(turn.snapshot).had(variant, since))
            || owed.brought.versions.contains_key(variant.name())
    };
    state.send_last(&left_out, had);
    if content.is_empty() && !is_answer(&owed) {
        entry.owed.unsubscribed_later = unsubscribed_later;
        return Ok(None);
    }
    note_removals_sent(state, &content);
    let errors = (!owed.errors.is_empty()).then(|| encode::errors(state.encoding(), owed.errors.iter()));
    let makes_room = content.makes_room(state, &owed, turn.snapshot);
    let made = send(state, content, errors.map(Arc::new).into_iter().collect(), turn);
    state.responses.sent_room(makes_room);
    if !state.terms.is_served {
        // G4: a later request may name some of it.
        entry.owed.brought = owed.brought;
        entry.owed.answer_at(turn.now);
        return Ok(Some(made));
    }
    if state.terms.known.conflicts {
        state.responses.sent_over(owed.brought.versions.keys().cloned());
    }
    // V25: by locator, what the client brought by name is another resource than the answer.
    if state.keyed_by() == KeyedBy::Locator {
        state.responses.sent_instead(owed.brought.versions.into_keys());
    }
    entry.owed.unsubscribed_later = unsubscribed_later;
    entry.owed.answer_at(turn.now);
    Ok(Some(made))
}

/// S37: only the resource clears the error, also if the client brought it.
fn owe_reasons(state: &TypeState, owed: &mut Owed, snapshot: &Snapshot) {
    let reasons = state.resolve(snapshot).reasons(&owed.locators);
    reasons.iter().for_each(|failure| owed.forget_brought(&failure.name));
    owed.errors.extend(reasons);
}

/// S8b: the client unsubscribed from resources in an unanswered response and subscribes to them
/// again. The keys of those that were removed in the meantime.
fn crossed(state: &mut TypeState, owed: &Owed, turn: &Turn<'_>) -> BTreeSet<ResourceKey> {
    if !owed.everything && owed.locators.is_empty() {
        return BTreeSet::new();
    }
    let is_requested = covers_key(&owed.locators);
    let is_requested = |key: &ResourceKey| owed.everything || is_requested(key);
    let mut crossed = state.responses.take_crossed_contents(is_requested);
    crossed.retain(|key| {
        let chosen = state.resolve(turn.snapshot).chosen(&key.name);
        let is_it = |variant| key.constraints.is_none() || state.key(variant) == *key;
        !chosen.into_iter().any(|variant| is_it(variant))
    });
    // T31: while changes wait, another locator keeps what it has of them until it gets what takes their place.
    if turn.must_wait && !owed.everything {
        let is_new = |name: &ResourceName, parameters: &Parameters| {
            owed.locators.iter().any(|new| new.name == *name && new.parameters == *parameters)
        };
        let keeps = |key: &ResourceKey, parameters: &Parameters| {
            key.matches(parameters) && !is_new(&key.name, parameters)
        };
        crossed
            .retain(|key| !state.subscription.covering(&key.name).any(|parameters| keeps(key, parameters)));
    }
    // T33: the client drops resources that match none of its locators by itself.
    if !crossed.is_empty() {
        let coverage = Coverage::new(&state.subscription, &state.terms, &state.holding);
        crossed.retain(|key| coverage.has(key));
    }
    crossed
}

/// What the client should have, minus what it has. S33: while changes must wait, the answers to its
/// requests alone.
fn diff(
    state: &mut TypeState,
    owed: &mut Owed,
    unsubscribed_later: &mut Locators,
    turn: &Turn<'_>,
) -> Result<Diff, StreamError> {
    let diff = if turn.must_wait && !owed.everything {
        unsubscribed_later.append(&mut owed.unsubscribed);
        state.diff_of_answers(&owed.locators, turn.snapshot)
    } else {
        let keyed_by = state.keyed_by();
        let is_requested = covers_key(&owed.locators);
        let has = |_: &Subscription, removed: &Variant| match is_requested(&removed.key(keyed_by)) {
            // The answer for the name has the removal already. D14: a second removal would do no
            // harm.
            true if keyed_by == KeyedBy::Name && owed.locators.has_name(removed.name()) => Possession::None,
            is_requested if is_requested || owed.everything => Possession::Possible,
            _ => Possession::Certain,
        };
        state.diff(turn.now, turn.snapshot, has)?
    };
    // S34: what follows is sent also if it comes back unchanged.
    owed.followers.iter().for_each(|name| state.holding.forget_content(name));
    Ok(diff)
}

/// D15, S21: a client that subscribes to everything or to nothing gets an answer, even an empty
/// one.
fn is_answer(owed: &Owed) -> bool {
    owed.nothing || !owed.errors.is_empty() || (owed.everything && owed.brought.versions.is_empty())
}

/// A bare name removes everything that the client has of the name.
fn note_removals_sent(state: &mut TypeState, content: &DeltaContent) {
    for key in &content.removed {
        match key.constraints {
            None => state.holding.removed_of(&key.name).iter().for_each(|key| state.on_removal_sent(key)),
            Some(_) => state.on_removal_sent(key),
        }
    }
}

/// S6c: a part of a rejected response.
pub(super) fn part(
    state: &mut TypeState,
    besides: Vec<Arc<Body>>,
    variants: Vec<Arc<Variant>>,
    removed: BTreeSet<ResourceKey>,
    turn: &mut Turn<'_>,
) -> Made {
    let changed = variants.into_iter().map(|variant| (state.key(&variant), variant)).collect();
    let mut content = DeltaContent { changed, removed, ..DeltaContent::default() };
    content.narrow_names(state, turn.snapshot);
    content.drop_returned();
    note_removals_sent(state, &content);
    send(state, content, besides, turn)
}

/// Encodes and records a response. `besides` are errors, and unresolved names from before.
fn send(
    state: &mut TypeState,
    content: DeltaContent,
    mut besides: Vec<Arc<Body>>,
    turn: &mut Turn<'_>,
) -> Made {
    let (now, snapshot) = (turn.now, turn.snapshot);
    let resources = snapshot.of_type(&state.terms.type_url);
    let version = Version(resources.map_or(0, TypeSnapshot::sum));
    if !content.unresolved.is_empty() {
        besides.insert(0, Arc::new(encode::unresolved(state.encoding(), content.unresolved.iter())));
    }
    let mut bodies = besides.clone();
    if !content.heartbeats.is_empty() {
        bodies.push(Arc::new(encode::heartbeats(state.encoding(), now, content.heartbeats.iter())));
    }
    let (resources, contents) = (content.body(state), content.contents(state));
    let alone = content.only(state.encoding());
    let response = state.send(now, turn.nonces.next(), version, (resources, bodies), contents, snapshot);
    state.responses.sent_alone(alone);
    state.responses.sent_besides(&besides);
    state.ttl_refresh.note_sent(now, content.changed(), &state.terms);
    Made { response, is_whole: content.is_whole(), followers: content.followers() }
}

/// Whether the locators cover a key: by its name, or by a set that the name may belong to.
fn covers_key(locators: &Locators) -> impl Fn(&ResourceKey) -> bool {
    let is_wildcard = locators.has_name(&WILDCARD.into());
    move |ResourceKey { name, .. }| {
        let glob = || xdstp::glob_of(name);
        is_wildcard || locators.has_name(name) || glob().is_some_and(|glob| locators.has_name(&glob))
    }
}

#[cfg(test)]
mod split_tests;
#[cfg(test)]
mod tests;
