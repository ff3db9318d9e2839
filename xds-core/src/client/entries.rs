//! Adding entries, and marking them for requests. A new entry starts with resources from the cache.

use std::sync::Arc;

use super::resource_state::{ResourceState, ResourceStatus};
use super::upstream::TypeStream;
use super::watched_type::{ByName, WILDCARD, WatchEntry, entry_number};
use super::{Client, WatchId};
use crate::name::ResourceName;
use crate::parameters::Parameters;

impl Client {
    /// Adds an entry, and gives it the matching resources from the cache.
    pub(super) fn insert(&mut self, of_type: usize, mut entry: WatchEntry) -> u32 {
        let snapshot = self.store.cache.snapshot();
        let watched = &mut self.store.types[of_type];
        let resources = snapshot.of_type(&watched.type_url);
        entry.state.outage.clone_from(&self.servers.authorities[entry.authority].outage);
        match &mut entry.members {
            None => {
                let stored = watched.resolve(&entry.name, &entry.parameters, resources);
                if let Some(stored) = stored {
                    entry.state.on_resource(Arc::clone(&stored.accepted));
                    entry.state.server = stored.server;
                    if stored.accepted.is_restored {
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
                    if let Some(stored) = watched.resolve(name, &entry.parameters, resources) {
                        let mut state = ResourceState { server: stored.server, ..ResourceState::default() };
                        state.on_resource(Arc::clone(&stored.accepted));
                        members.insert(name.clone(), state);
                    }
                }
            }
        }
        watched.insert(entry)
    }

    /// Marks an entry whose subscription on a server may have to change, for the next request.
    pub(super) fn mark(&mut self, server: usize, watch: WatchId) {
        if !self.servers[server].is_open() {
            return;
        }
        let (of_type, at) = watch.place();
        let entry = self.store.entry_mut(watch);
        if entry.dirty & (1 << server) == 0 {
            entry.dirty |= 1 << server;
            self.servers[server].of_type(of_type).dirty.push(at);
        }
    }

    /// After the end of a stream: stops its timers, because they run only on an open stream (C5),
    /// and removes entries without watchers, which only waited for the unsubscription.
    pub(super) fn after_stream(&mut self, server: usize) {
        self.forget_subscriptions(server);
        for of_type in 0..self.store.types.len() {
            let is_unused = |entry: &WatchEntry| entry.watchers == 0 && entry.subscribed_on == 0;
            let unused = self.store.types[of_type].entries.iter().filter(|(_, entry)| is_unused(entry));
            for at in unused.map(|(at, _)| at).collect::<Vec<_>>() {
                let at = entry_number(at);
                self.store.remove(of_type, at);
            }
        }
    }

    /// Forgets the types of which nothing is left, and that no server knows.
    pub(super) fn forget_types(&mut self) {
        let upstreams = &self.servers.upstreams;
        let is_open = |number: usize| {
            upstreams.iter().any(|upstream| upstream.types.get(number).is_some_and(|of| of.is_open))
        };
        let forgotten = self.store.forget_types(is_open);
        for upstream in &mut self.servers.upstreams {
            for number in &forgotten {
                *upstream.of_type(*number) = TypeStream::default();
            }
        }
    }

    /// Forgets the subscriptions that were sent on the stream of a server.
    pub(super) fn forget_subscriptions(&mut self, server: usize) {
        let bit = 1 << server;
        for (_, entry) in self.store.types.iter_mut().flat_map(|watched| watched.entries.iter_mut()) {
            entry.subscribed_on &= !bit;
            entry.stop_waiting_for(server);
            entry.dirty &= !bit;
        }
    }
}

impl WatchEntry {
    /// Whether a server has not answered it yet.
    pub(super) fn is_awaited_from(&self, server: usize) -> bool {
        self.awaited.is_some_and(|awaited| awaited.servers & 1 << server != 0)
    }

    /// C5: a server can no longer answer. The timer goes on if another one has to answer, too.
    pub(super) fn stop_waiting_for(&mut self, server: usize) {
        if let Some(awaited) = &mut self.awaited {
            awaited.servers &= !(1 << server);
        }
        self.awaited = self.awaited.filter(|awaited| awaited.servers != 0);
    }

    pub(super) fn new(
        name: ResourceName,
        parameters: Parameters,
        authority: usize,
        members: Option<Box<ByName<ResourceState>>>,
    ) -> Self {
        let state = ResourceState::default();
        Self {
            name,
            parameters,
            authority,
            watchers: 0,
            subscribed_on: 0,
            dirty: 0,
            awaited: None,
            state,
            members,
        }
    }
}
