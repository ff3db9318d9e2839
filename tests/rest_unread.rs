//! Clients that poll over REST and do not read their answers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "rest", target_os = "linux"))]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::folder::Descriptors;
use xds::rest::{self, Answers, RestConfig};
use xds::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};
use xds::{Cache, Resource, Server, Transaction};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

/// Commits clusters of 1 MB each, most of it `alt_stat_name`.
fn put_clusters(cache: &Cache, count: usize) {
    let mut transaction = Transaction::new();
    for number in 0..count {
        let name = format!("c-{number:02}");
        let mut payload = [&[0x0a, 4], name.as_bytes(), &[0xe2, 0x01, 0xc0, 0x84, 0x3d]].concat();
        payload.resize(payload.len() + 1_000_000, b'x');
        transaction.put(Resource::new(CLUSTER, name.as_str(), payload).unwrap());
    }
    cache.commit(transaction).unwrap();
}

fn put_endpoints(cache: &Cache, generation: u8) {
    let payload = vec![0x0a, 1, b'e', 0x22, 2, 0x08, generation];
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(CLUSTER_LOAD_ASSIGNMENT, "e", payload).unwrap());
    cache.commit(transaction).unwrap();
}

async fn serve(cache: &Arc<Cache>, config: RestConfig) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = rest::routes(Arc::clone(cache), Arc::new(Descriptors::envoy()), config);
    tokio::spawn(Server::new(Arc::clone(cache)).with_routes(routes).serve(listener, std::future::pending()));
    address
}

/// A client that polls and reads nothing. The beginning of its answer waits in the socket.
async fn unread(address: SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (path, length) = ("/v3/discovery:clusters", body.len());
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The resident memory of this process, which contains the server and the clients.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// A client that subscribes to endpoints on a stream.
struct Healthy(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>);

impl Healthy {
    async fn new(address: SocketAddr) -> Self {
        let (sender, requests) = mpsc::channel(4);
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let request = DiscoveryRequest {
            type_url: CLUSTER_LOAD_ASSIGNMENT.into(),
            resource_names: vec!["e".into()],
            ..DiscoveryRequest::default()
        };
        sender.send(request).await.unwrap();
        let stream = client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
        Self(sender, stream.into_inner())
    }

    /// The next update, which comes within 2 s.
    async fn update(&mut self) {
        let update = timeout(Duration::from_secs(2), self.1.message()).await.expect("an update within 2 s");
        let response = update.unwrap().unwrap();
        let ack = DiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            resource_names: vec!["e".into()],
            ..DiscoveryRequest::default()
        };
        self.0.send(ack).await.unwrap();
    }
}

/// This many clients poll for 20 MB and read nothing, while another client gets its updates. `body`
/// is the request of each client, so they may poll for the same resources or for others.
async fn attack(clients: usize, body: impl Fn(usize) -> String, resident_limit: usize) {
    // One test at a time: the memory belongs to the process.
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let cache = Cache::new();
    put_clusters(&cache, 20);
    put_endpoints(&cache, 0);
    let answers = Answers::new(64 << 20);
    let config = RestConfig { answers: Arc::clone(&answers), ..RestConfig::default() };
    let address = serve(&cache, config).await;
    let mut healthy = Healthy::new(address).await;
    healthy.update().await;
    let before = resident_bytes();
    let mut streams = Vec::new();
    for number in 0..clients {
        streams.push(unread(address, &body(number)).await);
    }
    put_endpoints(&cache, 1);
    healthy.update().await;
    for stream in &streams {
        timeout(Duration::from_secs(60), stream.readable()).await.expect("an answer or a refusal").unwrap();
    }
    let resident = resident_bytes().saturating_sub(before);
    println!("{} MB more are resident", resident >> 20);
    assert!(resident < resident_limit, "{} MB more are resident", resident >> 20);
    assert!(answers.bytes() <= 64 << 20);
    put_endpoints(&cache, 2);
    healthy.update().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s41_g11_unread_answers_of_the_same_are_one_answer() {
    // 20 MB to convert, 20 MB of text and what each connection buffers.
    attack(60, |_| "{}".to_owned(), 200 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s41_g9_unread_answers_of_different_content_stay_within_the_budget() {
    // Each client leaves out another cluster.
    let names = |left_out: usize| {
        let names: Vec<_> =
            (0..20).filter(|it| *it != left_out % 20).map(|it| format!("\"c-{it:02}\"")).collect();
        format!("{{\"resource_names\": [{}]}}", names.join(","))
    };
    attack(40, names, 250 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g11_an_answer_that_is_not_read_in_time_is_given_up_and_its_connection_ends() {
    let cache = Cache::new();
    put_clusters(&cache, 20);
    let config = RestConfig { answer_timeout: Duration::from_millis(500), ..RestConfig::default() };
    let answers = Arc::clone(&config.answers);
    let address = serve(&cache, config).await;
    let mut stream = unread(address, "{}").await;
    let given_up = async {
        while answers.given_up() == 0 || answers.bytes() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), given_up).await.expect("the answer is given up");
    let mut read = Vec::new();
    _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut read)).await.expect("the connection ends");
    assert!(read.len() < 20_000_000, "all of it came: {}", read.len());
}
