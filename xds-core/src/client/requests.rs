//! What is sent to a server: subscriptions as they changed, and what is said about responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use xds_proto::google::rpc::Status;

use super::authority::Authority;
use super::resource_state::{ResourceState, ResourceStatus};
use super::upstream::{AckOrNack, RequestedNames};
use super::watched_type::{WILDCARD, WatchEntry, WatchedType};
use super::{Client, WatchId, watch_id};
use crate::code::Code;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::wire::fields::put_field;

impl Client {
    /// The next request for a server, encoded; `None` when there is nothing to say. To be asked
    /// when the transport has room: a batch of changes is one request per type.
    pub fn next_request(&mut self, now: Duration, server: usize) -> Option<Bytes> {
        if !self.upstreams[server].is_open() {
            return None;
        }
        for of_type in 0..self.upstreams[server].types.len() {
            if self.types[of_type].is_deferred && !self.upstreams[server].of_type(of_type).is_open {
                continue;
            }
            let upstream = self.upstreams[server].of_type(of_type);
            let is_giving_up = matches!(upstream.list, RequestedNames::GivingUp);
            if upstream.dirty.is_empty() && upstream.pending_acks.is_empty() && !is_giving_up {
                continue;
            }
            let request = match self.upstreams[server].is_delta() {
                true => self.delta_request(now, server, of_type),
                false => self.sotw_request(now, server, of_type),
            };
            if request.is_some() {
                return request;
            }
        }
        None
    }

    /// S3, S4, S14: each request lists all names.
    fn sotw_request(&mut self, now: Duration, server: usize, of_type: usize) -> Option<Bytes> {
        let changes = self.take_changes(now, server, of_type, usize::MAX);
        let was_giving_up = matches!(self.upstreams[server].of_type(of_type).list, RequestedNames::GivingUp);
        if !changes.is_empty() || was_giving_up {
            self.list(server, of_type);
        }
        let has_collections = !self.types[of_type].collections.is_empty();
        let is_new_collection = changes
            .added
            .iter()
            .map(|at| self.types[of_type].entry(*at))
            .any(|entry| entry.is_collection() && entry.state.status != ResourceStatus::Acked);
        let type_url = self.types[of_type].type_url.clone();
        let node = self.node.clone();
        let upstream = &mut self.upstreams[server];
        let stream = upstream.of_type(of_type);
        let answer = stream.pending_acks.pop_front();
        let has_asked = stream.is_open || !matches!(stream.list, RequestedNames::Nothing);
        if answer.is_none() && !was_giving_up && (changes.is_empty() || !has_asked) {
            self.finish(of_type, changes);
            return None;
        }
        // S32: else a server may take what is held for all that the version stands for. By name it
        // sends everything.
        let is_first = !std::mem::replace(&mut stream.is_open, true);
        if is_first && (is_new_collection || (stream.is_partial && has_collections)) {
            stream.version = Arc::default();
            stream.is_partial = false;
        }
        let version = answer.as_ref().map_or(&stream.version, |answer| &answer.version).as_ref().to_owned();
        let (nonce, error) = said(answer, &stream.nonce);
        let request = DiscoveryRequest {
            version_info: version,
            type_url: type_url.as_str().to_owned(),
            response_nonce: nonce,
            error_detail: error,
            ..DiscoveryRequest::default()
        };
        let list = stream.list.clone();
        let names_bytes = if let RequestedNames::Named(list) = &list { list.len() } else { 0 };
        let mut encoded = BytesMut::with_capacity(node.len() + names_bytes + 256);
        if !std::mem::replace(&mut upstream.is_node_sent, true) {
            put_field(&mut encoded, SOTW_NODE, &node);
        }
        request.encode(&mut encoded).expect("the buffer grows");
        match list {
            RequestedNames::Nothing | RequestedNames::Everything => {}
            RequestedNames::GivingUp => put_field(&mut encoded, SOTW_NAMES, WILDCARD.as_bytes()),
            RequestedNames::Named(list) => encoded.put(list),
        }
        self.finish(of_type, changes);
        Some(encoded.freeze())
    }

    /// Makes the list of what the server was told of (S14).
    fn list(&mut self, server: usize, of_type: usize) {
        let watched = &self.types[of_type];
        let (is_relay, authorities) = (self.relay.is_some(), &self.authorities);
        let stream = self.upstreams[server].of_type(of_type);
        let told = watched
            .entries
            .iter()
            .map(|(_, entry)| entry)
            .filter(|entry| entry.subscribed_on & 1 << server != 0);
        let mut told: Vec<_> = told.collect();
        told.sort_unstable_by(|one, other| one.locator().cmp(&other.locator()));
        let is_everything =
            |entry: &WatchEntry| entry.name.as_str() == WILDCARD && !locates(entry, is_relay, authorities);
        let was_everything = matches!(stream.list, RequestedNames::Everything);
        stream.list = match &told[..] {
            [] if was_everything => RequestedNames::GivingUp,
            [] => RequestedNames::Nothing,
            [only] if is_everything(only) && watched.known.legacy_wildcard && !stream.has_named => {
                RequestedNames::Everything
            }
            all => {
                let mut list = BytesMut::new();
                for entry in all {
                    let by_locator = locates(entry, is_relay, authorities);
                    put_locator(&mut list, entry.locator(), by_locator, SOTW_NAMES, SOTW_LOCATORS);
                }
                RequestedNames::Named(list.freeze())
            }
        };
        stream.has_named |= matches!(stream.list, RequestedNames::GivingUp | RequestedNames::Named(_));
    }

    /// D2, D4: each request says what changed, and answers one response.
    fn delta_request(&mut self, now: Duration, server: usize, of_type: usize) -> Option<Bytes> {
        let is_first = !self.upstreams[server].of_type(of_type).is_open;
        let changes = self.take_changes(now, server, of_type, DELTA_REQUEST_BYTES);
        let stream = self.upstreams[server].of_type(of_type);
        let answer = stream.pending_acks.pop_front();
        if answer.is_none() && changes.is_empty() {
            return None;
        }
        if is_first && changes.added.is_empty() {
            self.finish(of_type, changes);
            return None;
        }
        let mut lists = BytesMut::new();
        let (is_relay, authorities) = (self.relay.is_some(), &self.authorities);
        let watched = &self.types[of_type];
        for at in &changes.added {
            let entry = watched.entry(*at);
            let by_locator = locates(entry, is_relay, authorities);
            put_locator(&mut lists, entry.locator(), by_locator, DELTA_SUBSCRIBE, DELTA_SUBSCRIBE_LOCATORS);
        }
        for at in &changes.removed {
            let entry = watched.entry(*at);
            let by_locator = locates(entry, is_relay, authorities);
            put_locator(
                &mut lists,
                entry.locator(),
                by_locator,
                DELTA_UNSUBSCRIBE,
                DELTA_UNSUBSCRIBE_LOCATORS,
            );
        }
        // D1: only the first request of a type says what is there from another stream.
        let brought = if is_first { brought(watched, &changes.added, server) } else { BTreeMap::new() };
        let type_url = watched.type_url.clone();
        let node = self.node.clone();
        let upstream = &mut self.upstreams[server];
        upstream.of_type(of_type).is_open = true;
        // D4: what answers nothing has no nonce.
        let (nonce, error) = said(answer, "");
        let request = DeltaDiscoveryRequest {
            type_url: type_url.as_str().to_owned(),
            initial_resource_versions: brought,
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

    /// What the server has to be told of names and locators (D30), each in one list (D3), in the
    /// order of names. What was dropped and is wanted again needs no word (C13b).
    fn take_changes(
        &mut self,
        now: Duration,
        server: usize,
        of_type: usize,
        limit_bytes: usize,
    ) -> SubscriptionChanges {
        let mut changes = SubscriptionChanges::default();
        let mut dirty = std::mem::take(&mut self.upstreams[server].of_type(of_type).dirty);
        if dirty.is_empty() {
            return changes;
        }
        let watched = &mut self.types[of_type];
        let (bit, mut len) = (1_u64 << server, 0);
        // S17, S32: a server that is brought no version says nothing of names that it does not
        // have.
        let upstream = &mut self.upstreams[server];
        let is_sotw = !upstream.is_delta();
        let stream = upstream.of_type(of_type);
        let is_unconfirmed =
            is_sotw && watched.known.full_state && !stream.is_open && stream.version.is_empty();
        // What was removed meanwhile left its number behind, perhaps to another entry that has no
        // mark.
        dirty.retain(|at| watched.entries.get(*at as usize).is_some_and(|entry| entry.dirty & bit != 0));
        // D1: what is brought along goes with the first piece, and collections have the most of it.
        dirty.sort_unstable_by(|one, other| {
            let key = |entry: &WatchEntry| !entry.is_collection();
            let (one, other) = (watched.entry(*one), watched.entry(*other));
            key(one).cmp(&key(other)).then_with(|| one.locator().cmp(&other.locator()))
        });
        dirty.dedup();
        let mut unanswered = Vec::new();
        let mut left = dirty.into_iter();
        while len < limit_bytes
            && let Some(at) = left.next()
        {
            let entry = watched.entry_mut(at);
            entry.dirty &= !bit;
            let is_wanted = entry.watchers > 0 && self.authorities[entry.authority].uses(server);
            let is_told = entry.subscribed_on & bit != 0;
            if is_wanted == is_told {
                continue;
            }
            len += entry.name.as_str().len() + FIELD_BYTES + entry.parameters.len() * PARAMETER_BYTES;
            entry.subscribed_on ^= bit;
            if is_told {
                changes.removed.push(at);
                if entry.subscribed_on == 0 {
                    entry.deadline = None;
                }
                continue;
            }
            changes.added.push(at);
            if let Some(late) = &mut self.late {
                late.note(server, watch_id(of_type, at));
            }
            // C5, P5.5: on a connected stream, and only for what is not there.
            let is_cached = match entry.is_collection() {
                true => entry.state.status == ResourceStatus::Acked,
                // P4.6: nor what came from a server that was left.
                false => {
                    !is_unconfirmed
                        && entry.state.copy.as_ref().is_some_and(|copy| !copy.is_restored)
                        && entry.state.server.is_none_or(|of| self.authorities[entry.authority].uses(of))
                }
            };
            if !is_cached {
                unanswered.push(watch_id(of_type, at));
            }
        }
        self.upstreams[server].of_type(of_type).dirty = left.collect();
        unanswered.into_iter().for_each(|watch| self.start_timer(now, server, watch));
        changes
    }

    /// C5, C6
    pub(super) fn start_timer(&mut self, now: Duration, server: usize, watch: WatchId) {
        let (timers, timeout) = match self.upstreams[server].config.errors.resource_timer_is_transient_error {
            true => (1, self.transient_resource_timeout),
            false => (0, self.resource_timeout),
        };
        let (of_type, at) = watch.place();
        let deadline = now + timeout;
        self.types[of_type].entry_mut(at).deadline = Some(deadline);
        self.timers[timers].push_back((deadline, watch));
    }

    /// C13: the server was told, so what nobody watches can go.
    fn finish(&mut self, of_type: usize, changes: SubscriptionChanges) {
        for at in changes.removed {
            let entry = self.types[of_type].entry(at);
            if entry.watchers == 0 && entry.subscribed_on == 0 {
                self.remove(of_type, at);
            }
        }
    }
}

/// What a request says about subscriptions, by the numbers of entries.
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

impl WatchEntry {
    pub(super) fn locator(&self) -> (&ResourceName, &Parameters) {
        (&self.name, &self.parameters)
    }
}

/// C14b, T37: the versions of what is in use, was accepted from this server, and is the only
/// variant of its name.
///
/// What else a glob or wildcard stands for is brought under a version that nothing has: else nobody
/// would say that it went meanwhile.
fn brought(watched: &WatchedType, added: &[u32], server: usize) -> BTreeMap<String, String> {
    let mut brought = BTreeMap::new();
    let is_good = |state: &ResourceState| {
        state.copy.is_some() && matches!(state.status, ResourceStatus::Acked | ResourceStatus::Nacked)
    };
    let mut bring = |name: &ResourceName, state: &ResourceState, is_member: bool| {
        let stored = watched.names.get(name).map(|named| &named.variants[..]).unwrap_or_default();
        let version = match stored {
            [stored] if stored.server == Some(server) && !stored.version.is_empty() && is_good(state) => {
                stored.version.as_ref()
            }
            [_, ..] if is_member => UNKNOWN_VERSION,
            [] | [_, ..] => return,
        };
        brought.insert(name.as_str().to_owned(), version.to_owned());
    };
    for entry in added.iter().map(|at| watched.entry(*at)) {
        match &entry.members {
            None => bring(watched.aliases.get(&entry.name).unwrap_or(&entry.name), &entry.state, false),
            Some(members) => members.iter().for_each(|(name, state)| bring(name, state, true)),
        }
    }
    brought
}

/// What the fields of an answer say.
fn said(answer: Option<AckOrNack>, otherwise: &str) -> (String, Option<Status>) {
    let Some(AckOrNack { nonce, error, .. }) = answer else { return (otherwise.to_owned(), None) };
    let status = |message| Status { code: Code::INVALID_ARGUMENT.0, message, ..Status::default() };
    (nonce.as_ref().to_owned(), error.map(status))
}

/// Whether something goes to servers as a locator.
fn locates(entry: &WatchEntry, is_relay: bool, authorities: &[Authority]) -> bool {
    match is_relay {
        true => authorities[entry.authority].config.speaks_locators,
        false => !entry.parameters.is_empty(),
    }
}

/// T40: what has no parameters goes by name, but for proxies (T44).
fn put_locator(
    buffer: &mut BytesMut,
    (name, parameters): (&ResourceName, &Parameters),
    by_locator: bool,
    names: u32,
    locators: u32,
) {
    if !by_locator {
        return put_field(buffer, names, name.as_str().as_bytes());
    }
    let text = |text: &Arc<str>| text.as_ref().to_owned();
    let parameters = parameters.unbound();
    let dynamic_parameters = parameters.iter().map(|(key, value)| (text(key), text(value))).collect();
    let locator = ResourceLocator { name: name.as_str().to_owned(), dynamic_parameters };
    put_field(buffer, locators, &locator.encode_to_vec());
}

/// The version of what cannot be compared by one.
const UNKNOWN_VERSION: &str = "?";

/// G9: servers commonly refuse messages of more than 4 MiB, and a delta subscription can be told in
/// pieces. Versions that are brought may double a piece.
const DELTA_REQUEST_BYTES: usize = 1 << 20;

/// About what a name takes on the wire beside its text, and a parameter.
const FIELD_BYTES: usize = 4;
const PARAMETER_BYTES: usize = 32;

const SOTW_NODE: u32 = 2;
const SOTW_NAMES: u32 = 3;
const SOTW_LOCATORS: u32 = 7;
const DELTA_NODE: u32 = 1;
const DELTA_SUBSCRIBE: u32 = 3;
const DELTA_UNSUBSCRIBE: u32 = 4;
const DELTA_SUBSCRIBE_LOCATORS: u32 = 8;
const DELTA_UNSUBSCRIBE_LOCATORS: u32 = 9;
