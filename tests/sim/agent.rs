//! Our client library in a simulated world: the client machine, its streams and its watchers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xds_core::client::health::Status;
use xds_core::client::{
    Accepted, AuthorityConfig, Client, ClientConfig, Code, Effects, Report, ResourceView, ServerConfig,
    StreamEnd, Touched, WatchId,
};
use xds_core::server::Protocol;
use xds_core::{Parameters, ResourceName};

use crate::content::{Content, Kind};
use crate::exceptions;
use crate::invariant::{self, Violation};
use crate::liar;
use crate::link::{Link, Locator};
use crate::script::{AgentProfile, Target};

pub(crate) struct Agent {
    pub(crate) profile: AgentProfile,
    pub(crate) client: Client,
    /// By server number.
    pub(crate) links: Vec<Option<Link>>,
    pub(crate) access: Vec<Access>,
    is_connecting: Vec<bool>,
    pub(crate) watchers: Vec<Watcher>,
    /// When a preferred server last answered again, so that the client left the servers after it
    /// (P4.6).
    pub(crate) returned: Option<Duration>,
    /// The subscriptions on streams that have ended, and since when they had them.
    pub(crate) ended: Vec<(Locator, Duration)>,
    /// Counts failures, so that each has another jitter.
    failures: u32,
}

/// The result of an attempt to reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    Refused,
    /// The attempt does not end as long as this lasts.
    Hanging,
}

/// A watcher. It reads the state at once, or, if it is slow, only when the script says so.
pub(crate) struct Watcher {
    pub(crate) kind: Kind,
    /// `*` for the wildcard.
    pub(crate) name: String,
    pub(crate) parameters: Parameters,
    pub(crate) is_of_liar: bool,
    is_slow: bool,
    id: WatchId,
    /// The visible state after the last event.
    pub(crate) sight: Sight,
    /// The state that the watcher read last.
    seen: Sight,
    /// The watcher was notified of a change since then.
    is_notified: bool,
}

/// Everything that a watcher can see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    pub(crate) own: ResourceView,
    pub(crate) members: BTreeMap<String, ResourceView>,
    /// The error of the resource itself, which an outage may hide.
    pub(crate) error: Option<Code>,
}

/// The event that the machine handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Watched,
    Opened,
    Requested,
    Answered { server: usize },
    Passed,
    Ended,
}

/// The effect of one event on one watcher.
pub(crate) struct Turn<'a> {
    pub(crate) now: Duration,
    pub(crate) agent: &'a Agent,
    pub(crate) event: Event,
    pub(crate) watcher: &'a Watcher,
    pub(crate) before: &'a Sight,
    pub(crate) after: &'a Sight,
    /// The notifications of the watcher: `None` for its own name, else the name of a member.
    pub(crate) touched: Vec<Option<String>>,
}

impl Agent {
    pub(crate) fn new(profile: AgentProfile) -> Self {
        let server = |(at, protocol): (usize, &Protocol)| ServerConfig {
            name: format!("s{at}").into(),
            protocol: *protocol,
            errors: profile.policy,
        };
        let servers: Vec<_> = profile.protocols.iter().enumerate().map(server).collect();
        let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x05agent"), servers[0].clone());
        let count = servers.len();
        config.servers = servers;
        config.default_authority = AuthorityConfig {
            servers: profile.order.clone(),
            parameters: profile.parameters.clone(),
            speaks_locators: true,
            ..AuthorityConfig::default()
        };
        let of_liar =
            profile.liar.map(|at| AuthorityConfig { servers: vec![at], ..config.default_authority.clone() });
        config.authorities =
            of_liar.map(|authority| (liar::AUTHORITY.to_owned(), authority)).into_iter().collect();
        let mut client = Client::new(config);
        if profile.rejects {
            for kind in Kind::ALL {
                let decode = move |_: &_, payload: &Bytes| match Content::of(kind, payload) {
                    Ok(content) if !content.is_bad => Ok(Arc::new(()) as _),
                    Ok(_) => Err("it is bad".to_owned()),
                    Err(error) => Err(error),
                };
                client.declare(&kind.url().into(), Arc::new(decode));
            }
        }
        Self {
            profile,
            client,
            links: (0..count).map(|_| None).collect(),
            access: vec![Access::Open; count],
            is_connecting: vec![false; count],
            watchers: Vec::new(),
            returned: None,
            ended: Vec::new(),
            failures: 0,
        }
    }

    pub(crate) fn watch(&mut self, now: Duration, target: &Target) -> Result<(), Violation> {
        let Target { kind, name, parameters, is_of_liar, is_slow } = target.clone();
        let is_of_liar = is_of_liar && self.profile.liar.is_some() && name.is_some();
        let name = match name {
            None => "*".to_owned(),
            Some(name) if is_of_liar => liar::name_at_liar(kind, &name),
            Some(name) => name,
        };
        let id = self
            .client
            .on_watch(&kind.url().into(), &name, parameters.clone())
            .map_err(|error| Violation::new("watch", error.to_string()))?;
        let parameters = parameters.unwrap_or_else(|| self.profile.parameters.clone());
        let (sight, seen) = (Sight::default(), Sight::default());
        let mut watcher =
            Watcher { kind, name, parameters, is_of_liar, is_slow, id, sight, seen, is_notified: false };
        watcher.sight = self.sight(&watcher);
        watcher.seen = watcher.sight.clone();
        self.watchers.push(watcher);
        self.observe(now, Event::Watched, &Effects::default())
    }

    pub(crate) fn unwatch(&mut self, now: Duration, which: usize) -> Result<(), Violation> {
        if self.watchers.is_empty() {
            return Ok(());
        }
        let watcher = self.watchers.remove(which % self.watchers.len());
        self.client.on_unwatch(watcher.id);
        self.observe(now, Event::Watched, &Effects::default())
    }

    /// A slow watcher reads the state now.
    pub(crate) fn look(&mut self, which: usize) {
        let count = self.watchers.len().max(1);
        if let Some(watcher) = self.watchers.get_mut(which % count) {
            watcher.seen = watcher.sight.clone();
            watcher.is_notified = false;
        }
    }

    /// Sends the next request, if there is one.
    pub(crate) fn say(&mut self, now: Duration, server: usize) -> Result<bool, Violation> {
        if self.links[server].is_none() {
            return Ok(false);
        }
        let Some(request) = self.client.next_request(now, server) else { return Ok(false) };
        self.links[server].as_mut().expect("looked at").say(now, request)?;
        self.observe(now, Event::Requested, &Effects::default())?;
        Ok(true)
    }

    /// Reads a response, if there is one.
    pub(crate) fn take(&mut self, now: Duration, server: usize) -> Result<Option<bool>, Violation> {
        let link = self.links[server].as_mut();
        let Some(frame) = link.and_then(|link| link.responses.pop_front()) else { return Ok(None) };
        let protected = invariant::honest::Protected::of(self, server);
        let needed = |client: &Client| (0..client.servers()).filter(|at| client.is_needed(*at)).count();
        let before = needed(&self.client);
        let effects = self.client.on_response(now, server, &frame).unwrap_or_default();
        if needed(&self.client) < before {
            self.returned = Some(now);
        }
        let is_accepted = effects.response.as_ref().is_none_or(|applied| applied.rejections.is_empty());
        self.observe(now, Event::Answered { server }, &effects)?;
        protected.check(self)?;
        Ok(Some(is_accepted))
    }

    pub(crate) fn open(&mut self, now: Duration, server: usize, link: Link) -> Result<(), Violation> {
        self.is_connecting[server] = false;
        self.links[server] = Some(link);
        self.client.on_open(now, server);
        self.observe(now, Event::Opened, &Effects::default())
    }

    /// Reads the end of the stream of a server, if the server ended it; `false` if not.
    pub(crate) fn take_end(&mut self, now: Duration, server: usize) -> Result<bool, Violation> {
        let status = self.links[server].as_mut().and_then(Link::take_end);
        let Some(status) = status else { return Ok(false) };
        self.end(now, server, Some(status))?;
        Ok(true)
    }

    /// The stream of a server breaks, or cannot be opened. The messages in flight are lost.
    pub(crate) fn cut(&mut self, now: Duration, server: usize) -> Result<(), Violation> {
        self.end(now, server, None)
    }

    fn end(&mut self, now: Duration, server: usize, status: Option<Status>) -> Result<(), Violation> {
        let was_connecting = std::mem::take(&mut self.is_connecting[server]);
        if !self.drop_link(server) && !was_connecting {
            return Ok(());
        }
        self.failures = self.failures.wrapping_add(1);
        let jitter = self.failures.wrapping_mul(0x9e37_79b9);
        let effects = self.client.on_end(now, server, StreamEnd { status, reason: "cut", jitter });
        self.observe(now, Event::Ended, &effects)
    }

    /// Does everything that is due. Returns a server to which the client has to connect now.
    pub(crate) fn drive(&mut self, now: Duration) -> Result<Option<usize>, Violation> {
        for server in 0..self.links.len() {
            let is_needless = !self.client.is_needed(server);
            if is_needless && (self.links[server].is_some() || self.is_connecting[server]) {
                self.leave(now, server)?;
            }
        }
        let effects = self.client.on_timeout(now);
        self.observe(now, Event::Passed, &effects)?;
        invariant::timers::check(now, self)?;
        for server in 0..self.links.len() {
            if self.client.connect_at(server).is_some_and(|at| at <= now) {
                self.client.on_connecting(server);
                self.is_connecting[server] = true;
            }
            match self.access[server] {
                Access::Open if self.is_connecting[server] => return Ok(Some(server)),
                Access::Refused if self.is_connecting[server] => self.cut(now, server)?,
                Access::Open | Access::Refused | Access::Hanging => {}
            }
        }
        Ok(None)
    }

    /// A stream ends; `false` if there was none.
    fn drop_link(&mut self, server: usize) -> bool {
        let Some(link) = self.links[server].take() else { return false };
        self.ended.extend(link.subscribed);
        true
    }

    pub(crate) fn leave(&mut self, now: Duration, server: usize) -> Result<(), Violation> {
        self.drop_link(server);
        self.is_connecting[server] = false;
        self.client.on_closed(now, server);
        self.observe(now, Event::Ended, &Effects::default())
    }

    /// The time at which something is due without an outside event.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let connects = (0..self.links.len()).filter_map(|server| self.client.connect_at(server));
        connects.chain(self.client.next_deadline()).min()
    }

    /// Whether it has no stream to a server that it needs.
    pub(crate) fn will_connect(&self) -> bool {
        (0..self.links.len()).any(|server| self.client.connect_at(server).is_some())
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.links.iter().flatten().all(Link::is_at_rest)
    }

    /// Compares what watchers see now with what they saw before the event.
    fn observe(&mut self, now: Duration, event: Event, effects: &Effects) -> Result<(), Violation> {
        let after: Vec<_> = self.watchers.iter().map(|watcher| self.sight(watcher)).collect();
        for (watcher, after) in self.watchers.iter().zip(&after) {
            let own = effects.touched.iter().filter(|touched| touched.watch == watcher.id);
            let member = |touched: &Touched| touched.member.as_ref().map(ToString::to_string);
            let touched = own.map(member).collect();
            let turn = Turn { now, agent: self, event, watcher, before: &watcher.sight, after, touched };
            invariant::check_turn(&turn)?;
        }
        for (watcher, after) in self.watchers.iter_mut().zip(after) {
            watcher.is_notified |= effects.touched.iter().any(|touched| touched.watch == watcher.id);
            // `is_other_outage`, for a watcher that looked before it (seed 9535).
            let is_other_outage = event == Event::Watched
                && watcher.seen.is_same(&watcher.sight)
                && exceptions::are_outages([&watcher.sight.own, &after.own]);
            watcher.sight = after;
            if !watcher.is_slow || is_other_outage {
                watcher.seen = watcher.sight.clone();
                watcher.is_notified = false;
            }
        }
        // A watcher that does not read the state must still be notified of the change.
        let is_missed = |watcher: &&Watcher| !watcher.is_notified && !watcher.seen.is_same(&watcher.sight);
        let missed = self.watchers.iter().find(is_missed).filter(|_| event != Event::Watched);
        match missed {
            None => Ok(()),
            Some(watcher) => {
                Err(Violation::new("notified", format!("{} was not notified of {}", watcher, watcher.sight)))
            }
        }
    }

    fn sight(&self, watcher: &Watcher) -> Sight {
        let member = |name: &ResourceName| (name.to_string(), self.client.member_view(watcher.id, name));
        let own = self.client.view(watcher.id);
        let error = match &own.error {
            Some(error) if watcher.name != "*" && error.message.contains("cannot be reached") => {
                self.hidden_error(watcher)
            }
            seen => seen.as_ref().map(|error| error.code),
        };
        Sight {
            own,
            members: self.client.members(watcher.id).into_iter().flatten().map(member).collect(),
            error,
        }
    }

    /// The error of a resource itself, without that of an outage.
    fn hidden_error(&self, watcher: &Watcher) -> Option<Code> {
        let is_it = |report: &Report| {
            report.type_url.as_str() == watcher.kind.url()
                && report.name.as_str() == watcher.name
                && report.parameters == watcher.parameters
        };
        // C19: if a wildcard is watched with the same parameters, its member has a report, too (seed 11046).
        self.client.report().into_iter().filter(is_it).find_map(|report| report.error).map(|error| error.code)
    }
}

impl Sight {
    /// Whether a watcher sees the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (mut mine, mut theirs) = (self.members.iter(), other.members.iter());
        is_same(&self.own, &other.own)
            && self.members.len() == other.members.len()
            && mine
                .by_ref()
                .zip(theirs.by_ref())
                .all(|(one, other)| one.0 == other.0 && is_same(one.1, other.1))
    }

    /// All copies, with the names under which watchers see them.
    pub(crate) fn copies<'s>(&'s self, name: &'s str) -> impl Iterator<Item = (&'s str, &'s Arc<Accepted>)> {
        let members = self.members.iter().map(|(name, view)| (name.as_str(), view));
        members.chain([(name, &self.own)]).filter_map(|(name, view)| Some((name, view.copy.as_ref()?)))
    }
}

/// Whether the two have the same copy and error; their times may differ.
pub(crate) fn is_same(one: &ResourceView, other: &ResourceView) -> bool {
    let copy = |view: &ResourceView| view.copy.as_ref().map(Arc::as_ptr);
    let error =
        |view: &ResourceView| view.error.as_ref().map(|error| (error.code, Arc::clone(&error.message)));
    copy(one) == copy(other) && error(one) == error(other)
}

impl fmt::Display for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{{{}}}", self.kind, self.name, self.parameters)
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |view: &ResourceView, f: &mut fmt::Formatter<'_>| {
            if let Some(copy) = &view.copy {
                write!(f, "[{}]=", copy.constraints())?;
                match Content::of(Kind::Route, copy.payload())
                    .or_else(|_| Content::of(Kind::Thing, copy.payload()))
                {
                    Ok(content) => write!(f, "{content}")?,
                    Err(_) => f.write_str("?")?,
                }
            }
            view.error.iter().try_for_each(|error| write!(f, " !{error}"))
        };
        f.write_str("(")?;
        show(&self.own, f)?;
        for (name, view) in &self.members {
            write!(f, " {name}")?;
            show(view, f)?;
        }
        f.write_str(")")
    }
}
