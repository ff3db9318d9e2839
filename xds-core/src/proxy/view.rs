//! Reads of the proxy's cache in the process: by type, generation by generation.
//!
//! Snapshots of the [`Cache`] are immutable and share all that did not change. So the next
//! generation is built in the cache itself, while readers stay on a snapshot of the one before. At
//! its Init, readers move to the newest snapshot in one step, and follow the cache from then on.
//! After that step, no resource of a type that the generation rejects can be read.
//!
//! ```text
//!   stream of g is open         lost            stream of g+1 is open, being built        Init of g+1
//!   -------------------|---------------------|---------------------------------------|-------------------
//!   newest snapshot      newest snapshot       snapshot of the end of g                newest snapshot
//!   a watch is checked   a watch is checked    a watch made now is checked at Init     all watches are checked
//! ```
//!
//! A [`ReadGuard`] reads one type, or returns the status to use instead. A [`ViewWatch`] reports
//! the Init first, then changes. Nothing queues between the cache and a watch: when a watch is
//! polled, it compares the newest state with what it reported. Content that a few clients try first
//! ([`try_first`](super::Proxy::try_first)) is not visible.
//!
//! Deliberately not here: subscriptions. A view does not subscribe upstream, and a type without a
//! subscription cannot be read. A view does not change the cache either: what a generation did not
//! confirm is removed between its Init and the call of [`View::follow`].
//!
//! A view costs nothing until it is made: neither the [`Cache`] nor the [`Proxy`](super::Proxy)
//! knows of it. The caller makes it, and calls [`View::follow`] after events.
//!
//! ```
//! use std::task::{Context, Poll, Waker};
//! use std::time::Duration;
//! use prost::Message;
//! use xds_core::client::ReadRoute;
//! use xds_core::client::health::Health;
//! use xds_core::proxy::view::{ViewChange, View, ViewEvent, ViewRequest};
//! use xds_core::{Cache, Resource, Transaction, TypeUrl};
//!
//! # #[derive(Clone, PartialEq, prost::Message)]
//! # struct Thing {
//! #     #[prost(string, tag = "1")]
//! #     name: String,
//! # }
//! # impl prost::Name for Thing {
//! #     const NAME: &'static str = "Thing";
//! #     const PACKAGE: &'static str = "acme";
//! # }
//! let things = TypeUrl::of::<Thing>();
//! let (cache, mut health) = (Cache::new(), Health::default());
//! let view = View::new(&cache);
//! let mut watch = view.watch(ViewRequest { types: vec![things.clone()], ..ViewRequest::default() })?;
//! assert!(matches!(view.read::<Thing>().route(), ReadRoute::Upstream(_)), "nothing is known yet");
//!
//! // The upstream answers.
//! health.request(Duration::ZERO, &things);
//! health.on_open(Duration::ZERO);
//! let mut transaction = Transaction::new();
//! let payload = Thing { name: "a".into() }.encode_to_vec();
//! transaction.put(Resource::new(things.clone(), "a", payload)?);
//! cache.commit(transaction)?;
//! health.on_response(&things);
//! view.follow(&health);
//!
//! let guard = view.read::<Thing>();
//! let ReadRoute::Cache(resources) = guard.route() else { panic!("it is synced") };
//! assert_eq!(resources.get("a")?.unwrap().name, "a");
//!
//! let context = Context::from_waker(Waker::noop());
//! let Poll::Ready(Some(Ok(ViewEvent::Init(init)))) = watch.poll_event(&context) else { panic!("comes first") };
//! assert!(init.confirmed.contains(&things));
//! let Poll::Ready(Some(Ok(ViewEvent::Changes(changes)))) = watch.poll_event(&context) else { panic!("then") };
//! assert!(matches!(&changes[..], [ViewChange::Put { variant, .. }] if variant.name().as_str() == "a"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `watch` | [`ViewWatch`]: reports of changes, and the reasons why a watch fails |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwap;
use atomic_waker::AtomicWaker;

use crate::cache::{Cache, Snapshot, lock};
use crate::client::health::{Generation, Health, SyncState};
use crate::client::{GenerationReaders, ReadGuard, Routes, ServedNames, readable};
use crate::name::TypeUrl;
use crate::parameters::Parameters;
use crate::payload::{Payload, Raw, ResourceType};

pub use watch::{ViewChange, ViewError, ViewEvent, ViewRequest, ViewWatch};

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
mod watch;
#[cfg(test)]
mod watch_tests;

/// The types of one upstream as readers in the process see them. A read never waits for a writer. In a proxy of
/// several lists of servers, each list has a view of its own (C16).
#[derive(Debug)]
pub struct View(Arc<SharedView>);

/// The part of a view that its watches share.
#[derive(Debug)]
struct SharedView {
    cache: Arc<Cache>,
    names: ServedNames,
    present: ArcSwap<Present>,
    listeners: Mutex<Listeners>,
    /// The view was dropped.
    is_closed: AtomicBool,
}

/// The present state for readers, all of one moment.
#[derive(Debug)]
struct Present {
    readers: Arc<GenerationReaders>,
    states: BTreeMap<TypeUrl, SyncState>,
    snapshot: Arc<Snapshot>,
    /// A newer generation is being built.
    is_building: bool,
}

#[derive(Debug, Default)]
struct Listeners {
    watches: Vec<Weak<AtomicWaker>>,
    /// The present generation, and older ones that a guard still reads; oldest first.
    generations: Vec<Weak<GenerationReaders>>,
}

impl View {
    /// A view of a cache whose upstream has had no response yet.
    #[must_use]
    pub fn new(cache: &Arc<Cache>) -> Self {
        Self::of(cache, ServedNames::default())
    }

    /// A view of these names alone.
    pub(crate) fn of(cache: &Arc<Cache>, names: ServedNames) -> Self {
        let readers = Arc::new(GenerationReaders::new(Generation::ZERO));
        let generations = vec![Arc::downgrade(&readers)];
        let listeners = Mutex::new(Listeners { watches: Vec::new(), generations });
        let present =
            Present { readers, states: BTreeMap::new(), snapshot: cache.snapshot(), is_building: true };
        Self(Arc::new(SharedView {
            cache: Arc::clone(cache),
            names,
            present: ArcSwap::from_pointee(present),
            listeners,
            is_closed: AtomicBool::new(false),
        }))
    }

    /// Moves to the newest state, or stays while a generation is being built. Wakes the watches if
    /// something changed.
    ///
    /// To be called after each event that changed the health or the cache; readers see no change
    /// before. Costs O(types), and nothing more if nothing changed.
    pub fn follow(&self, health: &Health) {
        // Locked all through: a watch registers before the swap and is woken, or after it and sees
        // the new state.
        let mut listeners = lock(&self.0.listeners);
        let present = self.0.present.load_full();
        if !health.is_init() {
            if !present.is_building {
                self.0.present.store(Arc::new(present.building()));
            }
            return;
        }
        let snapshot = self.0.cache.snapshot();
        if present.is_as(health, &snapshot) {
            return;
        }
        let readers = match present.generation() == health.generation() {
            true => Arc::clone(&present.readers),
            false => listeners.begin(health.generation()),
        };
        let states = health.states().map(|(type_url, state)| (type_url.clone(), state.clone())).collect();
        self.0.present.store(Arc::new(Present { readers, states, snapshot, is_building: false }));
        let woken = listeners.woken();
        drop(listeners);
        woken.iter().for_each(|waker| waker.wake());
    }

    /// Reads one type until the guard is dropped. All reads of a guard are of one moment.
    #[must_use]
    pub fn read<T: ResourceType>(&self) -> ReadGuard<T> {
        self.guard(TypeUrl::of::<T>())
    }

    /// As [`read`](Self::read), for any type, as bytes.
    #[must_use]
    pub fn read_raw(&self, type_url: &TypeUrl) -> ReadGuard<Raw> {
        self.guard(type_url.clone())
    }

    fn guard<T: Payload>(&self, type_url: TypeUrl) -> ReadGuard<T> {
        let present = self.0.present.load();
        let readable = readable(&type_url, present.states.get(&type_url));
        let route = match self.0.names.numbers.is_empty() {
            true => Routes::One(readable),
            false => Routes::OfServers { names: self.0.names.clone(), readable },
        };
        let (snapshot, generation) = (Arc::clone(&present.snapshot), present.generation());
        ReadGuard::new(type_url, snapshot, Parameters::new(), route, generation).counted(&present.readers)
    }

    /// Watches some types. While a generation is being built, only the request itself is checked.
    /// The types are checked at the Init, and the watch may fail then.
    ///
    /// # Errors
    /// See [`ViewError`]; nothing is watched then.
    pub fn watch(&self, request: ViewRequest) -> Result<ViewWatch, ViewError> {
        let mut listeners = lock(&self.0.listeners);
        let watch = ViewWatch::new(&self.0, request)?;
        listeners.watches.retain(|waker| waker.strong_count() > 0);
        listeners.watches.push(watch.listener());
        Ok(watch)
    }

    /// The generation that is read now; zero before the first Init.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.0.present.load().generation()
    }

    /// The number of guards on each generation that has any, oldest first. The snapshot of an older
    /// generation stays in memory until its last guard is dropped.
    #[must_use]
    pub fn readers(&self) -> Vec<(Generation, usize)> {
        let generations = lock(&self.0.listeners).generations.clone();
        let readers = generations.iter().filter_map(Weak::upgrade);
        let counts = readers.map(|readers| (readers.generation, readers.count()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// Its watches end.
impl Drop for View {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        let woken = lock(&self.0.listeners).woken();
        woken.iter().for_each(|waker| waker.wake());
    }
}

impl Present {
    fn generation(&self) -> Generation {
        self.readers.generation
    }

    /// The same state, while the next generation is being built.
    fn building(&self) -> Self {
        let (readers, states) = (Arc::clone(&self.readers), self.states.clone());
        Self { readers, states, snapshot: Arc::clone(&self.snapshot), is_building: true }
    }

    fn is_as(&self, health: &Health, snapshot: &Arc<Snapshot>) -> bool {
        !self.is_building
            && self.generation() == health.generation()
            && Arc::ptr_eq(&self.snapshot, snapshot)
            && self.states.iter().eq(health.states())
    }
}

impl Listeners {
    fn begin(&mut self, generation: Generation) -> Arc<GenerationReaders> {
        let readers = Arc::new(GenerationReaders::new(generation));
        self.generations.retain(|readers| readers.strong_count() > 0);
        self.generations.push(Arc::downgrade(&readers));
        readers
    }

    /// The watches to wake, after all locks are released.
    fn woken(&mut self) -> Vec<Arc<AtomicWaker>> {
        self.watches.retain(|waker| waker.strong_count() > 0);
        self.watches.iter().filter_map(Weak::upgrade).collect()
    }
}
