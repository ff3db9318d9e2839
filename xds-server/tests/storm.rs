//! Ten thousand clients that connect and disconnect in all wrong ways must leave nothing behind.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use xds_core::{Cache, Resource, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};
use xds_server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_clients_leaves_nothing_behind() {
    let cache = Cache::new();
    commit(&cache, 0);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Server::new(Arc::clone(&cache)).serve(listener, std::future::pending()));
    let mut seen = well_behaved(address).await;
    seen.wait_for(|content| *content == Some(0)).await.unwrap();
    // References of the server, of the stream that stays, and of its connection.
    let before = State::of(&cache);

    let mut memory = Vec::new();
    for wave in 1..=WAVES {
        let (end, ended) = watch::channel(false);
        let mut clients = JoinSet::new();
        for number in 0..CONNECTIONS_IN_A_WAVE {
            let first = (wave * CONNECTIONS_IN_A_WAVE + number) * STREAMS_OF_A_CONNECTION;
            let manner = MANNERS[number % MANNERS.len()];
            clients.spawn(connection(address, manner, first, ended.clone()));
            if number % 20 == 0 {
                commit(&cache, wave * CONNECTIONS_IN_A_WAVE + number);
            }
        }
        commit(&cache, wave * 1_000_000);
        // The well-behaved client is served beside the clients that stay until they are stopped.
        within("the push", seen.wait_for(|content| *content == Some(wave * 1_000_000))).await.unwrap();
        within("the clients that stay", async {
            while cache.subscription_counts().streams < before.watched.streams + STAYING_STREAMS {
                tokio::time::sleep(TICK).await;
            }
        })
        .await;
        end.send(true).unwrap();
        within("all clients to be gone", async {
            while clients.join_next().await.transpose().unwrap().is_some() {}
        })
        .await;
        before.regained(&cache).await;
        memory.push(resident_bytes());
    }
    let (warm, last) = (memory[WARM_UP_WAVES - 1], memory[WAVES - 1]);
    println!(
        "resident after each wave, in KiB: {:?}",
        memory.iter().map(|bytes| bytes / 1024).collect::<Vec<_>>()
    );
    assert!(last < warm + GROWTH_LIMIT_BYTES, "{} KiB more than when warm", (last - warm) / 1024);

    // It is not one of the streams with a reset connection, and it still gets every update.
    commit(&cache, 42);
    within("the last push", seen.wait_for(|content| *content == Some(42))).await.unwrap();
}

/// The resources of a server that a client could leak.
#[derive(Debug)]
struct State {
    tasks: usize,
    /// Each stream holds the cache, and so does its membership in the group of its client.
    holders: usize,
    watched: xds_core::SubscriptionCounts,
}

impl State {
    fn of(cache: &Arc<Cache>) -> Self {
        let tasks = Handle::current().metrics().num_alive_tasks();
        Self { tasks, holders: Arc::strong_count(cache), watched: cache.subscription_counts() }
    }

    async fn regained(&self, cache: &Arc<Cache>) {
        let start = Instant::now();
        loop {
            let now = Self::of(cache);
            // At the start there are tasks that connect, which end later.
            if now.tasks <= self.tasks && (now.holders, now.watched) == (self.holders, self.watched) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{now:?} is left, and {self:?} was there before");
            tokio::time::sleep(TICK).await;
        }
    }
}

/// How the clients of one connection behave.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// It gets responses and stays until the storm ends.
    Good,
    /// It disconnects before a response can arrive.
    Hasty,
    /// It disconnects after a part of a response.
    MidResponse,
    /// It never reads, so responses wait for flow control until it disconnects.
    Unread,
    /// It resets each stream, and its connection stays for a while.
    ResetStreams,
    /// It resets the connection, with bytes in flight.
    ResetConnection,
    /// It disconnects inside a frame.
    MidFrame,
}

const MANNERS: [Manner; 7] = [
    Manner::Good,
    Manner::Hasty,
    Manner::MidResponse,
    Manner::Unread,
    Manner::ResetStreams,
    Manner::ResetConnection,
    Manner::MidFrame,
];

/// The streams of one connection; each is a client of its own.
async fn connection(address: SocketAddr, manner: Manner, first: usize, mut ended: watch::Receiver<bool>) {
    let clients = first..first + STREAMS_OF_A_CONNECTION;
    match manner {
        Manner::Good => good(address, clients, ended).await,
        _ => bad(address, manner, clients, &mut ended).await.unwrap(),
    }
}

async fn good(address: SocketAddr, clients: std::ops::Range<usize>, mut ended: watch::Receiver<bool>) {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut streams = Vec::new();
    for number in clients {
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        if number % 2 == 0 {
            let (sender, requests) = mpsc::channel(4);
            sender.send(sotw_request(number)).await.unwrap();
            let responses = client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
            let mut responses = responses.into_inner();
            assert!(!responses.message().await.unwrap().unwrap().resources.is_empty());
            streams.push((Some((sender, responses)), None));
        } else {
            let (sender, requests) = mpsc::channel(4);
            sender.send(delta_request(number)).await.unwrap();
            let responses = client.delta_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
            let mut responses = responses.into_inner();
            assert!(!responses.message().await.unwrap().unwrap().resources.is_empty());
            streams.push((None, Some((sender, responses))));
        }
    }
    ended.wait_for(|ended| *ended).await.unwrap();
}

async fn bad(
    address: SocketAddr,
    manner: Manner,
    clients: std::ops::Range<usize>,
    ended: &mut watch::Receiver<bool>,
) -> io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut frames, SETTINGS, 0, 0, &[]);
    let mut ids = Vec::new();
    for (at, number) in clients.enumerate() {
        let id = 1 + 2 * u32::try_from(at).unwrap();
        let (method, request) = if number % 2 == 0 {
            ("StreamAggregatedResources", sotw_request(number).encode_to_vec())
        } else {
            ("DeltaAggregatedResources", delta_request(number).encode_to_vec())
        };
        frame(&mut frames, HEADERS, END_HEADERS, id, &headers(method));
        let mut message = vec![0];
        message.extend_from_slice(&u32::try_from(request.len()).unwrap().to_be_bytes());
        message.extend_from_slice(&request);
        frame(&mut frames, DATA, 0, id, &message);
        ids.push(id);
    }
    if matches!(manner, Manner::MidFrame) {
        frames.truncate(frames.len() - 100);
    }
    socket.write_all(&frames).await?;
    match manner {
        Manner::Good | Manner::Hasty | Manner::MidFrame => {}
        Manner::MidResponse => {
            let mut part = [0; 10_000];
            socket.read_exact(&mut part).await?;
        }
        Manner::Unread => _ = ended.wait_for(|ended| *ended).await,
        Manner::ResetStreams => {
            let mut part = [0; 1_000];
            socket.read_exact(&mut part).await?;
            let mut resets = Vec::new();
            for id in ids {
                frame(&mut resets, RST_STREAM, 0, id, &CANCEL.to_be_bytes());
            }
            socket.write_all(&resets).await?;
            _ = ended.wait_for(|ended| *ended).await;
        }
        Manner::ResetConnection => {
            let mut part = [0; 1_000];
            socket.read_exact(&mut part).await?;
            socket.set_zero_linger()?;
        }
    }
    Ok(())
}

/// A frame of HTTP/2.
fn frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    into.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    into.extend_from_slice(&[kind, flags]);
    into.extend_from_slice(&stream.to_be_bytes());
    into.extend_from_slice(payload);
}

/// The headers of a call, from the static table and as literals.
fn headers(method: &str) -> Vec<u8> {
    let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}");
    // `:method: POST`, `:scheme: http`, then `:path`, `:authority`, `content-type` and `te` with
    // values.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (&[0x04][..], path.as_str()),
        (&[0x01], "localhost"),
        (&[0x0f, 0x10], "application/grpc"),
        (b"\x00\x02te", "trailers"),
    ] {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// All clusters, or endpoints that no other client subscribes to.
fn wanted(number: usize) -> (String, Vec<String>) {
    match number % 4 {
        0 | 1 => (CLUSTER.into(), Vec::new()),
        _ => (CLUSTER_LOAD_ASSIGNMENT.into(), vec!["shared".into(), format!("own-{number}")]),
    }
}

fn sotw_request(number: usize) -> DiscoveryRequest {
    let (type_url, resource_names) = wanted(number);
    DiscoveryRequest { type_url, resource_names, node: Some(node(number)), ..DiscoveryRequest::default() }
}

/// Two streams each belong to the same client.
fn delta_request(number: usize) -> DeltaDiscoveryRequest {
    let (type_url, resource_names_subscribe) = wanted(number);
    let node = Some(node(number / 4 * 4 + 1));
    DeltaDiscoveryRequest { type_url, resource_names_subscribe, node, ..DeltaDiscoveryRequest::default() }
}

/// Each client has its own name, which is so long that a leak of names is visible.
fn node(number: usize) -> Node {
    Node { id: format!("{number:0>4096}"), ..Node::default() }
}

/// A client that reads and ACKs until the end of the test; it publishes the newest content that it
/// has.
async fn well_behaved(address: SocketAddr) -> watch::Receiver<Option<usize>> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let (sender, requests) = mpsc::channel(4);
    sender.send(sotw_request(0)).await.unwrap();
    let responses = client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
    let mut responses = responses.into_inner();
    let (seen, receiver) = watch::channel(None);
    tokio::spawn(async move {
        while let Ok(Some(response)) = responses.message().await {
            let payload = Payload::decode(response.resources[0].value.clone()).unwrap();
            seen.send_replace(Some(usize::try_from(payload.content).unwrap()));
            let (version_info, response_nonce) = (response.version_info, response.nonce);
            _ = sender.send(DiscoveryRequest { version_info, response_nonce, ..sotw_request(0) }).await;
        }
    });
    receiver
}

/// A message with the name in field 1.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "100")]
    content: u64,
    #[prost(bytes = "vec", tag = "101")]
    padding: Vec<u8>,
}

/// Changes all resources. All clusters together do not fit into the window of a stream whose client
/// does not read.
fn commit(cache: &Cache, content: usize) {
    let mut transaction = Transaction::new();
    let clusters = (0..CLUSTERS).map(|number| (CLUSTER, format!("cluster-{number}")));
    for (type_url, name) in clusters.chain([(CLUSTER_LOAD_ASSIGNMENT, "shared".into())]) {
        let content = u64::try_from(content).unwrap();
        let payload = Payload { name: name.clone(), content, padding: vec![0; PADDING_BYTES] };
        let payload = payload.encode_to_vec();
        transaction.put(Resource::new(type_url, name.as_str(), payload).unwrap());
    }
    cache.commit(transaction).unwrap();
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Zero on systems without this file.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}

/// 20 times 100 connections with 5 streams each.
const WAVES: usize = 20;
const CONNECTIONS_IN_A_WAVE: usize = 100;
const STREAMS_OF_A_CONNECTION: usize = 5;

/// After these, the allocator has taken the memory that it keeps.
const WARM_UP_WAVES: usize = 5;

/// A leak of client names after the warm-up would grow by 20 MB.
const GROWTH_LIMIT_BYTES: usize = 12 << 20;

/// `Good` and `Unread` stay: there are 15 and 14 connections in a wave.
const STAYING_STREAMS: usize = (15 + 14) * STREAMS_OF_A_CONNECTION;

const PATIENCE: Duration = Duration::from_secs(20);

/// The interval of polling for a state without an event.
const TICK: Duration = Duration::from_millis(2);

const CLUSTERS: usize = 10;
const PADDING_BYTES: usize = 10_000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;
const CANCEL: u32 = 8;
