//! xDS seen from the client: what is watched, whom it is asked of, and what became of it.
//!
//! A [`Client`] takes what the program watches and what servers send, and says what is to be sent and who is to be told. It
//! holds no socket, task or clock. What servers say exists goes into one [`Cache`], by name and constraints; a watcher
//! sees a [`View`] of what its parameters choose there, and of what went wrong.
//!
//! Nothing queues for a watcher: the caller is told *that* its view changed ([`Touched`]) and reads the newest one, so a
//! watcher that does not look delays nobody.
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
//! | `watched` | everything that is known of one type: what is watched, what was received |
//! | `state` | what follows from each event for one watched resource: the table of gRFC A88 |
//! | `upstream`, `authority` | one server and its stream; which servers an authority uses |
//! | `requests` | what is sent |
//! | `response`, `rejection` | a response as it came; what can be wrong with it |
//! | `judge`, `overlap` | what a response changes; which of its variants cannot be kept beside others |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::cache::{Cache, Transaction};
use crate::constraint::Constraints;
use crate::matching::KeySetRule;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;
use crate::resource::VariantId;
use crate::xdstp::XdstpName;

use authority::Authority;
use state::State;
use upstream::{Phase, Upstream};
use watched::{Entry, Held, Table, WILDCARD, WatchedType, is_set};

pub use accepted::{Accepted, Decode, Decoded};
pub use config::{AuthorityConfig, ClientConfig, Protocol, ServerConfig};
pub use failure::{Code, Failure};
pub use rejection::{Reason, Rejection};
pub use response::Unreadable;
pub use restore::Restored;
pub use state::{ErrorPolicy, ResourceStatus, View};

mod accepted;
mod authority;
mod config;
mod failure;
#[cfg(test)]
pub(crate) mod fixture;
mod judge;
mod overlap;
mod rejection;
mod requests;
mod response;
mod restore;
mod state;
mod upstream;
mod watched;

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
    /// How many responses were judged.
    responses: u64,
    /// C5, C6: when entries count as absent, by how long they may take; those that do not any more are passed over.
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

/// Whose view changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touched {
    /// The subscription.
    pub watch: WatchId,
    /// Which of the resources it stands for; `None` for that of its own name, and for a glob or wildcard as a whole.
    pub member: Option<ResourceName>,
}

/// What an event did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Whose view changed, each once, in no particular order.
    pub touched: Vec<Touched>,
    /// What is new in the cache.
    pub accepted: Vec<Arc<Accepted>>,
    /// What is there no longer, as the server says; not what nobody watches any more.
    pub removed: Vec<VariantId>,
    /// The response, if it was one that is answered.
    pub response: Option<Judged>,
}

/// What was found in a response.
#[derive(Debug)]
pub struct Judged {
    /// Its type.
    pub type_url: TypeUrl,
    /// How many resources were watched and valid, unchanged ones too.
    pub valid: usize,
    /// How many resources nobody watches (S24, T41).
    pub unasked: usize,
    /// Variants that gave way to others (T34).
    pub replaced: usize,
    /// What was wrong; if anything was, the response is rejected (C2).
    pub rejections: Vec<Rejection>,
}

/// What is known of one watched resource, for CSDS and metrics (C19).
#[derive(Debug, Clone)]
pub struct Report {
    /// Its type.
    pub type_url: TypeUrl,
    /// Its name; of a glob or wildcard that of each member.
    pub name: ResourceName,
    /// What it was asked for with.
    pub parameters: Parameters,
    /// How it stands.
    pub status: ResourceStatus,
    /// What is in use.
    pub copy: Option<Arc<Accepted>>,
    /// The version of what is in use, as the server called it last.
    pub version: Option<Arc<str>>,
    /// What went wrong with it.
    pub error: Option<Arc<Failure>>,
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
    /// The servers are not said to speak TP2, and one that does not would take a locator for a wildcard.
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
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        let mut authorities = vec![Authority::new(config.default_authority)];
        let mut authority_numbers = BTreeMap::new();
        for (name, authority) in config.authorities {
            authority_numbers.insert(name, authorities.len());
            authorities.push(Authority::new(authority));
        }
        debug_assert!(config.servers.len() <= SERVERS_LIMIT, "each server has one bit");
        Self {
            node: config.node,
            resource_timeout: config.resource_timeout,
            transient_resource_timeout: config.transient_resource_timeout,
            // T34: variants of one name may come from before and after a change of their keys.
            cache: Cache::with_key_sets(KeySetRule::Free),
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

    /// What the servers say exists. A copy that watchers keep although it was deleted (C9) is not in it (C9b).
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Has the payloads of a type decoded when they come; one that cannot be is rejected (C2). To be said before anything of
    /// the type is watched: what was received already is not looked at again.
    pub fn declare(&mut self, type_url: &TypeUrl, decode: Decode) {
        let of_type = self.type_number(type_url);
        self.types[of_type].decode = Some(decode);
    }

    /// Watches a name, a glob (X12) or everything (`*`) with some parameters, or with those of its authority. Watching the
    /// same again shares the subscription.
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
        let canonical = response::check_name(name, type_url).map_err(|reason| WatchError::Name {
            type_url: type_url.clone(),
            name: name.to_owned(),
            reason: Box::new(reason),
        })?;
        let name = ResourceName::new(&*canonical);
        // C16, X17
        let new_style = XdstpName::of(name.as_str()).ok().flatten();
        let authority = match &new_style {
            None => 0,
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
            Some(parameters) if parameters.is_empty() || config.speaks_locators => parameters,
            Some(parameters) => return Err(WatchError::NoLocators { name, parameters }),
        };
        if let Some((key, _)) = parameters.iter().find(|(key, _)| key.bytes().any(|b| b.is_ascii_control())) {
            return Err(WatchError::InvalidKey { key: Arc::clone(key) });
        }
        let is_collection = is_set(name.as_str());
        let of_type = self.type_number(type_url);
        let known = self.types[of_type].find(&name, &parameters);
        let entry = known.unwrap_or_else(|| {
            let members = is_collection.then(Box::default);
            self.insert(of_type, Entry::new(name, parameters, authority, members))
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
            // P4.7: what was not needed when the server failed may be now. Nobody else hears anything new of that.
            if is_missing && self.fall_back(authority, &mut Outcome::default()) {
                // P4.5: the next server may have it.
                self.types[of_type].entry_mut(entry).state.outage = None;
            }
        }
        Ok(id)
    }

    /// One watcher less. Without any the subscription ends (C13); until the server was told so its copy stays at hand (C13b).
    pub fn on_unwatch(&mut self, watch: WatchId) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        entry.watchers -= 1;
        if entry.watchers > 0 {
            return;
        }
        let (at_authority, told) = (entry.authority, entry.told);
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
            self.set_outage(at_authority, None, &mut Outcome::default());
        }
    }

    /// What a watcher sees of its resource; of a glob or wildcard only what concerns all of it.
    #[must_use]
    pub fn view(&self, watch: WatchId) -> View {
        let (of_type, at) = watch.place();
        self.types[of_type].entry(at).state.view()
    }

    /// What a watcher of a glob or wildcard sees of one of its members: neither copy nor error where it is none.
    #[must_use]
    pub fn member(&self, watch: WatchId, name: &ResourceName) -> View {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry(at);
        let member = entry.members.as_ref().and_then(|members| members.get(name));
        member.map(State::view).unwrap_or_default()
    }

    /// The members of a glob or wildcard, in no particular order; `None` for what is watched by a name.
    #[must_use]
    pub fn members(&self, watch: WatchId) -> Option<impl Iterator<Item = &ResourceName>> {
        let (of_type, at) = watch.place();
        self.types[of_type].entry(at).members.as_ref().map(|members| members.keys())
    }

    /// Whether a view is that of a touched subscription or member.
    #[must_use]
    pub fn look(&self, touched: &Touched) -> View {
        match &touched.member {
            None => self.view(touched.watch),
            Some(name) => self.member(touched.watch, name),
        }
    }

    /// When to connect to a server; `None` where nobody needs it, or it is connected.
    #[must_use]
    pub fn connect_at(&self, server: usize) -> Option<Duration> {
        match self.upstreams[server].phase {
            Phase::Away { retry_at } if self.is_wanted(server) => Some(retry_at),
            Phase::Away { .. } | Phase::Connecting | Phase::Open { .. } => None,
        }
    }

    /// Whether a server is needed. A stream to one that is not is to be ended, which needs no [`on_end`](Self::on_end) of
    /// failures: call [`on_left`](Self::on_left).
    #[must_use]
    pub fn is_wanted(&self, server: usize) -> bool {
        self.authorities.iter().any(|authority| authority.entries > 0 && authority.uses(server))
    }

    /// How many servers there are; they go by number.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.upstreams.len()
    }

    /// Whether a server is connected, and did not fail since (A78).
    #[must_use]
    pub fn is_connected(&self, server: usize) -> bool {
        self.upstreams[server].is_open() && self.upstreams[server].failure.is_none()
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

    /// The stream stands, and what [`next_request`](Self::next_request) gives goes to the transport (P5.4).
    pub fn on_open(&mut self, now: Duration, server: usize) {
        self.upstreams[server].open(now, self.responses);
        self.forget_told(server);
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
    pub fn on_end(&mut self, now: Duration, server: usize, reason: &str, jitter: u32) -> Outcome {
        let mut outcome = Outcome::default();
        let is_failure = self.upstreams[server].end(now, jitter);
        self.after_stream(server);
        if is_failure {
            let text = format!("{} cannot be reached: {reason}", self.upstreams[server].config.name);
            let failure = Failure::new(Code::UNAVAILABLE, text, now);
            self.upstreams[server].failure = Some(Arc::new(failure));
            for authority in 0..self.authorities.len() {
                self.fall_back(authority, &mut outcome);
            }
        }
        self.sort_touched(&mut outcome);
        outcome
    }

    /// The stream was ended here, because nobody needs the server any more.
    pub fn on_left(&mut self, now: Duration, server: usize) {
        self.upstreams[server].phase = Phase::Away { retry_at: now };
        self.upstreams[server].failure = None;
        self.upstreams[server].forget_stream();
        self.after_stream(server);
    }

    /// When to call [`on_timeout`](Self::on_timeout).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let timers = self.timers.iter().filter_map(|timers| timers.front()).map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, ..)| *at);
        let quiet = self.upstreams.iter().filter_map(|upstream| self.quiet_since(upstream));
        timers.chain(expiry).chain(quiet).min()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        for server in 0..self.upstreams.len() {
            if self.quiet_since(&self.upstreams[server]).is_some_and(|at| at <= now) {
                self.on_alive(server, &mut outcome);
            }
        }
        for timers in 0..self.timers.len() {
            while let Some((deadline, watch)) = self.timers[timers].front().copied() {
                if deadline > now && self.is_running(watch, deadline) {
                    break;
                }
                self.timers[timers].pop_front();
                if self.is_running(watch, deadline) {
                    self.on_silence(now, watch, &mut outcome);
                }
            }
        }
        self.expire(now, &mut outcome);
        self.sort_touched(&mut outcome);
        outcome
    }

    /// Everything that is watched, in the order of types, names and parameters (C19).
    #[must_use]
    pub fn report(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        for of_type in &self.types {
            for (_, entry) in of_type.entries.iter().filter(|(_, entry)| entry.watchers > 0) {
                match &entry.members {
                    None => reports.push(report(of_type, entry, &entry.name, &entry.state)),
                    Some(members) => {
                        let members = members.iter();
                        reports.extend(members.map(|(name, state)| report(of_type, entry, name, state)));
                    }
                }
            }
        }
        let place = |one: &Report, other: &Report| {
            let names = one.type_url.cmp(&other.type_url).then_with(|| one.name.cmp(&other.name));
            names.then_with(|| one.parameters.cmp(&other.parameters))
        };
        reports.sort_by(place);
        reports
    }

    fn type_number(&mut self, type_url: &TypeUrl) -> usize {
        if let Some(number) = self.type_numbers.get(type_url) {
            return *number;
        }
        self.types.push(WatchedType::new(type_url.clone(), Arc::clone(&self.authority_numbers)));
        self.type_numbers.insert(type_url.clone(), self.types.len() - 1);
        self.types.len() - 1
    }

    /// A new entry, with what is at hand for it.
    fn insert(&mut self, of_type: usize, mut entry: Entry) -> u32 {
        let snapshot = self.cache.snapshot();
        let watched = &mut self.types[of_type];
        let resources = snapshot.of_type(&watched.type_url);
        entry.state.outage.clone_from(&self.authorities[entry.authority].outage);
        match &mut entry.members {
            None => {
                let held = watched.resolve(&entry.name, &entry.parameters, resources);
                if let Some(accepted) = held.map(|held| Arc::clone(&held.accepted)) {
                    let is_restored = accepted.is_restored;
                    entry.state.on_resource(accepted);
                    if is_restored {
                        entry.state.status = ResourceStatus::Requested;
                    }
                }
            }
            Some(members) => {
                let is_member = |name: &ResourceName| {
                    (entry.name.as_str() == WILDCARD && watched.authority_of(name.as_str()) == 0)
                        || crate::xdstp::glob_of(name).as_ref() == Some(&entry.name)
                };
                for name in watched.names.keys().filter(|name| is_member(name)) {
                    if let Some(held) = watched.resolve(name, &entry.parameters, resources) {
                        let mut state = State::default();
                        state.on_resource(Arc::clone(&held.accepted));
                        members.insert(name.clone(), state);
                    }
                }
            }
        }
        watched.insert(entry)
    }

    /// Nobody watches it, and no server thinks so.
    fn remove(&mut self, of_type: usize, at: u32) {
        let watched = &mut self.types[of_type];
        let real = watched.aliases.get(&watched.entry(at).name).cloned();
        let entry = watched.remove(at);
        let names = match entry.members {
            None => std::iter::once(entry.name).chain(real).collect::<Vec<_>>(),
            Some(members) => members.into_keys().collect(),
        };
        self.drop_unwatched(of_type, &names);
    }

    /// T33: what no locator is for is dropped. D18, D20: what a wildcard or a name is for besides stays.
    fn drop_unwatched(&mut self, of_type: usize, names: &[ResourceName]) {
        let mut transaction = Transaction::new();
        let mut watching = Vec::new();
        let watched = &mut self.types[of_type];
        let type_url = watched.type_url.clone();
        for name in names {
            watched.watching(name.as_str(), &mut watching);
            let asked: Vec<_> = watching.iter().map(|at| watched.entry(*at).parameters.clone()).collect();
            let Some(named) = watched.names.get_mut(name) else { continue };
            named.held.retain(|held| {
                let constraints = held.accepted.constraints();
                let is_watched = asked.iter().any(|asked| constraints.matches(asked));
                if !is_watched {
                    let id = VariantId {
                        type_url: type_url.clone(),
                        name: name.clone(),
                        constraints: constraints.clone(),
                    };
                    transaction.remove(id);
                }
                is_watched
            });
            watched.forget_if_empty(name);
        }
        if transaction.is_empty() {
            return;
        }
        self.cache.commit(transaction).expect("taking variants away leaves no two that overlap");
    }

    /// Has the next request look at an entry again.
    fn mark(&mut self, server: usize, watch: WatchId) {
        if !self.upstreams[server].is_open() {
            return;
        }
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        if entry.dirty & (1 << server) == 0 {
            entry.dirty |= 1 << server;
            self.upstreams[server].of_type(of_type).dirty.push(at);
        }
    }

    /// C5: timers run on a stream only. What nobody watches any more was only kept for the server.
    fn after_stream(&mut self, server: usize) {
        self.forget_told(server);
        for of_type in 0..self.types.len() {
            let is_over = |entry: &Entry| entry.watchers == 0 && entry.told == 0;
            let over = self.types[of_type].entries.iter().filter(|(_, entry)| is_over(entry));
            for at in over.map(|(at, _)| at).collect::<Vec<_>>() {
                let at = u32::try_from(at).expect("entries have such numbers");
                self.remove(of_type, at);
            }
        }
    }

    fn forget_told(&mut self, server: usize) {
        let bit = 1 << server;
        for (_, entry) in self.types.iter_mut().flat_map(|watched| watched.entries.iter_mut()) {
            if entry.told & bit != 0 {
                entry.told &= !bit;
                // P4.6: what another server was asked for, too, is still awaited from that.
                entry.deadline = entry.deadline.filter(|_| entry.told != 0);
            }
            entry.dirty &= !bit;
        }
    }

    /// C15: asks the next server if all in use failed and something is missing. When there is none, watchers hear of it
    /// (P1.1 to P1.4). Whether one that did not fail is asked.
    fn fall_back(&mut self, at: usize, outcome: &mut Outcome) -> bool {
        loop {
            let authority = &self.authorities[at];
            let failures = authority.in_use().iter().map(|server| self.upstreams[*server].failure.as_ref());
            let Some(failure) =
                failures.collect::<Option<Vec<_>>>().and_then(|all| all.last().copied().cloned())
            else {
                return true;
            };
            if authority.entries == 0 {
                return false;
            }
            let is_missing = || {
                authority.config.fallback_on_reachability_only
                    || self.entries_of(at).any(|(_, entry)| entry.state.is_missing())
            };
            if authority.next().is_none() || !is_missing() {
                self.set_outage(at, Some(failure), outcome);
                return false;
            }
            self.authorities[at].active += 1;
            let server = *self.authorities[at].in_use().last().expect("one more is in use");
            let entries: Vec<_> = self.entries_of(at).map(|(watch, _)| watch).collect();
            for watch in entries {
                self.mark(server, watch);
            }
        }
    }

    /// P5.2: a server gave a sign of life.
    fn on_alive(&mut self, server: usize, outcome: &mut Outcome) {
        self.upstreams[server].failure = None;
        for at in 0..self.authorities.len() {
            if self.authorities[at].uses(server) {
                self.set_outage(at, None, outcome);
            }
        }
    }

    fn set_outage(&mut self, at: usize, outage: Option<Arc<Failure>>, outcome: &mut Outcome) {
        let standing = &self.authorities[at].outage;
        let is_same = match (standing, &outage) {
            (Some(one), Some(other)) => one.tells_the_same(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same {
            return;
        }
        self.authorities[at].outage.clone_from(&outage);
        for (of_type, watched) in self.types.iter_mut().enumerate() {
            for (number, entry) in watched.entries.iter_mut().filter(|(_, entry)| entry.authority == at) {
                entry.state.outage.clone_from(&outage);
                let number = u32::try_from(number).expect("entries have such numbers");
                outcome.touched.push(Touched { watch: watch_id(of_type, number), member: None });
            }
        }
    }

    /// Each once; who does not watch any more is not told.
    fn sort_touched(&self, outcome: &mut Outcome) {
        outcome.touched.sort_unstable();
        outcome.touched.dedup();
        outcome.touched.retain(|touched| {
            let (of_type, at) = touched.watch.place();
            self.types[of_type].entry(at).watchers > 0
        });
    }

    fn entries_of(&self, authority: usize) -> impl Iterator<Item = (WatchId, &Entry)> {
        let types = self.types.iter().enumerate();
        let entries = types.flat_map(|(of_type, watched)| {
            watched.entries.iter().map(move |(at, entry)| (of_type, at, entry))
        });
        let entries = entries.filter(move |(_, _, entry)| entry.authority == authority && entry.watchers > 0);
        entries.map(|(of_type, at, entry)| {
            (watch_id(of_type, u32::try_from(at).expect("entries have such numbers")), entry)
        })
    }

    /// When a stream that follows a failure is taken for working though nothing came: in delta there may be nothing to
    /// say (D21).
    fn quiet_since(&self, upstream: &Upstream) -> Option<Duration> {
        match upstream.phase {
            Phase::Open { since, is_answered: false } if upstream.failure.is_some() => {
                Some(since + self.resource_timeout)
            }
            Phase::Open { .. } | Phase::Away { .. } | Phase::Connecting => None,
        }
    }

    fn is_running(&self, watch: WatchId, deadline: Duration) -> bool {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entries.get(at as usize);
        entry.is_some_and(|entry| entry.deadline == Some(deadline))
    }

    /// C5, C6: nothing came in time.
    fn on_silence(&mut self, now: Duration, watch: WatchId, outcome: &mut Outcome) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        entry.deadline = None;
        let server = bits(entry.told).last().expect("a timer runs on a stream that was told");
        let policy = self.upstreams[server].config.errors;
        let (code, after) = match policy.resource_timer_is_transient_error {
            true => (Code::UNAVAILABLE, self.transient_resource_timeout),
            false => (Code::NOT_FOUND, self.resource_timeout),
        };
        let server = &self.upstreams[server].config.name;
        let text = format!("{server} did not answer for {:?} within {after:?}", entry.name.as_str());
        let before = entry.state.view();
        let unconfirmed = entry.state.copy.clone().filter(|_| !policy.resource_timer_is_transient_error);
        entry.state.on_timer(Arc::new(Failure::new(code, text, now)), policy);
        if !before.is_same(&entry.state.view()) {
            outcome.touched.push(Touched { watch, member: None });
        }
        let Some(copy) = unconfirmed else { return };
        let watched = &mut self.types[of_type];
        let Some(named) = watched.names.get_mut(copy.name()) else { return };
        let is_it = |held: &Held| Arc::ptr_eq(&held.accepted, &copy);
        let Some(place) = named.held.iter().position(is_it) else { return };
        named.held.remove(place);
        let (type_url, name) = (watched.type_url.clone(), copy.name().clone());
        let id = VariantId { type_url, name, constraints: copy.constraints().clone() };
        let mut transaction = Transaction::new();
        transaction.remove(id.clone());
        self.cache.commit(transaction).expect("taking a variant away leaves no two that overlap");
        outcome.removed.push(id);
    }

    /// S38: removes what its server let expire.
    fn expire(&mut self, now: Duration, outcome: &mut Outcome) {
        while let Some((at, ..)) = self.expiries.first()
            && *at <= now
        {
            let Some((at, of_type, name, constraints)) = self.expiries.pop_first() else { return };
            let watched = &mut self.types[of_type];
            let Some(named) = watched.names.get_mut(&name) else { continue };
            let Ok(place) = named.position(&constraints) else { continue };
            if named.held[place].expires != Some(at) {
                continue;
            }
            let held = named.held.remove(place);
            if let Some(server) = held.server {
                self.upstreams[server].of_type(of_type).is_partial = true;
            }
            let id = VariantId { type_url: watched.type_url.clone(), name: name.clone(), constraints };
            let mut transaction = Transaction::new();
            transaction.remove(id.clone());
            self.cache.commit(transaction).expect("taking a variant away leaves no two that overlap");
            outcome.removed.push(id);
            let text = format!("the time to live of {:?} ended", name.as_str());
            let failure = Arc::new(Failure::new(Code::NOT_FOUND, text, now));
            let mut watching = Vec::new();
            watched.watching(name.as_str(), &mut watching);
            watched.forget_if_empty(&name);
            for at in watching {
                let entry = watched.entry_mut(at);
                let uses =
                    |state: &State| state.copy.as_ref().is_some_and(|copy| Arc::ptr_eq(copy, &held.accepted));
                let watch = watch_id(of_type, at);
                if let Some(members) = &mut entry.members {
                    if members.get(&name).is_some_and(uses) {
                        members.remove(&name);
                        outcome.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                } else if uses(&entry.state) {
                    entry.state.on_expiry(Arc::clone(&failure));
                    outcome.touched.push(Touched { watch, member: None });
                }
            }
        }
    }
}

impl Entry {
    fn new(
        name: ResourceName,
        parameters: Parameters,
        authority: usize,
        members: Option<Box<Table<State>>>,
    ) -> Self {
        let state = State::default();
        Self { name, parameters, authority, watchers: 0, told: 0, dirty: 0, deadline: None, state, members }
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

fn report(of_type: &WatchedType, entry: &Entry, name: &ResourceName, state: &State) -> Report {
    let copy = state.copy.clone();
    let held = |copy: &Arc<Accepted>| {
        let named = of_type.names.get(copy.name())?;
        let held = named.held.iter().find(|held| Arc::ptr_eq(&held.accepted, copy))?;
        Some(Arc::clone(&held.version))
    };
    Report {
        type_url: of_type.type_url.clone(),
        name: name.clone(),
        parameters: entry.parameters.clone(),
        status: state.status,
        version: copy.as_ref().map(|copy| held(copy).unwrap_or_else(|| Arc::clone(&copy.version))),
        copy,
        error: state.error.clone(),
    }
}

/// The servers of a mask.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..SERVERS_LIMIT).filter(move |server| mask & (1 << server) != 0)
}

/// How many servers a client may have.
pub const SERVERS_LIMIT: usize = 64;
