//! The status of clients over real sockets (C20, G11).
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Payload, Running, ask, next, node, put, put_for};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use xds_core::{Cache, Constraints};
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use xds_proto::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use xds_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};
use xds_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use xds_proto::envoy::r#type::matcher::v3::{NodeMatcher, StringMatcher};
use xds_proto::google::rpc;
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, RUNTIME, SECRET};

async fn fetch(server: &Running, request: ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
    let client = ClientStatusDiscoveryServiceClient::new(server.channel().await);
    let fetched = client.max_decoding_message_size(64 << 20).fetch_client_status(request).await;
    fetched.map(tonic::Response::into_inner)
}

fn only(id: &str) -> ClientStatusRequest {
    let match_pattern = Some(MatchPattern::Exact(id.into()));
    let node_id = Some(StringMatcher { match_pattern, ignore_case: false });
    ClientStatusRequest {
        node_matchers: vec![NodeMatcher { node_id, ..NodeMatcher::default() }],
        ..ClientStatusRequest::default()
    }
}

/// One word per resource: `name=status`.
fn shown(config: &ClientConfig) -> String {
    let word = |entry: &xds_proto::envoy::service::status::v3::client_config::GenericXdsConfig| {
        format!("{}={}", entry.name, entry.config_status().as_str_name())
    };
    config.generic_xds_configs.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Fetches until the only client has this status, because the server reads requests with a delay.
async fn fetch_until(server: &Running, request: ClientStatusRequest, expected: &str) -> ClientConfig {
    let mut found = String::new();
    let wait = async {
        loop {
            let response = fetch(server, request.clone()).await.unwrap();
            if let [config] = response.config.as_slice() {
                found = shown(config);
                if found == expected {
                    return config.clone();
                }
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), wait).await;
    waited.unwrap_or_else(|_| panic!("{found} instead of {expected}"))
}

#[tokio::test]
async fn g6_c20_a_client_without_a_node_is_shown_and_goes_by_its_id_when_that_comes() {
    let cache = Cache::new();
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", "1");
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    let nameless = DiscoveryRequest { node: None, ..ask("", CLUSTER_LOAD_ASSIGNMENT, &["a"]) };
    requests.send(nameless).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
    let shown = fetch_until(&server, ClientStatusRequest::default(), "a=STALE").await;
    assert_eq!(shown.node, Some(xds_proto::envoy::config::core::v3::Node::default()));
    requests.send(ask("late", LISTENER, &["x"])).await.unwrap();
    let shown = fetch_until(&server, only("late"), "a=STALE, x=NOT_SENT").await;
    assert_eq!(shown.node, Some(node("late")));
    let all = fetch(&server, ClientStatusRequest::default()).await.unwrap();
    assert_eq!(all.config.len(), 1, "it is not listed twice");
}

#[tokio::test]
async fn c20_a_client_is_shown_with_what_it_was_sent_and_said() {
    let cache = Cache::new();
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", "1");
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    let names = ["a", "missing"];
    requests.send(ask("n", CLUSTER_LOAD_ASSIGNMENT, &names)).await.unwrap();
    let first = next(&mut responses).await.unwrap().unwrap();
    let stale = fetch_until(&server, only("n"), "a=STALE, missing=NOT_SENT").await;
    assert_eq!((stale.node, stale.client_scope.as_str()), (Some(node("n")), "ADS SotW"));
    let entry = &stale.generic_xds_configs[0];
    assert_eq!(entry.type_url, CLUSTER_LOAD_ASSIGNMENT);
    assert_eq!(entry.version_info.len(), 32);
    let any = entry.xds_config.clone().unwrap();
    assert_eq!(Payload::decode(any.value).unwrap().content, "1");
    let ack = DiscoveryRequest { response_nonce: first.nonce, ..ask("n", CLUSTER_LOAD_ASSIGNMENT, &names) };
    requests.send(ack).await.unwrap();
    fetch_until(&server, only("n"), "a=SYNCED, missing=NOT_SENT").await;
    put(&cache, CLUSTER_LOAD_ASSIGNMENT, "a", "2");
    let second = next(&mut responses).await.unwrap().unwrap();
    let error_detail = Some(rpc::Status { message: "no such zone".into(), ..rpc::Status::default() });
    let nack = DiscoveryRequest {
        response_nonce: second.nonce,
        error_detail,
        ..ask("n", CLUSTER_LOAD_ASSIGNMENT, &names)
    };
    requests.send(nack).await.unwrap();
    let rejected = fetch_until(&server, only("n"), "a=ERROR, missing=NOT_SENT").await;
    let entry = &rejected.generic_xds_configs[0];
    let failure = entry.error_state.clone().unwrap();
    assert_eq!((failure.details.as_str(), &failure.version_info), ("no such zone", &entry.version_info));
}

#[tokio::test]
async fn c20_streams_of_one_client_are_one_entry_and_each_variant_is_told() {
    let cache = Cache::new();
    put_for(&cache, RUNTIME, "r", "1", "env=prod".parse::<Constraints>().unwrap());
    put_for(&cache, RUNTIME, "r", "2", "env=test".parse::<Constraints>().unwrap());
    put(&cache, CLUSTER, "c", "1");
    let server = Running::new(&cache).await;
    let (clusters, mut cluster_responses) = server.sotw().await;
    clusters.send(ask("n", CLUSTER, &[])).await.unwrap();
    next(&mut cluster_responses).await.unwrap().unwrap();
    let (runtime, mut runtime_responses) = server.delta().await;
    let locator = |env: &str| ResourceLocator {
        name: "r".into(),
        dynamic_parameters: [("env".to_owned(), env.to_owned())].into(),
    };
    let subscribe = DeltaDiscoveryRequest {
        type_url: RUNTIME.into(),
        node: Some(node("n")),
        resource_locators_subscribe: vec![locator("prod"), locator("test")],
        ..DeltaDiscoveryRequest::default()
    };
    runtime.send(subscribe).await.unwrap();
    next(&mut runtime_responses).await.unwrap().unwrap();
    let expected = "c=STALE, r [env=prod]=STALE, r [env=test]=STALE";
    let config = fetch_until(&server, only("n"), expected).await;
    assert_eq!(config.client_scope, "ADS SotW, ADS delta");
    // A disconnected client is no longer listed.
    drop((clusters, cluster_responses, runtime, runtime_responses));
    let gone = async { while !fetch(&server, only("n")).await.unwrap().config.is_empty() {} };
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
}

#[tokio::test]
async fn c20_secrets_are_not_shown_and_contents_are_left_out_when_asked() {
    let cache = Cache::new();
    put(&cache, SECRET, "key", "private");
    put(&cache, CLUSTER, "c", "1");
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    requests.send(ask("n", CLUSTER, &[])).await.unwrap();
    requests.send(ask("n", SECRET, &["key"])).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
    next(&mut responses).await.unwrap().unwrap();
    let full = fetch_until(&server, only("n"), "c=STALE, key=STALE").await;
    let has_config = |config: &ClientConfig| {
        config.generic_xds_configs.iter().map(|entry| entry.xds_config.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(has_config(&full), [true, false]);
    assert_eq!(full.generic_xds_configs[1].version_info.len(), 32);
    let request = ClientStatusRequest { exclude_resource_contents: true, ..only("n") };
    assert_eq!(has_config(&fetch(&server, request).await.unwrap().config[0]), [false, false]);
}

#[tokio::test]
async fn c20_what_is_too_large_for_one_message_comes_in_several() {
    let cache = Cache::new();
    put(&cache, RUNTIME, "large", &"x".repeat(3 << 20));
    let server = Running::new(&cache).await;
    let mut streams = Vec::new();
    for id in ["a", "b"] {
        let (requests, mut responses) = server.sotw().await;
        requests.send(ask(id, RUNTIME, &["large"])).await.unwrap();
        next(&mut responses).await.unwrap().unwrap();
        streams.push((requests, responses));
    }
    let status = fetch(&server, ClientStatusRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("node_matchers"), "{}", status.message());
    assert_eq!(fetch(&server, only("a")).await.unwrap().config.len(), 1);
    // This client has the default message limit.
    let mut client = ClientStatusDiscoveryServiceClient::new(server.channel().await);
    let (requests, stream) = mpsc::channel(4);
    let mut answers = client.stream_client_status(ReceiverStream::new(stream)).await.unwrap().into_inner();
    requests.send(ClientStatusRequest::default()).await.unwrap();
    for id in ["a", "b"] {
        let answer = next(&mut answers).await.unwrap().unwrap();
        assert_eq!(answer.config.len(), 1);
        assert_eq!(answer.config[0].node.as_ref().unwrap().id, id);
    }
    requests.send(only("nobody")).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap().unwrap(), ClientStatusResponse::default());
    requests.send(ClientStatusRequest { exclude_resource_contents: true, ..only("b") }).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap().unwrap().config.len(), 1);
    let any = NodeMatcher::default();
    let refused = ClientStatusRequest { node_matchers: vec![any], ..ClientStatusRequest::default() };
    requests.send(refused).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn g11_a_client_that_reads_nothing_is_stale_and_keeps_its_stream() {
    let cache = Cache::new();
    let large = "x".repeat(3 << 20);
    for type_url in [CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, RUNTIME] {
        put(&cache, type_url, "a", &large);
    }
    let names_only = || ClientStatusRequest { exclude_resource_contents: true, ..only("n") };
    let server = Running::new(&cache).await;
    let (requests, mut responses) = server.sotw().await;
    // More than the transport and the slot can take, so that the driver waits for room.
    for type_url in [CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, RUNTIME] {
        requests.send(ask("n", type_url, &["a"])).await.unwrap();
    }
    // Two responses are in the transport, one is in the slot.
    let stuck = "a=STALE, a=STALE, a=STALE, a=NOT_SENT";
    fetch_until(&server, names_only(), stuck).await;
    put(&cache, RUNTIME, "a", "newest");
    assert_eq!(shown(&fetch(&server, names_only()).await.unwrap().config[0]), stuck);
    // When the client reads again, it gets the newest content.
    let mut last = Vec::new();
    for _ in 0..4 {
        let response = next(&mut responses).await.unwrap().unwrap();
        last.push((response.type_url, response.resources[0].value.len() > 1000));
    }
    last.sort();
    assert!(last.contains(&(RUNTIME.to_owned(), false)), "{last:?}");
}

/// Answers stay in memory until they are read, so those who do not read get few of them.
#[tokio::test]
async fn c20_calls_beyond_the_limit_are_refused_until_others_end() {
    let server = Running::new(&Cache::new()).await;
    let mut calls = Vec::new();
    for _ in 0..16 {
        let (requests, receiver) = mpsc::channel(1);
        let mut client = ClientStatusDiscoveryServiceClient::new(server.channel().await);
        requests.send(ClientStatusRequest::default()).await.unwrap();
        let answers = client.stream_client_status(ReceiverStream::new(receiver)).await.unwrap();
        calls.push((requests, answers));
    }
    let refused = fetch(&server, ClientStatusRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    calls.pop();
    tokio::time::timeout(Duration::from_secs(10), async {
        while fetch(&server, ClientStatusRequest::default()).await.is_err() {}
    })
    .await
    .unwrap();
}
