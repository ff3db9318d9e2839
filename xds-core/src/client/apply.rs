//! Validating a response and applying it to the cache and to the watches (C1-C4, C9-C12, T29-T36).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::WatchId;
use super::accepted::Accepted;
use super::cache_changes::{CacheChanges, RemovalReason, VariantKey};
use super::config::Relay;
use super::preview::Refusal;
use super::received::{ReceivedPayload, ReceivedResponse, Removal, ReportedError, Unreadable};
use super::rejection::{Reason, Rejection};
use super::resource_failure::ResourceFailure;
use super::resource_state::ResourceState;
use super::servers::Servers;
use super::store::Expiry;
use super::upstream::{AckOrNack, Upstream};
use super::watched_type::{StoredVariant, WatchEntry, WatchedType, expiry_of};
use super::{Applied, Client, Effects, bits};
use crate::cache::{Cache, Snapshot};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::ResourceName;
use crate::protocol::Protocol;
use crate::resource::VariantId;
use crate::variants::Decoded;

mod refused;
mod removals;
mod resources;
mod watchers;

pub(super) use refused::status_of_refused;

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
        let refusal = response.refusal();
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
        self.answer_health(server, of_type, refusal);
        effects.response = Some(applied);
        self.store.take_not_restored(&mut effects);
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
    /// S37: the constraints of errors for `*`: the wildcards that the server cannot answer.
    failed_wildcards: Vec<Option<Constraints>>,
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
        let mut removed = self.without_contradictions(&mut response);
        leave_to_refusals(&mut removed, &response.errors);
        for received in std::mem::take(&mut response.resources) {
            self.apply_resource(received);
        }
        let again = if self.relay.is_some() { removed.clone() } else { Vec::new() };
        self.apply_removals(removed);
        // S26, D12: in delta, and with other types, a name that is not in a response may exist.
        if self.sender().config.protocol == Protocol::Sotw && self.watched.known.full_state {
            self.apply_absences(&response.errors);
        }
        self.replace_other_servers();
        self.note_refused_members(&again);
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
            let is_removed = received.payload != ReceivedPayload::Absent
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
            if let Some(decoded) = decoded {
                variant.keep_decoded(decoded);
            }
            let accepted = Arc::new(Accepted {
                type_url: self.watched.type_url.clone(),
                server: Arc::clone(&self.sender().config.name),
                variant: Arc::clone(variant),
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
}

/// C9c, G4: a server that does not serve a type knows of no resource. It adds the removal for clients that do not
/// read errors.
fn leave_to_refusals(removed: &mut Vec<Removal>, errors: &[ReportedError]) {
    let refused = errors.iter().filter(|error| error.code == Code::UNIMPLEMENTED);
    let refused: BTreeSet<_> = refused.map(|error| &error.name).collect();
    removed.retain(|removal| removal.constraints.is_some() || !refused.contains(&removal.name));
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

    pub(super) fn forget_expiry(&self, of_type: usize, expiries: &mut BTreeSet<Expiry>) {
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
