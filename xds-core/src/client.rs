//! xDS seen from the client: what is watched, whom it is asked of, and what became of it.
//!
//! A [`Client`] takes what the program watches and what servers send, and says what is to be sent
//! and who is to be told. It holds no socket, task or clock. What servers say exists goes into one
//! [`Cache`], by name and constraints; a watcher sees a [`ResourceView`] of what its parameters choose
//! there, and of what went wrong.
//!
//! Nothing queues for a watcher: the caller is told *that* its view changed ([`Touched`]) and reads
//! the newest one, so a watcher that does not look delays nobody.
//!
//! The life of one server, as the caller drives it:
//!
//! ```text
//!            connect_at          on_open                     on_response (any number)
//!   away ------------------> connecting -----> open -------------------------------------+
//!    ^                            |             | next_request (until it has nothing)    |
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
//! // The caller connects, and asks what to send.
//! assert_eq!(client.connect_at(0), Some(Duration::ZERO));
//! client.on_connecting(0);
//! client.on_open(Duration::ZERO, 0);
//! assert!(client.next_request(Duration::ZERO, 0).is_some(), "it subscribes to a");
//! assert!(client.next_request(Duration::ZERO, 0).is_none());
//!
//! // C5: without an answer a timer decides.
//! assert_eq!(client.next_deadline(), Some(Duration::from_secs(15)));
//! assert_eq!(client.on_timeout(Duration::from_secs(15)).touched.len(), 1);
//! # Ok::<(), xds_core::client::WatchError>(())
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `watched_type` | everything that is known of one type: what is watched, what was received |
//! | `resource_state` | what follows from each event for one watched resource: the table of gRFC A88 |
//! | `entries` | how what is watched comes and goes |
//! | `upstream`, `authority` | one server and its stream; which servers an authority uses |
//! | `fallback` | when the next server is asked, and what watchers hear when there is none |
//! | `timers` | what happens because time passes |
//! | `requests` | what is sent |
//! | `received`, `rejection` | a response as it came; what can be wrong with it |
//! | `apply`, `cache_changes` | what a response changes, and who is told; which of its variants cannot be kept beside others |
//! | `effects`, `report` | what an event did; what is known of everything that is watched |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::cache::Cache;
use crate::constraint::Constraints;
use crate::matching::KeySetRule;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::resource::VariantId;
use crate::subscription::is_set;
use crate::xdstp::XdstpName;

use authority::Authority;
use preview::{LateSubscriptions, Refusal};
use resource_state::ResourceState;
use upstream::{Phase, Upstream};
use watched_type::{WatchEntry, WatchedType};

pub use crate::code::Code;
pub use accepted::{Accepted, Decode, Decoded};
pub use config::{AuthorityConfig, ClientConfig, Protocol, Relay, ServerConfig};
pub use effects::{Applied, Effects, Touched};
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
mod preview;
mod received;
mod rejection;
mod report;
mod requests;
mod resource_failure;
mod resource_state;
mod restore;
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
    node: Bytes,
    resource_timeout: Duration,
    transient_resource_timeout: Duration,
    cache: Arc<Cache>,
    upstreams: Vec<Upstream>,
    /// The first one is that of old-style names.
    authorities: Vec<Authority>,
    authority_numbers: Arc<BTreeMap<String, usize>>,
    types: Vec<WatchedType>,
    type_numbers: BTreeMap<TypeUrl, usize>,
    relay: Option<Relay>,
    /// What clients of a proxy cannot use.
    refused: BTreeMap<VariantId, Refusal>,
    /// While clients of a proxy try a response: what a server was asked meanwhile.
    late: Option<LateSubscriptions>,
    /// How many responses were judged.
    responses: u64,
    /// C5, C6: when entries count as absent, by how long they may take; those that do not any more
    /// are passed over.
    timers: [VecDeque<(Duration, WatchId)>; 2],
    /// S38: when TTLs end, the same.
    expiries: BTreeSet<(Duration, usize, ResourceName, Constraints)>,
}

/// One subscription, which all watchers of the same type, name and parameters share.
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
        /// What is wrong with it.
        reason: Box<Reason>,
    },
    /// X15: nobody is known to ask for names of this authority.
    #[error("{name:?}: the configuration has no servers for the authority {authority:?}")]
    UnknownAuthority {
        /// The name.
        name: ResourceName,
        /// Its authority.
        authority: String,
    },
    /// W2: no constraints can name the key.
    #[error("the parameter {key:?} has a control character in its key")]
    InvalidKey {
        /// The key.
        key: Arc<str>,
    },
    /// The servers are not said to speak TP2, and one that does not would take a locator for a
    /// wildcard.
    #[error(
        "{name:?} cannot be watched with {parameters}: its servers are not configured to understand locators"
    )]
    NoLocators {
        /// The name.
        name: ResourceName,
        /// The parameters.
        parameters: Parameters,
    },
}

impl Client {
    /// A client that watches nothing yet, with a cache of its own.
    ///
    /// # Panics
    /// With more than [`SERVERS_LIMIT`] servers.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        let mut authorities = vec![Authority::new(config.default_authority)];
        let mut authority_numbers = BTreeMap::new();
        for (name, authority) in config.authorities {
            authority_numbers.insert(name, authorities.len());
            authorities.push(Authority::new(authority));
        }
        assert!(config.servers.len() <= SERVERS_LIMIT, "each server has one bit");
        Self {
            node: config.node,
            resource_timeout: config.resource_timeout,
            transient_resource_timeout: config.transient_resource_timeout,
            // T34: variants of one name may come from before and after a change of their keys.
            cache: match &config.relay {
                Some(relay) => Arc::clone(&relay.cache),
                None => Cache::with_key_sets(KeySetRule::Free),
            },
            relay: config.relay,
            refused: BTreeMap::new(),
            late: None,
            upstreams: config.servers.into_iter().map(Upstream::new).collect(),
            authorities,
            authority_numbers: Arc::new(authority_numbers),
            types: Vec::new(),
            type_numbers: BTreeMap::new(),
            responses: 0,
            timers: Default::default(),
            expiries: BTreeSet::new(),
        }
    }

    /// Whether nothing is watched, no server thinks so, and nothing that they brought is left in
    /// the cache.
    pub(crate) fn is_idle(&self) -> bool {
        self.types.iter().all(|of_type| of_type.entries.is_empty())
    }

    /// What the servers say exists. A copy that watchers keep although it was deleted (C9) is not
    /// in it (C9b).
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Has the payloads of a type decoded when they come; one that cannot be is rejected (C2). To
    /// be said before anything of the type is watched: what was received already is not looked at
    /// again.
    pub fn declare(&mut self, type_url: &TypeUrl, decode: Decode) {
        let of_type = self.type_number(type_url);
        self.types[of_type].decode = Some(decode);
    }

    /// Watches a name, a glob (X12) or everything (`*`) with some parameters, or with those of its
    /// authority. Watching the same again shares the subscription.
    ///
    /// Its [`view`](Self::view) may show something at once.
    ///
    /// # Errors
    /// See [`WatchError`]; nothing is watched then.
    pub fn on_watch(
        &mut self,
        type_url: &TypeUrl,
        name: &str,
        parameters: Option<Parameters>,
    ) -> Result<WatchId, WatchError> {
        let canonical = received::check_name(name, type_url).map_err(|reason| WatchError::Name {
            type_url: type_url.clone(),
            name: name.to_owned(),
            reason: Box::new(reason),
        })?;
        let name = ResourceName::new(&*canonical);
        // C16, X17
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        let authority = match &new_style {
            None => 0,
            // Envoy's `default_config_source`: one upstream alone stands for whatever a proxy's
            // clients ask for.
            Some(_) if self.relay.is_some() && self.authority_numbers.is_empty() => 0,
            Some(new_style) => {
                let known = self.authority_numbers.get(new_style.authority());
                *known.ok_or_else(|| WatchError::UnknownAuthority {
                    name: name.clone(),
                    authority: new_style.authority().to_owned(),
                })?
            }
        };
        let config = &self.authorities[authority].config;
        let parameters = match parameters {
            None => config.parameters.clone(),
            Some(parameters) if parameters.is_empty() || config.speaks_locators || self.relay.is_some() => {
                parameters
            }
            Some(parameters) => return Err(WatchError::NoLocators { name, parameters }),
        };
        if let Some((key, _)) =
            parameters.unbound().iter().find(|(key, _)| key.bytes().any(|b| b.is_ascii_control()))
        {
            return Err(WatchError::InvalidKey { key: Arc::clone(key) });
        }
        let is_collection = is_set(name.as_str());
        let of_type = self.type_number(type_url);
        let known = self.types[of_type].find(&name, &parameters);
        let entry = known.unwrap_or_else(|| {
            let members = is_collection.then(Box::default);
            self.insert(of_type, WatchEntry::new(name, parameters, authority, members))
        });
        let id = watch_id(of_type, entry);
        let watched = self.types[of_type].entry_mut(entry);
        watched.watchers += 1;
        if watched.watchers == 1 {
            let is_missing = watched.state.is_missing();
            self.authorities[authority].entries += 1;
            for at in 0..self.authorities[authority].in_use().len() {
                let server = self.authorities[authority].in_use()[at];
                self.mark(server, id);
            }
            // P4.7: what was not needed when the server failed may be now. Nobody else hears
            // anything new of that.
            if is_missing && self.fall_back(authority, &mut Effects::default()) {
                // P4.5: the next server may have it.
                self.types[of_type].entry_mut(entry).state.outage = None;
            }
        }
        Ok(id)
    }

    /// One watcher less. Without any the subscription ends (C13); until the server was told so its
    /// copy stays at hand (C13b).
    pub fn on_unwatch(&mut self, watch: WatchId) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        entry.watchers -= 1;
        if entry.watchers > 0 {
            return;
        }
        let (at_authority, told) = (entry.authority, entry.subscribed_on);
        for server in bits(told) {
            self.mark(server, watch);
        }
        if told == 0 {
            self.remove(of_type, at);
        }
        let authority = &mut self.authorities[at_authority];
        authority.entries -= 1;
        if authority.entries == 0 {
            // P4.1: what is needed next is asked of the first server.
            authority.active = 0;
            self.set_outage(at_authority, None, &mut Effects::default());
        }
    }

    /// What a watcher sees of its resource; of a glob or wildcard only what concerns all of it.
    #[must_use]
    pub fn view(&self, watch: WatchId) -> ResourceView {
        let (of_type, at) = watch.place();
        self.types[of_type].entry(at).state.view()
    }

    /// What a watcher of a glob or wildcard sees of one of its members: neither copy nor error
    /// where it is none.
    #[must_use]
    pub fn member_view(&self, watch: WatchId, name: &ResourceName) -> ResourceView {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry(at);
        let member = entry.members.as_ref().and_then(|members| members.get(name));
        member.map(ResourceState::view).unwrap_or_default()
    }

    /// The members of a glob or wildcard, in no particular order; `None` for what is watched by a
    /// name.
    #[must_use]
    pub fn members(&self, watch: WatchId) -> Option<impl Iterator<Item = &ResourceName>> {
        let (of_type, at) = watch.place();
        self.types[of_type].entry(at).members.as_ref().map(|members| members.keys())
    }

    /// What the watchers of a touched subscription or member see now.
    #[must_use]
    pub fn view_of(&self, touched: &Touched) -> ResourceView {
        match &touched.member {
            None => self.view(touched.watch),
            Some(name) => self.member_view(touched.watch, name),
        }
    }

    /// When to connect to a server; `None` where nobody needs it, or it is connected.
    #[must_use]
    pub fn connect_at(&self, server: usize) -> Option<Duration> {
        match self.upstreams[server].phase {
            Phase::Away { retry_at } if self.is_needed(server) => Some(retry_at),
            Phase::Away { .. } | Phase::Connecting | Phase::Open { .. } => None,
        }
    }

    /// Whether a server is needed. A stream to one that is not is to be ended, which needs no
    /// [`on_end`](Self::on_end) of failures: call [`on_closed`](Self::on_closed).
    #[must_use]
    pub fn is_needed(&self, server: usize) -> bool {
        self.authorities.iter().any(|authority| authority.entries > 0 && authority.uses(server))
    }

    /// How many servers there are; they go by number.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.upstreams.len()
    }

    /// What a server is called.
    #[must_use]
    pub fn server_name(&self, server: usize) -> &Arc<str> {
        &self.upstreams[server].config.name
    }

    /// Whether a server is connected, and did not fail since (A78).
    #[must_use]
    pub fn is_connected(&self, server: usize) -> bool {
        self.upstreams[server].is_open() && self.upstreams[server].failure.is_none()
    }

    /// Which stream of a server stands: the number of streams there were, with it; `None` while
    /// none does.
    #[must_use]
    pub fn stream(&self, server: usize) -> Option<u64> {
        let upstream = &self.upstreams[server];
        upstream.is_open().then_some(upstream.generation)
    }

    /// C16: whether a wildcard stands for a name, which none does for those of authorities with
    /// servers of their own.
    pub(crate) fn is_in_wildcards(&self, name: &ResourceName) -> bool {
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        new_style.is_none_or(|new_style| !self.authority_numbers.contains_key(new_style.authority()))
    }

    /// Whether a variant is in the cache from here.
    #[must_use]
    pub fn has_variant(&self, id: &VariantId) -> bool {
        let of_type = self.type_numbers.get(&id.type_url).map(|number| &self.types[*number]);
        let named = of_type.and_then(|of_type| of_type.names.get(&id.name));
        named.is_some_and(|named| named.position(&id.constraints).is_ok())
    }

    /// Has servers not asked for a type, or asked again. What they were asked for on a stream that
    /// stands is not taken back.
    pub fn defer(&mut self, type_url: &TypeUrl, is_deferred: bool) {
        let of_type = self.type_number(type_url);
        self.types[of_type].is_deferred = is_deferred;
    }

    /// Whether a server could not be reached when it was tried last, and said nothing since.
    #[must_use]
    pub fn has_failed(&self, server: usize) -> bool {
        self.upstreams[server].failure.is_some()
    }

    /// A connection is being made.
    pub fn on_connecting(&mut self, server: usize) {
        self.upstreams[server].phase = Phase::Connecting;
    }

    /// The stream stands, and what [`next_request`](Self::next_request) gives goes to the transport
    /// (P5.4).
    pub fn on_open(&mut self, now: Duration, server: usize) {
        self.upstreams[server].open(now, self.responses);
        self.forget_subscriptions(server);
        for of_type in 0..self.types.len() {
            let wanted: Vec<_> = self.types[of_type].entries.iter().map(|(at, _)| at).collect();
            for at in wanted {
                let at = u32::try_from(at).expect("entries have such numbers");
                let entry = self.types[of_type].entry(at);
                if entry.watchers > 0 && self.authorities[entry.authority].uses(server) {
                    self.mark(server, watch_id(of_type, at));
                }
            }
        }
    }

    /// The stream ended, or the server could not be reached. `jitter` is a random number.
    pub fn on_end(&mut self, now: Duration, server: usize, reason: &str, jitter: u32) -> Effects {
        let mut effects = Effects::default();
        let is_failure = self.upstreams[server].end(now, jitter);
        self.after_stream(server);
        if is_failure {
            let text = format!("{} cannot be reached: {reason}", self.upstreams[server].config.name);
            let failure = ResourceFailure::new(Code::UNAVAILABLE, text, now);
            self.upstreams[server].failure = Some(Arc::new(failure));
            for authority in 0..self.authorities.len() {
                self.fall_back(authority, &mut effects);
            }
        }
        self.sort_touched(&mut effects);
        effects
    }

    /// The stream was ended here, because nobody needs the server any more.
    pub fn on_closed(&mut self, now: Duration, server: usize) {
        self.upstreams[server].phase = Phase::Away { retry_at: now };
        self.upstreams[server].failure = None;
        self.upstreams[server].forget_stream();
        self.after_stream(server);
    }

    fn type_number(&mut self, type_url: &TypeUrl) -> usize {
        if let Some(number) = self.type_numbers.get(type_url) {
            return *number;
        }
        self.types.push(WatchedType::new(type_url.clone(), Arc::clone(&self.authority_numbers)));
        self.type_numbers.insert(type_url.clone(), self.types.len() - 1);
        self.types.len() - 1
    }
}

impl WatchId {
    fn place(self) -> (usize, u32) {
        (self.of_type as usize, self.entry)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("upstreams", &self.upstreams)
            .field("authorities", &self.authorities)
            .field("types", &self.type_numbers)
            .finish_non_exhaustive()
    }
}

fn watch_id(of_type: usize, entry: u32) -> WatchId {
    WatchId { of_type: u32::try_from(of_type).expect("there are few types"), entry }
}

/// The servers of a mask.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..SERVERS_LIMIT).filter(move |server| mask & (1 << server) != 0)
}

/// How many servers a client may have.
pub const SERVERS_LIMIT: usize = 64;
