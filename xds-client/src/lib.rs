//! The xDS client: for programs that consume xDS, in SotW and delta, by name and by locator (TP2).
//!
//! A [`Client`] reads whom to ask from gRPC's [`bootstrap`] document, keeps one stream to each
//! server that is needed, and hands out watchers. A watcher is a stream of what changed, over a
//! slot that holds the newest state: one that looks rarely sees the newest, misses what lay
//! between, and delays nobody. All decisions are in the machine of [`xds_core::client`]; here are
//! connections, files and the typed edge.
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
//!         Event::Absent(why) => println!("there is none: {why}"),
//!         Event::Ambient(Some(error)) => println!("in use, but {error}"),
//!         Event::Ambient(None) => println!("all is well again"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Any message of prost that knows its name can be watched, those of the crate `envoy-types` among
//! them; for all else there are bytes ([`Client::watch_raw`]).
//!
//! | module | holds |
//! | --- | --- |
//! | `client` | [`Client`] and its settings |
//! | `watcher` | [`Watcher`], [`SetWatcher`] and what they tell |
//! | [`bootstrap`] | the bootstrap document: servers, node, authorities |
//! | [`last_good`] | the file that outlives the program |
//! | [`proxy`] | the upstream side of a caching proxy |
//! | `csds` | [`ClientStatus`]: what a client has, told to whoever asks by CSDS |
//! | `metrics` | [`Recorder`]: what is counted, after gRFC A78 |
//! | `prometheus` | a recorder for a registry of `prometheus-client`; needs the feature `prometheus` |
//! | `hub`, `slot` | the machine and those around it; where watchers look |
//! | `connection`, `transport`, `codec` | one server; how it is reached; messages as bytes |
//! | `owner` | the proxy that a client belongs to, as its client sees it |
//! | `persist` | writes the file |
//! | `trial` | clients of a proxy that try a response first |
#![forbid(unsafe_code)]

pub mod bootstrap;
mod client;
mod codec;
mod connection;
mod csds;
mod hub;
pub mod last_good;
mod metrics;
mod owner;
mod persist;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod proxy;
mod slot;
mod transport;
mod trial;
mod watcher;

pub use client::{Client, ClientBuilder, StartError, WatchError};
pub use csds::ClientStatus;
pub use metrics::Recorder;
pub use transport::{Connector, Credentials, Io, Pending};
pub use watcher::{Event, Payload, Raw, Resource, ResourceType, SetEvent, SetWatcher, Watcher};
pub use xds_core::client::{Code, Protocol, Report, ResourceFailure, ResourceStatus};
