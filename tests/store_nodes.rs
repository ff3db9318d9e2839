//! Nodes of a store, as processes: they are killed (SIGKILL), stopped for long and cut off while they
//! take commits. In the end they have one state, and no acknowledged commit is lost.
//!
//! `XDS_NODE_ROUNDS=100` sets how long.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use link::Link;
use running::{Running, Scratch, http, xds};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::Request;
use tonic::transport::Channel;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::store_client::StoreClient;

#[path = "store_nodes/behind.rs"]
mod behind;
#[path = "binary/link.rs"]
mod link;
#[path = "../xds-store-server/tests/api/offline.rs"]
mod offline;
#[path = "store_nodes/regions.rs"]
mod regions;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;
#[path = "store_nodes/tls.rs"]
mod tls;
#[path = "store_nodes/writers.rs"]
mod writers;

/// A node, whose process may run.
struct Node {
    scratch: Scratch,
    admin: SocketAddr,
    /// How others reach it.
    link: Link,
    process: Option<Running>,
}

impl Node {
    async fn new(test: &str, name: &str) -> Self {
        let admin = free_address();
        let scratch = Scratch::new(&format!("store-nodes-{test}-{name}"));
        fs::write(scratch.path("tokens"), "node the-token-of-the-nodes\n").unwrap();
        assert!(Command::new("chmod").args(["600", &path(&scratch, "tokens")]).status().unwrap().success());
        fs::write(scratch.path("token"), "the-token-of-the-nodes\n").unwrap();
        let link = Link::new().await;
        link.lead_to(admin.port());
        Self { scratch, admin, link, process: None }
    }

    fn path(&self, name: &str) -> String {
        path(&self.scratch, name)
    }

    fn url(&self) -> String {
        format!("http://{}", self.link.address)
    }

    /// Makes the store: of a new cluster, or of that of a node that runs.
    fn init(&self, join: Option<&Self>, more: &[&str]) {
        let (store, token) = (self.path("store"), self.path("token"));
        let mut command = xds();
        command.args(["store", "init", &store]).args(more);
        if let Some(other) = join {
            command.args(["--join", &other.url(), "--peer-token-file", &token]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn start(&mut self, peers: &[String], more: &[&str]) {
        let (store, tokens, token) = (self.path("store"), self.path("tokens"), self.path("token"));
        let admin = self.admin.to_string();
        let mut arguments =
            vec!["serve", "--store", &store, "--token-file", &tokens, "--peer-token-file", &token];
        arguments.extend(["--listen", "127.0.0.1:0", "--admin", &admin, "--pull-interval", "1s"]);
        arguments.extend(peers.iter().flat_map(|peer| ["--peer", peer]));
        arguments.extend(more);
        self.process = Some(Running::start_with(&arguments));
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// SR24: waits for the first snapshot.
    async fn accepts_commits(&self) {
        let (start, admin) = (Instant::now(), self.admin.to_string());
        let request = format!("GET /readyz/store HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        loop {
            let answer = http(&admin, &request);
            if answer.starts_with("HTTP/1.1 200") {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn api(&self) -> Api {
        Api::connect(&self.path("store")).await
    }

    /// The records of each name: revision and number.
    async fn records(&self) -> BTreeMap<String, (String, u64)> {
        let mut api = self.api().await;
        let request = api.request(proto::ListRequest { page_size: 10_000, ..Default::default() });
        let page = api.client.list(request).await.unwrap().into_inner();
        assert!(page.next_page_token.is_empty());
        let of_record = |record: proto::Record| {
            let number = String::from_utf8(record.content.unwrap().payload.to_vec()).unwrap();
            (record.key.unwrap().name, (record.revision, number.parse().unwrap()))
        };
        page.records.into_iter().map(of_record).collect()
    }

    fn peers(&self) -> (Option<i32>, Value) {
        let arguments = ["store", "peers", "--format", "json", "--store", &self.path("store")];
        let output = xds().args(arguments).output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
    }
}

/// An address that is free while its node is down, too: the system gives no such port to a connection.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 20_000 + (process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed)) % 7_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", u16::try_from(port).unwrap())) {
            return listener.local_addr().unwrap();
        }
    }
}

fn path(scratch: &Scratch, name: &str) -> String {
    scratch.path(name).to_str().unwrap().to_owned()
}

/// A client with the token that the server wrote for this machine.
#[derive(Clone)]
struct Api {
    client: StoreClient<Channel>,
    token: String,
}

impl Api {
    async fn connect(store: &str) -> Self {
        let file = fs::read_to_string(Path::new(store).join("server.json")).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        let address = format!("http://{}", file["address"].as_str().unwrap());
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        let token = format!("Bearer {}", file["token"].as_str().unwrap());
        Self { client: StoreClient::new(channel), token }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.parse().unwrap());
        request.set_timeout(Duration::from_secs(20));
        request
    }

    async fn put(&mut self, name: &str, number: u64, ack_peers: u32) -> Result<(), tonic::Status> {
        let content = proto::Content { payload: number.to_string().into(), ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        let key = proto::Key { type_url: TYPE.into(), name: name.into(), when: String::new() };
        let act = Some(proto::change::Act::Put(put));
        let change = proto::Change { key: Some(key), act, condition: None };
        let request = proto::CommitRequest { changes: vec![change], ack_peers, ..Default::default() };
        let request = self.request(request);
        self.client.commit(request).await.map(drop)
    }
}

const TYPE: &str = "type.googleapis.com/acme.Thing";

/// Three nodes that list each other, and themselves (SR57).
async fn cluster(test: &str) -> Vec<Node> {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::new(test, name).await);
    }
    let urls: Vec<_> = nodes.iter().map(Node::url).collect();
    nodes[0].init(None, &[]);
    nodes[0].start(&urls, &[]);
    for at in 1..nodes.len() {
        nodes[at].init(Some(&nodes[0]), &[]);
        nodes[at].start(&urls, &[]);
        nodes[at].accepts_commits().await;
    }
    nodes
}

/// Waits until all have the same records, and answers them.
async fn converged(nodes: &[Node]) -> BTreeMap<String, (String, u64)> {
    let start = Instant::now();
    loop {
        let first = nodes[0].records().await;
        let mut is_equal = true;
        for other in &nodes[1..] {
            is_equal &= other.records().await == first;
        }
        if is_equal {
            return first;
        }
        assert!(start.elapsed() < PATIENCE, "they differ; {:#}", nodes[0].peers().1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Commits at a node until it fails, and reports what was acknowledged.
fn load(api: &Api, node: usize, first: u64, sender: &mpsc::UnboundedSender<(String, u64)>) {
    let (mut api, sender) = (api.clone(), sender.clone());
    tokio::spawn(async move {
        for number in first.. {
            // A record of its own, and one that all nodes write.
            let name = if number % 5 == 0 { "shared".to_owned() } else { format!("{node}/{}", number % 20) };
            if api.put(&name, number, 0).await.is_err() || sender.send((name, number)).is_err() {
                return;
            }
        }
    });
}

#[test]
fn sr9_nodes_that_are_killed_stopped_and_cut_off_end_in_one_state_and_lose_no_acknowledged_commit() {
    let rounds = env::var("XDS_NODE_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    Runtime::new().unwrap().block_on(async {
        let mut nodes = cluster("load").await;
        let urls: Vec<_> = nodes.iter().map(Node::url).collect();
        let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
        for round in 0..rounds {
            let (sender, mut answers) = mpsc::unbounded_channel();
            for (at, node) in nodes.iter().enumerate() {
                load(&node.api().await, at, 1 + round as u64 * 1_000_000, &sender);
            }
            drop(sender);
            tokio::time::sleep(Duration::from_millis(300)).await;
            let victim = round % nodes.len();
            match round % 4 {
                0 | 2 => nodes[victim].kill(),
                // Others do not reach it; it reaches them.
                1 => nodes[victim].link.cut(true),
                _ => nodes[victim].process.as_ref().unwrap().signal("-STOP"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            for (at, node) in nodes.iter_mut().enumerate().filter(|(at, _)| round % 4 != 1 || *at != victim) {
                // All of them are killed sooner or later, with commits on the way.
                if at != victim {
                    node.kill();
                }
            }
            match round % 4 {
                0 | 2 => {}
                1 => nodes[victim].kill(),
                _ => {
                    nodes[victim].process.as_ref().unwrap().signal("-CONT");
                    nodes[victim].kill();
                }
            }
            while let Some((name, number)) = answers.recv().await {
                let known = acknowledged.entry(name).or_default();
                *known = number.max(*known);
            }
            for node in &mut nodes {
                node.link.cut(false);
                node.start(&urls, &[]);
            }
            let records = converged(&nodes).await;
            for (name, number) in &acknowledged {
                let (_, found) = &records[name];
                // What all nodes write may have the commit of another node that was not answered.
                assert!(found >= number || name == "shared", "round {round}: {name} {number} {found}");
            }
            assert!(acknowledged.len() > 20, "round {round}: too few commits");
        }
        for node in &mut nodes {
            node.kill();
            let check = xds().args(["store", "check", &node.path("store")]).output().unwrap();
            assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        }
    });
}

/// Gives a node the store of another one: a copy of its folder.
fn copy_store(from: &Node, to: &Node) {
    fs::create_dir_all(to.scratch.path("store")).unwrap();
    for entry in fs::read_dir(from.scratch.path("store")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.scratch.path("store").join(entry.file_name())).unwrap();
    }
}

#[test]
fn sr28_sr29_sr31_copies_of_a_folder_and_an_old_one_take_new_ids_and_no_acknowledged_commit_is_lost() {
    Runtime::new().unwrap().block_on(async {
        let mut nodes = cluster("copies").await;
        let mut urls: Vec<_> = nodes.iter().map(Node::url).collect();
        let put = async |node: &Node, name: &str, number| {
            let (mut api, start) = (node.api().await, Instant::now());
            while let Err(status) = api.put(name, number, 0).await {
                assert!(start.elapsed() < PATIENCE, "{status:?}");
            }
        };
        for (number, node) in (1..).zip(&nodes) {
            put(node, &format!("early/{number}"), number).await;
        }
        converged(&nodes).await;
        // A copy of the folder of C, as it was then.
        nodes[2].kill();
        let mut copy = Node::new("copies", "d").await;
        let old = Node::new("copies", "old").await;
        copy_store(&nodes[2], &copy);
        copy_store(&nodes[2], &old);
        urls.push(copy.url());
        nodes[2].start(&urls, &[]);
        put(&nodes[2], "late/of-c", 10).await;
        // Its twin begins with another commit of the same number.
        copy.start(&urls, &[]);
        put(&copy, "late/of-d", 11).await;
        nodes.push(copy);
        for node in &mut nodes[..2] {
            node.kill();
            node.start(&urls, &[]);
        }
        let records = converged(&nodes).await;
        let expected = ["early/1", "early/2", "early/3", "late/of-c", "late/of-d"];
        assert_eq!(records.keys().map(String::as_str).collect::<Vec<_>>(), expected);
        let id = |node: &Node| node.peers().1["node"].as_str().unwrap().to_owned();
        assert_ne!(id(&nodes[2]), id(&nodes[3]));
        // The folder of C comes back from an old copy.
        nodes[2].kill();
        fs::remove_dir_all(nodes[2].scratch.path("store")).unwrap();
        copy_store(&old, &nodes[2]);
        nodes[2].start(&urls, &[]);
        put(&nodes[2], "late/of-old", 12).await;
        let records = converged(&nodes).await;
        assert_eq!(records.len(), 6);
        for (at, node) in nodes.iter().enumerate() {
            let others = nodes[..at].iter().all(|other| id(other) != id(node));
            assert!(others, "two nodes have one id");
        }
        for node in &mut nodes {
            node.kill();
            let check = xds().args(["store", "check", &node.path("store")]).output().unwrap();
            assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        }
    });
}

#[test]
fn sr17_a_commit_that_two_peers_have_survives_the_loss_of_its_node() {
    Runtime::new().unwrap().block_on(async {
        let mut nodes = cluster("ack").await;
        let mut api = nodes[0].api().await;
        let start = Instant::now();
        while let Err(status) = api.put("a", 1, 2).await {
            assert!(start.elapsed() < PATIENCE, "{status:?}");
        }
        nodes[0].kill();
        for node in &nodes[1..] {
            assert_eq!(node.records().await["a"].1, 1);
        }
        // The peers say that it is down, and which one.
        let url = nodes[0].url();
        let start = Instant::now();
        loop {
            let (code, report) = nodes[1].peers();
            let of_a = report["peers"].as_array().unwrap().iter().find(|peer| peer["address"] == *url);
            if code == Some(1) && of_a.unwrap()["is_up"] == false {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{report:#}");
        }
        let metric = format!("xds_store_peer_up{{peer=\"{url}\"}}");
        let process = nodes[1].process.as_ref().unwrap();
        process.until_metric(&metric, 0.0);
        // The admin page shows the same.
        let request =
            format!("GET /api/store HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", process.admin);
        let answer = http(&process.admin, &request);
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let shown = answer["peers"].as_array().unwrap();
        let of_a = shown.iter().find(|peer| peer["address"] == *url).unwrap();
        assert_eq!(
            (shown.len(), &of_a["is_up"], &of_a["entries_behind"]),
            (2, &false.into(), &0.into()),
            "{of_a}"
        );
        assert!(
            of_a["node"].is_string() && of_a["error"].is_string() && of_a["heard_at_ms"].as_u64() > Some(0),
            "{of_a}"
        );
    });
}

#[test]
fn sr33_a_node_is_forgotten_once_it_is_down_and_is_refused_when_it_comes_back() {
    Runtime::new().unwrap().block_on(async {
        let mut nodes = cluster("forget").await;
        let urls: Vec<_> = nodes.iter().map(Node::url).collect();
        let mut api = nodes[0].api().await;
        let start = Instant::now();
        while let Err(status) = api.put("a", 1, 2).await {
            assert!(start.elapsed() < PATIENCE, "{status:?}");
        }
        while nodes[0].peers().0 != Some(0) {
            assert!(start.elapsed() < PATIENCE, "{:#}", nodes[0].peers().1);
        }
        let retired = nodes[2].peers().1["node"].as_str().unwrap().to_owned();
        let store = nodes[0].path("store");
        let forget = |node: &str, more: &[&str]| {
            let output =
                xds().args(["store", "forget", node, "--store", &store]).args(more).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            (output.status.code(), text)
        };
        let (code, text) = forget(&retired, &[]);
        assert!(code == Some(4) && text.contains("answers"), "{code:?} {text}");
        assert_eq!(forget(&retired[..7], &[]).0, Some(2));
        assert_eq!(forget("0123456789", &[]).0, Some(3));
        nodes[2].kill();
        let start = Instant::now();
        // The beginning that `xds store peers` shows is enough.
        while forget(&retired[..8], &[])
            != (Some(0), format!("{retired} is forgotten; its last known commit is 0\n"))
        {
            assert!(start.elapsed() < PATIENCE, "{:?}", forget(&retired[..8], &[]));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The other name of the command, for a node that is forgotten already.
        let arguments = ["store", "peers", "forget", &retired, "--format", "json", "--store", &store];
        let output = xds().args(arguments).output().unwrap();
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(done, serde_json::json!({ "node": retired, "counter": 0 }));

        nodes[2].start(&urls, &[]);
        let start = Instant::now();
        while !nodes[2].peers().1["peers"]
            .as_array()
            .unwrap()
            .iter()
            .any(|peer| peer["error"].to_string().contains("forg"))
        {
            assert!(start.elapsed() < PATIENCE, "{:#}", nodes[2].peers().1);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}
