//! Typed reads, from go-control-plane servers that lack a kind of resource.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use serde_json::{Value, json};
use tokio::time::timeout;
use xds_client::bootstrap::Bootstrap;
use xds_client::proxy::Proxy;
use xds_client::{Code, Parameters, Protocol, ReadRoute};
use xds_proto::type_url::SECRET;

use crate::foreign::{Event, Foreign, ForeignServer};
use crate::mode::Mode;
use crate::resources::cluster;
use crate::typed_getters::{Agent, GetError, changed, complete, refused};
use crate::wait::SOON;

/// The agent of `examples/typed_getters.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4b_an_agent_reads_the_clusters_of_a_server_without_secrets_and_both_after_an_upgrade() {
    for kind in GO {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        server.set("one", &resources()).await;
        server.lack(&[SECRET]).await;
        let address = ([127, 0, 0, 1], server.port).into();
        let mut agent = Agent::start(address).expect("the agent starts");
        timeout(SOON, complete(&mut agent.clusters)).await.expect("the clusters come");
        timeout(SOON, refused(&mut agent.secret)).await.expect("secrets are refused");
        settled(&mut server).await;
        let web = agent.get_cluster("web").expect("clusters are served").expect("it exists");
        assert_eq!(web.connect_timeout.expect("it is set").seconds, 1, "{kind}");
        assert!(agent.get_cluster("shop").expect("clusters are served").is_none(), "{kind}");
        let Err(GetError::Kind(status)) = agent.get_secret("web") else { panic!("{kind}: no secrets") };
        assert_eq!(
            (status.code, &*status.message),
            (Code::UNIMPLEMENTED, &*format!("unknown type {SECRET}"))
        );

        server.stop().await;
        server.lack(&[]).await;
        server.start_again().await;
        timeout(2 * SOON, changed(&mut agent.secret)).await.expect("the secret comes");
        assert!(agent.get_secret("web").expect("secrets are served").is_some(), "{kind}");
        assert!(agent.get_cluster("web").expect("clusters are served").is_some(), "{kind}");
    }
}

/// These servers do not say which clients a resource is for, so the proxy has a stream for the parameters alone
/// (T43c). It has no side stream for a type there: the program has the status, and the other kinds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_a_program_reads_the_clusters_of_its_proxy_and_the_status_of_secrets() {
    for kind in GO {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        server.set("one", &resources()).await;
        server.lack(&[SECRET]).await;
        let origin = Bootstrap::to_server(format!("http://127.0.0.1:{}", server.port));
        let proxy = Proxy::builder(origin).protocol(Protocol::Delta).start().expect("it starts");
        let clusters = proxy.subscribe::<Cluster>(["web"], Parameters::new()).expect("a name");
        let secrets = proxy.subscribe::<Secret>(["web"], Parameters::new()).expect("a name");
        timeout(SOON, clusters.ready()).await.unwrap_or_else(|_elapsed| panic!("{kind}: clusters"));
        timeout(SOON, secrets.ready()).await.unwrap_or_else(|_elapsed| panic!("{kind}: secrets"));
        let guard = clusters.read();
        let ReadRoute::Cache(read) = guard.route() else { panic!("{kind}: clusters are served") };
        assert!(read.get("web").expect("it is answered").is_some(), "{kind}");
        let guard = secrets.read();
        let ReadRoute::Upstream(status) = guard.route() else { panic!("{kind}: no secrets") };
        assert_eq!(status.code, Code::UNIMPLEMENTED, "{kind}");
    }
}

/// Waits for the ACK on the stream that stays, without secrets. The search for them ends one or two streams before it,
/// and a server that stops in between is taken for the one that refused them.
async fn settled(server: &mut ForeignServer) {
    let mut event = server.event().await;
    loop {
        let is_ack = matches!(event, Event::Ack { .. });
        event = match timeout(SOON / 24, server.event()).await {
            Ok(next) => next,
            Err(_quiet) if is_ack => return,
            Err(_quiet) => server.event().await,
        };
    }
}

fn resources() -> Vec<Value> {
    let secret = json!({
        "@type": SECRET,
        "name": "web",
        "generic_secret": {"secret": {"inline_string": "s"}},
    });
    vec![cluster(Mode::ALL[0], "web"), secret]
}

const GO: [Foreign; 3] = [Foreign::GoControlPlane, Foreign::GoControlPlaneAds, Foreign::GoControlPlaneLinear];
