//! Serves a cache over gRPC: the aggregated discovery service and all per-type services, in SotW
//! and delta.
//!
//! All decisions are in the machines of [`xds_core::server`]. This crate has the drivers: one task
//! per stream. The task gives requests to its machine. When the transport has room, the task asks
//! the machine for the next response, and gives shared bytes to the transport. TLS needs the
//! feature `tls`. A program can also bring its own [connections](Server::serve_with_incoming). REST
//! needs the descriptors of all types, so another crate adds it as [routes](Server::with_routes) on
//! the same port.
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
//! | `service` | the gRPC paths and their services; the server as a whole |
//! | `config` | limits, timeouts and hooks of a server |
//! | `driver` | one task per stream |
//! | `node_parameters` | the parameters of clients that send none |
//! | `client_groups` | which streams belong to one client |
//! | [`skim`] | reads requests and decodes only what changed |
//! | `stream_registry` | all open streams, and how to ask each for a report |
//! | `csds` | the CSDS service: the resources of each client, and whether it ACKed them |
//! | `client_list` | the connected clients, for programs |
//! | `delivery` | waits until clients have ACKed a commit |
//! | `protocol` | SotW or delta |
//! | `readiness` | gRPC health: whether the server can serve clients |
//! | `observe` | events of streams, for metrics and programs |
//! | `spans` | commits and their ACKs as `tracing` spans |
//! | `metrics` | metrics for Prometheus, with the feature `prometheus` |
//! | `follow` | follows each commit until the affected streams have answered |
//! | `rollouts` | carries what a source commits to the clients step by step |
//! | `rejections` | which variants clients rejected |
//! | `repeat_log`, `nack_log`, `handshake_log`, `line_times` | repeated events as few log lines |
//! | `authorize`, `peer` | what a client may read; the address and certificate of its connection |
//! | `connections`, `tls` | accepts connections, TLS handshakes, limits and timeouts, GOAWAY |
//! | `listen` | opens ports with a long accept queue |
//! | `requests` | cuts request messages out of the bytes of the transport |
//! | `responses` | responses as slices of shared memory |
//! | `timed_writes` | ends a connection whose peer reads nothing |
#![forbid(unsafe_code)]

mod authorize;
mod client_groups;
mod client_list;
mod config;
mod connections;
mod csds;
mod delivery;
mod driver;
mod follow;
mod handshake_log;
mod line_times;
mod listen;
#[cfg(feature = "prometheus")]
pub mod metrics;
mod nack_log;
mod node_parameters;
mod observe;
mod peer;
mod readiness;
mod rejections;
mod repeat_log;
mod requests;
mod responses;
mod rollouts;
mod service;
pub mod skim;
mod spans;
mod stream_registry;
mod timed_writes;
#[cfg(feature = "tls")]
mod tls;

pub use authorize::{Authorizer, Denied};
pub use client_list::{ClientList, ClientStream, ConnectedClient};
pub use config::ServerConfig;
pub use delivery::applied;
pub use listen::listen;
pub use node_parameters::{NodeParameters, ParameterFunction};
pub use observe::{ConnectionEnd, Event, HandshakeFailure, Observer};
pub use peer::{Identity, Peer};
pub use readiness::Readiness;
pub use rejections::{RejectedVariant, Rejections};
pub use rollouts::{RefusedRollout, RolloutStatus, Rollouts, RunningRollout};
pub use service::{ServeError, Server, Stopping};
pub use spans::{TARGET as TRACE_TARGET, trace_commits};
pub use stream_registry::{LastNack, ResponseCounts, StandingNack};
pub use timed_writes::TimedWrites;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError, TlsFiles};
pub use tonic::transport::server::Connected;
pub use xds_core::server::Protocol;
pub use xds_file::{Reading, Refusal, Reloads};
pub use xds_proto::envoy::config::core::v3::Node;
