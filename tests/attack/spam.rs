//! Keys without end: names, parameters of locators, types, nodes, and tokens of pages.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::Channel;
use xds::type_url::CLUSTER;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, ResourceLocator,
};
use xds_proto::google::rpc::Status;
use xds_proto::xds::store::v1::{Filter, ListRequest, store_client::StoreClient};

use crate::Target;

/// A stream of an attacker.
struct AttackStream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: tonic::Streaming<DeltaDiscoveryResponse>,
}

/// Subscribes to a thousand names that do not exist and drops the thousand before.
pub(crate) async fn new_names(target: Target) {
    attack(target, 3, |target: Target, attacker| async move {
        let names = move |round| (0..1_000).map(move |name| format!("absent-{attacker}-{round}-{name}"));
        change(target, true, move |round| DeltaDiscoveryRequest {
            resource_names_subscribe: names(round).collect(),
            resource_names_unsubscribe: before(round).into_iter().flat_map(names).collect(),
            ..request(&format!("attacker-{attacker}"), CLUSTER)
        })
        .await;
    })
    .await;
}

/// The same beside a wildcard, which makes the server answer what is dropped, too. The attackers read nothing.
pub(crate) async fn unread_answers(target: Target) {
    attack(target, 3, |target: Target, attacker| async move {
        let names = move |round| (0..1_000).map(move |name| format!("absent-{attacker}-{round}-{name}"));
        change(target, false, move |round| DeltaDiscoveryRequest {
            resource_names_subscribe: names(round).chain(["*".to_owned()]).collect(),
            resource_names_unsubscribe: before(round).into_iter().flat_map(names).collect(),
            ..request(&format!("attacker-{attacker}"), CLUSTER)
        })
        .await;
    })
    .await;
}

/// Subscribes to a name that exists, one that does not, and the wildcard, each with 30 new values of a parameter of
/// 1 KB, and drops those before. One attacker.
pub(crate) async fn new_parameters(target: Target) {
    attack(target, 1, |target: Target, attacker| async move {
        let locator = move |round, value, name: &str| {
            let value = format!("{attacker}-{round}-{value}-{}", "x".repeat(1_000));
            let dynamic_parameters = [("pod".to_owned(), value)].into();
            ResourceLocator { name: name.into(), dynamic_parameters }
        };
        let names = ["witnessed", "absent", "*"];
        let locators =
            move |round: usize| (0..30).flat_map(move |value| names.map(|name| locator(round, value, name)));
        change(target, true, move |round| DeltaDiscoveryRequest {
            resource_locators_subscribe: locators(round).collect(),
            resource_locators_unsubscribe: before(round).into_iter().flat_map(locators).collect(),
            ..request(&format!("attacker-{attacker}"), CLUSTER)
        })
        .await;
    })
    .await;
}

/// Subscribes to ten names of a type that does not exist until they are answered, and so on with the next type. A
/// stream may have 64 types; then comes the next stream.
pub(crate) async fn new_types(target: Target) {
    attack(target, 3, |target: Target, attacker| async move {
        let channel = connect(&target).await;
        let names: Vec<_> = (0..10).map(|name| format!("absent-{name}")).collect();
        for stream in 0.. {
            let Some(mut open) = open(&channel).await else { continue };
            for number in 0..60 {
                let type_url = format!("type.googleapis.com/attacker.T{attacker}-{stream}-{number}");
                let node = format!("attacker-{attacker}");
                let subscribe = DeltaDiscoveryRequest {
                    resource_names_subscribe: names.clone(),
                    ..request(&node, &type_url)
                };
                let unsubscribe = DeltaDiscoveryRequest {
                    resource_names_unsubscribe: names.clone(),
                    ..request(&node, &type_url)
                };
                if open.answer(subscribe).await.is_none() || open.requests.send(unsubscribe).await.is_err() {
                    break;
                }
            }
            target.is_on();
        }
    })
    .await;
}

/// New streams, each with another node of 2 KB, that reject their first response with another message. After 100
/// streams comes the next connection.
pub(crate) async fn new_nodes(target: Target) {
    attack(target, 3, |target: Target, attacker| async move {
        for connection in 0.. {
            let channel = connect(&target).await;
            let mut streams = JoinSet::new();
            for task in 0..10 {
                let channel = channel.clone();
                streams.spawn(async move {
                    for stream in 0..10 {
                        let node = format!("{attacker}-{connection}-{task}-{stream}-{}", "x".repeat(2_000));
                        let Some(mut open) = open(&channel).await else { continue };
                        let subscribe = DeltaDiscoveryRequest {
                            resource_names_subscribe: vec!["witnessed".into()],
                            ..request(&node, CLUSTER)
                        };
                        let Some(DeltaDiscoveryResponse { nonce, .. }) = open.answer(subscribe).await else {
                            continue;
                        };
                        let detail = Status { code: 3, message: node.clone(), ..Status::default() };
                        let nack = DeltaDiscoveryRequest {
                            response_nonce: nonce,
                            error_detail: Some(detail),
                            ..request(&node, CLUSTER)
                        };
                        _ = open.requests.send(nack).await;
                    }
                });
            }
            streams.join_all().await;
            target.is_on();
        }
    })
    .await;
}

/// Lists of the store with tokens and filters of 1 KB that are new each time.
pub(crate) async fn new_page_tokens(target: Target) {
    attack(target, 3, |target: Target, attacker| async move {
        let file = std::fs::read_to_string(Path::new(&target.folder).join("store/server.json")).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        let address = format!("http://{}", file["address"].as_str().unwrap());
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        let token = format!("Bearer {}", file["token"].as_str().unwrap());
        let mut calls = JoinSet::new();
        for number in 0_u64.. {
            let prefix = format!("{attacker}-{number}-{}*", "x".repeat(1_000));
            let page_token = if number % 2 == 0 { String::new() } else { format!("{number:x}").repeat(100) };
            let filter = Some(Filter { names: vec![prefix], ..Filter::default() });
            let mut request = Request::new(ListRequest { filter, page_token, ..ListRequest::default() });
            request.metadata_mut().insert("authorization", token.parse().unwrap());
            let mut client = StoreClient::new(channel.clone());
            calls.spawn(async move { client.list(request).await.map(drop) });
            if calls.len() > 20 {
                calls.join_next().await;
            }
            if number == 100 {
                target.is_on();
            }
        }
    })
    .await;
}

/// Runs so many attackers.
async fn attack<A>(target: Target, count: usize, attacker: impl Fn(Target, usize) -> A)
where
    A: Future<Output = ()> + Send + 'static,
{
    let mut attackers = JoinSet::new();
    for number in 0..count {
        attackers.spawn(attacker(target.clone(), number));
    }
    attackers.join_all().await;
}

/// Sends requests on one stream without a pause. Opens another one when the server ends it.
async fn change(
    target: Target,
    is_reader: bool,
    request: impl Fn(usize) -> DeltaDiscoveryRequest + Send + 'static,
) {
    let channel = connect(&target).await;
    loop {
        let Some(AttackStream { requests, mut responses }) = open(&channel).await else { continue };
        let unread = if is_reader {
            tokio::spawn(async move { while let Ok(Some(_)) = responses.message().await {} });
            None
        } else {
            Some(responses)
        };
        for round in 0.. {
            if round == 50 {
                target.is_on();
            }
            // The end of a stream arrives behind what its client does not read.
            if !matches!(timeout(PATIENCE, requests.send(request(round))).await, Ok(Ok(()))) {
                break;
            }
        }
        drop(unread);
    }
}

impl AttackStream {
    /// Sends a request, and waits for the next response of its type.
    async fn answer(&mut self, request: DeltaDiscoveryRequest) -> Option<DeltaDiscoveryResponse> {
        let type_url = request.type_url.clone();
        self.requests.send(request).await.ok()?;
        let answer = async {
            loop {
                let response = self.responses.message().await.ok()??;
                if response.type_url == type_url {
                    return Some(response);
                }
            }
        };
        timeout(PATIENCE, answer).await.ok()?
    }
}

async fn connect(target: &Target) -> Channel {
    loop {
        let endpoint = Channel::from_shared(format!("http://{}", target.address)).unwrap();
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
    }
}

async fn open(channel: &Channel) -> Option<AttackStream> {
    let (requests, receiver) = mpsc::channel(4);
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone());
    let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.ok()?;
    Some(AttackStream { requests, responses: responses.into_inner() })
}

fn before(round: usize) -> Option<usize> {
    round.checked_sub(1)
}

fn request(node: &str, type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.into(),
        node: Some(Node { id: node.into(), ..Node::default() }),
        ..DeltaDiscoveryRequest::default()
    }
}

/// How long an attacker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
