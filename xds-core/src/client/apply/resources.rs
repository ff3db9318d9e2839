//! Validating one resource of a response, and applying it to the changes for the cache (C2, C4, C10,
//! T43c).

use std::sync::Arc;

use bytes::Bytes;

use super::{Applier, NewVariant};
use crate::client::cache_changes::VariantKey;
use crate::client::received::{ReceivedPayload, ReceivedResource, Removal};
use crate::client::rejection::{Reason, Rejection};
use crate::client::resource_state::{ResourceState, ResourceStatus};
use crate::client::watched_type::expiry_of;
use crate::constraint::Constraints;
use crate::extras::Extras;
use crate::name::ResourceName;
use crate::protocol::Protocol;
use crate::resource::{Resource, other_name};
use crate::subscription::is_set;

impl Applier<'_> {
    /// Whether an alias of a resource is watched. An alias of another authority does not count
    /// (C16).
    fn is_alias(&self, alias: &ResourceName, of: &str) -> bool {
        let authority = self.watched.authority_of(of);
        let entries = self.watched.names.get(alias).map(|named| &named.entries[..]).unwrap_or_default();
        let mut entries = entries.iter().map(|at| self.watched.entry(*at));
        entries.any(|entry| entry.authority == authority && self.serves(entry) && !entry.is_collection())
    }

    /// T43c: gives a resource the constraints of the stamp, if it does not say itself which clients
    /// it is for. Returns whether the client can use it.
    ///
    /// A client with an exact stamp subscribes for one locator and shares nothing. It gives every
    /// resource its stamp.
    fn bind(&mut self, received: &mut ReceivedResource<'_>) -> bool {
        let Some(relay) = self.relay else { return true };
        let is_explicit = !received.is_plain
            && self.servers.authorities[self.watched.authority_of(&received.name)].config.speaks_locators;
        let is_unspecified = received.constraints.is_unconstrained() && !is_explicit;
        let is_alone = relay.stamp.as_ref().is_some_and(Constraints::is_exact);
        let is_bound = is_unspecified || received.do_not_cache || is_alone;
        match &relay.stamp {
            _ if !is_bound => true,
            Some(stamp) => {
                received.constraints = stamp.clone();
                true
            }
            None => {
                self.applied.plain.push(ResourceName::new(&*received.name));
                false
            }
        }
    }

    /// Validates a resource, and applies it if a watch matches it.
    pub(super) fn apply_resource(&mut self, mut received: ReceivedResource<'_>) {
        let mut watching = Vec::new();
        self.watched.watching(&received.name, &mut watching);
        let is_for = |at: &u32| {
            let entry = self.watched.entry(*at);
            self.serves(entry) && received.constraints.matches(&entry.parameters)
        };
        let aliases: Vec<_> =
            received.aliases.iter().filter(|alias| self.is_alias(alias, &received.name)).cloned().collect();
        // S24, T33b, T41: a resource that no watch matches is ignored, even if it is invalid.
        if !watching.iter().any(is_for) && aliases.is_empty() {
            self.applied.unwatched += 1;
            return;
        }
        if !self.bind(&mut received) {
            return;
        }
        if is_set(&received.name) {
            let name = ResourceName::new(&*received.name);
            self.applied.rejections.push(Rejection::new(name, Reason::NameOfSet));
            return;
        }
        match received.payload {
            ReceivedPayload::Message(payload) => self.apply_payload(&received, payload, aliases),
            ReceivedPayload::Redirect(locator) if self.relay.is_some() => {
                self.apply_payload(&received, locator, aliases);
            }
            ReceivedPayload::Absent => self.apply_without_payload(&received, aliases),
            ReceivedPayload::Redirect(_) => {
                let name = ResourceName::new(&*received.name);
                self.applied.rejections.push(Rejection::new(name, Reason::Redirect));
            }
        }
    }

    /// Applies a resource with a payload: an unchanged one to the watches, a changed one to
    /// `changes`.
    fn apply_payload(&mut self, received: &ReceivedResource<'_>, payload: &[u8], aliases: Vec<ResourceName>) {
        let sender = self.sender();
        let own_aliases = self.watched.own_aliases(received);
        let mut extras =
            Extras::received(received.ttl, own_aliases, received.do_not_cache, received.metadata);
        if matches!(received.payload, ReceivedPayload::Redirect(_)) {
            extras.get_or_insert_default().is_redirect = true;
        }
        // The variant is in the cache: this may be a duplicate in the response, or unchanged.
        if let Some(named) = self.watched.names.get_mut(&*received.name)
            && let Ok(at) = named.position(&received.constraints)
        {
            let stored = &mut named.variants[at];
            if stored.last_response == self.head.number {
                let name = stored.accepted.name().clone();
                let duplicate = Rejection::of(name, received.constraints.clone(), Reason::Duplicate);
                self.applied.rejections.push(duplicate);
                return;
            }
            stored.last_response = self.head.number;
            let is_same = *stored.accepted.payload() == payload
                && stored.accepted.variant.has_extras(extras.as_deref());
            if is_same && !stored.accepted.is_restored {
                if sender.config.protocol == Protocol::Sotw {
                    stored.version = Arc::clone(&self.head.version);
                } else if *stored.version != *received.version {
                    stored.version = received.version.into();
                }
                stored.server = Some(self.server);
                let accepted = Arc::clone(&stored.accepted);
                let until = expiry_of(received.ttl, self.now);
                stored.set_expiry(until, self.of_type, self.expiries);
                self.applied.valid += 1;
                self.add_aliases(accepted.name(), aliases);
                // Watches that have it without an error or a timer see no change.
                let is_current = |at: &u32| {
                    let entry = self.watched.entry(*at);
                    let state = match &entry.members {
                        None => Some(&entry.state),
                        Some(members) => members.get(accepted.name()),
                    };
                    let copy = state.and_then(|state| state.copy.as_ref());
                    let is_known = |state: &ResourceState| {
                        state.status == ResourceStatus::Acked && state.server == Some(self.server)
                    };
                    // P1.23: it ends the error of a glob or wildcard.
                    let has_error =
                        entry.is_collection() && entry.state.status == ResourceStatus::ReceivedError;
                    state.is_some_and(is_known)
                        && !has_error
                        && entry.awaited.is_none()
                        && copy.is_some_and(|copy| Arc::ptr_eq(copy, &accepted))
                };
                let mut watching = Vec::new();
                self.watched.watching(&received.name, &mut watching);
                if !watching.iter().all(is_current) {
                    self.pending.changed_names.push(accepted.name().clone());
                }
                return;
            }
        }
        // The variant is new or changed. Its name shares memory with the table.
        let known = self.watched.names.get_key_value(&*received.name).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| ResourceName::new(&*received.name));
        let key: VariantKey = (name.clone(), received.constraints.clone());
        if self.changes.put.contains_key(&key) {
            self.applied.rejections.push(Rejection::of(key.0, key.1, Reason::Duplicate));
            return;
        }
        // D23: a proxy may send the payload to its clients without a wrapper. They would take the
        // name in the payload for the name of the resource.
        let is_passed_on = self.relay.is_some() && !matches!(received.payload, ReceivedPayload::Redirect(_));
        if let Some(other) = other_name(&self.watched.type_url, &name, payload).filter(|_| is_passed_on) {
            self.applied.rejections.push(Rejection::of(key.0, key.1, Reason::NamedOtherwise { other }));
            return;
        }
        let payload = self.payload_bytes(payload);
        let decoded = match self.watched.decode.as_ref().map(|decode| decode(&name, &payload)).transpose() {
            Ok(decoded) => decoded,
            Err(text) => {
                self.applied.rejections.push(Rejection::of(key.0, key.1, Reason::Payload(text)));
                return;
            }
        };
        let resource = Resource::received(self.watched.type_url.clone(), name.clone(), payload, extras);
        let resource = resource.with_constraints(received.constraints.clone());
        // C2: a client of the proxy has NACKed this content.
        let refusal = self.refused.get(&resource.id);
        if let Some(refusal) = refusal.filter(|refusal| refusal.version == resource.version) {
            let reason = Reason::Refused(Arc::clone(&refusal.detail));
            self.applied.rejections.push(Rejection::of(key.0, key.1, reason));
            return;
        }
        let version = self.version_of(received);
        self.pending.new_variants.push(NewVariant { key: key.clone(), decoded, version, ttl: received.ttl });
        self.changes.put.insert(key, resource);
        self.applied.valid += 1;
        // D24: a name that has its own resource is not an alias.
        self.pending.orphans.extend(self.watched.remove_alias(&name));
        self.add_aliases(&name, aliases);
        self.pending.changed_names.push(name);
    }

    /// Applies a resource without a payload. It is a heartbeat, which extends a TTL without a
    /// change for watchers (S39, D26), or it reports that no resource has an alias (D24).
    fn apply_without_payload(&mut self, received: &ReceivedResource<'_>, aliases: Vec<ResourceName>) {
        let version = self.version_of(received);
        let stored = self.watched.names.get_mut(&*received.name);
        let stored = stored.and_then(|named| {
            let at = named.position(&received.constraints).ok()?;
            Some(&mut named.variants[at])
        });
        if let Some(stored) = stored.filter(|stored| stored.version == version) {
            stored.last_response = self.head.number;
            stored.set_expiry(expiry_of(received.ttl, self.now), self.of_type, self.expiries);
            self.applied.valid += 1;
            return;
        }
        if received.aliases.is_empty() {
            let name = ResourceName::new(&*received.name);
            let rejection = Rejection::of(name, received.constraints.clone(), Reason::NoPayload);
            self.applied.rejections.push(rejection);
            return;
        }
        for alias in aliases {
            self.pending.orphans.extend(self.watched.remove_alias(&alias));
            self.pending.absent.push(Removal { name: alias, constraints: None });
        }
    }

    /// Records the watched aliases of a resource (D24).
    fn add_aliases(&mut self, name: &ResourceName, aliases: Vec<ResourceName>) {
        for alias in aliases.into_iter().filter(|alias| alias != name) {
            self.pending.orphans.extend(self.watched.add_alias(alias, name));
        }
    }

    /// The payload as bytes to store. A slice keeps the whole frame in memory, so a payload of less
    /// than half a frame is copied.
    fn payload_bytes(&self, payload: &[u8]) -> Bytes {
        match payload.len() * 2 >= self.head.frame.len() {
            true => self.head.frame.slice_ref(payload),
            false => Bytes::copy_from_slice(payload),
        }
    }

    /// The version of a resource. In SotW all resources of a response have the version of the
    /// response.
    fn version_of(&self, received: &ReceivedResource<'_>) -> Arc<str> {
        match self.sender().config.protocol {
            Protocol::Sotw => Arc::clone(&self.head.version),
            Protocol::Delta => received.version.into(),
        }
    }
}
