//! The world: replicas, clients, and their events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use xds_core::server::ClientGroup;
use xds_core::{Cache, RolloutEvent, Snapshot};

use crate::agent::Agent;
use crate::client::Client;
use crate::connection::Connection;
use crate::content::{Content, Kind, Source};
use crate::invariant::{self, Violation};
use crate::liar::name_at_liar;
use crate::link::Link;
use crate::refusing::Refusals;
use crate::relay::Relay;
use crate::rollouts::Rollouts;
use crate::script::{Action, Home, Identity, Profile, Script, Step};
use crate::trace::Trace;
use crate::trying::Variation;
use crate::wire::Received;

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) source: Source,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) clients: Vec<Client>,
    /// Our own clients.
    pub(crate) agents: Vec<Agent>,
    /// Caching proxies. Their caches are the last replicas.
    pub(crate) relays: Vec<Relay>,
    /// The number of replicas that are not proxies.
    pub(crate) origins: usize,
    /// The liars were replaced by servers that serve the truth.
    pub(crate) are_liars_honest: bool,
    pub(crate) truth: Arc<Cache>,
    /// The streams of one client at one replica (S33).
    pub(crate) groups: BTreeMap<GroupKey, ClientGroup>,
    pub(crate) trace: Trace,
    /// How often a server ended a stream because of a type, for each stream, since the list was cleared.
    pub(crate) ends: BTreeMap<String, usize>,
    /// The responses that were sent to each client since the list was cleared.
    pub(crate) sent: Vec<(usize, Received)>,
    /// The violation of an event that has no result.
    violation: Option<Violation>,
}

/// One server process.
pub(crate) struct Replica {
    pub(crate) cache: Arc<Cache>,
    /// The number of commits of the source that it has applied.
    applied: usize,
    /// Every state of its cache, the newest last.
    pub(crate) history: Vec<Arc<Snapshot>>,
    /// What carries the commits of the source to its clients.
    pub(crate) rollouts: Option<Rollouts>,
    /// What clients rejected alone since it began (S6d).
    pub(crate) known_bad: BTreeMap<Variation, Content>,
    /// The types that it refuses on new streams of our own clients and of proxies.
    pub(crate) refusals: Refusals,
    /// Its caches before its crashes.
    pub(crate) lost: Vec<Weak<Cache>>,
}

impl World {
    pub(crate) fn new(script: &Script, trace: Trace) -> Self {
        let relays: Vec<_> = script.relays.iter().cloned().map(Relay::new).collect();
        let origins = (0..script.replicas).map(|_| {
            let rollouts = script.rollouts.as_ref().map(Rollouts::new);
            let cache = rollouts.as_ref().map_or_else(Cache::new, |of| Arc::clone(of.served()));
            Replica { rollouts, ..Replica::new(cache) }
        });
        let relayed = relays.iter().map(|relay| Replica::new(Arc::clone(relay.cache())));
        Self {
            now: Duration::ZERO,
            source: Source::default(),
            replicas: origins.chain(relayed).collect(),
            relays,
            origins: script.replicas,
            clients: script.clients.iter().cloned().map(Client::new).collect(),
            agents: script.agents.iter().cloned().map(Agent::new).collect(),
            are_liars_honest: false,
            truth: Cache::new(),
            groups: BTreeMap::new(),
            trace,
            sent: Vec::new(),
            ends: BTreeMap::new(),
            violation: None,
        }
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), Violation> {
        self.trace.note(self.now, || step.to_string());
        self.act(&step.action)?;
        self.roll_out();
        if step.serves {
            self.serve_all()?;
        }
        self.attend()
    }

    /// Clients that answer every response at once do so.
    pub(crate) fn attend(&mut self) -> Result<(), Violation> {
        self.violation.take().map_or(Ok(()), Err)?;
        for at in 0..self.clients.len() {
            if self.clients[at].profile.is_prompt {
                self.exchange(at)?;
                invariant::prompt::check(self, at)?;
            }
        }
        Ok(())
    }

    pub(crate) fn act(&mut self, action: &Action) -> Result<(), Violation> {
        match action {
            Action::Commit { changes, lags } => {
                self.source.commit(changes);
                let followers = if *lags { 1 } else { self.origins };
                (0..followers).for_each(|replica| self.catch_up(replica));
            }
            Action::CatchUp { replica } => self.catch_up(*replica),
            Action::Crash { replica } if *replica >= self.origins => {
                self.restart(*replica - self.origins, None)?;
            }
            Action::Crash { replica } => {
                self.crash(*replica);
                self.cut_streams_of(Home::Replica(*replica))?;
            }
            Action::Reconnect { client, .. } | Action::Ask { client, .. }
                if self.clients[*client].is_silent => {}
            Action::Ask { client, kind, asked } => {
                if self.clients[*client].has_to_catch_up(*kind, asked) {
                    self.exchange(*client)?;
                }
                if self.clients[*client].connection(*kind).is_none() {
                    self.connect(*client, *kind, *client);
                }
                self.clients[*client].ask(*kind, asked.clone());
                let origin_at = self.origin_at();
                self.clients[*client].note_asked(*kind, origin_at);
            }
            Action::Deliver { client, kind, count } => {
                for _ in 0..*count {
                    self.deliver(*client, *kind)?;
                }
            }
            Action::Take { client, kind, count } => {
                for _ in 0..*count {
                    self.take(*client, *kind)?;
                }
            }
            Action::Exchange { client } => self.exchange(*client)?,
            Action::Silence { client } => self.clients[*client].is_silent = true,
            Action::Reconnect { client, kind, replica } => self.connect(*client, *kind, *replica),
            Action::Pass { time } => self.pass(*time)?,
            Action::Refuse { replica, kind, refusal } => self.refuse(*replica, *kind, *refusal)?,
            Action::Order { replica, order } => {
                let rollouts = self.replicas[*replica].rollouts.as_mut();
                _ = rollouts.is_some_and(|rollouts| rollouts.order(*order));
            }
            Action::Agent { agent, deed } => self.act_agent(*agent, deed)?,
            Action::Relay { relay, deed } => self.act_relay(*relay, deed)?,
        }
        Ok(())
    }

    /// From now on the former liars serve the content of the source.
    pub(crate) fn serve_truth(&mut self) {
        self.are_liars_honest = true;
        self.source.mirror(&self.truth, name_at_liar);
    }

    /// A replica applies the commits that it lacks: one by one, or all in one commit if it is empty
    /// after a crash.
    pub(crate) fn catch_up(&mut self, replica: usize) {
        if replica >= self.origins {
            return;
        }
        let (source, of) = (&self.source, &mut self.replicas[replica]);
        let cache = Arc::clone(of.rollouts.as_ref().map_or(&of.cache, |rollouts| &rollouts.source));
        if !cache.snapshot().is_synced() && of.history.len() > 1 {
            source.feed(&cache);
            of.applied = source.log.len();
            of.remember();
        }
        while of.applied < source.log.len() {
            source.apply(of.applied, &cache);
            of.applied += 1;
            of.remember();
        }
        self.roll_out();
    }

    /// The servers do what is due of their rollouts.
    pub(crate) fn roll_out(&mut self) {
        for at in 0..self.origins {
            while let Some(rollouts) = &mut self.replicas[at].rollouts {
                let before = rollouts.changed_names();
                let tried = rollouts.tried.as_ref().map(|tried| (tried.contents.clone(), tried.began));
                let Some(event) = rollouts.advance(self.now) else { break };
                let names: BTreeSet<_> = before.iter().cloned().chain(rollouts.changed_names()).collect();
                for client in &mut self.clients {
                    let connections = client.connections.values_mut();
                    let connections = connections.filter(|connection| connection.replica == at);
                    connections.for_each(|connection| connection.on_rollout(&names));
                    // The wait for other types begins again (seed 3511).
                    client.lacks.retain(|(kind, name, _), _| !names.contains(&(*kind, name.clone())));
                }
                self.trace.stats.count_rollout(&event);
                self.trace.note(self.now, || format!("  replica {at}: {event:?}"));
                self.remember(at);
                if let Some((contents, began)) = tried
                    && matches!(&event, RolloutEvent::Refused(reason) if reason.contains(" rejected "))
                {
                    let checked = invariant::refusal::check(self, at, (&contents, &before), began);
                    self.violation = self.violation.take().or_else(|| checked.err());
                }
            }
        }
    }

    /// The newest state of the origin that clients see which try nothing, in its history.
    pub(crate) fn origin_at(&self) -> usize {
        let Replica { cache, history, .. } = &self.replicas[0];
        let stable = cache.snapshot();
        let at = history.iter().rposition(|known| Arc::ptr_eq(known, &stable));
        at.unwrap_or(history.len() - 1)
    }

    /// Adds the states of the cache of a replica to its history, also those that clients see which try
    /// something.
    pub(crate) fn remember(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let snapshot = replica.cache.snapshot();
        if !replica.history.iter().rev().any(|known| Arc::ptr_eq(known, &snapshot)) {
            replica.history.push(snapshot);
        }
        // A client that connects later may begin with it.
        if let Some(tried) = replica.rollouts.as_ref().and_then(Rollouts::candidate)
            && !replica.history.iter().rev().any(|known| Arc::ptr_eq(known, &tried))
        {
            replica.history.push(tried);
        }
        let connections = self.clients.iter().flat_map(|client| client.connections.values());
        for connection in connections.filter(|connection| connection.replica == at) {
            let seen = connection.watch.snapshot();
            // A client that begins to try something, or returns from it, may see a state again.
            if !replica.history[connection.seen_at..].iter().any(|known| Arc::ptr_eq(known, &seen)) {
                replica.history.push(seen);
            }
        }
        let proxies = self.relays.iter().filter(|relay| relay.profile.home == at);
        for seen in proxies.flat_map(Relay::links_home).filter_map(Link::seen) {
            if !replica.history.iter().rev().any(|known| Arc::ptr_eq(known, &seen)) {
                replica.history.push(seen);
            }
        }
    }

    /// The same for all replicas whose clients may try something.
    fn remember_all(&mut self) {
        for at in 0..self.replicas.len() {
            match at.checked_sub(self.origins) {
                Some(relay) => self.remember_relay(relay),
                None if self.replicas[at].rollouts.is_some() => self.remember(at),
                None => {}
            }
        }
    }

    /// A replica loses its content, but for a stored stable state, and its clients their streams.
    pub(crate) fn crash(&mut self, replica: usize) {
        let rollouts = self.replicas[replica].rollouts.take().map(|rollouts| rollouts.after_crash());
        let cache = rollouts.as_ref().map_or_else(Cache::new, |rollouts| Arc::clone(rollouts.served()));
        self.replace(replica, cache);
        self.replicas[replica].rollouts = rollouts;
    }

    /// Replaces the cache of a replica, whose clients lose their streams.
    pub(crate) fn replace(&mut self, replica: usize, cache: Arc<Cache>) {
        for client in &mut self.clients {
            let broken = client.connections.iter().filter(|(_, connection)| connection.replica == replica);
            let broken: Vec<_> = broken.map(|(slot, _)| *slot).collect();
            broken.into_iter().for_each(|slot| client.disconnect(slot));
        }
        self.groups.retain(|key, _| key.replica != replica);
        let crashed = &mut self.replicas[replica];
        crashed.lost.push(Arc::downgrade(&crashed.cache));
        crashed.cache = cache;
        crashed.known_bad.clear();
        crashed.remember();
    }

    /// A client opens the stream of a type again, and sends its subscriptions on it.
    pub(crate) fn connect(&mut self, at: usize, kind: Kind, replica: usize) {
        let replica = match self.relays.len() {
            0 => replica % self.origins,
            count => self.origins + replica % count,
        };
        let client = &mut self.clients[at];
        let slot = client.slot(kind);
        client.disconnect(slot);
        let group = group_of(&client.profile, at, replica).map(|key| &*self.groups.entry(key).or_default());
        let cache = &self.replicas[replica].cache;
        let mut connection =
            Connection::new((&client.profile, &format!("c{at}")), slot, replica, cache, group, self.now);
        connection.is_relayed = replica >= self.origins;
        client.connections.insert(slot, connection);
        let mut kinds = client.kinds_on(slot);
        // Clients may subscribe in any order, not only in the order of S33.
        if let Some(first) = kinds.iter().position(|other| *other == kind) {
            kinds.rotate_left(first);
        }
        kinds.into_iter().for_each(|kind| client.ask_again(kind));
    }

    /// The server reads a request.
    fn deliver(&mut self, at: usize, kind: Kind) -> Result<(), Violation> {
        self.remember_all();
        let (now, client) = (self.now, &mut self.clients[at]);
        if client.is_silent {
            return Ok(());
        }
        let (slot, node) = (client.slot(kind), client.profile.node.clone());
        let Some(connection) = client.connections.get_mut(&slot) else { return Ok(()) };
        let Some(request) = connection.requests.front() else { return Ok(()) };
        self.trace.note(now, || format!("  c{at} to replica {}: {request}", connection.replica));
        self.trace.stats.requests += 1;
        let (view, history) = connection.seen_of(&self.replicas[connection.replica].history);
        connection.seen_at = history.len() - 1;
        connection.read(now, &node, connection.seen_at)?;
        let alone = connection.seen.values_mut().flat_map(|seen| std::mem::take(&mut seen.rejections.alone));
        let alone = alone.filter(|(of, content)| invariant::known_bad::is_newest(&view, of, content));
        self.replicas[connection.replica].known_bad.extend(alone);
        Ok(())
    }

    /// A client reads a response, and answers it.
    fn take(&mut self, at: usize, kind: Kind) -> Result<(), Violation> {
        let client = &mut self.clients[at];
        if client.is_silent {
            return Ok(());
        }
        let Some(replica) = client.connection(kind).map(|connection| connection.replica) else {
            return Ok(());
        };
        let Some(envelope) = client.read(kind) else { return Ok(()) };
        let before = client.types.clone();
        let is_accepted = client.take(&envelope);
        let verdict = if is_accepted { "ACKs" } else { "NACKs" };
        self.trace.note(self.now, || format!("  c{at} {verdict} {}", envelope.received));
        self.trace.stats.count_verdict(is_accepted);
        invariant::relayed::check(self, at, replica, &envelope, &before)?;
        let history = &self.replicas[replica].history;
        invariant::order::check(&envelope, &before, &self.clients[at], &history[envelope.sent_at])
    }

    /// A client and its servers exchange messages until no message is left.
    fn exchange(&mut self, at: usize) -> Result<(), Violation> {
        if self.clients[at].is_silent {
            return Ok(());
        }
        for _ in 0..EXCHANGES {
            let slots: Vec<_> = self.clients[at].connections.keys().copied().collect();
            let mut is_quiet = true;
            for slot in slots {
                let kind = slot.unwrap_or(Kind::Cluster);
                while self.clients[at].connection(kind).is_some_and(|on| !on.requests.is_empty()) {
                    self.deliver(at, kind)?;
                    is_quiet = false;
                }
            }
            self.serve_all()?;
            let slots: Vec<_> = self.clients[at].connections.keys().copied().collect();
            for slot in slots {
                let kind = slot.unwrap_or(Kind::Cluster);
                while self.clients[at].connection(kind).is_some_and(|on| !on.responses.is_empty()) {
                    self.take(at, kind)?;
                    is_quiet = false;
                }
            }
            if is_quiet {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", format!("c{at} and its server do not come to rest")))
    }

    /// All clients exchange messages until no message is left; `true` if there was a response.
    pub(crate) fn exchange_all(&mut self) -> Result<bool, Violation> {
        let before = self.trace.stats.responses;
        for _ in 0..EXCHANGES {
            (0..self.clients.len()).try_for_each(|client| self.exchange(client))?;
            (0..self.agents.len()).try_for_each(|agent| self.exchange_agent(agent))?;
            (0..self.relays.len()).try_for_each(|relay| self.exchange_relay(relay))?;
            let mut connections = self.clients.iter().flat_map(|client| client.connections.values());
            let are_at_rest =
                self.agents.iter().all(Agent::is_at_rest) && self.relays.iter().all(Relay::is_at_rest);
            if are_at_rest && connections.all(Connection::is_at_rest) {
                return Ok(self.trace.stats.responses > before);
            }
        }
        Err(Violation::new("quiet", "the clients do not come to rest"))
    }

    /// Every server sends the responses that it has and that the windows have room for.
    pub(crate) fn serve_all(&mut self) -> Result<(), Violation> {
        for _ in 0..EXCHANGES {
            let mut is_quiet = true;
            for at in 0..self.clients.len() {
                let slots: Vec<_> = self.clients[at].connections.keys().copied().collect();
                for slot in slots {
                    is_quiet &= !self.serve(at, slot)?;
                }
            }
            for at in 0..self.agents.len() {
                is_quiet &= !self.serve_agent(at)?;
            }
            for at in 0..self.relays.len() {
                is_quiet &= !self.serve_relay(at)?;
            }
            if is_quiet {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", "the servers do not stop sending"))
    }

    /// Whether the streams of two clients belong to one, as far as servers see (S33b).
    pub(crate) fn is_grouped(&self, one: usize, other: usize) -> bool {
        let group = |at: usize| group_of(&self.clients[at].profile, at, 0);
        one == other || group(one).is_some_and(|of| group(other) == Some(of))
    }

    /// One stream sends one response, if it has one. Returns whether it may have another one.
    fn serve(&mut self, at: usize, slot: Option<Kind>) -> Result<bool, Violation> {
        self.remember_all();
        let connection =
            self.clients[at].connections.get_mut(&slot).expect("the slot is one of the client's");
        let replica = &self.replicas[connection.replica];
        let Some(received) = connection.serve(self.now, &replica.history)? else {
            return Ok(connection.goes_on());
        };
        let (on, snapshot) = (connection.replica, connection.seen_of(&replica.history).0);
        self.trace.note(self.now, || format!("  replica {on} to c{at}: {received}"));
        self.trace.stats.count_response(&received);
        if received.kind == Kind::Cluster && !received.resources.is_empty() {
            let profile = self.clients[at].profile.clone();
            let key = group_of(&profile, at, on);
            for (other, client) in self.clients.iter_mut().enumerate() {
                let is_grouped = key.is_some() && group_of(&client.profile, other, on) == key;
                if is_grouped || (other == at && profile.is_aggregated) {
                    client.connections.values_mut().for_each(Connection::on_clusters_sent);
                }
            }
        }
        invariant::known_bad::check(self, (on, at), &received, &snapshot)?;
        invariant::trials::check(self, on, at, &received)?;
        self.sent.push((at, received));
        Ok(true)
    }
}

/// Streams with the same key belong to one client: replica, connection and node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    replica: usize,
    connection: usize,
    id: usize,
}

/// The client of a stream, as a server determines it (S33b). Aggregated streams, and those of nodes
/// without an id (G6), are not grouped.
fn group_of(profile: &Profile, at: usize, replica: usize) -> Option<GroupKey> {
    let (connection, id) = match profile.identity {
        Identity::Own => (at, at),
        Identity::Twin { of, shares_connection: true } => (of, of),
        Identity::Twin { of, shares_connection: false } => (at, of),
        Identity::Nobody => return None,
    };
    Some(GroupKey { replica, connection, id }).filter(|_| !profile.is_aggregated)
}

impl Replica {
    fn new(cache: Arc<Cache>) -> Self {
        let history = vec![cache.snapshot()];
        Self {
            cache,
            applied: 0,
            history,
            rollouts: None,
            known_bad: BTreeMap::new(),
            refusals: Refusals::new(),
            lost: Vec::new(),
        }
    }

    fn remember(&mut self) {
        self.history.push(self.cache.snapshot());
    }
}

/// If clients and servers still exchange messages after this number of rounds, without a commit or
/// time that passes, they would never stop.
pub(crate) const EXCHANGES: usize = 100;
