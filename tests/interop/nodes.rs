//! Three nodes that replicate a store. A real Envoy under load has the addresses of all, while nodes are
//! cut off, killed, set back and replaced.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::http;
use crate::link::Link;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::shared::Shared;
use crate::shared_store::SharedStore;
use crate::wait::{CONTACT, until};
use crate::world::every_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sr43_an_envoy_moves_between_nodes_and_loses_no_request_and_gets_nothing_twice() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    for mode in Mode::ADS {
        eprintln!("--- {mode}");
        let mut nodes = Nodes::start(mode).await;
        let loads = [Connections::New, Connections::Kept].map(|of| Load::start(nodes.shared.port, "/v1", of));
        for (node, upstream) in [(0, "blue"), (1, "red"), (2, "blue")] {
            nodes.shared.put(node, upstream).await;
        }
        nodes.cut_off("red").await;
        let killed = nodes.shared.connected().await;
        nodes.shared.kill(killed, "blue").await;
        nodes.keep_copy(killed);
        nodes.restart(killed).await;
        nodes.shared.put(killed, "red").await;
        nodes.rewind(killed).await;
        nodes.shared.put(killed, "blue").await;
        nodes.shared.put(killed, "red").await;
        let replaced = nodes.shared.connected().await;
        nodes.shared.kill(replaced, "blue").await;
        nodes.replace(replaced).await;
        nodes.shared.put(replaced, "red").await;
        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
        let stats = nodes.shared.envoy.stats().await;
        let wrong = stats.ending(&[
            ".update_rejected",
            "cluster_manager.cluster_removed",
            "listener_manager.listener_removed",
        ]);
        assert!(wrong.values().all(|count| *count == 0), "{mode}: {wrong:?}");
    }
}

/// Dropping this ends all programs.
struct Nodes {
    shared: Shared,
    /// How each node reaches each other one: first the caller.
    links: Vec<Vec<Link>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Nodes {
    async fn start(mode: Mode) -> Self {
        let mut links = Vec::new();
        for _ in NAMES {
            links.push(vec![Link::new().await, Link::new().await, Link::new().await]);
        }
        let (store, mut servers) = (SharedStore::of_nodes(), Vec::new());
        for (node, name) in NAMES.iter().enumerate() {
            let first = url(&links[node][0]);
            store.init(name, (node > 0).then_some(&first)).await;
            let server = store.node(name, &links[node].iter().map(url).collect::<Vec<_>>()).await;
            lead_to(&links, node, server.admin_port().await);
            servers.push(server);
        }
        Self { shared: Shared::over(mode, store, servers).await, links }
    }

    /// The node that Envoy is connected to reaches no other one, and is reached by none. Envoy keeps what it
    /// has, and gets what was committed elsewhere once the links are mended.
    async fn cut_off(&self, upstream: &str) {
        let node = self.shared.connected().await;
        let before = http::get(self.shared.port, "/v1").await.expect("Envoy answers").body;
        self.shared.agree().await;
        self.cut(node, true);
        let other = (node + 1) % NAMES.len();
        self.shared.commit(other, upstream).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(http::get(self.shared.port, "/v1").await.expect("Envoy answers").body, before);
        assert_eq!(self.shared.connected().await, node, "Envoy stays");
        self.cut(node, false);
        let answers =
            async || (http::get(self.shared.port, "/v1").await.ok()?.body == upstream).then_some(());
        until("the commit arrives once the links are mended", CONTACT, answers).await;
    }

    fn cut(&self, node: usize, is_cut: bool) {
        for (caller, links) in self.links.iter().enumerate() {
            for (callee, link) in links.iter().enumerate() {
                if caller == node || callee == node {
                    link.cut(is_cut);
                }
            }
        }
    }

    /// Starts a node that was killed.
    async fn restart(&mut self, node: usize) {
        self.shared.servers[node].restart().await;
        lead_to(&self.links, node, self.shared.servers[node].admin_port().await);
    }

    /// Copies the folder of a node that was killed.
    fn keep_copy(&self, node: usize) {
        copy(&self.shared.store.folder().join(NAMES[node]), &self.shared.store.folder().join("copy"));
    }

    /// A node starts again with the copy of its folder, so commits of its own are lost there, and peers know
    /// them. It takes another id and a snapshot (SR29, SR31).
    async fn rewind(&mut self, node: usize) {
        self.shared.servers[node].kill().await;
        let folder = self.shared.store.folder().join(NAMES[node]);
        fs::remove_dir_all(&folder).expect("it is there");
        copy(&self.shared.store.folder().join("copy"), &folder);
        self.restart(node).await;
    }

    /// A new node takes the place of one that was killed, and whose disk is lost.
    async fn replace(&mut self, node: usize) {
        let (store, name) = (&self.shared.store, NAMES[node]);
        fs::remove_dir_all(store.folder().join(name)).expect("it is there");
        let other = (node + 1) % NAMES.len();
        store.init(name, Some(&url(&self.links[node][other]))).await;
        self.restart(node).await;
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the temporary directory is writable");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("as above");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("as above");
    }
}

fn url(link: &Link) -> String {
    format!("http://{}", link.address)
}

fn lead_to(links: &[Vec<Link>], node: usize, port: u16) {
    links.iter().for_each(|of_caller| of_caller[node].lead_to(port));
}
