//! Clients that attack, or are broken.

use axum::body::Body;
use proto::violation::Why;
use tower::ServiceExt;

use super::*;

#[tokio::test]
async fn st42_a_watch_above_the_limit_is_refused_and_the_others_go_on() {
    // One client has at most a quarter of them.
    let served = serve_with(|config| config.watches_limit = 8).await;
    let first = served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let request = proto::WatchRequest { after: first.revision, ..Default::default() };
    let mut watch = store.watch(request.clone()).await.unwrap().into_inner();
    let other = store.watch(request.clone()).await.unwrap().into_inner();
    let status = store.watch(request.clone()).await.unwrap_err();
    let Some(Why::Limit(limit)) = violation(&status, Code::ResourceExhausted).why else {
        panic!("{status:?}")
    };
    assert_eq!((&*limit.option, limit.value, limit.found), ("--watch-limit", 2, 3));
    served.commit(vec![put("a", "2")]).await;
    assert_eq!(watch.message().await.unwrap().unwrap().events.len(), 1);
    // A watch that ends makes room, as soon as the server notices.
    drop(other);
    while store.watch(request.clone()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn st32_a_slow_watcher_is_a_position_and_gets_everything_later() {
    let served = serve().await;
    let first = served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let request = proto::WatchRequest { after: first.revision, ..Default::default() };
    let mut slow = store.watch(request).await.unwrap().into_inner();
    // 40 MiB that the watcher does not read; the window of HTTP/2 has 64 KiB.
    let mut last = String::new();
    for number in 0..80 {
        let payload = number.to_string().repeat(256 << 10);
        last = served.commit(vec![put("large", &payload)]).await.revision;
    }
    let mut generations = Vec::new();
    loop {
        let message = slow.message().await.unwrap().unwrap();
        generations.extend(message.events.iter().map(|event| event.record.as_ref().unwrap().generation));
        if message.revision == last {
            break;
        }
    }
    assert_eq!(generations, (1..=80).collect::<Vec<_>>());
}

/// A commit of which nothing arrives.
fn silent_commit(token: Option<&str>) -> http::Request<Body> {
    let silent = tokio_stream::pending::<Result<Vec<u8>, std::convert::Infallible>>();
    let request =
        http::Request::post("/xds.store.v1.Store/Commit").header("content-type", "application/grpc");
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    request.body(Body::from_stream(silent)).unwrap()
}

#[tokio::test]
async fn st51_a_request_without_an_identity_is_not_read() {
    let served = serve().await;
    let answer = served.api.routes().oneshot(silent_commit(None)).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "16");
}

#[tokio::test]
async fn st42_a_request_above_the_limit_is_refused() {
    let served = serve_with(|config| config.request_bytes_limit = 1 << 20).await;
    let status =
        served.store().await.commit(commit_of(vec![put("a", &"x".repeat(2 << 20))])).await.unwrap_err();
    let Some(Why::Limit(limit)) = violation(&status, Code::ResourceExhausted).why else {
        panic!("{status:?}")
    };
    assert!(limit.value == 1 << 20 && limit.found > 2 << 20);
    let served = serve_with(|config| config.received_bytes_limit = 1 << 20).await;
    let status =
        served.store().await.commit(commit_of(vec![put("a", &"x".repeat(2 << 20))])).await.unwrap_err();
    violation(&status, Code::ResourceExhausted);
    // The refused request no longer counts.
    served.commit(vec![put("a", &"x".repeat(900 << 10))]).await;
}

#[tokio::test(start_paused = true)]
async fn st42_a_request_that_does_not_arrive_ends() {
    let served = serve().await;
    let answer = served.api.routes().oneshot(silent_commit(Some(LOCAL))).await.unwrap();
    assert_eq!(answer.headers()["grpc-status"], "4");
}
