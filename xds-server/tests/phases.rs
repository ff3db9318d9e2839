//! Peers that stop sending: each phase of a connection and of a request has a time limit.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::routing::post;
use common::{Running, ask, next, put};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use xds_core::{Cache, TypeUrl};
use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::type_url::CLUSTER;
use xds_server::skim::Client;
use xds_server::{ConnectionEnd, Event, Observer, Readiness, Server, ServerConfig, listen};

/// The events of connections and requests that the server ended.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<Option<ConnectionEnd>>>);

impl Observer for Ends {
    fn on_event(&self, _: &Client, event: Event<'_>) {
        let end = match event {
            Event::ConnectionEnded(end) => Some(end),
            Event::RequestTimeout => None,
            _ => return,
        };
        self.0.lock().unwrap().push(end);
    }
}

impl Ends {
    fn take(&self) -> Vec<Option<ConnectionEnd>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn quick(ends: &Arc<Ends>) -> ServerConfig {
    ServerConfig {
        handshake_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(300),
        observer: Some(Arc::clone(ends) as Arc<_>),
        ..ServerConfig::default()
    }
}

/// Sends these bytes, waits until the server has closed the connection, and returns the bytes of
/// the server.
async fn says_and_waits(server: &Running, text: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    connection.write_all(text).await.unwrap();
    let mut answer = Vec::new();
    let closed = timeout(Duration::from_secs(10), connection.read_to_end(&mut answer)).await;
    // A reset also closes the connection.
    _ = closed.expect("the server ends the connection");
    answer
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
/// The type of the last frame that a server sends on a connection.
const GOAWAY: u8 = 7;

#[tokio::test]
async fn a_connection_that_does_not_begin_ends_and_one_without_a_stream_is_asked_to_leave() {
    // All of these connections used to stay open forever.
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    let server = Running::with(&cache, quick(&ends)).await;
    says_and_waits(&server, b"").await;
    says_and_waits(&server, &PREFACE[..10]).await;
    assert_eq!(ends.take(), [Some(ConnectionEnd::HandshakeTimeout); 2]);
    let answer = says_and_waits(&server, &[PREFACE, SETTINGS].concat()).await;
    let mut frames = Vec::new();
    let mut rest = &answer[..];
    while let [a, b, c, kind, ..] = rest {
        frames.push(*kind);
        rest = &rest[9 + u32::from_be_bytes([0, *a, *b, *c]) as usize..];
    }
    assert!(frames.contains(&GOAWAY), "{frames:?}");
    assert_eq!(ends.take(), [Some(ConnectionEnd::Idle)]);
}

#[tokio::test]
async fn requests_of_http_1_have_to_come_whole() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let routes = axum::Router::new().route("/echo", post(|body: bytes::Bytes| async { body }));
    let server = Server::new(cache).with_config(quick(&ends)).with_routes(routes);
    tokio::spawn(server.serve(listener, std::future::pending()));
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n";
    for (request, is_whole) in
        [(head.to_owned(), false), (format!("{head}\r\nha"), false), (format!("{head}\r\nhalf"), true)]
    {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let closed = timeout(Duration::from_secs(10), connection.read_to_string(&mut answer)).await;
        _ = closed.expect("the server ends the connection");
        assert_eq!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("half"),
            is_whole,
            "{request}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_stream_without_its_first_request_ends_and_one_that_was_answered_lasts() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    put(&cache, CLUSTER, "a", "1");
    let server = Running::with(&cache, quick(&ends)).await;
    let (_requests, mut silent) = server.sotw().await;
    let (requests, mut asks) = server.sotw().await;
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut asks).await.unwrap().unwrap();
    let status = next(&mut silent).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(ends.take(), [None]);
    // Longer than each time limit.
    assert!(
        timeout(Duration::from_millis(700), asks.message()).await.is_err(),
        "nothing comes, not even an end"
    );
    put(&cache, CLUSTER, "a", "2");
    next(&mut asks).await.unwrap().unwrap();
}

/// The gRPC status in the trailers of a stream that sends these bytes and then stops.
async fn status_after(server: &Running, begins: Vec<u8>) -> Code {
    let mut channel = server.channel().await;
    let (chunks, body) = mpsc::channel::<Result<bytes::Bytes, std::convert::Infallible>>(2);
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    let request = http::Request::post(format!("http://{}{path}", server.address))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::new(axum::body::Body::from_stream(ReceiverStream::new(body))))
        .unwrap();
    std::future::poll_fn(|cx| tonic::codegen::Service::poll_ready(&mut channel, cx)).await.unwrap();
    let response = tonic::codegen::Service::call(&mut channel, request).await.unwrap();
    chunks.send(Ok(begins.into())).await.unwrap();
    let mut body = response.into_body();
    let ended = async {
        loop {
            let body = std::pin::Pin::new(&mut body);
            let frame = std::future::poll_fn({
                let mut body = body;
                move |cx| http_body::Body::poll_frame(body.as_mut(), cx)
            });
            let frame = frame.await.expect("a status at the end").expect("the connection goes on");
            if let Ok(trailers) = frame.into_trailers() {
                return Code::from_bytes(trailers["grpc-status"].as_bytes());
            }
        }
    };
    timeout(Duration::from_secs(10), ended).await.expect("the stream ends")
}

/// The first bytes of a request of this length.
fn half(len: u32) -> Vec<u8> {
    [&[0][..], &len.to_be_bytes(), &vec![0; len as usize / 2]].concat()
}

#[tokio::test]
async fn half_a_request_ends_its_stream() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    let server = Running::with(&cache, quick(&ends)).await;
    assert_eq!(status_after(&server, half(100)).await, Code::DeadlineExceeded);
    assert_eq!(ends.take(), [None]);
}

#[tokio::test]
async fn g9_halves_of_requests_have_a_limit_together() {
    // Without the limit, each of 100,000 streams could keep nearly 16 MiB of an incomplete request
    // in memory.
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    let config = ServerConfig {
        partial_requests_limit_bytes: 10_000,
        request_timeout: Duration::from_secs(1),
        ..quick(&ends)
    };
    let server = Running::with(&cache, config).await;
    // One request fits, two do not; the second one is refused.
    let (one, other) = tokio::join!(status_after(&server, half(14_000)), status_after(&server, half(14_000)));
    let (soon, late) = (Code::ResourceExhausted, Code::DeadlineExceeded);
    assert!([(soon, late), (late, soon)].contains(&(one, other)), "{one:?} {other:?}");
    // The bytes of the ended requests are free again.
    assert_eq!(status_after(&server, half(16_000)).await, Code::DeadlineExceeded);
}

#[tokio::test]
async fn with_as_many_connections_as_may_be_idle_ones_give_way_and_streams_go_on() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    put(&cache, CLUSTER, "a", "1");
    let config = ServerConfig {
        connections_limit: 20,
        observer: Some(Arc::clone(&ends) as Arc<_>),
        ..ServerConfig::default()
    };
    let server = Running::with(&cache, config).await;
    let (requests, mut before) = server.sotw().await;
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut before).await.unwrap().unwrap();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let (requests, mut after) = server.sotw().await;
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut after).await.unwrap().unwrap();
    put(&cache, CLUSTER, "a", "2");
    for stream in [&mut before, &mut after] {
        next(stream).await.unwrap().unwrap();
    }
    let ends = ends.take();
    assert!(ends.len() >= 81 && ends.contains(&Some(ConnectionEnd::Displaced)), "{ends:?}");
}

#[tokio::test]
async fn an_address_has_no_more_connections_than_it_may() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    put(&cache, CLUSTER, "a", "1");
    let config = ServerConfig {
        address_connections_limit: Some(2),
        observer: Some(Arc::clone(&ends) as Arc<_>),
        ..ServerConfig::default()
    };
    let server = Running::with(&cache, config).await;
    let (_one, _other) = (server.sotw().await, server.sotw().await);
    let answer = says_and_waits(&server, b"").await;
    assert_eq!((answer, ends.take()), (Vec::new(), vec![Some(ConnectionEnd::TooManyOfAddress)]));
    // Another address of this machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut connection = socket.connect(server.address).await.unwrap();
    connection.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let mut head = [0; 9];
    connection.read_exact(&mut head).await.unwrap();
}

/// Many streams without a request on one connection, and one with.
#[tokio::test]
async fn streams_without_a_request_leave_their_places_to_others() {
    let (cache, ends) = (Cache::new(), Arc::<Ends>::default());
    put(&cache, CLUSTER, "a", "1");
    let config = ServerConfig { streams_limit: 10, ..quick(&ends) };
    let server = Running::with(&cache, config).await;
    let channel = server.channel().await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        let (requests, receiver) = mpsc::channel::<DiscoveryRequest>(1);
        let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
        let stream = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        streams.push((requests, stream.into_inner()));
    }
    for (_, stream) in &mut streams {
        assert_eq!(next(stream).await.unwrap_err().code(), Code::DeadlineExceeded);
    }
    let (requests, mut stream) = server.sotw().await;
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut stream).await.unwrap().unwrap();
}

/// Takes no streams while it holds `true`.
#[derive(Debug)]
struct Refusing(AtomicBool);

impl Readiness for Refusing {
    fn is_ready(&self, _: Option<&TypeUrl>) -> bool {
        self.refuses_streams().is_none()
    }

    fn refuses_streams(&self) -> Option<String> {
        self.0.load(Ordering::Relaxed).then(|| "not now".to_owned())
    }
}

#[tokio::test]
async fn sr20_a_server_that_refuses_streams_keeps_the_open_ones() {
    let (cache, refusing) = (Cache::new(), Arc::new(Refusing(AtomicBool::new(false))));
    put(&cache, CLUSTER, "a", "1");
    let readiness = Some(Arc::clone(&refusing) as Arc<dyn Readiness>);
    let server = Running::with(&cache, ServerConfig { readiness, ..ServerConfig::default() }).await;
    let (requests, mut stream) = server.sotw().await;
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    let first = next(&mut stream).await.unwrap().unwrap();
    refusing.0.store(true, Ordering::Relaxed);
    let mut client = AggregatedDiscoveryServiceClient::new(server.channel().await);
    let refused = client.stream_aggregated_resources(tokio_stream::pending()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "not now"));
    let refused = client.delta_aggregated_resources(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    put(&cache, CLUSTER, "a", "2");
    let second = next(&mut stream).await.unwrap().unwrap();
    assert_ne!(first.version_info, second.version_info);
    refusing.0.store(false, Ordering::Relaxed);
    assert!(client.stream_aggregated_resources(tokio_stream::pending()).await.is_ok());
}
