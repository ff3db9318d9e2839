use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::{HostNames, activity};
use super::*;

/// HTTP/2 as a client writes it that follows only the rules that the test wants. It reads what the
/// server sends, and answers pings.
struct Raw {
    io: DuplexStream,
    served: JoinHandle<()>,
}

#[derive(Debug)]
struct Received {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Raw {
    /// `window` is what the client takes of each answer without saying more.
    async fn connect(routes: &Router, unread: &Arc<Unread>, window: u32) -> Self {
        let (io, server) = duplex(1 << 20);
        let (routes, builder) = (routes.clone(), builder(Protocols::WithGrpc, unread));
        let served = tokio::spawn(async move { converse(server, routes, &builder, &Activity::new()).await });
        let mut raw = Self { io, served };
        raw.io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        raw.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()).await;
        raw
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        // The server may have ended the connection; then there is no next frame.
        _ = self.io.write_all(&frame).await;
    }

    /// A whole request: of gRPC with POST, else GET.
    async fn request(&mut self, stream: u32, path: &str) {
        let is_grpc = path != "/healthz";
        // Methods and http by their numbers in the table, the rest as text (RFC 7541, 6.2.2).
        let mut block = vec![if is_grpc { 0x83 } else { 0x82 }, 0x86];
        let mut literal = |name: &[u8], value: &str| {
            block.extend_from_slice(name);
            block.push(u8::try_from(value.len()).unwrap());
            block.extend_from_slice(value.as_bytes());
        };
        literal(&[4], path);
        literal(&[1], "localhost");
        if is_grpc {
            literal(b"\0\x0ccontent-type", "application/grpc");
        }
        self.send(HEADERS, 5, stream, &block).await;
    }

    async fn allow(&mut self, stream: u32, bytes: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()).await;
    }

    /// The next frame; `None` if the connection has ended.
    async fn next(&mut self) -> Option<Received> {
        loop {
            let mut head = [0; 9];
            self.io.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.io.read_exact(&mut payload).await.ok()?;
            match (kind, flags) {
                (SETTINGS, 0) => self.send(SETTINGS, 1, 0, &[]).await,
                (PING, 0) => self.send(PING, 1, 0, &payload).await,
                _ => return Some(Received { kind, stream: u32::from_be_bytes(stream), payload }),
            }
        }
    }

    /// The next frame of this kind and stream.
    async fn until(&mut self, kind: u8, stream: u32) -> Received {
        loop {
            let received = self.next().await.expect("the connection goes on");
            if (received.kind, received.stream) == (kind, stream) {
                return received;
            }
        }
    }
}

/// A call that has not ended.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answers of gRPC: one without an end, one that says nothing, none at all, and a refusal.
fn services(open: &Arc<AtomicUsize>) -> Router {
    let open = Arc::clone(open);
    let endless = move || {
        let open = Open::new(&open);
        let messages = std::iter::repeat_with(move || {
            let _open = &open;
            Ok::<_, Infallible>(Bytes::from(vec![0; MESSAGE_BYTES]))
        });
        async { Body::from_stream(tokio_stream::iter(messages)) }
    };
    let silent = async || Body::from_stream(tokio_stream::pending::<Result<Bytes, Infallible>>());
    let refuses = async || ([("grpc-status", "16")], Body::empty());
    let waits = async || std::future::pending::<()>().await;
    let services = Router::new().route("/s/Endless", post(endless)).route("/s/Silent", post(silent));
    services.route("/s/Waits", post(waits)).route("/s/Refuses", post(refuses))
}

/// The routes of a port, the number of endless calls, and the answers that wait.
fn port(limit_bytes: usize) -> (Router, Arc<AtomicUsize>, Arc<Unread>) {
    let open = Arc::default();
    let routes = Router::new().route("/healthz", get(async || "alive\n"));
    let routes = guard::guarded(routes, Some(services(&open)), HostNames::default());
    let unread = Arc::new(Unread::new(limit_bytes));
    let of_task = Arc::clone(&unread);
    tokio::spawn(async move { of_task.end_late_ones().await });
    (routes, open, unread)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_its_client_does_not_take_ends_after_a_minute_and_other_calls_go_on() {
    let (routes, open, unread) = port(usize::MAX);
    let mut raw = Raw::connect(&routes, &unread, 0).await;
    raw.request(1, "/s/Endless").await;
    raw.request(3, "/healthz").await;
    raw.until(HEADERS, 1).await;
    let start = Instant::now();
    raw.allow(3, 100).await;
    assert_eq!(raw.until(DATA, 3).await.payload, b"alive\n");
    assert_eq!(open.load(Ordering::Relaxed), 1);
    let reset = timeout(WHOLE_DAY, raw.until(RST_STREAM, 1)).await.expect("it ends");
    assert_eq!(reset.payload, CANCEL.to_be_bytes());
    let waited = start.elapsed().as_secs();
    assert!((58..=62).contains(&waited), "{waited} s");
    assert_eq!(open.load(Ordering::Relaxed), 0, "its place is free");
    raw.request(5, "/healthz").await;
    raw.allow(5, 100).await;
    assert_eq!(raw.until(DATA, 5).await.payload, b"alive\n");
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_is_served() {
    let (routes, _, unread) = port(usize::MAX);
    let mut raw = Raw::connect(&routes, &unread, 0).await;
    raw.request(1, "/s/Endless").await;
    let mut taken = 0;
    for _ in 0..20 {
        let pause = async {
            loop {
                taken += raw.until(DATA, 1).await.payload.len();
            }
        };
        timeout(Duration::from_secs(50), pause).await.expect_err("it goes on");
        raw.allow(0, 16 << 10).await;
        raw.allow(1, 16 << 10).await;
    }
    assert_eq!(taken, 19 * (16 << 10));
}

#[tokio::test(start_paused = true)]
async fn if_answers_that_wait_take_too_much_memory_those_that_waited_longest_end() {
    let (routes, open, unread) = port(2 * MESSAGE_BYTES);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut raw = Raw::connect(&routes, &unread, 0).await;
        raw.request(1, "/s/Endless").await;
        raw.until(HEADERS, 1).await;
        clients.push(raw);
    }
    assert_eq!(open.load(Ordering::Relaxed), 6);
    for raw in &mut clients[..4] {
        timeout(Duration::from_secs(3), raw.until(RST_STREAM, 1)).await.expect("it ends early");
    }
    assert_eq!(open.load(Ordering::Relaxed), 2);
    let healthy = &mut clients[0];
    healthy.request(3, "/healthz").await;
    healthy.allow(3, 100).await;
    assert_eq!(healthy.until(DATA, 3).await.payload, b"alive\n");
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_without_calls_and_never_during_a_silent_watch() {
    let (routes, _, unread) = port(usize::MAX);
    let mut raw = Raw::connect(&routes, &unread, 65_535).await;
    raw.request(1, "/s/Silent").await;
    raw.until(HEADERS, 1).await;
    timeout(WHOLE_DAY, raw.next()).await.expect_err("nothing happens");
    raw.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes()).await;
    let start = Instant::now();
    let ended = async { while raw.next().await.is_some() {} };
    timeout(WHOLE_DAY, ended).await.expect("it ends");
    let idle = start.elapsed();
    assert!(idle >= IDLE && idle < IDLE + 2 * HEAD_WAIT, "{idle:?}");
    raw.served.await.unwrap();

    let mut raw = Raw::connect(&routes, &unread, 65_535).await;
    let start = Instant::now();
    let ended = async { while raw.next().await.is_some() {} };
    timeout(WHOLE_DAY, ended).await.expect("it ends");
    assert!(start.elapsed() <= 2 * HEAD_WAIT, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_flood_of_connections_ends_no_call_that_waits_but_those_that_were_refused() {
    let services = services(&Arc::default());
    let mut connections = AdminConnections::default();
    let mut calls = Vec::new();
    for path in ["/s/Waits", "/s/Silent", "/s/Refuses"] {
        let activity = Activity::new();
        let mut request = Request::post(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(Arc::clone(&activity));
        let call = tokio::spawn(activity::of_grpc(services.clone(), request));
        let address = "127.0.0.1:1".parse().unwrap();
        connections.spawn(address, Arc::clone(&activity), std::future::pending());
        calls.push((call, activity));
    }
    // Two calls are answered, the first one waits.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(calls.iter().map(|(call, _)| call.is_finished()).collect::<Vec<_>>(), [false, true, true]);
    let ends: Vec<_> = connections.in_order.iter().map(|(.., task)| task.clone()).collect();
    for _ in 0..2 * CONNECTIONS_LIMIT {
        connections.spawn("127.0.0.1:2".parse().unwrap(), Activity::new(), std::future::pending());
    }
    // The tasks that were aborted end when they are next in turn.
    for _ in 0..4 * CONNECTIONS_LIMIT {
        tokio::task::yield_now().await;
    }
    assert_eq!(ends.iter().map(AbortHandle::is_finished).collect::<Vec<_>>(), [false, false, true]);
}

const MESSAGE_BYTES: usize = 64 << 10;
const WHOLE_DAY: Duration = Duration::from_secs(24 * 3600);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CANCEL: u32 = 8;

#[tokio::test]
async fn a_connection_with_many_requests_at_once_lets_others_go_first() {
    let order = Arc::new(Mutex::new(vec![]));
    let noted = Arc::clone(&order);
    let note = async move |request: Request| noted.lock().unwrap().push(request.uri().path().to_owned());
    let routes = Router::new().fallback(note);
    let unread = Arc::default();
    let mut clients = vec![];
    for (path, requests) in [("/many", 200), ("/one", 1)] {
        let (mut io, server) = duplex(1 << 20);
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        io.write_all(request.repeat(requests).as_bytes()).await.unwrap();
        let (routes, builder) = (routes.clone(), builder(Protocols::Http1, &unread));
        tokio::spawn(async move { converse(server, routes, &builder, &Activity::new()).await });
        clients.push(io);
    }
    clients[1].read_u8().await.unwrap();
    let place = order.lock().unwrap().iter().position(|path| path == "/one").unwrap();
    // In one turn of a connection, hyper answers 16 requests that are ready.
    assert!(place < 16, "{place} requests went first");
}
