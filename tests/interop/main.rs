//! The `xds` binary serves a folder to a real Envoy and to real gRPC clients. Our client subscribes
//! to xDS servers of other projects.
//!
//! `cargo xtask test` installs them below `target/peers` and runs this; without them each test says
//! `SKIPPED`.

#![forbid(unsafe_code)]

mod c_core;
mod calls;
mod client;
mod envoy;
mod etcd;
mod etcd_away;
mod fleet;
mod folder;
mod follower;
mod foreign;
mod grpc;
mod grpc_page;
mod grpc_peer;
mod holding;
mod http;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../binary/link.rs"]
mod link;
mod load;
mod migration;
mod mode;
mod mtls;
mod nodes;
mod on_demand;
mod own_type;
mod peers;
#[path = "../binary/port.rs"]
mod port;
mod proxy;
mod reads;
mod reconfigure;
mod recorder;
mod refused;
mod regions;
mod rejected;
mod resources;
mod rest;
mod rollout;
mod server;
mod shared;
mod shared_store;
mod side_by_side;
mod sources;
mod store;
mod ttl;
#[expect(dead_code, reason = "this is a program; the tests use its agent")]
#[path = "../../examples/typed_getters.rs"]
mod typed_getters;
mod upstream;
mod valid;
mod variants;
mod virtual_hosts;
mod wait;
mod watched;
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::time;

use crate::envoy::{CHANGES, Envoy, RESPONSES, Stats};
use crate::folder::Folder;
use crate::load::{Connections, Load};
use crate::mode::{Mode, Protocol};
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_requests_answer_from_the_right_upstream() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        world.until_answer("/v1/hello", "red").await;
        world.until_answer("/hello", "blue").await;
        for _ in 0..20 {
            assert_eq!(world.ask("/v1/hello").await, "red", "{mode}");
            assert_eq!(world.ask("/hello").await, "blue", "{mode}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_edit_moves_traffic() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        let assign =
            |one, two| world.folder.write("endpoints.json", &[endpoints("one", one), endpoints("two", two)]);
        let (red, blue) = (world.red.port, world.blue.port);
        world.until_answer("/v1/hello", "red").await;

        assign(blue, blue);
        world.until_answer("/v1/hello", "blue").await;
        assign(red, blue);
        world.until_answer("/v1/hello", "red").await;
        assert_eq!(world.ask("/hello").await, "blue", "{mode}: the other cluster was not edited");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_resources_disappear() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        world.folder.write("passing-endpoints.json", &[endpoints("passing", world.red.port)]);
        world.folder.write("passing-cluster.json", &[cluster(mode, "passing")]);
        world.folder.write("passing-routes.json", &[routes("passing-routes", &[("/", "passing")])]);
        world.folder.write("passing-listener.json", &[listener(mode, "passing-web", "passing-routes")]);
        let passing_port = world.envoy.port("passing-web").await;
        let answers = async || {
            let answer = http::get(passing_port, "/").await.ok()?;
            (answer.body == "red").then_some(())
        };
        until("the second listener answers", SOON, answers).await;
        assert!(world.envoy.config_dump().await.contains("passing"), "{mode}");

        for name in
            ["passing-listener.json", "passing-routes.json", "passing-cluster.json", "passing-endpoints.json"]
        {
            world.folder.remove(name);
        }

        // In SotW, routes and endpoints are not deleted by themselves, but together with the
        // listener and the cluster.
        let gone = async || (!world.envoy.config_dump().await.contains("passing")).then_some(());
        until("listener, routes, cluster and endpoints are gone", SOON, gone).await;
        assert_eq!(world.envoy.listeners().await, ["web"], "{mode}");
        assert!(world.envoy.clusters().await.into_keys().eq(["one", "two"]), "{mode}");
        assert_eq!(world.ask("/v1/hello").await, "red", "{mode}");
        assert_eq!(world.ask("/hello").await, "blue", "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_cluster_leaves_the_rest_working_is_logged_once_and_is_not_sent_again() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        let (red, blue) = (world.red.port, world.blue.port);
        world.until_answer("/v1/hello", "red").await;
        let mut bad = cluster(mode, "bad");
        // A folder cannot know which names an Envoy was built with.
        bad["transport_socket"] = json!({ "name": "unknown" });

        world.folder.write("bad.json", &[bad]);
        until("Envoy rejects the cluster", SOON, async || (rejected(&world).await > 0).then_some(())).await;
        until("our server logs it", SOON, async || {
            (!world.server.lines_with(MESSAGE).is_empty()).then_some(())
        })
        .await;

        // Two commits of another type: content that is wrongly sent again would come before the
        // second.
        world.folder.write("endpoints.json", &[endpoints("one", blue), endpoints("two", blue)]);
        world.until_answer("/v1/hello", "blue").await;
        world.folder.write("endpoints.json", &[endpoints("one", red), endpoints("two", blue)]);
        world.until_answer("/v1/hello", "red").await;
        assert_eq!(world.ask("/hello").await, "blue", "{mode}");
        assert_eq!(rejected(&world).await, 1, "{mode}: nothing was sent again");
        assert_eq!(
            world.server.lines_with(MESSAGE).len(),
            1,
            "{mode}: {:?}",
            world.server.lines_with(MESSAGE)
        );

        // A correction is new content, so it is sent.
        world.folder.write("bad-endpoints.json", &[endpoints("bad", red)]);
        world.folder.write("bad.json", &[cluster(mode, "bad")]);
        let corrected = async || world.envoy.clusters().await.contains_key("bad").then_some(());
        until("the corrected cluster is in use", SOON, corrected).await;
        assert_eq!(rejected(&world).await, 1, "{mode}");
    }

    async fn rejected(world: &World) -> u64 {
        world.envoy.stats().await.get("cluster_manager.cds.update_rejected")
    }

    /// A part of Envoy's message about the cluster.
    const MESSAGE: &str = "Didn't find a registered implementation for 'unknown'";
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_and_restarted_server_loses_no_request_and_re_sends_nothing_unchanged() {
    for mode in Mode::ALL {
        let Some(mut world) = World::start(mode).await else { return };
        world.until_answer("/hello", "blue").await;
        let load = Load::start(world.port, "/v1/hello", Connections::New);
        let before = world.envoy.stats().await;

        world.server.kill().await;
        until("Envoy loses the server", SOON, async || {
            connected(&world.envoy.stats().await).is_empty().then_some(())
        })
        .await;
        world.server.restart().await;
        let streams = connected(&before);
        until("Envoy has all its streams again", SOON, async || {
            (connected(&world.envoy.stats().await) == streams).then_some(())
        })
        .await;
        // An edit that arrives shows that the new streams work, and that everything before it has
        // been sent.
        world
            .folder
            .write("endpoints.json", &[endpoints("one", world.red.port), endpoints("two", world.red.port)]);
        world.until_answer("/hello", "red").await;

        let after = world.envoy.stats().await;
        load.finish().await.assert_nothing_lost();
        assert_eq!(after.ending(CHANGES), before.ending(CHANGES), "{mode}: nothing was taken for a change");
        if mode.protocol == Protocol::Delta {
            let mut expected = before.ending(RESPONSES);
            *expected.get_mut("cluster.two.update_success").expect("its endpoints come over EDS") += 1;
            assert_eq!(after.ending(RESPONSES), expected, "{mode}: only the edit was sent");
        }
    }

    /// The number of open streams.
    fn connected(stats: &Stats) -> BTreeSet<String> {
        let states = stats.ending(&["control_plane.connected_state"]);
        states.into_iter().filter(|(_, state)| *state == 1).map(|(name, _)| name).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_commit_that_replaces_route_cluster_and_endpoints_loses_no_request() {
    for mode in Mode::ALL {
        swap_under_load(mode, |_| "routes".to_owned()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_commit_that_gives_a_listener_other_routes_to_other_clusters_loses_no_request() {
    for mode in Mode::ALL {
        swap_under_load(mode, |number| format!("routes-{number}")).await;
    }
}

/// Replaces the cluster, its endpoints, and the routes that name it, in separate commits and under
/// load.
async fn swap_under_load(mode: Mode, routes_name: impl Fn(usize) -> String) {
    let generation = |number: usize, red, blue| {
        let (cluster_name, routes_name) = (format!("generation-{number}"), routes_name(number));
        [
            ("listener.json", vec![listener(mode, "web", &routes_name)]),
            ("routes.json", vec![routes(&routes_name, &[("/", &cluster_name)])]),
            ("clusters.json", vec![cluster(mode, &cluster_name)]),
            ("endpoints.json", vec![endpoints(&cluster_name, [red, blue][number % 2])]),
        ]
    };
    let first = |folder: &mut Folder, red, blue| folder.swap(&generation(0, red, blue));
    let Some(mut world) = World::start_from(mode, first).await else { return };
    let (red, blue) = (world.red.port, world.blue.port);
    world.until_answer("/", "red").await;
    let loads = [Connections::New, Connections::Kept].map(|kind| Load::start(world.port, "/", kind));

    for number in 1..=SWAPS {
        world.folder.swap(&generation(number, red, blue));
        world.until_answer("/", ["red", "blue"][number % 2]).await;
        // Every second swap comes while the cluster before the last is still being removed.
        if number.is_multiple_of(2) {
            let only = format!("generation-{number}");
            let gone = async || world.envoy.clusters().await.into_keys().eq([only.clone()]).then_some(());
            until("the old clusters are gone", SOON, gone).await;
        }
    }

    for load in loads {
        let report = load.finish().await;
        eprintln!("{mode}: {report}");
        report.assert_nothing_lost();
    }
}

const SWAPS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_commit_that_removes_a_cluster_and_its_route_loses_no_request() {
    for mode in Mode::ALL {
        let generation = |with_one, red, blue| {
            let (prefixes, clusters) = if with_one {
                (&[("/v1", "one"), ("/", "two")][..], vec![cluster(mode, "one"), cluster(mode, "two")])
            } else {
                (&[("/", "two")][..], vec![cluster(mode, "two")])
            };
            [
                ("listener.json", vec![listener(mode, "web", "routes")]),
                ("routes.json", vec![routes("routes", prefixes)]),
                ("clusters.json", clusters),
                ("endpoints.json", vec![endpoints("one", red), endpoints("two", blue)]),
            ]
        };
        let first = |folder: &mut Folder, red, blue| folder.swap(&generation(true, red, blue));
        let Some(mut world) = World::start_from(mode, first).await else { return };
        let (red, blue) = (world.red.port, world.blue.port);
        world.until_answer("/v1", "red").await;
        let loads = [Connections::New, Connections::Kept].map(|kind| Load::start(world.port, "/v1", kind));

        for with_one in [false, true].repeat(SWAPS / 2) {
            world.folder.swap(&generation(with_one, red, blue));
            world.until_answer("/v1", if with_one { "red" } else { "blue" }).await;
        }
        world.folder.swap(&generation(false, red, blue));
        let gone = async || world.envoy.clusters().await.into_keys().eq(["two"]).then_some(());
        until("the cluster is gone", SOON, gone).await;

        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
    }
}

/// Two commits, the wrong one first: the removal of the cluster is withheld while the route names
/// it (S33).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s33_a_cluster_that_goes_before_its_route_loses_no_request_and_goes_when_that_follows() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        world.until_answer("/v1", "red").await;
        let kinds = [Connections::New, Connections::Kept];
        let loads = kinds.map(|kind| Load::start(world.port, "/v1", kind));
        let other = Load::start(world.port, "/", Connections::New);

        for pause in [300, 1000].map(Duration::from_millis) {
            world.folder.write("clusters.json", &[cluster(mode, "two")]);
            time::sleep(pause).await;
            // A new cluster shows that Envoy has received everything before it.
            world.folder.write("clusters.json", &[cluster(mode, "two"), cluster(mode, "mark")]);
            world.folder.write("mark.json", &[endpoints("mark", world.red.port)]);
            let heard = async || world.envoy.clusters().await.contains_key("mark").then_some(());
            until("the removal is heard of", SOON, heard).await;
            let names = world.envoy.clusters().await.into_keys();
            assert!(names.eq(["mark", "one", "two"]), "{mode}: the cluster is held");
            assert_eq!(world.ask("/v1").await, "red", "{mode}");

            world.folder.write("routes.json", &[routes("routes", &[("/", "two")])]);
            world.until_answer("/v1", "blue").await;
            let gone = async || world.envoy.clusters().await.into_keys().eq(["mark", "two"]).then_some(());
            until("the cluster is gone", SOON, gone).await;

            // Everything is as before.
            world.folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
            world.folder.remove("mark.json");
            world.folder.write("routes.json", &[routes("routes", &[("/v1", "one"), ("/", "two")])]);
            world.until_answer("/v1", "red").await;
        }

        for load in loads.into_iter().chain([other]) {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v13_a_changed_cluster_with_unchanged_endpoints_is_warm_at_once() {
    for mode in Mode::ALL {
        let Some(world) = World::start(mode).await else { return };
        world.until_answer("/v1/hello", "red").await;
        for timeout in ["2s", "3s", "4s"] {
            let mut one = cluster(mode, "one");
            one["connect_timeout"] = timeout.into();
            world.folder.write("clusters.json", &[one, cluster(mode, "two")]);
            let active = async || {
                let cluster = world.envoy.active_cluster("one").await?;
                (cluster["connect_timeout"] == timeout).then_some(())
            };
            // If the endpoints are not sent again, Envoy uses its old ones after 15 s.
            let ((), took) = until("the changed cluster is active", AT_ONCE, active).await;
            eprintln!("{mode}: warm after {took:?}");
            assert_eq!(world.envoy.stats().await.get("cluster_manager.warming_clusters"), 0, "{mode}");
        }
        assert_eq!(world.ask("/v1/hello").await, "red", "{mode}");
    }

    /// The step takes half a second; the rest of the time is for a busy machine.
    const AT_ONCE: Duration = Duration::from_secs(5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_ends_with_success_while_envoy_is_connected() {
    for mode in Mode::ALL {
        let Some(mut world) = World::start(mode).await else { return };
        world.until_answer("/v1/hello", "red").await;
        assert!(world.server.terminate().await.success(), "{mode}");
        assert_eq!(world.ask("/v1/hello").await, "red", "{mode}: Envoy keeps what it has");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quickstart_routes_traffic_with_the_bootstrap_beside_it() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let (one, two) = (Upstream::start("one").await, Upstream::start("two").await);
    let (folder, scratch) = (Folder::new(), Folder::new());
    for (name, ports) in [
        ("listener.yaml", &[(10000, 0)][..]),
        ("route.yaml", &[]),
        ("clusters.yaml", &[]),
        ("endpoints.yaml", &[(8081, one.port), (8082, two.port)]),
    ] {
        let text = fs::read_to_string(examples.join("quickstart").join(name)).expect("the example is there");
        fs::write(folder.path().join(name), elsewhere(&text, ports)).expect("the folder is writable");
    }
    let server = Server::start(folder.path()).await;
    let text = fs::read_to_string(examples.join("envoy-bootstrap.yaml")).expect("the bootstrap is there");
    let text = elsewhere(&text, &[(9901, 0), (18000, server.port)]);
    let Some(envoy) = Envoy::start_with(scratch.path(), &text, "bootstrap.yaml").await else { return };

    let port = envoy.port("web").await;

    for (path, upstream) in [("/v1/hello", "one"), ("/hello", "two")] {
        let answers = async || (http::get(port, path).await.ok()?.body == upstream).then_some(());
        until(&format!("{path} is answered by {upstream}"), SOON, answers).await;
    }
}

/// The text of an example with other ports, because its fixed ports may be in use on this machine.
fn elsewhere(text: &str, ports: &[(u16, u16)]) -> String {
    ports.iter().fold(text.to_owned(), |text, (from, to)| {
        let from = format!("port_value: {from}");
        assert!(text.contains(&from), "the example has no {from}");
        text.replace(&from, &format!("port_value: {to}"))
    })
}
