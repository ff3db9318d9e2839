//! The state of each type in one upstream, generation by generation.
//!
//! Every main stream to the upstream begins a [`Generation`]. When each requested type has its
//! first response, is rejected, or has had no response for the resource timeout, the generation is
//! reported once, by an [`Init`]. From then on each change is reported by itself. A type that the
//! upstream does not serve never delays the others.
//!
//! ```text
//!                on_response                     on_open
//!   Requested -----------------> Synced(g) <----------------> Stale(g-1)
//!    ^     |                      ^     |       on_response     |
//!    |     | rejected             |     | rejected              | rejected
//!    |     v                      |     v                       |
//!    +--- Rejected(g, status) ----+  <--+-----------------------+
//!  on_open (answered)     on_response (answered)
//!  on_probe (isolated)
//! ```
//!
//! xDS has no message for a type that is not served. There are two ways to find out:
//!
//! - *Answered*: the upstream sends UNIMPLEMENTED for the type alone, as an error in a response or
//!   as the end of the RPC that only this type has ([`Health::on_rejected`]). No other type is
//!   affected, so the next stream subscribes again.
//! - *Isolated*: the main stream ends whenever it subscribes to the type. The next streams
//!   subscribe to the types that had a response and to a part of the others, until one type alone
//!   ends the stream: with n types and one culprit after at most log2(n) + 1 reconnects. The main
//!   stream does not subscribe to this type until its [probe](Health::probe_at). A proxy probes on a
//!   stream of its own, which keeps the main stream; a client without a proxy subscribes again on its
//!   stream.
//!
//! A missing response is never a rejection: after the timeout the type is *pending*, and its
//! resources from before stay in use.
//!
//! Deliberately not here: streams, requests, resources, and the clients that need a type. A type is
//! requested or it is not.
//!
//! ```
//! use std::time::Duration;
//! use xds_core::client::Code;
//! use xds_core::client::health::{Event, Health, Status};
//!
//! let now = Duration::ZERO;
//! let (clusters, things) = ("type.googleapis.com/C".into(), "type.googleapis.com/T".into());
//! let mut health = Health::default();
//! health.request(now, &clusters);
//! health.request(now, &things);
//! health.on_open(now);
//! for type_url in [&clusters, &things] {
//!     health.on_subscribe(now, type_url, false);
//! }
//! assert!(health.on_response(&clusters).is_empty(), "nothing is known of the other");
//! let status = Status { code: Code(12), message: "no such type".into() };
//! let events = health.on_rejected(&things, status.clone());
//! let [Event::Init(init)] = &events[..] else { panic!("all is known") };
//! assert!(init.confirmed.contains(&clusters));
//! assert_eq!(init.rejected[&things], status);
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `sync_state` | generation, status, the state of a type, [`Init`] |
//! | `culprit_search` | which of the types without a response ends the stream |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::name::TypeUrl;

use culprit_search::CulpritSearch;

pub use sync_state::{Event, Generation, Init, Status, SyncState};

mod culprit_search;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod isolation_tests;
mod sync_state;
#[cfg(test)]
mod tests;

/// The requested types of one upstream, each with its state.
///
/// The caller reports the events of the main stream, passes on the events that come back, and
/// subscribes to the types of [`to_subscribe`](Self::to_subscribe), as
/// [`may_subscribe`](Self::may_subscribe) allows. Each call costs O(types).
#[derive(Debug)]
pub struct Health {
    resource_timeout: Duration,
    /// The generation of the newest stream.
    generation: Generation,
    /// The newest generation whose [`Init`] was returned.
    init_given: Generation,
    phase: StreamPhase,
    types: BTreeMap<TypeUrl, RequestedType>,
    search: CulpritSearch,
    /// How many streams in a row ended because of a type, before any response and before any type was pending.
    searches: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPhase {
    /// No stream is open. The next one may lead to another server than before, or to a newer one.
    Away,
    /// A type ended the stream. The next stream leads to the same server.
    Searching,
    /// The main stream is open.
    Open,
}

/// One requested type.
#[derive(Debug)]
struct RequestedType {
    state: SyncState,
    /// Whether the present stream subscribed to it.
    is_subscribed: bool,
    /// When the type becomes [pending](Init::pending) without a response; `None` if no response is
    /// awaited.
    deadline: Option<Duration>,
    /// Until when an end of the stream may be because of the type; `None` unless the present stream subscribed to it
    /// and it had no response.
    suspect_until: Option<Duration>,
    /// When to probe it; `None` unless it is isolated.
    probe_at: Option<Duration>,
    /// How many times in a row it was isolated, or its probe failed.
    failures: u32,
    /// When it was isolated.
    refused_at: Duration,
}

impl Health {
    /// An upstream without requested types. A type without a response for `resource_timeout` is
    /// pending.
    #[must_use]
    pub fn new(resource_timeout: Duration) -> Self {
        Self {
            resource_timeout,
            generation: Generation::ZERO,
            init_given: Generation::ZERO,
            phase: StreamPhase::Away,
            types: BTreeMap::new(),
            search: CulpritSearch::default(),
            searches: 0,
        }
    }

    /// Requests a type; repeating it changes nothing. During a search the type waits for the
    /// result, so that no end of the stream is attributed to the wrong type.
    pub fn request(&mut self, now: Duration, type_url: &TypeUrl) {
        if self.types.contains_key(type_url) {
            return;
        }
        if self.search.is_active() {
            self.search.defer(type_url.clone());
        }
        let deadline = self.is_open().then(|| now + self.resource_timeout);
        let requested = RequestedType {
            state: SyncState::Requested,
            is_subscribed: false,
            deadline,
            suspect_until: None,
            probe_at: None,
            failures: 0,
            refused_at: now,
        };
        self.types.insert(type_url.clone(), requested);
    }

    /// A type is not needed any more. It is forgotten, with its rejection.
    pub fn release(&mut self, type_url: &TypeUrl) -> Vec<Event> {
        self.types.remove(type_url);
        self.search.clear(type_url);
        self.events(None)
    }

    /// The main stream opened: a new generation begins. Types that were rejected before are tried
    /// again, isolated types by a probe.
    pub fn on_open(&mut self, now: Duration) -> Vec<Event> {
        let is_new_server = self.phase != StreamPhase::Searching;
        self.phase = StreamPhase::Open;
        self.generation = self.generation.next();
        for requested in self.types.values_mut() {
            // The client may have closed the stream before.
            (requested.is_subscribed, requested.suspect_until) = (false, None);
            requested.deadline = requested.probe_at.is_none().then(|| now + self.resource_timeout);
            requested.state = match (requested.state.clone(), &mut requested.probe_at) {
                (SyncState::Rejected(_, status), Some(probe_at)) => {
                    if is_new_server {
                        *probe_at = now;
                        requested.failures = 0;
                    }
                    SyncState::Rejected(self.generation, status)
                }
                (SyncState::Rejected(..), None) => SyncState::Requested,
                (SyncState::Synced(before), _) => SyncState::Stale(before),
                (state @ (SyncState::Requested | SyncState::Stale(_)), _) => state,
            };
        }
        self.events(None)
    }

    /// The main stream subscribed to a type, as [allowed](Self::may_subscribe): the timeout of its
    /// response starts. `has_version`: the request has the version of the stream before, as in SotW, so a server
    /// without news sends nothing. Such a type is pending soon, and a suspect as long as any other.
    pub fn on_subscribe(&mut self, now: Duration, type_url: &TypeUrl, has_version: bool) {
        debug_assert!(
            self.is_open() && self.may_subscribe(type_url),
            "the stream subscribed to {type_url}, which it may not"
        );
        let timeout =
            if has_version { WITHOUT_NEWS.min(self.resource_timeout) } else { self.resource_timeout };
        let Some(requested) = self.types.get_mut(type_url).filter(|requested| !requested.is_subscribed)
        else {
            return;
        };
        requested.is_subscribed = true;
        if !matches!(requested.state, SyncState::Synced(_)) {
            requested.deadline = Some(now + timeout);
            requested.suspect_until = Some(now + self.resource_timeout);
        }
    }

    /// A response of a type was processed. The first one of a generation confirms the type.
    pub fn on_response(&mut self, type_url: &TypeUrl) -> Vec<Event> {
        self.on_answer(type_url, SyncState::Synced(self.generation))
    }

    /// The upstream answered that it does not serve a type: by UNIMPLEMENTED in `resource_errors`,
    /// or as the end of the RPC of this type alone. Of several such answers on one stream the first
    /// one stays.
    pub fn on_rejected(&mut self, type_url: &TypeUrl, status: Status) -> Vec<Event> {
        self.on_answer(type_url, SyncState::Rejected(self.generation, status))
    }

    fn on_answer(&mut self, type_url: &TypeUrl, state: SyncState) -> Vec<Event> {
        let is_open = self.is_open();
        let requested = self.types.get_mut(type_url);
        // The main stream did not subscribe to an isolated type; this response comes from
        // elsewhere.
        let Some(requested) = requested.filter(|requested| is_open && requested.probe_at.is_none()) else {
            return Vec::new();
        };
        self.searches = 0;
        (requested.deadline, requested.suspect_until) = (None, None);
        if matches!(state, SyncState::Synced(_)) {
            requested.failures = 0;
        }
        if std::mem::discriminant(&requested.state) == std::mem::discriminant(&state) {
            return Vec::new();
        }
        requested.state = state;
        self.search.clear(type_url);
        self.events(Some(type_url))
    }

    /// The main stream ended, with the status if the server sent one, or could not be opened. After
    /// a status that servers use to refuse a type, the types that the stream subscribed to without
    /// a response are suspects. After any other status no type is.
    pub fn on_end(&mut self, now: Duration, status: Option<Status>) -> Vec<Event> {
        self.phase = StreamPhase::Away;
        let unanswered = self.unanswered();
        for requested in self.types.values_mut() {
            requested.is_subscribed = false;
            (requested.deadline, requested.suspect_until) = (None, None);
        }
        let status = status.filter(Status::may_mean_a_type);
        let Some(status) = status.filter(|_| self.search.concerns(&unanswered)) else {
            self.searches = 0;
            return Vec::new();
        };
        self.phase = StreamPhase::Searching;
        self.searches += 1;
        let culprit = self.search.on_end(unanswered);
        let Some(type_url) = culprit else { return Vec::new() };
        let requested = self.types.get_mut(&type_url).expect("only requested types are searched");
        requested.state = SyncState::Rejected(self.generation, status);
        requested.refused_at = now;
        requested.back_off(now);
        self.events(Some(&type_url))
    }

    /// The types that may have ended the stream: those that it subscribed to and that had no
    /// response. Types whose timeout has passed count only if there is no other.
    fn unanswered(&self) -> BTreeSet<TypeUrl> {
        let is_open = |requested: &RequestedType| {
            requested.is_subscribed && matches!(requested.state, SyncState::Requested | SyncState::Stale(_))
        };
        let all = self.types.iter().filter(|(_, requested)| is_open(requested));
        let (fresh, silent): (BTreeMap<_, _>, _) =
            all.partition(|(_, requested)| requested.suspect_until.is_some());
        let suspects = if fresh.is_empty() { silent } else { fresh };
        suspects.into_keys().cloned().collect()
    }

    /// When to call [`on_timeout`](Self::on_timeout). Probes have times of their own.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let times = self.types.values().flat_map(|requested| [requested.deadline, requested.suspect_until]);
        times.flatten().min()
    }

    /// Handles the timers that are due: types without a response for too long are pending. When the stream outlived
    /// its subscription to one by the resource timeout, it is no suspect either.
    pub fn on_timeout(&mut self, now: Duration) -> Vec<Event> {
        let is_due = |at: &mut Duration| *at <= now;
        for (type_url, requested) in &mut self.types {
            _ = requested.deadline.take_if(is_due);
            if requested.suspect_until.take_if(is_due).is_some() {
                self.search.clear(type_url);
                self.searches = 0;
            }
        }
        self.events(None)
    }

    /// Whether the main stream may subscribe to a type, now or when it opens. Not to a rejected
    /// type, and not to one that has to wait for the end of a search.
    #[must_use]
    pub fn may_subscribe(&self, type_url: &TypeUrl) -> bool {
        let may = |requested: &RequestedType| match requested.state {
            SyncState::Rejected(..) => requested.probe_at.is_none() && !self.is_open(),
            SyncState::Requested | SyncState::Synced(_) | SyncState::Stale(_) => {
                !self.search.must_wait(type_url)
            }
        };
        self.types.get(type_url).is_some_and(may)
    }

    /// The types that this stream may subscribe to and has not subscribed to yet, in order. There
    /// may be more after each event.
    pub fn to_subscribe(&self) -> impl Iterator<Item = &TypeUrl> {
        let to_subscribe =
            self.types.iter().filter(|(_, requested)| self.is_open() && !requested.is_subscribed);
        to_subscribe.map(|(type_url, _)| type_url).filter(|type_url| self.may_subscribe(type_url))
    }

    /// When to subscribe to an isolated type on a stream of its own; `None` for every other type.
    ///
    /// After 30 s, then twice as long each time up to 10 min; at once when the main stream opens
    /// after it ended for another reason, because the server may be a newer one.
    #[must_use]
    pub fn probe_at(&self, type_url: &TypeUrl) -> Option<Duration> {
        self.types.get(type_url)?.probe_at
    }

    /// The types that the main stream does not subscribe to until a probe succeeds.
    pub fn isolated(&self) -> impl Iterator<Item = &TypeUrl> {
        self.types.iter().filter(|(_, requested)| requested.probe_at.is_some()).map(|(type_url, _)| type_url)
    }

    /// Moves the next probe to the time when it can prove something.
    pub fn probe_next(&mut self, type_url: &TypeUrl, at: Duration) {
        if let Some(probe_at) = self.types.get_mut(type_url).and_then(|of| of.probe_at.as_mut()) {
            *probe_at = at;
        }
    }

    /// The result of a probe: `Ok` when its stream had a response, or was open for the resource
    /// timeout. The main stream may then subscribe to the type at once. After an error the type
    /// stays isolated, with its original status.
    pub fn on_probe(&mut self, now: Duration, type_url: &TypeUrl, outcome: Result<(), Status>) -> Vec<Event> {
        let deadline = self.is_open().then(|| now + self.resource_timeout);
        let requested = self.types.get_mut(type_url).filter(|requested| requested.probe_at.is_some());
        let Some(requested) = requested else { return Vec::new() };
        if outcome.is_err() {
            requested.back_off(now);
            return Vec::new();
        }
        requested.probe_at = None;
        requested.state = SyncState::Requested;
        requested.deadline = deadline;
        if self.search.is_active() {
            self.search.defer(type_url.clone());
        }
        self.events(Some(type_url))
    }

    /// Whether the last stream ended because of a type, so the server works, and the next stream goes on
    /// without the type, or shows which one it is.
    ///
    /// Not if nothing is left to subscribe to, or after more streams without a response than a search takes:
    /// then the server works for no type (C15).
    #[must_use]
    pub fn explains_end(&self) -> bool {
        let has_others = self.types.values().any(|requested| requested.probe_at.is_none());
        let limit = self.types.len().checked_ilog2().unwrap_or_default() + 2;
        self.phase == StreamPhase::Searching && has_others && self.searches <= limit
    }

    /// Whether the next streams show which type the server does not serve. They bring no version of any type (S32),
    /// so that the server answers each one that it serves at once, and silence is a sign.
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_active()
    }

    /// The status with which a type was refused; `None` if it was not.
    #[must_use]
    pub fn refusal(&self, type_url: &TypeUrl) -> Option<&Status> {
        match self.state(type_url)? {
            SyncState::Rejected(_, status) => Some(status),
            SyncState::Requested | SyncState::Synced(_) | SyncState::Stale(_) => None,
        }
    }

    /// When a type was isolated.
    pub(super) fn refused_at(&self, type_url: &TypeUrl) -> Duration {
        self.types.get(type_url).map(|requested| requested.refused_at).unwrap_or_default()
    }

    /// The generation of the newest stream.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether the [`Init`] of the newest generation was returned. Until then the new generation is
    /// built beside the one before.
    #[must_use]
    pub fn is_init(&self) -> bool {
        self.generation > Generation::ZERO && self.init_given == self.generation
    }

    /// The state of a type; `None` unless it is requested.
    #[must_use]
    pub fn state(&self, type_url: &TypeUrl) -> Option<&SyncState> {
        self.types.get(type_url).map(|requested| &requested.state)
    }

    /// Every requested type in order, with its state.
    pub fn states(&self) -> impl Iterator<Item = (&TypeUrl, &SyncState)> {
        self.types.iter().map(|(type_url, requested)| (type_url, &requested.state))
    }

    fn is_open(&self) -> bool {
        self.phase == StreamPhase::Open
    }

    /// Ends a transition: the events for the caller after one type changed, or none.
    fn events(&mut self, changed: Option<&TypeUrl>) -> Vec<Event> {
        self.assert_invariants();
        if self.is_init() {
            let changed =
                changed.and_then(|type_url| Some((type_url.clone(), self.state(type_url)?.clone())));
            return changed
                .map(|(type_url, state)| Event::Reclassified { type_url, state })
                .into_iter()
                .collect();
        }
        if !self.is_decided() {
            return Vec::new();
        }
        self.init_given = self.generation;
        vec![Event::Init(Init::new(self.generation, self.states()))]
    }

    /// Whether each type had a response, is rejected or is pending. Without any type there is
    /// nothing to report.
    fn is_decided(&self) -> bool {
        let is_decided = |requested: &RequestedType| match requested.state {
            // Without a type to subscribe to there may never be a stream again.
            SyncState::Rejected(..) => self.is_open() || requested.probe_at.is_some(),
            SyncState::Synced(_) => self.is_open(),
            SyncState::Requested | SyncState::Stale(_) => self.is_open() && requested.deadline.is_none(),
        };
        !self.types.is_empty() && self.types.values().all(is_decided)
    }

    fn assert_invariants(&self) {
        debug_assert!(self.init_given <= self.generation);
        for (type_url, requested) in &self.types {
            let is_of_now = match requested.state {
                // A type is never both confirmed and rejected: it has one state, and the state is
                // of this generation.
                SyncState::Synced(generation) | SyncState::Rejected(generation, _) => {
                    generation == self.generation
                }
                SyncState::Stale(generation) => generation < self.generation,
                SyncState::Requested => true,
            };
            debug_assert!(is_of_now, "{type_url} is {:?} in {}", requested.state, self.generation);
            let is_rejected = matches!(requested.state, SyncState::Rejected(..));
            debug_assert!(is_rejected || requested.probe_at.is_none(), "only rejected types are isolated");
            debug_assert!(!is_rejected || !self.search.has(type_url), "a rejected type is no suspect");
            debug_assert!(self.is_open() || !requested.is_subscribed, "only an open stream subscribes");
            debug_assert!(self.is_open() || requested.deadline.is_none(), "timers run only on a stream");
            debug_assert!(
                requested.is_subscribed || requested.suspect_until.is_none(),
                "only what a stream subscribes to can end it"
            );
        }
        debug_assert!(self.search.types().all(|type_url| self.types.contains_key(type_url)));
        debug_assert!(self.search.is_active() || self.search.types().next().is_none(), "a search goes on");
    }
}

/// With the timeout of gRFC A57: 15 s (C5).
impl Default for Health {
    fn default() -> Self {
        Self::new(Duration::from_secs(15))
    }
}

impl RequestedType {
    fn back_off(&mut self, now: Duration) {
        let after = FIRST_PROBE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PROBE);
        self.probe_at = Some(now + after);
        self.failures = self.failures.saturating_add(1);
    }
}

/// How long a server that may have no news has for them.
const WITHOUT_NEWS: Duration = Duration::from_millis(500);
const FIRST_PROBE: Duration = Duration::from_secs(30);
const LONGEST_PROBE: Duration = Duration::from_secs(600);
