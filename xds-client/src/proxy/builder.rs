//! The settings of a proxy, and its start.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};
use xds_core::ParameterMapping;
use xds_core::client as machine;
use xds_core::proxy::Proxy as Machine;

use super::{Guard, Proxy, ProxyConfig, ProxyHub, ProxyState, Route, run};
use crate::bootstrap::Bootstrap;
use crate::client::{Client, ClientBuilder, StartError};
use crate::last_good::{LastGood, Secrets};
use crate::metrics::Recorder;
use crate::persist::Persist;
use crate::transport::{Connector, Credentials};

/// Settings of a proxy.
#[must_use]
pub struct ProxyBuilder {
    pub(super) config: ProxyConfig,
    pub(super) settings: Settings,
    pub(super) last_good: Option<(PathBuf, Secrets)>,
}

/// The settings of the clients of all routes.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) bootstrap: Bootstrap,
    pub(super) protocol: machine::Protocol,
    pub(super) connector: Option<Connector>,
    pub(super) credentials: Option<Credentials>,
    pub(super) recorder: Arc<dyn Recorder>,
    pub(super) mapping: Arc<ParameterMapping>,
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
    /// else](super::UpstreamKind::Node). Use the mapping of the server that serves the cache. Default:
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
        let shared_client = settings.builder(&Route::SHARED, &config);
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
        let views = machine.authorities().into_iter().map(|of| (of, OnceLock::new())).collect();
        let state = ProxyState { machine, clients: BTreeMap::new(), armed: None, is_closed: false };
        let shared = Arc::new(ProxyHub {
            state: Mutex::new(state),
            start,
            views,
            cache,
            config,
            settings,
            persist,
            probe: OnceLock::new(),
            runtime: runtime.clone(),
            event: Notify::new(),
            wake: Notify::new(),
        });
        let client = shared.connect(&Route::SHARED, &shared_client, plan)?;
        shared.lock().clients.insert(Route::SHARED, client);
        if let (Some(persist), Some(file)) = (&shared.persist, file) {
            runtime.spawn(Arc::clone(persist).run(file));
        }
        runtime.spawn(run(Arc::clone(&shared)));
        Ok(Proxy { _guard: Arc::new(Guard(Arc::clone(&shared))), shared })
    }
}

impl Settings {
    /// The settings of the client of a route.
    pub(super) fn builder(&self, route: &Route, config: &ProxyConfig) -> ClientBuilder {
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

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
