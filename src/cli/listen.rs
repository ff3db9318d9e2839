//! The port of the clients: its address, its certificates, and its policy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::debug;
use xds::admin::RemoteAccess;
use xds::{Server, ServerConfig, Tls, TlsError, TlsFiles, listen};
use xds_store_server::StoreAuthorizer;

use super::Failure;
use super::policy::{PolicyError, PolicyFile};
use super::serve::limits;

#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub(super) struct Listen {
    /// Address and port to listen on; port 0 lets the system choose
    #[arg(
        long, value_name = "ADDRESS", default_value = "127.0.0.1:18000", value_parser = limits::address,
        help_heading = None
    )]
    listen: SocketAddr,
    /// Serve with TLS and this certificate (PEM, with its intermediate certificates); needs
    /// --listen-key
    ///
    /// Certificates, keys and authorities are read again when their files change. No stream ends
    /// for that.
    #[arg(long, value_name = "FILE", requires = "listen_key")]
    listen_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "listen_cert")]
    listen_key: Option<PathBuf>,
    /// Serve only clients with a certificate that one of these authorities signed (PEM)
    #[arg(long, value_name = "FILE", requires = "listen_cert")]
    listen_client_ca: Option<PathBuf>,
    /// Which clients may read which resources (YAML): see docs/security.md. Without it, all clients
    /// may read everything
    ///
    /// It is read again when it changes. A stream whose rights changed ends, and its client
    /// reconnects.
    #[arg(long, value_name = "FILE", requires = "listen_client_ca")]
    policy: Option<PathBuf>,
    /// Let other machines connect without TLS, if something else protects the port
    #[arg(long)]
    insecure: bool,
}

/// The certificates and the policy, read before the port opens.
pub(super) type Files = (Option<Arc<Tls>>, Option<Arc<PolicyFile>>);

/// Why the options do not allow the port to be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error(
        "--listen {address} would let other machines read the configuration in plain text: give --listen-cert and \
         --listen-key, or --insecure if something else protects the port"
    )]
    Plain { address: SocketAddr },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The port, opened but not served yet.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) listener: TcpListener,
    /// The address of `--listen`.
    address: SocketAddr,
    is_insecure: bool,
    tls: Option<Arc<Tls>>,
    policy: Option<Arc<PolicyFile>>,
    /// For the API of a store, instead of `policy`.
    api_policy: Option<Arc<PolicyFile>>,
    /// Tasks that read files again while the port is open.
    followers: JoinSet<()>,
}

impl Listen {
    /// Opens the port.
    pub(super) async fn open(&self) -> Result<Port, Failure> {
        let address = self.listen;
        let (tls, policy) = self.read().map_err(Failure::Security)?;
        let listener = listen(address).map_err(|error| Failure::Listen { address, error })?;
        let is_insecure = self.insecure;
        Ok(Port { listener, address, is_insecure, tls, policy, api_policy: None, followers: JoinSet::new() })
    }

    fn read(&self) -> Result<Files, ListenError> {
        let files = self.listen_cert.clone().zip(self.listen_key.clone());
        let is_private = self.listen.ip().is_loopback() || files.is_some() || self.insecure;
        if !is_private {
            return Err(ListenError::Plain { address: self.listen });
        }
        let tls = files.map(|(certificate, key)| {
            Tls::load(TlsFiles { certificate, key, client_authorities: self.listen_client_ca.clone() })
        });
        let policy = self.policy.as_deref().map(PolicyFile::open);
        Ok((tls.transpose()?, policy.transpose()?))
    }
}

impl Port {
    /// The same with a policy for the API of a store alone.
    pub(super) fn with_api_policy(self, api_policy: Option<Arc<PolicyFile>>) -> Self {
        Self { api_policy, ..self }
    }

    /// The policy for the API of a store alone.
    pub(super) fn api_policy(&self) -> Option<Arc<PolicyFile>> {
        self.api_policy.clone()
    }

    /// Sets the policy of the server, if there is one, and lowers its limit of connections to the
    /// number of file descriptors.
    pub(super) fn apply(&self, config: &mut ServerConfig) {
        if let Some(connections) = connections_allowed()
            && connections < config.connections_limit
        {
            debug!(connections, "the system allows fewer open files than --connections-limit needs");
            config.connections_limit = connections;
        }
        if let Some(policy) = &self.policy {
            config.authorizer = Some(Arc::clone(policy) as Arc<_>);
            config.authorize_every = AUTHORIZE_EVERY;
        }
    }

    /// The address of `--listen`.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether other machines may connect without TLS.
    pub(super) fn is_insecure(&self) -> bool {
        self.is_insecure
    }

    /// The files that are read again while the port is open.
    pub(super) fn files(&self) -> Files {
        (self.tls.clone(), self.policy.clone())
    }

    /// The access to the admin port from other machines; `None` without TLS or without a policy,
    /// because nothing could identify the clients then. Without `--policy`, that of the API lets
    /// inspect, which rules for tokens do not: they are for gRPC.
    pub(super) fn remote_access(&self) -> Option<RemoteAccess> {
        let authorizer = Arc::clone(self.policy.as_ref().or(self.api_policy.as_ref())?) as Arc<_>;
        Some(RemoteAccess { tls: Arc::clone(self.tls.as_ref()?), authorizer })
    }

    /// The rights in the store; `None` without a policy.
    pub(super) fn store_authorizer(&self) -> Option<Arc<dyn StoreAuthorizer>> {
        let policy = self.api_policy.as_ref().or(self.policy.as_ref());
        policy.map(|policy| Arc::clone(policy) as Arc<_>)
    }

    /// Serves until `shutdown` is done.
    pub(super) async fn serve(
        self,
        server: Server,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), Failure> {
        let Self { listener, tls, policy, api_policy, mut followers, .. } = self;
        for policy in [policy, api_policy].into_iter().flatten() {
            followers.spawn(policy.follow(READ_AGAIN));
        }
        let served = match tls {
            None => server.serve(listener, shutdown).await,
            Some(tls) => {
                followers.spawn(Arc::clone(&tls).follow(READ_AGAIN));
                server.serve_tls(listener, tls, shutdown).await
            }
        };
        Ok(served?)
    }
}

impl ListenError {
    /// See [`Failure::exit_code`].
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Tls(TlsError::Unreadable { .. }) | Self::Policy(PolicyError::Unreadable { .. }) => 1,
            Self::Plain { .. } | Self::Tls(_) | Self::Policy(_) => 2,
        }
    }
}

/// Raises the limit of open files to its maximum, and returns how many connections it allows. The
/// lower default limit is for old programs. `None` if the system does not say.
fn connections_allowed() -> Option<usize> {
    let descriptors = usize::try_from(rlimit::increase_nofile_limit(u64::MAX).ok()?).ok()?;
    // Keep some descriptors: without any, the server could not read its folder again.
    let kept = (descriptors / 8).clamp(KEPT_DESCRIPTORS, MOST_KEPT_DESCRIPTORS);
    Some(descriptors.saturating_sub(kept).max(1))
}

/// The least number of descriptors kept for files, upstreams and the admin page.
const KEPT_DESCRIPTORS: usize = 64;
/// The largest number of kept descriptors.
const MOST_KEPT_DESCRIPTORS: usize = 1024;
/// How often files are read again.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// How often the policy is checked again for each stream.
const AUTHORIZE_EVERY: Duration = Duration::from_secs(10);
