//! Connections to servers: addresses, TLS, keepalive, credentials.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use tonic::{Request, Status};
use tower::service_fn;

use crate::bootstrap::{CallCredentials, ChannelCredentials, Server, ServerUriError, TlsFiles};

/// Any connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T> Io for T where T: AsyncRead + AsyncWrite + Send + Unpin {}

/// The future that a hook returns.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Makes connections instead of TCP, for example pairs in memory for tests, or a tunnel.
pub type Connector = Arc<dyn Fn(&Server) -> Pending<io::Result<Box<dyn Io>>> + Send + Sync>;

/// Returns the metadata for a new stream, such as a token.
pub type Credentials = Arc<dyn Fn(&Server) -> Pending<Result<MetadataMap, Status>> + Send + Sync>;

/// How to connect to one server.
pub(crate) struct Transport {
    server: Server,
    name: Arc<str>,
    endpoint: Endpoint,
    is_tls: bool,
    connector: Option<Connector>,
    credentials: Option<Credentials>,
}

/// Why no stream could be opened. The client tries again (C7).
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    #[error("cannot read {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("the TLS files cannot be used")]
    Tls(#[source] tonic::transport::Error),
    #[error("cannot connect")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    #[error("no credentials: {0}")]
    Credentials(Status),
    #[error("a token must not be sent over a connection without TLS: use TLS for this server")]
    TokenInPlain,
    #[error("no stream could be opened within {0:?}")]
    TimedOut(Duration),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Refused(Status),
}

impl TransportError {
    /// The text with its first cause. The libraries between them add only their names.
    pub(crate) fn with_cause(&self) -> String {
        self.source().map_or_else(|| self.to_string(), |source| format!("{self}: {}", first_cause(source)))
    }
}

/// The error that caused the others.
pub(crate) fn first_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

impl Transport {
    pub(crate) fn new(
        server: Server,
        connector: Option<Connector>,
        credentials: Option<Credentials>,
    ) -> Result<Self, ServerUriError> {
        let address = server.endpoint()?;
        let invalid = |_| ServerUriError::BadAddress { uri: server.uri.clone() };
        let endpoint = Endpoint::from_shared(address.uri().to_owned()).map_err(invalid)?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(TCP_KEEPALIVE_AFTER))
            .tcp_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL))
            .tcp_keepalive_retries(Some(TCP_KEEPALIVE_PROBES))
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .http2_adaptive_window(true);
        let (name, is_tls) = (server.uri.as_str().into(), address.is_tls());
        Ok(Self { server, name, endpoint, is_tls, connector, credentials })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Connects. It reads the TLS files each time, so replaced certificates take effect.
    pub(crate) async fn connect(&self) -> Result<Channel, TransportError> {
        let mut endpoint = self.endpoint.clone();
        if let ChannelCredentials::Tls(files) = &self.server.credentials {
            endpoint = endpoint.tls_config(tls(files).await?).map_err(TransportError::Tls)?;
        }
        let connecting = async {
            match &self.connector {
                None => endpoint.connect().await,
                Some(connector) => {
                    let (connector, server) = (Arc::clone(connector), self.server.clone());
                    let connect = move |_: Uri| {
                        let connecting = connector(&server);
                        async move { connecting.await.map(TokioIo::new) }
                    };
                    endpoint.connect_with_connector(service_fn(connect)).await
                }
            }
        };
        connecting.await.map_err(|error| TransportError::Connect(error.into()))
    }

    /// Adds the call credentials and metadata to a request.
    pub(crate) async fn authenticate<T>(&self, request: &mut Request<T>) -> Result<(), TransportError> {
        for credentials in &self.server.call_credentials {
            match credentials {
                CallCredentials::JwtTokenFile(path) => {
                    if !self.is_tls {
                        return Err(TransportError::TokenInPlain);
                    }
                    let token = read(path).await?;
                    let token = String::from_utf8_lossy(&token);
                    let invalid =
                        |_| Status::invalid_argument("the token has characters that a header cannot have");
                    let value = format!("Bearer {}", token.trim()).parse().map_err(invalid);
                    let value = value.map_err(TransportError::Credentials)?;
                    request.metadata_mut().insert("authorization", value);
                }
            }
        }
        if let Some(credentials) = &self.credentials {
            let metadata = credentials(&self.server).await.map_err(TransportError::Credentials)?;
            let headers = request.metadata_mut().as_mut();
            headers.extend(metadata.into_headers());
        }
        Ok(())
    }
}

async fn tls(files: &TlsFiles) -> Result<ClientTlsConfig, TransportError> {
    let mut config = match &files.ca_certificate_file {
        None => ClientTlsConfig::new().with_native_roots(),
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path).await?)),
    };
    if let Some(identity) = &files.identity {
        let certificate = read(&identity.certificate_file).await?;
        let key = read(&identity.private_key_file).await?;
        config = config.identity(Identity::from_pem(certificate, key));
    }
    Ok(config)
}

async fn read(path: &Path) -> Result<Vec<u8>, TransportError> {
    let of_read = path.to_owned();
    let read = spawn_blocking(move || xds_file::read(&of_read, FILE_LIMIT_BYTES)).await;
    read.unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|source| TransportError::File { path: path.to_owned(), source })
}

/// The limit for a certificate, key or token file.
const FILE_LIMIT_BYTES: usize = 16 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// With more frequent pings, gRPC servers close the connection in their default configuration.
const PING_INTERVAL: Duration = Duration::from_secs(300);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// With these values, the system detects a peer that vanished after about 35 s, whatever pings do.
const TCP_KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_PROBES: u32 = 3;
