//! Rollouts to real Envoys and gRPC clients: what they reject reaches those that try it, and no
//! other; a good change passes all steps, also when the server is killed meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

use crate::calls::Calls;
use crate::envoy::{Envoy, bootstrap};
use crate::folder::Folder;
use crate::grpc_peer::{Bootstrap, GrpcPeer, Implementation};
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::resources::{api_listener, cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

const ENVOYS: usize = 6;

/// Whether a change is refused.
fn is_refused(status: &Value) -> bool {
    status["refused"].as_array().is_some_and(|refused| !refused.is_empty())
}

struct Fleet {
    folder: Folder,
    /// The folder is applied to this store, whose server has no steps of its own.
    store: Option<Folder>,
    state: Folder,
    server: Server,
    _proxies: Vec<Server>,
    envoys: Vec<Envoy>,
    ports: Vec<u16>,
    loads: Vec<Load>,
    _scratches: Vec<Folder>,
    _upstreams: [Upstream; 2],
}

impl Fleet {
    /// The Envoys are divided among proxies with these node ids; without one, they connect to the server.
    async fn start(steps: &str, proxy_ids: &[&str]) -> Self {
        Self::start_with(Some(steps), proxy_ids).await
    }

    /// Without steps, they come with each commit to a store.
    async fn start_with(steps: Option<&str>, proxy_ids: &[&str]) -> Self {
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (folder, state) = (Folder::new(), Folder::new());
        let mode = Mode::ADS[0];
        folder.write("listener.json", &[listener(mode, "web", "routes")]);
        folder.write("routes.json", &[routes("routes", &[("/", "two")])]);
        folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
        folder.write("endpoints.json", &[endpoints("one", red.port), endpoints("two", blue.port)]);
        let of_state = state.path().to_str().expect("a text");
        let store = steps.is_none().then(Folder::new);
        let server = match (steps, &store) {
            (Some(steps), _) => {
                let options = ["--rollout", steps, "--rollout-wait", "3s", "--rollout-state", of_state];
                Server::start_with(folder.path(), &options).await
            }
            (None, Some(store)) => {
                let store = store.path().to_str().expect("a text");
                xds(&["store", "init", store]).await;
                let options = ["--store", store, "--rollout-state", of_state, "--admin", "127.0.0.1:0"];
                let server = Server::of_store(&options).await;
                server.admin_port().await;
                apply(&folder, store, &[]).await;
                server
            }
            (None, None) => unreachable!("without steps there is a store"),
        };
        let mut proxies = Vec::new();
        for id in proxy_ids {
            proxies.push(Server::proxy(server.port, &["--ack", "canary", "--node-id", id]).await);
        }
        let mut doors: Vec<u16> = proxies.iter().map(|proxy| proxy.port).collect();
        if doors.is_empty() {
            doors.push(server.port);
        }
        let (mut envoys, mut ports, mut loads, mut scratches) = (vec![], vec![], vec![], vec![]);
        for number in 0..ENVOYS {
            let scratch = Folder::new();
            let mut text = bootstrap(Mode::ADS[number % 2], doors[number * doors.len() / ENVOYS], &json!({}));
            text["node"]["id"] = format!("envoy-{number}").into();
            let envoy = Envoy::start_with(scratch.path(), &text.to_string(), "bootstrap.json").await;
            let envoy = envoy.expect("it was found before");
            ports.push(envoy.port("web").await);
            loads.push(Load::start(ports[number], "/", Connections::New));
            envoys.push(envoy);
            scratches.push(scratch);
        }
        let (_scratches, _upstreams) = (scratches, [red, blue]);
        Self { folder, store, state, server, _proxies: proxies, envoys, ports, loads, _scratches, _upstreams }
    }

    /// Gives what the folder has to the store, if there is one, to be rolled out.
    async fn commit(&self) {
        if let Some(store) = &self.store {
            let store = store.path().to_str().expect("a text");
            apply(&self.folder, store, &["--rollout", "2 clients, 100%", "--rollout-wait", "3s"]).await;
        }
    }

    fn status(&self) -> Value {
        let text = fs::read_to_string(self.state.path().join("status.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    async fn until_status(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        until(what, SOON, async || is_it(&self.status()).then_some(())).await;
    }

    /// For each Envoy a counter of its listeners.
    async fn lds(&self, counter: &str) -> Vec<u64> {
        let mut counts = Vec::new();
        for envoy in &self.envoys {
            counts.push(envoy.stats().await.get(&format!("listener_manager.lds.{counter}")));
        }
        counts
    }

    /// How many Envoys answer what.
    async fn answers(&self) -> BTreeMap<String, usize> {
        let mut answers = BTreeMap::new();
        for port in &self.ports {
            let answer = http::get(*port, "/").await.map(|answer| answer.body);
            *answers.entry(answer.unwrap_or_else(|error| format!("{error:?}"))).or_default() += 1;
        }
        answers
    }

    /// Commits a listener that no Envoy can bind, waits until it is refused, and restarts the server, which
    /// does not try it again. Returns which Envoys tried it; the
    /// others were sent nothing.
    async fn try_what_envoy_rejects(&mut self) -> Vec<bool> {
        let [rejected, attempts] = [self.lds("update_rejected").await, self.lds("update_attempt").await];
        assert_eq!(rejected, [0; ENVOYS]);
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut bad = listener(Mode::ADS[0], "bad", "routes");
        bad["address"]["socket_address"]["port_value"] =
            taken.local_addr().expect("an address").port().into();
        bad["enable_reuse_port"] = false.into();
        self.folder.write("bad.json", &[bad]);
        self.commit().await;
        self.until_status("the rollout is refused", is_refused).await;
        sleep(Duration::from_secs(2)).await;
        let rejected = self.lds("update_rejected").await;
        let tried: Vec<bool> = rejected.iter().map(|count| *count > 0).collect();
        for (number, (before, now)) in attempts.iter().zip(self.lds("update_attempt").await).enumerate() {
            assert!(tried[number] || *before == now, "envoy-{number} was sent something");
        }
        for envoy in &self.envoys {
            assert_eq!(envoy.listeners().await, ["web"]);
        }
        self.server.kill().await;
        self.server.restart().await;
        let stays_refused = |status: &Value| is_refused(status) && status["refused_total"] == 0;
        self.until_status("it stays refused", stays_refused).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!((self.lds("update_rejected").await, &self.status()["running"]), (rejected, &Value::Null));
        self.folder.remove("bad.json");
        self.commit().await;
        tried
    }

    async fn until_all_answer(&self, upstream: &str) {
        let what = format!("all are answered by {upstream}");
        let all = BTreeMap::from([(upstream.to_owned(), ENVOYS)]);
        until(&what, 2 * SOON, async || (self.answers().await == all).then_some(())).await;
    }

    async fn assert_nothing_lost(self) {
        for load in self.loads {
            let report = load.finish().await;
            report.assert_nothing_lost();
        }
    }
}

async fn apply(folder: &Folder, store: &str, options: &[&str]) {
    let folder = folder.path().to_str().expect("a text");
    xds(&[&["apply", folder, "--store", store, "--owner", "ci", "--prune"], options].concat()).await;
}

/// Runs a command of the binary, which has to succeed.
async fn xds(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_xds")).args(arguments).output().await.expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The steps come with the commit, and hold after a crash of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_to_a_store_brings_the_steps_of_its_rollout() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let mut fleet = Fleet::start_with(None, &[]).await;
    let tried = fleet.try_what_envoy_rejects().await;
    assert_eq!(tried.iter().filter(|tried| **tried).count(), 2, "{tried:?}");

    fleet.folder.write("routes.json", &[routes("routes", &[("/", "one")])]);
    fleet.commit().await;
    fleet.until_status("the first step runs", |status| status["running"]["acked"] == 2).await;
    let answers = fleet.answers().await;
    assert_eq!(answers.get("red"), Some(&2), "{answers:?}");
    fleet.server.kill().await;
    fleet.server.restart().await;
    fleet.until_status("it begins again", |status| status["running"]["step"] == 1).await;
    let answers = fleet.answers().await;
    assert!(answers.get("red").is_none_or(|count| *count <= 2), "{answers:?}");
    fleet.until_all_answer("red").await;
    fleet.until_status("it is promoted", |status| status["promoted"] == 1).await;

    // Another commit brings no steps: all have it at once.
    fleet.folder.write("routes.json", &[routes("routes", &[("/", "two")])]);
    let store = fleet.store.as_ref().expect("there is one").path().to_str().expect("a text");
    apply(&fleet.folder, store, &[]).await;
    fleet.until_all_answer("blue").await;
    assert_eq!(fleet.status()["running"], Value::Null);
    fleet.assert_nothing_lost().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_envoy_rejects_reaches_two_of_six_and_a_good_change_reaches_all() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let mut fleet = Fleet::start("2 clients, 100%", &[]).await;
    let tried = fleet.try_what_envoy_rejects().await;
    assert_eq!(tried.iter().filter(|tried| **tried).count(), 2, "{tried:?}");

    // A good change passes both steps: first two have it, then all.
    fleet.folder.write("routes.json", &[routes("routes", &[("/", "one")])]);
    fleet.until_status("the first step runs", |status| status["running"]["acked"] == 2).await;
    let answers = fleet.answers().await;
    assert_eq!(answers.get("red"), Some(&2), "{answers:?}");
    fleet.until_all_answer("red").await;
    fleet.until_status("it is promoted", |status| status["promoted"] == 1).await;

    // The server is killed in a step: the clients that try the change go back, and it begins again.
    for step in [1, 2] {
        let (cluster, upstream) = if step == 1 { ("two", "blue") } else { ("one", "red") };
        fleet.folder.write("routes.json", &[routes("routes", &[("/", cluster)])]);
        fleet.until_status("the step runs", |status| status["running"]["step"] == step).await;
        sleep(Duration::from_millis(500)).await;
        fleet.server.kill().await;
        fleet.server.restart().await;
        fleet.until_status("it begins again", |status| status["running"]["step"] == 1).await;
        fleet.until_all_answer(upstream).await;
        fleet.until_status("it is promoted", |status| status["promoted"] == 1).await;
    }
    fleet.assert_nothing_lost().await;
}

/// T45, C2: a proxy is one client of the server. It rejects what its first clients reject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_envoy_rejects_behind_a_proxy_reaches_the_first_clients_of_that_proxy_alone() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let mut fleet = Fleet::start("1 client, 100%", &["a", "b"]).await;
    let tried = fleet.try_what_envoy_rejects().await;
    assert_eq!(tried.iter().filter(|tried| **tried).count(), 2, "{tried:?}");
    let (behind_a, behind_b) = tried.split_at(ENVOYS / 2);
    assert!([behind_a, behind_b].contains(&&[false; ENVOYS / 2][..]), "{tried:?}");

    fleet.folder.write("routes.json", &[routes("routes", &[("/", "one")])]);
    fleet.until_status("the first step runs", |status| status["running"]["acked"] == 1).await;
    let answers = fleet.answers().await;
    assert_eq!(answers.get("red"), Some(&(ENVOYS / 2)), "{answers:?}");
    fleet.until_all_answer("red").await;
    fleet.until_status("it is promoted", |status| status["promoted"] == 1).await;
    fleet.assert_nothing_lost().await;
}

/// gRPC does not know clusters of the type STATIC, Envoy does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_grpc_client_rejects_reaches_no_other_and_a_good_change_reaches_all() {
    let Some((_red_server, red)) = GrpcPeer::server("red").await else { return };
    let Some((_blue_server, blue)) = GrpcPeer::server("blue").await else { return };
    let _turns = every_turn().await;
    let mode = Mode::ADS[0];
    for chosen in Implementation::ALL {
        let (folder, state) = (Folder::new(), Folder::new());
        folder.write("listener.json", &[api_listener(mode, "svc", "routes")]);
        folder.write("routes.json", &[routes("routes", &[("", "one")])]);
        folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
        folder.write("endpoints.json", &[endpoints("one", red), endpoints("two", blue)]);
        let of_state = state.path().to_str().expect("a text");
        let options = ["--rollout", "try=yes, 100%", "--rollout-wait", "2s", "--rollout-state", of_state];
        let server = Server::start_with(folder.path(), &options).await;
        let mut all = Vec::new();
        for implementation in Implementation::ALL {
            let metadata = if implementation == chosen { json!({ "try": "yes" }) } else { json!({}) };
            let (target, port) = ("xds:///svc", server.port);
            let client = GrpcPeer::client(implementation, Bootstrap::Inline, target, port, &metadata);
            let Some(client) = client else { return };
            let mut calls = Calls::start(implementation, client);
            calls.until_answer("red").await;
            all.push((implementation, calls));
        }
        let status = || -> Value {
            let text = fs::read_to_string(state.path().join("status.json")).unwrap_or_default();
            serde_json::from_str(&text).unwrap_or_default()
        };
        let mut bad = cluster(mode, "one");
        bad["type"] = "STATIC".into();
        bad.as_object_mut().expect("a map").remove("eds_cluster_config");
        folder.write("clusters.json", &[bad, cluster(mode, "two")]);
        until("it is refused", SOON, async || is_refused(&status()).then_some(())).await;
        for (_, calls) in &mut all {
            calls.go_on(20).await;
            calls.until_answer("red").await;
        }
        let rejections = server.lines_with("rejected");
        assert_eq!(rejections.iter().filter(|line| line.contains("Cluster")).count(), 2, "{rejections:?}");

        folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
        folder.write("routes.json", &[routes("routes", &[("", "two")])]);
        let at = all.iter().position(|(implementation, _)| *implementation == chosen).expect("it runs");
        all[at].1.until_answer("blue").await;
        for (_, calls) in &mut all {
            calls.until_answer("blue").await;
        }
        until("it is promoted", SOON, async || (status()["promoted"] == 1).then_some(())).await;
        for (_, calls) in all {
            calls.finish_without_loss().await;
        }
    }
}
