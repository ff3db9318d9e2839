//! Parts of rejected responses, sent again (S6c), and names for which there may be room now (S6e).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::delta;
use super::encode;
use super::entries::TypeEntry;
use super::order::Gate;
use super::owed::Owed;
use super::rejections::{NextPart, Standing};
use super::turn::{Followers, Made, Turn};
use super::type_state::TypeState;
use crate::cache::{RejectedOfType, Snapshot};
use crate::name::Revision;
use crate::protocol::Protocol;
use crate::variants::{self, Variant};
use crate::wire::{Body, ResourceKey};
use crate::xdstp;

impl TypeEntry {
    /// When the next part may go. S9b: it waits for the answer to the response before it, at most
    /// `ack_wait`.
    /// S33: contents that were left out go when additions may, as `additions` says.
    pub(super) fn part_gate(
        &self,
        now: Duration,
        ack_wait: Duration,
        additions: Gate,
        snapshot: &Snapshot,
    ) -> Gate {
        let responses = &self.state.responses;
        if !self.state.holding.is_selecting() {
            return Gate::Shut;
        }
        let is_in_order = additions == Gate::Open;
        let rejections = responses.rejections();
        let part_at = rejections.part_at(now, is_in_order, |key| self.standing(key, snapshot));
        let waits_until = responses.in_flight().wait_until(now, ack_wait).unwrap_or(now);
        let part = part_at.map_or(Gate::Shut, |at| Gate::at(at.max(waits_until), now));
        if part == Gate::Open || !rejections.have_known_left() {
            return part;
        }
        additions.earlier(part.earlier(None)).map_or(Gate::Shut, Gate::Until)
    }

    /// Makes the next part as a response; `None` if there is none.
    pub(super) fn respond_with_part(&mut self, is_in_order: bool, turn: &mut Turn<'_>) -> Option<Made> {
        let (now, snapshot) = (turn.now, turn.snapshot);
        let mut rejections = std::mem::take(self.state.responses.rejections_mut());
        let is_known = |key: &ResourceKey| {
            turn.known.as_ref().is_some_and(|known| self.state.is_known(key, known, snapshot))
        };
        let standing = |key: &ResourceKey| match self.standing(key, snapshot) {
            Standing::Live if is_known(key) => Standing::Known,
            standing => standing,
        };
        let part = rejections.take_part(now, is_in_order, turn.nonces.upcoming(), standing);
        *self.state.responses.rejections_mut() = rejections;
        part.map(|part| self.state.make_part(part, turn))
    }

    /// D8: a name that the client subscribed to again, itself or by a wildcard or glob, goes with the answer,
    /// if anything of it does.
    fn standing(&self, key: &ResourceKey, snapshot: &Snapshot) -> Standing {
        let Owed { everything, locators, .. } = &self.owed;
        let has_glob = || xdstp::glob_of(&key.name).is_some_and(|glob| locators.has_name(&glob));
        if *everything || locators.has_name(&key.name) || has_glob() {
            return Standing::Waits;
        }
        self.state.standing(key, snapshot)
    }
}

impl TypeState {
    fn make_part(&mut self, part: NextPart, turn: &mut Turn<'_>) -> Made {
        let snapshot = turn.snapshot;
        let mut variants = Vec::new();
        let mut removed = BTreeSet::new();
        for key in &part.keys {
            // V29: what the client has of these is not known, also if they come back before their removal.
            self.holding.forget_content(&key.name);
            match self.resolve(snapshot).with_key(key) {
                Some(variant) => variants.push(Arc::clone(variant)),
                None => _ = removed.insert(key.clone()),
            }
        }
        // S6e: what the client was sent before may have had another place.
        let resolution = self.resolve(snapshot);
        let is_change = |of: &Arc<Variant>| of.has_changed() || resolution.predecessors(of).next().is_some();
        let makes_room =
            part.makes_room.unwrap_or_else(|| !removed.is_empty() || variants.iter().any(is_change));
        let made = match self.terms.protocol {
            Protocol::Sotw => self.sotw_part(part.besides, variants, turn),
            Protocol::Delta => delta::part(self, part.besides, variants, removed, turn),
        };
        self.responses.sent_room(makes_room);
        made
    }

    fn sotw_part(
        &mut self,
        besides: Vec<Arc<Body>>,
        variants: Vec<Arc<Variant>>,
        turn: &mut Turn<'_>,
    ) -> Made {
        let followers = variants::followers(variants.iter().map(|variant| (variant, Revision::ZERO)));
        let body = Arc::new(encode::sotw(self.encoding(), variants.iter()));
        let own = variants.iter().map(|variant| self.key(variant)).collect();
        let contents = ResponseContents::Resources { shared: None, own };
        let version = self.resolve(turn.snapshot).version();
        let nonce = turn.nonces.next();
        let response = self.send(turn.now, nonce, version, (body, besides.clone()), contents, turn.snapshot);
        let only = if variants.len() == 1 { variants.into_iter().next() } else { None };
        self.responses.sent_alone(only);
        self.responses.sent_besides(&besides);
        Made { response, followers: Followers::Some(followers), is_whole: false }
    }

    fn is_known(&self, key: &ResourceKey, known: &RejectedOfType, snapshot: &Snapshot) -> bool {
        self.resolve(snapshot).with_key(key).is_some_and(|variant| known.has(variant))
    }

    /// What there is of a key when its part may go. S33: what changed after the cursor is sent as a change
    /// when the order allows it.
    fn standing(&self, key: &ResourceKey, snapshot: &Snapshot) -> Standing {
        let cursor = self.holding.cursor();
        if let Some(variant) = self.resolve(snapshot).with_key(key) {
            let is_changed = variant.changed_at > cursor && !self.holding.is_ahead_with(key, variant);
            return if is_changed { Standing::Waits } else { Standing::Live };
        }
        let resources = snapshot.of_type(&self.terms.type_url).into_iter();
        let removals = resources.flat_map(|of| of.removals().after(&key.name, cursor));
        let mut removals = removals.filter(|removed| removed.variant.existed_at(cursor));
        let is_withheld = self.holding.removed_with(key).is_some() && self.holding.withholds(&key.name);
        match is_withheld || removals.any(|removed| self.key(&removed.variant) == *key) {
            // S26: SotW has no removal.
            _ if self.terms.protocol == Protocol::Sotw => Standing::Gone,
            true => Standing::Waits,
            false => Standing::Removed,
        }
    }
}
