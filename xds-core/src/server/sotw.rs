//! The state-of-the-world protocol: requests and responses of a stream.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::answers::{LocatorAnswer, NamePresence};
use super::contents::ResponseContents;
use super::covering::covering_locators;
use super::diff::{Diff, Possession};
use super::encode;
use super::entries::TypeEntry;
use super::order::Release;
use super::owed::Owed;
use super::request::SotwRequest;
use super::response::{StreamError, Verdict};
use super::stream::Stream;
use super::turn::{Followers, Made, Turn};
use super::type_state::TypeState;
use crate::cache::{Snapshot, Update};
use crate::code::Code;
use crate::name::{ResourceName, Revision, Version};
use crate::subscription::{Locator, Locators, Subscription};
use crate::variants::{self, KeyedBy, Variant};
use crate::wire::{Failure, ResourceKey};
use crate::xdstp::{self, XdstpName};

use content::SotwContent;

mod content;

/// Applies a request: its subscription, and its ACK or NACK. Returns the index of its type, too.
pub(super) fn on_request(
    stream: &mut Stream,
    now: Duration,
    request: SotwRequest,
) -> Result<(usize, Option<Verdict>), StreamError> {
    let (at, is_first) = stream.find_or_add(&request.type_url)?;
    let mut request = request;
    let failures =
        request.requested.as_mut().map(|requested| stream.take_invalid(at, requested)).transpose()?;
    let TypeEntry { state, owed } = &mut stream.entries[at];
    // S10: before the first response no nonce is stale.
    let last = state.responses.in_flight().last();
    let is_current = last.is_none() || request.response_nonce == last;
    let verdict =
        request.response_nonce.and_then(|nonce| state.record_answer(now, nonce, request.error_detail));
    if is_current {
        if matches!(verdict, Some(Verdict::Nacked { .. })) {
            state.responses.reject_in_flight();
        }
        // S8c: a client that answers the newest response does not answer those before it.
        state.responses.forget_in_flight();
    }
    // S1: the first request has the version that the client has from another stream.
    if is_first {
        owed.brought.version = Some(request.version_info).filter(|version| !version.is_empty());
    }
    // S7: an ACK with the same names as before changes nothing.
    if let Some(failures) = failures {
        // S37: reported once, although each request repeats the name.
        let mut failures: BTreeSet<_> = failures.into_iter().collect();
        if !failures.is_empty() {
            state.subscription.end_legacy_wildcard();
        }
        // G8: some clients unsubscribe with an empty name, and clients reject an error without
        // a name (C4).
        failures.retain(|failure| !failure.name.as_str().is_empty());
        let new: Vec<_> = failures.difference(&state.names.reported_errors).cloned().collect();
        state.names.note_denied(&new, &state.terms.type_url);
        owed.errors.extend(new);
        state.names.reported_errors = failures;
    }
    if let Some(requested) = request.requested {
        if !is_first && let Some(brought) = &mut owed.brought.version {
            // S32: the version that the client brought is about its first subscription.
            brought.clear();
        }
        let is_late = state.terms.known.full_state && !is_current;
        let before = is_late.then(|| state.subscription.locators());
        let added = state.subscription.replace(requested, state.terms.known.legacy_wildcard);
        state.unknown.awaits_wildcards |= added.wildcard;
        // S24: an error may have waited for the answers to other names, and the client may have given up its name
        // meanwhile.
        let is_requested = |failure: &Failure| {
            state.names.reported_errors.contains(failure) || state.subscription.lists_name(&failure.name)
        };
        owed.errors.retain(is_requested);
        // S8b: a client that subscribes again before that response arrives takes the resource
        // from it.
        let was_crossed = is_current && state.responses.take_crossed();
        if before.is_some_and(|before| !before.without(&state.subscription.locators()).is_empty()) {
            state.responses.cross();
        }
        state.terms.check_limit(state.subscription.len(), stream.config.names_limit)?;
        _ = state.reselect(&stream.watch);
        if !state.terms.is_served && !state.terms.known.full_state {
            // G4: but not in a full state, which without resources would delete them.
            let unserved = state.terms.unserved(added.locators.names());
            state.names.note_denied(&unserved, &state.terms.type_url);
            owed.errors.extend(unserved);
            state.fail_wildcard();
            owed.nothing |= added.wildcard;
        }
        // S8b: owed are names that were subscribed to and not sent; names that the client
        // unsubscribed from are not.
        state.subscription.retain_covered(&mut owed.locators);
        owed.followers.retain(|name| state.subscription.covers(name));
        // S15, S16: sent whatever version the client has, even if it was sent before.
        if state.terms.is_served {
            owed.locators.extend(added.locators);
        }
        let is_wildcard = state.terms.is_served && state.subscription.is_wildcard();
        owed.is_overtaken |= (is_late || was_crossed) && !owed.locators.is_empty();
        owed.everything = is_wildcard && (owed.everything || added.wildcard);
        if !is_wildcard {
            owed.unsubscribed.clear();
        }
        if state.terms.known.full_state {
            owed.unsubscribed.extend(added.unsubscribed);
        }
        // V25: resources that were sent by name are sent again with constraints, or removed.
        owed.everything |= state.holding.is_switching() && last.is_some();
    }
    // S8: a stale request is not answered at once, but its names are not forgotten.
    owed.answer_at(if is_current { now } else { now + stream.config.owed_wait });
    Ok((at, verdict))
}

/// Makes the response of a type that is due; `None` when it turns out that the client needs
/// nothing.
pub(super) fn respond(entry: &mut TypeEntry, turn: &mut Turn<'_>) -> Result<Option<Made>, StreamError> {
    let mut owed = std::mem::take(&mut entry.owed);
    let state = &mut entry.state;
    if !state.holding.is_selecting() {
        return Ok(errors_alone(state, &owed, turn));
    }
    let is_answer_only = turn.must_wait && !owed.everything && !state.terms.known.full_state;
    let Diff { update, mut resend, .. } = diff(state, &owed, is_answer_only, turn)?;
    report_missing(state, &mut owed, &update, turn);
    // S40: a heartbeat would delete the resource, or not extend its TTL, so the content is sent
    // again.
    let refreshed = state.take_refresh(turn.now, update.from, turn.snapshot);
    let needs_everything = owed.everything || state.terms.known.full_state;
    let everything = match needs_everything {
        true => state.resolve(turn.snapshot).everything(&update),
        false => Arc::clone(&update),
    };
    let version = version(state, is_answer_only, turn.snapshot);
    // S32: only a wildcard selects for sure what it selected on the stream before.
    let is_comparable = state.terms.known.full_state && state.subscription.is_wildcard();
    if is_comparable && owed.errors.is_empty() && owed.brought.has(version) == Some(true) {
        return Ok(None);
    }
    let mut left_out = Vec::new();
    let content = SotwContent::new(state, &owed, turn.snapshot);
    // S6e: there may be room now for what was rejected.
    let repeats = state.responses.rejections().repeat_at().is_some_and(|at| at <= turn.now);
    let made = if state.terms.known.full_state {
        let must_send = !turn.released.is_empty() || !refreshed.is_empty() || repeats;
        let bodies = content.full_state(&update, &everything, must_send, version);
        bodies.map(|bodies| (bodies, ResponseContents::FullState))
    } else {
        resend.extend(refreshed);
        content.partial(&resend, &everything, turn.known.as_ref(), &mut left_out)
    };
    let Some((mut bodies, contents)) = made else {
        state.send_last(&left_out, |_, _| false);
        return Ok(None);
    };
    let resources = bodies.remove(0);
    let errors_at = bodies.len();
    let mut errors = owed.errors.clone();
    if state.terms.known.full_state {
        errors.extend(state.standing_failures(turn.snapshot));
    }
    if !errors.is_empty() {
        bodies.push(Arc::new(encode::errors(state.encoding(), errors.iter())));
    }
    let alone = content.only_resource(&contents, &everything).or_else(|| {
        if !matches!(contents, ResponseContents::FullState) {
            return None;
        }
        let is_update_only = !owed.everything && owed.locators.is_empty();
        content
            .only_change(if is_update_only { &update } else { &everything }, &everything)
            .or_else(|| content.rejected_change(&update).filter(|_| is_update_only))
    });
    let makes_room = content.makes_room(&update, !turn.released.is_empty());
    let besides = bodies.get(errors_at..).unwrap_or_default().to_vec();
    let followers = followers(&owed, &update, everything, repeats);
    state.send_last(&left_out, |_, _| false);
    let nonce = turn.nonces.next();
    let response = state.send(turn.now, nonce, version, (resources, bodies), contents, turn.snapshot);
    state.responses.sent_alone(alone);
    state.responses.sent_room(makes_room);
    state.responses.sent_besides(&besides);
    Ok(Some(Made { response, followers, is_whole: false }))
}

/// The response to a client that selects nothing: errors, if there are any.
fn errors_alone(state: &mut TypeState, owed: &Owed, turn: &mut Turn<'_>) -> Option<Made> {
    // G4: a full state without resources would delete what the client has.
    if !state.terms.is_served && state.terms.known.full_state {
        return None;
    }
    let version = state.resolve(turn.snapshot).version();
    let nonce = turn.nonces.next();
    state.sent(turn.now, nonce, ResponseContents::nothing(), Vec::new(), turn.snapshot);
    let errors = Arc::new(encode::errors(state.encoding(), owed.errors.iter()));
    let bodies = [errors].into_iter().chain(state.wildcard_errors()).collect();
    Some(Made::without_resources(state.terms.response(nonce, version, bodies, false)))
}

/// What the client should have, minus what it has. S33: while changes must wait, the answers to its
/// requests alone.
fn diff(
    state: &mut TypeState,
    owed: &Owed,
    is_answer_only: bool,
    turn: &Turn<'_>,
) -> Result<Diff, StreamError> {
    // A removal is not withheld from locators that are newly subscribed: with the full state they
    // would get a resource that no longer exists.
    let has = |subscription: &Subscription, removed: &Variant| possession(owed, subscription, removed);
    let diff = match is_answer_only {
        true => state.diff_of_answers(&owed.locators, turn.snapshot),
        false => state.diff(turn.now, turn.snapshot, has)?,
    };
    // S34: what follows is sent also if it comes back unchanged.
    owed.followers.iter().for_each(|name| state.holding.forget_content(name));
    Ok(diff)
}

/// Whether the client has a variant that the cache had for its locators: it does not for those that it has
/// just subscribed to.
fn possession(owed: &Owed, subscription: &Subscription, variant: &Variant) -> Possession {
    let is_new = |locator: Locator| {
        owed.locators.contains(&locator) || (owed.everything && !subscription.lists(&locator))
    };
    let are_new: Vec<bool> = covering_locators(subscription, variant).map(is_new).collect();
    match are_new.contains(&true) {
        _ if !are_new.contains(&false) => Possession::None,
        true => Possession::Possible,
        false => Possession::Certain,
    }
}

/// S37: owes errors for what does not exist, if the client is to have them.
fn report_missing(state: &mut TypeState, owed: &mut Owed, update: &Update, turn: &mut Turn<'_>) {
    if !turn.config.sotw_not_found {
        if !state.terms.known.full_state {
            // S26: without resource errors no response can remove a resource of such a type.
            state.release(&Release::now(), Duration::ZERO, turn.now, turn.snapshot);
        }
        return;
    }
    // S25: a full state without a resource removes it. But clients do not take the absence of a
    // new name from it, because the response may be older than the request.
    let mut removed = BTreeSet::new();
    if !state.terms.known.full_state {
        removed.extend(std::mem::take(&mut turn.released));
        if update.from > Revision::ZERO {
            removed.extend(state.encoding().immediate_removals(update));
        }
        removed = removed.into_iter().flat_map(|key| lost(state, key, turn.snapshot)).collect();
    }
    owed.errors.extend(missing(state, removed, &owed.locators, turn.snapshot));
}

/// S31: the version of what the client should have.
fn version(state: &TypeState, is_answer_only: bool, snapshot: &Snapshot) -> Version {
    match state.resolve(snapshot).version() {
        // The response lacks some changes of the snapshot, so it must not have the snapshot's
        // version.
        Version(sum) if is_answer_only => Version(sum.wrapping_add(1)),
        version => version,
    }
}

/// S34, S34b, S36: what follows the resources that are sent, whether it changed or not. S6e: in a full
/// state that is repeated, any of them may be new for the client.
fn followers(owed: &Owed, update: &Update, everything: Arc<Update>, is_repeated: bool) -> Followers {
    let is_all_fresh = owed.everything || update.from == Revision::ZERO || is_repeated;
    if is_all_fresh {
        return Followers::Of(everything);
    }
    let has_globs = owed.locators.names().any(is_glob);
    let fresh = everything.changed.iter().filter_map(|variant| {
        let is_answer = has_globs || owed.locators.has_name(variant.name());
        let since = if is_answer { Revision::ZERO } else { update.from };
        (is_answer || variant.changed_at > since).then_some((variant, since))
    });
    Followers::Some(variants::followers(fresh))
}

/// S37, V8: errors for `missing` resources and requested ones that do not exist. T36: if the name has
/// several locators, an error has constraints that say which one it is about.
fn missing(
    state: &mut TypeState,
    mut missing: BTreeSet<ResourceKey>,
    requested: &Locators,
    snapshot: &Snapshot,
) -> Vec<Failure> {
    let mut presence = NamePresence::new();
    for locator in requested.iter() {
        if let LocatorAnswer::Absent(keys) = state.answer(&locator, &mut presence, snapshot) {
            missing.extend(keys);
        }
    }
    missing.retain(|key| state.resolve(snapshot).with_key(key).is_none());
    let mut failures = state.resolve(snapshot).reasons(requested);
    missing.retain(|key| !failures.iter().any(|failure| failure.name == key.name));
    let failure = |ResourceKey { name, constraints }| {
        let message = format!("{} {name:?} does not exist", state.terms.type_url.message_name());
        let constraints = constraints.unwrap_or_default();
        Failure { constraints, ..Failure::new(name, Code::NOT_FOUND, message) }
    };
    failures.extend(missing.into_iter().map(failure));
    failures
}

/// The keys under which resource errors say that a removed variant is lost. T31: a locator that gets another
/// variant has not lost the resource, and an error with the constraints of the removed variant would say so.
fn lost(state: &TypeState, removed: ResourceKey, snapshot: &Snapshot) -> Vec<ResourceKey> {
    let (type_url, name) = (&state.terms.type_url, &removed.name);
    let variants = snapshot.get(type_url, name).filter(|_| state.terms.allows(name));
    let Some(variants) = variants.filter(|_| state.keyed_by() == KeyedBy::Locator) else {
        return vec![removed];
    };
    let names = [name.clone()].into_iter().chain(xdstp::glob_of(name));
    let holders = names.flat_map(|name| state.subscription.covering(&name).cloned().collect::<Vec<_>>());
    let (served, lost): (Vec<_>, Vec<_>) = holders
        .filter(|parameters| removed.matches(parameters))
        .partition(|parameters| variants.resolve(parameters).is_some());
    if served.is_empty() {
        return vec![removed];
    }
    // T36.
    let constraints = lost.iter().filter_map(|parameters| variants.unmatched(parameters));
    constraints.map(|constraints| ResourceKey::of_variant(name, constraints)).collect()
}

/// X12: a glob without members is answered: only an empty state shows that there are none.
fn is_glob(name: &ResourceName) -> bool {
    XdstpName::of(name.as_str()).is_ok_and(|name| name.is_some_and(|name| name.is_glob()))
}

#[cfg(test)]
mod passing_tests;
#[cfg(test)]
mod tests;
