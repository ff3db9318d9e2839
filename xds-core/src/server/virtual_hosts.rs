//! Virtual hosts (VHDS): what tells a client that its route configurations are served, and the hosts
//! that it is sent without a subscription (D33).
//!
//! The first VHDS request of Envoy has no names, and on a stream for all types it never says for which
//! route configurations it watches. So the server finds out from what the client was sent: its
//! route configurations, and the listeners and scopes that name them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use xds_proto::type_url::{LISTENER, ROUTE_CONFIGURATION, SCOPED_ROUTE_CONFIGURATION, VIRTUAL_HOST};

use super::client_group::Seat;
use super::entries::{TypeEntries, TypeEntry};
use super::holding::Exception;
use super::request::DeltaRequest;
use super::response::StreamError;
use super::stream::Stream;
use super::type_state::TypeState;
use crate::cache::{Cache, Position, Snapshot, Watch};
use crate::name::{ResourceName, Revision, Version};
use crate::references::{Target, on_demand};
use crate::subscription::{HostSpaces, NameSet, UnaskedHosts};
use crate::variants::Variant;
use crate::wire::ResourceKey;
use crate::xdstp::XdstpName;

/// The route configurations of a client that use VHDS.
#[derive(Debug)]
pub(super) struct VirtualHosts {
    spaces: BTreeMap<ResourceName, Space>,
    /// The hosts that the client brought from another stream (D21), with their versions, until it is
    /// known whether they are sent without a subscription.
    brought: BTreeMap<ResourceName, String>,
    /// When the client first asked for virtual hosts.
    since: Duration,
    /// Whether its first request had names, as that of a client that reconnects after demands.
    has_names: bool,
    /// Whether the client may have other route configurations or listeners than at the last look.
    is_outdated: bool,
    /// Whether another stream of the client may come that subscribes to a route configuration of it.
    expects_streams: bool,
    /// What the other streams of the client had at the last look.
    seen: Vec<(Position, Revision)>,
    /// Whether the client was sent all hosts, because its route configurations are not known.
    sends_all: bool,
    /// Whether more route configurations than [`AWAY_LIMIT`] are kept whose streams ended.
    has_too_many_away: bool,
}

/// A route configuration of a client that uses VHDS.
#[derive(Debug)]
struct Space {
    /// The digest of its `vhds` field. With another one, Envoy subscribes anew, and waits again.
    source: Version,
    sending: Sending,
    /// The other stream that subscribes to it; `None` if it is this one.
    stream: Option<u64>,
}

/// Which virtual hosts of a route configuration a client is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// The listeners of the client are not known yet.
    Undecided,
    /// Those that it subscribes to: each connection manager has the HTTP filter that does so.
    OnDemand,
    All,
}

/// What a client was sent of a type, on one of its streams.
struct SentOfType {
    variants: Vec<Sent>,
    /// Whether all of its streams were answered.
    is_answered: bool,
}

/// Route configurations for which a client waits.
#[derive(Debug, Default)]
struct Awaited {
    /// Envoy does not use them until it has an answer.
    answers: Vec<ResourceName>,
    /// Those of which the client has no hosts.
    hosts: Vec<ResourceName>,
}

struct Sent {
    variant: Arc<Variant>,
    /// The other stream on which it was sent.
    stream: Option<u64>,
    /// Whether the client may have an older content, or nothing.
    is_unsent: bool,
}

impl VirtualHosts {
    fn new(now: Duration, request: &DeltaRequest) -> Self {
        let brought = request.initial_resource_versions.clone().into_iter().collect();
        Self {
            spaces: BTreeMap::new(),
            brought,
            since: now,
            has_names: !request.subscribe.is_empty(),
            is_outdated: true,
            expects_streams: false,
            seen: Vec::new(),
            sends_all: false,
            has_too_many_away: false,
        }
    }

    /// Updates the route configurations. Returns those for which the client waits now.
    fn find_spaces(&mut self, client: &Client<'_>, routes: SentOfType) -> Awaited {
        let (listeners, scopes) = (client.sent(LISTENER), client.sent(SCOPED_ROUTE_CONFIGURATION));
        // D29: Envoy keeps a route configuration that was removed, with its hosts, until it
        // unsubscribes from the name. A stream that ended unsubscribes from nothing.
        self.spaces.retain(|name, space| client.covers(ROUTE_CONFIGURATION, name) || client.is_away(space));
        let has_too_many = |spaces: &BTreeMap<_, Space>| {
            spaces.values().filter(|space| client.is_away(space)).count() > AWAY_LIMIT
        };
        if has_too_many(&self.spaces) {
            // The client subscribes to the hosts of the others.
            self.spaces.retain(|_, space| space.sending == Sending::All || !client.is_away(space));
            self.has_too_many_away = has_too_many(&self.spaces);
        }
        let mut awaited = Awaited::default();
        for Sent { variant, stream, is_unsent } in routes.variants {
            let name = variant.name();
            if is_unsent {
                continue;
            }
            let Some(vhds) = vhds_of(&variant) else {
                self.spaces.remove(name);
                continue;
            };
            let source = Version::of_payload(vhds);
            let sending = sending(name, listeners.as_ref(), scopes.as_ref());
            match self.spaces.get_mut(name).filter(|space| !client.is_away(space)) {
                Some(space) => {
                    if space.source != source {
                        space.source = source;
                        awaited.answers.push(name.clone());
                    }
                    // What was sent once is kept up to date.
                    if space.sending != Sending::All && sending != Sending::Undecided {
                        space.sending = sending;
                    }
                }
                None => {
                    self.spaces.insert(name.clone(), Space { source, sending, stream });
                    awaited.answers.push(name.clone());
                    awaited.hosts.push(name.clone());
                }
            }
        }
        self.doubt_brought(client);
        awaited
    }

    /// Envoy also brings hosts of route configurations that it no longer has. So a version that it brought
    /// counts only if the client subscribes to the route configuration, on a stream that came in time. A host
    /// that is gone is removed however late that stream comes: the client may have it.
    fn doubt_brought(&mut self, client: &Client<'_>) {
        let space_of = |host: &ResourceName| Some(ResourceName::new(host.as_str().rsplit_once('/')?.0));
        let is_certain = |host: &ResourceName| {
            space_of(host).is_some_and(|space| client.covers(ROUTE_CONFIGURATION, &space))
        };
        let doubtful = self.brought.iter_mut().filter(|(host, _)| !is_certain(host));
        if self.expects_streams {
            self.expects_streams = doubtful.count() > 0;
        } else {
            doubtful.for_each(|(_, version)| version.clear());
        }
    }

    /// The hosts that the client is sent without a subscription.
    fn unasked(&self) -> Option<UnaskedHosts> {
        if self.sends_all {
            return Some(UnaskedHosts::All);
        }
        let all = self.spaces.iter().filter(|(_, space)| space.sending == Sending::All);
        let mut names = all.map(|(name, _)| name.clone()).peekable();
        names.peek()?;
        Some(UnaskedHosts::Of(names.collect()))
    }

    /// The hosts that the client brought, of these.
    fn take_brought(&mut self, is_taken: impl Fn(&ResourceName) -> bool) -> BTreeMap<ResourceName, String> {
        if self.brought.is_empty() {
            return BTreeMap::new();
        }
        let (taken, rest) =
            std::mem::take(&mut self.brought).into_iter().partition(|(name, _)| is_taken(name));
        self.brought = rest;
        taken
    }
}

/// The `vhds` field of a route configuration. New-style names have no name spaces.
fn vhds_of(variant: &Variant) -> Option<&[u8]> {
    let is_old_style = matches!(XdstpName::of(variant.name().as_str()), Ok(None));
    on_demand::vhds_of(variant.payload()).filter(|_| is_old_style)
}

/// Which hosts of a route configuration a client is sent. An answer that cannot be known, because the
/// HTTP filter may come by ECDS or the listener from elsewhere, is [`Sending::All`].
fn sending(routes: &ResourceName, listeners: Option<&SentOfType>, scopes: Option<&SentOfType>) -> Sending {
    let Some(listeners) = listeners else { return Sending::All };
    if !listeners.is_answered || scopes.is_some_and(|scopes| !scopes.is_answered) {
        return Sending::Undecided;
    }
    let names = |sent: &&Sent| {
        let (references, own) = (&sent.variant.references, sent.variant.name());
        references.has(own, Target::Routes, routes) || references.unknown().has(Target::Routes)
    };
    // A scope does not say which listeners use it.
    if scopes.is_some_and(|scopes| scopes.variants.iter().any(|sent| names(&sent))) {
        return Sending::All;
    }
    let naming = listeners.variants.iter().filter(names);
    let managers = naming.flat_map(|sent| on_demand::managers(sent.variant.payload()));
    let mut managers = managers.filter(|manager| manager.routes == *routes).peekable();
    if managers.peek().is_some() && managers.all(|manager| manager.is_on_demand) {
        Sending::OnDemand
    } else {
        Sending::All
    }
}

/// What a client was sent on this stream and on its others.
struct Client<'s> {
    entries: &'s TypeEntries,
    seat: Option<&'s Seat>,
    snapshot: &'s Snapshot,
    cache: &'s Cache,
}

impl Client<'_> {
    /// What the client was sent of a type; `None` if it is not known to subscribe to it.
    fn sent(&self, type_url: &str) -> Option<SentOfType> {
        if let Some(state) = self.own(type_url) {
            let everything = state.holding.selection().map(|of| of.everything(self.snapshot));
            let changed = everything.iter().flat_map(|everything| &everything.changed);
            let is_unsent = |variant: &Arc<Variant>| !state.is_answered() || state.is_unsent(variant);
            let sent = |variant: &Arc<Variant>| Sent {
                variant: variant.clone(),
                stream: None,
                is_unsent: is_unsent(variant),
            };
            return Some(SentOfType {
                variants: changed.map(sent).collect(),
                is_answered: state.is_answered(),
            });
        }
        let positions = self.positions(type_url);
        if positions.is_empty() {
            return None;
        }
        let mut of_type = SentOfType { variants: Vec::new(), is_answered: true };
        for (stream, position) in positions {
            let cursor = position.cursor();
            of_type.is_answered &= cursor > Revision::ZERO;
            of_type.variants.extend(position.everything_seen(self.snapshot, self.cache).changed.iter().map(
                |variant| Sent {
                    variant: Arc::clone(variant),
                    stream: Some(stream),
                    is_unsent: variant.changed_at > cursor,
                },
            ));
        }
        Some(of_type)
    }

    fn own(&self, type_url: &str) -> Option<&TypeState> {
        self.entries.of_type(type_url).map(|entry| &entry.state)
    }

    fn positions(&self, type_url: &str) -> Vec<(u64, Position)> {
        self.seat.map(|seat| seat.positions(type_url)).unwrap_or_default()
    }

    /// Whether the stream of a route configuration ended. The client reconnects, and has it meanwhile.
    fn is_away(&self, space: &Space) -> bool {
        space.stream.is_some_and(|stream| self.seat.is_none_or(|seat| !seat.has_stream(stream)))
    }

    /// Whether the client subscribes to this name.
    fn covers(&self, type_url: &str, name: &ResourceName) -> bool {
        match self.own(type_url) {
            Some(state) => state.subscription.covers(name),
            None => self.positions(type_url).iter().any(|(_, position)| position.covers(name)),
        }
    }

    /// What the other streams of the client have.
    fn seen(&self) -> Vec<(Position, Revision)> {
        let types = DECIDING.iter().filter(|type_url| self.own(type_url).is_none());
        let positions = types.flat_map(|type_url| self.positions(type_url));
        positions.map(|(_, position)| (position.clone(), position.cursor())).collect()
    }
}

impl Stream {
    /// A request came: it may be the first one for virtual hosts, or change what the client has of the
    /// types that decide how they are sent.
    pub(super) fn note_virtual_hosts(&mut self, now: Duration, request: &DeltaRequest, is_first: bool) {
        let changes = is_first || !request.subscribe.is_empty() || !request.unsubscribe.is_empty();
        if !changes {
            return;
        }
        if request.type_url != VIRTUAL_HOST {
            self.expect_virtual_hosts(&request.type_url);
            if request.type_url == ROUTE_CONFIGURATION
                && let Some(hosts) = &mut self.virtual_hosts
            {
                // A client that subscribes again has no hosts.
                request.unsubscribe.all_names().for_each(|name| _ = hosts.spaces.remove(name));
            }
        } else if !request.subscribe.locators.is_empty() {
            // A client that knows locators is a proxy: it subscribes to what its own clients need.
            self.virtual_hosts = None;
            if let Some(entry) = self.entries.of_type_mut(VIRTUAL_HOST) {
                entry.state.subscription.send_unasked(None);
            }
        } else if is_first {
            self.virtual_hosts = Some(Box::new(VirtualHosts::new(now, request)));
        }
    }

    /// The client may have something else of a type now.
    pub(super) fn expect_virtual_hosts(&mut self, type_url: &str) {
        if let Some(hosts) = self.virtual_hosts.as_mut().filter(|_| DECIDING.contains(&type_url)) {
            hosts.is_outdated = true;
        }
    }

    /// D33: owes what the client needs for route configurations that it has now. Returns when to look
    /// again.
    pub(super) fn follow_virtual_hosts(
        &mut self,
        at: usize,
        now: Duration,
        snapshot: &Snapshot,
    ) -> Option<Duration> {
        let is_hosts = self.entries[at].state.terms.type_url.as_str() == VIRTUAL_HOST;
        if !is_hosts || !snapshot.has_commit() {
            return None;
        }
        let mut hosts = self.virtual_hosts.take()?;
        let (entries, seat, cache) = (&self.entries, self.any_seat(), &**self.watch.cache());
        let client = Client { entries, seat, snapshot, cache };
        let seen = client.seen();
        // The streams of a client that reconnects come one after the other.
        let until = hosts.since + self.config.ack_wait;
        let may_come = client.seat.is_some() && client.own(ROUTE_CONFIGURATION).is_none() && now < until;
        if hosts.is_outdated || hosts.seen != seen || (hosts.expects_streams && !may_come) {
            (hosts.is_outdated, hosts.seen, hosts.expects_streams) = (false, seen, may_come);
            let awaited = match client.sent(ROUTE_CONFIGURATION) {
                Some(routes) => hosts.find_spaces(&client, routes),
                None if may_come || hosts.spaces.values().any(|space| client.is_away(space)) => {
                    Awaited::default()
                }
                None if hosts.has_names => {
                    hosts.doubt_brought(&client);
                    Awaited::default()
                }
                None => {
                    hosts.sends_all = true;
                    Awaited { answers: self.spaces_in_use(snapshot), hosts: Vec::new() }
                }
            };
            hosts.owe(awaited, &mut self.entries[at], &self.watch, now, snapshot);
        }
        let look_again = hosts.expects_streams.then_some(until);
        self.virtual_hosts = Some(hosts);
        look_again
    }

    /// D33: why the stream must end. Without the route configurations that are too many, hosts that go would
    /// stay with the client; when it reconnects, it says what it has (D21).
    pub(super) fn virtual_hosts_error(&self) -> Option<StreamError> {
        let has_too_many = self.virtual_hosts.as_ref().is_some_and(|hosts| hosts.has_too_many_away);
        has_too_many.then_some(StreamError::TooManyRoutesAway { limit: AWAY_LIMIT })
    }

    /// The route configurations that use VHDS, of all that the client may read.
    fn spaces_in_use(&self, snapshot: &Snapshot) -> Vec<ResourceName> {
        let type_url = ROUTE_CONFIGURATION.into();
        let resources = snapshot.of_type(&type_url).into_iter().flat_map(|resources| resources.iter());
        let uses = resources.filter(|(name, variants)| {
            self.may_read(&type_url, name) && variants.iter().any(|variant| vhds_of(variant).is_some())
        });
        uses.map(|(name, _)| name.clone()).collect()
    }
}

impl VirtualHosts {
    /// Owes the removals that Envoy counts as an answer, and the hosts that are sent from now on.
    fn owe(
        &mut self,
        awaited: Awaited,
        entry: &mut TypeEntry,
        watch: &Arc<Watch>,
        now: Duration,
        snapshot: &Snapshot,
    ) {
        let TypeEntry { state, owed } = entry;
        owed.removals.extend(awaited.answers.iter().map(|routes| ResourceKey::of_name(&no_host_of(routes))));
        let again: HostSpaces = awaited.hosts.into_iter().collect();
        let before = state.subscription.unasked().cloned();
        let unasked = self.unasked();
        if (unasked != before || !again.is_empty()) && state.terms.is_served {
            let is_in = |of: &Option<UnaskedHosts>, name: &ResourceName| {
                of.as_ref().is_some_and(|of| of.contains(name))
            };
            let is_new = |name: &ResourceName| {
                is_in(&unasked, name) && (!is_in(&before, name) || again.contains(name))
            };
            let brought = self.take_brought(is_new);
            state.subscription.send_unasked(unasked.clone());
            _ = state.reselect(watch);
            if state.is_answered() {
                let hosts = state.subscription.plain(find_hosts(state, is_new, &brought, snapshot));
                owed.locators.extend(hosts);
                owed.removals.extend(remove_brought(state, brought.keys(), now, snapshot));
            } else {
                owed.brought.versions.extend(brought);
            }
        }
        // What is sent on demand is subscribed to by name.
        let spaces = &self.spaces;
        let on_demand: HostSpaces = {
            let of = spaces.iter().filter(|(_, space)| space.sending == Sending::OnDemand);
            of.map(|(name, _)| name.clone()).collect()
        };
        _ = self.take_brought(|name| on_demand.contains(name));
        owed.answer_at(now);
    }
}

/// The names of new hosts, without those that the client brought with the same version (D21).
fn find_hosts(
    state: &TypeState,
    is_new: impl Fn(&ResourceName) -> bool,
    brought: &BTreeMap<ResourceName, String>,
    snapshot: &Snapshot,
) -> NameSet {
    let resolution = state.resolve(snapshot);
    let has = |variant: &&Arc<Variant>| {
        let version = brought.get(variant.name());
        version.is_some_and(|version| *version == variant.version_for(state.keyed_by()).to_string())
    };
    let names = resolution.resources().into_iter().flat_map(|of| of.iter()).map(|(name, _)| name);
    let lacking = names.filter(|name| is_new(name) && !resolution.chosen(name).iter().all(has));
    lacking.cloned().collect()
}

/// D21: removes what the client brought and what does not exist any more. Before the source of an
/// on-demand cache has answered, that is not known.
fn remove_brought<'n>(
    state: &mut TypeState,
    brought: impl Iterator<Item = &'n ResourceName>,
    now: Duration,
    snapshot: &Snapshot,
) -> Vec<ResourceKey> {
    let gone: Vec<_> = brought.filter(|name| !state.resolve(snapshot).has(name)).collect();
    let gone = gone.into_iter().map(ResourceKey::of_name);
    if !state.terms.withholds_removals() {
        return gone.collect();
    }
    for key in gone {
        let (removed_at, since) = (Revision::ZERO, now);
        state.holding.withhold(key, Exception::Withheld { variant: None, version: None, removed_at, since });
    }
    Vec::new()
}

/// A name in the name space of a route configuration that no host has. Envoy counts its removal as an
/// answer for the route configuration, and an empty response as none.
fn no_host_of(routes: &ResourceName) -> ResourceName {
    ResourceName::new(format!("{routes}/"))
}

/// How many route configurations are kept whose streams ended, of a client that opens streams and ends them
/// again and again.
const AWAY_LIMIT: usize = 64;

/// The types that decide how virtual hosts are sent.
const DECIDING: [&str; 3] = [LISTENER, ROUTE_CONFIGURATION, SCOPED_ROUTE_CONFIGURATION];

#[cfg(test)]
mod tests;
