//! The caching proxy: many clients in front of few subscriptions upstream, every variant shared by
//! those it is for.
//!
//! Clients are streams of a cache [on demand](Cache::on_demand). What they ask for, a [`Proxy`]
//! asks of its upstreams: each is a [`Client`](crate::client::Client) that fills the same cache.
//! Nothing is copied from one to the other. What the proxy decides is who is asked for what, and
//! which locators are answered:
//!
//! - a *want* is a locator that streams ask for, to the letter;
//! - a *question* is a locator that an upstream is asked for. Wants rely on questions: on their
//!   own, or on that of another want that brought a variant which is for them, too (T43). Only what
//!   constraints say decides that.
//!
//! Variants are kept with their constraints, and each stream selects by them (T42).
//!
//! It holds no socket, task or clock, and does not own the clients: it is told what became of them
//! ([`on_effects`](Proxy::on_effects)), and gives its orders to each when asked
//! ([`apply_orders`](Proxy::apply_orders)).
//!
//! | module | holds |
//! | --- | --- |
//! | `config` | how it shares, whom it asks |
//! | `route` | on which stream upstream a question goes |
//! | `name` | what is wanted and asked of one name |
//! | `pairing` | which want relies on which question |
//! | `orders` | orders, and what becomes of them |
//! | `set` | wildcards and globs, as a file for the next start keeps them |
//! | `stream_state` | which types each stream is asked for |
//! | `linger` | questions that nobody relies on any more |
//! | `trial` | responses that a few clients try first |
//! | [`health`] | how each type stands with its upstream |
//! | [`view`] | the same for readers in this process: a generation at a time, types that are rejected not at all |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Cache, ClientName, OnDemandSubscription, OnDemandSubscriptions};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;
use crate::subscription::ExcludedAuthorities;

use linger::Idle;
use name::{DownstreamSubscription, Name};
use orders::UpstreamClient;
use set::RestoredSets;
use trial::ResponseTrial;

pub use config::{ProxyConfig, Sharing, UpstreamKind};
pub use route::Route;
pub use set::{SetChange, SetId};

#[cfg(test)]
mod authority_tests;
#[cfg(test)]
mod bound_tests;
mod config;
#[cfg(test)]
mod fixture;
pub mod health;
mod linger;
#[cfg(test)]
mod migration_tests;
mod name;
mod orders;
#[cfg(test)]
mod outage_tests;
mod pairing;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod removals_tests;
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
pub mod view;

/// Decides what is asked of upstreams, and which of its clients that answers.
#[derive(Debug)]
pub struct Proxy {
    config: ProxyConfig,
    cache: Arc<Cache>,
    subscriptions: OnDemandSubscriptions,
    names: BTreeMap<Key, Name>,
    upstreams: BTreeMap<Route, UpstreamClient>,
    /// When a name has to be looked at again.
    timers: BTreeSet<(Duration, Key)>,
    /// Questions that nobody relies on, and how many bytes of payload they keep.
    idle: BTreeMap<Idle, usize>,
    idle_bytes: usize,
    /// Wildcards and globs that were complete in an earlier life.
    restored: RestoredSets,
    set_changes: Vec<SetChange>,
    /// Clients that are not needed any more.
    unneeded: Vec<Route>,
    notices: Vec<Notice>,
    counts: ProxyCounts,
    /// Orders the wants and questions by age.
    last_number: u64,
    trial: Option<ResponseTrial>,
    /// Names of variants that were tried and taken back, to be looked at again.
    taken_back: BTreeSet<Key>,
}

/// A name of one type.
type Key = (TypeUrl, ResourceName);

/// What a proxy did since its start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Wants that a variant was at hand for.
    pub hits: u64,
    /// Questions that were asked upstream.
    pub misses: u64,
    /// Wants that waited for the question of another.
    pub joined: u64,
    /// Wants that lost a shared variant and were looked at again (T43).
    pub requalified: u64,
    /// Variants that gave way to others that overlap them (T34): an upstream broke a rule, or
    /// changed keys.
    pub replaced: u64,
    /// Names that came without saying whom they are for (T43c), or must not be kept, and are asked
    /// for by each locator alone.
    pub unshared: u64,
    /// Hits that were asked for all the same, to see whether the upstream agrees.
    pub audited: u64,
    /// Of these, where it did not: its variants overlap. The name is no longer shared.
    pub disagreed: u64,
    /// Wants that were refused, as their name has too many questions already.
    pub refused: u64,
    /// Responses that a few clients tried first.
    pub tried: u64,
    /// Of these, those that one of them rejected.
    pub refused_by_clients: u64,
}

impl Proxy {
    /// A proxy that nobody asks anything yet.
    #[must_use]
    pub fn new(config: ProxyConfig) -> Self {
        let cache = Cache::on_demand_excluding(ExcludedAuthorities::new(config.authorities.clone()));
        let subscriptions = cache.on_demand_subscriptions().expect("it is on demand");
        Self {
            config,
            cache,
            subscriptions,
            names: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            timers: BTreeSet::new(),
            idle: BTreeMap::new(),
            idle_bytes: 0,
            restored: RestoredSets::default(),
            set_changes: Vec::new(),
            unneeded: Vec::new(),
            notices: Vec::new(),
            counts: ProxyCounts::default(),
            last_number: 0,
            trial: None,
            taken_back: BTreeSet::new(),
        }
    }

    /// Where its clients are served from, and its upstreams bring everything to.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// What its streams ask for changed, as [`OnDemandSubscriptions::changed`] says of the cache.
    pub fn on_demand(&mut self, now: Duration) {
        let mut touched = BTreeSet::new();
        for OnDemandSubscription { type_url, locator, streams } in self.subscriptions.take() {
            let key = (type_url, locator.name);
            let number = self.next_number();
            let name = self.names.entry(key.clone()).or_default();
            let downstream = name.downstream.entry(locator.parameters.clone());
            let downstream = downstream.or_insert_with(|| DownstreamSubscription::new(number));
            let is_new = downstream.streams == 0;
            downstream.streams = streams;
            let is_done = match (is_new, streams) {
                (_, 0) => self.unsubscribe(&key, &locator.parameters),
                (true, _) => self.share(now, &key, &locator.parameters),
                (false, _) => true,
            };
            if !is_done && let Some(name) = self.names.get_mut(&key) {
                let number = name.downstream[&locator.parameters].number;
                name.to_match.insert(number, locator.parameters);
                touched.insert(key);
            }
        }
        self.match_names(now, touched);
    }

    /// When to call [`on_timeout`](Self::on_timeout).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.health_deadline()).min()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Duration) {
        let mut due = self.health_timeout(now);
        while let Some((at, _)) = self.timers.first()
            && *at <= now
        {
            let Some((_, key)) = self.timers.pop_first() else { break };
            let name = self.names.get_mut(&key);
            let later = name.and_then(|name| name.match_overdue(now, self.config.coalesce));
            self.timers.extend(later.map(|at| (at, key.clone())));
            due.insert(key);
        }
        self.match_names(now, due);
    }

    /// What happened since the last call that somebody should know.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// What became of wildcards and globs since the last call. To be taken after each
    /// [`apply_orders`](Self::apply_orders) and [`on_effects`](Self::on_effects), before the client of any
    /// route changes again.
    pub fn take_set_changes(&mut self) -> Vec<SetChange> {
        std::mem::take(&mut self.set_changes)
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> ProxyCounts {
        self.counts
    }

    /// How many locators its streams ask for, and how many its upstreams are asked for.
    #[must_use]
    pub fn load(&self) -> ProxyLoad {
        let mut load = ProxyLoad::default();
        for name in self.names.values() {
            load.downstream += name.downstream.len();
            load.upstream += name.upstream.len();
        }
        load
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// Something that operators should know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// T43c: the upstream did not say whom a resource is for, or that nobody may keep it; each
    /// locator is asked for alone.
    Unshared {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
    },
    /// The upstream has another variant than one at hand that matches as well; the name is not
    /// shared any more.
    Overlapping {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: ResourceName,
    },
    /// A client that tried a response rejected it; nobody else is sent what it brought.
    Refused {
        /// What it brought.
        variants: Vec<VariantId>,
        /// The client.
        client: ClientName,
        /// Its own words.
        detail: Arc<str>,
    },
    /// The types of a main stream stand otherwise than before.
    Health {
        /// Whose stream it is.
        route: Route,
        /// What changed.
        event: health::Event,
    },
}

/// What a proxy has to do at the moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ProxyLoad {
    /// Locators that streams ask for, each once.
    pub downstream: usize,
    /// Locators that upstreams are asked for.
    pub upstream: usize,
}
