//! What a response changes (C1-C4, C9-C12, T29-T36).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::WatchId;
use super::accepted::{Accepted, Decoded};
use super::cache_changes::{CacheChanges, RemovalReason, VariantKey};
use super::config::{Protocol, Relay};
use super::preview::Refusal;
use super::received::{Payload, ReceivedResource, ReceivedResponse, Removal, Unreadable};
use super::rejection::{Reason, Rejection};
use super::resource_failure::ResourceFailure;
use super::resource_state::{ErrorPolicy, ResourceState, ResourceStatus};
use super::upstream::AckOrNack;
use super::watched_type::{StoredVariant, WatchEntry, WatchedType, expiry_of};
use super::{Applied, Client, Effects, bits};
use crate::cache::{Cache, Snapshot};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::extras::Extras;
use crate::name::ResourceName;
use crate::resource::{Resource, VariantId, other_name};
use crate::subscription::is_set;

mod removals;
mod watchers;

impl Client {
    /// Takes one response of a server, as it came.
    ///
    /// # Errors
    /// C3: the bytes are no response; nothing changed, and the stream goes on.
    pub fn on_response(
        &mut self,
        now: Duration,
        server: usize,
        frame: &Bytes,
    ) -> Result<Effects, Unreadable> {
        let protocol = self.upstreams[server].config.protocol;
        let late = self.take_late(server);
        let response = ReceivedResponse::read(frame, protocol)?;
        let mut effects = Effects::default();
        self.upstreams[server].on_response();
        self.on_alive(server, &mut effects);
        // C3: what was never asked for is not answered.
        let Some(of_type) = self.type_numbers.get(response.type_url).copied() else { return Ok(effects) };
        if !self.upstreams[server].of_type(of_type).is_open {
            return Ok(effects);
        }
        self.responses += 1;
        let (nonce, version): (Arc<str>, Arc<str>) = (response.nonce.into(), response.version.into());
        let type_url = self.types[of_type].type_url.clone();
        let mut applier = Applier {
            now,
            server,
            of_type,
            protocol,
            relay: self.relay.as_ref(),
            refused: &self.refused,
            late,
            speaks_locators: self.authorities.iter().map(|of| of.config.speaks_locators).collect(),
            policy: self.upstreams[server].config.errors,
            generation: self.upstreams[server].generation,
            response_number: self.responses,
            version: Arc::clone(&version),
            server_name: Arc::clone(&self.upstreams[server].config.name),
            frame,
            watched: &mut self.types[of_type],
            in_use: self.authorities.iter().map(|authority| authority.uses(server)).collect(),
            responses_before: self.upstreams[server].responses_before,
            changes: CacheChanges::default(),
            new_variants: Vec::new(),
            changed_names: Vec::new(),
            absent: Vec::new(),
            ended_expiries: Vec::new(),
            orphans: Vec::new(),
            applied: Applied::new(type_url),
        };
        let expiries = applier.apply(response, &self.cache, &mut effects);
        let (applied, ended_expiries, orphans) = (applier.applied, applier.ended_expiries, applier.orphans);
        self.drop_unwatched(of_type, &orphans);
        if !self.refused.is_empty() {
            effects.accepted.iter().for_each(|accepted| _ = self.refused.remove(&accepted.id()));
        }
        for (at, name, constraints) in ended_expiries {
            self.expiries.remove(&(at, of_type, name, constraints));
        }
        for (at, name, constraints) in expiries {
            self.expiries.insert((at, of_type, name, constraints));
        }
        // C1, D15: everything is answered, in order.
        let is_accepted = applied.rejections.is_empty();
        let error = (!is_accepted).then(|| Rejection::detail(&applied.rejections));
        let is_changed = applied.valid > 0 || !effects.removed.is_empty();
        let is_full = self.types[of_type].known.full_state;
        let stream = self.upstreams[server].of_type(of_type);
        stream.nonce = Arc::clone(&nonce);
        if is_accepted {
            stream.version = version;
            stream.is_partial &= !is_full;
        } else {
            stream.is_partial |= is_changed;
        }
        // A server that takes no requests and sends on must not fill the memory.
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

    /// C15: what another server of the same names was said to be up to date with is not what is
    /// held now.
    fn mark_others_partial(&mut self, server: usize, of_type: usize) {
        let sharing = self.authorities.iter().map(|authority| authority.config.mask());
        let mask = sharing.filter(|mask| mask & 1 << server != 0).fold(0, |all, mask| all | mask);
        for other in bits(mask).filter(|other| *other != server) {
            if let Some(stream) = self.upstreams[other].types.get_mut(of_type) {
                stream.is_partial = true;
            }
        }
    }

    /// P4.6: a resource came from it, so the servers after it are left.
    fn return_to(&mut self, now: Duration, server: usize) {
        for at in 0..self.authorities.len() {
            let before = self.authorities[at].in_use().to_vec();
            if !self.authorities[at].return_to(server) {
                continue;
            }
            let told: Vec<_> =
                self.entries_of(at).map(|(watch, entry)| (watch, entry.subscribed_on)).collect();
            for left in before {
                let is_left = !self.authorities[at].uses(left);
                let told = told.iter().filter(|(_, told)| is_left && told & 1 << left != 0);
                told.for_each(|(watch, _)| self.mark(left, *watch));
            }
            // What only they had, and this server may say nothing of in SotW, its timer decides
            // (S17, C12). Of a set it says nothing either when it was asked for it before they told
            // what it stands for (D1).
            for (watch, _) in told.into_iter().filter(|(_, told)| told & 1 << server != 0) {
                let (of_type, place) = watch.place();
                let entry = self.types[of_type].entry(place);
                let is_left = |state: &ResourceState| self.authorities[at].is_from_unused(state);
                let is_unconfirmed = match &entry.members {
                    None => entry.state.copy.is_some() && is_left(&entry.state),
                    Some(members) => members.values().any(is_left),
                };
                if is_unconfirmed {
                    self.start_timer(now, server, watch);
                }
            }
        }
    }
}

/// One response on its way into the cache.
struct Applier<'c> {
    now: Duration,
    server: usize,
    of_type: usize,
    protocol: Protocol,
    relay: Option<&'c Relay>,
    refused: &'c BTreeMap<VariantId, Refusal>,
    /// Which authorities are asked by locators.
    speaks_locators: Vec<bool>,
    policy: ErrorPolicy,
    generation: u64,
    /// Of the response, among all.
    response_number: u64,
    /// Of the response.
    version: Arc<str>,
    server_name: Arc<str>,
    frame: &'c Bytes,
    watched: &'c mut WatchedType,
    /// Which authorities listen to this server.
    in_use: Vec<bool>,
    /// Number of the last response before this stream.
    responses_before: u64,
    changes: CacheChanges,
    /// What goes with the variants that are put.
    new_variants: Vec<NewVariant>,
    /// Names whose watchers may see something else now.
    changed_names: Vec<ResourceName>,
    /// What the server says does not exist, unless something of the response does.
    absent: Vec<Removal>,
    /// What the server was asked for after it made the response.
    late: BTreeSet<WatchId>,
    /// Ends of TTLs that do not count any more.
    ended_expiries: Vec<Expiry>,
    /// D24: resources that lost an alias, by which alone they may have been watched.
    orphans: Vec<ResourceName>,
    applied: Applied,
}

/// A variant that is to be put.
struct NewVariant {
    key: VariantKey,
    decoded: Option<Decoded>,
    version: Arc<str>,
    ttl: Option<Duration>,
}

/// When the TTL of a variant ends.
type Expiry = (Duration, ResourceName, Constraints);

impl Applier<'_> {
    /// D32, T31: one response is one step, and no other is waited for.
    fn apply(
        &mut self,
        mut response: ReceivedResponse<'_>,
        cache: &Cache,
        effects: &mut Effects,
    ) -> Vec<Expiry> {
        self.applied.rejections = std::mem::take(&mut response.rejections);
        let removed = self.without_contradictions(&mut response);
        let mut expiries = Vec::new();
        for received in std::mem::take(&mut response.resources) {
            self.apply_resource(received, &mut expiries);
        }
        self.apply_removals(removed);
        // S26, D12: of other types, and in delta, absence says nothing.
        if self.protocol == Protocol::Sotw && self.watched.known.full_state {
            self.apply_absences(&response.errors);
        }
        self.replace_other_servers();
        let (watched, response_number) = (&*self.watched, self.response_number);
        let is_repeated = |(name, constraints): &VariantKey| {
            let named = watched.names.get(name);
            named.is_some_and(|named| {
                named
                    .position(constraints)
                    .is_ok_and(|at| named.variants[at].last_response == response_number)
            })
        };
        let refused = self.changes.commit(cache, &watched.type_url, is_repeated);
        for ((name, constraints), reason) in refused {
            self.applied.rejections.push(Rejection::of(name, constraints, reason));
        }
        self.store_changes(&cache.snapshot(), effects, &mut expiries);
        self.update_watchers(&cache.snapshot(), std::mem::take(&mut response.errors), cache, effects);
        expiries
    }

    /// D13, T30b: what is removed and brought in one response is neither.
    fn without_contradictions(&mut self, response: &mut ReceivedResponse<'_>) -> Vec<Removal> {
        let removed = std::mem::take(&mut response.removed);
        if removed.is_empty() || response.resources.is_empty() {
            return removed;
        }
        let mut gone: BTreeMap<&str, BTreeSet<Option<&Constraints>>> = BTreeMap::new();
        for Removal { name, constraints } in &removed {
            gone.entry(name.as_str()).or_default().insert(constraints.as_ref());
        }
        let mut contradicted: BTreeMap<ResourceName, BTreeSet<Constraints>> = BTreeMap::new();
        response.resources.retain(|received| {
            let is_removed = received.payload != Payload::Absent
                && gone
                    .get(&*received.name)
                    .is_some_and(|gone| gone.contains(&None) || gone.contains(&Some(&received.constraints)));
            if is_removed {
                let of_name = contradicted.entry(ResourceName::new(&*received.name)).or_default();
                of_name.insert(received.constraints.clone());
            }
            !is_removed
        });
        let is_contradicted = |gone: &Removal| {
            let of_name = contradicted.get(&gone.name);
            let is_it =
                |of_name: &BTreeSet<_>| gone.constraints.as_ref().is_none_or(|it| of_name.contains(it));
            of_name.is_some_and(is_it)
        };
        let removed = removed.into_iter().filter(|gone| !is_contradicted(gone)).collect();
        for (name, of_name) in contradicted {
            let rejections = of_name.into_iter();
            let rejection = |constraints| Rejection::of(name.clone(), constraints, Reason::AlsoRemoved);
            self.applied.rejections.extend(rejections.map(rejection));
        }
        removed
    }

    /// Whether this server is asked for what the entry watches.
    fn serves(&self, entry: &WatchEntry) -> bool {
        self.in_use[entry.authority]
    }

    /// Whether this server is asked for what names of the authority of this one stand for.
    fn serves_name(&self, name: &ResourceName) -> bool {
        self.in_use[self.watched.authority_of(name.as_str())]
    }

    /// Whether somebody watches an alias of a resource; one of another authority is none (C16).
    fn is_alias(&self, alias: &ResourceName, of: &str) -> bool {
        let authority = self.watched.authority_of(of);
        let entries = self.watched.names.get(alias).map(|named| &named.entries[..]).unwrap_or_default();
        let mut entries = entries.iter().map(|at| self.watched.entry(*at));
        entries.any(|entry| entry.authority == authority && self.serves(entry) && !entry.is_collection())
    }

    /// T43c; whether it can be taken. Of what one locator alone is asked for with nothing is
    /// shared, whatever it says: each such client brings its own.
    fn bind(&mut self, received: &mut ReceivedResource<'_>) -> bool {
        let Some(relay) = self.relay else { return true };
        let says_whom = !received.is_plain && self.speaks_locators[self.watched.authority_of(&received.name)];
        let is_for_all = received.constraints.is_unconstrained() && !says_whom;
        let is_alone = relay.stamp.as_ref().is_some_and(Constraints::is_exact);
        let is_bound = is_for_all || received.do_not_cache || is_alone;
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

    fn apply_resource(&mut self, mut received: ReceivedResource<'_>, expiries: &mut Vec<Expiry>) {
        let mut watching = Vec::new();
        self.watched.watching(&received.name, &mut watching);
        let is_for = |at: &u32| {
            let entry = self.watched.entry(*at);
            self.serves(entry) && received.constraints.matches(&entry.parameters)
        };
        let aliases: Vec<_> =
            received.aliases.iter().filter(|alias| self.is_alias(alias, &received.name)).cloned().collect();
        // S24, T33b, T41: what nobody watches is ignored, whatever is wrong with it.
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
            Payload::Message(payload) => {
                self.apply_payload(&received, payload, aliases, expiries);
            }
            Payload::Redirect(locator) if self.relay.is_some() => {
                self.apply_payload(&received, locator, aliases, expiries);
            }
            Payload::Absent => self.apply_without_payload(&received, aliases, expiries),
            Payload::Redirect(_) => {
                let name = ResourceName::new(&*received.name);
                self.applied.rejections.push(Rejection::new(name, Reason::Redirect));
            }
        }
    }

    fn apply_payload(
        &mut self,
        received: &ReceivedResource<'_>,
        payload: &[u8],
        aliases: Vec<ResourceName>,
        expiries: &mut Vec<Expiry>,
    ) {
        let aliases_of = received.aliases.clone();
        let mut extras = Extras::received(received.ttl, aliases_of, received.do_not_cache, received.metadata);
        if matches!(received.payload, Payload::Redirect(_)) {
            extras.get_or_insert_default().is_redirect = true;
        }
        if let Some(named) = self.watched.names.get_mut(&*received.name)
            && let Ok(at) = named.position(&received.constraints)
        {
            let stored = &mut named.variants[at];
            if stored.last_response == self.response_number {
                let name = stored.accepted.name().clone();
                let duplicate = Rejection::of(name, received.constraints.clone(), Reason::Duplicate);
                self.applied.rejections.push(duplicate);
                return;
            }
            stored.last_response = self.response_number;
            let is_same = *stored.accepted.payload() == payload
                && stored.accepted.variant.has_extras(extras.as_deref());
            if is_same && !stored.accepted.is_restored {
                if self.protocol == Protocol::Sotw {
                    stored.version = Arc::clone(&self.version);
                } else if *stored.version != *received.version {
                    stored.version = received.version.into();
                }
                stored.server = Some(self.server);
                let accepted = Arc::clone(&stored.accepted);
                let until = expiry_of(received.ttl, self.now);
                self.ended_expiries.extend(stored.expiry());
                stored.expires = until;
                accepted.variant.extend(until);
                expiries.extend(stored.expiry());
                self.applied.valid += 1;
                self.add_aliases(accepted.name(), aliases);
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
                    state.is_some_and(is_known)
                        && entry.deadline.is_none()
                        && copy.is_some_and(|copy| Arc::ptr_eq(copy, &accepted))
                };
                let mut watching = Vec::new();
                self.watched.watching(&received.name, &mut watching);
                if !watching.iter().all(is_current) {
                    self.changed_names.push(accepted.name().clone());
                }
                return;
            }
        }
        let known = self.watched.names.get_key_value(&*received.name).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| ResourceName::new(&*received.name));
        let key: VariantKey = (name.clone(), received.constraints.clone());
        if self.changes.put.contains_key(&key) {
            self.applied.rejections.push(Rejection::of(key.0, key.1, Reason::Duplicate));
            return;
        }
        // D23: a proxy tells it to clients that go by this name, as a bare payload has no other.
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
        let refusal = self.refused.get(&resource.id);
        if let Some(refusal) = refusal.filter(|refusal| refusal.version == resource.version) {
            let reason = Reason::Refused(Arc::clone(&refusal.detail));
            self.applied.rejections.push(Rejection::of(key.0, key.1, reason));
            return;
        }
        let version = self.version_of(received);
        self.new_variants.push(NewVariant { key: key.clone(), decoded, version, ttl: received.ttl });
        self.changes.put.insert(key, resource);
        self.applied.valid += 1;
        // D24: what has a resource of its own is no alias.
        self.orphans.extend(self.watched.remove_alias(&name));
        self.add_aliases(&name, aliases);
        self.changed_names.push(name);
    }

    /// S39, D26: a heartbeat extends a TTL and reaches no watcher. D24: an alias that nothing has.
    fn apply_without_payload(
        &mut self,
        received: &ReceivedResource<'_>,
        aliases: Vec<ResourceName>,
        expiries: &mut Vec<Expiry>,
    ) {
        let (protocol, version) = (self.protocol, Arc::clone(&self.version));
        let stored = self.watched.names.get_mut(&*received.name);
        let stored = stored.and_then(|named| {
            let at = named.position(&received.constraints).ok()?;
            Some(&mut named.variants[at])
        });
        let told = match protocol {
            Protocol::Delta => received.version,
            Protocol::Sotw => &version,
        };
        if let Some(stored) = stored.filter(|stored| *stored.version == *told) {
            stored.last_response = self.response_number;
            self.ended_expiries.extend(stored.expiry());
            stored.expires = expiry_of(received.ttl, self.now);
            stored.accepted.variant.extend(stored.expires);
            expiries.extend(stored.expiry());
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
            self.orphans.extend(self.watched.remove_alias(&alias));
            self.absent.push(Removal { name: alias, constraints: None });
        }
    }

    fn add_aliases(&mut self, name: &ResourceName, aliases: Vec<ResourceName>) {
        for alias in aliases.into_iter().filter(|alias| alias != name) {
            self.orphans.extend(self.watched.add_alias(alias, name));
        }
    }

    /// A payload to keep. A slice keeps all of its frame, so a small one gets memory of its own.
    fn payload_bytes(&self, payload: &[u8]) -> Bytes {
        match payload.len() * 2 >= self.frame.len() {
            true => self.frame.slice_ref(payload),
            false => Bytes::copy_from_slice(payload),
        }
    }

    /// Has what is held here follow the cache.
    fn store_changes(&mut self, snapshot: &Snapshot, effects: &mut Effects, expiries: &mut Vec<Expiry>) {
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
                self.ended_expiries.extend(named.variants.remove(at).expiry());
            }
            self.watched.forget_if_empty(&name);
            let type_url = self.watched.type_url.clone();
            self.changed_names.push(name.clone());
            effects.removed.push(VariantId { type_url, name, constraints });
        }
        let is_all_put = self.changes.put.len() == self.new_variants.len();
        for coming in std::mem::take(&mut self.new_variants) {
            let NewVariant { key, decoded, version, ttl } = coming;
            if !is_all_put && !self.changes.put.contains_key(&key) {
                continue;
            }
            let variants = resources.and_then(|resources| resources.get(&key.0));
            let Some(variant) = variants.and_then(|variants| variants.get(&key.1)) else { continue };
            let accepted = Arc::new(Accepted {
                type_url: self.watched.type_url.clone(),
                server: Arc::clone(&self.server_name),
                variant: Arc::clone(variant),
                decoded,
                version: Arc::clone(&version),
                generation: self.generation,
                is_restored: false,
                at: self.now,
            });
            let expires = expiry_of(ttl, self.now);
            variant.extend(expires);
            effects.accepted.push(Arc::clone(&accepted));
            let stored = StoredVariant {
                accepted,
                version,
                server: Some(self.server),
                last_response: self.response_number,
                expires,
            };
            expiries.extend(stored.expiry());
            let before = self.watched.store(&key.0, stored);
            self.ended_expiries.extend(before.and_then(|before| before.expiry()));
        }
    }

    fn failure(&self, code: Code, message: String) -> Arc<ResourceFailure> {
        Arc::new(ResourceFailure::new(code, message, self.now))
    }

    /// What the server calls a resource: in SotW all of a response have one version.
    fn version_of(&self, received: &ReceivedResource<'_>) -> Arc<str> {
        match self.protocol {
            Protocol::Sotw => Arc::clone(&self.version),
            Protocol::Delta => received.version.into(),
        }
    }
}

impl WatchedType {
    /// Puts a variant in its place among those of its name; what was there.
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
    fn expiry(&self) -> Option<Expiry> {
        let accepted = &self.accepted;
        self.expires.map(|at| (at, accepted.name().clone(), accepted.constraints().clone()))
    }
}

/// How many answers may wait for the transport, per type; of more the oldest is never said.
const PENDING_ACKS_LIMIT: usize = 10_000;
