//! The responses of one type on one stream, with the client's ACKs and NACKs.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::config::StreamConfig;
use crate::cache::{AckState, Spans};
use crate::name::{Nonce, ResourceName, Revision, Version};
use crate::variants::Variant;
use crate::wire::{Body, ResourceKey};

/// Responses without an answer, and rejected responses that no later response has corrected.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Responses without an answer, oldest first.
    in_flight: VecDeque<Sent>,
    /// The nonce of the newest response.
    last: Option<Nonce>,
    /// The nonce of the newest response that was answered.
    last_answered: Option<Nonce>,
    /// The contents of rejected responses, each response separately (D8): the client may have
    /// applied all of it, some or none.
    rejected: Vec<Rejected>,
    /// The rejection of a full state, if no full state was ACKed since.
    state_rejected: Option<Nack>,
    /// The rejection of resources that are sent again, because the response that contained them was
    /// rejected (D8).
    uncertain: Option<Nack>,
    /// The only resource of the response that was rejected last, if it is known to have had no
    /// other one.
    rejected_alone: Option<Arc<Variant>>,
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

/// The contents of a rejected response.
#[derive(Debug)]
struct Rejected {
    keys: BTreeSet<ResourceKey>,
    nack: Nack,
}

/// The client's error message, and the revisions that it is about.
#[derive(Debug, Clone)]
struct Nack {
    about: Spans,
    detail: Arc<str>,
}

/// The contents of a response.
#[derive(Debug, Clone)]
pub(super) enum ResponseContents {
    /// Everything that the client should have (S25).
    FullState,
    /// Some resources and removals.
    Resources {
        /// The keys of an update, which the streams of a class share.
        shared: Option<Arc<BTreeSet<ResourceKey>>>,
        own: BTreeSet<ResourceKey>,
    },
}

impl Responses {
    /// Records a response after which the client has everything up to a revision.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        revision: Revision,
    ) {
        let brings = self.brings(revision);
        self.insert(now, nonce, contents, brings);
    }

    /// Records the first part of such a response, and queues the other parts.
    pub(super) fn sent_first(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        later_parts: Vec<ResponsePart>,
        revision: Revision,
    ) {
        let brings = self.brings(revision);
        self.insert(now, nonce, contents, Spans::default());
        self.queued.extend(later_parts);
        if let Some(last) = self.queued.back_mut() {
            last.brings.extend(&brings);
        }
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
        self.in_flight.push_back(Sent { nonce, at: now, contents, brings, alone: None });
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

    /// Whether the client accepted the newest response, and nothing that was sent before is in doubt.
    pub(super) fn are_settled(&self) -> bool {
        !self.are_in_flight() && !self.are_rejected()
    }

    /// Records that the newest response brings one resource alone.
    pub(super) fn sent_alone(&mut self, variant: Arc<Variant>) {
        if let Some(newest) = self.in_flight.back_mut() {
            newest.alone = Some(variant);
        }
    }

    /// Takes the resource that the last NACK is about for sure.
    pub(super) fn take_rejected_alone(&mut self) -> Option<Arc<Variant>> {
        self.rejected_alone.take()
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
    /// subscribes to them again before these responses arrive, the client has them.
    pub(super) fn cross_contents(&mut self, is_given_up: impl Fn(&ResourceKey) -> bool) {
        let queued = self.queued.iter().map(|part| &part.contents);
        let contents =
            self.in_flight.iter().map(|sent| &sent.contents).chain(queued).flat_map(ResponseContents::keys);
        let crossed = contents.filter(|key| self.crossed.contains(*key) || is_given_up(key));
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

    /// The next response brings the last of the uncertain resources.
    pub(super) fn bring_uncertain(&mut self) {
        if let Some(Nack { about, .. }) = self.uncertain.take() {
            self.has_news = true;
            self.next_brings.extend(&about);
        }
    }

    /// The revisions that wait for an answer, and those that were rejected, with the client's
    /// messages.
    pub(super) fn ack_state(&self) -> AckState {
        let mut pending = Spans::default();
        let queued = self.queued.iter().map(|part| &part.brings);
        for brings in self.in_flight.iter().map(|sent| &sent.brings).chain(queued) {
            pending.extend(brings);
        }
        if let Some(uncertain) = &self.uncertain {
            pending.extend(&uncertain.about);
        }
        let nacks = self.rejected.iter().map(|rejected| &rejected.nack).chain(&self.state_rejected);
        let nacks = nacks.filter(|nack| !nack.about.is_empty());
        let rejected = nacks.map(|of| (of.about.clone(), Arc::clone(&of.detail))).collect();
        AckState { sent: self.reached, pending, rejected }
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

    /// Whether a response with some of the resources was rejected, and not corrected since.
    pub(super) fn have_rejected_groups(&self) -> bool {
        !self.rejected.is_empty()
    }

    /// Whether any response was rejected, and not corrected since.
    pub(super) fn are_rejected(&self) -> bool {
        self.state_rejected.is_some() || !self.rejected.is_empty()
    }

    /// Whether an unanswered response contains this resource.
    pub(super) fn are_in_flight_with(&self, key: &ResourceKey) -> bool {
        let queued = self.queued.iter().map(|part| &part.contents);
        let mut open = self.in_flight.iter().map(|sent| &sent.contents).chain(queued);
        open.any(|contents| contents.has(key))
    }

    /// The client's message when it rejected this resource.
    pub(super) fn nack_detail(&self, key: &ResourceKey) -> Option<&Arc<str>> {
        let of_part = self.rejected.iter().rev().find(|group| group.keys.contains(key));
        of_part.map(|group| &group.nack).or(self.state_rejected.as_ref()).map(|of| &of.detail)
    }

    /// Whether the newest rejected response contained this resource, as of this commit.
    pub(super) fn was_rejected_last(&self, key: &ResourceKey, changed_at: Revision) -> bool {
        match (&self.state_rejected, self.rejected.last()) {
            (Some(nack), _) => nack.about.cover(changed_at),
            (None, Some(group)) => group.nack.about.cover(changed_at) && group.keys.contains(key),
            (None, None) => false,
        }
    }

    /// The resources of which the client may use another version than the newest (S33); `None` when
    /// they are not known, or more than the limit.
    pub(super) fn unaccepted(&self, limit: usize) -> Option<Unaccepted> {
        let is_state = self.in_flight.iter().any(|sent| matches!(sent.contents, ResponseContents::FullState));
        if self.state_rejected.is_some() || is_state {
            return Some(Unaccepted::FullState);
        }
        let mut names: BTreeSet<_> = self.in_flight_names(limit)?.into_iter().cloned().collect();
        if names.len() + self.rejected.iter().map(|group| group.keys.len()).sum::<usize>() > limit {
            return None;
        }
        let rejected = self.rejected.iter().flat_map(|group| &group.keys);
        names.extend(rejected.map(|key| key.name.clone()));
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

    /// Whether this resource was rejected.
    pub(super) fn are_rejected_with(&self, key: &ResourceKey) -> bool {
        self.nack_detail(key).is_some()
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
        let newest = self.rejected.last_mut().map(|group| &mut group.nack);
        if let Some(nack) = self.state_rejected.as_mut().or(newest) {
            self.in_flight.iter().for_each(|sent| nack.about.extend(&sent.brings));
        }
    }

    /// Takes the unanswered response with this nonce.
    fn answered(&mut self, nonce: Nonce) -> Option<Sent> {
        let at = self.in_flight.binary_search_by_key(&nonce, |sent| sent.nonce).ok()?;
        self.last_answered = self.last_answered.max(Some(nonce));
        self.in_flight.remove(at)
    }

    /// Records an ACK; `None` when the nonce is not one of an unanswered response.
    ///
    /// D8: when the response changes a resource of an earlier, rejected response, the other
    /// resources of that rejected response are still uncertain. They are returned, to be sent once
    /// more.
    pub(super) fn on_ack(&mut self, nonce: Nonce) -> Option<BTreeSet<ResourceKey>> {
        let contents = self.answered(nonce)?.contents;
        self.has_news = true;
        match contents {
            ResponseContents::FullState => {
                self.state_rejected = None;
                Some(BTreeSet::new())
            }
            contents => {
                let mut uncertain = BTreeSet::new();
                for Rejected { mut keys, nack } in self.take_touched(&contents) {
                    keys.retain(|key| !contents.has(key));
                    if !keys.is_empty() {
                        self.add_uncertain(nack);
                    }
                    uncertain.append(&mut keys);
                }
                Some(uncertain)
            }
        }
    }

    /// Records a NACK, which by itself causes no response (S6, D8). Returns whether the nonce was
    /// one of an unanswered response.
    pub(super) fn on_nack(&mut self, nonce: Nonce, detail: &str) -> bool {
        let Some(Sent { contents, brings, alone, .. }) = self.answered(nonce) else { return false };
        self.has_news = true;
        self.rejected_alone = alone;
        let mut nack = Nack { about: brings, detail: detail.into() };
        if matches!(contents, ResponseContents::FullState) {
            if let Some(before) = self.state_rejected.take() {
                nack.about.extend(&before.about);
            }
            self.state_rejected = Some(nack);
            return true;
        }
        let mut keys: BTreeSet<_> = contents.keys().cloned().collect();
        for mut touched in self.take_touched(&contents) {
            keys.append(&mut touched.keys);
            nack.about.extend(&touched.nack.about);
        }
        self.reject(Rejected { keys, nack });
        true
    }

    /// Keeps these resources as rejected, after the client ACKed a response that corrects a
    /// resource rejected together with them. For the program that committed them, this is an
    /// answer.
    pub(super) fn keep_rejected(&mut self, keys: BTreeSet<ResourceKey>) {
        if let Some(Nack { detail, .. }) = self.uncertain.take() {
            self.has_news = true;
            self.reject(Rejected { keys, nack: Nack { about: Spans::default(), detail } });
        }
    }

    fn reject(&mut self, group: Rejected) {
        if !group.keys.is_empty() {
            self.rejected.push(group);
        }
        if self.rejected.len() > REJECTED_REMEMBERED {
            // The oldest two become one: at worst more is sent again than necessary.
            let mut oldest = self.rejected.remove(0);
            self.rejected[0].keys.append(&mut oldest.keys);
            self.rejected[0].nack.about.extend(&oldest.nack.about);
        }
    }

    fn add_uncertain(&mut self, nack: Nack) {
        match &mut self.uncertain {
            Some(known) => known.about.extend(&nack.about),
            None => self.uncertain = Some(nack),
        }
    }

    /// A response has the current resources of some names. A rejected resource of these names that
    /// no longer exists is replaced by the keys of that response.
    pub(super) fn supersede(&mut self, contents: &ResponseContents, is_live: impl Fn(&ResourceKey) -> bool) {
        for Rejected { keys: group, .. } in &mut self.rejected {
            let is_superseded = |key: &ResourceKey| {
                contents.of_name(&key.name).next().is_some() && !contents.has(key) && !is_live(key)
            };
            let (superseded, remaining): (Vec<_>, Vec<_>) =
                std::mem::take(group).into_iter().partition(is_superseded);
            *group = remaining.into_iter().collect();
            group.extend(superseded.iter().flat_map(|key| contents.of_name(&key.name)).cloned());
        }
    }

    /// The client no longer subscribes to anything.
    pub(super) fn forget_rejected(&mut self) {
        self.has_news = true;
        self.drop_queued();
        self.rejected.clear();
        self.state_rejected = None;
        self.uncertain = None;
    }

    /// Keeps the rejection of resources that are still covered.
    pub(super) fn retain_rejected(&mut self, mut is_covered: impl FnMut(&ResourceKey) -> bool) {
        self.has_news |= !self.rejected.is_empty();
        self.rejected.retain_mut(|group| {
            group.keys.retain(&mut is_covered);
            !group.keys.is_empty()
        });
    }

    /// S9b: until when newer content waits for the ACK of the response before it; `None` when it
    /// does not wait.
    pub(super) fn wait_until(&self, now: Duration, config: &StreamConfig) -> Option<Duration> {
        let last = self.last?;
        let sent = self.in_flight.back().filter(|sent| sent.nonce == last)?;
        Some(sent.at + config.ack_wait).filter(|until| *until > now)
    }

    /// Takes the rejected responses that have a resource in common with these contents.
    fn take_touched(&mut self, contents: &ResponseContents) -> Vec<Rejected> {
        let touches = |group: &mut Rejected| group.keys.iter().any(|key| contents.has(key));
        self.rejected.extract_if(.., touches).collect()
    }
}

impl ResponsePart {
    pub(super) fn new(version: Version, bodies: Vec<Arc<Body>>, contents: ResponseContents) -> Self {
        Self { version, bodies, contents, brings: Spans::default() }
    }
}

impl ResponseContents {
    /// The contents of a part: names after one name, up to another. The last part has no end.
    pub(super) fn part(&self, after: Option<&ResourceName>, until: Option<&ResourceName>) -> Self {
        let is_in = |key: &&ResourceKey| {
            after.is_none_or(|after| key.name > *after) && until.is_none_or(|until| key.name <= *until)
        };
        Self::Resources { shared: None, own: self.keys().filter(is_in).cloned().collect() }
    }

    /// No resources.
    pub(super) fn nothing() -> Self {
        Self::Resources { shared: None, own: BTreeSet::new() }
    }

    pub(super) fn has(&self, key: &ResourceKey) -> bool {
        match self {
            Self::FullState => true,
            Self::Resources { shared, own } => {
                own.contains(key) || shared.as_ref().is_some_and(|shared| shared.contains(key))
            }
        }
    }

    /// Its key, if it is known to have one alone.
    pub(super) fn only_key(&self) -> Option<&ResourceKey> {
        let mut keys = self.keys();
        keys.next().filter(|_| keys.next().is_none())
    }

    /// Its keys of one name.
    fn of_name<'s>(&'s self, name: &'s ResourceName) -> impl Iterator<Item = &'s ResourceKey> {
        let (shared, own) = self.sets();
        let of_set = move |set: &'s BTreeSet<ResourceKey>| {
            set.range(ResourceKey::of_name(name)..).take_while(move |key| key.name == *name)
        };
        shared.into_iter().chain(own).flat_map(of_set)
    }

    fn len(&self) -> usize {
        let (shared, own) = self.sets();
        shared.into_iter().chain(own).map(BTreeSet::len).sum()
    }

    fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        let (shared, own) = self.sets();
        shared.into_iter().chain(own).flatten()
    }

    fn sets(&self) -> (Option<&BTreeSet<ResourceKey>>, Option<&BTreeSet<ResourceKey>>) {
        match self {
            Self::FullState => (None, None),
            Self::Resources { shared, own } => (shared.as_deref(), Some(own)),
        }
    }
}

/// The largest number of unanswered responses of one type; older ones count as superseded.
const IN_FLIGHT_REMEMBERED: usize = 64;

/// The largest number of rejected responses that are kept separately.
const REJECTED_REMEMBERED: usize = 8;
