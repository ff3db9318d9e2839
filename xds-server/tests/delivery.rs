//! A writer learns which clients use its commit, over real sockets.

mod common;

use std::time::Duration;

use common::{Running, ask, next, put};
use xds_core::{Cache, Outcome};
use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;
use xds_proto::google::rpc::Status;
use xds_proto::type_url::CLUSTER;
use xds_server::applied;

/// The outcomes, in the order of the names of the clients.
async fn outcomes(commit: &xds_core::Commit, deadline: Duration) -> Vec<(String, Outcome)> {
    let results = applied(commit, |client| &*client.cluster == "edge", deadline).await;
    results.into_iter().map(|result| (result.client.id.to_string(), result.outcome)).collect()
}

#[tokio::test]
async fn a_commit_is_acked_rejected_late_or_its_client_gone() {
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let server = Running::new(&cache).await;
    let mut streams = Vec::new();
    for id in ["acks", "gone", "late", "rejects"] {
        let (requests, mut responses) = server.sotw().await;
        requests.send(ask(id, CLUSTER, &[])).await.unwrap();
        let first = next(&mut responses).await.unwrap().unwrap();
        let ack = DiscoveryRequest { response_nonce: first.nonce, ..ask(id, CLUSTER, &[]) };
        requests.send(ack).await.unwrap();
        streams.push((id, requests, responses));
    }
    let commit = put(&cache, CLUSTER, "a", "2");
    let mut streams = streams.into_iter();
    let mut kept = Vec::new();
    let (id, requests, mut responses) = streams.next().unwrap();
    let second = next(&mut responses).await.unwrap().unwrap();
    let ack = DiscoveryRequest { response_nonce: second.nonce, ..ask(id, CLUSTER, &[]) };
    requests.send(ack).await.unwrap();
    kept.push((requests, responses));
    drop(streams.next());
    let (_, requests, responses) = streams.next().unwrap();
    kept.push((requests, responses));
    let (id, requests, mut responses) = streams.next().unwrap();
    // S6e: a full state that changed something is repeated once.
    for _ in 0..2 {
        let second = next(&mut responses).await.unwrap().unwrap();
        let error_detail = Some(Status { message: "no such port".into(), ..Status::default() });
        let nack = DiscoveryRequest { response_nonce: second.nonce, error_detail, ..ask(id, CLUSTER, &[]) };
        requests.send(nack).await.unwrap();
    }
    kept.push((requests, responses));
    let of_others = commit.applied(|client| &*client.id != "late");
    tokio::time::timeout(Duration::from_secs(10), of_others.decided()).await.unwrap();
    let nacked = Outcome::Nacked {
        type_url: CLUSTER.into(),
        detail: "no such port".into(),
        names: ["a".into()].into(),
    };
    let expected = [
        ("acks", Outcome::Acked),
        ("gone", Outcome::Disconnected),
        ("late", Outcome::Late),
        ("rejects", nacked),
    ];
    assert_eq!(
        outcomes(&commit, Duration::from_millis(10)).await,
        expected.map(|(id, outcome)| (id.to_owned(), outcome))
    );
}
