//! The upstream side of a caching proxy: fills a cache with the resources that downstream clients
//! subscribe to.
//!
//! A [`Proxy`] has a [cache](Proxy::cache) from which any server can serve, such as that of
//! `xds-server`. The proxy knows only the subscriptions of the streams of that cache. All decisions
//! are in the machine of [`xds_core::proxy`], which owns the machines of its clients, one for each
//! [`Route`]. This module has their connections, the file for the next start, and the timers.
//!
//! ```no_run
//! use xds_client::Protocol;
//! use xds_client::bootstrap::Bootstrap;
//! use xds_client::proxy::Proxy;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let origin = Bootstrap::to_server("http://127.0.0.1:18000");
//! let proxy = Proxy::builder(origin).protocol(Protocol::Delta).start()?;
//! // Serve this cache: xds_server::Server::new(cache).serve(..)
//! let cache = proxy.cache();
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};
use xds_core::client::health::{Event, Health, Init, SyncState};
use xds_core::client::{self as machine, Effects, ReadGuard};
use xds_core::proxy::view::View;
use xds_core::proxy::{Notice, Proxy as Machine, ProxyCounts, ProxyLoad};
use xds_core::{Cache, Raw, ResourceType, TypeUrl, VariantId, printable, shortened};

use crate::bootstrap::Bootstrap;
use crate::client::{Client, ClientBuilder, Plan, ServerState, StartError};
use crate::metrics::NoRecorder;
use crate::persist::Persist;
use builder::Settings;
use readiness::Probe;
use relay::Relay;

pub use builder::ProxyBuilder;
pub use readiness::NotReady;
pub use subscription::Subscription;
pub use xds_core::proxy::{ProxyConfig, Route, RouteKind, Sharing, SubscribeError, UpstreamKind, view};

mod builder;
mod readiness;
mod relay;
mod subscription;

/// A cache that is filled from upstreams on demand. When the last clone is dropped, its connections
/// end.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<ProxyHub>,
    _guard: Arc<Guard>,
}

/// The machine and the connections of its clients, shared by all clones of a proxy.
struct ProxyHub {
    state: Mutex<ProxyState>,
    start: Instant,
    cache: Arc<Cache>,
    /// By the authority of the route. Each is made when a program first reads it in the process. Without any, no
    /// event costs anything for readers.
    views: BTreeMap<Option<Arc<str>>, OnceLock<View>>,
    config: ProxyConfig,
    settings: Settings,
    persist: Option<Arc<Persist>>,
    /// Made when a program first asks whether the proxy is ready.
    probe: OnceLock<Arc<Probe>>,
    runtime: tokio::runtime::Handle,
    /// Wakes subscriptions of the program that wait: something happened.
    event: Notify,
    /// Wakes the task: the machine has another deadline.
    wake: Notify,
}

struct ProxyState {
    machine: Machine,
    clients: BTreeMap<Route, Client>,
    /// The deadline for which the task waits.
    armed: Option<Duration>,
    is_closed: bool,
}

/// Ends the task with the last [`Proxy`].
struct Guard(Arc<ProxyHub>);

/// The state of the cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheFile {
    /// Something could not be written, usually because the disk is full. The proxy tries again;
    /// until then, no wildcard is restored from the file.
    pub is_behind: bool,
    /// The number of failed writes.
    pub failures: u64,
}

/// The state of one upstream.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The subscriptions that go to it.
    pub route: Route,
    /// Its servers in the order of the configuration.
    pub servers: Vec<ServerState>,
    /// How long a response has been due: since the last stream ended, or since the first
    /// subscription of a type that has had no response; `None` if none is due. While no server is
    /// connected, its resources in the cache are as old as this.
    pub silent_for: Option<Duration>,
    /// The state of each type with a subscription there; empty for side streams and for upstreams
    /// of a single locator.
    pub types: Vec<(TypeUrl, SyncState)>,
}

impl Proxy {
    /// The builder of a proxy for the servers of a bootstrap document. The proxy identifies itself
    /// with the node of the document. This node should have no metadata, because a server may
    /// choose variants by it (T44, T46).
    pub fn builder(bootstrap: Bootstrap) -> ProxyBuilder {
        ProxyBuilder {
            config: ProxyConfig::default(),
            settings: Settings {
                bootstrap,
                protocol: machine::Protocol::Delta,
                connector: None,
                credentials: None,
                recorder: Arc::new(NoRecorder),
                mapping: Arc::default(),
            },
            last_good: None,
        }
    }

    /// The cache that the proxy fills.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.shared.cache
    }

    /// Its counters since the start.
    #[must_use]
    pub fn counts(&self) -> ProxyCounts {
        self.shared.lock().machine.counts()
    }

    /// The numbers of downstream and upstream subscriptions.
    #[must_use]
    pub fn load(&self) -> ProxyLoad {
        self.shared.lock().machine.load()
    }

    /// The state of its [file](ProxyBuilder::last_good), if it has one.
    #[must_use]
    pub fn cache_file(&self) -> Option<CacheFile> {
        let (is_behind, failures) = self.shared.persist.as_ref()?.trouble();
        Some(CacheFile { is_behind, failures })
    }

    /// Its upstream clients, by route.
    #[must_use]
    pub fn clients(&self) -> Vec<(Route, Client)> {
        let state = self.shared.lock();
        state.clients.iter().map(|(route, client)| (route.clone(), client.clone())).collect()
    }

    /// Lets the program itself read the cache: without a stream, a generation at a time, and no
    /// resource of a type that the upstream rejects.
    ///
    /// The first call makes the view. A program that never calls this pays nothing for it. If a new
    /// generation is being built at that moment, nothing can be read before its Init.
    ///
    /// The view covers the upstream that all clients share. With [`UpstreamKind::Node`] each route
    /// has its own upstream, and nothing can be read here. If the bootstrap document has
    /// authorities with other servers, their names have [views of their own](Self::view_of).
    #[must_use]
    pub fn view(&self) -> &View {
        self.shared.view(&None)
    }

    /// As [`view`](Self::view), of the servers of an authority (C16). Authorities with the same
    /// servers share it; without authorities in the bootstrap document it is the only view. `None`
    /// if the document has authorities, but not this one (X15).
    #[must_use]
    pub fn view_of(&self, authority: &str) -> Option<&View> {
        let authority = self.shared.lock().machine.authority_of(authority)?;
        Some(self.shared.view(&authority))
    }

    /// Reads one type of the [view](Self::view).
    #[must_use]
    pub fn read<T: ResourceType>(&self) -> ReadGuard<T> {
        self.view().read()
    }

    /// As [`read`](Self::read), for any type, as bytes.
    #[must_use]
    pub fn read_raw(&self, type_url: &TypeUrl) -> ReadGuard<Raw> {
        self.view().read_raw(type_url)
    }

    /// The states of its upstreams, by route.
    #[must_use]
    pub fn upstreams(&self) -> Vec<Upstream> {
        let of_client = |(route, client): (Route, Client)| {
            let servers = client.servers();
            let state = self.shared.lock();
            let now = self.shared.start.elapsed();
            let due_since = state.machine.response_due_since(now, &route);
            let health = state.machine.health(&route).map(Health::states);
            let types = health.into_iter().flatten();
            Upstream {
                types: types.map(|(type_url, state)| (type_url.clone(), state.clone())).collect(),
                silent_for: due_since.map(|at| now.saturating_sub(at)),
                servers,
                route,
            }
        };
        self.clients().into_iter().map(of_client).collect()
    }
}

#[cfg(feature = "prometheus")]
impl Proxy {
    /// Returns a function that gives the proxy as long as another clone exists.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + Sync + use<> {
        let guard = Arc::downgrade(&self._guard);
        move || guard.upgrade().map(|guard| Self { shared: Arc::clone(&guard.0), _guard: guard })
    }
}

impl ProxyHub {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        // A panic of the machine would be a defect; its state is still the newest.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(
        self: &Arc<Self>,
        route: &Route,
        builder: &ClientBuilder,
        plan: Plan,
    ) -> Result<Client, StartError> {
        let asks_own_service = AtomicBool::new(false);
        let owner = Relay { route: route.clone(), shared: Arc::clone(self), asks_own_service };
        builder.connect(plan, Arc::clone(&self.cache), Box::new(owner), None, &self.runtime)
    }

    fn view(&self, authority: &Option<Arc<str>>) -> &View {
        let place = &self.views[authority];
        if let Some(view) = place.get() {
            return view;
        }
        // No event may come between the state that the new view starts from and the next `follow`.
        let state = self.lock();
        place.get_or_init(|| state.machine.view(authority))
    }

    /// Moves the views that the program has to the newest state.
    fn follow(&self, machine: &Machine) {
        for (authority, view) in &self.views {
            let Some(view) = view.get() else { continue };
            let route = Route { authority: authority.clone(), kind: RouteKind::Shared };
            machine.health(&route).into_iter().for_each(|health| view.follow(health));
        }
    }

    /// Takes new subscriptions of streams, and handles the timers that are due. Returns the next
    /// deadline; `None` in the outer option if the proxy has ended.
    fn work(self: &Arc<Self>) -> Option<Option<Duration>> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        state.machine.on_demand(self.start.elapsed());
        self.finish(state);
        let mut state = self.lock();
        state.machine.on_timeout(self.start.elapsed());
        let deadline = state.machine.next_deadline();
        state.armed = deadline;
        self.finish(state);
        Some(deadline)
    }

    /// Gives the client of a route an event.
    fn change(
        self: &Arc<Self>,
        route: &Route,
        event: impl FnOnce(&mut Machine, Duration) -> Option<Effects>,
    ) -> Option<Effects> {
        let mut state = self.lock();
        // Read the time under the lock, so that the time of the machine never goes back.
        let effects = event(&mut state.machine, self.start.elapsed());
        // Do not store resources for a single locator, or of side streams.
        let is_kept = route.is_main();
        if let (Some(persist), Some(effects)) = (self.persist.as_ref().filter(|_| is_kept), &effects) {
            persist.note(effects);
        }
        self.finish(state);
        effects
    }

    /// Follows what an event changed: in the file, in the view, and at the clients.
    fn finish(self: &Arc<Self>, mut guard: MutexGuard<'_, ProxyState>) {
        let state = &mut *guard;
        // The lock is held, so nothing can happen to the members of a set before.
        let (changes, dropped) = (state.machine.take_set_changes(), state.machine.take_dropped());
        if let Some(persist) = &self.persist {
            persist.note_sets(changes);
            persist.note_dropped(dropped);
        }
        self.follow(&state.machine);
        let (mut followed, mut ended) = (Vec::new(), Vec::new());
        for route in state.machine.take_changed() {
            match (state.machine.client(&route), state.clients.entry(route)) {
                (Some(machine), Entry::Occupied(client)) => {
                    let hub = Arc::clone(client.get().handle().hub());
                    followed.push((hub.follow(machine), hub));
                }
                (Some(_), Entry::Vacant(place)) if !state.is_closed => {
                    let builder = self.settings.builder(place.key(), &self.config);
                    match builder.plan().and_then(|plan| self.connect(place.key(), &builder, plan)) {
                        Ok(client) => _ = place.insert(client),
                        Err(error) => {
                            let route = shown(place.key());
                            error!(route, "cannot start a client for the upstream: {error}");
                        }
                    }
                }
                (None, Entry::Occupied(client)) => {
                    client.get().handle().hub().detach();
                    ended.push(client.remove());
                }
                (Some(_) | None, Entry::Vacant(_)) => {}
            }
        }
        let (notices, deadline) = (state.machine.take_notices(), state.machine.next_deadline());
        let is_other = std::mem::replace(&mut state.armed, deadline) != deadline;
        drop(guard);
        self.event.notify_waiters();
        if is_other {
            self.wake.notify_one();
        }
        for (wakeups, hub) in followed {
            hub.wake(wakeups);
            hub.look_for_requests();
        }
        ended.into_iter().for_each(|client| client.handle().hub().close());
        notices.into_iter().for_each(|notice| self.log_notice(notice));
    }

    fn log_notice(&self, notice: Notice) {
        match notice {
            Notice::Unshared { type_url, name } => warn!(
                r#type = type_url.message_name(),
                name = name.as_str(),
                "the upstream sends no constraints for this name, or forbids caching: clients do not share it"
            ),
            Notice::Overlapping { type_url, name } => warn!(
                r#type = type_url.message_name(),
                name = name.as_str(),
                "the upstream has variants that overlap: clients no longer share this name"
            ),
            Notice::Refused { variants, client, detail } => {
                for VariantId { type_url, name, constraints } in variants {
                    warn!(
                        r#type = type_url.message_name(),
                        name = name.as_str(),
                        constraints = constraints.to_string(),
                        node = &*client.id,
                        detail = &*detail,
                        "a client rejected a response that it tried first; other clients are not sent it, \
                         and the upstream is sent a NACK"
                    );
                }
            }
            Notice::Health { route, event } => {
                let route = shown(&route);
                match event {
                    Event::Init(Init { generation, confirmed, rejected, pending }) => {
                        info!(
                            %route, stream = %generation, answered = confirmed.len(),
                            rejected = rejected.len(), unanswered = pending.len(),
                            "a stream to the upstream is open; the fields count types by its answer"
                        );
                        for (type_url, status) in rejected {
                            let r#type = type_url.message_name();
                            warn!(%route, r#type, %status, "the upstream does not serve this type");
                        }
                    }
                    Event::Reclassified { type_url, state } => {
                        let r#type = type_url.message_name();
                        info!(%route, r#type, %state, "the state of a type at the upstream changed");
                    }
                }
            }
            _ => {}
        }
    }
}

/// The limit for a route in a log line.
const ROUTE_LIMIT_BYTES: usize = 512;

/// The route for a log line. Its parameters may be those of clients.
fn shown(route: &Route) -> String {
    printable(&shortened(&route.to_string(), ROUTE_LIMIT_BYTES)).into_owned()
}

/// Drives the machine until the last [`Proxy`] is dropped.
async fn run(shared: Arc<ProxyHub>) {
    let Some(subscriptions) = shared.cache.on_demand_subscriptions() else { return };
    while let Some(deadline) = shared.work() {
        let deadline = deadline.map(|deadline| shared.start + deadline);
        let due = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = subscriptions.changed() => {}
            () = shared.wake.notified() => {}
            () = due => {}
        }
        // Clients may always have changed something: the tasks of the upstreams get the lock in between.
        tokio::task::yield_now().await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let clients = {
            let mut state = self.0.lock();
            state.is_closed = true;
            std::mem::take(&mut state.clients)
        };
        clients.into_values().for_each(|client| client.handle().hub().close());
        if let Some(persist) = &self.0.persist {
            persist.close();
        }
        self.0.wake.notify_one();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("load", &self.load()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_reads_nothing_in_the_process_has_no_view() {
        let proxy = Proxy::builder(Bootstrap::to_server("http://127.0.0.1:9")).start().unwrap();
        assert!(proxy.shared.views[&None].get().is_none());
        assert_eq!(proxy.view().generation(), xds_core::client::health::Generation::ZERO);
        assert!(proxy.shared.views[&None].get().is_some());
    }
}
