//! Rejected responses, until later responses correct them (S6, S6b, D8).
//!
//! A NACK does not say which resource is bad, so the client may have applied all of the response,
//! some of it, or none. So the server sends the response again in parts, until each bad name is
//! alone (S6c, [`Split`]). A name that was [rejected alone](Alone) is sent again when it changes, or
//! when there may be room for it (S6e). A full state cannot be divided (S25, [`FullStateNack`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::in_flight::Sent;
use crate::cache::{DECIDE_WITHIN, RejectedRevisions, Spans, SplitTurn};
use crate::name::{Nonce, ResourceName, Revision};
use crate::variants::Variant;
use crate::wire::{Body, ResourceKey};

use alone::Alone;
use full_state::FullStateNack;
use rejected::Rejected;
use split::{Split, SplitId};

pub(super) use split::Standing;

mod alone;
mod full_state;
mod rejected;
mod split;

/// What the client rejected of one type on one stream, and what is sent again of it. A client that
/// rejected nothing costs a pointer.
#[derive(Debug, Default)]
pub(super) struct Rejections(Option<Box<Rejected>>);

/// The client's error message, and the revisions that it is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Nack {
    pub(super) about: Spans,
    pub(super) detail: Arc<str>,
}

impl Nack {
    /// S6f: a content that was rejected alone says nothing of commits that did not change it.
    fn of_content(self, content: Option<&Variant>) -> Self {
        let Some(content) = content else { return self };
        let mut about = Spans::default();
        if self.about.cover(content.changed_at) {
            about.add_one(content.changed_at);
        }
        Self { about, ..self }
    }
}

/// A part that is sent now.
#[derive(Debug, Default)]
pub(super) struct NextPart {
    pub(super) keys: BTreeSet<ResourceKey>,
    pub(super) besides: Vec<Arc<Body>>,
    /// Whether it changes something that the client has, if that is known.
    pub(super) makes_room: Option<bool>,
}

/// Which kind of response a client rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NackOf {
    /// One with changes, or answers to requests.
    Response,
    /// A content that other clients rejected before (S6d).
    Known,
    /// Something that this client rejected before (S6c, S6e).
    Repeat,
}

/// What a client says of a response that it rejects.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) nonce: Nonce,
    pub(super) detail: &'a str,
    pub(super) now: Duration,
    /// Whether resources of the type can conflict with each other (S6e).
    pub(super) conflicts: bool,
}

/// A rejection that counts (S6f).
#[derive(Debug)]
pub(super) struct CountedRejection {
    pub(super) of: RejectedOf,
    /// Whether it was rejected among others first.
    pub(super) is_found: bool,
    pub(super) detail: Arc<str>,
}

#[derive(Debug)]
pub(super) enum RejectedOf {
    /// A name that was rejected alone.
    One(BTreeSet<ResourceKey>),
    /// Some of these names.
    Some(BTreeSet<ResourceKey>),
    /// Something in a full state: this variant, if nothing else was new, or something of these revisions.
    FullState(Option<Arc<Variant>>, Spans),
}

/// Why the client's message is shown beside a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RejectedAmong {
    pub(super) detail: Arc<str>,
    pub(super) among: Among,
}

/// Which resources a message may be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    One,
    /// Some of so many names.
    These(usize),
    /// Some of those that were new in the full state.
    FullState,
}

impl Rejections {
    /// The client rejected a response. `had_one_name`: the NACK is about this name.
    pub(super) fn on_nack(&mut self, sent: Sent, had_one_name: bool, answer: &Answer<'_>) -> NackOf {
        let rejected = self.0.get_or_insert_default();
        let of = rejected.on_nack_of_part(&sent, answer).unwrap_or(NackOf::Response);
        if of == NackOf::Response {
            rejected.on_nack(sent, had_one_name, answer);
        }
        self.tidy();
        of
    }

    /// The client accepted a response with these contents.
    pub(super) fn on_ack(&mut self, nonce: Nonce, contents: &ResponseContents, acks_repeats: bool) {
        let Some(of) = &mut self.0 else { return };
        if matches!(contents, ResponseContents::FullState) {
            of.full_state = None;
        } else {
            for split in &mut of.splits {
                if let Some(part) = split.answered(nonce) {
                    split.on_ack(part, acks_repeats);
                }
            }
            of.brought.retain(|name| contents.of_name(name).next().is_none());
            of.correct(Some(nonce), |key| contents.covers(key));
        }
        self.tidy();
    }

    /// The revisions that a part or a resend with this nonce is about; none for another response.
    pub(super) fn about_part(&self, nonce: Nonce) -> Spans {
        let splits = self.splits().filter(|split| split.has_sent(nonce)).map(|split| &split.nack);
        let alone = self.0.iter().flat_map(|of| of.alone.values());
        let alone = alone.filter(|alone| alone.is_resent_in(nonce)).map(|alone| &alone.nack);
        let mut about = Spans::default();
        splits.chain(alone).for_each(|nack| about.extend(&nack.about));
        about
    }

    /// S6e: a response that removed or changed something was answered.
    pub(super) fn on_room(&mut self, nonce: Nonce) {
        for alone in self.0.iter_mut().flat_map(|of| of.alone.values_mut()) {
            alone.on_room(nonce);
        }
    }

    /// A response with these contents is sent. Its names leave the splits. Returns the revisions that
    /// its answer is about, too.
    pub(super) fn on_sent(
        &mut self,
        nonce: Option<Nonce>,
        contents: &ResponseContents,
        now: Duration,
        is_live: impl Fn(&ResourceKey) -> bool,
    ) -> Spans {
        let mut about = Spans::default();
        let Some(of) = &mut self.0 else { return about };
        of.part_went = nonce.is_some_and(|nonce| of.is_part(nonce));
        if matches!(contents, ResponseContents::FullState) {
            of.full_state.iter_mut().for_each(|of| of.on_sent(now));
            return about;
        }
        for split in &mut of.splits {
            if split.leave(nonce, contents) {
                about.extend(&split.nack.about);
            }
        }
        // A rejected variant of these names that no longer exists is replaced by the keys of this response.
        for (name, alone) in
            of.alone.iter_mut().filter(|(_, alone)| !nonce.is_some_and(|nonce| alone.is_resent_in(nonce)))
        {
            let mut new = contents.of_name(name).peekable();
            if new.peek().is_none() {
                continue;
            }
            alone.cancel_resend();
            if alone.keys.iter().any(|key| !contents.has(key) && !is_live(key)) {
                alone.keys.retain(|key| contents.has(key) || is_live(key));
                alone.keys.extend(new.cloned());
            }
        }
        self.tidy();
        about
    }

    /// S6d: these contents are left out of a response. Each name goes in a response of its own. The flag
    /// says whether the client has another content of it.
    pub(super) fn leave_for_later(
        &mut self,
        left_out: Vec<(ResourceKey, bool)>,
        mut about: Spans,
        is_announced: bool,
    ) {
        let of = self.0.get_or_insert_default();
        of.is_announced |= is_announced;
        let had: BTreeSet<_> =
            left_out.iter().filter(|(_, had)| *had).map(|(key, _)| key.name.clone()).collect();
        let mut names = split::by_name(left_out.into_iter().map(|(key, _)| key));
        for name in names.keys() {
            if let Some(before) = of.take_alone(name) {
                about.extend(&before.nack.about);
            }
        }
        of.join_left(&mut names, &mut about);
        let names = names.into_iter().map(|(name, keys)| (keys, had.contains(&name))).collect();
        let id = of.next_split();
        of.add(Split::of_known(id, names, Nack { about, detail: Arc::default() }));
    }

    /// Keeps what the client still subscribes to.
    pub(super) fn retain(&mut self, mut is_subscribed: impl FnMut(&ResourceKey) -> bool) {
        let Some(of) = &mut self.0 else { return };
        of.splits.iter_mut().for_each(|split| _ = split.retain(&mut is_subscribed));
        of.correct(None, |key| !is_subscribed(key));
        self.tidy();
    }

    /// The client will not answer other responses than these.
    pub(super) fn keep_sent(&mut self, is_in_flight: impl Fn(Nonce) -> bool) {
        let Some(of) = &mut self.0 else { return };
        of.splits.iter_mut().for_each(|split| split.keep_sent(&is_in_flight));
        for alone in of.alone.values_mut() {
            alone.keep_resend(&is_in_flight);
        }
        self.tidy();
    }

    /// The client subscribes to nothing.
    pub(super) fn clear(&mut self) {
        let found = self.take_found();
        self.0 = (!found.is_empty()).then(|| Box::new(Rejected { found, ..Rejected::default() }));
    }

    /// Whether the client accepted everything, and is to be sent nothing again.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether parts are to be sent or wait for their answer, so that the client lacks resources that it may
    /// accept. After [`DECIDE_WITHIN`] others no longer wait for it.
    pub(super) fn are_splitting(&self) -> bool {
        self.splits().any(|split| split.is_running() && !split.counts)
    }

    /// Whether each rejected name was rejected alone.
    pub(super) fn are_certain(&self) -> bool {
        let is_state_known = |of: &Rejected| of.full_state.as_ref().is_none_or(|of| of.alone.is_some());
        self.splits().all(|split| split.nacked_at.is_none())
            && self.0.as_ref().is_none_or(|of| is_state_known(of))
    }

    /// Whether contents that were left out are still to be sent.
    pub(super) fn have_known_left(&self) -> bool {
        self.0.as_ref().is_some_and(|of| of.has_known_left())
    }

    /// S6d: whether so many known-bad contents are still to be sent that no further ones are left out.
    pub(super) fn leave_nothing_out(&self) -> bool {
        self.0.as_ref().is_some_and(|of| of.leaves_nothing_out())
    }

    pub(super) fn have_full_state(&self) -> bool {
        self.0.as_ref().is_some_and(|of| of.full_state.is_some())
    }

    /// The only resource that was new in the rejected full state, if that is known.
    pub(super) fn full_state_change(&self) -> Option<&Arc<Variant>> {
        self.0.as_ref()?.full_state.as_ref()?.alone.as_ref()
    }

    /// What was rejected, or is to be sent again, without the full state.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        let alone = self.0.iter().flat_map(|of| of.alone.values()).flat_map(|alone| &alone.keys);
        let rest = self.0.iter().flat_map(|of| &of.rest).flat_map(|rest| &rest.keys);
        self.splits().flat_map(Split::keys).chain(alone).chain(rest)
    }

    /// What is to be sent in parts.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &ResourceKey> {
        self.splits().flat_map(Split::waiting)
    }

    fn splits(&self) -> impl Iterator<Item = &Split> {
        self.0.iter().flat_map(|of| &of.splits)
    }

    /// When the next part may go, apart from the answers that the client owes; `None` without one.
    /// `is_in_order`: contents that were left out, and so were never sent, may go (S33).
    pub(super) fn part_at(
        &self,
        now: Duration,
        is_in_order: bool,
        standing: impl Fn(&ResourceKey) -> Standing,
    ) -> Option<Duration> {
        let of = self.0.as_ref()?;
        if of.is_announced && !of.has_known_left() {
            return Some(now);
        }
        let may_go = |split: &&Split| split.nacked_at.is_some() || is_in_order;
        let splits = of.splits.iter().filter(may_go).filter(|split| split.is_due(&standing));
        let part_at = splits.map(|split| split.waits_until().map_or(now, |until| until.max(now))).min();
        let may_go = |alone: &&Alone| alone.may_be_resent(&standing);
        of.alone.values().filter(may_go).filter_map(Alone::resend_at).chain(part_at).min()
    }

    /// Whether the client waits for further responses (D32).
    pub(super) fn are_announced(&self) -> bool {
        self.0.as_ref().is_some_and(|of| of.is_announced)
    }

    /// Whether a part goes before other changes.
    pub(super) fn part_is_next(&self) -> bool {
        self.0.as_ref().is_some_and(|of| !of.part_went)
    }

    /// Takes the next part, which is sent with this nonce. `is_in_order` as for [`part_at`](Self::part_at).
    pub(super) fn take_part(
        &mut self,
        now: Duration,
        is_in_order: bool,
        nonce: Nonce,
        standing: impl Fn(&ResourceKey) -> Standing,
    ) -> Option<NextPart> {
        let of = self.0.as_mut()?;
        let mut next = of.take_part(now, is_in_order, nonce, &standing);
        // D32: a client that waits for the rest is sent an end, also when nothing is left.
        let is_last = !of.has_known_left();
        if next.is_none() && of.is_announced && is_last {
            next = Some(NextPart::default());
        }
        of.is_announced &= !is_last;
        self.tidy();
        next
    }

    /// When the full state is to be sent once more (S6e).
    pub(super) fn repeat_at(&self) -> Option<Duration> {
        self.0.as_ref()?.full_state.as_ref()?.repeat_at()
    }

    /// The rejection counts for these revisions too.
    pub(super) fn extend_newest(&mut self, brings: &Spans) {
        let Some(of) = &mut self.0 else { return };
        let newest = match (&mut of.full_state, of.splits.last_mut()) {
            (Some(full_state), _) => Some(&mut full_state.nack),
            (None, Some(split)) => Some(&mut split.nack),
            (None, None) => {
                let newest = of.alone.values_mut().max_by_key(|alone| alone.nacked_at);
                newest.map(|alone| &mut alone.nack)
            }
        };
        newest.into_iter().for_each(|nack| nack.about.extend(brings));
    }

    /// The client's message when it rejected the resource of this key, which changed last at a revision;
    /// `None` if it did not, or if it is not known yet which one it rejected.
    pub(super) fn detail(&self, key: &ResourceKey, changed_at: Revision) -> Option<RejectedAmong> {
        let of = self.0.as_ref()?;
        let about = |nack: &Nack, among| RejectedAmong { detail: Arc::clone(&nack.detail), among };
        if let Some(alone) = of.alone.get(&key.name).filter(|alone| alone.keys.contains(key)) {
            return Some(about(&alone.nack, Among::One));
        }
        if let Some(split) = of.splits.iter().find(|split| split.has_left(key)) {
            return split.suspects().map(|names| about(&split.nack, Among::These(names.len())));
        }
        if let Some(rest) = of.rest.as_ref().filter(|rest| rest.keys.contains(key)) {
            return Some(about(&rest.nack, Among::One));
        }
        let FullStateNack { nack, alone, .. } = of.full_state.as_ref()?;
        match alone {
            Some(alone) => (*alone.name() == key.name).then(|| about(nack, Among::One)),
            None => nack.about.cover(changed_at).then(|| about(nack, Among::FullState)),
        }
    }

    /// Whether the client rejected the resource of this key, which changed last at a revision, as far as
    /// that is known.
    pub(super) fn has(&self, key: &ResourceKey, changed_at: Revision) -> bool {
        self.detail(key, changed_at).is_some() || self.is_waiting(key)
    }

    /// Whether the resource is to be sent in a part, or once more.
    pub(super) fn is_waiting(&self, key: &ResourceKey) -> bool {
        self.splits().any(|split| split.is_running() && split.has(key))
    }

    /// S6d: decides whether new splits wait for another client's. `begin` gets the names of each.
    pub(super) fn decide_turns(&mut self, mut begin: impl FnMut(BTreeSet<ResourceName>) -> SplitTurn) {
        for split in self.0.iter_mut().flat_map(|of| &mut of.splits) {
            split.decide_turn(&mut begin);
        }
    }

    /// S6f: decides which rejections count now. `is_open`: the client owes an answer, or a removal is
    /// withheld from it. Returns whether anything changed.
    pub(super) fn settle(&mut self, now: Duration, is_open: bool, conflicts: bool) -> bool {
        let Some(of) = &mut self.0 else { return false };
        let is_late = |nacked_at: Duration| nacked_at + DECIDE_WITHIN <= now;
        let mut is_changed = false;
        for split in &mut of.splits {
            split.end_turn(now);
            let counts =
                split.has_stopped() || split.has_found_nothing() || split.nacked_at.is_some_and(is_late);
            is_changed |= counts != split.counts;
            split.counts = counts;
        }
        let is_running = |id: SplitId| of.splits.iter().any(|split| split.id == id && !split.counts);
        for alone in of.alone.values_mut().filter(|alone| !alone.counts) {
            let is_undecided =
                alone.split.is_some_and(is_running) || (conflicts && (is_open || alone.is_resending()));
            alone.counts = !is_undecided || is_late(alone.nacked_at);
            is_changed |= alone.counts;
        }
        for full_state in of.full_state.iter_mut().filter(|of| !of.counts) {
            let is_undecided = full_state.is_repeating() || (conflicts && is_open);
            full_state.counts = !is_undecided || is_late(full_state.nacked_at);
            is_changed |= full_state.counts;
        }
        is_changed
    }

    /// When rejections count at the latest, or others no longer wait for a split; `None` if all is decided.
    pub(super) fn settles_at(&self) -> Option<Duration> {
        let of = self.0.as_ref()?;
        let splits = of.splits.iter().filter(|split| !split.counts).filter_map(|split| split.nacked_at);
        let alone = of.alone.values().filter(|alone| !alone.counts).map(|alone| alone.nacked_at);
        let full_state = of.full_state.iter().filter(|of| !of.counts).map(|of| of.nacked_at);
        let decided_at =
            splits.chain(alone).chain(full_state).min().map(|nacked_at| nacked_at + DECIDE_WITHIN);
        of.splits.iter().filter_map(Split::turn_ends_at).chain(decided_at).min()
    }

    /// The revisions that wait until rejected contents were sent again and answered (S6f).
    pub(super) fn undecided_revisions(&self) -> Spans {
        let mut undecided = Spans::default();
        let Some(of) = &self.0 else { return undecided };
        let splits = of.splits.iter().filter(|split| !split.counts).map(|split| &split.nack);
        let alone = of.alone.values().filter(|alone| !alone.counts).map(|alone| &alone.nack);
        let full_state = of.full_state.iter().filter(|of| !of.counts).map(|of| &of.nack);
        splits.chain(alone).chain(full_state).for_each(|nack| undecided.extend(&nack.about));
        undecided
    }

    /// The revisions that were rejected, with the client's messages, and the names if they are known.
    pub(super) fn rejected_revisions(&self) -> Vec<RejectedRevisions> {
        let Some(of) = &self.0 else { return Vec::new() };
        let rejected = |nack: &Nack, name: Option<&ResourceName>| RejectedRevisions {
            about: nack.about.clone(),
            detail: Arc::clone(&nack.detail),
            name: name.cloned(),
        };
        let full_state = of.full_state.iter().filter(|of| of.counts);
        let full_state = full_state.map(|of| rejected(&of.nack, of.alone.as_ref().map(|alone| alone.name())));
        let splits = of.splits.iter().filter(|split| split.counts).map(|split| rejected(&split.nack, None));
        let alone = of.alone.iter().filter(|(_, alone)| alone.counts);
        let alone = alone.map(|(name, alone)| rejected(&alone.nack, Some(name)));
        let rest = of.rest.iter().map(|rest| rejected(&rest.nack, None));
        let all = full_state.chain(splits).chain(rest).chain(alone);
        all.filter(|rejected| !rejected.about.is_empty()).collect()
    }

    /// Takes the contents that were rejected alone since the last call.
    pub(super) fn take_found(&mut self) -> Vec<Arc<Variant>> {
        let found = self.0.as_mut().map(|of| std::mem::take(&mut of.found)).unwrap_or_default();
        self.tidy();
        found
    }

    /// Takes the rejections that count since the last call.
    pub(super) fn take_counted(&mut self) -> Vec<CountedRejection> {
        let Some(of) = &mut self.0 else { return Vec::new() };
        let is_new = |counts: bool, is_reported: &mut bool| counts && !std::mem::replace(is_reported, true);
        let mut counted = Vec::new();
        if let Some(full_state) = &mut of.full_state
            && is_new(full_state.counts, &mut full_state.is_reported)
        {
            let detail = Arc::clone(&full_state.nack.detail);
            let of = RejectedOf::FullState(full_state.alone.clone(), full_state.nack.about.clone());
            counted.push(CountedRejection { of, is_found: false, detail });
        }
        for split in &mut of.splits {
            if is_new(split.counts && split.nacked_at.is_some(), &mut split.is_reported) {
                let detail = Arc::clone(&split.nack.detail);
                let of = RejectedOf::Some(split.keys().cloned().collect());
                counted.push(CountedRejection { of, is_found: true, detail });
            }
        }
        for alone in of.alone.values_mut() {
            if is_new(alone.counts, &mut alone.is_reported) {
                let detail = Arc::clone(&alone.nack.detail);
                let (of, is_found) = (RejectedOf::One(alone.keys.clone()), alone.split.is_some());
                counted.push(CountedRejection { of, is_found, detail });
            }
        }
        counted
    }

    /// V25: everything is sent again with constraints, so no part is. The next response brings the
    /// revisions.
    pub(super) fn drop_parts(&mut self) -> Spans {
        let mut about = Spans::default();
        for split in self.0.iter_mut().flat_map(|of| of.splits.drain(..)) {
            about.extend(&split.nack.about);
        }
        self.tidy();
        about
    }

    /// Drops what is decided.
    fn tidy(&mut self) {
        let Some(of) = &mut self.0 else { return };
        // Other streams go on when a split is dropped. Its owner must have noted what it found before.
        if of.found.is_empty() {
            of.splits.retain(|split| !split.has_ended());
        }
        of.check();
        of.rest.take_if(|rest| rest.keys.is_empty());
        let is_over = of.splits.is_empty() && of.alone.is_empty() && of.full_state.is_none();
        if is_over && of.rest.is_none() && of.found.is_empty() && !of.is_announced {
            self.0 = None;
        }
    }
}
