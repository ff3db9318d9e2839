//! The services in a server of the program.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server as OtherServer};
use xds_core::Cache;
use xds_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT as EDS;
use xds_server::Server;

mod common;

use common::{next, node, put};

#[tokio::test]
async fn g14_the_services_run_in_another_server_and_their_streams_end_with_it() {
    let cache = Cache::new();
    put(&cache, EDS, "web", "1");
    let (stop, stopping) = watch::channel(false);
    let stopped = |mut stopping: watch::Receiver<bool>| async move { _ = stopping.wait_for(|it| *it).await };
    let own = axum::Router::new().route("/hello", axum::routing::get(async || "hello"));
    let server = Server::new(Arc::clone(&cache)).with_routes(own);
    let clients = server.clients();
    let router = server.into_router(stopped(stopping.clone()));
    // The program may have routes of its own, and a fallback.
    let router = router.merge(axum::Router::new().fallback(async || "no such page"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = OtherServer::builder()
        .add_routes(Routes::from(router))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped(stopping));
    let serving = tokio::spawn(serving);

    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(16);
    let request = DeltaDiscoveryRequest {
        type_url: EDS.into(),
        resource_names_subscribe: vec!["web".into()],
        node: Some(node("a")),
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(request).await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    let mut stream = stream.into_inner();
    assert_eq!(next(&mut stream).await.unwrap().unwrap().resources[0].name, "web");
    put(&cache, EDS, "web", "2");
    assert_eq!(clients.streams(), 1);

    stop.send(true).unwrap();
    let end = loop {
        match next(&mut stream).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable, "{end}");
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap().unwrap();
}
