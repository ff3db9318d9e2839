//! The types of one stream and the order in which they send, the same for both protocols.

use std::sync::Arc;
use std::time::Duration;

use xds_proto::type_url::ROUTE_CONFIGURATION;

use super::client_group::{ClientGroup, Seat};
use super::config::{Serving, StreamConfig};
use super::entries::{TypeEntries, TypeEntry};
use super::order::{Gate, Order};
use super::referrers_sent::ReferrersSent;
use super::request::Request;
use super::response::{DeniedNames, Next, Response, Service, StreamError, Verdict};
use super::terms::Terms;
use super::turn::{Made, Nonces, Turn};
use super::type_state::TypeState;
use super::virtual_hosts::VirtualHosts;
use super::{delta, sotw};
use crate::access::{Access, NamePatterns};
use crate::cache::{RejectedOfType, Snapshot, ViewId, Watch};
use crate::name::{ResourceName, TypeUrl, Version};
use crate::parameters::Parameters;
use crate::protocol::Protocol;
use crate::subscription::Requested;
use crate::wire::{Failure, ResourceKey};

/// One stream of either protocol, seen from the server.
///
/// Pass requests to [`on_request`](Self::on_request), then call [`next`](Self::next) until it
/// returns [`Next::Wait`].
#[derive(Debug)]
pub struct Stream {
    pub(super) watch: Arc<Watch>,
    protocol: Protocol,
    pub(super) config: StreamConfig,
    /// The parameters derived from the node of the stream (T46); empty until the node is known.
    parameters: Parameters,
    /// These with what the access adds, for the next type; `None` until one needs them.
    derived: Option<Parameters>,
    /// What the client may read; `None` means everything.
    access: Option<Arc<Access>>,
    /// Whether the client removes a resource when its TTL ends (S38).
    honours_ttl: bool,
    /// The place of this stream among the streams of its client.
    seat: Option<Seat>,
    /// Whether its client polls: it takes one response, and sends no ACK.
    is_poll: bool,
    service: Service,
    /// What it saw last.
    view: ViewId,
    pub(super) entries: TypeEntries,
    /// Delta: what was sent before the client subscribed to the types of what it names.
    referrers_sent: ReferrersSent,
    /// `None` until the client requests virtual hosts.
    pub(super) virtual_hosts: Option<Box<VirtualHosts>>,
    nonces: Nonces,
}

/// What a look at all types is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Sends,
    /// To find out whether there may be something to send.
    Looks,
}

/// The result of a look at all types.
enum Found {
    /// Nothing is due before this time.
    Nothing(Option<Duration>),
    /// The same, but a type that was due needed no response. Types before it may send now.
    Needless(Option<Duration>),
    Response(Result<Response, StreamError>),
    /// Something may be due.
    Due,
}

impl Stream {
    /// A stream without requests.
    #[must_use]
    pub fn new(watch: Arc<Watch>, service: Service, protocol: Protocol, config: StreamConfig) -> Self {
        Self {
            watch,
            protocol,
            config,
            parameters: Parameters::new(),
            derived: None,
            access: None,
            honours_ttl: false,
            seat: None,
            is_poll: false,
            service,
            view: ViewId::STABLE,
            entries: TypeEntries::default(),
            referrers_sent: ReferrersSent::default(),
            virtual_hosts: None,
            nonces: Nonces::default(),
        }
    }

    /// Its protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Sets the parameters that were derived from the node. Call it before the first request: the
    /// node of a stream does not change (G7), so later calls have no effect on existing
    /// subscriptions.
    pub fn on_node(&mut self, parameters: Parameters) {
        (self.parameters, self.derived) = (parameters, None);
    }

    /// Sets what the client may read. Call it before the first request. For names that the client
    /// may not read it gets resource errors, `PERMISSION_DENIED`, and keeps what it has of them. Of
    /// a wildcard or glob it gets the resources that it may read.
    pub fn on_access(&mut self, access: Arc<Access>) {
        (self.access, self.derived) = (Some(access), None);
    }

    /// The names of the last request that the client may not read; `None` without any. SotW: those
    /// that were reported before are left out.
    pub fn take_denied_names(&mut self) -> Option<DeniedNames> {
        // A request has one type.
        self.entries.iter_mut().find_map(|entry| entry.state.names.denied_names.take())
    }

    /// Sets that the client removes a resource when its TTL ends, so it may be sent TTLs (S38).
    /// Call it before the first request.
    pub fn on_ttl_support(&mut self) {
        self.honours_ttl = true;
    }

    /// Sets that the client polls (S41): it takes one response, and sends no ACK. So that response has
    /// everything. Call it before the first request.
    pub fn on_poll(&mut self) {
        self.is_poll = true;
    }

    /// Joins the other streams of the client. Call it before the first request. All streams of a
    /// group must take `now` from the same clock, as they compare the times of their responses.
    pub fn join(&mut self, group: &ClientGroup) {
        self.seat = Some(group.join(&self.watch));
    }

    /// Applies one request: its changes of the subscription, and its ACK or NACK.
    ///
    /// # Errors
    /// The stream must end with this error.
    pub fn on_request(
        &mut self,
        now: Duration,
        request: impl Into<Request>,
    ) -> Result<Option<Verdict>, StreamError> {
        let (at, verdict) = match (self.protocol, request.into()) {
            (Protocol::Sotw, Request::Sotw(request)) => sotw::on_request(self, now, request)?,
            (Protocol::Delta, Request::Delta(request)) => delta::on_request(self, now, request)?,
            (protocol, _) => return Err(StreamError::WrongProtocol { expected: protocol }),
        };
        self.entries[at].check_owed(self.config.names_limit)?;
        if matches!(verdict, Some(Verdict::Nacked { .. })) {
            self.share_rejections();
        }
        Ok(verdict)
    }

    /// S6d: notes what the client rejected alone for the other streams of the cache. Of those that reject
    /// the same, one looks for what is bad.
    fn share_rejections(&mut self) {
        for state in self.entries.states_mut() {
            state.decide_turns(&self.watch);
            for found in state.take_found() {
                let view = self.watch.snapshot();
                self.watch.cache().rejected().note(&view, &state.terms.type_url, &found);
            }
        }
    }

    /// Whether the client subscribes to anything of a type. If a request names something and the
    /// result is false, all of it was refused (G8, G12).
    #[must_use]
    pub fn is_subscribed(&self, type_url: &TypeUrl) -> bool {
        self.entries.of_type(type_url.as_str()).is_some_and(|entry| !entry.state.subscription.is_empty())
    }

    /// SotW: the version that a response with the whole selection of a type would have; the version
    /// of an empty one when there is no subscription.
    ///
    /// S41: a poll with this version needs no response, so none has to be made to find that out.
    pub fn version(&mut self, type_url: &TypeUrl, snapshot: &Snapshot) -> Version {
        let Some(TypeEntry { state, .. }) = self.entries.of_type_mut(type_url.as_str()) else {
            return Version(0);
        };
        state.refresh(snapshot);
        state.resolve(snapshot).version()
    }

    /// The index of the requested type, and whether the type is new on this stream.
    pub(super) fn find_or_add(&mut self, type_url: &str) -> Result<(usize, bool), StreamError> {
        if let Some(at) = self.entries.find(type_url) {
            return Ok((at, false));
        }
        let type_url = self.service.type_of(type_url)?;
        if let Some(at) = self.entries.find(type_url.as_str()) {
            return Ok((at, false));
        }
        if self.entries.len() >= self.config.types_limit {
            return Err(StreamError::TooManyTypes { limit: self.config.types_limit });
        }
        let (known, serving) = self.config.type_of(&type_url);
        if serving == Serving::Refused {
            return Err(StreamError::NotServed { type_url });
        }
        let is_sotw = self.protocol == Protocol::Sotw;
        // G5: SotW does not serve types that exist only in delta.
        let is_served = serving == Serving::Served && !(is_sotw && known.delta_only);
        let is_on_demand = self.watch.cache().read(Snapshot::is_on_demand);
        let access = self.access.as_deref();
        let scope = access.map(|access| access.of_type(&type_url)).filter(|names| !names.is_everything());
        let is_denied = scope.is_some_and(NamePatterns::is_empty);
        let scope = scope.cloned();
        let derived = self.derived.get_or_insert_with(|| {
            let derived =
                access.map_or_else(|| self.parameters.clone(), |access| access.overlay(&self.parameters));
            if is_on_demand { derived.bound() } else { derived }
        });
        let terms = Terms {
            protocol: self.protocol,
            type_url,
            known,
            is_served: is_served && !is_denied,
            scope,
            ttl: self.honours_ttl && (known.ttl_in_sotw || !is_sotw),
            // S40: only heartbeats can have the TTL that is left: next to a payload the TTL is part
            // of the content.
            sends_ttl_left: is_on_demand && known.heartbeats && !is_sotw,
            is_on_demand,
        };
        let mut state = TypeState::new(terms, derived.clone());
        let excluded = self.watch.cache().read(|snapshot| snapshot.excluded.clone());
        state.subscription = std::mem::take(&mut state.subscription).without(excluded);
        state.responses.enter(self.view != ViewId::STABLE);
        Ok((self.entries.add(state), true))
    }

    /// The seat, if anything depends on other streams of the client.
    fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|seat| seat.group().is_tied())
    }

    /// The seat, also if nothing depends on the other streams.
    pub(super) fn any_seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// Whether the client may read a resource.
    pub(super) fn may_read(&self, type_url: &TypeUrl, name: &ResourceName) -> bool {
        self.access.as_deref().is_none_or(|access| access.allows(type_url, name))
    }

    /// What to do now. Load the newest snapshot after the last request was passed in. Of several
    /// requests only the newest is answered (S9).
    pub fn next(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        self.enter(snapshot);
        if self.watch.is_lost()
            && let Some(state) = self.entries.states().next()
        {
            let type_url = state.terms.type_url.clone();
            return Next::Close(StreamError::FellBehind { type_url });
        }
        for state in self.entries.states_mut() {
            state.note_clean();
            state.settle(now);
        }
        let group = self.seat().map(|seat| seat.group().clone());
        let _deciding = group.as_ref().map(ClientGroup::begin_deciding);
        if let Some(seat) = &self.seat {
            if group.is_some() {
                seat.set_waiting(true);
            }
            for (target, names) in seat.take_followers() {
                let entry = self.entries.of_type_mut(target.type_url());
                if let Some(entry) = entry.filter(|entry| entry.state.is_answered()) {
                    entry.owe_followers(&names, now);
                }
            }
        }
        let next = self.next_in_order(now, snapshot);
        if let Some(error) = self.virtual_hosts_error() {
            return Next::Close(error);
        }
        if snapshot.has_ended() && matches!(next, Next::Wait { .. }) {
            self.leave_ended(snapshot);
        }
        for TypeState { published, holding, responses, .. } in self.entries.states_mut() {
            published.update(holding, responses, snapshot);
        }
        if let Some(seat) = &self.seat {
            if seat.group().is_tied() || self.entries.states().any(|state| state.published.is_outdated) {
                seat.publish(self.entries.states_mut());
            }
            if group.is_some() {
                let mut states = self.entries.states();
                let is_behind =
                    |state: &TypeState| state.holding.is_behind(snapshot) || state.holding.has_removed();
                // D33: other streams decide which virtual hosts are sent.
                seat.set_waiting(self.virtual_hosts.is_some() || states.any(is_behind));
            }
        }
        next
    }

    /// The stream sees another view than before when its client begins to try a candidate, or was
    /// sent everything after the end of one. Then all its types change their class at once.
    pub(super) fn enter(&mut self, snapshot: &Snapshot) {
        if self.view != snapshot.view() {
            self.view = snapshot.view();
            self.expect_virtual_hosts(ROUTE_CONFIGURATION);
            self.entries.states_mut().for_each(|state| state.enter(snapshot));
        }
    }

    /// Returns to the stable state if the client was sent everything in the view of a candidate that
    /// ended. A type of which it was sent nothing yet, as its source does not answer, does not count.
    fn leave_ended(&mut self, snapshot: &Snapshot) {
        let is_sent = |state: &TypeState| !state.is_answered() || !state.holding.is_behind(snapshot);
        let has_all = |state: &TypeState| is_sent(state) && !state.holding.is_switching();
        if self.entries.states().all(has_all) {
            for state in self.entries.states_mut() {
                state.holding.reach(snapshot);
                // S33: the stable state does not know what resources named in the view. So the client, which
                // has not accepted the stable ones yet, may use anything.
                if !state.is_clean() {
                    state.holding.forget_clean();
                }
            }
            if let Some(before) = self.watch.leave_view() {
                for state in self.entries.states_mut() {
                    state.holding.go_back(before);
                    state.responses.go_back(before);
                }
            }
        }
    }

    fn next_in_order(&mut self, now: Duration, snapshot: &Snapshot) -> Next {
        // When a type turns out to need no response, an earlier type that waits for it may send
        // (S33).
        let mut until = None;
        for _ in 0..=self.entries.len() {
            match self.pass(now, snapshot, Pass::Sends) {
                Found::Nothing(time) => return Next::Wait { until: time },
                Found::Needless(time) => until = time,
                Found::Response(Ok(response)) => return Next::Send(response),
                Found::Response(Err(error)) => return Next::Close(error),
                Found::Due => unreachable!("a pass that sends makes the response"),
            }
        }
        Next::Wait { until }
    }

    /// Until when [`next`](Self::next) would return [`Next::Wait`], where `Some(None)` means
    /// without a time; `None` if there may be something to send. This costs less than `next`, so a
    /// caller without room for another response can find out whether it must call `next` when it
    /// has room.
    pub fn until_due(&mut self, now: Duration, snapshot: &Snapshot) -> Option<Option<Duration>> {
        self.enter(snapshot);
        match self.pass(now, snapshot, Pass::Looks) {
            Found::Nothing(_) if self.virtual_hosts_error().is_some() => None,
            Found::Nothing(until) => Some(until),
            Found::Needless(_) | Found::Response(_) | Found::Due => None,
        }
    }

    /// Looks at each type once, until one has something to send.
    fn pass(&mut self, now: Duration, snapshot: &Snapshot, pass: Pass) -> Found {
        let (mut until, mut is_needless) = (None, false);
        for at in 0..self.entries.len() {
            if self.entries[at].state.responses.in_flight().has_parts() && snapshot.has_commit() {
                return self.make(pass, |stream| {
                    let nonce = stream.nonces.next();
                    Ok(stream.entries[at].state.next_part(now, nonce))
                });
            }
            let mut gate = self.gate(at, now, snapshot);
            while gate == Gate::Open {
                match self.make(pass, |stream| stream.respond(at, now, snapshot)) {
                    Found::Nothing(_) => {
                        is_needless = true;
                        gate = self.due(at, now, snapshot);
                    }
                    found => return found,
                }
            }
            let waits_until = self.entries[at].waits_until(self.config.sync_wait);
            let settles_at = self.entries[at].state.responses.rejections().settles_at();
            until = gate.earlier(waits_until.into_iter().chain(settles_at).chain(until).min());
        }
        if is_needless { Found::Needless(until) } else { Found::Nothing(until) }
    }

    /// Makes a response, in a pass that sends.
    fn make(
        &mut self,
        pass: Pass,
        make: impl FnOnce(&mut Self) -> Result<Option<Response>, StreamError>,
    ) -> Found {
        match pass {
            Pass::Looks => Found::Due,
            Pass::Sends => make(self).transpose().map_or(Found::Nothing(None), Found::Response),
        }
    }

    /// When a type may send.
    fn gate(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Gate {
        let look_again = match self.virtual_hosts {
            Some(_) => self.follow_virtual_hosts(at, now, snapshot),
            None => None,
        };
        match (self.gate_of_type(at, now, snapshot), look_again) {
            (Gate::Open, _) => Gate::Open,
            (gate, None) => gate,
            (gate, Some(_)) => gate.earlier(look_again).map_or(Gate::Shut, Gate::Until),
        }
    }

    fn gate_of_type(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Gate {
        // A type that waits is refreshed, too: commits wake it by its class.
        self.entries[at].state.refresh(snapshot);
        let wait = self.config.sync_wait;
        if let Some(gate) = self.entries[at].wait_for_knowledge(now, wait, snapshot) {
            return gate;
        }
        let state = &mut self.entries[at].state;
        state.schedule_refresh(now, snapshot);
        if state.terms.sends_full_state()
            && snapshot.is_on_demand()
            && state.resolve(snapshot).full_state_overlaps()
        {
            return Gate::Shut;
        }
        let TypeEntry { state, owed } = &self.entries[at];
        let is_known = state.unknown.wildcard_failures.is_empty();
        if !owed.unsubscribed_later.is_empty() && is_known && !self.order(now, snapshot).must_wait(at) {
            self.entries[at].owed.resume(now);
        }
        self.due(at, now, snapshot)
    }

    fn respond(
        &mut self,
        at: usize,
        now: Duration,
        snapshot: &Snapshot,
    ) -> Result<Option<Response>, StreamError> {
        if self.entries[at].is_before_first_commit(snapshot) {
            let (nonce, wait) = (self.nonces.next(), self.config.sync_wait);
            return Ok(Some(self.entries[at].report_unknown(now, wait, nonce, snapshot)));
        }
        if self.virtual_hosts.is_some() {
            let type_url = self.entries[at].state.terms.type_url.clone();
            self.expect_virtual_hosts(type_url.as_str());
        }
        let made = match self.entries[at].state.responses.rejections().is_empty() {
            true => self.make_changes(at, now, snapshot)?,
            false => self.make_part_or_changes(at, now, snapshot)?,
        };
        Ok(made.map(|made| {
            self.on_referrers_sent(&made, now);
            made.response
        }))
    }

    /// For a client that rejected something: parts and changes take turns (S6c).
    fn make_part_or_changes(
        &mut self,
        at: usize,
        now: Duration,
        snapshot: &Snapshot,
    ) -> Result<Option<Made>, StreamError> {
        let entry = &self.entries[at];
        let additions = self.order(now, snapshot).additions_left(at);
        let part_may_go = entry.part_gate(now, self.config.ack_wait, additions, snapshot) == Gate::Open;
        let part_is_next = part_may_go && entry.state.responses.rejections().part_is_next();
        let mut made = if part_is_next { self.make_part(at, additions, now, snapshot) } else { None };
        if made.is_none() {
            made = self.make_changes(at, now, snapshot)?;
        }
        if made.is_none() && part_may_go && !part_is_next {
            made = self.make_part(at, additions, now, snapshot);
        }
        Ok(made)
    }

    /// Answers, changes and removals.
    fn make_changes(
        &mut self,
        at: usize,
        now: Duration,
        snapshot: &Snapshot,
    ) -> Result<Option<Made>, StreamError> {
        let released = self.release(at, now, snapshot);
        let must_wait = self.order(now, snapshot).must_wait(at);
        let known = self.known_rejected(at);
        let (entry, config, nonces) = (&mut self.entries[at], &self.config, &mut self.nonces);
        let mut turn = Turn { now, snapshot, config, released, must_wait, known, nonces };
        match self.protocol {
            Protocol::Sotw => sotw::respond(entry, &mut turn),
            Protocol::Delta => delta::respond(entry, &mut turn, &self.referrers_sent),
        }
    }

    /// Contents that clients rejected alone (S6d). A poll has no NACK, so its response has everything.
    fn known_rejected(&self, at: usize) -> Option<Arc<RejectedOfType>> {
        let state = &self.entries[at].state;
        if self.is_poll || state.responses.rejections().leave_nothing_out() {
            return None;
        }
        self.watch.cache().rejected().of_type(&state.terms.type_url)
    }

    /// A part of what the client rejected (S6c).
    fn make_part(&mut self, at: usize, additions: Gate, now: Duration, snapshot: &Snapshot) -> Option<Made> {
        let (released, must_wait, known) = (Vec::new(), false, self.known_rejected(at));
        let (entry, config, nonces) = (&mut self.entries[at], &self.config, &mut self.nonces);
        let mut turn = Turn { now, snapshot, config, released, must_wait, known, nonces };
        let made = entry.respond_with_part(additions == Gate::Open, &mut turn)?;
        // S34: the part has what follows a resource that was sent.
        let TypeEntry { state, owed } = entry;
        let newest = state.responses.in_flight().sent().last();
        let is_sent =
            |name: &ResourceName| newest.is_some_and(|of| of.contents.of_name(name).next().is_some());
        owed.followers.retain(|name| !is_sent(name));
        Some(made)
    }

    /// S34, S36, D27: a cluster that was sent warms until its endpoints follow, whether they changed or
    /// not. S34b: a client that is sent another source of a secret waits for it.
    fn on_referrers_sent(&mut self, made: &Made, now: Duration) {
        for of_type in made.followers.chunk_by(|(one, _), (other, _)| one == other) {
            let target = of_type[0].0;
            let names = || of_type.iter().map(|(_, name)| name);
            let entry = self.entries.of_type_mut(target.type_url());
            // A client with one stream for all types subscribes to endpoints before it ACKs the clusters.
            if let Some(seat) = self.seat.as_ref().filter(|_| entry.is_none()) {
                seat.owe_followers(target, names());
            }
            match (entry, self.protocol) {
                (Some(entry), Protocol::Sotw) => entry.owe_followers(names(), now),
                (Some(entry), Protocol::Delta) if entry.state.is_answered() => {
                    entry.owe_followers(names(), now);
                }
                (None, Protocol::Sotw) => {}
                (_, Protocol::Delta) => self.referrers_sent.add(target, names().cloned(), made.is_whole),
            }
        }
    }

    /// Returns the withheld removals of a type that may be sent now.
    fn release(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Vec<ResourceKey> {
        if !self.entries[at].state.holding.has_removed() {
            return Vec::new();
        }
        let release = self.order(now, snapshot).removals(at);
        self.entries[at].state.release(&release, self.config.removal_grace, now, snapshot)
    }

    /// The order in which its types may send.
    fn order<'s>(&'s self, now: Duration, snapshot: &'s Snapshot) -> Order<'s> {
        Order::new(&self.entries, self.seat(), &self.config, now, snapshot)
    }

    fn due(&mut self, at: usize, now: Duration, snapshot: &Snapshot) -> Gate {
        let TypeState { times, holding, .. } = &mut self.entries[at].state;
        times.note_changes(now, holding.is_behind(snapshot));
        self.order(now, snapshot).due(at)
    }

    /// Removes from a request what no resource can match, and what the client may not read. Returns
    /// an error for each.
    pub(super) fn take_invalid(
        &mut self,
        at: usize,
        requested: &mut Requested,
    ) -> Result<Vec<Failure>, StreamError> {
        let TypeState { names, terms, .. } = &mut self.entries[at].state;
        names.take_invalid(requested, terms, self.access.as_deref(), self.config.parameters_limit)
    }
}
