//! CSDS of the client over a connection in memory.

use std::io;
use std::time::SystemTime;

use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tonic::transport::{Channel, Endpoint, Uri};
use xds_client::ClientStatus;
use xds_proto::envoy::admin::v3::ClientResourceStatus;
use xds_proto::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use xds_proto::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};

use super::*;

type Csds = ClientStatusDiscoveryServiceClient<Channel>;

/// Serves CSDS until the test ends.
async fn serve(status: &ClientStatus) -> Csds {
    let (ours, theirs) = duplex(1 << 20);
    let incoming = tokio_stream::once(Ok::<_, io::Error>(theirs));
    let server = tonic::transport::Server::builder().add_service(status.service());
    tokio::spawn(server.serve_with_incoming(incoming));
    let ours: Arc<Mutex<Option<DuplexStream>>> = Arc::new(Mutex::new(Some(ours)));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = ours.lock().unwrap().take();
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let endpoint = Endpoint::from_static("http://memory");
    Csds::new(endpoint.connect_with_connector(connector).await.unwrap())
}

#[tokio::test]
async fn c19_p6_1_both_methods_answer_alike_for_each_client() {
    let origin = Origin::start();
    origin.put(&[("a", "", "1"), ("b", "", "1")]);
    let before = SystemTime::now();
    let status = ClientStatus::new();
    let (one, other) = (origin.client(Protocol::Delta).start().unwrap(), origin.client(Protocol::Sotw));
    let other = other.start().unwrap();
    status.add("one", &one);
    status.add("other", &other);
    let mut a = one.watch::<Thing>("a").unwrap();
    let mut b = other.watch::<Thing>("b").unwrap();
    assert_eq!((changed(&mut a).await, changed(&mut b).await), ("1".into(), "1".into()));

    let mut csds = serve(&status).await;
    let request = ClientStatusRequest::default;
    let fetched = csds.fetch_client_status(request()).await.unwrap().into_inner();
    let without = ClientStatusRequest { exclude_resource_contents: true, ..request() };
    let requests = tokio_stream::iter([request(), without, request()]);
    let mut stream = csds.stream_client_status(requests).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().as_ref(), Some(&fetched));
    let excluded = stream.message().await.unwrap().unwrap();
    assert!(excluded.config.iter().flat_map(|of| &of.generic_xds_configs).all(|of| of.xds_config.is_none()));
    assert_eq!(stream.message().await.unwrap().as_ref(), Some(&fetched));
    assert_eq!(stream.message().await.unwrap(), None);

    let [first, second] = &fetched.config[..] else { panic!("two clients") };
    assert_eq!((first.client_scope.as_str(), second.client_scope.as_str()), ("one", "other"));
    // P6.2: the node as it is sent, with the fields that the client adds.
    assert_eq!(first.node.as_ref(), Some(one.node()));
    assert_eq!(first.node.as_ref().unwrap().user_agent_name, "xds-client");
    let [entry] = &first.generic_xds_configs[..] else { panic!("one resource") };
    assert_eq!((entry.type_url.as_str(), entry.name.as_str()), (THING, "a"));
    assert_eq!(entry.client_status(), ClientResourceStatus::Acked);
    assert_eq!(entry.version_info, a.borrow().unwrap().version());
    assert_eq!(entry.xds_config.as_ref().unwrap().value, *a.borrow().unwrap().payload());
    let updated = SystemTime::try_from(entry.last_updated.unwrap()).unwrap();
    assert!(before <= updated && updated <= SystemTime::now());
}

#[tokio::test]
async fn p6_1_node_matchers_end_a_stream_with_an_error() {
    let status = ClientStatus::new();
    let mut csds = serve(&status).await;
    let request = ClientStatusRequest { node_matchers: vec![Default::default()], ..Default::default() };
    let refused = csds.fetch_client_status(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let requests = tokio_stream::once(request);
    let mut stream = csds.stream_client_status(requests).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn csds_keeps_no_client_alive() {
    let origin = Origin::start();
    let status = ClientStatus::new();
    let client = origin.client(Protocol::Delta).start().unwrap();
    status.add("one", &client);
    let watcher = client.watch::<Thing>("a").unwrap();
    drop(client);
    let mut csds = serve(&status).await;
    let mut fetch = async || csds.fetch_client_status(ClientStatusRequest::default()).await.unwrap();
    // A watcher keeps the client alive.
    assert_eq!(fetch().await.into_inner().config.len(), 1);
    drop(watcher);
    assert_eq!(fetch().await.into_inner(), ClientStatusResponse::default());
    while origin.cache.subscription_counts().names > 0 {
        tokio::task::yield_now().await;
    }
}
