//! The xDS client: for programs that consume xDS, in SotW and delta, by name and by locator (TP2).
//!
//! A [`Client`] reads its servers from the [`bootstrap`] document of gRPC. It keeps one stream to
//! each server that it needs, and returns watchers. A watcher is a stream of changes over a slot
//! with the newest state. A watcher that is polled rarely sees the newest state, misses the states
//! in between, and delays no other watcher. All decisions are in the machine of
//! [`xds_core::client`]. This crate has the connections, the files and the typed API.
//!
//! ```no_run
//! # #[derive(Clone, PartialEq, prost::Message)]
//! # struct Cluster {}
//! # impl prost::Name for Cluster {
//! #     const NAME: &'static str = "Cluster";
//! #     const PACKAGE: &'static str = "envoy.config.cluster.v3";
//! # }
//! use xds_client::{Client, Event, bootstrap::Bootstrap};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::start(Bootstrap::from_env()?)?;
//! let mut cluster = client.watch::<Cluster>("checkout")?;
//! while let Some(event) = cluster.next().await {
//!     match event {
//!         Event::Changed(cluster) => println!("version {}: {:?}", cluster.version(), *cluster),
//!         Event::Absent(why) => println!("absent: {why}"),
//!         Event::Ambient(Some(error)) => println!("still in use, but {error}"),
//!         Event::Ambient(None) => println!("the error is over"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A watcher can have any prost message type that knows its name, such as those of the crate
//! `envoy-types`. For other types there is [`Client::watch_raw`], which returns bytes.
//!
//! | module | holds |
//! | --- | --- |
//! | `client` | [`Client`] and its settings |
//! | `watcher` | [`Watcher`], [`SetWatcher`] and their events |
//! | [`bootstrap`] | the bootstrap document: servers, node, authorities |
//! | [`last_good`] | the last-known-good file, for starts without a server |
//! | [`proxy`] | the upstream side of a caching proxy |
//! | `csds` | [`ClientStatus`]: a CSDS service that reports the resources of clients |
//! | `channel` | [`connect`](connect()): a connection for other services of a server |
//! | `inspect` | [`inspect`](inspect()): what the clients of a server have, by its CSDS |
//! | `metrics` | [`Recorder`]: receives the metrics of gRFC A78 |
//! | `prometheus` | a recorder for a registry of `prometheus-client`; needs the feature `prometheus` |
//! | `hub`, `slot` | what watchers and connections share; the newest state for watchers |
//! | `connection`, `transport`, `codec` | the stream to one server; connections, TLS and credentials; messages as bytes |
//! | `owner` | what owns the machine of a client: the client itself, or its proxy |
//! | `persist` | writes the last-known-good file |
//! | `trial` | waits for the clients of a proxy that try a response first |
#![forbid(unsafe_code)]

pub mod bootstrap;
mod channel;
mod client;
mod codec;
mod connection;
mod csds;
mod hub;
mod inspect;
pub mod last_good;
mod metrics;
mod owner;
mod persist;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod proxy;
mod refused_types;
mod slot;
mod transport;
mod trial;
mod watcher;

pub use channel::{ConnectError, connect, connect_through};
pub use client::{Client, ClientBuilder, ServerState, StartError, WatchError};
pub use csds::ClientStatus;
pub use hub::ServerFailure;
pub use inspect::{InspectError, inspect};
pub use metrics::Recorder;
pub use transport::{Connector, Credentials, Io, Pending};
pub use watcher::{Event, Resource, SetEvent, SetWatcher, Watcher};
pub use xds_core::client::health;
pub use xds_core::client::{CachedResource, ReadError, ReadGuard, ReadRoute, Resources};
pub use xds_core::client::{Code, Protocol, Report, ResourceFailure, ResourceStatus};
pub use xds_core::{Parameters, Payload, Raw, ResourceType};
