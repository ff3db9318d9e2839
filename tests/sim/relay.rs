//! A caching proxy: the machine, and the clients by which it asks whoever it is in front of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use xds_core::client::{Client, ClientConfig, Outcome, Restored, ServerConfig};
use xds_core::proxy::{Proxy, ProxyConfig, Route, UpstreamKind};
use xds_core::{Cache, VariantId};

use crate::agent::Access;
use crate::content::Kind;
use crate::invariant::Violation;
use crate::link::{Link, Locator};
use crate::script::{RelayProfile, Relaying};

pub(crate) struct Relay {
    pub(crate) profile: RelayProfile,
    pub(crate) proxy: Proxy,
    pub(crate) upstreams: BTreeMap<Route, Upstream>,
    pub(crate) access: Access,
    /// What it asks for, and what the origin had when it began to: the state of that number. A cut does not end it.
    pub(crate) asked_since: BTreeMap<Locator, usize>,
    /// Of what it asks for: what it was not answered in time, which counts as absent (C5).
    pub(crate) silent: BTreeSet<Locator>,
    /// When it was driven last.
    driven: Duration,
    /// All that its clients ever wanted in this life of it.
    pub(crate) ever_wanted: BTreeSet<Locator>,
    /// What it found on its disk: it stays until somebody asks for it and the upstream says something else.
    pub(crate) restored: BTreeSet<VariantId>,
    /// Makes the jitter of each failure another one.
    failures: u32,
}

/// The client of one route.
pub(crate) struct Upstream {
    pub(crate) client: Client,
    pub(crate) link: Option<Link>,
    is_connecting: bool,
}

impl Relay {
    pub(crate) fn new(profile: RelayProfile) -> Self {
        let config = ProxyConfig { sharing: profile.sharing, ..ProxyConfig::default() };
        Self {
            profile,
            proxy: Proxy::new(config),
            upstreams: BTreeMap::new(),
            access: Access::Open,
            asked_since: BTreeMap::new(),
            silent: BTreeSet::new(),
            driven: Duration::ZERO,
            ever_wanted: BTreeSet::new(),
            restored: BTreeSet::new(),
            failures: 0,
        }
    }

    /// The next life of a proxy, which finds what the last one wrote to its disk.
    pub(crate) fn restored(before: &Self, now: Duration) -> Self {
        let mut relay = Self::new(before.profile.clone());
        let snapshot = before.proxy.cache().snapshot();
        let mut restored = Vec::new();
        for kind in Kind::ALL {
            let of_type = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
            for (name, variant) in of_type.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
                let constraints = variant.constraints().clone();
                let id = VariantId { type_url: kind.url().into(), name: name.clone(), constraints };
                relay.restored.insert(id.clone());
                let (payload, version) = (variant.payload().clone(), variant.version().to_string().into());
                restored.push(Restored { id, payload, version, ttl: None, aliases: Vec::new() });
            }
        }
        relay.upstream(&Route::Shared).client.restore(now, restored);
        // Known: a set of an earlier life still counts as complete when a member of it was dropped for the answer to another
        // question, so sets are not restored here (seed 1596).
        relay
    }

    fn upstream(&mut self, route: &Route) -> &mut Upstream {
        let (profile, cache) = (&self.profile, self.proxy.cache());
        self.upstreams.entry(route.clone()).or_insert_with(|| {
            let server = ServerConfig {
                name: "upstream".into(),
                protocol: profile.protocol.of_client(),
                errors: profile.policy,
            };
            let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x05relay"), server);
            config.default_authority.speaks_locators = true;
            config.relay = Some(route.relay(cache, &UpstreamKind::Locators { set_keys: None }));
            Upstream { client: Client::new(config), link: None, is_connecting: false }
        })
    }

    /// Sees what its clients ask for now, and gives its orders.
    pub(crate) fn work(&mut self, now: Duration) {
        self.proxy.on_demand(now);
        self.settle(now);
    }

    fn settle(&mut self, now: Duration) {
        for route in self.proxy.to_settle() {
            self.upstream(&route);
            let upstream = self.upstreams.get_mut(&route).expect("it was just made");
            self.proxy.settle(now, &route, &mut upstream.client);
        }
        for route in self.proxy.take_unneeded() {
            self.upstreams.remove(&route);
        }
        self.proxy.take_notices();
    }

    fn tell(&mut self, now: Duration, route: &Route, outcome: &Outcome) {
        if let Some(upstream) = self.upstreams.get(route) {
            self.proxy.on_outcome(now, route, &upstream.client, outcome);
        }
        self.settle(now);
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        self.upstreams.keys().cloned().collect()
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.upstreams.values().filter_map(|upstream| upstream.link.as_ref())
    }

    /// Does what is due; the route that has to be connected now.
    pub(crate) fn drive(&mut self, now: Duration) -> Result<Option<Route>, Violation> {
        self.work(now);
        self.proxy.on_timeout(now);
        self.settle(now);
        for route in self.routes() {
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            if !upstream.client.is_wanted(0) && (upstream.link.take().is_some() || upstream.is_connecting) {
                upstream.is_connecting = false;
                upstream.client.on_left(now, 0);
                self.asked_since.clear();
                self.tell(now, &route, &Outcome::default());
            }
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            let outcome = upstream.client.on_timeout(now);
            let told = upstream.link.iter().flat_map(|link| &link.told);
            let silent =
                told.filter(|(_, since)| **since + TIMEOUT <= now && **since + TIMEOUT > self.driven);
            let silent = silent.map(|(locator, _)| locator.clone());
            self.silent.extend(silent.filter(|_| !outcome.touched.is_empty()));
            self.tell(now, &route, &outcome);
        }
        self.driven = now;
        if let Some(due) = self.proxy.next_deadline().filter(|due| *due <= now) {
            return Err(Violation::new("timers", format!("a proxy does not do what was due at {due:?}")));
        }
        for route in self.routes() {
            let Some(upstream) = self.upstreams.get_mut(&route) else { continue };
            if upstream.client.connect_at(0).is_some_and(|at| at <= now) {
                upstream.client.on_connecting(0);
                upstream.is_connecting = true;
            }
            match self.access {
                Access::Open if upstream.is_connecting => return Ok(Some(route)),
                Access::Refused if upstream.is_connecting => self.cut_route(now, &route),
                Access::Open | Access::Refused | Access::Hanging => {}
            }
        }
        Ok(None)
    }

    pub(crate) fn open(&mut self, now: Duration, route: &Route, link: Link) {
        let upstream = self.upstream(route);
        (upstream.is_connecting, upstream.link) = (false, Some(link));
        upstream.client.on_open(now, 0);
        self.tell(now, route, &Outcome::default());
    }

    /// Its streams break, with all that is under way.
    pub(crate) fn cut(&mut self, now: Duration) {
        self.routes().iter().for_each(|route| self.cut_route(now, route));
    }

    fn cut_route(&mut self, now: Duration, route: &Route) {
        let Some(upstream) = self.upstreams.get_mut(route) else { return };
        let was_connecting = std::mem::take(&mut upstream.is_connecting);
        if upstream.link.take().is_none() && !was_connecting {
            return;
        }
        self.failures = self.failures.wrapping_add(1);
        let outcome = upstream.client.on_end(now, 0, "cut", self.failures.wrapping_mul(0x9e37_79b9));
        self.tell(now, route, &outcome);
    }

    /// The next request goes on its way, if there is one; `origin_at` is the newest state of the origin.
    pub(crate) fn say(&mut self, now: Duration, route: &Route, origin_at: usize) -> Result<bool, Violation> {
        let Some(upstream) = self.upstreams.get_mut(route) else { return Ok(false) };
        let Some(link) = &mut upstream.link else { return Ok(false) };
        let Some(request) = upstream.client.next_request(now, 0) else { return Ok(false) };
        let before: Vec<_> = link.told.keys().cloned().collect();
        link.say(now, request)?;
        for gone in before.iter().filter(|locator| !link.told.contains_key(*locator)) {
            self.asked_since.remove(gone);
            self.silent.remove(gone);
        }
        for locator in link.told.keys() {
            self.asked_since.entry(locator.clone()).or_insert(origin_at);
        }
        // What was given up during an outage is never said to be.
        let types: BTreeSet<_> = link.told.keys().map(|(of, ..)| of).collect();
        self.asked_since.retain(|locator, _| link.told.contains_key(locator) || !types.contains(&locator.0));
        self.tell(now, route, &Outcome::default());
        Ok(true)
    }

    /// Reads a response, if there is one.
    pub(crate) fn take(&mut self, now: Duration, route: &Route) -> Result<bool, Violation> {
        let Some(upstream) = self.upstreams.get_mut(route) else { return Ok(false) };
        let frame = upstream.link.as_mut().and_then(|link| link.responses.pop_front());
        let Some(frame) = frame else { return Ok(false) };
        let outcome = upstream.client.on_response(now, 0, &frame);
        let outcome = outcome.map_err(|error| Violation::new("form", error.to_string()))?;
        if let Some(judged) = outcome.response.as_ref().filter(|judged| !judged.rejections.is_empty()) {
            let what = format!("T45: a proxy rejects {:?}", judged.rejections);
            return Err(Violation::new("relayed", what));
        }
        self.tell(now, route, &outcome);
        Ok(true)
    }

    /// When something is due without anything from outside.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let clients = self.upstreams.values().map(|upstream| &upstream.client);
        let of_clients = clients.flat_map(|client| [client.connect_at(0), client.next_deadline()]);
        of_clients.flatten().chain(self.proxy.next_deadline()).min()
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.links().all(Link::is_at_rest) && self.proxy.to_settle().is_empty()
    }

    pub(crate) fn cache(&self) -> &std::sync::Arc<Cache> {
        self.proxy.cache()
    }
}

/// How long the answer to a question may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// What happens to a proxy.
#[derive(Debug, Clone)]
pub(crate) enum RelayDeed {
    /// It sees what its clients ask for.
    Work,
    /// It says something upstream.
    Say { count: usize },
    /// Whom it asks reads requests.
    Deliver { count: usize },
    /// It reads responses.
    Take { count: usize },
    /// Its streams break, with all that is under way.
    Cut,
    /// From now on an attempt to connect ends like this.
    Access { access: Access },
    /// It exchanges all it has to say with whom it asks.
    Exchange,
    /// It starts anew, with what it has on its disk if it has one.
    Restart,
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
        }
    }
}

impl fmt::Display for RelayProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, protocol, window, sharing, relaying, policy } = self;
        let disk = if *relaying == Relaying::Restored { ", with a disk" } else { "" };
        write!(
            f,
            "asks replica {home} by {protocol:?}, window {window}, sharing {sharing:?}{disk}, {policy:?}"
        )
    }
}
