//! A node joins, takes a snapshot, or migrates. It removes nothing from an xDS client that subscribes to `*` before it
//! knows what there is. Payloads are `NAME=CONTENT`.

use std::collections::BTreeSet;

use tokio::time::{sleep, timeout};
use xds_core::server::{
    DeltaRequest, Next, Protocol, Response, Service, SotwRequest, Stream, StreamConfig, TypeConfig,
};
use xds_core::{Cache, ResourceName, TypeUrl, Watch};
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
use xds_store_server::Condition;

use super::link::Link;
use super::migration::{OLD, migration_as, put_old, schemas, to};
use super::offline::Offline;
use super::peers::{Node, WAIT, engine, node, node_with};
use super::*;

/// A client of all resources of a type, of which each SotW response is a full state. It ACKs what it gets.
struct Wildcard {
    protocol: Protocol,
    type_url: &'static str,
    stream: Stream,
    watch: Arc<Watch>,
    now: Duration,
    /// The payloads that it has.
    has: BTreeSet<String>,
    is_answered: bool,
}

impl Wildcard {
    /// In both protocols, new and with what it brings: `gone=1`.
    fn all(cache: &Arc<Cache>, type_url: &'static str) -> Vec<Self> {
        let kinds = [Protocol::Delta, Protocol::Sotw].into_iter().flat_map(|of| [(of, false), (of, true)]);
        kinds.map(|(protocol, is_back)| Self::new(cache, type_url, protocol, is_back)).collect()
    }

    fn new(cache: &Arc<Cache>, type_url: &'static str, protocol: Protocol, is_back: bool) -> Self {
        let watch = cache.watch();
        let full_state = TypeConfig { full_state: true, ..TypeConfig::of(type_url) };
        let types = [(TypeUrl::from(type_url), full_state)].into_iter().collect();
        let config = StreamConfig { types, ..StreamConfig::default() };
        let mut stream = Stream::new(Arc::clone(&watch), Service::Aggregated, protocol, config);
        let star = || vec![ResourceName::new("*")].into();
        let brought = is_back.then(|| (ResourceName::new("gone"), "1".to_owned()));
        let has = brought.iter().map(|_| "gone=1".to_owned()).collect();
        let asked = match protocol {
            Protocol::Delta => stream.on_request(
                Duration::ZERO,
                DeltaRequest {
                    type_url: type_url.into(),
                    subscribe: star(),
                    initial_resource_versions: brought.into_iter().collect(),
                    ..DeltaRequest::default()
                },
            ),
            Protocol::Sotw => stream.on_request(
                Duration::ZERO,
                SotwRequest {
                    type_url: type_url.into(),
                    version_info: brought.map(|(_, version)| version).unwrap_or_default(),
                    requested: Some(star()),
                    ..SotwRequest::default()
                },
            ),
        };
        asked.unwrap();
        Self { protocol, type_url, stream, watch, now: Duration::ZERO, has, is_answered: false }
    }

    /// Takes what is sent now. No response takes a name of `keeps` from it, or says that there is no such one.
    fn read(&mut self, keeps: &[&str], what: &str) {
        loop {
            let Self { watch, stream, now, .. } = self;
            let response = match watch.read(|snapshot| stream.next(*now, snapshot)) {
                Next::Send(response) => response,
                Next::Wait { .. } => return,
                Next::Close(error) => panic!("{what}: {error}"),
            };
            let before = self.has.clone();
            let is_complete = self.apply(&response);
            self.is_answered |= is_complete;
            let kept = keeps.iter().filter(|name| is_complete || has(&before, name));
            let lost: Vec<_> = kept.filter(|name| !has(&self.has, name)).collect();
            assert!(lost.is_empty(), "{what}, {:?} of {}: {lost:?} are lost", self.protocol, self.type_url);
        }
    }

    /// Whether a response says that it has everything that there is.
    fn apply(&mut self, response: &Response) -> bool {
        let chunks = response.bodies.iter().flat_map(|body| body.chunks());
        let bytes = chunks.fold(response.head().to_vec(), |bytes, chunk| [&bytes, chunk.as_ref()].concat());
        let (type_url, response_nonce) = (self.type_url.to_owned(), Some(response.nonce));
        let (payloads, removed, is_complete) = match self.protocol {
            Protocol::Delta => {
                let decoded = DeltaDiscoveryResponse::decode(&*bytes).unwrap();
                let ack = DeltaRequest { type_url, response_nonce, ..DeltaRequest::default() };
                self.stream.on_request(self.now, ack).unwrap();
                let payloads: Vec<_> =
                    decoded.resources.into_iter().map(|resource| resource.resource.unwrap().value).collect();
                (payloads, decoded.removed_resources, decoded.resource_errors.is_empty())
            }
            Protocol::Sotw => {
                let decoded = DiscoveryResponse::decode(&*bytes).unwrap();
                let ack = SotwRequest { type_url, response_nonce, ..SotwRequest::default() };
                self.stream.on_request(self.now, ack).unwrap();
                self.has.clear();
                let payload = |any: prost_types::Any| match any.type_url.ends_with(".v3.Resource") {
                    true => Resource::decode(&*any.value).unwrap().resource.unwrap().value,
                    false => any.value.into(),
                };
                let any = |any: xds_proto::Any| prost_types::Any {
                    type_url: any.type_url,
                    value: any.value.into(),
                };
                (decoded.resources.into_iter().map(any).map(payload).collect(), Vec::new(), true)
            }
        };
        let payloads = payloads.into_iter().map(|payload| String::from_utf8(payload.to_vec()).unwrap());
        for payload in payloads.collect::<Vec<_>>() {
            self.has.retain(|had| name_of(had) != name_of(&payload));
            self.has.insert(payload);
        }
        self.has.retain(|had| !removed.iter().any(|name| name == name_of(had)));
        is_complete
    }

    /// In the order of names.
    fn has(&self) -> Vec<&str> {
        let mut has: Vec<_> = self.has.iter().map(String::as_str).collect();
        has.sort_by_key(|payload| name_of(payload));
        has
    }
}

fn name_of(payload: &str) -> &str {
    payload.split('=').next().unwrap()
}

fn has(payloads: &BTreeSet<String>, name: &str) -> bool {
    payloads.iter().any(|payload| name_of(payload) == name)
}

fn read_all(clients: &mut [Wildcard], keeps: &[&str], what: &str) {
    clients.iter_mut().for_each(|client| client.read(keeps, what));
}

/// A node with a snapshot that takes a while, and the link to it.
async fn with_snapshot(mut a: Offline<MemoryEngine>) -> (Node, Link) {
    a.commit(
        (0..1_000)
            .map(|number| put(&format!("n{number}"), &format!("n{number}={}", "x".repeat(1_000))))
            .collect(),
    );
    a.forget_all();
    let (a, link) = (node(a.engine, CI).await, Link::new().await);
    link.lead_to(a.served.address.port());
    link.stall(Some(200_000));
    (a, link)
}

/// Until all clients are answered and have 1,000 records and these.
async fn settled(clients: &mut [Wildcard], keeps: &[&str], expected: &[&str]) {
    let read = async {
        while !clients.iter().all(|client| client.has.len() == 1_000 + expected.len()) {
            read_all(clients, keeps, "the snapshot comes");
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, read).await.expect("they are answered");
    for client in clients {
        let named: Vec<_> = client.has().into_iter().filter(|payload| !payload.starts_with('n')).collect();
        assert_eq!(named, expected, "{:?}", client.protocol);
    }
}

#[tokio::test]
async fn sr24_g13_a_node_that_joins_says_nothing_of_a_wildcard_before_it_has_its_snapshot() {
    let mut a = Offline::load(engine("a", "c"));
    a.commit(vec![put("x", "x=1"), put("y", "y=1")]);
    let (_a, link) = with_snapshot(a).await;
    let mut joining = MemoryEngine::default();
    let identity = Identity { node: "b".into(), cluster: "c".into(), ..Identity::default() };
    joining.commit(&Store::init_joining(&identity)).unwrap();
    let cache = Cache::new();
    let served = Arc::clone(&cache);
    let b = node_with(joining, CI, |config| config.cache = served).await;
    let mut clients = Wildcard::all(&cache, TYPE);
    b.dial_addresses(vec![format!("http://{}", link.address)]);
    for _ in 0..50 {
        sleep(Duration::from_millis(10)).await;
        read_all(&mut clients, &["gone"], "waiting");
        assert!(clients.iter().all(|client| !client.is_answered), "nobody knows what there is");
    }
    assert_eq!(b.served.store.standing().borrow().condition, Condition::Waiting);
    clients.extend(Wildcard::all(&cache, TYPE));
    // G13: after a time, delta says that it does not know.
    clients.iter_mut().for_each(|client| client.now = Duration::from_secs(20));
    read_all(&mut clients, &["gone"], "late");
    assert!(clients.iter().all(|client| !client.is_answered), "nobody knows what there is");
    link.stall(None);
    settled(&mut clients, &["x", "y", "n0", "n999"], &["x=1", "y=1"]).await;
}

#[tokio::test]
async fn sr20_g13_while_a_node_takes_a_snapshot_no_wildcard_is_told_of_an_absence() {
    let (mut a, mut b) = (Offline::load(engine("a", "c")), Offline::load(engine("b", "c")));
    a.commit(vec![put("x", "x=1"), put("gone", "gone=1")]);
    b.pull(&a);
    a.commit(vec![put("x", "x=2"), put("y", "y=1")]);
    a.commit(vec![delete("gone")]);
    let (_a, link) = with_snapshot(a).await;
    let cache = Cache::new();
    let served = Arc::clone(&cache);
    let b = node_with(b.engine, CI, |config| config.cache = served).await;
    let mut before = Wildcard::all(&cache, TYPE);
    read_all(&mut before, &["x", "gone"], "before");
    assert!(before.iter().all(|client| client.has() == ["gone=1", "x=1"]));
    b.dial_addresses(vec![format!("http://{}", link.address)]);
    let mut standing = b.served.store.standing();
    let reached = standing.wait_for(|standing| standing.condition == Condition::Resyncing);
    timeout(WAIT, reached).await.expect("it comes").unwrap();
    let mut new = Wildcard::all(&cache, TYPE);
    for _ in 0..20 {
        sleep(Duration::from_millis(10)).await;
        read_all(&mut before, &["x", "gone"], "resyncing");
        read_all(&mut new, &["gone"], "resyncing");
        assert!(new.iter().all(|client| !client.is_answered), "nobody knows what there is");
    }
    link.stall(None);
    settled(&mut before, &["x"], &["x=2", "y=1"]).await;
    settled(&mut new, &["x", "y", "n0", "n999"], &["x=2", "y=1"]).await;
}

/// What a phase serves of the old type, where the plan has the names that begin with `a`, and of the new one.
fn served_in(phase: u32) -> [&'static [&'static str]; 2] {
    match phase {
        0 | 1 => [&["a=1", "a2=1", "b=1"], &[]],
        2..=4 => [&["a=1", "a2=1", "b=1"], &["a=1", "a2=1"]],
        _ => [&["b=1"], &["a=1", "a2=1"]],
    }
}

#[tokio::test]
async fn sv29_d16_s25_no_wildcard_loses_a_form_that_both_phases_of_a_step_serve_up_to_f5_and_back() {
    const NEW: &str = "example.com/acme.v2.T";
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let cache = Cache::new();
    let settings = || {
        let mut settings = StoreConfig::default();
        settings.schemas = schemas().into();
        settings
    };
    let mut of_first = settings();
    of_first.cache = Arc::clone(&cache);
    let served = serve_configured(engine.clone(), of_first, |_| {}).await;
    served.commit(["a", "a2", "b"].map(|name| put_old(name, &format!("{name}=1"))).into()).await;
    let mut client = migration_as(&served, LOCAL).await;
    let mut all: [Vec<Wildcard>; 2] = [OLD, NEW].map(|type_url| Wildcard::all(&cache, type_url));
    let phases = [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0];
    for step in phases.windows(2) {
        let [from, phase] = [step[0], step[1]];
        let (before, after) = (served_in(from), served_in(phase));
        let kept = |at: usize| {
            let names = before[at].iter().filter(|payload| after[at].contains(payload));
            names.map(|payload| name_of(payload)).collect::<Vec<_>>()
        };
        let what = format!("F{from} to F{phase}");
        // A gate may wait for a clean pass.
        let mut taken = client.set_phase(to(1, from, phase)).await;
        for _ in 0..500 {
            if taken.is_ok() {
                break;
            }
            for (at, clients) in all.iter_mut().enumerate() {
                read_all(clients, &kept(at), &what);
            }
            sleep(Duration::from_millis(20)).await;
            taken = client.set_phase(to(1, from, phase)).await;
        }
        taken.unwrap_or_else(|status| panic!("{what}: {status:?}"));
        for (at, clients) in all.iter_mut().enumerate() {
            clients.extend(Wildcard::all(&cache, [OLD, NEW][at]));
            read_all(clients, &kept(at), &what);
            for (number, client) in clients.iter().enumerate() {
                assert_eq!(client.has(), after[at], "{what}, type {at}, client {number}");
            }
        }
        // A server that starts in this phase.
        let restarted = Cache::new();
        let mut of_second = settings();
        of_second.cache = Arc::clone(&restarted);
        let second = StoreHandle::start(Box::new(engine.clone()), of_second).unwrap();
        for (at, type_url) in [OLD, NEW].into_iter().enumerate() {
            let mut clients = Wildcard::all(&restarted, type_url);
            let names: Vec<_> = after[at].iter().map(|payload| name_of(payload)).collect();
            read_all(&mut clients, &names, &format!("{what}, restarted"));
            assert!(clients.iter().all(|client| client.has() == after[at]), "{what}, restarted");
        }
        drop(second);
    }
}
