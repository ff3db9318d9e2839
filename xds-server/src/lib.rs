//! Serves the cache over gRPC: the aggregated and every per-type discovery service, SotW and delta.
//!
//! All decisions are in the machines of [`xds_core::server`]. Here are the drivers: a task per
//! stream that hands frames to its machine, asks it for the next response when the transport has
//! room, and gives the transport shared bytes. TLS is there with the feature `tls`;
//! [connections](Server::serve_with_incoming) may also come from elsewhere. REST, which needs
//! descriptors of all types, comes from outside as [routes](Server::with_routes) on the same port.
//!
//! ```no_run
//! use tokio::net::TcpListener;
//! use xds_core::Cache;
//! use xds_server::Server;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Cache::new();
//! // Commit to the cache from anywhere, before or while it is served.
//! let listener = TcpListener::bind("127.0.0.1:18000").await?;
//! let interrupted = async { _ = tokio::signal::ctrl_c().await };
//! Server::new(cache).serve(listener, interrupted).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `service` | which path is which service, and the server as a whole |
//! | `config` | what a server accepts of whom, and how patient it is |
//! | `driver` | one task per stream |
//! | `clients` | which streams belong to one client |
//! | [`skim`] | requests read without decoding what is not needed |
//! | `csds`, `roster` | what each client has and said about it (CSDS), asked of the streams |
//! | `client_list` | the same for programs: who is connected |
//! | `delivery` | waiting until clients have taken a commit |
//! | `protocol` | which protocol a stream speaks |
//! | `observe` | what happens on streams, for whoever counts it |
//! | `spans` | commits and the answers to them, for those who trace |
//! | `metrics` | what Prometheus scrapes, with feature `prometheus` |
//! | `follow` | commits, to the answers of those whom they concern |
//! | `rejections` | which variants clients reject |
//! | `authorize`, `peer` | who may read what, and who that is as far as the connection shows it |
//! | `connections`, `tls` | connections accepted, greeted and asked to leave in time, with limits and times for hostile ones |
//! | `listen` | ports, with room for a storm of clients |
//! | `requests` | requests cut out of what the transport brings |
//! | `frame` | responses as slices of shared memory |
#![forbid(unsafe_code)]

mod authorize;
mod client_list;
mod client_groups;
mod config;
mod connections;
mod csds;
mod delivery;
mod driver;
mod follow;
mod responses;
mod listen;
#[cfg(feature = "prometheus")]
pub mod metrics;
mod observe;
mod peer;
mod protocol;
mod rejections;
mod repeat_log;
mod requests;
mod stream_registry;
mod service;
pub mod skim;
mod spans;
mod timed_writes;
#[cfg(feature = "tls")]
mod tls;

pub use authorize::{Authorizer, Denied};
pub use client_list::{ClientList, ClientStream, ConnectedClient};
pub use config::ServerConfig;
pub use delivery::applied;
pub use listen::listen;
pub use observe::{ConnectionEnd, Event, Observer};
pub use peer::{Identity, Peer};
pub use protocol::Protocol;
pub use rejections::{RejectedVariant, Rejections};
pub use roster::{LastNack, ResponseCounts};
pub use service::{ServeError, Server, Stopping};
pub use spans::{TARGET as TRACE_TARGET, trace_commits};
pub use timed_writes::TimedWrites;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError, TlsFiles};
pub use tonic::transport::server::Connected;
pub use xds_file::{Reading, Reloads};
