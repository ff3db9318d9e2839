//! Types that a server does not serve (G4b): the client goes on without them, tries them again later, and
//! their watchers have the status of the server. A client of a proxy leaves this to the proxy.

use std::sync::Arc;
use std::time::Duration;

use super::effects::{Effects, Touched};
use super::health::{Health, Status};
use super::received::ReceivedResponse;
use super::resource_failure::ResourceFailure;
use super::resource_state::ResourceStatus;
use super::watched_type::{WatchEntry, entry_number};
use super::{Client, WatchId, watch_id};
use crate::code::Code;
use crate::name::TypeUrl;
use crate::resource::VariantId;

impl Client {
    /// The state of each type on a server; `None` for a client of a proxy.
    #[must_use]
    pub fn health(&self, server: usize) -> Option<&Health> {
        self.servers[server].health.as_ref()
    }

    /// Whether a request of a type may go to a server on its open stream. `is_first`: on this stream.
    pub(super) fn may_request(
        &mut self,
        now: Duration,
        server: usize,
        of_type: usize,
        is_first: bool,
    ) -> bool {
        let is_needed = self.needs_type(server, of_type);
        let watched = &self.store.types[of_type];
        let Some(health) = &mut self.servers[server].health else {
            return !(is_first && watched.is_deferred);
        };
        if !is_needed {
            // There is nothing to subscribe to, only to forget.
            return true;
        }
        health.request(now, &watched.type_url);
        !is_first || health.may_subscribe(&watched.type_url)
    }

    /// A request of a type goes to a server on its open stream.
    pub(super) fn note_requested(&mut self, now: Duration, server: usize, of_type: usize) {
        let (type_url, has_version) =
            (&self.store.types[of_type].type_url, self.has_version(server, of_type));
        let health = self.servers[server].health.as_mut();
        if let Some(health) = health.filter(|health| health.may_subscribe(type_url)) {
            health.on_subscribe(now, type_url, has_version);
        }
    }

    /// Whether a stream has a version of the type from the stream before (S32).
    fn has_version(&self, server: usize, of_type: usize) -> bool {
        let upstream = &self.servers[server];
        let version = upstream.types.get(of_type).map(|of_type| &of_type.version);
        !upstream.is_delta() && upstream.is_open() && version.is_some_and(|version| !version.is_empty())
    }

    /// The same for a type of a proxy, on any stream.
    pub(crate) fn brings_version(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.store.number_of(type_url.as_str());
        let mut servers = 0..self.servers.upstreams.len();
        of_type.is_some_and(|of_type| servers.any(|server| self.has_version(server, of_type)))
    }

    /// A watcher left. Without another one of the type, its state is not needed any more.
    pub(super) fn release_type(&mut self, of_type: usize, authority: usize) {
        let watched = &mut self.store.types[of_type].watched;
        if let Some(count) = watched.get_mut(&authority) {
            *count -= 1;
        }
        watched.retain(|_, count| *count > 0);
        for server in 0..self.servers.upstreams.len() {
            self.release_unneeded(server, of_type);
        }
    }

    /// A stream opened. Types without watches are forgotten.
    pub(super) fn open_health(&mut self, now: Duration, server: usize) {
        self.release_types(server);
        if let Some(health) = &mut self.servers[server].health {
            health.on_open(now);
        }
    }

    /// A stream ended with this status of the server. Returns whether a type explains that: then the
    /// server works, and the next stream leaves the type out, or shows which one it is.
    pub(super) fn end_health(
        &mut self,
        now: Duration,
        server: usize,
        status: Option<Status>,
        effects: &mut Effects,
    ) -> bool {
        self.release_types(server);
        let upstream = &mut self.servers[server];
        let Some(health) = &mut upstream.health else {
            let is_explained = std::mem::take(&mut upstream.is_end_explained);
            if let Some((of_type, status)) = upstream.refused.take() {
                self.on_type_refused(now, server, of_type, &status, effects);
            }
            return is_explained;
        };
        let before: Vec<_> = health.isolated().cloned().collect();
        let text = status.clone();
        health.on_end(now, status);
        let new = health.isolated().find(|type_url| !before.contains(type_url)).cloned();
        let (is_explained, is_searching) = (health.explains_end(), health.is_searching());
        if is_searching {
            upstream.forget_versions();
        }
        let of_new = new.and_then(|type_url| self.store.number_of(type_url.as_str()));
        if let Some((of_type, status)) = of_new.zip(text) {
            self.on_type_refused(now, server, of_type, &status, effects);
        }
        is_explained
    }

    /// The stream of a server that ends now does so because of a type, as the proxy knows. `is_searching`: it does not
    /// know which one.
    pub(crate) fn explain_end(&mut self, server: usize, is_searching: bool) {
        self.servers[server].is_end_explained = true;
        if is_searching {
            self.servers[server].forget_versions();
        }
    }

    /// The stream of a server that ends now does so because the server does not serve this type, as the proxy knows.
    pub(crate) fn refuse_type(&mut self, server: usize, type_url: &TypeUrl, status: Status) {
        self.servers[server].refused = self.store.number_of(type_url.as_str()).zip(Some(status));
    }

    /// A response came, with resources, or with this status for all that it names.
    pub(super) fn answer_health(&mut self, server: usize, of_type: usize, refused: Option<Status>) {
        if refused.is_some() && !self.refuses_all(server, of_type) {
            return;
        }
        let Some(health) = &mut self.servers[server].health else { return };
        let type_url = &self.store.types[of_type].type_url;
        _ = match refused {
            Some(status) => health.on_rejected(type_url, status),
            None => health.on_response(type_url),
        };
    }

    /// Whether a server refuses all that is subscribed to of a type. A server that is a proxy of several control
    /// planes may refuse a type for the names of one of them.
    fn refuses_all(&self, server: usize, of_type: usize) -> bool {
        let health = self.servers[server].health.as_ref();
        let is_refused = |health: &Health| health.refusal(&self.store.types[of_type].type_url).is_some();
        // Nothing changes then, and a client of a proxy may make up names without end.
        if health.is_some_and(is_refused) {
            return true;
        }
        let mut entries = self.store.types[of_type].entries.iter().map(|(_, entry)| entry);
        entries.all(|entry| entry.subscribed_on & 1 << server == 0 || entry.is_refused())
    }

    /// As [`refuses_all`](Self::refuses_all), for a proxy.
    pub(crate) fn refuses_type(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.store.number_of(type_url.as_str());
        let mut servers = 0..self.servers.upstreams.len();
        of_type.is_some_and(|of_type| servers.all(|server| self.refuses_all(server, of_type)))
    }

    /// Types that wait too long for a response, and those that are tried again.
    pub(super) fn time_out_health(&mut self, now: Duration, server: usize) {
        let Some(health) = &mut self.servers[server].health else { return };
        if health.next_deadline().is_some_and(|at| at <= now) {
            health.on_timeout(now);
        }
        // The main stream itself shows whether the type is served now.
        let is_due = |type_url: &_| health.probe_at(type_url).is_some_and(|at| at <= now);
        let due: Vec<_> = health.isolated().filter(|type_url| is_due(type_url)).cloned().collect();
        for type_url in due {
            health.on_probe(now, &type_url, Ok(()));
        }
    }

    /// When to call [`time_out_health`](Self::time_out_health).
    pub(super) fn health_deadline(&self, server: usize) -> Option<Duration> {
        let health = self.servers[server].health.as_ref().filter(|_| self.servers[server].is_open())?;
        let probes = health.isolated().filter_map(|type_url| health.probe_at(type_url));
        probes.chain(health.next_deadline()).min()
    }

    /// The error of a type that the server in use of an authority refuses, for a new watch.
    pub(super) fn standing_refusal(&self, authority: usize, of_type: usize) -> Option<Arc<ResourceFailure>> {
        let server = &self.servers[*self.servers.authorities[authority].in_use().last()?];
        let health = server.health.as_ref()?;
        let type_url = health.isolated().find(|type_url| **type_url == self.store.types[of_type].type_url)?;
        Some(failure_of(health.refusal(type_url)?, health.refused_at(type_url)))
    }

    /// G4: drops what a proxy has for a watch that the server refuses now, as it does not serve the type (any
    /// more), and returns the dropped variants. Whoever subscribes later has the status, and no stale content. To be
    /// called when the clients of the proxy have the status, so that none of them takes this for a removal.
    pub(crate) fn drop_refused(&mut self, watch: WatchId) -> Vec<VariantId> {
        let entry = self.store.entry(watch);
        if !entry.is_refused() {
            return Vec::new();
        }
        self.store.drop_refused(watch.place().0, self.store.names_of(watch))
    }

    /// The variants of the names of a watch.
    pub(crate) fn variants_of(&self, watch: WatchId) -> Vec<VariantId> {
        let names = &self.store.types[watch.place().0].names;
        let named = self.store.names_of(watch).into_iter().filter_map(|name| names.get(&name));
        named.flat_map(|named| &named.variants).map(|stored| stored.accepted.id()).collect()
    }

    /// Watchers of a type have the status of the server.
    fn on_type_refused(
        &mut self,
        now: Duration,
        server: usize,
        of_type: usize,
        status: &Status,
        effects: &mut Effects,
    ) {
        let failure = failure_of(status, now);
        for (at, entry) in &mut self.store.types[of_type].entries {
            let authority = &self.servers.authorities[entry.authority];
            if entry.watchers == 0 || authority.in_use().last() != Some(&server) {
                continue;
            }
            let (before, was_refused) = (entry.state.view(), entry.is_refused());
            entry.awaited = None;
            entry.state.on_error(Arc::clone(&failure), self.servers.upstreams[server].config.errors);
            entry.state.server = Some(server);
            // An outage, whose error a view shows first, hides nothing from a proxy.
            let is_news = self.relay.is_some() && !was_refused && entry.is_refused();
            if is_news || !before.is_same(&entry.state.view()) {
                let watch = watch_id(of_type, entry_number(at));
                effects.touched.push(Touched { watch, member: None });
            }
        }
    }

    /// Whether a watch needs the type from this server.
    fn needs_type(&self, server: usize, of_type: usize) -> bool {
        let mut authorities = self.store.types[of_type].watched.keys();
        authorities.any(|authority| self.servers.authorities[*authority].uses(server))
    }

    fn release_types(&mut self, server: usize) {
        let Some(health) = &self.servers[server].health else { return };
        let types: Vec<_> = health.states().map(|(type_url, _)| type_url.clone()).collect();
        for type_url in types {
            if let Some(of_type) = self.store.number_of(type_url.as_str()) {
                self.release_unneeded(server, of_type);
            }
        }
    }

    fn release_unneeded(&mut self, server: usize, of_type: usize) {
        if self.needs_type(server, of_type) {
            return;
        }
        if let Some(health) = &mut self.servers[server].health {
            health.release(&self.store.types[of_type].type_url);
        }
    }
}

impl WatchEntry {
    /// Whether the server says that it does not serve the type.
    pub(super) fn is_refused(&self) -> bool {
        let code = self.state.error.as_ref().map(|error| error.code);
        self.state.status == ResourceStatus::ReceivedError && code == Some(Code::UNIMPLEMENTED)
    }
}

impl ReceivedResponse<'_> {
    /// G4: the status if the response says only that the type is not served.
    pub(super) fn refusal(&self) -> Option<Status> {
        let is_all = self.errors.iter().all(|error| error.code == Code::UNIMPLEMENTED);
        let error = self.errors.first().filter(|_| is_all && self.resources.is_empty())?;
        Some(Status { code: error.code, message: error.message.as_str().into() })
    }
}

/// D28: the status of a stream says nothing about a resource, so it is no data error.
pub(super) fn failure_of(status: &Status, now: Duration) -> Arc<ResourceFailure> {
    let code = if status.code.is_data_error() { Code::UNAVAILABLE } else { status.code };
    Arc::new(ResourceFailure::new(code, Arc::clone(&status.message), now))
}
