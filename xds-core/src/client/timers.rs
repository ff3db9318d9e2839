//! Deadlines: resources that do not come in time (C5, C6), TTLs (S38), and streams on which the
//! server has nothing to send (D21).

use std::sync::Arc;
use std::time::Duration;

use super::accepted::Accepted;
use super::effects::{Effects, Touched};
use super::resource_failure::ResourceFailure;
use super::resource_state::{ResourceState, ResourceStatus};
use super::upstream::{Phase, Upstream};
use super::watched_type::StoredVariant;
use super::{Client, WatchId, bits, watch_id};
use crate::cache::Transaction;
use crate::code::Code;
use crate::resource::VariantId;

impl Client {
    /// When to call [`on_timeout`](Self::on_timeout); `None` if no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let timers = self.timers.iter().filter_map(|timers| timers.front()).map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, ..)| *at);
        let quiet = self.upstreams.iter().filter_map(|upstream| self.works_from(upstream));
        timers.chain(expiry).chain(quiet).min()
    }

    /// Handles all deadlines up to `now`.
    pub fn on_timeout(&mut self, now: Duration) -> Effects {
        let mut effects = Effects::default();
        for server in 0..self.upstreams.len() {
            if self.works_from(&self.upstreams[server]).is_some_and(|at| at <= now) {
                self.on_alive(server, &mut effects);
            }
        }
        for timers in 0..self.timers.len() {
            while let Some((deadline, watch)) = self.timers[timers].front().copied() {
                if deadline > now && self.is_running(watch, deadline) {
                    break;
                }
                self.timers[timers].pop_front();
                if self.is_running(watch, deadline) {
                    self.on_silence(now, watch, &mut effects);
                }
            }
        }
        self.expire(now, &mut effects);
        self.sort_touched(&mut effects);
        effects
    }

    /// When a server that failed before counts as working, although no response has come on its new
    /// stream: in delta the server may have nothing to send (D21).
    fn works_from(&self, upstream: &Upstream) -> Option<Duration> {
        match upstream.phase {
            Phase::Open { since, is_answered: false } if upstream.failure.is_some() => {
                Some(since + self.resource_timeout)
            }
            Phase::Open { .. } | Phase::Away { .. } | Phase::Connecting => None,
        }
    }

    /// Whether this is still the deadline of the watch.
    fn is_running(&self, watch: WatchId, deadline: Duration) -> bool {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entries.get(at as usize);
        entry.is_some_and(|entry| entry.deadline == Some(deadline))
    }

    /// C5, C6: the resource of a watch did not come in time.
    fn on_silence(&mut self, now: Duration, watch: WatchId, effects: &mut Effects) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        entry.deadline = None;
        let server = bits(entry.subscribed_on).last().expect("a timer runs only while subscribed");
        let policy = self.upstreams[server].config.errors;
        if entry.is_collection() && entry.state.status == ResourceStatus::Acked {
            if !policy.resource_timer_is_transient_error {
                self.drop_members_of_unused_servers(watch, effects);
            }
            return;
        }
        // C12: the answer to a glob or wildcard may have looked like that to a name.
        if entry.members.as_ref().is_some_and(|members| !members.is_empty()) {
            entry.state.status = ResourceStatus::Acked;
            effects.touched.push(Touched { watch, member: None });
            return;
        }
        let (code, after) = match policy.resource_timer_is_transient_error {
            true => (Code::UNAVAILABLE, self.transient_resource_timeout),
            false => (Code::NOT_FOUND, self.resource_timeout),
        };
        let server = &self.upstreams[server].config.name;
        let text = format!("{server} did not send {:?} within {after:?}", entry.name.as_str());
        let before = entry.state.view();
        let unconfirmed = entry.state.copy.clone().filter(|_| !policy.resource_timer_is_transient_error);
        entry.state.on_timer(Arc::new(ResourceFailure::new(code, text, now)), policy);
        if !before.is_same(&entry.state.view()) {
            effects.touched.push(Touched { watch, member: None });
        }
        self.drop_unconfirmed(of_type, unconfirmed.as_slice(), effects);
    }

    /// P4.6: removes the members of a glob or wildcard that only servers which are no longer in use
    /// have sent.
    fn drop_members_of_unused_servers(&mut self, watch: WatchId, effects: &mut Effects) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        let (authority, members) = (&self.authorities[entry.authority], entry.members.iter_mut());
        let left = members.flat_map(|members| members.extract_if(|_, state| authority.is_from_unused(state)));
        let (names, states): (Vec<_>, Vec<_>) = left.unzip();
        effects.touched.extend(names.into_iter().map(|name| Touched { watch, member: Some(name) }));
        let copies: Vec<_> = states.into_iter().filter_map(|state| state.copy).collect();
        self.drop_unconfirmed(of_type, &copies, effects);
    }

    /// Removes copies from the cache that no server in use has confirmed.
    fn drop_unconfirmed(&mut self, of_type: usize, copies: &[Arc<Accepted>], effects: &mut Effects) {
        let watched = &mut self.types[of_type];
        let mut transaction = Transaction::new();
        for copy in copies {
            let Some(named) = watched.names.get_mut(copy.name()) else { continue };
            let is_it = |stored: &StoredVariant| Arc::ptr_eq(&stored.accepted, copy);
            let Some(place) = named.variants.iter().position(is_it) else { continue };
            named.variants.remove(place);
            watched.forget_if_empty(copy.name());
            let (type_url, name) = (watched.type_url.clone(), copy.name().clone());
            let id = VariantId { type_url, name, constraints: copy.constraints().clone() };
            transaction.remove(id.clone());
            effects.removed.push(id);
        }
        if !transaction.is_empty() {
            self.cache.commit(transaction).expect("removals cannot make variants overlap");
        }
    }

    /// S38: removes the variants whose TTL has ended.
    fn expire(&mut self, now: Duration, effects: &mut Effects) {
        while let Some((at, ..)) = self.expiries.first()
            && *at <= now
        {
            let Some((at, of_type, name, constraints)) = self.expiries.pop_first() else { return };
            let watched = &mut self.types[of_type];
            let Some(named) = watched.names.get_mut(&name) else { continue };
            let Ok(place) = named.position(&constraints) else { continue };
            if named.variants[place].expires != Some(at) {
                continue;
            }
            let stored = named.variants.remove(place);
            if let Some(server) = stored.server {
                self.upstreams[server].of_type(of_type).is_partial = true;
            }
            let id = VariantId { type_url: watched.type_url.clone(), name: name.clone(), constraints };
            let mut transaction = Transaction::new();
            transaction.remove(id.clone());
            self.cache.commit(transaction).expect("removals cannot make variants overlap");
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
