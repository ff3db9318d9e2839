//! Kubernetes as a source of the `xds` binary, with a real kube-apiserver on a real etcd, and a real
//! Envoy.
//!
//! `cargo xtask kubernetes` installs them below `target/peers` and runs this; without them each test
//! says `SKIPPED`. It is not a part of `.ci/run`: to build the API server takes too long for that.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![forbid(unsafe_code)]

#[path = "kubernetes/api_server.rs"]
mod api_server;
#[path = "kubernetes/objects.rs"]
mod objects;
#[path = "kubernetes/server.rs"]
mod server;

#[path = "interop/envoy.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod envoy;
#[path = "interop/etcd.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod etcd;
#[path = "interop/folder.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod folder;
#[path = "interop/http.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod http;
#[path = "interop/mode.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod mode;
#[path = "interop/peers.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod peers;
#[path = "binary/port.rs"]
mod port;
#[path = "interop/resources.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod resources;
#[path = "binary/running.rs"]
#[allow(dead_code, reason = "shared with the other tests of the binary")]
mod running;
#[path = "interop/upstream.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod upstream;
#[path = "interop/wait.rs"]
#[allow(dead_code, reason = "shared with the other tests of real peers")]
mod wait;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;

use api_server::ApiServer;
use envoy::Envoy;
use etcd::Etcd;
use folder::Folder;
use mode::Mode;
use objects::{Admin, of_pods, slice};
use server::Xds;
use upstream::Upstream;
use wait::until;

/// All that the first two tests need: an Envoy whose route leads to the service `web`.
struct World {
    etcd: Etcd,
    api: ApiServer,
    admin: Admin,
    xds: Xds,
    port: u16,
    _envoy: Envoy,
    _scratch: Folder,
}

impl World {
    async fn start(here: &str, first: u16) -> Option<Self> {
        let etcd = Etcd::start().await?;
        let api = ApiServer::start(&etcd).await?;
        let admin = Admin::connect(&api).await;
        admin.namespace("shop").await;
        admin.grant_xds().await;
        let mode = Mode::ADS[1];
        let mut web = resources::cluster(mode, "shop/web");
        web["eds_cluster_config"]["service_name"] = "shop/web/http".into();
        let listener = resources::listener(mode, "shop/in", "shop/routes");
        let routes = resources::routes("shop/routes", &[("/", "shop/web")]);
        admin
            .config_map("routes", &serde_json::json!({"resources": [web, listener, routes]}).to_string())
            .await;
        admin.slice(&slice("web", "web-1", &[(here, "ready")], first)).await;
        let xds = Xds::start(&api).await;
        let scratch = Folder::new();
        let envoy = Envoy::start(scratch.path(), mode, xds.port).await?;
        let port = envoy.port("shop/in").await;
        Some(Self { etcd, api, admin, xds, port, _envoy: envoy, _scratch: scratch })
    }

    async fn answer(&self) -> String {
        match http::get(self.port, "/").await {
            Ok(answer) if answer.status == 200 => answer.body,
            other => format!("{other:?}"),
        }
    }

    /// Waits until requests get this answer.
    async fn until_answer(&self, body: &str) -> Duration {
        let answers = async || (self.answer().await == body).then_some(());
        until(&format!("Envoy answers {body}"), PATIENCE, answers).await.1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_follows_a_service_as_its_endpoint_slices_change() {
    let here = address();
    let (red, blue) = (Upstream::start_on(here, "red").await, Upstream::start_on(here, "blue").await);
    let here = &*here.to_string();
    let Some(world) = World::start(here, red.port).await else { return };
    let admin = &world.admin;
    world.until_answer("red").await;

    // An update of a slice.
    admin.slice(&slice("web", "web-1", &[(here, "ready")], blue.port)).await;
    eprintln!("a changed slice took {:?}", world.until_answer("blue").await);

    // A second slice, whose endpoint is not ready, and then is, while the first one drains.
    admin.slice(&slice("web", "web-2", &[(here, "unready")], red.port)).await;
    world.xds.until_assignment("shop/web/http", "UNHEALTHY").await;
    assert_eq!(world.answer().await, "blue");
    admin.slice(&slice("web", "web-2", &[(here, "ready")], red.port)).await;
    admin.slice(&slice("web", "web-1", &[(here, "draining")], blue.port)).await;
    world.xds.until_assignment("shop/web/http", "DRAINING").await;
    world.until_answer("red").await;

    // The first one goes. A bad ConfigMap meanwhile changes nothing.
    admin.delete_slice("web-1").await;
    admin.config_map("routes", "{\"name\": [").await;
    world.xds.until_logged("ConfigMap shop/routes: r.json:").await;
    world.xds.until_metric(r#"xds_source_isolated_files{source="kubernetes"} 1"#).await;
    world.until_answer("red").await;
    assert!(!world.xds.get(&["EDS", "shop/web/http"]).contains(&blue.port.to_string()));

    // Without slices there is no service.
    admin.delete_slice("web-2").await;
    world.xds.until_absent("EDS", "shop/web/http").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_api_server_is_away_nothing_is_removed_and_then_nothing_is_missed() {
    let here = address();
    let (red, blue) = (Upstream::start_on(here, "red").await, Upstream::start_on(here, "blue").await);
    let here = &*here.to_string();
    let Some(mut world) = World::start(here, red.port).await else { return };
    world.admin.slice(&slice("old", "old-1", &[("10.0.0.1", "ready")], 80)).await;
    world.admin.slice(&slice("kept", "kept-1", &[("10.0.0.2", "ready")], 80)).await;
    world.xds.until_assignment("shop/old/http", "10.0.0.1").await;
    world.xds.until_assignment("shop/kept/http", "10.0.0.2").await;
    world.until_answer("red").await;
    let all = world.xds.names("EDS");

    world.api.stop().await;
    let stopped_at = Instant::now();
    world.xds.until_metric(r#"xds_source_last_reload_successful{source="kubernetes"} 0"#).await;
    // Changes that this server cannot see: another API server on the same etcd.
    let other = ApiServer::start(&world.etcd).await.expect("it is installed");
    let elsewhere = Admin::connect(&other).await;
    elsewhere.delete_slice("old-1").await;
    elsewhere.slice(&slice("new", "new-1", &[("10.0.0.3", "ready")], 80)).await;
    elsewhere.slice(&slice("web", "web-1", &[(here, "ready")], blue.port)).await;
    other.end().await;
    world.etcd.compact().await;
    while stopped_at.elapsed() < AWAY {
        assert_eq!((world.xds.names("EDS"), world.answer().await), (all.clone(), "red".to_owned()));
        sleep(Duration::from_secs(1)).await;
    }

    world.api.restart(&world.etcd).await;
    eprintln!("after the restart of the API server it took {:?}", world.until_answer("blue").await);
    world.xds.until_absent("EDS", "shop/old/http").await;
    world.xds.until_assignment("shop/new/http", "10.0.0.3").await;
    let mut names = world.xds.names("EDS");
    // The service of the API server itself.
    names.retain(|name| !name.starts_with("default/"));
    assert_eq!(names, ["shop/kept/http", "shop/new/http", "shop/web/http"]);
    world.xds.until_metric(r#"xds_source_last_reload_successful{source="kubernetes"} 1"#).await;
    // And it follows.
    world.admin = Admin::connect(&world.api).await;
    world.admin.slice(&slice("web", "web-1", &[(here, "ready")], red.port)).await;
    world.until_answer("red").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_becomes_dual_stack_keeps_every_pod() {
    let Some(etcd) = Etcd::start().await else { return };
    let Some(api) = ApiServer::start(&etcd).await else { return };
    let admin = Admin::connect(&api).await;
    admin.namespace("shop").await;
    admin.grant_xds().await;
    let old = [("fd00::1", "p1"), ("fd00::2", "p2")];
    admin.slice(&of_pods("web", "web-6", "IPv6", &old)).await;
    let xds = Xds::start(&api).await;
    let addresses = || {
        let shown = xds.get(&["EDS", "shop/web/http"]);
        ["10.0.0.1", "fd00::1", "fd00::2"]
            .into_iter()
            .filter(|address| shown.contains(address))
            .collect::<Vec<_>>()
    };
    assert_eq!(addresses(), ["fd00::1", "fd00::2"]);

    // As the API server has it at once, before any pod has an IPv4 address. The other service says when
    // xds has read it.
    admin.slice(&of_pods("web", "web-4", "IPv4", &[])).await;
    admin.slice(&of_pods("later", "later-4", "IPv4", &[("10.0.0.9", "p9")])).await;
    xds.until_assignment("shop/later/http", "10.0.0.9").await;
    assert_eq!(addresses(), ["fd00::1", "fd00::2"]);

    admin.slice(&of_pods("web", "web-4", "IPv4", &[("10.0.0.1", "p1")])).await;
    xds.until_assignment("shop/web/http", "10.0.0.1").await;
    assert_eq!(addresses(), ["10.0.0.1", "fd00::2"]);
    admin.delete_slice("web-4").await;
    xds.until_assignment("shop/web/http", "fd00::1").await;
    assert_eq!(addresses(), ["fd00::1", "fd00::2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_slices_cost_little_and_a_change_costs_what_it_changes() {
    let Some(etcd) = Etcd::start().await else { return };
    let Some(api) = ApiServer::start(&etcd).await else { return };
    let admin = Admin::connect(&api).await;
    admin.namespace("shop").await;
    admin.grant_xds().await;
    let of = |number: usize, port: u16| {
        let addresses: Vec<_> =
            (1..=10).map(|host| format!("10.{}.{}.{host}", number / 250, number % 250)).collect();
        let hosts: Vec<_> = addresses.iter().map(|address| (&**address, "ready")).collect();
        slice(&format!("s{number}"), &format!("s{number}-1"), &hosts, port)
    };
    let started_at = Instant::now();
    let make = |number| {
        let (admin, slice) = (&admin, of(number, 80));
        async move { admin.slice(&slice).await }
    };
    stream::iter((0..SLICES).map(make)).buffer_unordered(32).collect::<Vec<_>>().await;
    eprintln!("{SLICES} slices of 10 endpoints were made in {:?}", started_at.elapsed());

    let xds = Xds::start(&api).await;
    let load = xds.cpu();
    eprintln!("CPU of the load, with the start of the process: {load:?}");
    assert_eq!(xds.names("EDS").iter().filter(|name| name.starts_with("shop/")).count(), SLICES);
    assert!(load < Duration::from_secs(5) || cfg!(debug_assertions), "{load:?}");

    let before = xds.cpu();
    for number in 0..CHANGES {
        admin.slice(&of(number, 81)).await;
        xds.until_assignment(&format!("shop/s{number}/http"), "port_value: 81").await;
    }
    let each = (xds.cpu() - before) / u32::try_from(CHANGES).unwrap();
    eprintln!("CPU of a change, with the requests of the test: {each:?}");
    // A change that cost all objects would cost about as much as the load.
    assert!(each < load / 20, "{each:?} of {load:?}");
}

/// An address of this machine: the API server refuses those of the loopback interface. Nothing is
/// sent to the address that only says which interface is meant.
fn address() -> Ipv4Addr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect("192.0.2.1:9").expect("this machine has a network");
    match socket.local_addr().unwrap().ip() {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("the socket is of IPv4"),
    }
}

/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(60);
const SLICES: usize = 10_000;
const CHANGES: usize = 20;
/// For steps after which a watch waits before it tries again.
const PATIENCE: Duration = Duration::from_secs(60);
