//! After any history, each watcher of a client sees what its servers have for it, and was notified
//! of each change.
//!
//! The client machine is connected to our own server machines by encoded messages. A history
//! watches and unwatches names, locators and wildcards, commits other variants of names, breaks
//! streams between any two messages, makes servers unreachable, and has contents rejected. Then
//! everything heals, and the views are compared with the cache of the servers.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use xds_core::client::{
    Client, ClientConfig, Effects, ErrorPolicy, Protocol, ResourceView, ServerConfig, StreamEnd, WatchId,
};
use xds_core::server::{DeltaRequest, Next, Service, SotwRequest, Stream, StreamConfig};
use xds_core::subscription::{Locator, Requested};
use xds_core::{
    Cache, Constraints, KnownType, Nonce, Parameters, Resource, ResourceName, Transaction, TypeUrl, VariantId,
};
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use xds_proto::type_url::{CLUSTER, LISTENER, SECRET};

const TYPES: [&str; 4] = [LISTENER, CLUSTER, SECRET, "type.googleapis.com/acme.Thing"];

/// The variants that a name can have; the first element means that it does not exist.
const VARIANTS: [&[&str]; 7] = [
    &[],
    &["true"],
    &["env=a", "env!=a"],
    &["env=a"],
    &["env=a,ver=1", "env=a,ver!=1"],
    &["env,ver=1", "env,ver!=1", "!env,(ver || !ver)"],
    &["ver=1", "!ver"],
];

const PARAMETERS: [&[(&str, &str)]; 5] =
    [&[], &[("env", "a")], &[("env", "a"), ("ver", "1")], &[("env", "b"), ("pod", "x")], &[("ver", "1")]];

/// The content that the client rejects.
const BAD: i32 = 3;

/// A type, a name, its variants as an index into `VARIANTS`, and their content.
type Change = (u8, u8, u8, u8);

/// One step of a history. Numbers are taken modulo the number of elements. The first number of a
/// step of a server is the number of the server.
#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Change>),
    Watch(u8, u8, u8),
    Unwatch(u8),
    /// The client hands a request to the transport.
    Send(u8),
    /// The server takes a request, and sends all responses that it has.
    Serve(u8),
    /// The client takes a response.
    Take(u8),
    Pass(u16),
    Cut(u8),
    /// The server cannot be reached.
    Fail(u8),
    Connect(u8),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let (a, b, c) = <(u8, u8, u8)>::arbitrary(g);
        match u8::arbitrary(g) % 20 {
            0..3 => Self::Commit(Vec::arbitrary(g)),
            3..6 => Self::Watch(a, b, c),
            6 | 7 => Self::Unwatch(a),
            8..11 => Self::Send(a),
            11..13 => Self::Serve(a),
            13..16 => Self::Take(a),
            16 => Self::Pass(u16::arbitrary(g) % 20_000),
            17 => Self::Cut(a),
            18 => Self::Fail(a),
            _ => Self::Connect(a),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match self {
            Self::Commit(changes) => Box::new(changes.shrink().map(Self::Commit)),
            _ => quickcheck::empty_shrinker(),
        }
    }
}

/// A stream of a server, whose messages are frames.
struct FrameStream {
    protocol: Protocol,
    machine: Stream,
}

impl FrameStream {
    fn new(cache: &Arc<Cache>, protocol: Protocol) -> Self {
        let config = StreamConfig::default();
        Self { protocol, machine: Stream::new(cache.watch(), Service::Aggregated, protocol, config) }
    }

    fn on_request(&mut self, now: Duration, frame: Bytes) {
        match self.protocol {
            Protocol::Sotw => {
                let request = DiscoveryRequest::decode(frame).unwrap();
                let request = SotwRequest {
                    type_url: request.type_url,
                    version_info: request.version_info,
                    response_nonce: Nonce::parse(&request.response_nonce),
                    error_detail: request.error_detail.map(|status| status.message),
                    requested: Some(asked(request.resource_names, request.resource_locators)),
                };
                self.machine.on_request(now, request).unwrap();
            }
            Protocol::Delta => {
                let request = DeltaDiscoveryRequest::decode(frame).unwrap();
                let brought = request.initial_resource_versions.into_iter();
                let request = DeltaRequest {
                    type_url: request.type_url,
                    subscribe: asked(request.resource_names_subscribe, request.resource_locators_subscribe),
                    unsubscribe: asked(
                        request.resource_names_unsubscribe,
                        request.resource_locators_unsubscribe,
                    ),
                    initial_resource_versions: brought
                        .map(|(name, version)| (name.as_str().into(), version))
                        .collect(),
                    response_nonce: Nonce::parse(&request.response_nonce),
                    error_detail: request.error_detail.map(|status| status.message),
                };
                self.machine.on_request(now, request).unwrap();
            }
        }
    }

    fn next(&mut self, now: Duration, cache: &Cache) -> Option<Bytes> {
        match self.machine.next(now, &cache.snapshot()) {
            Next::Send(response) => {
                let mut frame = response.head().to_vec();
                for chunk in response.bodies.iter().flat_map(|body| body.chunks()) {
                    frame.extend_from_slice(chunk);
                }
                Some(frame.into())
            }
            Next::Wait { .. } => None,
            Next::Close(error) => panic!("{error}"),
        }
    }
}

fn asked(names: Vec<String>, locators: Vec<ResourceLocator>) -> Requested {
    let names: Vec<ResourceName> = names.iter().map(|name| name.as_str().into()).collect();
    let locators = locators.into_iter().map(|locator| Locator {
        name: locator.name.as_str().into(),
        parameters: locator.dynamic_parameters.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect(),
    });
    Requested { locators: locators.collect(), ..names.into() }
}

/// A stream, with the messages in flight.
struct Link {
    stream: FrameStream,
    requests: VecDeque<Bytes>,
    responses: VecDeque<Bytes>,
}

struct Watched {
    type_url: &'static str,
    name: String,
    parameters: Parameters,
    watchers: usize,
    /// The views that its watchers were notified of, by member.
    notified: BTreeMap<Option<ResourceName>, String>,
}

struct World {
    cache: Arc<Cache>,
    client: Client,
    protocols: Vec<Protocol>,
    policy: ErrorPolicy,
    links: Vec<Option<Link>>,
    watched: BTreeMap<WatchId, Watched>,
    now: Duration,
}

impl World {
    fn new(protocols: &[Protocol], fail_on_data_errors: bool) -> Self {
        let policy = ErrorPolicy { fail_on_data_errors, ..ErrorPolicy::default() };
        let server = |(at, protocol): (usize, &Protocol)| ServerConfig {
            name: format!("s{at}").into(),
            protocol: *protocol,
            errors: policy,
        };
        let servers: Vec<_> = protocols.iter().enumerate().map(server).collect();
        let mut config = ClientConfig::new(Bytes::new(), servers[0].clone());
        config.default_authority.servers = (0..servers.len()).collect();
        config.default_authority.speaks_locators = true;
        config.servers = servers;
        let mut client = Client::new(config);
        for type_url in TYPES {
            client.declare(
                &type_url.into(),
                Arc::new(|_, payload| match content_of(payload) {
                    BAD => Err("bad".to_owned()),
                    content => Ok(Arc::new(content)),
                }),
            );
        }
        let links = protocols.iter().map(|_| None).collect();
        let cache = Cache::new();
        commit(&cache, &[]);
        let (protocols, watched) = (protocols.to_vec(), BTreeMap::new());
        Self { cache, client, protocols, policy, links, watched, now: Duration::ZERO }
    }

    fn server(&self, number: u8) -> usize {
        usize::from(number) % self.links.len()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Commit(changes) => commit(&self.cache, changes),
            Step::Watch(type_url, name, parameters) => self.watch(*type_url, *name, *parameters),
            Step::Unwatch(at) => {
                let at = usize::from(*at) % self.watched.len().max(1);
                let Some(id) = self.watched.keys().nth(at).copied() else { return };
                let watched = self.watched.get_mut(&id).unwrap();
                watched.watchers -= 1;
                if watched.watchers == 0 {
                    self.watched.remove(&id);
                }
                self.client.on_unwatch(id);
            }
            Step::Send(server) => _ = self.send(self.server(*server)),
            Step::Serve(server) => _ = self.serve(self.server(*server)),
            Step::Take(server) => _ = self.take(self.server(*server)),
            Step::Pass(ms) => self.pass(Duration::from_millis((*ms).into())),
            Step::Cut(server) => self.cut(self.server(*server)),
            Step::Fail(server) => {
                let server = self.server(*server);
                if self.client.connect_at(server).is_some_and(|at| at <= self.now) {
                    self.client.on_connecting(server);
                    let effects = self.client.on_end(self.now, server, StreamEnd::lost("down", u32::MAX / 2));
                    self.hear(&effects);
                }
            }
            Step::Connect(server) => self.connect(self.server(*server)),
        }
        for server in 0..self.links.len() {
            if self.links[server].is_some() && !self.client.is_needed(server) {
                self.links[server] = None;
                self.client.on_closed(self.now, server);
            }
        }
    }

    fn watch(&mut self, type_url: u8, name: u8, parameters: u8) {
        let type_url = TYPES[usize::from(type_url) % TYPES.len()];
        let name = if name.is_multiple_of(8) { "*".to_owned() } else { name_of(name) };
        let parameters: Parameters =
            PARAMETERS[usize::from(parameters) % PARAMETERS.len()].iter().copied().collect();
        let id = self.client.on_watch(&type_url.into(), &name, Some(parameters.clone())).unwrap();
        let client = &self.client;
        let watched = self.watched.entry(id).or_insert_with(|| {
            let members = client
                .members(id)
                .into_iter()
                .flatten()
                .map(|name| (Some(name.clone()), shown(&client.member_view(id, name))));
            let notified = members.chain([(None, shown(&client.view(id)))]).collect();
            Watched { type_url, name, parameters, watchers: 0, notified }
        });
        watched.watchers += 1;
    }

    fn hear(&mut self, effects: &Effects) {
        for touched in &effects.touched {
            let view = self.client.view_of(touched);
            let watched = self.watched.get_mut(&touched.watch).expect("a touched watch has watchers");
            let notified = &mut watched.notified;
            if touched.member.is_some() && view.copy.is_none() && view.error.is_none() {
                notified.remove(&touched.member);
            } else {
                notified.insert(touched.member.clone(), shown(&view));
            }
        }
    }

    fn send(&mut self, server: usize) -> bool {
        let Some(link) = &mut self.links[server] else { return false };
        let request = self.client.next_request(self.now, server);
        link.requests.extend(request.clone());
        request.is_some()
    }

    fn serve(&mut self, server: usize) -> bool {
        let Some(link) = &mut self.links[server] else { return false };
        let request = link.requests.pop_front();
        let mut is_busy = request.is_some();
        if let Some(request) = request {
            link.stream.on_request(self.now, request);
        }
        while let Some(response) = link.stream.next(self.now, &self.cache) {
            link.responses.push_back(response);
            is_busy = true;
        }
        is_busy
    }

    fn take(&mut self, server: usize) -> bool {
        let Some(response) = self.links[server].as_mut().and_then(|link| link.responses.pop_front()) else {
            return false;
        };
        let effects = self.client.on_response(self.now, server, &response).unwrap();
        self.hear(&effects);
        true
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        if self.client.next_deadline().is_some_and(|at| at <= self.now) {
            let effects = self.client.on_timeout(self.now);
            self.hear(&effects);
        }
    }

    fn cut(&mut self, server: usize) {
        if self.links[server].take().is_some() {
            let effects = self.client.on_end(self.now, server, StreamEnd::lost("cut", u32::MAX / 2));
            self.hear(&effects);
        }
    }

    fn connect(&mut self, server: usize) {
        if self.client.connect_at(server).is_some_and(|at| at <= self.now) {
            self.client.on_connecting(server);
            self.client.on_open(self.now, server);
            let stream = FrameStream::new(&self.cache, self.protocols[server]);
            self.links[server] = Some(Link { stream, requests: VecDeque::new(), responses: VecDeque::new() });
        }
    }

    fn settle(&mut self) {
        for _ in 0..10 {
            self.pass(Duration::from_secs(30));
            for server in 0..self.links.len() {
                self.step(&Step::Connect(u8::try_from(server).unwrap()));
                while self.send(server) | self.serve(server) | self.take(server) {}
            }
        }
    }

    /// The content that the servers have of a name for these parameters.
    fn expected(&self, type_url: &TypeUrl, name: &ResourceName, parameters: &Parameters) -> Option<i32> {
        let snapshot = self.cache.snapshot();
        let mut variants = snapshot.get(type_url, name)?.iter();
        let variant = variants.find(|variant| variant.constraints().matches(parameters))?;
        Some(content_of(variant.payload()))
    }

    fn check(&self) -> Result<(), String> {
        for (id, watched) in &self.watched {
            let Watched { type_url, name, parameters, notified, .. } = watched;
            let is_absence_reported =
                self.protocols[0] == Protocol::Delta || KnownType::of(type_url).full_state;
            let url = TypeUrl::from(*type_url);
            let says = |name: &str, what: &str| Err(format!("{type_url} {name}{{{parameters}}}: {what}"));
            let check = |name: &ResourceName, view: &ResourceView| {
                let expected = self.expected(&url, name, parameters);
                let copy = view.copy.as_ref().map(|copy| content_of(copy.payload()));
                let is_right = match expected {
                    Some(_) => copy == expected && view.error.is_none(),
                    None if !is_absence_reported => true,
                    None => view.error.is_some() && (copy.is_none() || !self.policy.fail_on_data_errors),
                };
                if is_right {
                    Ok(())
                } else {
                    says(name.as_str(), &format!("{} for {expected:?}", shown(view)))
                }
            };
            let mut now: BTreeMap<_, _> = BTreeMap::from([(None, shown(&self.client.view(*id)))]);
            if name == "*" {
                let members: Vec<_> = self.client.members(*id).into_iter().flatten().cloned().collect();
                for member in &members {
                    let view = self.client.member_view(*id, member);
                    now.insert(Some(member.clone()), shown(&view));
                    if self.expected(&url, member, parameters).is_none() && is_absence_reported {
                        return says(member.as_str(), "it is a member still");
                    }
                    check(member, &view)?;
                }
                for name in (0..NAMES).map(|name| ResourceName::from(name_of(name).as_str())) {
                    if self.expected(&url, &name, parameters).is_some() && !members.contains(&name) {
                        return says(name.as_str(), "it is no member");
                    }
                }
                let view = self.client.view(*id);
                if view.error.is_some() {
                    return says("*", &shown(&view));
                }
            } else {
                check(&name.as_str().into(), &self.client.view(*id))?;
            }
            if *notified != now {
                return says(name, &format!("was notified of {notified:?}, not {now:?}"));
            }
        }
        Ok(())
    }
}

fn shown(view: &ResourceView) -> String {
    let copy = view.copy.as_ref().map(|copy| content_of(copy.payload()));
    format!("{copy:?} {:?}", view.error.as_ref().map(|error| &error.message))
}

const NAMES: u8 = 5;

fn name_of(number: u8) -> String {
    format!("r{}", number % NAMES)
}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "100")]
    content: i32,
}

fn content_of(payload: &[u8]) -> i32 {
    Payload::decode(payload).unwrap().content
}

fn commit(cache: &Cache, changes: &[Change]) {
    let type_of = |number: u8| TYPES[usize::from(number) % TYPES.len()];
    let changes: BTreeMap<_, _> = changes
        .iter()
        .map(|(t, n, scheme, content)| ((type_of(*t), name_of(*n)), (*scheme, *content)))
        .collect();
    let mut transaction = Transaction::new();
    let snapshot = cache.snapshot();
    for ((type_url, name), (scheme, content)) in changes {
        let scheme = VARIANTS[usize::from(scheme) % VARIANTS.len()];
        let variants: Vec<Constraints> = scheme.iter().map(|when| when.parse().unwrap()).collect();
        let before = snapshot.get(&type_url.into(), &name.as_str().into());
        for old in before.into_iter().flat_map(|variants| variants.iter()) {
            if !variants.contains(old.constraints()) {
                let (type_url, name) = (type_url.into(), name.as_str().into());
                transaction.remove(VariantId { type_url, name, constraints: old.constraints().clone() });
            }
        }
        for (at, constraints) in variants.into_iter().enumerate() {
            // Sometimes the variants of a name have equal contents.
            let part = if content % 16 < 8 { 0 } else { 10 * i32::try_from(at).unwrap() };
            transaction.put(resource(type_url, &name, i32::from(content % 8) + part, constraints));
        }
    }
    cache.commit(transaction).unwrap();
}

fn resource(type_url: &str, name: &str, content: i32, constraints: Constraints) -> Resource {
    let payload = Payload { name: name.to_owned(), content }.encode_to_vec();
    let resource = Resource::new(type_url, name, payload).unwrap();
    resource.with_constraints(constraints)
}

/// Replaces all contents that the client rejects.
fn mend(cache: &Cache) {
    let snapshot = cache.snapshot();
    let mut transaction = Transaction::new();
    for type_url in TYPES {
        let resources = snapshot.of_type(&type_url.into());
        for (name, variants) in resources.into_iter().flat_map(|resources| resources.iter()) {
            for variant in variants.iter().filter(|variant| content_of(variant.payload()) == BAD) {
                transaction.put(resource(type_url, name.as_str(), 100, variant.constraints().clone()));
            }
        }
    }
    cache.commit(transaction).unwrap();
}

fn converges(protocols: &[Protocol], fail_on_data_errors: bool, steps: &[Step]) -> bool {
    let mut world = World::new(protocols, fail_on_data_errors);
    for step in steps {
        world.step(step);
    }
    mend(&world.cache);
    world.settle();
    world.check().inspect_err(|difference| eprintln!("{difference}")).is_ok()
}

/// Histories of up to 60 steps. They are the same in each run, so that a failure is that of a change;
/// `SEED` and `TESTS` choose others.
fn quick() -> QuickCheck {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    QuickCheck::new().rng(Gen::from_size_and_seed(60, number("SEED", 0))).tests(number("TESTS", 400))
}

#[test]
fn watchers_over_sotw_see_what_the_server_has() {
    fn holds(steps: Vec<Step>, fail_on_data_errors: bool) -> bool {
        converges(&[Protocol::Sotw], fail_on_data_errors, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>, bool) -> bool);
}

#[test]
fn watchers_over_delta_see_what_the_server_has() {
    fn holds(steps: Vec<Step>, fail_on_data_errors: bool) -> bool {
        converges(&[Protocol::Delta], fail_on_data_errors, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>, bool) -> bool);
}

#[test]
fn c15_watchers_of_two_sotw_servers_see_what_they_have() {
    fn holds(steps: Vec<Step>, fail_on_data_errors: bool) -> bool {
        converges(&[Protocol::Sotw; 2], fail_on_data_errors, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>, bool) -> bool);
}

#[test]
fn c15_watchers_of_two_delta_servers_see_what_they_have() {
    fn holds(steps: Vec<Step>, fail_on_data_errors: bool) -> bool {
        converges(&[Protocol::Delta; 2], fail_on_data_errors, &steps)
    }
    quick().quickcheck(holds as fn(Vec<Step>, bool) -> bool);
}

/// S17: a full state was rejected because of another name, so the next stream began without a
/// version. In the meantime the name was deleted, and the server had no reason to report that. No
/// timer was running.
#[test]
fn c5_what_was_taken_of_a_rejected_full_state_is_not_confirmed_by_silence() {
    use Step::{Commit, Connect, Cut, Send, Serve, Take, Unwatch, Watch};
    let listeners = |variants, bad| vec![(0, 0, variants, 0), (0, 1, variants, bad)];
    let steps = [
        Watch(0, 5, 0),
        Watch(0, 1, 0),
        Connect(0),
        Commit(listeners(1, u8::try_from(BAD).unwrap())),
        Send(0),
        Serve(0),
        Unwatch(1),
        Take(0),
        Commit(vec![(0, 0, 0, 0)]),
        Cut(0),
    ];
    for fail_on_data_errors in [false, true] {
        assert!(converges(&[Protocol::Sotw], fail_on_data_errors, &steps));
    }
}

/// D8: a response with a removal was rejected because of another name. Then the removed name came
/// back without constraints. When the server sent the contents of the rejected response again, it
/// removed the name.
#[test]
fn d8_what_came_after_a_rejected_removal_is_not_removed() {
    use Step::{Commit, Connect, Send, Serve, Watch};
    let bad = u8::try_from(BAD).unwrap();
    let steps = [
        Watch(0, 1, 0),
        Watch(0, 2, 4),
        Connect(0),
        Send(0),
        Commit(vec![(0, 1, 1, bad)]),
        Serve(0),
        Commit(vec![(0, 2, 1, 0)]),
    ];
    assert!(converges(&[Protocol::Delta], false, &steps));
}

/// S25, P1.7: a resource was rejected, and its older copy was dropped. So the absence of the
/// resource in a full state has no copy to remove.
#[test]
fn s25_what_was_rejected_without_a_copy_and_then_goes_is_no_member_any_more() {
    use Step::{Commit, Connect, Send, Serve, Watch};
    let bad = u8::try_from(BAD).unwrap();
    for name in [0, 3] {
        let steps = [
            Watch(1, name, 4),
            Commit(vec![(1, 3, 1, 0)]),
            Connect(0),
            Send(0),
            Serve(0),
            Commit(vec![(1, 3, 1, bad)]),
            Commit(vec![(1, 0, 5, 0), (1, 3, 0, 0)]),
        ];
        assert!(converges(&[Protocol::Sotw], true, &steps));
    }
}

/// S8b, S25: the client unsubscribed from a cluster and subscribed to it again while a full state
/// with the cluster was in flight. The client used the cluster of this response. The cluster did
/// not exist when the server read the second request, so the server sent no response.
#[test]
fn s8b_what_was_given_up_wanted_again_and_gone_meanwhile_is_told_to_be_gone() {
    use Step::{Commit, Connect, Send, Serve, Take, Unwatch, Watch};
    let steps = [
        Watch(1, 1, 0),
        Watch(1, 2, 0),
        Connect(0),
        Commit(vec![(1, 2, 1, 0)]),
        Send(0),
        Serve(0),
        Take(0),
        Send(0),
        Unwatch(1),
        Send(0),
        Commit(vec![(1, 1, 1, 0), (1, 2, 0, 0)]),
        Watch(0, 1, 0),
        Watch(1, 2, 0),
    ];
    for fail_on_data_errors in [false, true] {
        assert!(converges(&[Protocol::Sotw], fail_on_data_errors, &steps));
    }
}

/// T35, D21: several locators used a variant from another stream, and now have no resource, while a
/// third locator has one. The server removes each of their locators by itself. Only all of these
/// removals together concern all users of the variant.
#[test]
fn t35_what_is_gone_for_each_of_several_locators_is_gone() {
    use Step::{Commit, Connect, Cut, Send, Serve, Take, Watch};
    let steps = [
        Watch(0, 0, 4),
        Watch(0, 3, 3),
        Commit(vec![(0, 3, 2, 0)]),
        Connect(0),
        Send(0),
        Serve(0),
        Take(0),
        Watch(0, 3, 1),
        Cut(0),
        Commit(vec![(0, 3, 3, 0)]),
    ];
    for fail_on_data_errors in [false, true] {
        assert!(converges(&[Protocol::Delta], fail_on_data_errors, &steps));
    }
}

/// P4.6, D1: the client subscribed to the wildcard on the first server before the second server
/// sent its members. The first server had no reason to remove some of them. The second server was
/// no longer in use before it could remove them.
#[test]
fn c15_what_only_a_server_that_was_left_spoke_of_is_no_member() {
    use Step::{Commit, Connect, Fail, Pass, Send, Serve, Take, Watch};
    let steps = [
        Watch(0, 0, 3),
        Fail(0),
        Connect(1),
        Pass(2_000),
        Send(1),
        Commit(vec![(0, 0, 5, 0)]),
        Serve(1),
        Connect(0),
        Commit(vec![(0, 0, 0, 0), (0, 1, 5, 0)]),
        Send(0),
        Take(1),
    ];
    for fail_on_data_errors in [false, true] {
        assert!(converges(&[Protocol::Delta; 2], fail_on_data_errors, &steps));
    }
}

/// S8b, D20: the same in delta, where no response lists the names that are no longer members of a
/// wildcard.
#[test]
fn s8b_what_was_on_its_way_when_the_wildcard_was_given_up_and_wanted_again_is_told_to_be_gone() {
    use Step::{Commit, Connect, Send, Serve, Unwatch, Watch};
    let steps = [
        Watch(0, 0, 0),
        Watch(1, 4, 1),
        Connect(0),
        Send(0),
        Unwatch(0),
        Commit(vec![(0, 1, 1, 0)]),
        Serve(0),
        Send(0),
        Commit(vec![(0, 1, 0, 0)]),
        Watch(0, 0, 0),
    ];
    for fail_on_data_errors in [false, true] {
        assert!(converges(&[Protocol::Delta], fail_on_data_errors, &steps));
    }
}
