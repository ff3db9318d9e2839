//! The settings of a running store, and why it does not start.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use xds_core::Cache;
use xds_store::commit::CommitLimits;
use xds_store::phase::Schemas;
use xds_store::rules::FieldSource;
use xds_store::store::LoadError;

use crate::peers::PeersConfig;
use crate::source::Refusal;

/// Settings of a running store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// What clients read. The store commits all of its records to it, and nothing before its own
    /// first commit (ST5). Default: a cache that nobody reads.
    pub cache: Arc<Cache>,
    /// How many commits may wait. More are refused. Default 1,000.
    pub queue_commits: usize,
    /// How many bytes of commits may wait. Default 64 MiB.
    pub queue_bytes: usize,
    /// What one commit may have.
    pub commit: CommitLimits,
    /// How long revisions are kept (ST44). Default 7 days.
    pub history: Duration,
    /// How many revisions are kept (ST44). Default 100,000.
    pub history_revisions: u64,
    /// How long deleted records are kept. Default 24 h.
    pub tombstones: Duration,
    /// How many deleted records are kept (SR25). Beyond, those that were deleted first go before their time, once no
    /// kept revision and no other node needs them. Default 100,000.
    pub tombstone_limit: usize,
    /// How long an owner that is a record may be missing (SG17). Default 5 minutes.
    pub owner_grace: Duration,
    /// How long a region keeps a name for a commit of another one that refers to it (SG31). Default 5 minutes.
    pub reference_block: Duration,
    /// The most bytes of a snapshot that this node takes of a peer (SR20). Default 4 GiB.
    pub snapshot_bytes: u64,
    /// The schema versions that this server knows (SV2). Default: all types are 1.0.
    pub schemas: Arc<Schemas>,
    /// Whether the server tells the other servers of the store that it is alive, and which plans it has
    /// (SV15). Default: no. Set it if the engine can have several servers.
    pub says_alive: bool,
    /// Finds the fields of types that reference rules name (SG11). Default: only the fields that the
    /// built-in table reads.
    pub fields: FieldSource,
    /// The nodes that this one replicates with. Default: none.
    pub peers: Option<PeersConfig>,
    /// The time between two compactions. Default 60 s. The first one runs at the start.
    pub compact_every: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            cache: Cache::new(),
            queue_commits: 1_000,
            queue_bytes: 64 << 20,
            commit: CommitLimits::default(),
            history: Duration::from_secs(7 * 24 * 3600),
            history_revisions: 100_000,
            tombstones: Duration::from_secs(24 * 3600),
            tombstone_limit: 100_000,
            owner_grace: Duration::from_secs(300),
            reference_block: Duration::from_secs(300),
            snapshot_bytes: 4 << 30,
            schemas: Arc::default(),
            says_alive: false,
            fields: FieldSource::default(),
            peers: None,
            compact_every: Duration::from_secs(60),
        }
    }
}

/// Why a store does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The engine has no store that this version can read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The cache refuses what the store has (ST18): nothing is served rather than a part.
    #[error("the cache refuses the records of the store: {0}")]
    Cache(#[from] Refusal),
}

/// Settings of the API.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApiConfig {
    /// How many watches may be open (ST42). Default 1,000.
    pub watches_limit: usize,
    /// The largest request, in bytes. Default 65 MiB: a commit of 64 MiB, and what is around it.
    pub request_bytes_limit: usize,
    /// The bytes of all requests that are being received. Default 256 MiB.
    pub received_bytes_limit: usize,
    /// How long a request may take to arrive. Default 60 s.
    pub request_timeout: Duration,
    /// How often the rights of a watch are checked again (ST53). Default 5 s.
    pub authorize_every: Duration,
    /// The name of the engine, for the status: `memory`, `redb` or `etcd`.
    pub engine: String,
    /// The version of the program, for the status.
    pub build: String,
    /// What the program adds to each status. Default: nothing.
    pub additions: StatusSource,
    /// How many peers have to have a commit durably before it is answered, unless the commit says a number
    /// (SR17). Default: none.
    pub ack_peers: usize,
    /// Whether commits may ask for a rollout, because the cache of the store is the source of
    /// `xds_server::Rollouts`. Default: no; such a commit is refused.
    pub rolls_out: bool,
    /// The streams of the xDS server. Default: there are none.
    pub streams: StreamsSource,
}

/// What a program knows of its store besides the store itself.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StatusAdditions {
    /// The bytes that the store takes on the disk; `None` if that is not known.
    pub size_bytes: Option<u64>,
    /// When the last backup was made; `None` if that is not known.
    pub last_backup_at: Option<SystemTime>,
    /// What an operator has to act on, besides the [`Alarm`](crate::Alarm) of the store (ST72). The
    /// status has one line of at most 1 KiB for each.
    pub alarms: Vec<String>,
}

/// Adds to the status what the store itself does not know.
#[derive(Clone, Default)]
pub struct StatusSource(Option<Arc<dyn Fn() -> StatusAdditions + Send + Sync>>);

impl StatusSource {
    /// Calls this function for each status, on a thread that may block.
    pub fn new(source: impl Fn() -> StatusAdditions + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(source)))
    }

    pub(crate) fn get(&self) -> StatusAdditions {
        self.0.as_ref().map(|source| source()).unwrap_or_default()
    }
}

/// Whether a resource is one in question: by its type, its name, and whether the stream subscribes to that name, and
/// not only to a wildcard or glob.
pub type ResourcePredicate = Box<dyn Fn(&str, &str, bool) -> bool + Send + Sync>;

/// Counts the streams that ask for some resources.
type CountStreams = dyn Fn(ResourcePredicate) -> Pin<Box<dyn Future<Output = u64> + Send>> + Send + Sync;

/// The streams of the xDS server of the program, by what they ask for (SV26).
#[derive(Clone, Default)]
pub struct StreamsSource(Option<Arc<CountStreams>>);

impl StreamsSource {
    /// Counts streams with this function: those that have such a resource or subscribe to it. A stream that cannot be
    /// asked counts, too.
    pub fn new<F: Future<Output = u64> + Send + 'static>(
        count: impl Fn(ResourcePredicate) -> F + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(move |names| Box::pin(count(names)))))
    }

    /// How many streams have such a resource or subscribe to it.
    pub(crate) async fn count(&self, is_it: ResourcePredicate) -> u64 {
        match &self.0 {
            Some(count) => count(is_it).await,
            None => 0,
        }
    }
}

impl fmt::Debug for StreamsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamsSource")
    }
}

impl fmt::Debug for StatusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusSource")
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            watches_limit: 1_000,
            request_bytes_limit: 65 << 20,
            received_bytes_limit: 256 << 20,
            request_timeout: Duration::from_secs(60),
            authorize_every: Duration::from_secs(5),
            engine: String::new(),
            build: String::new(),
            additions: StatusSource::default(),
            ack_peers: 0,
            rolls_out: false,
            streams: StreamsSource::default(),
        }
    }
}
