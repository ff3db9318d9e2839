//! REST polling over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "rest")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use xds::folder::Descriptors;
use xds::rest::{self, RestConfig};
use xds::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};
use xds::{Cache, Resource, ServeError, Server, Transaction, VariantId};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

/// Commits a message with its name in field 1 and more bytes in field 2.
fn put(cache: &Cache, type_url: &str, name: &str, rest: &[u8]) {
    let payload = [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes(), rest].concat();
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(type_url, name, payload).unwrap());
    cache.commit(transaction).unwrap();
}

/// `connect_timeout` of a cluster, in seconds.
fn timeout(seconds: u8) -> [u8; 4] {
    [0x22, 2, 0x08, seconds]
}

struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), ServeError>>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    fn version(&self) -> String {
        self.json()["versionInfo"].as_str().unwrap().to_owned()
    }

    /// The names of the resources, or the status if it is not 200.
    fn names(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        let resources = self.json()["resources"].as_array().unwrap().clone();
        let name = |it: &Value| it.get("name").or_else(|| it.get("clusterName")).cloned().unwrap();
        resources.iter().map(|it| name(it).as_str().unwrap().to_owned()).collect()
    }
}

impl Running {
    async fn new(cache: &Arc<Cache>) -> Self {
        Self::with(cache, RestConfig::default()).await
    }

    async fn with(cache: &Arc<Cache>, config: RestConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let routes = rest::routes(Arc::clone(cache), Arc::new(Descriptors::envoy()), config);
        let server = Server::new(Arc::clone(cache)).with_routes(routes);
        let server = tokio::spawn(server.serve(listener, async { _ = stopped.await }));
        Self { address, stop: Some(stop), server }
    }

    /// One HTTP/1.1 request on a new connection.
    async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with("", method, path, body).await
    }

    /// The same with one more header line.
    async fn ask_with(&self, line: &str, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{line}connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses a body need not read it.
        _ = stream.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        _ = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("an answer within 10 s");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    async fn poll(&self, what: &str, request: Value) -> Answer {
        self.ask("POST", &format!("/v3/discovery:{what}"), &request.to_string()).await
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }
}

#[tokio::test]
async fn s41_a_poll_is_answered_with_json_and_an_equal_version_with_304() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "b", &timeout(2));
    put(&cache, CLUSTER, "a", &timeout(1));
    let server = Running::new(&cache).await;
    let first = server.poll("clusters", json!({})).await;
    assert_eq!(first.status, 200);
    assert!(first.head.contains("content-type: application/json"), "{}", first.head);
    let expected = json!({
        "versionInfo": first.version(),
        "typeUrl": CLUSTER,
        "resources": [
            { "@type": CLUSTER, "name": "a", "connectTimeout": "1s" },
            { "@type": CLUSTER, "name": "b", "connectTimeout": "2s" },
        ],
    });
    assert_eq!(first.json(), expected);

    let again = server.poll("clusters", json!({ "version_info": first.version() })).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    // A change for other clients only is no change here.
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", &[]);
    assert_eq!(server.poll("clusters", json!({ "versionInfo": first.version() })).await.status, 304);

    put(&cache, CLUSTER, "a", &timeout(3));
    let changed = server.poll("clusters", json!({ "version_info": first.version() })).await;
    assert_eq!(changed.names(), ["a", "b"]);
    assert_ne!(changed.version(), first.version());
}

#[tokio::test]
async fn s31_s41_the_version_is_that_of_a_stream_and_of_a_replica() {
    let (one, other) = (Cache::new(), Cache::new());
    for name in ["a", "b"] {
        put(&one, CLUSTER, name, &timeout(1));
    }
    for name in ["b", "passing", "a"] {
        put(&other, CLUSTER, name, &timeout(1));
    }
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(CLUSTER, "passing"));
    other.commit(transaction).unwrap();
    let (one, other) = (Running::new(&one).await, Running::new(&other).await);
    let version = one.poll("clusters", json!({})).await.version();
    assert_eq!(other.poll("clusters", json!({ "version_info": version })).await.status, 304);

    let request = DiscoveryRequest { type_url: CLUSTER.into(), ..DiscoveryRequest::default() };
    let mut client = AggregatedDiscoveryServiceClient::new(one.channel().await);
    let stream = client.stream_aggregated_resources(tokio_stream::iter([request])).await.unwrap();
    let response: DiscoveryResponse = stream.into_inner().message().await.unwrap().unwrap();
    assert_eq!(response.version_info, version);
}

#[tokio::test]
async fn s17_s41_a_poll_for_what_is_missing_is_answered_with_nothing() {
    let cache = Cache::new();
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", &[]);
    let server = Running::new(&cache).await;
    let missing = server.poll("endpoints", json!({ "resource_names": ["b"] })).await;
    assert!(missing.names().is_empty());
    let again = json!({ "resource_names": ["b"], "version_info": missing.version() });
    assert_eq!(server.poll("endpoints", again.clone()).await.status, 304);
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "b", &[]);
    let found = server.poll("endpoints", again).await;
    assert_eq!(found.names(), ["b"]);
    // Removed again: a stream sends nothing (S26), but a poll gets the version of an empty state.
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(CLUSTER_LOAD_ASSIGNMENT, "b"));
    cache.commit(transaction).unwrap();
    let gone =
        server.poll("endpoints", json!({ "resource_names": ["b"], "version_info": found.version() })).await;
    assert!(gone.names().is_empty());
    assert_eq!(gone.version(), missing.version());
}

#[tokio::test]
async fn a_web_page_whose_name_points_here_reads_nothing() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", &timeout(1));
    let server = Running::new(&cache).await;
    let path = "/v3/discovery:clusters";
    // For the browser, the page has the same origin.
    for origin in ["origin: http://x\r\n", "origin: null\r\n"] {
        let answer = server.ask_with(origin, "POST", path, "{}").await;
        assert_eq!(answer.status, 403, "{}", answer.body);
        assert!(answer.body.contains("Origin"), "{}", answer.body);
    }
    assert_eq!(server.ask("POST", path, "{}").await.status, 200);
}

#[tokio::test]
async fn s41_what_is_wrong_with_a_request_is_said_with_its_status() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", &timeout(1));
    let mut config = RestConfig::default();
    config.server.request_limit_bytes = 1000;
    let server = Running::with(&cache, config).await;
    let path = "/v3/discovery:clusters";
    for (method, path, body, status, text) in [
        ("POST", path, "{", 400, "not a DiscoveryRequest in JSON"),
        ("POST", path, r#"{"resource_names": "a"}"#, 400, "line 1 column"),
        (
            "POST",
            path,
            r#"{"type_url": "x/y"}"#,
            400,
            "serves type.googleapis.com/envoy.config.cluster.v3.Cluster",
        ),
        ("POST", path, r#"{"resource_names": ["\u0001"]}"#, 400, "no requested name is valid"),
        ("POST", path, &format!("{{{}}}", " ".repeat(1000)), 413, "limit of 1000 bytes"),
        ("GET", path, "", 405, ""),
        ("POST", "/v3/discovery:nothing", "{}", 404, "/v3/discovery:nothing"),
        ("POST", "/v3/discovery:virtual_hosts", "{}", 404, ""),
    ] {
        let answer = server.ask(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        assert!(answer.body.contains(text), "{method} {path} {body}: {}", answer.body);
        if matches!(status, 400 | 413) {
            let code = if status == 400 { 3 } else { 8 };
            assert_eq!(answer.json()["code"], code);
        }
    }
    assert_eq!(server.poll("clusters", json!({ "type_url": CLUSTER })).await.names(), ["a"]);
}

#[tokio::test]
async fn g13_s41_before_the_first_commit_a_poll_is_told_to_come_back() {
    let cache = Cache::new();
    let server = Running::new(&cache).await;
    let asked_at = Instant::now();
    let answer = server.poll("clusters", json!({})).await;
    assert!(asked_at.elapsed() >= RestConfig::default().sync_wait);
    assert_eq!((answer.status, &answer.json()["code"]), (503, &json!(14)));
    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
}

#[tokio::test]
async fn s41_a_long_poll_is_held() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", &timeout(1));
    let config = RestConfig { hold: Duration::from_millis(300), ..RestConfig::default() };
    let server = Running::with(&cache, config).await;
    let version = server.poll("clusters", json!({})).await.version();
    let asked_at = Instant::now();
    assert_eq!(server.poll("clusters", json!({ "version_info": version })).await.status, 304);
    assert!(asked_at.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn g14_s41_a_shutdown_answers_polls_that_are_held() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", &timeout(1));
    let config = RestConfig { hold: Duration::from_secs(60), ..RestConfig::default() };
    let mut server = Running::with(&cache, config).await;
    let version = server.poll("clusters", json!({})).await.version();
    let stop = server.stop.take().unwrap();
    let stopping = async {
        // Nothing shows that a poll is waiting; a refused connection would fail the test.
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send(()).unwrap();
        Instant::now()
    };
    let poll = server.poll("clusters", json!({ "version_info": version }));
    let (answer, stopped_at) = tokio::join!(poll, stopping);
    assert_eq!(answer.status, 304);
    server.server.await.unwrap().unwrap();
    assert!(stopped_at.elapsed() < Duration::from_secs(3), "the drain did not wait for the poll");
}

#[tokio::test]
async fn s41_http_2_polls_on_the_connection_of_streams() {
    use http_body_util::BodyExt as _;

    let cache = Cache::new();
    put(&cache, CLUSTER, "a", &timeout(1));
    let server = Running::new(&cache).await;
    let mut channel = server.channel().await;
    let uri = format!("http://{}/v3/discovery:clusters", server.address);
    let request = http::Request::post(uri).body(tonic::body::Body::new("{}".to_owned())).unwrap();
    std::future::poll_fn(|cx| tonic::codegen::Service::poll_ready(&mut channel, cx)).await.unwrap();
    let response = tonic::codegen::Service::call(&mut channel, request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["resources"][0]["name"], "a");
}
