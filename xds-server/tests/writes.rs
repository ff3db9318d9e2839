//! The writes of the server to a connection, and their memory: only commits and ACKs cause writes.
//!
//! Client, server and transport are tasks of one thread, and paused time advances only when all of
//! them wait. So the tests can check at once that nothing more is written: see [`at_rest`].
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use common::{ask, next, node, put};
use http::Uri;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::codegen::Service;
use tonic::transport::Endpoint;
use xds_core::{Cache, Resource, Transaction};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_proto::google::rpc::Status;
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER};
use xds_server::{Connected, Server};

#[tokio::test(start_paused = true)]
async fn delta_a_commit_is_one_write_and_its_ack_none() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let mut stream = Delta::open(&Memory::serve(&cache)).await;
    stream.follow(CLUSTER, &["a"]).await;
    for content in contents() {
        put(&cache, CLUSTER, "a", &content);
        let Counts { writes, flushes, .. } = stream.traffic.at_rest().await;
        assert_eq!(writes.len(), 1, "{} bytes: {writes:?}", content.len());
        assert!(flushes <= 2, "after the frame, and when there is no other");
        let response = next(&mut stream.responses).await.unwrap().unwrap();
        stream.ack(&response).await;
        assert_eq!(stream.traffic.at_rest().await.writes, NO_WRITES, "the ACK");
    }
}

#[tokio::test(start_paused = true)]
async fn sotw_a_commit_is_one_write_and_its_ack_none() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let mut stream = Sotw::open(&Memory::serve(&cache)).await;
    stream.follow_cluster().await;
    for content in contents() {
        put(&cache, CLUSTER, "a", &content);
        let Counts { writes, flushes, .. } = stream.traffic.at_rest().await;
        assert_eq!(writes.len(), 1, "{} bytes: {writes:?}", content.len());
        assert!(flushes <= 2, "after the frame, and when there is no other");
        let response = next(&mut stream.responses).await.unwrap().unwrap();
        stream.ack(response).await;
        assert_eq!(stream.traffic.at_rest().await.writes, NO_WRITES, "the ACK");
    }
}

/// The window updates of HTTP/2 for requests: hyper gives the stream a window of 1 MiB, and h2
/// extends it when a third was read. The window of the connection is larger, because it is for many
/// streams. Pings start only after [`xds_server::ServerConfig::keepalive`].
#[tokio::test(start_paused = true)]
async fn requests_take_a_write_for_each_third_of_a_mebibyte_and_no_other() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let mut stream = Delta::open(&Memory::serve(&cache)).await;
    stream.follow(CLUSTER, &["a"]).await;
    let (mut sent_bytes, mut writes) = (0, Vec::new());
    while sent_bytes < 2 * WINDOW_BYTES {
        let detail = Status { message: "x".repeat(10_000), ..Status::default() };
        let request = DeltaDiscoveryRequest {
            response_nonce: "of no response".into(),
            error_detail: Some(detail),
            ..stream.request(CLUSTER)
        };
        sent_bytes += request.encoded_len();
        stream.requests.send(request).await.unwrap();
        writes.extend(stream.traffic.at_rest().await.writes);
    }
    assert!((1..=sent_bytes / (WINDOW_BYTES / 3)).contains(&writes.len()), "{writes:?}");
    for write in &writes {
        assert_eq!(write.iter().map(|slice| slice.len).sum::<usize>(), WINDOW_UPDATE_BYTES);
    }
}

/// h2 gives the transport one frame at a time, together with all small frames before it. So a
/// commit takes at least as many writes as frames.
#[tokio::test(start_paused = true)]
async fn a_large_payload_takes_a_write_per_frame() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let memory = Memory::serve(&cache);
    let (mut sotw, mut delta) = (Sotw::open(&memory).await, Delta::open(&memory).await);
    sotw.follow_cluster().await;
    delta.follow(CLUSTER, &["a"]).await;
    for size in [5_000, 10_000, 100_000] {
        put(&cache, CLUSTER, "a", &"x".repeat(size));
        let frames = size.div_ceil(FRAME_BYTES);
        let writes = sotw.traffic.at_rest().await.writes;
        assert_eq!(writes.len(), frames, "{size} bytes: {writes:?}");
        let writes = delta.traffic.take().writes;
        assert_eq!(writes.len(), frames, "{size} bytes: {writes:?}");
        let response = next(&mut sotw.responses).await.unwrap().unwrap();
        sotw.ack(response).await;
        let response = next(&mut delta.responses).await.unwrap().unwrap();
        delta.ack(&response).await;
        assert_eq!(sotw.traffic.at_rest().await.writes, NO_WRITES);
        assert_eq!(delta.traffic.take().writes, NO_WRITES);
    }
}

#[tokio::test(start_paused = true)]
async fn large_payloads_go_from_the_commit_to_every_transport_without_a_copy() {
    let cache = Cache::new();
    let memory = Memory::serve(&cache);
    let (mut one, mut other) = (Delta::open(&memory).await, Delta::open(&memory).await);
    let names: Vec<String> = (0..20).map(|number| format!("cluster-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.iter().for_each(|name| _ = put(&cache, CLUSTER, name, "small"));
    for stream in [&mut one, &mut other] {
        stream.follow(CLUSTER, &names).await;
    }
    let mut transaction = Transaction::new();
    let mut payloads = Vec::new();
    for name in &names {
        let payload = common::Payload { name: (*name).into(), content: "x".repeat(10_000) };
        let payload = Bytes::from(payload.encode_to_vec());
        payloads.push(payload.clone());
        transaction.put(Resource::new(CLUSTER, *name, payload).unwrap());
    }
    cache.commit(transaction).unwrap();
    at_rest().await;
    for stream in [&mut one, &mut other] {
        let writes = stream.traffic.take().writes;
        for payload in &payloads {
            let shared_bytes: usize = writes.iter().flatten().map(|slice| slice.overlap(payload)).sum();
            assert!(shared_bytes >= payload.len() - COPIED_BYTES, "{shared_bytes} of {}", payload.len());
        }
        // One write for each frame, with the small frames before it.
        assert_eq!(writes.len(), payloads.len());
        let response = next(&mut stream.responses).await.unwrap().unwrap();
        assert_eq!(response.resources.len(), names.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_to_two_types_takes_no_more_writes_than_responses() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", "0");
    let mut stream = Delta::open(&Memory::serve(&cache)).await;
    stream.follow(CLUSTER, &["a"]).await;
    stream.follow(CLUSTER_LOAD_ASSIGNMENT, &["a"]).await;
    let mut transaction = Transaction::new();
    for type_url in [CLUSTER, CLUSTER_LOAD_ASSIGNMENT] {
        let payload = common::Payload { name: "a".into(), content: "1".into() }.encode_to_vec();
        transaction.put(Resource::new(type_url, "a", payload).unwrap());
    }
    cache.commit(transaction).unwrap();
    let mut types = Vec::new();
    while types.len() < 2 {
        let response = next(&mut stream.responses).await.unwrap().unwrap();
        stream.ack(&response).await;
        types.push(response.type_url);
    }
    assert_eq!(types, [CLUSTER, CLUSTER_LOAD_ASSIGNMENT]);
    let writes = stream.traffic.at_rest().await.writes;
    assert!(writes.len() <= types.len(), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_does_not_concern_a_stream_does_not_touch_its_connection() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let mut stream = Delta::open(&Memory::serve(&cache)).await;
    stream.follow(CLUSTER, &["a"]).await;
    put(&cache, CLUSTER, "b", "1");
    put(&cache, LISTENER, "a", "1");
    assert_eq!(stream.traffic.at_rest().await, Counts::default());
    // Check that the counters count something.
    put(&cache, CLUSTER, "a", "1");
    let counts = stream.traffic.at_rest().await;
    assert!(counts.polls > 0 && counts.writes.len() == 1, "{counts:?}");
}

/// The accept loop of tonic stops when no more connections come, and its GOAWAY prevents clients
/// from opening streams. This server continues.
#[tokio::test(start_paused = true)]
async fn the_connections_that_are_there_are_served_when_no_more_can_come() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "0");
    let (client, server) = duplex(BUFFER_BYTES);
    let incoming = tokio_stream::iter([Err(io::Error::other("no handshake")), Ok(server)]);
    tokio::spawn(Server::new(Arc::clone(&cache)).serve_with_incoming(incoming, std::future::pending()));
    at_rest().await;
    let (requests, stream) = mpsc::channel(16);
    let mut client = client_of(client).await;
    requests.send(ask("test", CLUSTER, &["a"])).await.unwrap();
    let mut responses =
        client.stream_aggregated_resources(ReceiverStream::new(stream)).await.unwrap().into_inner();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().resources.len(), 1);
}

/// Waits until every task waits, because only then paused time advances.
async fn at_rest() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Sizes for three cases: a response that fits into the first copy of a frame, a larger one, and
/// one that is almost large enough for shared slices.
fn contents() -> impl Iterator<Item = String> {
    let sizes = [1, 100, 300, 3000];
    (0..100).map(move |round: usize| "x".repeat(sizes[round % sizes.len()] + round))
}

/// A server of connections in memory.
struct Memory(mpsc::Sender<io::Result<Counted>>);

impl Memory {
    fn serve(cache: &Arc<Cache>) -> Self {
        let (sender, connections) = mpsc::channel(1);
        let server = Server::new(Arc::clone(cache));
        tokio::spawn(server.serve_with_incoming(ReceiverStream::new(connections), std::future::pending()));
        Self(sender)
    }

    async fn connect(&self) -> (AggregatedDiscoveryServiceClient<tonic::transport::Channel>, Arc<Traffic>) {
        let (client, io) = duplex(BUFFER_BYTES);
        let traffic = Arc::<Traffic>::default();
        let connection = Counted { io, traffic: Arc::clone(&traffic) };
        self.0.send(Ok(connection)).await.unwrap();
        (client_of(client).await, traffic)
    }
}

async fn client_of(io: DuplexStream) -> AggregatedDiscoveryServiceClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_static("http://memory");
    AggregatedDiscoveryServiceClient::new(endpoint.connect_with_connector(Connector(Some(io))).await.unwrap())
}

/// Connects once, to the given end of a pair.
struct Connector(Option<DuplexStream>);

impl Service<Uri> for Connector {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let io = self.0.take().ok_or(io::ErrorKind::ConnectionRefused);
        std::future::ready(io.map(TokioIo::new).map_err(io::Error::from))
    }
}

/// A client with one delta stream on its own connection.
struct Delta {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    traffic: Arc<Traffic>,
}

impl Delta {
    async fn open(memory: &Memory) -> Self {
        let (mut client, traffic) = memory.connect().await;
        let (requests, stream) = mpsc::channel(16);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(stream)).await.unwrap();
        Self { requests, responses: responses.into_inner(), traffic }
    }

    /// Subscribes, reads the first response, and waits until the stream is at rest.
    async fn follow(&mut self, type_url: &str, names: &[&str]) {
        let resource_names_subscribe = names.iter().map(|name| (*name).into()).collect();
        let request = DeltaDiscoveryRequest { resource_names_subscribe, ..self.request(type_url) };
        self.requests.send(request).await.unwrap();
        let first = next(&mut self.responses).await.unwrap().unwrap();
        self.ack(&first).await;
        self.traffic.at_rest().await;
    }

    async fn ack(&self, response: &DeltaDiscoveryResponse) {
        let response_nonce = response.nonce.clone();
        let ack = DeltaDiscoveryRequest { response_nonce, ..self.request(&response.type_url) };
        self.requests.send(ack).await.unwrap();
    }

    fn request(&self, type_url: &str) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            node: Some(node("test")),
            type_url: type_url.into(),
            ..DeltaDiscoveryRequest::default()
        }
    }
}

/// A client with one SotW stream on its own connection, which subscribes to a cluster.
struct Sotw {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
    traffic: Arc<Traffic>,
}

impl Sotw {
    async fn open(memory: &Memory) -> Self {
        let (mut client, traffic) = memory.connect().await;
        let (requests, stream) = mpsc::channel(16);
        let responses = client.stream_aggregated_resources(ReceiverStream::new(stream)).await.unwrap();
        Self { requests, responses: responses.into_inner(), traffic }
    }

    /// Subscribes, reads the first response, and waits until the stream is at rest.
    async fn follow_cluster(&mut self) {
        self.requests.send(ask("test", CLUSTER, &["a"])).await.unwrap();
        let first = next(&mut self.responses).await.unwrap().unwrap();
        self.ack(first).await;
        self.traffic.at_rest().await;
    }

    async fn ack(&self, response: DiscoveryResponse) {
        let DiscoveryResponse { nonce: response_nonce, version_info, .. } = response;
        let ack = DiscoveryRequest { response_nonce, version_info, ..ask("test", CLUSTER, &["a"]) };
        self.requests.send(ack).await.unwrap();
    }
}

/// The server's end of a connection, which counts calls and bytes.
struct Counted {
    io: DuplexStream,
    traffic: Arc<Traffic>,
}

#[derive(Default)]
struct Traffic(Mutex<Counts>);

#[derive(Debug, Default, PartialEq)]
struct Counts {
    /// The bytes that each write took of each given slice.
    writes: Vec<Vec<Slice>>,
    flushes: usize,
    /// All calls, also those that had to wait.
    polls: usize,
}

/// The addresses of the written bytes.
#[derive(Debug, PartialEq)]
struct Slice {
    address: usize,
    len: usize,
}

impl Slice {
    /// The number of written bytes that are in the memory of a payload and not copied.
    fn overlap(&self, payload: &Bytes) -> usize {
        let range = payload.as_ptr_range();
        let end = range.end.addr().min(self.address + self.len);
        end.saturating_sub(range.start.addr().max(self.address))
    }
}

impl Traffic {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap()
    }

    /// The counts since the last call.
    fn take(&self) -> Counts {
        mem::take(&mut *self.counts())
    }

    async fn at_rest(&self) -> Counts {
        at_rest().await;
        self.take()
    }
}

impl Counted {
    fn polled(self: Pin<&mut Self>) -> (Pin<&mut DuplexStream>, MutexGuard<'_, Counts>) {
        let Self { io, traffic } = self.get_mut();
        let mut counts = traffic.counts();
        counts.polls += 1;
        (Pin::new(io), counts)
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.polled().0.poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (io, mut counts) = self.polled();
        let written = io.poll_write_vectored(cx, slices);
        if let Poll::Ready(Ok(mut left)) = written
            && left > 0
        {
            let taken = slices.iter().map(|slice| {
                let len = slice.len().min(left);
                left -= len;
                Slice { address: slice.as_ptr().addr(), len }
            });
            counts.writes.push(taken.filter(|slice| slice.len > 0).collect());
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (io, mut counts) = self.polled();
        counts.flushes += 1;
        io.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polled().0.poll_shutdown(cx)
    }
}

impl Connected for Counted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

const NO_WRITES: [Vec<Slice>; 0] = [];

/// In these tests, no write has to wait for the client.
const BUFFER_BYTES: usize = 1 << 20;

/// The default frame size of clients.
const FRAME_BYTES: usize = 16 << 10;

const WINDOW_BYTES: usize = 1 << 20;

const WINDOW_UPDATE_BYTES: usize = 13;

/// h2 copies this much of a frame next to its head, so that a write does not begin with a tiny
/// slice.
const COPIED_BYTES: usize = 256;
