//! A node that fell so far behind that it takes a snapshot, and what clients see of it meanwhile (SR20).

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::thread;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use prost::Message as _;
use xds_store::engine::{Engine as _, RedbEngine};
use xds_store::store::{Identity, Store};

use super::offline::Offline;
use super::regions::Said;
use super::*;

/// A store in the folder of a node, which no process serves.
pub(super) fn offline(node: &Node, name: &str) -> Offline<RedbEngine> {
    let folder = node.scratch.path("store");
    fs::create_dir_all(&folder).unwrap();
    let mut engine = RedbEngine::open(&folder.join("store.redb")).unwrap();
    let identity = Identity { node: name.into(), cluster: "c".into(), ..Identity::default() };
    engine.commit(&Store::init(&identity)).unwrap();
    Offline::load(engine)
}

fn cluster(name: &str, alt_stat_name: &str) -> proto::Change {
    let cluster = Cluster { name: name.into(), alt_stat_name: alt_stat_name.into(), ..Cluster::default() };
    let content = proto::Content { payload: cluster.encode_to_vec().into(), ..proto::Content::default() };
    let put = proto::Put { content: Some(content), ..proto::Put::default() };
    let key = proto::Key { type_url: CLUSTER.into(), name: name.into(), when: String::new() };
    proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None }
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A client with a stream, and each line that it prints.
struct Watching {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Watching {
    fn all_clusters(server: &str) -> Self {
        let mut command = xds();
        command.args(["watch", "--server", server, "--format", "json", "CDS"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What a line of the client says happened.
fn what(event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap();
    format!("{} {}", event["event"].as_str().unwrap(), event["name"].as_str().unwrap())
}

fn texts<const COUNT: usize>(texts: [&str; COUNT]) -> BTreeSet<String> {
    texts.into_iter().map(str::to_owned).collect()
}

#[test]
fn sr20_while_a_node_takes_a_snapshot_streams_keep_what_they_have_and_new_ones_go_elsewhere() {
    Runtime::new().unwrap().block_on(async {
        let mut nodes = [Node::new("behind", "a").await, Node::new("behind", "b").await];
        let (mut a, mut b) = (offline(&nodes[0], "a"), offline(&nodes[1], "b"));
        a.commit(vec![cluster("x", "before"), cluster("gone", "")]);
        b.pull(&a);
        a.commit((0..2_000).map(|number| cluster(&format!("n{number}"), &"x".repeat(1_000))).collect());
        a.commit(vec![cluster("x", "after")]);
        let delete = proto::change::Act::Delete(proto::Delete::default());
        a.commit(vec![proto::Change { act: Some(delete), ..cluster("gone", "") }]);
        a.forget_all();
        drop((a, b));

        let urls: Vec<_> = nodes.iter().map(Node::url).collect();
        // SR24: it serves what it has without any peer.
        nodes[1].start(&urls, &[]);
        let server = nodes[1].process.as_ref().unwrap().address.clone();
        let watching = Watching::all_clusters(&server);
        let next = || watching.lines.recv_timeout(PATIENCE).expect("the client prints a line");
        let first: BTreeSet<_> = (0..3).map(|_| next()).map(|event| what(&event)).collect();
        assert_eq!(first, texts(["changed x", "changed gone", "complete *"]));

        nodes[0].link.stall(Some(500_000));
        nodes[0].start(&urls, &[]);
        nodes[1]
            .until("it takes a snapshot", |node| node.xds(&["store", "status"]).text().contains("resyncing"));
        let process = nodes[1].process.as_ref().unwrap();
        let ready =
            http(&process.admin, "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
        nodes[1].xds(&["list", "CDS"]).fails(&["UNAVAILABLE"]);
        nodes[1]
            .put(&json!({"@type": CLUSTER, "name": "early"}), &[])
            .fails(&["UNAVAILABLE", "takes a snapshot"]);
        let new_stream = xds().args(["get", "--server", &server, "--timeout", "1", "CDS", "x"]).output();
        Said(new_stream.unwrap()).fails(&["takes a snapshot"]);
        assert_eq!(watching.lines.try_iter().next(), None, "a stream that is open gets nothing");

        nodes[0].link.stall(None);
        let rest: BTreeSet<_> = (0..2_002).map(|_| what(&next())).collect();
        let (new, old): (BTreeSet<_>, BTreeSet<_>) =
            rest.into_iter().partition(|event| event.starts_with("changed n"));
        assert_eq!((new.len(), old), (2_000, texts(["changed x", "gone gone"])));
    });
}
