//! The responses of one type that the client has not answered yet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use crate::cache::Spans;
use crate::name::{Nonce, ResourceName, Version};
use crate::variants::Variant;
use crate::wire::{Body, ResourceKey};

/// Responses of one type without an answer, and the unsent parts of a response (D32).
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Oldest first.
    sent: VecDeque<Sent>,
    /// Unsent parts of a response that was too large for one message (D32), oldest first.
    queued: VecDeque<ResponsePart>,
    /// The nonce of the newest response.
    last: Option<Nonce>,
    /// The nonce of the newest response that was answered.
    last_answered: Option<Nonce>,
    /// Whether the contents of some unanswered responses were dropped.
    is_overfull: bool,
    /// What the client ACKed while it tries a candidate; `None` while it tries none.
    tried: Option<Box<Tried>>,
}

/// Responses that a client ACKed while it tries a candidate. A NACK of one takes its ACK back (S8d).
#[derive(Debug)]
struct Tried {
    /// Responses up to this one are older than the candidate.
    after: Option<Nonce>,
    /// In the order of their nonces.
    acked: VecDeque<Sent>,
}

/// A response that was sent.
#[derive(Debug)]
pub(super) struct Sent {
    nonce: Nonce,
    at: Duration,
    pub(super) contents: ResponseContents,
    /// The revisions whose changes it brings.
    pub(super) brings: Spans,
    /// The only resource that it brings, if that is known.
    pub(super) alone: Option<Arc<Variant>>,
    /// Whether it removes or changes something that the client may have (S6e).
    pub(super) makes_room: bool,
    /// What few responses have.
    pub(super) extra: Option<Box<SentExtra>>,
}

/// What is to be known of few responses.
#[derive(Debug, Default)]
pub(super) struct SentExtra {
    /// What the client brought from another stream, and has until it takes this response.
    pub(super) replaces: BTreeSet<ResourceKey>,
    /// Names of which the client brought a content from another stream, for types whose resources can
    /// exclude each other (S6e).
    pub(super) brought: BTreeSet<ResourceName>,
    /// The errors and unresolved names in it, which go once more with a part of it (S6c).
    pub(super) besides: Vec<Arc<Body>>,
    /// V25: it has resources by name, and since then the client subscribed by locator.
    pub(super) is_before_switch: bool,
}

impl Sent {
    /// What is to be known of it besides.
    pub(super) fn extra_mut(&mut self) -> &mut SentExtra {
        self.extra.get_or_insert_default()
    }
}

/// A part of a response, in its own message.
#[derive(Debug)]
pub(super) struct ResponsePart {
    pub(super) version: Version,
    pub(super) bodies: Vec<Arc<Body>>,
    pub(super) contents: ResponseContents,
    /// The revisions whose changes are complete with this part; only the last part has any.
    pub(super) brings: Spans,
}

impl InFlight {
    /// Adds a response that is sent now. Returns whether the oldest one was forgotten for it.
    pub(super) fn push(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        brings: Spans,
    ) -> bool {
        self.last = Some(nonce);
        self.is_overfull &= !self.is_empty();
        let (alone, extra) = (None, None);
        self.sent.push_back(Sent { nonce, at: now, contents, brings, alone, makes_room: false, extra });
        if self.sent.len() > IN_FLIGHT_REMEMBERED
            && let Some(forgotten) = self.sent.pop_front()
            && let Some(next) = self.sent.front_mut()
        {
            self.is_overfull = true;
            // Its answer can no longer be recorded. Its revisions must not count as ACKed for that
            // reason.
            next.brings.extend(&forgotten.brings);
            return true;
        }
        false
    }

    /// Queues the later parts of the newest response.
    pub(super) fn queue(&mut self, parts: Vec<ResponsePart>) {
        self.queued.extend(parts);
    }

    /// Takes the next queued part.
    pub(super) fn next_part(&mut self) -> Option<ResponsePart> {
        self.queued.pop_front()
    }

    /// Whether parts of a response are queued.
    pub(super) fn has_parts(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether the client answered all responses, and no part of one is unsent.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.queued.is_empty()
    }

    /// The nonce of the newest response, answered or not.
    pub(super) fn last(&self) -> Option<Nonce> {
        self.last
    }

    /// The responses that were sent, oldest first.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter()
    }

    /// The same, to change them.
    pub(super) fn sent_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.sent.iter_mut()
    }

    /// The newest of them.
    pub(super) fn newest_mut(&mut self) -> Option<&mut Sent> {
        self.sent.back_mut()
    }

    /// A client rejected a response: names that a later response has are left to the answer of that.
    pub(super) fn take_sent_later(&mut self, sent: &mut Sent) {
        if matches!(sent.contents, ResponseContents::FullState) {
            return;
        }
        for later in self.sent.iter_mut().filter(|later| later.nonce > sent.nonce) {
            if sent.contents.keys().any(|key| later.contents.covers(key)) {
                later.brings.extend(&sent.brings);
                let left = sent.contents.keys().filter(|key| !later.contents.covers(key));
                sent.contents = ResponseContents::Resources { shared: None, own: left.cloned().collect() };
            }
        }
    }

    /// Whether the client may still answer the response with this nonce.
    pub(super) fn has_nonce(&self, nonce: Nonce) -> bool {
        self.sent.binary_search_by_key(&nonce, |sent| sent.nonce).is_ok()
    }

    /// The contents of all of them, and of the unsent parts.
    pub(super) fn contents(&self) -> impl Iterator<Item = &ResponseContents> {
        self.sent().map(|sent| &sent.contents).chain(self.queued.iter().map(|part| &part.contents))
    }

    /// The revisions that they bring.
    pub(super) fn brings(&self) -> impl Iterator<Item = &Spans> {
        self.sent().map(|sent| &sent.brings).chain(self.queued.iter().map(|part| &part.brings))
    }

    /// Whether any of them contains this resource.
    pub(super) fn has(&self, key: &ResourceKey) -> bool {
        self.contents().any(|contents| contents.has(key))
    }

    /// The names in them; `None` when they are not known, or more than the limit.
    pub(super) fn names(&self, limit: usize) -> Option<BTreeSet<&ResourceName>> {
        let is_unknown = self.is_overfull
            || self.contents().any(|contents| matches!(contents, ResponseContents::FullState));
        if is_unknown && !self.is_empty() || self.contents().map(ResponseContents::len).sum::<usize>() > limit
        {
            return None;
        }
        Some(self.contents().flat_map(ResponseContents::keys).map(|key| &key.name).collect())
    }

    /// Since when the client owes an answer; `None` when it answered all responses.
    ///
    /// The time counts from the oldest response after the last one that the client answered: a
    /// client answers in order (C1), so it skipped those before. If only skipped responses are
    /// left, the time counts from the newest of these.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        let first = self.sent.partition_point(|sent| Some(sent.nonce) <= self.last_answered);
        let skipped = first.checked_sub(1).and_then(|at| self.sent.get(at));
        self.sent.get(first).or(skipped).map(|sent| sent.at)
    }

    /// S9b: until when newer content waits for the ACK of the response before it; `None` when it
    /// does not wait.
    pub(super) fn wait_until(&self, now: Duration, ack_wait: Duration) -> Option<Duration> {
        let sent = self.sent.back().filter(|sent| Some(sent.nonce) == self.last)?;
        Some(sent.at + ack_wait).filter(|until| *until > now)
    }

    /// Takes the response with this nonce, which the client answers.
    pub(super) fn answered(&mut self, nonce: Nonce) -> Option<Sent> {
        let at = self.sent.binary_search_by_key(&nonce, |sent| sent.nonce).ok()?;
        self.last_answered = self.last_answered.max(Some(nonce));
        self.sent.remove(at)
    }

    /// S8d: the client tries a candidate from now on, or none.
    pub(super) fn enter(&mut self, is_candidate: bool) {
        let after = self.last;
        self.tried = is_candidate.then(|| Box::new(Tried { after, acked: VecDeque::new() }));
    }

    /// S8d: whether ACKs may be taken back.
    pub(super) fn keeps_acked(&self) -> bool {
        self.tried.is_some()
    }

    /// S8d: keeps a response that the client ACKed, if it tries a candidate.
    pub(super) fn keep_acked(&mut self, sent: Sent) {
        let Some(tried) = self.tried.as_deref_mut().filter(|tried| Some(sent.nonce) > tried.after) else {
            return;
        };
        let at = tried.acked.partition_point(|before| before.nonce < sent.nonce);
        tried.acked.insert(at, sent);
        if tried.acked.len() > ACKED_REMEMBERED {
            tried.acked.pop_front();
        }
    }

    /// S8d: no ACK is taken back any more.
    pub(super) fn forget_acked(&mut self) {
        self.tried.iter_mut().for_each(|tried| tried.acked.clear());
    }

    /// S8d: takes the response with this nonce, which the client ACKed before it rejects it. What later
    /// responses have is left to their answers; `rejected` are names in those that it rejected. `None` if
    /// nothing is left.
    pub(super) fn take_back(&mut self, nonce: Nonce, rejected: &BTreeSet<ResourceName>) -> Option<Sent> {
        let acked = &mut self.tried.as_deref_mut()?.acked;
        let at = acked.binary_search_by_key(&nonce, |sent| sent.nonce).ok()?;
        let mut sent = acked.remove(at)?;
        let later: Vec<_> = acked.iter().chain(&self.sent).filter(|later| later.nonce > nonce).collect();
        if matches!(sent.contents, ResponseContents::FullState) {
            let is_full = |later: &&Sent| matches!(later.contents, ResponseContents::FullState);
            return (!later.iter().any(is_full)).then_some(sent);
        }
        let is_left = |key: &&ResourceKey| {
            !rejected.contains(&key.name) && !later.iter().any(|later| later.contents.covers(key))
        };
        let own: BTreeSet<_> = sent.contents.keys().filter(is_left).cloned().collect();
        if own.is_empty() {
            return None;
        }
        sent.contents = ResponseContents::Resources { shared: None, own };
        sent.alone.take_if(|alone| sent.contents.of_name(alone.name()).next().is_none());
        Some(sent)
    }

    /// The client will not answer what was sent. Returns whether there was anything.
    pub(super) fn forget_sent(&mut self) -> bool {
        let had_any = !self.sent.is_empty();
        self.sent.clear();
        had_any
    }
}

/// The largest number of unanswered responses of one type; older ones count as superseded.
const IN_FLIGHT_REMEMBERED: usize = 64;
/// The largest number of ACKed responses of one type whose ACK the client may take back (S8d).
const ACKED_REMEMBERED: usize = 16;
