//! A caching proxy: the machine, and the streams of its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xds_core::client::health::Status;
use xds_core::client::{
    AuthorityConfig, Client, ClientConfig, Effects, Reason, Rejection, ServerConfig, StreamEnd,
};
use xds_core::proxy::{Proxy, ProxyConfig, Route};
use xds_core::server::Protocol;
use xds_core::{Cache, Code, Snapshot, VariantId};

use crate::agent::Access;
use crate::disk::Disk;
use crate::invariant::{self, Violation};
use crate::liar::{AUTHORITY, lie_to_proxy, shared_lie};
use crate::link::{Link, Locator};
use crate::random::Random;
use crate::script::{Liar, RelayProfile, Relaying};
use crate::trying::{Refused, Trying, contents};

pub(crate) struct Relay {
    pub(crate) profile: RelayProfile,
    pub(crate) proxy: Proxy,
    pub(crate) upstreams: BTreeMap<Route, Upstream>,
    pub(crate) access: Access,
    /// Its upstream subscriptions, each with the number of the origin's state when it began. The
    /// end of a stream does not end a subscription.
    pub(crate) asked_since: BTreeMap<Locator, usize>,
    /// The upstream subscriptions that got no response in time, which counts as absent (C5).
    pub(crate) silent: BTreeSet<Locator>,
    /// The upstream subscriptions that a response reported as absent which was made before the
    /// upstream had read them (T30b).
    pub(crate) overtaken: BTreeSet<Locator>,
    /// The time of the last call of `drive`.
    driven: Duration,
    /// Every subscription of its clients since its start.
    pub(crate) ever_wanted: BTreeSet<Locator>,
    /// The variants that it restored from its disk. They stay until a client subscribes to them and
    /// the upstream sends something else.
    pub(crate) restored: BTreeSet<VariantId>,
    /// Its cache file, if it has one.
    pub(crate) disk: Option<Disk>,
    /// It received lies, so its content may be wrong.
    pub(crate) is_deceived: bool,
    /// The response that some of its clients try.
    pub(crate) trying: Option<Trying>,
    /// The contents that are not tried again.
    pub(crate) refused: Refused,
    /// All contents that a client rejected in a trial.
    pub(crate) ever_refused: Refused,
    /// Counts failures, so that each has another jitter.
    failures: u32,
}

/// The streams of the client of one route.
pub(crate) struct Upstream {
    /// By server: its upstream, and perhaps the liar of an authority.
    pub(crate) links: Vec<Option<Link>>,
    is_connecting: Vec<bool>,
}

impl Relay {
    pub(crate) fn new(profile: RelayProfile) -> Self {
        // C16: all proxies of a chain have the same authorities in their configuration, whichever
        // server each has for them.
        let authorities = [AUTHORITY.to_owned()].into();
        let config = ProxyConfig {
            sharing: profile.sharing,
            canaries: profile.canaries,
            authorities,
            ..ProxyConfig::default()
        };
        Self {
            disk: (profile.relaying == Relaying::Restored).then(Disk::empty),
            proxy: Proxy::new(config, clients(&profile)),
            profile,
            upstreams: BTreeMap::new(),
            access: Access::Open,
            asked_since: BTreeMap::new(),
            silent: BTreeSet::new(),
            overtaken: BTreeSet::new(),
            driven: Duration::ZERO,
            ever_wanted: BTreeSet::new(),
            restored: BTreeSet::new(),
            is_deceived: false,
            trying: None,
            refused: Refused::new(),
            ever_refused: Refused::new(),
            failures: 0,
        }
    }

    /// The proxy after a restart. It restores the file that it wrote before, or what `damage` left
    /// of the file.
    pub(crate) fn restored(before: &Self, now: Duration, damage: Option<u64>) -> Result<Self, Violation> {
        let mut relay = Self::new(before.profile.clone());
        let Some(disk) = &before.disk else { return Ok(relay) };
        let (disk, restored) = disk.reopened(damage)?;
        relay.disk = Some(disk);
        relay.restored = restored.records.iter().map(|record| record.id.clone()).collect();
        let records = restored.records.into_iter().map(Into::into).collect();
        relay.proxy.restore(now, restored.sets, records);
        relay.settle();
        Ok(relay)
    }

    /// Reads the subscriptions of its clients.
    pub(crate) fn work(&mut self, now: Duration) {
        self.proxy.on_demand(now);
        self.settle();
    }

    /// Follows what an event changed.
    fn settle(&mut self) {
        self.note_sets();
        for route in self.proxy.take_changed() {
            match self.proxy.client(&route) {
                None => _ = self.upstreams.remove(&route),
                Some(client) => {
                    let servers = client.servers();
                    let links = || (0..servers).map(|_| None).collect();
                    let upstream = || Upstream { links: links(), is_connecting: vec![false; servers] };
                    self.upstreams.entry(route).or_insert_with(upstream);
                }
            }
        }
        self.proxy.take_notices();
        self.disk.iter_mut().for_each(Disk::flush);
    }

    fn note_sets(&mut self) {
        let (changes, dropped) = (self.proxy.take_set_changes(), self.proxy.take_dropped());
        if let Some(disk) = &mut self.disk {
            disk.note_sets(changes);
            disk.note_dropped(dropped);
        }
    }

    /// Gives the client of a route an event.
    fn change(
        &mut self,
        now: Duration,
        route: &Route,
        event: impl FnOnce(&mut Client) -> Effects,
    ) -> Option<Effects> {
        let effects = self.proxy.change(now, route, event);
        self.follow_effects(route, effects.as_ref());
        effects
    }

    fn follow_effects(&mut self, route: &Route, effects: Option<&Effects>) {
        // Resources for one locator alone, or that pass through, are not stored.
        let is_kept = route.is_main();
        if let (Some(disk), Some(effects)) = (self.disk.as_mut().filter(|_| is_kept), effects) {
            disk.note(effects);
        }
        self.settle();
    }

    /// The same for an event without effects.
    fn edit(&mut self, now: Duration, route: &Route, event: impl FnOnce(&mut Client)) {
        self.change(now, route, |client| {
            event(client);
            Effects::default()
        });
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        self.upstreams.keys().cloned().collect()
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.upstreams.values().flat_map(|upstream| upstream.links.iter().flatten())
    }

    /// The streams to its upstream.
    pub(crate) fn links_home(&self) -> impl Iterator<Item = &Link> {
        self.upstreams.values().filter_map(|upstream| upstream.links[0].as_ref())
    }

    /// Does everything that is due. Returns a route and a server to connect now.
    pub(crate) fn drive(&mut self, now: Duration) -> Result<Option<(Route, usize)>, Violation> {
        self.work(now);
        self.proxy.on_timeout(now);
        self.settle();
        for route in self.routes() {
            for server in 0..self.servers() {
                if self.proxy.client(&route).is_none_or(|client| client.is_needed(server)) {
                    continue;
                }
                if self.trying.take_if(|trying| trying.is_of(&route, server)).is_some() {
                    self.proxy.abandon();
                }
                let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
                let was_connecting = std::mem::take(&mut upstream.is_connecting[server]);
                if upstream.links[server].take().is_some() || was_connecting {
                    if server != LIAR {
                        self.asked_since.clear();
                    }
                    self.edit(now, &route, |client| client.on_closed(now, server));
                }
            }
            let Some(upstream) = self.upstreams.get(&route) else { continue };
            let subscribed = upstream.links.iter().flatten().flat_map(|link| &link.subscribed);
            let silent =
                subscribed.filter(|(_, since)| **since + TIMEOUT <= now && **since + TIMEOUT > self.driven);
            let silent: Vec<_> = silent.map(|(locator, _)| locator.clone()).collect();
            let effects = self.change(now, &route, |client| client.on_timeout(now));
            if effects.is_some_and(|effects| !effects.touched.is_empty()) {
                self.silent.extend(silent);
            }
        }
        self.driven = now;
        if let Some(trying) = self.trying.as_ref().filter(|trying| trying.until <= now) {
            let (route, server) = (trying.route.clone(), trying.server);
            self.take(now, &route, server)?;
        }
        // What was done may be followed by something that is due at once, such as a probe.
        if self.proxy.next_deadline().is_some_and(|due| due <= now) {
            self.proxy.on_timeout(now);
            self.settle();
        }
        if let Some(due) = self.proxy.next_deadline().filter(|due| *due <= now) {
            return Err(Violation::new("timers", format!("a proxy does not do what was due at {due:?}")));
        }
        for (route, server) in self.streams() {
            let connect_at = self.proxy.client(&route).and_then(|client| client.connect_at(server));
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            if connect_at.is_some_and(|at| at <= now) {
                upstream.is_connecting[server] = true;
                self.edit(now, &route, |client| client.on_connecting(server));
            }
            let Some(upstream) = self.upstreams.get(&route) else { continue };
            match if server == LIAR { Access::Open } else { self.access } {
                Access::Open if upstream.is_connecting[server] => return Ok(Some((route, server))),
                Access::Refused if upstream.is_connecting[server] => self.cut_stream(now, &route, server),
                Access::Open | Access::Refused | Access::Hanging => {}
            }
        }
        Ok(None)
    }

    fn servers(&self) -> usize {
        if self.profile.liar == Some(Liar::OfAuthority) { 2 } else { 1 }
    }

    /// All possible streams.
    pub(crate) fn streams(&self) -> Vec<(Route, usize)> {
        let routes = self.upstreams.keys();
        routes.flat_map(|route| (0..self.servers()).map(|server| (route.clone(), server))).collect()
    }

    pub(crate) fn open(&mut self, now: Duration, route: &Route, server: usize, link: Link) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        (upstream.is_connecting[server], upstream.links[server]) = (false, Some(link));
        self.edit(now, route, |client| client.on_open(now, server));
    }

    /// Its upstream streams break, and the messages in flight are lost.
    pub(crate) fn cut(&mut self, now: Duration) {
        self.streams().iter().for_each(|(route, server)| self.cut_stream(now, route, *server));
    }

    /// The streams to the liar of an authority break.
    pub(crate) fn cut_liar(&mut self, now: Duration) {
        let streams = self.streams().into_iter().filter(|(_, server)| *server == LIAR);
        streams.for_each(|(route, server)| self.cut_stream(now, &route, server));
    }

    fn cut_stream(&mut self, now: Duration, route: &Route, server: usize) {
        self.end_stream(now, route, server, None);
    }

    /// Reads the end of a stream, if the server ended it; `false` if not.
    pub(crate) fn take_end(&mut self, now: Duration, route: &Route, server: usize) -> bool {
        let is_tried = self.trying.as_ref().is_some_and(|trying| trying.is_of(route, server));
        let upstream = self.upstreams.get_mut(route).filter(|_| !is_tried);
        let link = upstream.and_then(|upstream| upstream.links[server].as_mut());
        let Some(status) = link.and_then(Link::take_end) else { return false };
        self.proxy.on_stream_end(now, route, server, Some(status.clone()));
        self.end_stream(now, route, server, Some(status));
        true
    }

    fn end_stream(&mut self, now: Duration, route: &Route, server: usize, status: Option<Status>) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        // The driver does the same: it continues to read when the trial is over.
        if let Some(trying) = self.trying.as_mut().filter(|trying| trying.is_of(route, server)) {
            trying.is_lost = true;
            return;
        }
        let was_connecting = std::mem::take(&mut upstream.is_connecting[server]);
        if upstream.links[server].take().is_none() && !was_connecting {
            return;
        }
        self.failures = self.failures.wrapping_add(1);
        let jitter = self.failures.wrapping_mul(0x9e37_79b9);
        let end = StreamEnd { status, reason: "cut", jitter };
        self.change(now, route, |client| client.on_end(now, server, end));
    }

    /// Sends the next request, if there is one; `origin_at` is the newest state of the origin.
    pub(crate) fn say(
        &mut self,
        now: Duration,
        (route, server): (&Route, usize),
        origin_at: usize,
    ) -> Result<bool, Violation> {
        let is_open = self.upstreams.get(route).is_some_and(|upstream| upstream.links[server].is_some());
        let mut request = None;
        if is_open {
            self.edit(now, route, |client| request = client.next_request(now, server));
        }
        let Some(request) = request else { return Ok(false) };
        let Some(upstream) = self.upstreams.get_mut(route) else { return Ok(false) };
        let Some(link) = &mut upstream.links[server] else { return Ok(false) };
        let before: Vec<_> = link.subscribed.keys().cloned().collect();
        link.say(now, request)?;
        for gone in before.iter().filter(|locator| !link.subscribed.contains_key(*locator)) {
            self.asked_since.remove(gone);
            self.silent.remove(gone);
            self.overtaken.remove(gone);
        }
        for locator in link.subscribed.keys() {
            self.asked_since.entry(locator.clone()).or_insert(origin_at);
        }
        // A subscription that ended during an outage is never unsubscribed on a stream.
        let types: BTreeSet<_> = link.subscribed.keys().map(|(of, ..)| of).collect();
        // The stream of one authority has no subscriptions to names of another.
        let has_liar = self.profile.liar == Some(Liar::OfAuthority);
        let is_at_liar = |name: &str| has_liar && is_of_liar(name);
        let is_of_link = |(of, name, _): &Locator| types.contains(of) && is_at_liar(name) == (server == LIAR);
        self.asked_since.retain(|locator, _| link.subscribed.contains_key(locator) || !is_of_link(locator));
        Ok(true)
    }

    /// Reads a response, if there is one.
    pub(crate) fn take(&mut self, now: Duration, route: &Route, server: usize) -> Result<bool, Violation> {
        let Some(upstream) = self.upstreams.get_mut(route) else { return Ok(false) };
        let tried = match &self.trying {
            Some(trying) if trying.is_of(route, server) => {
                let Some(results) = trying.results(now) else { return Ok(false) };
                let refused = trying.refused(&results);
                self.ever_refused.extend(refused.clone());
                self.refused.extend(refused);
                self.trying.take().map(|trying| (trying, results))
            }
            Some(_) | None => None,
        };
        let frame = match &tried {
            Some((trying, _)) => trying.frame.clone(),
            None => {
                let frame = upstream.links[server].as_mut().and_then(|link| link.responses.pop_front());
                let Some(frame) = frame else { return Ok(false) };
                let before = self.proxy.cache().snapshot();
                if let Some(delivery) = self.proxy.try_first(route, server, &frame) {
                    let tried = self.proxy.tried().expect("a response is tried");
                    let snapshots = (before, &*tried);
                    let until = now + ProxyConfig::default().canary_timeout;
                    let trying = Trying::new((route, server), frame, delivery, until, snapshots);
                    self.trying = Some(trying);
                    return Ok(true);
                }
                frame
            }
        };
        let held = invariant::honest::Proxied::of(self.proxy.cache(), server);
        let upstream = self.upstreams.get_mut(route).expect("it was just there");
        self.overtaken.extend(upstream.links[server].iter_mut().flat_map(|link| link.overtaken(&frame)));
        let mut read = Ok(());
        let respond = |client: &mut Client| {
            client.on_response(now, server, &frame).unwrap_or_else(|error| {
                read = Err(error);
                Effects::default()
            })
        };
        let effects = match &tried {
            Some((_, results)) => self.proxy.conclude(now, results, respond),
            None => self.proxy.change(now, route, respond),
        };
        self.follow_effects(route, effects.as_ref());
        match read {
            Ok(()) => {}
            Err(_) if self.is_deceived || server == LIAR => {
                // The driver does the same.
                self.cut_stream(now, route, server);
                return Ok(true);
            }
            Err(error) => return Err(Violation::new("form", error.to_string())),
        }
        let is_own = |rejection: &Rejection| !matches!(rejection.reason, Reason::Refused(_));
        let applied = effects.and_then(|effects| effects.response);
        let applied = applied.filter(|applied| applied.rejections.iter().any(is_own));
        let is_liar = server == LIAR || self.profile.liar == Some(Liar::Upstream);
        if let Some(applied) = applied.filter(|_| !is_liar) {
            let what = format!("T45: a proxy rejects {:?}", applied.rejections);
            return Err(Violation::new("relayed", what));
        }
        held.check(self.proxy.cache())?;
        if tried.is_some_and(|(trying, _)| trying.is_lost) {
            self.cut_stream(now, route, server);
        }
        Ok(true)
    }

    /// The liar of an authority ends its streams, and reports a type as not served.
    pub(crate) fn refuse(&mut self, now: Duration) {
        for (route, server) in self.streams().into_iter().filter(|(_, server)| *server == LIAR) {
            let status = Status { code: Code::UNIMPLEMENTED, message: "no such type".into() };
            let upstream = self.upstreams.get(&route);
            if upstream.is_some_and(|upstream| upstream.links[server].is_some()) {
                self.proxy.on_stream_end(now, &route, server, Some(status));
                self.cut_stream(now, &route, server);
            }
        }
    }

    /// A lie arrives on each of its streams.
    pub(crate) fn lie(&mut self, salt: u64) -> Vec<(Protocol, Bytes)> {
        let (mut random, liar) = (Random::new(salt), self.profile.liar);
        let server = if liar == Some(Liar::OfAuthority) { LIAR } else { 0 };
        let links = self.upstreams.values_mut().filter_map(|upstream| upstream.links[server].as_mut());
        let lies = links.map(|link| {
            let protocol = link.protocol();
            let frame = match liar {
                Some(Liar::OfAuthority) => lie_to_proxy(&mut random, protocol),
                Some(Liar::Upstream) | None => shared_lie(&mut random, protocol),
            };
            link.responses.push_back(frame.clone());
            (link.protocol(), frame)
        });
        let lies: Vec<_> = lies.collect();
        self.is_deceived |= server != LIAR && !lies.is_empty();
        lies
    }

    /// Whether it has no stream to an upstream that it needs.
    pub(crate) fn will_connect(&self) -> bool {
        let mut clients = self.upstreams.keys().filter_map(|route| self.proxy.client(route));
        clients.any(|client| (0..client.servers()).any(|server| client.connect_at(server).is_some()))
    }

    /// The time at which something is due without an outside event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let clients = self.upstreams.keys().filter_map(|route| self.proxy.client(route));
        let of_clients = clients.flat_map(|client| {
            let connects = (0..client.servers()).filter_map(|server| client.connect_at(server));
            connects.chain(client.next_deadline())
        });
        let of_trial = self.trying.as_ref().map(|trying| trying.until);
        of_clients.chain(self.proxy.next_deadline()).chain(of_trial).min()
    }

    /// Whether no message is in flight, except for those that wait for a trial.
    pub(crate) fn is_at_rest(&self) -> bool {
        let waits =
            |route: &Route, server| self.trying.as_ref().is_some_and(|trying| trying.is_of(route, server));
        let links = self.upstreams.iter().flat_map(|(route, upstream)| {
            let links = upstream.links.iter().enumerate();
            links.filter_map(move |(server, link)| Some((route, server, link.as_ref()?)))
        });
        let mut links = links;
        links.all(|(route, server, link)| {
            link.is_at_rest() || (link.requests.is_empty() && waits(route, server))
        })
    }

    /// Rejected content may be sent again after other content was in its place.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) {
        if self.trying.is_none() && !self.refused.is_empty() {
            let there = contents(snapshot);
            self.refused.retain(|variation, refusal| there.get(variation) == refusal.had.as_ref());
        }
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        self.proxy.cache()
    }
}

/// The configuration of each client of a proxy.
fn clients(profile: &RelayProfile) -> impl Fn(&Route) -> ClientConfig + Send + Sync + 'static {
    let server = ServerConfig { name: "upstream".into(), protocol: profile.protocol, errors: profile.policy };
    let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x05relay"), server.clone());
    config.default_authority.speaks_locators = true;
    config.authorities.insert(AUTHORITY.to_owned(), config.default_authority.clone());
    if profile.liar == Some(Liar::OfAuthority) {
        let of_liar = AuthorityConfig { servers: vec![LIAR], ..config.default_authority.clone() };
        config.authorities.insert(AUTHORITY.to_owned(), of_liar);
        config.servers.push(ServerConfig { name: "liar".into(), ..server });
    }
    move |_| config.clone()
}

/// Whether a proxy requests the name from the server of an authority.
pub(crate) fn is_of_liar(name: &str) -> bool {
    name.contains(AUTHORITY)
}

/// The number of the server that lies for an authority.
pub(crate) const LIAR: usize = 1;

/// The time within which an upstream subscription has to be answered.
const TIMEOUT: Duration = Duration::from_secs(15);

/// An event of a proxy.
#[derive(Debug, Clone)]
pub(crate) enum RelayDeed {
    /// It reads the subscriptions of its clients.
    Work,
    /// It sends requests upstream.
    Say { count: usize },
    /// Its upstream reads requests.
    Deliver { count: usize },
    /// It reads responses.
    Take { count: usize },
    /// Its upstream streams break, and the messages in flight are lost.
    Cut,
    /// From now on an attempt to connect has this result.
    Access { access: Access },
    /// It exchanges messages with its upstream until no message is left.
    Exchange,
    /// It restarts, and restores its disk if it has one.
    Restart,
    /// It receives lies.
    Lie { salt: u64, count: usize },
    /// Sets the room of its disk, or removes the limit.
    Fill { room_bytes: Option<u64> },
    /// It restarts with a damaged disk.
    Damage { salt: u64 },
}

impl fmt::Display for RelayDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work => f.write_str("sees what is asked for"),
            Self::Say { count } => write!(f, "says {count}"),
            Self::Deliver { count } => write!(f, "has {count} requests read"),
            Self::Take { count } => write!(f, "reads {count}"),
            Self::Cut => f.write_str("loses its streams upstream"),
            Self::Access { access } => write!(f, "finds its upstream {access:?} from now on"),
            Self::Exchange => f.write_str("exchanges all with its upstream"),
            Self::Restart => f.write_str("starts anew"),
            Self::Fill { room_bytes: Some(bytes) } => write!(f, "has a disk with room for {bytes} bytes"),
            Self::Fill { room_bytes: None } => f.write_str("has room on its disk again"),
            Self::Damage { salt } => write!(f, "starts anew, with damage {salt} of its disk"),
            Self::Lie { salt, count } => write!(f, "hears {count} lies of {salt}"),
        }
    }
}

impl fmt::Display for RelayProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, protocol, window, sharing, relaying, policy, liar, canaries } = self;
        let lies = match liar {
            None => "",
            Some(Liar::Upstream) => ", lied to",
            Some(Liar::OfAuthority) => ", and a liar for its authority",
        };
        let disk = if *relaying == Relaying::Restored { ", with a disk" } else { "" };
        write!(
            f,
            "asks replica {home} by {protocol:?}, window {window}, sharing {sharing:?}{disk}{lies}, canaries {canaries}, {policy:?}"
        )
    }
}
