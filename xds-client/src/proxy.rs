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
use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};
use xds_core::client::{self as machine, Client as ClientMachine, Effects};
use xds_core::proxy::health::{Event, Init, Status, SyncState};
use xds_core::proxy::view::View;
use xds_core::proxy::{Notice, Proxy as Machine, ProxyCounts, ProxyLoad};
use xds_core::{Cache, ClientOutcome, Delivery, ParameterMapping, TypeUrl, VariantId, shortened};
use xds_proto::service::SERVICES;

use crate::bootstrap::Bootstrap;
use crate::client::{Client, ClientBuilder, Plan, ServerState, StartError};
use crate::last_good::{LastGood, Secrets};
use crate::metrics::{NoRecorder, Recorder};
use crate::owner::{Event as ClientEvent, Owner};
use crate::persist::Persist;
use crate::transport::{Connector, Credentials};
use readiness::Probe;

pub use readiness::NotReady;
pub use xds_core::proxy::{ProxyConfig, Route, Sharing, UpstreamKind, health, view};

mod readiness;

/// A cache that is filled from upstreams on demand. When the last clone is dropped, its connections
/// end.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<ProxyHub>,
    _guard: Arc<Guard>,
}

/// Settings of a proxy.
#[must_use]
pub struct ProxyBuilder {
    config: ProxyConfig,
    settings: Settings,
    last_good: Option<(PathBuf, Secrets)>,
}

/// The settings of the clients of all routes.
#[derive(Clone)]
struct Settings {
    bootstrap: Bootstrap,
    protocol: machine::Protocol,
    connector: Option<Connector>,
    credentials: Option<Credentials>,
    recorder: Arc<dyn Recorder>,
    mapping: Arc<ParameterMapping>,
}

/// The machine and the connections of its clients, shared by all clones of a proxy.
struct ProxyHub {
    state: Mutex<ProxyState>,
    start: Instant,
    cache: Arc<Cache>,
    /// Made when a program first reads in the process. Without it no event costs anything for readers.
    view: OnceLock<View>,
    config: ProxyConfig,
    settings: Settings,
    persist: Option<Arc<Persist>>,
    /// Made when a program first asks whether the proxy is ready.
    probe: OnceLock<Arc<Probe>>,
    runtime: tokio::runtime::Handle,
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

/// Gives the client of one route its machine, which the proxy owns.
struct Relay {
    route: Route,
    shared: Arc<ProxyHub>,
    /// The next stream is opened on the service of its type, not on the aggregated one.
    asks_own_service: AtomicBool,
}

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
    /// has its own upstream, and nothing can be read here.
    #[must_use]
    pub fn view(&self) -> &View {
        if let Some(view) = self.shared.view.get() {
            return view;
        }
        // No event may come between the state that the new view starts from and the next `follow`.
        let state = self.shared.lock();
        self.shared.view.get_or_init(|| {
            let view = View::new(&self.shared.cache);
            if let Some(health) = state.machine.health(&Route::Shared) {
                view.follow(health);
            }
            view
        })
    }

    /// The states of its upstreams, by route.
    #[must_use]
    pub fn upstreams(&self) -> Vec<Upstream> {
        let of_client = |(route, client): (Route, Client)| {
            let servers = client.servers();
            let state = self.shared.lock();
            let now = self.shared.start.elapsed();
            let due_since = state.machine.response_due_since(now, &route);
            let health = state.machine.health(&route).map(health::Health::states);
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

impl ProxyBuilder {
    /// How the proxy shares responses, and what its upstreams support.
    pub fn config(mut self, config: ProxyConfig) -> Self {
        self.config = config;
        self
    }

    /// The protocol with all servers. Default: delta, in which a server reports absent resources.
    pub fn protocol(mut self, protocol: machine::Protocol) -> Self {
        self.settings.protocol = protocol;
        self
    }

    /// The mapping of parameters to the node, for [upstreams that support nothing
    /// else](UpstreamKind::Node). Use the mapping of the server that serves the cache. Default:
    /// metadata.
    pub fn mapping(mut self, mapping: Arc<ParameterMapping>) -> Self {
        self.settings.mapping = mapping;
        self
    }

    /// As [`ClientBuilder::connector`].
    pub fn connector(mut self, connector: Connector) -> Self {
        self.settings.connector = Some(connector);
        self
    }

    /// As [`ClientBuilder::call_credentials`].
    pub fn call_credentials(mut self, credentials: Credentials) -> Self {
        self.settings.credentials = Some(credentials);
        self
    }

    /// As [`ClientBuilder::recorder`], for all of its clients.
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.settings.recorder = recorder;
        self
    }

    /// Stores accepted resources in this file, and starts from its content. Streams are served
    /// these at once, and also the wildcards that the file proves to be complete (see
    /// [`last_good`](crate::last_good)).
    pub fn last_good(mut self, path: impl AsRef<Path>, secrets: Secrets) -> Self {
        self.last_good = Some((path.as_ref().to_owned(), secrets));
        self
    }

    /// Starts the proxy on the current tokio runtime. It connects when a client subscribes. Reads
    /// the file, if one is set, and blocks while it does.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Proxy, StartError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        // Before the cache is made: its clients choose the names in it.
        xds_core::seed_tables(&RandomState::new());
        let Self { mut config, settings, last_good } = self;
        config.authorities.extend(settings.bootstrap.authorities.keys().cloned());
        // Report an invalid configuration now, not when the first client connects.
        let shared_client = settings.builder(&Route::Shared, &config);
        let plan = shared_client.plan()?;
        let (of_clients, of_proxy) = (settings.clone(), config.clone());
        let mut machine = Machine::new(config.clone(), move |route| {
            let plan = of_clients.builder(route, &of_proxy).plan();
            plan.expect("the client of the shared route has the same servers").config
        });
        let (mut persist, mut sets, mut restored, mut file) = (None, Vec::new(), Vec::new(), None);
        if let Some((path, secrets)) = last_good {
            let (opened, found) = LastGood::open(path, secrets)?;
            let (resources, complete, unproved) = (found.records.len(), found.sets.len(), found.unproved);
            if resources + complete == 0 {
                info!("the cache file has nothing to restore");
            } else {
                info!(
                    resources,
                    sets = complete,
                    "restored from the cache file; it is stale until the upstream confirms it"
                );
            }
            if unproved > 0 {
                warn!(
                    sets = unproved,
                    "the cache file does not prove that these wildcards and globs are complete: clients that \
                     subscribe to them wait for the upstream"
                );
            }
            sets = found.sets;
            restored = found.records.into_iter().map(Into::into).collect();
            persist = Some(Arc::<Persist>::default());
            file = Some(opened);
        }
        machine.restore(Duration::ZERO, sets, restored);
        let cache = Arc::clone(machine.cache());
        let start = Instant::from_std(cache.epoch(Instant::now().into_std()));
        let state = ProxyState { machine, clients: BTreeMap::new(), armed: None, is_closed: false };
        let shared = Arc::new(ProxyHub {
            state: Mutex::new(state),
            start,
            view: OnceLock::new(),
            cache,
            config,
            settings,
            persist,
            probe: OnceLock::new(),
            runtime: runtime.clone(),
            wake: Notify::new(),
        });
        let client = shared.connect(&Route::Shared, &shared_client, plan)?;
        shared.lock().clients.insert(Route::Shared, client);
        if let (Some(persist), Some(file)) = (&shared.persist, file) {
            runtime.spawn(Arc::clone(persist).run(file));
        }
        runtime.spawn(run(Arc::clone(&shared)));
        Ok(Proxy { _guard: Arc::new(Guard(Arc::clone(&shared))), shared })
    }
}

impl Settings {
    /// The settings of the client of a route.
    fn builder(&self, route: &Route, config: &ProxyConfig) -> ClientBuilder {
        let mut bootstrap = self.bootstrap.clone();
        if self.protocol == machine::Protocol::Delta {
            // C6: a delta server reports absence, so silence does not mean absence.
            let authorities = bootstrap.authorities.values_mut().flat_map(|authority| &mut authority.servers);
            for server in bootstrap.servers.iter_mut().chain(authorities) {
                server.features.resource_timer_is_transient_error = true;
            }
        }
        if let Some(parameters) = route.node() {
            self.mapping.write(parameters, &mut bootstrap.node);
        }
        let mut builder = Client::builder(bootstrap)
            .protocol(self.protocol)
            .recorder(Arc::clone(&self.recorder))
            .resource_timeout(config.resource_timeout);
        if route.node().is_none() {
            builder = builder.speaks_locators();
        }
        if let Some(connector) = &self.connector {
            builder = builder.connector(Arc::clone(connector));
        }
        if let Some(credentials) = &self.credentials {
            builder = builder.call_credentials(Arc::clone(credentials));
        }
        builder
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

    /// Moves the view to the newest state, if the program has one.
    fn follow(&self, machine: &Machine) {
        if let Some(view) = self.view.get()
            && let Some(health) = machine.health(&Route::Shared)
        {
            view.follow(health);
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
        let is_kept = matches!(route, Route::Shared | Route::Node(_));
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
        let changes = state.machine.take_set_changes();
        if let Some(persist) = &self.persist {
            persist.note_sets(changes);
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
                        %constraints,
                        node = %client.id,
                        %detail,
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
    shortened(&route.to_string(), ROUTE_LIMIT_BYTES).into_owned()
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
    }
}

impl Owner for Relay {
    fn start(&self) -> Instant {
        self.shared.start
    }

    fn read(&self, look: &mut dyn FnMut(&ClientMachine)) {
        if let Some(machine) = self.shared.lock().machine.client(&self.route) {
            look(machine);
        }
    }

    fn change(&self, event: &mut ClientEvent<'_>) -> Option<Effects> {
        self.shared
            .change(&self.route, |machine, now| machine.change(now, &self.route, |client| event(client, now)))
    }

    fn end(&self, server: usize, status: Option<Status>, event: &mut ClientEvent<'_>) -> Option<Effects> {
        // A server that refuses a type on the aggregated service may have a service for the type,
        // and vice versa. The next server is tried on the aggregated service first.
        if matches!(self.route, Route::SideStream { .. }) {
            let is_refused = status.as_ref().is_some_and(Status::may_mean_a_type);
            let asked_it = self.asks_own_service.load(Ordering::Relaxed);
            self.asks_own_service.store(is_refused && !asked_it, Ordering::Relaxed);
        }
        self.shared.change(&self.route, |machine, now| {
            machine.on_stream_end(now, &self.route, server, status);
            machine.change(now, &self.route, |client| event(client, now))
        })
    }

    fn path(&self, protocol: machine::Protocol) -> Option<String> {
        let Route::SideStream { type_url, .. } = &self.route else { return None };
        let asks_own_service = self.asks_own_service.load(Ordering::Relaxed);
        self.shared.lock().machine.on_own_service(&self.route, asks_own_service);
        if !asks_own_service {
            return None;
        }
        let service = SERVICES.iter().find(|service| service.type_url == type_url.as_str())?;
        let method = match protocol {
            machine::Protocol::Sotw => service.sotw,
            machine::Protocol::Delta => service.delta,
        };
        Some(format!("/{}/{}", service.service, method?))
    }

    fn try_first(&self, server: usize, frame: &Bytes) -> Option<Delivery> {
        // Most proxies have no trials.
        if self.shared.config.canaries == 0 {
            return None;
        }
        self.shared.lock().machine.try_first(&self.route, server, frame)
    }

    fn canary_timeout(&self) -> Duration {
        self.shared.config.canary_timeout
    }

    fn conclude(&self, results: &[ClientOutcome], event: &mut ClientEvent<'_>) -> Option<Effects> {
        self.shared
            .change(&self.route, |machine, now| machine.conclude(now, results, |client| event(client, now)))
    }

    fn abandon(&self) {
        self.shared.lock().machine.abandon();
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

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_reads_nothing_in_the_process_has_no_view() {
        let proxy = Proxy::builder(Bootstrap::to_server("http://127.0.0.1:9")).start().unwrap();
        assert!(proxy.shared.view.get().is_none());
        assert_eq!(proxy.view().generation(), health::Generation::ZERO);
        assert!(proxy.shared.view.get().is_some());
    }
}
