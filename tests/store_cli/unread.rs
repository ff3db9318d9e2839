//! Clients of the admin port that take nothing of their answers, beside healthy ones.
//!
//! How such answers end, after 60 s or when they take too much memory, is tested with the listener
//! (`src/admin/listener/tests.rs`).

use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::*;

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call of gRPC.
fn call(stream: u32, path: &str, token: &str) -> Vec<u8> {
    // POST and http by their numbers in the table, the rest as text (RFC 7541, 6.2.2).
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    };
    literal(&[4], path);
    literal(&[1], "localhost");
    literal(b"\0\x0ccontent-type", "application/grpc");
    literal(b"\0\x0dauthorization", &format!("Bearer {token}"));
    frame(1, 4, stream, &block)
}

#[test]
fn clients_that_take_nothing_of_their_watches_harm_no_other() {
    let stored = Stored::served("unread");
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    let local: Value = serde_json::from_slice(&fs::read(stored.path("data/server.json")).unwrap()).unwrap();
    let token = local["token"].as_str().unwrap();
    let admin = &stored.server.admin;
    // Each allows no byte of any answer, and reads what the server sends besides. Together they have fewer watches
    // than one identity may have (ST42).
    let hostile: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(admin).unwrap();
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
            for number in [1, 3, 5] {
                let path = if number == 5 { "/xds.store.v1.Store/List" } else { "/xds.store.v1.Store/Watch" };
                bytes.extend(call(number, path, token));
                // An empty message.
                bytes.extend(frame(0, 1, number, &[0; 5]));
            }
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    for path in ["/healthz", "/readyz", "/readyz/store", "/metrics"] {
        let start = Instant::now();
        let answer =
            http(admin, &format!("GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.200}");
        assert!(start.elapsed() < Duration::from_secs(10), "{path}: {:?}", start.elapsed());
    }
    let mut watch = xds();
    watch.current_dir(&stored.0.0).args("list CDS --store data --watch".split(' '));
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("Cluster a "));
    for number in 0..5 {
        stored.write("b.yaml", cluster(&format!("b-{number}"), 1));
        stored.ok("put b.yaml --store data");
        assert!(lines.next().unwrap().unwrap().contains(&format!("Cluster b-{number} ")));
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    drop(hostile);
}
