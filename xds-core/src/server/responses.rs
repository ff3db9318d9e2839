//! The responses of one type on one stream, with the client's ACKs and NACKs.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::config::StreamConfig;
use super::contents::ResponseContents;
use super::rejections::Rejections;
use crate::cache::{AckState, Spans};
use crate::name::{Nonce, ResourceName, Revision, Version};
use crate::protocol::Protocol;
use crate::variants::Variant;
use crate::wire::{Body, ResourceKey};

/// Responses without an answer, and the revisions that responses bring.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Responses without an answer, oldest first.
    in_flight: VecDeque<Sent>,
    /// The nonce of the newest response.
    last: Option<Nonce>,
    /// The nonce of the newest response that was answered.
    last_answered: Option<Nonce>,
    rejections: Rejections,
    /// The revision up to which everything was sent, or found to be unnecessary.
    reached: Revision,
    /// Revisions that the next response brings besides those since `reached`.
    next_brings: Spans,
    /// Unsent parts of a response that was too large for one message (D32), oldest first.
    queued: VecDeque<ResponsePart>,
    /// Whether the contents of some unanswered responses were dropped.
    is_overfull: bool,
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

#[derive(Debug)]
struct Sent {
    nonce: Nonce,
    at: Duration,
    contents: ResponseContents,
    /// The revisions whose changes it brings.
    brings: Spans,
    /// The only resource that it brings, if that is known.
    alone: Option<Arc<Variant>>,
    /// What the client brought from another stream, and has until it takes this response.
    replaces: BTreeSet<ResourceKey>,
}

/// A part of a response, in its own message.
#[derive(Debug)]
pub(super) struct ResponsePart {
    pub(super) version: Version,
    pub(super) bodies: Vec<Arc<Body>>,
    pub(super) contents: ResponseContents,
    /// The revisions whose changes are complete with this part; only the last part has any.
    brings: Spans,
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
        self.queued.extend(later_parts);
    }

    /// Takes the next queued part, and records it as sent.
    pub(super) fn next_part(&mut self, now: Duration, nonce: Nonce) -> Option<ResponsePart> {
        let mut part = self.queued.pop_front()?;
        self.insert(now, nonce, part.contents.clone(), std::mem::take(&mut part.brings));
        Some(part)
    }

    /// Whether parts of a response are queued.
    pub(super) fn has_parts(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Drops the queued parts. The next response brings their revisions.
    pub(super) fn drop_queued(&mut self) {
        self.has_news = true;
        for part in self.queued.drain(..) {
            self.next_brings.extend(&part.brings);
        }
    }

    fn brings(&mut self, revision: Revision) -> Spans {
        let mut brings = std::mem::take(&mut self.next_brings);
        brings.add(self.reached, revision);
        self.reach(revision);
        brings
    }

    fn insert(&mut self, now: Duration, nonce: Nonce, contents: ResponseContents, brings: Spans) {
        self.has_news = true;
        self.is_overfull &= self.are_in_flight();
        self.in_flight.push_back(Sent {
            nonce,
            at: now,
            contents,
            brings,
            alone: None,
            replaces: BTreeSet::new(),
        });
        if self.in_flight.len() > IN_FLIGHT_REMEMBERED
            && let Some(forgotten) = self.in_flight.pop_front()
            && let Some(next) = self.in_flight.front_mut()
        {
            self.is_overfull = true;
            // Its answer can no longer be recorded. Its revisions must not count as ACKed for that
            // reason.
            next.brings.extend(&forgotten.brings);
        }
        self.last = Some(nonce);
        self.is_crossed = false;
    }

    /// Records the only resource that the newest response brings, if that is known.
    pub(super) fn sent_alone(&mut self, variant: Option<Arc<Variant>>) {
        if let Some(newest) = self.in_flight.back_mut() {
            newest.alone = variant;
        }
    }

    /// Records that the newest response replaces what the client brought of these names from another
    /// stream.
    pub(super) fn sent_instead(&mut self, brought: impl Iterator<Item = ResourceName>) {
        if let Some(newest) = self.in_flight.back_mut() {
            newest.replaces = brought.map(|name| ResourceKey::of_name(&name)).collect();
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
        let queued = self.queued.iter().map(|part| &part.contents);
        let contents =
            self.in_flight.iter().map(|sent| &sent.contents).chain(queued).flat_map(ResponseContents::keys);
        let replaced = self.in_flight.iter().flat_map(|sent| &sent.replaces);
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

    /// The revisions that wait for an answer, and those that were rejected, with the client's
    /// messages.
    pub(super) fn ack_state(&self) -> AckState {
        let mut pending = Spans::default();
        let queued = self.queued.iter().map(|part| &part.brings);
        for brings in self.in_flight.iter().map(|sent| &sent.brings).chain(queued) {
            pending.extend(brings);
        }
        if let Some(about) = self.rejections.resent_revisions() {
            pending.extend(about);
        }
        AckState { sent: self.reached, pending, rejected: self.rejections.rejected_revisions() }
    }

    /// Whether this state may have changed since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// The nonce of the newest response, answered or not.
    pub(super) fn last(&self) -> Option<Nonce> {
        self.last
    }

    /// Whether a response is unanswered, or a part of one is unsent.
    pub(super) fn are_in_flight(&self) -> bool {
        !self.in_flight.is_empty() || !self.queued.is_empty()
    }

    /// Since when the client owes an answer; `None` when it answered all responses.
    ///
    /// The time counts from the oldest response after the last one that the client answered: a
    /// client answers in order (C1), so it skipped those before. If only skipped responses are
    /// left, the time counts from the newest of these.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        let first = self.in_flight.partition_point(|sent| Some(sent.nonce) <= self.last_answered);
        let skipped = first.checked_sub(1).and_then(|at| self.in_flight.get(at));
        self.in_flight.get(first).or(skipped).map(|sent| sent.at)
    }

    /// Whether an unanswered response contains this resource.
    pub(super) fn are_in_flight_with(&self, key: &ResourceKey) -> bool {
        let queued = self.queued.iter().map(|part| &part.contents);
        let mut open = self.in_flight.iter().map(|sent| &sent.contents).chain(queued);
        open.any(|contents| contents.has(key))
    }

    /// The resources of which the client may use another version than the newest (S33); `None` when
    /// they are not known, or more than the limit.
    pub(super) fn unaccepted(&self, limit: usize) -> Option<Unaccepted> {
        let is_state = self.in_flight.iter().any(|sent| matches!(sent.contents, ResponseContents::FullState));
        if self.rejections.have_full_state() || is_state {
            return Some(Unaccepted::FullState);
        }
        let mut names: BTreeSet<_> = self.in_flight_names(limit)?.into_iter().cloned().collect();
        if names.len() + self.rejections.keys().count() > limit {
            return None;
        }
        names.extend(self.rejections.keys().map(|key| key.name.clone()));
        Some(Unaccepted::Names(names))
    }

    /// The names in unanswered responses; `None` when they are not known, or more than the limit.
    pub(super) fn in_flight_names(&self, limit: usize) -> Option<BTreeSet<&ResourceName>> {
        let queued = || self.queued.iter().map(|part| &part.contents);
        let sent = || self.in_flight.iter().map(|sent| &sent.contents).chain(queued());
        let is_unknown =
            self.is_overfull || sent().any(|contents| matches!(contents, ResponseContents::FullState));
        if is_unknown && self.are_in_flight() || sent().map(ResponseContents::len).sum::<usize>() > limit {
            return None;
        }
        Some(sent().flat_map(ResponseContents::keys).map(|key| &key.name).collect())
    }

    /// S8c: a client that answers the newest response does not answer those before it.
    pub(super) fn forget_in_flight(&mut self) {
        self.has_news |= !self.in_flight.is_empty();
        self.in_flight.clear();
    }

    /// The client rejected the newest response, and will not answer those before it. They count as
    /// rejected with it.
    pub(super) fn reject_in_flight(&mut self) {
        self.has_news = true;
        self.in_flight.iter().for_each(|sent| self.rejections.extend_newest(&sent.brings));
    }

    /// Takes the unanswered response with this nonce.
    fn answered(&mut self, nonce: Nonce) -> Option<Sent> {
        let at = self.in_flight.binary_search_by_key(&nonce, |sent| sent.nonce).ok()?;
        self.last_answered = self.last_answered.max(Some(nonce));
        self.in_flight.remove(at)
    }

    /// Records an ACK. Returns whether the nonce was one of an unanswered response.
    pub(super) fn on_ack(&mut self, nonce: Nonce, protocol: Protocol) -> bool {
        let Some(Sent { contents, .. }) = self.answered(nonce) else { return false };
        self.has_news = true;
        let later = self.in_flight.iter_mut().filter(|sent| sent.nonce > nonce);
        let later = later.map(|sent| (&sent.contents, &mut sent.brings));
        self.rejections.on_ack(&contents, protocol, later);
        true
    }

    /// Records a NACK, which by itself causes no response (S6, D8). Returns whether the nonce was
    /// one of an unanswered response.
    pub(super) fn on_nack(&mut self, nonce: Nonce, detail: &str) -> bool {
        let Some(Sent { contents, brings, alone, .. }) = self.answered(nonce) else { return false };
        self.has_news = true;
        self.rejections.on_nack(&contents, brings, detail, alone);
        true
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

    /// The next response brings these uncertain resources (D8).
    pub(super) fn resend(&mut self, is_sent: impl Fn(&ResourceKey) -> bool) {
        if let Some(about) = self.rejections.resend(is_sent) {
            self.has_news = true;
            self.next_brings.extend(&about);
        }
    }

    /// The client no longer subscribes to anything.
    pub(super) fn forget_rejected(&mut self) {
        self.has_news = true;
        self.drop_queued();
        self.rejections.clear();
    }

    /// S9b: until when newer content waits for the ACK of the response before it; `None` when it
    /// does not wait.
    pub(super) fn wait_until(&self, now: Duration, config: &StreamConfig) -> Option<Duration> {
        let last = self.last?;
        let sent = self.in_flight.back().filter(|sent| sent.nonce == last)?;
        Some(sent.at + config.ack_wait).filter(|until| *until > now)
    }
}

impl ResponsePart {
    pub(super) fn new(version: Version, bodies: Vec<Arc<Body>>, contents: ResponseContents) -> Self {
        Self { version, bodies, contents, brings: Spans::default() }
    }
}

/// The largest number of unanswered responses of one type; older ones count as superseded.
const IN_FLIGHT_REMEMBERED: usize = 64;
