//! Requests to a server: changed subscriptions, ACKs and NACKs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use xds_proto::google::rpc::Status;

use super::authority::Authority;
use super::resource_state::{ResourceState, ResourceStatus};
use super::servers::Servers;
use super::upstream::{AckOrNack, RequestedNames, Upstream};
use super::watched_type::{WILDCARD, WatchEntry, WatchedType};
use super::{Client, watch_id};
use crate::code::Code;
use crate::known_type::KnownType;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::wire::fields::{field_len, put_field, put_length};

impl Client {
    /// The next request for a server, encoded; `None` if there is nothing to send. Call this when
    /// the transport has room: all changes of a type since the last request are one request.
    pub fn next_request(&mut self, now: Duration, server: usize) -> Option<Bytes> {
        if !self.servers[server].is_open() {
            return None;
        }
        for of_type in 0..self.servers[server].types.len() {
            let was_open = self.servers[server].of_type(of_type).is_open;
            let upstream = self.servers[server].of_type(of_type);
            let is_wildcard_ending = matches!(upstream.requested, RequestedNames::NamedWildcard);
            if upstream.dirty.is_empty() && upstream.pending_acks.is_empty() && !is_wildcard_ending {
                continue;
            }
            if !self.may_request(now, server, of_type, !was_open) {
                continue;
            }
            let request = match self.servers[server].is_delta() {
                true => self.delta_request(now, server, of_type),
                false => self.sotw_request(now, server, of_type),
            };
            if request.is_some() {
                self.note_requested(now, server, of_type);
                return request;
            }
        }
        None
    }

    /// The next SotW request of a type. It lists all names of the subscription (S3, S4, S14).
    fn sotw_request(&mut self, now: Duration, server: usize, of_type: usize) -> Option<Bytes> {
        if !self.servers[server].of_type(of_type).is_open {
            self.drop_unusable_version(server, of_type);
        }
        let changes = self.take_subscription_changes(now, server, of_type, usize::MAX);
        let was_wildcard_ending =
            matches!(self.servers[server].of_type(of_type).requested, RequestedNames::NamedWildcard);
        if !changes.is_empty() || was_wildcard_ending {
            self.update_requested_names(server, of_type);
        }
        let type_url = self.store.types[of_type].type_url.clone();
        let node = self.node.clone();
        let upstream = &mut self.servers[server];
        let stream = upstream.of_type(of_type);
        let ack_or_nack = stream.pending_acks.pop_front();
        let has_subscriptions = stream.is_open || !matches!(stream.requested, RequestedNames::Nothing);
        if ack_or_nack.is_none() && !was_wildcard_ending && (changes.is_empty() || !has_subscriptions) {
            self.finish(of_type, changes);
            return None;
        }
        stream.is_open = true;
        let version = ack_or_nack
            .as_ref()
            .map_or(&stream.version, |ack_or_nack| &ack_or_nack.version)
            .as_ref()
            .to_owned();
        let (nonce, error) = nonce_and_error(ack_or_nack, &stream.nonce);
        let request = DiscoveryRequest {
            version_info: version,
            type_url: type_url.as_str().to_owned(),
            response_nonce: nonce,
            error_detail: error,
            ..DiscoveryRequest::default()
        };
        let list = stream.requested.clone();
        let names_bytes = if let RequestedNames::Names(list) = &list { list.len() } else { 0 };
        let mut encoded = BytesMut::with_capacity(node.len() + names_bytes + 256);
        if !std::mem::replace(&mut upstream.is_node_sent, true) {
            put_field(&mut encoded, SOTW_NODE, &node);
        }
        request.encode(&mut encoded).expect("the buffer grows");
        match list {
            RequestedNames::Nothing | RequestedNames::Everything => {}
            RequestedNames::NamedWildcard => put_field(&mut encoded, SOTW_NAMES, WILDCARD.as_bytes()),
            RequestedNames::Names(list) => encoded.put(list),
        }
        self.finish(of_type, changes);
        Some(encoded.freeze())
    }

    /// Forgets the version of a type before the first request of a stream, if the server must not rely
    /// on it.
    ///
    /// S32: with a version, a server assumes that the client has all members of a collection at that
    /// version. That is wrong for a new collection, and for one with other members. During a fallback
    /// (C15), the next server may replace members. Resources that are subscribed to by name are sent
    /// with or without a version.
    fn drop_unusable_version(&mut self, server: usize, of_type: usize) {
        let watched = &self.store.types[of_type];
        let is_new = |at: &u32| {
            let entry = watched.entries.get(*at as usize).filter(|entry| entry.dirty & 1 << server != 0);
            entry.is_some_and(|entry| entry.is_collection() && entry.state.status != ResourceStatus::Acked)
        };
        let is_fallback = self.servers.falls_back_from(server);
        let stream = self.servers.upstreams[server].of_type(of_type);
        let is_changed = (stream.is_partial || is_fallback) && !watched.collections.is_empty();
        if is_changed || stream.dirty.iter().any(is_new) {
            (stream.version, stream.is_partial) = (Arc::default(), false);
        }
    }

    /// Sets the names of the next SotW requests: all subscriptions on the server (S14).
    fn update_requested_names(&mut self, server: usize, of_type: usize) {
        let watched = &self.store.types[of_type];
        let (is_relay, authorities) = (self.relay.is_some(), &self.servers.authorities);
        let stream = self.servers.upstreams[server].of_type(of_type);
        let entries = watched.entries.iter().map(|(_, entry)| entry);
        let mut subscribed: Vec<_> = entries.filter(|entry| entry.subscribed_on & 1 << server != 0).collect();
        subscribed.sort_unstable_by(|one, other| one.locator().cmp(&other.locator()));
        let is_everything = |entry: &WatchEntry| {
            entry.name.as_str() == WILDCARD && !uses_locator(entry, is_relay, authorities)
        };
        let was_everything = matches!(stream.requested, RequestedNames::Everything);
        stream.requested = match &subscribed[..] {
            [] if was_everything => RequestedNames::NamedWildcard,
            [] => RequestedNames::Nothing,
            [only] if is_everything(only) && watched.known.legacy_wildcard && !stream.has_sent_names => {
                RequestedNames::Everything
            }
            all => {
                let mut list = BytesMut::new();
                let mut encoder = LocatorEncoder::default();
                for entry in all {
                    let by_locator = uses_locator(entry, is_relay, authorities);
                    encoder.put(&mut list, entry.locator(), by_locator, SOTW_NAMES, SOTW_LOCATORS);
                }
                RequestedNames::Names(list.freeze())
            }
        };
        stream.has_sent_names |=
            matches!(stream.requested, RequestedNames::NamedWildcard | RequestedNames::Names(_));
    }

    /// The next delta request of a type. It has the changed subscriptions, and the ACK or NACK of
    /// one response (D2, D4).
    fn delta_request(&mut self, now: Duration, server: usize, of_type: usize) -> Option<Bytes> {
        let is_first = !self.servers[server].of_type(of_type).is_open;
        let changes = self.take_subscription_changes(now, server, of_type, DELTA_REQUEST_BYTES);
        let stream = self.servers[server].of_type(of_type);
        let ack_or_nack = stream.pending_acks.pop_front();
        if ack_or_nack.is_none() && changes.is_empty() {
            return None;
        }
        if is_first && changes.added.is_empty() {
            self.finish(of_type, changes);
            return None;
        }
        let mut lists = BytesMut::new();
        let (is_relay, authorities) = (self.relay.is_some(), &self.servers.authorities);
        let watched = &self.store.types[of_type];
        let mut encoder = LocatorEncoder::default();
        let mut put = |entries: &[u32], names, locators| {
            for entry in entries.iter().map(|at| watched.entry(*at)) {
                let by_locator = uses_locator(entry, is_relay, authorities);
                encoder.put(&mut lists, entry.locator(), by_locator, names, locators);
            }
        };
        put(&changes.added, DELTA_SUBSCRIBE, DELTA_SUBSCRIBE_LOCATORS);
        put(&changes.removed, DELTA_UNSUBSCRIBE, DELTA_UNSUBSCRIBE_LOCATORS);
        // D1: only the first request of a type lists the resources from earlier streams.
        let initial_versions = match is_first {
            true => initial_versions(watched, &changes.added, server, &self.servers),
            false => BTreeMap::new(),
        };
        let type_url = watched.type_url.clone();
        let node = self.node.clone();
        let upstream = &mut self.servers[server];
        upstream.of_type(of_type).is_open = true;
        // D4: a request that is no ACK or NACK has no nonce.
        let (nonce, error) = nonce_and_error(ack_or_nack, "");
        let awaited = watched.awaited_before(&changes.added, server);
        upstream.of_type(of_type).awaited_before.extend(awaited);
        let request = DeltaDiscoveryRequest {
            type_url: type_url.as_str().to_owned(),
            initial_resource_versions: initial_versions,
            response_nonce: nonce,
            error_detail: error,
            ..DeltaDiscoveryRequest::default()
        };
        let mut encoded = BytesMut::with_capacity(node.len() + lists.len() + 256);
        if !std::mem::replace(&mut upstream.is_node_sent, true) {
            put_field(&mut encoded, DELTA_NODE, &node);
        }
        request.encode(&mut encoded).expect("the buffer grows");
        encoded.put(lists);
        self.finish(of_type, changes);
        Some(encoded.freeze())
    }

    /// Takes the changed names and locators for a request (D30), each in one list (D3), sorted. A name
    /// that was unwatched and watched again in between did not change (C13b).
    fn take_subscription_changes(
        &mut self,
        now: Duration,
        server: usize,
        of_type: usize,
        limit_bytes: usize,
    ) -> SubscriptionChanges {
        let mut changes = SubscriptionChanges::default();
        let mut dirty = std::mem::take(&mut self.servers[server].of_type(of_type).dirty);
        if dirty.is_empty() {
            return changes;
        }
        let answers = Answers::of(&mut self.servers, server, of_type, self.store.types[of_type].known);
        let watched = &mut self.store.types[of_type];
        let (bit, mut len) = (1_u64 << server, 0);
        let stream = self.servers.upstreams[server].of_type(of_type);
        // An entry that was removed meanwhile left its number in the list. Another entry may have
        // the number now, without a mark.
        dirty.retain(|at| watched.entries.get(*at as usize).is_some_and(|entry| entry.dirty & bit != 0));
        // D1: only the first request has initial versions. Collections have most of these, so they
        // come first. If not all names fit into one request, those with the same parameters come
        // together: a client of a proxy mostly waits for these.
        dirty.sort_unstable_by(|one, other| {
            let key = |at: &u32| {
                let entry = watched.entry(*at);
                (!entry.is_collection(), &entry.parameters, &entry.name)
            };
            key(one).cmp(&key(other))
        });
        dirty.dedup();
        let mut unanswered = Vec::new();
        let mut rest = dirty.into_iter();
        while len < limit_bytes
            && let Some(at) = rest.next()
        {
            let entry = watched.entry_mut(at);
            entry.dirty &= !bit;
            let is_needed = entry.watchers > 0 && self.servers.authorities[entry.authority].uses(server);
            let is_subscribed = entry.subscribed_on & bit != 0;
            if is_needed == is_subscribed {
                continue;
            }
            let parameters = entry.parameters.own();
            let parameters = parameters.map(|(key, value)| PARAMETER_BYTES + key.len() + value.len());
            len += entry.name.as_str().len() + FIELD_BYTES + parameters.sum::<usize>();
            entry.subscribed_on ^= bit;
            if is_subscribed {
                changes.removed.push(at);
                // C12: its answer may still come.
                if answers.is_delta && entry.is_awaited_from(server) && !entry.is_collection() {
                    stream.awaited_before.insert(entry.name.clone());
                }
                entry.stop_waiting_for(server);
                continue;
            }
            changes.added.push(at);
            if let Some((_, watches)) = self.late.as_mut().filter(|(of, _)| *of == server) {
                watches.insert(watch_id(of_type, at));
            }
            // C5, P5.5: timers run on an open stream, and only for resources that are not cached.
            if !answers.is_cached(entry, &self.servers.authorities[entry.authority]) {
                unanswered.push(watch_id(of_type, at));
            } else if entry.state.server == Some(server) && answers.reports_removals {
                entry.awaited = None;
            }
        }
        self.servers[server].of_type(of_type).dirty = rest.collect();
        unanswered.into_iter().for_each(|watch| self.start_timer(now, server, watch));
        changes
    }

    /// C13: the unsubscriptions are sent, so entries without watchers can be removed.
    fn finish(&mut self, of_type: usize, changes: SubscriptionChanges) {
        for at in changes.removed {
            let entry = self.store.types[of_type].entry(at);
            if entry.watchers == 0 && entry.subscribed_on == 0 {
                self.store.remove(of_type, at);
            }
        }
    }
}

/// What a server reports after a new subscription of one type.
struct Answers {
    server: usize,
    is_delta: bool,
    /// The server reports the removal of a resource that the client has: it knows of it from the
    /// client (D21, S32). In SotW for listeners and clusters only (S26).
    reports_removals: bool,
    /// S17, S32: without a version, a SotW server does not report the names that it does not have. So
    /// names with a copy need a timer, too.
    omits_absences: bool,
    /// All servers that report removals of the type (S26), as bits.
    reporting: u64,
}

impl Answers {
    fn of(servers: &mut Servers, server: usize, of_type: usize, known: &KnownType) -> Self {
        let reports = |upstream: &Upstream| upstream.is_delta() || known.full_state;
        let reporting = servers.upstreams.iter().enumerate().filter(|(_, upstream)| reports(upstream));
        let reporting = reporting.fold(0, |all, (at, _)| all | 1 << at);
        let is_delta = servers[server].is_delta();
        let stream = servers[server].of_type(of_type);
        let is_first = !is_delta && known.full_state && !stream.is_open;
        let has_version = !stream.version.is_empty();
        Self {
            server,
            is_delta,
            reports_removals: is_delta || is_first && has_version,
            omits_absences: is_first && !has_version,
            reporting,
        }
    }

    /// Whether a resource, or all members of a glob or wildcard, are cached: no timer runs for a new
    /// subscription to them (C5, P5.5).
    fn is_cached(&self, entry: &WatchEntry, authority: &Authority) -> bool {
        if let Some(members) = &entry.members {
            let is_from_unused = |state: &ResourceState| authority.is_from_unused(state);
            let is_confirmed = self.is_delta || !members.values().any(is_from_unused);
            return entry.state.status == ResourceStatus::Acked && is_confirmed;
        }
        // Another server in use has answered, and reports a removal.
        let is_confirmed = |of: usize| {
            of != self.server
                && entry.subscribed_on & self.reporting & 1 << of != 0
                && !entry.is_awaited_from(of)
        };
        let sender = entry.state.server;
        // P4.6: a copy from a server that is no longer in use must be confirmed.
        entry.state.copy.as_ref().is_some_and(|copy| !copy.is_restored)
            && sender.is_none_or(|of| authority.uses(of))
            && (!self.omits_absences || sender.is_some_and(is_confirmed))
    }
}

/// The subscriptions that a request adds and removes, by the numbers of their entries.
#[derive(Debug, Default)]
struct SubscriptionChanges {
    added: Vec<u32>,
    removed: Vec<u32>,
}

impl SubscriptionChanges {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl WatchedType {
    /// The names that a server has not answered yet, also those whose timer has ended. Empty if none of
    /// these added entries is a glob or wildcard.
    fn awaited_before(&self, added: &[u32], server: usize) -> Vec<ResourceName> {
        if !added.iter().any(|at| self.entry(*at).is_collection()) {
            return Vec::new();
        }
        let added: BTreeSet<_> = added.iter().map(|at| *at as usize).collect();
        let is_awaited = |entry: &WatchEntry| entry.is_awaited_from(server);
        let before = self.entries.iter().filter(|(at, entry)| !added.contains(at) && !entry.is_collection());
        before.filter(|(_, entry)| is_awaited(entry)).map(|(_, entry)| entry.name.clone()).collect()
    }
}

impl WatchEntry {
    /// Its name and parameters, by which requests are sorted.
    pub(super) fn locator(&self) -> (&ResourceName, &Parameters) {
        (&self.name, &self.parameters)
    }
}

/// The `initial_resource_versions` of a request that adds these entries (C14b, T37): the resources
/// that are in use, came from this server, and have a single variant.
///
/// Other members of a glob or wildcard are listed with a version that no resource has. Otherwise
/// the server would not report that they were removed in the meantime. So are resources of a type
/// that is refused (G4), and all resources during a fallback (C15): the next server may replace one
/// before this server answers, and this server would then not send it (D21).
fn initial_versions(
    watched: &WatchedType,
    added: &[u32],
    server: usize,
    servers: &Servers,
) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let is_good = |state: &ResourceState| {
        state.copy.is_some() && matches!(state.status, ResourceStatus::Acked | ResourceStatus::Nacked)
    };
    let mut insert = |name: &ResourceName, state: &ResourceState, entry: &WatchEntry| {
        let is_fallback = servers.authorities[entry.authority].falls_back_from(server);
        let stored = watched.names.get(name).map(|named| &named.variants[..]).unwrap_or_default();
        let version = match stored {
            [stored] if stored.server == Some(server) && !stored.version.is_empty() && is_good(state) => {
                if is_fallback {
                    UNKNOWN_VERSION
                } else {
                    stored.version.as_ref()
                }
            }
            // G4: a server that does not serve the type reports as absent what the client does not bring.
            [_, ..] if entry.is_collection() || entry.is_refused() => UNKNOWN_VERSION,
            [] | [_, ..] => return,
        };
        versions.insert(name.as_str().to_owned(), version.to_owned());
    };
    for entry in added.iter().map(|at| watched.entry(*at)) {
        match &entry.members {
            None => insert(watched.aliases.get(&entry.name).unwrap_or(&entry.name), &entry.state, entry),
            Some(members) => members.iter().for_each(|(name, state)| insert(name, state, entry)),
        }
    }
    ask_for_one(watched, &mut versions);
    versions
}

/// D21b: has the server send the smallest resource again, or its removal, if it would have nothing to say.
fn ask_for_one(watched: &WatchedType, versions: &mut BTreeMap<String, String>) {
    if versions.values().any(|version| version == UNKNOWN_VERSION) {
        return;
    }
    let size = |name: &str| {
        let stored = watched.names.get(name).and_then(|named| named.variants.first());
        stored.map_or(0, |stored| stored.accepted.payload().len())
    };
    let smallest = versions.iter_mut().min_by_key(|(name, _)| size(name));
    smallest.into_iter().for_each(|(_, version)| UNKNOWN_VERSION.clone_into(version));
}

/// The nonce and the error of a request. Without an ACK or NACK the nonce is `otherwise`.
fn nonce_and_error(ack_or_nack: Option<AckOrNack>, otherwise: &str) -> (String, Option<Status>) {
    let Some(AckOrNack { nonce, error, .. }) = ack_or_nack else { return (otherwise.to_owned(), None) };
    let status = |message| Status { code: Code::INVALID_ARGUMENT.0, message, ..Status::default() };
    (nonce.as_ref().to_owned(), error.map(status))
}

/// Whether requests name an entry by a locator, not by a plain name. Without parameters a name is
/// plain (T40), but a proxy sends locators to all servers with TP2 (T44).
fn uses_locator(entry: &WatchEntry, is_relay: bool, authorities: &[Authority]) -> bool {
    match is_relay {
        true => authorities[entry.authority].config.speaks_locators,
        false => !entry.parameters.is_empty(),
    }
}

/// Encodes names and locators into their fields of a request. The locators of one request have few
/// different parameters.
#[derive(Default)]
struct LocatorEncoder<'e> {
    /// The fields of the parameters in a `ResourceLocator`.
    parameters: BTreeMap<&'e Parameters, Vec<u8>>,
}

impl<'e> LocatorEncoder<'e> {
    fn put(
        &mut self,
        buffer: &mut BytesMut,
        (name, parameters): (&'e ResourceName, &'e Parameters),
        by_locator: bool,
        names: u32,
        locators: u32,
    ) {
        let name = name.as_str().as_bytes();
        if !by_locator {
            return put_field(buffer, names, name);
        }
        let parameters = self.parameters.entry(parameters).or_insert_with(|| encode_parameters(parameters));
        put_length(buffer, locators, field_len(name.len()) + parameters.len());
        put_field(buffer, LOCATOR_NAME, name);
        buffer.put_slice(parameters);
    }
}

/// The map entries of `ResourceLocator.dynamic_parameters`.
fn encode_parameters(parameters: &Parameters) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (key, value) in parameters.own() {
        put_length(&mut encoded, LOCATOR_PARAMETERS, field_len(key.len()) + field_len(value.len()));
        put_field(&mut encoded, MAP_KEY, key.as_bytes());
        put_field(&mut encoded, MAP_VALUE, value.as_bytes());
    }
    encoded
}

/// The initial version of a resource whose version cannot be compared.
const UNKNOWN_VERSION: &str = "?";

/// About how many bytes of names one delta request has; more go into the next request. Servers
/// commonly refuse messages of more than 4 MiB (G9), and initial versions may double the size.
const DELTA_REQUEST_BYTES: usize = 1 << 20;

/// About how many bytes a name takes on the wire in addition to its text, and how many a parameter
/// takes in addition to its key and its value.
const FIELD_BYTES: usize = 4;
const PARAMETER_BYTES: usize = 8;

const SOTW_NODE: u32 = 2;
const SOTW_NAMES: u32 = 3;
const SOTW_LOCATORS: u32 = 7;
const DELTA_NODE: u32 = 1;
const DELTA_SUBSCRIBE: u32 = 3;
const DELTA_UNSUBSCRIBE: u32 = 4;
const DELTA_SUBSCRIBE_LOCATORS: u32 = 8;
const DELTA_UNSUBSCRIBE_LOCATORS: u32 = 9;
const LOCATOR_NAME: u32 = 1;
const LOCATOR_PARAMETERS: u32 = 2;
const MAP_KEY: u32 = 1;
const MAP_VALUE: u32 = 2;
