//! The client machine, with servers that send anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xds_core::client::{
    AuthorityConfig, Client, ClientConfig, Effects, ErrorPolicy, Protocol, ResourceView, ServerConfig,
    StreamEnd, WatchId,
};
use xds_core::{Parameters, ResourceName};

use crate::streams::script::Script;
use frame::{Extras, TYPES, name, parameters};
use link::Link;

mod frame;
mod link;

/// Runs a client of two servers with the state-of-the-world protocol; see [`client_delta`].
///
/// # Panics
/// When a property does not hold.
pub fn client_sotw(raw: &[u8]) -> bool {
    play(raw, Protocol::Sotw)
}

/// Runs a client of two servers with the delta protocol. The bytes are the events: watches begin
/// and end, time passes, connections open and close, requests and responses are sent. Responses are
/// made of a few names, constraints and contents, or of any bytes.
///
/// After each step a watcher must see the resource that matches it, and must have been notified of
/// each change. The client must answer each response of a type that it subscribed to once, in
/// order. At the end there are no watchers, and nothing may be left.
///
/// # Panics
/// When a property does not hold.
pub fn client_delta(raw: &[u8]) -> bool {
    play(raw, Protocol::Delta)
}

/// The client, its servers and its watchers.
struct World {
    protocol: Protocol,
    client: Client,
    now: Duration,
    links: [Option<Link>; SERVERS],
    is_connecting: [bool; SERVERS],
    /// The server has sent nothing since it could not be reached.
    has_failed: [bool; SERVERS],
    watchers: Vec<Watcher>,
    /// The features of the responses so far.
    extras: Extras,
    has_accepted: bool,
    nonces: usize,
}

struct Watcher {
    id: WatchId,
    type_url: &'static str,
    name: String,
    parameters: Parameters,
}

/// Everything that a watcher sees.
type Sight = (ResourceView, Vec<(ResourceName, ResourceView)>);

fn play(raw: &[u8], protocol: Protocol) -> bool {
    let mut script = Script::new(raw);
    let mut world = World::new(protocol, script.choice(4));
    while let Some(step) = script.byte() {
        let before = world.sights();
        let effects = world.step(step, &mut script);
        world.check(&before, &effects, (1..=4).contains(&(step % 16)));
    }
    world.end();
    world.has_accepted
}

impl World {
    fn new(protocol: Protocol, features: usize) -> Self {
        let errors = ErrorPolicy {
            fail_on_data_errors: features & 1 != 0,
            resource_timer_is_transient_error: features & 2 != 0,
        };
        let server = |name: &str| ServerConfig { name: name.into(), protocol, errors };
        let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x04node"), server("s0"));
        config.servers.push(server("s1"));
        config.default_authority =
            AuthorityConfig { servers: vec![0, 1], speaks_locators: true, ..AuthorityConfig::default() };
        let other = AuthorityConfig { servers: vec![1], ..config.default_authority.clone() };
        config.authorities.insert("x".to_owned(), other);
        let mut client = Client::new(config);
        let is_bad = |payload: &Bytes| payload.ends_with(frame::BAD);
        client.declare(
            &TYPES[0].into(),
            Arc::new(move |_, payload| match is_bad(payload) {
                true => Err("it is bad".to_owned()),
                false => Ok(Arc::new(())),
            }),
        );
        Self {
            protocol,
            client,
            now: Duration::ZERO,
            links: Default::default(),
            is_connecting: [false; SERVERS],
            has_failed: [false; SERVERS],
            watchers: Vec::new(),
            extras: Extras::default(),
            has_accepted: false,
            nonces: 0,
        }
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) -> Effects {
        let server = usize::from(step >> 4) % SERVERS;
        match step % 16 {
            0 => return self.connect(server, script),
            1..=3 => self.watch(script),
            4 => self.unwatch(script.choice(256)),
            5 => return self.pass(TIMES[script.choice(TIMES.len())]),
            6 => self.drain(server),
            7 => _ = self.ask(server),
            8..=11 => {
                let frame = self.response(script);
                return self.receive(server, frame);
            }
            12 => {
                let frame = script.bytes();
                self.extras = Extras { has_ttl: true, has_alias: true };
                return self.receive(server, frame);
            }
            13 => {
                let mut frame = self.response(script);
                script.damage(&mut frame);
                self.extras = Extras { has_ttl: true, has_alias: true };
                return self.receive(server, frame);
            }
            14 => return self.lose(server),
            _ if !self.client.is_needed(server) => self.leave(server),
            _ => {}
        }
        Effects::default()
    }

    fn connect(&mut self, server: usize, script: &mut Script<'_>) -> Effects {
        let mut effects = Effects::default();
        if let Some(at) = self.client.connect_at(server) {
            assert!(self.links[server].is_none(), "it is connected");
            effects = self.pass(at.saturating_sub(self.now));
            if self.client.connect_at(server).is_none() {
                return effects;
            }
            self.client.on_connecting(server);
            self.is_connecting[server] = true;
        }
        if self.is_connecting[server] {
            match script.choice(4) {
                0 => {}
                1 => effects.touched.extend(self.lose(server).touched),
                _ => {
                    self.client.on_open(self.now, server);
                    self.is_connecting[server] = false;
                    self.links[server] = Some(Link::default());
                }
            }
        }
        effects
    }

    fn lose(&mut self, server: usize) -> Effects {
        if self.links[server].take().is_none() && !self.is_connecting[server] {
            return Effects::default();
        }
        self.is_connecting[server] = false;
        self.has_failed[server] = true;
        self.client.on_end(self.now, server, StreamEnd::lost("lost", u32::MAX / 3))
    }

    fn leave(&mut self, server: usize) {
        self.links[server] = None;
        self.is_connecting[server] = false;
        self.has_failed[server] = false;
        self.client.on_closed(self.now, server);
    }

    fn watch(&mut self, script: &mut Script<'_>) {
        if self.watchers.len() == WATCHERS_LIMIT {
            self.unwatch(0);
        }
        let type_url = TYPES[script.choice(TYPES.len())];
        let name = name(type_url, script.choice(256));
        let parameters = parameters(script.choice(256));
        let watched = self.client.on_watch(&type_url.into(), &name, Some(parameters.clone()));
        let is_good = !name.is_empty() && !name.contains('\n');
        assert_eq!(watched.is_ok(), is_good, "{name:?}: {watched:?}");
        let Ok(id) = watched else { return };
        self.watchers.push(Watcher { id, type_url, name, parameters });
    }

    fn unwatch(&mut self, which: usize) {
        if let Some(at) = which.checked_rem(self.watchers.len()) {
            let watcher = self.watchers.remove(at);
            self.client.on_unwatch(watcher.id);
        }
    }

    fn pass(&mut self, time: Duration) -> Effects {
        self.now += time;
        let effects = self.client.on_timeout(self.now);
        if let Some(deadline) = self.client.next_deadline() {
            assert!(
                deadline > self.now,
                "an event that is due at {:?} did not happen: {deadline:?}",
                self.now
            );
            let is_connected = self.links.iter().any(Option::is_some);
            assert!(is_connected || self.extras.has_ttl, "something is due without a stream at {deadline:?}");
        }
        effects
    }

    /// Sends one request; `true` if there was one.
    fn ask(&mut self, server: usize) -> bool {
        let request = self.client.next_request(self.now, server);
        let Some(link) = &mut self.links[server] else {
            assert!(request.is_none(), "a request without a stream");
            return false;
        };
        if let Some(request) = &request {
            link.ask(self.protocol, request);
        }
        request.is_some()
    }

    /// Sends all requests: a few for each type, and one for each response.
    fn drain(&mut self, server: usize) {
        let count = (0..REQUESTS_LIMIT).take_while(|_| self.ask(server)).count();
        assert!(count < REQUESTS_LIMIT, "there is always one more request");
        assert!(self.links[server].iter().all(Link::is_answered), "a response is not answered");
    }

    fn response(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        self.nonces += 1;
        let (frame, extras) = frame::response(self.protocol, self.nonces, script);
        self.extras.has_ttl |= extras.has_ttl;
        self.extras.has_alias |= extras.has_alias;
        frame
    }

    fn receive(&mut self, server: usize, frame: Vec<u8>) -> Effects {
        let Some(link) = &mut self.links[server] else { return Effects::default() };
        let before = self.client.cache().snapshot().revision();
        let frame = Bytes::from(frame);
        let Ok(effects) = self.client.on_response(self.now, server, &frame) else {
            // C3
            assert_eq!(self.client.cache().snapshot().revision(), before);
            return Effects::default();
        };
        link.receive(self.protocol, &frame, effects.response.as_ref());
        self.has_accepted |= effects.response.as_ref().is_some_and(|judged| judged.valid > 0);
        effects
    }

    fn sights(&self) -> Vec<Sight> {
        self.watchers.iter().map(|watcher| self.sight(watcher)).collect()
    }

    fn sight(&self, watcher: &Watcher) -> Sight {
        let mut members: Vec<_> = self.client.members(watcher.id).into_iter().flatten().cloned().collect();
        members.sort();
        let views =
            members.into_iter().map(|name| (name.clone(), self.client.member_view(watcher.id, &name)));
        (self.client.view(watcher.id), views.collect())
    }

    /// Compares what watchers see with what they saw before a step, unless a watcher was added or
    /// removed in it.
    fn check(&self, before: &[Sight], effects: &Effects, is_watching: bool) {
        let distinct: BTreeSet<_> = effects.touched.iter().collect();
        let is_compared = before.len() == self.watchers.len() && !is_watching;
        let reports = self.client.report();
        for (at, watcher) in self.watchers.iter().enumerate() {
            let (own, members) = self.sight(watcher);
            let copies =
                members.iter().map(|(_, view)| view).chain([&own]).filter_map(|view| view.copy.as_ref());
            for copy in copies {
                assert!(
                    copy.constraints().matches(&watcher.parameters),
                    "{} {{{}}} uses [{}]",
                    watcher.name,
                    watcher.parameters,
                    copy.constraints()
                );
            }
            let is_it = |name: &str, view: &ResourceView| {
                reports.iter().any(|report| {
                    report.type_url.as_str() == watcher.type_url
                        && report.name.as_str() == name
                        && report.parameters == watcher.parameters
                        && is_same_copy(report.copy.as_ref(), view.copy.as_ref())
                })
            };
            match watcher.name.contains('*') {
                false => assert!(is_it(&watcher.name, &own), "P1.21: {} is not reported so", watcher.name),
                true => members.iter().for_each(|(name, view)| {
                    assert!(is_it(name.as_str(), view), "P1.21: {name} is not reported so");
                }),
            }
            if !is_compared {
                continue;
            }
            let is_notified = |member: Option<&ResourceName>| {
                distinct
                    .iter()
                    .any(|touched| touched.watch == watcher.id && touched.member.as_ref() == member)
            };
            let (own_before, members_before) = &before[at];
            assert!(is_notified(None) || is_same(own_before, &own), "{} is not notified", watcher.name);
            for (name, view) in members_before.iter().chain(&members) {
                let find = |all: &[(ResourceName, ResourceView)]| {
                    all.iter().find(|(other, _)| other == name).cloned()
                };
                let is_same = match (find(members_before), find(&members)) {
                    (Some(before), Some(after)) => is_same(&before.1, &after.1),
                    (None, None) => true,
                    (Some(_), None) | (None, Some(_)) => false,
                };
                assert!(
                    is_same || is_notified(Some(name)),
                    "{} is not notified of {name}: {view:?}",
                    watcher.name
                );
            }
        }
    }

    /// Ends all watches, and checks that nothing is left.
    fn end(&mut self) {
        while !self.watchers.is_empty() {
            self.unwatch(0);
        }
        for server in 0..SERVERS {
            self.drain(server);
            for link in self.links[server].iter() {
                assert!(
                    link.subscribed.is_empty(),
                    "a server still has the subscriptions {:?}",
                    link.subscribed
                );
            }
            if self.links[server].is_none() && !self.is_connecting[server] {
                continue;
            }
            assert!(!self.client.is_needed(server));
            self.leave(server);
        }
        let snapshot = self.client.cache().snapshot();
        let types = snapshot.counts().flat_map(|(type_url, _)| snapshot.of_type(type_url));
        let mut left = types.flat_map(|names| names.iter()).map(|(name, _)| name);
        let left = left.next();
        assert!(left.is_none(), "without watchers {left:?} is still in the cache");
        assert!(self.client.report().is_empty(), "a resource without a watcher is reported");
        for server in 0..SERVERS {
            assert_eq!(self.client.connect_at(server), None, "no watcher needs s{server}");
        }
        self.pass(Duration::ZERO);
        for name in ["a", "*"] {
            let id = self.client.on_watch(&TYPES[0].into(), name, None).expect("it can be watched");
            let view = self.client.view(id);
            assert!(view.copy.is_none(), "a copy outlives its watchers");
            let has_failed = self.has_failed.iter().all(|has_failed| *has_failed);
            assert!(view.error.is_none() || has_failed, "an error outlives its watchers: {view:?}");
        }
    }
}

fn is_same(one: &ResourceView, other: &ResourceView) -> bool {
    let error =
        |view: &ResourceView| view.error.as_ref().map(|error| (error.code, Arc::clone(&error.message)));
    is_same_copy(one.copy.as_ref(), other.copy.as_ref()) && error(one) == error(other)
}

fn is_same_copy<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

const SERVERS: usize = 2;

/// A limit, because all watchers are checked after each step.
const WATCHERS_LIMIT: usize = 12;

/// More than the responses that an input can contain.
const REQUESTS_LIMIT: usize = 5000;

/// Times close to those of the client: backoff, timers, TTLs.
const TIMES: [Duration; 8] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(14),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(150),
];

/// Steps that often matter, with their arguments.
pub(crate) const WORDS: &[&[u8]] = &[
    // Connecting to each server.
    b"\x00\x02",
    b"\x10\x02",
    b"\x00\x01",
    // Watching a name, a name with parameters, the wildcard, a new-style name, a glob.
    b"\x01\x00\x00\x00",
    b"\x01\x00\x00\x01",
    b"\x01\x02\x03\x00",
    b"\x01\x02\x04\x00",
    b"\x01\x01\x05\x00",
    b"\x04\x00",
    // Requests.
    b"\x06",
    b"\x16",
    // Responses: one resource, a variant, two of them, a removal, an error.
    b"\x08\x00\x00\x01\x00\x00\x01\x00\x00",
    b"\x08\x00\x00\x01\x00\x02\x01\x00\x00",
    b"\x08\x02\x00\x02\x00\x02\x01\x00\x00\x00\x03\x02\x00\x00",
    b"\x08\x00\x00\x00\x01\x00\x00",
    b"\x18\x01\x00\x01\x05\x00\x01\x00\x00",
    // Time and ends.
    b"\x05\x05",
    b"\x05\x06",
    b"\x0e",
    b"\x1e",
    b"\x0f",
    b"\x1f",
];
