//! A client of gRPC's C core, at its default limits, reads each answer of the API of a store (ST54b).

use std::process::Stdio;

use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::{change, condition};

use crate::grpc_peer::python;
use crate::server::Server;
use crate::shared_store::{SharedStore, TOKEN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st54b_a_client_of_the_c_core_reads_why_a_large_commit_fails() {
    let shared = SharedStore::of_nodes();
    shared.init("one", None).await;
    let node = shared.node("one", &["http://127.0.0.1:1".to_owned()]).await;
    let checks = |count: usize, name: &str| {
        let changes = (0..count).map(|at| proto::Change {
            key: Some(key(&format!("{name}{at}"))),
            condition: Some(proto::Condition { is: Some(condition::Is::Exists(true)) }),
            act: Some(change::Act::Check(proto::Check {})),
        });
        proto::CommitRequest { changes: changes.collect(), ..Default::default() }
    };
    for request in [checks(60, "absent"), checks(1, &"x".repeat(4000)), checks(50, &"é".repeat(2000))] {
        let Some(answer) = commit(&node, &request).await else { return };
        assert!(answer.starts_with("NOT_FOUND ") && answer.contains("does not exist"), "{answer}");
    }
    // No peer confirms it.
    let puts = (0..100).map(|at| {
        let name = format!("assignment-with-a-name-of-some-length-{at}");
        let payload = [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat().into();
        let content = proto::Content { payload, ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        proto::Change { key: Some(key(&name)), act: Some(change::Act::Put(put)), ..Default::default() }
    });
    let timeout = prost_types::Duration { seconds: 0, nanos: 200_000_000 };
    let request = proto::CommitRequest {
        changes: puts.collect(),
        ack_peers: 1,
        ack_timeout: Some(timeout),
        ..Default::default()
    };
    let answer = commit(&node, &request).await.expect("it was found before");
    assert!(answer.starts_with("DEADLINE_EXCEEDED ") && answer.contains("it is committed here"), "{answer}");
}

fn key(name: &str) -> proto::Key {
    let type_url = xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT.to_owned();
    proto::Key { type_url, name: name.to_owned(), when: String::new() }
}

/// The answer to a commit, as the program prints it; `None` if it is not installed.
async fn commit(node: &Server, request: &proto::CommitRequest) -> Option<String> {
    let target = format!("127.0.0.1:{}", node.admin_port().await);
    let mut command = python("call.py")?;
    command.args([&*target, "/xds.store.v1.Store/Commit", TOKEN]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(&request.encode_to_vec()).await.expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("it ends");
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{}", answer.chars().take(200).collect::<String>());
    Some(answer)
}
