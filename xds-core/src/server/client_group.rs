//! The streams of one client (S33): a client that opens a stream for each type is still one client,
//! and what is sent on one stream waits for what it ACKed on another.

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

/// The streams of one client. Clones are the same group.
///
/// Each stream that [joins](super::DeltaStream::join) tells how far the client is with each of its
/// types. When two streams follow all listeners, or all clusters, two clients go by one name, and
/// each stream is on its own.
#[derive(Debug, Clone, Default)]
pub struct ClientGroup(Arc<GroupState>);

#[derive(Debug, Default)]
struct GroupState {
    /// Held while one of them decides what to send: it must not see another half way from one
    /// revision to the next.
    deciding: Mutex<()>,
    streams: Mutex<Streams>,
    /// What is sent on one of them depends on another. Most clients use one stream for all, a whole
    /// fleet may go by one name, and a client may have a stream for each cluster's endpoints: none
    /// of these pays for looking at others. Set with the streams locked.
    is_tied: AtomicBool,
    /// Some stream may have endpoints to send, also when the one that sent their clusters has ended
    /// meanwhile.
    is_owing: AtomicBool,
}

#[derive(Debug, Default)]
struct Streams {
    last_id: u64,
    streams: BTreeMap<u64, GroupStream>,
    /// On how many streams each type is followed.
    followed: BTreeMap<TypeUrl, usize>,
    /// Assignments of clusters that were sent, as long as nobody asked for them. A client that uses
    /// one stream for all keeps the ACK of a cluster back until it has the endpoints (S35); with
    /// streams of their own it does not.
    awaited: BTreeSet<ResourceName>,
}

#[derive(Debug)]
struct GroupStream {
    watch: Arc<Watch>,
    summaries: BTreeMap<TypeUrl, TypeSummary>,
    /// Whether something of it waits for other streams.
    is_waiting: bool,
    /// Endpoints that it has to send because another stream sent their cluster (S34).
    endpoints: BTreeSet<ResourceName>,
}

/// How far a client is with one type on one stream, as the others know it.
#[derive(Debug)]
struct TypeSummary {
    /// `None` while nothing is asked for.
    position: Option<Position>,
    /// The revision of what was sent last.
    cursor: Revision,
    /// Without regard to what is new since.
    status: OrderStatus,
    /// What it may use that is not the newest.
    in_use: InUse,
}

/// What the order of S33 asks of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrderStatus {
    /// Since when the client owes an answer; `None` when it answered all that was sent.
    pub(super) unanswered_since: Option<Duration>,
    /// Something is still to be sent, or nobody knows.
    pub(super) is_behind: bool,
}

/// A stream's place in its group; dropping it leaves.
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

    /// Whether no stream is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.0.streams).streams.is_empty()
    }

    /// Waits until no other stream of the group decides what to send.
    pub(super) fn begin_deciding(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.deciding)
    }

    /// Whether what is sent on one of its streams depends on another.
    pub(super) fn is_tied(&self) -> bool {
        self.0.is_tied.load(Ordering::Acquire)
    }

    /// Sees whether its streams depend on each other now; whether any may have waited for this one,
    /// or does. When they begin to, only this one has just told the others how far it is; of the
    /// rest nothing is known until they do.
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
        let (summaries, endpoints) = (BTreeMap::new(), BTreeSet::new());
        let stream = GroupStream { watch: Arc::clone(watch), summaries, is_waiting: false, endpoints };
        let id = streams.last_id;
        streams.streams.insert(id, stream);
        Seat { group: self.clone(), id }
    }
}

/// Whether a client asks for the endpoints of a cluster here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// It asked for others.
    Surely,
    /// It never asked for any; it may have them from elsewhere.
    Perhaps,
}

impl GroupStream {
    /// What it follows of the endpoints.
    fn endpoints_position(&self) -> Option<Position> {
        self.summaries.get(xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT)?.position.clone()
    }
}

impl Seat {
    pub(super) fn group(&self) -> &ClientGroup {
        &self.group
    }

    /// Tells the others how far this stream is. Those that wait for it look again.
    pub(super) fn publish<'a>(&self, types: impl Iterator<Item = &'a mut TypeState>) {
        let mut streams = lock(&self.group.0.streams);
        let is_alone = streams.streams.len() == 1;
        let Streams { streams: all, followed, .. } = &mut *streams;
        let Some(stream) = all.get_mut(&self.id) else { return };
        let mut is_changed = false;
        for state in types {
            state.is_unpublished = false;
            is_changed |= match stream.summaries.get_mut(&state.type_url) {
                Some(summary) => summary.update(state, is_alone),
                None => {
                    let summary = TypeSummary::of(state, is_alone);
                    stream.summaries.insert(state.type_url.clone(), summary);
                    *followed.entry(state.type_url.clone()).or_default() += 1;
                    true
                }
            };
        }
        if is_changed {
            if let Some(position) = stream.endpoints_position() {
                streams.awaited.retain(|name| !position.covers(name));
            }
            if self.group.tie(&mut streams, self.id) {
                streams.wake_waiting(self.id);
            }
        }
    }

    /// Says before it looks at the others whether it has something that waits for them, so that
    /// nothing they do meanwhile is missed.
    pub(super) fn set_waiting(&self, is_waiting: bool) {
        if let Some(stream) = lock(&self.group.0.streams).streams.get_mut(&self.id) {
            stream.is_waiting = is_waiting;
        }
    }

    /// How far the client is with these types on its other streams.
    pub(super) fn others(&self, types: &[&str], snapshot: &Snapshot) -> Vec<OrderStatus> {
        let streams = lock(&self.group.0.streams);
        streams.of_others(self.id, types).map(|(_, summary)| summary.status(snapshot)).collect()
    }

    /// What the client has of such types on its other streams.
    pub(super) fn target_statuses(
        &self,
        is_relevant: impl Fn(&str) -> bool,
        snapshot: &Snapshot,
    ) -> Vec<TargetStatus<'static>> {
        let streams = lock(&self.group.0.streams);
        let others = streams.others(self.id).filter(|(type_url, _)| is_relevant(type_url.as_str()));
        others.filter_map(|(type_url, summary)| summary.target_status(type_url, snapshot)).collect()
    }

    /// Those of these types that the client asks for on its other streams.
    pub(super) fn referrers(&self, types: &[&str]) -> Vec<Referrer> {
        let streams = lock(&self.group.0.streams);
        let referrer = |(type_url, summary): (&TypeUrl, &TypeSummary)| {
            Referrer::new(type_url, summary.position.as_ref(), || summary.in_use.clone())
        };
        streams.of_others(self.id, types).filter_map(referrer).collect()
    }

    /// S34: the streams that follow these assignments have to send them again. Those that nobody
    /// follows yet are waited for.
    pub(super) fn owe_endpoints(&self, names: &[ResourceName]) {
        let mut streams = lock(&self.group.0.streams);
        if streams.is_ambiguous() {
            return;
        }
        // Before any is woken; said in vain it costs a lock.
        self.group.0.is_owing.store(true, Ordering::Release);
        let mut unknown: BTreeSet<_> = names.iter().collect();
        for (_, stream) in streams.streams.iter_mut().filter(|(id, _)| **id != self.id) {
            let Some(position) = stream.endpoints_position() else { continue };
            let before = stream.endpoints.len();
            let covered: Vec<_> = names.iter().filter(|name| position.covers(name)).collect();
            covered.iter().for_each(|name| _ = unknown.remove(name));
            stream.endpoints.extend(covered.into_iter().cloned());
            if stream.endpoints.len() > before {
                stream.watch.wake();
            }
        }
        let unknown: Vec<_> = unknown.into_iter().cloned().collect();
        streams.awaited.extend(unknown);
        if streams.awaited.len() > AWAITED_LIMIT {
            streams.awaited.clear();
        }
    }

    /// Whether the client will ask for the endpoints of clusters that it was sent; `None` when it
    /// asked for all.
    pub(super) fn awaits_endpoints(&self) -> Option<Awaited> {
        let streams = lock(&self.group.0.streams);
        if streams.awaited.is_empty() {
            return None;
        }
        let follows_any = streams.streams.values().any(|stream| stream.endpoints_position().is_some());
        Some(if follows_any { Awaited::Surely } else { Awaited::Perhaps })
    }

    /// They will not come.
    pub(super) fn forget_awaited(&self) {
        lock(&self.group.0.streams).awaited.clear();
    }

    /// The assignments that this stream has to send again.
    pub(super) fn take_endpoints(&self) -> BTreeSet<ResourceName> {
        if !self.group.0.is_owing.load(Ordering::Acquire) {
            return BTreeSet::new();
        }
        let mut streams = lock(&self.group.0.streams);
        let own = streams.streams.get_mut(&self.id);
        let owed = own.map(|stream| std::mem::take(&mut stream.endpoints)).unwrap_or_default();
        let is_owing = streams.streams.values().any(|stream| !stream.endpoints.is_empty());
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
            let count = streams.followed.get_mut(type_url).expect("what a stream follows is counted");
            *count -= 1;
            if *count == 0 {
                streams.followed.remove(type_url);
            }
        }
        if self.group.tie(&mut streams, self.id) {
            // What waited for this stream no longer does.
            streams.wake_waiting(self.id);
        }
    }
}

impl Streams {
    /// Whether several clients go by one name: a client follows secrets, routes or endpoints on
    /// several streams, but its listeners, clusters and scopes on one.
    fn is_ambiguous(&self) -> bool {
        let mut shared = self.followed.iter().filter(|(_, streams)| **streams > 1);
        shared.any(|(type_url, _)| KnownType::of(type_url.as_str()).full_state)
    }

    /// Whether there are several and one has a type that waits for one that another has.
    fn are_tied(&self) -> bool {
        let waits = |type_url: &TypeUrl| {
            let known = KnownType::of(type_url.as_str());
            known.waits_for.iter().chain(known.referrers).any(|other| self.followed.contains_key(*other))
        };
        self.streams.len() > 1 && self.followed.keys().any(waits) && !self.is_ambiguous()
    }

    /// These types on all streams but one; nothing when nobody can say whose they are.
    fn of_others(&self, id: u64, types: &[&str]) -> impl Iterator<Item = (&TypeUrl, &TypeSummary)> {
        self.others(id).filter(move |(type_url, _)| types.contains(&type_url.as_str()))
    }

    fn others(&self, id: u64) -> impl Iterator<Item = (&TypeUrl, &TypeSummary)> {
        let is_known = self.streams.len() > 1 && !self.is_ambiguous();
        let others = self.streams.iter().filter(move |(other, _)| is_known && **other != id);
        others.flat_map(|(_, stream)| &stream.summaries)
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
    fn of(state: &TypeState, is_alone: bool) -> Self {
        let mut summary = Self {
            position: None,
            cursor: Revision::ZERO,
            status: OrderStatus { unanswered_since: None, is_behind: false },
            in_use: InUse::NewestOnly,
        };
        summary.update(state, is_alone);
        summary
    }

    /// Whether it is another one than before.
    fn update(&mut self, state: &TypeState, is_alone: bool) -> bool {
        let position = state.membership.as_ref().map(Membership::position);
        let cursor = state.membership.as_ref().map_or(Revision::ZERO, Membership::cursor);
        let status = OrderStatus::of_responses(state);
        // A stream alone has nobody to look at it; who joins it finds nothing that it must not.
        let in_use = if is_alone { InUse::coarse(state) } else { InUse::of(state) };
        let is_changed = (cursor, status) != (self.cursor, self.status) || in_use != self.in_use;
        // Cloned only when it is another: all streams of a class would write to one counter.
        let has_moved = self.position.as_ref() != position;
        if has_moved {
            self.position = position.cloned();
        }
        (self.cursor, self.status, self.in_use) = (cursor, status, in_use);
        has_moved || is_changed
    }

    /// Nobody knows how far it is.
    fn forget(&mut self) {
        (self.status.is_behind, self.in_use) = (true, InUse::Unknown);
    }

    /// `None` when the client subscribes to nothing of the type.
    fn target_status(&self, type_url: &TypeUrl, snapshot: &Snapshot) -> Option<TargetStatus<'static>> {
        let (target, position) = (Target::of(type_url.as_str())?, self.position.clone()?);
        // What is still to be sent only its own stream can say.
        let unanswered = if self.status(snapshot).is_behind { None } else { self.in_use.unaccepted_names() };
        Some(TargetStatus { target, position: Cow::Owned(position), unanswered })
    }

    fn status(&self, snapshot: &Snapshot) -> OrderStatus {
        self.status.at(self.position.as_ref(), snapshot)
    }
}

impl OrderStatus {
    pub(super) fn of(state: &TypeState, snapshot: &Snapshot) -> Self {
        let position = state.membership.as_ref().map(Membership::position);
        Self::of_responses(state).at(position, snapshot)
    }

    fn of_responses(state: &TypeState) -> Self {
        let responses = &state.responses;
        Self { unanswered_since: responses.unanswered_since(), is_behind: responses.has_parts() }
    }

    fn at(self, position: Option<&Position>, snapshot: &Snapshot) -> Self {
        let is_behind = self.is_behind || position.is_some_and(|position| position.is_behind(snapshot));
        Self { is_behind, ..self }
    }
}

/// Assignments that are waited for at most; past it nobody waits.
const AWAITED_LIMIT: usize = 4096;

#[cfg(test)]
mod tests;
