//! Replication between two nodes on loopback: the lag at 1,000 commits a second, and the CPU of a node for
//! an entry that it replicates, beside that for a commit of a client.
//!
//! `cargo bench -p xds-store-server --bench replicated [-- SECONDS]`. Nodes are processes of their own,
//! with redb in folders below the target folder, so each one has its own CPU time.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::store_client::StoreClient;
use xds_store::engine::{Engine, RedbEngine};
use xds_store::store::{Identity, Store};
use xds_store_server::{
    AccessControl, ApiConfig, Connecting, PeerConnection, PeerConnector, PeersConfig, StoreApi, StoreConfig,
    StoreHandle,
};

const TOKEN: &str = "the-token-of-a-bench";
const TYPE: &str = "type.googleapis.com/acme.Thing";
const RATE: u32 = 1_000;

fn main() {
    let words: Vec<_> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == "node") {
        return node(&words[1], Path::new(&words[2]), &words[3..]);
    }
    let seconds = words.first().map_or(10, |word| word.parse().unwrap());
    Runtime::new().unwrap().block_on(measure(seconds));
}

/// A node, until its input ends. It prints its address, and its CPU time for each line of input.
fn node(id: &str, file: &Path, peers: &[String]) {
    let runtime = Runtime::new().unwrap();
    let mut engine = RedbEngine::open(file).unwrap();
    let identity = Identity { node: id.into(), cluster: "bench".into(), ..Identity::default() };
    engine.commit(&Store::init(&identity)).unwrap();
    let (sender, addresses) = watch::channel(peers.to_vec());
    let mut config = StoreConfig::default();
    config.peers = Some(PeersConfig::new(addresses, Arc::new(Connector), runtime.handle().clone()));
    let store = StoreHandle::start(Box::new(engine), config).unwrap();
    let api = StoreApi::new(store, Arc::new(AccessControl::local(TOKEN)), ApiConfig::default());
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Server::builder()
            .add_routes(Routes::from(api.routes()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        address
    });
    println!("{address}");
    for line in std::io::stdin().lines() {
        match line.unwrap().strip_prefix("peer ") {
            Some(peer) => sender.send(vec![peer.to_owned()]).unwrap(),
            None => println!("{}", cpu_seconds()),
        }
    }
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // USER_HZ is 100 on all Linux systems.
    ticks as f64 / 100.0
}

#[derive(Debug)]
struct Connector;

impl PeerConnector for Connector {
    fn connect(&self, address: &str) -> Connecting {
        let endpoint = Channel::from_shared(address.to_owned()).unwrap();
        Box::pin(async move {
            let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
            Ok(PeerConnection { channel, authorization: Some(format!("Bearer {TOKEN}").parse().unwrap()) })
        })
    }
}

/// A process with a node.
struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Node {
    fn start(id: &str, folder: &Path, peers: &[&str]) -> Self {
        let file = folder.join(id);
        _ = fs::remove_file(&file);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["node", id]).arg(&file).args(peers).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut node = Self { child, input, output, address: String::new() };
        node.address = format!("http://{}", node.line());
        node
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn peer(&mut self, address: &str) {
        writeln!(self.input, "peer {address}").unwrap();
    }

    fn cpu(&mut self) -> f64 {
        writeln!(self.input, "cpu").unwrap();
        self.line().parse().unwrap()
    }

    async fn client(&self) -> StoreClient<Channel> {
        StoreClient::new(Channel::from_shared(self.address.clone()).unwrap().connect().await.unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn with_token<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    request
}

fn commit(number: usize) -> proto::CommitRequest {
    let key =
        proto::Key { type_url: TYPE.into(), name: format!("n{}", number % 10_000), when: String::new() };
    let content = proto::Content { payload: format!("{number:01024}").into(), ..Default::default() };
    let put = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
    let change = proto::Change { key: Some(key), act: Some(put), condition: None };
    proto::CommitRequest { changes: vec![change], ..Default::default() }
}

/// Commits at the rate; the answer is when each one was acknowledged.
async fn load(client: &StoreClient<Channel>, first: usize, count: usize) -> Vec<Instant> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut commits = JoinSet::new();
    // A commit of what is there already would change nothing.
    for number in first..first + count {
        ticks.tick().await;
        let mut client = client.clone();
        commits.spawn(async move {
            client.commit(with_token(commit(number))).await.unwrap();
            Instant::now()
        });
    }
    let mut acknowledged = commits.join_all().await;
    acknowledged.sort_unstable();
    acknowledged
}

/// When each revision of a node was seen by a watch.
async fn watched(node: &Node, count: usize) -> tokio::task::JoinHandle<Vec<Instant>> {
    let mut client = node.client().await.max_decoding_message_size(1 << 30);
    let request = proto::WatchRequest { without_payload: true, ..Default::default() };
    let mut stream = client.watch(with_token(request)).await.unwrap().into_inner();
    Handle::current().spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < count {
            let message = stream.message().await.unwrap().unwrap();
            if message.part() == proto::watch_response::Part::Changes {
                let now = Instant::now();
                seen.extend(message.events.iter().map(|_| now));
            }
        }
        seen
    })
}

async fn measure(seconds: usize) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replicated");
    fs::create_dir_all(&folder).unwrap();
    let count = seconds * RATE as usize;
    println!("| what | figure | target |\n| --- | --- | --- |");
    let pair = || {
        let mut a = Node::start("a", &folder, &[]);
        let b = Node::start("b", &folder, &[&a.address]);
        a.peer(&b.address);
        (a, b)
    };
    let (a, b) = pair();
    let client = a.client().await;
    // The first ones wait for the Hello.
    load(&client, 0, RATE as usize).await;
    let seen = watched(&b, count).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let acknowledged = load(&client, RATE as usize, count).await;
    let seen = seen.await.unwrap();
    let lag = |(one, other): (&Instant, &Instant)| other.saturating_duration_since(*one);
    let mut lags: Vec<_> = acknowledged.iter().zip(&seen).map(lag).collect();
    lags.sort_unstable();
    let (median, p99) = (lags[lags.len() / 2].as_millis(), lags[lags.len() * 99 / 100].as_millis());
    println!(
        "| lag of {count} commits at {RATE}/s to a watch of the other node, p50; p99 | {median} ms; {p99} ms | p99 <= 200 ms |"
    );
    drop((a, b));
    let (mut local, mut replicated) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut alone = Node::start("alone", &folder, &[]);
        let client = alone.client().await;
        let before = alone.cpu();
        load(&client, RATE as usize, count).await;
        local.push((alone.cpu() - before) / count as f64);
        drop(alone);
        let (a, mut b) = pair();
        let client = a.client().await;
        let before = b.cpu();
        load(&client, RATE as usize, count).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        replicated.push((b.cpu() - before) / count as f64);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[1] * 1e6
    };
    let (local, replicated) = (median(&mut local), median(&mut replicated));
    println!(
        "| CPU of an entry that is replicated; of a commit of a client | {replicated:.0} us; {local:.0} us: {:.2} | <= 1 |",
        replicated / local
    );
    fs::remove_dir_all(&folder).unwrap();
}
