//! What a client rejected of one type on one stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::alone::Alone;
use super::full_state::FullStateNack;
use super::split::{self, Split, SplitId, Standing};
use super::{Answer, Nack, NackOf, NextPart};
use crate::cache::Spans;
use crate::name::{Nonce, ResourceName};
use crate::server::contents::ResponseContents;
use crate::server::in_flight::{Sent, SentExtra};
use crate::variants::Variant;
use crate::wire::ResourceKey;

/// What was rejected of one type on one stream.
///
/// A name is in one split at most, and not in a split and among those that were rejected alone.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    /// Oldest first.
    pub(super) splits: Vec<Split>,
    pub(super) alone: BTreeMap<ResourceName, Alone>,
    /// The oldest of those that were rejected alone, when there are too many.
    pub(super) rest: Option<Rest>,
    pub(super) full_state: Option<FullStateNack>,
    pub(super) last_split: SplitId,
    /// Whether the newest response was a part: then other changes go next, and neither starves.
    pub(super) part_went: bool,
    /// Whether the client was announced parts that follow (D32).
    pub(super) is_announced: bool,
    /// Names of which the client brought a content from another stream, until it accepts another (S6e).
    pub(super) brought: BTreeSet<ResourceName>,
    /// Contents that were rejected alone since the server looked last.
    pub(super) found: Vec<Arc<Variant>>,
}

/// Names that were rejected, each alone, of which only the newest message is known.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) keys: BTreeSet<ResourceKey>,
    pub(super) nack: Nack,
}

impl Rejected {
    /// The client rejected a part; `None` if the response was none.
    pub(super) fn on_nack_of_part(&mut self, sent: &Sent, answer: &Answer<'_>) -> Option<NackOf> {
        let &Answer { nonce, detail, now, .. } = answer;
        if let Some(alone) = self.alone.values_mut().find(|alone| alone.is_resent_in(nonce)) {
            alone.on_nack(nonce, detail, now);
            return Some(NackOf::Repeat);
        }
        let answered = self.splits.iter_mut().find_map(|split| Some((split.answered(nonce)?, split)));
        let (part, split) = answered?;
        let of = if split.nacked_at.is_none() { NackOf::Known } else { NackOf::Repeat };
        let nacked_at = split.nacked_at.unwrap_or(now);
        if let Some(keys) = split.on_nack(part) {
            let nack = Nack { about: split.nack.about.clone(), detail: detail.into() };
            let nack = nack.of_content(sent.alone.as_deref());
            let id = split.nacked_at.map(|_| split.id);
            for (name, keys) in split::by_name(keys) {
                let alone = Alone::new(keys, nack.clone(), id, nonce, (nacked_at, now));
                self.reject_alone(name, alone, sent.alone.as_ref());
            }
        }
        Some(of)
    }

    /// The client rejected a response that was no part.
    pub(super) fn on_nack(&mut self, sent: Sent, had_one_name: bool, answer: &Answer<'_>) {
        let &Answer { nonce, detail, now, .. } = answer;
        let SentExtra { besides, brought, .. } = sent.extra.map(|extra| *extra).unwrap_or_default();
        self.brought.extend(brought);
        let alone = sent.alone;
        let mut nack = Nack { about: sent.brings, detail: detail.into() };
        if matches!(sent.contents, ResponseContents::FullState) {
            let before = self.full_state.take();
            self.full_state = Some(FullStateNack::new(nack, alone, sent.makes_room, before, now));
            return;
        }
        // SotW: of these names only one had a resource.
        let is_it = |key: &&ResourceKey| alone.as_ref().is_none_or(|alone| *alone.name() == key.name);
        let had_one_name = had_one_name || alone.is_some();
        let mut names = split::by_name(sent.contents.keys().filter(is_it).cloned());
        for name in names.keys() {
            if let Some(before) = self.take_alone(name) {
                nack.about.extend(&before.nack.about);
            }
        }
        if had_one_name {
            let nack = nack.of_content(alone.as_deref());
            for (name, keys) in names {
                // What is to be sent of the name, or not answered yet, decides.
                if let Some(split) = self.splits.iter_mut().find(|split| split.has_name(&name)) {
                    split.nack.about.extend(&nack.about);
                    continue;
                }
                let rejected = Alone::new(keys, nack.clone(), None, nonce, (now, now));
                self.reject_alone(name, rejected, alone.as_ref());
            }
        } else if !names.is_empty() {
            self.join_left(&mut names, &mut nack.about);
            let keys = names.into_values().flatten().collect();
            let id = self.next_split();
            self.add(Split::of(id, keys, besides, nack, now));
        }
    }

    /// S6c: the unit is the name. What is left of these names from earlier responses goes with them.
    pub(super) fn join_left(
        &mut self,
        names: &mut BTreeMap<ResourceName, BTreeSet<ResourceKey>>,
        about: &mut Spans,
    ) {
        for split in &mut self.splits {
            let left = split.take_names(names);
            if !left.is_empty() {
                about.extend(&split.nack.about);
            }
            for key in left {
                names.entry(key.name.clone()).or_default().insert(key);
            }
        }
    }

    pub(super) fn next_split(&mut self) -> SplitId {
        self.last_split.0 += 1;
        self.last_split
    }

    pub(super) fn add(&mut self, split: Split) {
        let of_nacks = self.splits.iter_mut().filter(|of| of.nacked_at.is_some());
        match of_nacks.enumerate().last() {
            Some((at, newest)) if at + 1 >= SPLITS_LIMIT && split.nacked_at.is_some() => newest.absorb(split),
            _ => self.splits.push(split),
        }
    }

    /// S6d: if the name had one variant, `content` is noted for other streams.
    fn reject_alone(&mut self, name: ResourceName, alone: Alone, content: Option<&Arc<Variant>>) {
        self.found.extend(content.filter(|content| *content.name() == name).cloned());
        self.alone.insert(name, alone);
        let oldest = self.alone.iter().min_by_key(|(_, alone)| alone.nacked_at).map(|(name, _)| name.clone());
        if let Some(name) = oldest.filter(|_| self.alone.len() > ALONE_LIMIT)
            && let Some(Alone { keys, nack, .. }) = self.take_alone(&name)
        {
            let rest = self.rest.get_or_insert_default();
            rest.keys.extend(keys);
            rest.nack.about.extend(&nack.about);
            rest.nack.detail = nack.detail;
        }
    }

    pub(super) fn take_alone(&mut self, name: &ResourceName) -> Option<Alone> {
        let alone = self.alone.remove(name)?;
        self.splits.iter_mut().for_each(|split| split.forget_found(name));
        Some(alone)
    }

    /// Forgets the rejection of what is corrected by the response with this nonce, or given up.
    pub(super) fn correct(&mut self, by: Option<Nonce>, mut is_corrected: impl FnMut(&ResourceKey) -> bool) {
        let mut is_left = |key: &ResourceKey| !is_corrected(key);
        let mut corrected = Vec::new();
        let is_older = |alone: &Alone| by.is_none_or(|nonce| alone.is_older_than(nonce));
        for (name, alone) in self.alone.iter_mut().filter(|(_, alone)| is_older(alone)) {
            alone.keys.retain(&mut is_left);
            if alone.keys.is_empty() {
                corrected.push(name.clone());
            }
        }
        self.rest.iter_mut().for_each(|rest| rest.keys.retain(&mut is_left));
        corrected.iter().for_each(|name| _ = self.take_alone(name));
    }

    /// Whether the response with this nonce is a part, or a resend.
    pub(super) fn is_part(&self, nonce: Nonce) -> bool {
        self.splits.iter().any(|split| split.has_sent(nonce))
            || self.alone.values().any(|alone| alone.is_resent_in(nonce))
    }

    /// Each name is in one part at most, and not also among those that were rejected alone.
    pub(super) fn check(&self) {
        if cfg!(debug_assertions) {
            let mut names = BTreeSet::new();
            for part in self.splits.iter().flat_map(Split::part_names) {
                for name in part {
                    assert!(!self.alone.contains_key(name), "{name} was rejected alone, and is in a part");
                    assert!(names.insert(name.clone()), "{name} is in two parts");
                }
            }
        }
    }

    /// Whether so many contents were left out of responses that no further ones are.
    pub(super) fn leaves_nothing_out(&self) -> bool {
        self.splits.iter().filter(|split| split.nacked_at.is_none()).count() >= SPLITS_LIMIT
    }

    /// Whether contents that were left out of a response are still to be sent (S6d).
    pub(super) fn has_known_left(&self) -> bool {
        self.splits.iter().any(|split| split.nacked_at.is_none() && split.waiting().next().is_some())
    }

    pub(super) fn take_part(
        &mut self,
        now: Duration,
        is_in_order: bool,
        nonce: Nonce,
        standing: &impl Fn(&ResourceKey) -> Standing,
    ) -> Option<NextPart> {
        let mut next = self.next_part(now, is_in_order, nonce, standing)?;
        let is_over_brought = next.keys.iter().any(|key| self.brought.contains(&key.name));
        next.makes_room = next.makes_room.or_else(|| is_over_brought.then_some(true));
        Some(next)
    }

    fn next_part(
        &mut self,
        now: Duration,
        is_in_order: bool,
        nonce: Nonce,
        standing: &impl Fn(&ResourceKey) -> Standing,
    ) -> Option<NextPart> {
        let mut splits = self.splits.iter_mut().filter(|split| {
            let may_go = split.nacked_at.is_some() || is_in_order;
            may_go && split.waits_until().is_none_or(|at| at <= now)
        });
        if let Some(next) = splits.find_map(|split| split.take(nonce, standing)) {
            return Some(next);
        }
        let is_due = |alone: &Alone| alone.resend_at().is_some_and(|at| at <= now);
        let alone = self.alone.values_mut().find(|alone| is_due(alone) && alone.may_be_resent(standing))?;
        alone.on_resent(nonce);
        Some(NextPart { keys: alone.keys.clone(), ..NextPart::default() })
    }
}

/// How many rejected responses are kept apart: a further one becomes a part of the newest. And of how many
/// responses known-bad contents are left out, until these were sent.
const SPLITS_LIMIT: usize = 8;
/// How many names that were rejected alone have their own message.
const ALONE_LIMIT: usize = 256;
