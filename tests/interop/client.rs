//! Our client against servers of other projects.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use xds_client::bootstrap::Bootstrap;
use xds_client::health::SyncState;
use xds_client::{Client, Code, Event, Payload, Protocol, SetEvent, SetWatcher, Watcher};
use xds_core::TypeUrl;
use xds_proto::type_url::CLUSTER;

use crate::foreign::{self, Foreign, ForeignServer};
use crate::mode::Mode;
use crate::resources::{cluster, endpoints};
use crate::wait::SOON;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_see_what_foreign_servers_set_and_keep_it_while_they_are_gone() {
    for kind in Foreign::ALL {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        for protocol in PROTOCOLS {
            let what = format!("{kind}, {protocol:?}");
            eprintln!("{what}");
            server.set("one", &clusters(&[("a", 1), ("b", 1)], 1)).await;
            let client = client(&server, protocol);
            let mut watchers = client.watch_many::<Cluster>(["a", "b"]).expect("names");
            let [a, b] = &mut watchers[..] else { unreachable!("two names") };
            assert_eq!((timeout_of(a).await, timeout_of(b).await), (1, 1), "{what}");
            let like = |event: &foreign::Event| matches!(event, foreign::Event::Ack { type_url, .. } if type_url == CLUSTER);
            server.until(&format!("{what}: an ACK"), like).await;

            // Endpoints on the same stream; their responses are not full state.
            let mut assignments = client.watch_many::<ClusterLoadAssignment>(["a", "b"]).expect("names");
            assert_eq!(next(&mut assignments[0]).await.endpoints.len(), 1, "{what}");

            server.set("two", &clusters(&[("a", 2), ("b", 1)], 1)).await;
            assert_eq!(timeout_of(a).await, 2, "{what}");

            server.stop().await;
            let Event::Ambient(Some(error)) = event(a).await else { panic!("{what}: an outage") };
            assert_eq!(error.code, Code::UNAVAILABLE, "{what}");
            assert_eq!(a.borrow().map(|a| seconds(&a)), Some(2), "{what}: it is kept");
            server.start_again().await;
            server.set("three", &clusters(&[("a", 3), ("b", 1)], 1)).await;
            until_seconds(a, 3).await;

            // C9: after a deletion the client keeps the resource and reports the error.
            server.set("four", &clusters(&[("b", 1)], 1)).await;
            let gone = async {
                while a.error().is_none_or(|error| error.code != Code::NOT_FOUND) {
                    _ = a.next().await;
                }
            };
            // In SotW these two servers answer only if all requested names exist.
            let waits = matches!(kind, Foreign::GoControlPlaneAds | Foreign::JavaControlPlane);
            if protocol == Protocol::Delta || !waits {
                timeout(SOON, gone).await.unwrap_or_else(|_elapsed| panic!("{what}: a is gone"));
                assert_eq!(a.borrow().map(|a| seconds(&a)), Some(3), "{what}: it is kept");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wildcard_watcher_follows_the_clusters_of_foreign_servers() {
    for kind in Foreign::ALL {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        for protocol in PROTOCOLS {
            let what = format!("{kind}, {protocol:?}");
            eprintln!("{what}");
            server.set("one", &clusters(&[("a", 1), ("b", 1)], 1)).await;
            let client = client(&server, protocol);
            let mut all = client.watch_all::<Cluster>().expect("a type");
            let mut seen = Vec::new();
            loop {
                match set_event(&mut all).await {
                    SetEvent::Member(name, Event::Changed(_)) => seen.push(name.to_string()),
                    SetEvent::Complete => break,
                    other => panic!("{what}: {other:?}"),
                }
            }
            assert_eq!(seen, ["a", "b"], "{what}");
            server.set("two", &clusters(&[("b", 1), ("c", 1)], 1)).await;
            let (mut came, mut went) = (false, false);
            while !(came && went) {
                match set_event(&mut all).await {
                    SetEvent::Member(name, Event::Changed(_)) if name.as_str() == "c" => came = true,
                    SetEvent::Member(name, Event::Absent(_)) if name.as_str() == "a" => went = true,
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xds_get_prints_what_foreign_servers_have_and_tells_what_is_missing() {
    for kind in Foreign::ALL {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        server.set("one", &clusters(&[("a", 1), ("b", 1)], 1)).await;
        for protocol in ["--sotw", "--delta"] {
            let what = format!("{kind}, {protocol}");
            let get = async |names: &[&str]| {
                let address = format!("127.0.0.1:{}", server.port);
                let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
                command.args([
                    "get",
                    "--server",
                    &address,
                    protocol,
                    "--timeout",
                    "2",
                    "--format",
                    "json",
                    "CDS",
                ]);
                let output = command.args(names).output().await.expect("cargo built the binary");
                let lines = String::from_utf8(output.stdout).expect("JSON is text");
                let events = lines.lines().map(|line| serde_json::from_str(line).expect("an object"));
                (output.status.code(), events.collect::<Vec<Value>>())
            };
            for names in [&["a", "b"][..], &["*"]] {
                let (code, events) = get(names).await;
                assert_eq!(code, Some(0), "{what}: {names:?}: {events:?}");
                let changed = events.iter().filter(|event| event["event"] == "changed");
                let names: Vec<_> = changed.map(|event| event["resource"]["name"].clone()).collect();
                assert_eq!(names, ["a", "b"], "{what}");
            }
            // C6: silence is not absence. Two servers are silent in SotW about everything then, and send nothing else
            // either.
            let waits = matches!(kind, Foreign::GoControlPlaneAds | Foreign::JavaControlPlane);
            if protocol == "--delta" || !waits {
                let (code, events) = get(&["a", "none"]).await;
                let is_told = events.iter().any(|event| event["event"] == "gone");
                assert_eq!(code, Some(if is_told { 3 } else { 5 }), "{what}: {events:?}");
            }
        }
    }
}

/// Clusters with these connect timeouts in seconds, and an assignment for each.
fn clusters(clusters: &[(&str, u64)], port: u16) -> Vec<Value> {
    let resources = clusters.iter().flat_map(|(name, seconds)| {
        let mut cluster = cluster(Mode::ADS[0], name);
        cluster["connect_timeout"] = json!(format!("{seconds}s"));
        [cluster, endpoints(name, port)]
    });
    resources.collect()
}

fn client(server: &ForeignServer, protocol: Protocol) -> Client {
    let mut bootstrap = Bootstrap::to_server(format!("127.0.0.1:{}", server.port));
    bootstrap.node.id = "interop".into();
    Client::builder(bootstrap).protocol(protocol).start().expect("it starts")
}

fn seconds(cluster: &Cluster) -> i64 {
    cluster.connect_timeout.as_ref().expect("it is set").seconds
}

async fn timeout_of(watcher: &mut Watcher<Cluster>) -> i64 {
    seconds(next(watcher).await.value())
}

/// Waits for this connect timeout; skips earlier events.
async fn until_seconds(watcher: &mut Watcher<Cluster>, wanted: i64) {
    let found = async {
        while watcher.borrow().is_none_or(|cluster| seconds(&cluster) != wanted) {
            _ = watcher.next().await;
        }
    };
    timeout(SOON, found).await.expect("it comes in time");
}

/// The next resource; skips earlier events.
async fn next<T: Payload>(watcher: &mut Watcher<T>) -> xds_client::Resource<T> {
    loop {
        if let Event::Changed(resource) = event(watcher).await {
            return resource;
        }
    }
}

async fn event<T: Payload>(watcher: &mut Watcher<T>) -> Event<T> {
    timeout(SOON, watcher.next()).await.expect("something happens in time").expect("the client lives")
}

async fn set_event<T: Payload>(watcher: &mut SetWatcher<T>) -> SetEvent<T> {
    timeout(SOON, watcher.next()).await.expect("something happens in time").expect("the client lives")
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Sotw, Protocol::Delta];

/// D21b: the normal restart of a control plane, which has nothing new. In delta each type is confirmed within a
/// second of the connection. In SotW a server has nothing to say, so what the client has stays in use, unconfirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d21b_after_a_reconnect_to_an_unchanged_server_all_types_are_healthy_within_a_second() {
    for kind in Foreign::ALL {
        let Some(mut server) = ForeignServer::start(kind).await else { return };
        for protocol in PROTOCOLS {
            server.set("one", &clusters(&[("a", 1), ("b", 1)], 1)).await;
            let client = client(&server, protocol);
            let mut all = client.watch_all::<Cluster>().expect("a type");
            let mut assignments = client.watch_many::<ClusterLoadAssignment>(["a", "b"]).expect("names");
            while !matches!(set_event(&mut all).await, SetEvent::Complete) {}
            for assignment in &mut assignments {
                next(assignment).await;
            }
            let [types] = states(&client).try_into().expect("one server");
            assert!(types.iter().all(|(_, state)| matches!(state, SyncState::Synced(_))), "{types:?}");
            server.stop().await;
            let is_connected = || client.servers().iter().all(|server| server.is_connected);
            wait_until(|| !is_connected()).await;
            server.start_again().await;
            let is_of_first = |state: &SyncState| matches!(state, SyncState::Synced(generation) if generation.to_string() == "1");
            let is_open = || {
                let states = states(&client);
                matches!(&states[..], [types] if types.iter().any(|(_, state)| !is_of_first(state)))
            };
            wait_until(is_open).await;
            let start = Instant::now();
            let is_synced = || {
                let states = states(&client);
                let is_synced = |(_, state): &(_, SyncState)| matches!(state, SyncState::Synced(_));
                matches!(&states[..], [types] if types.iter().all(is_synced))
            };
            while !is_synced() && start.elapsed() < Duration::from_secs(3) {
                sleep(Duration::from_millis(5)).await;
            }
            let took = start.elapsed();
            eprintln!("{kind}, {protocol:?}: {took:.3?}, {:?}", states(&client));
            let readable = states(&client).concat().iter().all(|(_, state)| state.is_readable());
            assert!(
                readable && (protocol == Protocol::Sotw || took < Duration::from_secs(1)),
                "{kind}, {protocol:?}"
            );
        }
    }
}

/// The states of types, by server.
fn states(client: &Client) -> Vec<Vec<(TypeUrl, SyncState)>> {
    client.servers().into_iter().map(|server| server.types).collect()
}

async fn wait_until(is_so: impl Fn() -> bool) {
    let found = async {
        while !is_so() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(SOON, found).await.expect("in time");
}
