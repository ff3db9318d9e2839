//! A client: what it knows, and its side of its streams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xds_core::server::{DeltaRequest, SotwRequest};
use xds_core::subscription::{self, Locator};
use xds_core::{Nonce, Parameters};

use crate::connection::{Connection, Envelope, Message, Request};
use crate::content::Kind;
use crate::known::{Asked, Known};
use crate::script::{Profile, Protocol};

pub(crate) struct Client {
    pub(crate) profile: Profile,
    pub(crate) types: BTreeMap<Kind, Known>,
    /// By type; under `None` the one for all types.
    pub(crate) connections: BTreeMap<Option<Kind>, Connection>,
    /// Types of which it rejected something.
    pub(crate) rejected: BTreeSet<Kind>,
    /// What the origin had when it began to ask for something: the state of that number.
    pub(crate) since: BTreeMap<(Kind, Asked), usize>,
    /// Nothing that it says arrives, and it reads nothing.
    pub(crate) is_silent: bool,
    /// Since when it lacks something that is there for it.
    pub(crate) lacks: BTreeMap<(Kind, String, Parameters), Duration>,
}

impl Client {
    /// S33: the clusters that its routes name stay with a client that follows all of them, gone or
    /// not. So do endpoints, as of a cluster that it brought from elsewhere nobody can tell whose
    /// it needs.
    pub(crate) fn is_used(&self, kind: Kind, name: &str) -> bool {
        let routes = self.types.get(&Kind::Route).into_iter().flat_map(|known| known.held.values());
        let mut named = routes.flat_map(|held| &held.content.clusters);
        match kind {
            Kind::Cluster => named.any(|named| named == name),
            Kind::Endpoints => named.next().is_some(),
            _ => false,
        }
    }

    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            types: BTreeMap::new(),
            connections: BTreeMap::new(),
            rejected: BTreeSet::new(),
            since: BTreeMap::new(),
            is_silent: false,
            lacks: BTreeMap::new(),
        }
    }

    /// On which of its streams a type goes.
    pub(crate) fn slot(&self, kind: Kind) -> Option<Kind> {
        (!self.profile.is_aggregated).then_some(kind)
    }

    pub(crate) fn connection(&mut self, kind: Kind) -> Option<&mut Connection> {
        self.connections.get_mut(&self.slot(kind))
    }

    /// The types that go over one of its streams.
    pub(crate) fn kinds_on(&self, slot: Option<Kind>) -> Vec<Kind> {
        self.types.keys().copied().filter(|kind| slot.is_none_or(|slot| slot == *kind)).collect()
    }

    /// Whether asking for this brings back a wildcard: what is under way for the one that was given
    /// up could not be told from what comes for the new one, so the client first takes all there
    /// is.
    pub(crate) fn has_to_catch_up(&self, kind: Kind, asked: &BTreeSet<Asked>) -> bool {
        let is_new = |one: &&Asked| self.types.get(&kind).is_none_or(|known| !known.asked.contains(*one));
        asked.iter().filter(is_new).any(|(name, _)| name.is_none())
    }

    /// When its servers have something to do though nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.connections.values().filter_map(Connection::next_deadline).min()
    }

    /// Asks for something else; the request goes out if there is a stream.
    pub(crate) fn ask(&mut self, kind: Kind, asked: BTreeSet<Asked>) {
        let profile = &self.profile;
        let known =
            self.types.entry(kind).or_insert_with(|| Known::new(kind, profile.protocol, &profile.node));
        let asked = known.distinct(asked);
        // S19, D16: asking for nothing would ask for everything, in SotW as long as nothing else
        // was asked for.
        let is_legacy = known.protocol == Protocol::Sotw && sotw_list(known, profile.is_legacy).is_empty();
        if asked.is_empty() && (!known.has_asked || is_legacy) {
            return;
        }
        let before = known.asked.clone();
        known.ask(asked);
        let is_first = !known.has_asked;
        let request = match known.protocol {
            Protocol::Sotw => Message::Sotw(SotwRequest {
                asked: Some(sotw_list(known, self.profile.is_legacy)),
                ..sotw(known)
            }),
            Protocol::Delta => Message::Delta(delta(known, &before, is_first, self.profile.is_legacy)),
        };
        self.send(kind, request);
    }

    /// Notes since when it asks for what it asks for.
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

    /// Takes a response, and says whether it uses all of it (C1).
    pub(crate) fn take(&mut self, envelope: &Envelope) -> bool {
        let Envelope { received, sent_at, asked, .. } = envelope;
        let Some(known) = self.types.get_mut(&received.kind) else { return false };
        let is_accepted = known.take(received, self.profile.rejects, *sent_at);
        known.version_of.clone_from(asked);
        let error_detail = (!is_accepted).then(|| "a bad payload".to_owned());
        let message = match known.protocol {
            Protocol::Sotw => {
                let asked = Some(sotw_list(known, self.profile.is_legacy));
                Message::Sotw(SotwRequest { error_detail, asked, ..sotw(known) })
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

    /// What it holds survives the end of a stream.
    pub(crate) fn disconnect(&mut self, slot: Option<Kind>) {
        if self.connections.remove(&slot).is_some() {
            for kind in self.kinds_on(slot) {
                self.types.get_mut(&kind).unwrap().reconnect();
            }
        }
    }
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

/// S14: the whole subscription. S19: nothing stands for everything, as long as nothing else was
/// sent; a client for which that holds asks for nothing else later, which [`Client::ask`] sees to.
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

/// D1, D2: what is new and what is given up.
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
