//! What the protocol says of the types it names, as data.

use xds_proto::type_url as url;

/// How one type of resource is served (S21, S25, S26, S33).
///
/// A type outside the table is served by [`KnownType::UNKNOWN`]; no code asks for a type by name.
#[derive(Debug, Clone, Copy)]
pub struct KnownType {
    /// The type URL; empty in [`KnownType::UNKNOWN`].
    pub type_url: &'static str,
    /// A SotW response holds every resource of the subscription, and leaving one out deletes it
    /// (S25).
    pub full_state: bool,
    /// A first request without names asks for everything (S19, S21).
    pub legacy_wildcard: bool,
    /// There is no SotW method for it, so it is served in delta only (G5).
    pub delta_only: bool,
    /// In SotW its resources may have a TTL. Not endpoints: when theirs ends, Envoy 1.40 dies
    /// (S40b).
    pub ttl_in_sotw: bool,
    /// In delta a resource without content extends its TTL (D26). Of virtual hosts it says that an
    /// alias resolves to nothing (D24).
    pub heartbeats: bool,
    /// Field 1 of the payload is the resource's name (A).
    pub payload_is_named: bool,
    /// Place in the order in which the types of one change are sent (S33).
    pub rank: u8,
    /// Additions and changes wait until the client has ACKed these types (S33: make before break).
    pub waits_for: &'static [&'static str],
    /// The types whose resources name resources of this one. A removal waits until the client has
    /// ACKed those that named the resource, which is held in the meantime (S33: removals last).
    pub referrers: &'static [&'static str],
}

impl KnownType {
    /// A type that the table does not name.
    pub const UNKNOWN: Self = Self {
        type_url: "",
        full_state: false,
        legacy_wildcard: true,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: false,
        rank: u8::MAX,
        waits_for: &[],
        referrers: &[],
    };

    /// The row of a type.
    #[must_use]
    pub fn of(type_url: &str) -> &'static Self {
        KNOWN_TYPES.iter().find(|row| row.type_url == type_url).unwrap_or(&Self::UNKNOWN)
    }
}

/// The rows, in the order of S33; SDS goes before LDS because a listener may need a secret.
static KNOWN_TYPES: [KnownType; 10] = [
    KnownType {
        type_url: url::CLUSTER,
        full_state: true,
        legacy_wildcard: true,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 0,
        waits_for: &[],
        referrers: &[
            url::LISTENER,
            url::ROUTE_CONFIGURATION,
            url::SCOPED_ROUTE_CONFIGURATION,
            url::VIRTUAL_HOST,
            url::TYPED_EXTENSION_CONFIG,
        ],
    },
    KnownType {
        type_url: url::CLUSTER_LOAD_ASSIGNMENT,
        full_state: false,
        legacy_wildcard: false,
        delta_only: false,
        ttl_in_sotw: false,
        heartbeats: true,
        payload_is_named: true,
        rank: 1,
        waits_for: &[],
        referrers: &[url::CLUSTER],
    },
    KnownType {
        type_url: url::LB_ENDPOINT,
        full_state: false,
        legacy_wildcard: false,
        delta_only: true,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: false,
        rank: 2,
        waits_for: &[],
        referrers: &[url::CLUSTER_LOAD_ASSIGNMENT],
    },
    KnownType {
        type_url: url::SECRET,
        full_state: false,
        legacy_wildcard: false,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 3,
        waits_for: &[],
        referrers: &[url::CLUSTER, url::LISTENER, url::TYPED_EXTENSION_CONFIG],
    },
    KnownType {
        type_url: url::LISTENER,
        full_state: true,
        legacy_wildcard: true,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 4,
        waits_for: &[url::CLUSTER, url::CLUSTER_LOAD_ASSIGNMENT],
        referrers: &[],
    },
    KnownType {
        type_url: url::ROUTE_CONFIGURATION,
        full_state: false,
        legacy_wildcard: false,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 5,
        waits_for: &[url::CLUSTER, url::CLUSTER_LOAD_ASSIGNMENT],
        referrers: &[url::LISTENER, url::SCOPED_ROUTE_CONFIGURATION],
    },
    KnownType {
        type_url: url::SCOPED_ROUTE_CONFIGURATION,
        full_state: true,
        legacy_wildcard: true,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 6,
        waits_for: &[],
        referrers: &[url::LISTENER],
    },
    KnownType {
        type_url: url::VIRTUAL_HOST,
        full_state: false,
        legacy_wildcard: false,
        delta_only: true,
        ttl_in_sotw: true,
        heartbeats: false,
        payload_is_named: true,
        rank: 7,
        waits_for: &[url::CLUSTER, url::CLUSTER_LOAD_ASSIGNMENT],
        referrers: &[url::LISTENER, url::ROUTE_CONFIGURATION, url::SCOPED_ROUTE_CONFIGURATION],
    },
    KnownType {
        type_url: url::RUNTIME,
        full_state: false,
        legacy_wildcard: false,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 8,
        waits_for: &[],
        referrers: &[],
    },
    KnownType {
        type_url: url::TYPED_EXTENSION_CONFIG,
        full_state: false,
        legacy_wildcard: false,
        delta_only: false,
        ttl_in_sotw: true,
        heartbeats: true,
        payload_is_named: true,
        rank: 9,
        waits_for: &[],
        referrers: &[url::CLUSTER, url::LISTENER, url::ROUTE_CONFIGURATION],
    },
];
