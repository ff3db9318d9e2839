//! `xds serve`: serves a folder, or a durable store, to clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args};
use tokio::runtime::Handle;
use xds::admin::Admin;
use xds::folder::{Descriptors, Folder, Label, domains};
use xds::metrics::Registry;
use xds::rest::{self, Answers, RestConfig};
use xds::{Cache, Server, ServerConfig, Snapshot};

use super::admin::AdminOptions;
use super::config::ConfigFile;
use super::health::{self, Drain, Ready};
use super::listen::Listen;
use super::mapping::Mapping;
use super::metrics::{self, Sources};
use super::rollout_state::StateSource;
use super::running::{Hangups, LogFormat, end, shutdown};
use super::store::place::Place;
use super::traces::{self, Telemetry, Traces};
use super::warnings::WarningOptions;
use super::{DescriptorOptions, Failure, FolderOptions, IsolationMode, load, troubles};
use applied::AppliedFolder;
use kubernetes::{KubernetesOptions, SOURCES, ServedKubernetes, Started};
pub(super) use limits::{Limits, count, time, wait};
pub(super) use migrate::MigrationError;
use migrate::{Migrated, Stop};
use nacks::NackQuorum;
pub(super) use peers::{PeerCredentials, PeersConnector, PeersError, url as peer_url};
use rollout::{RolloutOptions, ServedRollouts};
pub(super) use schemas::SchemasError;
pub(super) use sealing::SealError;
use store::{ServedStore, StoreOptions};
pub(super) use store_api::TokenError;
pub(super) use types::{OptionError, Types};

mod applied;
mod backups;
#[cfg_attr(not(feature = "kubernetes"), path = "serve/no_kubernetes.rs")]
mod kubernetes;
pub(super) mod limits;
mod migrate;
mod nacks;
mod peers;
mod rollout;
mod schemas;
mod sealing;
mod server_file;
mod store;
mod store_api;
mod store_limits;
mod store_metrics;
mod types;

/// Serve a folder or a durable store to Envoy and gRPC, and follow its changes
///
/// Loads the folder, prints a summary, then listens. If a file has an error later, the error is
/// logged and the last good state stays in use. Likely mistakes, as `xds check` finds them, are
/// logged as warnings, once each; with --strict they are errors. On SIGHUP the folder, the certificates and the
/// policy are read again at once. On SIGTERM and SIGINT the server drains its streams; a second
/// signal ends it at once.
///
/// The port speaks gRPC, by ADS and by one service per type, and HTTP for clients that poll
/// (api_type: REST in Envoy): POST
/// /v3/discovery:{listeners,routes,scoped-routes,clusters,endpoints,secrets,runtime,extension_configs}.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("folder", |dir| dir.required(false)),
    group = ArgGroup::new("sources").required(true).multiple(true).arg("folder").args(SOURCES)
)]
pub(super) struct Serve {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    source: Option<FolderOptions>,
    #[command(flatten, next_help_heading = None)]
    descriptors: DescriptorOptions,
    #[command(flatten)]
    store: StoreOptions,
    #[command(flatten)]
    kubernetes: KubernetesOptions,
    #[command(flatten, next_help_heading = None)]
    rollout: RolloutOptions,
    #[command(flatten, next_help_heading = None)]
    warnings: WarningOptions,
    /// A label of the folder's content, such as a Git revision: in commits, the log, metrics and the
    /// admin page
    #[arg(long, value_name = "TEXT", conflicts_with = "label_file")]
    label: Option<String>,
    /// Take the label from the first line of this file, such as .git/refs/heads/main, at each reload
    #[arg(long, value_name = "FILE")]
    label_file: Option<PathBuf>,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten, next_help_heading = None)]
    mapping: Mapping,
    /// Hold a REST poll that has the current version until a change, for at most this time; 0
    /// answers it at once
    ///
    /// Keep it below the request timeout of all clients. The timeout of Envoy is 1 second, unless
    /// request_timeout sets another.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = limits::seconds)]
    rest_hold: u32,
    /// Bytes of all REST requests and answers that are in memory at a time; a poll that needs more
    /// gets 503
    ///
    /// Polls of the same content share one answer. A client that has not read its answer after 60 s
    /// loses it.
    #[arg(long, value_name = "BYTES", default_value = "268435456", value_parser = count)]
    rest_limit: usize,
    /// Format of log lines; RUST_LOG sets the level (default: info), and SIGUSR1 raises it to debug
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    traces: Traces,
    #[command(flatten)]
    admin: AdminOptions,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    types: Types,
}

/// A folder that was loaded.
#[derive(Debug)]
struct ServedFolder {
    folder: Folder,
    /// Where its content is: what clients read, or beside it with a store.
    cache: Arc<Cache>,
}

impl Serve {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let traces = self.traces.start(self.log_format, runtime.handle())?;
        let hangups = {
            let _runtime = runtime.enter();
            Hangups::listen().map_err(Failure::System)?
        };
        let cache = Cache::new();
        // Before the first commit, so that the page lists it too.
        let page = self.page(&cache);
        // Load before the port opens, so that no client receives "does not exist" for a resource that is
        // still being loaded (G13, ST57).
        let descriptors = Arc::new(self.descriptors.read()?);
        let taken = self.rollout.take(self.source.as_ref().map(|source| &*source.folder))?;
        // What the folder or the store wants; without rollouts it is what clients read.
        let source = &Arc::clone(taken.as_ref().map_or(&cache, |taken| &taken.source));
        let store = self.store.start(source, &descriptors, runtime.handle())?;
        let rollouts = match taken {
            Some(taken) => Some(self.rollout.start(taken, &cache, &self.state_source(store.as_ref())?)?),
            None => None,
        };
        let mut stop = None;
        if let Some(store) = &store {
            // SV32: before anything can listen, and before the folder is applied.
            match runtime.block_on(self.store.migrate.run(&store.handle))? {
                Migrated::Done(signal) => stop = signal,
                Migrated::Stopped => {
                    end(runtime, traces);
                    return Ok(());
                }
            }
            self.announce(store.summary(source));
        }
        let folder = self.folder(source, &descriptors, store.as_ref(), runtime.handle())?;
        let kubernetes = match runtime.block_on(self.kubernetes.start(source, &descriptors, &mut stop))? {
            Started::Loaded(kubernetes) => kubernetes,
            Started::Stopped => {
                end(runtime, traces);
                return Ok(());
            }
        };
        self.announce(kubernetes.iter().map(ServedKubernetes::summary).collect());
        if let Some(rollouts) = &rollouts {
            rollouts.rollouts.begin();
            self.announce(self.rollout.summary());
        }
        let config = self.config(source)?;
        let routes = (descriptors, page);
        let served = runtime.block_on(self.serve(
            (folder, kubernetes, store, rollouts),
            cache,
            config,
            routes,
            (hangups, stop, &traces),
        ));
        end(runtime, traces);
        served
    }

    /// Where what is rolled out comes from.
    fn state_source(&self, store: Option<&ServedStore>) -> Result<StateSource, Failure> {
        let folder = self.source.as_ref().map(|source| std::path::absolute(&source.folder));
        match (store, folder.transpose().map_err(Failure::System)?) {
            (Some(store), _) if store.place != Place::Memory => {
                let standing = store.handle.standing();
                let head = &standing.borrow().head;
                Ok(StateSource::Store { cluster: head.cluster.clone(), node: head.node.clone() })
            }
            (None, Some(folder)) => Ok(StateSource::Folder(folder)),
            (_, applied) => Ok(StateSource::Memory { applied }),
        }
    }

    /// The folder, loaded.
    fn folder(
        &self,
        cache: &Arc<Cache>,
        descriptors: &Arc<Descriptors>,
        store: Option<&ServedStore>,
        runtime: &Handle,
    ) -> Result<Option<ServedFolder>, Failure> {
        let Some(source) = &self.source else { return Ok(None) };
        let isolates = source.isolate == IsolationMode::File;
        if self.warnings.strict && isolates {
            return Err(Failure::Option(OptionError::StrictIsolation));
        }
        if store.is_some() && isolates {
            return Err(Failure::Option(OptionError::StoreIsolation));
        }
        let folder = source.open(Arc::clone(descriptors)).with_warnings(self.warnings.policy());
        let label = self.label.clone().map(Label::Text);
        let mut folder = match label.or_else(|| self.label_file.clone().map(Label::File)) {
            Some(label) => folder.with_label(label),
            None => folder,
        };
        let Some(store) = store else {
            let loaded = load::load(source, &mut folder, cache)?;
            self.announce(load::summary(source, &loaded, cache));
            return Ok(Some(ServedFolder { folder, cache: Arc::clone(cache) }));
        };
        let name = source.folder.display().to_string();
        let owner = self.store.owner.clone();
        let place = store.commands_option();
        let mut applied = AppliedFolder::new(store.handle.clone(), runtime.clone(), name, place, owner);
        folder = folder.with_gate(move |contents, label| applied.apply(contents, label));
        // Holds what is in use of the folder. Clients read the cache of the store.
        let in_use = Cache::new();
        match load::load(source, &mut folder, &in_use) {
            Ok(loaded) => self.announce(load::summary(source, &loaded, &in_use)),
            // ST60: the store has a last good state, also at a start.
            Err(failure) => {
                failure.to_string().lines().for_each(|line| tracing::error!("{line}"));
                tracing::warn!("the folder was not applied; the last good state of the store stays in use");
            }
        }
        Ok(Some(ServedFolder { folder, cache: in_use }))
    }

    fn announce(&self, lines: Vec<String>) {
        lines.iter().for_each(|line| self.log_format.announce(line));
    }

    fn config(&self, cache: &Cache) -> Result<ServerConfig, Failure> {
        let parameters = self.mapping.parameters().into();
        let mut config = ServerConfig { parameters, ..ServerConfig::default() };
        self.limits.apply(&mut config);
        let in_folder: Vec<_> = cache.snapshot().counts().map(|(type_url, _)| type_url.clone()).collect();
        self.types.apply(&in_folder, &mut config).map_err(Failure::Option)?;
        Ok(config)
    }

    async fn serve(
        &self,
        (folder, kubernetes, store, rollouts): (
            Option<ServedFolder>,
            Option<ServedKubernetes>,
            Option<ServedStore>,
            Option<ServedRollouts>,
        ),
        cache: Arc<Cache>,
        config: ServerConfig,
        (descriptors, page): (Arc<Descriptors>, Admin),
        (hangups, stop, log): (Hangups, Option<Stop>, &Telemetry),
    ) -> Result<(), Failure> {
        // Open both ports before any task starts, so that an invalid option ends the program at once.
        let for_api = self.store.api.policy().map_err(|error| Failure::Security(error.into()))?;
        let port = self.listen.open().await?.with_api_policy(for_api);
        let bound_to = port.listener.local_addr().map_err(Failure::System)?;
        let admin = self.admin.open(&port).await?;
        let access = store.as_ref().map(|store| store.access(&self.store, port.store_authorizer()));
        let access = access.transpose()?;
        let mut config = config;
        port.apply(&mut config);
        let drain = Drain::default();
        let stop = match stop {
            Some(stop) => stop,
            None => Box::pin(shutdown().map_err(Failure::System)?),
        };
        let shutdown = drain.clone().begin_after(stop);
        let stopping = store.clone();
        let shutdown = async move {
            shutdown.await;
            // ST6: commits are finished before the streams are drained.
            if let Some(store) = stopping {
                store.handle.stop().await;
            }
        };
        let of_cache = ready(&cache, store.is_some());
        // Before the configuration is copied: polls heed it, too.
        config.readiness = store.as_ref().map(ServedStore::readiness);
        let ready = match &config.readiness {
            Some(readiness) => health::unless_refusing(Arc::clone(readiness), of_cache),
            None => of_cache,
        };
        let ready = drain.or(ready);
        let mut health = health::routes(Arc::clone(&ready));
        if let Some(store) = &store {
            health = health.merge(store.routes());
        }
        let answers = Answers::new(self.rest_limit);
        let routes = self.rest(descriptors, &cache, config.clone(), &answers).merge(health.clone());
        let reloads = folder.as_ref().map(|served| Arc::clone(served.folder.reloads()));
        let of_kubernetes = kubernetes.as_ref().map(ServedKubernetes::reloads);
        let tokens = access.as_ref().and_then(|access| access.reloads());
        let sources = Sources::new(reloads, of_kubernetes, port.files()).with_api(tokens, port.api_policy());
        let warnings = folder.as_ref().map(|served| Arc::clone(served.folder.standing_warnings()));
        let watch = folder.map(|served| tokio::spawn(served.folder.watch(served.cache)));
        let following = kubernetes.map(|kubernetes| tokio::spawn(kubernetes.watch(Arc::clone(&cache))));
        let rolling = rollouts.as_ref().map(ServedRollouts::run);
        let hangups = tokio::spawn(hangups.follow(sources.clone()));
        self.log_format.announce(&format!("listening on {bound_to}"));
        traces::trace(&cache);
        let dropped = log.dropped_lines();
        let mut registry = Registry::default();
        if admin.is_some() {
            metrics::watch_server(&mut registry, &cache, &mut config);
            metrics::watch_sources(&mut registry, &sources);
            if let Some(warnings) = &warnings {
                metrics::watch_warnings(&mut registry, Arc::clone(warnings));
            }
            if let Some(backups) = store.as_ref().and_then(|store| store.backups.as_ref()) {
                backups.register(&mut registry);
            }
            if let Some(store) = &store {
                store_metrics::watch_store(&mut registry, store.clone());
            }
            if let Some(rollouts) = &rollouts {
                metrics::watch_rollouts(&mut registry, Arc::clone(&rollouts.rollouts));
            }
            metrics::watch_ready(&mut registry, ready);
            metrics::watch_polls(&mut registry, answers);
            metrics::watch_log(&mut registry, dropped.clone());
            metrics::watch_troubles(&mut registry, page.troubles().clone());
        }
        let page = match &store {
            Some(store) => {
                let shown = store.clone();
                page.with_store(store.handle.clone(), move || shown.size_bytes())
            }
            None => page,
        };
        if let Some(store) = &store {
            store.add_troubles(page.troubles());
        }
        let page = match &rollouts {
            Some(rollouts) => page.with_rollouts(Arc::clone(&rollouts.rollouts)),
            None => page,
        };
        if let Some(rollouts) = &rollouts {
            rollouts.add_troubles(page.troubles());
        }
        troubles::add(page.troubles(), sources, dropped);
        if let Some(warnings) = warnings {
            troubles::add_warnings(page.troubles(), warnings);
        }
        let quorum = store.as_ref().zip(self.store.quarantine_nacks).map(|(store, needed)| {
            (NackQuorum::watch(needed.into(), &cache, &mut config), store.handle.clone())
        });
        let server = Server::new(cache).with_config(config).with_routes(routes);
        let quorum = quorum.map(|((quorum, decisions), store)| {
            tokio::spawn(quorum.follow(decisions, store, server.clients()))
        });
        let grpc = store.as_ref().zip(access.as_ref());
        let troubles = page.troubles().clone();
        let grpc = grpc
            .map(|(store, access)| store.api(access, troubles.clone(), server.clients(), rolling.is_some()));
        let admin_routes = page.routes(server.clients()).merge(health).merge(xds::metrics::routes(registry));
        let (mut local, mut _server_file) = (None, None);
        if let (Some(store), Some(admin)) = (&store, &admin) {
            local = admin.open_local()?;
            let address = local.as_ref().unwrap_or(admin).address();
            _server_file = store.write_server_file(address, &troubles);
        }
        let tokens = access.map(|access| tokio::spawn(access.follow(TOKENS_EVERY)));
        let _local = local.zip(grpc.clone()).map(|(local, grpc)| local.serve_grpc(grpc));
        let _admin = admin.map(|admin| admin.serve(admin_routes, grpc, self.log_format));
        let served = port.serve(server, shutdown).await;
        watch.iter().for_each(tokio::task::JoinHandle::abort);
        following.iter().for_each(tokio::task::JoinHandle::abort);
        rolling.iter().flatten().for_each(tokio::task::JoinHandle::abort);
        tokens.iter().for_each(tokio::task::JoinHandle::abort);
        quorum.iter().for_each(tokio::task::JoinHandle::abort);
        hangups.abort();
        served
    }

    fn page(&self, cache: &Arc<Cache>) -> Admin {
        let page = Admin::new(cache);
        match &self.source {
            Some(source) => {
                let folder = source.folder.clone();
                page.with_domains(move || domains(&folder))
            }
            None => page,
        }
    }

    fn rest(
        &self,
        descriptors: Arc<Descriptors>,
        cache: &Arc<Cache>,
        server: ServerConfig,
        answers: &Arc<Answers>,
    ) -> axum::Router {
        let (hold, answers) = (Duration::from_secs(self.rest_hold.into()), Arc::clone(answers));
        let config = RestConfig { server, hold, answers, ..RestConfig::default() };
        rest::routes(Arc::clone(cache), descriptors, config)
    }
}

/// G13: ready once the folder was read, or once the store has a commit (ST59), for all types.
fn ready(cache: &Arc<Cache>, has_store: bool) -> Ready {
    let cache = Arc::clone(cache);
    let missing = match has_store {
        true => "the store has no commit yet: clients wait for the first one",
        false => "the folder has not been read yet",
    };
    Arc::new(move |_| match cache.read(Snapshot::is_synced) {
        true => Ok(()),
        false => Err(missing.to_owned()),
    })
}

/// How often the token file is read again.
const TOKENS_EVERY: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  xds serve examples/quickstart
  xds serve config --listen 0.0.0.0:18000 --listen-cert cert.pem --listen-key key.pem --log-format json
  curl -d '{}' 127.0.0.1:18000/v3/discovery:clusters
  xds serve config --names-limit 10000 --stream-age 30m --not-served SDS
  RUST_LOG=debug xds serve config
  xds store init data && xds serve --store data
  xds serve --config xds.yaml --print-config    # all options, with the values of the file";
