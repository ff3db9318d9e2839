//! The responses of one type on one stream, with the client's ACKs and NACKs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::in_flight::{InFlight, ResponsePart, Sent};
use super::rejections::{Answer, NackOf, Rejections};
use crate::cache::{AckState, Spans};
use crate::known_type::KnownType;
use crate::name::{Nonce, ResourceName, Revision};
use crate::variants::Variant;
use crate::wire::{Body, ResourceKey};

/// Responses without an answer, and the revisions that responses bring.
#[derive(Debug, Default)]
pub(super) struct Responses {
    in_flight: InFlight,
    rejections: Rejections,
    /// The revision up to which everything was sent, or found to be unnecessary.
    reached: Revision,
    /// Revisions that the next response brings besides those since `reached`.
    next_brings: Spans,
    /// Whether a request from before the newest response unsubscribed from something that this
    /// response may contain.
    is_crossed: bool,
    /// Contents of unanswered responses from which the client unsubscribed, until it subscribes to
    /// them again.
    crossed: BTreeSet<ResourceKey>,
    /// Whether the [`ack_state`](Self::ack_state) may have changed since the last
    /// [`take_news`](Self::take_news).
    has_news: bool,
}

/// The resources in responses that the client rejected, or has not answered yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unaccepted {
    /// All resources of the type.
    FullState,
    Names(BTreeSet<ResourceName>),
}

impl Responses {
    /// Records a response after which the client has everything up to a revision, and queues its
    /// later parts.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        mut later_parts: Vec<ResponsePart>,
        revision: Revision,
    ) {
        let mut brings = self.brings(revision);
        if let Some(last) = later_parts.last_mut() {
            last.brings = std::mem::take(&mut brings);
        }
        self.insert(now, nonce, contents, brings);
        self.in_flight.queue(later_parts);
    }

    /// Takes the next queued part, and records it as sent.
    pub(super) fn next_part(&mut self, now: Duration, nonce: Nonce) -> Option<ResponsePart> {
        let mut part = self.in_flight.next_part()?;
        self.insert(now, nonce, part.contents.clone(), std::mem::take(&mut part.brings));
        Some(part)
    }

    /// Drops the queued parts. The next response brings their revisions.
    pub(super) fn drop_queued(&mut self) {
        self.has_news = true;
        while let Some(part) = self.in_flight.next_part() {
            self.next_brings.extend(&part.brings);
        }
    }

    /// V25: everything is sent again with constraints, so no part of what was rejected is, or of what will
    /// be. The next response brings the revisions.
    pub(super) fn drop_parts(&mut self) {
        let about = self.rejections.drop_parts();
        self.next_brings.extend(&about);
        self.in_flight.sent_mut().for_each(|sent| sent.extra_mut().is_before_switch = true);
        self.in_flight.forget_acked();
    }

    /// S8d: the client tries a candidate from now on, or none.
    pub(super) fn enter(&mut self, is_candidate: bool) {
        self.in_flight.enter(is_candidate);
    }

    fn brings(&mut self, revision: Revision) -> Spans {
        let mut brings = std::mem::take(&mut self.next_brings);
        brings.add(self.reached, revision);
        self.reach(revision);
        brings
    }

    fn insert(&mut self, now: Duration, nonce: Nonce, contents: ResponseContents, brings: Spans) {
        self.has_news = true;
        if self.in_flight.push(now, nonce, contents, brings) {
            self.rejections.keep_sent(|nonce| self.in_flight.has_nonce(nonce));
        }
        self.is_crossed = false;
    }

    /// Records the only resource that the newest response brings, if that is known.
    pub(super) fn sent_alone(&mut self, variant: Option<Arc<Variant>>) {
        if let Some(newest) = self.in_flight.newest_mut() {
            newest.alone = variant;
        }
    }

    /// Records that the newest response removes or changes something that the client may have (S6e).
    pub(super) fn sent_room(&mut self, makes_room: bool) {
        self.in_flight.newest_mut().into_iter().for_each(|newest| newest.makes_room = makes_room);
    }

    /// Records errors and unresolved names in the newest response.
    pub(super) fn sent_besides(&mut self, besides: &[Arc<Body>]) {
        if !besides.is_empty()
            && let Some(newest) = self.in_flight.newest_mut()
        {
            newest.extra_mut().besides = besides.to_vec();
        }
    }

    /// Records that the newest response replaces what the client brought of these names from another
    /// stream.
    pub(super) fn sent_instead(&mut self, brought: impl Iterator<Item = ResourceName>) {
        let mut brought = brought.peekable();
        if brought.peek().is_some()
            && let Some(newest) = self.in_flight.newest_mut()
        {
            newest.extra_mut().replaces = brought.map(|name| ResourceKey::of_name(&name)).collect();
        }
    }

    /// Records that the client had a content of these names before the newest response (S6e).
    pub(super) fn sent_over(&mut self, brought: impl Iterator<Item = ResourceName>) {
        let brought: BTreeSet<_> = brought.collect();
        if !brought.is_empty()
            && let Some(newest) = self.in_flight.newest_mut()
        {
            newest.extra_mut().brought = brought;
        }
    }

    /// Records that the client unsubscribed from something that the newest, unanswered response may
    /// contain.
    pub(super) fn cross(&mut self) {
        self.is_crossed = true;
    }

    /// Takes this record, for a client that has now seen that response.
    pub(super) fn take_crossed(&mut self) -> bool {
        std::mem::take(&mut self.is_crossed)
    }

    /// Delta: records contents of unanswered responses from which the client unsubscribed. When it
    /// subscribes to them again before these responses arrive, the client has them. If it then
    /// rejects them, it has what they replace (T34).
    pub(super) fn cross_contents(&mut self, is_given_up: impl Fn(&ResourceKey) -> bool) {
        let contents = self.in_flight.contents().flat_map(ResponseContents::keys);
        let extras = self.in_flight.sent().filter_map(|sent| sent.extra.as_ref());
        let replaced = extras.flat_map(|extra| &extra.replaces);
        let crossed = contents.chain(replaced).filter(|key| self.crossed.contains(*key) || is_given_up(key));
        self.crossed = crossed.cloned().collect();
    }

    /// Takes those of these contents to which the client subscribes again.
    pub(super) fn take_crossed_contents(
        &mut self,
        is_requested: impl Fn(&ResourceKey) -> bool,
    ) -> BTreeSet<ResourceKey> {
        let (requested, remaining) = std::mem::take(&mut self.crossed).into_iter().partition(is_requested);
        self.crossed = remaining;
        requested
    }

    /// Records that nothing has to be sent up to a revision.
    pub(super) fn reach(&mut self, revision: Revision) {
        self.has_news |= revision > self.reached;
        self.reached = self.reached.max(revision);
    }

    /// Takes the revision back: the later ones are sent once more.
    pub(super) fn go_back(&mut self, to: Revision) {
        self.has_news |= to < self.reached;
        self.reached = self.reached.min(to);
    }

    /// The next response brings a removal that was withheld since this earlier revision.
    pub(super) fn bring(&mut self, revision: Revision) {
        self.next_brings.add_one(revision);
    }

    /// The next response brings an answer from a later revision than `reached`, without the other
    /// changes between the two.
    pub(super) fn bring_ahead(&mut self, reached: Revision, revision: Revision) {
        self.next_brings.add(reached, revision);
    }

    /// Drops the revisions that the next response would bring: they needed no response.
    pub(super) fn forget_brought(&mut self) {
        self.next_brings = Spans::default();
    }

    /// The responses that the client has not answered yet.
    pub(super) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// The revisions that wait for an answer, and those that were rejected, with the client's
    /// messages.
    pub(super) fn ack_state(&self) -> AckState {
        let mut pending = Spans::default();
        self.in_flight.brings().for_each(|brings| pending.extend(brings));
        let (sent, rejected) = (self.reached, self.rejections.rejected_revisions());
        let splitting = self.rejections.undecided_revisions();
        AckState { sent, pending, splitting, rejected, ..AckState::default() }
    }

    /// Whether this state may have changed since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// The resources of which the client may use another version than the newest (S33); `None` when
    /// they are not known, or more than the limit.
    pub(super) fn unaccepted(&self, limit: usize) -> Option<Unaccepted> {
        let is_state = self.in_flight.sent().any(|sent| matches!(sent.contents, ResponseContents::FullState));
        if self.rejections.have_full_state() || is_state {
            return Some(Unaccepted::FullState);
        }
        let mut names: BTreeSet<_> = self.in_flight.names(limit)?.into_iter().cloned().collect();
        if names.len() + self.rejections.keys().count() > limit {
            return None;
        }
        names.extend(self.rejections.keys().map(|key| key.name.clone()));
        Some(Unaccepted::Names(names))
    }

    /// S8c: a client that answers the newest response does not answer those before it.
    pub(super) fn forget_in_flight(&mut self) {
        if self.in_flight.forget_sent() {
            self.has_news = true;
            self.rejections.keep_sent(|_| false);
        }
    }

    /// The client rejected the newest response, and will not answer those before it. They count as
    /// rejected with it.
    pub(super) fn reject_in_flight(&mut self) {
        self.has_news = true;
        self.in_flight.sent().for_each(|sent| self.rejections.extend_newest(&sent.brings));
    }

    /// Records an ACK. Returns whether the nonce was one of an unanswered response.
    pub(super) fn on_ack(&mut self, nonce: Nonce, known: &KnownType) -> bool {
        let Some(mut sent) = self.in_flight.answered(nonce) else { return false };
        self.has_news = true;
        if self.in_flight.keeps_acked() {
            // S8d: if the client rejects a part after its ACK, that is about what the part is about.
            sent.brings.extend(&self.rejections.about_part(nonce));
        }
        self.rejections.on_ack(nonce, &sent.contents, known.acks_repeats);
        if sent.makes_room && known.conflicts {
            self.rejections.on_room(nonce);
        }
        self.in_flight.keep_acked(sent);
        true
    }

    /// Records a NACK. `None` when the nonce is not one of an unanswered response, or of one whose ACK
    /// the client may take back (S8d).
    pub(super) fn on_nack(&mut self, answer: &Answer<'_>) -> Option<NackOf> {
        let mut sent = match self.in_flight.answered(answer.nonce) {
            Some(sent) => sent,
            None => self.take_back(answer.nonce)?,
        };
        self.has_news = true;
        if sent.extra.as_ref().is_some_and(|extra| extra.is_before_switch) {
            self.next_brings.extend(&sent.brings);
            return Some(NackOf::Response);
        }
        let had_one_name = sent.contents.has_one_name();
        self.in_flight.take_sent_later(&mut sent);
        let makes_room = sent.makes_room && answer.conflicts;
        let of = self.rejections.on_nack(sent, had_one_name, answer);
        // S6e: the client may have applied the removals and changes of what it rejects. Those of a part
        // that is rejected go again, or were rejected alone.
        if makes_room && of == NackOf::Response {
            self.rejections.on_room(answer.nonce);
        }
        Some(of)
    }

    /// S8d: the client takes the ACK of the response with this nonce back.
    fn take_back(&mut self, nonce: Nonce) -> Option<Sent> {
        if !self.in_flight.keeps_acked() {
            return None;
        }
        let rejected = self.rejections.keys().map(|key| key.name.clone()).collect();
        let is_full = |sent: &Sent| matches!(sent.contents, ResponseContents::FullState);
        let has_full = self.rejections.have_full_state();
        self.in_flight.take_back(nonce, &rejected).filter(|sent| !(has_full && is_full(sent)))
    }

    /// S6f: decides which rejections count now. `is_withholding`: removals of the type are withheld.
    pub(super) fn settle(&mut self, now: Duration, is_withholding: bool, conflicts: bool) {
        let is_open = is_withholding || !self.in_flight.is_empty();
        self.has_news |= self.rejections.settle(now, is_open, conflicts);
    }

    /// A response with these contents is sent. The names in it leave the rejected responses, and its
    /// answer is about the revisions of these, too.
    pub(super) fn leave_rejections(
        &mut self,
        nonce: Option<Nonce>,
        contents: &ResponseContents,
        now: Duration,
        is_live: impl Fn(&ResourceKey) -> bool,
    ) {
        let about = self.rejections.on_sent(nonce, contents, now, is_live);
        self.next_brings.extend(&about);
    }

    /// The rejected responses that no later response has corrected.
    pub(super) fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// The same, to change them.
    pub(super) fn rejections_mut(&mut self) -> &mut Rejections {
        self.has_news = true;
        &mut self.rejections
    }

    /// The client no longer subscribes to anything.
    pub(super) fn forget_rejected(&mut self) {
        self.has_news = true;
        self.drop_queued();
        self.rejections.clear();
    }
}
