//! Hosts with a node each, and what a test does with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;
use turmoil::Sim;
use turmoil::net::TcpListener;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Refused;
use xds_store::engine::{Batch, Engine, MemoryEngine};
use xds_store::read::{Filter, Knows, ListQuery, Reads, RecordVersion};
use xds_store::record::RecordRevision;
use xds_store::store::{Identity, Store};
use xds_store_server::{
    AccessControl, Acked, Acks, ApiConfig, PeersConfig, StoreApi, StoreConfig, StoreHandle,
};

use crate::wire::{Connector, accepted};

/// Nodes `a`, `b`, .., each at a host of its name.
///
/// The stores have threads of their own, which run in real time, so the network goes as fast as that.
pub(crate) struct World {
    pub(crate) sim: Sim<'static>,
    nodes: Vec<Node>,
    runtime: Runtime,
}

struct Node {
    store: StoreHandle,
    peers: watch::Sender<Vec<String>>,
    token: Arc<Mutex<String>>,
}

impl World {
    pub(crate) fn new(count: usize) -> Self {
        Self::with(count, Store::init)
    }

    /// The last node has no snapshot yet.
    pub(crate) fn joining(count: usize) -> Self {
        Self::with(count, Store::init_joining)
    }

    fn with(count: usize, last: fn(&Identity) -> Batch) -> Self {
        let mut builder = turmoil::Builder::new();
        builder
            .tick_duration(TICK)
            .simulation_duration(Duration::from_secs(600))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(5));
        let mut sim = builder.build();
        let nodes = NAMES[..count].iter().map(|name| {
            let (started, store) = mpsc::channel();
            let (peers, addresses) = watch::channel(Vec::new());
            let token = Arc::new(Mutex::new(TOKEN.to_owned()));
            let connector = Arc::new(Connector(Arc::clone(&token)));
            let init = if *name == NAMES[count - 1] { last } else { Store::init };
            sim.host(*name, move || {
                let (started, addresses) = (started.clone(), addresses.clone());
                serve((name, init), addresses, Arc::clone(&connector), started)
            });
            (store, peers, token)
        });
        let nodes: Vec<_> = nodes.collect();
        sim.step().unwrap();
        let of = |(store, peers, token): (mpsc::Receiver<_>, _, _)| Node {
            store: store.recv().unwrap(),
            peers,
            token,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { sim, nodes: nodes.into_iter().map(of).collect(), runtime }
    }

    /// The peers of a node.
    pub(crate) fn dial(&self, node: usize, peers: &[&str]) {
        let addresses = peers.iter().map(|peer| format!("http://{peer}:{PORT}")).collect();
        self.nodes[node].peers.send(addresses).unwrap();
    }

    /// Each node has all others as peers.
    pub(crate) fn dial_all(&self) {
        for node in 0..self.nodes.len() {
            let others: Vec<_> = (0..self.nodes.len()).filter(|other| *other != node).collect();
            self.dial(node, &others.iter().map(|other| NAMES[*other]).collect::<Vec<_>>());
        }
    }

    pub(crate) fn set_token(&self, node: usize, token: &str) {
        token.clone_into(&mut self.nodes[node].token.lock().unwrap());
    }

    /// Lets this much time pass.
    pub(crate) fn run(&mut self, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.step();
        }
    }

    fn step(&mut self) {
        let began = Instant::now();
        self.sim.step().unwrap();
        // The stores run meanwhile.
        std::thread::sleep(TICK.saturating_sub(began.elapsed()));
    }

    /// Runs until this is so.
    pub(crate) fn until(&mut self, what: &str, is_it: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_it(self) {
            assert!(began.elapsed() < WAIT, "waited in vain: {what}");
            self.run(Duration::from_millis(10));
        }
    }

    pub(crate) fn commit(&self, node: usize, name: &str, payload: &str) {
        self.try_commit(node, name, payload).unwrap();
    }

    pub(crate) fn try_commit(&self, node: usize, name: &str, payload: &str) -> Result<(), Refused> {
        let store = &self.nodes[node].store;
        let draft = store.draft(put(name, payload), "token:test".into()).unwrap();
        self.runtime.block_on(store.commit(draft)).map(drop)
    }

    /// Commits, and waits for one peer.
    pub(crate) fn commit_acked(
        &mut self,
        node: usize,
        name: &str,
        payload: &str,
        timeout: Duration,
    ) -> Acked {
        let store = self.nodes[node].store.clone();
        let draft = store.draft(put(name, payload), "token:test".into()).unwrap();
        let acks = Acks { peers: 1, timeout };
        let commit = self.runtime.spawn(async move { store.commit_acked(draft, acks).await });
        while !commit.is_finished() {
            self.step();
            self.runtime.block_on(tokio::task::yield_now());
        }
        self.runtime.block_on(commit).unwrap().unwrap().1
    }

    /// The revision of each record of a node.
    pub(crate) fn records(&self, node: usize) -> BTreeMap<String, String> {
        let view = self.nodes[node].store.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let (filter, knows) = (Filter::parse(None).unwrap(), Knows::default());
        let query = ListQuery {
            filter: &filter,
            at: reads.head().revision,
            now: i64::MAX,
            may_read: &|_| true,
            knows: &knows,
            after: None,
            taken: 0,
            limit: usize::MAX,
            limit_bytes: usize::MAX,
            scan_limit: usize::MAX,
        };
        let page = reads.list(query).unwrap();
        let named = |record: RecordVersion| {
            (record.key.name().to_string(), RecordRevision::of(&record.state).to_string())
        };
        page.records.into_iter().map(named).collect()
    }

    /// Whether all nodes have the same records, and this many.
    pub(crate) fn agree(&self, count: usize) -> bool {
        let first = self.records(0);
        first.len() == count && (1..self.nodes.len()).all(|node| self.records(node) == first)
    }

    pub(crate) fn peers(&self, node: usize) -> Vec<proto::PeerStatus> {
        self.nodes[node].store.peers().unwrap().peers.clone()
    }

    /// Whether each node reaches all its peers.
    pub(crate) fn is_up(&self) -> bool {
        (0..self.nodes.len()).all(|node| {
            let peers = self.peers(node);
            !peers.is_empty() && peers.iter().all(|peer| peer.is_up)
        })
    }
}

/// One host: its store, and the service for peers.
async fn serve(
    (name, init): (&str, fn(&Identity) -> Batch),
    addresses: watch::Receiver<Vec<String>>,
    connector: Arc<Connector>,
    started: mpsc::Sender<StoreHandle>,
) -> turmoil::Result {
    let mut engine = MemoryEngine::default();
    let identity = Identity { node: name.into(), cluster: "c".into(), ..Identity::default() };
    engine.commit(&init(&identity)).unwrap();
    let mut config = StoreConfig::default();
    let mut peers = PeersConfig::new(addresses, connector, Handle::current());
    peers.pull_interval = PULL_INTERVAL;
    config.peers = Some(peers);
    let store = StoreHandle::start(Box::new(engine), config)?;
    started.send(store.clone())?;
    let api = StoreApi::new(store, Arc::new(AccessControl::local(TOKEN)), ApiConfig::default());
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let server = Server::builder().add_routes(Routes::from(api.routes()));
    Ok(server.serve_with_incoming(accepted(listener)).await?)
}

fn put(name: &str, payload: &str) -> proto::CommitRequest {
    let key = proto::Key {
        type_url: "type.googleapis.com/acme.Thing".into(),
        name: name.into(),
        when: String::new(),
    };
    let content = proto::Content { payload: payload.to_owned().into(), ..Default::default() };
    let put = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
    let change = proto::Change { key: Some(key), act: Some(put), condition: None };
    proto::CommitRequest { changes: vec![change], ..Default::default() }
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const PORT: u16 = 18_001;
pub(crate) const TOKEN: &str = "the-token-of-a-test";
pub(crate) const PULL_INTERVAL: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_secs(60);
