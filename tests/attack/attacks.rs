//! The attacks of hostile clients. Each runs until it is dropped.

use std::future::pending;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Target;
use crate::http2::{BEGIN, PING, SETTINGS, connect, data, headers, request, reset, streams};
use crate::server::LARGE_NAMES;

/// Opens streams and resets them at once, as fast as the server reads (CVE-2023-44487).
pub(crate) async fn rapid_reset(target: Target) {
    flood(target, |stream| [headers(stream), reset(stream)].concat()).await;
}

/// Changes its subscription again and again on one stream of each connection.
pub(crate) async fn requests(target: Target) {
    flood(target, |stream| {
        let name = if stream % 4 == 1 { "witnessed" } else { "other" };
        let request = data(1, &request(name));
        if stream == 1 { [headers(1), request].concat() } else { request }
    })
    .await;
}

/// Opens streams that subscribe; starts again when the server accepts no more.
pub(crate) async fn new_streams(target: Target) {
    flood(target, |stream| [headers(stream), data(stream, &request("witnessed"))].concat()).await;
}

/// Sends only frames that the server has to answer.
pub(crate) async fn control_frames(target: Target) {
    flood(target, |stream| if stream % 4 == 1 { SETTINGS } else { PING }.to_vec()).await;
}

/// Connections without a stream.
pub(crate) async fn idle_connections(target: Target) {
    hold(&target, affordable(10_000), |_| BEGIN.to_vec()).await;
}

/// More such connections than a small server allows.
pub(crate) async fn a_thousand_idle(target: Target) {
    hold(&target, 1_000, |number| if number % 2 == 0 { BEGIN.to_vec() } else { Vec::new() }).await;
}

/// Connections with a stream that subscribed.
pub(crate) async fn a_thousand_with_streams(target: Target) {
    hold(&target, 1_000, |_| [BEGIN, &headers(1), &data(1, &request("witnessed"))].concat()).await;
}

/// Connections that send nothing, or the start of a TLS record.
pub(crate) async fn silent_tls(target: Target) {
    hold(&target, 1_500, |number| [0x16, 3, 1][..number % 4].to_vec()).await;
}

/// Streams without a request, as many as four connections may have.
pub(crate) async fn silent_streams(target: Target) {
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut connection = connect(target.address).await;
        let all: Vec<u8> = streams().take(20_000).flat_map(headers).collect();
        connection.write_all(&all).await.unwrap();
        held.push(connection);
    }
    target.is_on();
    pending::<()>().await;
}

/// A storm: all connections are open before the system repeats a connection attempt, which it does
/// after a second.
pub(crate) async fn connections_at_once(target: Target) {
    let (address, mut connecting) = (target.address, JoinSet::new());
    for _ in 0..affordable(3_000) {
        connecting.spawn(async move {
            let began = Instant::now();
            let connection = TcpStream::connect(address).await.unwrap();
            (began.elapsed(), connection)
        });
    }
    let held = connecting.join_all().await;
    let slowest = held.iter().map(|(waited, _)| *waited).max().unwrap();
    assert!(slowest < Duration::from_millis(900), "a connection took {slowest:?}");
    target.is_on();
    pending::<()>().await;
}

/// REST polls with answers of 20 MB each, which nobody reads.
pub(crate) async fn unread_polls(target: Target) {
    let poll = |_| {
        let names: Vec<_> = (0..LARGE_NAMES).map(|number| format!("\"large-{number}\"")).collect();
        let body = format!("{{\"resource_names\": [{}]}}", names.join(","));
        let head = "POST /v3/discovery:endpoints HTTP/1.1\r\nhost: xds\r\ncontent-type: application/json";
        format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    hold(&target, 60, poll).await;
}

/// One connection with streams whose first request never ends.
pub(crate) async fn half_requests(target: Target) {
    let mut connection = connect(target.address).await;
    for stream in streams().take(1_000) {
        // A request of 8 MiB, of which only the first bytes are sent.
        let half = [&[0, 0, 0x80, 0, 0][..], &[0; 40]].concat();
        connection.write_all(&[headers(stream), data(stream, &half)].concat()).await.unwrap();
    }
    target.is_on();
    pending::<()>().await;
}

/// Sends these frames for one stream after another on some connections, without a pause. Opens a
/// new connection for each that the server closes.
async fn flood(target: Target, what: fn(u32) -> Vec<u8>) {
    let mut flooding = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let target = target.clone();
        flooding.spawn(async move {
            loop {
                let mut connection = connect(target.address).await;
                let mut streams = streams();
                loop {
                    let batch: Vec<u8> = streams.by_ref().take(BATCH).flat_map(what).collect();
                    if connection.write_all(&batch).await.is_err() {
                        break;
                    }
                    target.is_on();
                }
            }
        });
    }
    pending::<()>().await;
}

/// Opens this many connections, sends something on each and keeps them open. A connection that the
/// server closes is not opened again.
async fn hold(target: &Target, count: usize, what: fn(usize) -> Vec<u8>) {
    let open = |address: SocketAddr, number| async move {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(&what(number)).await?;
        std::io::Result::Ok(connection)
    };
    let (mut held, mut failed) = (Vec::with_capacity(count), 0);
    for number in 0..count {
        match open(target.address, number).await {
            Ok(connection) => held.push(connection),
            // The server may refuse the connection. But if the test has no descriptors left, it
            // proves nothing.
            Err(error) => {
                assert_ne!(
                    error.raw_os_error(),
                    Some(TOO_MANY_FILES),
                    "the test needs descriptors: ulimit -n"
                );
                failed += 1;
            }
        }
    }
    assert!(held.len() > failed, "{failed} of {count} connections failed");
    target.is_on();
    pending::<()>().await;
}

/// This many connections, or fewer if the system allows this process fewer descriptors.
fn affordable(count: usize) -> usize {
    let descriptors = rlimit::increase_nofile_limit(u64::MAX).unwrap();
    // Descriptors that the server keeps for itself, and those of the test.
    let possible = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(KEPT);
    if possible < count {
        println!("only {possible} of {count} connections: this system allows {descriptors} descriptors");
        assert!(
            possible >= FEWEST,
            "{possible} connections prove nothing: raise the hard limit (ulimit -Hn)"
        );
    }
    count.min(possible)
}

const CONNECTIONS: usize = 4;
/// How many connections are opened at a time.
const BATCH: usize = 100;
/// Descriptors for everything else, in the test and in the server.
const KEPT: usize = 1_100;
/// Fewer idle connections than this are not an attack.
const FEWEST: usize = 2_500;
/// EMFILE.
const TOO_MANY_FILES: i32 = 24;
