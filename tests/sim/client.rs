//! A client by the rules of the protocol: its state, and its side of its streams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xds_core::server::{DeltaRequest, Protocol, SotwRequest};
use xds_core::subscription::{self, Locator};
use xds_core::{Nonce, Parameters};

use crate::connection::{Connection, Envelope, Message, Request};
use crate::content::{Content, Kind};
use crate::known::{Asked, Held, Key, Known, Rejects};
use crate::script::Profile;
use crate::wire::{Item, Received};

pub(crate) struct Client {
    pub(crate) profile: Profile,
    pub(crate) types: BTreeMap<Kind, Known>,
    /// By type; `None` is the stream for all types.
    pub(crate) connections: BTreeMap<Option<Kind>, Connection>,
    /// Types of which the client rejected a response.
    pub(crate) rejected: BTreeSet<Kind>,
    /// The contents that the client was sent last and does not use.
    unused: BTreeMap<(Kind, String), Content>,
    /// For each subscription: the number of the origin's state when the client subscribed.
    pub(crate) since: BTreeMap<(Kind, Asked), usize>,
    /// Its requests do not arrive, and it reads no responses.
    pub(crate) is_silent: bool,
    /// Since when the client lacks a resource that exists for it.
    pub(crate) lacks: BTreeMap<(Kind, String, Parameters), Duration>,
}

impl Client {
    /// S33: a client that follows all the clusters of its routes keeps the clusters that its routes
    /// name, even if they are removed. It keeps endpoints too: if the client brought a cluster from
    /// another stream, the server does not know which endpoints it needs. D8: the server does not know
    /// which routes of a rejected response are in use.
    pub(crate) fn is_used(&self, kind: Kind, name: &str) -> bool {
        let routes = self.types.get(&Kind::Route).into_iter().flat_map(|known| known.held.values());
        let unused = self.unused.iter().filter(|((of, _), _)| *of == Kind::Route);
        let contents = routes.map(|held| &held.content).chain(unused.map(|(_, content)| content));
        let mut named = contents.flat_map(|content| &content.clusters);
        match kind {
            Kind::Cluster if named.any(|named| named == name) => true,
            Kind::Endpoints if named.next().is_some() => true,
            _ => self.may_use_older(kind),
        }
    }

    /// Whether the client does not use what it was sent last of a name.
    pub(crate) fn rejects(&self, kind: Kind, name: &str) -> bool {
        self.unused.contains_key(&(kind, name.to_owned()))
    }

    /// Whether the client does not use something that it was sent last.
    pub(crate) fn has_unused(&self, kind: Kind) -> bool {
        self.unused.keys().any(|(of, _)| *of == kind)
    }

    /// The same of a name of which it asks for several variants.
    pub(crate) fn has_unused_variants(&self) -> bool {
        let of_type = |kind: &Kind| self.types.get(kind);
        let mut unused = self.unused.keys();
        unused.any(|(kind, name)| of_type(kind).is_some_and(|known| known.locators(name).len() > 1))
    }

    /// S33, D8: as long as the client does not use a content that it was sent, the server does not know
    /// what the older content names. So removals of what the content's type may name wait.
    fn may_use_older(&self, kind: Kind) -> bool {
        let is_asked = |kind: &Kind, name: &str| {
            self.types.get(kind).is_some_and(|known| !known.locators(name).is_empty())
        };
        let unused = self.unused.keys().filter(|(of, name)| is_asked(of, name));
        unused.map(|(of, _)| *of).any(|of| is_referrer(of, kind))
    }

    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            types: BTreeMap::new(),
            connections: BTreeMap::new(),
            rejected: BTreeSet::new(),
            unused: BTreeMap::new(),
            since: BTreeMap::new(),
            is_silent: false,
            lacks: BTreeMap::new(),
        }
    }

    /// The stream that a type uses.
    pub(crate) fn slot(&self, kind: Kind) -> Option<Kind> {
        (!self.profile.is_aggregated).then_some(kind)
    }

    pub(crate) fn connection(&mut self, kind: Kind) -> Option<&mut Connection> {
        self.connections.get_mut(&self.slot(kind))
    }

    /// The types that use one of its streams.
    pub(crate) fn kinds_on(&self, slot: Option<Kind>) -> Vec<Kind> {
        self.types.keys().copied().filter(|kind| slot.is_none_or(|slot| slot == *kind)).collect()
    }

    /// Whether this request subscribes to a wildcard again. Responses in flight for the wildcard
    /// that the client dropped cannot be distinguished from those for the new one. So the client
    /// first reads all responses.
    pub(crate) fn has_to_catch_up(&self, kind: Kind, asked: &BTreeSet<Asked>) -> bool {
        let is_new = |one: &&Asked| self.types.get(&kind).is_none_or(|known| !known.asked.contains(*one));
        asked.iter().filter(is_new).any(|(name, _)| name.is_none())
    }

    /// The time at which its servers have something to do without an outside event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.connections.values().filter_map(Connection::next_deadline).min()
    }

    /// Changes the subscription; the request is sent if there is a stream.
    pub(crate) fn ask(&mut self, kind: Kind, asked: BTreeSet<Asked>) {
        let profile = &self.profile;
        let known =
            self.types.entry(kind).or_insert_with(|| Known::new(kind, profile.protocol, &profile.node));
        let asked = known.distinct(asked);
        // S19, D16: an empty request would subscribe to the wildcard (in SotW, as long as no other
        // names were sent).
        let is_legacy = known.protocol == Protocol::Sotw && sotw_list(known, profile.is_legacy).is_empty();
        if asked.is_empty() && (!known.has_asked || is_legacy) {
            return;
        }
        let before = known.asked.clone();
        known.ask(asked);
        let is_first = !known.has_asked;
        let request = match known.protocol {
            Protocol::Sotw => Message::Sotw(SotwRequest {
                requested: Some(sotw_list(known, self.profile.is_legacy)),
                ..sotw(known)
            }),
            Protocol::Delta => Message::Delta(delta(known, &before, is_first, self.profile.is_legacy)),
        };
        self.send(kind, request);
    }

    /// Records since when each subscription exists.
    pub(crate) fn note_asked(&mut self, kind: Kind, origin_at: usize) {
        let asked = self.types.get(&kind).map(|known| known.asked.clone()).unwrap_or_default();
        self.since.retain(|(of, one), _| *of != kind || asked.contains(one));
        for one in asked {
            self.since.entry((kind, one)).or_insert(origin_at);
        }
    }

    /// The first request of a type on a new stream (S1, D1).
    pub(crate) fn ask_again(&mut self, kind: Kind) {
        let Some(known) = self.types.get(&kind).filter(|known| !known.asked.is_empty()) else { return };
        self.ask(kind, known.asked.clone());
    }

    fn send(&mut self, kind: Kind, message: Message) {
        let slot = self.slot(kind);
        let (Some(known), Some(connection)) = (self.types.get_mut(&kind), self.connections.get_mut(&slot))
        else {
            return;
        };
        let brought = if known.has_asked { BTreeMap::new() } else { known.held.clone() };
        known.has_asked = true;
        connection.requests.push_back(Request { kind, message, asked: known.asked.clone(), brought });
    }

    /// Reads the oldest response of the stream of a type.
    pub(crate) fn read(&mut self, kind: Kind) -> Option<Envelope> {
        self.connection(kind)?.responses.pop_front()
    }

    /// Applies a response, and sends the ACK or NACK. Returns whether the client uses all of it
    /// (C1).
    pub(crate) fn take(&mut self, envelope: &Envelope) -> bool {
        let Envelope { received, sent_at, asked, .. } = envelope;
        let Some(known) = self.types.get_mut(&received.kind) else { return false };
        let is_accepted = known.take(received, self.profile.rejects, *sent_at);
        known.version_of.clone_from(asked);
        let error_detail = (!is_accepted).then(|| error_text(known, received, self.profile.rejects));
        let names = received.names();
        self.unused.retain(|(kind, name), _| *kind != received.kind || !names.contains(name));
        for item in &received.resources {
            let is_it = |(key, held): (&Key, &Held)| key.0 == item.name && held.content == item.content;
            if !known.held.iter().any(is_it) {
                self.unused.insert((received.kind, item.name.clone()), item.content.clone());
            }
        }
        let message = match known.protocol {
            Protocol::Sotw => {
                let requested = Some(sotw_list(known, self.profile.is_legacy));
                Message::Sotw(SotwRequest { error_detail, requested, ..sotw(known) })
            }
            Protocol::Delta => Message::Delta(DeltaRequest {
                type_url: received.kind.url().into(),
                response_nonce: Nonce::parse(&received.nonce),
                error_detail,
                ..DeltaRequest::default()
            }),
        };
        if !is_accepted {
            self.rejected.insert(received.kind);
        }
        self.send(received.kind, message);
        is_accepted
    }

    /// All its streams end.
    pub(crate) fn disconnect_all(&mut self) {
        let slots: Vec<_> = self.connections.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.disconnect(slot));
    }

    /// The resources of a client survive the end of a stream.
    pub(crate) fn disconnect(&mut self, slot: Option<Kind>) {
        if self.connections.remove(&slot).is_some() {
            for kind in self.kinds_on(slot) {
                self.types.get_mut(&kind).unwrap().reconnect();
            }
        }
    }
}

/// Whether resources of a type may name those of another type, also through a third type.
fn is_referrer(of: Kind, kind: Kind) -> bool {
    let referrers = kind.known().referrers.iter().filter_map(|url| Kind::of_url(url));
    referrers.into_iter().any(|referrer| referrer == of || is_referrer(of, referrer))
}

/// Envoy names the resources that it does not use.
fn error_text(known: &Known, received: &Received, rejects: Rejects) -> String {
    let is_held = |item: &&Item| known.held.values().any(|held| held.content == item.content);
    let unused = received.resources.iter().filter(|item| rejects == Rejects::Envoy && !is_held(item));
    let named: String = unused.map(|item| format!("'{}': ", item.name)).collect();
    format!("{named}bad payload")
}

fn is_only_wildcard(asked: &BTreeSet<Asked>) -> bool {
    asked.iter().eq([&(None, None)])
}

/// The fields of any request.
fn sotw(known: &Known) -> SotwRequest {
    SotwRequest {
        type_url: known.kind.url().into(),
        version_info: known.version.clone(),
        response_nonce: Nonce::parse(&known.nonce),
        ..SotwRequest::default()
    }
}

/// S14: the whole subscription. S19: an empty list means the wildcard, as long as the stream sent
/// no other list. [`Client::ask`] ensures that a client in this state sends no other empty list
/// later.
fn sotw_list(known: &Known, is_legacy: bool) -> subscription::Requested {
    if is_legacy
        && known.is_legacy_stream
        && is_only_wildcard(&known.asked)
        && known.kind.known().legacy_wildcard
    {
        return subscription::Requested::default();
    }
    list(known.asked.iter())
}

/// D1, D2: the new subscriptions and the dropped ones.
fn delta(known: &Known, before: &BTreeSet<Asked>, is_first: bool, is_legacy: bool) -> DeltaRequest {
    let type_url = known.kind.url().into();
    if !is_first {
        let subscribe = list(known.asked.difference(before));
        let unsubscribe = list(before.difference(&known.asked));
        return DeltaRequest { type_url, subscribe, unsubscribe, ..DeltaRequest::default() };
    }
    let is_legacy = is_legacy && is_only_wildcard(&known.asked) && known.kind.known().legacy_wildcard;
    let subscribe = if is_legacy { subscription::Requested::default() } else { list(known.asked.iter()) };
    let brought = known.brought().into_iter().map(|(name, version)| (name.as_str().into(), version));
    DeltaRequest {
        type_url,
        subscribe,
        initial_resource_versions: brought.collect(),
        ..DeltaRequest::default()
    }
}

/// The plain names and the locators of a request.
fn list<'a>(asked: impl Iterator<Item = &'a Asked>) -> subscription::Requested {
    let (mut names, mut locators) = (Vec::new(), Vec::new());
    for (name, parameters) in asked {
        let name = name.as_deref().unwrap_or("*").into();
        match parameters {
            None => names.push(name),
            Some(parameters) => locators.push(Locator { name, parameters: parameters.clone() }),
        }
    }
    subscription::Requested { locators: locators.into_iter().collect(), ..names.into() }
}
