//! How streams behave.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::known_type::KnownType;
use crate::name::TypeUrl;

/// How patient a stream is, and what it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long newer content of a type waits for the ACK of the response before it (S9b). Default
    /// 1 s.
    pub ack_wait: Duration,
    /// How long names that came with a stale nonce wait for an occasion to be answered (S8).
    /// Default 2 s, well below the 15 s after which clients give up (C5).
    pub owed_wait: Duration,
    /// How long routes and listeners wait for the ACK of the clusters sent before them (S33).
    /// Default 16 s: Envoy ACKs a cluster without endpoints after its own 15 s. A type that is
    /// unanswered for so long no longer counts, until the client answers again (S33b).
    pub order_wait: Duration,
    /// How long a removal waits where no ACK can tell that the resource is out of use (S33).
    /// Default 5 s.
    pub removal_grace: Duration,
    /// Names of one type on one stream, those of locators and wildcards included (G9). Default
    /// 200,000.
    pub names_limit: usize,
    /// Parameters of one locator (G9). Default 256.
    pub parameters_limit: usize,
    /// Types on one aggregated stream (G9). Default 64.
    pub types_limit: usize,
    /// How long names wait for the first commit before the client is told that nobody knows yet
    /// (G13): a resource error `UNAVAILABLE`, on which it keeps what it has. Default 10 s, below
    /// the 15 s after which clients give up (C5).
    pub sync_wait: Duration,
    /// Whether a SotW stream tells by resource errors, `NOT_FOUND`, which routes, endpoints and the
    /// like do not exist (S37); only clients with gRFC A88 make use of it. Default: it does not,
    /// and they wait (S17).
    pub sotw_not_found: bool,
    /// How types are served, where that is not what [`TypeConfig::of`] says.
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
    /// What the protocol and this configuration say of a type.
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

/// How one type is served. The registry of types is open: a type that nobody declared is served as
/// well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeConfig {
    /// In SotW every response holds all resources of the subscription, and what is missing is
    /// deleted (S25).
    pub full_state: bool,
    /// A first request without names asks for everything (S21).
    pub legacy_wildcard: bool,
    /// In SotW its resources may have a TTL (S40b). Default: all types but endpoints.
    pub ttl_in_sotw: bool,
    /// Whether it is served at all.
    pub serving: Serving,
}

impl TypeConfig {
    /// The defaults of a type: those of the protocol for the types it names, and for all others a
    /// legacy wildcard and responses in part.
    #[must_use]
    pub fn of(type_url: &str) -> Self {
        let KnownType { full_state, legacy_wildcard, ttl_in_sotw, .. } = *KnownType::of(type_url);
        Self { full_state, legacy_wildcard, ttl_in_sotw, serving: Serving::Served }
    }
}

/// What who asks for a type gets (G4).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// Its resources; that there are none is an answer like any other.
    #[default]
    Served,
    /// A resource error `UNIMPLEMENTED` for each name: the client keeps what it has, and the stream
    /// goes on.
    NotServed,
    /// The end of its stream.
    Refused,
}
