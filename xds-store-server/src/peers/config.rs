//! The settings of a store that replicates.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// Settings of a store that replicates with peers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeersConfig {
    /// The addresses of the peers (SR2). They may change.
    pub addresses: watch::Receiver<Vec<String>>,
    /// Connects to them.
    pub connector: Arc<dyn PeerConnector>,
    /// Where the calls run.
    pub runtime: Handle,
    /// Where peers reach this node. Default: empty, which they need not know.
    pub address: String,
    /// The version of the program, for the status at peers.
    pub build: String,
    /// How often each peer is pulled from, give or take a tenth (SR10). Default 5 s.
    pub pull_interval: Duration,
    /// How many entries of each origin one call takes (SR12). Default 1,000.
    pub pull_entries: u32,
    /// How many bytes one call takes. Default 16 MiB.
    pub pull_bytes: u32,
    /// How often all records are compared with those of each peer, give or take a tenth (SR51). Default 24 h.
    pub compare_interval: Duration,
    /// How long a node that needs a snapshot waits for each part of it. Then it serves the records that it has,
    /// takes no commits, and goes on trying (SR23). Default 60 s.
    pub snapshot_patience: Duration,
}

impl PeersConfig {
    /// The defaults.
    #[must_use]
    pub fn new(
        addresses: watch::Receiver<Vec<String>>,
        connector: Arc<dyn PeerConnector>,
        runtime: Handle,
    ) -> Self {
        Self {
            addresses,
            connector,
            runtime,
            address: String::new(),
            build: String::new(),
            pull_interval: Duration::from_secs(5),
            pull_entries: 1_000,
            pull_bytes: 16 << 20,
            compare_interval: Duration::from_secs(24 * 3600),
            snapshot_patience: Duration::from_secs(60),
        }
    }
}

/// Connects to peers.
pub trait PeerConnector: Debug + Send + Sync {
    /// Opens a connection for all calls to an address. The store connects again after a failure, so files
    /// with keys and tokens are read again then. An error is one line for people.
    fn connect(&self, address: &str) -> Connecting;
}

/// The future of [`PeerConnector::connect`].
pub type Connecting = Pin<Box<dyn Future<Output = Result<PeerConnection, String>> + Send>>;

/// A connection to a peer.
#[derive(Debug, Clone)]
#[expect(clippy::exhaustive_structs, reason = "a connector makes it")]
pub struct PeerConnection {
    /// The connection.
    pub channel: Channel,
    /// What each call has as `authorization`.
    pub authorization: Option<MetadataValue<Ascii>>,
}
