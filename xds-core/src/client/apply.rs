//! Validating a response and applying it to the cache and to the watches (C1-C4, C9-C12, T29-T36).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::WatchId;
use super::accepted::{Accepted, Decoded};
use super::cache_changes::{CacheChanges, RemovalReason, VariantKey};
use super::config::Relay;
use super::preview::Refusal;
use super::received::{Payload, ReceivedResource, ReceivedResponse, Removal, Unreadable};
use super::rejection::{Reason, Rejection};
use super::resource_failure::ResourceFailure;
use super::resource_state::{ResourceState, ResourceStatus};
use super::servers::Servers;
use super::store::Expiry;
use super::upstream::{AckOrNack, Upstream};
use super::watched_type::{StoredVariant, WatchEntry, WatchedType, expiry_of};
use super::{Applied, Client, Effects, bits};
use crate::cache::{Cache, Snapshot};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::extras::Extras;
use crate::name::ResourceName;
use crate::protocol::Protocol;
use crate::resource::{Resource, VariantId, other_name};
use crate::subscription::is_set;

mod removals;
mod watchers;

impl Client {
    /// Reads, validates and applies one response of a server, and queues its ACK or NACK.
    ///
    /// # Errors
    /// C3: the bytes are not a response. Nothing changed, and the stream stays open.
    pub fn on_response(
        &mut self,
        now: Duration,
        server: usize,
        frame: &Bytes,
    ) -> Result<Effects, Unreadable> {
        let protocol = self.servers[server].config.protocol;
        let late = self.late.take_if(|(of, _)| *of == server);
        let response = ReceivedResponse::read(frame, protocol)?;
        let mut effects = Effects::default();
        self.servers[server].on_response();
        self.on_alive(server, &mut effects);
        // C3: a response of a type that was not requested on this stream is not answered.
        let Some(of_type) = self.store.number_of(response.type_url) else { return Ok(effects) };
        if !self.servers[server].of_type(of_type).is_open {
            return Ok(effects);
        }
        self.store.responses += 1;
        let (nonce, version): (Arc<str>, Arc<str>) = (response.nonce.into(), response.version.into());
        let type_url = self.store.types[of_type].type_url.clone();
        let is_for_collections = self.servers[server].of_type(of_type).is_for_collections(&response);
        let mut applier = Applier {
            now,
            server,
            of_type,
            servers: &self.servers,
            relay: self.relay.as_ref(),
            cache: &self.store.cache,
            refused: &self.store.refused,
            expiries: &mut self.store.expiries,
            watched: &mut self.store.types[of_type],
            head: ResponseHead {
                number: self.store.responses,
                version: Arc::clone(&version),
                frame,
                is_for_collections,
                late: late.map(|(_, watches)| watches).unwrap_or_default(),
            },
            changes: CacheChanges::default(),
            pending: PendingChanges::default(),
            applied: Applied::new(type_url),
            effects,
        };
        applier.apply(response);
        let Applier { applied, mut effects, pending: PendingChanges { orphans, .. }, .. } = applier;
        self.store.drop_unwatched(of_type, &orphans);
        if !self.store.refused.is_empty() {
            effects.accepted.iter().for_each(|accepted| _ = self.store.refused.remove(&accepted.id()));
        }
        // C1, D15: each response is answered, in order.
        let is_accepted = applied.rejections.is_empty();
        let error = (!is_accepted).then(|| Rejection::detail(&applied.rejections));
        let is_changed = applied.valid > 0 || !effects.removed.is_empty();
        let is_full = self.store.types[of_type].known.full_state;
        let stream = self.servers[server].of_type(of_type);
        stream.nonce = Arc::clone(&nonce);
        if is_accepted {
            stream.version = version;
            // A full state replaces everything, so the resources in use are those of its version.
            stream.is_partial &= !is_full;
        } else {
            stream.is_partial |= is_changed;
        }
        // A server that sends responses but takes no requests must not fill the memory.
        if stream.pending_acks.len() >= PENDING_ACKS_LIMIT {
            stream.pending_acks.pop_front();
        }
        stream.pending_acks.push_back(AckOrNack { nonce, version: Arc::clone(&stream.version), error });
        if is_changed {
            self.mark_others_partial(server, of_type);
        }
        if applied.valid > 0 {
            self.return_to(now, server);
        }
        effects.response = Some(applied);
        self.sort_touched(&mut effects);
        Ok(effects)
    }

    /// C15: marks other servers of the same names. The version that they would get in the next
    /// request no longer matches the resources that the client has.
    fn mark_others_partial(&mut self, server: usize, of_type: usize) {
        let sharing = self.servers.authorities.iter().map(|authority| authority.config.mask());
        let mask = sharing.filter(|mask| mask & 1 << server != 0).fold(0, |all, mask| all | mask);
        for other in bits(mask).filter(|other| *other != server) {
            if let Some(stream) = self.servers[other].types.get_mut(of_type) {
                stream.is_partial = true;
            }
        }
    }

    /// P4.6: when a server sends a resource, its authorities no longer use the servers after it.
    fn return_to(&mut self, now: Duration, server: usize) {
        for at in 0..self.servers.authorities.len() {
            let before = self.servers.authorities[at].in_use().to_vec();
            if !self.servers.authorities[at].return_to(server) {
                continue;
            }
            let watches: Vec<_> =
                self.entries_of(at).map(|(watch, entry)| (watch, entry.subscribed_on)).collect();
            for other in before {
                if self.servers.authorities[at].uses(other) {
                    continue;
                }
                for (watch, _) in watches.iter().filter(|(_, servers)| servers & 1 << other != 0) {
                    self.store.entry_mut(*watch).stop_waiting_for(other);
                    self.mark(other, *watch);
                }
            }
            // A resource may come only from the servers after this one. In SotW this server may
            // never report its absence, so a timer decides (S17, C12). The same holds for members
            // of a glob or wildcard: if the client subscribed on this server before another server
            // sent the members, this server does not know that the client has them (D1).
            for (watch, _) in watches.into_iter().filter(|(_, servers)| servers & 1 << server != 0) {
                let entry = self.store.entry(watch);
                let is_from_unused =
                    |state: &ResourceState| self.servers.authorities[at].is_from_unused(state);
                let is_unconfirmed = match &entry.members {
                    None => entry.state.copy.is_some() && is_from_unused(&entry.state),
                    Some(members) => members.values().any(is_from_unused),
                };
                if is_unconfirmed {
                    self.start_timer(now, server, watch);
                }
            }
        }
    }
}

/// Validates one response and applies it: first to the cache, then to the watches.
struct Applier<'c> {
    now: Duration,
    /// The server that sent the response.
    server: usize,
    /// The number of the type of the response.
    of_type: usize,
    servers: &'c Servers,
    relay: Option<&'c Relay>,
    cache: &'c Cache,
    /// Contents that clients of a proxy have NACKed (C2).
    refused: &'c BTreeMap<VariantId, Refusal>,
    /// S38: when TTLs end.
    expiries: &'c mut BTreeSet<Expiry>,
    watched: &'c mut WatchedType,
    head: ResponseHead<'c>,
    /// The changes to commit to the cache.
    changes: CacheChanges,
    pending: PendingChanges,
    applied: Applied,
    effects: Effects,
}

/// What is known of a response as a whole.
struct ResponseHead<'c> {
    /// Its number among all responses that the client applied.
    number: u64,
    version: Arc<str>,
    /// The encoded response, for payloads that share its memory.
    frame: &'c Bytes,
    /// C12: whether it may be the answer to globs and wildcards.
    is_for_collections: bool,
    /// T35: watches whose subscription was sent after the server made the response. An absence in
    /// the response does not count for them.
    late: BTreeSet<WatchId>,
}

/// What remains to be done after the commit to the cache.
#[derive(Default)]
struct PendingChanges {
    /// For each variant to put: the parts that only the watches need.
    new_variants: Vec<NewVariant>,
    /// Names whose watchers may see another variant now.
    changed_names: Vec<ResourceName>,
    /// Names and variants that the response reports as absent. Watches that match another variant
    /// are not affected.
    absent: Vec<Removal>,
    /// D24: resources that lost an alias. Perhaps they were watched by this alias only.
    orphans: Vec<ResourceName>,
}

/// A variant to put into the cache.
struct NewVariant {
    key: VariantKey,
    decoded: Option<Decoded>,
    version: Arc<str>,
    ttl: Option<Duration>,
}

impl<'c> Applier<'c> {
    /// Applies the response as one step, without waiting for other responses (D32, T31).
    fn apply(&mut self, mut response: ReceivedResponse<'_>) {
        self.applied.rejections = std::mem::take(&mut response.rejections);
        let removed = self.without_contradictions(&mut response);
        for received in std::mem::take(&mut response.resources) {
            self.apply_resource(received);
        }
        self.apply_removals(removed);
        // S26, D12: in delta, and with other types, a name that is not in a response may exist.
        if self.sender().config.protocol == Protocol::Sotw && self.watched.known.full_state {
            self.apply_absences(&response.errors);
        }
        self.replace_other_servers();
        let (watched, response_number) = (&*self.watched, self.head.number);
        let is_repeated = |(name, constraints): &VariantKey| {
            let named = watched.names.get(name);
            named.is_some_and(|named| {
                named
                    .position(constraints)
                    .is_ok_and(|at| named.variants[at].last_response == response_number)
            })
        };
        let refused = self.changes.commit(self.cache, &watched.type_url, is_repeated);
        for ((name, constraints), reason) in refused {
            self.applied.rejections.push(Rejection::of(name, constraints, reason));
        }
        self.store_changes(&self.cache.snapshot());
        self.update_watchers(&self.cache.snapshot(), std::mem::take(&mut response.errors));
    }

    /// The server that sent the response.
    fn sender(&self) -> &'c Upstream {
        &self.servers[self.server]
    }

    /// D13, T30b: rejects resources that the response also removes, and returns the other removals.
    fn without_contradictions(&mut self, response: &mut ReceivedResponse<'_>) -> Vec<Removal> {
        let removed = std::mem::take(&mut response.removed);
        if removed.is_empty() || response.resources.is_empty() {
            return removed;
        }
        let mut removals: BTreeMap<&str, BTreeSet<Option<&Constraints>>> = BTreeMap::new();
        for Removal { name, constraints } in &removed {
            removals.entry(name.as_str()).or_default().insert(constraints.as_ref());
        }
        let mut contradicted: BTreeMap<ResourceName, BTreeSet<Constraints>> = BTreeMap::new();
        response.resources.retain(|received| {
            let is_removed = received.payload != Payload::Absent
                && removals.get(&*received.name).is_some_and(|of_name| {
                    of_name.contains(&None) || of_name.contains(&Some(&received.constraints))
                });
            if is_removed {
                let of_name = contradicted.entry(ResourceName::new(&*received.name)).or_default();
                of_name.insert(received.constraints.clone());
            }
            !is_removed
        });
        let is_contradicted = |removal: &Removal| {
            let of_name = contradicted.get(&removal.name);
            let is_it =
                |of_name: &BTreeSet<_>| removal.constraints.as_ref().is_none_or(|it| of_name.contains(it));
            of_name.is_some_and(is_it)
        };
        let removed = removed.into_iter().filter(|removal| !is_contradicted(removal)).collect();
        for (name, of_name) in contradicted {
            let rejections = of_name.into_iter();
            let rejection = |constraints| Rejection::of(name.clone(), constraints, Reason::AlsoRemoved);
            self.applied.rejections.extend(rejections.map(rejection));
        }
        removed
    }

    /// Whether the authority of an entry uses this server.
    fn serves(&self, entry: &WatchEntry) -> bool {
        self.servers.authorities[entry.authority].uses(self.server)
    }

    /// Whether the authority of a name uses this server.
    fn serves_name(&self, name: &ResourceName) -> bool {
        self.servers.authorities[self.watched.authority_of(name.as_str())].uses(self.server)
    }

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
    fn apply_resource(&mut self, mut received: ReceivedResource<'_>) {
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
            Payload::Message(payload) => self.apply_payload(&received, payload, aliases),
            Payload::Redirect(locator) if self.relay.is_some() => {
                self.apply_payload(&received, locator, aliases);
            }
            Payload::Absent => self.apply_without_payload(&received, aliases),
            Payload::Redirect(_) => {
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
        if matches!(received.payload, Payload::Redirect(_)) {
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
        let is_passed_on = self.relay.is_some() && !matches!(received.payload, Payload::Redirect(_));
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

    /// After the commit: removes the variants from `watched` that left the cache, and stores the
    /// new ones.
    fn store_changes(&mut self, snapshot: &Snapshot) {
        let resources = snapshot.of_type(&self.watched.type_url);
        for (key, why) in std::mem::take(&mut self.changes.removed) {
            self.applied.replaced += usize::from(why == RemovalReason::Replaced);
            if self.changes.put.contains_key(&key) {
                continue;
            }
            let (name, constraints) = key;
            if let Some(named) = self.watched.names.get_mut(&name)
                && let Ok(at) = named.position(&constraints)
            {
                named.variants.remove(at).forget_expiry(self.of_type, self.expiries);
            }
            self.watched.forget_if_empty(&name);
            let type_url = self.watched.type_url.clone();
            self.pending.changed_names.push(name.clone());
            self.effects.removed.push(VariantId { type_url, name, constraints });
        }
        let is_all_put = self.changes.put.len() == self.pending.new_variants.len();
        for NewVariant { key, decoded, version, ttl } in std::mem::take(&mut self.pending.new_variants) {
            // The cache refused this one.
            if !is_all_put && !self.changes.put.contains_key(&key) {
                continue;
            }
            let variants = resources.and_then(|resources| resources.get(&key.0));
            let Some(variant) = variants.and_then(|variants| variants.get(&key.1)) else { continue };
            let accepted = Arc::new(Accepted {
                type_url: self.watched.type_url.clone(),
                server: Arc::clone(&self.sender().config.name),
                variant: Arc::clone(variant),
                decoded,
                version: Arc::clone(&version),
                generation: self.sender().generation,
                is_restored: false,
                at: self.now,
            });
            let expires = expiry_of(ttl, self.now);
            variant.extend(expires);
            self.effects.accepted.push(Arc::clone(&accepted));
            let stored = StoredVariant {
                accepted,
                version,
                server: Some(self.server),
                last_response: self.head.number,
                expires,
            };
            let expiry = stored.expiry(self.of_type);
            if let Some(before) = self.watched.store(&key.0, stored) {
                before.forget_expiry(self.of_type, self.expiries);
            }
            self.expiries.extend(expiry);
        }
    }

    fn failure(&self, code: Code, message: String) -> Arc<ResourceFailure> {
        Arc::new(ResourceFailure::new(code, message, self.now))
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

impl WatchedType {
    /// Stores a variant among those of its name. Returns the variant with the same constraints that
    /// it replaced.
    pub(super) fn store(&mut self, name: &ResourceName, stored: StoredVariant) -> Option<StoredVariant> {
        let named = self.names.entry(name.clone()).or_default();
        match named.position(stored.accepted.constraints()) {
            Ok(at) => Some(std::mem::replace(&mut named.variants[at], stored)),
            Err(at) => {
                named.variants.insert(at, stored);
                None
            }
        }
    }
}

impl StoredVariant {
    fn expiry(&self, of_type: usize) -> Option<Expiry> {
        let accepted = &self.accepted;
        self.expires.map(|at| (at, of_type, accepted.name().clone(), accepted.constraints().clone()))
    }

    fn forget_expiry(&self, of_type: usize, expiries: &mut BTreeSet<Expiry>) {
        self.expiry(of_type).inspect(|expiry| _ = expiries.remove(expiry));
    }

    /// S38: sets when its TTL ends.
    fn set_expiry(&mut self, until: Option<Duration>, of_type: usize, expiries: &mut BTreeSet<Expiry>) {
        self.forget_expiry(of_type, expiries);
        self.expires = until;
        self.accepted.variant.extend(until);
        expiries.extend(self.expiry(of_type));
    }
}

/// How many ACKs and NACKs of a type may wait for the transport. If there are more, the oldest is
/// dropped.
const PENDING_ACKS_LIMIT: usize = 10_000;
