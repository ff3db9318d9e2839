//! How a proxy shares, and whom it asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::name::TypeUrl;

/// What a proxy is told at its start.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// What its upstreams understand.
    pub upstream: UpstreamKind,
    /// Authorities with servers of their own: no wildcard stands for their names (C16). Default:
    /// none.
    pub authorities: BTreeSet<String>,
    /// How variants are shared. Default: [`Sharing::Trust`].
    pub sharing: Sharing,
    /// The same for types where it differs.
    pub sharing_of: BTreeMap<TypeUrl, Sharing>,
    /// While nobody knows which keys the variants of a name tell apart: how long further locators
    /// of it wait for the first one's answer, which may be for them, too. Then as many more are
    /// asked as are unanswered, and the next wait is twice as long, and so on. Default 50 ms.
    pub coalesce: Duration,
    /// How long what nobody asks for any more stays subscribed upstream, a tenth more or less.
    /// Default 30 s.
    pub linger: Duration,
    /// Payloads that nobody asks for are kept up to this sum. Default 64 MiB. What is asked for is
    /// not bounded by it.
    pub linger_bytes: usize,
    /// After how long a type that is silent does not hold up the others (C5). Default 15 s.
    pub resource_timeout: Duration,
    /// Locators of one name that an upstream is asked for at most; further ones are refused, with
    /// what is at hand still served. Somebody may send what is unique to each client as a parameter
    /// that variants depend on. Default 10,000.
    pub upstream_subscriptions_limit: usize,
    /// How many clients are sent each new variant of a response of the shared upstream first; what
    /// one of them rejects is rejected upstream, and nobody else is sent it. Zero, the default,
    /// accepts what is valid at once. With delta only.
    pub canaries: usize,
    /// How long these may take. Default 5 s.
    pub canary_timeout: Duration,
}

/// What an upstream understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamKind {
    /// TP2: locators, and constraints with what it sends.
    Locators {
        /// The keys of the parameters that members of wildcards and globs depend on; `None`: nobody
        /// says, so each set of parameters is asked for by itself. A resource that is absent for
        /// one may exist for another, so this cannot be learnt.
        set_keys: Option<BTreeSet<Arc<str>>>,
    },
    /// Names only. What a client gets depends on these keys of its parameters, which the node of a
    /// stream says: there is one stream for each set of their values.
    Node {
        /// The keys.
        keys: BTreeSet<Arc<str>>,
    },
}

/// Whether a variant that came for one locator is served to others that its constraints match
/// (T43).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Yes: that is what constraints say.
    #[default]
    Trust,
    /// Yes, and one in so many is asked for upstream all the same. When that brings something else,
    /// variants overlap, which an upstream must not do: it is counted, and the name is not shared
    /// any more.
    Audit {
        /// Of how many hits one is asked for; at least 1.
        one_in: u32,
    },
    /// No: each locator is asked for.
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
        }
    }
}

impl ProxyConfig {
    pub(super) fn sharing(&self, type_url: &TypeUrl) -> Sharing {
        self.sharing_of.get(type_url).copied().unwrap_or(self.sharing)
    }
}
