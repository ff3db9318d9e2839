//! Real gRPC clients: the C core, Go and JavaScript.

use serde_json::{Value, json};
use xds_client::Protocol;

use crate::calls::Calls;
use crate::folder::Folder;
use crate::follower::Follower;
use crate::grpc_peer::{Bootstrap, GrpcPeer, Implementation};
use crate::mode::Mode;
use crate::resources::{api_listener, cluster, endpoints, routes};
use crate::server::Server;
use crate::wait::{SOON, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_in_the_environment_is_as_good_as_one_in_a_file() {
    for implementation in Implementation::ALL {
        let Some(world) = GrpcWorld::start(implementation).await else { continue };
        let (target, port) = ("xds:///svc", world.server.port);
        let client = GrpcPeer::client(implementation, Bootstrap::Inline, target, port, &json!({}));
        assert_eq!(client.expect("found before").call().await, Ok("red".to_owned()), "{implementation}");
        world.calls.finish_without_loss().await;
    }
}

/// The client waits 15 s for an answer about its listener, and a call of the test program has 12 s.
/// So a call that fails for another reason than its deadline did not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s37_a_target_that_does_not_exist_fails_at_once_if_the_client_uses_errors() {
    let folder = Folder::new();
    folder.write("listener.json", &[api_listener(SOTW, "svc", "routes")]);
    folder.write("routes.json", &[routes("routes", &[("", "typo")])]);
    let server = Server::start_with(folder.path(), &["--sotw-not-found"]).await;
    // The listener does not exist; then a cluster of a route does not.
    for (target, missing) in [("xds:///typo", "Listener"), ("xds:///svc", "Cluster")] {
        let Some(mut client) = GrpcPeer::client_with_data_errors(target, server.port) else { return };
        let error = client.call().await.expect_err("there is no such target");
        assert!(!error.contains("DEADLINE_EXCEEDED"), "{error}");
        assert!(error.contains(&format!("{missing} \"typo\" does not exist")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_of_endpoints_and_routes_move_the_calls_and_lose_none() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        for _ in 0..8 {
            world.assign(world.blue, world.blue);
            world.calls.until_answer("blue").await;
            world.assign(world.red, world.blue);
            world.calls.until_answer("red").await;
            world.route_to("two");
            world.calls.until_answer("blue").await;
            world.route_to("one");
            world.calls.until_answer("red").await;
        }
        world.calls.finish_without_loss().await;
    }
}

/// One commit for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_route_cluster_and_assignment_lose_no_call() {
    for implementation in Implementation::ALL {
        let generation = |number: usize, port| {
            let name = format!("generation-{number}");
            [
                ("listener.json", vec![api_listener(SOTW, "svc", "routes")]),
                ("routes.json", vec![routes("routes", &[("", &name)])]),
                ("clusters.json", vec![cluster(SOTW, &name)]),
                ("endpoints.json", vec![endpoints(&name, port)]),
            ]
        };
        let first = |folder: &mut Folder, red, _| folder.swap(&generation(0, red));
        let Some(mut world) = GrpcWorld::start_from(implementation, first).await else { continue };
        let ports = [world.red, world.blue];
        for number in 1..=8 {
            world.folder.swap(&generation(number, ports[number % 2]));
            world.calls.until_answer(["red", "blue"][number % 2]).await;
        }
        world.calls.finish_without_loss().await;
    }
}

/// gRPC subscribes to clusters by name. For such clients the server withholds a removal for the
/// grace time of order.rs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_goes_a_little_before_its_route_loses_no_call() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        world.folder.write("clusters.json", &[cluster(SOTW, "two")]);
        world.calls.go_on(100).await;
        world.route_to("two");
        world.calls.until_answer("blue").await;
        world.calls.finish_without_loss().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_cluster_fails_the_calls_until_it_is_back() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        let mut named = cluster(SOTW, "one");
        named["eds_cluster_config"]["service_name"] = "one".into();
        // Not at once: a client that subscribes by name gets the removal after the grace time of
        // order.rs.
        world.folder.write("clusters.json", &[cluster(SOTW, "two")]);
        world.calls.until_failure().await;
        world.comes_back("clusters.json", [cluster(SOTW, "one"), named], &[cluster(SOTW, "two")]).await;
        // The other resources are not touched.
        world.route_to("two");
        world.calls.until_answer("blue").await;
        eprintln!("{implementation}: {}", world.calls.finish().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_listener_fails_the_calls_until_it_is_back() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        let listener = api_listener(SOTW, "svc", "routes");
        let mut changed = listener.clone();
        changed["stat_prefix"] = "changed".into();
        world.folder.remove("listener.json");
        world.calls.until_failure().await;
        world.comes_back("listener.json", [listener, changed], &[]).await;
        eprintln!("{implementation}: {}", world.calls.finish().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_cluster_leaves_the_old_one_in_use_is_logged_once_and_is_not_sent_again() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        let mut bad = cluster(SOTW, "one");
        // Envoy takes this type, gRPC does not.
        bad["type"] = "STATIC".into();
        bad.as_object_mut().expect("a map").remove("eds_cluster_config");
        world.folder.write("clusters.json", &[bad, cluster(SOTW, "two")]);
        let rejected = async || (!rejections(&world.server).is_empty()).then_some(());
        until(&format!("our server logs what {implementation} rejects"), SOON, rejected).await;

        // Two commits of another type: content that is wrongly sent again would come before the
        // second.
        world.assign(world.blue, world.blue);
        world.calls.until_answer("blue").await;
        world.assign(world.red, world.blue);
        world.calls.until_answer("red").await;
        let lines = rejections(&world.server);
        eprintln!("{implementation}: {lines:?}");
        assert_eq!(lines.len(), 1, "{implementation}: {lines:?}");

        // A correction is new content, so it is sent.
        let mut good = cluster(SOTW, "one");
        good["eds_cluster_config"]["service_name"] = "two".into();
        world.folder.write("clusters.json", &[good, cluster(SOTW, "two")]);
        world.calls.until_answer("blue").await;
        assert_eq!(rejections(&world.server).len(), 1, "{implementation}");
        world.calls.finish_without_loss().await;
    }

    fn rejections(server: &Server) -> Vec<String> {
        server.lines_with("rejected")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_while_the_server_is_gone_and_an_edit_reaches_them_when_it_is_back() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        world.server.kill().await;
        world.calls.go_on(100).await;
        world.server.restart().await;
        world.assign(world.blue, world.blue);
        world.calls.until_answer("blue").await;
        world.calls.finish_without_loss().await;
    }
}

/// Our client follows the same resources as gRPC, and finds the same address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_sees_what_grpc_clients_see() {
    for implementation in Implementation::ALL {
        let Some(mut world) = GrpcWorld::start(implementation).await else { continue };
        let (red, blue) = (world.red, world.blue);
        let followers = [Protocol::Sotw, Protocol::Delta]
            .map(|protocol| (protocol, Follower::start(world.server.port, protocol)));
        let mut followers =
            followers.map(|(protocol, follower)| (format!("{implementation}, {protocol:?}"), follower));
        let mut both_see = async |world: &mut GrpcWorld, port: u16| {
            world.calls.until_answer(if port == red { "red" } else { "blue" }).await;
            for (what, follower) in &mut followers {
                follower.until(what, Some(port)).await;
            }
        };
        both_see(&mut world, red).await;
        world.assign(blue, blue);
        both_see(&mut world, blue).await;
        world.assign(red, blue);
        both_see(&mut world, red).await;
        world.route_to("two");
        both_see(&mut world, blue).await;
        world.server.kill().await;
        world.calls.go_on(20).await;
        both_see(&mut world, blue).await;
        world.server.restart().await;
        world.route_to("one");
        both_see(&mut world, red).await;

        world.folder.remove("listener.json");
        world.calls.until_failure().await;
        for (what, follower) in &mut followers {
            follower.until(what, None).await;
        }
        eprintln!("{implementation}: {}", world.calls.finish().await);
    }
}

/// Two gRPC servers, a folder, our server, and a gRPC client that resolves with it.
#[derive(Debug)]
struct GrpcWorld {
    implementation: Implementation,
    folder: Folder,
    server: Server,
    calls: Calls,
    /// The ports of the two servers.
    red: u16,
    blue: u16,
    _servers: [GrpcPeer; 2],
    _scratch: Folder,
}

impl GrpcWorld {
    /// `svc` is routed to the cluster `one` (red); there is also `two` (blue).
    async fn start(implementation: Implementation) -> Option<Self> {
        Self::start_from(implementation, |folder, red, blue| {
            folder.write("listener.json", &[api_listener(SOTW, "svc", "routes")]);
            folder.write("routes.json", &[routes("routes", &[("", "one")])]);
            folder.write("clusters.json", &[cluster(SOTW, "one"), cluster(SOTW, "two")]);
            folder.write("endpoints.json", &[endpoints("one", red), endpoints("two", blue)]);
        })
        .await
    }

    /// The same with the files that `fill` writes, given the ports of red and blue.
    async fn start_from(
        implementation: Implementation,
        fill: impl FnOnce(&mut Folder, u16, u16),
    ) -> Option<Self> {
        let (red_server, red) = GrpcPeer::server("red").await?;
        let (blue_server, blue) = GrpcPeer::server("blue").await?;
        let (mut folder, scratch) = (Folder::new(), Folder::new());
        fill(&mut folder, red, blue);
        let server = Server::start(folder.path()).await;
        let (bootstrap, target) = (Bootstrap::File(scratch.path()), "xds:///svc");
        let client = GrpcPeer::client(implementation, bootstrap, target, server.port, &json!({}))?;
        eprintln!("--- {implementation}");
        let mut calls = Calls::start(implementation, client);
        calls.until_answer("red").await;
        let _servers = [red_server, blue_server];
        Some(Self { implementation, folder, server, calls, red, blue, _servers, _scratch: scratch })
    }

    /// Writes these endpoints of the clusters `one` and `two`.
    fn assign(&self, one: u16, two: u16) {
        self.folder.write("endpoints.json", &[endpoints("one", one), endpoints("two", two)]);
    }

    /// Writes a deleted resource again, first as it was and then changed, together with `others`.
    async fn comes_back(&mut self, file: &str, [same, changed]: [Value; 2], others: &[Value]) {
        let with_others = |first: Value| [&[first], others].concat();
        self.folder.write(file, &with_others(same));
        if self.implementation != Implementation::Js {
            return self.calls.until_answer("red").await;
        }
        // grpc-js-xds 1.14.1 compares with its copy from before the deletion, and ignores an equal
        // resource. It also ignores an addition at the end of the API listener. A new client shows
        // that the resource exists again.
        let (scratch, port) = (Folder::new(), self.server.port);
        let bootstrap = Bootstrap::File(scratch.path());
        let fresh = GrpcPeer::client(self.implementation, bootstrap, "xds:///svc", port, &json!({}));
        assert_eq!(fresh.expect("found before").call().await, Ok("red".to_owned()));
        self.calls.until_failure().await;
        self.folder.write(file, &with_others(changed));
        self.calls.until_answer("red").await;
    }

    fn route_to(&self, cluster: &str) {
        self.folder.write("routes.json", &[routes("routes", &[("", cluster)])]);
    }
}

/// gRPC speaks SotW over ADS, and nothing else.
const SOTW: Mode = Mode::ADS[0];
