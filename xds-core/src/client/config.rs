//! The servers of a client, the names that it requests from each, and its timeouts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::resource_state::ErrorPolicy;
use crate::cache::Cache;
use crate::constraint::Constraints;
use crate::parameters::Parameters;
use crate::protocol::Protocol;

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Its URI, by which errors name it.
    pub name: Arc<str>,
    /// Its variant of the protocol.
    pub protocol: Protocol,
    /// How to treat errors from it, by its features in the bootstrap file.
    pub errors: ErrorPolicy,
}

/// The servers for the names of one authority (C16).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthorityConfig {
    /// Indices into [`ClientConfig::servers`], the preferred server first (C15).
    pub servers: Vec<usize>,
    /// The parameters of watches that have none of their own (T40, X17).
    pub parameters: Parameters,
    /// Whether the servers support TP2, so that parameters are sent to them in locators. A server
    /// without TP2 would read a locator as a wildcard.
    pub speaks_locators: bool,
    /// Whether to use the next server when one cannot be reached, even if no resource is missing
    /// (P4.9).
    pub fallback_on_reachability_only: bool,
}

/// The settings of a client that belongs to a proxy. The proxy serves its own clients from the
/// cache.
#[derive(Debug, Clone)]
pub struct Relay {
    /// The cache that the client fills. Several clients may fill it, if no two of them have
    /// variants for the same parameters.
    pub cache: Arc<Cache>,
    /// The constraints of a resource that arrives without any. T43c: a server with TP2 marks a
    /// resource without constraints as valid for every client by `resource_name`. A resource under
    /// a plain name is valid only for the locator that was requested. Without a stamp the client
    /// leaves such a resource out, and lists it in [`Applied::plain`](super::Applied::plain).
    pub stamp: Option<Constraints>,
}

/// The configuration of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The encoded `envoy.config.core.v3.Node`, sent once per stream (S11).
    pub node: Bytes,
    /// All servers. A server of several authorities is listed once, and has one stream (C16).
    pub servers: Vec<ServerConfig>,
    /// The servers for old-style names.
    pub default_authority: AuthorityConfig,
    /// The servers for new-style names, by authority; an authority may be the empty string. If
    /// there are none, a [relay](Self::relay) uses the default authority for all names (X15).
    pub authorities: BTreeMap<String, AuthorityConfig>,
    /// How long to wait for a resource after subscribing to it; then it counts as absent (C5), and a
    /// glob or wildcard as unavailable. Default 15 s.
    pub resource_timeout: Duration,
    /// The same for servers whose silence does not mean absence
    /// ([`ErrorPolicy::resource_timer_is_transient_error`], C6). Default 30 s.
    pub transient_resource_timeout: Duration,
    /// Set for a client that belongs to a proxy. T44: the client then sends all names in locators
    /// to servers with TP2, also names without parameters. To other servers it sends plain names
    /// without parameters, which these servers take from the node. It accepts redirects like
    /// resources (X14).
    pub relay: Option<Relay>,
}

impl AuthorityConfig {
    /// Its servers, as bits.
    pub(super) fn mask(&self) -> u64 {
        self.servers.iter().fold(0, |mask, server| mask | 1 << server)
    }
}

impl ClientConfig {
    /// A client of one server, with default times.
    #[must_use]
    pub fn new(node: Bytes, server: ServerConfig) -> Self {
        Self {
            node,
            servers: vec![server],
            default_authority: AuthorityConfig { servers: vec![0], ..AuthorityConfig::default() },
            authorities: BTreeMap::new(),
            resource_timeout: Duration::from_secs(15),
            transient_resource_timeout: Duration::from_secs(30),
            relay: None,
        }
    }
}
