//! `xds proxy`: many clients in front of a control plane.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use xds::admin::Admin as Page;
use xds::client::bootstrap::{Bootstrap, BootstrapError};
use xds::client::last_good::Secrets;
use xds::client::proxy::{Proxy, ProxyConfig, Sharing, UpstreamKind};
use xds::client::{Protocol, Recorder, StartError};
use xds::metrics::Registry;
use xds::{Rejections, Server, ServerConfig};

use super::Failure;
use super::admin::Admin;
use super::config::ConfigFile;
use super::health;
use super::listen::Listen;
use super::mapping::Mapping;
use super::metrics::{self, Sources};
use super::running::{Hangups, LogFormat, end, shutdown};
use super::serve::{Limits, Types, count, wait};
use super::tls::Tls;
use super::traces::{self, Started, Traces};

mod status;

/// Serve what other servers have to many clients, each variant fetched once
///
/// A client that asks for what is at hand and for it by its constraints is answered at once. All else is asked for
/// upstream, once for all that wait for it. When the upstream is away, clients keep what they have, and new ones get
/// what is at hand.
///
/// SIGHUP has certificates and the policy read again at once.
///
/// GET /proxy on the same port tells how upstreams and types stand, /readyz/CDS whether a type can be had.
#[derive(Debug, Args)]
#[command(name = "proxy", after_help = EXAMPLES)]
pub(super) struct ProxyCommand {
    #[command(flatten)]
    config_file: ConfigFile,
    /// A server to ask: HOST:PORT, http://HOST:PORT, https://HOST:PORT (with TLS) or unix:/PATH. May be repeated
    ///
    /// The first is preferred; the next one is asked when it cannot be reached and something is missing. They are asked for xdstp
    /// names of every authority.
    #[arg(id = "server", long = "upstream", value_name = "URI", required_unless_present = "bootstrap", help_heading = UPSTREAM)]
    upstream: Vec<String>,
    /// A bootstrap file, as gRPC has it: servers, also for authorities of xdstp names
    ///
    /// When it lists authorities, names of others get a resource error; else its servers are asked for all.
    #[arg(long, value_name = "FILE", conflicts_with = "server", help_heading = UPSTREAM)]
    bootstrap: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// Ask in state of the world, which every server speaks [default: delta, in which absence is told at once]
    #[arg(long, action = ArgAction::SetTrue, help_heading = UPSTREAM)]
    sotw: bool,
    /// The node.id to ask with
    #[arg(long, value_name = "ID", default_value = "xds-proxy", help_heading = UPSTREAM)]
    node_id: String,
    /// The node.cluster to ask with
    #[arg(long, value_name = "CLUSTER", default_value = "", help_heading = UPSTREAM)]
    node_cluster: String,
    /// The servers do not speak TP2: what a client gets depends on these of its parameters; `none` for on nothing
    ///
    /// There is one stream upstream for each set of their values, whose node has them where clients have them: in its
    /// metadata, or where --param says. What comes on it is for all clients with these values.
    #[arg(long, value_name = "KEY", value_delimiter = ',', help_heading = UPSTREAM)]
    by_node: Vec<String>,
    /// How long an upstream may leave a name unanswered before it counts as absent
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = wait, help_heading = UPSTREAM)]
    resource_timeout: Duration,
    /// Whether a variant is served to all clients that its constraints match
    #[arg(long, value_enum, value_name = "MODE", default_value_t = SharingMode::Trust, help_heading = SHARING)]
    sharing: SharingMode,
    /// With --sharing audit: one hit in so many is asked for upstream all the same
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..), help_heading = SHARING)]
    audit_one_in: u32,
    /// What belongs to a wildcard or glob depends on these parameters only [default: on all of them]
    ///
    /// Without this each distinct set of parameters has a wildcard of its own upstream: which resources there are for a
    /// client cannot be told from those of another.
    #[arg(long, value_name = "KEY", value_delimiter = ',', conflicts_with = "by_node", help_heading = SHARING)]
    wildcard_keys: Vec<String>,
    /// How long further clients wait for the first answer of a name, which may be for them too
    ///
    /// Then as many more ask as wait for an answer, and the next wait is twice as long, so that a slow upstream is not asked by all at once.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = wait, help_heading = SHARING)]
    coalesce: Duration,
    /// When what an upstream sends is accepted
    ///
    /// With canary, each new variant is sent to a few clients first. What one of them rejects is rejected upstream, by name and
    /// with its words, and nobody else is sent it. For delta upstreams that know TP2.
    #[arg(long, value_enum, default_value = "commit", help_heading = SHARING)]
    ack: AckMode,
    /// With --ack canary: how many clients are sent each variant first
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = count, help_heading = SHARING)]
    canaries: usize,
    /// How long what nobody asks for any more stays at hand
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = wait, help_heading = SHARING)]
    linger: Duration,
    /// How many bytes of that; what is asked for is never dropped
    #[arg(long, value_name = "BYTES", default_value = "67108864", value_parser = count, help_heading = SHARING)]
    linger_bytes: usize,
    /// Parameter sets of one name that are asked for upstream at most; further ones get RESOURCE_EXHAUSTED
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count, help_heading = SHARING)]
    questions_limit: usize,
    /// Keep what was received in this file, and start from it
    ///
    /// So clients can start while the control plane is away. Restored resources are stale until it confirms them. A wildcard
    /// is restored only when the file proves that all of it is there.
    #[arg(long, value_name = "FILE")]
    cache_file: Option<PathBuf>,
    /// Keep secrets in the file, too
    #[arg(long, requires = "cache_file")]
    cache_secrets: bool,
    #[command(flatten)]
    listen: Listen,
    /// How long a client waits for what the upstream does not answer, before it is told UNAVAILABLE; it keeps what it has
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = wait)]
    miss_deadline: Duration,
    #[command(flatten)]
    mapping: Mapping,
    /// How to write log lines; RUST_LOG says which (default: info)
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    traces: Traces,
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    types: Types,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SharingMode {
    /// Yes: that is what constraints say
    Trust,
    /// Yes, and see now and then whether the upstream agrees
    Audit,
    /// No: each distinct set of parameters is asked for
    Off,
}

/// When a response is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AckMode {
    /// At once, when it is valid
    Commit,
    /// When a few clients accepted it, or said nothing for 5 s
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
    /// As in [`Failure::exit_code`].
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
        (hangups, log): (Hangups, &Started),
    ) -> Result<(), Failure> {
        let servers: Vec<_> = bootstrap.servers.iter().map(|server| server.uri.clone()).collect();
        let dropped = log.dropped_lines();
        let mut registry = Registry::default();
        let recorder = metrics::upstream_recorder(&mut registry);
        let started = self.start(bootstrap, &config, Arc::clone(&recorder) as Arc<dyn Recorder>);
        let proxy = started.map_err(|error| Failure::Proxy(ProxyError::Start(error)))?;
        let page = Page::new(proxy.cache());
        let port = self.listen.open().await?;
        let bound_to = port.listener.local_addr().map_err(Failure::System)?;
        let admin = self.admin.open(&port).await?;
        port.apply(&mut config);
        let shutdown = shutdown().map_err(Failure::System)?;
        let sources = Sources::new(None, port.files());
        let hangups = tokio::spawn(hangups.follow(sources.clone()));
        self.log_format.announce(&format!("in front of {}", servers.join(", then ")));
        self.log_format.announce(&format!("listening on {bound_to}"));
        traces::trace(proxy.cache());
        if admin.is_some() {
            metrics::watch_server(&mut registry, proxy.cache(), &mut config);
            metrics::watch_proxy(&mut registry, &proxy, &recorder);
            metrics::watch_sources(&mut registry, sources);
            metrics::watch_log(&mut registry, dropped);
        }
        let rejections = Rejections::new(Arc::clone(proxy.cache()));
        config.add_observer(Arc::clone(&rejections));
        let server = Server::new(Arc::clone(proxy.cache())).with_config(config.clone());
        let upstreams = {
            let (proxy, rejections) = (proxy.clone(), Arc::clone(&rejections));
            move || status::report(&proxy, &rejections)
        };
        let health = {
            let proxy = proxy.clone();
            health::routes(Arc::new(move |type_url| status::ready(&proxy, type_url)))
        };
        let routes = status::routes(proxy.clone(), rejections, config).merge(health.clone());
        let server = server.with_routes(routes);
        let admin_routes = page.with_upstreams(upstreams).routes(server.clients()).merge(health);
        let admin_routes = admin_routes.merge(xds::metrics::routes(registry));
        let _admin = admin.map(|admin| admin.serve(admin_routes, self.log_format));
        let served = port.serve(server, shutdown).await;
        hangups.abort();
        served
    }

    fn start(
        &self,
        bootstrap: Bootstrap,
        server: &ServerConfig,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Proxy, StartError> {
        let mut builder = Proxy::builder(bootstrap)
            .config(self.config())
            .protocol(if self.sotw { Protocol::Sotw } else { Protocol::Delta })
            .mapping(Arc::clone(&server.parameters))
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
            questions_limit: self.questions_limit,
            resource_timeout: self.resource_timeout,
            ..ProxyConfig::default()
        }
    }

    fn server_config(&self) -> Result<ServerConfig, Failure> {
        let mut config =
            ServerConfig { parameters: Arc::new(self.mapping.parameters()), ..ServerConfig::default() };
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
