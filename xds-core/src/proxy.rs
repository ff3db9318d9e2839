//! The caching proxy: it serves many clients from few upstream subscriptions. All clients that a
//! variant matches share it.
//!
//! Clients are streams of a cache [on demand](Cache::on_demand). A [`Proxy`] subscribes upstream to
//! the locators that these streams subscribe to. Each upstream is a
//! [`Client`](crate::client::Client) that fills the same cache, so nothing is copied. The proxy
//! decides which upstream subscriptions it needs, and which locators have a response:
//!
//! - a *downstream subscription* is a locator that streams subscribe to, with all its parameters. The cache reports one
//!   of those with equal values of the keys that constraints use, because the same variant matches them all. It reports
//!   the others when the response is absence (T35) or late, and for names and types that are not shared;
//! - an *upstream subscription* is a locator that the proxy subscribes to. Each downstream
//!   subscription relies on an upstream subscription: on its own, or on that of another downstream
//!   subscription which brought a variant that matches both (T43). Only constraints decide that.
//!
//! Variants stay in the cache with their constraints, and each stream selects by constraints (T42).
//!
//! A proxy has no socket, task or clock. It owns its clients, one for each [`Route`]. The caller
//! gives it their events ([`change`](Proxy::change)), and connects those that
//! [changed](Proxy::take_changed).
//!
//! | module | holds |
//! | --- | --- |
//! | `config` | settings: how variants are shared, and what upstreams understand |
//! | `route` | the stream that an upstream subscription uses |
//! | `room` | what is subscribed to on one stream, at most |
//! | `name` | the downstream and upstream subscriptions of one name |
//! | `parameter_table` | numbers for the parameters of downstream subscriptions |
//! | `pairing` | which upstream subscription each downstream subscription relies on |
//! | `upstreams` | the clients: their watches, and the effects of their events |
//! | `set` | wildcards and globs in the file for the next start |
//! | `stream_state` | the streams of a route, and the types that each of them subscribes to |
//! | `linger` | upstream subscriptions that no downstream subscription relies on |
//! | `trial` | responses that a few clients try first |
//! | `local` | subscriptions of the program itself |
//! | [`view`] | reads of the cache in the process, by generation, without rejected types |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Cache, ClientName, OnDemandSubscription, OnDemandSubscriptions};
use crate::client::{ClientConfig, health};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;
use crate::subscription::ExcludedAuthorities;

use linger::IdleSubscriptions;
use name::Names;
use parameter_table::ParameterTable;
use room::WithoutRoom;
use route::Authorities;
use set::Sets;
use trial::ResponseTrial;
use upstreams::{NewClients, Pending, UpstreamClient};
use view::View;

pub use config::{ProxyConfig, Sharing, UpstreamKind};
pub use local::{LocalStream, LocalSubscription, SubscribeError};
pub use route::{Route, RouteKind};
pub use set::{SetChange, SetId};

#[cfg(test)]
mod authority_tests;
#[cfg(test)]
mod bound_tests;
mod config;
#[cfg(test)]
mod fixture;
mod linger;
mod local;
#[cfg(test)]
mod local_tests;
#[cfg(test)]
mod migration_tests;
mod name;
#[cfg(test)]
mod outage_tests;
mod pairing;
mod parameter_table;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod refused_later_tests;
#[cfg(test)]
mod removals_tests;
mod room;
mod route;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod scripted;
mod set;
#[cfg(test)]
mod sets_tests;
mod stream_state;
#[cfg(test)]
mod stream_state_tests;
#[cfg(test)]
mod subscriptions_tests;
#[cfg(test)]
mod tests;
mod trial;
#[cfg(test)]
mod trial_tests;
mod upstreams;
pub mod view;
#[cfg(test)]
mod virtual_hosts_tests;
#[cfg(test)]
mod wildcard_tests;

/// Decides which upstream subscriptions a proxy needs, and which downstream subscriptions they
/// serve.
#[derive(Debug)]
pub struct Proxy {
    config: ProxyConfig,
    cache: Arc<Cache>,
    subscriptions: OnDemandSubscriptions,
    names: Names,
    parameters: ParameterTable,
    authorities: Authorities,
    upstreams: BTreeMap<Route, UpstreamClient>,
    /// Upstream subscriptions whose stream would be one too many.
    without_stream: WithoutRoom,
    new_clients: NewClients,
    /// When to match the subscriptions of a name again.
    timers: BTreeSet<(Duration, Key)>,
    idle: IdleSubscriptions,
    sets: Sets,
    pending: Pending,
    notices: Vec<Notice>,
    counts: ProxyCounts,
    trial: Option<ResponseTrial>,
}

/// A name of one type.
type Key = (TypeUrl, ResourceName);

/// What a proxy did since its start. Of downstream subscriptions with equal values of the keys that constraints use, it
/// counts one, and more where it has to look at more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Downstream subscriptions that a cached variant matched.
    pub hits: u64,
    /// Upstream subscriptions that the proxy made.
    pub misses: u64,
    /// Downstream subscriptions that waited for the response to another one's upstream
    /// subscription.
    pub joined: u64,
    /// Downstream subscriptions that lost a shared variant and were matched again (T43).
    pub requalified: u64,
    /// Variants that were replaced by others that overlap them (T34): the upstream broke a rule, or
    /// changed the keys of the constraints.
    pub replaced: u64,
    /// Names of resources that came without constraints (T43c) or with `do_not_cache`. The proxy
    /// subscribes to them once for each locator.
    pub unshared: u64,
    /// Hits for which the proxy subscribed upstream all the same, to compare (audit).
    pub audited: u64,
    /// Audits that found variants which overlap. These names are not shared any more.
    pub disagreed: u64,
    /// Downstream subscriptions without an upstream subscription, because their name has too many.
    pub refused: u64,
    /// Responses that a few clients tried first.
    pub tried: u64,
    /// Of these, the responses that one of these clients rejected.
    pub refused_by_clients: u64,
}

impl Proxy {
    /// A proxy without subscriptions. `clients` returns the configuration of the client of a route,
    /// without the [relay](ClientConfig::relay), which the proxy sets.
    #[must_use]
    pub fn new(
        config: ProxyConfig,
        clients: impl Fn(&Route) -> ClientConfig + Send + Sync + 'static,
    ) -> Self {
        let cache = Cache::on_demand_in_groups(ExcludedAuthorities::new(config.authorities.clone()));
        let subscriptions = cache.on_demand_subscriptions().expect("the cache is on demand");
        Self {
            authorities: Authorities::new(&clients(&Route::SHARED)),
            config,
            cache,
            subscriptions,
            names: Names::default(),
            parameters: ParameterTable::default(),
            upstreams: BTreeMap::new(),
            without_stream: WithoutRoom::default(),
            new_clients: NewClients::new(clients),
            timers: BTreeSet::new(),
            idle: IdleSubscriptions::default(),
            sets: Sets::default(),
            pending: Pending::default(),
            notices: Vec::new(),
            counts: ProxyCounts::default(),
            trial: None,
        }
    }

    /// The cache that its clients are served from and its upstreams fill.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The [authorities](Route::authority) of its shared clients, each for other servers.
    #[must_use]
    pub fn authorities(&self) -> BTreeSet<Option<Arc<str>>> {
        self.authorities.all()
    }

    /// The [authority](Route::authority) of the shared client that subscribes to the names of an authority; `None`
    /// if no servers are configured for it (X15).
    #[must_use]
    pub fn authority_of(&self, authority: &str) -> Option<Option<Arc<str>>> {
        self.authorities.of_authority(authority)
    }

    /// A view of what the shared client of an [authority](Route::authority) brings.
    #[must_use]
    pub fn view(&self, authority: &Option<Arc<str>>) -> View {
        let view = View::of(&self.cache, self.authorities.names_of(authority));
        let route = Route { authority: authority.clone(), kind: RouteKind::Shared };
        self.health(&route).into_iter().for_each(|health| view.follow(health));
        view
    }

    /// Takes changed subscriptions of its streams, of which each has its turn, and not too many at once:
    /// a client may change very many, and others wait meanwhile. To be called when
    /// [`OnDemandSubscriptions::changed`] is ready.
    pub fn on_demand(&mut self, now: Duration) {
        let snapshot = self.cache.snapshot();
        for OnDemandSubscription { type_url, locator, streams } in self.subscriptions.take_some(TURN) {
            let key = (type_url, locator.name);
            if streams == 0 {
                if !self.unsubscribe(&key, &locator.parameters) {
                    self.pending.touched.insert(key);
                }
                continue;
            }
            // An audit looks at hits of clients whose parameters differ in any key.
            let others = match self.config.sharing(&key.0) {
                Sharing::Trust => Vec::new(),
                Sharing::Audit { .. } | Sharing::Off => self.list_all(&key, &locator.parameters),
            };
            for parameters in std::iter::once(locator.parameters).chain(others) {
                if !self.subscribe(now, &key, &parameters, &snapshot) {
                    self.pending.touched.insert(key.clone());
                }
            }
        }
        self.finish(now);
    }

    /// When to call [`on_timeout`](Self::on_timeout).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let of_names = self.timers.first().map(|(at, _)| *at);
        of_names.into_iter().chain(self.idle_deadline()).chain(self.health_deadline()).min()
    }

    /// Handles the timers that are due.
    pub fn on_timeout(&mut self, now: Duration) {
        self.health_timeout(now);
        for _ in 0..TURN {
            if self.timers.first().is_none_or(|(at, _)| *at > now) {
                break;
            }
            let Some((_, key)) = self.timers.pop_first() else { break };
            let later = self.match_overdue(now, &key);
            self.timers.extend(later.map(|at| (at, key.clone())));
            self.pending.touched.insert(key);
        }
        self.idle_timeout(now, TURN);
        self.finish(now);
    }

    /// Events since the last call that operators should know.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Changes of wildcards and globs since the last call. To be called after each event, before
    /// the client of any route changes again.
    pub fn take_set_changes(&mut self) -> Vec<SetChange> {
        std::mem::take(&mut self.sets.changes)
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> ProxyCounts {
        self.counts
    }

    /// The number of downstream and of upstream subscriptions at the moment.
    #[must_use]
    pub fn load(&self) -> ProxyLoad {
        let upstream = self.names.iter().map(|(_, name)| name.upstream.len()).sum();
        ProxyLoad { downstream: self.subscriptions.locators(), upstream }
    }
}

/// How many subscriptions, or timers, one event handles at most. What is left is handled by the next event,
/// which is due at once.
const TURN: usize = 1_000;

/// An event that operators should know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// T43c: a resource came without constraints, or with `do_not_cache`. The proxy subscribes to
    /// the name once for each locator.
    Unshared {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
    },
    /// The upstream sent a variant that matches the same parameters as a cached one. The name is
    /// not shared any more.
    Overlapping {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
    },
    /// A client rejected a response that it tried first. No other client is sent its variants.
    Refused {
        /// The variants of the response.
        variants: Vec<VariantId>,
        /// The client.
        client: ClientName,
        /// The message of its NACK.
        detail: Arc<str>,
    },
    /// A type of a main stream has another state than before.
    Health {
        /// The route of the stream.
        route: Route,
        /// What changed.
        event: health::Event,
    },
}

/// The present subscriptions of a proxy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ProxyLoad {
    /// Locators that streams subscribe to, each counted once.
    pub downstream: usize,
    /// Locators that the proxy subscribes to upstream.
    pub upstream: usize,
}
