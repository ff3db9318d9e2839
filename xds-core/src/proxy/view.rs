//! The proxy's cache, read inside the process: by type, generation by generation.
//!
//! Snapshots of the [`Cache`] are immutable and share what did not change, so the next generation
//! is built in the cache itself while who reads here stays on the snapshot of the one before. When
//! its Init is given, readers move to the newest snapshot in one step and follow the cache from
//! then on. Nothing of a type that the generation rejects can be read after that step.
//!
//! ```text
//!   stream of g stands          lost            stream of g+1 stands, being built         Init of g+1
//!   -------------------|---------------------|---------------------------------------|-------------------
//!   newest snapshot      newest snapshot       snapshot of the end of g                newest snapshot
//!   a watch is checked   a watch is checked    a watch made now is checked at Init     all watches are checked
//! ```
//!
//! A [`ReadGuard`] answers reads of one type, or says that they have to go upstream. A [`ViewWatch`] is
//! told the Init first, then what changes. Nothing queues between the cache and a watch: it
//! compares what it was told with the newest state when it is asked.
//!
//! Deliberately not here: subscriptions. Who reads or watches a type here has the proxy ask for it;
//! a type that nobody asked for is pending. Nor does anything here change the cache: what a
//! generation did not confirm is removed from it between its Init and the call of [`View::follow`].
//!
//! ```
//! use std::task::{Context, Poll, Waker};
//! use std::time::Duration;
//! use xds_core::proxy::health::Health;
//! use xds_core::proxy::view::{ViewChange, ReadRoute, Typed, View, ViewEvent, ViewRequest};
//! use xds_core::{Cache, Parameters, Resource, Transaction, TypeUrl};
//!
//! struct Things;
//! impl Typed for Things {
//!     const TYPE_URL: &'static str = "example.com/acme.Thing";
//! }
//!
//! let things = TypeUrl::from(Things::TYPE_URL);
//! let (cache, mut health) = (Cache::new(), Health::default());
//! let view = View::new(&cache);
//! let mut watch = view.watch(ViewRequest { types: vec![things.clone()], ..ViewRequest::default() })?;
//! assert!(matches!(view.read::<Things>().route(), ReadRoute::Upstream(_)), "nothing is known yet");
//!
//! // The upstream answers.
//! health.request(Duration::ZERO, &things);
//! health.on_open(Duration::ZERO);
//! let mut transaction = Transaction::new();
//! transaction.put(Resource::new(things.clone(), "a".into(), "payload".into())?);
//! cache.commit(transaction)?;
//! health.on_response(&things);
//! view.follow(&health);
//!
//! let guard = view.read::<Things>();
//! let ReadRoute::Cache(resources) = guard.route() else { panic!("it is synced") };
//! assert_eq!(resources.get(&"a".into(), &Parameters::new()).unwrap().payload(), "payload");
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
//! | `guard` | [`ReadGuard`]: reads of one type |
//! | `watch` | [`ViewWatch`]: what a program is told, and why it may not be |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwap;
use atomic_waker::AtomicWaker;

use super::health::{Generation, Health, SyncState};
use crate::cache::{Cache, Snapshot, lock};
use crate::name::TypeUrl;

pub use guard::{ReadGuard, ReadRoute, Resources, Typed};
pub use watch::{ViewChange, ViewError, ViewEvent, ViewRequest, ViewWatch};

#[cfg(test)]
mod fixture;
mod guard;
#[cfg(test)]
mod tests;
mod watch;
#[cfg(test)]
mod watch_tests;

/// What the process sees of one upstream's types. Reading never waits for a writer.
#[derive(Debug)]
pub struct View(Arc<SharedView>);

/// What a view has in common with its watches.
#[derive(Debug)]
struct SharedView {
    cache: Arc<Cache>,
    present: ArcSwap<Present>,
    listeners: Mutex<Listeners>,
    /// The view is gone.
    is_closed: AtomicBool,
}

/// What can be read now, all of one moment.
#[derive(Debug)]
struct Present {
    readers: Arc<GenerationReaders>,
    states: BTreeMap<TypeUrl, SyncState>,
    snapshot: Arc<Snapshot>,
    /// A newer generation is on its way.
    is_building: bool,
}

/// Who reads a generation.
#[derive(Debug)]
struct GenerationReaders {
    generation: Generation,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Listeners {
    watches: Vec<Weak<AtomicWaker>>,
    /// Those that are still read, and the present one; oldest first.
    generations: Vec<Weak<GenerationReaders>>,
}

impl View {
    /// Of a cache and an upstream of which nothing is known yet.
    #[must_use]
    pub fn new(cache: &Arc<Cache>) -> Self {
        let readers = Arc::new(GenerationReaders::new(Generation::ZERO));
        let generations = vec![Arc::downgrade(&readers)];
        let listeners = Mutex::new(Listeners { watches: Vec::new(), generations });
        let present =
            Present { readers, states: BTreeMap::new(), snapshot: cache.snapshot(), is_building: true };
        Self(Arc::new(SharedView {
            cache: Arc::clone(cache),
            present: ArcSwap::from_pointee(present),
            listeners,
            is_closed: AtomicBool::new(false),
        }))
    }

    /// Moves to the newest state, or stays where it is while a generation is built; wakes the
    /// watches if something changed.
    ///
    /// To be called after each event that changed the health or the cache; readers see nothing
    /// before. Costs O(types), and nothing more when there is nothing new.
    pub fn follow(&self, health: &Health) {
        // Held all through: who registers does so before the swap and is woken, or after it and
        // sees it.
        let mut listeners = lock(&self.0.listeners);
        let present = self.0.present.load_full();
        if !health.is_init() {
            if !present.is_building {
                self.0.present.store(Arc::new(present.building()));
            }
            return;
        }
        let snapshot = self.0.cache.accepted();
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

    /// Reads one type, all of one moment, until the guard is dropped.
    #[must_use]
    pub fn read<T: Typed>(&self) -> ReadGuard<T> {
        ReadGuard::new(self.0.present.load_full())
    }

    /// Watches some types. While a generation is built only the request itself can be checked; the
    /// rest follows at its Init, and may fail then.
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

    /// How many guards there are on each generation that has any, oldest first. What an older one
    /// reads stays in memory.
    #[must_use]
    pub fn readers(&self) -> Vec<(Generation, usize)> {
        let generations = lock(&self.0.listeners).generations.clone();
        let readers = generations.iter().filter_map(Weak::upgrade);
        let counts = readers.map(|readers| (readers.generation, readers.count.load(Ordering::Relaxed)));
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

    /// The same while the next one is built.
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

impl GenerationReaders {
    fn new(generation: Generation) -> Self {
        Self { generation, count: AtomicUsize::new(0) }
    }
}

impl Listeners {
    fn begin(&mut self, generation: Generation) -> Arc<GenerationReaders> {
        let readers = Arc::new(GenerationReaders::new(generation));
        self.generations.retain(|readers| readers.strong_count() > 0);
        self.generations.push(Arc::downgrade(&readers));
        readers
    }

    /// Those to wake, once nothing is locked.
    fn woken(&mut self) -> Vec<Arc<AtomicWaker>> {
        self.watches.retain(|waker| waker.strong_count() > 0);
        self.watches.iter().filter_map(Weak::upgrade).collect()
    }
}
