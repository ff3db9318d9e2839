//! `--ack canary` over sockets: an origin, a proxy and three clients.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::client::bootstrap::Bootstrap;
use xds::client::proxy::{Proxy, ProxyConfig};
use xds::{
    Cache, Constraints, Event, Observer, Resource, Server, ServerConfig, StreamClient, Transaction, Verdict,
};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, ResourceLocator,
};
use xds_proto::google::rpc::Status;

const THING: &str = "type.googleapis.com/acme.Thing";
const SOON: Duration = Duration::from_secs(20);

/// The messages of NACKs that a server received.
#[derive(Debug, Default)]
struct Rejected(Mutex<Vec<String>>);

impl Observer for Rejected {
    fn on_event(&self, _: &StreamClient, event: Event<'_>) {
        if let Event::Answered(Verdict::Nacked { detail, .. }) = event {
            self.0.lock().unwrap().push(detail.clone());
        }
    }
}

async fn serve(cache: &Arc<Cache>, observer: Option<Arc<dyn Observer>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server =
        Server::new(Arc::clone(cache)).with_config(ServerConfig { observer, ..ServerConfig::default() });
    tokio::spawn(server.serve(listener, std::future::pending()));
    uri
}

fn put(cache: &Cache, content: &str) {
    let resource = Resource::new(THING, "r", content.to_owned()).unwrap();
    let mut transaction = Transaction::new();
    transaction.put(resource.with_constraints("env=a".parse::<Constraints>().unwrap()));
    cache.commit(transaction).unwrap();
}

/// A delta client of one locator.
struct Leaf {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Leaf {
    async fn new(uri: &str, pod: usize) -> Self {
        let channel = Channel::from_shared(uri.to_owned()).unwrap().connect().await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let (requests, receiver) = mpsc::channel(8);
        let parameters = [("env".to_owned(), "a".to_owned()), ("pod".to_owned(), pod.to_string())];
        let locator = ResourceLocator { name: "r".to_owned(), dynamic_parameters: parameters.into() };
        let node = Some(Node { id: format!("pod-{pod}"), ..Node::default() });
        let request = DeltaDiscoveryRequest {
            node,
            type_url: THING.into(),
            resource_locators_subscribe: vec![locator],
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).await.unwrap();
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    /// Content and nonce of the next response.
    async fn next(&mut self) -> (String, String) {
        let response = self.responses.message().await.unwrap().unwrap();
        assert!(response.removed_resources.is_empty() && response.resource_errors.is_empty(), "{response:?}");
        let [resource] = &response.resources[..] else { panic!("{response:?}") };
        (String::from_utf8(resource.resource.clone().unwrap().value.to_vec()).unwrap(), response.nonce)
    }

    async fn answer(&self, nonce: String, error: Option<&str>) {
        let error_detail =
            error.map(|message| Status { code: 3, message: message.into(), details: Vec::new() });
        let request = DeltaDiscoveryRequest {
            type_url: THING.into(),
            response_nonce: nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

/// Which client is sent a response first, and its content.
async fn first(leaves: &mut [Leaf; 3]) -> (usize, String, String) {
    let [one, two, three] = leaves;
    let (at, (content, nonce)) = timeout(SOON, async {
        tokio::select! {
            got = one.next() => (0, got),
            got = two.next() => (1, got),
            got = three.next() => (2, got),
        }
    })
    .await
    .unwrap();
    (at, content, nonce)
}

#[tokio::test(flavor = "multi_thread")]
async fn t45_what_a_canary_rejects_is_rejected_upstream_and_nobody_else_is_sent_it() {
    let origin = Cache::new();
    put(&origin, "A");
    let rejected = Arc::new(Rejected::default());
    let origin_uri = serve(&origin, Some(Arc::clone(&rejected) as Arc<dyn Observer>)).await;
    let config = ProxyConfig { canaries: 1, ..ProxyConfig::default() };
    let proxy = Proxy::builder(Bootstrap::to_server(origin_uri)).config(config).start().unwrap();
    let uri = serve(proxy.cache(), None).await;
    let mut leaves = [Leaf::new(&uri, 0).await, Leaf::new(&uri, 1).await, Leaf::new(&uri, 2).await];
    // The canary answers, and then the other clients get it.
    for _ in 0..3 {
        let (at, content, nonce) = first(&mut leaves).await;
        assert_eq!(content, "A");
        leaves[at].answer(nonce, None).await;
    }

    put(&origin, "bad");
    let (at, content, nonce) = first(&mut leaves).await;
    assert_eq!(content, "bad");
    leaves[at].answer(nonce, Some("no such port")).await;
    let (content, nonce) = timeout(SOON, leaves[at].next()).await.unwrap();
    assert_eq!(content, "A", "what it had before");
    leaves[at].answer(nonce, None).await;
    timeout(SOON, async {
        while rejected.0.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let messages = rejected.0.lock().unwrap().clone();
    assert_eq!(
        messages,
        [format!("\"r\" [env=a]: client \"pod-{at}\" of the proxy rejected it: no such port")]
    );

    put(&origin, "B");
    let (at, content, nonce) = first(&mut leaves).await;
    assert_eq!(content, "B", "nobody else was sent what was rejected");
    leaves[at].answer(nonce, None).await;
    for (_, leaf) in leaves.iter_mut().enumerate().filter(|(other, _)| *other != at) {
        assert_eq!(timeout(SOON, leaf.next()).await.unwrap().0, "B");
    }
    let counts = proxy.counts();
    assert_eq!(counts.refused_by_clients, 1);
}
