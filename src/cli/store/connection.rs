//! The connection to a server with a store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Deserialize;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Uri};
use tonic::{Request, Response, Status};
use xds::client::bootstrap::{ChannelCredentials, Server};
use xds::client::{ConnectError, connect};
use xds_proto::xds::store::v1::maintenance_client::MaintenanceClient;
use xds_proto::xds::store::v1::migration_client::MigrationClient;
use xds_proto::xds::store::v1::store_client::StoreClient;

use super::error::StoreError;
use super::place::is_in_etcd;
use crate::cli::tls::Tls;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("store_server").required(true).args(["server", "store"]))]
pub(in crate::cli) struct ConnectionOptions {
    /// The admin port of a server with a store: HOST:PORT, http://HOST:PORT or https://HOST:PORT
    /// (with TLS)
    ///
    /// The server needs your identity: also give --token-file, or --cert and --key.
    #[arg(long, value_name = "URI", help_heading = SERVER)]
    server: Option<String>,
    /// The folder of a store which `xds serve --store DIR` serves on this machine
    ///
    /// The running server writes an address of this machine and a token to DIR/server.json, which only
    /// its user can read.
    #[arg(long, value_name = "DIR", help_heading = SERVER)]
    store: Option<PathBuf>,
    /// A file with the token for --server: one line, `TOKEN` or `NAME TOKEN`
    ///
    /// To another machine a token is sent over TLS only.
    #[arg(long, value_name = "FILE", requires = "server", help_heading = SERVER)]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// How long to wait for an answer of the server
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help_heading = SERVER,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
}

/// The services of one server.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Connection {
    /// The server, for messages.
    pub(super) name: String,
    pub(super) store: StoreClient<Api>,
    pub(super) maintenance: MaintenanceClient<Api>,
    pub(super) migration: MigrationClient<Api>,
    pub(super) timeout: Duration,
    /// How the same client reaches other servers; `None`: it has an identity at this server only.
    client: Option<Client>,
}

/// What a client presents.
#[derive(Debug, Clone)]
struct Client {
    tls: Tls,
    token: Option<String>,
}

type Api = InterceptedService<Channel, Bearer>;

/// Adds the token to each call.
#[derive(Debug, Clone)]
pub(super) struct Bearer(Option<MetadataValue<Ascii>>);

/// What the server of a store writes for commands on the same machine.
#[derive(Debug, Deserialize)]
struct LocalServer {
    address: String,
    token: String,
}

impl ConnectionOptions {
    /// The folder of the store, if no server was named.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.store.as_deref()
    }

    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let timeout = Duration::from_secs(self.timeout.into());
        match (&self.server, &self.store) {
            (Some(uri), _) => {
                let token = self.token_file.as_deref().map(read_token).transpose()?;
                Client { tls: self.tls.clone(), token }.open(uri, timeout).await
            }
            (None, Some(folder)) => Connection::open_local(folder, timeout).await,
            (None, None) => Err(StoreError::NoServer),
        }
    }
}

impl Client {
    async fn open(self, uri: &str, timeout: Duration) -> Result<Connection, StoreError> {
        let server = Server { credentials: self.tls.credentials(uri), ..Server::insecure(uri) };
        let connection = Connection::open(server, self.token.clone(), timeout).await?;
        Ok(Connection { client: Some(self), ..connection })
    }
}

impl Connection {
    /// The server at another address, for the same client; `None` if it cannot be reached so.
    pub(super) async fn at(&self, address: &str) -> Option<Self> {
        self.client.clone()?.open(address, self.timeout).await.ok()
    }

    pub(super) async fn open(
        server: Server,
        token: Option<String>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let token = token.map(|token| bearer(&server, &token)).transpose()?;
        let name = server.uri.clone();
        let channel = match tokio::time::timeout(timeout, connect(&server)).await {
            Err(_) => return Err(StoreError::Silent { server: name, timeout, is_commit: false }),
            Ok(Err(ConnectError::Address(error))) => return Err(StoreError::Address(error)),
            Ok(Err(error)) => {
                return Err(StoreError::Unreachable { server: name, reason: error.to_string() });
            }
            Ok(Ok(channel)) => channel,
        };
        let bearer = Bearer(token);
        let store = StoreClient::with_interceptor(channel.clone(), bearer.clone());
        let maintenance = MaintenanceClient::with_interceptor(channel.clone(), bearer.clone());
        let migration = MigrationClient::with_interceptor(channel, bearer);
        let (store, maintenance) = (
            store.max_decoding_message_size(MESSAGE_LIMIT_BYTES),
            maintenance.max_decoding_message_size(MESSAGE_LIMIT_BYTES),
        );
        Ok(Self { name, store, maintenance, migration, timeout, client: None })
    }

    /// Connects to the server that serves the store in this folder.
    pub(super) async fn open_local(folder: &Path, timeout: Duration) -> Result<Self, StoreError> {
        if is_in_etcd(folder) {
            return Err(StoreError::InEtcd);
        }
        if !folder.is_dir() {
            return Err(StoreError::NoFolder { folder: folder.to_owned() });
        }
        let not_running = || StoreError::NotRunning { folder: folder.to_owned() };
        let file = folder.join(LOCAL_SERVER);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_running()),
            Err(error) => return Err(StoreError::File { file, error }),
        };
        let local: LocalServer = serde_json::from_str(&text)
            .map_err(|error| StoreError::LocalServer { file, reason: error.to_string() })?;
        match Self::open(Server::insecure(&local.address), Some(local.token), timeout).await {
            // The server ended without removing the file.
            Err(StoreError::Unreachable { .. }) => Err(not_running()),
            opened => opened,
        }
    }

    /// Waits for the answer of a call.
    pub(super) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, StoreError> {
        let silent =
            |_| StoreError::Silent { server: self.name.clone(), timeout: self.timeout, is_commit: false };
        let answer = tokio::time::timeout(self.timeout, call).await.map_err(silent)?;
        answer.map(Response::into_inner).map_err(|status| StoreError::of(&status, &self.name))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// The header with the token, unless others could read it on the way.
pub(in crate::cli) fn bearer(server: &Server, token: &str) -> Result<MetadataValue<Ascii>, StoreError> {
    let is_tls = matches!(server.credentials, ChannelCredentials::Tls(_));
    if !is_tls && !is_local(server)? {
        return Err(StoreError::TokenInPlain { server: server.uri.clone() });
    }
    let mut header: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().map_err(|_| StoreError::TokenCharacters)?;
    header.set_sensitive(true);
    Ok(header)
}

/// Whether the server is on this machine.
fn is_local(server: &Server) -> Result<bool, StoreError> {
    let endpoint = server.endpoint().map_err(StoreError::Address)?;
    if endpoint.uri().starts_with("unix:") {
        return Ok(true);
    }
    let uri: Option<Uri> = endpoint.uri().parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    Ok(host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()))
}

/// The token in a file: its only word, or the second one of its only line.
pub(super) fn read_token(file: &Path) -> Result<String, StoreError> {
    let error = |error| StoreError::File { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(error)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let words: Vec<Vec<_>> = lines.map(|line| line.split_whitespace().collect()).collect();
    match &words[..] {
        [line] => match &line[..] {
            [token] | [_, token] => Ok((*token).to_owned()),
            _ => Err(StoreError::TokenFile { file: file.to_owned() }),
        },
        _ => Err(StoreError::TokenFile { file: file.to_owned() }),
    }
}

/// The file that the server of a store writes into its folder.
const LOCAL_SERVER: &str = "server.json";

/// The limit of a response. A server sends at most one resource beyond 4 MiB.
const MESSAGE_LIMIT_BYTES: usize = 1 << 30;

const SERVER: &str = "Server";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_this_machine_or_over_tls() {
        let plain = |uri: &str| bearer(&Server::insecure(uri), "t").is_ok();
        for local in ["127.0.0.1:1", "http://127.8.8.8:1", "[::1]:1", "localhost:1", "unix:/run/xds.sock"] {
            assert!(plain(local), "{local}");
        }
        for other in ["10.0.0.1:1", "store.example:1", "localhost.example:1", "[fe80::1]:1"] {
            assert!(!plain(other), "{other}");
        }
    }
}
