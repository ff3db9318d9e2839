//! How the protocol serves the types that it names, as data.

use xds_proto::type_url as url;

/// How one type of resource is served (S21, S25, S26, S33).
///
/// [`KnownType::UNKNOWN`] applies to a type outside the table. Code that serves resources uses this
/// table and does not compare the names of types.
#[derive(Debug, Clone, Copy)]
pub struct KnownType {
    /// The type URL; empty in [`KnownType::UNKNOWN`].
    pub type_url: &'static str,
    /// Whether a SotW response must have every resource of the subscription. The client then
    /// deletes a resource that the response leaves out (S25).
    pub full_state: bool,
    /// Whether a first request without names subscribes to everything (S19, S21).
    pub legacy_wildcard: bool,
    /// Whether the type has no SotW method, so that it is served in delta only (G5).
    pub delta_only: bool,
    /// Whether its resources may have a TTL in SotW. Endpoints may not: Envoy 1.40 crashes when
    /// their TTL ends (S40b).
    pub ttl_in_sotw: bool,
    /// Whether a resource without content extends its TTL in delta (D26). For virtual hosts such a
    /// resource means that an alias resolves to nothing (D24).
    pub heartbeats: bool,
    /// Whether field 1 of the payload is the name of the resource (A).
    pub payload_is_named: bool,
    /// The position of the type when a change of several types is sent (S33).
    pub rank: u8,
    /// Additions and changes wait until the client has ACKed these types (S33: make before break).
    pub waits_for: &'static [&'static str],
    /// The types whose resources name resources of this type. The removal of a resource is withheld
    /// until the client has ACKed the changes of the resources that named it (S33: removals last).
    /// A config source names no resource, so scopes and virtual hosts have no referrers.
    pub referrers: &'static [&'static str],
    /// Whether resources of the type can exclude each other, so that one may be rejected until
    /// another one is gone.
    pub conflicts: bool,
    /// Whether a client may ACK a content that it rejected before, though it still does not use it. Envoy
    /// remembers the hash of a secret before it uses it, and does not look at the same secret again.
    pub acks_repeats: bool,
}

impl KnownType {
    /// The row for a type that is not in the table.
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
        conflicts: false,
        acks_repeats: false,
    };

    /// How many types are in the table.
    pub(crate) const COUNT: usize = 10;

    /// Whether the table has the type.
    pub(crate) fn is_known(type_url: &str) -> bool {
        !Self::of(type_url).type_url.is_empty()
    }

    /// The row of a type.
    #[must_use]
    pub fn of(type_url: &str) -> &'static Self {
        KNOWN_TYPES.iter().find(|row| row.type_url == type_url).unwrap_or(&Self::UNKNOWN)
    }

    /// The row with this rank, which must exist.
    pub(crate) fn of_rank(rank: u8) -> &'static Self {
        &KNOWN_TYPES[usize::from(rank)]
    }
}

/// The rows, each at the index of its rank, in the order of S33. SDS comes before LDS because a
/// listener may need a secret.
static KNOWN_TYPES: [KnownType; KnownType::COUNT] = [
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
        conflicts: false,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: true,
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
        // Envoy refuses a second listener with the address of another one.
        conflicts: true,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: false,
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
        referrers: &[],
        // Envoy refuses a second scope with the key of another one.
        conflicts: true,
        acks_repeats: false,
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
        referrers: &[],
        // Envoy refuses a second virtual host of a route configuration with a domain of another one.
        conflicts: true,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: false,
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
        conflicts: false,
        acks_repeats: false,
    },
];
