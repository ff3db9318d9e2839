//! What happens because time passes: silence (C5, C6), TTLs that end (S38), streams on which there
//! is nothing to say (D21).

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
    /// When to call [`on_timeout`](Self::on_timeout).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let timers = self.timers.iter().filter_map(|timers| timers.front()).map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, ..)| *at);
        let quiet = self.upstreams.iter().filter_map(|upstream| self.quiet_since(upstream));
        timers.chain(expiry).chain(quiet).min()
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Duration) -> Effects {
        let mut effects = Effects::default();
        for server in 0..self.upstreams.len() {
            if self.quiet_since(&self.upstreams[server]).is_some_and(|at| at <= now) {
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

    /// When a stream that follows a failure is taken for working though nothing came: in delta
    /// there may be nothing to say (D21).
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
    fn on_silence(&mut self, now: Duration, watch: WatchId, effects: &mut Effects) {
        let (of_type, at) = watch.place();
        let entry = self.types[of_type].entry_mut(at);
        entry.deadline = None;
        let server = bits(entry.subscribed_on).last().expect("a timer runs on a stream that was told");
        let policy = self.upstreams[server].config.errors;
        if entry.is_collection() && entry.state.status == ResourceStatus::Acked {
            if !policy.resource_timer_is_transient_error {
                self.drop_members_of_unused_servers(watch, effects);
            }
            return;
        }
        let (code, after) = match policy.resource_timer_is_transient_error {
            true => (Code::UNAVAILABLE, self.transient_resource_timeout),
            false => (Code::NOT_FOUND, self.resource_timeout),
        };
        let server = &self.upstreams[server].config.name;
        let text = format!("{server} did not answer for {:?} within {after:?}", entry.name.as_str());
        let before = entry.state.view();
        let unconfirmed = entry.state.copy.clone().filter(|_| !policy.resource_timer_is_transient_error);
        entry.state.on_timer(Arc::new(ResourceFailure::new(code, text, now)), policy);
        if !before.is_same(&entry.state.view()) {
            effects.touched.push(Touched { watch, member: None });
        }
        self.drop_unconfirmed(of_type, unconfirmed.as_slice(), effects);
    }

    /// P4.6: what a glob or wildcard stands for only by the word of servers that were left is no
    /// part of it.
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

    /// Has the cache hold what nobody confirmed no longer.
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
            self.cache.commit(transaction).expect("taking variants away leaves no two that overlap");
        }
    }

    /// S38: removes what its server let expire.
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
            self.cache.commit(transaction).expect("taking a variant away leaves no two that overlap");
            effects.removed.push(id);
            let text = format!("the time to live of {:?} ended", name.as_str());
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
