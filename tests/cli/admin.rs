//! The admin port: its address, which requests it accepts, and how it ends.

use super::*;

impl Serving {
    /// The address of its admin page.
    pub(super) fn admin(&self) -> SocketAddr {
        let lines = self.until("admin page on http://");
        let (_, rest) = lines.last().unwrap().split_once("http://").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }
}

/// The status of a request with these lines as its head.
fn status(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_admin_port_answers_those_who_ask_by_address_or_by_a_name_that_was_told() {
    let scratch = Scratch::with_cluster("admin");
    let serving = scratch.serve(&["--admin-host", "admin.example"]);
    let address = serving.admin();
    for host in ["127.0.0.1", "localhost:1", "admin.example"] {
        assert!(status(address, &format!("GET /nowhere HTTP/1.1\r\nhost: {host}")).contains("404"), "{host}");
    }
    assert!(status(address, "GET /nowhere HTTP/1.1\r\nhost: evil.example").contains("403"));
    assert!(
        status(address, "POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0").contains("405")
    );
    // Requests that a page of another site or port causes are refused; a link from there works.
    let from = |site: &str, mode: &str| {
        let head = format!(
            "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: {site}\r\nsec-fetch-mode: {mode}"
        );
        status(address, &head)
    };
    assert!(from("cross-site", "no-cors").contains("403") && from("same-site", "cors").contains("403"));
    assert!(from("cross-site", "navigate").contains("404") && from("same-origin", "cors").contains("404"));
    assert!(from("none", "navigate").contains("404"));
    let two = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nhost: evil.example";
    assert!(status(address, two).contains("400"));
    let absolute =
        |site: &str| status(address, &format!("GET http://{site}/nowhere HTTP/1.1\r\nhost: localhost"));
    assert!(absolute("evil.example").contains("403") && absolute("127.0.0.1:1").contains("404"));
    assert!(status(address, "GET http://evil.example/nowhere HTTP/1.0").contains("403"));
    // A load balancer that checks the health.
    assert!(status(address, "GET /nowhere HTTP/1.0").contains("404"));
}

#[test]
fn the_admin_port_goes_with_the_server_and_may_be_left_out() {
    let scratch = Scratch::with_cluster("admin-ends");
    let mut serving = scratch.serve(&[]);
    let address = serving.admin();
    // A silent connection delays nothing.
    let _idle = TcpStream::connect(address).unwrap();
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));

    let mut serving = scratch.serve(&["--admin", "none"]);
    let mut lines = serving.until("listening on ");
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
    lines.extend(serving.lines.iter());
    assert!(!lines.iter().any(|line| line.contains("admin page")), "{lines:#?}");
}

#[test]
fn an_admin_port_that_is_taken_or_open_to_others_is_refused_with_what_to_do() {
    let scratch = Scratch::with_cluster("admin-refused");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = |admin: &str| {
        refused(&scratch.xds("serve").args(["--listen", "127.0.0.1:0", "--admin", admin]).output().unwrap())
    };
    let (code, text) = serve(&address);
    assert_eq!(code, Some(1));
    assert!(text.starts_with(&format!("error: cannot listen on {address} for the admin page: ")), "{text}");
    assert!(text.contains("--admin none"), "{text}");
    let (code, text) = serve("0.0.0.0:0");
    assert_eq!(code, Some(2));
    assert!(text.contains("use a loopback address"), "{text}");
    let (code, text) = serve("here");
    assert_eq!(code, Some(2));
    assert!(text.contains("expected IP:PORT or none"), "{text}");
}

#[test]
fn health_and_metrics_are_answered_while_the_port_is_full_of_connections_that_hang() {
    let scratch = Scratch::with_cluster("admin-hangs");
    let serving = scratch.serve(&[]);
    let admin = serving.admin();
    let hanging: Vec<_> = (0..600)
        .map(|number| {
            let mut stream = TcpStream::connect(admin).unwrap();
            stream.set_nonblocking(true).unwrap();
            // Some send nothing, some a part of a request, some request events, and some request
            // much more than they read.
            let asks = match number % 4 {
                0 => String::new(),
                1 => "GET / HTTP/1.1\r\nhost: loc".to_owned(),
                2 => "GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
                _ => "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200),
            };
            _ = stream.write_all(asks.as_bytes());
            stream
        })
        .collect();
    for path in ["/healthz", "/readyz", "/readyz/CDS", "/metrics", "/healthz"] {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.200}");
    }
    serving.until("the oldest are closed");
    drop(hanging);
}
