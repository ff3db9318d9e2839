//! Deadlines: resources that do not come in time (C5, C6), TTLs (S38), and streams on which the
//! server has nothing to send (D21).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::accepted::Accepted;
use super::effects::{Effects, Touched};
use super::resource_failure::ResourceFailure;
use super::resource_state::{ErrorPolicy, ResourceState, ResourceStatus};
use super::store::remove_from;
use super::upstream::{Phase, Upstream};
use super::watched_type::Awaited;
use super::{Client, WatchId, bits, watch_id};
use crate::code::Code;

/// The deadlines of watches after one timeout, oldest first. An element whose watch has another
/// deadline by now, or none, is skipped.
#[derive(Debug)]
pub(super) struct Timers {
    timeout: Duration,
    deadlines: VecDeque<(Duration, WatchId)>,
}

impl Timers {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, deadlines: VecDeque::new() }
    }
}

impl Client {
    /// When to call [`on_timeout`](Self::on_timeout); `None` if no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let timers = self.timers.iter().filter_map(|timers| timers.deadlines.front()).map(|(at, _)| *at);
        let expiry = self.store.expiries.first().map(|(at, ..)| *at);
        let health = (0..self.servers.upstreams.len()).filter_map(|server| self.health_deadline(server));
        let quiet = self.servers.upstreams.iter().filter_map(|upstream| self.works_from(upstream));
        timers.chain(expiry).chain(quiet).chain(health).min()
    }

    /// Handles all deadlines up to `now`.
    pub fn on_timeout(&mut self, now: Duration) -> Effects {
        let mut effects = Effects::default();
        for server in 0..self.servers.upstreams.len() {
            if self.works_from(&self.servers[server]).is_some_and(|at| at <= now) {
                self.on_alive(server, &mut effects);
            }
            self.time_out_health(now, server);
        }
        for timers in 0..self.timers.len() {
            while let Some((deadline, watch)) = self.timers[timers].deadlines.front().copied() {
                if deadline > now && self.is_running(watch, deadline) {
                    break;
                }
                self.timers[timers].deadlines.pop_front();
                if self.is_running(watch, deadline) {
                    self.on_silence(now, watch, &mut effects);
                }
            }
        }
        self.expire(now, &mut effects);
        self.sort_touched(&mut effects);
        effects
    }

    /// Starts the timer of a watch that was sent to a server (C5, C6).
    pub(super) fn start_timer(&mut self, now: Duration, server: usize, watch: WatchId) {
        let policy = self.servers[server].config.errors;
        let timers = &mut self.timers[usize::from(policy.resource_timer_is_transient_error)];
        let deadline = now + timers.timeout;
        timers.deadlines.push_back((deadline, watch));
        let awaited = &mut self.store.entry_mut(watch).awaited;
        let servers = awaited.map_or(0, |awaited| awaited.servers) | 1 << server;
        *awaited = Some(Awaited { until: Some(deadline), servers, is_perhaps_answered: false });
    }

    /// When a server that failed before counts as working, although no response has come on its new
    /// stream: in delta the server may have nothing to send (D21).
    fn works_from(&self, upstream: &Upstream) -> Option<Duration> {
        match upstream.phase {
            Phase::Open { since, is_answered: false } if upstream.failure.is_some() => {
                Some(since + self.timers[0].timeout)
            }
            Phase::Open { .. } | Phase::Away { .. } | Phase::Connecting => None,
        }
    }

    /// Whether this is still the deadline of the watch.
    fn is_running(&self, watch: WatchId, deadline: Duration) -> bool {
        let (of_type, at) = watch.place();
        let entry = self.store.types[of_type].entries.get(at as usize);
        entry.and_then(|entry| entry.awaited).is_some_and(|awaited| awaited.until == Some(deadline))
    }

    /// C5, C6: the resource of a watch did not come in time.
    fn on_silence(&mut self, now: Duration, watch: WatchId, effects: &mut Effects) {
        let entry = self.store.entry_mut(watch);
        let awaited = entry.awaited.as_mut().expect("its timer runs");
        awaited.until = None;
        let server = bits(awaited.servers).last().expect("a timer waits for a server");
        let is_perhaps_answered = awaited.is_perhaps_answered;
        let policy = self.servers[server].config.errors;
        let is_answered = match entry.state.status {
            ResourceStatus::Acked => true,
            // P4.6: the error of a server that is no longer in use says nothing. P1.23, D21: nor does
            // that of an earlier stream, if the client told the server which members it has.
            ResourceStatus::ReceivedError => {
                let has_members = entry.members.as_ref().is_some_and(|members| !members.is_empty());
                let is_old = |(server, error): (usize, &Arc<ResourceFailure>)| {
                    let opened_at = self.servers[server].opened_at();
                    opened_at.is_some_and(|opened_at| opened_at > error.at)
                };
                let is_from_before = entry.state.server.zip(entry.state.error.as_ref()).is_some_and(is_old);
                let is_from_unused = self.servers.authorities[entry.authority].is_from_unused(&entry.state);
                !is_from_unused && (!has_members || !is_from_before)
            }
            _ => false,
        };
        if entry.is_collection() {
            entry.awaited = None;
        }
        if entry.is_collection() && is_answered {
            if !policy.resource_timer_is_transient_error {
                self.drop_members_of_unused_servers(watch, effects);
            }
            return;
        }
        // C12: the answer to a glob or wildcard may have looked like that to a name.
        if entry.members.as_ref().is_some_and(|members| is_perhaps_answered || !members.is_empty()) {
            (entry.state.status, entry.state.error) = (ResourceStatus::Acked, None);
            effects.touched.push(Touched { watch, member: None });
            if !policy.resource_timer_is_transient_error {
                self.drop_members_of_unused_servers(watch, effects);
            }
            return;
        }
        let timers = &self.timers[usize::from(policy.resource_timer_is_transient_error)];
        // S37: a server that does not answer a glob or wildcard may not know what there is.
        let is_transient = policy.resource_timer_is_transient_error || entry.is_collection();
        let policy = ErrorPolicy { resource_timer_is_transient_error: is_transient, ..policy };
        let code = if is_transient { Code::UNAVAILABLE } else { Code::NOT_FOUND };
        let server = &self.servers[server].config.name;
        let text = format!("{server} did not send {:?} within {:?}", entry.name.as_str(), timers.timeout);
        let before = entry.state.view();
        let unconfirmed = entry.state.copy.clone().filter(|_| !is_transient);
        entry.state.on_timer(Arc::new(ResourceFailure::new(code, text, now)), policy);
        if !before.is_same(&entry.state.view()) {
            effects.touched.push(Touched { watch, member: None });
        }
        self.drop_unconfirmed(watch.place().0, unconfirmed.as_slice(), effects);
    }

    /// S32: the client no longer has what the versions of the servers cover that sent these copies.
    fn drop_unconfirmed(&mut self, of_type: usize, copies: &[Arc<Accepted>], effects: &mut Effects) {
        let (removed, senders) = self.store.drop_unconfirmed(of_type, copies);
        bits(senders).for_each(|server| self.servers[server].of_type(of_type).is_partial = true);
        effects.removed.extend(removed);
    }

    /// P4.6: removes the members of a glob or wildcard that only servers which are no longer in use
    /// have sent.
    fn drop_members_of_unused_servers(&mut self, watch: WatchId, effects: &mut Effects) {
        let entry = self.store.entry_mut(watch);
        let (authority, members) = (&self.servers.authorities[entry.authority], entry.members.iter_mut());
        let left = members.flat_map(|members| members.extract_if(|_, state| authority.is_from_unused(state)));
        let (names, states): (Vec<_>, Vec<_>) = left.unzip();
        effects.touched.extend(names.into_iter().map(|name| Touched { watch, member: Some(name) }));
        let copies: Vec<_> = states.into_iter().filter_map(|state| state.copy).collect();
        self.drop_unconfirmed(watch.place().0, &copies, effects);
    }

    /// S38: removes the variants whose TTL has ended.
    fn expire(&mut self, now: Duration, effects: &mut Effects) {
        while let Some((at, ..)) = self.store.expiries.first()
            && *at <= now
        {
            let Some((at, of_type, name, constraints)) = self.store.expiries.pop_first() else { return };
            let watched = &mut self.store.types[of_type];
            let Some(named) = watched.names.get_mut(&name) else { continue };
            let Ok(place) = named.position(&constraints) else { continue };
            if named.variants[place].expires != Some(at) {
                continue;
            }
            let stored = named.variants.remove(place);
            if let Some(server) = stored.server {
                self.servers[server].of_type(of_type).is_partial = true;
            }
            let id = stored.accepted.id();
            remove_from(&self.store.cache, [id.clone()]);
            effects.removed.push(id);
            let text = format!("the TTL of {:?} ended", name.as_str());
            let failure = Arc::new(ResourceFailure::new(Code::NOT_FOUND, text, now));
            let mut watching = Vec::new();
            watched.watching(name.as_str(), &mut watching);
            watched.forget_if_empty(&name);
            for at in watching {
                let entry = watched.entry_mut(at);
                let uses = |state: &ResourceState| {
                    state.copy.as_ref().is_some_and(|copy| Arc::ptr_eq(copy, &stored.accepted))
                };
                let watch = watch_id(of_type, at);
                if let Some(members) = &mut entry.members {
                    if members.get(&name).is_some_and(uses) {
                        members.remove(&name);
                        effects.touched.push(Touched { watch, member: Some(name.clone()) });
                    }
                } else if uses(&entry.state) {
                    entry.state.on_expiry(Arc::clone(&failure));
                    effects.touched.push(Touched { watch, member: None });
                }
            }
        }
    }
}
