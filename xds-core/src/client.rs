//! The client side of xDS: watches, subscriptions, requests, and the resources that servers send.
//!
//! A [`Client`] is a state machine without sockets, tasks or a clock. Its events are watches,
//! connections, responses and time. It returns the requests to send and the watches whose view
//! changed. It stores the resources that servers send in one [`Cache`], by name and constraints. A
//! watcher reads a [`ResourceView`]: the variant that matches its parameters, and errors.
//!
//! Nothing is queued for a watcher. The client reports *that* a view changed ([`Touched`]), and the
//! caller reads the newest view. So a slow watcher delays no other.
//!
//! The states of one server, and the calls that change them:
//!
//! ```text
//!            connect_at          on_open                     on_response (any number)
//!   away ------------------> connecting -----> open -------------------------------------+
//!    ^                            |             | next_request (until it returns `None`) |
//!    |          on_end            |   on_end    | <--------------------------------------+
//!    +----------------------------+-------------+
//! ```
//!
//! ```
//! use std::time::Duration;
//! use xds_core::client::{Client, ClientConfig, Protocol, ServerConfig};
//!
//! let server = ServerConfig { name: "origin".into(), protocol: Protocol::Delta, errors: Default::default() };
//! let mut client = Client::new(ClientConfig::new(bytes::Bytes::new(), server));
//! let watch = client.on_watch(&"example.com/acme.Thing".into(), "a", None)?;
//! assert!(client.view(watch).copy.is_none());
//!
//! // The caller connects, and takes the requests to send.
//! assert_eq!(client.connect_at(0), Some(Duration::ZERO));
//! client.on_connecting(0);
//! client.on_open(Duration::ZERO, 0);
//! assert!(client.next_request(Duration::ZERO, 0).is_some(), "it subscribes to a");
//! assert!(client.next_request(Duration::ZERO, 0).is_none());
//!
//! // C5: without a response, a timer makes the resource absent.
//! assert_eq!(client.next_deadline(), Some(Duration::from_secs(15)));
//! assert_eq!(client.on_timeout(Duration::from_secs(15)).touched.len(), 1);
//! # Ok::<(), xds_core::client::WatchError>(())
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `store`, `watched_type` | all types; one type: its watches, names, variants and aliases |
//! | `resource_state` | the state of one watched resource, and how each event changes it (gRFC A88) |
//! | `resource_failure`, `accepted` | the errors and the variants that watchers see |
//! | `entries` | adding and removing watches |
//! | `servers`, `upstream`, `authority` | all servers; one server and its stream; the servers that an authority uses |
//! | `fallback` | when an authority uses its next server, and what its watchers see during an outage |
//! | [`health`] | the state of each type on one server |
//! | `refused_types` | types that a server does not serve |
//! | `timers` | what happens as time passes |
//! | `requests` | subscriptions, ACKs and NACKs on the wire |
//! | `read` | [`ReadGuard`]: reads of one type from the cache |
//! | `received`, `rejection` | a response as read from the wire; the reasons to reject parts of it |
//! | `apply` | validates a response and applies it to the cache and to the watches |
//! | `cache_changes` | commits a response to the cache, without the variants that overlap others |
//! | `preview` | a response that some clients of a proxy try before it is applied |
//! | `restore` | resources from an earlier run of the program |
//! | `effects`, `report` | the effects of one event; the state of everything that is watched |

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::cache::Cache;
use crate::matching::KeySetRule;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
pub use crate::protocol::Protocol;
use crate::resource::VariantId;
use crate::subscription::is_set;
use crate::xdstp::XdstpName;

use health::{Health, Status};
use resource_state::ResourceState;
use servers::Servers;
use store::Store;
use timers::Timers;
use upstream::Phase;
use watched_type::{WatchEntry, entry_number};

pub use crate::code::Code;
pub use accepted::{Accepted, Decode};
pub use config::{AuthorityConfig, ClientConfig, Relay, ServerConfig};
pub use effects::{Applied, Effects, Touched};
pub use read::{CachedResource, ReadError, ReadGuard, ReadRoute, Resources};
pub(crate) use read::{GenerationReaders, ReadLimits, Routes, ServedNames, readable};
pub use received::Unreadable;
pub use rejection::{Reason, Rejection};
pub use report::Report;
pub use resource_failure::ResourceFailure;
pub use resource_state::{ErrorPolicy, ResourceStatus, ResourceView};
pub use restore::Restored;

mod accepted;
mod apply;
mod authority;
mod cache_changes;
mod config;
mod effects;
mod entries;
mod fallback;
#[cfg(test)]
pub(crate) mod fixture;
pub mod health;
mod preview;
mod read;
mod received;
mod refused_types;
mod rejection;
mod report;
mod requests;
mod resource_failure;
mod resource_state;
mod restore;
mod servers;
mod store;
mod timers;
mod upstream;
mod watched_type;

#[cfg(test)]
mod delta_tests;
#[cfg(test)]
mod errors_tests;
#[cfg(test)]
mod fallback_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod refused_types_tests;
#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod sotw_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod timers_tests;
#[cfg(test)]
mod variants_tests;

/// A client of xDS servers, for as many types and names as the program watches.
pub struct Client {
    /// The encoded node, sent in the first request of each stream (S11).
    node: Bytes,
    servers: Servers,
    store: Store,
    /// After [`ClientConfig::resource_timeout`] (C5), and after
    /// [`ClientConfig::transient_resource_timeout`] (C6).
    timers: [Timers; 2],
    /// The settings of a client that belongs to a proxy.
    relay: Option<Relay>,
    /// While clients of a proxy try a response of this server: the subscriptions that the server was
    /// sent after it made the response. An absence in the response does not count for them (T35).
    late: Option<(usize, BTreeSet<WatchId>)>,
}

/// How a stream, or an attempt to open one, ended.
#[derive(Debug, Clone, Default)]
pub struct StreamEnd<'a> {
    /// The status that the server sent, if it sent one.
    pub status: Option<Status>,
    /// The reason for people: it becomes part of the error that watchers see.
    pub reason: &'a str,
    /// A random number, for the backoff (C7).
    pub jitter: u32,
}

/// One watch. All watchers of the same type, name and parameters share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId {
    of_type: u32,
    entry: u32,
}

/// Why something cannot be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// W2, X6: no resource of the type can have the name.
    #[error("{} {name:?} cannot be watched: {reason}", type_url.message_name())]
    Name {
        /// The type.
        type_url: TypeUrl,
        /// The name.
        name: String,
        /// Why no resource can have it.
        reason: Box<Reason>,
    },
    /// X15: no servers are configured for the authority of the name.
    #[error("{name:?}: the configuration has no servers for the authority {authority:?}")]
    UnknownAuthority {
        /// The name.
        name: ResourceName,
        /// Its authority.
        authority: String,
    },
    /// W2: a key of the parameters has a control character, so no constraints can name it.
    #[error("the parameter {key:?} has a control character in its key")]
    InvalidKey {
        /// The key.
        key: Arc<str>,
    },
    /// The servers are not configured to support TP2. A server without TP2 would read a locator as
    /// a wildcard.
    #[error(
        "{name:?} cannot be watched with {parameters}: its servers are not configured to support locators"
    )]
    NoLocators {
        /// The name.
        name: ResourceName,
        /// The parameters.
        parameters: Parameters,
    },
}

impl<'a> StreamEnd<'a> {
    /// An end without a status of the server.
    #[must_use]
    pub const fn lost(reason: &'a str, jitter: u32) -> Self {
        Self { status: None, reason, jitter }
    }
}

impl Client {
    /// A client without watches. It has its own cache, unless it belongs to a proxy (a
    /// [relay](ClientConfig::relay)).
    ///
    /// # Panics
    /// With more than [`SERVERS_LIMIT`] servers.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        assert!(config.servers.len() <= SERVERS_LIMIT, "more than {SERVERS_LIMIT} servers");
        let health = || config.relay.is_none().then(|| Health::new(config.resource_timeout));
        let (servers, authority_numbers) =
            Servers::new(config.servers, health, config.default_authority, config.authorities);
        // T34: while a server changes the keys of a name, variants with the old keys and variants
        // with the new keys may be in the cache together.
        let cache = match &config.relay {
            Some(relay) => Arc::clone(&relay.cache),
            None => Cache::with_key_sets(KeySetRule::Free),
        };
        Self {
            node: config.node,
            servers,
            store: Store::new(cache, authority_numbers),
            timers: [config.resource_timeout, config.transient_resource_timeout].map(Timers::new),
            relay: config.relay,
            late: None,
        }
    }

    /// Whether there are no watches, no server has a subscription, and no resource is left in the
    /// cache from this client.
    pub(crate) fn is_idle(&self) -> bool {
        self.store.types.iter().all(|of_type| of_type.entries.is_empty())
    }

    /// The resources that exist on the servers. When a server deletes a resource, watchers may keep
    /// their copy (C9), but the cache no longer has it (C9b).
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.store.cache
    }

    /// Decodes each payload of a type when it arrives, and rejects a payload that cannot be decoded
    /// (C2). Variants keep the decoded value. Call this before the first watch of the type: stored
    /// payloads are not decoded again.
    pub fn declare(&mut self, type_url: &TypeUrl, decode: Decode) {
        let of_type = self.store.type_number(type_url);
        self.store.types[of_type].decode = Some(decode);
    }

    /// Adds a watcher of a name, a glob (X12) or the wildcard (`*`). Without `parameters`, those of
    /// its authority apply. Watchers of the same name and parameters share one watch.
    ///
    /// The [`view`](Self::view) may have a resource at once, from the cache.
    ///
    /// # Errors
    /// See [`WatchError`]. In this case no watcher is added.
    pub fn on_watch(
        &mut self,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Result<WatchId, WatchError> {
        let canonical = check_name(name, type_url)?;
        let name = ResourceName::new(&*canonical);
        // C16, X17
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        let authority = match &new_style {
            None => 0,
            // As Envoy's `default_config_source`: without configured authorities, a proxy
            // subscribes to names of all authorities on its one upstream.
            Some(_) if self.relay.is_some() && self.store.authority_numbers.is_empty() => 0,
            Some(new_style) => {
                let known = self.store.authority_numbers.get(new_style.authority());
                *known.ok_or_else(|| WatchError::UnknownAuthority {
                    name: name.clone(),
                    authority: new_style.authority().to_owned(),
                })?
            }
        };
        let config = &self.servers.authorities[authority].config;
        let parameters = match parameters {
            None => config.parameters.clone(),
            Some(parameters) if parameters.is_empty() || config.speaks_locators || self.relay.is_some() => {
                parameters
            }
            Some(parameters) => return Err(WatchError::NoLocators { name, parameters }),
        };
        check_parameters(&parameters)?;
        let is_collection = is_set(name.as_str());
        let of_type = self.store.type_number(type_url);
        let known = self.store.types[of_type].find(&name, &parameters);
        let entry = known.unwrap_or_else(|| {
            let members = is_collection.then(Box::default);
            self.insert(of_type, WatchEntry::new(name, parameters, authority, members))
        });
        let id = watch_id(of_type, entry);
        let watched = self.store.entry_mut(id);
        watched.watchers += 1;
        if watched.watchers == 1 {
            let is_missing = watched.state.is_missing();
            if let Some(failure) = self.standing_refusal(authority, of_type) {
                // The view has it at once.
                self.store.entry_mut(id).state.on_error(failure, ErrorPolicy::default());
            }
            self.servers.authorities[authority].entries += 1;
            *self.store.types[of_type].watched.entry(authority).or_default() += 1;
            for at in 0..self.servers.authorities[authority].in_use().len() {
                let server = self.servers.authorities[authority].in_use()[at];
                self.mark(server, id);
            }
            // P4.7: the fallback may have been unnecessary when the server failed: nothing was
            // missing. Now this resource is. For other watchers nothing changes, so the effects are
            // dropped.
            if is_missing {
                self.fall_back(authority, &mut Effects::default());
                let mut in_use = self.servers.authorities[authority].in_use().iter();
                // P4.5: a server works, and may have the resource.
                if in_use.any(|server| self.servers[*server].failure.is_none()) {
                    self.store.entry_mut(id).state.outage = None;
                }
            }
        }
        Ok(id)
    }

    /// Removes a watcher. The last one ends the subscription (C13). The resource stays in the cache
    /// until the unsubscription is sent (C13b), so a new watcher may use it at once.
    pub fn on_unwatch(&mut self, watch: WatchId) {
        let entry = self.store.entry_mut(watch);
        entry.watchers -= 1;
        if entry.watchers > 0 {
            return;
        }
        let (at_authority, subscribed_on) = (entry.authority, entry.subscribed_on);
        self.release_type(watch.place().0, at_authority);
        for server in bits(subscribed_on) {
            self.mark(server, watch);
        }
        if subscribed_on == 0 {
            let (of_type, at) = watch.place();
            self.store.remove(of_type, at);
        }
        let authority = &mut self.servers.authorities[at_authority];
        authority.entries -= 1;
        if authority.entries == 0 {
            // P4.1: the next watch starts at the first server again.
            authority.active = 0;
            self.set_outage(at_authority, None, &mut Effects::default());
        }
    }

    /// The view of a watched name. For a glob or wildcard: errors that concern all members, and
    /// whether the member list is complete.
    #[must_use]
    pub fn view(&self, watch: WatchId) -> ResourceView {
        self.store.entry(watch).state.view()
    }

    /// The view of one member of a glob or wildcard. A name that is no member has neither copy nor
    /// error.
    #[must_use]
    pub fn member_view(&self, watch: WatchId, name: &ResourceName) -> ResourceView {
        let member = self.store.entry(watch).members.as_ref().and_then(|members| members.get(name));
        member.map(ResourceState::view).unwrap_or_default()
    }

    /// The members of a glob or wildcard, in no particular order; `None` for the watch of a single
    /// name.
    #[must_use]
    pub fn members(&self, watch: WatchId) -> Option<impl Iterator<Item = &ResourceName>> {
        self.store.entry(watch).members.as_ref().map(|members| members.keys())
    }

    /// The newest view of a watch or member whose view changed.
    #[must_use]
    pub fn view_of(&self, touched: &Touched) -> ResourceView {
        match &touched.member {
            None => self.view(touched.watch),
            Some(name) => self.member_view(touched.watch, name),
        }
    }

    /// When to connect to a server; `None` if it is not needed, or is connected or connecting.
    #[must_use]
    pub fn connect_at(&self, server: usize) -> Option<Duration> {
        match self.servers[server].phase {
            Phase::Away { retry_at } if self.is_needed(server) => Some(retry_at),
            Phase::Away { .. } | Phase::Connecting | Phase::Open { .. } => None,
        }
    }

    /// Whether a server is needed. If it is not, close its stream and call
    /// [`on_closed`](Self::on_closed), not [`on_end`](Self::on_end).
    #[must_use]
    pub fn is_needed(&self, server: usize) -> bool {
        self.servers.authorities.iter().any(|authority| authority.entries > 0 && authority.uses(server))
    }

    /// How many servers there are. Other methods take their index in [`ClientConfig::servers`].
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers.upstreams.len()
    }

    /// The name of a server, [as configured](ServerConfig::name).
    #[must_use]
    pub fn server_name(&self, server: usize) -> &Arc<str> {
        &self.servers[server].config.name
    }

    /// Whether a server is connected and works (A78): it sent a response since its last failure, or
    /// its stream stayed open for the resource timeout.
    #[must_use]
    pub fn is_connected(&self, server: usize) -> bool {
        self.servers[server].is_open() && self.servers[server].failure.is_none()
    }

    /// The number of the open stream to a server, 1 for the first; `None` without an open stream.
    #[must_use]
    pub fn stream(&self, server: usize) -> Option<u64> {
        let upstream = &self.servers[server];
        upstream.is_open().then_some(upstream.generation)
    }

    /// C16: whether a wildcard may include a name. It never includes names of an authority that has
    /// its own servers.
    pub(crate) fn is_in_wildcards(&self, name: &ResourceName) -> bool {
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        new_style.is_none_or(|new_style| !self.store.authority_numbers.contains_key(new_style.authority()))
    }

    /// Whether this client has a variant in the cache.
    #[must_use]
    pub(crate) fn has_variant(&self, id: &VariantId) -> bool {
        let number = self.store.number_of(id.type_url.as_str());
        let of_type = number.map(|number| &self.store.types[number]);
        let named = of_type.and_then(|of_type| of_type.names.get(&id.name));
        named.is_some_and(|named| named.position(&id.constraints).is_ok())
    }

    /// Defers the subscriptions of a type, or sends them. A type that was already requested on an
    /// open stream is not deferred there.
    pub(crate) fn defer(&mut self, type_url: &TypeUrl, is_deferred: bool) {
        let of_type = self.store.type_number(type_url);
        self.store.types[of_type].is_deferred = is_deferred;
    }

    /// Whether the last attempt to reach a server failed, and it has not worked since.
    #[must_use]
    pub fn has_failed(&self, server: usize) -> bool {
        self.servers[server].failure.is_some()
    }

    /// The caller started to connect to a server.
    pub fn on_connecting(&mut self, server: usize) {
        self.servers[server].phase = Phase::Connecting;
    }

    /// The stream is open. From now on [`next_request`](Self::next_request) returns the requests to
    /// send (P5.4).
    pub fn on_open(&mut self, now: Duration, server: usize) {
        self.servers[server].open(now, self.store.responses);
        self.open_health(now, server);
        self.forget_subscriptions(server);
        self.forget_types();
        for of_type in 0..self.store.types.len() {
            let entries: Vec<_> = self.store.types[of_type].entries.iter().map(|(at, _)| at).collect();
            for at in entries {
                let at = entry_number(at);
                let entry = self.store.types[of_type].entry(at);
                if entry.watchers > 0 && self.servers.authorities[entry.authority].uses(server) {
                    self.mark(server, watch_id(of_type, at));
                }
            }
        }
    }

    /// The stream ended, or the connection failed.
    pub fn on_end(&mut self, now: Duration, server: usize, end: StreamEnd<'_>) -> Effects {
        let mut effects = Effects::default();
        let StreamEnd { status, reason, jitter } = end;
        // Who the client is, is no matter of the network.
        let denied = status.as_ref().map(|status| status.code).filter(|code| code.is_denial());
        let is_explained = self.end_health(now, server, status, &mut effects);
        let is_failure = self.servers[server].end(now, jitter, is_explained);
        self.after_stream(server);
        if is_failure {
            let text = format!("{} cannot be reached: {reason}", self.servers[server].config.name);
            let failure = ResourceFailure::new(denied.unwrap_or(Code::UNAVAILABLE), text, now);
            self.servers[server].failure = Some(Arc::new(failure));
            for authority in 0..self.servers.authorities.len() {
                self.fall_back(authority, &mut effects);
            }
        }
        self.sort_touched(&mut effects);
        effects
    }

    /// The caller closed the stream, because the server is [no longer needed](Self::is_needed).
    pub fn on_closed(&mut self, now: Duration, server: usize) {
        self.servers[server].phase = Phase::Away { retry_at: now };
        self.servers[server].failure = None;
        self.servers[server].forget_stream();
        self.after_stream(server);
    }
}

impl WatchId {
    fn place(self) -> (usize, u32) {
        (self.of_type as usize, self.entry)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("servers", &self.servers).finish_non_exhaustive()
    }
}

fn watch_id(of_type: usize, entry: u32) -> WatchId {
    WatchId { of_type: u32::try_from(of_type).expect("fewer than 2^32 types are watched"), entry }
}

/// The servers of a bit mask.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..SERVERS_LIMIT).filter(move |server| mask & (1 << server) != 0)
}

/// Returns the canonical text of a name.
///
/// # Errors
/// W2, X6: no resource of the type can have the name.
pub(crate) fn check_name<'n>(name: &'n str, type_url: &TypeUrl) -> Result<Cow<'n, str>, WatchError> {
    received::check_name(name, type_url).map_err(|reason| WatchError::Name {
        type_url: type_url.clone(),
        name: name.to_owned(),
        reason: Box::new(reason),
    })
}

/// # Errors
/// W2: a key has a control character.
pub(crate) fn check_parameters(parameters: &Parameters) -> Result<(), WatchError> {
    let is_invalid = |key: &str| key.bytes().any(|byte| byte.is_ascii_control());
    let invalid = parameters.own().find(|(key, _)| is_invalid(key));
    invalid.map_or(Ok(()), |(key, _)| Err(WatchError::InvalidKey { key: Arc::clone(key) }))
}

/// How many servers a client may have.
pub const SERVERS_LIMIT: usize = 64;
