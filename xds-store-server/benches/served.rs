//! Claims: a commit reaches the byte on an xDS stream in at most 2 times the time of a cache commit
//! of a program, without the sync; a start with 1,000,000 records of 1 KiB takes at most 1.5 times a
//! raw range with decoding plus a cache commit of the same; then the process has at most 1.3 times
//! the memory of the cache alone.
//!
//! Size: one delta stream over loopback for commits; RECORDS (default 1,000,000) clusters of 1 KiB in
//! a file of the target folder. Memory is the resident set of a process for each figure, as the
//! system reports it.
//!
//! The bench `store` of `xds-store` has the other rows.
//!
//!     cargo bench -p xds-store-server --bench served [-- RECORDS]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use prost::Message;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use xds_core::{Cache, Resource, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::type_url::CLUSTER;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{CommitLimits, Draft};
use xds_store::engine::{Engine, MemoryEngine, RedbEngine};
use xds_store::store::{Identity, Store};
use xds_store_server::{StoreConfig, StoreHandle};

fn main() {
    let words: Vec<_> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("served");
    match words.first().map(String::as_str) {
        Some("fill") => return fill(&file, words[1].parse().unwrap()),
        Some("start") => return start(&file),
        Some("raw") => return raw(&file),
        Some("cache") => return cache_alone(words[1].parse().unwrap()),
        _ => {}
    }
    let records = words.first().map_or(1_000_000, |word| word.parse().unwrap());
    println!("| what; beside | here | beside | ratio | target |\n| --- | --- | --- | --- | --- |");
    tokio::runtime::Runtime::new().unwrap().block_on(to_the_byte());
    _ = fs::remove_file(&file);
    fill(&file, records);
    let mut seconds = [const { Vec::new() }; 3];
    let mut memory = [0; 3];
    for _ in 0..3 {
        for (at, what) in ["start", "raw", "cache"].into_iter().enumerate() {
            let (took, bytes) = run(what, records);
            seconds[at].push(took);
            memory[at] = bytes;
        }
    }
    let [start, raw, cache] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[1]
    });
    let (sum, ratio) = (raw + cache, start / (raw + cache));
    println!(
        "| start with {records} records; raw range {raw:.2} s and cache commit {cache:.2} s | \
         {start:.2} s | {sum:.2} s | \
         {ratio:.2} | <= 1.5 |"
    );
    let ratio = memory[0] as f64 / memory[2] as f64;
    let [store, _, cache] = memory.map(|bytes| bytes >> 20);
    println!(
        "| memory at rest with {records} records; the cache alone | {store} MiB | {cache} MiB | {ratio:.2} | <= 1.3 |"
    );
    fs::remove_file(&file).unwrap();
}

/// Runs one measurement in a process of its own: its seconds and its resident bytes.
fn run(what: &str, records: usize) -> (f64, usize) {
    let output =
        Command::new(env::current_exe().unwrap()).args([what, &records.to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (seconds, bytes) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{what}: {text}"));
    (seconds.parse().unwrap(), bytes.parse().unwrap())
}

fn report(begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("{seconds} {}", kilobytes << 10);
}

fn start(file: &Path) {
    let begun = Instant::now();
    let engine = RedbEngine::open(file).unwrap();
    let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
    report(begun);
    drop(store);
}

fn raw(file: &Path) {
    let begun = Instant::now();
    let engine = RedbEngine::open(file).unwrap();
    let mut count = 0;
    let decode = &mut |_: &[u8], value: xds_store::engine::Value| {
        // Behind the checksum.
        let state = proto::RecordState::decode(value.bytes.slice(4..)).unwrap();
        count += usize::from(state.content.is_some());
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"v", b"w", decode).unwrap();
    assert!(count > 0);
    report(begun);
}

fn cache_alone(records: usize) {
    let payloads: Vec<_> = (0..records).map(|number| payload(number, 0)).collect();
    let begun = Instant::now();
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    for (number, payload) in payloads.into_iter().enumerate() {
        transaction.put(Resource::new(CLUSTER, &*name(number), payload).unwrap());
    }
    cache.commit(transaction).unwrap();
    report(begun);
}

fn fill(file: &Path, records: usize) {
    let mut engine = RedbEngine::open(file).unwrap();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for first in (0..records).step_by(10_000) {
        let changes = (first..records.min(first + 10_000)).map(|number| put(number, 0)).collect();
        runtime.block_on(store.commit(draft(changes))).unwrap();
    }
    runtime.block_on(store.stop());
}

/// From the call that commits to the message at a client.
async fn to_the_byte() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let mut config = StoreConfig::default();
    config.cache = Cache::new();
    let (from_store, plain) = (Arc::clone(&config.cache), Cache::new());
    let store = StoreHandle::start(Box::new(engine), config).unwrap();
    store.commit(draft(vec![put(0, 0)])).await.unwrap();
    commit(&plain, 0);
    let (mut of_store, mut of_cache) = (client(from_store).await, client(plain.clone()).await);
    let mut times = [Vec::new(), Vec::new()];
    for round in 1..2_000 {
        let draft = draft(vec![put(0, round)]);
        let begun = Instant::now();
        store.commit(draft).await.unwrap();
        of_store.next().await;
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        commit(&plain, round);
        of_cache.next().await;
        times[1].push(begun.elapsed());
    }
    let [of_store, of_cache] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    let ratio = of_store.as_secs_f64() / of_cache.as_secs_f64();
    println!(
        "| commit to the byte on an xDS stream, without the sync; a cache commit of a program | {of_store:.1?} | \
         {of_cache:.1?} | {ratio:.2} | <= 2 |"
    );
}

fn commit(cache: &Cache, round: u32) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(CLUSTER, &*name(0), payload(0, round)).unwrap());
    cache.commit(transaction).unwrap();
}

/// A delta client that has the first response.
struct Client {
    requests: tokio::sync::mpsc::Sender<DeltaDiscoveryRequest>,
    responses: tonic::Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    /// The next response, which is ACKed.
    async fn next(&mut self) {
        let response = self.responses.next().await.unwrap().unwrap();
        let type_url = CLUSTER.to_owned();
        let ack = DeltaDiscoveryRequest { type_url, response_nonce: response.nonce, ..Default::default() };
        self.requests.send(ack).await.unwrap();
    }
}

async fn client(cache: Arc<Cache>) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(xds_server::Server::new(cache).serve(listener, std::future::pending()));
    let endpoint = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap();
    let channel = endpoint.timeout(Duration::from_secs(600)).connect().await.unwrap();
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    let first = DeltaDiscoveryRequest {
        node: Some(Node { id: "bench".into(), ..Node::default() }),
        type_url: CLUSTER.to_owned(),
        resource_names_subscribe: vec!["*".into()],
        ..Default::default()
    };
    requests.send(first).await.unwrap();
    let responses = AggregatedDiscoveryServiceClient::new(channel)
        .delta_aggregated_resources(ReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    let mut client = Client { requests, responses };
    client.next().await;
    client
}

fn name(number: usize) -> String {
    format!("cluster-{number:07}")
}

/// A cluster with its name (field 1), and an unknown field of 1 KiB (field 1000).
fn payload(number: usize, round: u32) -> Vec<u8> {
    let name = name(number);
    let mut payload = vec![0x0a, u8::try_from(name.len()).unwrap()];
    payload.extend_from_slice(name.as_bytes());
    payload.extend_from_slice(&[0xc2, 0x3e, 0x80, 0x08]);
    payload.extend_from_slice(&round.to_be_bytes().repeat(256));
    payload
}

fn put(number: usize, round: u32) -> proto::Change {
    let key = proto::Key { type_url: CLUSTER.into(), name: name(number), when: String::new() };
    let content = proto::Content { payload: payload(number, round).into(), ..Default::default() };
    let put = proto::Put { content: Some(content), ..Default::default() };
    proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None }
}

fn draft(changes: Vec<proto::Change>) -> Draft {
    let request = proto::CommitRequest { changes, ..Default::default() };
    Draft::parse_within(request, "bench".into(), CommitLimits::default()).unwrap()
}
