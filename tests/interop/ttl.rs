//! The effect of a TTL in Envoy (S38 to S40).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time;

use crate::folder::Folder;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::wait::{SOON, until};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s38_a_cluster_with_a_ttl_stays_for_as_long_as_the_server_refreshes_it() {
    let [sotw, delta] = Mode::ADS;
    tokio::join!(outlives_its_ttl(sotw), outlives_its_ttl(delta));
}

async fn outlives_its_ttl(mode: Mode) {
    let fill = |folder: &mut Folder, red, blue| {
        folder.write("listener.json", &[listener(mode, "web", "routes")]);
        folder.write("routes.json", &[routes("routes", &[("/v1", "passing"), ("/", "two")])]);
        folder.write("clusters.json", &[with_ttl(cluster(mode, "passing")), cluster(mode, "two")]);
        folder.write("endpoints.json", &[endpoints("passing", red), endpoints("two", blue)]);
    };
    let Some(mut world) = World::start_from(mode, fill).await else { return };
    world.until_answer("/v1", "red").await;
    let load = Load::start(world.port, "/v1", Connections::New);

    time::sleep(2 * TTL + Duration::from_secs(1)).await;

    let report = load.finish().await;
    eprintln!("{mode}: {report}");
    report.assert_nothing_lost();
    assert!(world.envoy.clusters().await.into_keys().eq(["passing", "two"]), "{mode}");
    // A refresh is no change.
    let stats = world.envoy.stats().await;
    assert_eq!(stats.get("cluster_manager.cluster_modified"), 0, "{mode}");
    assert_eq!(stats.get("cluster_manager.cluster_removed"), 0, "{mode}");

    // Without the server the resource expires, so the server did refresh it.
    world.server.kill().await;
    let gone = async || world.envoy.clusters().await.into_keys().eq(["two"]).then_some(());
    let ((), took) = until("the cluster is gone", SOON, gone).await;
    eprintln!("{mode}: gone {took:.1?} after the server");
    assert!(took < 2 * TTL, "{mode}: gone after {took:?}");
}

fn with_ttl(cluster: Value) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.service.discovery.v3.Resource",
        "name": cluster["name"],
        "ttl": format!("{}s", TTL.as_secs()),
        "resource": cluster,
    })
}

const TTL: Duration = Duration::from_secs(2);
