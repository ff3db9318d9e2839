//! Envoy polls for its clusters, listeners, routes and endpoints (S41).

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::Mode;
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes, when};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

/// The transport of the polls.
#[derive(Debug, Clone, Copy)]
enum Transport {
    Http1,
    Http2,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_envoy_polls_and_follows_edits_and_deletions_by_rest() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    for transport in [Transport::Http1, Transport::Http2] {
        eprintln!("--- REST over {transport:?}");
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (folder, scratch) = (Folder::new(), Folder::new());
        folder.write("listener.json", &[polling_listener("web", "routes")]);
        folder.write("routes.json", &[routes("routes", &[("/v1", "one"), ("/", "two")])]);
        folder.write("clusters.json", &[polling_cluster("one"), polling_cluster("two")]);
        folder.write("endpoints.json", &[endpoints("one", red.port), endpoints("two", blue.port)]);
        let server = Server::start(folder.path()).await;
        let bootstrap = bootstrap(transport, server.port, &json!({})).to_string();
        let Some(envoy) = Envoy::start_with(scratch.path(), &bootstrap, "bootstrap.json").await else {
            return;
        };
        let port = envoy.port("web").await;
        answers(port, "/v1/hello", "red").await;
        answers(port, "/hello", "blue").await;

        // EDS, then RDS.
        folder.write("endpoints.json", &[endpoints("one", blue.port), endpoints("two", blue.port)]);
        answers(port, "/v1/hello", "blue").await;
        folder.write("endpoints.json", &[endpoints("one", red.port), endpoints("two", blue.port)]);
        folder.write("routes.json", &[routes("routes", &[("/", "one")])]);
        answers(port, "/hello", "red").await;

        // CDS and LDS: a resource is added, and removed again.
        folder.write("passing-endpoints.json", &[endpoints("passing", red.port)]);
        folder.write("passing-cluster.json", &[polling_cluster("passing")]);
        folder.write("passing-routes.json", &[routes("passing-routes", &[("/", "passing")])]);
        folder.write("passing-listener.json", &[polling_listener("passing-web", "passing-routes")]);
        let passing_port = envoy.port("passing-web").await;
        answers(passing_port, "/", "red").await;
        for name in ["listener", "routes", "cluster", "endpoints"] {
            folder.remove(&format!("passing-{name}.json"));
        }
        let gone = async || (!envoy.config_dump().await.contains("passing")).then_some(());
        until("all that was deleted is gone", SOON, gone).await;
        assert_eq!(envoy.listeners().await, ["web"]);
        assert!(envoy.clusters().await.into_keys().eq(["one", "two"]));

        // Unchanged content gets 304, which Envoy does not count as an update.
        let counters = [".update_success", ".update_attempt", ".update_failure", ".update_rejected"];
        let before = envoy.stats().await;
        let polled = async || {
            let attempts = |stats: &crate::envoy::Stats| stats.get("cluster_manager.cds.update_attempt");
            (attempts(&envoy.stats().await) > attempts(&before) + 3).then_some(())
        };
        until("Envoy polls on", SOON, polled).await;
        let after = envoy.stats().await;
        for (name, value) in after.ending(&counters[..1]) {
            assert_eq!(value, before.get(&name), "{name}: nothing changed");
        }
        for (name, value) in after.ending(&counters[2..]) {
            assert_eq!(value, 0, "{name}");
        }
        // Envoy has the same version as any other client.
        let dump = envoy.config_dump().await;
        let version = poll(server.port, "clusters", &json!({})).await["versionInfo"].clone();
        assert!(dump.contains(version.as_str().expect("a version")), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_t46_envoys_that_poll_get_the_variants_of_their_nodes() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    let folder = Folder::new();
    folder.write("listener.json", &[polling_listener("web", "routes")]);
    let to = |cluster, constraints| when(constraints, routes("routes", &[("/", cluster)]));
    folder.write("routes.json", &[to("one", "env=prod"), to("two", "env=test")]);
    folder.write("clusters.json", &[polling_cluster("one"), polling_cluster("two")]);
    folder.write("endpoints.json", &[endpoints("one", red.port), endpoints("two", blue.port)]);
    let server = Server::start(folder.path()).await;
    for (env, upstream) in [("prod", "red"), ("test", "blue")] {
        let scratch = Folder::new();
        let metadata = json!({ "env": env, "pod": format!("web-{env}"), "count": 3 });
        let bootstrap = bootstrap(Transport::Http1, server.port, &metadata).to_string();
        let Some(envoy) = Envoy::start_with(scratch.path(), &bootstrap, "bootstrap.json").await else {
            return;
        };
        answers(envoy.port("web").await, "/", upstream).await;
    }
}

/// Waits until `upstream` answers.
async fn answers(port: u16, path: &str, upstream: &str) {
    let asked = async || {
        let answer = http::get(port, path).await.ok()?;
        (answer.status == 200 && answer.body == upstream).then_some(())
    };
    until(&format!("{path} is answered by {upstream}"), SOON, asked).await;
}

/// Polls as Envoy does.
async fn poll(port: u16, what: &str, request: &Value) -> Value {
    let uri = format!("http://127.0.0.1:{port}/v3/discovery:{what}");
    let channel = tonic::transport::Channel::from_shared(uri.clone()).expect("a URI");
    let mut channel = channel.connect().await.expect("the server listens");
    let body = tonic::body::Body::new(request.to_string());
    let request = ::http::Request::post(uri).body(body).expect("a request");
    std::future::poll_fn(|cx| tonic::codegen::Service::poll_ready(&mut channel, cx))
        .await
        .expect("connected");
    let response = tonic::codegen::Service::call(&mut channel, request).await.expect("an answer");
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
    serde_json::from_slice(&body).expect("JSON")
}

fn config_source() -> Value {
    let api = json!({
        "api_type": "REST",
        "transport_api_version": "V3",
        "cluster_names": ["xds"],
        // request_timeout keeps its default of 1 s.
        "refresh_delay": "0.2s",
    });
    json!({ "api_config_source": api, "resource_api_version": "V3" })
}

fn polling_cluster(name: &str) -> Value {
    let mut cluster = cluster(Mode::ADS[0], name);
    cluster["eds_cluster_config"]["eds_config"] = config_source();
    cluster
}

fn polling_listener(name: &str, routes: &str) -> Value {
    let mut listener = listener(Mode::ADS[0], name, routes);
    listener["filter_chains"][0]["filters"][0]["typed_config"]["rds"]["config_source"] = config_source();
    listener
}

fn bootstrap(transport: Transport, xds_port: u16, metadata: &Value) -> Value {
    let local = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let protocol = match transport {
        Transport::Http1 => json!({ "http_protocol_options": {} }),
        Transport::Http2 => json!({ "http2_protocol_options": {} }),
    };
    let node = json!({ "id": "interop", "cluster": "tests", "metadata": metadata });
    let options = json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": protocol,
    } });
    let endpoint = json!({ "endpoint": { "address": local(xds_port) } });
    json!({
        "node": node,
        "admin": { "address": local(0) },
        "dynamic_resources": { "cds_config": config_source(), "lds_config": config_source() },
        "static_resources": { "clusters": [{
            "name": "xds",
            "type": "STATIC",
            "connect_timeout": "1s",
            "typed_extension_protocol_options": options,
            "load_assignment": { "cluster_name": "xds", "endpoints": [{ "lb_endpoints": [endpoint] }] },
        }] },
    })
}
