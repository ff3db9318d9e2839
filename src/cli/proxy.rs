//! `xds proxy`: a caching proxy between clients and control planes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use xds::admin::Admin;
use xds::client::bootstrap::{Bootstrap, BootstrapError};
use xds::client::last_good::Secrets;
use xds::client::proxy::{Proxy, ProxyConfig, Sharing, UpstreamKind};
use xds::client::{Protocol, Recorder, StartError};
use xds::metrics::Registry;
use xds::{Rejections, Server, ServerConfig};

use super::Failure;
use super::admin::AdminOptions;
use super::config::ConfigFile;
use super::health::{self, Drain};
use super::listen::Listen;
use super::mapping::Mapping;
use super::metrics::{self, Sources};
use super::running::{Hangups, LogFormat, end, shutdown};
use super::serve::{Limits, Types, count, wait};
use super::tls::Tls;
use super::traces::{self, Telemetry, Traces};
use super::troubles;

mod status;

/// Serve the resources of other servers to many clients, each variant fetched once
///
/// If a cached variant matches a client, the client is answered at once. Otherwise the proxy
/// subscribes upstream, once for all clients that wait for the same resource. When the upstream is
/// down, clients keep their resources, and new clients get the cached ones.
///
/// On SIGHUP the certificates and the policy are read again at once.
///
/// GET /proxy on the same port reports the state of upstreams and types, /readyz/CDS whether a type
/// is available.
#[derive(Debug, Args)]
#[command(name = "proxy", after_help = EXAMPLES)]
pub(super) struct ProxyCommand {
    #[command(flatten)]
    config_file: ConfigFile,
    /// An upstream server: HOST:PORT, http://HOST:PORT, https://HOST:PORT (with TLS) or unix:/PATH.
    /// May be repeated
    ///
    /// The first is preferred. The proxy uses the next one when it cannot connect to the first and
    /// a resource is missing. It subscribes to xdstp names of every authority at these servers.
    #[arg(id = "server", long = "upstream", value_name = "URI", required_unless_present = "bootstrap", help_heading = UPSTREAM)]
    upstream: Vec<String>,
    /// A bootstrap file in gRPC's format: servers, also for authorities of xdstp names
    ///
    /// If it lists authorities, names of other authorities get a resource error. Otherwise its
    /// servers get the subscriptions to all names.
    #[arg(long, value_name = "FILE", conflicts_with = "server", help_heading = UPSTREAM)]
    bootstrap: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// Subscribe in state of the world (SotW), which every server speaks [default: delta, which
    /// reports absent resources at once]
    #[arg(long, action = ArgAction::SetTrue, help_heading = UPSTREAM)]
    sotw: bool,
    /// The node.id to send upstream
    #[arg(long, value_name = "ID", default_value = "xds-proxy", help_heading = UPSTREAM)]
    node_id: String,
    /// The node.cluster to send upstream
    #[arg(long, value_name = "CLUSTER", default_value = "", help_heading = UPSTREAM)]
    node_cluster: String,
    /// The servers do not speak TP2: their responses depend on these parameters of a client; `none`
    /// for no parameter
    ///
    /// The proxy opens one upstream stream for each set of their values. The node of the stream has
    /// the values where clients have them: in its metadata, or where --param says. All clients with
    /// these values get the responses of that stream.
    #[arg(long, value_name = "KEY", value_delimiter = ',', help_heading = UPSTREAM)]
    by_node: Vec<String>,
    /// How long an upstream may leave a name without an answer before the name counts as absent
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = wait, help_heading = UPSTREAM)]
    resource_timeout: Duration,
    /// Whether a variant is served to all clients that its constraints match
    #[arg(long, value_enum, value_name = "MODE", default_value_t = SharingMode::Trust, help_heading = SHARING)]
    sharing: SharingMode,
    /// With --sharing audit: also subscribe upstream for one hit in this many
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..), help_heading = SHARING)]
    audit_one_in: u32,
    /// The members of a wildcard or glob depend only on these parameters [default: on all
    /// parameters]
    ///
    /// Without this, each distinct set of parameters has its own wildcard upstream, because the
    /// resources that exist for one client say nothing about those of another.
    #[arg(long, value_name = "KEY", value_delimiter = ',', conflicts_with = "by_node", help_heading = SHARING)]
    wildcard_keys: Vec<String>,
    /// How long further clients wait for the first response to a name, which may match them too
    ///
    /// Then as many more subscribe upstream as wait for a response, and the next wait is twice as
    /// long. So a slow upstream does not get the subscriptions of all clients at once.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = wait, help_heading = SHARING)]
    coalesce: Duration,
    /// When to accept a response of an upstream
    ///
    /// With canary, each new variant is sent to a few clients first. If one of them rejects it, the
    /// proxy rejects it upstream, by name and with the message of the client, and sends it to no
    /// other client. For delta upstreams that speak TP2.
    #[arg(long, value_enum, default_value = "commit", help_heading = SHARING)]
    ack: AckMode,
    /// With --ack canary: the number of clients that are sent each variant first
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = count, help_heading = SHARING)]
    canaries: usize,
    /// How long a variant stays in the cache after the last client unsubscribed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = wait, help_heading = SHARING)]
    linger: Duration,
    /// Bytes of such variants, with their names and parameters, and 2 KiB for each; variants that clients
    /// subscribe to are never dropped
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = count, help_heading = SHARING)]
    linger_bytes: usize,
    /// Upstream subscriptions (parameter sets) of one name; further ones get RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count, help_heading = SHARING)]
    questions_limit: usize,
    /// Upstream subscriptions of one type; below the limit of the control plane, which ends the stream of all clients
    ///
    /// Further ones get RESOURCE_EXHAUSTED until others end.
    #[arg(long, value_name = "COUNT", default_value = "190000", value_parser = count, help_heading = SHARING)]
    upstream_names_limit: usize,
    /// Streams to the control plane with --by-node, or for resources without constraints: one for each set of
    /// parameters
    ///
    /// Clients choose the parameters. What needs one more gets RESOURCE_EXHAUSTED until others end.
    #[arg(long, value_name = "COUNT", default_value = "19000", value_parser = count, help_heading = SHARING)]
    upstream_streams_limit: usize,
    /// Keep the received resources in this file, and start from it
    ///
    /// So clients can start while the control plane is down. Restored resources are stale until it
    /// confirms them. A wildcard is restored only if the file proves that it is complete.
    #[arg(long, value_name = "FILE")]
    cache_file: Option<PathBuf>,
    /// Keep secrets in the file too
    #[arg(long, requires = "cache_file")]
    cache_secrets: bool,
    #[command(flatten)]
    listen: Listen,
    /// How long a client waits for an answer of the upstream before it gets UNAVAILABLE; it keeps
    /// its resources
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = wait)]
    miss_deadline: Duration,
    #[command(flatten)]
    mapping: Mapping,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SharingMode {
    /// Yes: the constraints are trusted
    Trust,
    /// Yes, and for some hits compare with the upstream
    Audit,
    /// No: each distinct set of parameters has its own upstream subscription
    Off,
}

/// When to accept a response of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AckMode {
    /// At once, if it is valid
    Commit,
    /// When a few clients accepted it, or did not answer for 5 s
    Canary,
}

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyError {
    #[error(transparent)]
    Bootstrap(BootstrapError),
    #[error(transparent)]
    Start(StartError),
}

impl ProxyError {
    /// See [`Failure::exit_code`].
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Bootstrap(BootstrapError::Unreadable { .. }) | Self::Start(StartError::LastGood(_)) => 1,
            Self::Bootstrap(_) | Self::Start(_) => 2,
        }
    }
}

impl ProxyCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let traces = self.traces.start(self.log_format, runtime.handle())?;
        let hangups = {
            let _runtime = runtime.enter();
            Hangups::listen().map_err(Failure::System)?
        };
        let bootstrap = self.bootstrap().map_err(|error| Failure::Proxy(ProxyError::Bootstrap(error)))?;
        let config = self.server_config()?;
        let served = runtime.block_on(self.serve(bootstrap, config, (hangups, &traces)));
        end(runtime, traces);
        served
    }

    async fn serve(
        &self,
        bootstrap: Bootstrap,
        mut config: ServerConfig,
        (hangups, log): (Hangups, &Telemetry),
    ) -> Result<(), Failure> {
        let servers: Vec<_> = bootstrap.servers.iter().map(|server| server.uri.clone()).collect();
        let dropped = log.dropped_lines();
        let mut registry = Registry::default();
        let recorder = metrics::upstream_recorder(&mut registry);
        let started = self.start(bootstrap, Arc::clone(&recorder) as Arc<dyn Recorder>);
        let proxy = started.map_err(|error| Failure::Proxy(ProxyError::Start(error)))?;
        let page = Admin::new(proxy.cache());
        let port = self.listen.open().await?;
        let bound_to = port.listener.local_addr().map_err(Failure::System)?;
        let admin = self.admin.open(&port).await?;
        port.apply(&mut config);
        let drain = Drain::default();
        let shutdown = drain.clone().begin_after(shutdown().map_err(Failure::System)?);
        let sources = Sources::new(None, None, port.files());
        let hangups = tokio::spawn(hangups.follow(sources.clone()));
        self.log_format.announce(&format!("in front of {}", servers.join(", then ")));
        self.log_format.announce(&format!("listening on {bound_to}"));
        traces::trace(proxy.cache());
        let ready = drain.or(status::ready(&proxy));
        if admin.is_some() {
            metrics::watch_server(&mut registry, proxy.cache(), &mut config);
            metrics::watch_ready(&mut registry, Arc::clone(&ready));
            metrics::watch_proxy(&mut registry, &proxy, &recorder);
            metrics::watch_sources(&mut registry, &sources);
            metrics::watch_log(&mut registry, dropped.clone());
            metrics::watch_troubles(&mut registry, page.troubles().clone());
        }
        troubles::add(page.troubles(), sources, dropped);
        status::add_troubles(page.troubles(), &proxy);
        let rejections = Rejections::new(Arc::clone(proxy.cache()));
        config.add_observer(Arc::clone(&rejections));
        config.readiness = Some(status::readiness(&proxy));
        let server = Server::new(Arc::clone(proxy.cache())).with_config(config.clone());
        let upstreams = {
            let (proxy, rejections) = (proxy.clone(), Arc::clone(&rejections));
            move || status::report(&proxy, &rejections)
        };
        let health = health::routes(ready);
        let routes = status::routes(proxy.clone(), rejections, config).merge(health.clone());
        let server = server.with_routes(routes);
        let admin_routes = page.with_upstreams(upstreams).routes(server.clients()).merge(health);
        let admin_routes = admin_routes.merge(xds::metrics::routes(registry));
        let _admin = admin.map(|admin| admin.serve(admin_routes, None, self.log_format));
        let served = port.serve(server, shutdown).await;
        hangups.abort();
        served
    }

    fn start(&self, bootstrap: Bootstrap, recorder: Arc<dyn Recorder>) -> Result<Proxy, StartError> {
        let mut builder = Proxy::builder(bootstrap)
            .config(self.config())
            .protocol(if self.sotw { Protocol::Sotw } else { Protocol::Delta })
            .mapping(Arc::new(self.mapping.parameters()))
            .recorder(recorder);
        if let Some(file) = &self.cache_file {
            let secrets = if self.cache_secrets { Secrets::Kept } else { Secrets::LeftOut };
            builder = builder.last_good(file, secrets);
        }
        builder.start()
    }

    fn bootstrap(&self) -> Result<Bootstrap, BootstrapError> {
        let mut bootstrap = match &self.bootstrap {
            Some(file) => Bootstrap::from_file(file)?,
            None => {
                let mut all = self.upstream.iter().map(Bootstrap::to_server);
                let mut bootstrap = all.next().unwrap_or_else(|| Bootstrap::to_server(""));
                bootstrap.servers.extend(all.flat_map(|other| other.servers));
                for server in &mut bootstrap.servers {
                    server.credentials = self.tls.credentials(&server.uri);
                }
                bootstrap
            }
        };
        let node = &mut bootstrap.node;
        if node.id.is_empty() {
            node.id.clone_from(&self.node_id);
        }
        if !self.node_cluster.is_empty() {
            node.cluster.clone_from(&self.node_cluster);
        }
        Ok(bootstrap)
    }

    fn config(&self) -> ProxyConfig {
        let keys = |list: &[String]| -> BTreeSet<Arc<str>> {
            list.iter().filter(|key| *key != "none").map(|key| key.as_str().into()).collect()
        };
        let upstream = match self.by_node.is_empty() {
            false => UpstreamKind::Node { keys: keys(&self.by_node) },
            true => UpstreamKind::Locators {
                set_keys: (!self.wildcard_keys.is_empty()).then(|| keys(&self.wildcard_keys)),
            },
        };
        let sharing = match self.sharing {
            SharingMode::Trust => Sharing::Trust,
            SharingMode::Audit => Sharing::Audit { one_in: self.audit_one_in },
            SharingMode::Off => Sharing::Off,
        };
        ProxyConfig {
            upstream,
            sharing,
            coalesce: self.coalesce,
            canaries: if self.ack == AckMode::Canary { self.canaries } else { 0 },
            linger: self.linger,
            linger_bytes: self.linger_bytes,
            upstream_subscriptions_limit: self.questions_limit,
            upstream_names_limit: self.upstream_names_limit,
            upstream_streams_limit: self.upstream_streams_limit,
            resource_timeout: self.resource_timeout,
            ..ProxyConfig::default()
        }
    }

    fn server_config(&self) -> Result<ServerConfig, Failure> {
        let mut config =
            ServerConfig { parameters: self.mapping.parameters().into(), ..ServerConfig::default() };
        self.limits.apply(&mut config);
        config.stream.sync_wait = self.miss_deadline;
        self.types.apply(&[], &mut config).map_err(Failure::Option)?;
        Ok(config)
    }
}

const UPSTREAM: &str = "Upstream";
const SHARING: &str = "Sharing";

const EXAMPLES: &str = "\
Examples:
  xds proxy --upstream 10.0.0.1:18000 --upstream 10.0.0.2:18000 --listen 0.0.0.0:18000
  xds proxy --upstream https://xds.example:443 --ca ca.pem --cache-file /var/lib/xds/cache
  xds proxy --upstream 127.0.0.1:9000 --by-node env,region       # a server without TP2
  xds proxy --upstream 127.0.0.1:9000 --by-node id --param id=node.id --sotw";
