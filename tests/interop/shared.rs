//! Two servers of one store in a real etcd. A real Envoy has the addresses of both.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::envoy::{CHANGES, Envoy, RESPONSES, bootstrap};
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::{Mode, Protocol};
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::shared_store::SharedStore;
use crate::upstream::Upstream;
use crate::wait::{CONTACT, SOON, until};
use crate::world::every_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st19_an_envoy_moves_to_the_other_server_of_its_store_and_loses_no_request_and_gets_nothing_twice() {
    if [peers::ENVOY, peers::ETCD].into_iter().any(|program| peers::find(program).is_none()) {
        return;
    }
    let _turns = every_turn().await;
    for mode in Mode::ADS {
        eprintln!("--- {mode}");
        let mut shared = Shared::start(mode).await;
        let loads = [Connections::New, Connections::Kept].map(|of| Load::start(shared.port, "/v1", of));
        for (server, upstream) in [(0, "blue"), (1, "red"), (0, "blue")] {
            shared.put(server, upstream).await;
        }
        let first = shared.connected().await;
        shared.kill(first, "red").await;
        // The server that starts again has what was committed meanwhile, so Envoy can go back.
        shared.servers[first].restart().await;
        shared.put(first, "blue").await;
        shared.put(1 - first, "red").await;
        shared.kill(1 - first, "blue").await;
        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
        let rejected = shared.envoy.stats().await.ending(&[".update_rejected"]);
        assert!(rejected.values().all(|count| *count == 0), "{mode}: {rejected:?}");
    }
}

/// All programs of the test. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Shared {
    mode: Mode,
    upstreams: BTreeMap<&'static str, Upstream>,
    pub(crate) servers: Vec<Server>,
    pub(crate) envoy: Envoy,
    /// The port of the listener `web`.
    pub(crate) port: u16,
    pub(crate) store: SharedStore,
}

impl Shared {
    async fn start(mode: Mode) -> Self {
        let store = SharedStore::start().await;
        let servers = vec![store.server(&[]).await, store.server(&[]).await];
        Self::over(mode, store, servers).await
    }

    /// An Envoy with the addresses of these servers.
    pub(crate) async fn over(mode: Mode, store: SharedStore, servers: Vec<Server>) -> Self {
        let upstreams =
            BTreeMap::from([("red", Upstream::start("red").await), ("blue", Upstream::start("blue").await)]);
        let resources = [
            listener(mode, "web", "routes"),
            routes("routes", &[("/", "one")]),
            cluster(mode, "one"),
            endpoints("one", upstreams["red"].port),
        ];
        store.commit(&servers[0], &resources).await;
        for server in &servers {
            let has_all = async || {
                let output = store.run(server, &["list", "EDS", "one"]).await;
                output.status.success().then_some(())
            };
            // A node that joins takes a snapshot first.
            until("each server has the resources", CONTACT, has_all).await;
        }
        let mut both = bootstrap(mode, servers[0].port, &json!({}));
        let hosts =
            &mut both["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"];
        for server in &servers[1..] {
            let mut host = hosts[0].clone();
            host["endpoint"]["address"]["socket_address"]["port_value"] = server.port.into();
            hosts.as_array_mut().expect("a list").push(host);
        }
        let envoy = Envoy::start_with(store.folder(), &both.to_string(), "bootstrap.json").await;
        let envoy = envoy.expect("it was found before");
        let port = envoy.port("web").await;
        Self { mode, upstreams, servers, envoy, port, store }
    }

    /// Commits other endpoints through one of the servers, and waits until Envoy uses them.
    ///
    /// A server that lacks what another one committed would make a concurrent change, which may lose (SR39).
    pub(crate) async fn put(&self, server: usize, upstream: &str) {
        self.agree().await;
        self.commit(server, upstream).await;
        let answers = async || (http::get(self.port, "/v1").await.ok()?.body == upstream).then_some(());
        let what = format!("{}: {upstream} answers after a commit through server {server}", self.mode);
        until(&what, CONTACT, answers).await;
    }

    /// Commits other endpoints through one of the servers.
    pub(crate) async fn commit(&self, server: usize, upstream: &str) {
        let endpoints = endpoints("one", self.upstreams[upstream].port);
        self.store.commit(&self.servers[server], &[endpoints]).await;
    }

    /// Waits until all servers that answer have one state.
    pub(crate) async fn agree(&self) {
        let agree = async || {
            let mut states = BTreeSet::new();
            for server in &self.servers {
                let output = self.store.run(server, &["list", "EDS", "one", "--format", "yaml"]).await;
                states.extend(output.status.success().then_some(output.stdout));
            }
            (states.len() == 1).then_some(())
        };
        until("the servers have one state", CONTACT, agree).await;
    }

    /// The server that has Envoy's stream.
    pub(crate) async fn connected(&self) -> usize {
        let ports: Vec<_> = self.servers.iter().map(|server| server.port).collect();
        let connected = async || {
            let connections = self.envoy.connections("xds").await;
            ports.iter().position(|port| connections.get(port).is_some_and(|count| *count > 0))
        };
        until("Envoy is connected to a server", SOON, connected).await.0
    }

    /// Kills the server that Envoy is connected to (SIGKILL). Envoy moves to another one, which
    /// sends it the next commit and nothing that it has.
    pub(crate) async fn kill(&mut self, server: usize, upstream: &str) {
        let mode = self.mode;
        assert_eq!(self.connected().await, server, "{mode}");
        // A server that is behind would send Envoy what it has.
        self.agree().await;
        let (before, sent) = (self.envoy.stats().await, self.sent_without(server).await);
        self.servers[server].kill().await;
        let moved = async || {
            let stats = self.envoy.stats().await;
            (self.connected().await != server && stats.get("control_plane.connected_state") == 1)
                .then_some(())
        };
        until("Envoy moves to the other server", SOON, moved).await;
        let other = (server + 1) % self.servers.len();
        self.put(other, upstream).await;

        let (after, sent) = (self.envoy.stats().await, self.sent_without(server).await - sent);
        assert_eq!(after.ending(CHANGES), before.ending(CHANGES), "{mode}: nothing was taken for a change");
        let mut versions = before.ending(&[".version"]);
        versions.insert("cluster.one.version".to_owned(), after.get("cluster.one.version"));
        assert_eq!(after.ending(&[".version"]), versions, "{mode}: the servers have equal versions");
        if mode.protocol == Protocol::Delta {
            let mut expected = before.ending(RESPONSES);
            *expected.get_mut("cluster.one.update_success").expect("its endpoints come over EDS") += 1;
            assert_eq!(after.ending(RESPONSES), expected, "{mode}: only the commit was sent");
            assert_eq!(sent, 1, "{mode}: only the commit was sent");
        }
    }

    /// How many responses the other servers have sent.
    async fn sent_without(&self, server: usize) -> u64 {
        let mut sent = 0;
        for other in (0..self.servers.len()).filter(|other| *other != server) {
            sent += self.sent(other).await;
        }
        sent
    }

    /// How many responses a server has sent.
    async fn sent(&self, server: usize) -> u64 {
        let port = self.servers[server].admin_port().await;
        let answer = http::get_from(port, &format!("127.0.0.1:{port}"), "/metrics").await;
        let metrics = answer.expect("the admin page answers").body;
        let counts = metrics.lines().filter(|line| line.starts_with("xds_server_responses_total{"));
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }
}
