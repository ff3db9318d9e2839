//! What the objects of the API server bring, and which of it is in the cache; no I/O.
//!
//! A change of an object marks what it brings. [`State::commit`] makes a transaction of what is
//! marked, so its cost grows with the changes, not with the objects.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use xds_core::{Cache, Resource};

use super::contents::{Rules, sds_secrets};
use super::endpoints::{Service, Slice};
use super::object::{Kind, ObjectName, Problem};
use super::owners::{Owners, Refused};

/// An object as the API server has it.
#[derive(Debug)]
pub(super) enum Object {
    Slice(Box<EndpointSlice>),
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

impl Object {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Slice(_) => Kind::EndpointSlice,
            Self::ConfigMap(_) => Kind::ConfigMap,
            Self::Secret(_) => Kind::Secret,
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Slice(slice) => &slice.metadata,
            Self::ConfigMap(map) => &map.metadata,
            Self::Secret(secret) => &secret.metadata,
        }
    }

    pub(super) fn name(&self) -> ObjectName {
        let ObjectMeta { namespace, name, .. } = self.metadata();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        ObjectName::new(self.kind(), &text(namespace), &text(name))
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Change {
    /// A list of all objects begins.
    Listing,
    /// An object that exists.
    Put(Object),
    /// An object that was deleted, or has no longer the label.
    Gone(ObjectName),
    /// The list is complete: what was not in it does not exist.
    Listed,
}

/// One watch: of the objects of a kind, in one namespace or in all.
#[derive(Debug, Clone)]
pub(super) struct WatchScope {
    pub(super) kind: Kind,
    pub(super) namespace: Option<Box<str>>,
}

#[derive(Debug)]
struct Watched {
    scope: WatchScope,
    /// The objects of the list in progress.
    listing: Option<BTreeSet<ObjectName>>,
    /// Whether there was a complete list.
    is_listed: bool,
}

/// What a commit did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Committed {
    /// Whether the cache has other content.
    pub(super) has_changed: bool,
    /// The number of objects whose resources were made again.
    pub(super) translated: usize,
}

#[derive(Debug)]
pub(super) struct State {
    rules: Rules,
    watched: Vec<Watched>,
    services: BTreeMap<ObjectName, Service>,
    /// The service of each slice.
    service_of: BTreeMap<ObjectName, ObjectName>,
    /// The services whose slices changed.
    dirty: BTreeSet<ObjectName>,
    /// New ConfigMaps and Secrets. They are read at the commit, once however often they changed.
    unread: BTreeMap<ObjectName, Object>,
    /// What objects bring that is not in the cache yet; nothing for an object that is gone.
    pending: BTreeMap<ObjectName, Vec<Resource>>,
    /// What is wrong with objects.
    problems: BTreeMap<ObjectName, Vec<Problem>>,
    owners: Owners,
}

impl State {
    pub(super) fn new(rules: Rules, scopes: Vec<WatchScope>) -> Self {
        let watched = scopes.into_iter().map(|scope| Watched { scope, listing: None, is_listed: false });
        Self {
            rules,
            watched: watched.collect(),
            services: BTreeMap::new(),
            service_of: BTreeMap::new(),
            dirty: BTreeSet::new(),
            unread: BTreeMap::new(),
            pending: BTreeMap::new(),
            problems: BTreeMap::new(),
            owners: Owners::default(),
        }
    }

    /// G13: whether each watch had a complete list, so that what is missing does not exist.
    pub(super) fn is_complete(&self) -> bool {
        self.watched.iter().all(|watched| watched.is_listed)
    }

    pub(super) fn problems(&self) -> &BTreeMap<ObjectName, Vec<Problem>> {
        &self.problems
    }

    /// The number of objects that are known, of services and of the other kinds.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.owners.counts()
    }

    /// Takes an event of a watch, given by its number.
    pub(super) fn on(&mut self, watch: usize, change: Change) {
        match change {
            Change::Listing => self.watched[watch].listing = Some(BTreeSet::new()),
            Change::Put(object) => {
                if let Some(listing) = &mut self.watched[watch].listing {
                    listing.insert(object.name());
                }
                self.put(object);
            }
            Change::Gone(name) => self.remove(&name),
            Change::Listed => self.listed(watch),
        }
    }

    fn listed(&mut self, watch: usize) {
        let watched = &mut self.watched[watch];
        watched.is_listed = true;
        let Some(listing) = watched.listing.take() else { return };
        let WatchScope { kind, namespace } = watched.scope.clone();
        let is_gone = |name: &&ObjectName| {
            name.kind == kind
                && namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
                && !listing.contains(*name)
        };
        let known = self.service_of.keys().chain(self.problems.keys()).chain(self.owners.objects());
        let pending = self.unread.keys().chain(self.pending.keys());
        let gone: BTreeSet<_> = known.chain(pending).filter(is_gone).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    fn put(&mut self, object: Object) {
        let name = object.name();
        match object {
            Object::Slice(slice) => match Slice::of(&slice) {
                Ok(slice) => self.put_slice(name, slice),
                // The last good content stays in use.
                Err(problem) => _ = self.problems.insert(name, vec![problem]),
            },
            Object::ConfigMap(_) | Object::Secret(_) => _ = self.unread.insert(name, object),
        }
    }

    /// Reads a ConfigMap or a Secret.
    fn read(&mut self, name: ObjectName, object: Object) {
        let brought = match object {
            Object::ConfigMap(map) => self.rules.config_map(&name.namespace, *map),
            Object::Secret(secret) => sds_secrets(&name.namespace, &name.name, *secret),
            Object::Slice(_) => return,
        };
        self.brings(name, brought);
    }

    fn brings(&mut self, name: ObjectName, brought: Result<Vec<Resource>, Vec<Problem>>) {
        match brought {
            Ok(resources) => {
                self.problems.remove(&name);
                self.pending.insert(name, resources);
            }
            Err(problems) => {
                // The last good content stays in use.
                self.pending.remove(&name);
                self.problems.insert(name, problems);
            }
        }
    }

    fn put_slice(&mut self, name: ObjectName, slice: Option<Slice>) {
        self.problems.remove(&name);
        let service =
            slice.as_ref().map(|slice| ObjectName::new(Kind::Service, &name.namespace, &slice.service));
        if self.service_of.get(&name) != service.as_ref() {
            self.remove_slice(&name);
        }
        let (Some(slice), Some(service)) = (slice, service) else { return };
        if self.services.entry(service.clone()).or_default().put(&name.name, slice) {
            self.dirty.insert(service.clone());
        }
        self.service_of.insert(name, service);
    }

    fn remove_slice(&mut self, name: &ObjectName) {
        let Some(service) = self.service_of.remove(name) else { return };
        if let Some(slices) = self.services.get_mut(&service) {
            slices.remove(&name.name);
        }
        self.dirty.insert(service);
    }

    fn remove(&mut self, name: &ObjectName) {
        self.problems.remove(name);
        match name.kind {
            Kind::EndpointSlice => self.remove_slice(name),
            Kind::Service | Kind::ConfigMap | Kind::Secret => {
                self.unread.remove(name);
                self.pending.insert(name.clone(), Vec::new());
            }
        }
    }

    /// Commits what changed. Call it only once the lists are [complete](Self::is_complete).
    pub(super) fn commit(&mut self, cache: &Cache) -> Committed {
        debug_assert!(self.is_complete(), "what is not listed yet would count as absent");
        let translated = self.dirty.len() + self.unread.len();
        for (name, object) in std::mem::take(&mut self.unread) {
            self.read(name, object);
        }
        for name in std::mem::take(&mut self.dirty) {
            let Some(service) = self.services.get_mut(&name) else { continue };
            let brought = service
                .assignments(&name.namespace, &name.name)
                .map_err(|error| vec![Problem::Resource(Box::new(error))]);
            if service.is_empty() {
                self.services.remove(&name);
            }
            self.brings(name, brought);
        }
        let pending = std::mem::take(&mut self.pending);
        let outcome = self.owners.commit(cache, pending);
        for name in &outcome.accepted {
            self.problems.remove(name);
        }
        for Refused { object, problem, waiting } in outcome.refused {
            self.problems.insert(object.clone(), vec![problem]);
            // Tried again at the next commit, when the name may be free.
            self.pending.extend(waiting.map(|resources| (object, resources)));
        }
        Committed { has_changed: outcome.has_changed, translated }
    }

    /// Whether a commit would have something to do.
    pub(super) fn has_changes(&self) -> bool {
        !(self.dirty.is_empty() && self.unread.is_empty() && self.pending.is_empty())
    }
}

#[cfg(test)]
mod tests;
