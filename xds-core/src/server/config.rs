//! The configuration of streams.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::known_type::KnownType;
use crate::name::TypeUrl;

/// The times and limits of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long newer content of a type waits for the ACK of the response before it (S9b). Default
    /// 1 s.
    pub ack_wait: Duration,
    /// How long names that came with a stale nonce wait for another response of their type before
    /// they are answered (S8). Default 2 s, well below the 15 s after which clients give up (C5).
    pub owed_wait: Duration,
    /// How long routes and listeners wait for the ACK of the clusters that were sent before them
    /// (S33). Default 16 s: Envoy ACKs a cluster without endpoints after its own 15 s. Other types
    /// do not wait for a type that was unanswered for so long, until the client answers again
    /// (S33b).
    pub order_wait: Duration,
    /// How long a removal waits when no ACK can show that the resource is no longer used (S33).
    /// Default 5 s.
    pub removal_grace: Duration,
    /// The limit of names of one type on one stream, including those of locators and wildcards
    /// (G9). Default 200,000.
    pub names_limit: usize,
    /// The limit of parameters of one locator (G9). Default 256.
    pub parameters_limit: usize,
    /// The limit of types on one aggregated stream (G9). Default 64.
    pub types_limit: usize,
    /// How long names wait for the first commit, before the client gets a resource error
    /// `UNAVAILABLE` (G13); it keeps what it has. Default 10 s, below the 15 s after which clients
    /// give up (C5).
    pub sync_wait: Duration,
    /// Whether a SotW stream sends resource errors, `NOT_FOUND`, for names that do not exist (S37).
    /// Only clients with gRFC A88 use them. Default: no errors, and clients wait (S17).
    pub sotw_not_found: bool,
    /// How types are served, for types that differ from [`TypeConfig::of`].
    pub types: BTreeMap<TypeUrl, TypeConfig>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            ack_wait: Duration::from_secs(1),
            owed_wait: Duration::from_secs(2),
            order_wait: Duration::from_secs(16),
            removal_grace: Duration::from_secs(5),
            names_limit: 200_000,
            parameters_limit: 256,
            types_limit: 64,
            sync_wait: Duration::from_secs(10),
            sotw_not_found: false,
            types: BTreeMap::new(),
        }
    }
}

impl StreamConfig {
    /// The properties of a type in the protocol and in this configuration.
    pub(super) fn type_of(&self, type_url: &TypeUrl) -> (KnownType, Serving) {
        let known = *KnownType::of(type_url.as_str());
        match self.types.get(type_url) {
            None => (known, Serving::Served),
            Some(&TypeConfig { full_state, legacy_wildcard, ttl_in_sotw, serving }) => {
                (KnownType { full_state, legacy_wildcard, ttl_in_sotw, ..known }, serving)
            }
        }
    }
}

/// How one type is served. A type that is in no table is served as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeConfig {
    /// In SotW every response has all resources of the subscription, and clients delete resources
    /// that it does not have (S25).
    pub full_state: bool,
    /// A first request without names subscribes to everything (S21).
    pub legacy_wildcard: bool,
    /// In SotW its resources may have a TTL (S40b). Default: all types but endpoints.
    pub ttl_in_sotw: bool,
    /// Whether it is served at all.
    pub serving: Serving,
}

impl TypeConfig {
    /// The defaults of a type: those of the protocol for the types that it names; for all other
    /// types a legacy wildcard, and responses with some of the resources.
    #[must_use]
    pub fn of(type_url: &str) -> Self {
        let KnownType { full_state, legacy_wildcard, ttl_in_sotw, .. } = *KnownType::of(type_url);
        Self { full_state, legacy_wildcard, ttl_in_sotw, serving: Serving::Served }
    }
}

/// What a client that requests a type gets (G4).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// Its resources; an empty response is possible too.
    #[default]
    Served,
    /// A resource error `UNIMPLEMENTED` for each name. The client keeps what it has, and the stream
    /// goes on.
    NotServed,
    /// The end of its stream.
    Refused,
}
