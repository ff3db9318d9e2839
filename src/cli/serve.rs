//! `xds serve`: a folder to clients.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;
use xds::folder::Folder;
use xds::rest::{self, RestConfig};
use xds::{Cache, MetadataKeys, NamedPath, ParameterMapping, Server, ServerConfig};

use super::{Failure, Source, load};
use limits::Limits;
use types::Types;

pub(super) use types::OptionError;

mod limits;
mod types;

/// Serve a folder to Envoy and gRPC, and follow its changes
///
/// Loads the folder, prints what it loaded, then listens. A mistake in a file that changes later goes to the log and
/// the last good state stays. SIGTERM and SIGINT end all streams in an orderly way; a second one ends at once.
///
/// The port speaks gRPC, over ADS and a service per type, and HTTP for clients that poll (api_type: REST in Envoy):
/// POST /v3/discovery:{listeners,routes,scoped-routes,clusters,endpoints,secrets,runtime,extension_configs}.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    #[command(flatten)]
    source: Source,
    /// Address and port to listen on; port 0 lets the system choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:18000")]
    listen: SocketAddr,
    /// Take a parameter from a place of the client's node, such as zone=node.locality.zone
    ///
    /// Resources with `when:` go to the clients whose parameters match. Clients that ask by name, which is all of them
    /// so far, get theirs from their node: every string and bool at the top level of node.metadata, and what this
    /// option adds. PATH is node.id, node.cluster, node.locality.{region,zone,sub_zone} or node.metadata.KEY.KEY..
    #[arg(long, value_name = "NAME=PATH")]
    param: Vec<NamedPath>,
    /// Take parameters from these keys of node.metadata only; `none` for no key
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    param_metadata: Vec<String>,
    /// Hold a REST poll that brings the current version this long for a change; 0 answers it at once
    ///
    /// Keep it below the request timeout of all clients: that of Envoy is 1 second, unless request_timeout says more.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    rest_hold: u32,
    /// How to write log lines; RUST_LOG says which (default: info)
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    types: Types,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

impl Serve {
    pub(super) fn run(&self) -> Result<(), Failure> {
        self.log_format.start();
        let cache = Cache::new();
        let mut folder = self.source.open()?;
        // Before the port opens: no client is told that nothing exists.
        let loaded = load::load(&self.source, &mut folder, &cache)?;
        let config = self.config(&cache)?;
        for line in load::summary(&self.source, &loaded, &cache) {
            self.log_format.announce(&line);
        }
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        runtime.block_on(self.serve(folder, cache, config))
    }

    fn config(&self, cache: &Cache) -> Result<ServerConfig, Failure> {
        let parameters = Arc::new(self.parameters());
        let mut config = ServerConfig { parameters, ..ServerConfig::default() };
        self.limits.apply(&mut config);
        let in_folder: Vec<_> = cache.snapshot().counts().map(|(type_url, _)| type_url.clone()).collect();
        self.types.apply(&in_folder, &mut config).map_err(Failure::Option)?;
        Ok(config)
    }

    fn parameters(&self) -> ParameterMapping {
        let keys: BTreeSet<_> = self.param_metadata.iter().filter(|key| *key != "none").cloned().collect();
        let metadata =
            if self.param_metadata.is_empty() { MetadataKeys::All } else { MetadataKeys::Only(keys) };
        let mapping = ParameterMapping::default().with_metadata(metadata);
        self.param.iter().cloned().fold(mapping, ParameterMapping::with_path)
    }

    async fn serve(&self, folder: Folder, cache: Arc<Cache>, config: ServerConfig) -> Result<(), Failure> {
        let address = self.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|error| Failure::Listen { address, error })?;
        let bound_to = listener.local_addr().map_err(Failure::System)?;
        let shutdown = shutdown().map_err(Failure::System)?;
        let routes = self.rest(&folder, &cache, config.clone());
        let watch = tokio::spawn(folder.watch(Arc::clone(&cache)));
        self.log_format.announce(&format!("listening on {bound_to}"));
        let server = Server::new(cache).with_config(config).with_routes(routes);
        let served = server.serve(listener, shutdown).await;
        watch.abort();
        Ok(served?)
    }

    fn rest(&self, folder: &Folder, cache: &Arc<Cache>, server: ServerConfig) -> axum::Router {
        let hold = Duration::from_secs(self.rest_hold.into());
        let config = RestConfig { server, hold, ..RestConfig::default() };
        rest::routes(Arc::clone(cache), Arc::clone(folder.descriptors()), config)
    }
}

impl LogFormat {
    fn start(self) {
        // The file watcher reports each watch that went with its directory, which is how Kubernetes changes a volume.
        let default = || EnvFilter::new("info,notify=warn");
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default());
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal());
        match self {
            Self::Text => log.with_target(false).init(),
            Self::Json => log.json().flatten_event(true).init(),
        }
    }

    /// Says what a user waits for: in text on standard output, in JSON as a log line like all others.
    fn announce(self, line: &str) {
        match self {
            Self::Text => println!("{line}"),
            Self::Json => tracing::info!("{}", line.trim_start()),
        }
    }
}

/// Ends with the first signal to stop; the second one ends the process.
#[cfg(unix)]
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; once more to stop at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    })
}

/// Ends with the first Ctrl-C; the second one ends the process.
#[cfg(not(unix))]
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        _ = tokio::signal::ctrl_c().await;
        tracing::info!("stopping; once more to stop at once");
        tokio::spawn(async {
            _ = tokio::signal::ctrl_c().await;
            std::process::exit(1);
        });
    })
}

const EXAMPLES: &str = "\
Examples:
  xds serve examples/quickstart
  xds serve config --listen 0.0.0.0:18000 --log-format json
  curl -d '{}' 127.0.0.1:18000/v3/discovery:clusters
  xds serve config --names-limit 10000 --stream-age 30m --not-served SDS
  RUST_LOG=debug xds serve config";
