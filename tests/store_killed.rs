//! `xds serve --store` is killed (SIGKILL) while its API takes commits, again and again. Every commit
//! that was answered OK is there whole afterwards, every other one whole or absent (ST7, ST16).
//!
//! `XDS_KILLS=50` sets how often.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use running::{Running, Scratch, xds};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::Request;
use tonic::transport::Channel;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::store_client::StoreClient;

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

/// A store with its secrets sealed.
struct Stored(Scratch);

impl Stored {
    fn new(test: &str) -> Self {
        let stored = Self(Scratch::new(&format!("store-killed-{test}")));
        fs::write(stored.path("keys"), "k1 MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n").unwrap();
        assert!(xds().args(["store", "init", &stored.path("store")]).status().unwrap().success());
        stored
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name).to_str().unwrap().to_owned()
    }

    fn serve(&self) -> Running {
        Running::start(&[
            "serve",
            "--store",
            &self.path("store"),
            "--seal-keys",
            &self.path("keys"),
            "--seal",
            "acme.Secret",
        ])
    }
}

/// A client with the token that the server wrote for this machine.
#[derive(Clone)]
struct Api {
    client: StoreClient<Channel>,
    token: String,
}

impl Api {
    async fn connect(store: &str) -> Self {
        let file = fs::read_to_string(Path::new(store).join("server.json")).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        let address = format!("http://{}", file["address"].as_str().unwrap());
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        let token = format!("Bearer {}", file["token"].as_str().unwrap());
        Self { client: StoreClient::new(channel), token }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.parse().unwrap());
        // A server that was killed must not hold the test up.
        request.set_timeout(Duration::from_secs(20));
        request
    }

    /// Puts the records of a writer with the next number.
    async fn commit(&mut self, writer: usize, number: u64) -> Result<(), tonic::Status> {
        let change = |record| {
            let content = proto::Content { payload: payload(number).into(), ..Default::default() };
            let put = proto::Put { content: Some(content), ..Default::default() };
            proto::Change {
                key: Some(key(writer, record)),
                act: Some(proto::change::Act::Put(put)),
                condition: None,
            }
        };
        let changes = (0..RECORDS).map(change).collect();
        let request = self.request(proto::CommitRequest { changes, ..Default::default() });
        self.client.commit(request).await.map(drop)
    }

    /// The numbers in the records of each writer, 0 for those that are absent.
    async fn contents(&mut self) -> BTreeMap<usize, Vec<u64>> {
        let mut found = BTreeMap::new();
        for writer in 0..WRITERS {
            let mut numbers = Vec::new();
            for record in 0..RECORDS {
                let get = proto::GetRequest { key: Some(key(writer, record)), ..Default::default() };
                numbers.push(match self.client.get(self.request(get)).await {
                    Ok(answer) => number(&answer.into_inner().record.unwrap().content.unwrap().payload),
                    Err(status) if status.code() == tonic::Code::NotFound => 0,
                    Err(status) => panic!("{status}"),
                });
            }
            found.insert(writer, numbers);
        }
        found
    }
}

fn key(writer: usize, record: usize) -> proto::Key {
    let type_url = "type.googleapis.com/acme.Secret".to_owned();
    proto::Key { type_url, name: format!("{writer}/{record}"), when: String::new() }
}

/// Of several pages.
fn payload(number: u64) -> String {
    format!("{number} {}", "secret ".repeat(400))
}

fn number(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn st7_st16_a_server_that_is_killed_loses_no_acknowledged_commit() {
    let kills = env::var("XDS_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let stored = Stored::new("load");
    let runtime = Runtime::new().unwrap();
    let mut acknowledged = [0; WRITERS];
    let (mut all, mut answered) = (0, 0);
    // After the last kill, too, it is looked at what is there.
    for kill in 0..=kills {
        let mut server = stored.serve();
        let (sender, mut answers) = mpsc::unbounded_channel();
        runtime.block_on(async {
            let mut api = Api::connect(&stored.path("store")).await;
            let found = api.contents().await;
            for (writer, acknowledged) in acknowledged.iter_mut().enumerate() {
                let of_writer = &found[&writer];
                assert!(of_writer.iter().all(|content| *content == of_writer[0]), "kill {kill}: {found:?}");
                // A writer has one commit at a time.
                let expected = *acknowledged..=*acknowledged + 1;
                assert!(
                    expected.contains(&of_writer[0]),
                    "kill {kill}, writer {writer}: {expected:?}, {found:?}"
                );
                *acknowledged = of_writer[0];
            }
            if kill == kills {
                return;
            }
            for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
                let (mut api, sender, first) = (api.clone(), sender.clone(), acknowledged + 1);
                tokio::spawn(async move {
                    for number in first.. {
                        if api.commit(writer, number).await.is_err() || sender.send((writer, number)).is_err()
                        {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for _ in 0..40 + 13 * (kill % 7) {
                let (writer, number) = answers.recv().await.expect("the server takes commits");
                acknowledged[writer] = number;
                answered += 1;
            }
            // Not always at the same place of a batch.
            tokio::time::sleep(Duration::from_micros(173 * (kill as u64 % 11))).await;
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            while let Some((writer, number)) = answers.recv().await {
                acknowledged[writer] = number;
                answered += 1;
            }
        });
        let sum: u64 = acknowledged.iter().sum();
        if kill == kills {
            println!(
                "{kills} kills; {answered} acknowledged commits are there, and {} others",
                sum - answered
            );
            return;
        }
        assert!(sum > all, "kill {kill}: nothing was committed");
        all = sum;
        let check = xds().args(["store", "check", &stored.path("store")]).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}

#[test]
fn st45_st49_a_server_writes_a_backup_on_request_with_its_secrets_sealed() {
    let stored = Stored::new("backup");
    let (store, file, target) = (stored.path("store"), stored.path("file"), stored.path("target"));
    let mut server = stored.serve();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut api = Api::connect(&store).await;
        api.commit(0, 1).await.unwrap();
        api.commit(0, 2).await.unwrap();
    });
    let run = |arguments: &[&str]| {
        let output = xds().args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = run(&["store", "backup", &file, "--store", &store]);
    assert_eq!((code, text.contains("3 records at revision")), (Some(0), true), "{text}");
    assert_eq!(run(&["store", "check", &file]).0, Some(0));
    server.terminate();
    assert!(server.ends_within(Duration::from_secs(20)).unwrap().success());
    assert_eq!(run(&["store", "restore", &file, &target]).0, Some(0));
    let shows =
        Command::new("grep").args(["-rlaF", "secret secret", &store, &file, &target]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shows.stdout), "", "these files show a secret");
    let (code, text) = run(&["serve", "--store", &target, "--listen", "127.0.0.1:0"]);
    assert_eq!((code, text.contains("sealed by the key \"k1\"")), (Some(1), true), "{text}");
    fs::rename(&store, stored.path("old")).unwrap();
    fs::rename(&target, &store).unwrap();
    let _server = stored.serve();
    let found = runtime.block_on(async { Api::connect(&store).await.contents().await });
    assert_eq!(found[&0], [2, 2, 2]);
}

const WRITERS: usize = 8;
const RECORDS: usize = 3;
