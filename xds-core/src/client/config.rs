//! Whom a client asks, for what names, and how long it waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::resource_state::ErrorPolicy;
use crate::cache::Cache;
use crate::constraint::Constraints;
use crate::parameters::Parameters;

/// Which form of the protocol a server is spoken to in. Both go over one aggregated stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world: each request names everything that is asked for. What every server
    /// speaks.
    #[default]
    Sotw,
    /// Delta: requests and responses say what changed, and the absence of a resource is told at
    /// once.
    Delta,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// What errors call it; its URI.
    pub name: Arc<str>,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// What its features say about errors.
    pub errors: ErrorPolicy,
}

/// Who is asked for the names of one authority (C16).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthorityConfig {
    /// Places in [`ClientConfig::servers`], the preferred one first (C15).
    pub servers: Vec<usize>,
    /// The parameters of what is watched without parameters of its own (T40, X17).
    pub parameters: Parameters,
    /// The servers speak TP2, so parameters go to them in locators. One that does not would read a
    /// locator as a wildcard.
    pub speaks_locators: bool,
    /// Go to the next server when one cannot be reached even though nothing is missing (P4.9).
    pub fallback_on_reachability_only: bool,
}

/// What a client does for a proxy, which serves from the cache what clients of its own ask for.
#[derive(Debug, Clone)]
pub struct Relay {
    /// Where everything goes. Several clients may fill it, as long as no two bring variants for the
    /// same parameters.
    pub cache: Arc<Cache>,
    /// Whom that is for which comes without constraints. T43c: a server that speaks TP2 says with
    /// `resource_name` that a resource without constraints is for everyone; what comes under a
    /// plain name is only for the locator that was asked for. Without a stamp such a resource is
    /// left out, and [told](super::Applied::plain).
    pub stamp: Option<Constraints>,
}

/// What a client is told at its start.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The encoded `envoy.config.core.v3.Node`, sent once per stream (S11).
    pub node: Bytes,
    /// All servers; one that stands for several authorities is there once, and has one stream
    /// (C16).
    pub servers: Vec<ServerConfig>,
    /// Who is asked for old-style names.
    pub default_authority: AuthorityConfig,
    /// Who is asked for new-style names, by their authority, which may be empty. When there is
    /// none, a [relay](Self::relay) asks the default authority for all of them (X15).
    pub authorities: BTreeMap<String, AuthorityConfig>,
    /// How long a resource that was asked for may stay unanswered before it counts as absent (C5).
    /// Default 15 s.
    pub resource_timeout: Duration,
    /// The same with servers whose silence says nothing (C6). Default 30 s.
    pub transient_resource_timeout: Duration,
    /// For a proxy. T44: then names go to servers that speak TP2 in locators always, those without
    /// parameters too, and to others by name whatever their parameters, which these have from the
    /// node. Redirects are taken like resources (X14).
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
