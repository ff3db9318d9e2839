//! Runs a durable store: a thread that owns the engine and the machine of [`xds_store`].
//!
//! [`StoreHandle::start`] loads the store and starts the thread. All clones of the handle send
//! their commits to it. Readers take views of the engine and never wait for a commit. The rules
//! (ST) are in `docs/store-rules.md` of the repository.
//!
//! ```
//! use xds_proto::xds::store::v1 as proto;
//! use xds_store::commit::Draft;
//! use xds_store::engine::{Engine, MemoryEngine};
//! use xds_store::store::{Identity, Store};
//! use xds_store_server::{StoreConfig, StoreHandle};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut engine = MemoryEngine::default();
//! engine.commit(&Store::init(&Identity::default()))?;
//! let store = StoreHandle::start(Box::new(engine), StoreConfig::default())?;
//!
//! let request = proto::CommitRequest { message: "the first commit".into(), ..Default::default() };
//! let draft = Draft::parse(request, "token:me".into()).expect("it is well-formed");
//! let committed = store.commit(draft).await.expect("the store accepts it");
//! assert_eq!(committed.revision, 1);
//! store.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `api` | the gRPC services, and the check of identities before them |
//! | `access`, `tokens` | who calls, and what that client may do |
//! | `service`, `maintenance` | the services Store and Maintenance |
//! | `reading`, `listing`, `watching`, `referring` | reads, lists, watches and references of a running store |
//! | `status` | refusals with typed details |
//! | `config` | the settings of a running store |
//! | `handle` | the handle of a running store |
//! | `startup` | plans that run to their end before the store is served |
//! | `writer` | the thread that judges and writes commits |
//! | `peers` | the nodes that a store replicates with: settings, and what an operator sees |
//! | `replication`, `peer_service` | calls to peers, and the service Peer |
//! | `source` | feeds the cache that clients read |
//! | `queue` | the commits that wait for the thread, and their limits |
//! | `spans` | spans of migrations for traces |
//! | `standing` | the condition of the store |
//! | `alarm` | why it accepts no commits although it runs |
//! | `statistics` | counts and times of commits |
#![forbid(unsafe_code)]

pub use access::{
    AccessControl, ApiClient, ClientCertificate, Replicate, Rights, StoreAuthorizer, TOKEN_PREFIX,
};
pub use alarm::Alarm;
pub use api::StoreApi;
pub use config::{
    ApiConfig, ResourcePredicate, StartError, StatusAdditions, StatusSource, StoreConfig, StreamsSource,
};
pub use handle::StoreHandle;
pub use peers::{Connecting, PeerConnection, PeerConnector, PeersConfig, PeersStatus};
pub use queue::{Acked, Acks};
pub use source::Refusal;
pub use standing::{Condition, Standing};
pub use startup::RunError;
pub use statistics::{Stage, Statistics, Times};
pub use tokens::{TokenFileError, Tokens};

mod access;
mod alarm;
mod api;
mod config;
mod handle;
mod listing;
mod maintenance;
mod migration;
mod peer_service;
mod peers;
mod queue;
mod reading;
mod referring;
mod replication;
mod service;
mod source;
mod spans;
mod standing;
mod startup;
mod statistics;
mod status;
mod tokens;
mod watches;
mod watching;
mod writer;
