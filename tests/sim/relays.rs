//! The events of caching proxies in a world. In the list of replicas their caches follow the
//! origins, so clients connect to them like to any other server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use xds_core::server::Protocol;
use xds_core::{Cache, Parameters, Snapshot};

use crate::agent::Access;
use crate::connection::Seen;
use crate::content::{Kind, selected};
use crate::invariant::{self, Violation};
use crate::known::Asked;
use crate::link::{Link, Locator};
use crate::relay::{LIAR, Relay, RelayDeed};
use crate::script::Home;
use crate::world::{EXCHANGES, World};

impl World {
    pub(crate) fn act_relay(&mut self, at: usize, deed: &RelayDeed) -> Result<(), Violation> {
        let now = self.now;
        match deed {
            RelayDeed::Work => {
                self.relays[at].work(now);
                invariant::upstream::check(self, at)?;
            }
            RelayDeed::Say { count } => (0..*count).try_for_each(|_| self.say_upstream(at).map(drop))?,
            RelayDeed::Deliver { count } => {
                (0..*count).try_for_each(|_| self.deliver_upstream(at).map(drop))?;
            }
            RelayDeed::Take { count } => {
                (0..*count).try_for_each(|_| self.take_from_upstream(at).map(drop))?;
            }
            RelayDeed::Cut => self.relays[at].cut(now),
            RelayDeed::Access { access } => {
                self.relays[at].access = *access;
                if *access == Access::Refused {
                    self.relays[at].cut(now);
                }
            }
            RelayDeed::Exchange => self.exchange_relay(at)?,
            RelayDeed::Restart => self.restart(at, None)?,
            RelayDeed::Damage { salt } => self.restart(at, Some(*salt))?,
            RelayDeed::Fill { room_bytes } => {
                self.relays[at].disk.iter_mut().for_each(|disk| disk.fill(*room_bytes));
            }
            RelayDeed::Lie { salt, .. } if salt.is_multiple_of(6) => self.relays[at].refuse(now),
            RelayDeed::Lie { salt, count } => {
                (0..*count as u64).for_each(|more| self.lie_to_relay(at, salt.wrapping_add(more)));
            }
        }
        self.remember_relay(at);
        Ok(())
    }

    /// A proxy stops, so the streams to it end. Another one starts in its place.
    pub(crate) fn restart(&mut self, at: usize, damage: Option<u64>) -> Result<(), Violation> {
        let (now, before) = (self.now, &self.relays[at]);
        let mut relay = Relay::restored(before, now, damage)?;
        relay.is_deceived = before.is_deceived;
        // What it said of these may still be on its way.
        relay.silent.clone_from(&before.silent);
        let replica = self.relayed(at);
        self.replace(replica, Arc::clone(relay.cache()));
        self.relays[at] = relay;
        self.cut_streams_of(Home::Replica(replica))
    }

    /// Lies arrive on each stream of a proxy to its liar.
    fn lie_to_relay(&mut self, at: usize, salt: u64) {
        let name = self.relayed(at);
        for (protocol, frame) in self.relays[at].lie(salt) {
            let shown = || format!("  lie to p{name}: {}", crate::link::show(protocol, &frame));
            self.trace.note(self.now, shown);
        }
    }

    /// Whether no proxy between the origin and a replica received lies.
    pub(crate) fn is_honest(&self, replica: usize) -> bool {
        self.chain_of(replica).iter().all(|relay| !relay.is_deceived)
    }

    /// The number of a proxy in the list of replicas.
    pub(crate) fn relayed(&self, at: usize) -> usize {
        self.origins + at
    }

    /// Adds the state of the cache of a proxy to its history.
    pub(crate) fn remember_relay(&mut self, at: usize) {
        let snapshot = self.relays[at].cache().snapshot();
        self.relays[at].follow(&snapshot);
        self.remember(self.relayed(at));
    }

    /// A proxy does everything that is due: subscriptions of its clients, timers, connecting,
    /// leaving.
    pub(crate) fn drive_relay(&mut self, at: usize) -> Result<(), Violation> {
        for _ in 0..EXCHANGES {
            let route = self.relays[at].drive(self.now)?;
            self.remember_relay(at);
            invariant::upstream::check(self, at)?;
            let Some((route, server)) = route else { return Ok(()) };
            let profile = &self.relays[at].profile;
            let (protocol, window) = (profile.protocol, profile.window);
            let name = format!("p{}", self.relayed(at));
            let link = match self.upstream_cache(at, server) {
                Some(cache) => {
                    let home = if server == LIAR { Home::Liar } else { Home::Replica(profile.home) };
                    Link::new(&name, (protocol, window), cache, &self.refusals_of(home), self.now)
                }
                None => Link::to_liar(protocol, self.now),
            };
            let name = self.relayed(at);
            self.trace.note(self.now, || format!("  p{name} connects{}", of_server(server)));
            self.relays[at].open(self.now, &route, server, link);
        }
        Err(Violation::new("quiet", format!("p{} continues to connect", self.relayed(at))))
    }

    /// The cache that a server of a proxy serves; `None` for a lying server.
    fn upstream_cache(&self, at: usize, server: usize) -> Option<&Arc<Cache>> {
        match server {
            LIAR => Some(&self.truth).filter(|_| self.are_liars_honest),
            _ => Some(&self.replicas[self.relays[at].profile.home].cache),
        }
    }

    fn say_upstream(&mut self, at: usize) -> Result<bool, Violation> {
        let origin_at = self.origin_at();
        let mut has_said = false;
        for (route, server) in self.relays[at].streams() {
            if self.relays[at].say(self.now, (&route, server), origin_at)? {
                has_said = true;
                self.trace.stats.requests += 1;
                let name = self.relayed(at);
                let upstream = self.relays[at].upstreams.get(&route);
                let link = upstream.and_then(|upstream| upstream.links[server].as_ref());
                let request = link.and_then(|link| Some((link.protocol(), link.requests.back()?)));
                self.trace.note(self.now, || {
                    let shown = request.map(|(protocol, frame)| crate::link::show_request(protocol, frame));
                    format!("  p{name} upstream{}: {}", of_server(server), shown.unwrap_or_default())
                });
            }
        }
        Ok(has_said)
    }

    fn deliver_upstream(&mut self, at: usize) -> Result<bool, Violation> {
        let mut has_read = false;
        let upstreams = self.relays[at].upstreams.values_mut();
        let links = upstreams.flat_map(|upstream| upstream.links.iter_mut().flatten());
        for link in links.filter(|link| !link.requests.is_empty()) {
            link.read(self.now)?;
            has_read = true;
        }
        Ok(has_read)
    }

    fn take_from_upstream(&mut self, at: usize) -> Result<bool, Violation> {
        let mut has_taken = false;
        self.remember_relay(at);
        for (route, server) in self.relays[at].streams() {
            if self.relays[at].take_end(self.now, &route, server) {
                let name = self.relayed(at);
                self.note_end(format!("p{name} {route:?}"));
                has_taken = true;
            }
            if self.relays[at].take(self.now, &route, server)? {
                let name = self.relayed(at);
                self.trace.note(self.now, || format!("  p{name} takes what came{}", of_server(server)));
                has_taken = true;
            }
            self.remember_relay(at);
        }
        Ok(has_taken)
    }

    /// The upstream sends one response on each stream, if it has one.
    pub(crate) fn serve_relay(&mut self, at: usize) -> Result<bool, Violation> {
        let name = self.relayed(at);
        let mut has_sent = false;
        for (route, server) in self.relays[at].streams() {
            let upstream = self.relays[at].upstreams.get_mut(&route);
            let Some(link) = upstream.and_then(|upstream| upstream.links[server].as_mut()) else { continue };
            if let Some(frame) = link.serve(self.now)? {
                self.trace.stats.responses += 1;
                let protocol = link.protocol();
                self.trace
                    .note(self.now, || format!("  to p{name}: {}", crate::link::show(protocol, &frame)));
                has_sent = true;
            }
        }
        Ok(has_sent)
    }

    /// A proxy and its upstream exchange messages until no message is left.
    pub(crate) fn exchange_relay(&mut self, at: usize) -> Result<(), Violation> {
        for _ in 0..EXCHANGES {
            self.drive_relay(at)?;
            let mut is_quiet = true;
            while self.say_upstream(at)? {
                is_quiet = false;
            }
            while self.deliver_upstream(at)? {}
            while self.serve_relay(at)? {
                is_quiet = false;
                while self.take_from_upstream(at)? {}
            }
            while self.take_from_upstream(at)? {
                is_quiet = false;
            }
            if is_quiet {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", format!("p{} and its upstream do not come to rest", self.relayed(at))))
    }

    /// The proxies between a replica and its origin.
    pub(crate) fn chain_of(&self, replica: usize) -> Vec<&Relay> {
        let (mut chain, mut replica) = (Vec::new(), replica);
        while let Some(relay) = replica.checked_sub(self.origins).map(|at| &self.relays[at]) {
            chain.push(relay);
            replica = relay.profile.home;
        }
        chain
    }

    /// The content that clients of a replica should get: that of the origin behind the proxies, or
    /// of the replica itself.
    pub(crate) fn truth_of(&self, replica: usize) -> Arc<Snapshot> {
        let origin = self.chain_of(replica).last().map_or(replica, |relay| relay.profile.home);
        self.replicas[origin].cache.snapshot()
    }

    /// S26: whether each hop up to the origin can report removals.
    pub(crate) fn learns_of_removals(&self, replica: usize, kind: Kind) -> bool {
        let chain = self.chain_of(replica);
        let learns = |relay: &&Relay| relay.profile.protocol == Protocol::Delta || kind.is_full_state();
        chain.iter().all(learns) && !self.may_use_old_routes(&chain, kind)
    }

    /// S33: whether a proxy of the chain subscribes to removed routes.
    fn may_use_old_routes(&self, chain: &[&Relay], kind: Kind) -> bool {
        let Some(origin) = chain.last().map(|relay| relay.profile.home) else { return false };
        let truth = self.replicas[origin].cache.snapshot();
        chain.iter().any(|relay| uses_old_routes(relay, kind, &truth))
    }

    /// Known: clients that share a variant learn of its end through the upstream locator that
    /// covers it. If that locator gets no other variant, and the hop cannot report the removal (S26)
    /// or withholds it (S33, seed 18552), the others keep the shared variant, even if another one
    /// exists for them.
    pub(crate) fn is_unheard(&self, replica: usize, kind: Kind, name: &str, params: &Parameters) -> bool {
        let truth = self.truth_of(replica);
        self.chain_of(replica).into_iter().any(|relay| {
            let snapshot = relay.cache().snapshot();
            let Some(shared) = selected(&snapshot, kind, name, params) else { return false };
            let is_deaf = relay.profile.protocol == Protocol::Sotw && !kind.is_full_state();
            let mut asked = relay.links().flat_map(|link| link.subscribed.keys());
            (is_deaf || uses_old_routes(relay, kind, &truth))
                && asked.any(|(of, asked, with)| {
                    let is_it = of == kind.url() && (asked == name || asked == "*");
                    let is_shared = is_it && shared.constraints().matches(with);
                    is_shared && selected(&truth, kind, name, with).is_none()
                })
        })
    }

    /// The subscriptions of the clients of a proxy, as far as the proxy has read them.
    pub(crate) fn wanted_of(&self, at: usize) -> BTreeSet<Locator> {
        let of_clients = self.asked_of(at, |seen| &seen.ideal.asked);
        of_clients.chain(self.links_to(at).flat_map(|link| link.subscribed.keys().cloned())).collect()
    }

    /// All subscriptions that these clients ever sent on their current streams.
    pub(crate) fn ever_wanted_of(&self, at: usize) -> BTreeSet<Locator> {
        let of_clients = self.asked_of(at, |seen| &seen.ever_asked);
        of_clients.chain(self.links_to(at).flat_map(|link| link.ever_subscribed.iter().cloned())).collect()
    }

    fn asked_of<'a>(
        &'a self,
        at: usize,
        asked: impl Fn(&'a Seen) -> &'a BTreeSet<Asked>,
    ) -> impl Iterator<Item = Locator> {
        let replica = self.relayed(at);
        let connections = self.clients.iter().flat_map(|client| client.connections.values());
        let seen = connections.filter(move |on| on.replica == replica).flat_map(|on| &on.seen);
        seen.flat_map(move |(kind, seen)| {
            asked(seen).iter().map(|(name, params)| {
                let name = name.clone().unwrap_or_else(|| "*".to_owned());
                (kind.url().to_owned(), name, params.as_ref().unwrap_or(&seen.ideal.node).clone())
            })
        })
    }

    fn links_to(&self, at: usize) -> impl Iterator<Item = &Link> {
        let replica = self.relayed(at);
        let relays = self.relays.iter().filter(move |relay| relay.profile.home == replica);
        let agents = self.agents.iter().flat_map(|agent| agent.links.iter().zip(&agent.profile.homes));
        let of_agents = agents.filter(move |(_, home)| **home == Home::Replica(replica));
        relays.flat_map(Relay::links_home).chain(of_agents.filter_map(|(link, _)| link.as_ref()))
    }

    /// Lets time pass until the proxies have ended upstream subscriptions without users. Each proxy
    /// waits for the one in front of it.
    pub(crate) fn pass_linger(&mut self) -> Result<(), Violation> {
        for _ in 0..self.relays.len() {
            (0..self.relays.len()).rev().try_for_each(|at| self.exchange_relay(at))?;
            self.pass(LINGER)?;
        }
        (0..self.relays.len()).rev().try_for_each(|at| self.exchange_relay(at))
    }
}

/// S33: a proxy that subscribes to removed routes may still use the ones that it has, so its
/// upstream withholds removals of clusters and endpoints.
fn uses_old_routes(relay: &Relay, kind: Kind, truth: &Snapshot) -> bool {
    let is_gone = |(of, name, params): &Locator| {
        of == Kind::Route.url() && (name == "*" || selected(truth, Kind::Route, name, params).is_none())
    };
    let mut subscribed = relay.links().flat_map(|link| link.subscribed.keys());
    matches!(kind, Kind::Cluster | Kind::Endpoints) && subscribed.any(is_gone)
}

fn of_server(server: usize) -> &'static str {
    if server == LIAR { " of the liar" } else { "" }
}

/// Longer than the time for which a proxy keeps an upstream subscription without users.
const LINGER: Duration = Duration::from_secs(40);
