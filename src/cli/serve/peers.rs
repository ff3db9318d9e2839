//! The nodes that the store of `xds serve --store` replicates with.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use tokio::net::{TcpStream, lookup_host};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::warn;
use xds::client::bootstrap::{ChannelCredentials, IdentityFiles, Server, TlsFiles};
use xds::client::{connect, connect_through};
use xds_store_server::{Connecting, PeerConnection, PeerConnector, PeersConfig};

use super::{count, time};
use crate::cli::store::bearer;
use crate::cli::store::place::Place;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct PeersOptions {
    /// Replicate the store with the node at this address: https://HOST:PORT of its admin port, or
    /// http://HOST:PORT without TLS; repeatable
    ///
    /// All nodes of a cluster may have the same list: a node that finds itself leaves that address out. A
    /// node serves what it has at once, and never waits for its peers. Stores in etcd do not replicate:
    /// their servers share one store.
    #[arg(long, value_name = "URL", requires = "store", value_parser = url)]
    peer: Vec<String>,
    /// Replicate the store with the nodes at all addresses of HOST: https://HOST:PORT or http://HOST:PORT,
    /// resolved every 30 s; repeatable
    #[arg(long, value_name = "URL", requires = "store", value_parser = url)]
    peer_dns: Vec<String>,
    #[command(flatten)]
    credentials: PeerCredentials,
    /// How often each peer is pulled from: a number with ms, s, m or h. After a commit, peers also pull at
    /// once
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pull_interval: Duration,
    /// How many commits of each node one pull takes
    #[arg(long, value_name = "COMMITS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pull_entries: u32,
    /// How many bytes one pull takes; a larger commit comes alone
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    pull_bytes: u32,
    /// How many peers have to have a commit durably before it is answered: `local` (none), `one_peer` or a
    /// number
    ///
    /// A commit that says a number itself has that one. If too few peers confirm within 5 s, the commit is
    /// answered with DEADLINE_EXCEEDED: it is committed at this node.
    #[arg(long, value_name = "PEERS", default_value = "local", value_parser = acks)]
    pub(super) ack: usize,
}

/// What this node presents to its peers (ST71).
#[derive(Debug, Default, Clone, Args)]
pub(in crate::cli) struct PeerCredentials {
    /// The certificate that this node presents to its peers (PEM); needs --peer-key
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// The certificates that peers are trusted by (PEM); default: those of the system
    #[arg(long, value_name = "FILE")]
    peer_ca: Option<PathBuf>,
    /// Tokens that this node presents to its peers: lines `URL TOKEN`, or one line `TOKEN` for all
    ///
    /// A token goes to another machine over TLS only. The file is read again for each connection.
    #[arg(long, value_name = "FILE")]
    peer_token_file: Option<PathBuf>,
}

/// Why the peers cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum PeersError {
    #[error(
        "--peer and --peer-dns are for a store in a folder: the servers of {place} share one store, and replicate nothing"
    )]
    Etcd { place: Place },
    #[error("--ack {acks} is more than the {peers} peers of --peer: no commit could be answered")]
    TooManyAcks { acks: usize, peers: usize },
}

impl PeersOptions {
    /// The settings; `None` without peers.
    pub(super) fn config(&self, place: &Place, runtime: &Handle) -> Result<Option<PeersConfig>, PeersError> {
        let peers = self.peer.len();
        if peers == 0 && self.peer_dns.is_empty() && self.ack == 0 {
            return Ok(None);
        }
        if matches!(place, Place::Etcd(_)) {
            return Err(PeersError::Etcd { place: place.clone() });
        }
        if self.peer_dns.is_empty() && self.ack > peers {
            return Err(PeersError::TooManyAcks { acks: self.ack, peers });
        }
        let connector = Arc::new(PeersConnector::new(self.credentials.clone()));
        let (sender, addresses) = watch::channel(self.peer.clone());
        if !self.peer_dns.is_empty() {
            let (names, listed) = (self.peer_dns.clone(), self.peer.clone());
            runtime.spawn(resolve(names, listed, Arc::clone(&connector), sender));
        }
        let mut config = PeersConfig::new(addresses, connector, runtime.clone());
        env!("CARGO_PKG_VERSION").clone_into(&mut config.build);
        config.pull_interval = self.pull_interval;
        config.pull_entries = self.pull_entries;
        config.pull_bytes = self.pull_bytes;
        Ok(Some(config))
    }
}

/// Connects to nodes with the files of the options.
#[derive(Debug)]
pub(in crate::cli) struct PeersConnector {
    credentials: PeerCredentials,
    /// Addresses that a name has: the URL of the name, and one of its sockets.
    resolved: Mutex<BTreeMap<String, (String, SocketAddr)>>,
}

impl PeersConnector {
    pub(in crate::cli) fn new(credentials: PeerCredentials) -> Self {
        Self { credentials, resolved: Mutex::default() }
    }
}

impl PeerConnector for PeersConnector {
    fn connect(&self, address: &str) -> Connecting {
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        let (url, socket) = match resolved {
            Some((url, socket)) => (url, Some(socket)),
            None => (address.to_owned(), None),
        };
        let credentials = self.credentials.clone();
        Box::pin(async move {
            let server = credentials.server(&url);
            let token = credentials.token(&url)?;
            let authorization = token.map(|token| bearer(&server, &token)).transpose();
            let authorization = authorization.map_err(|error| error.to_string())?;
            let channel = match socket {
                None => connect(&server).await,
                Some(socket) => {
                    let tcp =
                        move |_: &Server| -> xds::client::Pending<io::Result<Box<dyn xds::client::Io>>> {
                            Box::pin(async move { Ok(Box::new(TcpStream::connect(socket).await?) as _) })
                        };
                    connect_through(&server, Arc::new(tcp)).await
                }
            };
            Ok(PeerConnection { channel: channel.map_err(|error| error.to_string())?, authorization })
        })
    }
}

impl PeerCredentials {
    fn server(&self, url: &str) -> Server {
        if !is_https(url) {
            return Server::insecure(url);
        }
        let identity = self.peer_cert.clone().zip(self.peer_key.clone());
        let credentials = ChannelCredentials::Tls(TlsFiles {
            ca_certificate_file: self.peer_ca.clone(),
            identity: identity.map(|(certificate_file, private_key_file)| IdentityFiles {
                certificate_file,
                private_key_file,
            }),
            // The files are read for each connection.
            refresh_interval: Duration::MAX,
        });
        Server { credentials, ..Server::insecure(url) }
    }

    /// The token for a URL, if there is one.
    fn token(&self, url: &str) -> Result<Option<String>, String> {
        let Some(file) = &self.peer_token_file else { return Ok(None) };
        let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| in_file(&error))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut for_all = None;
        for line in lines {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [token] => for_all = Some(token.to_owned()),
                [of, token] if of == url => return Ok(Some(token.to_owned())),
                [_, _] => {}
                _ => return Err(in_file(&"a line has more than `URL TOKEN`")),
            }
        }
        Ok(for_all)
    }
}

/// The addresses that the names of `--peer-dns` had when they were resolved last.
#[derive(Debug, Default)]
struct KnownAddresses(BTreeMap<String, Vec<SocketAddr>>);

impl KnownAddresses {
    /// SR2: a name that cannot be resolved, or has no addresses, keeps those that it had.
    fn take(&mut self, name: &str, found: io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(found) if !found.is_empty() => drop(self.0.insert(name.to_owned(), found)),
            Ok(_) => warn!(name, "--peer-dns: the name has no addresses; those that it had stay in use"),
            Err(error) => {
                warn!(name, %error, "--peer-dns: cannot resolve the name; the addresses that it had stay in use");
            }
        }
    }

    /// A peer for each address: the URL of its name, and its socket.
    fn peers(&self) -> BTreeMap<String, (String, SocketAddr)> {
        let of_name = |(name, sockets): (&String, &Vec<SocketAddr>)| {
            let peer = |socket: &SocketAddr| (format!("{name} ({})", socket.ip()), (name.clone(), *socket));
            sockets.iter().map(peer).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_name).collect()
    }
}

/// Resolves the names until nobody needs the addresses.
async fn resolve(
    names: Vec<String>,
    listed: Vec<String>,
    connector: Arc<PeersConnector>,
    sender: watch::Sender<Vec<String>>,
) {
    let mut known = KnownAddresses::default();
    while !sender.is_closed() {
        for name in &names {
            known.take(name, lookup_host(authority(name)).await.map(Iterator::collect));
        }
        let resolved = known.peers();
        let mut addresses: Vec<_> = listed.iter().chain(resolved.keys()).cloned().collect();
        addresses.sort_unstable();
        *connector.resolved.lock().unwrap_or_else(PoisonError::into_inner) = resolved;
        sender.send_if_modified(|sent| {
            let is_new = *sent != addresses;
            *sent = addresses;
            is_new
        });
        tokio::time::sleep(RESOLVE_EVERY).await;
    }
}

/// HOST:PORT of a URL.
fn authority(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/')
}

fn is_https(url: &str) -> bool {
    url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

/// The URL of a node.
pub(in crate::cli) fn url(text: &str) -> Result<String, String> {
    let is_http = text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    if !is_http && !is_https(text) {
        return Err("write https://HOST:PORT, or http://HOST:PORT without TLS".to_owned());
    }
    PeerCredentials::default().server(text).endpoint().map_err(|error| error.to_string())?;
    Ok(text.trim_end_matches('/').to_owned())
}

fn acks(text: &str) -> Result<usize, String> {
    match text {
        "local" => Ok(0),
        "one_peer" => Ok(1),
        number => count(number).map_err(|_| "write `local`, `one_peer` or a number of peers".to_owned()),
    }
}

const RESOLVE_EVERY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sr2_a_peer_is_a_url_with_its_scheme() {
        assert_eq!(url("https://a.example:7000/").unwrap(), "https://a.example:7000");
        assert!(url("http://127.0.0.1:9001").is_ok());
        for wrong in ["a.example:7000", "ftp://a:1", "https://"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
        assert_eq!((acks("local"), acks("one_peer"), acks("3")), (Ok(0), Ok(1), Ok(3)));
        assert!(acks("all").is_err());
    }

    #[test]
    fn st71_a_peer_gets_the_token_of_its_line_or_the_one_for_all_and_the_certificate() {
        let file = std::env::temp_dir().join(format!("xds-peer-tokens-{}", std::process::id()));
        fs::write(&file, "# nodes\nhttps://b:1 for-b\nfor-all\nhttps://c:1 for-c\n").unwrap();
        let credentials = PeerCredentials {
            peer_cert: Some("cert".into()),
            peer_key: Some("key".into()),
            peer_ca: None,
            peer_token_file: Some(file.clone()),
        };
        let token = |url| credentials.token(url).unwrap();
        assert_eq!(
            ["https://b:1", "https://c:1", "https://d:1"].map(token),
            [Some("for-b".to_owned()), Some("for-c".to_owned()), Some("for-all".to_owned())]
        );
        let ChannelCredentials::Tls(files) = credentials.server("https://b:1").credentials else {
            panic!("https is TLS")
        };
        assert!(files.identity.is_some());
        // ST71 says nothing of plain text: there is no certificate then.
        assert_eq!(credentials.server("http://b:1").credentials, ChannelCredentials::Insecure);
        fs::write(&file, "https://b:1 for-b more\n").unwrap();
        assert!(credentials.token("https://b:1").unwrap_err().contains("a line has more than"));
        fs::remove_file(&file).unwrap();
        assert!(credentials.token("https://b:1").unwrap_err().contains("No such file"));
    }

    #[test]
    fn sr2_an_address_that_resolved_is_kept_while_its_name_stops_resolving_and_goes_when_it_changes() {
        let sockets = |hosts: &[&str]| -> Vec<SocketAddr> {
            hosts.iter().map(|host| format!("{host}:7000").parse().unwrap()).collect()
        };
        let url = |host: &str| format!("http://nodes.example:7000 ({host})");
        let mut known = KnownAddresses::default();
        let mut after = |found: io::Result<Vec<SocketAddr>>| {
            known.take("http://nodes.example:7000", found);
            known.peers().into_keys().collect::<Vec<_>>()
        };
        let fails = || Err(io::Error::other("SERVFAIL"));
        assert!(after(fails()).is_empty());
        let both = [url("10.0.0.1"), url("10.0.0.2")];
        assert_eq!(after(Ok(sockets(&["10.0.0.2", "10.0.0.1"]))), both);
        // Neither an outage of DNS nor an answer without addresses takes a peer away.
        assert_eq!(after(fails()), both);
        assert_eq!(after(Ok(Vec::new())), both);
        assert_eq!(after(fails()), both);
        // An answer replaces them: one node moved, and the other one is as before.
        assert_eq!(after(Ok(sockets(&["10.0.0.3", "10.0.0.1"]))), [url("10.0.0.1"), url("10.0.0.3")]);
        // Each name counts alone.
        known.take("http://others.example:1", Ok(vec!["10.1.0.1:1".parse().unwrap()]));
        known.take("http://nodes.example:7000", fails());
        let peers = known.peers();
        assert_eq!(peers.len(), 3);
        let moved = ("http://nodes.example:7000".to_owned(), "10.0.0.3:7000".parse().unwrap());
        assert_eq!(peers[&url("10.0.0.3")], moved);
    }

    #[tokio::test]
    async fn sr2_a_name_has_a_peer_for_each_address_and_one_that_never_resolved_has_none() {
        let connector = Arc::new(PeersConnector::new(PeerCredentials::default()));
        let (sender, mut addresses) = watch::channel(Vec::new());
        let names = vec!["http://localhost:9".to_owned(), "http://does-not-exist.invalid:9".to_owned()];
        let listed = vec!["http://127.0.0.1:1".to_owned()];
        tokio::spawn(resolve(names, listed, Arc::clone(&connector), sender));
        addresses.changed().await.unwrap();
        let found = addresses.borrow().clone();
        assert!(found.contains(&"http://127.0.0.1:1".to_owned()), "{found:?}");
        assert!(found.iter().any(|address| address.starts_with("http://localhost:9 (")), "{found:?}");
        assert!(!found.iter().any(|address| address.contains("invalid")), "{found:?}");
    }
}
