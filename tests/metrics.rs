//! The values of `/metrics` after clients subscribed, ACKed and NACKed, over sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use xds::metrics::{Metrics, Registry, routes};
use xds::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};
use xds::{Cache, Resource, Revision, Server, ServerConfig, Transaction};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

#[path = "metrics/binary.rs"]
mod binary;
#[path = "metrics/scrape.rs"]
mod scrape;

use scrape::{Scrape, scrape, until};

/// A server with its metrics on another port.
struct Served {
    cache: Arc<Cache>,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl Served {
    async fn new(mut config: ServerConfig) -> Self {
        let cache = Cache::new();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, &cache);
        tokio::spawn(metrics.measure(&cache));
        config.add_observer(metrics);
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (listener, admin) = (bind().await, bind().await);
        let (address, metrics) = (listener.local_addr().unwrap(), admin.local_addr().unwrap());
        let server = Server::new(Arc::clone(&cache)).with_config(config);
        tokio::spawn(server.serve(listener, std::future::pending()));
        tokio::spawn(xds::admin::serve(admin, routes(registry), [""; 0].into_iter().collect(), None));
        Self { cache, address, metrics }
    }

    fn put(&self, type_url: &str, name: &str, content: u8) {
        let mut transaction = Transaction::new();
        // The name is field 1; the other field is unknown and distinguishes contents.
        let mut payload = vec![0x0a, name.len() as u8];
        payload.extend(name.as_bytes());
        payload.extend([0xa0, 0x06, content]);
        transaction.put(Resource::new(type_url, name, payload).unwrap());
        self.cache.commit(transaction).unwrap();
    }

    async fn client(&self, id: &'static str) -> Client {
        Client::new(self.address, id).await
    }
}

/// A delta stream.
struct Client {
    id: &'static str,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
    received_bytes: usize,
}

impl Client {
    async fn new(address: SocketAddr, id: &'static str) -> Self {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let (requests, receiver) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { id, requests, responses: responses.into_inner(), received_bytes: 0 }
    }

    async fn send(&self, request: DeltaDiscoveryRequest) {
        let node = Some(Node { id: self.id.into(), cluster: "edge".into(), ..Node::default() });
        self.requests.send(DeltaDiscoveryRequest { node, ..request }).await.unwrap();
    }

    async fn ask(&self, type_url: &str, names: &[&str]) {
        let resource_names_subscribe = names.iter().map(|name| (*name).to_owned()).collect();
        let type_url = type_url.to_owned();
        self.send(DeltaDiscoveryRequest { type_url, resource_names_subscribe, ..Default::default() }).await;
    }

    async fn receive(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let response = tokio::time::timeout(SOON, self.responses.message()).await.expect("soon")?;
        let response = response.expect("the server does not end the stream");
        self.received_bytes += response.encoded_len();
        Ok(response)
    }

    async fn answer(&self, to: &DeltaDiscoveryResponse, error: Option<&str>) {
        let error_detail = error.map(|message| xds_proto::google::rpc::Status {
            code: 3,
            message: message.to_owned(),
            details: Vec::new(),
        });
        let (type_url, response_nonce) = (to.type_url.clone(), to.nonce.clone());
        self.send(DeltaDiscoveryRequest { type_url, response_nonce, error_detail, ..Default::default() })
            .await;
    }
}

#[tokio::test]
async fn streams_answers_commits_and_propagation_are_counted() {
    let served = Served::new(ServerConfig::default()).await;
    let clusters = r#"{type="envoy.config.cluster.v3.Cluster"}"#;
    served.put(CLUSTER, "a", 1);
    let (mut accepts, mut rejects) = (served.client("accepts").await, served.client("rejects").await);
    for client in [&mut accepts, &mut rejects] {
        client.ask(CLUSTER, &["a"]).await;
        let first = client.receive().await.unwrap();
        client.answer(&first, None).await;
    }
    let acks = format!("xds_server_acks_total{clusters}");
    until(served.metrics, "both ACKs", |seen| seen.value(&acks) == 2.0).await;

    served.put(CLUSTER, "a", 2);
    let second = accepts.receive().await.unwrap();
    accepts.answer(&second, None).await;
    let second = rejects.receive().await.unwrap();
    rejects.answer(&second, Some("no")).await;
    let propagated = format!("xds_propagation_seconds_count{clusters}");
    let seen = until(served.metrics, "one ACK of the commit", |seen| {
        seen.value(&propagated) == 1.0 && seen.value(&format!("xds_server_nacks_total{clusters}")) == 1.0
    })
    .await;
    assert_eq!(clients(&seen), [1.0, 1.0, 0.0, 0.0, 0.0]);

    served.put(CLUSTER, "a", 3);
    served.put(CLUSTER, "a", 3);
    let mut late = Transaction::new();
    late.require(Revision::ZERO);
    served.cache.commit(late).unwrap_err();
    let third = accepts.receive().await.unwrap();
    accepts.answer(&third, None).await;
    until(served.metrics, "two ACKs", |seen| seen.value(&propagated) == 2.0).await;
    let third = rejects.receive().await.unwrap();
    let seen = scrape(served.metrics).await;
    assert_eq!(clients(&seen), [1.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(seen.value(r#"xds_cache_answers_awaited{state="pending"}"#), 1.0);
    drop(third);

    let ads = r#"service="envoy.service.discovery.v3.AggregatedDiscoveryService""#;
    let expected = [
        (format!("xds_server_streams{{{ads},protocol=\"delta\"}}"), 2.0),
        (format!("xds_server_responses_total{clusters}"), 6.0),
        (
            format!("xds_server_response_bytes_total{clusters}"),
            (accepts.received_bytes + rejects.received_bytes) as f64,
        ),
        (acks, 4.0),
        (format!("xds_server_nacks_total{clusters}"), 1.0),
        (format!("xds_cache_resources{clusters}"), 1.0),
        (format!("xds_cache_variants{clusters}"), 1.0),
        (format!("xds_cache_subscriptions{clusters}"), 2.0),
        (format!("xds_cache_classes{clusters}"), 1.0),
        (format!("xds_cache_subscribed_names{clusters}"), 1.0),
        (r#"xds_cache_commits_total{outcome="changed"}"#.to_owned(), 3.0),
        (r#"xds_cache_commits_total{outcome="unchanged"}"#.to_owned(), 1.0),
        (r#"xds_cache_commits_refused_total{reason="superseded"}"#.to_owned(), 1.0),
        (r#"xds_cache_commits_refused_total{reason="ambiguous"}"#.to_owned(), 0.0),
        (r#"xds_propagation_lost_total{what="answers"}"#.to_owned(), 0.0),
    ];
    for (sample, value) in expected {
        assert_eq!(seen.value(&sample), value, "{sample}");
    }
    let took = seen.value(&format!("xds_propagation_seconds_sum{clusters}"));
    assert!(took > 0.0 && took < SOON.as_secs_f64(), "{took}");
}

/// How many clients the newest commit has in each state.
fn clients(seen: &Scrape) -> [f64; 5] {
    ["acked", "nacked", "pending", "late", "gone"]
        .map(|state| seen.value(&format!("xds_cache_newest_commit_clients{{state=\"{state}\"}}")))
}

#[tokio::test]
async fn limits_and_mistakes_of_clients_are_counted() {
    let mut config = ServerConfig::default();
    config.stream.names_limit = 2;
    let served = Served::new(config).await;
    served.put(CLUSTER_LOAD_ASSIGNMENT, "a", 1);
    let mut greedy = served.client("greedy").await;
    greedy.ask(CLUSTER_LOAD_ASSIGNMENT, &["a", "b", "c"]).await;
    assert_eq!(greedy.receive().await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    let mut mute = served.client("mute").await;
    mute.ask("", &[]).await;
    assert_eq!(mute.receive().await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let ended = r#"xds_server_streams_ended_total{code="InvalidArgument"}"#;
    let seen = until(served.metrics, "the end", |seen| seen.value(ended) == 1.0).await;
    let expected = [
        (r#"xds_server_limits_hit_total{limit="names"}"#, 1.0),
        (r#"xds_server_limits_hit_total{limit="streams"}"#, 0.0),
        (r#"xds_server_streams_refused_total{reason="limit"}"#, 1.0),
        (r#"xds_server_streams_refused_total{reason="missing_type_url"}"#, 1.0),
        (r#"xds_server_streams_ended_total{code="ResourceExhausted"}"#, 1.0),
    ];
    for (sample, value) in expected {
        assert_eq!(seen.value(sample), value, "{sample}");
    }
}

#[tokio::test]
async fn a_client_that_invents_types_makes_one_label_of_them_all() {
    let mut config = ServerConfig::default();
    config.stream.types_limit = 2000;
    let served = Served::new(config).await;
    served.put("example.com/acme.Thing", "a", 1);
    let mut client = served.client("inventive").await;
    client.ask("example.com/acme.Thing", &["a"]).await;
    let first = client.receive().await.unwrap();
    client.answer(&first, None).await;
    let own = r#"xds_server_acks_total{type="example.com/acme.Thing"}"#;
    let before = until(served.metrics, "the ACK", |seen| seen.value(own) == 1.0).await;
    let samples = before.len();
    let asking = async {
        for number in 0..1000 {
            client.ask(&format!("example.com/acme.Invented{number}"), &["a"]).await;
        }
    };
    asking.await;
    let others = r##"xds_cache_subscriptions{type="#other"}"##;
    let after = until(served.metrics, "all types", |seen| seen.value(others) == 1000.0).await;
    let added: BTreeSet<_> = after.labels("type").difference(&before.labels("type")).cloned().collect();
    assert!(added.iter().all(|label| label == "#other"), "{added:?}");
    assert!(after.len() <= samples + 40, "{} samples, then {}", samples, after.len());
}

const SOON: Duration = Duration::from_secs(20);
