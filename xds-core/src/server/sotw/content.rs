//! The content of a SotW response.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{is_glob, possession};
use crate::cache::{LEFT_OUT_LIMIT, RejectedOfType, Removed, Snapshot, Update};
use crate::name::{Revision, Version};
use crate::server::contents::ResponseContents;
use crate::server::diff::Possession;
use crate::server::encode;
use crate::server::owed::Owed;
use crate::server::resolution::Resolution;
use crate::server::type_state::TypeState;
use crate::subscription::Locators;
use crate::variants::Variant;
use crate::wire::Body;

/// Makes the content of a SotW response, with what the server owes the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct SotwContent<'a> {
    state: &'a TypeState,
    owed: &'a Owed,
    resolution: Resolution<'a>,
}

impl<'a> SotwContent<'a> {
    /// The content for a type, before the response is recorded.
    pub(super) fn new(state: &'a TypeState, owed: &'a Owed, snapshot: &'a Snapshot) -> Self {
        Self { state, owed, resolution: state.resolve(snapshot) }
    }

    /// S25: all resources, rejected ones too (S6b), or `None` when nothing changed for the client.
    pub(super) fn full_state(
        self,
        update: &Update,
        everything: &Update,
        must_send: bool,
        version: Version,
    ) -> Option<Vec<Arc<Body>>> {
        let Self { state, owed, resolution } = self;
        let is_removed = |removed: &Removed| {
            removed.variant.existed_at(update.from)
                && state.holding.removed_with(&state.key(&removed.variant)).is_none()
        };
        let removes = must_send || update.removed.iter().any(is_removed) || !update.replaced.is_empty();
        // S17: a name without a resource is no reason to send. S27: an empty wildcard is answered.
        // A client that brings another version may have resources that no longer exist, and only a
        // full state says so (S25).
        let answers = owed.everything
            || owed.is_overtaken
            || owed
                .locators
                .iter()
                .any(|locator| is_glob(&locator.name) || !resolution.find(&locator).is_empty())
            || owed.brought.has(version) == Some(false)
            || !owed.errors.is_empty();
        // S22: resources that the remaining wildcard, with other parameters, does not cover leave
        // the full state.
        let unsubscribed = owed.unsubscribed.iter().flat_map(|locator| resolution.find(&locator));
        let leaves =
            unsubscribed.into_iter().any(|variant| !everything.has(variant.name(), variant.constraints()));
        if !answers && !removes && !leaves && update.changed.is_empty() {
            return None;
        }
        let mut bodies = vec![self.body(everything)];
        let withheld = encode::sotw(state.encoding(), state.holding.withheld());
        if !withheld.is_empty() {
            bodies.push(Arc::new(withheld));
        }
        Some(bodies)
    }

    /// S26: the changes for the client, or `None` when there are none. S6d: `left_out` are contents among
    /// them that other clients rejected alone.
    pub(super) fn partial(
        self,
        resend: &[Arc<Variant>],
        fresh: &Update,
        known: Option<&Arc<RejectedOfType>>,
        left_out: &mut Vec<Arc<Variant>>,
    ) -> Option<(Vec<Arc<Body>>, ResponseContents)> {
        let Self { state, owed, resolution } = self;
        // An update from revision zero has everything.
        let requested = Some(&owed.locators).filter(|_| fresh.from > Revision::ZERO);
        let requested = requested.into_iter().flat_map(Locators::iter);
        let answers = requested.flat_map(|locator| resolution.find(&locator));
        let is_missing = |variant: &Arc<Variant>| !fresh.has(variant.name(), variant.constraints());
        let followers = owed.followers.iter().flat_map(|name| resolution.chosen(name));
        let besides = followers.chain(resend).cloned();
        let mut answers: Vec<_> = answers.chain(besides).filter(is_missing).collect();
        let known = known.filter(|_| answers.len() + fresh.changed.len() > 1);
        let spared = known.and_then(|known| fresh.spare(known));
        let fresh = spared.as_ref().map_or(fresh, |spared| &*spared.update);
        left_out.extend(spared.iter().flat_map(|spared| &*spared.left_out).cloned());
        if let Some(known) = known {
            let room = LEFT_OUT_LIMIT - left_out.len();
            left_out.extend(answers.extract_if(.., |variant| known.has(variant)).take(room));
        }
        if answers.is_empty() {
            // G4: a wildcard that selects nothing is answered too.
            let is_due =
                owed.everything || owed.nothing || !fresh.changed.is_empty() || !owed.errors.is_empty();
            let contents = || ResponseContents::Resources {
                shared: Some(state.encoding().keys(fresh)),
                own: BTreeSet::new(),
            };
            return is_due.then(|| (vec![self.body(fresh)], contents()));
        }
        answers.extend(fresh.changed.iter().cloned());
        answers.sort_unstable_by(|a, b| (a.name(), a.constraints()).cmp(&(b.name(), b.constraints())));
        // S28: no resource twice.
        answers.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let own = answers.iter().map(|variant| state.key(variant)).collect();
        let body = encode::sotw(state.encoding(), answers.iter());
        Some((vec![Arc::new(body)], ResponseContents::Resources { shared: None, own }))
    }

    fn body(self, update: &Update) -> Arc<Body> {
        let encoding = self.state.encoding();
        let make = || Arc::new(encode::sotw(encoding, update.changed.iter()));
        if encoding.is_shared() { Arc::clone(update.made.sotw_body.get_or_init(make)) } else { make() }
    }

    /// The only resource in a response with keys of several names, of which the others do not exist.
    pub(super) fn only_resource(self, contents: &ResponseContents, fresh: &Update) -> Option<Arc<Variant>> {
        if let (ResponseContents::Resources { own, .. }, [only]) = (contents, &fresh.changed[..])
            && own.is_empty()
        {
            return Some(Arc::clone(only));
        }
        let mut found = contents.keys().filter_map(|key| self.resolution.with_key(key));
        let first = found.next()?;
        found.all(|variant| variant.name() == first.name()).then(|| Arc::clone(first))
    }

    /// The only resource that was new in the rejected full state that this one repeats, if that is known.
    pub(super) fn rejected_change(self, update: &Update) -> Option<Arc<Variant>> {
        let is_repeat = update.changed.is_empty() && update.removed.is_empty() && update.replaced.is_empty();
        self.state.responses.rejections().full_state_change().filter(|_| is_repeat).cloned()
    }

    /// Whether the response removes or changes something that the client may have (S6e).
    pub(super) fn makes_room(self, update: &Update, releases: bool) -> bool {
        let known = self.state.terms.known;
        if !known.conflicts && !known.full_state {
            return false;
        }
        let holding = &self.state.holding;
        let subscription = &self.state.subscription;
        // Which of several wildcards is new is not known.
        let is_unclear = self.owed.everything && subscription.wildcards().nth(1).is_some();
        // What it subscribed to since, and what came and went meanwhile, was not sent before.
        let may_have = |variant: &Variant| {
            is_unclear || possession(self.owed, subscription, variant) != Possession::None
        };
        let is_change =
            |variant: &Arc<Variant>| self.resolution.had(variant, update.from) && may_have(variant);
        let changes = update.from > Revision::ZERO && update.changed.iter().any(is_change);
        // The client may have anything from another stream.
        let is_brought = self.owed.brought.version.is_some();
        // S33: a removal that is withheld makes no room.
        let is_removed = |Removed { variant, .. }: &Removed| {
            let key = self.state.key(variant);
            let was_sent = variant.existed_at(update.from) || holding.is_ahead_with(&key, variant);
            was_sent && holding.removed_with(&key).is_none() && may_have(variant)
        };
        let removes = update.removed.iter().any(is_removed) || !update.replaced.is_empty();
        releases || changes || is_brought || removes
    }

    /// The only resource of a full state, or the only change since a state that the client accepted.
    /// `None` if there are others or removals, and if that is not known.
    pub(super) fn only_change(self, update: &Update, everything: &Update) -> Option<Arc<Variant>> {
        let Self { state, .. } = self;
        let only = |of: &Update| match &*of.changed {
            [variant] if of.removed.is_empty() && of.replaced.is_empty() => Some(Arc::clone(variant)),
            _ => None,
        };
        // A full state has removed resources too, as long as the client may use them (S33).
        if state.holding.has_removed() {
            return None;
        }
        only(everything).or_else(|| {
            only(update)
                .filter(|_| state.responses.in_flight().is_empty() && state.responses.rejections().is_empty())
        })
    }
}
