//! The streams of one client (S33). When a client opens a stream for each type, a response on one
//! stream waits for ACKs on another.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::in_use::{InUse, Referrer};
use super::order::TargetStatus;
use super::type_state::TypeState;
use crate::cache::{Membership, Position, Snapshot, Watch, lock};
use crate::known_type::KnownType;
use crate::name::{ResourceName, Revision, TypeUrl};
use crate::references::Target;
use crate::subscription::WILDCARD;

/// The streams of one client. Clones are the same group.
///
/// Each stream that [joins](super::Stream::join) publishes how far the client is with each of
/// its types. When two streams subscribe to listeners, or to clusters, two clients share one name,
/// and each stream is on its own.
#[derive(Debug, Clone, Default)]
pub struct ClientGroup(Arc<GroupState>);

#[derive(Debug, Default)]
struct GroupState {
    /// Locked while a stream decides what to send: it must not see another stream halfway between
    /// two revisions.
    deciding: Mutex<()>,
    streams: Mutex<Streams>,
    /// Whether responses on one stream depend on another stream. Most clients use one stream for
    /// all types. All clients of a fleet may share one name. A client may have a stream for the
    /// endpoints of each cluster. None of these pays for looking at other streams. Set while the
    /// streams are locked.
    is_tied: AtomicBool,
    /// Whether a stream may owe what follows a resource. It may do so after the stream that sent the
    /// resource has ended.
    is_owing: AtomicBool,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, GroupStream>,
    /// On how many streams the client subscribes to each type.
    subscribed: BTreeMap<TypeUrl, usize>,
    /// The assignments of clusters that were sent, until the client subscribes to them. A client
    /// with one stream for all types withholds the ACK of a cluster until it has the endpoints
    /// (S35); a client with several streams does not.
    awaited: BTreeSet<ResourceName>,
}

#[derive(Debug)]
struct GroupStream {
    watch: Arc<Watch>,
    summaries: BTreeMap<TypeUrl, TypeSummary>,
    /// Whether it waits for other streams.
    is_waiting: bool,
    /// What it must send because another stream sent a resource that names it (S34, S34b).
    followers: BTreeMap<Target, BTreeSet<ResourceName>>,
}

/// What other streams know about one type on one stream.
#[derive(Debug, Default)]
struct TypeSummary {
    /// `None` while the client does not subscribe to the type.
    position: Option<Position>,
    /// The revision up to which everything was sent.
    cursor: Revision,
    /// The status of responses, without changes since the cursor.
    status: OrderStatus,
    /// The resources of which the client may use other versions than the newest.
    in_use: InUse,
}

/// What the order of S33 needs to know about a type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrderStatus {
    /// Since when the client owes an answer; `None` when it answered all responses.
    pub(super) unanswered_since: Option<Duration>,
    /// Whether something is still to be sent, or that is not known.
    pub(super) is_behind: bool,
}

/// The place of a stream in its group. The stream leaves the group when the seat is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    group: ClientGroup,
    id: u64,
}

impl ClientGroup {
    /// A group without streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the group has no streams.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.0.streams).streams.is_empty()
    }

    /// Waits until no other stream of the group decides what to send, and keeps others from
    /// deciding.
    pub(super) fn begin_deciding(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.deciding)
    }

    /// Whether responses on one of its streams depend on another.
    pub(super) fn is_tied(&self) -> bool {
        self.0.is_tied.load(Ordering::Acquire)
    }

    /// Updates whether the streams depend on each other. Returns whether a stream may have waited
    /// for this one, or waits now. When the dependence begins, only this stream has just published
    /// its state; the states of the others count as unknown until they publish.
    fn tie(&self, streams: &mut Streams, publisher: u64) -> bool {
        let is_tied = streams.are_tied();
        let was_tied = self.0.is_tied.swap(is_tied, Ordering::AcqRel);
        if was_tied || !is_tied {
            return was_tied;
        }
        for (_, stream) in streams.streams.iter_mut().filter(|(id, _)| **id != publisher) {
            stream.summaries.values_mut().for_each(TypeSummary::forget);
            stream.watch.wake();
        }
        true
    }

    pub(super) fn join(&self, watch: &Arc<Watch>) -> Seat {
        let mut streams = lock(&self.0.streams);
        streams.last_id += 1;
        let (summaries, followers) = (BTreeMap::new(), BTreeMap::new());
        let stream = GroupStream { watch: Arc::clone(watch), summaries, is_waiting: false, followers };
        let id = streams.last_id;
        streams.streams.insert(id, stream);
        Seat { group: self.clone(), id }
    }
}

/// Whether a client subscribes to the endpoints of a cluster on these streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// It will: it subscribed to other endpoints.
    Expected,
    /// It never subscribed to endpoints, and may get them from elsewhere.
    Possible,
}

impl GroupStream {
    /// Its selection of a type.
    fn position(&self, target: Target) -> Option<&Position> {
        self.summaries.get(target.type_url())?.position.as_ref()
    }
}

impl Seat {
    pub(super) fn group(&self) -> &ClientGroup {
        &self.group
    }

    /// Publishes the state of this stream and wakes the streams that wait for it.
    pub(super) fn publish<'a>(&self, types: impl Iterator<Item = &'a mut TypeState>) {
        let mut streams = lock(&self.group.0.streams);
        let is_alone = streams.streams.len() == 1;
        let Streams { streams: all, subscribed, .. } = &mut *streams;
        let Some(stream) = all.get_mut(&self.id) else { return };
        let mut is_changed = false;
        for state in types {
            state.published.is_outdated = false;
            is_changed |= match stream.summaries.get_mut(&state.terms.type_url) {
                Some(summary) => summary.update(state, is_alone),
                None => {
                    let mut summary = TypeSummary::default();
                    summary.update(state, is_alone);
                    stream.summaries.insert(state.terms.type_url.clone(), summary);
                    *subscribed.entry(state.terms.type_url.clone()).or_default() += 1;
                    true
                }
            };
        }
        if is_changed {
            if let Some(position) = stream.position(Target::Assignment).cloned() {
                streams.awaited.retain(|name| !position.covers(name));
            }
            if self.group.tie(&mut streams, self.id) {
                streams.wake_waiting(self.id);
            }
        }
    }

    /// Records whether this stream waits for others. Called before the stream looks at the others,
    /// so that it is woken by every change after that.
    pub(super) fn set_waiting(&self, is_waiting: bool) {
        if let Some(stream) = lock(&self.group.0.streams).streams.get_mut(&self.id) {
            stream.is_waiting = is_waiting;
        }
    }

    /// The status of these types on the other streams of the client.
    pub(super) fn others(&self, types: &[&str], snapshot: &Snapshot) -> Vec<OrderStatus> {
        let streams = lock(&self.group.0.streams);
        streams.of_others(self.id, types).map(|(_, _, summary)| summary.status(snapshot)).collect()
    }

    /// What the client has of the relevant types on its other streams.
    pub(super) fn target_statuses(
        &self,
        is_relevant: impl Fn(&str) -> bool,
        snapshot: &Snapshot,
    ) -> Vec<TargetStatus<'static>> {
        let streams = lock(&self.group.0.streams);
        let others = streams.others(self.id).filter(|(_, type_url, _)| is_relevant(type_url.as_str()));
        others.filter_map(|(_, type_url, summary)| summary.target_status(type_url, snapshot)).collect()
    }

    /// What the client has of a type on its other streams, with the numbers of these.
    pub(super) fn positions(&self, type_url: &str) -> Vec<(u64, Position)> {
        let streams = lock(&self.group.0.streams);
        let of_type = streams.of_others(self.id, std::slice::from_ref(&type_url));
        let position = |(id, _, summary): (u64, _, &TypeSummary)| Some((id, summary.position.clone()?));
        of_type.filter_map(position).collect()
    }

    /// Whether a stream of the client has not ended.
    pub(super) fn has_stream(&self, id: u64) -> bool {
        lock(&self.group.0.streams).streams.contains_key(&id)
    }

    /// The types, among these, to which the client subscribes on its other streams.
    pub(super) fn referrers(&self, types: &[&str]) -> Vec<Referrer> {
        let streams = lock(&self.group.0.streams);
        let referrer = |(_, type_url, summary): (u64, &TypeUrl, &TypeSummary)| {
            Referrer::new(type_url, summary.position.as_ref(), || summary.in_use.clone())
        };
        streams.of_others(self.id, types).filter_map(referrer).collect()
    }

    /// S34, S34b: the streams that subscribe to these resources must send them again. The group waits for a
    /// subscription to the other ones, if they are endpoints.
    pub(super) fn owe_followers<'n>(&self, target: Target, names: impl Iterator<Item = &'n ResourceName>) {
        let mut streams = lock(&self.group.0.streams);
        if streams.is_ambiguous() {
            return;
        }
        // Set before any stream is woken. If no stream owes anything after all, the flag costs one lock.
        self.group.0.is_owing.store(true, Ordering::Release);
        let names: BTreeSet<_> = names.collect();
        let mut unknown = names.clone();
        for (_, stream) in streams.streams.iter_mut().filter(|(id, _)| **id != self.id) {
            let Some(position) = stream.position(target) else { continue };
            let is_covered = |name: &&&ResourceName| name.as_str() == WILDCARD || position.covers(name);
            let covered: Vec<_> = names.iter().filter(is_covered).map(|name| (*name).clone()).collect();
            if covered.is_empty() {
                continue;
            }
            covered.iter().for_each(|name| _ = unknown.remove(name));
            stream.followers.entry(target).or_default().extend(covered);
            stream.watch.wake();
        }
        if target != Target::Assignment {
            return;
        }
        let unknown: Vec<_> = unknown.into_iter().cloned().collect();
        streams.awaited.extend(unknown);
        if streams.awaited.len() > AWAITED_LIMIT {
            streams.awaited.clear();
        }
    }

    /// Whether the client will subscribe to the endpoints of clusters that it was sent; `None` when
    /// it already has.
    pub(super) fn awaits_endpoints(&self) -> Option<Awaited> {
        let streams = lock(&self.group.0.streams);
        if streams.awaited.is_empty() {
            return None;
        }
        let subscribes = |stream: &GroupStream| stream.position(Target::Assignment).is_some();
        let has_endpoints = streams.streams.values().any(subscribes);
        Some(if has_endpoints { Awaited::Expected } else { Awaited::Possible })
    }

    /// The client will not subscribe to them.
    pub(super) fn forget_awaited(&self) {
        lock(&self.group.0.streams).awaited.clear();
    }

    /// What this stream must send again.
    pub(super) fn take_followers(&self) -> BTreeMap<Target, BTreeSet<ResourceName>> {
        if !self.group.0.is_owing.load(Ordering::Acquire) {
            return BTreeMap::new();
        }
        let mut streams = lock(&self.group.0.streams);
        let own = streams.streams.get_mut(&self.id);
        let owed = own.map(|stream| std::mem::take(&mut stream.followers)).unwrap_or_default();
        let is_owing = streams.streams.values().any(|stream| !stream.followers.is_empty());
        self.group.0.is_owing.store(is_owing, Ordering::Release);
        owed
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut streams = lock(&self.group.0.streams);
        let removed = streams.streams.remove(&self.id);
        streams.awaited.clear();
        for type_url in removed.iter().flat_map(|removed| removed.summaries.keys()) {
            let count =
                streams.subscribed.get_mut(type_url).expect("each published type of a stream is counted");
            *count -= 1;
            if *count == 0 {
                streams.subscribed.remove(type_url);
            }
        }
        if self.group.tie(&mut streams, self.id) {
            // Streams that waited for this stream no longer have to.
            streams.wake_waiting(self.id);
        }
    }
}

impl Streams {
    /// Whether several clients share one name. One client may subscribe to secrets, routes or
    /// endpoints on several streams, but to listeners, clusters and scopes on one stream only.
    fn is_ambiguous(&self) -> bool {
        let mut shared = self.subscribed.iter().filter(|(_, streams)| **streams > 1);
        shared.any(|(type_url, _)| KnownType::of(type_url.as_str()).full_state)
    }

    /// Whether there are several streams, and a type of one waits for a type of another.
    fn are_tied(&self) -> bool {
        let waits = |type_url: &TypeUrl| {
            let known = KnownType::of(type_url.as_str());
            known.waits_for.iter().chain(known.referrers).any(|other| self.subscribed.contains_key(*other))
        };
        self.streams.len() > 1 && self.subscribed.keys().any(waits) && !self.is_ambiguous()
    }

    /// These types on all streams but one; none when several clients share the name.
    fn of_others(&self, id: u64, types: &[&str]) -> impl Iterator<Item = (u64, &TypeUrl, &TypeSummary)> {
        self.others(id).filter(move |(_, type_url, _)| types.contains(&type_url.as_str()))
    }

    /// All types on all streams but one, each with the number of its stream.
    fn others(&self, id: u64) -> impl Iterator<Item = (u64, &TypeUrl, &TypeSummary)> {
        let is_known = self.streams.len() > 1 && !self.is_ambiguous();
        let others = self.streams.iter().filter(move |(other, _)| is_known && **other != id);
        others.flat_map(|(other, stream)| stream.summaries.iter().map(move |(of, state)| (*other, of, state)))
    }

    fn wake_waiting(&self, except: u64) {
        for (id, stream) in &self.streams {
            if stream.is_waiting && *id != except {
                stream.watch.wake();
            }
        }
    }
}

impl TypeSummary {
    /// Updates the summary and returns whether it changed.
    fn update(&mut self, state: &TypeState, is_alone: bool) -> bool {
        let position = state.holding.selection().map(Membership::position);
        let cursor = state.holding.cursor();
        let status = OrderStatus::of_responses(state);
        // No other stream reads the summary of a stream that is alone, and a stream that joins
        // later learns nothing false from it.
        let in_use = if is_alone { InUse::coarse(state) } else { InUse::of(state) };
        let is_changed = (cursor, status) != (self.cursor, self.status) || in_use != self.in_use;
        // Cloned only when it changed: all streams of a class would write to one reference counter.
        let has_moved = self.position.as_ref() != position;
        if has_moved {
            self.position = position.cloned();
        }
        (self.cursor, self.status, self.in_use) = (cursor, status, in_use);
        has_moved || is_changed
    }

    /// The state of the type is not known until the stream publishes again.
    fn forget(&mut self) {
        (self.status.is_behind, self.in_use) = (true, InUse::Unknown);
    }

    /// `None` when the client does not subscribe to the type.
    fn target_status(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Option<TargetStatus<'static>> {
        let (target, position) = (Target::of(type_url.as_str())?, self.position.clone()?);
        // Only its own stream knows which names are still to be sent.
        let unanswered = if self.status(snapshot).is_behind { None } else { self.in_use.unaccepted_names() };
        Some(TargetStatus { target, position: Cow::Owned(position), unanswered })
    }

    fn status(&self, snapshot: &Snapshot) -> OrderStatus {
        self.status.at(self.position.as_ref(), snapshot)
    }
}

impl OrderStatus {
    pub(super) fn of(state: &TypeState, snapshot: &Snapshot) -> Self {
        let position = state.holding.selection().map(Membership::position);
        Self::of_responses(state).at(position, snapshot)
    }

    fn of_responses(state: &TypeState) -> Self {
        let (in_flight, rejections) = (state.responses.in_flight(), state.responses.rejections());
        // S6c: the client lacks resources that it may accept.
        let is_behind = in_flight.has_parts() || rejections.are_splitting();
        Self { unanswered_since: in_flight.unanswered_since(), is_behind }
    }

    fn at(self, position: Option<&Position>, snapshot: &Snapshot) -> Self {
        let is_behind = self.is_behind || position.is_some_and(|position| position.is_behind(snapshot));
        Self { is_behind, ..self }
    }
}

/// The largest number of assignments to wait for; past it the group waits for none.
const AWAITED_LIMIT: usize = 4096;

#[cfg(test)]
mod tests;
