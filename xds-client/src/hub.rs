//! The machine of a client, shared by the client, its watchers and its connections.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use atomic_waker::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::info;
use xds_core::client::{Client as Machine, Decode, Effects, WatchError, WatchId};
use xds_core::proxy::health::Status;
use xds_core::{Parameters, ResourceName, TypeUrl};

use crate::metrics::Recorder;
use crate::owner::Owner;
use crate::persist::Persist;
use crate::slot::Slot;

/// The machine, and what its users share.
pub(crate) struct Hub {
    state: Mutex<HubState>,
    start: Instant,
    /// The start as wall-clock time, for reports.
    started_at: SystemTime,
    signals: Vec<ConnectionSignals>,
    /// Wakes the timer to read the next deadline again.
    pub(crate) timer: Notify,
    is_closed: AtomicBool,
    random: RandomState,
    pub(crate) recorder: Arc<dyn Recorder>,
    persist: Option<Arc<Persist>>,
    /// Why each server cannot be reached now.
    failures: Mutex<Vec<Option<ServerFailure>>>,
    /// The proxy that owns this client, if any.
    pub(crate) owner: Option<Box<dyn Owner>>,
}

/// Wakes the task of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSignals {
    /// A request may be ready to send.
    pub(crate) requests: AtomicWaker,
    /// The server may have become needed or unneeded, or works again.
    pub(crate) need: Notify,
}

struct HubState {
    machine: Machine,
    slots: HashMap<WatchId, SharedSlot>,
    declared: BTreeSet<TypeUrl>,
    /// The deadline for which the timer waits.
    armed: Option<Duration>,
    needed: Vec<bool>,
    failed: Vec<bool>,
}

/// The slot of the watchers of one subscription.
struct SharedSlot {
    slot: Arc<Slot>,
    /// Counted here and not by references to the slot, because a watcher that is being dropped may
    /// still hold it.
    watchers: usize,
}

/// One of several watches that start together.
pub(crate) struct NamedWatch<'n> {
    pub(crate) name: &'n str,
    pub(crate) watch: WatchId,
    pub(crate) slot: Arc<Slot>,
}

/// Keeps the connections open; when the last clone is dropped, they end.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Hub>);

/// Why a server cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFailure {
    /// The reason of the last failure.
    pub reason: String,
    /// When the first stream or attempt failed since the server worked.
    pub since: SystemTime,
    /// When the last one failed.
    pub last_at: SystemTime,
    /// How many failed.
    pub count: u64,
}

impl Hub {
    #[cfg(test)]
    pub(crate) fn new(
        machine: Machine,
        recorder: Arc<dyn Recorder>,
        persist: Option<Arc<Persist>>,
    ) -> (Arc<Self>, Arc<Handle>) {
        Self::with(machine, recorder, persist, None)
    }

    /// Makes a hub. The client of a proxy uses the time of the proxy.
    pub(crate) fn with(
        machine: Machine,
        recorder: Arc<dyn Recorder>,
        persist: Option<Arc<Persist>>,
        owner: Option<Box<dyn Owner>>,
    ) -> (Arc<Self>, Arc<Handle>) {
        let servers = machine.servers();
        let state = HubState {
            machine,
            slots: HashMap::new(),
            declared: BTreeSet::new(),
            armed: None,
            needed: vec![false; servers],
            failed: vec![false; servers],
        };
        let hub = Arc::new(Self {
            state: Mutex::new(state),
            start: owner.as_ref().map_or_else(Instant::now, |owner| owner.start()),
            started_at: SystemTime::now(),
            signals: (0..servers).map(|_| ConnectionSignals::default()).collect(),
            timer: Notify::new(),
            is_closed: AtomicBool::new(false),
            random: RandomState::new(),
            recorder,
            persist,
            failures: Mutex::new(vec![None; servers]),
            owner,
        });
        let handle = Arc::new(Handle(Arc::clone(&hub)));
        (hub, handle)
    }

    /// The time since the start of the client: the time of its machine.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    pub(crate) fn started_at(&self) -> SystemTime {
        self.started_at
    }

    pub(crate) fn signals(&self, server: usize) -> &ConnectionSignals {
        &self.signals[server]
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// A random number, for backoff. A new hasher of the standard library has unpredictable keys.
    pub(crate) fn jitter(&self) -> u32 {
        let hash = self.random.hash_one((self.now(), RandomState::new().hash_one(0)));
        u32::try_from(hash >> 32).unwrap_or(u32::MAX)
    }

    /// Reads the machine.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Machine) -> R) -> R {
        look(&self.lock().machine)
    }

    /// Applies an event to the machine, and notifies the affected watchers and connections.
    pub(crate) fn change<R>(&self, event: impl FnOnce(&mut Machine, Duration) -> (R, Effects)) -> R {
        self.change_with(event).0
    }

    /// The same, and also returns the outcome.
    pub(crate) fn change_with<R>(
        &self,
        event: impl FnOnce(&mut Machine, Duration) -> (R, Effects),
    ) -> (R, Effects) {
        let mut state = self.lock();
        // Read the time under the lock, so that the time of the machine never goes back.
        let now = self.now();
        let (result, mut effects) = event(&mut state.machine, now);
        let mut wakers = Vec::new();
        effects.touched.sort_unstable();
        for touched in effects.touched.chunk_by(|one, other| one.watch == other.watch) {
            if let Some(SharedSlot { slot, .. }) = state.slots.get(&touched[0].watch) {
                // D32: in one step, or a watcher could see that a set is complete before it sees
                // the members.
                let mut slot = slot.lock();
                for touched in touched {
                    slot.put(touched.member.as_ref(), state.machine.view_of(touched));
                }
                wakers.extend(slot.take_waiting());
            }
        }
        if let Some(persist) = &self.persist {
            persist.note(&effects);
        }
        if let Some(owner) = &self.owner {
            owner.on_effects(now, &state.machine, &effects);
        }
        let wakeups = state.wakeups();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.wake(wakeups);
        (result, effects)
    }

    /// Starts a watch, and returns its slot.
    pub(crate) fn watch(
        &self,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Result<(WatchId, Arc<Slot>), WatchError> {
        let mut state = self.lock();
        let watched = state.watch(type_url, name, parameters)?;
        self.on_watches_changed(state);
        Ok(watched)
    }

    /// Starts several watches, or none if one is refused.
    pub(crate) fn watch_many<'n>(
        &self,
        type_url: &TypeUrl,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Option<&Parameters>,
    ) -> Result<Vec<NamedWatch<'n>>, WatchError> {
        let mut state = self.lock();
        let mut watched = Vec::new();
        for name in names {
            match state.watch(type_url, name, parameters.cloned()) {
                Ok((watch, slot)) => watched.push(NamedWatch { name, watch, slot }),
                Err(error) => {
                    for NamedWatch { watch, .. } in watched {
                        state.unwatch(watch);
                    }
                    self.on_watches_changed(state);
                    return Err(error);
                }
            }
        }
        self.on_watches_changed(state);
        Ok(watched)
    }

    /// The stream of a server ended. The status is from the server, or from gRPC in its place.
    pub(crate) fn end(&self, server: usize, status: Option<Status>, reason: &str, jitter: u32) {
        self.change(|machine, now| {
            if let Some(owner) = &self.owner {
                owner.on_stream_end(now, server, status);
            }
            ((), machine.on_end(now, server, reason, jitter))
        });
    }

    /// Why a server cannot be reached now.
    pub(crate) fn failure(&self, server: usize) -> Option<ServerFailure> {
        self.failures()[server].clone()
    }

    /// A stream or an attempt to connect failed.
    pub(crate) fn note_failure(&self, server: usize, reason: &str) {
        let (mut failures, last_at) = (self.failures(), SystemTime::now());
        let (since, count) = failures[server].as_ref().map_or((last_at, 0), |last| (last.since, last.count));
        failures[server] =
            Some(ServerFailure { reason: reason.to_owned(), since, last_at, count: count + 1 });
    }

    /// The server works, or is not needed any more.
    pub(crate) fn forget_failure(&self, server: usize) {
        self.failures()[server] = None;
    }

    /// Reports that a server works.
    pub(crate) fn on_connected(&self, server: usize, name: &str) {
        let failure = self.failures()[server].take();
        if let Some(ServerFailure { since, count, .. }) = failure {
            let seconds = since.elapsed().unwrap_or_default().as_secs();
            info!(server = name, seconds, failures = count, "the server answers again");
        }
        self.recorder.connected(name, true);
    }

    fn failures(&self) -> MutexGuard<'_, Vec<Option<ServerFailure>>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the watches.
    pub(crate) fn edit<R>(&self, edit: impl FnOnce(&mut Machine, Duration) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let result = edit(&mut state.machine, now);
        self.on_watches_changed(state);
        result
    }

    /// Declares how to decode a type, once.
    pub(crate) fn declare(&self, type_url: &TypeUrl, decode: impl FnOnce() -> Decode) {
        let mut state = self.lock();
        if state.declared.insert(type_url.clone()) {
            state.machine.declare(type_url, decode());
        }
    }

    /// Removes a watcher.
    pub(crate) fn unwatch(&self, watch: WatchId) {
        let mut state = self.lock();
        state.unwatch(watch);
        self.on_watches_changed(state);
    }

    fn on_watches_changed(&self, mut state: MutexGuard<'_, HubState>) {
        let wakeups = state.wakeups();
        drop(state);
        self.wake(wakeups);
        self.look_for_requests();
    }

    /// Wakes all streams to look for requests: an event at one server may mean that another server
    /// becomes needed or unneeded (C15).
    pub(crate) fn look_for_requests(&self) {
        self.signals.iter().for_each(|signals| signals.requests.wake());
    }

    fn wake(&self, Wakeups { timer, need }: Wakeups) {
        if timer {
            self.timer.notify_one();
        }
        for server in need {
            self.signals[server].need.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        // A panic of the machine would be a defect; its state is still the newest.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let wakers: Vec<_> =
            self.lock().slots.values().flat_map(|shared| shared.slot.lock().close()).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.timer.notify_one();
        for signals in &self.signals {
            signals.need.notify_one();
            signals.requests.wake();
        }
        // The file of a proxy is shared by all its clients.
        if let Some(persist) = self.persist.as_ref().filter(|_| self.owner.is_none()) {
            persist.close();
        }
    }
}

/// The tasks to wake after a change.
struct Wakeups {
    timer: bool,
    need: Vec<usize>,
}

impl HubState {
    fn watch(
        &mut self,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Result<(WatchId, Arc<Slot>), WatchError> {
        let Self { machine, slots, .. } = self;
        let watch = machine.on_watch(type_url, name, parameters)?;
        let shared = slots.entry(watch).or_insert_with(|| {
            let members = machine.members(watch).map(|members| {
                let view = |name: &ResourceName| (name.clone(), machine.member_view(watch, name));
                members.map(view).collect()
            });
            SharedSlot { slot: Arc::new(Slot::new(machine.view(watch), members)), watchers: 0 }
        });
        shared.watchers += 1;
        Ok((watch, Arc::clone(&shared.slot)))
    }

    fn unwatch(&mut self, watch: WatchId) {
        self.machine.on_unwatch(watch);
        // After the last watcher, the machine may reuse the number.
        if let Entry::Occupied(mut shared) = self.slots.entry(watch) {
            shared.get_mut().watchers -= 1;
            if shared.get().watchers == 0 {
                shared.remove();
            }
        }
    }

    fn wakeups(&mut self) -> Wakeups {
        let deadline = self.machine.next_deadline();
        let timer = deadline.is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed));
        if timer {
            self.armed = deadline;
        }
        let mut need = Vec::new();
        for server in 0..self.machine.servers() {
            let (is_needed, has_failed) = (self.machine.is_needed(server), self.machine.has_failed(server));
            let was_needed = std::mem::replace(&mut self.needed[server], is_needed);
            let had_failed = std::mem::replace(&mut self.failed[server], has_failed);
            if was_needed != is_needed || (had_failed && !has_failed) {
                need.push(server);
            }
        }
        Wakeups { timer, need }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Handle {
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.0
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

/// Calls the machine at its deadlines until the client ends.
pub(crate) async fn keep_time(hub: Arc<Hub>) {
    while !hub.is_closed() {
        let deadline = {
            let mut state = hub.lock();
            state.armed = state.machine.next_deadline();
            state.armed
        };
        let woken = hub.timer.notified();
        match deadline {
            None => woken.await,
            Some(deadline) => {
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep_until(hub.start + deadline) => {
                        hub.change(|machine, now| ((), machine.on_timeout(now)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xds_core::client::{ClientConfig, Protocol, ServerConfig};

    use super::*;
    use crate::metrics::NoRecorder;

    /// Two watchers that are dropped at once both hold the slot while each is removed. When the
    /// count of references decided which one was the last, the slot stayed, and the next
    /// subscription with the same number was shown in it.
    #[tokio::test]
    async fn a_subscription_begins_with_a_slot_of_its_own() {
        let server =
            ServerConfig { name: "origin".into(), protocol: Protocol::Delta, errors: Default::default() };
        let machine = Machine::new(ClientConfig::new(Bytes::new(), server));
        let (hub, _handle) = Hub::new(machine, Arc::new(NoRecorder), None);
        let type_url = "example.com/acme.Thing".into();
        let (first, slot) = hub.watch(&type_url, "a", None).unwrap();
        let (second, _) = hub.watch(&type_url, "a", None).unwrap();
        let _of_the_other = Arc::clone(&slot);
        hub.unwatch(first);
        hub.unwatch(second);
        let (third, other) = hub.watch(&type_url, "b", None).unwrap();
        assert_eq!(first, third, "the number is used again");
        assert!(!Arc::ptr_eq(&slot, &other));
    }
}
