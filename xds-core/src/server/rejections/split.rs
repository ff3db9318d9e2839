//! A rejected response that is sent again in parts, until each bad name is alone (S6c, S6d).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{Nack, NextPart};
use crate::cache::SplitTurn;
use crate::name::{Nonce, ResourceName};
use crate::server::contents::ResponseContents;
use crate::wire::{Body, ResourceKey};

/// One rejected response, or contents that other clients rejected.
///
/// A name is in one part at most. A part that was cut has fewer further sends than before.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) id: SplitId,
    /// The rejection; without spans when the client has not rejected anything yet.
    pub(super) nack: Nack,
    /// When the client rejected the response; `None` for contents that other clients rejected.
    pub(super) nacked_at: Option<Duration>,
    /// Parts to send, the next one first.
    parts: VecDeque<Part>,
    /// Parts that the client has not answered yet.
    sent: BTreeMap<Nonce, Part>,
    /// Names that the client rejected alone, and that nothing corrected since.
    found: BTreeSet<ResourceName>,
    /// What the client ACKed in parts, if its ACK of something that it rejected before says nothing.
    acked: BTreeSet<ResourceKey>,
    /// Whether its revisions count as rejected (S6f): it stopped, takes too long, or found nothing.
    pub(super) counts: bool,
    /// Whether observers know that it counts.
    pub(super) is_reported: bool,
    /// Whose split goes first, when that is decided.
    turn: Option<SplitTurn>,
}

/// The number of a split on its stream and type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SplitId(pub(super) u32);

/// Some names of a rejected response, each with all its keys.
#[derive(Debug)]
pub(super) struct Part {
    keys: BTreeSet<ResourceKey>,
    /// Errors and unresolved names of the response.
    besides: Vec<Arc<Body>>,
    /// Whether it changes something that the client has, if that is known (S6e).
    makes_room: Option<bool>,
    cut: Cut,
}

/// What is to be done with a part before it is sent.
#[derive(Debug, Clone)]
enum Cut {
    /// The whole response: the names that its error message mentions come apart first.
    Whole(Arc<str>),
    /// A rejected part whose names may be sent so many times more.
    Again(u32),
    /// Nothing. After it is sent, its names may be sent so many times more.
    Done(u32),
}

/// What there is of a key when its part may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Standing {
    /// A change or removal of it waits for other types (S33), and takes the place of the part.
    Waits,
    /// The client gets a resource under it.
    Live,
    /// The same, and another client rejected this content alone (S6d).
    Known,
    /// The cache removed the resource, and the client is sent that.
    Removed,
    /// There is nothing to send.
    Gone,
}

impl Split {
    /// Of a response that was just rejected.
    pub(super) fn of(
        id: SplitId,
        keys: BTreeSet<ResourceKey>,
        besides: Vec<Arc<Body>>,
        nack: Nack,
        now: Duration,
    ) -> Self {
        let part = Part { keys, besides, makes_room: None, cut: Cut::Whole(Arc::clone(&nack.detail)) };
        Self { parts: VecDeque::from([part]), nacked_at: Some(now), ..Self::empty(id, nack) }
    }

    /// Of contents that other clients rejected: each goes alone.
    /// The flag says whether the client has another content of the name.
    pub(super) fn of_known(id: SplitId, names: Vec<(BTreeSet<ResourceKey>, bool)>, nack: Nack) -> Self {
        let part = |(keys, had)| Part { makes_room: Some(had), ..Part::alone(keys) };
        Self { parts: names.into_iter().map(part).collect(), ..Self::empty(id, nack) }
    }

    fn empty(id: SplitId, nack: Nack) -> Self {
        Self {
            id,
            nack,
            nacked_at: None,
            parts: VecDeque::new(),
            sent: BTreeMap::new(),
            found: BTreeSet::new(),
            acked: BTreeSet::new(),
            counts: false,
            is_reported: false,
            turn: None,
        }
    }

    /// S6d: decides whether another client's split goes first, once. What other clients rejected needs none.
    pub(super) fn decide_turn(&mut self, begin: impl FnOnce(BTreeSet<ResourceName>) -> SplitTurn) {
        if self.turn.is_none() && self.nacked_at.is_some() {
            self.turn = Some(begin(self.keys().map(|key| key.name.clone()).collect()));
        }
    }

    /// Lets the others go on, if this one has ended or takes too long.
    pub(super) fn end_turn(&mut self, now: Duration) {
        if self.turn.is_some() && (!self.is_running() || self.turn_ends_at().is_none_or(|at| at <= now)) {
            self.turn = Some(SplitTurn::Own);
        }
    }

    /// When others no longer wait for it, or it no longer waits for another one.
    pub(super) fn turn_ends_at(&self) -> Option<Duration> {
        let lasts = match self.turn.as_ref()? {
            SplitTurn::First(_) => true,
            SplitTurn::After(first) => first.strong_count() > 0,
            SplitTurn::Own => false,
        };
        self.nacked_at.filter(|_| lasts).map(|at| at + FIRST_WITHIN)
    }

    /// Until when it waits for another client's split.
    pub(super) fn waits_until(&self) -> Option<Duration> {
        self.turn_ends_at().filter(|_| matches!(self.turn, Some(SplitTurn::After(_))))
    }

    /// Adds another rejected response, when there are too many to keep them apart.
    pub(super) fn absorb(&mut self, other: Self) {
        self.nack.about.extend(&other.nack.about);
        self.parts.extend(other.parts);
        self.nacked_at = self.nacked_at.or(other.nacked_at);
    }

    /// Whether it sends no parts until a name that was rejected alone is corrected.
    pub(super) fn has_stopped(&self) -> bool {
        self.found.len() >= FOUND_LIMIT && self.sent.is_empty()
    }

    /// Whether each name is decided.
    pub(super) fn has_ended(&self) -> bool {
        self.parts.is_empty() && self.sent.is_empty() && self.acked.is_empty()
    }

    /// Whether parts are to be sent, or wait for their answer.
    pub(super) fn is_running(&self) -> bool {
        let is_over = self.parts.is_empty() && self.sent.is_empty();
        !is_over && !self.has_stopped()
    }

    /// S6f: whether the client ACKed each part, and one of their resources is bad all the same.
    pub(super) fn has_found_nothing(&self) -> bool {
        !self.is_running() && !self.acked.is_empty()
    }

    /// Whether a part may be sent now, apart from the time.
    pub(super) fn is_due(&self, standing: &impl Fn(&ResourceKey) -> Standing) -> bool {
        self.found.len() < FOUND_LIMIT && self.parts.iter().any(|part| part.is_due(standing))
    }

    /// Takes the next part, which is sent with this nonce. Names whose change waits stay.
    pub(super) fn take(
        &mut self,
        nonce: Nonce,
        standing: &impl Fn(&ResourceKey) -> Standing,
    ) -> Option<NextPart> {
        let mut part = self.next(standing)?;
        let (keys, besides) = (part.keys.clone(), std::mem::take(&mut part.besides));
        let makes_room = part.makes_room;
        self.sent.insert(nonce, part);
        Some(NextPart { keys, besides, makes_room })
    }

    fn next(&mut self, standing: &impl Fn(&ResourceKey) -> Standing) -> Option<Part> {
        if self.found.len() >= FOUND_LIMIT {
            return None;
        }
        let mut waiting = Vec::new();
        let next = loop {
            let Some(mut part) = self.parts.pop_front() else { break None };
            part.keys.retain(|key| standing(key) != Standing::Gone);
            if let Some(of) = part.take_waiting(standing) {
                waiting.push(of);
            }
            if part.keys.is_empty() {
                continue;
            }
            if matches!(part.cut, Cut::Done(_)) {
                part.take_known(standing).into_iter().rev().for_each(|known| self.parts.push_front(known));
                if part.names() == 1 {
                    // The others left: a NACK is about this one.
                    part.cut = Cut::Done(0);
                }
                break Some(part);
            }
            part.into_pieces(standing).into_iter().rev().for_each(|piece| self.parts.push_front(piece));
        };
        self.parts.extend(waiting);
        next
    }

    /// Whether the response with this nonce is a part of it, without an answer.
    pub(super) fn has_sent(&self, nonce: Nonce) -> bool {
        self.sent.contains_key(&nonce)
    }

    /// A response is sent. The names in it leave the parts, but for the one that is sent with it. Returns
    /// whether any left.
    pub(super) fn leave(&mut self, nonce: Option<Nonce>, contents: &ResponseContents) -> bool {
        let sent = nonce.and_then(|nonce| Some((nonce, self.sent.remove(&nonce)?)));
        let has_left = self.retain(|key| !contents.covers(key));
        self.sent.extend(sent);
        has_left
    }

    /// Takes a part that the client answered.
    pub(super) fn answered(&mut self, nonce: Nonce) -> Option<Part> {
        self.sent.remove(&nonce)
    }

    /// The client accepted this part. `acks_repeats`: it says so of bad ones, too.
    pub(super) fn on_ack(&mut self, part: Part, acks_repeats: bool) {
        if acks_repeats && self.nacked_at.is_some() && self.found.is_empty() {
            self.acked.extend(part.keys);
        }
    }

    /// The client rejected this part: it is cut, or its name is found. Returns the keys in the second
    /// case.
    pub(super) fn on_nack(&mut self, part: Part) -> Option<BTreeSet<ResourceKey>> {
        let Cut::Done(budget) = part.cut else { unreachable!("a part is cut before it is sent") };
        if part.keys.is_empty() {
            return None;
        }
        if budget > 0 {
            self.parts.push_front(Part { cut: Cut::Again(budget), ..part });
            return None;
        }
        self.acked.clear();
        self.found.extend(part.keys.iter().map(|key| key.name.clone()));
        Some(part.keys)
    }

    /// These parts will not be answered: nothing more is known of them.
    pub(super) fn keep_sent(&mut self, is_in_flight: impl Fn(Nonce) -> bool) {
        self.sent.retain(|nonce, _| is_in_flight(*nonce));
    }

    /// A name that was rejected alone is corrected, or the client gave it up.
    pub(super) fn forget_found(&mut self, name: &ResourceName) {
        self.found.remove(name);
    }

    /// Keeps these keys, also of parts that the client has not answered. Returns whether any was left out.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&ResourceKey) -> bool) -> bool {
        let before = self.keys().count();
        for part in self.parts.iter_mut().chain(self.sent.values_mut()) {
            part.keys.retain(&mut is_kept);
        }
        self.parts.retain(|part| !part.keys.is_empty());
        self.acked.retain(&mut is_kept);
        self.keys().count() < before
    }

    /// Whether a part has this key that was not sent yet.
    pub(super) fn has_waiting(&self, key: &ResourceKey) -> bool {
        self.parts.iter().any(|part| part.keys.contains(key))
    }

    /// The same, or the client ACKed it, which says nothing.
    pub(super) fn has_left(&self, key: &ResourceKey) -> bool {
        self.has_waiting(key) || self.acked.contains(key)
    }

    /// Whether any part has this key.
    pub(super) fn has(&self, key: &ResourceKey) -> bool {
        self.has_waiting(key) || self.sent.values().any(|part| part.keys.contains(key))
    }

    /// Whether any part has this name.
    pub(super) fn has_name(&self, name: &ResourceName) -> bool {
        let mut parts = self.parts.iter().chain(self.sent.values());
        parts.any(|part| part.keys.iter().any(|key| key.name == *name))
    }

    /// Takes the keys of these names, also of parts that the client has not answered.
    pub(super) fn take_names(
        &mut self,
        names: &BTreeMap<ResourceName, BTreeSet<ResourceKey>>,
    ) -> Vec<ResourceKey> {
        let mut taken = Vec::new();
        for part in self.parts.iter_mut().chain(self.sent.values_mut()) {
            taken.extend(part.keys.extract_if(.., |key| names.contains_key(&key.name)));
        }
        self.parts.retain(|part| !part.keys.is_empty());
        taken
    }

    /// What the parts have that were not sent yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &ResourceKey> {
        self.parts.iter().flat_map(|part| &part.keys)
    }

    /// The names of each part.
    pub(super) fn part_names(&self) -> impl Iterator<Item = BTreeSet<&ResourceName>> {
        self.parts
            .iter()
            .chain(self.sent.values())
            .map(|part| part.keys.iter().map(|key| &key.name).collect())
    }

    /// What all parts have, and had if nothing was found.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        self.waiting().chain(self.sent.values().flat_map(|part| &part.keys)).chain(&self.acked)
    }

    /// The names of which some are bad, if the split is over without knowing which.
    pub(super) fn suspects(&self) -> Option<BTreeSet<&ResourceName>> {
        let is_over = self.nacked_at.is_some() && !self.is_running();
        is_over.then(|| self.waiting().chain(&self.acked).map(|key| &key.name).collect())
    }
}

impl Part {
    /// S6d: takes the names that another client rejected alone. Each goes in a part of its own.
    fn take_known(&mut self, standing: &impl Fn(&ResourceKey) -> Standing) -> Vec<Self> {
        let is_known = |key: &&ResourceKey| standing(key) == Standing::Known;
        let mut names: BTreeSet<_> = self.keys.iter().filter(is_known).map(|key| key.name.clone()).collect();
        if names.len() == self.names() {
            names.pop_first();
        }
        let known = self.keys.extract_if(.., |key| names.contains(&key.name));
        by_name(known).into_values().map(Self::alone).collect()
    }

    /// Whether any of its names may be sent now: none of the name's keys waits.
    fn is_due(&self, standing: &impl Fn(&ResourceKey) -> Standing) -> bool {
        let mut keys = self.keys.iter().peekable();
        while let Some(first) = keys.next() {
            let mut waits = standing(first) == Standing::Waits;
            while let Some(key) = keys.next_if(|key| key.name == first.name) {
                waits |= standing(key) == Standing::Waits;
            }
            if !waits {
                return true;
            }
        }
        false
    }

    fn names(&self) -> usize {
        self.keys.iter().map(|key| &key.name).collect::<BTreeSet<_>>().len()
    }

    /// A part that is sent once.
    fn alone(keys: BTreeSet<ResourceKey>) -> Self {
        Self { keys, besides: Vec::new(), makes_room: None, cut: Cut::Done(0) }
    }

    /// Takes the names whose change waits, as a part of their own.
    fn take_waiting(&mut self, standing: &impl Fn(&ResourceKey) -> Standing) -> Option<Self> {
        let waits = |key: &&ResourceKey| standing(key) == Standing::Waits;
        let names: BTreeSet<_> = self.keys.iter().filter(waits).map(|key| key.name.clone()).collect();
        if names.is_empty() {
            return None;
        }
        let keys: BTreeSet<_> = self.keys.extract_if(.., |key| names.contains(&key.name)).collect();
        let besides = if self.keys.is_empty() { std::mem::take(&mut self.besides) } else { Vec::new() };
        Some(Self { keys, besides, makes_room: self.makes_room, cut: self.cut.clone() })
    }

    /// S6c, S6d: the parts that take the place of this one. The unit is the name; all removals are one.
    fn into_pieces(self, standing: &impl Fn(&ResourceKey) -> Standing) -> Vec<Self> {
        let mut removals = BTreeSet::new();
        let mut units: Vec<BTreeSet<ResourceKey>> = Vec::new();
        for (_, keys) in by_name(self.keys) {
            if keys.iter().any(|key| matches!(standing(key), Standing::Live | Standing::Known)) {
                units.push(keys);
            } else {
                removals.extend(keys);
            }
        }
        let mentioned = match &self.cut {
            Cut::Whole(text) => take_mentioned(&mut units, text),
            Cut::Again(_) | Cut::Done(_) => Vec::new(),
        };
        if !removals.is_empty() {
            units.insert(0, removals);
        }
        let count = units.len() + mentioned.len();
        let budget = match self.cut {
            Cut::Whole(_) => count.next_power_of_two().ilog2(),
            Cut::Again(budget) | Cut::Done(budget) => budget,
        };
        let left = budget.saturating_sub(1);
        let largest = 1_usize << left;
        let least = if mentioned.is_empty() && count > 1 { 2 } else { 1 };
        let pieces = [units, mentioned].into_iter().flat_map(|group| {
            let count = group.len().div_ceil(largest).max(least.min(group.len()));
            in_chunks(group, count)
        });
        let part = |units: Vec<_>| {
            let cut = Cut::Done(if units.len() > 1 { left } else { 0 });
            Self { cut, ..Self::alone(units.into_iter().flatten().collect()) }
        };
        let mut pieces: Vec<_> = pieces.map(part).collect();
        if let Some(first) = pieces.first_mut() {
            first.besides = self.besides;
        }
        pieces
    }
}

/// The keys of each name.
pub(super) fn by_name(
    keys: impl IntoIterator<Item = ResourceKey>,
) -> BTreeMap<ResourceName, BTreeSet<ResourceKey>> {
    let mut names = BTreeMap::<_, BTreeSet<_>>::new();
    keys.into_iter().for_each(|key| _ = names.entry(key.name.clone()).or_default().insert(key));
    names
}

/// G15: takes the names that a text mentions, if it does not mention all. The text is for people, so it
/// decides nothing else than who comes apart first.
fn take_mentioned(units: &mut Vec<BTreeSet<ResourceKey>>, text: &str) -> Vec<BTreeSet<ResourceKey>> {
    let is_separator = |c: char| c.is_whitespace() || "'\"`()[]{}<>,;=".contains(c);
    let words = text.split(is_separator).flat_map(|word| [word, word.trim_end_matches(['.', ':'])]);
    let words: BTreeSet<&str> = words.filter(|word| !word.is_empty()).collect();
    let is_mentioned =
        |unit: &BTreeSet<ResourceKey>| unit.first().is_some_and(|key| words.contains(key.name.as_str()));
    if units.iter().all(is_mentioned) {
        return Vec::new();
    }
    units.extract_if(.., |unit| is_mentioned(unit)).collect()
}

/// Divides units into chunks of about equal size.
fn in_chunks<T>(units: Vec<T>, count: usize) -> Vec<Vec<T>> {
    let total = units.len();
    let mut units = units.into_iter();
    let size = |at: usize| total * (at + 1) / count - total * at / count;
    (0..count).map(|at| units.by_ref().take(size(at)).collect()).collect()
}

/// S6d: how many names of one response may be rejected alone before the rest stays rejected together.
pub(in crate::server) const FOUND_LIMIT: usize = 16;
/// S6d: how long other clients wait for the first one that rejected the same names.
pub(in crate::server) const FIRST_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
