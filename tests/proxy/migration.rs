//! V29 behind proxies, over sockets: a migration of keys without a change of payloads is no change
//! for clients that subscribe by name.

use std::sync::Arc;

use prost_types::{Struct, Value, value::Kind};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::client::bootstrap::Bootstrap;
use xds::client::proxy::Proxy;
use xds::{Cache, Constraints, Resource, Server, Transaction, VariantId};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, ResourceLocator,
};

use super::SOON;

const THING: &str = "type.googleapis.com/acme.Thing";

async fn serve(cache: &Arc<Cache>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(Server::new(Arc::clone(cache)).serve(listener, std::future::pending()));
    uri
}

async fn connect(uri: &str) -> Channel {
    Channel::from_shared(uri.to_owned()).unwrap().connect().await.unwrap()
}

fn constraints(when: &str) -> Constraints {
    when.parse().unwrap()
}

/// Replaces the variants of `r` by these.
fn put(cache: &Cache, gone: &[&str], variants: &[(&str, &str)]) {
    let mut transaction = Transaction::new();
    for when in gone {
        let constraints = constraints(when);
        transaction.remove(VariantId { type_url: THING.into(), name: "r".into(), constraints });
    }
    for (when, content) in variants {
        let resource = Resource::new(THING, "r", (*content).to_owned()).unwrap();
        transaction.put(resource.with_constraints(constraints(when)));
    }
    cache.commit(transaction).unwrap();
}

fn node(pod: &str) -> Node {
    let text = |value: &str| Value { kind: Some(Kind::StringValue(value.to_owned())) };
    let pairs = [("env", "a"), ("version", pod), ("pod", pod)];
    let fields = pairs.map(|(key, value)| (key.to_owned(), text(value)));
    Node { id: pod.to_owned(), metadata: Some(Struct { fields: fields.into() }), ..Node::default() }
}

/// A delta client that subscribes by name, with its responses.
struct Delta(mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>);

impl Delta {
    async fn ask(uri: &str, request: DeltaDiscoveryRequest) -> Self {
        let mut client = AggregatedDiscoveryServiceClient::new(connect(uri).await);
        let (requests, receiver) = mpsc::channel(8);
        requests.send(DeltaDiscoveryRequest { type_url: THING.into(), ..request }).await.unwrap();
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self(requests, responses.into_inner())
    }

    async fn by_name(uri: &str, pod: &str, brought: Option<&str>) -> Self {
        let brought = brought.map(|version| ("r".to_owned(), version.to_owned()));
        let request = DeltaDiscoveryRequest {
            node: Some(node(pod)),
            resource_names_subscribe: vec!["r".to_owned()],
            initial_resource_versions: brought.into_iter().collect(),
            ..DeltaDiscoveryRequest::default()
        };
        Self::ask(uri, request).await
    }

    /// A client that subscribes by locator with the same parameters, so it is sent constraints.
    async fn by_locator(uri: &str, pod: &str) -> Self {
        let pairs = [("env", "a"), ("version", pod), ("pod", pod)];
        let dynamic_parameters = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let locator = ResourceLocator { name: "r".to_owned(), dynamic_parameters };
        let resource_locators_subscribe = vec![locator];
        Self::ask(uri, DeltaDiscoveryRequest { resource_locators_subscribe, ..Default::default() }).await
    }

    /// The nonce, version and content of the next response, which it ACKs.
    async fn next(&mut self) -> [String; 3] {
        let response = timeout(SOON, self.1.message()).await.unwrap().unwrap().unwrap();
        let (type_url, response_nonce) = (THING.into(), response.nonce.clone());
        let ack = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
        self.0.send(ack).await.unwrap();
        let [resource] = &response.resources[..] else { panic!("{response:?}") };
        let content = resource.resource.clone().unwrap().value.to_vec();
        [response.nonce, resource.version.clone(), String::from_utf8(content).unwrap()]
    }
}

/// The same in SotW.
struct Sotw(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>);

impl Sotw {
    async fn by_name(uri: &str, pod: &str) -> Self {
        let mut client = AggregatedDiscoveryServiceClient::new(connect(uri).await);
        let (requests, receiver) = mpsc::channel(8);
        let resource_names = vec!["r".to_owned()];
        let (node, type_url) = (Some(node(pod)), THING.into());
        requests
            .send(DiscoveryRequest { node, type_url, resource_names, ..Default::default() })
            .await
            .unwrap();
        let responses = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self(requests, responses.into_inner())
    }

    async fn next(&mut self) -> [String; 3] {
        let response = timeout(SOON, self.1.message()).await.unwrap().unwrap().unwrap();
        let ack = DiscoveryRequest {
            type_url: THING.into(),
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            resource_names: vec!["r".to_owned()],
            ..DiscoveryRequest::default()
        };
        self.0.send(ack).await.unwrap();
        let [any] = &response.resources[..] else { panic!("{response:?}") };
        [response.nonce, response.version_info, String::from_utf8(any.value.to_vec()).unwrap()]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v29_keys_that_migrate_reach_no_client_by_name_behind_one_proxy_or_two() {
    let origin = Cache::new();
    put(&origin, &[], &[("env=a", "A")]);
    let origin_uri = serve(&origin).await;
    let first = Proxy::builder(Bootstrap::to_server(origin_uri.as_str())).start().unwrap();
    let first_uri = serve(first.cache()).await;
    let second = Proxy::builder(Bootstrap::to_server(first_uri.as_str())).start().unwrap();
    let second_uri = serve(second.cache()).await;

    let (mut deltas, mut sotws, mut located) = (Vec::new(), Vec::new(), Vec::new());
    for uri in [&origin_uri, &first_uri, &second_uri] {
        for pod in ["1", "2"] {
            let mut delta = Delta::by_name(uri, pod, None).await;
            let mut sotw = Sotw::by_name(uri, pod).await;
            let mut locator = Delta::by_locator(uri, pod).await;
            assert_eq!(locator.next().await[2], "A");
            located.push(locator);
            deltas.push((delta.next().await, delta));
            sotws.push((sotw.next().await, sotw));
        }
    }
    // Versions are the same everywhere, so a client that moves is sent nothing.
    let (delta_before, sotw_before) = (deltas[0].0.clone(), sotws[0].0.clone());
    assert!(deltas.iter().all(|(before, _)| *before == delta_before));
    assert!(sotws.iter().all(|(before, _)| *before == sotw_before));
    for uri in [&origin_uri, &first_uri, &second_uri] {
        deltas.push((delta_before.clone(), Delta::by_name(uri, "2", Some(&delta_before[1])).await));
    }

    put(&origin, &["env=a"], &[("env=a,version=1", "A"), ("env=a,version!=1", "A")]);
    for locator in &mut located {
        assert_eq!(locator.next().await[2], "A", "it is sent the new constraints");
    }
    put(&origin, &[], &[("env=a,version=1", "B"), ("env=a,version!=1", "B")]);
    for (at, (before, delta)) in deltas.iter_mut().enumerate() {
        let [nonce, version, content] = delta.next().await;
        let moved = at >= 6;
        assert_eq!((nonce.as_str(), content.as_str()), (if moved { "1" } else { "2" }, "B"), "{at}");
        assert_ne!(version, before[1]);
    }
    for (_, sotw) in &mut sotws {
        let [nonce, _, content] = sotw.next().await;
        assert_eq!((nonce.as_str(), content.as_str()), ("2", "B"));
    }
}
