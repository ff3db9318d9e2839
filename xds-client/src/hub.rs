//! What a client, its watchers and its connections share, around the machine.

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
use xds_core::client::health::Status;
use xds_core::client::{Client as Machine, Decode, Effects, StreamEnd, WatchError, WatchId};
use xds_core::{ClientOutcome, Parameters, ResourceName, TypeUrl};

use crate::metrics::Recorder;
use crate::owner::{Event, Owner};
use crate::persist::Persist;
use crate::slot::Slot;

/// What the users of a machine share.
pub(crate) struct Hub {
    /// Has the machine. Its lock is the outer one.
    pub(crate) owner: Box<dyn Owner>,
    shown: Mutex<Shown>,
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
}

/// Wakes the task of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSignals {
    /// A request may be ready to send.
    pub(crate) requests: AtomicWaker,
    /// The server may have become needed or unneeded, or works again.
    pub(crate) need: Notify,
}

/// What watchers and tasks know of the machine.
struct Shown {
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
    /// Makes the hub of a client with so many servers.
    pub(crate) fn new(
        owner: Box<dyn Owner>,
        servers: usize,
        recorder: Arc<dyn Recorder>,
        persist: Option<Arc<Persist>>,
    ) -> (Arc<Self>, Arc<Handle>) {
        let shown = Shown {
            slots: HashMap::new(),
            declared: BTreeSet::new(),
            armed: None,
            needed: vec![false; servers],
            failed: vec![false; servers],
        };
        let hub = Arc::new(Self {
            owner,
            shown: Mutex::new(shown),
            started_at: SystemTime::now(),
            signals: (0..servers).map(|_| ConnectionSignals::default()).collect(),
            timer: Notify::new(),
            is_closed: AtomicBool::new(false),
            random: RandomState::new(),
            recorder,
            persist,
            failures: Mutex::new(vec![None; servers]),
        });
        let handle = Arc::new(Handle(Arc::clone(&hub)));
        (hub, handle)
    }

    /// The time since the start of the client: the time of its machine.
    pub(crate) fn now(&self) -> Duration {
        self.owner.start().elapsed()
    }

    pub(crate) fn start(&self) -> Instant {
        self.owner.start()
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

    /// Reads the machine; `None` if the client has ended.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Machine) -> R) -> Option<R> {
        let (mut look, mut result) = (Some(look), None);
        self.owner.read(&mut |machine| {
            let look = look.take().filter(|_| !self.is_closed());
            result = look.map(|look| look(machine));
        });
        result
    }

    /// Applies an event to the machine, and notifies the affected watchers and connections. Returns
    /// `None` if the client has ended.
    pub(crate) fn change<R>(
        &self,
        event: impl FnOnce(&mut Machine, Duration) -> (R, Effects),
    ) -> Option<(R, Effects)> {
        self.apply(event, |owner, event| owner.change(event))
    }

    /// The same for an event without effects.
    pub(crate) fn edit<R>(&self, event: impl FnOnce(&mut Machine, Duration) -> R) -> Option<R> {
        self.change(|machine, now| (event(machine, now), Effects::default())).map(|(result, _)| result)
    }

    /// As [`change`](Self::change), for the response of a trial that had these results.
    pub(crate) fn conclude<R>(
        &self,
        results: &[ClientOutcome],
        event: impl FnOnce(&mut Machine, Duration) -> (R, Effects),
    ) -> Option<(R, Effects)> {
        self.apply(event, |owner, event| owner.conclude(results, event))
    }

    /// The stream of a server ended. The status is from the server, or from gRPC in its place.
    pub(crate) fn end(&self, server: usize, status: Option<Status>, reason: &str, jitter: u32) {
        let end = StreamEnd { status: status.clone(), reason, jitter };
        let event = |machine: &mut Machine, now| ((), machine.on_end(now, server, end));
        self.apply(event, |owner, event| owner.end(server, status, event));
    }

    fn apply<R>(
        &self,
        event: impl FnOnce(&mut Machine, Duration) -> (R, Effects),
        apply: impl FnOnce(&dyn Owner, &mut Event<'_>) -> Option<Effects>,
    ) -> Option<(R, Effects)> {
        let (mut event, mut result) = (Some(event), None);
        let (mut wakers, mut wakeups) = (Vec::new(), Wakeups::default());
        let effects = apply(&*self.owner, &mut |machine, now| {
            let Some(event) = event.take().filter(|_| !self.is_closed()) else { return Effects::default() };
            let (outcome, mut effects) = event(machine, now);
            result = Some(outcome);
            let mut shown = self.lock();
            wakers = shown.update(machine, &mut effects);
            wakeups = shown.wakeups(machine);
            if let Some(persist) = &self.persist {
                persist.note(&effects);
            }
            effects
        });
        wakers.into_iter().for_each(Waker::wake);
        self.wake(wakeups);
        result.zip(effects)
    }

    /// Notes what an event of its proxy changed for the tasks. The proxy has its machine.
    pub(crate) fn follow(&self, machine: &Machine) -> Wakeups {
        self.lock().wakeups(machine)
    }

    /// Starts a watch, and returns its slot; `None` if the client has ended.
    pub(crate) fn watch(
        &self,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Option<Result<(WatchId, Arc<Slot>), WatchError>> {
        self.edit_watches(|machine, shown| shown.watch(machine, type_url, name, parameters))
    }

    /// Starts several watches, or none if one is refused.
    pub(crate) fn watch_many<'n>(
        &self,
        type_url: &TypeUrl,
        names: impl IntoIterator<Item = &'n str>,
        parameters: Option<&Parameters>,
    ) -> Option<Result<Vec<NamedWatch<'n>>, WatchError>> {
        self.edit_watches(|machine, shown| {
            let mut watched = Vec::new();
            for name in names {
                match shown.watch(machine, type_url, name, parameters.cloned()) {
                    Ok((watch, slot)) => watched.push(NamedWatch { name, watch, slot }),
                    Err(error) => {
                        for NamedWatch { watch, .. } in watched {
                            shown.unwatch(machine, watch);
                        }
                        return Err(error);
                    }
                }
            }
            Ok(watched)
        })
    }

    /// Removes a watcher.
    pub(crate) fn unwatch(&self, watch: WatchId) {
        self.edit_watches(|machine, shown| shown.unwatch(machine, watch));
    }

    fn edit_watches<R>(&self, edit: impl FnOnce(&mut Machine, &mut Shown) -> R) -> Option<R> {
        let result = self.edit(|machine, _| edit(machine, &mut self.lock()));
        self.look_for_requests();
        result
    }

    /// Declares how to decode a type, once.
    pub(crate) fn declare(&self, type_url: &TypeUrl, decode: impl FnOnce() -> Decode) {
        self.edit(|machine, _| {
            if self.lock().declared.insert(type_url.clone()) {
                machine.declare(type_url, decode());
            }
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

    /// Wakes all streams to look for requests: an event at one server may mean that another server
    /// becomes needed or unneeded (C15).
    pub(crate) fn look_for_requests(&self) {
        self.signals.iter().for_each(|signals| signals.requests.wake());
    }

    pub(crate) fn wake(&self, Wakeups { timer, need }: Wakeups) {
        if timer {
            self.timer.notify_one();
        }
        for server in need {
            self.signals[server].need.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        // A panic of the machine would be a defect; its state is still the newest.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing reaches the machine.
    pub(crate) fn detach(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Ends the connections and the watchers.
    pub(crate) fn close(&self) {
        self.detach();
        let wakers: Vec<_> =
            self.lock().slots.values().flat_map(|shared| shared.slot.lock().close()).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.timer.notify_one();
        for signals in &self.signals {
            signals.need.notify_one();
            signals.requests.wake();
        }
        if let Some(persist) = &self.persist {
            persist.close();
        }
    }
}

/// The tasks to wake after a change.
#[derive(Default)]
pub(crate) struct Wakeups {
    timer: bool,
    need: Vec<usize>,
}

impl Shown {
    /// Gives watchers the newest views. Returns the wakers to wake.
    fn update(&self, machine: &Machine, effects: &mut Effects) -> Vec<Waker> {
        let mut wakers = Vec::new();
        effects.touched.sort_unstable();
        for touched in effects.touched.chunk_by(|one, other| one.watch == other.watch) {
            if let Some(SharedSlot { slot, .. }) = self.slots.get(&touched[0].watch) {
                // D32: in one step, or a watcher could see that a set is complete before it sees
                // the members.
                let mut slot = slot.lock();
                for touched in touched {
                    slot.put(touched.member.as_ref(), machine.view_of(touched));
                }
                wakers.extend(slot.take_waiting());
            }
        }
        wakers
    }

    fn watch(
        &mut self,
        machine: &mut Machine,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Result<(WatchId, Arc<Slot>), WatchError> {
        let watch = machine.on_watch(type_url, name, parameters)?;
        let shared = self.slots.entry(watch).or_insert_with(|| {
            let members = machine.members(watch).map(|members| {
                let view = |name: &ResourceName| (name.clone(), machine.member_view(watch, name));
                members.map(view).collect()
            });
            SharedSlot { slot: Arc::new(Slot::new(machine.view(watch), members)), watchers: 0 }
        });
        shared.watchers += 1;
        Ok((watch, Arc::clone(&shared.slot)))
    }

    fn unwatch(&mut self, machine: &mut Machine, watch: WatchId) {
        machine.on_unwatch(watch);
        // After the last watcher, the machine may reuse the number.
        if let Entry::Occupied(mut shared) = self.slots.entry(watch) {
            shared.get_mut().watchers -= 1;
            if shared.get().watchers == 0 {
                shared.remove();
            }
        }
    }

    fn wakeups(&mut self, machine: &Machine) -> Wakeups {
        let deadline = machine.next_deadline();
        let timer = deadline.is_some_and(|deadline| self.armed.is_none_or(|armed| deadline < armed));
        if timer {
            self.armed = deadline;
        }
        let mut need = Vec::new();
        for server in 0..machine.servers() {
            let (is_needed, has_failed) = (machine.is_needed(server), machine.has_failed(server));
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
        let arm = |machine: &Machine| {
            let deadline = machine.next_deadline();
            hub.lock().armed = deadline;
            deadline
        };
        let deadline = hub.read(arm).flatten();
        let woken = hub.timer.notified();
        match deadline {
            None => woken.await,
            Some(deadline) => {
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep_until(hub.start() + deadline) => {
                        hub.change(|machine, now| ((), machine.on_timeout(now)));
                        // G4b: the client tries a refused type again.
                        hub.look_for_requests();
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
    use crate::owner::Own;

    /// Two watchers that are dropped at once both hold the slot while each is removed. When the
    /// count of references decided which one was the last, the slot stayed, and the next
    /// subscription with the same number was shown in it.
    #[tokio::test]
    async fn a_subscription_begins_with_a_slot_of_its_own() {
        let server =
            ServerConfig { name: "origin".into(), protocol: Protocol::Delta, errors: Default::default() };
        let machine = Machine::new(ClientConfig::new(Bytes::new(), server));
        let (hub, _handle) = Hub::new(Box::new(Own::new(machine)), 1, Arc::new(NoRecorder), None);
        let type_url = "example.com/acme.Thing".into();
        let (first, slot) = hub.watch(&type_url, "a", None).unwrap().unwrap();
        let (second, _) = hub.watch(&type_url, "a", None).unwrap().unwrap();
        let _of_the_other = Arc::clone(&slot);
        hub.unwatch(first);
        hub.unwatch(second);
        let (third, other) = hub.watch(&type_url, "b", None).unwrap().unwrap();
        assert_eq!(first, third, "the number is used again");
        assert!(!Arc::ptr_eq(&slot, &other));
    }
}
