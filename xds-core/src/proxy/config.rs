//! The settings of a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::name::TypeUrl;

/// The settings of a proxy.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// What its upstreams understand.
    pub upstream: UpstreamKind,
    /// Authorities with servers of their own. Wildcards do not cover their names (C16). Default:
    /// none.
    pub authorities: BTreeSet<String>,
    /// Whether a variant is served to all clients that its constraints match. Default:
    /// [`Sharing::Trust`].
    pub sharing: Sharing,
    /// The same for single types, where it differs.
    pub sharing_of: BTreeMap<TypeUrl, Sharing>,
    /// How long further locators of a name wait for the response to the first one, which may match
    /// them too, while no variant of the name is known. Then as many more subscribe as have no
    /// response, the next wait is twice as long, and so on. Default 50 ms.
    pub coalesce: Duration,
    /// How long an upstream subscription without a downstream subscription stays, a tenth more or
    /// less, if it has a resource. One for which there is no resource ends at once. Default 30 s.
    pub linger: Duration,
    /// Bytes that such subscriptions keep, at most: their payloads, and 2 KiB for each. Default 64 MiB.
    /// Payloads with a downstream subscription do not count.
    pub linger_bytes: usize,
    /// How long a type may stay without a response before it no longer delays the others (C5).
    /// Default 15 s.
    pub resource_timeout: Duration,
    /// Upstream subscriptions of one name, at most. Further locators get an error, and cached
    /// variants that match them are still served. Clients may send a value that is unique to each
    /// of them, in a key that constraints name. Default 10,000.
    pub upstream_subscriptions_limit: usize,
    /// Upstream subscriptions of one type on one stream, at most; below the limit of the control plane, which
    /// ends the stream of all clients. Further ones get an error until others end. Default 190,000: `xds serve`
    /// allows 200,000.
    pub upstream_names_limit: usize,
    /// Types on one stream, at most; the same for types. Default 60: `xds serve` allows 64.
    pub upstream_types_limit: usize,
    /// Upstream streams, at most, for [nodes](UpstreamKind::Node) and for resources that are not shared (T43c).
    /// Clients choose the parameters, and each set of them has a stream. What needs one more gets an error until
    /// others end. Default 19,000: `xds serve` allows 20,000 on a connection.
    pub upstream_streams_limit: usize,
    /// How many clients are sent each new variant of a response of the shared upstream first. If
    /// one of them rejects it, the proxy rejects it upstream and sends it to no other client. Zero,
    /// the default, accepts valid responses at once. With delta only.
    pub canaries: usize,
    /// How long these clients may take to answer. Default 5 s.
    pub canary_timeout: Duration,
}

/// What an upstream understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamKind {
    /// TP2: it understands locators, and sends constraints.
    Locators {
        /// The keys that members of wildcards and globs depend on. `None`: no keys are declared, so
        /// each set of parameters has its own subscription. The proxy cannot learn the keys: a
        /// resource that is absent for one set may exist for another.
        set_keys: Option<BTreeSet<Arc<str>>>,
    },
    /// Names only. What a client gets depends on these keys of its parameters, which the proxy
    /// writes into the node of a stream. There is one stream for each set of their values.
    Node {
        /// The keys.
        keys: BTreeSet<Arc<str>>,
    },
}

/// Whether a variant that came for one locator is served to all other locators that its constraints
/// match (T43).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Yes, as the constraints say.
    #[default]
    Trust,
    /// Yes, and the proxy also subscribes upstream for one hit in so many. If the response has
    /// another variant, variants overlap, which an upstream must not send. The proxy counts it, and
    /// does not share the name any more.
    Audit {
        /// The number of hits for one audit; at least 1.
        one_in: u32,
    },
    /// No: each locator has its own upstream subscription.
    Off,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            upstream: UpstreamKind::Locators { set_keys: None },
            authorities: BTreeSet::new(),
            sharing: Sharing::default(),
            sharing_of: BTreeMap::new(),
            coalesce: Duration::from_millis(50),
            canaries: 0,
            canary_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(30),
            linger_bytes: 64 << 20,
            resource_timeout: Duration::from_secs(15),
            upstream_subscriptions_limit: 10_000,
            upstream_names_limit: 190_000,
            upstream_types_limit: 60,
            upstream_streams_limit: 19_000,
        }
    }
}

impl ProxyConfig {
    pub(super) fn sharing(&self, type_url: &TypeUrl) -> Sharing {
        self.sharing_of.get(type_url).copied().unwrap_or(self.sharing)
    }
}
