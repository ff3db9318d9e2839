//! The program in `examples/` does what its first lines say.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::LbPolicy;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, LocalityLbEndpoints};
use prost::{Message, Name};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use xds_core::{Cache, Resource, Transaction};
use xds_server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_cluster_prints_each_change_of_the_cluster_and_its_endpoints() {
    let cache = Cache::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::new(Arc::clone(&cache));
    tokio::spawn(server.serve(listener, std::future::pending()));
    commit(&cache, &cluster(LbPolicy::RoundRobin), &endpoints(1));

    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let bootstrap = folder.join(format!("follow-cluster-{}.json", std::process::id()));
    let source = fs::read_to_string("examples/follow_cluster.rs").unwrap();
    let (_, written) = source.split_once("//! ```json\n").unwrap();
    let (written, _) = written.split_once("//! ```").unwrap();
    let written = written.replace("//! ", "").replace("127.0.0.1:18000", &address);
    fs::write(&bootstrap, written).unwrap();

    let mut program = Command::new(program("follow_cluster"));
    program.arg("checkout").env("GRPC_XDS_BOOTSTRAP", &bootstrap);
    let mut running = program.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut shown = [lines.next_line().await.unwrap().unwrap(), lines.next_line().await.unwrap().unwrap()];
    shown.sort_unstable();
    assert_eq!(shown[0], "checkout: 1 endpoints");
    assert!(shown[1].starts_with("checkout: lb policy RoundRobin, version "), "{shown:?}");

    commit(&cache, &cluster(LbPolicy::RoundRobin), &endpoints(2));
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "checkout: 2 endpoints");
    running.kill().await.unwrap();
    fs::remove_file(bootstrap).unwrap();
}

/// Cargo builds the examples with the tests, unless a test target is selected.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let program = test.parent().and_then(Path::parent).unwrap().join("examples").join(file);
    let changed_at = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let source = changed_at(&Path::new("examples").join(format!("{name}.rs")));
    assert!(changed_at(&program) >= source, "out of date: cargo build -p xds-client --examples");
    program
}

fn commit(cache: &Cache, cluster: &Cluster, endpoints: &ClusterLoadAssignment) {
    let mut transaction = Transaction::new();
    put(&mut transaction, &cluster.name, cluster);
    put(&mut transaction, &endpoints.cluster_name, endpoints);
    cache.commit(transaction).unwrap();
}

fn put<M: Message + Name>(transaction: &mut Transaction, name: &str, message: &M) {
    let payload = message.encode_to_vec();
    transaction.put(Resource::new(M::type_url().as_str(), name, payload).unwrap());
}

fn cluster(policy: LbPolicy) -> Cluster {
    let mut cluster = Cluster { name: "checkout".into(), ..Default::default() };
    cluster.set_lb_policy(policy);
    cluster
}

fn endpoints(count: usize) -> ClusterLoadAssignment {
    let lb_endpoints = vec![LbEndpoint::default(); count];
    let locality = LocalityLbEndpoints { lb_endpoints, ..Default::default() };
    ClusterLoadAssignment { cluster_name: "checkout".into(), endpoints: vec![locality], ..Default::default() }
}
