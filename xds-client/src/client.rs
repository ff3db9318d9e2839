//! The client API for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use xds_core::client::health::{Health, SyncState};
use xds_core::client::{
    self as machine, AuthorityConfig, ClientConfig, Protocol, ReadGuard, Report, ServerConfig,
};
use xds_core::{Cache, ParameterMapping, Parameters, Payload, Raw, ResourceType, TypeUrl, decode_message};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::config::core::v3::node::UserAgentVersionType;

use crate::bootstrap::{Authority, Bootstrap, Server, ServerUriError};
use crate::connection;
use crate::hub::{Handle, Hub, NamedWatch, ServerFailure, keep_time};
use crate::last_good::{LastGood, OpenError, Secrets};
use crate::metrics::{NoRecorder, Recorder};
use crate::owner::{Own, Owner};
use crate::persist::Persist;
use crate::transport::{Connector, Credentials, Transport};
use crate::watcher::{SetWatcher, Watcher};

/// A client of the servers in a bootstrap document.
///
/// It is cheap to clone. It connects when something is watched, and closes its connections when the
/// last clone and the last watcher are dropped.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
    node: Arc<Node>,
    cache: Arc<Cache>,
    /// The parameters of watchers of this clone; `None`: those of the authority.
    parameters: Option<Parameters>,
}

/// The settings of a client that are not in its bootstrap document.
#[must_use]
pub struct ClientBuilder {
    bootstrap: Bootstrap,
    protocol: Protocol,
    speaks_locators: bool,
    from_metadata: Option<ParameterMapping>,
    connector: Option<Connector>,
    credentials: Option<Credentials>,
    recorder: Arc<dyn Recorder>,
    last_good: Option<(PathBuf, Secrets)>,
    resource_timeout: Option<Duration>,
}

/// The state of the connection to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// The URI, as configured.
    pub uri: Arc<str>,
    /// Whether it is connected and works (A78).
    pub is_connected: bool,
    /// Whether some watch needs it. A server that is not needed is not connected.
    pub is_needed: bool,
    /// Why it cannot be reached, or why its last stream ended; `None` while it works, and while it
    /// is not needed.
    pub failure: Option<ServerFailure>,
    /// The state of each watched type there: a type that the server refuses is
    /// [`Rejected`](SyncState::Rejected), with its status. Empty for a client of a proxy, whose
    /// [upstreams](crate::proxy::Upstream) have them.
    pub types: Vec<(TypeUrl, SyncState)>,
}

/// The servers of a client, and the configuration of its machine.
pub(crate) struct Plan {
    pub(crate) config: ClientConfig,
    node: Node,
    servers: Vec<Server>,
}

/// Why a client cannot start. No task is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The bootstrap document names no server.
    #[error("the bootstrap document names no server")]
    NoServer,
    /// More servers than a client supports.
    #[error("{found} servers are more than the limit of {limit}")]
    TooManyServers {
        /// The number of servers of all authorities.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The URI of a server is not usable.
    #[error(transparent)]
    Server(#[from] ServerUriError),
    /// The last-known-good file is not usable.
    #[error(transparent)]
    LastGood(#[from] OpenError),
    /// There is no tokio runtime for the connections.
    #[error("no tokio runtime: start the client inside one")]
    NoRuntime,
}

/// Why a watch is refused. Nothing is watched then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The name or its parameters are invalid.
    #[error(transparent)]
    Refused(#[from] machine::WatchError),
    /// The name is a glob or the wildcard; watch it with [`Client::watch_set`].
    #[error("{name:?} is a glob or the wildcard: watch it as a set")]
    IsSet {
        /// The name.
        name: String,
    },
    /// The name is neither a glob nor the wildcard; watch it with [`Client::watch`].
    #[error("{name:?} is neither a glob nor the wildcard: watch it as one resource")]
    IsNoSet {
        /// The name.
        name: String,
    },
    /// The proxy that the client belongs to does not need it any more.
    #[error("the client has ended: its proxy does not need it any more")]
    Ended,
}

impl Client {
    /// Starts a client with the default settings of [`builder`](Self::builder).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(bootstrap: Bootstrap) -> Result<Self, StartError> {
        Self::builder(bootstrap).start()
    }

    /// The builder of a client.
    pub fn builder(bootstrap: Bootstrap) -> ClientBuilder {
        ClientBuilder {
            bootstrap,
            protocol: Protocol::default(),
            speaks_locators: false,
            from_metadata: None,
            connector: None,
            credentials: None,
            recorder: Arc::new(NoRecorder),
            last_good: None,
            resource_timeout: None,
        }
    }

    /// The same client with other parameters: its watchers subscribe with these instead of the
    /// parameters of their authority (T2).
    #[must_use]
    pub fn with<K, V>(&self, parameters: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<Arc<str>>,
        V: Into<Arc<str>>,
    {
        Self { parameters: Some(parameters.into_iter().collect()), ..self.clone() }
    }

    /// Watches one resource. The client decodes its payloads when they arrive, and rejects one that
    /// it cannot decode (C2).
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn watch<T>(&self, name: &str) -> Result<Watcher<T>, WatchError>
    where
        T: ResourceType,
    {
        let type_url = self.declare::<T>();
        self.watch_one(&type_url, name)
    }

    /// Watches many resources with a single request to the server.
    ///
    /// # Errors
    /// See [`WatchError`]; then none of them is watched.
    pub fn watch_many<'n, T>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<Watcher<T>>, WatchError>
    where
        T: ResourceType,
    {
        let type_url = self.declare::<T>();
        let hub = self.handle.hub();
        let watched = hub.watch_many(&type_url, names, self.parameters.as_ref());
        let (mut watchers, mut set) = (Vec::new(), None);
        // First make watchers of all, because only the drop of a watcher ends its watch.
        for NamedWatch { name, watch, slot } in watched.ok_or(WatchError::Ended)?? {
            let is_set = slot.lock().members.is_some();
            watchers.push(Watcher::new(Arc::clone(&self.handle), watch, slot));
            if is_set {
                set = set.or(Some(name));
            }
        }
        match set {
            Some(name) => Err(WatchError::IsSet { name: name.to_owned() }),
            None => Ok(watchers),
        }
    }

    /// Watches all resources of a type that exist for this client.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn watch_all<T>(&self) -> Result<SetWatcher<T>, WatchError>
    where
        T: ResourceType,
    {
        self.watch_set("*")
    }

    /// Watches the members of a glob such as `xdstp://authority/acme.Thing/shop/*` (X12), or
    /// everything (`*`).
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn watch_set<T>(&self, name: &str) -> Result<SetWatcher<T>, WatchError>
    where
        T: ResourceType,
    {
        let type_url = self.declare::<T>();
        self.watch_members(&type_url, name)
    }

    /// Watches one resource of any type as bytes.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn watch_raw(&self, type_url: &TypeUrl, name: &str) -> Result<Watcher<Raw>, WatchError> {
        self.watch_one(type_url, name)
    }

    /// Watches a glob or everything of any type as bytes.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn watch_set_raw(&self, type_url: &TypeUrl, name: &str) -> Result<SetWatcher<Raw>, WatchError> {
        self.watch_members(type_url, name)
    }

    /// Reads the watched resources of one type: those of the cache if the server in use serves the
    /// type, or the status to use instead. All reads of the guard are of one moment.
    ///
    /// - A type that the server rejects is never read from what came before, and a type is not read
    ///   as empty before its first response.
    /// - `get` takes the parameters of this client; [`with`](Self::with) sets them.
    /// - Old-style names have [`ReadGuard::route`], new-style names [`ReadGuard::route_of`] their
    ///   authority.
    /// - Only what is watched is in the cache. A name without a watch counts as absent, and so does
    ///   one whose watch has no response yet while another name of the type had one.
    /// - Clients of a [proxy](crate::proxy::Proxy) have nothing to read: the proxy has.
    ///
    /// It locks the client for a short time. The guard keeps its snapshot in memory until it is
    /// dropped.
    #[must_use]
    pub fn read<T>(&self) -> ReadGuard<T>
    where
        T: ResourceType,
    {
        self.guard(TypeUrl::of::<T>())
    }

    /// As [`read`](Self::read), for any type, as bytes.
    #[must_use]
    pub fn read_raw(&self, type_url: &TypeUrl) -> ReadGuard<Raw> {
        self.guard(type_url.clone())
    }

    /// The cache of this client: the existing resources, by name and constraints. A server can
    /// serve from it.
    #[must_use]
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    /// All watched resources with their state, sorted by type and name. The cost is a walk over all
    /// of them.
    #[must_use]
    pub fn report(&self) -> Vec<Report> {
        self.handle.hub().read(machine::Client::report).unwrap_or_default()
    }

    /// The node as it is sent to servers.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The states of its servers, by number.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerState> {
        let hub = self.handle.hub();
        let owned = |(type_url, state): (&TypeUrl, &SyncState)| (type_url.clone(), state.clone());
        let of_server = |machine: &machine::Client, server| ServerState {
            uri: Arc::clone(machine.server_name(server)),
            is_connected: machine.is_connected(server),
            is_needed: machine.is_needed(server),
            failure: None,
            types: machine.health(server).into_iter().flat_map(Health::states).map(owned).collect(),
        };
        let states =
            hub.read(|machine| (0..machine.servers()).map(|server| of_server(machine, server)).collect());
        let mut states: Vec<_> = states.unwrap_or_default();
        for (server, state) in states.iter_mut().enumerate() {
            state.failure = hub.failure(server);
        }
        states
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn shared_node(&self) -> &Arc<Node> {
        &self.node
    }

    fn guard<T>(&self, type_url: TypeUrl) -> ReadGuard<T> {
        let read = |machine: &machine::Client| machine.read(type_url.clone(), self.parameters.as_ref());
        let guard = self.handle.hub().read(read);
        guard.unwrap_or_else(|| ReadGuard::ended(type_url, &self.cache))
    }

    fn watch_one<T>(&self, type_url: &TypeUrl, name: &str) -> Result<Watcher<T>, WatchError>
    where
        T: Payload,
    {
        let watched = self.handle.hub().watch(type_url, name, self.parameters.clone());
        let (watch, slot) = watched.ok_or(WatchError::Ended)??;
        let is_set = slot.lock().members.is_some();
        let watcher = Watcher::new(Arc::clone(&self.handle), watch, slot);
        if is_set { Err(WatchError::IsSet { name: name.to_owned() }) } else { Ok(watcher) }
    }

    fn watch_members<T>(&self, type_url: &TypeUrl, name: &str) -> Result<SetWatcher<T>, WatchError>
    where
        T: Payload,
    {
        let watched = self.handle.hub().watch(type_url, name, self.parameters.clone());
        let (watch, slot) = watched.ok_or(WatchError::Ended)??;
        let is_set = slot.lock().members.is_some();
        let watcher = SetWatcher::new(Arc::clone(&self.handle), watch, slot);
        if is_set { Ok(watcher) } else { Err(WatchError::IsNoSet { name: name.to_owned() }) }
    }

    /// Declares the type, so that its payloads are decoded when they arrive.
    fn declare<T>(&self) -> TypeUrl
    where
        T: ResourceType,
    {
        let type_url = TypeUrl::of::<T>();
        self.handle.hub().declare(&type_url, || {
            Arc::new(|_, payload| decode_message::<T>(payload).map_err(|error| error.to_string()))
        });
        type_url
    }
}

impl ClientBuilder {
    /// The protocol with all servers. Default: SotW, which every server speaks. With delta, less is
    /// sent, and the server reports an absent resource at once.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Declares that the servers speak TP2, so the client may send parameters to them. An authority
    /// with `dynamic_parameters` in the bootstrap document implies it.
    pub fn speaks_locators(mut self) -> Self {
        self.speaks_locators = true;
        self
    }

    /// For an authority without parameters, derives them from the node, as the server of this
    /// project does for a client that sends none (T46). The client sends them in locators.
    pub fn parameters_from_metadata(mut self, mapping: ParameterMapping) -> Self {
        self.from_metadata = Some(mapping);
        self
    }

    /// Uses this connector instead of TCP, for example pairs in memory for tests, or a tunnel. If
    /// the bootstrap document requires TLS, it runs over this connection.
    pub fn connector(mut self, connector: Connector) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Adds metadata to each stream, in addition to the call credentials of the bootstrap document.
    pub fn call_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Receives the metrics.
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = recorder;
        self
    }

    /// Stores accepted resources in this file, and starts from its content (see
    /// [`last_good`](crate::last_good)). A resource from the file is
    /// [stale](crate::Resource::is_stale) until a server confirms or replaces it.
    pub fn last_good(mut self, path: impl AsRef<Path>, secrets: Secrets) -> Self {
        self.last_good = Some((path.as_ref().to_owned(), secrets));
        self
    }

    /// How long a subscribed resource may stay unanswered before it counts as absent (C5). Default
    /// 15 s; twice as long with servers on which the timer is only a transient error (C6). The
    /// maximum is one year.
    pub fn resource_timeout(mut self, timeout: Duration) -> Self {
        self.resource_timeout = Some(timeout);
        self
    }

    /// Starts the client on the current tokio runtime. It connects when something is watched.
    ///
    /// Reads the last-known-good file, if one is set, and blocks while it does.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(mut self) -> Result<Client, StartError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        xds_core::seed_tables(&RandomState::new());
        let plan = self.plan()?;
        let mut machine = machine::Client::new(plan.config.clone());
        let mut file = None;
        if let Some((path, secrets)) = self.last_good.take() {
            let (opened, restored) = LastGood::open(path, secrets)?;
            machine.restore(Duration::ZERO, restored.records.into_iter().map(Into::into).collect());
            file = Some((Arc::<Persist>::default(), opened));
        }
        let (cache, persist) = (Arc::clone(machine.cache()), file.as_ref().map(|(own, _)| Arc::clone(own)));
        let client = self.connect(plan, cache, Box::new(Own::new(machine)), persist, &runtime)?;
        if let Some((persist, file)) = file {
            runtime.spawn(persist.run(file));
        }
        Ok(client)
    }

    /// Starts the connections of a machine with this plan.
    pub(crate) fn connect(
        &self,
        plan: Plan,
        cache: Arc<Cache>,
        owner: Box<dyn Owner>,
        persist: Option<Arc<Persist>>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Client, StartError> {
        let Plan { node, servers, .. } = plan;
        let mut transports = Vec::new();
        for server in servers {
            transports.push(Transport::new(server, self.connector.clone(), self.credentials.clone())?);
        }
        let (hub, handle) = Hub::new(owner, transports.len(), Arc::clone(&self.recorder), persist);
        for (server, transport) in transports.into_iter().enumerate() {
            runtime.spawn(connection::run(Arc::clone(&hub), server, transport, self.protocol));
        }
        runtime.spawn(keep_time(hub));
        Ok(Client { handle, node: Arc::new(node), cache, parameters: None })
    }

    /// Numbers the servers, and configures the machine.
    ///
    /// # Errors
    /// There is no server, or there are too many.
    pub(crate) fn plan(&self) -> Result<Plan, StartError> {
        let mut servers = Servers::default();
        let default = self.authority(&self.bootstrap.servers, &self.bootstrap.parameters, &mut servers);
        let authorities = self.bootstrap.authorities.iter().map(|(name, authority)| {
            let Authority { servers: own, parameters, fallback_on_reachability_only, .. } = authority;
            let own = if own.is_empty() { &self.bootstrap.servers } else { own };
            let config = self.authority(own, parameters, &mut servers);
            let fallback_on_reachability_only = *fallback_on_reachability_only;
            (name.clone(), AuthorityConfig { fallback_on_reachability_only, ..config })
        });
        let authorities: BTreeMap<_, _> = authorities.collect();
        let Servers { list } = servers;
        if list.is_empty() {
            return Err(StartError::NoServer);
        }
        if list.len() > machine::SERVERS_LIMIT {
            return Err(StartError::TooManyServers { found: list.len(), limit: machine::SERVERS_LIMIT });
        }
        let node = node(&self.bootstrap.node);
        let mut config = ClientConfig::new(node.encode_to_vec().into(), self.server(&list[0]));
        config.servers = list.iter().map(|server| self.server(server)).collect();
        (config.default_authority, config.authorities) = (default, authorities);
        if let Some(timeout) = self.resource_timeout {
            let timeout = timeout.min(LONGEST_RESOURCE_TIMEOUT);
            (config.resource_timeout, config.transient_resource_timeout) = (timeout, timeout * 2);
        }
        Ok(Plan { config, node, servers: list })
    }

    fn authority(&self, own: &[Server], parameters: &Parameters, servers: &mut Servers) -> AuthorityConfig {
        let node = || self.bootstrap.node.encode_to_vec();
        let derived = || Some(self.from_metadata.as_ref()?.derive(&node()).ok()?.parameters);
        let parameters = match parameters.is_empty() {
            true => derived().unwrap_or_default(),
            false => parameters.clone(),
        };
        AuthorityConfig {
            servers: own.iter().map(|server| servers.number(server)).collect(),
            // P3.3
            speaks_locators: self.speaks_locators || !parameters.is_empty(),
            parameters,
            fallback_on_reachability_only: false,
        }
    }

    fn server(&self, server: &Server) -> ServerConfig {
        ServerConfig {
            name: server.uri.as_str().into(),
            protocol: self.protocol,
            errors: machine::ErrorPolicy {
                fail_on_data_errors: server.features.fail_on_data_errors,
                resource_timer_is_transient_error: server.features.resource_timer_is_transient_error,
            },
        }
    }
}

/// C16: equal servers share one stream.
#[derive(Default)]
struct Servers {
    list: Vec<Server>,
}

impl Servers {
    fn number(&mut self, server: &Server) -> usize {
        let known = self.list.iter().position(|known| known == server);
        known.unwrap_or_else(|| {
            self.list.push(server.clone());
            self.list.len() - 1
        })
    }
}

/// P7: adds the fields of the node that belong to the client and not to the document.
fn node(configured: &Node) -> Node {
    let mut node = configured.clone();
    node.user_agent_name = env!("CARGO_PKG_NAME").to_owned();
    node.user_agent_version_type =
        Some(UserAgentVersionType::UserAgentVersion(env!("CARGO_PKG_VERSION").to_owned()));
    node.client_features = FEATURES.map(str::to_owned).to_vec();
    node
}

/// Longer than any program runs, and safe to add to any time.
const LONGEST_RESOURCE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// S30, S38: the client reads `Resource` wrappers and honours TTLs.
const FEATURES: [&str; 2] = ["xds.config.resource-in-sotw", "xds.config.supports-resource-ttl"];

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("bootstrap", &self.bootstrap)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
