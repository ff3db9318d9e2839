//! Fallback: when an authority uses its next server, and what its watchers see if no server works
//! (C15, P1, P4, P5).

use std::sync::Arc;

use super::effects::{Effects, Touched};
use super::resource_failure::ResourceFailure;
use super::upstream::Upstream;
use super::watched_type::{WatchEntry, entry_number};
use super::{Client, WatchId, watch_id};

impl Client {
    /// C15: uses the next server if all servers in use failed and a resource is missing. If there
    /// is no next server, watchers see the outage (P1.1 to P1.4).
    ///
    /// A server that failed before has not failed while its stream is open: its response is due. The
    /// client told it the versions that it has, so this server does not send again what the next one
    /// would replace (D21).
    pub(super) fn fall_back(&mut self, at: usize, effects: &mut Effects) {
        loop {
            let authority = &self.servers.authorities[at];
            let failure_of = |server: &Upstream| server.failure.clone().filter(|_| !server.is_open());
            let failures = authority.in_use().iter().map(|server| failure_of(&self.servers[*server]));
            let Some(failures) = failures.collect::<Option<Vec<_>>>() else { return };
            if authority.entries == 0 {
                return;
            }
            let is_missing = || {
                authority.config.fallback_on_reachability_only
                    || self.entries_of(at).any(|(_, entry)| entry.state.is_missing())
            };
            if authority.next().is_none() || !is_missing() {
                self.set_outage(at, of_all(&failures), effects);
                return;
            }
            self.servers.authorities[at].active += 1;
            let server = *self.servers.authorities[at].in_use().last().expect("one more is in use");
            let entries: Vec<_> = self.entries_of(at).map(|(watch, _)| watch).collect();
            for watch in entries {
                self.mark(server, watch);
            }
        }
    }

    /// P5.2: a server works: it sent a response, or its stream stayed open for long enough (D21).
    pub(super) fn on_alive(&mut self, server: usize, effects: &mut Effects) {
        self.servers[server].failure = None;
        for at in 0..self.servers.authorities.len() {
            if self.servers.authorities[at].uses(server) {
                self.set_outage(at, None, effects);
            }
        }
    }

    /// Begins or ends an outage of an authority. Its watchers see the error until it ends (P4.5).
    pub(super) fn set_outage(
        &mut self,
        at: usize,
        outage: Option<Arc<ResourceFailure>>,
        effects: &mut Effects,
    ) {
        let standing = &self.servers.authorities[at].outage;
        let is_same = match (standing, &outage) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same {
            return;
        }
        self.servers.authorities[at].outage.clone_from(&outage);
        for (of_type, watched) in self.store.types.iter_mut().enumerate() {
            for (number, entry) in watched.entries.iter_mut().filter(|(_, entry)| entry.authority == at) {
                entry.state.outage.clone_from(&outage);
                let number = entry_number(number);
                effects.touched.push(Touched { watch: watch_id(of_type, number), member: None });
            }
        }
    }

    /// The entries of an authority that have watchers.
    pub(super) fn entries_of(&self, authority: usize) -> impl Iterator<Item = (WatchId, &WatchEntry)> {
        let types = self.store.types.iter().enumerate();
        let entries = types.flat_map(|(of_type, watched)| {
            watched.entries.iter().map(move |(at, entry)| (of_type, at, entry))
        });
        let entries = entries.filter(move |(_, _, entry)| entry.authority == authority && entry.watchers > 0);
        entries.map(|(of_type, at, entry)| (watch_id(of_type, entry_number(at)), entry))
    }
}

/// The failure of several servers: each with its own error, and the code of the last one.
fn of_all(failures: &[Arc<ResourceFailure>]) -> Option<Arc<ResourceFailure>> {
    let (last, others) = failures.split_last()?;
    if others.is_empty() {
        return Some(Arc::clone(last));
    }
    let texts: Vec<_> = failures.iter().map(|failure| &*failure.message).collect();
    Some(Arc::new(ResourceFailure::new(last.code, texts.join("; "), last.at)))
}
