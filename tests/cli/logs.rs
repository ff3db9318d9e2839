//! What clients can do to the log of `xds serve`.

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use xds_proto::google::rpc;
use xds_proto::type_url::CLUSTER;

use super::*;

/// A SotW client of all clusters that rejects every response.
struct Rejecting {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Rejecting {
    async fn new(serving: &Serving, node: Node) -> Self {
        Self::connect(serving.address(), node).await
    }

    async fn connect(address: SocketAddr, node: Node) -> Self {
        let uri = format!("http://{address}");
        let channel = Channel::from_shared(uri).unwrap().connect().await.unwrap();
        let (requests, receiver) = mpsc::channel(8);
        let request =
            DiscoveryRequest { node: Some(node), type_url: CLUSTER.into(), ..DiscoveryRequest::default() };
        requests.send(request).await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    async fn reject(&mut self, message: &str) {
        self.answer(Some(message)).await;
    }

    /// An ACK, or a NACK with a message.
    async fn answer(&mut self, message: Option<&str>) {
        let response = tokio::time::timeout(LONG, self.responses.message()).await.expect("a response");
        let of_error = |message: &str| rpc::Status { code: 3, message: message.into(), details: Vec::new() };
        let error_detail = message.map(of_error);
        let request = DiscoveryRequest {
            type_url: CLUSTER.into(),
            response_nonce: response.unwrap().unwrap().nonce,
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    /// A type that is too long ends the stream.
    async fn subscribe(&self, type_url: &str) {
        let request = DiscoveryRequest { type_url: type_url.into(), ..DiscoveryRequest::default() };
        self.requests.send(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_no_line_of_the_log_is_long_whatever_a_client_says() {
    let scratch = Scratch::with_cluster("long-lines");
    let serving = Serving::start(
        scratch.xds("serve").args(["--listen", "127.0.0.1:0"]).env("RUST_LOG", "xds=debug,xds_server=debug"),
    );
    let huge = "x".repeat(900_000);
    let node = Node {
        id: format!("edge-{huge}"),
        cluster: huge.clone(),
        user_agent_name: huge.clone(),
        ..Node::default()
    };
    let mut client = Rejecting::new(&serving, node).await;
    client.reject(&huge).await;
    let mut lines = serving.until("NACK: a client rejected");
    assert!(lines.last().unwrap().contains("node=\"edge-xxx"));
    // A malformed request, and an invalid type.
    client.subscribe(&format!("a/{huge}")).await;
    lines.extend(serving.until("stream ended"));
    for line in lines {
        assert!(line.len() < 8 << 10, "{} bytes: {line:.200}", line.len());
    }
}

/// Regression: the reason in the line of a refused rollout was raw, so a client could write lines of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_hides_nothing_and_forges_no_line_wherever_it_is_shown() {
    const HOSTILE: &str = "x\n2026-01-01T00:00:00Z ERROR forged\r\x1b[2J\t\u{202e}\u{2028}\u{feff}";
    let (scratch, state) = (Scratch::with_cluster("forged"), Scratch::new("forged-state"));
    let state = state.0.to_str().unwrap();
    let mut command = scratch.xds("serve");
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--rollout", "2 clients, 100%"]);
    command.args(["--rollout-wait", "1h", "--rollout-state", state]);
    let serving = Serving::start(command.env("RUST_LOG", "xds=debug,xds_server=debug,xds_core=debug"));
    let address = serving.address();
    let admin = serving.until("admin page on http://").pop().unwrap();
    let admin: SocketAddr = admin.rsplit_once("http://").unwrap().1.trim_end_matches('/').parse().unwrap();
    let value = Value { kind: Some(Kind::StringValue(HOSTILE.into())) };
    let metadata = Struct { fields: [(HOSTILE.to_owned(), value.clone()), ("env".into(), value)].into() };
    let node = Node {
        id: HOSTILE.into(),
        cluster: HOSTILE.into(),
        user_agent_name: HOSTILE.into(),
        metadata: Some(metadata),
        ..Node::default()
    };
    let mut client = Rejecting::connect(address, node).await;
    client.answer(None).await;
    let mut lines = serving.until("ACK");
    scratch.write("a.yaml", cluster("a") + "alt_stat_name: other\n");
    lines.extend(serving.until("a rollout began"));
    client.answer(Some(HOSTILE)).await;
    lines.extend(serving.until("the change is refused; clients that tried it are sent what they had"));
    assert!(lines.last().unwrap().contains(r#"reason=""#), "{lines:#?}");

    let mut texts = Vec::new();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_xds")).args(arguments).output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat()
    };
    let server = address.to_string();
    for format in ["text", "json"] {
        let get = ["get", "CDS", "--server", &server, "--as-client", HOSTILE, "--format", format];
        texts.push((format!("get {format}"), run(&get)));
    }
    texts.push(("rollout status".to_owned(), run(&["rollout", "status", state])));
    for path in ["clients", "troubles", "rollout", "commits", "resources", ""] {
        let answer =
            ask(admin, &format!("GET /api/{path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n"));
        let answer = answer.unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        texts.push((format!("/api/{path}"), body.to_owned()));
    }
    // A type that nobody has, and one that is too long.
    client.subscribe(&format!("a/{HOSTILE}")).await;
    client.subscribe(&format!("a/{HOSTILE}{}", "x".repeat(900_000))).await;
    lines.extend(serving.until("stream ended"));
    texts.push(("log".to_owned(), lines.join("\n")));
    for name in ["get json", "rollout status", "/api/clients", "/api/troubles", "log"] {
        let (_, text) = texts.iter().find(|(of, _)| of == name).unwrap();
        assert!(text.contains("forged"), "{name} shows what the client says: {text}");
    }
    for (name, text) in &texts {
        let is_hidden = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{2028}\u{feff}".contains(c));
        assert!(!text.contains(is_hidden), "{name}: {text:?}");
        let is_forged = |line: &str| line.trim_start().starts_with("2026-01-01T00:00:00Z");
        assert!(!text.lines().any(is_forged), "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_many_clients_that_reject_the_same_are_one_line_and_later_a_sum() {
    let scratch = Scratch::with_cluster("many-reject");
    let serving = scratch.serve(&[]);
    let (address, mut clients) = (serving.address(), Vec::new());
    for number in 0..400 {
        let node = Node { id: format!("edge-{number}"), ..Node::default() };
        let mut client = Rejecting::connect(address, node).await;
        client.reject("a is bad").await;
        clients.push(client);
        if number == 0 {
            let lines = serving.until("NACK: a client rejected");
            let line = lines.last().unwrap();
            let example = "node=\"edge-0\" cluster=\"\" identity=\"\" \
                           type=\"envoy.config.cluster.v3.Cluster\" resources=\"a version ";
            assert!(line.contains(example) && line.ends_with("detail=\"a is bad\""), "{line}");
        }
    }
    // On a slow machine the first sum may lack some.
    let lines = serving.until("clients=400 ");
    let sums: Vec<_> = lines.iter().filter(|line| line.contains("NACK")).collect();
    let nacks = |line: &&String| -> usize {
        let (_, rest) = line.split_once(" more_nacks=").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(sums.len() < 4 && sums.iter().map(nacks).sum::<usize>() == 399, "{sums:#?}");
    assert!(sums.iter().all(|line| line.contains("NACK: more rejections")), "{sums:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_level_of_a_running_server_changes_by_signals_and_libraries_stay_silent() {
    let scratch = Scratch::with_cluster("level-signals");
    let serving = scratch.serve(&[]);
    let (address, node) = (serving.address(), Node { id: "edge".into(), ..Node::default() });
    let reject = async |message: &str| {
        let mut client = Rejecting::connect(address, node.clone()).await;
        client.reject(message).await;
        client
    };
    let _first = reject("no 1").await;
    let before = serving.until("no 1");
    serving.signal("-USR1");
    serving.until("SIGUSR1: the log level is debug now");
    let _second = reject("no 2").await;
    let raised = serving.until("no 2");
    serving.signal("-USR2");
    let mut end = serving.until("SIGUSR2: the log level is the configured one again");
    let _third = reject("no 3").await;
    end.extend(serving.until("no 3").into_iter().skip(1));
    let debug = |lines: &[String]| lines.iter().any(|line| line.contains("DEBUG stream opened"));
    assert_eq!([&before, &raised].map(|lines| debug(lines)), [false, true], "{raised:#?}");
    assert!(!end.last().unwrap().contains("DEBUG"), "{end:#?}");
    assert!(!raised.iter().any(|line| line.contains("frame") || line.contains("hyper")), "{raised:#?}");
}

#[test]
fn an_invalid_level_is_an_error_at_the_start() {
    let scratch = Scratch::with_cluster("invalid-level");
    for command in ["serve", "check"] {
        let mut xds = scratch.xds(command);
        let output = xds.env("RUST_LOG", "info,xds_server=verbose").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        if command == "check" {
            assert_eq!(output.status.code(), Some(0), "it logs nothing: {text}");
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{text}");
        let start = "error: RUST_LOG: \"xds_server=verbose\" has no level after `=`; write a level (off, ";
        assert!(text.starts_with(start), "{text}");
    }
}

/// Sends one request on its own connection.
fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    write!(stream, "{request}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up_and_says_later_what_is_missing() {
    let scratch = Scratch::with_cluster("unread-log");
    let mut command = scratch.xds("serve");
    command.args(["--listen", "127.0.0.1:0"]).env("RUST_LOG", "xds=debug,warn");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let mut serving = Serving { child, lines };
    let (stdout, stderr) = (serving.child.stdout.take().unwrap(), serving.child.stderr.take().unwrap());
    let read = |output: Box<dyn Read + Send>, sender: std::sync::mpsc::Sender<String>| {
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| _ = sender.send(line));
        })
    };
    read(Box::new(stdout), sender.clone());
    let address = serving.address();
    let admin = serving.admin();
    // Each is a line of 100 bytes and more, and what nobody reads of a pipe is 64 KiB at most.
    let bad = "POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{";
    let last =
        "POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    for _ in 0..60 {
        let answer = ask(address, &(bad.repeat(100) + last)).expect("it is served");
        assert!(answer.contains("HTTP/1.1 200"), "{answer:.200}");
    }
    let metrics = ask(admin, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("xds_log_lines_dropped_total "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{dropped:?}");
    read(Box::new(stderr), sender);
    serving.until("log lines were dropped");
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
}
